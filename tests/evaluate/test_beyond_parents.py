"""R2 beyond parents."""

import numpy as np
import pytest
import threadpoolctl
from helpers.synthetic_codes import rotation, seeds, uniform
from hypothesis import given, settings
from hypothesis import strategies as st

from threedident.errors import UsageError
from threedident.evaluate.metrics import linear_r2, nonlinear_r2, r2_beyond_parents

pytestmark = pytest.mark.slow  # many draws and fits

MECHANISMS = {
    "linear": lambda a, b: 0.8 * a - 0.6 * b,
    "nonlinear": lambda a, b: np.sin(3 * a) * np.cos(2 * b),
    "of one": lambda a, b: a**2,
}
PARENTS = ([], [], [0, 1])


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    with threadpoolctl.threadpool_limits(1):
        yield


def family(mechanism, samples=800, noise=0.3, seed=0):
    generator = np.random.default_rng(seed)
    roots = generator.uniform(-1, 1, (samples, 2))
    child = MECHANISMS[mechanism](*roots.T) + noise * generator.standard_normal(samples)
    return np.concatenate([roots, child[:, None]], 1)


@pytest.mark.parametrize("mechanism", ["linear", "nonlinear"])
@pytest.mark.parametrize("bend", [lambda p: p, lambda p: np.tanh(2 * p)])
def test_codes_that_hold_parents_alone_tell_nothing_beyond_them(mechanism, bend):
    z = family(mechanism)
    found = r2_beyond_parents(z, bend(z[:, :2]), PARENTS)
    assert nonlinear_r2(z, bend(z[:, :2])).per_factor[2] > 0.6
    assert abs(found.per_factor[2]) < 0.02
    assert found.per_factor[:2] == pytest.approx(1, abs=1e-3)
    assert found.parts["parents_r2"][2] > 0.6


def test_plain_r2_flatters_a_code_that_holds_a_linear_cause():
    z = family("linear")
    assert linear_r2(z, z[:, :2]).per_factor[2] > 0.75
    assert abs(r2_beyond_parents(z, z[:, :2], PARENTS).per_factor[2]) < 0.02


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(
    "codes",
    [
        lambda z: z[:, 2:],
        lambda z: z @ rotation(3),
        lambda z: z[:, 2:] + 2 * z[:, :1],  # the child, mixed with its parent
        lambda z: np.tanh(z @ np.random.default_rng(0).standard_normal((3, 8)) / 2),
    ],
)
def test_codes_that_hold_the_child_tell_all_of_it(mechanism, codes):
    z = family(mechanism)
    assert r2_beyond_parents(z, codes(z), PARENTS).per_factor[2] > 0.98


@pytest.mark.parametrize("noise", [0.5, 1.0])
def test_a_noisy_code_of_the_child_tells_as_much_as_theory_says(noise):
    """Of e in z = f(p) + e, c = z + d: given p, R2 is var e / (var e + var d)."""
    z = family("nonlinear", 2000)
    c = z[:, 2:] + 0.3 * noise * np.random.default_rng(3).standard_normal((2000, 1))
    found = r2_beyond_parents(z, c, PARENTS).per_factor[2]
    assert found == pytest.approx(1 / (1 + noise**2), abs=0.05)


def test_roots_have_the_plain_kernel_r2():
    z = family("linear", 300)
    codes = np.tanh(z @ np.random.default_rng(0).standard_normal((3, 2)))
    none = r2_beyond_parents(z, codes, [[]] * 3)
    kernel = nonlinear_r2(z, codes)
    assert none.per_factor == pytest.approx(kernel.per_factor, abs=1e-9)
    assert np.isnan(none.parts["parents_r2"]).all()
    counts = np.random.default_rng(0).integers(0, 3, (4, 300)).astype(float)
    drawn = [each.resample.replicate(counts).per_factor for each in (none, kernel)]
    assert np.allclose(*drawn, rtol=0, atol=1e-9)


