"""`mig`, `mig_discrete`: does one code say more about a factor than all others do."""

from __future__ import annotations

from collections.abc import Mapping
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
from threedident.evaluate.metrics._kinds import Kinds
from threedident.evaluate.metrics._mutual_information import BINS, BinnedArrays
from threedident.evaluate.metrics._result import MetricResult, Replicates, Resample
from threedident.evaluate.metrics._values import checked_classes


def mig(
    z: Any, z_hat: Any, *, bins: int = BINS, binning: str = "width", kinds: Kinds = None
) -> MetricResult:
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
        kinds: the kind of each factor; the classes of discrete ones are taken as they are. None:
            all are binned.

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
    binned = BinnedArrays.of(factors, codes, bins, binning, kinds)
    return _gap(factors, binned, {"bins": bins, "binning": binning})


def mig_discrete(z: Any, z_hat: Any, *, bins: int = BINS) -> MetricResult:
    """Mutual information gap of factors that are classes, as Locatello et al. 2019 compute it.

    `mig` with the factors as they are, each value a class, and the codes in 20 equally wide bins.
    `mig` bins factors too, and so takes neighbours of 32 or 40 values for one.

    Range: 0 to 1. Chance is about 0.

    Args:
        z: (N, n), the factors, whose values come again.
        z_hat: (N, m), the codes.
        bins: the number of bins of every code.

    Returns:
        The mean gap and each factor's. Parts: `information` (n, m) in nats; `entropy` (n,).

    Raises:
        UsageError: the arrays or arguments do not fit, or the values of a factor do not come
            again.

    Examples:
        Forty values, two in each bin of the codes: one bit of 5.3 is lost.

        >>> import numpy as np
        >>> z = np.random.default_rng(0).integers(0, 40, (4000, 2))
        >>> round(float(mig(z, z)), 2), round(float(mig_discrete(z, z)), 2)
        (0.99, 0.79)
    """
    factors, classes, codes = checked_classes(z, z_hat, 1, 1)
    binned = BinnedArrays.of_classes(classes, codes, bins)
    return _gap(factors, binned, {"bins": bins, "binning": "width, of codes alone"})


def _gap(factors: Float64, binned: BinnedArrays, choices: Mapping[str, Any]) -> MetricResult:
    kept = varying(factors)

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
        {**choices, "bootstrap": "refitted", **left_out(factors)},
        Resample((slice(0, len(factors)),), replicate),
    )
