"""Samplers in torch, against closed forms."""

from __future__ import annotations

import math

import hypothesis
import numpy as np
import pytest
import torch
from helpers.distributions import (
    EVERY,
    UNLIKELY,
    N,
    additive,
    anchors,
    conditionals,
    fits,
    generator,
    on_sphere,
    shapes,
    spaces,
    truncated_cdf,
    uncorrelated,
)
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from threedident.distributions import (
    Change,
    GeneralizedNormal,
    Laplace,
    Normal,
    PairProcess,
    PerFactor,
    ProjectedNormal,
    Unchanged,
    Uniform,
    VonMisesFisher,
    raw_box,
)
from threedident.distributions import torch_sampler as sampling
from threedident.distributions.spaces import Box, Product, Sphere, Unbounded, check_points
from threedident.distributions.torch_sampler import seeded
from threedident.errors import UsageError


def rejection_loop(mean, concentration, shell: float, count: int, seed: int = 0):
    """The projected normal as it is defined."""
    rng = np.random.default_rng(seed)
    found = np.empty((0, len(mean)))
    while len(found) < count:
        moved = mean + rng.standard_normal((200_000, len(mean))) / np.sqrt(concentration)
        norm = np.linalg.norm(moved, axis=1)
        good = np.abs(norm - 1) < shell
        found = np.concatenate([found, moved[good] / norm[good, None]])
    return found[:count]


def test_normal_and_laplace_by_their_own_definitions():
    space, mean = Unbounded(2), [0.5, -2.0]
    for made, law in (
        (Normal(0.3), stats.norm(scale=0.3)),
        (Laplace(0.3), stats.laplace(scale=0.3)),
    ):
        drawn = made.marginal(space, N, generator=generator(), mean=mean)
        assert drawn.dtype == torch.float32
        for column in (0, 1):
            fits(drawn[:, column] - mean[column], law.cdf)
        uncorrelated(drawn[:, 0], drawn[:, 1])


@pytest.mark.parametrize("beta", [0.05, 0.2, 0.5, 0.99, 1.0, 1.5, 2.0, 3.0, 20.0])
def test_generalised_normal_in_unbounded_space(beta):
    widths = (0.7, 1e-6, 1e6)
    mean = torch.zeros(N, 3, dtype=torch.float64)
    drawn = GeneralizedNormal(widths, beta).sample(Unbounded(3), mean, generator=generator())
    for column, scale in enumerate(widths):
        fits(drawn[:, column] / scale, stats.gennorm(beta).cdf)
    if beta >= 0.5:
        law = stats.gennorm(beta, scale=0.7)
        assert float(drawn[:, 0].mean()) == pytest.approx(0, abs=5 * law.std() / math.sqrt(N))
        assert float(drawn[:, 0].var()) == pytest.approx(law.var(), rel=0.15)
    uncorrelated(*(drawn / torch.tensor(widths)).sign().T)


def test_a_generalised_normal_of_shape_1_or_2_is_laplace_or_normal():
    for general, special_case in (
        (GeneralizedNormal(0.2, 1), Laplace(0.2)),
        (GeneralizedNormal(0.2 * math.sqrt(2), 2), Normal(0.2)),
    ):
        for space in (Box(3), Sphere(3), Unbounded(3)):
            same = [d.marginal(space, 5, generator=generator(3)) for d in (general, special_case)]
            torch.testing.assert_close(*same)


@pytest.mark.parametrize("space", [Unbounded(1), Box(1, -3.0, 3.0), Box(1, -1.0, 7.0)], ids=str)
def test_a_generalised_normal_of_a_large_shape_is_uniform(space):
    drawn = GeneralizedNormal(1.0, 1e6).sample(space, torch.zeros(N, 1), generator=generator())
    fits(drawn[:, 0], stats.uniform(-1, 2).cdf)


