"""`modularity`: does every code tell of one factor only, by mutual information."""

from __future__ import annotations

from typing import Any

import numpy as np

from threedident.evaluate.metrics._arrays import (
    Float64,
    at_factors,
    checked_one_by_one,
    left_out,
    varying,
)
from threedident.evaluate.metrics._mutual_information import BINS, BinnedArrays
from threedident.evaluate.metrics._result import MetricResult, Replicates, Resample


def modularity(z: Any, z_hat: Any, *, bins: int = BINS, binning: str = "width") -> MetricResult:
    """Modularity of codes that tell of one factor each (Ridgeway & Mozer 2018, section 3).

    For code j with information I_ij, the largest of them I*: 1 - sum of the other I_ij^2 /
    (I*^2 (n - 1)), averaged over codes; 0 for a code without any information. Constant factors
    are left out.

    Range: 0 to 1. Chance is not 0, as the information of few samples is not: 0.21 of 10
    factors, 10 codes and 4,096 samples.

    Args:
        z: (N, n), the factors, n >= 2 of which vary.
        z_hat: (N, m), the codes.
        bins: the number of bins of every factor and code.
        binning: "width" (equally wide) or "quantile" (equally full).

    Returns:
        The mean over codes. Parts: `per_code` (m,); `information` (n, m) in nats.

    Raises:
        UsageError: the arrays or arguments do not fit.

    Examples:
        A code that is the sum of both factors tells of both.

        >>> import numpy as np
        >>> z = np.random.default_rng(0).uniform(-1, 1, (4000, 2))
        >>> modularity(z, np.stack([z[:, 0], z.sum(1)], 1)).parts["per_code"].round(1)
        array([1., 0.])
    """
    factors, codes = checked_one_by_one(z, z_hat, 2, 1)
    kept = varying(factors)
    binned = BinnedArrays.of(factors[:, kept], codes, bins, binning)

    def per_code(information: Float64) -> Float64:
        squares = information**2
        largest = squares.max(-2)
        others = squares.sum(-2) - largest
        rest = information.shape[-2] - 1
        told = largest > 0
        return np.where(told, 1 - others / np.where(told, largest, 1) / rest, 0.0)

    def replicate(counts: Float64) -> Replicates:
        return Replicates(per_code(binned.under(counts)[0]).mean(-1))

    information = binned.whole()[0]
    each = per_code(information)
    return MetricResult(
        float(each.mean()),
        None,
        {"per_code": each, "information": at_factors(information.T, kept).T},
        {"bins": bins, "binning": binning, "bootstrap": "refitted", **left_out(factors)},
        Resample((slice(0, len(factors)),), replicate),
    )
