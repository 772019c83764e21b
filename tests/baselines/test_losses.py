"""Contrastive losses, and the sums over all pairs below them, against plain double precision."""

from __future__ import annotations

import concurrent.futures
import itertools
import math
import multiprocessing
import os
import subprocess
import sys
import tracemalloc

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from threedident.baselines import log_sum_exp as implementation
from threedident.baselines import losses
from threedident.baselines.experiment import load_experiment
from threedident.baselines.log_sum_exp import log_sum_exp
from threedident.baselines.losses import Bilinear, Dot, Power, Quadratic, info_nce
from threedident.distributions.torch_sampler import seeded
from threedident.errors import UsageError

#: Prints what the kernels make of the same codes.
_PRINTS_GRADIENTS = """
import torch
from threedident.baselines.log_sum_exp import log_sum_exp
a, b = torch.randn(2, 64, 10, generator=torch.Generator().manual_seed(0)).requires_grad_()
for p in (None, 1, 2, 3):
    sums = log_sum_exp(a, b, p, backend="numba")
    print([t.tolist() for t in (sums, *torch.autograd.grad(sums.sum(), (a, b)))])
"""
POWERS = (None, 1, 2, 3, 1.5, 2.5)
BACKENDS = ("numba", "torch")
few = hypothesis.settings(max_examples=25)


@pytest.fixture(autouse=True, scope="module")
def _compiled():
    """Whatever has to be compiled is, before a test begins."""
    assert all(implementation._kernels(double) is not None for double in (False, True))
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine threads wait for one another
    yield
    torch.set_num_threads(before)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def draw(*shape, seed=0, scale=1.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)


def learned(*tensors):
    return [t.detach().clone().requires_grad_() for t in tensors]


def naive_scores(a, b, p):
    if p is None:
        return a @ b.T
    return -((a[:, None] - b[None]).abs() ** p).sum(2)


def naive(a, b, p, exclude=None):
    scores = naive_scores(a, b, p)
    if exclude is not None:
        row, column = torch.arange(len(a))[:, None], torch.arange(len(b))[None]
        scores = scores.masked_fill(column == row + exclude, -math.inf)
    return scores.logsumexp(1)


def with_gradients(function, *tensors):
    leaves = learned(*tensors)
    value = function(*leaves)
    weights = torch.cos(torch.arange(value.numel(), dtype=value.dtype)).reshape(value.shape)
    return [value.detach(), *torch.autograd.grad((weights * value).sum(), leaves)]


def assert_close(found, expected, tolerance):
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        apart = (one.double() - other.double()).abs().max()
        assert apart <= tolerance * (1e-300 + other.abs().max()), (number, float(apart))


