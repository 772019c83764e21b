"""Kinds of factors, and factors as points: what a regression predicts and R2 is a share of."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from threedident.columns import Column
from threedident.errors import UsageError
from threedident.evaluate.metrics._arrays import Float64

NAMES = ("continuous", "circular", "discrete")
_ROUNDING = 1e-12  # of a coordinate on the circle, which may be constant but for that
_WHOLE = 1e-6  # from a class number, in float32
MOST_CLASSES = 1000


@dataclasses.dataclass(frozen=True)
class Kind:
    """The kind of a factor.

    Attributes:
        name: "continuous" (a number), "circular" (an angle) or "discrete" (a class number).
        turn: the length of one turn of a circular factor, in its own units.
    """

    name: str = "continuous"
    turn: float = 2 * math.pi

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise UsageError(
                f"the kind of a factor must be one of {', '.join(NAMES)}, found {self.name!r}"
            )
        if not (math.isfinite(self.turn) and self.turn > 0):
            raise UsageError(f"a turn must be a positive number, found {self.turn}")


#: Kinds in order of the factors: by name, or with the length of a turn.
Kinds = Sequence[Kind | str] | None


def as_kinds(kinds: Kinds, count: int) -> tuple[Kind, ...]:
    """Return a kind for each of `count` factors; all continuous where none are given.

    Raises:
        UsageError: there are more or fewer of them, or one is unknown.
    """
    if kinds is None:
        return (Kind(),) * count
    if isinstance(kinds, str) or len(kinds) != count:
        raise UsageError(f"expected {count} kinds, one for each factor of z, found {kinds!r}")
    return tuple(kind if isinstance(kind, Kind) else Kind(kind) for kind in kinds)


def kinds_of_columns(columns: Sequence[Column]) -> tuple[Kind, ...]:
    """Return the kinds of a dataset's factors."""
    return tuple(
        Kind("circular", each.range[1] - each.range[0])
        if each.kind == "circular" and each.range is not None
        else Kind(each.kind)
        for each in columns
    )


def class_numbers(column: Float64, name: str) -> npt.NDArray[np.int64]:
    """Return the values of a discrete factor as whole numbers.

    Args:
        column: (N,), the values.
        name: the name of the factor in an error.

    Raises:
        UsageError: one is not whole, or there are too many classes.
    """
    numbers = np.rint(column)
    off = np.abs(column - numbers) > _WHOLE
    if off.any():
        raise UsageError(
            f"{name} is discrete: expected class numbers, found {column[off][0]:g} in row "
            f"{int(np.flatnonzero(off)[0])}"
        )
    classes = len(np.unique(numbers))
    if classes > MOST_CLASSES:
        raise UsageError(
            f"{name} is discrete and has {classes} classes: at most {MOST_CLASSES} are scored"
        )
    return numbers.astype(np.int64)


@dataclasses.dataclass(frozen=True)
class Points:
    """Factors as points that a regression can predict, a few coordinates each.

    A continuous factor is its number; a circular one the point (cos, sin) on the circle; a
    discrete one the indicator of its class, a coordinate for each class that occurs. R2 is the
    share of the squared distances from the mean point that is predicted, the coordinates of a
    factor together. It depends neither on the origin of an angle nor on the order of classes.

    Attributes:
        values: (N, k), the coordinates.
        starts: (n,), the first column of each factor; None where all are continuous, k = n.
    """

    values: Float64
    starts: npt.NDArray[np.int64] | None

    @classmethod
    def of(cls, factors: Float64, kinds: Kinds = None) -> Points:
        """Turn factors (N, n) into points.

        Raises:
            UsageError: the kinds do not fit the factors.
        """
        each = as_kinds(kinds, factors.shape[1])
        if all(kind.name == "continuous" for kind in each):
            return cls(factors, None)
        blocks = [_block(factors[:, i], kind, f"factor {i}") for i, kind in enumerate(each)]
        widths = [block.shape[1] for block in blocks]
        values = np.asfortranarray(np.concatenate(blocks, 1))
        return cls(values, np.concatenate([[0], np.cumsum(widths)[:-1]]).astype(np.int64))

    def columns(self, factor: int) -> slice:
        """Return the columns of a factor."""
        if self.starts is None:
            return slice(factor, factor + 1)
        ends = [*self.starts[1:], self.values.shape[1]]
        return slice(int(self.starts[factor]), int(ends[factor]))


def _block(column: Float64, kind: Kind, name: str) -> Float64:
    if kind.name == "circular":
        angle = 2 * np.pi * np.mod(column / kind.turn, 1)
        point = np.stack([np.cos(angle), np.sin(angle)], 1)
        return np.where(np.abs(point) < _ROUNDING, 0, point)
    if kind.name == "discrete":
        numbers = class_numbers(column, name)
        return (numbers[:, None] == np.unique(numbers)).astype(np.float64)
    return column[:, None]
