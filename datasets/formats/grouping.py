"""The groups that a dataset's images come in: what belongs together."""

from __future__ import annotations

import numpy as np

from threedident.datasets.formats.family import FamilySource
from threedident.datasets.formats.source import ImageSource, Int64, Source
from threedident.distributions.grid import Grid
from threedident.errors import UsageError


def grouping(source: ImageSource) -> tuple[str, int]:
    """Tell the kind of a dataset's groups, and the images that a whole item has.

    Args:
        source: the reader of the dataset.

    Returns:
        The kind (single, counterfactual, views, sequence or triplets), and the images of an item:
        1 of single images.
    """
    if isinstance(source, FamilySource):
        if source.pairs is not None:
            return "views", 2
        if source.triplets is not None:
            return "triplets", 3
        return ("sequence", len(source)) if source.targets is not None else ("single", 1)
    sampling = source.manifest.sampling if source.manifest else None
    return (sampling.group, sampling.frames) if sampling else ("single", 1)


def group_starts(source: ImageSource) -> Int64 | None:
    """Return the numbers at which sequences or rendered groups begin, and N: (S + 1,).

    Args:
        source: the reader of the dataset.

    Returns:
        The numbers; None where images stand by themselves, or their groups are not contiguous.
    """
    if source.sequences is not None or source.manifest is None:
        return source.sequences
    together = 2 if source.manifest.pair_process is not None else grouping(source)[1]
    if together == 1:
        return None
    return np.append(np.arange(0, len(source), together), len(source))


def pairs_within(source: ImageSource) -> tuple[str, ...]:
    """The ways to make pairs of a dataset by the numbers of its images: grid, sequence, table."""
    ways = (("grid", source.grid), ("sequence", source.sequences), ("table", source.pairs))
    return tuple(way for way, value in ways if value is not None)


def require_grid(source: ImageSource) -> Grid:
    """The grid of a dataset's images.

    Raises:
        UsageError: it has none.
    """
    if source.grid is None:
        raise _lacks(source, "does not hold an image of each point of a grid, as dSprites does")
    return source.grid


def require_sequences(source: ImageSource) -> Int64:
    """The image numbers at which a dataset's sequences begin, and N.

    Raises:
        UsageError: its images are in no sequences.
    """
    if source.sequences is None:
        raise _lacks(source, "has no sequences of frames, as KITTI Masks has")
    return source.sequences


def require_pairs(source: ImageSource) -> Int64:
    """The pairs that a dataset names, as image numbers (P, 2).

    Raises:
        UsageError: it names none.
    """
    if source.pairs is None or not len(source.pairs):
        raise _lacks(source, "names no pairs, as the table of Natural Sprites does")
    return source.pairs


def count_pairs(source: ImageSource, way: str) -> int:
    """The number of anchors of a dataset.

    Args:
        source: the reader of the dataset.
        way: the way to make pairs: grid, sequence or table.

    Raises:
        UsageError: it has no such pairs.
    """
    if way == "grid":
        return len(require_grid(source))
    if way == "table":
        return len(require_pairs(source))
    return len(source) - (len(require_sequences(source)) - 1)


#: The classes that make pairs, and what experiments call them.
_CLASSES = {"grid": "GridPairs", "sequence": "SequencePairs", "table": "TablePairs"}


def _lacks(source: ImageSource, what: str) -> UsageError:
    return UsageError(f"{source.root} {what}: {advise_pairs(source)}")


def advise_pairs(source: ImageSource) -> str:
    """The end of an error: which pairs can be made of a dataset."""
    if isinstance(source, Source):
        _, frames = grouping(source)
        way, name = ("groups", "ImageGroups") if frames > 1 else ("matched", "PositivePairs")
        ways = {way: name}
    else:
        ways = {way: _CLASSES[way] for way in pairs_within(source)}
    if not ways:
        return 'of single images, two augmentations make a pair (TwoViews; data.pairs = "views")'
    text = " or ".join(f'{name} (data.pairs = "{way}")' for way, name in ways.items())
    return f"its pairs are those of {text}"
