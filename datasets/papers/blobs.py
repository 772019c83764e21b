"""Moving blobs, `drawn:blobs`: a toy of the form of KITTI Masks, for use without its file.

A silhouette of a head, a trunk and two legs moves through the image. From frame to frame its
place and the logarithm of its height take Laplace steps, which is what the methods assume that are
tried on KITTI Masks; people do not walk like that, so no result on the blobs says anything of the
dataset. As there, the factors are measured from the masks, which the border may cut.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.datasets.papers import DRAWN, refuse_split
from threedident.datasets.papers.kitti_masks import MaskSequences, measure_masks
from threedident.errors import DatasetError

NAME = f"{DRAWN}blobs"
SIDE = 64
#: The sequences and the frames of each.
SEQUENCES, FRAMES = 800, 15

_SEED = 3931823
_PLACES = (8.0, 56.0)  # of the silhouette's middle, in pixels; it turns back at the ends
_HEIGHTS = (16.0, 44.0)  # from head to foot, in pixels
_STEP, _GROWTH = 1.5, 0.04  # the scales of the Laplace steps: pixels, and of the log height
_AT_ONCE = 1000  # frames

# Ellipses, in heights: the middle down and right of the silhouette's, and the half axes.
_PARTS = (
    (-0.38, 0.0, 0.12, 0.10),  # head
    (-0.05, 0.0, 0.26, 0.16),  # trunk
    (0.30, -0.08, 0.20, 0.07),  # legs
    (0.30, 0.08, 0.20, 0.07),
)

Float64 = npt.NDArray[np.float64]


class BlobSource(MaskSequences):
    """The drawn sequences, which are the same whenever they are opened."""

    def __init__(
        self, sequences: int = SEQUENCES, frames: int = FRAMES, *, seed: int = _SEED
    ) -> None:
        """Draw all frames, which takes about a second and 50 MB.

        Args:
            sequences: the number of sequences.
            frames: the frames of each.
            seed: the seed for their places and heights.
        """
        masks = draw_blobs(walk(sequences, frames, seed).reshape(-1, 3))
        factors = measure_masks(masks)
        super().__init__(Path(NAME), "drawn-blobs", np.split(masks, sequences), factors)

    def facts(self) -> dict[str, Any]:
        """The lengths of the sequences, and that this is a toy."""
        return {**super().facts(), "a toy": "drawn here, and not the dataset KITTI Masks"}


def walk(sequences: int, frames: int, seed: int) -> Float64:
    """Draw the places and heights of silhouettes: y, x and height in pixels, (S, T, 3)."""
    rng = np.random.default_rng(seed)
    low = np.array([_PLACES[0], _PLACES[0], np.log(_HEIGHTS[0])])
    width = np.array([_PLACES[1], _PLACES[1], np.log(_HEIGHTS[1])]) - low
    start = rng.uniform(0, 1, (sequences, 1, 3)) * width
    steps = rng.laplace(0, 1, (sequences, frames - 1, 3)) * [_STEP, _STEP, _GROWTH]
    path = np.concatenate([start, steps], 1).cumsum(1)
    # Folded back at both ends.
    folded = low + width - np.abs(path % (2 * width) - width)
    folded[..., 2] = np.exp(folded[..., 2])
    return folded


def draw_blobs(poses: Float64) -> npt.NDArray[np.bool_]:
    """Draw silhouettes.

    Args:
        poses: y and x of the middle, and the height, in pixels, (N, 3).

    Returns:
        The masks, (N, 64, 64) bool: pixels whose centre lies in the silhouette.
    """
    masks = np.zeros((len(poses), SIDE, SIDE), bool)
    centers = np.arange(SIDE, dtype=np.float32)
    for start in range(0, len(poses), _AT_ONCE):
        y, x, height = poses[start : start + _AT_ONCE].astype(np.float32).T[..., None]
        block = masks[start : start + _AT_ONCE]
        for down, right, tall, wide in _PARTS:
            vertical = ((centers - y - down * height) / (tall * height)) ** 2
            horizontal = ((centers - x - right * height) / (wide * height)) ** 2
            block |= vertical[:, :, None] + horizontal[:, None, :] < 1
    return masks


def find(root: Path) -> bool:
    """Whether it is the name of these drawn images."""
    return str(root) == NAME


def open(root: Path, split: str | None = None) -> BlobSource:
    """Draw the sequences.

    Raises:
        UsageError: a split is named.
        DatasetError: the name has a variant, which there is not.
    """
    refuse_split(root, split)
    if not find(root):
        raise DatasetError(f"there are no drawn images {str(root)!r:.100}: expected {NAME}")
    return BlobSource()
