"""Spaces, distributions and their samplers in torch, against closed forms and scipy."""

from __future__ import annotations

import json
import math

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from threedident.distributions import (
    Change,
    Distribution,
    GeneralizedNormal,
    Laplace,
    Normal,
    PairProcess,
    PerFactor,
    ProjectedNormal,
    Unchanged,
    Uniform,
    VonMisesFisher,
    parse_distribution,
    raw_box,
)
from threedident.distributions import torch_sampler as sampling
from threedident.distributions.serialisation import parse_space, space_as_dict
from threedident.distributions.spaces import Box, Product, Sphere, Unbounded, check_points
from threedident.distributions.torch_sampler import seeded
from threedident.errors import UsageError
from threedident.factors import FACTOR_NAMES

N = 8_000
UNLIKELY = 1e-4  # a p-value that a right sampler does not reach


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def fits(sample, cdf) -> None:
    """Kolmogorov-Smirnov, of a sample against a distribution function or another sample."""
    found = stats.kstest(np.asarray(sample, np.float64), cdf)
    assert found.pvalue > UNLIKELY, found


def uncorrelated(*columns) -> None:
    corr = np.corrcoef(np.stack([np.asarray(c, np.float64) for c in columns]))
    assert np.abs(corr - np.eye(len(columns))).max() < 5 / math.sqrt(len(columns[0]))


def additive(beta: float, scale) -> Distribution:
    """The class that a shape has, by scale."""
    if beta == 1:
        return Laplace(scale)
    if beta == 2:
        return Normal(np.asarray(scale) / math.sqrt(2))
    return GeneralizedNormal(scale, beta)


def truncated_cdf(points, mean, scale, beta: float, box: Box):
    """The probability integral transform of density exp(-|(x - mean) / scale|^beta) in a box."""
    law = stats.gennorm(beta, loc=mean, scale=scale)
    low, high = law.cdf(box.low), law.cdf(box.high)
    return (law.cdf(points) - low) / (high - low)


def on_sphere(count: int, n: int, r: float = 1.0, seed: int = 0) -> torch.Tensor:
    """Uniform points, (count, n) in double precision."""
    points = np.random.default_rng(seed).standard_normal((count, n))
    return torch.from_numpy(r * points / np.linalg.norm(points, axis=1, keepdims=True))


# Unbounded space


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


# Boxes


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


# Spheres


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


# Content and style, and factors of their own


def test_unchanged():
    z = Uniform().marginal(Box(4), 10, generator=generator())
    same = Unchanged().sample(Box(4), z)
    assert torch.equal(same, z)
    assert same.data_ptr() != z.data_ptr()


@pytest.mark.parametrize("k", [0, 1, 3, 6, (0, 6), (1, 4), (2, 2)])
def test_how_many_factors_change(k):
    space = Box(6)
    least, most = (k, k) if isinstance(k, int) else k
    z = Uniform().marginal(space, N, generator=generator())
    changed = Change(Uniform(), k).sample(space, z, generator=generator(1)) != z
    counts = np.bincount(changed.sum(1).numpy(), minlength=7)
    assert counts[:least].sum() == counts[most + 1 :].sum() == 0
    if least < most:
        assert stats.chisquare(counts[least : most + 1]).pvalue > UNLIKELY
    expected = N * (least + most) / 2 / 6
    assert np.abs(changed.sum(0).numpy() - expected).max() < 5 * math.sqrt(N / 4)
    if least == most and 0 < most < 6:
        pairs = np.bincount(changed.long() @ (2 ** torch.arange(6)), minlength=64)
        seen = pairs[pairs > 0]
        assert len(seen) == math.comb(6, most)
        assert stats.chisquare(seen).pvalue > UNLIKELY


def test_what_changes_follows_the_conditional():
    z = torch.full((N, 3), 0.9, dtype=torch.float64)
    drawn = Change(Laplace((0.1, 0.4, 3.0)), (1, 2)).sample(Box(3), z, generator=generator())
    for column, width in enumerate((0.1, 0.4, 3.0)):
        moved = drawn[:, column][drawn[:, column] != 0.9].numpy()
        assert len(moved) > N / 3
        fits(truncated_cdf(moved, 0.9, width, 1, Box(1)), stats.uniform.cdf)


