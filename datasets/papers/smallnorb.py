"""SmallNORB as published: a folder of six binary matrices, gzipped or not.

    smallnorb-5x46789x9x18x6x2x96x96-training-{dat,cat,info}.mat[.gz]
    smallnorb-5x01235x9x18x6x2x96x96-testing-{dat,cat,info}.mat[.gz]

They are no MATLAB files: a magic number and the sizes come first, little-endian, then the numbers.
`dat` (N, 2, 96, 96) holds stereo pairs of unsigned bytes, of which the first image is read; `cat`
(N,) the category; `info` (N, 4) the instance of the category, elevation, azimuth and lighting. The
rows are in no order: here they are sorted into that of the grid. Each half has five of the ten
instances. The instance tells images apart and is no factor: it is hidden in the grid.
"""

from __future__ import annotations

import dataclasses
import gzip
import math
import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from threedident.datasets.formats.source import ImageSource, UInt8
from threedident.datasets.papers.image_arrays import (
    PIECE,
    ArraySource,
    ImageArray,
    PlainImages,
    StreamedImages,
    check_image_shape,
    explaining,
    label_grid,
    open_file,
    varying,
)
from threedident.distributions.grid import Grid
from threedident.errors import DatasetError, UsageError
from threedident.storage.atomic_files import explaining_write_errors, replacing

FORM = "smallnorb"
NAMES = ("category", "instance", "elevation", "azimuth", "lighting")
SPLITS = {"train": "training", "test": "testing"}
INSTANCES = {"train": (4, 6, 7, 8, 9), "test": (0, 1, 2, 3, 5)}
CATEGORIES = ("animal", "human", "plane", "truck", "car")
_AZIMUTHS = 18  # steps of 20 degrees; the files count in steps of 10
_NAME = re.compile(r"smallnorb-.*-(training|testing)-(dat|cat|info)\.mat(\.gz)?")
_TYPES: dict[int, np.dtype[Any]] = {507333717: np.dtype("u1"), 507333716: np.dtype("<i4")}
_MOST_DIMENSIONS = 8
_MOST_LABELS = 1 << 24  # bytes


def find(root: Path) -> bool:
    """Whether a folder holds files of SmallNORB, perhaps not all of them."""
    return root.is_dir() and any(_NAME.fullmatch(path.name) for path in root.glob("smallnorb-*"))


def open(root: Path, split: str | None = None) -> ImageSource:
    """Open the folder.

    Args:
        root: the folder.
        split: train, test or both; None: both, where both are there.

    Raises:
        UsageError: there is no such split.
        DatasetError: a file is missing or damaged, or the labels fill no grid.
    """
    halves = _halves(root)
    names = tuple(halves) if split in (None, "both") else (split,)
    if split == "both":
        names = tuple(SPLITS)
    for name in names:
        if name not in SPLITS:
            raise UsageError(f"{root} has no split {name}: expected train, test or both")
        lacking = {"dat", "cat", "info"} - set(halves.get(name, ()))
        if lacking:
            raise DatasetError(
                f"{root} lacks the {', '.join(sorted(lacking))} of the {name} split: expected "
                f"smallnorb-...-{SPLITS[name]}-{min(lacking)}.mat, perhaps with .gz"
            )
    return _source(root, {name: halves[name] for name in names})


def _halves(root: Path) -> dict[str, dict[str, Path]]:
    """The files of each split, by what they hold; uncompressed ones before others."""
    halves: dict[str, dict[str, Path]] = {}
    for path in sorted(root.glob("smallnorb-*"), reverse=True):  # .mat comes last, and stays
        match = _NAME.fullmatch(path.name)
        if match:
            split = next(name for name, word in SPLITS.items() if word == match[1])
            halves.setdefault(split, {})[match[2]] = path
    return {name: halves[name] for name in SPLITS if name in halves}


