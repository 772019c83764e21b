"""All scores of one encoder, each with an interval, what chance gives, and what is possible."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from threedident.errors import UsageError
from threedident.evaluate.assumptions import CODES, Warning_, check_assumptions
from threedident.evaluate.metrics import _dci as disentanglement
from threedident.evaluate.metrics import _r2 as metrics
from threedident.evaluate.metrics._arrays import Float64, checked, mean_of_varying
from threedident.evaluate.metrics._bootstrap import Measured, Replicates, Score, bootstrap, interval
from threedident.evaluate.metrics._kernel_ridge import MOST_SAMPLES, sklearn_part
from threedident.evaluate.metrics._linear_fit import FOLDS, LOWEST, Folds
from threedident.factors import FACTORS

__all__ = [
    "CODES",
    "DEFAULT_METRICS",
    "METRICS",
    "Evaluation",
    "Metric",
    "Scored",
    "Warning_",
    "score",
]

CONFIDENCE = 0.95
_LEAST_SAMPLES = 8
_LEAST_REPLICATES = 100
#: Significant digits in JSON, of numbers and of the entries of arrays.
_DIGITS, _ARRAY_DIGITS = 10, 6


@dataclasses.dataclass(frozen=True)
class Options:
    """What a metric may need besides its arrays."""

    folds: Folds
    seed: int
    factor_blocks: Mapping[str, Sequence[int]]
    code_blocks: Mapping[str, Sequence[int]]

    @property
    def held_out(self) -> Folds:
        """The folds of metrics that must not score the rows that they fit."""
        return 2 if self.folds == "in-sample" else self.folds


@dataclasses.dataclass(frozen=True)
class Metric:
    """How a name on the command line is computed.

    Attributes:
        label: how tables head it.
        description: one line.
        measure: from factors, codes and options.
        shuffles: how often chance is tried; few where a metric takes seconds.
        lowest: the least it can be.
        best: from the best possible R2 of a factor to the best score; None where that is
            not known.
        by_columns: each factor is scored as if it were alone, so that all shuffles can be
            scored at once, as further factors.
        note: in what it differs from what others call so, for where it is shown; else empty.
    """

    label: str
    description: str
    measure: Callable[[Float64, Float64, Options], Measured]
    shuffles: int = 20
    lowest: float = 0.0
    best: Callable[[float], float] | None = None
    by_columns: bool = False
    note: str = ""

    def chance(self, z: Float64, codes: Float64, options: Options) -> Float64:
        """The scores of shuffled pairs."""
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
    label: str, description: str, measure: Any, shuffles: int = 20, by_columns: bool = True
) -> Metric:
    return Metric(label, description, measure, shuffles, -math.inf, _same, by_columns)


#: By name. The largest correlation of a factor with any function of the image is the root of
#: the largest R2 (Renyi 1959), hence the best of the Pearson correlations.
METRICS: dict[str, Metric] = {
    "linear_r2": _r2(
        "R2",
        "linear regression from codes to factors, on the other half",
        lambda z, c, o: metrics.linear_r2(z, c, folds=o.folds),
    ),
    "adjusted_r2": _r2(
        "adjusted R2",
        "linear regression, in-sample, corrected for the number of codes",
        lambda z, c, o: metrics.linear_r2(z, c, folds="in-sample", adjusted=True),
    ),
    "kernel_r2": _r2(
        "kernel R2",
        "kernel ridge regression from codes to factors",
        lambda z, c, o: metrics.nonlinear_r2(z, c, folds=o.held_out),
        2,
    ),
    "mlp_r2": _r2(
        "MLP R2",
        "a small neural network from codes to factors",
        lambda z, c, o: metrics.nonlinear_r2(z, c, regressor="mlp", folds=o.held_out, seed=o.seed),
        2,
        by_columns=False,
    ),
    "mcc": Metric(
        "MCC",
        "mean correlation of factors with a code each",
        lambda z, c, o: metrics.mcc(z, c),
        best=math.sqrt,
    ),
    "mcc_spearman": Metric(
        "MCC (Spearman)",
        "the same with rank correlations",
        lambda z, c, o: metrics.mcc(z, c, correlation="spearman"),
    ),
    "mcc_aligned": Metric(
        "MCC (aligned)",
        "the same after a linear map fitted on the other half",
        lambda z, c, o: metrics.mcc(z, c, aligned=True),
        best=math.sqrt,
    ),
    "mcc_noise_padded": Metric(
        "MCC (noise-padded)",
        "the same with the factors padded by noise to the number of codes",
        lambda z, c, o: metrics.mcc(z, c, noise_padded=True, seed=o.seed),
        best=math.sqrt,
    ),
    "block_r2": _r2(
        "block R2",
        "linear R2 from blocks of codes to groups of factors",
        lambda z, c, o: metrics.block_r2(z, c, o.factor_blocks, o.code_blocks, folds=o.folds),
        by_columns=False,
    ),
    "block_kernel_r2": _r2(
        "block kernel R2",
        "kernel ridge R2 from blocks of codes to groups of factors",
        lambda z, c, o: metrics.block_r2(
            z, c, o.factor_blocks, o.code_blocks, kernel=True, folds=o.held_out
        ),
        2,
        by_columns=False,
    ),
    "dci": Metric(
        "DCI",
        "disentanglement, completeness and informativeness",
        lambda z, c, o: disentanglement.dci(z, c, folds=o.held_out, seed=o.seed),
        2,
        note="not as in most of the literature: importances are by permutation of held-out rows, "
        "and completeness is a plain mean over factors. `disentanglement.dci(z, z_hat, "
        "importance='fit')` takes the importances of the fit; docs/scores.md has the rest",
    ),
    "mig": Metric("MIG", "mutual information gap", lambda z, c, o: disentanglement.mig(z, c)),
    "sap": Metric(
        "SAP", "separated attribute predictability", lambda z, c, o: disentanglement.sap(z, c)
    ),
    "modularity": Metric(
        "modularity",
        "does a code tell of one factor only",
        lambda z, c, o: disentanglement.modularity(z, c),
    ),
    "explicitness": Metric(
        "explicitness",
        "can a linear classifier read the factors",
        lambda z, c, o: disentanglement.explicitness(z, c, folds=o.held_out),
        3,
        -1.0,
    ),
}
DEFAULT_METRICS = ("linear_r2", "mcc")


@dataclasses.dataclass(frozen=True)
class Scored:
    """A score and what to hold it against.

    Attributes:
        score: itself.
        interval: 95 %, of the value; None without a bootstrap.
        per_factor_interval: (2, n), or None.
        part_intervals: of numbers among the parts.
        chance: the mean of the same score over shuffled pairs.
        chance_interval: the smallest and the largest of them.
        best: the best possible score per factor, where it is known.
        share: of it reached, per factor.
    """

    score: Score
    interval: tuple[float, float] | None
    per_factor_interval: Float64 | None
    part_intervals: Mapping[str, tuple[float, float]]
    chance: float
    chance_interval: tuple[float, float]
    best: Mapping[str, float] | None = None
    share: Mapping[str, float] | None = None

    def as_dict(self, factors: Sequence[str]) -> dict[str, Any]:
        """Plain data for JSON; null for what is not a number."""
        intervals = self.per_factor_interval
        per_factor = self.score.per_factor
        parts = {
            **self.score.parts,
            **{f"{name}_interval": ends for name, ends in self.part_intervals.items()},
        }
        return {
            "value": _plain(self.score.value),
            "interval": _plain(self.interval),
            "chance": _plain(self.chance),
            "chance_interval": _plain(self.chance_interval),
            "per_factor": None if per_factor is None else _named(factors, per_factor),
            "per_factor_interval": None if intervals is None else _named(factors, intervals.T),
            "best_per_factor": _plain(self.best),
            "share_of_best": _plain(self.share),
            "parts": _plain(parts),
            "choices": _plain(self.score.choices),
        }


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """All scores of one encoder.

    Attributes:
        scores: by the metric's name.
        warnings: assumptions that do not hold.
        settings: how it was scored, as plain data.
        factors: names of the factors.
    """

    scores: Mapping[str, Scored]
    warnings: tuple[Warning_, ...]
    settings: Mapping[str, Any]
    factors: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The parts "settings", "scores" and "warnings" of scores.json."""
        return {
            "settings": dict(self.settings),
            "scores": {name: each.as_dict(self.factors) for name, each in self.scores.items()},
            "warnings": [dataclasses.asdict(warning) for warning in self.warnings],
        }


