"""`Grid`: a space of discrete factors, each a whole number from 0 to its size."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.columns import Column
from threedident.distributions.number_checks import plain
from threedident.errors import UsageError

_MOST_POINTS = 2**62  # no product overflows below it
_MOST_FACTORS = 64


@dataclasses.dataclass(frozen=True)
class Grid:
    """All combinations of discrete factors, as those of dSprites; points are whole numbers.

    A point is (i_1, ..., i_n) with 0 <= i_k < sizes[k]. Points are numbered in mixed radix, the
    last factor fastest, as the files of dSprites, Shapes3D and MPI3D are ordered.

    Attributes:
        sizes: the number of values of each factor.
        names: the names of the factors.
        categorical: the names of the factors whose values have no order.
        periods: the names of the factors that come round again, each with its steps to a turn.
            Values that are a turn apart look the same.
        hidden: the names of the factors that tell images apart, and do not count as factors.

    Raises:
        UsageError: an argument does not fit.
    """

    sizes: tuple[int, ...]
    names: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    periods: tuple[tuple[str, int], ...] = ()
    hidden: tuple[str, ...] = ()

    def __init__(
        self,
        sizes: Iterable[int],
        names: Iterable[str] = (),
        *,
        categorical: Iterable[str] = (),
        periods: Mapping[str, int] | Iterable[tuple[str, int]] = (),
        hidden: Iterable[str] = (),
    ) -> None:
        """Take the sizes; without names the factors are called factor_0, factor_1 and so on."""
        counts = tuple(plain(size) for size in plain(sizes))
        _check_sizes(counts)
        called = tuple(names) or tuple(f"factor_{k}" for k in range(len(counts)))
        unique = len(set(called)) == len(called) == len(counts)
        if not unique or not all(isinstance(name, str) and name for name in called):
            raise UsageError(f"a grid needs a name for each of its sizes, found {called!r:.200}")
        turns = tuple(dict(periods).items())
        groups = (tuple(categorical), tuple(name for name, _ in turns), tuple(hidden))
        for name in (name for group in groups for name in group):
            if name not in called:
                raise UsageError(f"a grid of {', '.join(called)} has no factor {name!r:.100}")
        if both := set(groups[0]) & set(groups[1]):
            raise UsageError(f"{', '.join(sorted(both))}: categorical, and comes round again")
        for name, steps in turns:
            size = counts[called.index(name)]
            if type(steps) is not int or not 1 <= steps <= size:
                raise UsageError(
                    f"{name}: a turn has 1 to {size} steps, as many as it has values at most, "
                    f"found {steps!r:.50}"
                )
        if len(set(groups[2])) == len(called):
            raise UsageError("a grid needs a factor that is not hidden")
        for field, value in (
            ("sizes", counts),
            ("names", called),
            ("categorical", groups[0]),
            ("periods", turns),
            ("hidden", groups[2]),
        ):
            object.__setattr__(self, field, value)

    @property
    def n(self) -> int:
        """The number of factors, hidden ones too."""
        return len(self.sizes)

    def __len__(self) -> int:
        return math.prod(self.sizes)

    @functools.cached_property
    def strides(self) -> npt.NDArray[np.int64]:
        """The distance in number from one value of each factor to the next, (n,)."""
        return np.cumprod([1, *self.sizes[:0:-1]])[::-1].astype(np.int64)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The factors as columns, hidden ones too: ordered ones are continuous."""
        turns = dict(self.periods)
        columns = []
        for name, size in zip(self.names, self.sizes, strict=True):
            if name in self.categorical:
                values = tuple(str(value) for value in range(size))
                columns.append(Column(name, "discrete", None, values))
            elif name in turns:
                columns.append(Column(name, "circular", (0.0, float(turns[name]))))
            else:
                columns.append(Column(name, "continuous", (0.0, float(size - 1))))
        return tuple(columns)

    @property
    def shown(self) -> tuple[int, ...]:
        """The places of the factors that are not hidden."""
        return tuple(k for k, name in enumerate(self.names) if name not in self.hidden)

    def index(self, points: Any) -> Any:
        """Number points (..., n) of whole numbers, numpy or torch: (...) int64.

        Raises:
            UsageError: one lies outside.
        """
        outside = self.outside(points)
        if bool(outside.any()):
            row = points[outside][0].tolist()
            raise UsageError(f"{row!r:.100} is no point of a grid of sizes {self.sizes}")
        if isinstance(points, np.ndarray):
            return (points.astype(np.int64) * self.strides).sum(-1)
        return (points.long() * points.long().new_tensor(self.strides)).sum(-1)

    def points(self, numbers: Any) -> Any:
        """Find the points of numbers (...), numpy or torch: (..., n) int64.

        Raises:
            UsageError: there is no such point.
        """
        outside = (numbers < 0) | (numbers >= len(self))
        if bool(outside.any()):
            raise UsageError(
                f"there is no point {int(numbers[outside][0])} in a grid of {len(self):,}"
            )
        if isinstance(numbers, np.ndarray):
            return numbers.astype(np.int64)[..., None] // self.strides % np.array(self.sizes)
        whole = numbers.long()  # float32 does not hold large numbers
        strides, sizes = whole.new_tensor(self.strides), whole.new_tensor(self.sizes)
        return whole[..., None] // strides % sizes

    def sub(self, columns: Sequence[int]) -> Grid:
        """The grid of some of the factors."""
        names = [self.names[c] for c in columns]
        return Grid(
            [self.sizes[c] for c in columns],
            names,
            categorical=[name for name in self.categorical if name in names],
            periods=[turn for turn in self.periods if turn[0] in names],
            hidden=[name for name in self.hidden if name in names],
        )

    def center(self) -> npt.NDArray[np.float64]:
        """The middle values, (n,), rounded down."""
        return np.array([(size - 1) // 2 for size in self.sizes], np.float64)

    def outside(self, points: Any) -> Any:
        """Whether each of the points (..., n), numpy or torch, is none of the grid: bool (...)."""
        sizes = np.array(self.sizes)
        if not isinstance(points, np.ndarray):
            sizes = points.new_tensor(self.sizes)
        # The other way round, a NaN would count as inside.
        return ~((points >= 0) & (points < sizes) & (points % 1 == 0)).all(-1)


def _check_sizes(sizes: tuple[Any, ...]) -> None:
    whole = all(type(size) is int and size >= 1 for size in sizes)
    if not sizes or len(sizes) > _MOST_FACTORS or not whole or math.prod(sizes) > _MOST_POINTS:
        raise UsageError(
            f"a grid needs sizes of 1 or more for 1 to {_MOST_FACTORS} factors, and at most 2^62 "
            f"points, found {list(sizes)!r:.200}"
        )
