"""Mutual information of binned factors and codes."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from threedident.errors import MissingExtraError, UsageError
from threedident.evaluate.metrics._arrays import Float64, varying
from threedident.evaluate.metrics._kinds import Kinds, as_kinds, class_numbers

try:
    from scipy import sparse
    from scipy.special import xlogy
except ImportError as error:
    raise MissingExtraError("scipy", "train", "scoring") from error

Bins = npt.NDArray[np.int64]

BINS = 20
BINNINGS = ("width", "quantile")
_CODES_AT_ONCE = 8
_ROUNDING = 1e-9  # nats


def binned(values: Float64, bins: int, binning: str) -> Bins:
    """Return the bin of every value, (N, k), 0..bins - 1, each column by itself.

    Args:
        values: (N, k), the columns.
        bins: the number of bins, 2 to 200.
        binning: "width": equally wide, from the smallest to the largest value; "quantile":
            equally full as far as ties allow.

    Raises:
        UsageError: bins or binning does not fit.
    """
    if not 2 <= bins <= 200:
        raise UsageError(f"bins must lie in 2..200, found {bins}")
    if binning not in BINNINGS:
        raise UsageError(f"binning must be one of {', '.join(BINNINGS)}, found {binning!r}")
    cells = np.empty(values.shape, np.int64)
    for column, row in zip(cells.T, values.T, strict=True):
        low, high = row.min(), row.max()
        if binning == "width":
            width = high - low if high > low else 1.0
            column[:] = np.minimum((row - low) / width * bins, bins - 1).astype(np.int64)
        else:
            edges = np.quantile(row, np.arange(1, bins) / bins)
            column[:] = np.searchsorted(edges, row, side="right")
    return cells


def information(
    factors: Bins, codes: Bins, bins: int, counts: Float64, classes: int | None = None
) -> tuple[Float64, Float64]:
    """Estimate the mutual information of every factor and code, in nats, under counts.

    The plug-in estimate I(z_i; c_j) = H(z_i) + H(c_j) - H(z_i, c_j) of the observed frequencies;
    its bias is about (bins - 1)^2 / (2 N) for independent columns.

    Args:
        factors: (N, n), the bins of the factors.
        codes: (N, m), the bins of the codes.
        bins: the number of bins.
        counts: (b, N), how often each row counts.
        classes: the number of bins of the factors; None: the same.

    Returns:
        Information (b, n, m) and the factors' entropies (b, n).
    """
    samples, n = factors.shape
    levels = bins if classes is None else classes
    # Sums of whole numbers below 2^24 are exact in float32.
    weights = np.ascontiguousarray(counts.T.astype(np.float32))
    total = counts.sum(1)
    mutual = np.empty((len(counts), n, codes.shape[1]))
    entropies = np.empty((len(counts), n))
    for start in range(0, codes.shape[1], _CODES_AT_ONCE):
        some = codes[:, start : start + _CODES_AT_ONCE]
        pairs = np.arange(n)[:, None] * some.shape[1] + np.arange(some.shape[1])
        cells = (pairs * levels + factors[:, :, None]) * bins + some[:, None, :]
        width = pairs.size
        rows = np.arange(0, samples * width + 1, width)
        ones = np.ones(cells.size, np.float32)
        places = sparse.csr_matrix(
            (ones, cells.ravel(), rows), shape=(samples, width * levels * bins)
        )
        tables = (places.T.tocsr() @ weights).astype(np.float64) / total
        tables = tables.reshape(n, some.shape[1], levels, bins, len(counts))
        of_factors, of_codes = tables.sum(3), tables.sum(2)
        entropy = -xlogy(of_factors, of_factors).sum(2)
        joint = -xlogy(tables, tables).sum((2, 3))
        both = entropy - xlogy(of_codes, of_codes).sum(2) - joint
        mutual[:, :, start : start + some.shape[1]] = np.moveaxis(both, 2, 0)
        entropies[:] = entropy[:, 0].T
    return np.where(mutual > _ROUNDING, mutual, 0), entropies


@dataclasses.dataclass(frozen=True)
class BinnedArrays:
    """Binned factors and codes, and their mutual information.

    Attributes:
        factors: (N, n), the bins of the factors, all of which vary.
        codes: (N, m), the bins of the codes.
        bins: the number of bins.
        classes: the number of bins of the factors; None: the same.
    """

    factors: Bins
    codes: Bins
    bins: int
    classes: int | None = None

    @classmethod
    def of(
        cls, factors: Float64, codes: Float64, bins: int, binning: str, kinds: Kinds = None
    ) -> BinnedArrays:
        """Bin the factors (N, n) that vary and codes (N, m); see `binned`.

        Classes of discrete factors are taken as they are, however many and whatever their numbers.
        """
        each = as_kinds(kinds, factors.shape[1])
        moving = np.flatnonzero(varying(factors))
        cells = binned(factors[:, moving], bins, binning)
        for place, i in enumerate(moving):
            if each[i].name == "discrete":
                numbers = class_numbers(factors[:, i], f"factor {i}")
                cells[:, place] = np.unique(numbers, return_inverse=True)[1]
        classes = max(bins, int(cells.max(initial=0)) + 1)
        return cls(cells, binned(codes, bins, binning), bins, classes)

    @classmethod
    def of_classes(cls, classes: Bins, codes: Float64, bins: int) -> BinnedArrays:
        """Take classes (N, n) as they are, and bin codes (N, m) equally wide."""
        return cls(classes, binned(codes, bins, "width"), bins, int(classes.max()) + 1)

    def under(self, counts: Float64) -> tuple[Float64, Float64]:
        """Return information (b, n, m) and entropies (b, n) under counts (b, N)."""
        return information(self.factors, self.codes, self.bins, counts, self.classes)

    def whole(self) -> tuple[Float64, Float64]:
        """Return information (n, m) and entropies (n,) of all rows."""
        mutual, entropies = self.under(np.ones((1, len(self.factors))))
        return mutual[0], entropies[0]
