"""`StoredImages`: the dataset that the page shows."""

from __future__ import annotations

from pathlib import Path

from threedident.datasets.formats import open_dataset
from threedident.datasets.formats.source import ImageSource


class StoredImages:
    """The dataset that the page shows, opened once.

    Attributes:
        root: its path, or the name of images that are drawn.
        source: the reader of its files; needs no torch.
    """

    source: ImageSource

    def __init__(self, root: str | Path, split: str | None = None) -> None:
        """Open a dataset in any form.

        Args:
            root: the path of a dataset, or the name of images that are drawn.
            split: the split, where its form has several.

        Raises:
            DatasetError: it is none, or a damaged one.
        """
        self.root = root
        self.source = open_dataset(root, split)
