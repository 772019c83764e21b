"""`score`: all scores of codes, each with an interval, what chance gives, and what is possible."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from threedident.defaults import BOOTSTRAP
from threedident.errors import UsageError
from threedident.evaluate.assumptions import ScoreWarning, check_assumptions
from threedident.evaluate.metric_report import Interval, MetricReport
from threedident.evaluate.metrics import MetricResult
from threedident.evaluate.metrics._arrays import Float64, checked, varying
from threedident.evaluate.metrics._bootstrap import bootstrap as bootstrapped
from threedident.evaluate.metrics._bootstrap import interval
from threedident.evaluate.metrics._kernel_ridge import MOST_SAMPLES, sklearn_part
from threedident.evaluate.metrics._kinds import Kind, Kinds, as_kinds
from threedident.evaluate.metrics._linear_fit import FOLDS, LOWEST, Folds
from threedident.evaluate.metrics._values import recurring
from threedident.evaluate.metrics.registry import (
    DEFAULT_METRICS,
    METRICS,
    Metric,
    Options,
    check_metrics,
    check_metrics_fit,
)
from threedident.factors import FACTORS

__all__ = ["DEFAULT_METRICS", "METRICS", "Metric", "Options", "ScoringResult", "score"]

CONFIDENCE = 0.95
_LEAST_SAMPLES = 8
_LEAST_REPLICATES = 100
_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class ScoringResult:
    """All scores of one encoder's codes.

    Attributes:
        scores: reports by the metric's name.
        warnings: assumptions that do not hold.
        settings: the settings of the metrics, as plain data.
        factors: names of the factors.
    """

    scores: Mapping[str, MetricReport]
    warnings: tuple[ScoreWarning, ...]
    settings: Mapping[str, Any]
    factors: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the parts "settings", "scores" and "warnings" of scores.json."""
        return {
            "settings": dict(self.settings),
            "scores": {name: report.as_dict() for name, report in self.scores.items()},
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
    bootstrap: int = BOOTSTRAP,
    seed: int = 0,
    factor_blocks: Mapping[str, Sequence[int]] | None = None,
    code_blocks: Mapping[str, Sequence[int]] | None = None,
    kinds: Kinds = None,
    parents: Mapping[str, Sequence[str]] | None = None,
) -> ScoringResult:
    """Score codes against the true factors.

    The same arguments give the same scores, to the last digit in JSON: one thread does the sums.

    Args:
        z: (N, n), the true latents; rows in random order.
        z_hat: (N, m), the recovered latents of the same samples.
        factors: names of the n factors.
        metrics: names from `METRICS`.
        best_r2: the best R2 that any encoder can reach, by factor, where it is known.
        not_injective: the reasons why the generator is not injective, a line each.
        folds: the folds of the linear R2: 2, "single" or "in-sample". Metrics that fit something
            flexible hold rows out in any case.
        bootstrap: the number of replicates of every score, or 0 for no intervals.
        seed: the seed for all random numbers.
        factor_blocks: columns of z by name, for the block metrics; None: the groups of factors.
        code_blocks: columns of z_hat by name; None: all codes in one block.
        kinds: the kind of each factor, "continuous", "circular", "discrete" or a `Kind`; None:
            all continuous.
        parents: the factors that are parents of each factor, by name, for R2 beyond parents; a
            factor that is not named has none. None where nobody says.

    Returns:
        A report for every metric, warnings, and the settings.

    Raises:
        UsageError: an argument does not fit.

    Examples:
        >>> import numpy as np
        >>> z = np.random.default_rng(0).uniform(-1, 1, (1000, 2))
        >>> found = score(z, z[:, ::-1], factors=["x", "y"], metrics=["mcc"])
        >>> round(found.scores["mcc"].value, 3), [w.code for w in found.warnings]
        (1.0, [])
    """
    true, codes = checked(z, z_hat, _LEAST_SAMPLES)
    names = tuple(factors)
    _check_arguments(names, true.shape[1], metrics, folds, bootstrap, seed)
    blocks = factor_blocks or _groups(names), code_blocks or {"all": range(codes.shape[1])}
    own = None if kinds is None else as_kinds(kinds, len(names))
    causes = None if parents is None else parent_columns(names, parents)
    check_metrics_fit(metrics, own, varying(true), causes, recurring(true))
    options = Options(folds, seed, *blocks, own, causes)
    with one_thread():
        scores = {
            name: _report(METRICS[name], true, codes, names, options, bootstrap, best_r2)
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
            kinds=own,
        )
    warnings += (*_undefined(scores), *_floored(scores), *_told_by_parents(scores))
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
        **_described(names, own, causes),
    }
    return ScoringResult(scores, warnings, settings, names)


def parent_columns(
    factors: Sequence[str], parents: Mapping[str, Sequence[str]]
) -> tuple[tuple[int, ...], ...]:
    """Return the columns of each factor's parents.

    Args:
        factors: names of the factors, in the order of their columns.
        parents: names of the parents of each factor that has some.

    Raises:
        UsageError: a name is none of the factors.
    """
    for name in {*parents, *(each for names in parents.values() for each in names)}:
        if name not in factors:
            raise UsageError(
                f"the parents name {name!r}, which is none of the factors {', '.join(factors)}"
            )
    places = list(factors)
    return tuple(tuple(places.index(each) for each in parents.get(name, ())) for name in factors)


def _described(
    names: Sequence[str], kinds: Sequence[Kind] | None, parents: Sequence[Sequence[int]] | None
) -> dict[str, Any]:
    """Return kinds and parents by name, for the settings, where there are any."""
    described: dict[str, Any] = {}
    if kinds is not None:
        described["kinds"] = {n: kind.name for n, kind in zip(names, kinds, strict=True)}
    if parents is not None:
        described["parents"] = {
            name: [names[i] for i in causes] for name, causes in zip(names, parents, strict=True)
        }
    return described


