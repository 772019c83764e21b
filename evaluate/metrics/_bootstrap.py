"""The bootstrap (Efron & Tibshirani 1993), by weights: replicates, intervals, weighted moments.

A bootstrap replicate is a count per row. A metric that can be computed under such counts
needs no copy of its data: for a regression or a correlation that is a product of the counts
with all second moments at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from threedident.evaluate.metrics._arrays import Float64
from threedident.evaluate.metrics._result import MetricResult, Replicates

_CHUNK = 5_000_000  # counts at once, at most 200 replicates


def draw_counts(folds: Sequence[slice], count: int, seed: int) -> Iterator[Float64]:
    """Draw rows with replacement inside each fold, and count how often each was drawn.

    Args:
        folds: the rows 0..N - 1, cut into stretches.
        count: the number of draws in all.
        seed: the seed for the draws.

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


def bootstrap(result: MetricResult, count: int, seed: int) -> Replicates:
    """Compute a score under `count` draws of its rows, each fold drawn from itself.

    Args:
        result: a metric's result, which can be resampled.
        count: the number of draws.
        seed: the seed for the draws.
    """
    resample = result.resample
    assert resample is not None, "the result of a metric function can be resampled"
    draws = [resample.replicate(counts) for counts in draw_counts(resample.folds, count, seed)]
    factors = [each.per_factor for each in draws if each.per_factor is not None]
    return Replicates(
        np.concatenate([each.value for each in draws]),
        np.concatenate(factors) if factors else None,
        {name: np.concatenate([each.parts[name] for each in draws]) for name in draws[0].parts},
    )


def interval(
    replicates: Float64, value: npt.ArrayLike, lowest: float, confidence: float = 0.95
) -> Float64:
    """Compute a percentile interval around the score.

    Percentiles of the replicates, moved so that their median is the score. Drawing rows again
    repeats some, which biases a held-out fit downwards, and an assignment or an information
    estimate upwards, as having fewer samples does; unmoved percentiles would have that bias
    twice, and an interval could lie beside its own score.

    Args:
        replicates: (b, ...), the score in each draw.
        value: (...), the score.
        lowest: the lower bound of the metric; no metric exceeds 1.
        confidence: the share of replicates inside.

    Returns:
        (2, ...): low and high; NaN where the score or all replicates are not defined.
    """
    value = np.asarray(value, np.float64)
    known = np.isfinite(replicates)
    defined = known.any(0) & np.isfinite(value)
    filled = np.where(defined, replicates, 0.0)
    tail = (1 - confidence) / 2
    ends = np.nanquantile(filled, [tail, 1 - tail], axis=0)
    centred = ends - np.nanmedian(filled, axis=0) + value
    return np.where(defined, np.clip(centred, lowest, 1.0), np.nan)


def weighted_moments(design: Float64, counts: Float64) -> Float64:
    """Compute weighted mean products of all pairs of columns, one matrix a draw.

    Args:
        design: (N, p), the columns.
        counts: (b, N), how often each row was drawn; each sum is positive.

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
