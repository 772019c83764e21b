"""The figure of a study of views: R2 of every factor in every row, content marked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from threedident.baselines.reproduce.outcomes import Outcome
from threedident.baselines.reproduce.studies import Study
from threedident.figures import empty_figure

_COLORS = ("YlGn", 0.62)  # of which the first part is light enough for dark text
_PANELS = (("linear R2", "linear"), ("kernel ridge R2", "kernel"))


def heat_map(study: Study, outcomes: Sequence[Outcome]) -> Any:
    """Draw R2 of every factor in every row, linear and by kernel ridge regression.

    Content has a frame. Rows that are not scored yet are left out.

    Args:
        study: the study.
        outcomes: the results of its rows.

    Returns:
        A matplotlib figure.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    scored = [(each, blocks) for each in outcomes if (blocks := each.blocks()) is not None]
    names = list(dict.fromkeys(name for _, blocks in scored for name in blocks.factors))
    names = [name for name in names if any(math.isfinite(b.kernel(name)) for _, b in scored)]
    height = 1.8 + 0.36 * max(1, len(scored))
    drawing = empty_figure(6 + 1.15 * max(1, len(names)), height)
    axes = drawing.subplots(1, len(_PANELS), sharey=True)
    drawing.suptitle(f"{study.title}\nframe: content; a gap: the factor does not vary")
    for axis, (title, function) in zip(axes, _PANELS, strict=True):
        values = [[getattr(blocks, function)(name) for name in names] for _, blocks in scored]
        array = np.array(values, np.float64).reshape(len(scored), len(names))
        image = axis.imshow(array, cmap=_light_colors(), vmin=0, vmax=1, aspect="auto")
        axis.set_title(title, fontsize="medium")
        axis.set_xticks(range(len(names)), names, rotation=40, ha="right", fontsize="small")
        labels = [each.row.name.removeprefix(f"{study.name}-") for each, _ in scored]
        axis.set_yticks(range(len(scored)), labels, fontsize="small")
        axis.tick_params(length=0)
        for spine in axis.spines.values():
            spine.set_visible(False)
        for (row, column), value in np.ndenumerate(array):
            if math.isfinite(value):
                text = f"{round(100 * value)}"  # of a small negative number 0, not -0
                axis.text(column, row, text, ha="center", va="center", color="black", fontsize=8)
        _frame_content(axis, [blocks.content for _, blocks in scored], names)
        part_blocks(axis, [each.row.block for each, _ in scored])
        if axis is axes[-1]:
            drawing.colorbar(image, ax=axes, label="R2", shrink=0.8, pad=0.01)
    return drawing


def _light_colors() -> Any:
    """Return a map of colours that are all light."""
    import matplotlib
    from matplotlib.colors import ListedColormap

    name, last = _COLORS
    return ListedColormap(matplotlib.colormaps[name](np.linspace(0, last, 256)))


def _frame_content(axis: Any, contents: Sequence[Any], names: Sequence[str]) -> None:
    """Draw a frame around each stretch of neighbouring content factors of a row."""
    from matplotlib.patches import Rectangle

    for row, content in enumerate(contents):
        is_content = [name in (content or ()) for name in names] + [False]
        start = None
        for column, here in enumerate(is_content):
            if here and start is None:
                start = column
            elif not here and start is not None:
                corner, width = (start - 0.46, row - 0.44), column - start - 0.08
                axis.add_patch(Rectangle(corner, width, 0.88, fill=False, lw=1.6, ec="black"))
                start = None


def part_blocks(axis: Any, blocks: Sequence[str]) -> None:
    """Draw a line between the rows of two blocks."""
    for row in range(1, len(blocks)):
        if blocks[row] != blocks[row - 1]:
            axis.axhline(row - 0.5, color="black", lw=0.8)
