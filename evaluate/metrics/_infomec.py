"""`infomec`: modularity, explicitness and compactness of codes, by information."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.errors import MissingExtraError, UsageError
from threedident.evaluate.metrics._arrays import (
    Float64,
    at_factors,
    checked_one_by_one,
    left_out,
    standardised,
    varying,
)
from threedident.evaluate.metrics._kernel_ridge import MOST_SAMPLES, sklearn_part
from threedident.evaluate.metrics._kinds import Kind, Kinds, Points, as_kinds, class_numbers
from threedident.evaluate.metrics._linear_fit import (
    Folds,
    decorrelated,
    drawn_folds,
    fit_linear,
    held_determination,
    splits,
)
from threedident.evaluate.metrics._mutual_information import binned, information
from threedident.evaluate.metrics._result import MetricResult, Replicates, Resample

try:
    from scipy.special import digamma, xlogy
except ImportError as error:
    raise MissingExtraError("scipy", "train", "scoring") from error

Classes = npt.NDArray[np.int64]

CLASSES = 10  # of a continuous or circular factor
NEIGHBOURS = 10
#: Codes of which each takes at most so many values count as discrete.
MOST_LEVELS = 20
#: A continuous code is active if its range exceeds this share of the largest.
LEAST_RANGE = 1 / 20
PENALTY = 1e-5  # of the logistic regression, per sample
_LEAST_CHANCE = 1e-6  # that a fit can give to a class
_JITTER = 1e-10  # standard deviations; parts equal values

CODES = ("auto", "continuous", "discrete")


def infomec(
    z: Any,
    z_hat: Any,
    *,
    kinds: Kinds = None,
    codes: str = "auto",
    classes: int = CLASSES,
    neighbours: int = NEIGHBOURS,
    folds: Folds = 2,
    most: int = MOST_SAMPLES,
    seed: int = 0,
) -> MetricResult:
    """InfoM, InfoE and InfoC (Hsu et al. 2023, section 5): modular, explicit and compact codes.

    With the normalised information N_ij = I(z_i; c_j) / H(z_i) of n factors and the k codes
    that are active:

        InfoM = (mean_j max_i N_ij / sum_i N_ij - 1/n) / (1 - 1/n): does a code tell of one factor
        InfoC = (mean_i max_j N_ij / sum_j N_ij - 1/k) / (1 - 1/k): does one code tell of a factor
        InfoE = mean_i (H(z_i) - H(z_i | c)) / H(z_i): is a factor read by a linear predictor

    Of continuous codes I is estimated by nearest neighbours (Ross 2014), 10 as in the authors'
    code, and a code is active if its range exceeds 1/20 of the largest, which depends on the
    scales of codes. Of discrete codes I is that of the observed frequencies, and a code is
    active if it varies. The entropies of InfoE are log losses of held-out rows: of a multinomial
    logistic regression on the codes (indicators, if they are discrete), and of the classes'
    shares; at least 0, since a predictor may ignore the codes.

    The paper's factors are discrete. Of continuous and circular ones our extension cuts N_ij into
    equally full classes, and takes the squared error of a linear regression for InfoE, which
    makes that their R2 (`linear_r2`). The authors' code scores InfoE in-sample, and weights
    classes alike.

    Range: 0 to 1. InfoM and InfoC by chance are not 0: small informations are noise, one of
    which is the largest. Dependent factors lower InfoM even of perfect codes. Constant factors
    are left out.

    Args:
        z: (N, n), the factors, n >= 2 of which vary.
        z_hat: (N, m), the codes.
        kinds: the kind of each factor; None: all continuous.
        codes: "continuous", "discrete" or "auto": discrete if none takes over 20 values.
        classes: the number of classes of a continuous or circular factor.
        neighbours: the number of neighbours behind the information of continuous codes.
        folds: 2 or "single", for InfoE.
        most: the number of samples in use, the first ones.
        seed: the seed that parts equal values of continuous codes.

    Returns:
        InfoM. Parts: `infoe`, `infoc` (NaN with one active code), `infoe_per_factor` (n,),
        `information` N (n, m), `active` (m,). Without active codes all are 0. A bootstrap holds
        neighbours and fits, and draws the terms of their sums.

    Raises:
        UsageError: the arrays or arguments do not fit.

    Examples:
        Codes in other places, one of them twice.

        >>> import numpy as np
        >>> z = np.random.default_rng(0).integers(0, 4, (800, 2))
        >>> score = infomec(z, z[:, [1, 0, 0]], kinds=["discrete", "discrete"])
        >>> round(score.value, 1), round(score.parts["infoc"], 2)
        (1.0, 0.62)
    """
    if codes not in CODES:
        raise UsageError(f"codes must be one of {', '.join(CODES)}, found {codes!r}")
    if not 2 <= classes <= MOST_LEVELS:
        raise UsageError(f"classes must lie in 2..{MOST_LEVELS}, found {classes}")
    if neighbours < 1:
        raise UsageError(f"neighbours must be at least 1, found {neighbours}")
    if folds == "in-sample":
        raise UsageError("InfoE scores held-out rows: use folds=2 or 'single'")
    factors, recovered = checked_one_by_one(z, z_hat, 2, 1)
    factors, recovered = factors[:most], recovered[:most]
    kept = varying(factors)
    each = [k for k, moves in zip(as_kinds(kinds, len(kept)), kept, strict=True) if moves]
    true = factors[:, kept]
    cut = np.stack([_cut(true[:, i], kind, classes, i) for i, kind in enumerate(each)], 1)
    levels = [len(np.unique(column)) for column in recovered.T]
    discrete = codes == "discrete" or (
        codes == "auto" and max(levels) <= MOST_LEVELS and cut.max() < MOST_LEVELS
    )
    ranges = np.ptp(recovered, axis=0)
    active = ranges > (0 if discrete else ranges.max() * LEAST_RANGE)
    if discrete:
        _check_levels(levels, int(cut.max()) + 1)
        estimate = _of_frequencies(cut, recovered)
    else:
        estimate = _of_neighbours(cut, standardised(recovered), neighbours, seed)
    pairs = splits(len(true), folds)
    inputs = _indicators(recovered) if discrete else standardised(recovered)
    explicit = [_told(true[:, i], k, cut[:, i], inputs, pairs) for i, k in enumerate(each)]

    def scores(counts: Float64) -> dict[str, Float64]:
        table = estimate(counts)
        per_factor = np.stack([told(counts) for told in explicit], 1)
        lively = table[:, :, active]
        gone = np.zeros(len(counts))
        return {
            "infom": _gap(np.swapaxes(lively, 1, 2)) if active.any() else gone,
            "infoc": _gap(lively) if active.any() else gone,
            "infoe": per_factor.mean(1),
            "infoe_per_factor": per_factor,
            "information": table,
        }

    def replicate(counts: Float64) -> Replicates:
        drawn = scores(counts)
        return Replicates(drawn["infom"], None, {k: drawn[k] for k in ("infoe", "infoc")})

    whole = {name: values[0] for name, values in scores(np.ones((1, len(true)))).items()}
    choices = {
        "codes": "discrete" if discrete else "continuous",
        "information": "observed frequencies" if discrete else "nearest neighbours",
        **({} if discrete else {"neighbours": neighbours, "least_range": LEAST_RANGE}),
        "classes_of_continuous_factors": classes,
        "predictor": "logistic regression of classes, linear regression of other factors",
        "penalty": PENALTY,
        "folds": folds,
        "samples": len(true),
        "seed": seed,
        "bootstrap": "neighbours and fits held",
        **left_out(factors),
    }
    parts = {
        "infoe": float(whole["infoe"]),
        "infoc": float(whole["infoc"]),
        "infoe_per_factor": at_factors(whole["infoe_per_factor"], kept),
        "information": at_factors(whole["information"].T, kept).T,
        "active": active.tolist(),
    }
    return MetricResult(
        float(whole["infom"]),
        None,
        parts,
        choices,
        Resample(drawn_folds(len(true), folds), replicate),
    )


def _gap(table: Float64) -> Float64:
    """Return the mean share of the largest entry of each row, moved from [1/k, 1] to [0, 1].

    Args:
        table: (b, rows, k), not negative; NaN of k = 1, where the share says nothing.
    """
    width = table.shape[-1]
    if width == 1:
        return np.full(len(table), np.nan)
    total = table.sum(-1)
    share = np.where(total > 0, table.max(-1) / np.where(total > 0, total, 1), 1 / width)
    return np.maximum((share.mean(-1) - 1 / width) / (1 - 1 / width), 0)


def _cut(column: Float64, kind: Kind, classes: int, factor: int) -> Classes:
    """Return the class of every row, 0..K - 1 of those that occur."""
    if kind.name == "discrete":
        labels = class_numbers(column, f"factor {factor}")
    else:
        line = np.mod(column, kind.turn) if kind.name == "circular" else column
        labels = binned(line[:, None], classes, "quantile")[:, 0]
    return np.unique(labels, return_inverse=True)[1]


def _check_levels(levels: list[int], classes: int) -> None:
    if max(*levels, classes) > MOST_LEVELS:
        raise UsageError(
            f"discrete codes and factors may take at most {MOST_LEVELS} values, found "
            f"{max(*levels, classes)}: use codes='continuous'"
        )


def _entropies(cut: Classes, counts: Float64) -> Float64:
    """Return the entropy of each factor's classes, (b, n), under counts (b, N)."""
    each = []
    for labels in cut.T:
        indicator = (labels[:, None] == np.arange(labels.max() + 1)).astype(np.float64)
        shares = counts @ indicator / counts.sum(1)[:, None]
        each.append(-xlogy(shares, shares).sum(1))
    return np.stack(each, 1)