@pytest.mark.parametrize("box", [Box(7), Box(7, 0.0, 1.0)], ids=["[-1,1]", "[0,1]"])
@pytest.mark.parametrize("beta", [0.5, 1.0, 1.5, 2.0, 3.0, 20.0])
def test_additive_noise_is_truncated_to_a_box(box, beta):
    # Anchors everywhere, with widths far below and far above the box; on a border; by the other.
    widths = np.array([1e-6, 0.03, 0.5, 4.0, 1e4, 0.3, 0.3])
    anchors = np.random.default_rng(0).uniform(box.low, box.high, (N, box.n))
    anchors[:, 5] = box.low
    anchors[:, 6] = box.high - 1e-5
    mean = torch.from_numpy(anchors)
    drawn = additive(beta, widths).sample(box, mean, generator=generator()).numpy()
    assert drawn.dtype == np.float64
    ranks = truncated_cdf(drawn, anchors, widths, beta, box)
    for column in range(box.n):
        fits(ranks[:, column], stats.uniform.cdf)
    uncorrelated(*ranks.T, *anchors[:, :5].T)


@pytest.mark.parametrize("beta", [1.0, 2.0, 3.0])
def test_moments_in_a_box(beta):
    scale, mean, count = 0.6, 0.7, 100_000
    drawn = additive(beta, scale).marginal(Box(1), count, mean=[mean], generator=generator())
    x = np.linspace(-1, 1, 200_001)
    density = np.exp(-(np.abs((x - mean) / scale) ** beta))
    expected = np.average(x, weights=density)
    spread = np.average((x - expected) ** 2, weights=density)
    assert drawn.dtype == torch.float32
    assert float(drawn.mean()) == pytest.approx(expected, abs=5 * math.sqrt(spread / count))
    assert float(drawn.var()) == pytest.approx(spread, rel=0.02)


def test_a_normal_in_a_box_is_the_truncated_normal():
    sigma, mean = 0.4, 0.9
    law = stats.truncnorm((-1 - mean) / sigma, (1 - mean) / sigma, loc=mean, scale=sigma)
    fits(Normal(sigma).marginal(Box(1), N, mean=[mean], generator=generator())[:, 0], law.cdf)


@pytest.mark.parametrize("conditional", [Normal(0.1), Laplace(0.1), Normal(0.5)], ids=str)
def test_pairs_of_the_raw_box_have_the_spread_that_truncation_leaves(conditional):
    z, z_tilde = PairProcess(raw_box(), conditional).sample(N, generator=generator(1))
    assert z.shape == z_tilde.shape == (N, 10)
    for column in range(10):
        fits(z[:, column], stats.uniform(-1, 2).cdf)
    grid = (np.arange(1000) + 0.5) / 500 - 1
    step = grid - grid[:, None]
    density = np.exp(-(np.abs(step / conditional.scale) ** conditional.shape))
    density /= density.sum(1, keepdims=True)
    expected = math.sqrt((density * step**2).sum() / len(grid))
    assert float((z_tilde - z).std()) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("space", [Box(3), Box(3, 0.0, 1.0), Box(2, -5.0, 30.0)])
def test_uniform_and_centred_marginals_of_a_box(space):
    width = space.high - space.low
    drawn = Uniform().marginal(space, N, generator=generator())
    for column in range(space.n):
        fits((drawn[:, column] - space.low) / width, stats.uniform.cdf)
    uncorrelated(*drawn.T)
    centred = Laplace(0.2 * width).marginal(space, N, generator=generator())
    ranks = truncated_cdf(
        centred.double().numpy(), (space.low + space.high) / 2, 0.2 * width, 1, space
    )
    fits(ranks[:, 0], stats.uniform.cdf)


@pytest.mark.parametrize("n", [2, 3, 10, 50])
def test_uniform_on_a_sphere(n):
    points = Uniform().marginal(Sphere(n, 2.5), N, generator=generator())
    torch.testing.assert_close(points.norm(dim=1), torch.full((N,), 2.5))
    law = stats.beta((n - 1) / 2, (n - 1) / 2, loc=-2.5, scale=5)
    for column in {0, 1, n - 1}:
        fits(points[:, column], law.cdf)
    uncorrelated(*points.T)


