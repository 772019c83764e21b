"""Exact samplers in torch, on any device: who draws for the distributions' `sample`.

Nothing here clips: truncation is by inverse transform or by redrawing. Arithmetic is in
double precision where the device has it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from threedident.distributions.families import (
    Additive,
    Distribution,
    ProjectedNormal,
    Uniform,
    VonMisesFisher,
    require_sphere,
)
from threedident.distributions.grid import Grid
from threedident.distributions.pair_process import Change, PerFactor, Unchanged
from threedident.distributions.spaces import Box, Product, Space, Sphere, check_points, check_shape
from threedident.distributions.transitions import DiscreteLaplace, UniformFactors, require_grid
from threedident.errors import MissingExtraError, UsageError

try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "train", "sampling pairs") from error

from threedident.distributions.torch_transitions import (
    sample_discrete_laplace,
    sample_uniform_factors,
    uniform_points,
)

Tensor = torch.Tensor
Generator = torch.Generator | None

_SMALLEST = 2.0**-54  # below any draw but 0, where tails have no end
_AT_ONCE = 2**20  # candidates of a redrawing round


@functools.singledispatch
def sample(distribution: Distribution, space: Space, mean: Tensor, generator: Generator) -> Tensor:
    """Draw a point around each mean; see `Distribution.sample`."""
    raise NotImplementedError(
        f"{type(distribution).__name__} has no sampler: define its method `sample`"
    )


@sample.register(Uniform)
def _(distribution: Uniform, space: Space, mean: Tensor, generator: Generator) -> Tensor:
    """Draw from the whole space; only the number of means counts."""
    distribution.check(space)
    check_means(space, mean, "the mean of Uniform()", inside=False)
    return uniform(space, mean, generator)


@sample.register(Additive)
def _(distribution: Additive, space: Space, mean: Tensor, generator: Generator) -> Tensor:
    distribution.check(space)
    check_means(space, mean, f"the mean of {distribution}")
    return additive(space, mean, distribution.scale, distribution.shape, generator)


@sample.register(VonMisesFisher)
def _(distribution: VonMisesFisher, space: Space, mean: Tensor, generator: Generator) -> Tensor:
    sphere = require_sphere(distribution, space)
    check_means(sphere, mean, f"the mean of {distribution}")
    return von_mises_fisher(mean, distribution.kappa, sphere.r, generator)


@sample.register(ProjectedNormal)
def _(distribution: ProjectedNormal, space: Space, mean: Tensor, generator: Generator) -> Tensor:
    distribution.check(space)
    sphere = require_sphere(distribution, space)
    check_means(sphere, mean, f"the mean of {distribution}")
    return projected_normal(mean, distribution.Lambda, distribution.shell, sphere.r, generator)


@sample.register(UniformFactors)
def _(distribution: UniformFactors, space: Space, mean: Tensor, generator: Generator) -> Tensor:
    distribution.check(space)
    check_means(space, mean, f"the mean of {distribution}")
    return sample_uniform_factors(distribution, require_grid(distribution, space), mean, generator)


@sample.register(DiscreteLaplace)
def _(distribution: DiscreteLaplace, space: Space, mean: Tensor, generator: Generator) -> Tensor:
    distribution.check(space)
    check_means(space, mean, f"the mean of {distribution}")
    return sample_discrete_laplace(distribution, require_grid(distribution, space), mean, generator)


@sample.register(Unchanged)
def _(distribution: Unchanged, space: Space, mean: Tensor, generator: Generator) -> Tensor:
    check_means(space, mean, "the mean of Unchanged()")
    return mean.clone()


@sample.register(Change)
def _(distribution: Change, space: Space, mean: Tensor, generator: Generator) -> Tensor:
    """Draw all, and keep the means of those that are not chosen."""
    distribution.check(space)
    drawn = distribution.conditional.sample(space, mean, generator=generator)
    return choose(drawn, mean, distribution.bounds, generator)


@sample.register(PerFactor)
def _(distribution: PerFactor, space: Space, mean: Tensor, generator: Generator) -> Tensor:
    """Draw each part around its columns of the means."""
    distribution.check(space)
    check_means(space, mean, "the mean of PerFactor", inside=False)
    out = mean.clone()
    for columns, part in distribution.parts:
        block = list(columns)
        out[:, block] = part.sample(space.sub(columns), mean[:, block], generator=generator)
    return out


def expand(
    point: Any, count: int, generator: Generator, device: torch.device | str | None
) -> Tensor:
    """Repeat a point (n,) as float32 (count, n), on the device or the generator's."""
    place = device or (generator.device if generator is not None else "cpu")
    points = torch.as_tensor(point, dtype=torch.float32, device=place)
    if points.ndim != 1 or count < 0:
        raise UsageError(
            f"expected a mean of shape (n,) and a count >= 0, found {tuple(points.shape)}, {count}"
        )
    return points.expand(count, -1)