def test_a_distribution_for_each_factor():
    conditional = PerFactor.by_name(
        {
            "hue": Unchanged(),
            "spotlight_position": Uniform(),
            "position": Normal((0.1, 0.2, 0.3)),
            "psi": Laplace(0.5),
            "phi": Change(Uniform(), 1),
            "theta": GeneralizedNormal(0.2, 3.0),
        }
    )
    mean = torch.full((N, 10), 0.5, dtype=torch.float64)
    drawn = conditional.sample(raw_box(), mean, generator=generator()).numpy()
    column = {name: drawn[:, i] for i, name in enumerate(FACTOR_NAMES)}
    assert (drawn[:, 7:] == 0.5).all()
    uniform = stats.uniform(-1, 2).cdf
    fits(column["spotlight_position"], uniform)
    fits(column["phi"], uniform)
    for name, beta, scale in (
        *(("x", 2, 0.1 * math.sqrt(2)), ("y", 2, 0.2 * math.sqrt(2))),
        *(("z", 2, 0.3 * math.sqrt(2)), ("psi", 1, 0.5), ("theta", 3, 0.2)),
    ):
        fits(truncated_cdf(column[name], 0.5, scale, beta, Box(1)), stats.uniform.cdf)
    uncorrelated(*drawn[:, :7].T)


def test_columns_in_any_order():
    conditional = PerFactor((((2, 0), Laplace((0.1, 3.0))), ((1,), Unchanged())))
    mean = torch.tensor([[0.1, 0.2, 0.3]], dtype=torch.float64).expand(N, -1)
    drawn = conditional.sample(Box(3), mean, generator=generator()).numpy()
    fits(truncated_cdf(drawn[:, 0], 0.1, 3.0, 1, Box(1)), stats.uniform.cdf)
    fits(truncated_cdf(drawn[:, 2], 0.3, 0.1, 1, Box(1)), stats.uniform.cdf)
    assert (drawn[:, 1] == 0.2).all()


def test_names_that_a_dataset_is_restricted_to():
    names = ("psi", "z", "x")
    with pytest.raises(UsageError, match="rotation: expected some of psi, z, x"):
        PerFactor.by_name({"rotation": Uniform(), "z": Uniform(), "x": Uniform()}, names)
    made = PerFactor.by_name({"x": Uniform(), "z": Unchanged(), "psi": Laplace(1)}, names)
    assert made.parts == (((2,), Uniform()), ((1,), Unchanged()), ((0,), Laplace(1.0)))


def test_a_distribution_for_each_part_of_a_product():
    space = Product(Box(2, 0.0, 1.0), Sphere(3, 2.0), Product(Unbounded(1), Box(1)))
    assert space.n == 7
    assert space.blocks() == [(0, 1), (2, 3, 4), (5, 6)]
    inner = PerFactor.by_part(space.parts[2], Normal(2.0), Uniform())
    conditional = PerFactor.by_part(space, Laplace((0.1, 0.2)), VonMisesFisher(10), inner)
    marginal = PerFactor.by_part(space, Uniform(), Uniform(), inner)
    z, z_tilde = PairProcess(space, conditional, marginal).sample(N, generator=generator())
    for points in (z, z_tilde):
        check_points(space, points, "points")
        fits(points[:, 6], stats.uniform(-1, 2).cdf)
    fits(z[:, 2], stats.uniform(-2, 4).cdf)  # Archimedes
    fits(z_tilde[:, 5] - z[:, 5], stats.norm(scale=2).cdf)
    cosine = (z[:, 2:5] * z_tilde[:, 2:5]).sum(1) / 4
    fits(1 - cosine, lambda s: -np.expm1(-10 * s) / -np.expm1(-20))
    ranks = truncated_cdf(
        z_tilde[:, :2].double().numpy(), z[:, :2].double().numpy(), (0.1, 0.2), 1, space.parts[0]
    )
    fits(ranks[:, 0], stats.uniform.cdf)
    fits(ranks[:, 1], stats.uniform.cdf)
    uniform = Uniform().marginal(Product(Box(2), Sphere(2)), N, generator=generator())
    fits(uniform[:, 1], stats.uniform(-1, 2).cdf)
    fits(torch.atan2(uniform[:, 3], uniform[:, 2]), stats.uniform(-math.pi, 2 * math.pi).cdf)


