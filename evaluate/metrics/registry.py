"""`METRICS`: how each name on the command line is computed, shown and tried by chance."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from threedident.errors import UsageError
from threedident.evaluate.metrics._accuracy import accuracy
from threedident.evaluate.metrics._arrays import Bools, Float64, mean_of_varying
from threedident.evaluate.metrics._beta_vae import beta_vae_score
from threedident.evaluate.metrics._beyond_parents import Parents, r2_beyond_parents
from threedident.evaluate.metrics._block_r2 import block_r2
from threedident.evaluate.metrics._dci import dci
from threedident.evaluate.metrics._dci_discrete import dci_discrete
from threedident.evaluate.metrics._explicitness import explicitness
from threedident.evaluate.metrics._factor_vae import factor_vae_score
from threedident.evaluate.metrics._infomec import infomec
from threedident.evaluate.metrics._kinds import NAMES as KINDS
from threedident.evaluate.metrics._kinds import Kind
from threedident.evaluate.metrics._linear_fit import Folds
from threedident.evaluate.metrics._linear_r2 import linear_r2
from threedident.evaluate.metrics._mcc import mcc
from threedident.evaluate.metrics._mig import mig, mig_discrete
from threedident.evaluate.metrics._modularity import modularity, modularity_discrete
from threedident.evaluate.metrics._nonlinear_r2 import nonlinear_r2
from threedident.evaluate.metrics._result import MetricResult
from threedident.evaluate.metrics._sap import sap
from threedident.evaluate.metrics._sap_discrete import sap_discrete
from threedident.evaluate.metrics._values import LEAST_ROWS


@dataclasses.dataclass(frozen=True)
class Options:
    """The options that a metric may need besides its arrays.

    Attributes:
        folds: the rows to fit on and to score, of the linear R2.
        seed: the seed for all random numbers.
        factor_blocks: columns of z by name.
        code_blocks: columns of z_hat by name.
        kinds: the kind of each factor; None: all continuous.
        parents: the columns of z that are each factor's parents; None where nobody says.
    """

    folds: Folds
    seed: int
    factor_blocks: Mapping[str, Sequence[int]]
    code_blocks: Mapping[str, Sequence[int]]
    kinds: tuple[Kind, ...] | None = None
    parents: Parents | None = None

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
        lowest_of_parts: those of parts whose bound is another, by name.
        best: the function from the best possible R2 of a factor to the best score; None where
            that is not known.
        by_columns: whether each factor is scored as if it were alone, so that all shuffles can
            be scored at once, as further factors.
        note: the way in which it differs from others of its name, to be shown with it; or empty.
        kinds: the kinds of factors that it scores; others are left out.
        least: the least number of factors that it can score.
        needs_parents: whether it scores factors by their parents.
        needs_values: whether it looks at each value of a factor by itself, so that values must
            come again, as on a grid.
    """

    label: str
    description: str
    measure: Measure
    shuffles: int = 20
    lowest: float = 0.0
    lowest_of_parts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    best: Callable[[float], float] | None = None
    by_columns: bool = False
    note: str = ""
    kinds: tuple[str, ...] = KINDS
    least: int = 1
    needs_parents: bool = False
    needs_values: bool = False

    def score(self, z: Float64, codes: Float64, options: Options) -> MetricResult:
        """Score codes (N, m) against those factors of z (N, n) that are of its kinds."""
        kinds = options.kinds or ()
        others = [i for i, kind in enumerate(kinds) if kind.name not in self.kinds]
        if not others:
            return self.measure(z, codes, options)
        held = z.copy(order="F")
        held[:, others] = 0  # a factor that does not vary is left out everywhere
        result = self.measure(held, codes, options)
        still = result.choices.get("constant_factors_left_out", ())
        choices = {
            **result.choices,
            "constant_factors_left_out": [i for i in still if i not in others],
            "other_kinds_left_out": others,
        }
        return dataclasses.replace(result, choices=choices)

    def why_not(
        self,
        kinds: Sequence[Kind] | None,
        moves: Bools,
        parents: Parents | None,
        recur: Bools | None = None,
    ) -> str | None:
        """Say why it cannot score such factors; None where it can.

        Args:
            kinds: the kind of each factor; None: all continuous.
            moves: (n,), which factors vary.
            parents: each factor's parents; None where nobody says.
            recur: (n,), of which factors the values come again; None: of none.
        """
        names = [kind.name for kind in kinds or [Kind()] * len(moves)]
        own = sum(bool(m) and name in self.kinds for name, m in zip(names, moves, strict=True))
        if own < self.least:
            which = " or ".join(self.kinds) + " " if len(self.kinds) < len(KINDS) else ""
            return f"it scores {self.least} or more {which}factors that vary, found {own}"
        if self.needs_parents and not any(parents or ()):
            return (
                "it needs factors that have parents, as those of a causal model have"
                if parents is None
                else "no factor has a parent among those that are scored"
            )
        if self.needs_values and (recur is None or not (recur | ~moves).all()):
            return (
                "it looks at each value of a factor by itself, and needs images of a grid, with "
                f"{LEAST_ROWS} or more to a value, such as those of dSprites or drawn:sprites"
            )
        return None

    def chance(self, z: Float64, codes: Float64, options: Options) -> Float64:
        """Score pairs of factors and codes that are shuffled, `shuffles` times."""
        generator = np.random.default_rng([options.seed, 0])
        shuffled = [z[generator.permutation(len(z))] for _ in range(self.shuffles)]
        if not self.by_columns:
            return np.array([self.score(each, codes, options).value for each in shuffled])
        kinds = None if options.kinds is None else options.kinds * self.shuffles
        repeated = dataclasses.replace(options, kinds=kinds)
        together = self.score(np.concatenate(shuffled, 1), codes, repeated).per_factor
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