def check_means(space: Space, mean: Any, what: str, *, inside: bool = True) -> None:
    """Check that means are a float tensor (N, n).

    Args:
        space: the space, of n coordinates.
        mean: the means.
        what: the name of the means in errors.
        inside: whether they must be points of the space.

    Raises:
        UsageError: they are no such tensor, or one lies outside the space.
    """
    if not isinstance(mean, Tensor) or not mean.is_floating_point():
        found = f"{type(mean).__name__} of {getattr(mean, 'dtype', 'no dtype')}"
        raise UsageError(f"{what}: expected a tensor of floats, found {found}")
    (check_points if inside else check_shape)(space, mean, what)


def uniform(space: Space, like: Tensor, generator: Generator) -> Tensor:
    """Draw uniform points of a space, as many as `like` has rows."""
    if isinstance(space, Product):
        blocks = zip(space.parts, space.blocks(), strict=True)
        return torch.cat([uniform(p, like[:, list(b)], generator) for p, b in blocks], dim=1)
    if isinstance(space, Grid):
        return uniform_points(space, like, generator)
    wide = _wide(like)
    if isinstance(space, Box):
        drawn = space.low + (space.high - space.low) * _rand(wide, generator)
        # Rounding can reach the upper end itself, but not pass it.
        return drawn.to(like.dtype)
    assert isinstance(space, Sphere)
    return (space.r * _normalise(_randn(wide, generator))).to(like.dtype)


def additive(
    space: Space, mean: Tensor, scale: float | tuple[float, ...], beta: float, generator: Generator
) -> Tensor:
    """Draw mean + e, with e_i of density exp(-|e_i / scale_i|^beta).

    The density is truncated to a box; on a sphere, the sum is projected.
    """
    wide = _wide(mean)
    widths = wide.new_tensor(scale).expand(wide.shape)
    if isinstance(space, Box):
        low, high = space.low - wide, space.high - wide
        # A mean that rounding has left a hair outside counts as on the border.
        offset = _truncated(low.clamp_max(0), high.clamp_min(0), widths, beta, generator)
        # The ends themselves can be overstepped by rounding alone.
        return (wide + offset).clamp(space.low, space.high).to(mean.dtype)
    moved = wide + widths * _standard(wide, beta, generator)
    if isinstance(space, Sphere):
        moved = space.r * _normalise(moved)
    return moved.to(mean.dtype)


