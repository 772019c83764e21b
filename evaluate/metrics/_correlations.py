"""Correlations of every factor with every code, ranks, and one-to-one assignments."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from threedident.errors import MissingExtraError
from threedident.evaluate.metrics._arrays import CONSTANT, Float64, standardised
from threedident.evaluate.metrics._linear_fit import (
    Moments,
    drawn_folds,
    fit_linear,
    refits,
    splits,
    whitened,
)

try:
    from scipy.optimize import linear_sum_assignment
    from scipy.stats import rankdata
except ImportError as error:
    raise MissingExtraError("scipy", "train", "scoring") from error

Int64 = npt.NDArray[np.int64]

UNMATCHED = -1
#: With more codes, a bootstrap draws only those that correlate best with some factor.
_MANY_CODES = 512
_CANDIDATES = 32  # for each factor


@dataclasses.dataclass(frozen=True)
class Correlations:
    """Correlations of every factor with every code.

    Attributes:
        table: (n, m), signed.
        draw: a function from counts (b, N) of the samples to the tables (b, n, m) under them.
        bootstrap: the way in which that is done, in words.
    """

    table: Float64
    draw: Callable[[Float64], Float64]
    bootstrap: str


def pearson_correlations(factors: Float64, codes: Float64) -> Correlations:
    """Compute Pearson's correlations of factors (N, n) with codes (N, m)."""
    table = pearson(factors, codes)
    drawn, how = _worth_drawing(table)
    return Correlations(table, lambda c: _drawn_pearson(factors, codes[:, drawn], c), how)


def spearman_correlations(factors: Float64, codes: Float64) -> Correlations:
    """Compute Spearman's correlations, Pearson's of ranks; ranked anew in every draw."""
    table = pearson(_average_ranks(factors), _average_ranks(codes))
    drawn, how = _worth_drawing(table)

    @functools.cache
    def ordered() -> tuple[Sorted, Sorted]:
        return Sorted.of(factors), Sorted.of(codes[:, drawn])

    return Correlations(table, lambda counts: _drawn_spearman(*ordered(), counts), how)


def _worth_drawing(table: Float64) -> tuple[Int64, str]:
    """Choose the codes that a bootstrap draws, of very many the best; and say so in words."""
    if table.shape[1] <= _MANY_CODES:
        return np.arange(table.shape[1]), "refitted"
    best = np.argsort(-np.abs(table), axis=1, kind="stable")[:, :_CANDIDATES]
    return np.unique(best), f"refitted, over the {_CANDIDATES} best codes of each factor"


