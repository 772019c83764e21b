"""Shapes3D as published: `3dshapes.h5` with `images` (N, 64, 64, 3) and `labels` (N, 6).

The labels say which grid it is, and are checked against its order: the last factor is the fastest.
The hues are circles. Whether the first and the last hue are one colour is read from the labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from threedident.datasets.formats._image_stacks import ImageStack, StackSource
from threedident.datasets.formats.source import ImageSource, UInt8
from threedident.datasets.papers import refuse_split
from threedident.datasets.papers.image_arrays import (
    PIECE,
    ArraySource,
    StreamedImages,
    check_image_shape,
    grid_factors,
    label_grid,
    varying,
)
from threedident.distributions.grid import Grid
from threedident.errors import DatasetError, UsageError
from threedident.storage.atomic_files import replacing
from threedident.storage.shards import open_hdf5, safe_array

FORM = "shapes3d"
NAMES = ("floor_hue", "wall_hue", "object_hue", "scale", "shape", "orientation")
SIZES = (10, 10, 10, 8, 4, 15)
HUES = NAMES[:3]
_ARRAYS = ("images", "labels")
_FILTERS = (
    *(h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32),
    h5py.h5z.FILTER_LZF,
)
_MOST_LABELS = 1 << 26  # bytes
_LARGEST_CHUNK = 1 << 26  # bytes that are unpacked at once
_TOLERANCE = 1e-6


def find(root: Path) -> bool:
    """Whether a file is one of Shapes3D's, by its arrays."""
    if not root.is_file():
        return False
    try:
        with open_hdf5(root) as file:
            return all(file.id.links.exists(name.encode()) for name in _ARRAYS)
    except DatasetError:
        return False


def open(root: Path, split: str | None = None) -> ImageSource:
    """Open the file.

    Raises:
        UsageError: a split is named; there is none.
        DatasetError: the file is damaged, or its labels are no grid in order.
    """
    refuse_split(root, split)
    with open_hdf5(root) as file:
        images, labels = _arrays(file, root)
        grid = _grid(labels[()].astype(np.float64), root)
        chunks, shape = images.chunks, tuple(images.shape)
        offset = images.id.get_offset()
        gzip = images.compression == "gzip" and not (images.shuffle or images.fletcher32)
    # Contiguous, or compressed by whole images: each can be read alone.
    if chunks is None or (chunks[1:] == shape[1:] and chunks[0] <= 4 and gzip):
        return _Stack(root, shape, offset, grid)
    streamed = StreamedImages(
        root,
        shape,
        _Pieces(root, shape, chunks),
        f"Pack them once, which takes little memory: `3dident pack {root} --out packed.h5`",
    )
    return ArraySource(root, FORM, streamed, grid=grid)


def _arrays(file: Any, path: Path) -> tuple[Any, Any]:
    """The images and labels of an open file, their shapes and types checked."""
    images, labels = (
        safe_array(file, name, path, expected=_ARRAYS, filters=_FILTERS) for name in _ARRAYS
    )
    check_image_shape(path, "images", images.shape, (1, 3))
    count = images.shape[0]
    if images.dtype != np.uint8:
        raise DatasetError(f"{path}: images is of {images.dtype}, expected uint8")
    if labels.shape != (count, len(NAMES)) or labels.dtype.kind not in "fiu":
        raise DatasetError(
            f"{path}: labels is {labels.shape} of {labels.dtype}, expected {(count, len(NAMES))} "
            f"numbers: {', '.join(NAMES)}"
        )
    if labels.nbytes > _MOST_LABELS:
        raise DatasetError(f"{path}: labels declares {count:,} rows, which is too many")
    for name, array in (("images", images), ("labels", labels)):
        chunk = int(np.prod(array.chunks or (0,), dtype=object)) * array.dtype.itemsize
        if chunk > _LARGEST_CHUNK:
            raise DatasetError(
                f"{path}: {name} is stored in chunks of {array.chunks}: at most "
                f"{_LARGEST_CHUNK} bytes are unpacked at once"
            )
        if array.chunks is None and array.id.get_storage_size() < array.nbytes:
            raise DatasetError(f"{path} is damaged: {name} is not stored in full")
    return images, labels


def _grid(labels: npt.NDArray[np.float64], path: Path) -> Grid:
    whole = label_grid(labels, NAMES, str(path))
    if not np.array_equal(whole.rows, np.arange(len(labels))):
        row = int(np.argmax(whole.rows != np.arange(len(labels))))
        raise DatasetError(
            f"{path}: the labels are not in the order of the grid, from row {row} on: expected "
            f"the last factor, {NAMES[-1]}, to change fastest"
        )
    periods = {}
    for name, values in zip(NAMES, whole.values, strict=True):
        if name in HUES:
            # Hues are a share of a turn: with 0 and 1 both in, the first and the last are one.
            both = len(values) > 1 and values[-1] - values[0] > 1 - _TOLERANCE
            periods[name] = len(values) - int(both)
    return varying(Grid(whole.sizes, NAMES, categorical=("shape",), periods=periods))


class _Pieces:
    """The images of a file whose chunks hold parts of many images; it can be pickled."""

    def __init__(self, path: Path, shape: tuple[int, ...], chunks: tuple[int, ...]) -> None:
        self._path, self._count = path, shape[0]
        rows = max(1, PIECE // int(np.prod(shape[1:])))
        # No chunk is unpacked twice, but where one holds parts of too many images.
        self._rows = min(-(-rows // chunks[0]) * chunks[0], 32 * rows)

    def __call__(self) -> Iterator[UInt8]:
        with open_hdf5(self._path) as file:
            images, _ = _arrays(file, self._path)
            for first in range(0, self._count, self._rows):
                yield images[first : first + self._rows]


class _Stack(StackSource):
    """A file whose images can be read one by one."""

    form = FORM

    def __init__(self, root: Path, shape: tuple[int, ...], offset: int | None, grid: Grid) -> None:
        super().__init__()
        self.root = root
        self.shape = shape[1:]
        self.grid = grid
        self.factor_columns = tuple(grid.columns[k] for k in grid.shown)
        self.factors = grid_factors(grid)
        self._add(ImageStack(root, 0, offset))


def write(
    path: str | Path,
    images: UInt8,
    sizes: Sequence[int] = SIZES,
    *,
    both_ends: bool = False,
    **options: Any,
) -> None:
    """Write a file of this form.

    Args:
        path: the file.
        images: the images in the order of the grid, (N, H, W, 3).
        sizes: the sizes of the grid.
        both_ends: a flag for hues from 0 to 1, which are one colour; otherwise 1 is left out.
        options: the layout of the images for h5py, such as `compression` and `chunks`.

    Raises:
        UsageError: the images are not as many as the grid has points.
        DatasetError: the file cannot be written.
    """
    grid = Grid(sizes, NAMES)
    if len(images) != len(grid):
        raise UsageError(f"{len(images)} images, but the grid {sizes} has {len(grid)} points")
    ends = [(0.0, 1.0)] * 3 + [(0.75, 1.25), (0.0, float(sizes[4] - 1)), (-30.0, 30.0)]
    columns = [
        np.linspace(*span, size, endpoint=name not in HUES or both_ends)
        for name, span, size in zip(NAMES, ends, sizes, strict=True)
    ]
    points = grid.points(np.arange(len(grid), dtype=np.int64))
    labels = np.column_stack([column[points[:, k]] for k, column in enumerate(columns)])
    with replacing(Path(path)) as temporary, h5py.File(temporary, "w", libver="v110") as file:
        file.create_dataset("images", data=images, **options)
        file.create_dataset("labels", data=labels)
