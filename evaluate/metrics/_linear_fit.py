"""Linear regression from codes to factors, and its coefficient of determination."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from threedident.errors import UsageError
from threedident.evaluate.metrics._arrays import CONSTANT, Float64, standardised, varying
from threedident.evaluate.metrics._bootstrap import weighted_moments

#: Directions of the codes whose singular value is at most so much of the largest count as
#: absent; of standardised codes where there are more samples than codes.
CUTOFF = 1e-10
_WIDE_CUTOFF = 1e-6  # through the Gram matrix of the samples, which squares the values
_WIDE_RANK = 1e-13  # without it
#: Up to so many codes, and so many rows to a code, a bootstrap replicate fits anew. A draw of the
#: rows has 63 % of them, and a fit on few more rows than codes says nothing of one on all.
MOST_REFITTED = 128
_LEAST_ROWS = 2.5
_RIDGE = 1e-10  # on whitened codes, for draws that lack a direction
#: R2 ends here: what is worse says no more than that the test rows have outliers.
LOWEST = -1e9
FOLDS: tuple[int | str, ...] = (2, "single", "in-sample")

Folds = int | str


@dataclasses.dataclass(frozen=True)
class LinearFit:
    """A linear map with intercept: targets = mean_targets + ((codes - mean) / scale) weights.

    Attributes:
        mean, scale: (m,), the mean and the scale of the codes.
        weights: (m, n), the map of scaled codes.
        mean_targets: (n,), the mean of the targets.
        rank: the rank of the codes, less the intercept.
    """

    mean: Float64
    scale: Float64
    weights: Float64
    mean_targets: Float64
    rank: int

    def predict(self, codes: Float64) -> Float64:
        """Return predictions (N, n) from codes (N, m)."""
        return self.mean_targets + ((codes - self.mean) / self.scale) @ self.weights


def fit_linear(codes: Float64, targets: Float64) -> LinearFit:
    """Fit by least squares with an intercept; of minimum norm where that is not determined.

    By QR and the singular values of R, cut at `CUTOFF`, over standardised codes. With more
    codes than samples (pixels), over the codes as they are, as the published regressions do,
    by the eigenvalues of the Gram matrix of the samples; where that lacks rank, by singular values
    again.

    Args:
        codes: (N, m), the codes.
        targets: (N, n), the factors.
    """
    mean, mean_targets = codes.mean(0), targets.mean(0)
    centred, wanted = codes - mean, targets - mean_targets
    samples, width = codes.shape
    if width >= samples:
        values, vectors = np.linalg.eigh(centred @ centred.T)
        kept = values > _WIDE_CUTOFF**2 * max(values[-1], np.finfo(float).tiny)
        if kept.sum() < samples - 1:  # squares cannot tell what is small from nothing
            q, r = np.linalg.qr(centred.T)
            u, s, vt = np.linalg.svd(r.T)
            kept = s > _WIDE_RANK * max(s[0], np.finfo(float).tiny)
            weights = q @ (vt[kept].T @ ((u[:, kept].T @ wanted) / s[kept][:, None]))
            return LinearFit(mean, np.ones(width), weights, mean_targets, int(kept.sum()))
        vectors = vectors[:, kept]
        weights = centred.T @ (vectors @ ((vectors.T @ wanted) / values[kept][:, None]))
        return LinearFit(mean, np.ones(width), weights, mean_targets, int(kept.sum()))
    scale = np.where(varying(codes), centred.std(0), np.inf)
    q, r = np.linalg.qr(centred / scale)
    u, s, vt = np.linalg.svd(r)
    kept = s > CUTOFF * max(s[0], np.finfo(float).tiny)
    weights = vt[kept].T @ ((u[:, kept].T @ (q.T @ wanted)) / s[kept][:, None])
    return LinearFit(mean, scale, weights, mean_targets, int(kept.sum()))


#: The first column of each factor, of targets with several columns a factor; None for one each.
Starts = npt.NDArray[np.int64] | None


def determination(targets: Float64, predicted: Float64, starts: Starts = None) -> Float64:
    """Compute the coefficient of determination per factor, (n,); NaN for a constant one.

    R2 = 1 - sum |z - predicted|^2 / sum |z - mean z|^2, the mean that of the scored samples.

    Args:
        targets: (N, k), the factors, one column each unless `starts` says otherwise.
        predicted: (N, k), their predictions.
        starts: the first column of each factor.
    """
    residual = ((targets - predicted) ** 2).sum(0)
    total = ((targets - targets.mean(0)) ** 2).sum(0)
    return _share(residual, total, varying(targets), starts)


def _share(
    residual: Float64,
    total: Float64,
    moves: npt.NDArray[np.bool_],
    starts: Starts = None,
    squares: Float64 | None = None,
) -> Float64:
    """Return 1 - residual / total where a target moves, NaN elsewhere.

    Args:
        residual, total: (..., k), sums of squares by column.
        moves: (..., k) or (k,), which columns are not constant.
        starts: the first column of each factor, whose sums are added up.
        squares: (k,), the unit of each column's sums, where they are not alike.
    """
    if starts is not None:
        unit = np.ones(residual.shape[-1]) if squares is None else squares
        residual = np.add.reduceat(residual * unit, starts, axis=-1)
        total = np.add.reduceat(np.where(moves, total, 0) * unit, starts, axis=-1)
        moves = np.logical_or.reduceat(moves, starts, axis=-1)
    r2 = np.maximum(1 - residual / np.where(moves, total, 1), LOWEST)
    return np.where(moves, r2, np.nan)


def splits(samples: int, folds: Folds) -> list[tuple[slice, slice]]:
    """Return the rows to fit on and the rows to score, a pair for every fit.

    Args:
        samples: the number of rows, N.
        folds: 2: each half of the rows, as they stand, scored by the fit on the other;
            "single": fitted on the first half, scored on the second, as published for 3DIdent
            (Zimmermann et al. 2021, section 4.2); "in-sample": fitted and scored on all rows,
            as published for synthetic data (section 4.1).

    Raises:
        UsageError: folds is none of these.
    """
    first, second = slice(0, samples // 2), slice(samples // 2, samples)
    if folds == 2:
        return [(second, first), (first, second)]
    if folds == "single":
        return [(first, second)]
    if folds == "in-sample":
        return [(slice(0, samples), slice(0, samples))]
    raise UsageError(f"folds must be one of {', '.join(map(repr, FOLDS))}, found {folds!r}")


def drawn_folds(samples: int, folds: Folds) -> tuple[slice, ...]:
    """Return the stretches of rows in which a bootstrap draws."""
    if folds == "in-sample":
        return (slice(0, samples),)
    return slice(0, samples // 2), slice(samples // 2, samples)


def refits(codes: int, rows: int) -> bool:
    """Say whether bootstrap replicates fit anew, by the numbers of codes and of rows to fit on."""
    return codes <= min(MOST_REFITTED, rows / _LEAST_ROWS)


def whitened(codes: Float64) -> Float64:
    """Return an affine image (N, rank) of codes (N, m), of mean 0 and covariance 1; m < N."""
    u, s, _ = np.linalg.svd(standardised(codes), full_matrices=False)
    return u[:, s > CUTOFF * max(s[0], np.finfo(float).tiny)] * np.sqrt(len(codes))


def decorrelated(train: Float64, test: Float64) -> tuple[Float64, Float64]:
    """Map codes such that a small penalty on squared weights is one in all directions.

    Standardised codes that are nearly collinear have directions of little variance, in which any
    penalty is a large one. With ten rows or more to a code, the rows to fit on get covariance 1,
    and a fit no longer depends on an affine map of the codes. With fewer, the directions of little
    variance are mostly noise, and the codes stay as they are.

    Args:
        train: (N, m), the standardised codes to fit on.
        test: (M, m), others.

    Returns:
        Both, (N, k) and (M, k).
    """
    rows, width = train.shape
    if rows < 10 * (width + 1):
        return train, test
    mean = train.mean(0)
    _, s, vt = np.linalg.svd(np.linalg.qr(train - mean, mode="r"))
    kept = s > CUTOFF * max(s[0], np.finfo(float).tiny)
    if not kept.any():
        return train, test
    scale = vt[kept].T * (np.sqrt(rows) / s[kept])
    return (train - mean) @ scale, (test - mean) @ scale


@dataclasses.dataclass(frozen=True)
class Moments:
    """Weighted means and covariances of k codes and n factors, one set a draw.

    Attributes:
        mean_codes: (b, k), the means of the codes.
        mean_factors: (b, n), the means of the factors.
        codes: (b, k, k), the covariance of the codes.
        cross: (b, k, n), the covariance of codes and factors.
        factors: (b, n), the variances of the factors.
    """

    mean_codes: Float64
    mean_factors: Float64
    codes: Float64
    cross: Float64
    factors: Float64

    @classmethod
    def of(cls, codes: Float64, factors: Float64, counts: Float64) -> Moments:
        """Compute those of codes (N, k) and factors (N, n) under counts (b, N)."""
        width = codes.shape[1]
        products = weighted_moments(
            np.concatenate([np.ones((len(codes), 1)), codes, factors], 1), counts
        )
        mean = products[:, 0, 1:]
        covariance = products[:, 1:, 1:] - mean[:, :, None] * mean[:, None, :]
        return cls(
            mean[:, :width],
            mean[:, width:],
            covariance[:, :width, :width],
            covariance[:, :width, width:],
            np.diagonal(covariance, axis1=1, axis2=2)[:, width:],
        )

    def weights(self) -> Float64:
        """Fit the factors to the codes by least squares: weights (b, k, n)."""
        ridge = _RIDGE * np.eye(self.codes.shape[1])
        return np.linalg.solve(self.codes + ridge, self.cross)


def refitted_determination(
    train: Moments, test: Moments, starts: Starts = None, squares: Float64 | None = None
) -> Float64:
    """Compute R2 per factor on some rows of the fit on others, (b, n), from moments alone.

    With weights W, the residual z - z0 - W^T (c - c0) has mean square var z - 2 W.cov(c, z)
    + W^T cov(c) W plus its squared mean, over the rows scored.

    Args:
        train, test: the moments of the rows to fit on and of those to score.
        starts: the first column of each factor, of targets with several columns a factor.
        squares: (k,), the variances of the columns that were standardised, with `starts`.
    """
    weights = train.weights()
    shift = test.mean_factors - train.mean_factors
    moved = test.mean_codes - train.mean_codes
    offset = shift - np.einsum("bkn,bk->bn", weights, moved)
    explained = 2 * (weights * test.cross).sum(1) - (weights * (test.codes @ weights)).sum(1)
    residual = np.maximum(test.factors - explained, 0) + offset**2
    return _share(residual, test.factors, test.factors > CONSTANT**2, starts, squares)


def held_determination(
    targets: Float64, predicted: Float64, counts: Float64, starts: Starts = None
) -> Float64:
    """Compute R2 per factor, (b, n), of predictions that stay, under counts (b, N).

    Args:
        targets: (N, k), the factors, one column each unless `starts` says otherwise.
        predicted: (N, k), their predictions.
        counts: (b, N), how often each row was drawn.
        starts: the first column of each factor.
    """
    scaled = standardised(targets)
    residual = standardised_residual(targets, predicted) ** 2
    total = counts.sum(1)[:, None]
    mean = counts @ scaled / total
    variance = counts @ scaled**2 / total - mean**2
    moves = varying(targets) & (variance > CONSTANT**2)
    squares = None if starts is None else targets.var(0)
    return _share(counts @ residual / total, variance, moves, starts, squares)


def standardised_residual(targets: Float64, predicted: Float64) -> Float64:
    """Return residuals in standard deviations of the targets; 0 for a constant target."""
    moves = varying(targets)
    return np.where(moves, (targets - predicted) / np.where(moves, targets.std(0), 1), 0.0)
