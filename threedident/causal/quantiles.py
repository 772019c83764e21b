"""Quantiles of truncated distributions: from uniform numbers, so that noise can be kept."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

_NORMAL = NormalDist()
_LEAST = 1e-300  # probabilities below it are taken as it: 37 standard deviations out
_cdf = np.frompyfunc(lambda x: 0.5 * math.erfc(-x / math.sqrt(2)), 1, 1)
_quantile = np.frompyfunc(_NORMAL.inv_cdf, 1, 1)


def normal_cdf(x: Float64) -> Float64:
    """The distribution function of the standard normal, exact in its lower tail."""
    return np.asarray(_cdf(x), np.float64)


def normal_quantile(p: Float64) -> Float64:
    """The standard normal's quantiles at p, 0 < p < 1."""
    return np.asarray(_quantile(p), np.float64)


def truncated_normal(unit: Float64, mean: Float64, std: float, low: float, high: float) -> Float64:
    """Quantiles of a normal distribution truncated to [low, high].

    The half that holds most of the range is mirrored into the lower tail, where probabilities
    are exact also far out.

    Args:
        unit: probabilities (N,), in (0, 1).
        mean: the normal's means (N,); they may lie outside of the range.
        std: its standard deviation.
        low: the range's lower end.
        high: its upper end.
    """
    first, last = (low - mean) / std, (high - mean) / std
    mirrored = first + last > 0
    sign = np.where(mirrored, -1.0, 1.0)
    begin, end = np.where(mirrored, -last, first), np.where(mirrored, -first, last)
    p = np.where(mirrored, 1 - unit, unit)
    below, above = normal_cdf(begin), normal_cdf(end)
    at = np.clip(below + p * (above - below), _LEAST, 1 - 2**-53)
    return np.clip(mean + std * sign * normal_quantile(at), low, high)


def truncated_laplace(
    unit: Float64, mean: Float64, scale: float, low: float, high: float
) -> Float64:
    """Quantiles of a Laplace distribution truncated to [low, high].

    Args:
        unit: probabilities (N,), in (0, 1).
        mean: the distribution's means (N,); they may lie outside of the range.
        scale: its scale: the density is exp(-|x - mean| / scale) / (2 scale).
        low: the range's lower end.
        high: its upper end.
    """
    first, last = (low - mean) / scale, (high - mean) / scale
    mirrored = first + last > 0
    sign = np.where(mirrored, -1.0, 1.0)
    begin, end = np.where(mirrored, -last, first), np.where(mirrored, -first, last)
    p = np.where(mirrored, 1 - unit, unit)
    # Relative to the density at the upper end where all of the range lies below the mean.
    top = np.minimum(end, 0.0)

    def mass(x: Float64) -> Float64:
        """The mass below x, times 2 exp(-top)."""
        lower = np.exp(np.minimum(x, 0.0) - top)
        return np.where(x <= 0, lower, np.exp(-top) * (2 - np.exp(-np.maximum(x, 0.0))))

    below = mass(begin)
    at = below + p * (mass(end) - below)
    middle = np.exp(-top)
    with np.errstate(divide="ignore", invalid="ignore"):
        x = np.where(at <= middle, np.log(at) + top, -np.log(2 - at / middle))
    return np.clip(mean + scale * sign * x, low, high)
