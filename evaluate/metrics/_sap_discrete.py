"""`sap_discrete`: does one code predict a factor better than all others, by a linear classifier."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from threedident.evaluate.metrics._arrays import (
    Float64,
    at_factors,
    largest_gap,
    left_out,
    mean_of_varying,
    varying,
)
from threedident.evaluate.metrics._kernel_ridge import sklearn_part
from threedident.evaluate.metrics._result import MetricResult, Replicates, Resample
from threedident.evaluate.metrics._values import checked_classes, fitted_and_scored

#: The published weight of the data beside the penalty.
_COST = 0.01
#: The published number of samples, fitted and scored together.
MOST = 15_000


def sap_discrete(z: Any, z_hat: Any, *, most: int = MOST, seed: int = 0) -> MetricResult:
    """Separated attribute predictability of classes (Kumar et al. 2018, section 3).

    As Locatello et al. 2019 compute it: the accuracy, on held-out rows, of a linear support vector
    machine (C = 0.01, classes weighted equally) that tells the value of the factor from one code;
    the mean over factors of the gap between the best and the second-best code. With one code the
    second is 0. Constant factors are left out.

    One line cannot tell many ordered values apart, so that the accuracies, and their gaps, are
    small where factors have many values. The codes are not scaled, and the classifier is
    penalised: scores fall where codes are small numbers.

    Range: 0 to 1. Chance is about 0.

    Args:
        z: (N, n), the factors, whose values come again.
        z_hat: (N, m), the codes.
        most: the number of samples in use, the first ones: two thirds to fit on, and the rest to
            score.
        seed: the seed of the classifier.

    Returns:
        The mean gap and each factor's. Parts: `accuracy` (n, m). A bootstrap holds the fit.

    Raises:
        UsageError: the arrays do not fit, or the values of a factor do not come again.

    Examples:
        >>> import numpy as np
        >>> z = np.random.default_rng(0).integers(0, 2, (400, 2))
        >>> round(sap_discrete(z, 4 * z).value, 1), sap_discrete(z, np.hstack([z, z])).value
        (0.5, 0.0)
    """
    factors, classes, codes = checked_classes(z, z_hat, 1, 1, most)
    kept = varying(factors)
    train, test = fitted_and_scored(len(factors))
    hits = np.zeros((test.stop - test.start, classes.shape[1], codes.shape[1]))
    for i, j in np.ndindex(*hits.shape[1:]):
        column, labels = codes[:, j : j + 1], classes[:, i]
        if len(np.unique(labels[train])) < 2:
            continue
        model = sklearn_part("svm").LinearSVC(C=_COST, class_weight="balanced", random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that 1,000 iterations were not enough, as published
            model.fit(column[train], labels[train])
        hits[:, i, j] = model.predict(column[test]) == labels[test]
    flat = hits.reshape(len(hits), -1)

    def gaps(counts: Float64) -> Float64:
        shares = (counts @ flat / counts.sum(1)[:, None]).reshape(-1, *hits.shape[1:])
        return at_factors(largest_gap(shares), kept)

    def replicate(counts: Float64) -> Replicates:
        each = gaps(counts)
        return Replicates(mean_of_varying(each), each)

    per_factor = gaps(np.ones((1, len(hits))))[0]
    return MetricResult(
        float(mean_of_varying(per_factor)),
        per_factor,
        {"accuracy": at_factors(hits.mean(0).T, kept).T},
        {
            "classifier": "scikit-learn's LinearSVC of one code, C = 0.01, classes balanced",
            "samples_fitted": train.stop,
            "samples_scored": len(hits),
            "seed": seed,
            "bootstrap": "the fit held",
            **left_out(factors),
        },
        Resample((slice(0, len(hits)),), replicate),
    )