def _normalised(table: Float64, entropies: Float64) -> Float64:
    known = entropies[:, :, None] > 0
    return np.where(known, np.maximum(table, 0) / np.where(known, entropies[:, :, None], 1), 0)


def _of_frequencies(cut: Classes, codes: Float64) -> Callable[[Float64], Float64]:
    """Return the function from counts (b, N) to N (b, n, m) of discrete codes."""
    places = np.stack([np.unique(column, return_inverse=True)[1] for column in codes.T], 1)

    def estimate(counts: Float64) -> Float64:
        return _normalised(*information(cut, places, MOST_LEVELS, counts))

    return estimate


def _of_neighbours(
    cut: Classes, codes: Float64, neighbours: int, seed: int
) -> Callable[[Float64], Float64]:
    """Return the function from counts (b, N) to N (b, n, m) of continuous codes."""
    jitter = np.random.default_rng([seed, 3]).standard_normal(codes.shape)
    parted = np.where(varying(codes), codes + _JITTER * jitter, 0)
    shape = (len(codes), cut.shape[1], codes.shape[1])
    terms = np.zeros(shape)
    for j in np.flatnonzero(varying(codes)):
        column = parted[:, j]
        for i in range(cut.shape[1]):
            terms[:, i, j] = _terms(cut[:, i], column, neighbours)

    def estimate(counts: Float64) -> Float64:
        sums = counts @ terms.reshape(len(codes), -1) / counts.sum(1)[:, None]
        return _normalised(sums.reshape(-1, *shape[1:]), _entropies(cut, counts))

    return estimate