def score(
    z: Any,
    z_hat: Any,
    *,
    factors: Sequence[str],
    metrics: Sequence[str] = DEFAULT_METRICS,
    best_r2: Mapping[str, float] | None = None,
    not_injective: Sequence[str] = (),
    folds: Folds = 2,
    bootstrap: int = 1000,
    seed: int = 0,
    factor_blocks: Mapping[str, Sequence[int]] | None = None,
    code_blocks: Mapping[str, Sequence[int]] | None = None,
) -> Evaluation:
    """Scores codes against the true factors.

    Args:
        z: (N, n), true latents; rows in random order.
        z_hat: (N, m), recovered latents of the same samples.
        factors: names of the n factors.
        metrics: names from `METRICS`.
        best_r2: the best R2 that any encoder can reach, by factor, where it is known.
        not_injective: why the generator is not injective, a line a reason.
        folds: 2, "single" or "in-sample", of the linear R2. Metrics that fit something flexible
            hold rows out in any case.
        bootstrap: replicates of every score, or 0 for no intervals.
        seed: of everything random.
        factor_blocks: columns of z by name, for the block metrics; None: the groups of factors.
        code_blocks: columns of z_hat by name; None: all codes in one block.

    Returns:
        The same for the same arguments, to the last digit in JSON: one thread does the sums.

    Raises:
        UsageError: an argument does not fit.
    """
    true, codes = checked(z, z_hat, _LEAST_SAMPLES)
    names = tuple(factors)
    _check_arguments(names, true.shape[1], metrics, folds, bootstrap, seed)
    options = Options(
        folds,
        seed,
        factor_blocks or _groups(names),
        code_blocks or {"all": range(codes.shape[1])},
    )
    with _one_thread():
        scores = {
            name: _scored(METRICS[name], true, codes, names, options, bootstrap, best_r2)
            for name in dict.fromkeys(metrics)
        }
        warnings = check_assumptions(
            true,
            codes,
            factors=names,
            metrics=scores,
            folds=folds,
            not_injective=not_injective,
            best_known=bool(best_r2),
        )
    undefined = [name for name, each in scores.items() if not math.isfinite(each.score.value)]
    if undefined:
        warnings += (
            Warning_(
                "undefined_score",
                f"{', '.join(undefined)}: no number with these samples; use a larger test set",
            ),
        )
    warnings += tuple(_floored(scores, names))
    settings = {
        "samples": len(true),
        "factors": list(names),
        "codes": codes.shape[1],
        "folds": folds,
        "bootstrap": bootstrap,
        "confidence": CONFIDENCE,
        "interval": "percentiles of the bootstrap, their median moved to the score",
        "most_samples_of_slow_metrics": MOST_SAMPLES,
        "shuffles": {name: METRICS[name].shuffles for name in scores},
        "seed": seed,
    }
    return Evaluation(scores, warnings, settings, names)


