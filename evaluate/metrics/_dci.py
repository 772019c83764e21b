"""`dci`: disentanglement, completeness and informativeness, from importances of codes."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np

from threedident.errors import UsageError
from threedident.evaluate.metrics._arrays import (
    Bools,
    Float64,
    at_factors,
    checked_one_by_one,
    left_out,
    mean_of_varying,
    standardised,
    varying,
)
from threedident.evaluate.metrics._kernel_ridge import MOST_SAMPLES, sklearn_part
from threedident.evaluate.metrics._linear_fit import (
    Folds,
    determination,
    drawn_folds,
    held_determination,
    splits,
)
from threedident.evaluate.metrics._result import MetricResult, Replicates, Resample

REGRESSORS = ("trees", "lasso")
IMPORTANCES = ("permutation", "fit")


def dci(
    z: Any,
    z_hat: Any,
    *,
    regressor: str = "trees",
    importance: str = "permutation",
    folds: Folds = 2,
    most: int = MOST_SAMPLES,
    seed: int = 0,
) -> MetricResult:
    """Disentanglement, completeness and informativeness (Eastwood & Williams 2018, section 2).

    A regressor predicts every factor from all codes; R_ji is the importance of code j for
    factor i. Disentanglement of code j: 1 - H_n(R_j. / sum_i R_ji), entropy to base n, averaged
    with weights sum_i R_ji; completeness of factor i: 1 - H_m(R_.i / sum_j R_ji), averaged over
    factors, 0 for one that no code matters to; informativeness: the mean R2 on held-out rows
    (the paper has the error, which is 1 - R2 for standardised factors). Constant factors are
    left out.

    Range: 0 to 1, informativeness at most 1. Chance is not 0: 0.27 of 10 factors, 10 codes and
    4,096 samples.

    Args:
        z: (N, n), the factors, n >= 2 of which vary.
        z_hat: (N, m), the codes, m >= 2.
        regressor: "trees": gradient boosting, 100 trees of depth 3, learning rate 0.1, as
            scikit-learn has it (and Locatello et al. 2019 take it); "lasso": LassoCV with 5
            folds, as in the paper.
        importance: "permutation": by how much the squared error on held-out rows, in variances
            of the factor, grows when code j is shuffled among them, at least 0; "fit": the
            importances of the fit, impurity of trees or absolute weights of the lasso, as
            published.
        folds: 2 or "single".
        most: the number of samples in use, the first ones.
        seed: the seed for trees and shuffles.

    Returns:
        Disentanglement. Parts: `completeness`, `informativeness`, and each per factor;
        `disentanglement_per_code`; `importance` (m, n). A bootstrap holds the fit, so that with
        importance="fit" only informativeness varies.

    Raises:
        UsageError: the arrays or arguments do not fit.

    Examples:
        >>> import numpy as np
        >>> z = np.random.default_rng(0).uniform(-1, 1, (200, 2))
        >>> score = dci(z, z[:, ::-1], regressor="lasso")
        >>> round(score.value, 2), score.parts["importance"].round().tolist()
        (1.0, [[0.0, 2.0], [2.0, 0.0]])
    """
    _check_arguments(regressor, importance, folds)
    factors, codes = checked_one_by_one(z, z_hat, 2, 2)
    factors, codes = factors[:most], standardised(codes[:most])
    kept = varying(factors)
    true = standardised(factors)[:, kept]
    pairs = splits(len(factors), folds)
    fits = [
        _fit_importances(codes, true, train, test, regressor, importance, seed)
        for train, test in pairs
    ]

    def replicate(counts: Float64) -> Replicates:
        tables, r2 = [], []
        for fit, (_, test) in zip(fits, pairs, strict=True):
            drawn = counts[:, test]
            tables.append(fit.importances(drawn))
            r2.append(held_determination(true[test], fit.predicted, drawn))
        scores = _scores(np.mean(tables, 0), np.mean(r2, 0), kept)
        parts = {name: scores[name] for name in ("completeness", "informativeness")}
        return Replicates(scores["disentanglement"], None, parts)

    ones = [np.ones((1, test.stop - test.start)) for _, test in pairs]
    table = np.mean([fit.importances(one) for fit, one in zip(fits, ones, strict=True)], 0)
    tests = [true[test] for _, test in pairs]
    r2 = np.mean([determination(t, fit.predicted) for t, fit in zip(tests, fits, strict=True)], 0)
    scores = {name: each[0] for name, each in _scores(table, r2[None], kept).items()}
    value = float(scores.pop("disentanglement"))
    choices = {
        "regressor": regressor,
        "importance": importance,
        "folds": folds,
        "samples": len(factors),
        "seed": seed,
        "completeness": "mean over factors",
        "bootstrap": "the fit held",
        **left_out(factors),
    }
    importances = np.zeros((codes.shape[1], len(kept)))
    importances[:, kept] = table[0]
    return MetricResult(
        value,
        None,
        {**scores, "importance": importances},
        choices,
        Resample(drawn_folds(len(factors), folds), replicate),
    )


def _check_arguments(regressor: str, importance: str, folds: Folds) -> None:
    if regressor not in REGRESSORS:
        raise UsageError(f"regressor must be one of {', '.join(REGRESSORS)}, found {regressor!r}")
    if importance not in IMPORTANCES:
        raise UsageError(
            f"importance must be one of {', '.join(IMPORTANCES)}, found {importance!r}"
        )
    if folds == "in-sample":
        raise UsageError("DCI scores held-out rows: use folds=2 or 'single'")


def _scores(table: Float64, r2: Float64, kept: Bools) -> dict[str, Float64]:
    """Compute the three scores and their parts, each with b in front.

    Args:
        table: (b, m, k), importances of codes for the k factors that vary.
        r2: (b, k), R2 of these factors on held-out rows.
        kept: (n,), which factors vary.
    """
    of_codes, of_factors = disentangled(table), completeness(table)
    return {
        "disentanglement": of_codes[1],
        "completeness": of_factors.mean(-1),
        "informativeness": mean_of_varying(r2),
        "completeness_per_factor": at_factors(of_factors, kept),
        "informativeness_per_factor": at_factors(r2, kept),
        "disentanglement_per_code": of_codes[0],
    }


@dataclasses.dataclass(frozen=True)
class _Fit:
    """The regressors of one fold, as far as they are scored.

    Attributes:
        predicted: (M, n), predictions of the test rows.
        growth: (M, m, n), by how much each row's squared error grows with each code shuffled;
            None where the importances are those of the fit.
        fixed: (m, n), importances of the fit.
    """

    predicted: Float64
    growth: Float64 | None
    fixed: Float64

    def importances(self, counts: Float64) -> Float64:
        """Return importances (b, m, n) under counts (b, M) of the test rows."""
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
    """Fit a regressor per factor on some rows, and look at it on others."""
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
    """Compute disentanglement per code (..., m), and the weighted mean (...).

    1 - entropy over factors to base n (Eastwood & Williams 2018, section 2); a code without
    importance has 0 and no weight.

    Args:
        importance: (..., m, n), non-negative.
    """
    weight = importance.sum(-1)
    each = _unevenness(importance)
    total = weight.sum(-1)
    mean = (weight * each).sum(-1) / np.where(total > 0, total, 1)
    return each, np.where(total > 0, mean, 0.0)


def completeness(importance: Float64) -> Float64:
    """Compute completeness per factor (..., n).

    1 - entropy over codes to base m; 0 where no code matters.

    Args:
        importance: (..., m, n), non-negative.
    """
    return _unevenness(np.swapaxes(importance, -1, -2))


def _unevenness(importance: Float64) -> Float64:
    """Compute 1 - the entropy, to base k, of rows (..., k) made to sum to 1; 0 for zeros."""
    total = importance.sum(-1, keepdims=True)
    share = importance / np.where(total > 0, total, 1)
    logs = np.log(np.where(share > 0, share, 1))
    entropy = -(share * logs).sum(-1) / np.log(importance.shape[-1])
    return np.where(total[..., 0] > 0, 1 - entropy, 0.0)
