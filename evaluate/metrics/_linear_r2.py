"""`linear_r2`: do the codes hold the factors up to a linear map."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from threedident.errors import UsageError
from threedident.evaluate.metrics._arrays import (
    Float64,
    checked,
    mean_of_varying,
    standardised,
    undefined,
)
from threedident.evaluate.metrics._kinds import Kinds, Points
from threedident.evaluate.metrics._linear_fit import (
    Folds,
    Moments,
    determination,
    drawn_folds,
    fit_linear,
    held_determination,
    refits,
    refitted_determination,
    splits,
    whitened,
)
from threedident.evaluate.metrics._result import MetricResult, Replicates, Resample


def linear_r2(
    z: Any, z_hat: Any, *, folds: Folds = 2, adjusted: bool = False, kinds: Kinds = None
) -> MetricResult:
    """R2 of a linear regression with intercept from codes to factors, averaged over factors.

    For factor i, R2_i = 1 - sum_r (z_ri - p_ri)^2 / sum_r (z_ri - mean z_i)^2 over the rows r
    that are scored, p the predictions (Zimmermann et al. 2021, section 4). With fewer codes than
    rows to fit on, it is invariant under invertible affine maps of the codes; with more, the
    solution of minimum norm depends on their scales. Of two folds the mean of both R2 is taken.

    Range: at most 1, and 0 for predictions no better than the mean. An R2 ends at -1e9, also
    where it enters a mean. Chance, for codes that hold nothing: about -2 m / N of two folds.

    Sums are in float64; the published code regresses in float32, and scores badly scaled or
    nearly collinear codes lower. The adjusted R2, 1 - (1 - R2) (N - 1) / (N - p - 1)
    for codes of rank p (Ezekiel 1930), corrects a fit on the scored rows for the codes' number.

    A circular factor is predicted as (cos, sin), a discrete one as the indicator of its class,
    with |.|^2 in place of the square: the R2 of all coordinates of a factor together.

    Args:
        z: (N, n), the factors.
        z_hat: (N, m), the codes. With m >= N of a fold, the solution of minimum norm is taken.
        folds: 2, "single" (the published split) or "in-sample"; see `splits`. Halves are taken
            as the rows stand, so their order must be random.
        adjusted: whether to correct for the number of codes, with folds="in-sample".
        kinds: the kind of each factor; None: all continuous.

    Returns:
        The mean R2 and each factor's. Parts: `folds`, (folds, n); `rank` of the codes.

    Raises:
        UsageError: the arrays or arguments do not fit.

    Examples:
        A linear map of the factors holds all of them.

        >>> import numpy as np
        >>> z = np.random.default_rng(0).uniform(-1, 1, (1000, 2))
        >>> linear_r2(z, z @ [[1, 2], [3, 4]])
        MetricResult(1; per_factor, parts['folds'], parts['rank'])
        >>> linear_r2(z, z[:, :1]).per_factor > 0.5  # only the first factor
        array([ True, False])
    """
    if adjusted and folds != "in-sample":
        raise UsageError(
            "the adjusted R2 corrects a fit for being scored on its own rows; a held-out one "
            f"needs no correction: use folds='in-sample' with it, found folds={folds!r}"
        )
    factors, codes = checked(z, z_hat)
    points = Points.of(factors, kinds)
    true, starts = points.values, points.starts
    pairs, parts = splits(len(factors), folds), drawn_folds(len(factors), folds)
    predicted, r2, ranks = np.zeros_like(true), [], []
    for train, test in pairs:
        fit = fit_linear(codes[train], true[train])
        predicted[test] = fit.predict(codes[test])
        r2.append(determination(true[test], predicted[test], starts))
        ranks.append(fit.rank)
    spare = _spare(len(factors), ranks[0]) if adjusted else 1.0
    per_fold = 1 - spare * (1 - np.array(r2))
    fewest = min(train.stop - train.start for train, _ in pairs)
    anew = refits(codes.shape[1], fewest)

    @functools.cache
    def design() -> tuple[Float64, Float64]:
        return whitened(codes), standardised(true)

    def refitted(counts: Float64) -> list[Float64]:
        white, unit = design()
        drawn = [Moments.of(white[part], unit[part], counts[:, part]) for part in parts]
        squares = None if starts is None else true.var(0)
        return [
            refitted_determination(
                drawn[parts.index(train)], drawn[parts.index(test)], starts, squares
            )
            for train, test in pairs
        ]

    def held(counts: Float64) -> list[Float64]:
        return [held_determination(true[t], predicted[t], counts[:, t], starts) for _, t in pairs]

    def replicate(counts: Float64) -> Replicates:
        drawn = refitted(counts) if anew else held(counts)
        each = 1 - spare * (1 - np.mean(drawn, 0))
        return Replicates(mean_of_varying(each), each)

    per_factor = per_fold.mean(0)
    choices = {
        "folds": folds,
        "adjusted": adjusted,
        "bootstrap": "refitted" if anew else "the fit held",
        **undefined(per_factor),
    }
    return MetricResult(
        float(mean_of_varying(per_factor)),
        per_factor,
        {"folds": per_fold, "rank": min(ranks)},
        choices,
        Resample(parts, replicate),
    )


def _spare(samples: int, rank: int) -> float:
    """Return the factor by which the adjusted R2 raises 1 - R2.

    Raises:
        UsageError: there are no more samples than codes.
    """
    if samples <= rank + 1:
        raise UsageError(
            f"the adjusted R2 needs more samples than codes: found {samples} samples and "
            f"codes of rank {rank}"
        )
    return (samples - 1) / (samples - rank - 1)
