"""KITTI Masks (Klindt et al. 2021): sequences of the silhouettes of walking people.

The file is a pickle, `kitti_peds_v2.pickle`. It is read by `array_pickle`, which runs nothing of
it. The factors are measured from the masks: the centre of mass, vertical and horizontal, and the
area, in pixels. The windows that the sequences were cut from overlap, so that one person can be in
several; there is no split.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.columns import Column
from threedident.datasets.formats.source import Float32, ImageSource, UInt8, check_numbers
from threedident.datasets.papers import refuse_split
from threedident.datasets.papers.array_pickle import read_pickle
from threedident.errors import DatasetError
from threedident.storage.atomic_files import replacing

#: The name of the published file, and the keys of its dict.
FILE = "kitti_peds_v2.pickle"
MASKS, LATENTS = "pedestrians", "pedestrians_latents"

_ENDINGS = (".pickle", ".pkl")
_LARGEST_SIDE = 1024


class MaskSequences(ImageSource):
    """Sequences of masks with what is measured of them; images are 0 and 255 in one channel."""

    def __init__(
        self, root: Path, form: str, masks: Sequence[npt.NDArray[Any]], factors: Float32
    ) -> None:
        """Take masks that are checked already.

        Args:
            root: the file, or the name of drawn images.
            form: the name of the form.
            masks: for each sequence its masks, (T, H, W), of 0 and 1.
            factors: the factors of all frames, (N, 3) float32.
        """
        height, width = masks[0].shape[1:]
        self.root, self.form = root, form
        self.shape = (height, width, 1)
        self.factors = factors
        self.factor_columns = mask_columns(height, width)
        self.sequences = np.cumsum([0, *(len(each) for each in masks)]).astype(np.int64)
        self._masks = masks

    def read(self, indices: Sequence[int], out: UInt8) -> None:
        """Read images into an array (k, H, W, 1)."""
        assert self.sequences is not None
        numbers = check_numbers(indices, len(self))
        places = np.searchsorted(self.sequences, numbers, side="right") - 1
        for row, (number, place) in enumerate(zip(numbers, places.tolist(), strict=True)):
            mask = self._masks[place][number - self.sequences[place]]
            np.multiply(mask != 0, np.uint8(255), out=out[row, :, :, 0])

    def files(self) -> list[Path]:
        """The file; none of drawn images."""
        return [self.root] if self.root.is_file() else []

    def facts(self) -> dict[str, Any]:
        """The lengths of the sequences."""
        assert self.sequences is not None
        lengths = np.diff(self.sequences)
        least, most = lengths.min(), lengths.max()
        span = f"{least}" if least == most else f"{least} to {most}"
        return {"frames": f"{span} in a sequence"}


def mask_columns(height: int, width: int) -> tuple[Column, ...]:
    """The factors of masks of a size: y and x of the centre of mass, and the area, in pixels."""
    return (
        Column("y", "continuous", (0.0, height - 1.0)),
        Column("x", "continuous", (0.0, width - 1.0)),
        Column("area", "continuous", (0.0, float(height * width))),
    )


def measure_masks(masks: npt.NDArray[Any]) -> Float32:
    """Measure y and x of the centre of mass, and the area, of masks (T, H, W): (T, 3) float32."""
    white = masks != 0
    area = white.sum((1, 2))
    rows = white.sum(2) @ np.arange(masks.shape[1])
    columns = white.sum(1) @ np.arange(masks.shape[2])
    some = np.maximum(area, 1)
    return np.stack([rows / some, columns / some, area], 1).astype(np.float32)


def find(root: Path) -> bool:
    """Whether it is a pickle, or a folder that holds the published file."""
    return root.suffix.lower() in _ENDINGS or (root / FILE).is_file()


def open(root: Path, split: str | None = None) -> MaskSequences:
    """Open the file, or the folder that holds it.

    Raises:
        UsageError: a split is named.
        DatasetError: the file is no pickle of such sequences, or damaged.
    """
    refuse_split(root, split)
    path = root / FILE if root.is_dir() else root
    data = read_pickle(path)
    if not isinstance(data, dict) or not all(
        isinstance(data.get(key), list | tuple) for key in (MASKS, LATENTS)
    ):
        raise DatasetError(
            f"{path} holds no sequences of KITTI Masks: expected a dict with the lists {MASKS} and "
            f"{LATENTS}"
        )
    masks, latents = list(data[MASKS]), list(data[LATENTS])
    if not masks or len(masks) != len(latents):
        raise DatasetError(
            f"{path} has {len(masks)} sequences of masks and {len(latents)} of latents: expected "
            "as many, and at least one"
        )
    _check_sequences(path, masks, latents)
    with np.errstate(over="ignore"):
        factors = np.concatenate(latents).astype(np.float32)
    if not np.isfinite(factors).all():
        raise DatasetError(f"{path}: the latents are not all finite numbers")
    return MaskSequences(path, "kitti-masks", masks, factors)


def _check_sequences(path: Path, masks: list[Any], latents: list[Any]) -> None:
    """Refuse sequences of other shapes, other values, or more frames than the file can hold."""
    shape = masks[0].shape[1:] if isinstance(masks[0], np.ndarray) else ()
    if len(shape) != 2 or not all(1 <= side <= _LARGEST_SIDE for side in shape):
        raise DatasetError(f"{path}: expected masks of shape (T, 64, 64), found {shape!r:.100}")
    left = path.stat().st_size
    for number, (mask, latent) in enumerate(zip(masks, latents, strict=True)):
        arrays = isinstance(mask, np.ndarray) and isinstance(latent, np.ndarray)
        if not arrays or mask.shape[1:] != shape or latent.shape != (len(mask), 3):
            found = [getattr(each, "shape", type(each).__name__) for each in (mask, latent)]
            raise DatasetError(
                f"{path}: sequence {number} has masks and latents of {found[0]} and {found[1]}, "
                f"expected (T, {shape[0]}, {shape[1]}) and (T, 3)"
            )
        # One array can stand in a pickle a million times.
        left -= mask.size
        if left < 0:
            raise DatasetError(f"{path} names more masks than it holds")
        if not len(mask) or not bool(((mask == 0) | (mask == 1)).all()):
            raise DatasetError(f"{path}: sequence {number} is no sequence of masks of 0 and 1")


def write_kitti_masks(
    path: str | Path, masks: Sequence[npt.NDArray[Any]], latents: Sequence[npt.NDArray[Any]]
) -> None:
    """Write a file of the published form.

    Args:
        path: the file; its name should end in .pickle.
        masks: for each sequence its masks, (T, H, W).
        latents: for each sequence its factors, (T, 3).
    """
    data = {
        MASKS: [np.asarray(each, bool) for each in masks],
        LATENTS: [np.asarray(each, np.float32) for each in latents],
    }
    with replacing(Path(path)) as temporary:
        temporary.write_bytes(pickle.dumps(data, protocol=4))
