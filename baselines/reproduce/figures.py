"""The figures of a study: scores against steps, concentrations or numbers of latents."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from threedident.baselines.reproduce.outcomes import (
    LABELS,
    Outcome,
    published_scores,
)
from threedident.baselines.reproduce.studies import Published, Study
from threedident.factors import FACTOR_NAMES
from threedident.figures import empty_figure

_ACROSS = 4  # panels of the figure
_COLORS, _STYLES = 10, ("-", "--", ":")  # of lines: another style once the colours are used up
_MANY = 40  # of a curve's points, beyond which they have no marks


def figure(study: Study, outcomes: Sequence[Outcome]) -> Any:
    """Draw scores against steps, the marginal's concentration or latents, a panel a block.

    Args:
        study: the study.
        outcomes: the results of its rows.

    Returns:
        A matplotlib figure.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    blocks: dict[str, list[Outcome]] = {}
    for each in outcomes:
        blocks.setdefault(each.row.block, []).append(each)
    begun = {name for name, rows in blocks.items() if any(r.curves or r.results for r in rows)}
    shown = {name: rows for name, rows in blocks.items() if name in begun} or blocks
    across, each_down = min(_ACROSS, len(shown)), len(study.plotted)
    if len(shown) == 1:  # its metrics side by side
        across, each_down = each_down, 1
    down = math.ceil(len(shown) / across) * each_down
    drawing = empty_figure(5 * across, 3.9 * down)
    axes = drawing.subplots(down, across, squeeze=False)
    drawing.suptitle(study.title, wrap=True)
    first: dict[str, Any] = {}  # the panel of each metric that gives the others their scale
    for axis in axes.flat:
        axis.set_visible(False)
    for number, (name, rows) in enumerate(shown.items()):
        for which, metric in enumerate(study.plotted):
            beside = number + which if each_down == 1 else number
            axis = axes[number // across * each_down + which % each_down][beside % across]
            axis.set_visible(True)
            axis.set_title(name, fontsize="medium")
            axis.set_ylabel(LABELS[metric])
            if rows[0].row.concentration is not None:
                _plot_points(axis, rows, metric)
            elif rows[0].row.series:
                if first.setdefault(metric, axis) is not axis:
                    axis.sharex(first[metric])
                    axis.sharey(first[metric])
                _plot_series(axis, rows, metric)
            else:
                _plot_curves(axis, rows, metric, study.name)
                if len(shown) > 1 and axis.get_legend_handles_labels()[0]:
                    axis.legend(fontsize="x-small", framealpha=0.4)
    if any(rows[0].row.series for rows in shown.values()):
        _draw_one_legend(drawing, beside=False)
    elif len(shown) == 1:
        _draw_one_legend(drawing)
    return drawing


def factor_figure(study: Study, outcomes: Sequence[Outcome]) -> Any:
    """Draw R2 of each factor against steps, a panel a factor and a line a row.

    Args:
        study: the study.
        outcomes: the results of its rows.

    Returns:
        A matplotlib figure.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    drawing = empty_figure(20, 7.2)
    axes = drawing.subplots(2, 5, sharex=True, sharey=True)
    drawing.suptitle(f"{study.title}: R2 of each factor", wrap=True)
    for number, each in enumerate(outcomes):
        steps, r2 = each.factor_curve()
        if not len(steps) or r2.shape[1:] != (len(FACTOR_NAMES),):
            continue
        label = each.row.name.removeprefix(f"{study.name}-")
        for axis, values in zip(axes.flat, r2.T, strict=True):
            style = _STYLES[number // _COLORS % len(_STYLES)]
            axis.plot(steps, values, color=f"C{number % _COLORS}", linestyle=style, label=label)
    for axis, name in zip(axes.flat, FACTOR_NAMES, strict=True):
        axis.set_title(name, fontsize="medium")
        axis.set_ylim(-0.05, 1.02)
    for axis in axes[1]:
        axis.set_xlabel("steps")
    for axis in axes[:, 0]:
        axis.set_ylabel(LABELS["linear_r2"])
    lines = axes[0, 0].get_lines()
    if len(lines) > _COLORS:  # too many for a panel
        _draw_one_legend(drawing)
    elif lines:
        axes[0, 0].legend(fontsize="x-small", framealpha=0.4)
    return drawing


def _draw_one_legend(drawing: Any, *, beside: bool = True) -> None:
    """Draw one legend for all panels, beside or below them: what any of them names, once."""
    named: dict[str, Any] = {}
    for axis in drawing.axes:
        marks, names = axis.get_legend_handles_labels()
        named |= dict(zip(names, marks, strict=True))
    if named:
        where, columns = ("right", 1) if beside else ("lower", len(named))
        drawing.legend(
            named.values(),
            named.keys(),
            loc=f"outside {where} center",
            ncols=columns,
            fontsize="small",
        )


def _plot_curves(axis: Any, rows: Sequence[Outcome], metric: str, study: str) -> None:
    """Draw each row's curve, and in its colour, dashed, the published score."""
    for number, each in enumerate(rows):
        color, label = f"C{number % 10}", each.row.name.removeprefix(f"{study}-")
        steps, scores = each.curve(metric)
        alone = each.values(metric)
        if len(steps):
            mean = np.nanmean(scores, 0)  # an unfinished seed counts as far as it came
            mark = "." if len(steps) <= _MANY else ""
            axis.plot(steps, mean, color=color, label=label, marker=mark)
            if len(scores) > 1:
                several = np.isfinite(scores).sum(0) > 1
                std = np.zeros_like(mean)
                std[several] = np.nanstd(scores[:, several], 0, ddof=1)
                axis.fill_between(steps, mean - std, mean + std, color=color, alpha=0.2, lw=0)
        elif len(alone):
            axis.axhline(alone.mean(), color=color, linestyle=":", label=label)
        if not len(steps) and not len(alone):
            continue  # not run: a line that nothing stands beside says little
        for step, (value, _) in _published_curve(each.row.published, metric):
            if step is None:
                axis.axhline(value, color=color, linestyle="--", lw=1, alpha=0.7)
            else:
                axis.plot([step], [value], "x", color=color)
    axis.set_xscale("log")
    axis.set_xlabel("steps (published: dashed, or x)")
    axis.set_ylim(top=min(1.02, axis.get_ylim()[1] + 0.02))


def _published_curve(
    published: Published | None, metric: str
) -> Iterator[tuple[int | None, tuple[float, float | None]]]:
    """Return published scores; those of 3DIdent have one curve, whichever statistics are used."""
    for known in (metric, f"{metric}_batch_statistics"):
        yield from published_scores(published, known)


def _plot_points(axis: Any, rows: Sequence[Outcome], metric: str) -> None:
    known = [each for each in rows if len(each.values(metric))]
    if known:
        values = [each.values(metric) for each in known]
        at = [each.row.concentration for each in known]
        std = [v.std(ddof=1) if len(v) > 1 else 0.0 for v in values]
        axis.errorbar(at, [v.mean() for v in values], std, marker="o", color="black", capsize=3)
    axis.set_xscale("log", base=2)
    axis.set_xlabel("concentration of the marginal (line: of the conditional)")
    for line in sorted({_conditional_concentration(each) for each in known or rows}):
        axis.axvline(line, color="black", linestyle=":")
    axis.set_ylim(top=1.02)


def _plot_series(axis: Any, rows: Sequence[Outcome], metric: str) -> None:
    """Draw a line a series against the number of latents; a level line without a number."""
    series: dict[str, list[Outcome]] = {}
    for each in rows:
        if len(each.values(metric)):
            series.setdefault(each.row.series, []).append(each)
    names = list(dict.fromkeys(each.row.series for each in rows))
    for name, known in series.items():
        color = f"C{names.index(name)}"
        values = [each.values(metric) for each in known]
        at = [each.row.latents for each in known]
        if at == [None]:
            axis.axhline(values[0].mean(), color=color, linestyle=":", label=name)
            continue
        std = [v.std(ddof=1) if len(v) > 1 else 0.0 for v in values]
        means = [v.mean() for v in values]
        axis.errorbar(at, means, std, marker="o", color=color, capsize=3, label=name)
    axis.set_xscale("log")
    axis.set_xlabel("latents")


def _conditional_concentration(outcome: Outcome) -> float:
    """Return kappa of a vMF, 1 / sigma^2 of a Normal: those of the run, where there is one."""
    conditional: Mapping[str, Any]
    if outcome.results:
        conditional = next(iter(outcome.results.values()))["experiment"]["data"]["conditional"]
    else:
        published = outcome.row.published_experiment().data.conditional
        conditional = {} if published is None else published.as_dict()
    kappa = conditional.get("kappa")
    return float(conditional["sigma"]) ** -2 if kappa is None else float(kappa)