@pytest.mark.parametrize("kappa", [0, 0.5, 10, 1e4, 1e7])
@pytest.mark.parametrize("n", [2, 3, 10, 50])
def test_von_mises_fisher(n, kappa):
    r = 2.5
    mean = on_sphere(N, n, r)
    drawn = VonMisesFisher(kappa).sample(Sphere(n, r), mean, generator=generator(n))
    torch.testing.assert_close(drawn.norm(dim=1), mean.norm(dim=1))

    # 1 - cos, from the chord, which loses no digits where they are close.
    gap = ((drawn - mean).norm(dim=1) / r).numpy() ** 2 / 2
    ratio = special.ive(n / 2, kappa) / special.ive(n / 2 - 1, kappa) if kappa else 0.0
    assert gap.mean() == pytest.approx(1 - ratio, abs=5 * gap.std() / math.sqrt(N))

    # The angle has density exp(kappa cos) sin^(n - 2).
    widest = math.pi if kappa == 0 else min(math.pi, math.sqrt((8 * n + 100) / kappa))
    angle = np.linspace(0, widest, 100_001)
    with np.errstate(divide="ignore"):
        level = (n - 2) * np.log(np.sin(angle)) if n > 2 else 0.0
    level = level - 2 * kappa * np.sin(angle / 2) ** 2
    density = np.exp(level - level.max())
    mass = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2)])
    fits(2 * np.arcsin(np.sqrt(gap / 2)), lambda a: np.interp(a, angle, mass / mass[-1]))


@pytest.mark.parametrize("kappa", [0.5, 1e4])
@pytest.mark.parametrize("n", [2, 3, 10])
def test_von_mises_fisher_is_symmetric_around_its_mean(n, kappa):
    mean = on_sphere(1, n, seed=n)
    drawn = VonMisesFisher(kappa).sample(Sphere(n), mean.expand(N, -1), generator=generator())
    frame = np.linalg.qr(np.column_stack([mean[0], np.eye(n)[:, 1:]]))[0]
    across = drawn.numpy() @ frame[:, 1:]
    across /= np.linalg.norm(across, axis=1, keepdims=True)
    if n == 2:
        assert abs((across > 0).mean() - 0.5) < 4 * 0.5 / math.sqrt(N)
        return
    for column in range(n - 1):
        law = stats.beta((n - 2) / 2, (n - 2) / 2, loc=-1, scale=2)
        fits(across[:, column], law.cdf)
    uncorrelated(*across.T, drawn @ mean[0])


def test_von_mises_fisher_between_its_extremes():
    for kappa in (1e-30, 1e15, 1e30):
        mean = on_sphere(100, 4)
        drawn = VonMisesFisher(kappa).sample(Sphere(4), mean, generator=generator())
        check_points(Sphere(4), drawn, "drawn")
        assert float((drawn - mean).norm(dim=1).max()) < 100 / math.sqrt(kappa)


@pytest.mark.parametrize(
    ("concentration", "shell"),
    [((2.0, 5.0, 50.0), 0.1), (1.0, 0.5), ((3.0, 100.0, 20.0), 0.02)],
)
def test_projected_normal_against_plain_rejection(concentration, shell):
    mean = np.array([0.6, 0.0, 0.8])
    made = ProjectedNormal(concentration, shell)
    drawn = made.marginal(Sphere(3, 2.0), N, generator=generator(), mean=2 * mean) / 2
    torch.testing.assert_close(drawn.norm(dim=1), torch.ones(N))
    expected = rejection_loop(mean, concentration, shell, 3 * N)
    for column in range(3):
        fits(drawn[:, column], expected[:, column])
    # Without the shell it would be another distribution, which this can tell.
    wide = rejection_loop(mean, concentration, math.inf, 3 * N)
    worst = min(stats.kstest(drawn[:, c].numpy(), wide[:, c]).pvalue for c in range(3))
    assert worst < UNLIKELY


