"""Factors whose values come again, as classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.errors import UsageError
from threedident.evaluate.metrics._arrays import Bools, Float64, checked_one_by_one, varying
from threedident.evaluate.metrics._kinds import MOST_CLASSES

Int64 = npt.NDArray[np.int64]

#: Each value of a factor must come as often, on average, to be looked at by itself.
LEAST_ROWS = 8
#: The published shares: 10,000 rows are fitted on and 5,000 are scored.
_FITTED = 2 / 3


def recurring(factors: Float64) -> Bools:
    """Return (n,), which columns of factors (N, n) have few values that come again and again."""
    counts = np.array([len(np.unique(column)) for column in factors.T])
    return (counts * LEAST_ROWS <= len(factors)) & (counts <= MOST_CLASSES)


def classes_of(factors: Float64) -> Int64:
    """Return (N, n), the class of each row by each factor: the rank of its value, from 0.

    Args:
        factors: (N, n), the factors.

    Raises:
        UsageError: the values of a factor do not come again.
    """
    comes_again = recurring(factors)
    if not comes_again.all():
        factor = int(np.argmin(comes_again))
        raise UsageError(
            f"factor {factor} has {len(np.unique(factors[:, factor])):,} values in "
            f"{len(factors):,} samples: this metric looks at each value by itself, and needs "
            f"{LEAST_ROWS} samples of each on average and at most {MOST_CLASSES} values, as "
            "images of a grid have"
        )
    return np.stack([np.unique(column, return_inverse=True)[1] for column in factors.T], 1)


def checked_classes(
    z: Any, z_hat: Any, factors: int, codes: int, most: int | None = None
) -> tuple[Float64, Int64, Float64]:
    """Return factors, the classes of those that vary, and codes, for a metric of classes.

    Args:
        z: the true latents.
        z_hat: the recovered latents.
        factors: the least number of factors that vary.
        codes: the least number of codes.
        most: the number of samples in use, the first ones; None: all.

    Returns:
        (N, n) factors, (N, k) classes of the k that vary, and (N, m) codes.

    Raises:
        UsageError: they do not fit, or the values of a factor do not come again.
    """
    true, recovered = checked_one_by_one(z, z_hat, factors, codes)
    true, recovered = true[:most], recovered[:most]
    return true, classes_of(true[:, varying(true)]), recovered


def fitted_and_scored(count: int) -> tuple[slice, slice]:
    """Return the rows to fit on, the first two thirds, and those to score."""
    cut = round(count * _FITTED)
    return slice(0, cut), slice(cut, count)