# Sums over all pairs


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("p", POWERS)
def test_sums_and_gradients_are_those_of_the_definition(p, backend):
    # 700 candidates are several tiles of 13 dimensions, the last of them with padding.
    for rows, count, n in ((70, 700, 13), (3, 5, 1), (5, 2, 64), (1, 1, 2)):
        a, b = draw(rows, n, scale=0.4), draw(count, n, seed=1, scale=0.4)
        found = with_gradients(lambda x, y: log_sum_exp(x, y, p, backend=backend), a, b)
        expected = with_gradients(lambda x, y: naive(x, y, p), a, b)
        assert_close(found, expected, 1e-13)
        assert found[0].dtype == torch.float64


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("p", POWERS)
def test_gradcheck(p, backend):
    a, b = learned(draw(6, 3), draw(9, 3, seed=1))
    torch.autograd.gradcheck(lambda x, y: log_sum_exp(x, y, p, backend=backend), (a, b))
    torch.autograd.gradcheck(
        lambda x: log_sum_exp(x, x, p, exclude=0, backend=backend), (a,), nondet_tol=0
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("exclude", [0, 1, 300, -4, 690, -69, 699, 700, -70, 10_000, -10_000])
def test_a_row_leaves_out_the_candidate_at_its_offset(exclude, backend):
    a, b = draw(70, 12, scale=0.1), draw(700, 12, seed=1, scale=0.1)
    found = with_gradients(
        lambda x, y: log_sum_exp(x, y, 2, exclude=exclude, backend=backend), a, b
    )
    assert_close(found, with_gradients(lambda x, y: naive(x, y, 2, exclude), a, b), 1e-13)
    overlaps = -70 < exclude < 700
    assert overlaps == bool((found[0] < log_sum_exp(a, b, 2, backend=backend)).any())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_without_candidates_is_minus_infinity_and_pulls_at_nothing(backend, dtype):
    a, b = learned(draw(3, 2, dtype=dtype), draw(1, 2, seed=1, dtype=dtype))
    found = log_sum_exp(a, b, 2, exclude=-1, backend=backend)
    assert found[1] == -math.inf
    expected = naive(a.detach(), b.detach(), 2)
    torch.testing.assert_close(found[[0, 2]], expected[[0, 2]])
    found[1].backward()
    assert (a.grad == 0).all()
    assert (b.grad == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("p", POWERS)
def test_float32_is_accurate(p, backend, two_threads):
    a, b = draw(400, 10, scale=0.5), draw(1500, 10, seed=1, scale=0.5)
    expected = with_gradients(lambda x, y: naive(x, y, p), a, b)
    found = with_gradients(lambda x, y: log_sum_exp(x, y, p, backend=backend), a.float(), b.float())
    assert [t.dtype for t in found] == [torch.float32] * 3
    assert_close(found, expected, 3e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("p", [None, 2])
def test_half_precision_is_computed_in_float32(dtype, p, backend):
    a, b = draw(40, 10, dtype=dtype), draw(60, 10, seed=1, dtype=dtype)

    def function(x, y):
        return log_sum_exp(x, y, p, backend=backend)

    value, *gradients = with_gradients(function, a, b)
    expected = with_gradients(lambda x, y: naive(x, y, p), a.double(), b.double())
    assert value.dtype == torch.float32
    assert_close([value], expected[:1], 1e-6)
    assert [t.dtype for t in gradients] == [dtype] * 2
    assert_close(gradients, expected[1:], torch.finfo(dtype).eps)


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_changes_nothing(backend):
    a, b = draw(40, 10, dtype=torch.float32), draw(60, 10, seed=1, dtype=torch.float32)

    def function(x, y):
        return log_sum_exp(x, y, None, backend=backend)

    plain = with_gradients(function, a, b)
    with torch.autocast("cpu", torch.bfloat16):  # the backward pass lies within, too
        cast = with_gradients(function, a, b)
        loss = info_nce(*learned(a, b[:40]), Dot(0.5), symmetric=True, backend=backend)
    for one, other in zip(plain, cast, strict=True):
        assert torch.equal(one, other)
    assert loss == info_nce(a, b[:40], Dot(0.5), symmetric=True, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("p", "scale"), list(itertools.product(POWERS, (1e-12, 1e-3, 30, 1e4))))
def test_scales_far_from_one(p, scale, dtype, backend):
    a, b = draw(40, 4, scale=scale, dtype=dtype), draw(600, 4, seed=1, scale=scale, dtype=dtype)
    found = with_gradients(lambda x, y: log_sum_exp(x, y, p, backend=backend), a, b)
    expected = with_gradients(lambda x, y: naive(x, y, p), a.double(), b.double())
    assert all(t.isfinite().all() for t in found)
    precision = torch.finfo(dtype).eps
    assert_close(found[:1], expected[:1], 4 * precision)
    # Scores have that many units in the last place; weights cannot be better than them.
    assert_close(found[1:], expected[1:], 20 * precision * (1 + expected[0].abs().max()))


def test_small_differences_of_codes_far_from_the_origin_do_not_cancel():
    near, shift = draw(50, 10, dtype=torch.float32), 4096.0
    near = (near * 256).round() / 256  # so that the shifted codes are exact
    for backend in BACKENDS:
        here = with_gradients(lambda x, b=backend: log_sum_exp(x, x, 2, backend=b), near)
        far = with_gradients(lambda x, b=backend: log_sum_exp(x, x, 2, backend=b), near + shift)
        assert_close(far, here, 1e-6)


@pytest.mark.parametrize("p", [1, 1.5, 2, 3])
def test_equal_codes_do_not_pull(p):
    for backend in BACKENDS:
        value, gradient = with_gradients(
            lambda x, b=backend: log_sum_exp(x, x, p, backend=b), torch.ones(20, 3)
        )
        torch.testing.assert_close(value, torch.full((20,), math.log(20)))
        assert (gradient == 0).all()


@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_no_number_shows(backend, bad):
    a = draw(5, 3, dtype=torch.float32)
    a[1, 2] = bad
    found = log_sum_exp(a, a, 2, backend=backend)
    assert found.isnan().any()
    assert not log_sum_exp(a[2:], a[2:], 2, backend=backend).isnan().any()


def test_auto_is_the_compiled_backend_where_there_is_one(monkeypatch):
    a = draw(5, 3)
    called = []
    for name in BACKENDS:
        forward = implementation._FORWARD[name]
        monkeypatch.setitem(
            implementation._FORWARD,
            name,
            lambda *x, f=forward, n=name: (called.append(n), f(*x))[1],
        )
    log_sum_exp(a, a)
    assert called == ["numba"]
    monkeypatch.setattr(implementation, "_kernels", lambda _: None)
    log_sum_exp(a, a)
    assert called == ["numba", "torch"]
    with pytest.raises(UsageError, match="needs numba"):
        log_sum_exp(a, a, backend="numba")


def test_a_cache_that_cannot_be_written_is_done_without(monkeypatch):
    compile_again = implementation._kernels.__wrapped__

    def refuse(function, flags, cache=False):
        if cache:
            raise RuntimeError("no locator available")
        return lambda *_: None

    monkeypatch.setattr(implementation, "_jit", refuse)
    assert compile_again(False) is not None
    monkeypatch.setattr(implementation, "_jit", lambda *_: lambda *_: 1 / 0)
    assert compile_again(False) is None
    monkeypatch.setattr(implementation, "numba", None)
    assert compile_again(False) is None


def test_kernels_round_alike_just_compiled_and_from_the_cache(tmp_path):
    """Else the first training on a machine ends with other weights than all later ones."""
    said = [
        subprocess.run(
            [sys.executable, "-c", _PRINTS_GRADIENTS],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    ]
    assert list(tmp_path.rglob("*.nbc"))
    assert said[0].count("[") > 500
    assert said[0] == said[1]


def test_threads_change_only_the_rounding(two_threads):
    a, b = draw(1500, 5, dtype=torch.float32), draw(1500, 5, seed=1, dtype=torch.float32)
    assert implementation._parts(a, b) > 2

    def function(x, y):
        return log_sum_exp(x, y, 1, exclude=3, backend="numba")

    many, again = with_gradients(function, a, b), with_gradients(function, a, b)
    assert all(torch.equal(x, y) for x, y in zip(many, again, strict=True))
    torch.set_num_threads(1)
    assert implementation._parts(a, b) == 1
    assert_close(with_gradients(function, a, b), many, 1e-6)


def _in_a_fork(queue, a):
    queue.put(log_sum_exp(a, a, 2, backend="numba").sum().item())


def test_several_threads_and_a_forked_process_may_call(two_threads):
    a = draw(600, 4)
    expected = log_sum_exp(a, a, 2, backend="numba")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: log_sum_exp(a, a, 2, backend="numba"), range(8)):
            assert torch.equal(found, expected)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_in_a_fork, args=(queue, a))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert queue.get() == expected.sum().item()


def test_the_compiled_backend_holds_nothing_of_all_pairs(two_threads):
    a = draw(3000, 6, dtype=torch.float32).requires_grad_()
    tracemalloc.start()
    try:
        log_sum_exp(a, a, 2, backend="numba").sum().backward()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3000 * 3000 * 4 / 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": torch.zeros(3)}, "a must be floating point"),
        ({"b": torch.zeros(0, 2)}, "b must be floating point"),
        ({"a": torch.zeros(3, 2, dtype=torch.int64)}, "found torch.int64"),
        ({"b": torch.zeros(4, 3)}, "as many columns"),
        ({"b": torch.zeros(4, 2, device="meta")}, "one device"),
        ({"p": 0.5}, "p must be at least 1"),
        ({"p": math.nan}, "p must be at least 1"),
        ({"backend": "cuda"}, "expected one of auto, numba, torch"),
    ],
)
def test_arguments_of_sums_are_checked(change, message):
    arguments = {"a": torch.zeros(3, 2), "b": torch.zeros(4, 2), "p": 2, "backend": "auto"}
    arguments |= change
    with pytest.raises(UsageError, match=message):
        log_sum_exp(arguments.pop("a"), arguments.pop("b"), arguments.pop("p"), **arguments)