def von_mises_fisher(mean: Tensor, kappa: float, r: float, generator: Generator) -> Tensor:
    """Draw points of the sphere of radius r around means (N, n), after Wood (1994).

    The draws are in terms of s = 1 - w, w the cosine to the mean, so that nothing cancels at
    large kappa.
    """
    wide = _wide(mean)
    count, n = wide.shape
    root = 2 * kappa + math.hypot(2 * kappa, n - 1)
    b = (n - 1) / root
    rest = 2 * b / (1 + b)  # 1 - x0
    x0 = 1 - rest

    def draw(todo: Tensor) -> tuple[Tensor, Tensor]:
        # Beta((n - 1) / 2, (n - 1) / 2), as a coordinate of a uniform point of the sphere.
        point = _normalise(_randn(wide.new_empty(len(todo), n), generator))
        epsilon = (1 + point[:, 0]) / 2
        s = 2 * b * epsilon / (1 - (1 - b) * epsilon)
        ratio = (rest + x0 * s) / (rest * (1 + x0))
        level = kappa * (rest - s) + (n - 1) * ratio.log()
        return s, level >= _log_rand(s, generator)

    s = _redraw(count, draw, wide)[:, None]
    axis = _normalise(wide)
    tangent = _randn(wide, generator)
    tangent = _normalise(tangent - (tangent * axis).sum(1, keepdim=True) * axis)
    across = (s * (2 - s)).clamp_min(0).sqrt()
    return (r * _normalise((1 - s) * axis + across * tangent)).to(mean.dtype)