def _terms(labels: Classes, column: Float64, neighbours: int) -> Float64:
    """Return each row's term of the information of classes and a number (Ross 2014).

    psi(N) + psi(k) - psi(N_c) - psi(m): N_c rows are of the row's class, the k-th nearest of
    which is as far away as the m-th nearest of all. Their mean estimates the information. A row
    alone in its class has 0.

    Args:
        labels: (N,), the classes.
        column: (N,), the numbers, all different.
        neighbours: k, where a class has more rows than that.
    """
    ordered = np.sort(column)
    terms = np.zeros(len(column))
    alone = np.bincount(labels)[labels] < 2
    usable = len(column) - int(alone.sum())
    for label in np.unique(labels[~alone]):
        rows = np.flatnonzero(labels == label)
        rows = rows[np.argsort(column[rows], kind="stable")]
        inside = column[rows]
        k = min(neighbours, len(rows) - 1)
        # Of the k + 1 neighbours in a row that hold this one, the nearest set.
        place = np.arange(len(rows))[:, None]
        first = place + np.arange(-k, 1)
        fits = (first >= 0) & (first + k < len(rows))
        first = np.where(fits, first, 0)
        reach = np.maximum(inside[:, None] - inside[first], inside[first + k] - inside[:, None])
        radius = np.where(fits, reach, np.inf).min(1)
        # Less than the k-th, however sums are rounded.
        nearer = radius - 4 * np.finfo(float).eps * (radius + np.abs(inside))
        within = np.searchsorted(ordered, inside + nearer, "right")
        within -= np.searchsorted(ordered, inside - nearer, "left")
        terms[rows] = digamma(usable) + digamma(k) - digamma(len(rows))
        terms[rows] -= digamma(np.maximum(within, k))
    return terms


