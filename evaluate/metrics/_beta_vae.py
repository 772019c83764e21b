"""`beta_vae_score`: can a linear classifier tell which factor two sets of images share."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from threedident.evaluate.metrics._arrays import Float64, at_factors, left_out, varying
from threedident.evaluate.metrics._interventions import (
    BATCH,
    POINTS,
    TEST_POINTS,
    RowsByValue,
    check_points,
    share_by_factor,
)
from threedident.evaluate.metrics._kernel_ridge import sklearn_part
from threedident.evaluate.metrics._result import MetricResult, Replicates, Resample
from threedident.evaluate.metrics._values import Int64, checked_classes

_AT_ONCE = 2**21  # differences


def beta_vae_score(
    z: Any,
    z_hat: Any,
    *,
    points: int = POINTS,
    test_points: int = TEST_POINTS,
    batch: int = BATCH,
    standardised: bool = False,
    seed: int = 0,
) -> MetricResult:
    """BetaVAE score (Higgins et al. 2017, section 3), as Locatello et al. 2019 compute it.

    For a point, a factor k is drawn, and 64 pairs of images that agree in factor k, and in the
    others by chance alone. The mean of |c - c~| over the pairs is what a logistic regression is
    given to tell k. The score is the share of further points of which it does.

    Images that agree in a factor are chosen among the samples, which therefore must be of
    independent factors whose values come again, as those of a grid. Of all images of a grid that
    is the published protocol.

    Range: 0 to 1. Chance is 1 / n.

    Args:
        z: (N, n), the factors, n >= 2 of which vary.
        z_hat: (N, m), the codes.
        points: the number of points that the classifier is fitted on.
        test_points: the number of points that it is scored on.
        batch: the number of pairs of a point.
        standardised: whether each feature is divided by its standard deviation over the points
            that are fitted on. As published it is not: the regression penalises its weights (C =
            1), so that the score falls where codes are small numbers.
        seed: the seed for the draws.

    Returns:
        The accuracy. Parts: `standardised`, the accuracy with standardised features, and
        `as_they_are`; `accuracy_per_factor` (n,); `confusion` (n, n), the test points of each
        factor (row) by the factor told. A bootstrap draws test points, and holds the fit.

    Raises:
        UsageError: the arrays or arguments do not fit, or the values of a factor do not come
            again.

    Examples:
        >>> import numpy as np
        >>> z = np.random.default_rng(0).integers(0, 5, (2000, 3))
        >>> settings = {"points": 300, "test_points": 300}
        >>> round(beta_vae_score(z, z[:, ::-1], **settings).value, 2)
        1.0
        >>> round(beta_vae_score(z, 0.01 * z, **settings).parts["standardised"], 2)
        1.0
    """
    check_points(points, test_points, batch)
    factors, classes, codes = checked_classes(z, z_hat, 2, 1)
    kept = varying(factors)
    generator = np.random.default_rng([seed, 4])
    chosen = generator.integers(0, classes.shape[1], points + test_points)
    features = _features(codes, classes, chosen, batch, generator)
    told = {scaled: _told(features, chosen, points, standardise=scaled) for scaled in (False, True)}
    true = chosen[points:]
    right = {scaled: (each == true).astype(np.float64) for scaled, each in told.items()}

    def replicate(counts: Float64) -> Replicates:
        total = counts.sum(1)
        shares = {scaled: counts @ hits / total for scaled, hits in right.items()}
        parts = {"as_they_are": shares[False], "standardised": shares[True]}
        return Replicates(shares[standardised], None, parts)

    confusion = np.zeros((len(kept), len(kept)))
    numbers = np.flatnonzero(kept)
    np.add.at(confusion, (numbers[true], numbers[told[standardised]]), 1)
    values = {scaled: float(hits.mean()) for scaled, hits in right.items()}
    return MetricResult(
        values[standardised],
        None,
        {
            "as_they_are": values[False],
            "standardised": values[True],
            "accuracy_per_factor": at_factors(share_by_factor(right[standardised], true), kept),
            "confusion": confusion,
        },
        {
            "points": points,
            "test_points": test_points,
            "batch": batch,
            "classifier": "scikit-learn's LogisticRegression, C = 1, at most 100 iterations",
            "features_standardised": standardised,
            "seed": seed,
            "bootstrap": "test points, the fit held",
            **left_out(factors),
        },
        Resample((slice(0, test_points),), replicate),
    )


def _features(
    codes: Float64, classes: Int64, chosen: Int64, batch: int, generator: np.random.Generator
) -> Float64:
    """Compute the mean |c - c~| over pairs that agree in the factor chosen, a row a point."""
    features = np.empty((len(chosen), codes.shape[1]))
    step = max(1, _AT_ONCE // (batch * codes.shape[1]))
    for factor in range(classes.shape[1]):
        rows = RowsByValue.of(classes[:, factor])
        points = np.flatnonzero(chosen == factor)
        for start in range(0, len(points), step):
            some = points[start : start + step]
            anchors = rows.draw_anchors((len(some), batch), generator)
            partners = rows.draw_partners(anchors, generator)
            features[some] = np.abs(codes[anchors] - codes[partners]).mean(1)
    return features


def _told(features: Float64, factors: Int64, points: int, *, standardise: bool) -> Int64:
    """Fit on the first points, and return the factors that are told of the others."""
    if len(np.unique(factors[:points])) < 2:
        return np.full(len(factors) - points, factors[0])
    if standardise:
        spread = features[:points].std(0)
        moves = varying(features[:points])
        centred = features - features[:points].mean(0)
        features = np.where(moves, centred / np.where(moves, spread, 1), 0.0)
    model = sklearn_part("linear_model").LogisticRegression()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that 100 iterations were not enough, as published
        model.fit(features[:points], factors[:points])
    return np.asarray(model.predict(features[points:]), np.int64)
