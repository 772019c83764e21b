"""`mig`: does one code say more about a factor than all others, by mutual information."""

from __future__ import annotations

from typing import Any

import numpy as np

from threedident.evaluate.metrics._arrays import (
    Float64,
    at_factors,
    checked_one_by_one,
    largest_gap,
    left_out,
    mean_of_varying,
    varying,
)
from threedident.evaluate.metrics._mutual_information import BINS, BinnedArrays
from threedident.evaluate.metrics._result import MetricResult, Replicates, Resample


def mig(z: Any, z_hat: Any, *, bins: int = BINS, binning: str = "width") -> MetricResult:
    """Mutual information gap (Chen et al. 2018, equation 6).

    The mean over factors i of (I(z_i; c_first) - I(z_i; c_second)) / H(z_i), of the two codes
    that say most about the factor, all of it binned. With one code the second is 0. Constant
    factors are left out.

    Range: 0 to 1. Chance is about 0: the bias of both informations is the same.

    Args:
        z: (N, n), the factors.
        z_hat: (N, m), the codes.
        bins: the number of bins of every factor and code, 20 as in Locatello et al. 2019. Few
            samples for bins^2 cells raise every information by about (bins - 1)^2 / (2 N).
        binning: "width" (equally wide) or "quantile" (equally full).

    Returns:
        The mean gap and each factor's. Parts: `information` (n, m) in nats; `entropy` (n,).

    Raises:
        UsageError: the arrays or arguments do not fit.

    Examples:
        A second code that says the same leaves no gap.

        >>> import numpy as np
        >>> z = np.random.default_rng(0).uniform(-1, 1, (4000, 2))
        >>> round(float(mig(z, z)), 2), round(float(mig(z, np.hstack([z, z]))), 2)
        (0.98, 0.0)
    """
    factors, codes = checked_one_by_one(z, z_hat, 1, 1)
    kept = varying(factors)
    binned = BinnedArrays.of(factors[:, kept], codes, bins, binning)

    def gaps(information: Float64, entropies: Float64) -> Float64:
        top = largest_gap(information) / np.where(entropies > 0, entropies, 1)
        return at_factors(np.where(entropies > 0, top, np.nan), kept)

    def replicate(counts: Float64) -> Replicates:
        each = gaps(*binned.under(counts))
        return Replicates(mean_of_varying(each), each)

    information, entropies = binned.whole()
    per_factor = gaps(information, entropies)
    return MetricResult(
        float(mean_of_varying(per_factor)),
        per_factor,
        {
            "information": at_factors(information.T, kept).T,
            "entropy": at_factors(entropies, kept),
        },
        {"bins": bins, "binning": binning, "bootstrap": "refitted", **left_out(factors)},
        Resample((slice(0, len(factors)),), replicate),
    )