def projected_normal(
    mean: Tensor,
    concentration: float | tuple[float, ...],
    shell: float,
    r: float,
    generator: Generator,
) -> Tensor:
    """Draw normalise(z + e), e_i ~ N(0, 1 / Lambda_ii).

    A draw is repeated while | ||z + e|| - 1 | >= shell.
    """
    wide = _wide(mean) / r
    n = wide.shape[1]
    sigma = wide.new_tensor(concentration).expand(n).rsqrt()
    copies = 4

    def draw(todo: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal copies
        copies = min(2 * copies, max(1, _AT_ONCE // max(1, len(todo) * n)))
        noise = _randn(wide.new_empty(len(todo), copies, n), generator)
        candidates = wide[todo, None] + sigma * noise
        norm = candidates.norm(dim=2)
        good = (norm - 1).abs() < shell
        # The first that is accepted, as if they had been drawn one by one.
        first = good.to(torch.uint8).argmax(1)
        rows = torch.arange(len(todo), device=wide.device)
        return candidates[rows, first] / norm[rows, first, None], good[rows, first]

    return (r * _redraw(len(wide), draw, wide, patience=100)).to(mean.dtype)


def choose(drawn: Tensor, mean: Tensor, bounds: tuple[int, int], generator: Generator) -> Tensor:
    """Take `drawn` in k columns of each row, chosen at random, and `mean` in the others."""
    count, n = mean.shape
    k = torch.randint(bounds[0], bounds[1] + 1, (count, 1), generator=generator, device=mean.device)
    order = torch.rand(count, n, generator=generator, device=mean.device).argsort(1).argsort(1)
    return torch.where(order < k, drawn, mean)


def _standard(like: Tensor, beta: float, generator: Generator) -> Tensor:
    """Draw from the density proportional to exp(-|x|^beta)."""
    if beta == 2:
        return _randn(like, generator) / math.sqrt(2)
    if beta == 1:
        sign = torch.where(_rand(like, generator) < 0.5, -1.0, 1.0)
        return -_log_rand(like, generator) * sign
    if beta < 1:
        # |x|^beta is Gamma(1 / beta); torch has no public sampler of it that takes a generator.
        power = torch._standard_gamma(torch.full_like(like, 1 / beta), generator)
        sign = torch.where(_rand(like, generator) < 0.5, -1.0, 1.0)
        return power ** (1 / beta) * sign
    # At large beta that Gamma underflows. Ratio of uniforms: x = v / u is accepted where
    # u^2 <= exp(-|x|^beta); v needs to go no farther than the largest |x| exp(-|x|^beta / 2),
    # which lies at |x|^beta = 2 / beta.
    reach = math.exp((math.log(2 / beta) - 1) / beta)

    def draw(todo: Tensor) -> tuple[Tensor, Tensor]:
        some = like.new_empty(len(todo))
        log_u = _log_rand(some, generator)
        x = reach * (2 * _rand(some, generator) - 1) * (-log_u).exp()  # v / u
        return x, 2 * log_u <= -(x.abs() ** beta)

    return _redraw(like.numel(), draw, like).reshape(like.shape)


def _truncated(
    low: Tensor, high: Tensor, scale: Tensor, beta: float, generator: Generator
) -> Tensor:
    """Draw offsets of density exp(-|x / scale|^beta) in [low, high], where low <= 0 <= high."""
    if beta == 2:
        # Inverse transform; 0 lies in the interval, so no far tail is asked for.
        first, last = torch.erf(low / scale), torch.erf(high / scale)
        return torch.erfinv(first + (last - first) * _open_rand(low, generator)) * scale
    if beta == 1:
        left, right = torch.expm1(low / scale), -torch.expm1(-high / scale)  # -mass, mass
        t = left + (right - left) * _open_rand(low, generator)
        return -torch.sign(t) * torch.log1p(-t.abs()) * scale
    # Candidates are uniform where the density hardly falls across the interval, else drawn
    # from the whole line: whichever is accepted more often.
    across = ((high - low) / scale) ** beta
    even = torch.exp(-across) >= torch.special.gammainc(torch.full_like(across, 1 / beta), across)

    def draw(todo: Tensor) -> tuple[Tensor, Tensor]:
        a, b, s, flat = (each.reshape(-1)[todo] for each in (low, high, scale, even))
        spread = a + (b - a) * _rand(a, generator)
        keep = _log_rand(a, generator) <= -((spread / s).abs() ** beta)
        peaked = s * _standard(a, beta, generator)
        inside = (peaked >= a) & (peaked <= b)
        return torch.where(flat, spread, peaked), torch.where(flat, keep, inside)

    return _redraw(low.numel(), draw, low).reshape(low.shape)


def _redraw(
    count: int,
    draw: Callable[[Tensor], tuple[Tensor, Tensor]],
    like: Tensor,
    patience: int = 10_000,
) -> Tensor:
    """Repeat `draw(rows)` for the rows where it accepts nothing, and return all that it accepts.

    Raises:
        UsageError: nothing is accepted in `patience` rounds on end.
    """
    todo = torch.arange(count, device=like.device)
    out: Tensor | None = None
    idle = 0
    while len(todo) or out is None:
        candidates, good = draw(todo)
        if out is None:
            out = candidates.new_empty((count, *candidates.shape[1:]))
        out[todo[good]] = candidates[good]
        left = todo[~good]
        idle = idle + 1 if len(left) == len(todo) else 0
        todo = left
        if len(todo) and idle >= patience:
            raise UsageError(
                f"no draw was accepted in {patience} rounds: the distribution is too wide for its "
                "space"
            )
    return out


def _wide(like: Tensor) -> Tensor:
    """Convert to double precision where the device has it."""
    return like if like.device.type == "mps" else like.double()


def _normalise(points: Tensor) -> Tensor:
    return points / points.norm(dim=-1, keepdim=True)


def _rand(like: Tensor, generator: Generator) -> Tensor:
    return torch.rand(like.shape, dtype=like.dtype, device=like.device, generator=generator)


def _open_rand(like: Tensor, generator: Generator) -> Tensor:
    """Draw uniformly from (0, 1)."""
    return _rand(like, generator).clamp_min_(_SMALLEST)


def _log_rand(like: Tensor, generator: Generator) -> Tensor:
    """Draw uniformly from (0, 1), and take the logarithm."""
    return _open_rand(like, generator).log_()


def _randn(like: Tensor, generator: Generator) -> Tensor:
    return torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)


def seeded(*words: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Make a generator whose stream depends on these numbers alone, each in its own way."""
    import numpy as np

    # 32 bits at a time, and their number first: the sequence itself knows neither where a word
    # ends nor trailing zeros.
    halves = [half for w in words for half in (w & (2**32 - 1), w >> 32 & (2**32 - 1))]
    state = np.random.SeedSequence([len(words), *halves]).generate_state(1, np.uint64)
    generator = torch.Generator(device)
    generator.manual_seed(int(state[0]) >> 1)
    return generator
