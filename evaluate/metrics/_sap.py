"""`sap`: does one code predict a factor better than all others, by linear regression."""

from __future__ import annotations

from typing import Any

import numpy as np

from threedident.evaluate.metrics._arrays import (
    Float64,
    checked_one_by_one,
    largest_gap,
    left_out,
    mean_of_varying,
    varying,
)
from threedident.evaluate.metrics._correlations import pearson_correlations
from threedident.evaluate.metrics._result import MetricResult, Replicates, Resample


def sap(z: Any, z_hat: Any) -> MetricResult:
    """Separated attribute predictability (Kumar et al. 2018, section 3).

    For continuous factors: the R2 of a linear regression of the factor on each single code,
    in-sample, which is their squared correlation; the mean over factors of the gap between
    the best and the second-best code. With one code the second is 0. Constant factors are left
    out.

    Range: 0 to 1. Chance is about 0.

    Args:
        z: (N, n), the factors.
        z_hat: (N, m), the codes.

    Returns:
        The mean gap and each factor's. Parts: `r2` (n, m).

    Raises:
        UsageError: the arrays do not fit.

    Examples:
        >>> import numpy as np
        >>> z = np.random.default_rng(0).uniform(-1, 1, (4000, 2))
        >>> round(float(sap(z, z)), 2), round(float(sap(z, np.hstack([z, z]))), 2)
        (1.0, 0.0)
    """
    factors, codes = checked_one_by_one(z, z_hat, 1, 1)
    kept = varying(factors)
    correlations = pearson_correlations(factors, codes)

    def replicate(counts: Float64) -> Replicates:
        each = np.where(kept, largest_gap(correlations.draw(counts) ** 2), np.nan)
        return Replicates(mean_of_varying(each), each)

    squares = correlations.table**2
    per_factor = np.where(kept, largest_gap(squares), np.nan)
    return MetricResult(
        float(mean_of_varying(per_factor)),
        per_factor,
        {"r2": squares},
        {"regression": "linear, one code", "bootstrap": "refitted", **left_out(factors)},
        Resample((slice(0, len(factors)),), replicate),
    )
