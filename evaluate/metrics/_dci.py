"""Is every factor in a code of its own: DCI, MIG, SAP, modularity and explicitness.

Functions of z (N, n) and z_hat (N, m), as in `metrics`. The papers define them for discrete
factors or leave choices open for continuous ones; those are arguments here, with defaults.
Factors that are constant are left out.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.errors import MissingExtraError, UsageError
from threedident.evaluate.metrics._arrays import (
    Float64,
    checked,
    left_out,
    mean_of_varying,
    standardised,
    varying,
)
from threedident.evaluate.metrics._bootstrap import Measured, Replicates
from threedident.evaluate.metrics._correlations import Sorted, pearson_correlations
from threedident.evaluate.metrics._kernel_ridge import MOST_SAMPLES, sklearn_part
from threedident.evaluate.metrics._linear_fit import (
    Folds,
    determination,
    drawn_folds,
    held_determination,
    splits,
)
from threedident.evaluate.metrics._mutual_information import BINS, Bins, binned, information

try:
    from scipy import special
except ImportError as error:
    raise MissingExtraError("scipy", "train", "scoring") from error

REGRESSORS = ("trees", "lasso")
IMPORTANCES = ("permutation", "fit")
#: More codes make these metrics slow and their meaning thin.
MOST_CODES = 512
CLASSES = 10  # of a factor, for explicitness


def _checked(z: Any, z_hat: Any, factors: int, codes: int) -> tuple[Float64, Float64]:
    """As `arrays.checked`, with at least so many varying factors and codes."""
    true, found = checked(z, z_hat, 20)
    if (moving := int(varying(true).sum())) < factors:
        raise UsageError(f"this metric needs at least {factors} varying factors, found {moving}")
    if not codes <= found.shape[1] <= MOST_CODES:
        raise UsageError(
            f"this metric needs {codes} to {MOST_CODES} codes, found {found.shape[1]}: it compares "
            "codes one by one"
        )
    return true, found


def _spread(values: Float64, kept: npt.NDArray[np.bool_]) -> Float64:
    """(..., n) with values (..., kept) at the factors kept, NaN elsewhere."""
    found = np.full((*values.shape[:-1], len(kept)), np.nan)
    found[..., kept] = values
    return found


def dci(
    z: Any,
    z_hat: Any,
    *,
    regressor: str = "trees",
    importance: str = "permutation",
    folds: Folds = 2,
    most: int = MOST_SAMPLES,
    seed: int = 0,
) -> Measured:
    """Disentanglement, completeness and informativeness (Eastwood & Williams 2018, section 2).

    A regressor predicts every factor from all codes; R_ji is the importance of code j for
    factor i. Disentanglement of code j: 1 - H_n(R_j. / sum_i R_ji), entropy to base n, averaged
    with weights sum_i R_ji; completeness of factor i: 1 - H_m(R_.i / sum_j R_ji), averaged over
    factors, 0 for one that no code matters to; informativeness: the mean R2 on held-out rows
    (the paper has the error, which is 1 - R2 for standardised factors).

    Args:
        z: (N, n), n >= 2 varying.
        z_hat: (N, m), m >= 2.
        regressor: "trees": gradient boosting, 100 trees of depth 3, learning rate 0.1, as
            scikit-learn has it (and Locatello et al. 2019 take it); "lasso": LassoCV with 5
            folds, as in the paper.
        importance: "permutation": by how much the squared error on held-out rows, in variances
            of the factor, grows when code j is shuffled among them, at least 0; "fit": what the
            fit itself says, impurity of trees or absolute weights of the lasso, as published.
        folds: 2 or "single".
        most: samples that are used, the first ones.
        seed: of trees and shuffles.

    Returns:
        Disentanglement. Parts: `completeness`, `informativeness`, and each per factor;
        `disentanglement_per_code`; `importance` (m, n). A bootstrap holds the fit, so that with
        importance="fit" only informativeness varies.

    Raises:
        UsageError: the arrays or arguments do not fit.
    """
    if regressor not in REGRESSORS:
        raise UsageError(f"regressor must be one of {', '.join(REGRESSORS)}, found {regressor!r}")
    if importance not in IMPORTANCES:
        raise UsageError(
            f"importance must be one of {', '.join(IMPORTANCES)}, found {importance!r}"
        )
    if folds == "in-sample":
        raise UsageError("DCI scores held-out rows: use folds=2 or 'single'")
    factors, codes = _checked(z, z_hat, 2, 2)
    factors, codes = factors[:most], standardised(codes[:most])
    kept = varying(factors)
    true = standardised(factors)[:, kept]
    pairs = splits(len(factors), folds)
    fits = [
        _fit_importances(codes, true, train, test, regressor, importance, seed)
        for train, test in pairs
    ]

    def scores(table: Float64, r2: Float64) -> dict[str, Float64]:
        of_codes, of_factors = disentangled(table), completeness(table)
        return {
            "disentanglement": of_codes[1],
            "completeness": of_factors.mean(-1),
            "informativeness": mean_of_varying(r2),
            "completeness_per_factor": _spread(of_factors, kept),
            "informativeness_per_factor": _spread(r2, kept),
            "disentanglement_per_code": of_codes[0],
        }

    def replicate(counts: Float64) -> Replicates:
        tables, r2 = [], []
        for fit, (_, test) in zip(fits, pairs, strict=True):
            drawn = counts[:, test]
            tables.append(fit.importances(drawn))
            r2.append(held_determination(true[test], fit.predicted, drawn))
        found = scores(np.mean(tables, 0), np.mean(r2, 0))
        value = found["disentanglement"]
        parts = {name: found[name] for name in ("completeness", "informativeness")}
        return Replicates(value, None, parts)

    ones = [np.ones((1, test.stop - test.start)) for _, test in pairs]
    table = np.mean([fit.importances(one) for fit, one in zip(fits, ones, strict=True)], 0)
    r2 = np.mean(
        [
            determination(true[test], fit.predicted)
            for fit, (_, test) in zip(fits, pairs, strict=True)
        ],
        0,
    )
    found = {name: each[0] for name, each in scores(table, r2[None]).items()}
    value = float(found.pop("disentanglement"))
    importances = np.zeros((codes.shape[1], len(kept)))
    importances[:, kept] = table[0]
    return Measured(
        value,
        None,
        {**found, "importance": importances},
        {
            "regressor": regressor,
            "importance": importance,
            "folds": folds,
            "samples": len(factors),
            "seed": seed,
            "completeness": "mean over factors",
            "bootstrap": "the fit held",
            **left_out(factors),
        },
        drawn_folds(len(factors), folds),
        replicate,
    )


@dataclasses.dataclass(frozen=True)
class _Fit:
    """Regressors of one fold: predictions (M, n) of its test rows, and importances.

    Attributes:
        predicted: (M, n).
        growth: (M, m, n), by which each row's squared error grows with each code shuffled; None
            where the importances are those of the fit.
        fixed: (m, n), importances of the fit.
    """

    predicted: Float64
    growth: Float64 | None
    fixed: Float64

    def importances(self, counts: Float64) -> Float64:
        """(b, m, n), under counts (b, M) of the test rows."""
        if self.growth is None:
            return np.broadcast_to(self.fixed, (len(counts), *self.fixed.shape))
        sums = counts @ self.growth.reshape(len(self.growth), -1) / counts.sum(1)[:, None]
        return np.maximum(sums.reshape(-1, *self.fixed.shape), 0)


def _fit_importances(
    codes: Float64,
    factors: Float64,
    train: slice,
    test: slice,
    regressor: str,
    importance: str,
    seed: int,
) -> _Fit:
    """Fits a regressor per factor on some rows and looks at it on others."""
    shuffles = np.random.default_rng([seed, 3])
    held, true = codes[test], factors[test]
    shuffled = np.stack([shuffles.permutation(column) for column in held.T], 1)
    predicted = np.empty_like(true)
    fixed = np.empty((codes.shape[1], factors.shape[1]))
    growth = np.zeros((len(held), *fixed.shape))
    for i in range(factors.shape[1]):
        if regressor == "trees":
            model = sklearn_part("ensemble").GradientBoostingRegressor(random_state=seed)
        else:
            model = sklearn_part("linear_model").LassoCV(cv=5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the lasso has not converged to the last digit
            model.fit(codes[train], factors[train, i])
        fixed[:, i] = model.feature_importances_ if regressor == "trees" else np.abs(model.coef_)
        predicted[:, i] = model.predict(held)
        if importance == "fit":
            continue
        before = (true[:, i] - predicted[:, i]) ** 2
        for j in np.flatnonzero(fixed[:, i]):
            moved = held.copy()
            moved[:, j] = shuffled[:, j]
            growth[:, j, i] = (true[:, i] - model.predict(moved)) ** 2 - before
    return _Fit(predicted, growth if importance == "permutation" else None, fixed)


def disentangled(importance: Float64) -> tuple[Float64, Float64]:
    """Per code (..., m), 1 - entropy over factors to base n, and the weighted mean (...).

    Eastwood & Williams 2018, section 2; a code without importance has 0 and no weight.

    Args:
        importance: (..., m, n), non-negative.
    """
    weight = importance.sum(-1)
    each = _unevenness(importance)
    total = weight.sum(-1)
    mean = (weight * each).sum(-1) / np.where(total > 0, total, 1)
    return each, np.where(total > 0, mean, 0.0)


def completeness(importance: Float64) -> Float64:
    """Per factor (..., n), 1 - entropy over codes to base m; 0 where no code matters.

    Args:
        importance: (..., m, n), non-negative.
    """
    return _unevenness(np.swapaxes(importance, -1, -2))


def _unevenness(importance: Float64) -> Float64:
    """1 - the entropy, to base k, of rows (..., k) made to sum to 1; 0 for rows of zeros."""
    total = importance.sum(-1, keepdims=True)
    share = importance / np.where(total > 0, total, 1)
    logs = np.log(np.where(share > 0, share, 1))
    entropy = -(share * logs).sum(-1) / np.log(importance.shape[-1])
    return np.where(total[..., 0] > 0, 1 - entropy, 0.0)


@dataclasses.dataclass(frozen=True)
class _Binned:
    """Binned factors (those that vary) and codes, and their mutual information."""

    factors: Bins
    codes: Bins
    bins: int

    def under(self, counts: Float64) -> tuple[Float64, Float64]:
        """Information (b, n, m) and entropies (b, n) under counts (b, N)."""
        return information(self.factors, self.codes, self.bins, counts)

    def whole(self) -> tuple[Float64, Float64]:
        """Information (n, m) and entropies (n,) of all rows."""
        found, entropies = self.under(np.ones((1, len(self.factors))))
        return found[0], entropies[0]


def mig(z: Any, z_hat: Any, *, bins: int = BINS, binning: str = "width") -> Measured:
    """Mutual information gap (Chen et al. 2018, equation 6).

    The mean over factors of (I(z_i; c_first) - I(z_i; c_second)) / H(z_i), of the two codes that
    say most about the factor, all of it binned. With one code the second is 0.

    Args:
        z: (N, n).
        z_hat: (N, m).
        bins: of every factor and code, 20 as in Locatello et al. 2019. Few samples for bins^2
            cells raise every information by about (bins - 1)^2 / (2 N).
        binning: "width" (equally wide) or "quantile" (equally full).

    Returns:
        The mean gap and each factor's. Parts: `information` (n, m) in nats; `entropy` (n,).

    Raises:
        UsageError: the arrays or arguments do not fit.
    """
    factors, codes = _checked(z, z_hat, 1, 1)
    kept = varying(factors)
    table = _Binned(binned(factors[:, kept], bins, binning), binned(codes, bins, binning), bins)

    def gaps(found: Float64, entropies: Float64) -> Float64:
        top = _gap(found) / np.where(entropies > 0, entropies, 1)
        return _spread(np.where(entropies > 0, top, np.nan), kept)

    def replicate(counts: Float64) -> Replicates:
        each = gaps(*table.under(counts))
        return Replicates(mean_of_varying(each), each)

    found, entropies = table.whole()
    per_factor = gaps(found, entropies)
    return Measured(
        float(mean_of_varying(per_factor)),
        per_factor,
        {
            "information": _spread(found.T, kept).T,
            "entropy": _spread(entropies, kept),
        },
        {"bins": bins, "binning": binning, "bootstrap": "refitted", **left_out(factors)},
        (slice(0, len(factors)),),
        replicate,
    )


def _gap(values: Float64) -> Float64:
    """(...), the largest less the second largest of (..., m); the largest if m = 1."""
    if values.shape[-1] == 1:
        return values[..., 0]
    top = np.partition(values, -2, axis=-1)
    return top[..., -1] - top[..., -2]


def sap(z: Any, z_hat: Any) -> Measured:
    """Separated attribute predictability (Kumar et al. 2018, section 3).

    For continuous factors: the R2 of a linear regression of the factor on each single code,
    in-sample, which is their squared correlation; the mean over factors of the gap between
    the best and the second-best code. With one code the second is 0.

    Args:
        z: (N, n).
        z_hat: (N, m).

    Returns:
        The mean gap and each factor's. Parts: `r2` (n, m).

    Raises:
        UsageError: the arrays do not fit.
    """
    factors, codes = _checked(z, z_hat, 1, 1)
    kept = varying(factors)
    correlations = pearson_correlations(factors, codes)

    def replicate(counts: Float64) -> Replicates:
        each = np.where(kept, _gap(correlations.draw(counts) ** 2), np.nan)
        return Replicates(mean_of_varying(each), each)

    squares = correlations.table**2
    per_factor = np.where(kept, _gap(squares), np.nan)
    return Measured(
        float(mean_of_varying(per_factor)),
        per_factor,
        {"r2": squares},
        {"regression": "linear, one code", "bootstrap": "refitted", **left_out(factors)},
        (slice(0, len(factors)),),
        replicate,
    )


def modularity(z: Any, z_hat: Any, *, bins: int = BINS, binning: str = "width") -> Measured:
    """Modularity: does every code tell of one factor only (Ridgeway & Mozer 2018, section 3).

    For code j with information I_ij, the largest of them I*: 1 - sum of the other I_ij^2 /
    (I*^2 (n - 1)), averaged over codes; 0 for a code without any information.

    Args:
        z: (N, n), n >= 2 varying.
        z_hat: (N, m).
        bins: of every factor and code.
        binning: "width" or "quantile".

    Returns:
        The mean over codes. Parts: `per_code` (m,); `information` (n, m) in nats.

    Raises:
        UsageError: the arrays or arguments do not fit.
    """
    factors, codes = _checked(z, z_hat, 2, 1)
    kept = varying(factors)
    table = _Binned(binned(factors[:, kept], bins, binning), binned(codes, bins, binning), bins)

    def per_code(found: Float64) -> Float64:
        squares = found**2
        largest = squares.max(-2)
        others = squares.sum(-2) - largest
        told = largest > 0
        return np.where(told, 1 - others / np.where(told, largest, 1) / (found.shape[-2] - 1), 0.0)

    def replicate(counts: Float64) -> Replicates:
        return Replicates(per_code(table.under(counts)[0]).mean(-1))

    found = table.whole()[0]
    each = per_code(found)
    return Measured(
        float(each.mean()),
        None,
        {"per_code": each, "information": _spread(found.T, kept).T},
        {"bins": bins, "binning": binning, "bootstrap": "refitted", **left_out(factors)},
        (slice(0, len(factors)),),
        replicate,
    )


def explicitness(
    z: Any,
    z_hat: Any,
    *,
    classes: int = CLASSES,
    penalty: float = 1e-5,
    folds: Folds = 2,
    most: int = MOST_SAMPLES,
) -> Measured:
    """Explicitness: can a linear classifier read the factors (Ridgeway & Mozer 2018, section 3).

    Every factor is cut into equally full classes; a logistic regression on all codes predicts
    them; the score is the area under the ROC curve of each class against the rest, on held-out
    rows, less 1/2, times 2, averaged over classes and factors. The paper regresses each class
    against the rest on its own, with which no linear code can tell the middle of a continuous
    factor from its ends; here it is one multinomial regression per factor.

    Args:
        z: (N, n).
        z_hat: (N, m).
        classes: of each factor, at least 2.
        penalty: of the weights' squares, per sample, on standardised codes.
        folds: 2 or "single".
        most: samples that are used, the first ones.

    Returns:
        The mean and each factor's. Parts: `auc` (n, classes). A bootstrap holds the fit.

    Raises:
        UsageError: the arrays or arguments do not fit.
    """
    if not 2 <= classes <= 100:
        raise UsageError(f"classes must lie in 2..100, found {classes}")
    if folds == "in-sample":
        raise UsageError("explicitness scores held-out rows: use folds=2 or 'single'")
    factors, codes = _checked(z, z_hat, 1, 1)
    factors, codes = factors[:most], standardised(codes[:most])
    kept = varying(factors)
    cut = binned(factors[:, kept], classes, "quantile")
    pairs = splits(len(factors), folds)
    chances = [_class_chances(codes, cut, classes, penalty, *pair) for pair in pairs]

    @functools.cache
    def ordered() -> list[Sorted]:
        return [Sorted.of(each.reshape(len(each), -1)) for each in chances]

    def areas(counts: Float64) -> Float64:
        """AUC (n, classes) under counts (N,), the mean of the folds."""
        found = []
        for places, (_, test) in zip(ordered(), pairs, strict=True):
            found.append(_areas(places.ranks(counts[test]), cut[test], classes, counts[test]))
        return np.mean(found, 0)

    def scores(found: Float64) -> Float64:
        return _spread(2 * mean_of_varying(found) - 1, kept)

    def replicate(counts: Float64) -> Replicates:
        each = scores(np.array([areas(row) for row in counts]))
        return Replicates(mean_of_varying(each), each)

    found = areas(np.ones(len(factors)))
    per_factor = scores(found)
    return Measured(
        float(mean_of_varying(per_factor)),
        per_factor,
        {"auc": _spread(found.T, kept).T},
        {
            "classes": classes,
            "binning": "quantile",
            "classifier": "multinomial logistic regression",
            "penalty": penalty,
            "folds": folds,
            "samples": len(factors),
            "bootstrap": "the fit held",
            **left_out(factors),
        },
        drawn_folds(len(factors), folds),
        replicate,
    )


def _class_chances(
    codes: Float64, cut: Bins, classes: int, penalty: float, train: slice, test: slice
) -> Float64:
    """Log-probabilities (M, n, classes) of the classes of each factor in the test rows."""
    linear_model = sklearn_part("linear_model")
    rows = train.stop - train.start
    found = np.full((test.stop - test.start, cut.shape[1], classes), -np.inf)
    for i in range(cut.shape[1]):
        labels = cut[train, i]
        seen = np.unique(labels)
        if len(seen) < 2:
            continue
        model = linear_model.LogisticRegression(C=1 / (penalty * rows), max_iter=500)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the ranks of probabilities do not need the last digit
            model.fit(codes[train], labels)
        logits = model.decision_function(codes[test])
        if len(seen) == 2:
            logits = np.stack([-logits / 2, logits / 2], 1)
        found[:, i, seen] = special.log_softmax(logits, axis=1)
    return found


def _areas(ranks: Float64, cut: Bins, classes: int, counts: Float64) -> Float64:
    """Areas under the ROC curve (n, classes) from ranks, by the Mann-Whitney statistic.

    Args:
        ranks: (n * classes, M), of each class's probability.
        cut: (M, n), true classes.
        classes: how many there are.
        counts: (M,).
    """
    ranks = ranks.reshape(cut.shape[1], classes, len(cut))
    found = np.empty(ranks.shape[:2])
    for i, j in np.ndindex(found.shape):
        inside = cut[:, i] == j
        weight = counts[inside]
        positive = weight.sum()
        pairs = positive * (counts.sum() - positive)
        wins = weight @ ranks[i, j, inside] - positive * (positive + 1) / 2
        found[i, j] = wins / pairs if pairs else np.nan
    return found
