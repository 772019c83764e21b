"""`explicitness`: can a linear classifier read the factors from the codes."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np

from threedident.errors import MissingExtraError, UsageError
from threedident.evaluate.metrics._arrays import (
    Float64,
    at_factors,
    checked_one_by_one,
    left_out,
    mean_of_varying,
    standardised,
    varying,
)
from threedident.evaluate.metrics._correlations import Sorted
from threedident.evaluate.metrics._kernel_ridge import MOST_SAMPLES, sklearn_part
from threedident.evaluate.metrics._linear_fit import Folds, decorrelated, drawn_folds, splits
from threedident.evaluate.metrics._mutual_information import Bins, binned
from threedident.evaluate.metrics._result import MetricResult, Replicates, Resample

try:
    from scipy import special
except ImportError as error:
    raise MissingExtraError("scipy", "train", "scoring") from error

CLASSES = 10  # of a factor


def explicitness(
    z: Any,
    z_hat: Any,
    *,
    classes: int = CLASSES,
    penalty: float = 1e-5,
    folds: Folds = 2,
    most: int = MOST_SAMPLES,
) -> MetricResult:
    """Explicitness of factors for a linear classifier (Ridgeway & Mozer 2018, section 3).

    Every factor is cut into equally full classes; a logistic regression on all codes predicts
    them; the score is the area under the ROC curve of each class against the rest, on held-out
    rows, less 1/2, times 2, averaged over classes and factors. The paper regresses each class
    against the rest on its own, with which no linear code can tell the middle of a continuous
    factor from its ends; here it is one multinomial regression per factor.

    Range: -1 to 1. Chance is about 0.

    Args:
        z: (N, n), the factors. Constant ones are left out.
        z_hat: (N, m), the codes.
        classes: the number of classes of each factor, at least 2.
        penalty: the weight of the squared weights, per sample, on standardised codes, which are
            decorrelated where there are ten rows or more to each.
        folds: 2 or "single".
        most: the number of samples in use, the first ones.

    Returns:
        The mean and each factor's. Parts: `auc` (n, classes). A bootstrap holds the fit.

    Raises:
        UsageError: the arrays or arguments do not fit.

    Examples:
        >>> import numpy as np
        >>> z = np.random.default_rng(0).uniform(-1, 1, (400, 2))
        >>> score = explicitness(z, z[:, :1], classes=4)  # the second factor is missing
        >>> (score.per_factor > 0.5).tolist(), score.parts["auc"].shape
        ([True, False], (2, 4))
    """
    if not 2 <= classes <= 100:
        raise UsageError(f"classes must lie in 2..100, found {classes}")
    if folds == "in-sample":
        raise UsageError("explicitness scores held-out rows: use folds=2 or 'single'")
    factors, codes = checked_one_by_one(z, z_hat, 1, 1)
    factors, codes = factors[:most], standardised(codes[:most])
    kept = varying(factors)
    cut = binned(factors[:, kept], classes, "quantile")
    pairs = splits(len(factors), folds)
    chances = [_class_chances(codes, cut, classes, penalty, *pair) for pair in pairs]

    @functools.cache
    def ordered() -> list[Sorted]:
        return [Sorted.of(each.reshape(len(each), -1)) for each in chances]

    def areas(counts: Float64) -> Float64:
        """Return the AUC (n, classes) under counts (N,), the mean of the folds."""
        per_fold = [
            _areas(places.ranks(counts[test]), cut[test], classes, counts[test])
            for places, (_, test) in zip(ordered(), pairs, strict=True)
        ]
        return np.mean(per_fold, 0)

    def scores(auc: Float64) -> Float64:
        return at_factors(2 * mean_of_varying(auc) - 1, kept)

    def replicate(counts: Float64) -> Replicates:
        each = scores(np.array([areas(row) for row in counts]))
        return Replicates(mean_of_varying(each), each)

    auc = areas(np.ones(len(factors)))
    per_factor = scores(auc)
    choices = {
        "classes": classes,
        "binning": "quantile",
        "classifier": "multinomial logistic regression",
        "penalty": penalty,
        "folds": folds,
        "samples": len(factors),
        "bootstrap": "the fit held",
        **left_out(factors),
    }
    return MetricResult(
        float(mean_of_varying(per_factor)),
        per_factor,
        {"auc": at_factors(auc.T, kept).T},
        choices,
        Resample(drawn_folds(len(factors), folds), replicate),
    )


def _class_chances(
    codes: Float64, cut: Bins, classes: int, penalty: float, train: slice, test: slice
) -> Float64:
    """Predict log-probabilities (M, n, classes) of each factor's classes in the test rows."""
    linear_model = sklearn_part("linear_model")
    rows = train.stop - train.start
    chances = np.full((test.stop - test.start, cut.shape[1], classes), -np.inf)
    fitted, scored = decorrelated(codes[train], codes[test])
    for i in range(cut.shape[1]):
        labels = cut[train, i]
        seen = np.unique(labels)
        if len(seen) < 2:
            continue
        model = linear_model.LogisticRegression(C=1 / (penalty * rows), max_iter=500)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the ranks of probabilities do not need the last digit
            model.fit(fitted, labels)
        logits = model.decision_function(scored)
        if len(seen) == 2:
            logits = np.stack([-logits / 2, logits / 2], 1)
        chances[:, i, seen] = special.log_softmax(logits, axis=1)
    return chances


def _areas(ranks: Float64, cut: Bins, classes: int, counts: Float64) -> Float64:
    """Compute areas under the ROC curve (n, classes) by the Mann-Whitney statistic.

    Args:
        ranks: (n * classes, M), the ranks of each class's probability.
        cut: (M, n), the true classes.
        classes: the number of classes.
        counts: (M,), how often each row was drawn.
    """
    ranks = ranks.reshape(cut.shape[1], classes, len(cut))
    areas = np.empty(ranks.shape[:2])
    for i, j in np.ndindex(areas.shape):
        inside = cut[:, i] == j
        weight = counts[inside]
        positive = weight.sum()
        pairs = positive * (counts.sum() - positive)
        wins = weight @ ranks[i, j, inside] - positive * (positive + 1) / 2
        areas[i, j] = wins / pairs if pairs else np.nan
    return areas
