"""The tables of a report: all scores, and the scores by factor."""

from __future__ import annotations

import math
from collections.abc import Mapping

from threedident.evaluate.metric_report import Interval
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


def score_table(scores: ScoresFile) -> Html:
    """Make the table of all scores, and what is to be said of them."""
    rows: list[list[Child]] = []
    names = in_order(scores.scores)
    for name in names:
        report = scores.scores[name]
        share = _mean(report.share)
        rows.append(
            [
                isolated(metric_label(name)),
                number(report.value),
                _interval(report.ends),
                number(report.chance),
                number(_mean(report.best)),
                NONE if share is None else f"{share:.1%}",
            ]
        )
    head: list[Child] = ["metric", "score", "95 % interval", "chance", "best possible", "share"]
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
        rows.append(cells)
    head: list[Child] = ["factor"]
    for name in names:
        head.append(isolated(metric_label(name)))
        if reports[name].best:
            head.append(isolated(f"best {metric_label(name)}"))
    return joined(element("h2", "By factor"), titled_table(head, rows))