# InfoNCE


def similarities(n):
    weights = torch.linspace(0.5, 3, n, dtype=torch.float64)
    return {
        "dot": (Dot(0.3), lambda a, b: (a * b).sum(-1) / 0.3),
        "Laplace": (Power(1, 2.0), lambda a, b: -(a - b).abs().sum(-1) / 2),
        "Normal": (Power(2), lambda a, b: -((a - b) ** 2).sum(-1)),
        "GenNorm": (Power(3, 0.7), lambda a, b: -(a - b).abs().pow(3).sum(-1) / 0.7),
        "AnInfoNCE": (Quadratic(weights), lambda a, b: -(weights * (a - b) ** 2).sum(-1) / 2),
        "TriCL": (Bilinear(weights), lambda a, b: (weights * a * b).sum(-1)),
    }


def plain_info_nce(z, z_tilde, score, negatives, own, symmetric=False, hard=None):
    """One anchor after another, from the definition."""

    def one_way(anchors, positives, hard):
        terms = []
        for i in range(len(anchors)):
            chosen = [positives[i]]
            for j in range(len(anchors)):
                if negatives in ("anchors", "both") and (own or j != i):
                    chosen.append(anchors[j])
                if negatives in ("positives", "both") and j != i:
                    chosen.append(positives[j])
            if hard is not None:
                chosen += list(hard[i])
            scores = torch.stack([score(anchors[i], c) for c in chosen])
            terms.append(-(scores[0].exp() / scores.exp().sum()).log())
        return torch.stack(terms).mean()

    first, second = hard if symmetric and hard is not None else (hard, None)
    loss = one_way(z, z_tilde, first)
    return (loss + one_way(z_tilde, z, second)) / 2 if symmetric else loss


