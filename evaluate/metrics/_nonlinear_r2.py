"""`nonlinear_r2`: do the codes hold the factors, in whatever form."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from threedident.errors import UsageError
from threedident.evaluate.metrics._arrays import Float64, checked, mean_of_varying, undefined
from threedident.evaluate.metrics._kernel_ridge import (
    HIDDEN,
    MOST_SAMPLES,
    RIDGES,
    WIDTHS,
    Regression,
    kernel_ridge,
    mlp,
)
from threedident.evaluate.metrics._kinds import Kinds, Points
from threedident.evaluate.metrics._linear_fit import (
    Folds,
    determination,
    drawn_folds,
    held_determination,
    splits,
)
from threedident.evaluate.metrics._result import MetricResult, Replicates, Resample

REGRESSORS = ("kernel", "mlp")


def nonlinear_r2(
    z: Any,
    z_hat: Any,
    *,
    regressor: str = "kernel",
    folds: Folds = 2,
    most: int = MOST_SAMPLES,
    seed: int = 0,
    kinds: Kinds = None,
) -> MetricResult:
    """Held-out R2 of a non-linear regression from codes to factors, averaged over factors.

    R2 as in `linear_r2`, of kernel ridge regression as for content and style in von Kuegelgen et
    al. 2021 (section 5), or of a small MLP. Range: at most 1, and 0 for predictions no better
    than the mean; chance is about 0.

    Args:
        z: (N, n), the factors.
        z_hat: (N, m), the codes.
        regressor: "kernel" (a Gaussian kernel; `kernel_ridge`) or "mlp" (two hidden layers).
        folds: 2 or "single".
        most: the number of samples in use, the first ones.
        seed: the seed for the MLP.
        kinds: the kind of each factor, as in `linear_r2`; None: all continuous.

    Returns:
        The mean R2 and each factor's. Parts: `folds`, (folds, n). A bootstrap holds the fit.

    Raises:
        UsageError: the arrays or arguments do not fit.

    Examples:
        A square root is not linear, and is found all the same.

        >>> import numpy as np
        >>> z = np.random.default_rng(0).uniform(0, 1, (400, 1))
        >>> round(float(nonlinear_r2(z, np.sqrt(z))), 3)
        1.0
    """
    if regressor not in REGRESSORS:
        raise UsageError(f"regressor must be one of {', '.join(REGRESSORS)}, found {regressor!r}")
    if folds == "in-sample":
        raise UsageError(
            "a non-linear regression fits its own rows whatever they are: use folds=2 or 'single'"
        )
    factors, codes = checked(z, z_hat, 20 if regressor == "kernel" else 40)
    factors, codes = factors[:most], codes[:most]
    points = Points.of(factors, kinds)
    true, starts = points.values, points.starts
    pairs = splits(len(factors), folds)
    kernel = functools.partial(kernel_ridge, starts=starts)
    regress: Regression = kernel if regressor == "kernel" else mlp(seed)
    predicted = np.zeros_like(true)
    for train, test in pairs:
        predicted[test] = regress(codes[train], true[train], codes[test])
    per_fold = np.array([determination(true[t], predicted[t], starts) for _, t in pairs])

    def replicate(counts: Float64) -> Replicates:
        drawn = [held_determination(true[t], predicted[t], counts[:, t], starts) for _, t in pairs]
        each = np.mean(drawn, 0)
        return Replicates(mean_of_varying(each), each)

    per_factor = per_fold.mean(0)
    settings: dict[str, Any] = (
        {"kernel": "gaussian", "widths_in_median_distances": list(WIDTHS), "ridges": list(RIDGES)}
        if regressor == "kernel"
        else {"hidden": list(HIDDEN), "seed": seed}
    )
    choices = {
        "regressor": regressor,
        **settings,
        "folds": folds,
        "samples": len(factors),
        "bootstrap": "the fit held",
        **undefined(per_factor),
    }
    return MetricResult(
        float(mean_of_varying(per_factor)),
        per_factor,
        {"folds": per_fold},
        choices,
        Resample(drawn_folds(len(factors), folds), replicate),
    )
