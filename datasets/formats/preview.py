"""Contact sheets of datasets: some images, those that belong together in a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from threedident.datasets.formats.grouping import grouping
from threedident.datasets.formats.source import ImageSource, Int64
from threedident.render.figures import contact_sheet

if TYPE_CHECKING:
    from PIL import Image

_FRAMES = 12  # of a sequence, in a row
_PAIRS = 3


def preview(source: ImageSource, count: int = 25) -> Image.Image:
    """Make a contact sheet of a dataset's first images.

    Pairs of a causal model, counterfactuals or views, stand side by side, as do pairs that a
    dataset names, and the first frames of a sequence fill a row. Of a grid, whose first images
    differ in little, images are drawn at random, always the same.

    Args:
        source: the dataset.
        count: the number of images, or of so many as fill the last row.
    """
    total, (kind, frames) = len(source), grouping(source)
    if source.sequences is not None:
        return _sequences(source, source.sequences, count)
    if source.pairs is not None and frames == 1:
        pairs = source.pairs[: max(1, count // 2)]
        labels = [f"{k}{view}" for k in range(len(pairs)) for view in ("a", "b")]
        images = source.images(pairs.flatten().tolist())
        return contact_sheet(images, labels, columns=2 * _PAIRS)
    if frames == 1:
        numbers = list(range(min(count, total)))
        if source.grid is not None:
            drawn = np.random.default_rng(0).choice(total, len(numbers), replace=False)
            numbers = np.sort(drawn).tolist()  # files that can only be streamed are, once
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


def _sequences(source: ImageSource, begins: Int64, count: int) -> Image.Image:
    """The first frames of the first sequences, one in a row; short ones leave their row open."""
    rows = min(max(1, count // _FRAMES), len(begins) - 1)
    lengths = np.diff(begins)[:rows]
    across = int(min(_FRAMES, lengths.max()))
    images = np.zeros((rows * across, *source.shape), np.uint8)
    labels = [""] * len(images)
    for row, (first, length) in enumerate(zip(begins[:rows], lengths, strict=True)):
        held = int(min(length, across))
        images[row * across : row * across + held] = source.images(range(first, first + held))
        labels[row * across : row * across + held] = [f"{row}: t = {t}" for t in range(held)]
    return contact_sheet(images, labels, columns=across)