MODES = list(itertools.product(("anchors", "positives", "both"), (True, False), (True, False)))


@pytest.mark.parametrize(("negatives", "own", "symmetric"), MODES)
@pytest.mark.parametrize("name", similarities(3))
def test_info_nce_is_its_definition(name, negatives, own, symmetric):
    z = draw(7, 3, scale=0.6)
    z_tilde = z + draw(7, 3, seed=1, scale=0.3)
    similarity, score = similarities(3)[name]
    found = with_gradients(
        lambda x, y: info_nce(
            x, y, similarity, negatives=negatives, own=own, symmetric=symmetric
        ).view(1),
        z,
        z_tilde,
    )
    expected = with_gradients(
        lambda x, y: plain_info_nce(x, y, score, negatives, own, symmetric).view(1), z, z_tilde
    )
    assert_close(found, expected, 1e-13)


@pytest.mark.parametrize("negatives", losses.NEGATIVES)
@pytest.mark.parametrize("symmetric", [True, False])
def test_hard_negatives_are_their_own_anchors_alone(negatives, symmetric):
    z, z_tilde = draw(6, 3, scale=0.6), draw(6, 3, seed=1, scale=0.6)
    hard, other = draw(6, 2, 3, seed=2, scale=0.6), draw(6, 4, 3, seed=3, scale=0.6)
    similarity, score = similarities(3)["AnInfoNCE"]

    def ours(x, y, h, o):
        drawn = (h, o) if symmetric else h
        own = negatives == "anchors"
        loss = info_nce(
            x, y, similarity, negatives=negatives, own=own, symmetric=symmetric, hard=drawn
        )
        return (loss + 0 * o.sum()).view(1)

    def plain(x, y, h, o):
        drawn, own = (h, o) if symmetric else h, negatives == "anchors"
        return (plain_info_nce(x, y, score, negatives, own, symmetric, drawn) + 0 * o.sum()).view(1)

    arguments = (z, z_tilde, hard, other)
    assert_close(with_gradients(ours, *arguments), with_gradients(plain, *arguments), 1e-13)


