"""`mcc`: has every factor a code of its own, by correlation."""

from __future__ import annotations

from typing import Any

import numpy as np

from threedident.errors import UsageError
from threedident.evaluate.metrics._arrays import (
    Float64,
    checked,
    left_out,
    mean_of_varying,
    varying,
)
from threedident.evaluate.metrics._correlations import (
    UNMATCHED,
    Correlations,
    Int64,
    aligned_correlations,
    assign,
    matched,
    pearson_correlations,
    spearman_correlations,
)
from threedident.evaluate.metrics._linear_fit import drawn_folds
from threedident.evaluate.metrics._result import MetricResult, Replicates, Resample

CORRELATIONS = ("pearson", "spearman")


def mcc(
    z: Any,
    z_hat: Any,
    *,
    correlation: str = "pearson",
    aligned: bool = False,
    noise_padded: bool = False,
    seed: int = 0,
) -> MetricResult:
    """Mean correlation coefficient of every factor with a code of its own.

    max over one-to-one maps pi of the mean over factors i of |corr(z_i, c_pi(i))|, over all
    samples, without a split (Hyvarinen & Morioka 2016). Invariant under permutations, signs and
    scales of the codes, and for Spearman under monotone maps. A constant code has correlation 0.
    With m > n the assignment picks n of the m codes; with m < n the factors without a code count
    as 0.

    Range: 0 to 1. Chance falls with the number of samples and rises with that of codes: 0.03 of
    10 factors, 10 codes and 4,096 samples.

    Args:
        z: (N, n), the factors.
        z_hat: (N, m), the codes.
        correlation: "pearson" or "spearman" (ties get mean ranks).
        aligned: whether to map the codes to the factors linearly first, by least squares on the
            other half of the samples ("weak" identifiability, Khemakhem et al. 2020, section
            4.1); the correlation matrix is then the mean of both halves', (n, n).
        noise_padded: whether to pad the n factors with independent Gaussian noise to m before
            the assignment, which then must place the noise too; the mean is over the n factors.
            So were the KITTI Masks results taken (Klindt et al. 2021).
        seed: the seed for that noise.

    Returns:
        The mean and each factor's absolute correlation. Parts: `permutation` (n,), each
        factor's code, -1 for none; `correlation` (n, m), signed.

    Raises:
        UsageError: the arrays or arguments do not fit.

    Examples:
        Exchanged factors, one of them upside down:

        >>> import numpy as np
        >>> z = np.random.default_rng(0).uniform(-1, 1, (1000, 2))
        >>> score = mcc(z, z[:, ::-1] * [1, -3])
        >>> round(score.value, 3), score.parts["permutation"]
        (1.0, array([1, 0]))
    """
    if correlation not in CORRELATIONS:
        raise UsageError(
            f"correlation must be one of {', '.join(CORRELATIONS)}, found {correlation!r}"
        )
    if aligned and (correlation != "pearson" or noise_padded):
        raise UsageError("aligned goes with Pearson correlations and without noise: leave one out")
    factors, codes = checked(z, z_hat)
    count = factors.shape[1]
    padding = max(codes.shape[1] - int(varying(factors).sum()), 0) if noise_padded else 0
    noise = np.random.default_rng([seed, 2]).standard_normal((len(factors), padding))
    padded = np.concatenate([factors, noise], 1)
    kept = varying(padded)
    correlations = _correlations(padded, codes, correlation, aligned)

    def match(table: Float64) -> tuple[Float64, Int64]:
        """Return each factor's correlation, NaN where it is constant, and its code."""
        values, codes_of = np.full(len(table), np.nan), np.full(len(table), UNMATCHED)
        strength = np.abs(table[kept])
        codes_of[kept] = assign(strength)
        values[kept] = matched(strength, codes_of[kept])
        return values[:count], codes_of[:count]

    def replicate(counts: Float64) -> Replicates:
        each = np.array([match(table)[0] for table in correlations.draw(counts)])
        return Replicates(mean_of_varying(each), each)

    per_factor, permutation = match(correlations.table)
    choices = {
        "correlation": correlation,
        "aligned": aligned,
        "noise_padded": {"columns": padding, "seed": seed} if noise_padded else False,
        "bootstrap": correlations.bootstrap,
        **left_out(factors),
    }
    return MetricResult(
        float(mean_of_varying(per_factor)),
        per_factor,
        {"permutation": permutation, "correlation": correlations.table[:count]},
        choices,
        Resample(drawn_folds(len(factors), 2 if aligned else "in-sample"), replicate),
    )


def _correlations(
    factors: Float64, codes: Float64, correlation: str, aligned: bool
) -> Correlations:
    if aligned:
        return aligned_correlations(factors, codes)
    if correlation == "pearson":
        return pearson_correlations(factors, codes)
    return spearman_correlations(factors, codes)
