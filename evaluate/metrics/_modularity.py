"""`modularity`, `modularity_discrete`: does every code tell of one factor only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from threedident.evaluate.metrics._arrays import (
    Float64,
    at_factors,
    checked_one_by_one,
    left_out,
    varying,
)
from threedident.evaluate.metrics._kinds import Kinds
from threedident.evaluate.metrics._mutual_information import BINS, BinnedArrays
from threedident.evaluate.metrics._result import MetricResult, Replicates, Resample
from threedident.evaluate.metrics._values import checked_classes


def modularity(
    z: Any, z_hat: Any, *, bins: int = BINS, binning: str = "width", kinds: Kinds = None
) -> MetricResult:
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
        kinds: the kind of each factor; the classes of discrete ones are taken as they are. None:
            all are binned.

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
    binned = BinnedArrays.of(factors, codes, bins, binning, kinds)
    return _score(factors, binned, {"bins": bins, "binning": binning})


def modularity_discrete(z: Any, z_hat: Any, *, bins: int = BINS) -> MetricResult:
    """Modularity for factors that are classes, as Locatello et al. 2019 compute it.

    `modularity` with the factors as they are, each value a class, and the codes in 20 equally wide
    bins.

    Range: 0 to 1. Chance is not 0, as the information of few samples is not.

    Args:
        z: (N, n), the factors, whose values come again, n >= 2 of which vary.
        z_hat: (N, m), the codes.
        bins: the number of bins of every code.

    Returns:
        The mean over codes. Parts: `per_code` (m,); `information` (n, m) in nats.

    Raises:
        UsageError: the arrays or arguments do not fit, or the values of a factor do not come
            again.

    Examples:
        >>> import numpy as np
        >>> z = np.random.default_rng(0).integers(0, 40, (4000, 2))
        >>> both = np.stack([z[:, 0], z.sum(1)], 1)
        >>> modularity_discrete(z, both).parts["per_code"].round(1)
        array([1. , 0.1])
    """
    factors, classes, codes = checked_classes(z, z_hat, 2, 1)
    binned = BinnedArrays.of_classes(classes, codes, bins)
    return _score(factors, binned, {"bins": bins, "binning": "width, of codes alone"})


def _score(factors: Float64, binned: BinnedArrays, choices: Mapping[str, Any]) -> MetricResult:
    kept = varying(factors)

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
        {**choices, "bootstrap": "refitted", **left_out(factors)},
        Resample((slice(0, len(factors)),), replicate),
    )