NUMBERS = ("continuous",)  # metrics that compare a code with a factor as two numbers

#: By name. The largest correlation of a factor with any function of the image is the root of
#: the largest R2 (Renyi 1959), hence the best of the Pearson correlations.
METRICS: dict[str, Metric] = {
    "linear_r2": _r2(
        "R2",
        "linear regression from codes to factors, on the other half",
        lambda z, c, o: linear_r2(z, c, folds=o.folds, kinds=o.kinds),
    ),
    "adjusted_r2": _r2(
        "adjusted R2",
        "linear regression, in-sample, corrected for the number of codes",
        lambda z, c, o: linear_r2(z, c, folds="in-sample", adjusted=True, kinds=o.kinds),
    ),
    "kernel_r2": _r2(
        "kernel R2",
        "kernel ridge regression from codes to factors",
        lambda z, c, o: nonlinear_r2(z, c, folds=o.held_out, kinds=o.kinds),
        shuffles=2,
    ),
    "mlp_r2": _r2(
        "MLP R2",
        "a small neural network from codes to factors",
        lambda z, c, o: nonlinear_r2(
            z, c, regressor="mlp", folds=o.held_out, seed=o.seed, kinds=o.kinds
        ),
        shuffles=2,
        by_columns=False,
    ),
    "r2_beyond_parents": Metric(
        "R2 beyond parents",
        "the share of what a factor's parents leave open that the codes explain",
        lambda z, c, o: r2_beyond_parents(
            z, c, o.parents or [()] * z.shape[1], kinds=o.kinds, folds=o.held_out
        ),
        shuffles=2,
        lowest=-math.inf,
        needs_parents=True,
    ),
    "accuracy": Metric(
        "accuracy",
        "a linear classifier from codes to discrete factors, all classes counting alike",
        lambda z, c, o: accuracy(z, c, kinds=o.kinds, folds=o.held_out),
        shuffles=3,
        lowest_of_parts={"normalised": -1.0},
        kinds=("discrete",),
    ),
    "kernel_accuracy": Metric(
        "kernel accuracy",
        "kernel ridge regression from codes to discrete factors, all classes counting alike",
        lambda z, c, o: accuracy(z, c, kinds=o.kinds, classifier="kernel", folds=o.held_out),
        shuffles=2,
        lowest_of_parts={"normalised": -1.0},
        kinds=("discrete",),
    ),
    "mcc": Metric(
        "MCC",
        "mean correlation of factors with a code each",
        lambda z, c, o: mcc(z, c),
        best=math.sqrt,
        kinds=NUMBERS,
    ),
    "mcc_spearman": Metric(
        "MCC (Spearman)",
        "the same with rank correlations",
        lambda z, c, o: mcc(z, c, correlation="spearman"),
        kinds=NUMBERS,
    ),
    "mcc_aligned": Metric(
        "MCC (aligned)",
        "the same after a linear map fitted on the other half",
        lambda z, c, o: mcc(z, c, aligned=True),
        best=math.sqrt,
        kinds=NUMBERS,
    ),
    "mcc_noise_padded": Metric(
        "MCC (noise-padded)",
        "the same with the factors padded by noise to the number of codes",
        lambda z, c, o: mcc(z, c, noise_padded=True, seed=o.seed),
        best=math.sqrt,
        kinds=NUMBERS,
    ),
    "block_r2": _r2(
        "block R2",
        "linear R2 from blocks of codes to groups of factors",
        lambda z, c, o: block_r2(
            z, c, o.factor_blocks, o.code_blocks, folds=o.folds, kinds=o.kinds
        ),
        by_columns=False,
    ),
    "block_kernel_r2": _r2(
        "block kernel R2",
        "kernel ridge R2 from blocks of codes to groups of factors",
        lambda z, c, o: block_r2(
            z, c, o.factor_blocks, o.code_blocks, kernel=True, folds=o.held_out, kinds=o.kinds
        ),
        shuffles=2,
        by_columns=False,
    ),
    "dci": Metric(
        "DCI",
        "disentanglement, completeness and informativeness",
        lambda z, c, o: dci(z, c, folds=o.held_out, seed=o.seed),
        shuffles=2,
        kinds=NUMBERS,
        least=2,
        lowest_of_parts={"informativeness": -math.inf},
        note="not as in most of the literature: importances are by permutation of held-out rows, "
        "and completeness is a plain mean over factors. `metrics.dci(z, z_hat, "
        "importance='fit')` takes the importances of the fit; docs/scores.md has the rest",
    ),
    "mig": Metric("MIG", "mutual information gap", lambda z, c, o: mig(z, c, kinds=o.kinds)),
    "sap": Metric(
        "SAP", "separated attribute predictability", lambda z, c, o: sap(z, c), kinds=NUMBERS
    ),
    "modularity": Metric(
        "modularity",
        "does a code tell of one factor only",
        lambda z, c, o: modularity(z, c, kinds=o.kinds),
        least=2,
    ),
    "explicitness": Metric(
        "explicitness",
        "can a linear classifier read the factors",
        lambda z, c, o: explicitness(z, c, folds=o.held_out),
        shuffles=3,
        lowest=-1.0,
        kinds=("continuous", "circular"),
    ),
    "mcc_spearman_noise_padded": Metric(
        "MCC (Spearman, noise-padded)",
        "rank correlations, the factors padded by noise: that of KITTI Masks; classes are numbers",
        lambda z, c, o: mcc(z, c, correlation="spearman", noise_padded=True, seed=o.seed),
    ),
    "beta_vae": Metric(
        "BetaVAE",
        "a linear classifier of which factor pairs share, from differences of codes",
        lambda z, c, o: beta_vae_score(z, c, seed=o.seed),
        shuffles=2,
        least=2,
        needs_values=True,
        note="depends on the scale of codes: `parts` has the accuracy with standardised features",
    ),
    "factor_vae": Metric(
        "FactorVAE",
        "which factor images share, told by the code that varies least over them",
        lambda z, c, o: factor_vae_score(z, c, seed=o.seed),
        shuffles=2,
        least=2,
        needs_values=True,
        note="codes vote whose standard deviation is at least 5 % of the largest; as published, "
        "at least 0.05: `metrics.factor_vae_score(z, z_hat, thresholds='absolute')`",
    ),
    "mig_discrete": Metric(
        "MIG (discrete)",
        "mutual information gap, the factors' values as classes",
        lambda z, c, o: mig_discrete(z, c),
        needs_values=True,
    ),
    "dci_discrete": Metric(
        "DCI (discrete)",
        "disentanglement, by boosted classifiers of the factors' values",
        lambda z, c, o: dci_discrete(z, c, seed=o.seed),
        shuffles=1,
        least=2,
        needs_values=True,
    ),
    "sap_discrete": Metric(
        "SAP (discrete)",
        "separated attribute predictability, by linear classifiers of the factors' values",
        lambda z, c, o: sap_discrete(z, c, seed=o.seed),
        shuffles=3,
        needs_values=True,
    ),
    "modularity_discrete": Metric(
        "modularity (discrete)",
        "does a code tell of one factor only, the factors' values as classes",
        lambda z, c, o: modularity_discrete(z, c),
        least=2,
        needs_values=True,
    ),
    "infomec": Metric(
        "InfoM",
        "does a code tell of one factor only, by information; with InfoE and InfoC",
        lambda z, c, o: infomec(z, c, kinds=o.kinds, folds=o.held_out, seed=o.seed),
        shuffles=2,
        least=2,
    ),
}
DEFAULT_METRICS = ("linear_r2", "mcc")
#: Also computed where nobody chooses metrics and they can be.
CAUSAL_METRICS = ("r2_beyond_parents", "accuracy")


