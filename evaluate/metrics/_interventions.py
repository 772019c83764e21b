"""Images that agree in one factor, as the BetaVAE and FactorVAE scores look at them."""

from __future__ import annotations

import dataclasses

import numpy as np

from threedident.errors import UsageError
from threedident.evaluate.metrics._arrays import Float64
from threedident.evaluate.metrics._values import Int64

#: Points to fit on and to score, and images (or pairs) to a point: Locatello et al. 2019.
POINTS, TEST_POINTS, BATCH = 10_000, 5_000, 64


def check_points(points: int, test_points: int, batch: int) -> None:
    """Refuse numbers of points from which nothing can be learned.

    Raises:
        UsageError: there are too few.
    """
    if min(points, test_points) < 20 or batch < 2:
        raise UsageError(
            "expected at least 20 points to fit on, 20 to score and a batch of 2, found "
            f"{points}, {test_points} and {batch}"
        )


def share_by_factor(hits: Float64, factors: Int64) -> Float64:
    """Return the mean of hits (P,) by factor (P,), of every factor up to the largest."""
    counts = np.bincount(factors)
    sums = np.bincount(factors, hits)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


@dataclasses.dataclass(frozen=True)
class RowsByValue:
    """The rows of each value of a factor, of which rows that agree in it are drawn.

    Where the factors are independent, rows chosen by the value of one factor are distributed as
    if it had been set to that value and all others drawn anew.

    Attributes:
        order: (N,), the row numbers, those of a value together.
        starts: (N,), of each row, where those of its value begin in `order`.
        counts: (N,), of each row, the number of rows of its value.
        places: (N,), of each row, its place in `order`.
    """

    order: Int64
    starts: Int64
    counts: Int64
    places: Int64

    @classmethod
    def of(cls, classes: Int64) -> RowsByValue:
        """Sort rows by their classes (N,) of a factor."""
        order = np.argsort(classes, kind="stable")
        counts = np.bincount(classes)
        starts = np.cumsum(counts) - counts
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        return cls(order, starts[classes], counts[classes], places)

    def draw_anchors(self, shape: tuple[int, ...], generator: np.random.Generator) -> Int64:
        """Draw rows whose value another row has as well; each is equally likely.

        Args:
            shape: the shape of the result.
            generator: the source of random numbers.
        """
        usable = np.flatnonzero(self.counts > 1)
        return usable[generator.integers(0, len(usable), shape)]

    def draw_partners(self, rows: Int64, generator: np.random.Generator) -> Int64:
        """Draw for each row another one of the same value, each equally likely.

        Args:
            rows: the row numbers, of any shape, each with another row of its value.
            generator: the source of random numbers.
        """
        counts, starts = self.counts[rows], self.starts[rows]
        steps = generator.integers(1, counts)
        return self.order[starts + (self.places[rows] - starts + steps) % counts]

    def draw_alike(self, rows: Int64, count: int, generator: np.random.Generator) -> Int64:
        """Draw `count` rows of the same value as each row (k,), with replacement: (k, count).

        Args:
            rows: the row numbers.
            count: the number of rows to draw for each.
            generator: the source of random numbers.
        """
        drawn = generator.integers(0, self.counts[rows][:, None], (len(rows), count))
        return self.order[self.starts[rows][:, None] + drawn]
