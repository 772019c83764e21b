"""What changes between two images, and what stays."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from helpers.distributions import UNLIKELY, N, fits, generator, truncated_cdf, uncorrelated
from scipy import stats

from threedident.distributions import (
    Change,
    GeneralizedNormal,
    Laplace,
    Normal,
    PairProcess,
    PerFactor,
    Unchanged,
    Uniform,
    VonMisesFisher,
    raw_box,
)
from threedident.distributions.spaces import Box, Product, Sphere, Unbounded, check_points
from threedident.errors import UsageError
from threedident.factors import FACTOR_NAMES


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
