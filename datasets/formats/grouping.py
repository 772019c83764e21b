"""The groups that a dataset's images come in: what belongs together."""

from __future__ import annotations

from threedident.datasets.formats.family import FamilySource
from threedident.datasets.formats.source import ImageSource


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
