"""The numbers of a study as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from threedident.baselines.reproduce.outcomes import (
    Outcome,
    published_scores,
    summed_up,
)
from threedident.baselines.reproduce.studies import Study


def numbers(study: Study, outcomes: Sequence[Outcome]) -> str:
    """Write the table as CSV, a line a row and metric; scores in [0, 1], empty for none.

    Args:
        study: the study.
        outcomes: the results of its rows.
    """
    file = io.StringIO()
    middle, spread = {"mean": ("mean", "std"), "median": ("median", "deviation")}[study.statistic]
    head = ["row", "block", "metric", f"published_{middle}", f"published_{spread}"]
    head += ["published_step", middle, spread, "seeds", "steps", "seconds", "hardware"]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(head)
    for each in outcomes:
        results = list(each.results.values())
        steps = "/".join(str(s) for s in sorted({int(r["steps"]) for r in results}))
        seconds = f"{np.mean([r['seconds'] for r in results]):.1f}" if results else ""
        hardware = "/".join(sorted({str(r.get("hardware", "")) for r in results}))
        for metric in study.metrics:
            values = each.values(metric)
            published = next(published_scores(each.row.published, metric), (None, (None, None)))
            cells: list[Any] = [each.row.name, each.row.block, metric]
            cells += [*published[1], published[0]]
            own = summed_up(values, study.statistic) if len(values) else (None, None)
            cells += [None if each is None else f"{each:.6f}" for each in own]
            cells += [len(values), steps, seconds, hardware]
            writer.writerow(["" if cell is None else cell for cell in cells])
        if (blocks := each.blocks()) is None:
            continue
        for name in blocks.factors:
            for metric, value in (
                ("linear_r2", blocks.linear(name)),
                ("kernel_r2", blocks.kernel(name)),
            ):
                if math.isfinite(value):
                    cells = [each.row.name, each.row.block, f"{metric} {name}", "", "", ""]
                    cells += [f"{value:.6f}", "", len(each.blocks_of_seeds)]
                    writer.writerow([*cells, steps, seconds, hardware])
    return file.getvalue()