def _indicators(codes: Float64) -> Float64:
    """Return a column for each value of each discrete code."""
    return np.concatenate(
        [(column[:, None] == np.unique(column)).astype(np.float64) for column in codes.T], 1
    )


def _told(
    column: Float64, kind: Kind, labels: Classes, inputs: Float64, pairs: list[tuple[slice, slice]]
) -> Callable[[Float64], Float64]:
    """Return the function from counts (b, N) to a factor's share of InfoE, (b,).

    Args:
        column: (N,), the factor.
        kind: its kind.
        labels: (N,), its classes.
        inputs: (N, k), the codes for a linear predictor.
        pairs: the rows to fit on and the rows to score, of every fold.
    """
    if kind.name == "discrete":
        losses = [_log_losses(labels, inputs, train, test) for train, test in pairs]

        def of_classes(counts: Float64) -> Float64:
            shares = []
            for (_, test), (loss, null) in zip(pairs, losses, strict=True):
                left, base = counts[:, test] @ loss, counts[:, test] @ null
                shares.append(np.where(base > 0, 1 - left / np.where(base > 0, base, 1), 0))
            return np.maximum(np.mean(shares, 0), 0)

        return of_classes
    points = Points.of(column[:, None], [kind])
    true, starts = points.values, points.starts
    fits = [fit_linear(inputs[train], true[train]).predict(inputs[test]) for train, test in pairs]

    def of_numbers(counts: Float64) -> Float64:
        r2 = [
            held_determination(true[test], fit, counts[:, test], starts)[:, 0]
            for (_, test), fit in zip(pairs, fits, strict=True)
        ]
        return np.maximum(np.nan_to_num(np.mean(r2, 0)), 0)

    return of_numbers


def _log_losses(
    labels: Classes, inputs: Float64, train: slice, test: slice
) -> tuple[Float64, Float64]:
    """Return the log loss of each test row: of a logistic regression, and of the shares."""
    seen, place = np.unique(labels[train], return_inverse=True)
    count = labels.max() + 1
    shares = np.full(count, _LEAST_CHANCE)
    shares[seen] = np.maximum(np.bincount(place) / len(place), _LEAST_CHANCE)
    null = -np.log(shares[labels[test]])
    if len(seen) < 2:
        return null, null
    rows = train.stop - train.start
    fitted, scored = decorrelated(inputs[train], inputs[test])
    model = sklearn_part("linear_model").LogisticRegression(C=1 / (PENALTY * rows), max_iter=500)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the last digits of a loss say nothing
        model.fit(fitted, labels[train])
    chances = np.full((test.stop - test.start, count), _LEAST_CHANCE)
    chances[:, seen] = np.maximum(model.predict_proba(scored), _LEAST_CHANCE)
    return -np.log(chances[np.arange(len(chances)), labels[test]]), null
