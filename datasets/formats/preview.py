"""Contact sheets of datasets: the first images, those that belong together in a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from threedident.datasets.formats.grouping import grouping
from threedident.datasets.formats.source import ImageSource
from threedident.render.figures import contact_sheet

if TYPE_CHECKING:
    from PIL import Image

_FRAMES = 12  # of a sequence, in a row
_PAIRS = 3


def preview(source: ImageSource, count: int = 25) -> Image.Image:
    """Make a contact sheet of a dataset's first images.

    Pairs of a causal model, counterfactuals or views, stand side by side, and the first frames of
    a sequence fill a row.

    Args:
        source: the dataset.
        count: the number of images, or of so many as fill the last row.
    """
    total, (kind, frames) = len(source), grouping(source)
    if frames == 1:
        numbers = list(range(min(count, total)))
        return contact_sheet(source.images(numbers), [f"{i}" for i in numbers])
    across = min(frames, _FRAMES)
    items = range(min(max(1, count // across), -(-total // frames)))
    numbers = [i * frames + t for i in items for t in range(across) if i * frames + t < total]
    columns = 2 * _PAIRS if frames == 2 and kind != "sequence" else across
    names = {"counterfactual": ("", "'"), "views": ("a", "b")}.get(kind)
    unit = "t = " if kind == "sequence" else ""
    labels = [
        f"{i // frames}{names[i % frames]}" if names else f"{i // frames}: {unit}{i % frames}"
        for i in numbers
    ]
    return contact_sheet(source.images(numbers), labels, columns=columns)
