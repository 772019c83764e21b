"""Log densities, against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from helpers.distributions import generator, on_sphere
from scipy import stats

from threedident.distributions import (
    Change,
    GeneralizedNormal,
    Laplace,
    Normal,
    PerFactor,
    ProjectedNormal,
    Unchanged,
    Uniform,
    VonMisesFisher,
)
from threedident.distributions.spaces import Box, Product, Sphere, Unbounded
from threedident.errors import UsageError


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