@pytest.mark.parametrize(("negatives", "own", "symmetric"), MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_two_processes_together_have_the_loss_of_one(negatives, own, symmetric, backend):
    z, z_tilde = draw(10, 3), draw(10, 3, seed=1)
    options = {"negatives": negatives, "own": own, "symmetric": symmetric, "backend": backend}

    def alone(x, y):
        return info_nce(x, y, Power(1), **options).view(1)

    def two(x, y):
        parts = []
        for start, stop in ((0, 4), (4, 10)):
            gathered = (x, y, start)
            loss = info_nce(x[start:stop], y[start:stop], Power(1), gathered=gathered, **options)
            parts.append(loss * (stop - start) / 10)
        return torch.stack(parts).sum().view(1)

    found, expected = with_gradients(two, z, z_tilde), with_gradients(alone, z, z_tilde)
    assert_close(found, expected, 1e-13)


def test_gradients_reach_what_the_similarity_learns():
    z, z_tilde = draw(8, 3), draw(8, 3, seed=1)
    weights, tau = draw(3, seed=2).exp(), torch.tensor(0.7, dtype=torch.float64)

    def quadratic(x):
        return lambda a, b: -(x * (a - b) ** 2).sum(-1) / 2

    def bilinear(x):
        return lambda a, b: (x * a * b).sum(-1)

    def dot(x):
        return lambda a, b: (a * b).sum(-1) / x

    def cubes(x):
        return lambda a, b: -(a - b).abs().pow(3).sum(-1) / x

    cases = [
        (Quadratic, quadratic, weights),
        (Bilinear, bilinear, weights),
        (Dot, dot, tau),
        (lambda t: Power(3, t), cubes, tau),
    ]
    for kind, score, start in cases:
        for negatives in ("anchors", "both"):
            found = with_gradients(
                lambda x, k=kind, n=negatives: info_nce(z, z_tilde, k(x), negatives=n).view(1),
                start,
            )
            expected = with_gradients(
                lambda x, s=score, n=negatives: plain_info_nce(z, z_tilde, s(x), n, True).view(1),
                start,
            )
            assert_close(found, expected, 1e-12)
            assert (found[1] != 0).all()


def test_the_optimal_concentration_is_that_of_the_data_less_that_of_hard_negatives():
    # Rusak et al. 2024, Corollary B.1, in one dimension of unbounded space, where the positives
    # are Normal with precision 9 and the only negatives with precision 4.
    z = draw(20_000, 1)
    z_tilde = z + draw(20_000, 1, seed=1) / 3
    hard = z[:, None] + draw(20_000, 30, 1, seed=2) / 2
    candidates = torch.linspace(3, 7, 9, dtype=torch.float64)
    found = [
        info_nce(z, z_tilde, Quadratic(x.view(1)), negatives="none", hard=hard) for x in candidates
    ]
    assert candidates[torch.stack(found).argmin()] == 5


def test_a_small_loss_keeps_its_digits():
    z = torch.tensor([[0.0], [7.0]])
    found = info_nce(z, z, Power(2), negatives="positives")
    assert found.item() == pytest.approx(math.exp(-49), rel=1e-4, abs=0)


def test_one_pair_without_negatives_costs_nothing():
    (z,) = learned(draw(1, 3))
    loss = info_nce(z, z + 1, Power(1), negatives="both", own=False)
    loss.backward()
    assert loss == 0
    assert (z.grad == 0).all()


def test_half_precision_codes_make_a_float32_loss():
    z, z_tilde = draw(50, 4, dtype=torch.bfloat16), draw(50, 4, seed=1, dtype=torch.bfloat16)
    found = info_nce(z, z_tilde, Power(2), symmetric=True)
    assert found.dtype == torch.float32
    expected = info_nce(z.double(), z_tilde.double(), Power(2), symmetric=True)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)


codes = st.builds(
    lambda seed, rows, n, scale: (
        draw(rows, n, seed=seed, scale=scale),
        draw(rows, n, seed=seed + 1, scale=scale),
    ),
    st.integers(0, 10_000),
    st.integers(1, 40),
    st.integers(1, 12),
    st.floats(0.01, 3),
)
modes = st.sampled_from(MODES)
kinds = st.sampled_from((None, 1, 2, 3))


def loss_of(z, z_tilde, p, mode):
    negatives, own, symmetric = mode
    similarity = Dot(0.8) if p is None else Power(p, 0.8)
    return info_nce(
        z, z_tilde, similarity, negatives=negatives, own=own, symmetric=symmetric
    ).item()


