"""Scores that can be resampled: the bootstrap (Efron & Tibshirani 1993), by weights.

A bootstrap replicate is a count per row. A metric that says what it becomes under such counts
needs no copy of its data: for a regression or a correlation that is a product of the counts
with all second moments at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.evaluate.metrics._arrays import Float64

_CHUNK = 5_000_000  # counts at once, at most 200 replicates


@dataclasses.dataclass(frozen=True, repr=False)
class Score:
    """What a metric says.

    Attributes:
        value: the score; NaN where it is not defined.
        per_factor: (n,), whose mean over the factors that vary is the value; NaN for a
            constant factor; None where the metric has no such parts.
        parts: further results: arrays and numbers.
        choices: every choice that was made, as plain data for JSON.
    """

    value: float
    per_factor: Float64 | None
    parts: Mapping[str, Any]
    choices: Mapping[str, Any]

    def __float__(self) -> float:
        """The score alone."""
        return self.value

    def __repr__(self) -> str:
        """The score, and the names of what else there is."""
        more = [] if self.per_factor is None else ["per_factor"]
        names = ", ".join([*more, *(f"parts[{name!r}]" for name in self.parts)])
        return f"{type(self).__name__}({self.value:.6g}{'; ' if names else ''}{names})"


@dataclasses.dataclass(frozen=True)
class Replicates:
    """A score under b draws of rows.

    Attributes:
        value: (b,).
        per_factor: (b, n), or None.
        parts: (b,) each: further numbers that get an interval.
    """

    value: Float64
    per_factor: Float64 | None = None
    parts: Mapping[str, Float64] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, repr=False)
class Measured(Score):
    """A score, and what it becomes when rows are drawn again.

    Attributes:
        folds: rows that are drawn among themselves; together, all rows that were used.
        replicate: from counts (b, N) of the rows used to the scores under them.
    """

    folds: tuple[slice, ...] = dataclasses.field(compare=False)
    replicate: Callable[[Float64], Replicates] = dataclasses.field(compare=False)

    def plain(self) -> Score:
        """The score alone, without the data behind it."""
        return Score(self.value, self.per_factor, self.parts, self.choices)


def draw_counts(folds: Sequence[slice], count: int, seed: int) -> Iterator[Float64]:
    """How often each row is drawn, with replacement inside each fold.

    Args:
        folds: rows 0..N - 1, cut into stretches.
        count: draws in all.
        seed: of the draws.

    Yields:
        Arrays (b, N), `count` rows in all.
    """
    generator = np.random.default_rng([seed, 1])
    step = max(1, min(200, _CHUNK // folds[-1].stop))
    for start in range(0, count, step):
        size = min(step, count - start)
        counts = np.empty((size, folds[-1].stop))
        for fold in folds:
            rows = fold.stop - fold.start
            drawn = generator.integers(0, rows, (size, rows))
            drawn += rows * np.arange(size)[:, None]
            counts[:, fold] = np.bincount(drawn.ravel(), minlength=size * rows).reshape(size, rows)
        yield counts


def bootstrap(measured: Measured, count: int, seed: int) -> Replicates:
    """A score under `count` draws of its rows, each fold drawn from itself."""
    found = [measured.replicate(counts) for counts in draw_counts(measured.folds, count, seed)]
    factors = [each.per_factor for each in found if each.per_factor is not None]
    return Replicates(
        np.concatenate([each.value for each in found]),
        np.concatenate(factors) if factors else None,
        {name: np.concatenate([each.parts[name] for each in found]) for name in found[0].parts},
    )


def interval(
    replicates: Float64, value: npt.ArrayLike, lowest: float, confidence: float = 0.95
) -> Float64:
    """A percentile interval around the score.

    Percentiles of the replicates, moved so that their median is the score. Drawing rows again
    repeats some, which biases a held-out fit downwards, and an assignment or an information
    estimate upwards, as having fewer samples does; unmoved percentiles would have that bias
    twice, and an interval could lie beside its own score.

    Args:
        replicates: (b, ...).
        value: (...), the score.
        lowest: what the metric cannot fall below; none exceeds 1.
        confidence: the share of replicates inside.

    Returns:
        (2, ...): low and high; NaN where the score or all replicates are not defined.
    """
    value = np.asarray(value, np.float64)
    there = np.isfinite(replicates)
    defined = there.any(0) & np.isfinite(value)
    filled = np.where(defined, replicates, 0.0)
    tail = (1 - confidence) / 2
    ends = np.nanquantile(filled, [tail, 1 - tail], axis=0)
    centred = ends - np.nanmedian(filled, axis=0) + value
    return np.where(defined, np.clip(centred, lowest, 1.0), np.nan)


def weighted_moments(design: Float64, counts: Float64) -> Float64:
    """Weighted mean products of all pairs of columns, one matrix a draw.

    Args:
        design: (N, p).
        counts: (b, N), of positive sums.

    Returns:
        (b, p, p): sum_r counts_r design_ri design_rj / sum_r counts_r.
    """
    size = design.shape[1]
    first, second = np.triu_indices(size)
    sums = np.zeros((len(counts), len(first)))
    step = max(1, 2**21 // len(first))
    for start in range(0, len(design), step):
        rows = design[start : start + step]
        sums += counts[:, start : start + step] @ (rows[:, first] * rows[:, second])
    moments = np.empty((len(counts), size, size))
    moments[:, first, second] = moments[:, second, first] = sums / counts.sum(1)[:, None]
    return moments
