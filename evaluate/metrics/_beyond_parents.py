"""`r2_beyond_parents`: do the codes tell of a factor what its causes do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.errors import UsageError
from threedident.evaluate.metrics._arrays import (
    CONSTANT,
    Float64,
    checked,
    left_out,
    mean_of_varying,
    varying,
)
from threedident.evaluate.metrics._kernel_ridge import RIDGES, WIDTHS, kernel_ridge
from threedident.evaluate.metrics._kinds import Kinds, Points
from threedident.evaluate.metrics._linear_fit import LOWEST, Folds, drawn_folds, splits
from threedident.evaluate.metrics._result import MetricResult, Replicates, Resample

#: Cubic in the samples, with several fits for every factor that has parents.
MOST_SAMPLES = 2048
#: Where parents leave less of a factor's variance than this, what is left is mostly the error
#: of the regression.
LEAST_LEFT = 1e-3

#: The columns of z that are each factor's parents; none for a root.
Parents = Sequence[Sequence[int]]


def r2_beyond_parents(
    z: Any,
    z_hat: Any,
    parents: Parents,
    *,
    kinds: Kinds = None,
    folds: Folds = 2,
    most: int = MOST_SAMPLES,
) -> MetricResult:
    """Share of what a factor's parents leave open that the codes explain, averaged over factors.

    For factor i with the true values p of its parents and the codes c, over held-out rows r:

        R2_i = 1 - sum_r |z_ri - f(p_r) - h(c_r, p_r)|^2 / sum_r |z_ri - f(p_r)|^2

    f is a kernel ridge regression of the factor on its parents, and h one of what f leaves on
    codes, parents and f together, both fitted on the other rows (`kernel_ridge`). Among
    dependent factors a code that holds a parent alone has a high R2 for the child, and about 0
    here, since h finds nothing that f has not. A code that holds the child has about 1, also
    where it holds the child mixed with its parents. A root has no parents: f is the mean, and
    the score is the R2 of kernel ridge regression.

    Range: at most 1; 0 where codes add nothing, and a little below where h fits noise. Chance
    is about 0. NaN for a factor of whose variance its parents leave less than 1/1000: what is
    left is mostly the error of f.

    Args:
        z: (N, n), the factors, the parents among them.
        z_hat: (N, m), the codes.
        parents: columns of z that are the parents of each factor, n lists; empty for roots.
        kinds: the kind of each factor, as in `linear_r2`; None: all continuous.
        folds: 2 or "single".
        most: the number of samples in use, the first ones.

    Returns:
        The mean and each factor's. Parts: `parents_r2` (n,), the R2 of f, NaN for roots; `folds`,
        (folds, n). A bootstrap holds the fits.

    Raises:
        UsageError: the arrays or arguments do not fit.

    Examples:
        The only code is the parent: it tells much of the child, but nothing new.

        >>> import numpy as np
        >>> generator = np.random.default_rng(0)
        >>> parent = generator.uniform(-1, 1, 800)
        >>> z = np.stack([parent, parent + generator.normal(0, 0.3, 800)], 1)
        >>> score = r2_beyond_parents(z, z[:, :1], parents=[[], [0]])
        >>> (score.per_factor > 0.5).tolist(), bool(score.parts["parents_r2"][1] > 0.7)
        ([True, False], True)
    """
    if folds == "in-sample":
        raise UsageError("R2 beyond parents scores held-out rows: use folds=2 or 'single'")
    factors, codes = checked(z, z_hat, 20)
    causes = _checked_parents(parents, factors.shape[1])
    factors, codes = factors[:most], codes[:most]
    pairs = splits(len(factors), folds)
    points = Points.of(factors, kinds)
    true, firsts = _unit_points(points)
    left, missed = true.copy(), np.zeros_like(true)
    for group in dict.fromkeys(causes):
        members = [points.columns(i) for i, each in enumerate(causes) if each == group]
        columns = np.concatenate([np.r_[member] for member in members])
        widths = [member.stop - member.start for member in members]
        starts = np.cumsum([0, *widths[:-1]])
        block = true[:, columns]
        for train, test in pairs:
            rest, inputs = block, codes
            if group:
                known = np.concatenate([true[:, points.columns(i)] for i in group], 1)
                fitted = kernel_ridge(known[train], block[train], known, starts)
                rest, inputs = block - fitted, np.concatenate([codes, known, fitted], 1)
            told = kernel_ridge(inputs[train], rest[train], inputs[test], starts)
            left[test, columns], missed[test, columns] = rest[test], rest[test] - told
    root = np.array([not group for group in causes])

    def by_factor(squares: Float64) -> Float64:
        return np.add.reduceat(squares, firsts, axis=-1)

    def shares(counts: Float64, test: slice) -> tuple[Float64, Float64]:
        """Return R2 beyond parents and of the parents, (b, n), under counts (b, M)."""
        total = counts.sum(1)[:, None]
        error = by_factor(counts @ missed[test] ** 2 / total)
        open_ = by_factor(counts @ left[test] ** 2 / total)
        mean = by_factor((counts @ left[test] / total) ** 2)
        whole = by_factor(counts @ true[test] ** 2 / total - (counts @ true[test] / total) ** 2)
        base = np.where(root, open_ - mean, open_)
        moves = (whole > CONSTANT**2) & (base > CONSTANT**2)
        beyond = np.maximum(1 - error / np.where(moves, base, 1), LOWEST)
        told = 1 - open_ / np.where(moves, whole, 1)
        return np.where(moves, beyond, np.nan), np.where(moves & ~root, told, np.nan)

    whole_fold = [shares(np.ones((1, test.stop - test.start)), test) for _, test in pairs]
    parents_r2 = np.mean([told[0] for _, told in whole_fold], 0)
    defined = varying(factors) & ~(parents_r2 > 1 - LEAST_LEFT)
    per_fold = np.array([np.where(defined, beyond[0], np.nan) for beyond, _ in whole_fold])

    def replicate(counts: Float64) -> Replicates:
        drawn = np.mean([shares(counts[:, test], test)[0] for _, test in pairs], 0)
        each = np.where(defined, drawn, np.nan)
        return Replicates(mean_of_varying(each), each)

    per_factor = per_fold.mean(0)
    choices = {
        "parents": [list(map(int, group)) for group in causes],
        "regressor": "kernel",
        "kernel": "gaussian",
        "widths_in_median_distances": list(WIDTHS),
        "ridges": list(RIDGES),
        "folds": folds,
        "samples": len(factors),
        "bootstrap": "the fits held",
        "told_by_parents_left_out": np.flatnonzero(parents_r2 > 1 - LEAST_LEFT).tolist(),
        **left_out(factors),
    }
    return MetricResult(
        float(mean_of_varying(per_factor)),
        per_factor,
        {"parents_r2": parents_r2, "folds": per_fold},
        choices,
        Resample(drawn_folds(len(factors), folds), replicate),
    )


def _checked_parents(parents: Parents, count: int) -> list[tuple[int, ...]]:
    """Return the parents of each factor, sorted.

    Raises:
        UsageError: there are not as many lists as factors, or one names no other factor.
    """
    if len(parents) != count:
        raise UsageError(
            f"expected parents for each of {count} factors, an empty list for roots, found "
            f"{len(parents)}"
        )
    for factor, columns in enumerate(parents):
        if not all(0 <= column < count and column != factor for column in columns):
            raise UsageError(
                f"the parents of factor {factor} must be other columns of z, 0 to {count - 1}, "
                f"found {list(columns)}"
            )
    return [tuple(sorted({int(column) for column in columns})) for columns in parents]


def _unit_points(points: Points) -> tuple[Float64, npt.NDArray[np.int64]]:
    """Return points of mean 0 and mean square 1 by factor, and each factor's first column."""
    values = points.values
    firsts = np.arange(values.shape[1]) if points.starts is None else points.starts
    centred = values - values.mean(0)
    spread = np.sqrt(np.add.reduceat((centred**2).mean(0), firsts))
    unit = np.where(np.logical_or.reduceat(varying(values), firsts), spread, 1)
    return centred / np.repeat(unit, np.diff([*firsts, values.shape[1]])), firsts
