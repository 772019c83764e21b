"""Factors z (N, n) and codes z_hat (N, m) as arrays: checked, standardised, put in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.errors import UsageError

Float64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

#: A column counts as constant where its standard deviation is at most so much of its largest
#: absolute value: what rounding makes of a constant in float64.
CONSTANT = 1e-10
#: Squares of quotients of such numbers stay in float64; float32 ends at 3e38.
_LARGEST, _SMALLEST = 1e50, 1e-50
#: More codes make metrics that look at codes one by one slow, and their meaning thin.
MOST_CODES_ONE_BY_ONE = 512


def as_matrix(values: Any, name: str) -> Float64:
    """Return an array or tensor as a matrix (N, k) of float64, with 0 for what is below 1e-50.

    Args:
        values: an array, a tensor (on any device) or nested lists.
        name: the name of the values in an error.

    Raises:
        UsageError: not 2-D, not real numbers, empty, or not finite.
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    if np.ma.is_masked(values):  # type: ignore[no-untyped-call]
        raise UsageError(f"{name}: some numbers are masked: leave out those rows, here and there")
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise UsageError(f"{name}: expected a 2-D array of numbers ({error})") from None
    if array.dtype.kind not in "fiu":
        raise UsageError(f"{name}: expected real numbers, found dtype {array.dtype}")
    if array.ndim != 2 or not array.size:
        raise UsageError(f"{name}: expected a 2-D array, a row a sample, found shape {array.shape}")
    # By columns: everything here is a sum over samples.
    matrix = array.astype(np.float64, order="F")
    bad = ~(np.abs(matrix) <= _LARGEST)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise UsageError(
            f"{name}: expected finite numbers of at most {_LARGEST:g}, found {array[row, column]} "
            f"in row {row}, column {column} ({int(bad.any(1).sum())} rows of {len(array)} are off)"
        )
    matrix[np.abs(matrix) < _SMALLEST] = 0
    return matrix


def checked(z: Any, z_hat: Any, least: int = 4) -> tuple[Float64, Float64]:
    """Return factors (N, n) and codes (N, m) as float64.

    Args:
        z: the true latents.
        z_hat: the recovered latents.
        least: the smallest N that will do.

    Raises:
        UsageError: one of them is no matrix of finite numbers, their rows differ, there are
            too few of them, or no factor varies.
    """
    factors, codes = as_matrix(z, "z"), as_matrix(z_hat, "z_hat")
    if len(factors) != len(codes):
        raise UsageError(
            f"z and z_hat must have a row for every sample, in the same order: found "
            f"{len(factors)} and {len(codes)} rows"
        )
    if len(factors) < least:
        raise UsageError(
            f"this score needs at least {least} samples, found {len(factors)}: use more of them"
        )
    if not varying(factors).any():
        raise UsageError("no factor varies over the samples: there is nothing to recover")
    return factors, codes


def checked_one_by_one(z: Any, z_hat: Any, factors: int, codes: int) -> tuple[Float64, Float64]:
    """Return factors and codes as `checked` does, for a metric that looks at codes one by one.

    Args:
        z: the true latents.
        z_hat: the recovered latents.
        factors: the least number of factors that vary.
        codes: the least number of codes.

    Raises:
        UsageError: they do not fit, or there are too few factors or codes, or too many codes.
    """
    true, recovered = checked(z, z_hat, 20)
    if (moving := int(varying(true).sum())) < factors:
        raise UsageError(f"this metric needs at least {factors} varying factors, found {moving}")
    if not codes <= recovered.shape[1] <= MOST_CODES_ONE_BY_ONE:
        raise UsageError(
            f"this metric needs {codes} to {MOST_CODES_ONE_BY_ONE} codes, found "
            f"{recovered.shape[1]}: it compares codes one by one"
        )
    return true, recovered


def standardised(values: Float64) -> Float64:
    """Return columns of mean 0 and variance 1 (dividing by N); zeros for a constant column."""
    scaled = values / _largest(values)
    centred = scaled - scaled.mean(0)
    std = np.sqrt((centred**2).mean(0))
    return np.where(std > CONSTANT, centred / np.where(std > CONSTANT, std, 1), 0.0)


def varying(values: Float64) -> Bools:
    """Return which columns are not constant."""
    return (values / _largest(values)).std(0) > CONSTANT


def mean_of_varying(values: Float64) -> Float64:
    """Return the mean along the last axis of what is not NaN; NaN where all of it is."""
    defined = np.isfinite(values)
    count = defined.sum(-1)
    total = np.where(defined, values, 0).sum(-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def left_out(factors: Float64) -> dict[str, list[int]]:
    """Return the columns that a mean over factors leaves out, as a choice of a score."""
    return {"constant_factors_left_out": np.flatnonzero(~varying(factors)).tolist()}


def undefined(per_factor: Float64) -> dict[str, list[int]]:
    """Return the factors that have no score, as `left_out` does: those constant in a fold, too."""
    return {"constant_factors_left_out": np.flatnonzero(np.isnan(per_factor)).tolist()}


def at_factors(values: Float64, kept: Bools) -> Float64:
    """Return (..., n) with values (..., k) at the k factors kept, and NaN elsewhere."""
    spread = np.full((*values.shape[:-1], len(kept)), np.nan)
    spread[..., kept] = values
    return spread


def largest_gap(values: Float64) -> Float64:
    """Return (...), the largest less the second largest of (..., m); the largest if m = 1."""
    if values.shape[-1] == 1:
        return values[..., 0]
    top = np.partition(values, -2, axis=-1)
    return top[..., -1] - top[..., -2]


def _largest(values: Float64) -> Float64:
    largest = np.abs(values).max(0)
    return np.where(largest > 0, largest, 1.0)
