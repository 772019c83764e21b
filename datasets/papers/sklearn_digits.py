"""`sklearn:digits`: the 1,797 images of 8 x 8 that come with scikit-learn; the factor is the class.

It is enough for a test of what is made for MNIST, and nothing is fetched for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from threedident.datasets.formats.source import ImageSource, UInt8, check_numbers
from threedident.datasets.papers import refuse_split
from threedident.datasets.papers.digits import CLASS
from threedident.errors import MissingExtraError

FORM = "sklearn-digits"
NAME = "sklearn:digits"
_BRIGHTEST = 16


def find(root: Path) -> bool:
    """Whether it is this name."""
    return str(root) == NAME


def open(root: Path, split: str | None = None) -> ImageSource:
    """Open the digits; their brightness, 0 to 16, becomes 0 to 255.

    Raises:
        UsageError: a split is named; there is none.
        MissingExtraError: scikit-learn is not installed.
    """
    refuse_split(root, split)
    return _DigitsSource(root)


class _DigitsSource(ImageSource):
    form = FORM
    factor_columns = (CLASS,)

    def __init__(self, root: Path) -> None:
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise MissingExtraError("scikit-learn", "train", f"Reading {NAME}") from error
        digits = load_digits()
        self.root = root
        self._images = np.round(digits.images * (255 / _BRIGHTEST)).astype(np.uint8)[..., None]
        self.shape = self._images.shape[1:]
        self.factors = digits.target.astype(np.float32)[:, None]

    def read(self, indices: Sequence[int], out: UInt8) -> None:
        """Read images into an array (k, H, W, C)."""
        out[:] = self._images[check_numbers(indices, len(self))]

    def files(self) -> list[Path]:
        """None: they come with scikit-learn."""
        return []
