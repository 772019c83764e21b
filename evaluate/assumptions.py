"""`check_assumptions`: warnings where scores rest on what does not hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from threedident.evaluate.metrics._arrays import Bools, Float64, standardised, varying
from threedident.evaluate.metrics._kinds import Kind, Points, class_numbers
from threedident.evaluate.metrics._linear_fit import Folds, Starts, splits
from threedident.evaluate.metrics.registry import METRICS

#: Every code of a warning, and its cause.
WARNING_CODES = {
    "training_split": "the test set is of the split train",
    "seen_images": "the encoder was fitted on the images that it is scored on",
    "other_resolution": "the encoder was trained on images of another size",
    "paired_images": "the test set consists of pairs or sequences",
    "no_independent_set": "variables of a causal model that depend on each other, scored alone",
    "published_layout": "classes or circles of a published layout, which are not scored as such",
    "few_samples": "fewer than 10 (m + 1) samples to fit m codes on, or than 25 m^2 in all",
    "constant_factors": "factors that do not vary",
    "dependent_factors": "factors, or their squares, that correlate",
    "collapsed_codes": "codes that do not vary, or of too low a rank",
    "duplicated_codes": "codes with an absolute correlation above 0.999",
    "unequal_dimensions": "another number of codes than of varying factors, for the MCC",
    "not_injective": "different latents of the generator share an image",
    "halves_differ": "the two halves of the samples do not look alike",
    "undefined_score": "a score that is no number",
    "floored_r2": "an R2 that was cut off",
    "rare_classes": "classes of a discrete factor with few samples",
    "told_by_parents": "factors of which their parents leave nothing open",
}
_PER_CODE = 10
#: A held-out R2 of m codes on N rows is too low by 2 m / N of what it lacks to 1. From N of
#: 25 m^2 on that is small beside its interval; benchmarks/intervals.py measures it.
_PER_SQUARED_CODE = 25
_PER_CLASS = 20  # samples of a class in each half
_DEPENDENT = 0.1  # a correlation that matters, if significant
_SIGNIFICANT = 5.0  # standard errors
_DUPLICATED = 0.999
_FLOAT32 = 1e-5  # relative; rounding leaves no more of a column that is constant
_MOST_COMPARED = 2048  # codes; pairs of more are too many
_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class ScoreWarning:
    """A warning of an assumption that does not hold.

    Attributes:
        code: one of `WARNING_CODES`.
        message: the finding, and its meaning for the scores.
    """

    code: str
    message: str


def check_assumptions(
    z: Float64,
    z_hat: Float64,
    *,
    factors: Sequence[str],
    metrics: Collection[str],
    folds: Folds,
    not_injective: Sequence[str] = (),
    best_known: bool = False,
    kinds: Sequence[Kind] | None = None,
) -> tuple[ScoreWarning, ...]:
    """Check the assumptions that metrics make; warnings come in the order of `WARNING_CODES`.

    Args:
        z: (N, n), the factors.
        z_hat: (N, m), the codes.
        factors: names of the n factors.
        metrics: names of the metrics that are computed.
        folds: the folds of the linear regression.
        not_injective: the reasons why the generator is not injective.
        best_known: whether scores stand beside the best possible ones.
        kinds: the kind of each factor; None: all continuous.
    """
    warnings = [
        *_few_samples(z, z_hat, metrics, folds),
        *_factors(z, factors, kinds),
        *_codes(z, z_hat),
        *_dimensions(z, z_hat, metrics, kinds),
        *_halves(z, z_hat, factors),
        *_rare_classes(z, factors, kinds),
    ]
    if not_injective:
        beside = (
            "where the best possible score is known, it stands beside the score, with the share "
            "of it reached"
            if best_known
            else "the best possible scores are not known for these latents"
        )
        warnings.append(
            ScoreWarning(
                "not_injective",
                f"the generator is not injective: {'; '.join(not_injective)}. No encoder can "
                f"recover all factors; {beside}",
            )
        )
    order = list(WARNING_CODES)
    return tuple(sorted(warnings, key=lambda warning: order.index(warning.code)))


def _some(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _few_samples(
    z: Float64, z_hat: Float64, metrics: Collection[str], folds: Folds
) -> Iterator[ScoreWarning]:
    rows = min(train.stop - train.start for train, _ in splits(len(z), folds))
    width, least = z_hat.shape[1], _PER_SQUARED_CODE * z_hat.shape[1] ** 2
    if rows < _PER_CODE * (width + 1):
        yield ScoreWarning(
            "few_samples",
            f"{rows} samples to fit {width} codes on: R2 means little below "
            f"{_PER_CODE * (width + 1)}; use a larger test set or fewer codes",
        )
    elif len(z) < least and any(name.endswith("r2") for name in metrics):
        off = "high" if folds == "in-sample" else "low"
        yield ScoreWarning(
            "few_samples",
            f"with {len(z):,} images and {width} codes, the linear R2 is about {width / rows:.2g} "
            f"x (1 - R2) too {off}; use {least:,} images or more",
        )


def _factors(
    z: Float64, names: Sequence[str], kinds: Sequence[Kind] | None
) -> Iterator[ScoreWarning]:
    moves = varying(z)
    if not moves.all():
        constant = [name for name, moving in zip(names, moves, strict=True) if not moving]
        yield ScoreWarning(
            "constant_factors",
            f"{_some(constant)} do not vary: left out of every mean over factors",
        )
    halves = np.array([varying(half) for half in np.array_split(z, [len(z) // 2])])
    still = [n for n, each, m in zip(names, halves.T, moves, strict=True) if m and not each.all()]
    if still:
        yield ScoreWarning(
            "constant_factors",
            f"{_some(still)} vary in one half of the samples alone: scores of held-out rows leave "
            "them out of the mean over factors. Score more images",
        )
    kept = [name for name, moving in zip(names, moves, strict=True) if moving]
    count = len(kept)
    points = Points.of(z[:, moves], None if kinds is None else _at(kinds, moves))
    plain = standardised(points.values)
    strongest = _strongest(plain, points.starts)
    limit = max(_DEPENDENT, _SIGNIFICANT / np.sqrt(len(z)))
    pairs = np.argwhere(np.triu(strongest > limit, 1))
    if len(pairs):
        shown = [f"{kept[i]} and {kept[j]} ({strongest[i, j]:.2f})" for i, j in pairs]
        others = "squares" if points.starts is None else "squares, of sines, cosines and classes"
        yield ScoreWarning(
            "dependent_factors",
            f"factors depend on each other, by the correlation of them or their {others}: "
            f"{_some(shown)}. A code of one then scores on the other, and the theory assumes "
            "independent factors",
        )
        return
    if points.starts is not None:  # indicators of classes add up to 1
        return
    smallest = np.linalg.eigvalsh(plain.T @ plain / len(z))[0]
    if len(z) > 10 * count and smallest < 0.01:
        yield ScoreWarning(
            "dependent_factors",
            f"the factors are nearly collinear: the smallest eigenvalue of their correlation "
            f"matrix is {smallest:.2g}. The theory assumes independent factors",
        )


def _at(kinds: Sequence[Kind], moves: Bools) -> list[Kind]:
    return [kind for kind, moving in zip(kinds, moves, strict=True) if moving]


def _strongest(plain: Float64, starts: Starts) -> Float64:
    """Return the largest correlation of each pair of factors (n, n), over what is made of them.

    Args:
        plain: (N, k), the coordinates of factors, standardised.
        starts: the first column of each factor; None: one column each.
    """
    both = np.concatenate([plain, standardised(plain**2)], 1)
    correlation = np.abs(both.T @ both / len(plain))
    # Over the coordinates themselves and their squares.
    count = plain.shape[1]
    strongest = correlation.reshape(2, count, 2, count).max((0, 2))
    if starts is None:
        return strongest
    return np.maximum.reduceat(np.maximum.reduceat(strongest, starts, 0), starts, 1)


def _rare_classes(
    z: Float64, names: Sequence[str], kinds: Sequence[Kind] | None
) -> Iterator[ScoreWarning]:
    half = len(z) // 2
    rare = []
    for i, kind in enumerate(kinds or ()):
        if kind.name == "discrete":
            labels = class_numbers(z[:, i], names[i])
            for label in np.unique(labels):
                fewest = min(int((part == label).sum()) for part in (labels[:half], labels[half:]))
                if fewest < _PER_CLASS:
                    rare.append(f"{names[i]} {label} ({fewest})")
    if rare:
        yield ScoreWarning(
            "rare_classes",
            f"classes with fewer than {_PER_CLASS} samples in a half of the test set: "
            f"{_some(rare)}. Their recall, which counts as much as that of others, is rough",
        )


def _codes(z: Float64, z_hat: Float64) -> Iterator[ScoreWarning]:
    width = z_hat.shape[1]
    largest = np.abs(z_hat).max(0)
    still = z_hat.std(0) <= 0.1 * _FLOAT32 * np.where(largest > 0, largest, 1)
    expected = min(int(varying(z).sum()), width, len(z) - 1)
    codes = standardised(z_hat)
    rank = _rank(codes)
    if still.any() or rank < expected:
        findings = []
        if still.any():
            findings.append(f"codes {_some([str(i) for i in np.flatnonzero(still)])} do not vary")
        if rank < expected:
            findings.append(f"the codes have rank {rank}, where {expected} factors are to be held")
        yield ScoreWarning("collapsed_codes", "; ".join(findings))
    if width <= _MOST_COMPARED:
        moving = np.flatnonzero(~still)
        table = np.abs(codes[:, moving].T @ codes[:, moving] / len(z))
        pairs = np.argwhere(np.triu(table > _DUPLICATED, 1))
        if len(pairs):
            shown = [f"{moving[i]} and {moving[j]}" for i, j in pairs]
            yield ScoreWarning(
                "duplicated_codes",
                f"codes {_some(shown)} are copies of each other: metrics that look for one code "
                "per factor count them apart",
            )


def _rank(codes: Float64) -> int:
    """Compute the rank of standardised codes, at the precision of float32."""
    if codes.shape[1] >= len(codes):
        values = np.linalg.eigvalsh(codes @ codes.T)
    else:
        values = np.linalg.eigvalsh(codes.T @ codes)
    return int((values > _FLOAT32**2 * max(values[-1], np.finfo(float).tiny)).sum())


def _dimensions(
    z: Float64, z_hat: Float64, metrics: Collection[str], kinds: Sequence[Kind] | None
) -> Iterator[ScoreWarning]:
    own = [kind.name in METRICS["mcc"].kinds for kind in kinds or [Kind()] * z.shape[1]]
    count, width = int((varying(z) & own).sum()), z_hat.shape[1]
    if width == count or not any(name.startswith("mcc") for name in metrics):
        return
    meaning = (
        f"the assignment picks the best {count} of them, which raises the MCC of chance"
        if width > count
        else f"{count - width} factors can have no code and count as 0"
    )
    yield ScoreWarning(
        "unequal_dimensions", f"{width} codes for {count} varying factors: {meaning}"
    )


def _halves(z: Float64, z_hat: Float64, names: Sequence[str]) -> Iterator[ScoreWarning]:
    """Warn of means of the halves that differ by more than their standard errors allow."""
    half = len(z) // 2
    limit = _SIGNIFICANT * np.sqrt(1 / half + 1 / (len(z) - half))
    different = [
        label
        for values, label in (
            *((z[:, [i]], name) for i, name in enumerate(names)),
            (z_hat, "the codes"),
        )
        if (np.abs(np.diff(_half_means(values), axis=0)) > limit).any()
    ]
    if different:
        yield ScoreWarning(
            "halves_differ",
            f"the means of {_some(different)} differ between the first and second half of the "
            "samples: they are no random order, which fitting on one half and scoring on the "
            "other takes for granted; shuffle them",
        )


def _half_means(values: Float64) -> Float64:
    scaled = standardised(values)
    half = len(values) // 2
    return np.stack([scaled[:half].mean(0), scaled[half:].mean(0)])
