"""`ResizedSource`: the images of a dataset at another size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from threedident.datasets.formats.source import ImageSource, Source, UInt8
from threedident.errors import UsageError

_LARGEST = 1024
_AT_ONCE = 256


class ResizedSource(ImageSource):
    """A dataset with its images resized by Pillow's Lanczos filter; all else is as it was.

    Attributes:
        whole: the dataset.
    """

    def __init__(self, whole: ImageSource, side: int) -> None:
        """Take a dataset; nothing is read yet.

        Args:
            whole: the dataset, of square images.
            side: the pixels along each side.

        Raises:
            UsageError: the side is out of range, the images are no squares, or they are of
                3DIdent, which is rendered at the size that is asked for.
        """
        if isinstance(whole, Source):
            raise UsageError(
                f"{whole.root} is of 3DIdent, which is rendered at any size (`3dident render "
                "--resolution`): resizing is for other datasets"
            )
        height, width, channels = whole.shape
        if height != width or not 1 <= side <= _LARGEST:
            raise UsageError(
                f"expected square images and 1 to {_LARGEST} pixels along each side, found "
                f"{height} x {width} and {side}"
            )
        self.whole, self.root, self.form = whole, whole.root, whole.form
        self.shape = (side, side, channels)
        self.factor_columns, self.factors = whole.factor_columns, whole.factors
        self.grid, self.sequences, self.pairs = whole.grid, whole.sequences, whole.pairs

    def facts(self) -> dict[str, Any] | None:
        """Those of the dataset, and its size."""
        before = f"from {self.whole.shape[0]} x {self.whole.shape[1]} pixels, by Lanczos"
        return {**(self.whole.facts() or {}), "resized": before}

    def files(self) -> list[Path]:
        """The files of the dataset."""
        return self.whole.files()

    def read(self, indices: Sequence[int], out: UInt8) -> None:
        """Read images and resize them; see `ImageSource.read`."""
        side, channels = self.shape[1:]
        for start in range(0, len(indices), _AT_ONCE):
            for row, pixels in enumerate(self.whole.images(indices[start : start + _AT_ONCE])):
                grey = pixels[..., 0] if channels == 1 else pixels
                resized = Image.fromarray(grey).resize((side, side), Image.Resampling.LANCZOS)
                out[start + row] = np.asarray(resized).reshape(side, side, channels)