# Densities


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("space", [Box(3), Unbounded(3)], ids=str)
def test_log_weights_are_log_densities_up_to_a_constant(space, dtype):
    rng = np.random.default_rng(0)
    mean, points = rng.uniform(-1, 1, (4, 3)), rng.uniform(-1, 1, (50, 3))
    widths = np.array([0.3, 0.5, 2.0])
    apart = points - mean[:, None]
    for made, expected in (
        (Normal(widths), stats.norm.logpdf(apart, scale=widths)),
        (Normal(0.3), stats.norm.logpdf(apart, scale=0.3)),
        (Laplace(widths), stats.laplace.logpdf(apart, scale=widths)),
        (GeneralizedNormal(widths, 3), stats.gennorm.logpdf(apart, 3, scale=widths)),
        (GeneralizedNormal(0.8, 0.5), stats.gennorm.logpdf(apart, 0.5, scale=0.8)),
        (GeneralizedNormal(1.5, 20), stats.gennorm.logpdf(apart, 20, scale=1.5)),
        (
            PerFactor((((2, 0), Laplace((0.1, 0.2))), ((1,), Normal(0.3)))),
            np.stack(
                [
                    stats.laplace.logpdf(apart[..., 0], scale=0.2),
                    stats.norm.logpdf(apart[..., 1], scale=0.3),
                    stats.laplace.logpdf(apart[..., 2], scale=0.1),
                ],
                axis=-1,
            ),
        ),
    ):
        tensors = (torch.tensor(mean, dtype=dtype), torch.tensor(points, dtype=dtype))
        found = made.log_weight(space, *tensors)
        assert found.shape == (4, 50)
        assert found.dtype == dtype
        found = found.double().numpy()
        exact = expected.sum(-1)
        np.testing.assert_allclose(found - found[:, :1], exact - exact[:, :1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kappa", [0, 3, 1e5])
def test_log_weights_of_von_mises_fisher(kappa):
    mean, points = on_sphere(4, 3, seed=1), on_sphere(300, 3, seed=2)
    found = VonMisesFisher(kappa).log_weight(Sphere(3, 2.0), 2 * mean, 2 * points)
    expected = kappa * (mean @ points.T).numpy()
    np.testing.assert_allclose(
        found - found[:, :1], expected - expected[:, :1], rtol=1e-9, atol=1e-9
    )
    if kappa:
        law = stats.vonmises_fisher(mean[0].numpy(), kappa)
        exact = law.logpdf(points.numpy())
        np.testing.assert_allclose(found[0] - found[0, 0], exact - exact[0], rtol=1e-6, atol=1e-6)


def test_log_weights_at_a_large_concentration_in_float32():
    mean = on_sphere(1, 3)
    points = VonMisesFisher(1e6).sample(Sphere(3), mean.expand(50, -1), generator=generator())
    expected = VonMisesFisher(1e6).log_weight(Sphere(3), mean, points)
    found = VonMisesFisher(1e6).log_weight(Sphere(3), mean.float(), points.float())
    torch.testing.assert_close(found.double(), expected, rtol=1e-2, atol=1e-2)


def test_points_outside_have_no_weight():
    points = torch.tensor([[0.0, 0.5], [1.5, 0.0], [math.nan, 0.0], [-1.0, 1.0]])
    inside = [True, False, False, True]
    for made in (Normal(0.1), Laplace(0.1), GeneralizedNormal(0.1), Uniform()):
        weight = made.log_weight(Box(2), torch.zeros(3, 2), points)
        assert torch.equal(weight == -math.inf, torch.tensor(inside).logical_not().expand(3, -1))
    assert torch.equal(weight[:, inside], torch.zeros(3, 2))
    for kappa in (0, 2):
        weight = VonMisesFisher(kappa).log_weight(Sphere(2), points[3:] * 0.5**0.5, points)
        assert weight[0, :3].tolist() == [-math.inf] * 3
    apart = Product(Box(1), Sphere(2))
    weight = PerFactor.by_part(apart, Uniform(), VonMisesFisher(1)).log_weight(
        apart, torch.tensor([[0.0, 1, 0]]), torch.tensor([[0.0, 1, 0], [2, 1, 0], [0, 2, 0]])
    )
    assert weight.tolist() == [[0, -math.inf, -math.inf]]


@pytest.mark.parametrize(
    ("made", "space"),
    [
        (Normal(0.1), Sphere(3)),
        (ProjectedNormal(5.0), Sphere(3)),
        (Unchanged(), Box(3)),
        (Change(Normal(0.1)), Box(3)),
        (PerFactor((((0, 1), Normal(0.1)), ((2,), Unchanged()))), Box(3)),
    ],
    ids=str,
)
def test_densities_without_a_closed_form_are_refused(made, space):
    why = "no closed form" if isinstance(space, Sphere) else "it has no density"
    with pytest.raises(UsageError, match=why):
        made.log_weight(space, torch.zeros(1, 3), torch.zeros(1, 3))


# Random numbers

EVERY = [
    (Box(3), Uniform()),
    *((Box(3), additive(beta, 0.3)) for beta in (0.5, 1, 1.5, 2, 3)),
    *((Unbounded(3), additive(beta, 0.3)) for beta in (0.5, 1, 2, 3)),
    *((Sphere(3), d) for d in (Uniform(), Normal(0.1), VonMisesFisher(5), ProjectedNormal(10.0))),
    (Box(3), Change(Laplace(0.1), (1, 2))),
    (Box(3), PerFactor((((2, 0), Normal(0.1)), ((1,), Uniform())))),
]


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


# Anything that fits


@st.composite
def boxes(draw, most: int = 4) -> Box:
    low = draw(st.floats(-1e3, 1e3))
    return Box(draw(st.integers(1, most)), low, low + draw(st.floats(1e-3, 1e3)))


def widths(n: int, low: float = 1e-6, high: float = 1e6):
    one = st.floats(low, high)
    return one | st.tuples(*[one] * n)


def shapes():
    return st.sampled_from([1, 2]) | st.floats(0.1, 50)


def conditionals(space, nested: int = 2):
    if isinstance(space, Product):
        return st.tuples(*map(conditionals, space.parts)).map(
            lambda parts: PerFactor.by_part(space, *parts)
        )
    n = space.n
    options = [
        st.builds(Normal, widths(n)),
        st.builds(Laplace, widths(n)),
        st.builds(GeneralizedNormal, widths(n), shapes()),
        st.just(Unchanged()),
    ]
    if not isinstance(space, Unbounded):
        options.append(st.just(Uniform()))
    if isinstance(space, Sphere):
        options.append(st.builds(VonMisesFisher, st.floats(0, 1e12)))
        options.append(st.builds(ProjectedNormal, widths(n, 10, 1e6), st.floats(0.05, 2)))
    elif nested:
        count = st.integers(0, n)
        k = count | st.tuples(count, count).map(sorted).map(tuple)
        options.append(st.builds(Change, conditionals(space, nested - 1), k))
        cuts = st.tuples(st.permutations(range(n)), st.integers(1, n))
        options.append(cuts.flatmap(lambda cut: split(space, *cut, nested - 1)))
    return st.one_of(options)


def split(space, order, cut: int, nested: int):
    """Conditionals of some columns, and of the others."""
    blocks = [tuple(block) for block in (order[:cut], order[cut:]) if block]
    parts = st.tuples(*(conditionals(space.sub(block), nested) for block in blocks))
    return parts.map(lambda made: PerFactor(tuple(zip(blocks, made, strict=True))))


simple_spaces = (
    boxes()
    | st.builds(Sphere, st.integers(2, 5), st.floats(1e-3, 1e3))
    | st.builds(Unbounded, st.integers(1, 4))
)
spaces = simple_spaces | st.lists(simple_spaces, min_size=1, max_size=3).map(lambda s: Product(*s))


def marginal_of(space) -> Distribution:
    if isinstance(space, Unbounded):
        return Normal(3.0)
    if isinstance(space, Product):
        return PerFactor.by_part(space, *(marginal_of(part) for part in space.parts))
    return Uniform()


def anchors(space, dtype: torch.dtype, at_corners: bool) -> torch.Tensor:
    points = marginal_of(space).marginal(space, 8, generator=generator()).to(dtype)
    if isinstance(space, Box):
        if at_corners:
            points = torch.where(points > points.mean(), math.inf, -math.inf).to(dtype)
        points = points.clamp(space.low, space.high)
    return points


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


@given(st.data(), spaces)
def test_descriptions_come_back_from_json(data, space):
    made = data.draw(conditionals(space))
    assert parse_space(json.loads(json.dumps(space_as_dict(space)))) == space
    again = parse_distribution(json.loads(json.dumps(made.as_dict())))
    assert again == made
    assert hash(again) == hash(made)
    assert repr(again) == repr(made)
    process = PairProcess(space, made, marginal_of(space))
    assert process == PairProcess(parse_space(space_as_dict(space)), again, marginal_of(space))


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


def test_points_outside_a_product():
    space = Product(Box(1), Sphere(2, 2.0), Unbounded(1))
    points = [[1, 2, 0, 9], [1.1, 2, 0, 9], [1, 1, 0, 9], [1, 2, 0, math.inf], [-1, 0, -2, -9]]
    for made in (np.array(points), torch.tensor(points)):
        assert space.outside(made).tolist() == [False, True, True, True, False]
    with pytest.raises(UsageError, match=r"points: \(1.1, 2, 0, 9\) in row 1 is not a point of P"):
        check_points(space, np.array(points), "points")


def test_numbers_of_other_libraries_become_plain_ones():
    made = [
        Box(np.int64(2), np.float32(-1), torch.tensor(1.0)),
        Sphere(np.int32(3), np.float32(0.5)),
        Unbounded(torch.tensor(4)),
    ]
    assert made == [Box(2, -1.0, 1.0), Sphere(3, 0.5), Unbounded(4)]
    assert [parse_space(json.loads(json.dumps(space_as_dict(s)))) for s in made] == made
    plain = [
        (Normal(np.float32(0.5)), Normal(0.5)),
        (Normal([1, np.float32(0.5), torch.tensor(0.25)]), Normal((1.0, 0.5, 0.25))),
        (Laplace(torch.tensor([0.5, 1.0])), Laplace((0.5, 1.0))),
        (GeneralizedNormal(np.array(0.5), np.float32(1.5)), GeneralizedNormal(0.5, 1.5)),
        (VonMisesFisher(torch.tensor(3)), VonMisesFisher(3.0)),
        (ProjectedNormal(np.arange(1, 3), np.float32(0.5)), ProjectedNormal((1.0, 2.0), 0.5)),
        (Change(Uniform(), np.int64(2)), Change(Uniform(), 2)),
        (Change(Uniform(), np.array([1, 2])), Change(Uniform(), (1, 2))),
        (Change(Uniform(), [1, np.int64(2)]), Change(Uniform(), (1, 2))),
        (PerFactor((([np.int64(0)], Uniform()),)), PerFactor((((0,), Uniform()),))),
    ]
    for found, expected in plain:
        assert found == expected
        assert repr(found) == repr(expected)
        assert parse_distribution(json.loads(json.dumps(found.as_dict()))) == expected


# What does not fit


@pytest.mark.parametrize(
    "value", [0, -0.5, math.nan, math.inf, 1e31, 1e-31, 10**400, True, "1", None]
)
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (Normal, "normal: sigma"),
        (Laplace, "laplace: lambda"),
        (GeneralizedNormal, "gennorm: lambda"),
        (ProjectedNormal, "projected-normal: Lambda"),
        (lambda v: Normal((1.0, v)), "normal: every sigma"),
        (lambda v: GeneralizedNormal(0.1, v), "gennorm: beta"),
        (lambda v: ProjectedNormal(1.0, v), "projected-normal: shell"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_widths_that_do_not_fit(make, name, value):
    with pytest.raises(UsageError) as caught:
        make(value)
    assert str(caught.value).startswith(f"{name} must ")
    assert f"found {value!r:.50}" in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GeneralizedNormal(0.1, 0.01), "beta must be at least 0.05, found 0.01"),
        (lambda: Normal(np.ones((2, 2))), r"every sigma must be .* found \[1.0, 1.0\]"),
        (lambda: VonMisesFisher(-1), "kappa must be a finite number >= 0.* found -1"),
        (lambda: VonMisesFisher(math.nan), "kappa .* found nan"),
        (lambda: VonMisesFisher(1e31), "kappa .* found 1e"),
        (lambda: VonMisesFisher(False), "kappa .* found False"),
        (lambda: VonMisesFisher((1.0, 2.0)), r"kappa .* found \(1.0, 2.0\)"),
        (lambda: Box(0), "Box needs a whole number of dimensions >= 1, found 0"),
        (lambda: Box(2.0), "found 2.0"),
        (lambda: Box(True), "found True"),
        (lambda: Box(2, 1, 1), r"low < high, .* found \[1, 1\]"),
        (lambda: Box(2, math.nan), r"found \[nan, 1.0\]"),
        (lambda: Box(2, -math.inf), r"found \[-inf, 1.0\]"),
        (lambda: Box(2, 0, 1e300), r"found \[0, 1e\+300\]"),
        (lambda: Box(2, "a"), r"found \['a', 1.0\]"),
        (lambda: Sphere(1), "Sphere needs a whole number of dimensions >= 2, found 1"),
        (lambda: Sphere(3, 0), "radius > 0, .* found 0"),
        (lambda: Sphere(3, -1.0), "radius > 0, .* found -1.0"),
        (lambda: Sphere(3, math.inf), "found inf"),
        (lambda: Sphere(3, None), "found None"),
        (lambda: Unbounded(-1), "Unbounded needs .* found -1"),
        (Product, r"at least one, found \(\)"),
        (lambda: Product(Box(1), 3), "a product needs spaces"),
        (lambda: Change(Uniform(), -1), "0 <= least <= most, found -1"),
        (lambda: Change(Uniform(), (3, 1)), r"found \(3, 1\)"),
        (lambda: Change(Uniform(), (1, 2, 3)), r"found \(1, 2, 3\)"),
        (lambda: Change(Uniform(), True), "found True"),
        (lambda: Change(Uniform(), 1.5), "found 1.5"),
        (lambda: Change(Uniform(), None), "found None"),
        (lambda: Change(Uniform(), "12"), "found '12'"),
        (lambda: PerFactor(()), r"every column once.* found \[\]"),
        (lambda: PerFactor((((0, 0), Uniform()),)), r"every column once.* found \[\(0, 0\)\]"),
        (lambda: PerFactor((((0, 2), Uniform()),)), r"found \[\(0, 2\)\]"),
        (lambda: PerFactor((((), Uniform()), ((0,), Uniform()))), r"found \[\(\), \(0,\)\]"),
        (lambda: PerFactor((((0.0,), Uniform()),)), r"found \[\(0.0,\)\]"),
        (lambda: PerFactor.by_name({"colour": Uniform()}), "unknown factor or group 'colour'"),
        (lambda: PerFactor.by_name({"hue": Uniform()}), "x has 0 distributions"),
        (
            lambda: PerFactor.by_name({"hue": Uniform(), "object_hue": Uniform()}),
            "has 0 distributions",
        ),
        (
            lambda: PerFactor.by_name({"x": Uniform(), "position": Uniform()}, ("x", "y", "z")),
            "x has 2 distributions, expected one",
        ),
        (lambda: PerFactor.by_part(Product(Box(1)), Uniform(), Uniform()), "has 1 parts, found 2"),
    ],
)
def test_descriptions_that_do_not_fit(make, message):
    with pytest.raises(UsageError, match=message):
        make()


