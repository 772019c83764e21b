"""The figure of a study of the papers' other datasets: a panel a metric, a line a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from threedident.baselines.reproduce.heat_map import part_blocks
from threedident.baselines.reproduce.outcomes import LABELS, Outcome, published_scores
from threedident.baselines.reproduce.studies import Study
from threedident.figures import empty_figure


def dot_chart(study: Study, outcomes: Sequence[Outcome]) -> Any:
    """Draw the scores of every seed as dots, and the published ones beside them.

    Args:
        study: the study.
        outcomes: the results of its rows.

    Returns:
        A matplotlib figure.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    count = len(study.metrics)
    drawing = empty_figure(3.4 + 2.3 * max(2, count), 1.6 + 0.34 * len(outcomes))
    axes = drawing.subplots(1, count, sharey=True, squeeze=False)[0]
    forms = {r["data"].get("form") or "" for each in outcomes for r in each.results.values()}
    dots = "dots: seeds; hollow: published"
    if any(form.startswith("drawn-") for form in forms):
        dots = "dots: seeds, on DRAWN images; hollow: published, on the dataset itself"
    drawing.suptitle(f"{study.title}\n{dots}", wrap=True)
    labels = [each.row.name.removeprefix(f"{study.name}-") for each in outcomes]
    for axis, metric in zip(axes, study.metrics, strict=True):
        axis.set_title(LABELS[metric], fontsize="medium")
        axis.set_yticks(range(len(outcomes)), labels, fontsize="small")
        axis.set_xlim(-0.03, 1.03)
        axis.set_xlabel("score", fontsize="small")
        axis.grid(axis="x", alpha=0.3)
        for row, each in enumerate(outcomes):
            values = each.values(metric)
            axis.plot(values, np.full(len(values), row - 0.14), "o", color="C0", markersize=4.5)
            for _, (middle, spread) in published_scores(each.row.published, metric):
                axis.errorbar(
                    [middle],
                    [row + 0.14],
                    xerr=None if spread is None else [spread],
                    fmt="D",
                    color="C1",
                    markerfacecolor="none",
                    markersize=4.5,
                    linewidth=1,
                )
        part_blocks(axis, [each.row.block for each in outcomes])
    axes[0].set_ylim(len(outcomes) - 0.5, -0.5)
    return drawing