@few
@hypothesis.given(codes, modes, st.sampled_from((None, 2)))
def test_rotations_change_nothing(pair, mode, p):
    z, z_tilde = pair
    turn = torch.linalg.qr(draw(z.shape[1], z.shape[1], seed=3))[0]
    found = loss_of(z @ turn, z_tilde @ turn, p, mode)
    assert found == pytest.approx(loss_of(z, z_tilde, p, mode), rel=1e-9, abs=1e-12)


@few
@hypothesis.given(codes, modes, st.sampled_from((1, 2, 3)), st.floats(-5, 5))
def test_translations_change_nothing_of_powers(pair, mode, p, shift):
    z, z_tilde = pair
    found = loss_of(z + shift, z_tilde + shift, p, mode)
    assert found == pytest.approx(loss_of(z, z_tilde, p, mode), rel=1e-9, abs=1e-12)


@few
@hypothesis.given(codes, modes, kinds)
def test_the_order_of_a_batch_changes_nothing(pair, mode, p):
    z, z_tilde = pair
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(0))
    found = loss_of(z[order], z_tilde[order], p, mode)
    assert found == pytest.approx(loss_of(z, z_tilde, p, mode), rel=1e-9, abs=1e-12)


@few
@hypothesis.given(codes, modes, kinds)
def test_a_loss_is_never_below_zero_and_more_negatives_never_lower_it(pair, mode, p):
    negatives, _, symmetric = mode
    with_own = loss_of(*pair, p, (negatives, True, symmetric))
    without = loss_of(*pair, p, (negatives, False, symmetric))
    assert 0 <= without <= with_own + 1e-12
    assert with_own <= loss_of(*pair, p, ("both", True, symmetric)) + 1e-12


@few
@hypothesis.given(codes, kinds, st.integers(-45, 45), st.sampled_from(BACKENDS))
def test_backends_agree_in_float32(pair, p, exclude, backend):
    a, b = pair

    def function(x, y):
        return log_sum_exp(x, y, p, exclude=exclude, backend=backend)

    hypothesis.assume(len(a) > 1)
    found = function(a.float(), b.float())
    expected = naive(a, b, p, exclude)
    # What is rounded is the score, or a difference of such.
    allowed = 1e-6 * (2 + naive_scores(a, b, p).abs().max().item())
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=allowed)


def test_arguments_of_info_nce_are_checked():
    z = torch.zeros(4, 2)
    hard = torch.zeros(4, 3, 2)

    def refuses(match, *arguments, **options):
        with pytest.raises(UsageError, match=match):
            info_nce(*arguments, **options)

    refuses("both sets of codes", z, torch.zeros(4, 3), Dot())
    refuses("codes must be floating point", torch.zeros(4), torch.zeros(4), Dot())
    refuses("codes must be floating point", z.long(), z.long(), Dot())
    refuses("unknown negatives 'all'", z, z, Dot(), negatives="all")
    refuses("needs hard negatives", z, z, Dot(), negatives="none")
    refuses(r"shape \(4, k, 2\)", z, z, Dot(), hard=torch.zeros(3, 3, 2))
    refuses(r"shape \(4, k, 2\)", z, z, Dot(), hard=torch.zeros(4, 2))
    refuses("with symmetric a pair", z, z, Dot(), hard=hard, symmetric=True)
    refuses("with symmetric a pair", z, z, Dot(), hard=(hard, hard))
    refuses("must be a pair", z, z, Dot(), hard=(hard,), symmetric=True)
    refuses("own ones at their offset", z, z, Dot(), gathered=(z, z, 1))
    refuses("own ones at their offset", z, z, Dot(), gathered=(z, z, -1))
    refuses("both sets of codes", z, z, Dot(), gathered=(z, z[:3], 0))
    refuses("unknown backend", z, z, Dot(), backend="jax")
    refuses("Lambda must have a weight", z, z, Quadratic(torch.ones(3)))
    refuses("S must have a weight", z, z, Bilinear(torch.ones(1)))
    for make, match in (
        (lambda: Dot(0.0), "tau must be above 0"),
        (lambda: Power(2, -1.0), "tau must be above 0"),
        (lambda: Dot(torch.ones(2)), "tau must be one number"),
        (lambda: Power(0.5), "p must be at least 1"),
        (lambda: Quadratic(2.0), "Lambda must be a tensor"),
        (lambda: Bilinear(torch.ones(2, 2)), "S must be a tensor"),
    ):
        with pytest.raises(UsageError, match=match):
            make()


