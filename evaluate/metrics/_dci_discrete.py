"""`dci_discrete`: disentanglement, completeness and informativeness, of boosted classifiers."""

from __future__ import annotations

from typing import Any

import numpy as np

from threedident.evaluate.metrics._arrays import (
    Float64,
    at_factors,
    left_out,
    standardised,
    varying,
)
from threedident.evaluate.metrics._dci import completeness, disentangled
from threedident.evaluate.metrics._kernel_ridge import sklearn_part
from threedident.evaluate.metrics._result import MetricResult, Replicates, Resample
from threedident.evaluate.metrics._sap_discrete import MOST
from threedident.evaluate.metrics._values import checked_classes, fitted_and_scored


def dci_discrete(z: Any, z_hat: Any, *, most: int = MOST, seed: int = 0) -> MetricResult:
    """Disentanglement, completeness and informativeness, as Locatello et al. 2019 compute them.

    A gradient-boosted classifier of scikit-learn (100 rounds of trees of depth 3, learning rate
    0.1, a tree for each value) tells each factor from all codes; R_ji is the importance of code j
    for it, by the impurity that splits by the code take away in the training. Disentanglement and
    completeness are those of `dci`, from these importances; informativeness is the accuracy on
    held-out rows, averaged over factors. Constant factors are left out.

    Range: 0 to 1. Chance is not 0. It takes minutes where factors have 40 values and there are
    10,000 samples.

    Args:
        z: (N, n), the factors, whose values come again, n >= 2 of which vary.
        z_hat: (N, m), the codes, m >= 2.
        most: the number of samples in use, the first ones: two thirds to fit on, and the rest to
            score.
        seed: the seed of the trees.

    Returns:
        Disentanglement. Parts: `completeness`, `informativeness`, and each per factor;
        `informativeness_on_fitted`, the accuracy on the rows that were fitted on;
        `disentanglement_per_code`; `importance` (m, n). A bootstrap holds the fit, on which the
        importances rest: there is an interval of informativeness alone.

    Raises:
        UsageError: the arrays do not fit, or the values of a factor do not come again.

    Examples:
        >>> import numpy as np
        >>> z = np.random.default_rng(0).integers(0, 3, (300, 2))
        >>> score = dci_discrete(z, z[:, ::-1])
        >>> round(score.value, 2), score.parts["importance"].round(2).tolist()
        (1.0, [[0.0, 1.0], [1.0, 0.0]])
    """
    factors, classes, codes = checked_classes(z, z_hat, 2, 2, most)
    codes = standardised(codes)  # the trees see float32, and take what differs by 1e-7 for equal
    kept = varying(factors)
    train, test = fitted_and_scored(len(factors))
    importances = np.zeros((codes.shape[1], classes.shape[1]))
    hits = np.zeros((test.stop - test.start, classes.shape[1]))
    fitted = np.zeros(classes.shape[1])
    for i, labels in enumerate(classes.T):
        if len(np.unique(labels[train])) < 2:
            continue
        model = sklearn_part("ensemble").GradientBoostingClassifier(random_state=seed)
        model.fit(codes[train], labels[train])
        importances[:, i] = np.abs(model.feature_importances_)
        hits[:, i] = model.predict(codes[test]) == labels[test]
        fitted[i] = (model.predict(codes[train]) == labels[train]).mean()
    per_code, disentanglement = disentangled(importances)
    of_factors = completeness(importances)

    def replicate(counts: Float64) -> Replicates:
        accuracy = (counts @ hits / counts.sum(1)[:, None]).mean(1)
        unknown = np.full(len(counts), np.nan)
        return Replicates(unknown, None, {"informativeness": accuracy})

    table = np.zeros((codes.shape[1], len(kept)))
    table[:, kept] = importances
    return MetricResult(
        float(disentanglement),
        None,
        {
            "completeness": float(of_factors.mean()),
            "informativeness": float(hits.mean()),
            "informativeness_on_fitted": float(fitted.mean()),
            "completeness_per_factor": at_factors(of_factors, kept),
            "informativeness_per_factor": at_factors(hits.mean(0), kept),
            "disentanglement_per_code": per_code,
            "importance": table,
        },
        {
            "classifier": "scikit-learn's GradientBoostingClassifier",
            "importance": "impurity, of the fit",
            "completeness": "mean over factors",
            "samples_fitted": train.stop,
            "samples_scored": len(hits),
            "seed": seed,
            "bootstrap": "the fit held",
            **left_out(factors),
        },
        Resample((slice(0, len(hits)),), replicate),
    )