def test_projected_normal_with_a_mean_and_a_width_for_each():
    # Every row around its own mean: in its frame, all are the same.
    mean = on_sphere(N, 3)
    drawn = ProjectedNormal(20.0).sample(Sphere(3), mean, generator=generator())
    expected = rejection_loop(np.array([1.0, 0, 0]), 20.0, 0.1, N)[:, 0]
    fits((drawn * mean).sum(1), expected)

    concentration = np.array([5.0, 400.0, 25.0, 100.0, 15.0, 1000.0])
    mean = torch.full((N, 6), 1 / math.sqrt(6))
    drawn = ProjectedNormal(concentration).sample(Sphere(6), mean, generator=generator())
    assert np.array_equal(np.argsort(drawn.var(0)), np.argsort(1 / concentration))


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0, 3.0])
def test_other_distributions_are_projected_onto_a_sphere(beta):
    widths, mean, r = np.array([0.3, 0.05, 1.0]), np.array([0.0, 0.6, 0.8]), 3.0
    drawn = additive(beta, r * widths).marginal(
        Sphere(3, r), N, generator=generator(), mean=r * mean
    )
    torch.testing.assert_close(drawn.norm(dim=1), torch.full((N,), r))
    noise = stats.gennorm(beta).rvs((N, 3), random_state=1)
    expected = mean + widths * noise
    expected *= r / np.linalg.norm(expected, axis=1, keepdims=True)
    for column in range(3):
        fits(drawn[:, column], expected[:, column])