def _check_arguments(
    factors: Sequence[str], count: int, names: Sequence[str], folds: Folds, draws: int, seed: int
) -> None:
    if len(factors) != count or len(set(factors)) != count:
        raise UsageError(
            f"expected {count} different names, one for each factor of z, found {list(factors)}"
        )
    if isinstance(names, str) or not names:
        raise UsageError(f"metrics must name some of {', '.join(METRICS)}, found {names!r}")
    for name in names:
        if name not in METRICS:
            raise UsageError(f"unknown metric {name!r}: expected some of {', '.join(METRICS)}")
    if folds not in FOLDS:
        raise UsageError(f"folds must be one of {', '.join(map(repr, FOLDS))}, found {folds!r}")
    if draws != 0 and draws < _LEAST_REPLICATES:
        raise UsageError(
            f"bootstrap must be 0 (no intervals) or at least {_LEAST_REPLICATES}, found {draws}"
        )
    if not 0 <= seed < 2**64:
        raise UsageError(f"the seed must lie in [0, 2^64), found {seed}")


def _groups(names: Sequence[str]) -> dict[str, list[int]]:
    """Columns by group of the factor table; a name that is not in it is a group of its own."""
    of = {factor.name: factor.group for factor in FACTORS}
    found: dict[str, list[int]] = {}
    for column, name in enumerate(names):
        found.setdefault(of.get(name, name), []).append(column)
    return found


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Sums on one thread: their last digits depend on how many share them."""
    sklearn_part("utils")  # loads the libraries whose threads are to be limited
    import threadpoolctl

    with threadpoolctl.threadpool_limits(1):
        yield


def _scored(
    metric: Metric,
    z: Float64,
    codes: Float64,
    names: Sequence[str],
    options: Options,
    draws: int,
    best_r2: Mapping[str, float] | None,
) -> Scored:
    measured = metric.measure(z, codes, options)
    drawn = bootstrap(measured, draws, options.seed) if draws else None
    ends = functools.partial(interval, lowest=metric.lowest, confidence=CONFIDENCE)
    chance = metric.chance(z, codes, options)
    best, share = _possible(metric, measured.per_factor, names, best_r2)
    return Scored(
        measured.plain(),
        None if drawn is None else _pair(ends(drawn.value, measured.value)),
        _per_factor_interval(drawn, measured, ends),
        {}
        if drawn is None
        else {
            name: _pair(ends(values, measured.parts[name])) for name, values in drawn.parts.items()
        },
        float(np.mean(chance)),
        (float(chance.min()), float(chance.max())),
        best,
        share,
    )


def _floored(scores: Mapping[str, Scored], names: Sequence[str]) -> Iterator[Warning_]:
    """A warning of R2s that were cut off, which says where they enter a mean."""
    found = [
        f"{metric} of {name}"
        for metric, each in scores.items()
        if METRICS[metric].lowest == -math.inf and each.score.per_factor is not None
        for name, value in zip(names, each.score.per_factor.tolist(), strict=True)
        if value <= LOWEST / 2  # in one of two folds at least
    ]
    if found:
        yield Warning_(
            "floored_r2",
            f"{', '.join(found[:5])}{' and more' if len(found) > 5 else ''}: an R2 ends at "
            f"{LOWEST:g}, which enters the mean over factors and says nothing. The codes of some "
            "rows lie far outside of those that the regression was fitted on",
        )


def _pair(ends: Float64) -> tuple[float, float]:
    return float(ends[0]), float(ends[1])


def _per_factor_interval(
    drawn: Replicates | None, measured: Measured, ends: Callable[..., Float64]
) -> Float64 | None:
    if drawn is None or drawn.per_factor is None or measured.per_factor is None:
        return None
    return ends(drawn.per_factor, measured.per_factor)


def _possible(
    metric: Metric,
    per_factor: Float64 | None,
    names: Sequence[str],
    best_r2: Mapping[str, float] | None,
) -> tuple[dict[str, float] | None, dict[str, float] | None]:
    """The best possible score by factor, and the share of it reached."""
    if metric.best is None or per_factor is None or not best_r2:
        return None, None
    best = {name: metric.best(best_r2[name]) for name in names if name in best_r2}
    reached = {
        name: value / best[name]
        for name, value in zip(names, per_factor.tolist(), strict=True)
        if best.get(name)
    }
    return best, reached


def _rounded(number: float, digits: int) -> float | None:
    """A number of so many significant digits, None for what JSON cannot hold."""
    return float(f"{number:.{digits}g}") + 0.0 if math.isfinite(number) else None


def _plain(value: Any, digits: int = _DIGITS) -> Any:
    """Data for JSON: arrays as lists, numbers rounded, null for what is not a number."""
    match value:
        case np.ndarray():
            return _plain(value.tolist(), _ARRAY_DIGITS if value.ndim > 1 else digits)
        case Mapping():
            return {str(name): _plain(each, digits) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each, digits) for each in value]
        case bool() | str() | None:
            return value
        case int() | np.integer():
            return int(value)
    return _rounded(float(value), digits)


def _named(names: Sequence[str], values: Float64) -> dict[str, Any]:
    return dict(zip(names, _plain(list(values)), strict=True))
