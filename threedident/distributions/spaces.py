"""Latent spaces: box, sphere, unbounded space, grid, and products of them."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from threedident.distributions.grid import Grid
from threedident.distributions.number_checks import is_number, plain
from threedident.errors import UsageError
from threedident.factors import NUM_FACTORS

_ON_SPHERE = 1e-4  # the relative distance by which float32 arithmetic may miss the radius
#: Beyond this, float32 could not hold the points, nor double precision their squares.
LARGEST = 1e30


@dataclasses.dataclass(frozen=True)
class Box:
    """The box [low, high]^n; raw latents of the dataset fill [-1, 1]^10.

    Attributes:
        n: the number of dimensions.
        low: the lower end in each.
        high: the upper end in each.

    Raises:
        UsageError: n < 1, or low is not below high, or either is beyond 1e30.
    """

    n: int
    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        _clean_dimensions(self, 1)
        low, high = plain(self.low), plain(self.high)
        fits = is_number(low) and is_number(high) and -LARGEST <= low < high <= LARGEST
        if not fits:
            raise UsageError(
                f"a box needs finite low < high, {LARGEST:g} at most, found [{low!r}, {high!r}]"
            )
        object.__setattr__(self, "low", float(low))
        object.__setattr__(self, "high", float(high))

    def sub(self, columns: Sequence[int]) -> Box:
        """The box that these coordinates fill."""
        return dataclasses.replace(self, n=len(columns))

    def center(self) -> npt.NDArray[np.float64]:
        """The middle, (n,), around which marginals are centred by default."""
        return np.full(self.n, (self.low + self.high) / 2)

    def outside(self, points: Any) -> Any:
        """Whether each of the points (..., n), numpy or torch, lies outside: bool (...)."""
        # The other way round, a NaN would count as inside.
        return ~((points >= self.low) & (points <= self.high)).all(-1)


@dataclasses.dataclass(frozen=True)
class Sphere:
    """The sphere of radius r in R^n, S^(n-1): points have n coordinates.

    Attributes:
        n: the number of coordinates.
        r: the radius.

    Raises:
        UsageError: n < 2, or the radius is not above 0, or beyond 1e30 or 1e-30.
    """

    n: int
    r: float = 1.0

    def __post_init__(self) -> None:
        _clean_dimensions(self, 2)
        r = plain(self.r)
        if not (is_number(r) and 1 / LARGEST <= r <= LARGEST):
            raise UsageError(
                f"a sphere needs a radius > 0, from {1 / LARGEST:g} to {LARGEST:g}, found {r!r}"
            )
        object.__setattr__(self, "r", float(r))

    def sub(self, columns: Sequence[int]) -> Sphere:
        """Raise a UsageError: the coordinates of a sphere depend on each other."""
        raise UsageError(
            f"the coordinates of a sphere depend on each other: {len(columns)} of {self.n} cannot "
            "have a distribution of their own; use a Product of spaces"
        )

    def center(self) -> npt.NDArray[np.float64]:
        """The pole (r, 0, ..., 0), around which marginals are centred by default."""
        pole = np.zeros(self.n)
        pole[0] = self.r
        return pole

    def outside(self, points: Any) -> Any:
        """Whether each of the points (..., n), numpy or torch, lies off the sphere: bool (...)."""
        off = abs(((points / self.r) ** 2).sum(-1) ** 0.5 - 1)
        return ~(off <= _ON_SPHERE)


@dataclasses.dataclass(frozen=True)
class Unbounded:
    """Unbounded space, R^n.

    Attributes:
        n: the number of dimensions.

    Raises:
        UsageError: n < 1.
    """

    n: int

    def __post_init__(self) -> None:
        _clean_dimensions(self, 1)

    def sub(self, columns: Sequence[int]) -> Unbounded:
        """The space that these coordinates fill."""
        return Unbounded(len(columns))

    def center(self) -> npt.NDArray[np.float64]:
        """The origin, around which marginals are centred by default."""
        return np.zeros(self.n)

    def outside(self, points: Any) -> Any:
        """Whether each of the points (..., n), numpy or torch, is not finite: bool (...)."""
        return ~(abs(points) < math.inf).all(-1)


@dataclasses.dataclass(frozen=True)
class Product:
    """A product of spaces: their coordinates, one after the other.

    Attributes:
        parts: the spaces, at least one.

    Raises:
        UsageError: there is no part, or one is no space.
    """

    parts: tuple[Space, ...]

    def __init__(self, *parts: Space) -> None:
        if not parts or not all(isinstance(part, Space) for part in parts):
            raise UsageError(f"a product needs spaces, at least one, found {parts!r:.200}")
        object.__setattr__(self, "parts", parts)

    @property
    def n(self) -> int:
        """The number of coordinates of a point."""
        return sum(part.n for part in self.parts)

    def blocks(self) -> list[tuple[int, ...]]:
        """The columns of each part."""
        ends = np.cumsum([0, *(part.n for part in self.parts)])
        return [tuple(range(a, b)) for a, b in itertools.pairwise(ends.tolist())]

    def sub(self, columns: Sequence[int]) -> Space:
        """The part that has just these columns, or columns within one part.

        Raises:
            UsageError: they belong to several parts.
        """
        for block, part in zip(self.blocks(), self.parts, strict=True):
            if tuple(columns) == block:
                return part
            if set(columns) <= set(block):
                return part.sub([block.index(c) for c in columns])
        raise UsageError(f"columns {tuple(columns)} belong to several parts of a product of spaces")

    def center(self) -> npt.NDArray[np.float64]:
        """The parts' centres."""
        return np.concatenate([part.center() for part in self.parts])

    def outside(self, points: Any) -> Any:
        """Whether each of the points (..., n), numpy or torch, lies outside a part: bool (...)."""
        off = None
        for block, part in zip(self.blocks(), self.parts, strict=True):
            here = part.outside(points[..., block[0] : block[-1] + 1])
            off = here if off is None else off | here
        return off


Space: TypeAlias = Box | Sphere | Unbounded | Grid | Product


def raw_box() -> Box:
    """The space of raw latents, [-1, 1]^10."""
    return Box(NUM_FACTORS, -1.0, 1.0)


def check_shape(space: Space, points: Any, what: str) -> None:
    """Check that points, numpy or torch, are (N, n).

    Args:
        space: the space, of n coordinates.
        points: the points.
        what: the name of the points in errors.

    Raises:
        UsageError: they have another shape.
    """
    if points.ndim != 2 or points.shape[-1] != space.n:
        raise UsageError(f"{what}: expected shape (N, {space.n}), found {tuple(points.shape)}")


def check_points(space: Space, points: Any, what: str) -> None:
    """Check that points (N, n), numpy or torch, lie in a space.

    Args:
        space: the space.
        points: the points.
        what: the name of the points in errors.

    Raises:
        UsageError: they have another shape, or one lies outside; it is named.
    """
    check_shape(space, points, what)
    outside = space.outside(points)
    if outside.any():
        row = int(np.argwhere(np.asarray(outside.tolist()))[0, 0])
        values = ", ".join(f"{float(v):.4g}" for v in points[row])
        raise UsageError(f"{what}: ({values}) in row {row} is not a point of {space}")


def _clean_dimensions(space: Box | Sphere | Unbounded, least: int) -> None:
    n = plain(space.n)
    if type(n) is not int or n < least:
        raise UsageError(
            f"{type(space).__name__} needs a whole number of dimensions >= {least}, found {n!r}"
        )
    object.__setattr__(space, "n", n)