# Other losses


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("alpha", [0, 0.3, 1])
def test_alignment_and_uniformity_are_equations_70_to_72(p, own, alpha):
    z, z_tilde = draw(9, 4), draw(9, 4, seed=1)

    def plain(x, y):
        weights = naive_scores(x, x, p).exp()
        means = weights.mean(1) if own else (weights - torch.eye(9)).sum(1) / 8
        spread = means.log().mean()
        return (alpha * spread + (1 - alpha) * (x - y).abs().pow(p).sum(1).mean()).view(1)

    def ours(x, y):
        return losses.alignment_uniformity(x, y, alpha, p, own=own).view(1)

    assert_close(with_gradients(ours, z, z_tilde), with_gradients(plain, z, z_tilde), 1e-12)


def test_uniformity_of_one_point_and_of_many_far_apart():
    assert losses.uniformity(torch.zeros(5, 2), 2) == pytest.approx(0, abs=1e-6)
    apart = 100 * torch.arange(5.0)[:, None]
    assert losses.uniformity(apart, 1).item() == pytest.approx(-math.log(5))
    assert losses.uniformity(apart, 1, own=False).item() == pytest.approx(
        -100 - math.log(4) + 0.6 * math.log(2)  # three of five have a neighbour on both sides
    )
    assert losses.alignment(apart, apart + 2, 3).item() == pytest.approx(8)


@pytest.mark.parametrize("contrast", losses.CONTRASTS)
def test_tricl_is_its_definition(contrast):
    z, z_tilde, S = draw(6, 3), draw(6, 3, seed=1), draw(3, seed=2).exp()

    def plain(x, y, s):
        scores = (x * s) @ y.T
        others = ~torch.eye(6, dtype=torch.bool)
        loss = -2 * scores.diag().mean() + scores[others].square().mean()
        if contrast == "info_nce":
            loss = plain_info_nce(
                x, y, lambda a, b: (s * a * b).sum(-1), "both", False, symmetric=True
            )
        views = torch.cat([x, y])
        extra = views.T @ views / 12 - torch.eye(3, dtype=torch.float64)
        return (loss + 0.4 * (extra**2).sum()).view(1)

    def ours(x, y, s):
        return losses.tricl(x, y, s, weight=0.4, contrast=contrast).view(1)

    arguments = (z, z_tilde, S)
    assert_close(with_gradients(ours, *arguments), with_gradients(plain, *arguments), 1e-12)


def test_tricl_under_autocast():
    z, z_tilde = draw(60, 5, dtype=torch.float32), draw(60, 5, seed=1, dtype=torch.float32)
    expected = losses.tricl(z, z_tilde, torch.ones(5))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(losses.tricl(z, z_tilde, torch.ones(5)), expected)


def test_mean_squared_error():
    z = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert losses.mean_squared_error(z, z + torch.tensor([1.0, 3.0])) == 5
    half = losses.mean_squared_error(z.bfloat16(), z + 1)
    assert half.dtype == torch.float32
    with pytest.raises(UsageError, match="one shape"):
        losses.mean_squared_error(z, z[0:1])


