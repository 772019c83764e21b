"""`factor_vae_score`: does the code that varies least tell which factor images share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from threedident.errors import UsageError
from threedident.evaluate.metrics._arrays import Bools, Float64, at_factors, left_out, varying
from threedident.evaluate.metrics._interventions import (
    BATCH,
    POINTS,
    TEST_POINTS,
    RowsByValue,
    check_points,
    share_by_factor,
)
from threedident.evaluate.metrics._result import MetricResult, Replicates, Resample
from threedident.evaluate.metrics._values import Int64, checked_classes

#: The standard deviation below which a code does not vote, in the papers; by default here a share
#: of the largest one, since codes have no common scale.
THRESHOLD = 0.05
THRESHOLDS = ("relative", "absolute")
_AT_ONCE = 2**21  # codes


def factor_vae_score(
    z: Any,
    z_hat: Any,
    *,
    points: int = POINTS,
    test_points: int = TEST_POINTS,
    batch: int = BATCH,
    threshold: float = THRESHOLD,
    thresholds: str = "relative",
    seed: int = 0,
) -> MetricResult:
    """FactorVAE score (Kim & Mnih 2018, section 4), as Locatello et al. 2019 compute it.

    For a vote, a factor k is drawn, and 64 images that agree in factor k, and in the others by
    chance alone. The code whose variance over them is the smallest share of its variance over
    all samples votes for k. Every code then stands for the factor that most of its votes are
    for; the score is the share of further votes of which that is so.

    Images that agree in a factor are chosen among the samples, which therefore must be of
    independent factors whose values come again, as those of a grid. Of all images of a grid that
    is the published protocol, with the variances over all of them.

    Range: 0 to 1; 0 where no code varies. Chance is 1 / n.

    Args:
        z: (N, n), the factors, n >= 2 of which vary.
        z_hat: (N, m), the codes.
        points: the number of votes that say what a code stands for.
        test_points: the number of votes that are scored.
        batch: the number of images of a vote.
        threshold: the least standard deviation of a code that votes. A constant code never does.
        thresholds: "relative": the threshold is a share of the largest standard deviation of a
            code; "absolute": it is one, as published (0.05), which is meant for codes whose
            variance is about 1.
        seed: the seed for the draws.

    Returns:
        The accuracy. Parts: `votes` (m, n), for each factor, of the points that are fitted on;
        `factor_of_code` (m,), -1 for a code without a vote; `voting` (m,), which codes vary
        enough; `accuracy_per_factor` (n,). Codes are numbered as they came. A bootstrap draws
        votes of both kinds.

    Raises:
        UsageError: the arrays or arguments do not fit, or the values of a factor do not come
            again.

    Examples:
        >>> import numpy as np
        >>> z = np.random.default_rng(0).integers(0, 5, (2000, 3))
        >>> codes = np.hstack([np.zeros((2000, 1)), z])  # a constant code has no vote
        >>> score = factor_vae_score(z, codes, points=300, test_points=300)
        >>> round(score.value, 2), score.parts["factor_of_code"].tolist()
        (1.0, [-1, 0, 1, 2])
    """
    check_points(points, test_points, batch)
    if thresholds not in THRESHOLDS or not (math.isfinite(threshold) and threshold >= 0):
        raise UsageError(
            f"expected a threshold of at least 0, {' or '.join(THRESHOLDS)}, found {threshold} and "
            f"{thresholds!r}"
        )
    factors, classes, codes = checked_classes(z, z_hat, 2, 1)
    kept = varying(factors)
    voting = _voting(codes, threshold, thresholds)
    count = int(kept.sum())
    generator = np.random.default_rng([seed, 5])
    chosen = generator.integers(0, count, points + test_points)
    votes = np.full(points + test_points, -1)
    if voting.any():
        votes = np.flatnonzero(voting)[_votes(codes[:, voting], classes, chosen, batch, generator)]
    ballot = np.zeros((points, codes.shape[1], count), np.float32)
    if voting.any():
        ballot[np.arange(points), votes[:points], chosen[:points]] = 1
    ballots = ballot.reshape(points, -1)

    def majority(counts: Float64) -> tuple[Float64, Int64]:
        """Return votes (b, m, n) and each code's factor (b, m) under counts (b, points)."""
        tables = (counts.astype(np.float32) @ ballots).reshape(len(counts), *ballot.shape[1:])
        return tables.astype(np.float64), tables.argmax(-1)

    def hits(stands_for: Int64) -> Float64:
        """Return which test votes (b, test_points) are for what their code stands for."""
        if not voting.any():
            return np.zeros((len(stands_for), test_points))
        return (stands_for[:, votes[points:]] == chosen[points:]).astype(np.float64)

    def replicate(counts: Float64) -> Replicates:
        _, stands_for = majority(counts[:, :points])
        drawn = counts[:, points:]
        return Replicates((hits(stands_for) * drawn).sum(1) / drawn.sum(1))

    table, stands_for = majority(np.ones((1, points)))
    right = hits(stands_for)[0]
    numbers = np.flatnonzero(kept)
    all_votes = np.zeros((codes.shape[1], len(kept)))
    all_votes[:, numbers] = table[0]
    voted = table[0].sum(1) > 0
    return MetricResult(
        float(right.mean()),
        None,
        {
            "votes": all_votes,
            "factor_of_code": np.where(voted, numbers[stands_for[0]], -1),
            "voting": voting.astype(np.int64),
            "accuracy_per_factor": at_factors(share_by_factor(right, chosen[points:]), kept),
        },
        {
            "votes": points,
            "test_votes": test_points,
            "batch": batch,
            "threshold": threshold,
            "thresholds": thresholds,
            "codes_without_a_vote": np.flatnonzero(~voting).tolist(),
            "seed": seed,
            "bootstrap": "votes of both kinds",
            **left_out(factors),
        },
        Resample((slice(0, points), slice(points, points + test_points)), replicate),
    )


def _voting(codes: Float64, threshold: float, thresholds: str) -> Bools:
    """Return which codes (m,) vary enough to vote; a constant one never does."""
    spread = codes.std(0, ddof=1)
    least = threshold * spread.max() if thresholds == "relative" else threshold
    return varying(codes) & (spread >= least)


def _votes(
    codes: Float64, classes: Int64, chosen: Int64, batch: int, generator: np.random.Generator
) -> Int64:
    """Return the code that varies least over images that agree in the factor, a point each."""
    variances = codes.var(0, ddof=1)
    votes = np.empty(len(chosen), np.int64)
    step = max(1, _AT_ONCE // (batch * codes.shape[1]))
    for factor in range(classes.shape[1]):
        rows = RowsByValue.of(classes[:, factor])
        points = np.flatnonzero(chosen == factor)
        for start in range(0, len(points), step):
            some = points[start : start + step]
            anchors = rows.draw_anchors((len(some),), generator)
            alike = rows.draw_alike(anchors, batch, generator)
            votes[some] = (codes[alike].var(1, ddof=1) / variances).argmin(1)
    return votes