MIXED = Product(Box(2), Sphere(3))


@pytest.mark.parametrize(
    ("space", "made", "message"),
    [
        (Unbounded(3), Uniform(), r"no uniform distribution on .* Unbounded\(n=3\)"),
        (Product(Box(1), Unbounded(2)), Uniform(), "no uniform distribution"),
        (
            Box(3),
            VonMisesFisher(1),
            r"VonMisesFisher\(kappa=1.0\) is defined on a sphere, found Box",
        ),
        (Unbounded(3), ProjectedNormal(1.0), "defined on a sphere, found Unbounded"),
        (Sphere(3), ProjectedNormal((1.0, 2.0)), "has 2 widths for 3 dimensions: expected 3"),
        (Box(3), Normal((1.0, 2.0)), r"Normal\(sigma=\(1.0, 2.0\)\) has 2 widths for 3"),
        (Box(3), Laplace(()), "has 0 widths for 3 dimensions"),
        (Sphere(2), GeneralizedNormal((1.0,)), "has 1 widths for 2 dimensions"),
        (MIXED, Normal(0.1), "on a product of spaces: give each part its own"),
        (Box(3), Change(Uniform(), 4), "k = 4 of 3 factors"),
        (Box(3), Change(Uniform(), (1, 4)), r"k = \(1, 4\) of 3 factors"),
        (Sphere(3), Change(Uniform(), 1), "coordinates of a sphere depend on each other"),
        (MIXED, Change(Uniform(), 1), "coordinates of a sphere depend on each other"),
        (MIXED, Change(PerFactor.by_part(MIXED, Uniform(), Uniform()), 1), "of a sphere depend"),
        (Box(3), Change(VonMisesFisher(1), 1), "defined on a sphere"),
        (Box(3), PerFactor((((0, 1), Uniform()),)), "2 columns for Box"),
        (Sphere(2), PerFactor((((0,), Uniform()), ((1,), Uniform()))), "of a sphere depend"),
        (MIXED, PerFactor((((1, 2), Uniform()), ((0, 3, 4), Uniform()))), "several parts"),
        (MIXED, PerFactor.by_part(MIXED, VonMisesFisher(1), Uniform()), "found Box"),
    ],
)
def test_distributions_on_spaces_that_they_are_not_defined_on(space, made, message):
    with pytest.raises(UsageError, match=message):
        PairProcess(space, made, Unchanged())
    with pytest.raises(UsageError, match=message):
        PairProcess(space, Unchanged(), made)
    with pytest.raises(UsageError, match=message):
        made.sample(space, torch.zeros(2, space.n))


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


