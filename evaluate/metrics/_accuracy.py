"""`accuracy`: can a classifier read the discrete factors from the codes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.errors import UsageError
from threedident.evaluate.metrics._arrays import (
    Float64,
    checked,
    left_out,
    mean_of_varying,
    standardised,
    varying,
)
from threedident.evaluate.metrics._kernel_ridge import (
    MOST_SAMPLES,
    RIDGES,
    WIDTHS,
    kernel_ridge,
    sklearn_part,
)
from threedident.evaluate.metrics._kinds import Kinds, as_kinds, class_numbers
from threedident.evaluate.metrics._linear_fit import Folds, decorrelated, drawn_folds, splits
from threedident.evaluate.metrics._result import MetricResult, Replicates, Resample

CLASSIFIERS = ("linear", "kernel")
#: The weight of the squared weights of a logistic regression, per sample: as good as none, but
#: with it the weights of classes that a line separates stay finite.
PENALTY = 1e-5

Classes = npt.NDArray[np.int64]


def accuracy(
    z: Any,
    z_hat: Any,
    *,
    kinds: Kinds = None,
    classifier: str = "linear",
    folds: Folds = 2,
    most: int = MOST_SAMPLES,
) -> MetricResult:
    """Balanced accuracy of a classifier from codes to each discrete factor, averaged over them.

    Balanced: the mean over classes of the share of a class's held-out rows that are recognised
    (Brodersen et al. 2010), so that frequent classes do not count more; the classifier likewise
    takes all classes to be equally frequent.

    Range: 0 to 1. Chance is 1 / K of K classes; `normalised` is (accuracy - 1/K) / (1 - 1/K),
    which is 0 by chance and 1 at best.

    Args:
        z: (N, n), the factors; discrete ones are class numbers.
        z_hat: (N, m), the codes.
        kinds: the kind of each factor; only discrete ones are scored. None: all are discrete.
        classifier: "linear": multinomial logistic regression, on standardised codes, which are
            decorrelated where there are ten rows or more to each; "kernel": kernel ridge
            regression to the indicators of the classes (`kernel_ridge`), divided by the classes'
            shares, of which the largest wins.
        folds: 2 or "single".
        most: the number of samples in use, the first ones.

    Returns:
        The mean and each discrete factor's accuracy, NaN for others. Parts: `normalised`, the
        mean, and `normalised_per_factor`; `chance_per_factor`, 1 / K; `recall` by factor, the
        share of each class that was recognised, in the order of class numbers. A bootstrap holds
        the fit.

    Raises:
        UsageError: the arrays or arguments do not fit, or no factor is discrete.

    Examples:
        Of three classes the code tells one from the others.

        >>> import numpy as np
        >>> shape = np.random.default_rng(0).integers(0, 3, (900, 1))
        >>> round(accuracy(shape, shape).value, 2)
        1.0
        >>> score = accuracy(shape, np.where(shape == 2, 1.0, 0.0))
        >>> round(score.value, 2), score.parts["recall"][0][2]
        (0.67, 1.0)
    """
    if classifier not in CLASSIFIERS:
        raise UsageError(
            f"classifier must be one of {', '.join(CLASSIFIERS)}, found {classifier!r}"
        )
    if folds == "in-sample":
        raise UsageError("accuracy scores held-out rows: use folds=2 or 'single'")
    factors, codes = checked(z, z_hat, 20)
    count = factors.shape[1]
    each = as_kinds(["discrete"] * count if kinds is None else kinds, count)
    factors, codes = factors[:most], standardised(codes[:most])
    kept = np.array([kind.name == "discrete" for kind in each]) & varying(factors)
    if not any(kind.name == "discrete" for kind in each):
        raise UsageError("no factor is discrete: accuracy is of classes; use an R2 of the others")
    pairs = splits(len(factors), folds)
    labels = {i: _labels(factors[:, i], i) for i in np.flatnonzero(kept)}
    of_folds = [(codes[train], codes[test]) for train, test in pairs]
    if classifier == "linear":
        of_folds = [decorrelated(*each) for each in of_folds]
    right = {
        i: [
            _predict(fitted, cut[train], scored, classifier) == cut[test]
            for (fitted, scored), (train, test) in zip(of_folds, pairs, strict=True)
        ]
        for i, cut in labels.items()
    }

    def recalls(factor: int, counts: Float64) -> Float64:
        """Return the recall of each class, (b, K), under counts (b, N); NaN where it is absent."""
        cut = labels[factor]
        indicator = (cut[:, None] == np.arange(cut.max() + 1)).astype(np.float64)
        each_fold = []
        for hits, (_, test) in zip(right[factor], pairs, strict=True):
            drawn, inside = counts[:, test], indicator[test]
            rows = drawn @ inside
            hit = drawn @ (inside * hits[:, None])
            each_fold.append(np.where(rows > 0, hit / np.where(rows > 0, rows, 1), np.nan))
        return mean_of_varying(np.moveaxis(np.array(each_fold), 0, -1))

    chances = np.full(count, np.nan)
    for i, cut in labels.items():
        chances[i] = 1 / (cut.max() + 1)

    def scores(counts: Float64) -> Float64:
        table = np.full((len(counts), count), np.nan)
        for i in labels:
            table[:, i] = mean_of_varying(recalls(i, counts))
        return table

    def normalised(table: Float64) -> Float64:
        return (table - chances) / (1 - chances)

    def replicate(counts: Float64) -> Replicates:
        table = scores(counts)
        parts = {"normalised": mean_of_varying(normalised(table))}
        return Replicates(mean_of_varying(table), table, parts)

    ones = np.ones((1, len(factors)))
    per_factor = scores(ones)[0]
    settings: dict[str, Any] = (
        {"classifier": "multinomial logistic regression", "penalty": PENALTY}
        if classifier == "linear"
        else {
            "classifier": "kernel ridge regression",
            "widths_in_median_distances": list(WIDTHS),
            "ridges": list(RIDGES),
        }
    )
    choices = {
        **settings,
        "balanced": True,
        "folds": folds,
        "samples": len(factors),
        "bootstrap": "the fit held",
        **left_out(factors),
    }
    parts = {
        "normalised": float(mean_of_varying(normalised(per_factor))),
        "normalised_per_factor": normalised(per_factor),
        "chance_per_factor": chances,
        "recall": [recalls(i, ones)[0].tolist() if i in labels else [] for i in range(count)],
    }
    return MetricResult(
        float(mean_of_varying(per_factor)),
        per_factor,
        parts,
        choices,
        Resample(drawn_folds(len(factors), folds), replicate),
    )


def _labels(column: Float64, factor: int) -> Classes:
    """Return the classes of a factor as numbers 0..K - 1 of those that occur."""
    return np.unique(class_numbers(column, f"factor {factor}"), return_inverse=True)[1]


def _predict(train: Float64, labels: Classes, test: Float64, classifier: str) -> Classes:
    """Fit a classifier and predict the classes of other rows."""
    seen = np.unique(labels)
    if len(seen) < 2:
        return np.full(len(test), seen[0])
    if classifier == "kernel":
        indicators = (labels[:, None] == seen).astype(np.float64)
        together = np.zeros(1, np.int64)  # the classes are coordinates of one factor
        chances = kernel_ridge(train, indicators, test, together)
        return np.asarray(seen[(chances / indicators.mean(0)).argmax(1)], np.int64)
    model = sklearn_part("linear_model").LogisticRegression(
        C=1 / (PENALTY * len(train)), class_weight="balanced", max_iter=500
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the last digits of a fit change no class
        return np.asarray(model.fit(train, labels).predict(test), np.int64)
