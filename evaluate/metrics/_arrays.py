"""True latents z (N, n) and recovered latents, codes, z_hat (N, m): checked and standardised."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.errors import UsageError

Float64 = npt.NDArray[np.float64]

#: A column counts as constant where its standard deviation is at most so much of its largest
#: absolute value: what rounding makes of a constant in float64.
CONSTANT = 1e-10
#: Squares of quotients of such numbers stay in float64; float32 ends at 3e38.
_LARGEST, _SMALLEST = 1e50, 1e-50


def as_matrix(values: Any, name: str) -> Float64:
    """An array or tensor as a matrix (N, k) of float64, what is below 1e-50 as 0.

    Args:
        values: numpy, torch (on any device) or nested lists.
        name: what an error calls it.

    Raises:
        UsageError: not 2-D, not real numbers, empty, or not finite.
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
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
    """Factors (N, n) and codes (N, m) as float64.

    Args:
        z: true latents.
        z_hat: recovered latents.
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


def standardised(values: Float64) -> Float64:
    """Columns of mean 0 and variance 1 (dividing by N); zeros where a column is constant."""
    scaled = values / _largest(values)
    centred = scaled - scaled.mean(0)
    std = np.sqrt((centred**2).mean(0))
    return np.where(std > CONSTANT, centred / np.where(std > CONSTANT, std, 1), 0.0)


def varying(values: Float64) -> npt.NDArray[np.bool_]:
    """Which columns are not constant."""
    return (values / _largest(values)).std(0) > CONSTANT


def mean_of_varying(values: Float64) -> Float64:
    """The mean along the last axis of what is not NaN; NaN where all of it is."""
    there = np.isfinite(values)
    count = there.sum(-1)
    total = np.where(there, values, 0).sum(-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def left_out(factors: Float64) -> dict[str, list[int]]:
    """The columns that a mean over factors leaves out, as a choice of a score."""
    return {"constant_factors_left_out": np.flatnonzero(~varying(factors)).tolist()}


def _largest(values: Float64) -> Float64:
    largest = np.abs(values).max(0)
    return np.where(largest > 0, largest, 1.0)