DEEP: dict = {"name": "uniform"}
for _ in range(5000):
    DEEP = {"name": "change", "conditional": DEEP, "k": 1}
DEEP_SPACE: dict = {"name": "box", "n": 1, "low": 0, "high": 1}
for _ in range(5000):
    DEEP_SPACE = {"name": "product", "parts": [DEEP_SPACE]}


@pytest.mark.parametrize(
    "data",
    [
        *(None, 3, "normal", [], {}, {"name": "cauchy"}, {"name": ["normal"]}, {"sigma": 0.1}),
        *({"name": "normal"}, {"name": "normal", "sigma": "0.1"}, {"name": "normal", "sigma": -1}),
        *({"name": "normal", "sigma": 0.1, "lam": 0.1}, {"name": "normal", "sigma": 10**400}),
        *({"name": "uniform", "k": 1}, {"name": "normal", "sigma": {"a": 1}}),
        *({"name": "change"}, {"name": "change", "conditional": None, "k": 1}),
        {"name": "change", "conditional": {"name": "uniform"}, "k": None},
        {"name": "change", "conditional": {"name": "uniform"}, "k": 1, "more": 1},
        *({"name": "per-factor"}, {"name": "per-factor", "parts": [3]}),
        {"name": "per-factor", "parts": [{"columns": "01", "distribution": {"name": "uniform"}}]},
        {"name": "per-factor", "parts": [{"columns": [0.5], "distribution": {"name": "uniform"}}]},
        {
            "name": "per-factor",
            "parts": [{"columns": [math.inf], "distribution": {"name": "uniform"}}],
        },
        DEEP,
    ],
    ids=lambda d: str(d)[:40] if d is not DEEP else "deep",
)
def test_data_that_describe_no_distribution(data):
    with pytest.raises(UsageError):
        parse_distribution(data)


@pytest.mark.parametrize(
    "data",
    [
        *(None, 3, "box", [], {}, {"name": "cube", "n": 3}, {"name": "box", "n": 3}),
        *({"name": "box", "n": 3.0, "low": 0, "high": 1}, {"name": "unbounded", "n": True}),
        *({"name": "unbounded", "n": "3"}, {"name": "unbounded", "n": 3, "r": 1}),
        *({"name": "sphere", "n": 3, "r": -1}, {"name": ["box"], "n": 3}),
        *({"name": "product"}, {"name": "product", "parts": []}, {"name": "product", "parts": 3}),
        {"name": "product", "parts": [{"name": "unbounded", "n": 1}], "n": 1},
        DEEP_SPACE,
    ],
    ids=lambda d: str(d)[:40] if d is not DEEP_SPACE else "deep",
)
def test_data_that_describe_no_space(data):
    with pytest.raises(UsageError):
        parse_space(data)