def default_metrics(
    kinds: Sequence[Kind] | None,
    moves: Bools,
    parents: Parents | None,
    recur: Bools | None = None,
) -> tuple[str, ...]:
    """Return the metrics of factors for which nobody chose any; see `Metric.why_not`."""
    names = (*DEFAULT_METRICS, *CAUSAL_METRICS)
    about = kinds, moves, parents, recur
    fit = tuple(name for name in names if METRICS[name].why_not(*about) is None)
    return fit or DEFAULT_METRICS


def all_metrics(
    kinds: Sequence[Kind] | None,
    moves: Bools,
    parents: Parents | None,
    recur: Bools | None = None,
) -> tuple[str, ...]:
    """Return all metrics that can score such factors; see `Metric.why_not`."""
    about = kinds, moves, parents, recur
    return tuple(name for name, metric in METRICS.items() if metric.why_not(*about) is None)


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


def check_metrics_fit(
    names: Sequence[str],
    kinds: Sequence[Kind] | None,
    moves: Bools,
    parents: Parents | None,
    recur: Bools | None = None,
) -> None:
    """Refuse metrics that cannot score such factors, by their kinds or values or want of parents.

    Raises:
        UsageError: one cannot.
    """
    for name in names:
        metric = METRICS[name]
        reason = metric.why_not(kinds, moves, parents, recur)
        needs_more = metric.needs_parents or metric.needs_values or metric.kinds == ("discrete",)
        if reason and (kinds is not None or needs_more):
            raise UsageError(f"metric {name} cannot be computed here: {reason}. Leave it out")
