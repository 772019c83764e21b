"""CIFAR-10 in its binary version: 50,000 and 10,000 images of 32 x 32 in ten classes.

The folder `cifar-10-batches-bin`: `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`.
An image is a byte for the class, and 3 x 1,024 bytes: red, green, blue, each row by row. The
version for Python is pickles, which the toolkit does not open.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from threedident.columns import Column
from threedident.datasets.formats.source import ImageSource, UInt8, check_numbers
from threedident.errors import DatasetError, UsageError
from threedident.storage.atomic_files import explaining_write_errors, replacing

FORM = "cifar10"
CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
TRAIN, TEST = tuple(f"data_batch_{number}.bin" for number in range(1, 6)), ("test_batch.bin",)
_FOLDER, _PICKLES = "cifar-10-batches-bin", "cifar-10-batches-py"
_SIDE, _RECORD = 32, 1 + 3 * 32 * 32


def find(root: Path) -> bool:
    """Whether it is the folder of one of both versions, one that holds it, or one binary file."""
    if root.is_file():
        return root.name in (*TRAIN, *TEST)
    if not root.is_dir():
        return False
    return _folder(root) is not None or _pickles(root) is not None


def _folder(root: Path) -> Path | None:
    for folder in (root, root / _FOLDER):
        if any((folder / name).is_file() for name in (*TRAIN, *TEST)):
            return folder
    return None


def _pickles(root: Path) -> Path | None:
    for folder in (root, root / _PICKLES):
        if (folder / "data_batch_1").is_file() or (folder / "test_batch").is_file():
            return folder
    return None


def open(root: Path, split: str | None = None) -> ImageSource:
    """Open CIFAR-10.

    Args:
        root: the folder, one that holds it, or one of its files, such as test_batch.bin.
        split: train or test; None: train, or what the file holds.

    Raises:
        UsageError: there is no such split.
        DatasetError: it is the version for Python, or a file is missing or damaged.
    """
    if split not in (None, "train", "test") or (split is not None and root.is_file()):
        raise UsageError(
            f"{root}: the splits of CIFAR-10 are train and test, of its folder; found {split!r}"
        )
    if root.is_file():
        return _CifarSource(root, [root])
    folder = _folder(root)
    if folder is None:
        raise DatasetError(
            f"{_pickles(root)} is the version for Python, whose files are pickles and could run "
            f"any code: fetch the binary version (cifar-10-binary.tar.gz), which has {TRAIN[0]}"
        )
    return _CifarSource(root, [folder / name for name in (TEST if split == "test" else TRAIN)])


class _CifarSource(ImageSource):
    form = FORM
    factor_columns = (Column("class", "discrete", None, CLASSES),)
    shape = (_SIDE, _SIDE, 3)

    def __init__(self, root: Path, paths: Sequence[Path]) -> None:
        self.root = root
        self._paths = list(paths)
        classes, self._starts = [], [0]
        for path in paths:
            try:
                content = np.memmap(path, np.uint8, "r")
            except (OSError, ValueError) as error:
                raise DatasetError(f"cannot read {path}: {error}") from error
            if len(content) % _RECORD:
                raise DatasetError(
                    f"{path} is damaged: it has {len(content):,} bytes, expected a multiple of "
                    f"{_RECORD:,}"
                )
            labels = content[::_RECORD].astype(np.float32)
            if labels.max() >= len(CLASSES):
                raise DatasetError(
                    f"{path} is damaged: it names class {labels.max():.0f}, expected 0 to 9"
                )
            classes.append(labels)
            self._starts.append(self._starts[-1] + len(labels))
        self.factors = np.concatenate(classes)[:, None]

    def read(self, indices: Sequence[int], out: UInt8) -> None:
        """Read images into an array (k, 32, 32, 3)."""
        for row, number in enumerate(check_numbers(indices, len(self))):
            place = int(np.searchsorted(self._starts, number, "right")) - 1
            path = self._paths[place]
            try:
                with path.open("rb", buffering=0) as file:
                    file.seek((number - self._starts[place]) * _RECORD + 1)
                    content = file.read(_RECORD - 1)
            except OSError as error:
                raise DatasetError(f"cannot read {path}: {error}") from error
            if len(content) < _RECORD - 1:
                raise DatasetError(f"{path} is cut short at image {number}")
            planes = np.frombuffer(content, np.uint8).reshape(3, _SIDE, _SIDE)
            out[row] = planes.transpose(1, 2, 0)

    def files(self) -> list[Path]:
        """The files of the images."""
        return list(self._paths)


def write(path: Path, images: UInt8, classes: Sequence[int]) -> None:
    """Write one file in the binary version.

    Args:
        path: the file.
        images: the images, (N, 32, 32, 3).
        classes: their classes, 0 to 9.

    Raises:
        DatasetError: it cannot be written.
    """
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    content = np.concatenate([np.asarray(classes, np.uint8)[:, None], planes], 1)
    with explaining_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_bytes(content.tobytes())
