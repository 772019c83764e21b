"""Digits: the IDX files of MNIST and of its relatives.

A folder of IDX files, gzipped or not, as MNIST and Fashion-MNIST are published, or the folder that
torchvision keeps them in (`MNIST/raw`):

    train-images-idx3-ubyte   train-labels-idx1-ubyte    60,000 images of 28 x 28
    t10k-images-idx3-ubyte    t10k-labels-idx1-ubyte     10,000

The one factor is the class.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import math
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from threedident.columns import Column
from threedident.datasets.formats.source import ImageSource, UInt8
from threedident.datasets.papers.image_arrays import (
    PIECE,
    ArraySource,
    ImageArray,
    PlainImages,
    StreamedImages,
    check_image_shape,
    explaining,
    open_file,
)
from threedident.errors import DatasetError, UsageError
from threedident.storage.atomic_files import explaining_write_errors, replacing

FORM = "mnist"
CLASS = Column("class", "discrete", None, tuple(map(str, range(10))))
SPLITS = {"train": "train", "test": "t10k"}
_IMAGES, _LABELS = "{}-images-idx3-ubyte", "{}-labels-idx1-ubyte"
_FOLDERS = (".", "raw", "MNIST/raw", "FashionMNIST/raw", "KMNIST/raw")
_BYTES = 0x08  # the type of the numbers, in the magic number
_MOST_LABELS = 1 << 24  # bytes


def find(root: Path) -> bool:
    """Whether it is a folder of IDX files with such names.

    Raises:
        DatasetError: it holds several such datasets.
    """
    return _folder(root) is not None


def _folder(root: Path) -> Path | None:
    """The folder that holds the IDX files."""
    if not root.is_dir():
        return None
    folders = [
        root / name
        for name in _FOLDERS
        if any(_file(root / name, _IMAGES.format(word)) for word in SPLITS.values())
    ]
    if len(folders) > 1:
        names = " and ".join(str(folder) for folder in folders)
        raise DatasetError(f"{root} holds several datasets of digits, in {names}: name one of them")
    return folders[0] if folders else None


def _file(folder: Path, name: str) -> Path | None:
    """A file, gzipped or not."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    return None


def open(root: Path, split: str | None = None) -> ImageSource:
    """Open a folder of IDX files.

    Args:
        root: the folder, or one that torchvision made.
        split: train or test; None: the one that is there.

    Raises:
        UsageError: there is no such split, or there are two and none is named.
        DatasetError: a file is missing or damaged.
    """
    folder = _folder(root)
    if folder is None:
        raise DatasetError(f"{root} holds no {_IMAGES.format('train')}, perhaps with .gz")
    splits = [name for name, word in SPLITS.items() if _file(folder, _IMAGES.format(word))]
    if split is None and len(splits) > 1:
        raise UsageError(
            f"{root} holds the splits {' and '.join(splits)}: choose one with --split. Commands "
            f"that have no --split take a file of one: `3dident pack {root} --split test --out "
            "test.h5`"
        )
    split = split or splits[0]
    if split not in splits:
        raise UsageError(f"{root} has no split {split}: it holds {', '.join(splits)}")
    word = SPLITS[split]
    path, labels = (_file(folder, name.format(word)) for name in (_IMAGES, _LABELS))
    assert path is not None
    if labels is None:
        raise DatasetError(f"{folder} lacks {_LABELS.format(word)}, perhaps with .gz")
    images = _images(path)
    return ArraySource(
        root,
        FORM,
        images,
        columns=[CLASS],
        factors=_classes(labels, images.shape[0]),
        files=[path, labels],
        facts={"split": split},
    )


@dataclasses.dataclass(frozen=True)
class _Header:
    """The sizes in an IDX file, and the place of its first number."""

    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """The bytes of its numbers."""
        return math.prod(self.shape)


def _read_header(file: IO[bytes], path: Path, dimensions: int) -> _Header:
    magic = file.read(4)
    expected = bytes([0, 0, _BYTES, dimensions])
    if magic != expected:
        raise DatasetError(
            f"{path} begins with {magic.hex() or 'nothing'}, expected {expected.hex()}: an IDX "
            f"file of bytes with {dimensions} dimension{'' if dimensions == 1 else 's'}"
        )
    shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions).ljust(4 * dimensions, b"\0"))
    header = _Header(shape, 4 + 4 * dimensions)
    if path.suffix != ".gz" and path.stat().st_size != header.offset + header.size:
        raise DatasetError(
            f"{path} is damaged: it declares the sizes {shape}, which is "
            f"{header.offset + header.size:,} bytes, but has {path.stat().st_size:,}"
        )
    return header


def _images(path: Path) -> ImageArray:
    with explaining(path, zlib.error), open_file(path) as file:
        header = _read_header(file, path, 3)
    shape = (*header.shape, 1)
    check_image_shape(path, "the file", shape, (1,))
    if path.suffix != ".gz":
        return PlainImages(path, header.offset, shape)
    pieces = functools.partial(_pieces, path, header)
    return StreamedImages(path, shape, pieces, f"Unpack it: `gunzip {path}`")


def _pieces(path: Path, header: _Header) -> Iterator[UInt8]:
    count, height, width = header.shape
    rows = max(1, PIECE // (height * width))
    with explaining(path, zlib.error), open_file(path) as file:
        file.read(header.offset)
        for first in range(0, count, rows):
            size = min(rows, count - first)
            content = file.read(size * height * width)
            if len(content) < size * height * width:
                raise DatasetError(f"{path} is cut short at image {first}")
            yield np.frombuffer(content, np.uint8).reshape(size, height, width, 1)


def _classes(path: Path, count: int) -> npt.NDArray[np.float32]:
    """The classes, (N, 1)."""
    with explaining(path, zlib.error), open_file(path) as file:
        header = _read_header(file, path, 1)
        if header.shape != (count,) or header.size > _MOST_LABELS:
            raise DatasetError(
                f"{path} holds {header.shape[0]:,} labels, expected one for each of the "
                f"{count:,} images"
            )
        content = file.read(header.size + 1)
        if len(content) != header.size:
            raise DatasetError(f"{path} is damaged: it holds other than {header.size} labels")
    classes = np.frombuffer(content, np.uint8)
    if classes.max() > 9:
        raise DatasetError(f"{path}: expected the classes 0 to 9, found {classes.max()}")
    return classes.astype(np.float32)[:, None]


def write(
    root: str | Path,
    images: Mapping[str, UInt8],
    classes: Mapping[str, npt.NDArray[np.uint8]],
    *,
    compressed: bool = True,
) -> None:
    """Write the IDX files of one or both splits.

    Args:
        root: the folder.
        images: the images of each split, (N, H, W).
        classes: their classes, (N,).
        compressed: a flag to gzip them.

    Raises:
        UsageError: there is no such split.
        DatasetError: a file cannot be written.
    """
    root = Path(root)
    with explaining_write_errors(root):
        root.mkdir(parents=True, exist_ok=True)
    for split, pictures in images.items():
        if split not in SPLITS:
            raise UsageError(f"there is no split {split!r}: expected {' or '.join(SPLITS)}")
        for name, array in ((_IMAGES, pictures), (_LABELS, np.asarray(classes[split], np.uint8))):
            path = root / (name.format(SPLITS[split]) + (".gz" if compressed else ""))
            head = bytes([0, 0, _BYTES, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            content = head + np.ascontiguousarray(array, np.uint8).tobytes()
            with replacing(path) as temporary:
                temporary.write_bytes(gzip.compress(content) if compressed else content)