def _source(root: Path, halves: Mapping[str, Mapping[str, Path]]) -> ImageSource:
    images, labels = [], []
    for files in halves.values():
        part = _images(files["dat"])
        images.append(part)
        labels.append(_labels(files["cat"], files["info"], part.shape[0]))
    whole = label_grid(np.concatenate(labels), NAMES, str(root))
    turn = len(whole.values[3]) == _AZIMUTHS
    grid = Grid(
        whole.sizes,
        NAMES,
        categorical=("category", "instance", "lighting"),
        periods={"azimuth": _AZIMUTHS} if turn else {},
        hidden=("instance",),
    )
    grid = varying(grid)
    columns = [grid.columns[k] for k in grid.shown]
    if np.array_equal(whole.values[0], range(len(CATEGORIES))):
        columns[0] = dataclasses.replace(columns[0], values=CATEGORIES)
    return ArraySource(
        root,
        FORM,
        _Joined(images),
        grid=grid,
        columns=columns,
        rows=whole.rows,
        facts={"split": " and ".join(halves)},
        files=[path for files in halves.values() for path in files.values()],
    )


@dataclasses.dataclass(frozen=True)
class _Header:
    """The beginning of a matrix.

    Attributes:
        dtype: the type of its numbers.
        shape: its sizes.
        offset: the place of its first number.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """The bytes of its numbers."""
        return math.prod(self.shape) * self.dtype.itemsize


def _read_header(file: IO[bytes], path: Path) -> _Header:
    """Read the beginning of a matrix."""
    magic, dimensions = struct.unpack("<ii", file.read(8).ljust(8, b"\0"))
    if magic not in _TYPES:
        known = ", ".join(f"{number} ({dtype})" for number, dtype in _TYPES.items())
        raise DatasetError(f"{path} begins with {magic}, expected the magic number {known}")
    if not 1 <= dimensions <= _MOST_DIMENSIONS:
        raise DatasetError(f"{path} is damaged: it declares {dimensions} dimensions")
    stored = max(3, dimensions)  # at least three sizes are there, of fewer dimensions too
    sizes = struct.unpack(f"<{stored}i", file.read(4 * stored).ljust(4 * stored, b"\0"))
    if min(sizes[:dimensions]) < 1:
        raise DatasetError(f"{path} is damaged: it declares the sizes {sizes[:dimensions]}")
    header = _Header(_TYPES[magic], tuple(sizes[:dimensions]), 8 + 4 * stored)
    if path.suffix != ".gz" and path.stat().st_size != header.offset + header.size:
        raise DatasetError(
            f"{path} is damaged: it declares {header.shape} of {header.dtype}, which is "
            f"{header.offset + header.size:,} bytes, but has {path.stat().st_size:,}"
        )
    return header


def _images(path: Path) -> ImageArray:
    """The first images of the stereo pairs."""
    with explaining(path, zlib.error), open_file(path) as file:
        header = _read_header(file, path)
    fits = len(header.shape) == 4 and header.shape[1] == 2 and header.dtype == np.uint8
    if not fits:
        raise DatasetError(
            f"{path} holds {header.shape} of {header.dtype}, expected (N, 2, 96, 96) of bytes"
        )
    count, _, height, width = header.shape
    shape = (count, height, width, 1)
    check_image_shape(path, "the matrix", shape, (1,))
    if path.suffix != ".gz":
        return PlainImages(path, header.offset, shape, 2 * height * width)
    return StreamedImages(path, shape, _Pieces(path, header), f"Unpack it: `gunzip {path}`")


@dataclasses.dataclass(frozen=True)
class _Pieces:
    """The images of a gzipped matrix; it can be pickled."""

    path: Path
    header: _Header

    def __call__(self) -> Iterator[UInt8]:
        count, _, height, width = self.header.shape
        pair = 2 * height * width
        rows = max(1, PIECE // pair)
        with explaining(self.path, zlib.error), open_file(self.path) as file:
            file.read(self.header.offset)
            for first in range(0, count, rows):
                size = min(rows, count - first)
                content = file.read(size * pair)
                if len(content) < size * pair:
                    raise DatasetError(f"{self.path} is cut short at image {first}")
                pairs = np.frombuffer(content, np.uint8).reshape(size, 2, height, width)
                yield np.ascontiguousarray(pairs[:, 0])[..., None]


def _labels(categories: Path, info: Path, count: int) -> npt.NDArray[np.int64]:
    """The five factors of a half, (N, 5)."""
    first = _matrix(categories, (count,))
    others = _matrix(info, (count, 4))
    return np.column_stack([first, others]).astype(np.int64)


def _matrix(path: Path, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    with explaining(path, zlib.error), open_file(path) as file:
        header = _read_header(file, path)
        if header.shape != shape or header.size > _MOST_LABELS:
            raise DatasetError(
                f"{path} holds {header.shape} of {header.dtype}, expected {shape} of int32"
            )
        content = file.read(header.size + 1)
        if len(content) != header.size:
            raise DatasetError(f"{path} is damaged: it holds other than {header.size} bytes")
    return np.frombuffer(content, header.dtype).reshape(shape)


class _Joined:
    """The images of several arrays, one after another."""

    def __init__(self, parts: Sequence[ImageArray]) -> None:
        if len({part.shape[1:] for part in parts}) > 1:
            sizes = " and ".join(str(part.shape[1:]) for part in parts)
            raise DatasetError(f"the halves hold images of {sizes}, expected one size")
        self._parts = parts
        self._starts = np.cumsum([0, *(part.shape[0] for part in parts)])
        self.shape = (int(self._starts[-1]), *parts[0].shape[1:])

    def read(self, numbers: Sequence[int], out: UInt8) -> None:
        """Read images into an array (k, H, W, C)."""
        places = np.asarray(numbers, np.int64)
        owners = np.searchsorted(self._starts, places, "right") - 1
        for k, part in enumerate(self._parts):
            mine = np.flatnonzero(owners == k)
            if len(mine):
                images = np.empty((len(mine), *self.shape[1:]), np.uint8)
                part.read((places[mine] - self._starts[k]).tolist(), images)
                out[mine] = images


def write(
    root: str | Path,
    images: Mapping[str, npt.NDArray[np.uint8]],
    labels: Mapping[str, npt.NDArray[np.int32]],
    *,
    compressed: bool = True,
) -> None:
    """Write the files of one or both splits.

    Args:
        root: the folder.
        images: the stereo pairs of each split, (N, 2, H, W).
        labels: their category, instance, elevation, azimuth (0, 2, ... 34) and lighting, (N, 5).
        compressed: a flag to gzip them.

    Raises:
        UsageError: there is no such split.
        DatasetError: a file cannot be written.
    """
    root = Path(root)
    with explaining_write_errors(root):
        root.mkdir(parents=True, exist_ok=True)
    for split, pairs in images.items():
        if split not in SPLITS:
            raise UsageError(f"there is no split {split!r}: expected {' or '.join(SPLITS)}")
        rows = np.asarray(labels[split], "<i4")
        instances = "".join(map(str, INSTANCES[split]))
        stem = f"smallnorb-5x{instances}x9x18x6x2x96x96-{SPLITS[split]}"
        for kind, array in (("dat", pairs), ("cat", rows[:, 0]), ("info", rows[:, 1:])):
            path = root / f"{stem}-{kind}.mat{'.gz' if compressed else ''}"
            magic = 507333717 if kind == "dat" else 507333716
            sizes = (*array.shape, 1, 1)[: max(3, array.ndim)]
            head = struct.pack(f"<ii{len(sizes)}i", magic, array.ndim, *sizes)
            content = head + np.ascontiguousarray(array).tobytes()
            with replacing(path) as temporary:
                temporary.write_bytes(gzip.compress(content) if compressed else content)
