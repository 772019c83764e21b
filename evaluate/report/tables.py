"""The tables of a report: all scores, and the scores by factor."""

from __future__ import annotations

import math
from collections.abc import Mapping

from threedident.evaluate.metric_report import Interval, MetricReport
from threedident.evaluate.metrics.registry import METRICS
from threedident.evaluate.report.html import Child, Html, element, isolated, joined, titled_table
from threedident.evaluate.report.labels import NONE, OF_INTERVALS, in_order, metric_label
from threedident.evaluate.scores_file import ScoresFile


def number(value: float | None, digits: int = 4) -> str:
    """Write a score with so many digits; large ones with three in all."""
    if value is None or not math.isfinite(value):
        return NONE
    if abs(value) >= 1000:
        return f"{value:.3g}"
    return f"{value:.{digits}f}"


def _interval(pair: Interval | None, digits: int = 4) -> str:
    return NONE if pair is None else " to ".join(number(end, digits) for end in pair)


def _mean(values: Mapping[str, float | None] | None) -> float | None:
    known = [v for v in (values or {}).values() if v is not None]
    return sum(known) / len(known) if known else None


def _whole(
    values: Mapping[str, float | None] | None, report: MetricReport
) -> Mapping[str, float | None] | None:
    """Return values by factor if every factor that has a score has one; None otherwise."""
    scored = (name for name, value in (report.per_factor or {}).items() if value is not None)
    return values if values and all(values.get(name) is not None for name in scored) else None


def score_table(scores: ScoresFile) -> Html:
    """Make the table of all scores, and what is to be said of them."""
    rows: list[list[Child]] = []
    names = in_order(scores.scores)
    beside = scores.independent
    for name in names:
        report = scores.scores[name]
        best, share = _whole(report.best, report), _mean(_whole(report.share, report))
        row: list[Child] = [
            isolated(metric_label(name)),
            number(report.value),
            _interval(report.ends),
            number(report.chance),
            number(_mean(best)),
            NONE if share is None else f"{share:.1%}",
        ]
        if beside is not None:
            other = beside.scores.get(name)
            row += [
                number(None if other is None else other.value),
                _interval(None if other is None else other.ends),
            ]
        rows.append(row)
    head: list[Child] = ["metric", "score", "95 % interval", "chance", "best possible", "share"]
    if beside is not None:
        head += ["independent", "95 % interval"]
    reason = scores.no_best_scores
    return joined(
        element("h2", "Scores"),
        titled_table(head, rows),
        element(
            "p",
            f"{OF_INTERVALS} Chance is the same score with the pairs of latents and "
            "codes shuffled. The share is that of the best possible, a mean over factors.",
            class_="faint",
        ),
        _remark(f"{reason[0].upper()}{reason[1:]}.") if reason else None,
        None
        if beside is None
        else _remark(
            f"Independent: the same encoder on {beside.data.images:,} images of the same generator "
            "whose variables are independent, where a code of one cannot score on others."
        ),
        *(
            _remark(f"{METRICS[name].label}: {METRICS[name].note}.")
            for name in names
            if name in METRICS and METRICS[name].note
        ),
    )


def _remark(text: str) -> Html:
    return element("p", isolated(text), class_="faint")


def factor_table(scores: ScoresFile) -> Html | None:
    """Make the table of scores by factor, each beside the best possible where that is known."""
    reports = {name: each for name, each in scores.scores.items() if each.per_factor}
    if not reports:
        return None
    names = in_order(reports)
    others = scores.independent.scores if scores.independent else {}
    beside = {name: each for name, each in others.items() if each.per_factor}
    rows: list[list[Child]] = []
    for factor in dict.fromkeys(f for name in names for f in reports[name].per_factor or {}):
        cells: list[Child] = [isolated(factor)]
        for name in names:
            report = reports[name]
            value = number((report.per_factor or {}).get(factor))
            ends = report.factor_ends(factor)
            has_interval = report.per_factor_interval is not None and factor in report.factors
            small = element("span", _interval(ends, 3), class_="faint") if has_interval else None
            cells.append(joined(value, small))
            if report.best:
                cells.append(number(report.best.get(factor)))
            if name in beside:
                cells.append(number((beside[name].per_factor or {}).get(factor)))
        rows.append(cells)
    head: list[Child] = ["factor"]
    for name in names:
        head.append(isolated(metric_label(name)))
        if reports[name].best:
            head.append(isolated(f"best {metric_label(name)}"))
        if name in beside:
            head.append(isolated(f"{metric_label(name)}, independent"))
    return joined(element("h2", "By factor"), titled_table(head, rows))