@pytest.mark.parametrize(("space", "made"), EVERY, ids=str)
def test_draws_come_from_the_generator_alone(space, made):
    before = torch.random.get_rng_state()
    first, again, other = (made.marginal(space, 20, generator=generator(s)) for s in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    torch.manual_seed(5)
    first = made.marginal(space, 20)
    torch.manual_seed(5)
    assert torch.equal(first, made.marginal(space, 20))
    assert made.marginal(space, 0, generator=generator()).shape == (0, 3)


@pytest.mark.parametrize("draw", [0.0, 2**-53, 1 - 2**-53])
def test_draws_at_the_ends_of_the_random_numbers(monkeypatch, draw):
    monkeypatch.setattr(sampling, "_rand", lambda like, _: torch.full_like(like, draw))
    rng = np.random.default_rng(0)
    for low, high in np.sort(rng.standard_normal((300, 2))):
        space = Box(20, low, high)
        mean = torch.from_numpy(rng.uniform(low, high, (1, 20)))
        for made in (Uniform(), Normal(1e9), Laplace(1e9), Normal(1e-9), Laplace(1e-9)):
            drawn = made.sample(space, mean)
            check_points(space, drawn, "drawn")
            if made in (Normal(1e-9), Laplace(1e-9)):
                assert float((drawn - mean).abs().max()) < 40e-9


def test_seeded_streams_differ_by_every_word():
    words = [
        *((), (0,), (0, 0), (0, 0, 0), (1,), (1, 0), (0, 1), (1, 1), (2**32,), (2**32 + 1,)),
        *((5, 1, 7), (5 + 2**32, 7), (5, 1 + 7 * 2**32), (5, 7, 1), (2**63,), (-1,), (-2,)),
        *((0, 0, 0, 0, 0, 0, 0, 0), (0, 0, 0, 0, 0, 0, 0, 1)),
    ]
    drawn = [torch.rand(4, generator=seeded(*w)).tolist() for w in words]
    assert len({tuple(d) for d in drawn}) == len(words)
    assert drawn == [torch.rand(4, generator=seeded(*w)).tolist() for w in words]


@hypothesis.settings(max_examples=150)
@given(st.data(), spaces, st.sampled_from([torch.float32, torch.float64]), st.booleans())
def test_draws_lie_in_the_space(data, space, dtype, at_corners):
    made = data.draw(conditionals(space))
    parts = space.parts if isinstance(space, Product) else (space,)
    mean = torch.cat([anchors(part, dtype, at_corners) for part in parts], dim=1)
    drawn = made.sample(space, mean, generator=generator(1))
    assert drawn.shape == mean.shape
    assert drawn.dtype == dtype
    check_points(space, drawn, f"drawn from {made}")
    check_points(space, drawn.numpy(), f"drawn from {made}")


@given(st.permutations([1e-5, 1e-3, 0.1]), shapes())
def test_every_dimension_has_its_own_width(widths, beta):
    made = GeneralizedNormal(widths, max(beta, 0.5))
    mean = torch.full((400, 3), 0.577350269, dtype=torch.float64)
    for space in (Box(3), Unbounded(3), Sphere(3)):
        spread = (made.sample(space, mean, generator=generator()) - mean).abs().mean(0)
        if isinstance(space, Sphere):  # what one moves, the others must follow
            assert int(spread.argmax()) == widths.index(0.1)
        else:
            assert np.array_equal(np.argsort(spread.numpy()), np.argsort(widths))
            mean_step = special.gamma(2 / made.beta) / special.gamma(1 / made.beta)
            np.testing.assert_allclose(spread / torch.tensor(widths), mean_step, rtol=0.6)


@pytest.mark.parametrize(
    "space",
    [Box(3), Box(3, -1e30, 1e30), Box(3, 0, 1e-30), Sphere(3, 1e-30), Sphere(3, 1e30)],
    ids=str,
)
@pytest.mark.parametrize("width", [1e-30, 1e-15, 1e15, 1e30])
def test_the_smallest_and_the_largest_numbers(space, width):
    shapes = (GeneralizedNormal(width, beta) for beta in (0.05, 0.5, 1.5, 1e30))
    others = [VonMisesFisher(width)] if isinstance(space, Sphere) else []
    for made in (Uniform(), Normal(width), Laplace(width), *shapes, *others):
        mean = Uniform().marginal(space, 50, generator=generator(1))
        drawn = made.sample(space, mean, generator=generator(2))
        check_points(space, drawn, f"drawn from {made}")
        if space in (Box(3), Box(3, 0, 1e-30)) or made in (Uniform(), *others):
            assert not made.log_weight(space, mean, drawn).isnan().any()


@pytest.mark.parametrize(
    ("space", "made"),
    [
        *((Box(3), d) for d in (Normal(1), Laplace(1), GeneralizedNormal(1), Change(Normal(1)))),
        *((Box(3), d) for d in (Unchanged(), PerFactor((((2, 0, 1), Laplace(1)),)))),
        *((Sphere(3), d) for d in (Normal(1), VonMisesFisher(1), ProjectedNormal(1.0))),
        (Unbounded(3), Normal(1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("value", [1.5, math.nan, math.inf])
def test_means_that_are_not_in_the_space(space, made, value):
    good = torch.tensor([[1.0, 0.0, 0.0]] * 3)
    bad = good.clone()
    bad[1] = torch.tensor([0.0, 0.0, value])
    if not (isinstance(space, Unbounded) and math.isfinite(value)):
        with pytest.raises(UsageError, match=rf"{value:.4g}.* in row 1 is not a point of "):
            made.sample(space, bad)
    for shape in ((3,), (3, 2), (3, 4), (1, 3, 3)):
        with pytest.raises(UsageError, match=r"expected shape \(N, 3\), found"):
            made.sample(space, torch.zeros(shape))
    with pytest.raises(UsageError, match=r"floats, found Tensor of torch\.int64"):
        made.sample(space, good.long())
    with pytest.raises(UsageError, match="floats, found ndarray of float32"):
        made.sample(space, good.numpy())


def test_means_and_counts_of_a_marginal_that_do_not_fit():
    for made in (Uniform(), Normal(0.1)):
        for mean in ([0.0] * 4, [[0.0] * 3], 0.0):
            with pytest.raises(UsageError, match=r"shape \((N, 3|n,)\)"):
                made.marginal(Box(3), 5, mean=mean)
        with pytest.raises(UsageError, match=r"count >= 0, found .* -1"):
            made.marginal(Box(3), -1)


def test_a_conditional_that_is_never_accepted(monkeypatch):
    monkeypatch.setattr(sampling, "_AT_ONCE", 1000)
    with pytest.raises(UsageError, match="too wide for its space"):
        ProjectedNormal(1e-12).marginal(Sphere(20), 2, generator=generator())