def _check_arguments(
    factors: Sequence[str], count: int, names: Sequence[str], folds: Folds, draws: int, seed: int
) -> None:
    if len(factors) != count or len(set(factors)) != count:
        raise UsageError(
            f"expected {count} different names, one for each factor of z, found {list(factors)}"
        )
    check_metrics(names)
    if folds not in FOLDS:
        raise UsageError(f"folds must be one of {', '.join(map(repr, FOLDS))}, found {folds!r}")
    check_bootstrap(draws)
    check_seed(seed)


def check_bootstrap(draws: int) -> None:
    """Refuse a number of bootstrap replicates from which no interval can be made.

    Raises:
        UsageError: it is neither 0 nor large enough.
    """
    if draws != 0 and draws < _LEAST_REPLICATES:
        raise UsageError(
            f"bootstrap must be 0 (no intervals) or at least {_LEAST_REPLICATES}, found {draws}"
        )


def check_seed(seed: int) -> None:
    """Refuse a seed out of range.

    Raises:
        UsageError: it is.
    """
    if not 0 <= seed < 2**64:
        raise UsageError(f"the seed must lie in [0, 2^64), found {seed}")


def _groups(names: Sequence[str]) -> dict[str, list[int]]:
    """Return columns by group of the factor table; a name not in it is a group of its own."""
    group_of = {factor.name: factor.group for factor in FACTORS}
    columns: dict[str, list[int]] = {}
    for column, name in enumerate(names):
        columns.setdefault(group_of.get(name, name), []).append(column)
    return columns


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Keep sums on one thread: their last digits depend on how many share them."""
    sklearn_part("utils")  # loads the libraries whose threads are to be limited
    import threadpoolctl

    with threadpoolctl.threadpool_limits(1):
        yield


def _report(
    metric: Metric,
    z: Float64,
    codes: Float64,
    names: tuple[str, ...],
    options: Options,
    draws: int,
    best_r2: Mapping[str, float] | None,
) -> MetricReport:
    result = metric.score(z, codes, options)
    chance = metric.chance(z, codes, options)
    best, share = _possible(metric, result.per_factor, names, best_r2)
    report = MetricReport(
        result.alone(),
        names,
        chance=float(np.mean(chance)),
        chance_interval=(float(chance.min()), float(chance.max())),
        best=best,
        share=share,
    )
    return _with_intervals(report, result, metric, draws, options.seed) if draws else report


def _with_intervals(
    report: MetricReport, result: MetricResult, metric: Metric, draws: int, seed: int
) -> MetricReport:
    replicates = bootstrapped(result, draws, seed)
    ends = functools.partial(interval, lowest=metric.lowest, confidence=CONFIDENCE)
    bounds = metric.lowest_of_parts
    per_factor = None
    if replicates.per_factor is not None and result.per_factor is not None:
        per_factor = ends(replicates.per_factor, result.per_factor)
    return dataclasses.replace(
        report,
        interval=_pair(ends(replicates.value, result.value)),
        per_factor_interval=per_factor,
        part_intervals={
            name: _pair(ends(values, result.parts[name], lowest=bounds.get(name, metric.lowest)))
            for name, values in replicates.parts.items()
        },
    )


def _pair(ends: Float64) -> Interval:
    return float(ends[0]), float(ends[1])


def _possible(
    metric: Metric,
    per_factor: Float64 | None,
    names: Sequence[str],
    best_r2: Mapping[str, float] | None,
) -> tuple[dict[str, float] | None, dict[str, float] | None]:
    """Return the best possible score by factor, and the share of it reached."""
    if metric.best is None or per_factor is None or not best_r2:
        return None, None
    best = {name: metric.best(best_r2[name]) for name in names if name in best_r2}
    share = {
        name: value / best[name]
        for name, value in zip(names, per_factor.tolist(), strict=True)
        if best.get(name)
    }
    return best, share


def _undefined(scores: Mapping[str, MetricReport]) -> Iterator[ScoreWarning]:
    names = [name for name, report in scores.items() if report.value is None]
    if names:
        yield ScoreWarning(
            "undefined_score",
            f"{', '.join(names)}: no number with these samples; use a larger test set",
        )


def _floored(scores: Mapping[str, MetricReport]) -> Iterator[ScoreWarning]:
    """Warn of R2s that were cut off, and say where they enter a mean."""
    names = [
        f"{metric} of {factor}"
        for metric, report in scores.items()
        if METRICS[metric].lowest == -math.inf
        for factor, value in (report.per_factor or {}).items()
        if value is not None and value <= LOWEST / 2  # in one of two folds at least
    ]
    if names:
        yield ScoreWarning(
            "floored_r2",
            f"{', '.join(names[:_SHOWN])}{' and more' if len(names) > _SHOWN else ''}: an R2 ends "
            f"at {LOWEST:g}, which enters the mean over factors and says nothing. The codes of "
            "some rows lie far outside of those that the regression was fitted on",
        )


def _told_by_parents(scores: Mapping[str, MetricReport]) -> Iterator[ScoreWarning]:
    """Warn of factors that their parents predict to the end."""
    report = scores.get("r2_beyond_parents")
    if report is None:
        return
    columns = report.score.choices["told_by_parents_left_out"]
    if columns:
        names = ", ".join(report.factors[i] for i in columns)
        yield ScoreWarning(
            "told_by_parents",
            f"{names}: parents predict more than 99.9 % of the variance, so that nothing is left "
            "for R2 beyond parents",
        )