def aligned_correlations(factors: Float64, codes: Float64) -> Correlations:
    """Compute Pearson's correlations of the factors with their linear predictions.

    Each half is predicted by least squares on the other; the table (n, n) is the mean of both.
    """
    halves = drawn_folds(len(factors), 2)
    pairs = splits(len(factors), 2)
    predicted = np.empty_like(factors)
    for train, test in pairs:
        predicted[test] = fit_linear(codes[train], factors[train]).predict(codes[test])
    table = np.mean([pearson(factors[half], predicted[half]) for half in halves], 0)
    anew = refits(codes.shape[1], len(factors) // 2)

    @functools.cache
    def design() -> tuple[Float64, Float64]:
        return whitened(codes), standardised(factors)

    def refitted(counts: Float64) -> Float64:
        white, unit = design()
        moments = [Moments.of(white[half], unit[half], counts[:, half]) for half in halves]
        tables = []
        for train, test in (moments, moments[::-1]):
            weights = train.weights()
            variance = (weights * (test.codes @ weights)).sum(1)
            covariance = np.swapaxes(test.cross, 1, 2) @ weights
            tables.append(_from_covariance(covariance, test.factors, variance))
        return np.mean(tables, 0)

    def held(counts: Float64) -> Float64:
        drawn = [_drawn_pearson(factors[half], predicted[half], counts[:, half]) for half in halves]
        return np.mean(drawn, 0)

    if anew:
        return Correlations(table, refitted, "refitted")
    return Correlations(table, held, "the fit held")


def pearson(factors: Float64, codes: Float64) -> Float64:
    """Return the correlations (n, m) of factors (N, n) and codes (N, m); 0 for constants."""
    both = standardised(factors).T @ standardised(codes) / len(factors)
    return np.clip(both, -1, 1)


def _average_ranks(values: Float64) -> Float64:
    """Return ranks 1..N within each column, the mean rank for ties."""
    return np.asarray(rankdata(values, axis=0), np.float64)


def assign(strength: Float64) -> Int64:
    """Find the one-to-one assignment of factors to codes of the largest total strength.

    Args:
        strength: (n, m), non-negative.

    Returns:
        (n,): each factor's code; -1 where there are fewer codes than factors.
    """
    rows, columns = linear_sum_assignment(strength, maximize=True)
    assigned = np.full(len(strength), UNMATCHED, np.int64)
    assigned[rows] = columns
    return assigned


def matched(strength: Float64, permutation: Int64) -> Float64:
    """Return the strength of each factor's code, (n,); 0 where it has none."""
    picked = strength[np.arange(len(permutation)), permutation]
    return np.where(permutation == UNMATCHED, 0.0, picked)


def _drawn_pearson(factors: Float64, codes: Float64, counts: Float64) -> Float64:
    """Compute Pearson correlations (b, n, m) under counts (b, N)."""
    z, c = standardised(factors), standardised(codes)
    total = counts.sum(1)[:, None]
    products = np.empty((len(counts), z.shape[1], c.shape[1]))
    step = max(1, 2**21 // (z.shape[1] * c.shape[1]))
    products[:] = 0
    for start in range(0, len(z), step):
        rows = slice(start, start + step)
        both = z[rows, :, None] * c[rows, None, :]
        products += (counts[:, rows] @ both.reshape(len(both), -1)).reshape(products.shape)
    mean_z, mean_c = counts @ z / total, counts @ c / total
    variance_z = counts @ z**2 / total - mean_z**2
    variance_c = counts @ c**2 / total - mean_c**2
    return _from_covariance(
        products / total[:, :, None] - mean_z[:, :, None] * mean_c[:, None, :],
        variance_z,
        variance_c,
    )


def _from_covariance(covariance: Float64, first: Float64, second: Float64) -> Float64:
    """Turn covariances (b, n, m) into correlations, by variances (b, n), (b, m) near 1."""
    product = np.maximum(first, 0)[:, :, None] * np.maximum(second, 0)[:, None, :]
    moves = product > CONSTANT**2
    root = np.sqrt(np.where(moves, product, 1))
    return np.where(moves, np.clip(covariance / root, -1, 1), 0.0)


@dataclasses.dataclass(frozen=True)
class Sorted:
    """Columns in order, with their ties, from which ranks under counts are made.

    Attributes:
        order: (k, N), row numbers from the smallest value of a column up.
        first, after: (k, N), for each row the place in that order where its ties begin, and the
            place after the last of them.
        tied: whether there are any ties.
    """

    order: Int64
    first: Int64
    after: Int64
    tied: bool

    @classmethod
    def of(cls, values: Float64) -> Sorted:
        """Sort the columns of (N, k)."""
        order = np.ascontiguousarray(np.argsort(values, axis=0, kind="stable").T)
        ordered = np.take_along_axis(values.T, order, 1)
        new = np.ones(order.shape, bool)
        new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
        ends = np.ones(order.shape, bool)
        ends[:, :-1] = new[:, 1:]
        place = np.arange(order.shape[1])
        first, after = np.empty_like(order), np.empty_like(order)
        begins = np.maximum.accumulate(np.where(new, place, 0), axis=1)
        stops = np.where(ends, place + 1, len(place))[:, ::-1]
        np.put_along_axis(first, order, begins, 1)
        np.put_along_axis(after, order, np.minimum.accumulate(stops, axis=1)[:, ::-1], 1)
        return cls(order, first, after, not new.all())

    def ranks(self, counts: Float64) -> Float64:
        """Compute mean ranks (k, N) of rows of which each counts `counts` (N,) times."""
        ranks = np.empty(self.order.shape)
        up_to = np.zeros(len(counts) + 1)
        for column in range(len(ranks)):
            np.cumsum(counts[self.order[column]], out=up_to[1:])
            ranks[column] = up_to[self.after[column]]
            if self.tied:
                ranks[column] += up_to[self.first[column]]
        if self.tied:
            return (ranks + 1) / 2
        return ranks - (counts - 1) / 2


def _drawn_spearman(factors: Sorted, codes: Sorted, counts: Float64) -> Float64:
    """Compute Spearman correlations (b, n, m) under counts (b, N), ranked anew in every draw."""
    tables = np.empty((len(counts), len(factors.order), len(codes.order)))
    for draw, row in enumerate(counts):
        # Weights under which mean ranks have variances of order 1.
        root = np.sqrt(row / row.sum()) / row.sum()
        centre = (row.sum() + 1) / 2
        z, c = (root * (each.ranks(row) - centre) for each in (factors, codes))
        variances = np.einsum("ij,ij->i", z, z)[None], np.einsum("ij,ij->i", c, c)[None]
        tables[draw] = _from_covariance((z @ c.T)[None], *variances)[0]
    return tables
