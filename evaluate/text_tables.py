"""Scores as tables of text, for a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from threedident.evaluate.metric_report import MetricReport
from threedident.evaluate.metrics.registry import CAUSAL_METRICS, DEFAULT_METRICS, METRICS
from threedident.evaluate.report.labels import OF_INTERVALS
from threedident.evaluate.scores_file import ScoredCodes, ScoresFile

#: Shorter words for a warning where the report has more of it.
_SHORT = {
    "not_injective": "the generator is not injective, so that no encoder recovers every factor; "
    "the report says why",
}


def summary(scores: ScoredCodes | Mapping[str, Any]) -> list[str]:
    """Make tables of the scores and their warnings, as lines of text.

    Args:
        scores: the content of scores.json, or the result of `score_codes`.
    """
    if not isinstance(scores, ScoredCodes):
        scores = (ScoresFile if "submission" in scores else ScoredCodes).from_dict(scores)
    beside = scores.independent if isinstance(scores, ScoresFile) else None
    lines = _by_metric(scores.scores)
    if beside is not None:
        lines += ["", "on independent variables of the same generator:"]
        lines += _by_metric(beside.scores)
    lines += ["", *_by_factor(scores.scores, beside.scores if beside else {})]
    if any(report.interval for report in scores.scores.values()):
        lines.append(OF_INTERVALS)
    if reason := scores.no_best_scores:
        lines.append(reason)
    lines += [f"{name}: {METRICS[name].note}" for name in scores.scores if METRICS[name].note]
    lines += [f"warning: {_SHORT.get(each.code, each.message)}" for each in scores.warnings]
    if beside is not None:
        known = {each.code for each in scores.warnings}
        lines += [
            f"warning, of the independent variables: {_SHORT.get(each.code, each.message)}"
            for each in beside.warnings
            if each.code not in known
        ]
    return lines


def _by_metric(scores: Mapping[str, MetricReport]) -> list[str]:
    """Make a table with a line for each metric."""
    lines = [f"{'metric':<20}{'value':>9}  {'95 % interval':<20}{'chance':>8}"]
    for name, report in scores.items():
        span = "" if report.interval is None else " to ".join(map(_shown, report.interval))
        lines.append(f"{name:<20}{_shown(report.value):>9}  {span:<20}{_shown(report.chance):>8}")
    return lines


def _by_factor(scores: Mapping[str, MetricReport], beside: Mapping[str, MetricReport]) -> list[str]:
    """Make a table with a line for each factor: the usual metrics, beside the best possible.

    Args:
        scores: reports by the metric's name.
        beside: reports on independent variables, where there are any.
    """
    columns: list[tuple[str, Mapping[str, float | None]]] = []
    for name in (*DEFAULT_METRICS, *CAUSAL_METRICS):
        report = scores.get(name)
        if report is None or not report.per_factor:
            continue
        columns.append((METRICS[name].label, report.per_factor))
        columns += [(f"best {METRICS[name].label}", report.best)] if report.best else []
        other = beside.get(name)
        if other is not None and other.per_factor:
            columns.append(("indep.", other.per_factor))
    return factor_table(columns) if columns else []


def factor_table(columns: Sequence[tuple[str, Mapping[str, float | None]]]) -> list[str]:
    """Make a table with a line for each factor, as lines of text.

    Args:
        columns: the head of each column, and its numbers by factor; the first has every factor.
    """
    wide = [max(10, len(label) + 2) for label, _ in columns]
    heads = "".join(f"{label:>{w}}" for (label, _), w in zip(columns, wide, strict=True))
    lines = [f"{'factor':<20}{heads}"]
    for factor in columns[0][1]:
        cells = "".join(
            f"{_shown(values.get(factor)):>{w}}"
            for (_, values), w in zip(columns, wide, strict=True)
        )
        lines.append(f"{factor:<20}{cells}")
    return lines


def _shown(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.4f}"
