"""Published numbers and own ones side by side: a table, a CSV file and figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from threedident.baselines.reproduce.dot_chart import dot_chart
from threedident.baselines.reproduce.figures import factor_figure, figure
from threedident.baselines.reproduce.heat_map import heat_map
from threedident.baselines.reproduce.numbers import numbers
from threedident.baselines.reproduce.outcomes import (
    Outcome,
)
from threedident.baselines.reproduce.studies import Study
from threedident.baselines.reproduce.table import markdown
from threedident.storage.atomic_files import replacing

TABLE, NUMBERS, FIGURE, FACTORS = "table.md", "table.csv", "figure.png", "factors.png"


def write_comparison(
    study: Study, scale: str, outcomes: Sequence[Outcome], out: Path, notes: Sequence[str] = ()
) -> Path:
    """Write `table.md`, `table.csv` and `figure.png`, each in one step; `factors.png` of 3DIdent.

    Args:
        study: the study.
        scale: the name of the scale.
        outcomes: the results of its rows.
        out: the folder.
        notes: lines on the data.

    Returns:
        The path of the table.

    Raises:
        DatasetError: a file cannot be written.
        MissingExtraError: matplotlib is not installed.
    """
    with replacing(out / TABLE) as temporary:
        temporary.write_text(markdown(study, scale, outcomes, notes), "utf-8")
    with replacing(out / NUMBERS) as temporary:
        temporary.write_text(numbers(study, outcomes), "utf-8")
    draw = {"views": heat_map, "papers": dot_chart}.get(study.kind, figure)
    drawing = draw(study, outcomes)
    with replacing(out / FIGURE) as temporary:
        drawing.savefig(temporary, format="png", dpi=120)
    if study.of_images and study.kind != "papers":
        with replacing(out / FACTORS) as temporary:
            factor_figure(study, outcomes).savefig(temporary, format="png", dpi=120)
    return out / TABLE
