"""`METRICS`: how each name on the command line is computed, shown and tried by chance."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from threedident.errors import UsageError
from threedident.evaluate.metrics._arrays import Float64, mean_of_varying
from threedident.evaluate.metrics._block_r2 import block_r2
from threedident.evaluate.metrics._dci import dci
from threedident.evaluate.metrics._explicitness import explicitness
from threedident.evaluate.metrics._linear_fit import Folds
from threedident.evaluate.metrics._linear_r2 import linear_r2
from threedident.evaluate.metrics._mcc import mcc
from threedident.evaluate.metrics._mig import mig
from threedident.evaluate.metrics._modularity import modularity
from threedident.evaluate.metrics._nonlinear_r2 import nonlinear_r2
from threedident.evaluate.metrics._result import MetricResult
from threedident.evaluate.metrics._sap import sap


@dataclasses.dataclass(frozen=True)
class Options:
    """The options that a metric may need besides its arrays.

    Attributes:
        folds: the rows to fit on and to score, of the linear R2.
        seed: the seed for all random numbers.
        factor_blocks: columns of z by name.
        code_blocks: columns of z_hat by name.
    """

    folds: Folds
    seed: int
    factor_blocks: Mapping[str, Sequence[int]]
    code_blocks: Mapping[str, Sequence[int]]

    @property
    def held_out(self) -> Folds:
        """Return the folds of metrics that must not score the rows that they fit."""
        return 2 if self.folds == "in-sample" else self.folds


Measure = Callable[[Float64, Float64, Options], MetricResult]


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric as evaluations, tables and reports use it.

    Attributes:
        label: the head of its column in tables.
        description: one line on what it is.
        measure: the function from factors, codes and options to the result.
        shuffles: the number of times that chance is tried; few where a metric takes seconds.
        lowest: the lower bound of the score.
        best: the function from the best possible R2 of a factor to the best score; None where
            that is not known.
        by_columns: whether each factor is scored as if it were alone, so that all shuffles can
            be scored at once, as further factors.
        note: the way in which it differs from others of its name, to be shown with it; or empty.
    """

    label: str
    description: str
    measure: Measure
    shuffles: int = 20
    lowest: float = 0.0
    best: Callable[[float], float] | None = None
    by_columns: bool = False
    note: str = ""

    def chance(self, z: Float64, codes: Float64, options: Options) -> Float64:
        """Score pairs of factors and codes that are shuffled, `shuffles` times."""
        generator = np.random.default_rng([options.seed, 0])
        shuffled = [z[generator.permutation(len(z))] for _ in range(self.shuffles)]
        if not self.by_columns:
            return np.array([self.measure(each, codes, options).value for each in shuffled])
        together = self.measure(np.concatenate(shuffled, 1), codes, options).per_factor
        assert together is not None
        return mean_of_varying(together.reshape(self.shuffles, -1))


def _same(best_r2: float) -> float:
    return best_r2


def _r2(
    label: str, description: str, measure: Measure, shuffles: int = 20, by_columns: bool = True
) -> Metric:
    return Metric(
        label,
        description,
        measure,
        shuffles,
        lowest=-math.inf,
        best=_same,
        by_columns=by_columns,
    )


#: By name. The largest correlation of a factor with any function of the image is the root of
#: the largest R2 (Renyi 1959), hence the best of the Pearson correlations.
METRICS: dict[str, Metric] = {
    "linear_r2": _r2(
        "R2",
        "linear regression from codes to factors, on the other half",
        lambda z, c, o: linear_r2(z, c, folds=o.folds),
    ),
    "adjusted_r2": _r2(
        "adjusted R2",
        "linear regression, in-sample, corrected for the number of codes",
        lambda z, c, o: linear_r2(z, c, folds="in-sample", adjusted=True),
    ),
    "kernel_r2": _r2(
        "kernel R2",
        "kernel ridge regression from codes to factors",
        lambda z, c, o: nonlinear_r2(z, c, folds=o.held_out),
        shuffles=2,
    ),
    "mlp_r2": _r2(
        "MLP R2",
        "a small neural network from codes to factors",
        lambda z, c, o: nonlinear_r2(z, c, regressor="mlp", folds=o.held_out, seed=o.seed),
        shuffles=2,
        by_columns=False,
    ),
    "mcc": Metric(
        "MCC",
        "mean correlation of factors with a code each",
        lambda z, c, o: mcc(z, c),
        best=math.sqrt,
    ),
    "mcc_spearman": Metric(
        "MCC (Spearman)",
        "the same with rank correlations",
        lambda z, c, o: mcc(z, c, correlation="spearman"),
    ),
    "mcc_aligned": Metric(
        "MCC (aligned)",
        "the same after a linear map fitted on the other half",
        lambda z, c, o: mcc(z, c, aligned=True),
        best=math.sqrt,
    ),
    "mcc_noise_padded": Metric(
        "MCC (noise-padded)",
        "the same with the factors padded by noise to the number of codes",
        lambda z, c, o: mcc(z, c, noise_padded=True, seed=o.seed),
        best=math.sqrt,
    ),
    "block_r2": _r2(
        "block R2",
        "linear R2 from blocks of codes to groups of factors",
        lambda z, c, o: block_r2(z, c, o.factor_blocks, o.code_blocks, folds=o.folds),
        by_columns=False,
    ),
    "block_kernel_r2": _r2(
        "block kernel R2",
        "kernel ridge R2 from blocks of codes to groups of factors",
        lambda z, c, o: block_r2(
            z, c, o.factor_blocks, o.code_blocks, kernel=True, folds=o.held_out
        ),
        shuffles=2,
        by_columns=False,
    ),
    "dci": Metric(
        "DCI",
        "disentanglement, completeness and informativeness",
        lambda z, c, o: dci(z, c, folds=o.held_out, seed=o.seed),
        shuffles=2,
        note="not as in most of the literature: importances are by permutation of held-out rows, "
        "and completeness is a plain mean over factors. `metrics.dci(z, z_hat, "
        "importance='fit')` takes the importances of the fit; docs/scores.md has the rest",
    ),
    "mig": Metric("MIG", "mutual information gap", lambda z, c, o: mig(z, c)),
    "sap": Metric("SAP", "separated attribute predictability", lambda z, c, o: sap(z, c)),
    "modularity": Metric(
        "modularity", "does a code tell of one factor only", lambda z, c, o: modularity(z, c)
    ),
    "explicitness": Metric(
        "explicitness",
        "can a linear classifier read the factors",
        lambda z, c, o: explicitness(z, c, folds=o.held_out),
        shuffles=3,
        lowest=-1.0,
    ),
}
DEFAULT_METRICS = ("linear_r2", "mcc")


def check_metrics(names: Sequence[str]) -> None:
    """Refuse names that are no metrics, before an hour of inference.

    Raises:
        UsageError: there is none, or one is unknown.
    """
    if isinstance(names, str) or not names:
        raise UsageError(f"metrics must name some of {', '.join(METRICS)}, found {names!r}")
    for name in names:
        if name not in METRICS:
            raise UsageError(f"unknown metric {name!r}: expected some of {', '.join(METRICS)}")