def test_arguments_of_the_other_losses_are_checked():
    z = torch.zeros(4, 2)
    for call, match in (
        (lambda: losses.alignment_uniformity(z, z, 1.5, 2), "alpha must be from 0 to 1"),
        (lambda: losses.alignment(z, z, 0.5), "p must be at least 1"),
        (lambda: losses.uniformity(z, math.inf), "p must be at least 1"),
        (lambda: losses.uniformity(z[:1], 2, own=False), "at least two codes"),
        (lambda: losses.tricl(z[:1], z[:1], torch.ones(2)), "at least two pairs"),
        (lambda: losses.tricl(z, z, torch.ones(3)), "S must have a weight"),
        (lambda: losses.tricl(z, z, torch.ones(2), contrast="x"), "unknown contrast 'x'"),
    ):
        with pytest.raises(UsageError, match=match):
            call()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_weight_of_zero_has_the_gradient_of_the_similarity(backend, dtype):
    z, z_tilde = draw(12, 4, dtype=dtype), draw(12, 4, seed=1, dtype=dtype)
    start = torch.tensor([0.0, 2.0, 0.0, 0.5], dtype=dtype)

    def ours(a, b, weights):
        options = {"negatives": "both", "own": False, "symmetric": True}
        return info_nce(a, b, Quadratic(weights), **options, backend=backend).view(1)

    def plain(a, b, weights):
        def score(x, y):
            return -(weights * (x - y) ** 2).sum(-1) / 2

        return plain_info_nce(a, b, score, "both", False, symmetric=True).view(1)

    found = with_gradients(ours, z, z_tilde, start)
    expected = with_gradients(plain, z.double(), z_tilde.double(), start.double())
    assert all(each.isfinite().all() for each in found)
    assert_close(found, expected, 2e-6 if dtype == torch.float32 else 1e-13)


@pytest.mark.parametrize("learned", [False, True])
def test_negative_weights_and_temperatures_are_refused(learned):
    def leaf(*values):
        return torch.tensor(values, requires_grad=learned)

    with pytest.raises(UsageError, match=r"Lambda must be at least 0, found -0\.5"):
        Quadratic(leaf(1.0, -0.5))
    for tau in (leaf(-1.0), leaf(0.0)):
        for kind in (Dot, lambda t: Power(1, t), lambda t: Power(2, t)):
            with pytest.raises(UsageError, match=r"tau must be above 0, found -?[01]$"):
                kind(tau)


def published_aninfonce(z, z_tilde, weights, transposed):
    """As Rusak et al.'s code has it: all similarities, the own one left out.

    It takes those of the views for both halves as they are, where the paper has the transpose.
    """

    def scores(a, b):
        return -(weights * (a[:, None] - b[None]) ** 2).sum(-1) / 2

    own = torch.eye(len(z), dtype=torch.bool)
    first = scores(z, z).masked_fill(own, -math.inf)
    second = scores(z_tilde, z_tilde).masked_fill(own, -math.inf)
    across = scores(z, z_tilde)
    halves = (
        torch.cat([across, first], 1).logsumexp(1),
        torch.cat([across.T if transposed else across, second], 1).logsumexp(1),
    )
    return (torch.stack(halves).mean(0) - across.diagonal()).mean().view(1)


@pytest.mark.parametrize(("count", "apart"), [(64, 0.14), (1000, 0.035)])
def test_aninfonce_is_the_papers_and_differs_from_the_published_code_as_said(count, apart):
    process = load_experiment("aninfonce").processes[0]
    Lambda = torch.tensor(process.conditional.Lambda, dtype=torch.float64)

    def ours(a, b):
        options = {"negatives": "both", "own": False, "symmetric": True}
        return info_nce(a, b, Quadratic(Lambda), **options).view(1)

    differences = []
    for seed in range(3):
        generator = seeded(seed)
        z = process.marginal.marginal(process.space, count, generator=generator)
        z_tilde = process.conditional.sample(process.space, z, generator=generator)
        pair = z.double(), z_tilde.double()
        found = with_gradients(ours, *pair)
        paper = with_gradients(lambda a, b: published_aninfonce(a, b, Lambda, True), *pair)
        assert_close(found, paper, 1e-12)
        code = with_gradients(lambda a, b: published_aninfonce(a, b, Lambda, False), *pair)
        mine, theirs = torch.cat(found[1:]), torch.cat(code[1:])
        differences.append((mine - theirs).norm() / mine.norm())
    assert float(sum(differences)) / 3 == pytest.approx(apart, rel=0.1)


def test_the_polynomial_of_exp_is_accurate():
    x = np.linspace(-59.99, 0.5, 100_000).astype(np.float32)
    found = x.copy()
    implementation._exp_all(found, np.float32(0), np.float32(1))
    expected = np.exp(x.astype(np.float64))
    assert np.abs(found / expected - 1).max() < 3e-7
    below = np.array([-60.1, -100, -3e38, -np.inf], np.float32)
    implementation._exp_all(below, np.float32(0), np.float32(1))
    assert (below == 0).all()