@given(seeds, st.permutations(range(3)))
@settings(max_examples=8)
def test_the_order_of_factors_and_of_parents_does_not_matter(seed, order):
    z = family("nonlinear", 80, seed=seed)
    codes = z[:, 1:] + 0.2 * np.random.default_rng(seed).standard_normal((80, 2))
    place = np.argsort(order)
    moved = [[int(place[p]) for p in reversed(PARENTS[i])] for i in order]
    before = r2_beyond_parents(z, codes, PARENTS).per_factor[list(order)]
    after = r2_beyond_parents(z[:, list(order)], codes, moved).per_factor
    assert np.allclose(before, after, rtol=0, atol=1e-6)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("origin", [1.0, 4.0])
def test_angles_as_parents_and_children_have_no_origin(seed, origin):
    generator = np.random.default_rng(seed)
    parent = generator.uniform(0, 2 * np.pi, 300)
    child = np.mod(parent + generator.normal(0, 0.5, 300), 2 * np.pi)
    z, codes = np.stack([parent, child], 1), np.stack([np.cos(child), np.sin(parent)], 1)
    moved = np.mod(z + origin, 2 * np.pi)
    scores = [r2_beyond_parents(a, codes, ([], [0]), kinds=["circular"] * 2) for a in (z, moved)]
    # The widths of kernels see the coordinates one by one, so that rounding is not all.
    assert np.allclose(scores[0].per_factor, scores[1].per_factor, rtol=0, atol=0.02)


def test_discrete_parents_and_children():
    generator = np.random.default_rng(0)
    shape = generator.integers(0, 3, 900)
    hue = np.array([-1.0, 0.5, 1.0])[shape] + 0.3 * generator.standard_normal(900)
    again = np.where(generator.uniform(size=900) < 0.6, shape, generator.integers(0, 3, 900))
    z = np.stack([shape, hue, again], 1)
    kinds = ["discrete", "continuous", "discrete"]
    parents = ([], [0], [0])
    one_hot = (shape[:, None] == np.arange(3)).astype(float)
    found = r2_beyond_parents(z, one_hot, parents, kinds=kinds)
    assert found.per_factor[0] > 0.99
    assert np.abs(found.per_factor[1:]).max() < 0.03
    assert linear_r2(z, one_hot, kinds=kinds).per_factor.min() > 0.25
    whole = np.concatenate([one_hot, hue[:, None], again[:, None] == np.arange(3)], 1)
    assert r2_beyond_parents(z, whole, parents, kinds=kinds).per_factor.min() > 0.95


def test_a_factor_that_its_parents_tell_is_left_out():
    z = family("nonlinear", 600, noise=0.0)
    found = r2_beyond_parents(z, z, PARENTS)
    assert np.isnan(found.per_factor[2])
    assert found.value == pytest.approx(found.per_factor[:2].mean())
    assert found.choices["told_by_parents_left_out"] == [2]


def test_replicates():
    z = family("linear", 120)
    codes = z[:, 1:] + 0.1 * uniform(120, 2)
    found = r2_beyond_parents(z, codes, PARENTS)
    drawn = found.resample.replicate(np.ones((2, 120)))
    assert np.allclose(drawn.per_factor, found.per_factor[None], rtol=0, atol=1e-9)
    assert found.parts["folds"].mean(0) == pytest.approx(found.per_factor)


@pytest.mark.parametrize(
    ("parents", "options", "message"),
    [
        ([[]], {}, "expected parents for each of 3 factors"),
        ([[], [], [2]], {}, "the parents of factor 2 must be other columns of z, 0 to 2, found"),
        ([[], [], [3]], {}, "the parents of factor 2 must be other columns"),
        (PARENTS, {"folds": "in-sample"}, "scores held-out rows"),
    ],
)
def test_arguments_that_do_not_fit(parents, options, message):
    with pytest.raises(UsageError, match=message):
        r2_beyond_parents(uniform(40, 3), uniform(40, 2), parents, **options)
