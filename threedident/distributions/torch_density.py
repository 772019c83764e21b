"""Log densities of the distributions in torch, by which rendered latents are resampled."""

from __future__ import annotations

import functools
import math

from threedident.distributions.families import (
    Additive,
    Distribution,
    Uniform,
    VonMisesFisher,
    require_sphere,
)
from threedident.distributions.pair_process import EXACT_PAIRS, Change, PerFactor, Unchanged
from threedident.distributions.spaces import Space, Sphere, check_points
from threedident.distributions.transitions import DiscreteLaplace, UniformFactors, require_grid
from threedident.errors import MissingExtraError, UsageError

try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "train", "the density of a distribution") from error

from threedident.distributions.torch_transitions import log_discrete_laplace, log_uniform_factors

Tensor = torch.Tensor


@functools.singledispatch
def log_weight(distribution: Distribution, space: Space, mean: Tensor, points: Tensor) -> Tensor:
    """The log density of points around means; see `Distribution.log_weight`."""
    raise UsageError(
        f"the density of {distribution} on {space} has no closed form, so rendered latents cannot "
        'be resampled by it: leave out match="resample"'
    )


_no_closed_form = log_weight.dispatch(object)


@log_weight.register(Uniform)
def _(distribution: Uniform, space: Space, mean: Tensor, points: Tensor) -> Tensor:
    distribution.check(space)
    return within(space, points, mean.new_zeros(len(mean), len(points)))


@log_weight.register(Additive)
def _(distribution: Additive, space: Space, mean: Tensor, points: Tensor) -> Tensor:
    """-sum_i |d_i / lambda_i|^beta, in a box or in unbounded space."""
    distribution.check(space)
    if isinstance(space, Sphere):
        return _no_closed_form(distribution, space, mean, points)
    distance = powered_distance(mean, points, distribution.scale, distribution.shape)
    return within(space, points, -distance)


@log_weight.register(VonMisesFisher)
def _(distribution: VonMisesFisher, space: Space, mean: Tensor, points: Tensor) -> Tensor:
    """Kappa times the cosine, less kappa."""
    sphere = require_sphere(distribution, space)
    if distribution.kappa == 0:
        return within(sphere, points, mean.new_zeros(len(mean), len(points)))
    # By differences: at large kappa a product of float32 vectors is too coarse.
    scale = sphere.r * math.sqrt(2 / distribution.kappa)
    return within(sphere, points, -powered_distance(mean, points, scale, 2.0))


@log_weight.register(UniformFactors)
def _(distribution: UniformFactors, space: Space, mean: Tensor, points: Tensor) -> Tensor:
    """The log probability itself."""
    distribution.check(space)
    check_points(space, mean, f"the mean of {distribution}")
    grid = require_grid(distribution, space)
    return within(grid, points, log_uniform_factors(distribution, grid, mean, points))


@log_weight.register(DiscreteLaplace)
def _(distribution: DiscreteLaplace, space: Space, mean: Tensor, points: Tensor) -> Tensor:
    """The log probability itself."""
    distribution.check(space)
    check_points(space, mean, f"the mean of {distribution}")
    grid = require_grid(distribution, space)
    return within(grid, points, log_discrete_laplace(distribution, grid, mean, points))


@log_weight.register(Unchanged)
def _(distribution: Unchanged, space: Space, mean: Tensor, points: Tensor) -> Tensor:
    raise _no_density(distribution)


@log_weight.register(Change)
def _(distribution: Change, space: Space, mean: Tensor, points: Tensor) -> Tensor:
    if distribution.kept(space.n):
        raise _no_density(distribution)
    return distribution.conditional.log_weight(space, mean, points)


@log_weight.register(PerFactor)
def _(distribution: PerFactor, space: Space, mean: Tensor, points: Tensor) -> Tensor:
    """The sum over the parts."""
    distribution.check(space)
    total = mean.new_zeros(len(mean), len(points))
    for columns, part in distribution.parts:
        block = list(columns)
        total += part.log_weight(space.sub(columns), mean[:, block], points[:, block])
    return total


def _no_density(distribution: Distribution) -> UsageError:
    return UsageError(
        f"{distribution} keeps factors as they are, so it has no density by which rendered latents "
        f"could be resampled: only {EXACT_PAIRS}"
    )


def powered_distance(
    mean: Tensor, points: Tensor, scale: float | tuple[float, ...], beta: float
) -> Tensor:
    """The sums sum_i |(mean_i - point_i) / scale_i|^beta, (B, N).

    They are computed by differences, so that nothing cancels.

    Args:
        mean: the means, (B, n).
        points: the points, (N, n).
        scale: the scale, for all dimensions or for each.
        beta: the exponent.
    """
    widths = mean.new_tensor(scale)
    a, b = (mean / widths).contiguous(), (points / widths).contiguous()
    if beta >= 1:
        mode = "donot_use_mm_for_euclid_dist"
        distance = torch.cdist(a, b, p=beta, compute_mode=mode)
        return distance if beta == 1 else distance.pow_(beta)
    total = a.new_zeros(len(a), len(b))  # cdist's root would lose precision
    for column in range(a.shape[1]):
        total += (a[:, column, None] - b[None, :, column]).abs().pow_(beta)
    return total


def within(space: Space, points: Tensor, log_weight: Tensor) -> Tensor:
    """Set log weights (B, N) to -inf for points (N, n) outside the space."""
    outside = space.outside(points)
    return log_weight.masked_fill_(outside, -math.inf) if outside.any() else log_weight
