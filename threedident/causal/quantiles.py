"""Quantiles of truncated distributions: from uniform numbers, so that noise can be kept."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

_NORMAL = NormalDist()
_LEAST = 1e-300  # of a probability: 37 standard deviations out
_FAR = -36.0  # standard deviations, from which on a tail is expanded
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
    are exact also far out. Beyond what float64 holds of them, the tail's expansion takes over.

    Args:
        unit: probabilities (N,), in (0, 1).
        mean: the normal's means (N,); they may lie outside of the range.
        std: its standard deviation.
        low: the range's lower end.
        high: its upper end.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        sign, begin, end, p, anchor = _mirrored(unit, mean, std, low, high)
        below, above = normal_cdf(begin), normal_cdf(end)
        at = np.clip(below + p * (above - below), _LEAST, 1 - 2**-53)
        near = mean + std * sign * normal_quantile(at)
        far = anchor - std * sign * _tail(p, np.maximum(-end, -_FAR), (high - low) / std)
    return np.clip(np.where(end < _FAR, far, near), low, high)


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
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        sign, begin, end, p, anchor = _mirrored(unit, mean, scale, low, high)
        # Masses relative to the density at the mean, or at the range's end where that is nearer.
        outside = end <= 0
        below = np.exp(np.where(outside, (low - high) / scale, begin))
        whole = np.where(outside, 1.0, 2 - np.exp(-np.maximum(end, 0.0)))
        at = below + p * (whole - below)
        x = np.where(at <= 1, np.log(at), -np.log(2 - at))
        values = np.where(outside, anchor, mean) + scale * sign * x
    return np.clip(values, low, high)


def _mirrored(
    unit: Float64, mean: Float64, spread: float, low: float, high: float
) -> tuple[Float64, Float64, Float64, Float64, Float64]:
    """Mirror a range so that most of it lies below the mean.

    Returns:
        The sign by which it was mirrored, the standardised ends, the probabilities from the lower
        of them, and the end of [low, high] that became the upper one: each (N,).
    """
    mirrored = (low + high) / 2 > mean
    first, last = (low - mean) / spread, (high - mean) / spread
    return (
        np.where(mirrored, -1.0, 1.0),
        np.where(mirrored, -last, first),
        np.where(mirrored, -first, last),
        np.where(mirrored, 1 - unit, unit),
        np.where(mirrored, low, high),
    )


def _tail(p: Float64, end: Float64, width: float) -> Float64:
    """How far beyond `end` the standard normal's upper tail, cut at end + width, has its quantiles.

    The mass beyond x is exp(-x^2 / 2) / x times what hardly varies, as x is large.

    Args:
        p: probabilities (N,), from the outer end.
        end: the inner ends (N,), large.
        width: the width of the range.
    """
    outer = np.nan_to_num(np.exp(-width * (end + width / 2)) / (1 + width / end))
    share = np.log(outer + p * (1 - outer))
    beyond = np.zeros(len(p))
    for _ in range(4):
        more = -2 * (share + np.log1p(beyond / end))
        beyond = more / (np.sqrt(end * end + more) + end)
    return beyond
