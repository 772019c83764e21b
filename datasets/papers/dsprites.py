"""dSprites' files: .npz and HDF5, read without pickle; and a writer of the first.

    imgs             (N, H, W) uint8, 0 and 1: 737,280 of 64 x 64 in the published file
    latents_classes  (N, 6): the number of the value of color, shape, scale, orientation, posX, posY
    latents_values   (N, 6): that value; not needed
    metadata         a pickled dict, which is never read

In HDF5 the second and third are `latents/classes` and `latents/values`. Images have values 0 and
255 here, so that one sees them. They are unpacked once, at the first reading, and kept with a bit a
pixel: the published 737,280 take 377 MB.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from threedident.datasets.formats.family.npz import Npz
from threedident.datasets.formats.source import ImageSource, UInt8, check_numbers
from threedident.datasets.papers import refuse_split
from threedident.datasets.papers.image_arrays import check_memory, grid_factors
from threedident.datasets.papers.sprites import NAMES as DRAWN_NAMES
from threedident.datasets.papers.sprites import SpriteSource, sprite_grid
from threedident.distributions.grid import Grid
from threedident.errors import DatasetError, UsageError
from threedident.progress import Progress
from threedident.storage.atomic_files import (
    check_space,
    explaining_write_errors,
    replacing,
)
from threedident.storage.shards import open_hdf5, safe_array

Int64 = npt.NDArray[np.int64]

FORM = "dsprites"
NAMES = ("color", *DRAWN_NAMES)
#: Our writer's own record in an archive, beside the arrays.
RECORD = "threedident.json"
_IMAGES, _CLASSES, _VALUES = "imgs", "latents_classes", "latents_values"
_IN_HDF5 = {_CLASSES: "latents/classes", _VALUES: "latents/values"}
_METADATA = "metadata"
_FILTERS = (h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32)
_MOST_IMAGES = 2**22
_LARGEST_SIDE = 4096
_AT_ONCE = 4096  # images that are drawn or looked up in one go
_PIECE, _LARGEST_PIECE = 1 << 24, 1 << 28  # bytes that are unpacked in one go
_LEVEL = 3  # of deflate: dSprites' images shrink to little at any


class DSpritesSource(ImageSource):
    """A file of dSprites, whose images are in the order of its grid."""

    form = FORM

    def __init__(self, path: Path) -> None:
        """Read all but the images.

        Raises:
            DatasetError: it is no such file, or is damaged.
        """
        self.root = path
        self._file = _HDF5File(path) if _is_hdf5(path) else _NpzFile(path)
        count, height, width = self._file.shape
        if not count or not height or not width:
            raise DatasetError(f"{path}: {_IMAGES} is {self._file.shape}: there is no image")
        if count > _MOST_IMAGES:
            raise DatasetError(f"{path}: {count:,} images, expected {_MOST_IMAGES:,} at most")
        if max(height, width) > _LARGEST_SIDE:
            raise DatasetError(
                f"{path}: images of {height} x {width}, expected {_LARGEST_SIDE} pixels along a "
                "side at most"
            )
        self.shape = (height, width, 1)
        sizes, self._rows = self._read_classes(count)
        values = self._read_values(count, sizes)
        self.grid, self.factor_columns = sprite_grid(sizes[1:], _turn(sizes[3], values))
        self.factors = grid_factors(self.grid)
        self._images = _BitImages(path, self._file.shape, self._file.pieces)

    def _read_classes(self, count: int) -> tuple[tuple[int, ...], Int64 | None]:
        """The sizes of the grid, and the row of each image where rows are not in order."""
        classes = self._file.array(_CLASSES, (count, len(NAMES)))
        if classes.dtype.kind not in "iu" or classes.min() < 0 or classes.max() >= count:
            raise DatasetError(
                f"{self.root}: {_CLASSES} holds other values than whole numbers from 0 to "
                f"{count - 1}"
            )
        classes = classes.astype(np.int64)
        sizes = tuple(int(size) for size in classes.max(0) + 1)
        if math.prod(sizes) != count or sizes[0] != 1 or count == 1:
            raise DatasetError(
                f"{self.root}: {count} images, whose {_CLASSES} have {' x '.join(map(str, sizes))} "
                "values: expected one image of each combination, and one colour"
            )
        numbers = Grid(sizes, NAMES).index(classes)
        if (numbers == np.arange(count)).all():
            return sizes, None
        rows = np.full(count, -1, np.int64)
        rows[numbers] = np.arange(count)
        if (rows < 0).any():
            raise DatasetError(
                f"{self.root}: two images have one combination of {_CLASSES}, and another has none"
            )
        return sizes, rows

    def _read_values(self, count: int, sizes: Sequence[int]) -> list[npt.NDArray[Any]] | None:
        """The value of each class of each factor; None where the file has none."""
        if _VALUES not in self._file.names:
            return None
        values = self._file.array(_VALUES, (count, len(NAMES)))
        if values.dtype.kind not in "fiu" or not np.isfinite(values).all():
            raise DatasetError(f"{self.root}: {_VALUES} holds other things than finite numbers")
        ordered = (values if self._rows is None else values[self._rows]).reshape(*sizes, len(NAMES))
        tables = []
        for k, name in enumerate(NAMES):
            column = np.moveaxis(ordered[..., k], k, 0).reshape(sizes[k], -1)
            if (column != column[:, :1]).any():
                raise DatasetError(
                    f"{self.root}: images of one class of {name} differ in their {_VALUES}"
                )
            tables.append(column[:, 0])
        return tables

    def read(self, indices: Sequence[int], out: UInt8) -> None:
        """Read images into an array (k, H, W, 1)."""
        numbers = np.array(check_numbers(indices, len(self)), np.int64)
        self._images.read(numbers if self._rows is None else self._rows[numbers], out)

    def facts(self) -> dict[str, Any]:
        """Whether the file says that its images are a re-render."""
        record = self._file.record()
        return {} if record is None else {"drawn": record}


def _turn(size: int, values: Sequence[npt.NDArray[Any]] | None) -> int | None:
    """The steps of the orientation to a turn; None where its values do not come round."""
    if size == 1:
        return None
    if values is None:
        return size - 1  # as published: both ends of a turn
    orientations = values[3].astype(np.float64)
    step = (orientations[-1] - orientations[0]) / (size - 1)
    even = np.allclose(np.diff(orientations), step, rtol=0, atol=1e-4)
    for turn in (size - 1, size):
        if even and math.isclose(turn * step, 2 * math.pi, rel_tol=1e-4):
            return turn
    return None


class _NpzFile:
    """The arrays of an .npz file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._npz = Npz(path, ignored=(_METADATA,))
        self.names = frozenset(self._npz.members)
        self.shape = _checked(path, self._npz.member(_IMAGES))

    def array(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Read an array whole, of a known shape."""
        _check_shape(self._path, name, self._npz.member(name).shape, shape)
        return self._npz.array(name)

    def pieces(self) -> Iterator[UInt8]:
        """Unpack the images from the first on."""
        return self._npz.pieces(_IMAGES, _rows_at_once(self.shape))

    def record(self) -> str | None:
        """What our writer says of the images."""
        with contextlib.suppress(Exception):  # the parsers of archives and JSON raise many kinds
            with zipfile.ZipFile(self._path) as archive, archive.open(RECORD) as file:
                words = json.loads(file.read(10_000)).get("drawn")
            return words if isinstance(words, str) else None
        return None


class _HDF5File:
    """The arrays of an HDF5 file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with open_hdf5(path) as file:
            self.shape = _checked(path, _hdf5_array(file, _IMAGES, path))
            self.names = frozenset(
                name for name, place in _IN_HDF5.items() if _parent(file, place) is not None
            )

    def array(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Read an array whole, of a known shape."""
        with open_hdf5(self._path) as file:
            array = _hdf5_array(file, _IN_HDF5[name], self._path)
            _check_shape(self._path, name, array.shape, shape)
            if array.dtype.kind not in "fiu":
                raise DatasetError(f"{self._path}: {name} is of {array.dtype}, expected numbers")
            return np.asarray(array[()])

    def pieces(self) -> Iterator[UInt8]:
        """Unpack the images from the first on."""
        with open_hdf5(self._path) as file:
            images = _hdf5_array(file, _IMAGES, self._path)
            chunk, pixels = images.chunks or (1, 1, 1), math.prod(self.shape[1:])
            if math.prod(chunk) > _LARGEST_PIECE:
                raise DatasetError(f"{self._path}: {_IMAGES} is in chunks of {chunk}: too large")
            rows = _rows_at_once(self.shape)
            if rows < chunk[0] and chunk[0] * pixels <= _LARGEST_PIECE:
                rows = chunk[0]  # each chunk is unpacked once
            for first in range(0, self.shape[0], rows):
                yield images[first : first + rows]

    def record(self) -> str | None:
        """Nothing: we write no such files."""
        return None


def _parent(file: Any, place: str) -> Any:
    """The group that holds an array; None where a part of its path is missing, or a link."""
    *groups, last = place.split("/")
    for name in groups:
        links, key = file.id.links, name.encode()
        if not links.exists(key) or links.get_info(key).type != h5py.h5l.TYPE_HARD:
            return None
        file = file[name]
        if not isinstance(file, h5py.Group):
            return None
    return file if file.id.links.exists(last.encode()) else None


def _hdf5_array(file: Any, place: str, path: Path) -> Any:
    """An array that is stored in the file itself."""
    group = _parent(file, place)
    if group is None:
        held = ", ".join((_IMAGES, *_IN_HDF5.values()))
        raise DatasetError(f"{path} lacks the array {place!r}: files of dSprites hold {held}")
    return safe_array(group, place.rpartition("/")[2], path, filters=_FILTERS)


def _rows_at_once(shape: tuple[int, int, int]) -> int:
    """The number of images that are unpacked in one go."""
    return max(1, _PIECE // math.prod(shape[1:]))


def _checked(path: Path, images: Any) -> tuple[int, int, int]:
    """The shape of the images' array, if it is of bytes."""
    if len(images.shape) != 3 or images.dtype != np.uint8:
        raise DatasetError(
            f"{path}: {_IMAGES} is {images.shape} of {images.dtype}, expected (N, H, W) of uint8"
        )
    count, height, width = images.shape
    return count, height, width


def _check_shape(path: Path, name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if tuple(shape) != expected:
        raise DatasetError(f"{path}: {name} is {tuple(shape)}, expected {expected}, as {_IMAGES}")


class _Unpacked:
    """The images that a process has unpacked; one that is forked before begins its own."""

    def __init__(self) -> None:
        self.process, self.lock = os.getpid(), threading.Lock()
        self.bits: UInt8 | None = None


class _BitImages:
    """Images of two values, a bit a pixel, unpacked from a file once in a process.

    A process that is forked after that shares them with its parent.
    """

    def __init__(
        self, path: Path, shape: tuple[int, int, int], pieces: Callable[[], Iterator[UInt8]]
    ) -> None:
        self._path, self._shape, self._pieces = path, shape, pieces
        self._unpacked = _Unpacked()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_unpacked"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._unpacked = _Unpacked()

    def read(self, rows: Int64, out: UInt8) -> None:
        """Read the images of some rows, with values 0 and 255."""
        unpacked = self._unpacked
        if unpacked.bits is None:
            if unpacked.process != os.getpid():
                # A thread of the parent may hold the lock. Two threads may both come here; either's
                # will do.
                unpacked = self._unpacked = _Unpacked()
            with unpacked.lock:
                if unpacked.bits is None:
                    unpacked.bits = self._load()
        pixels = math.prod(self._shape[1:])
        for first in range(0, len(rows), _AT_ONCE):
            part = rows[first : first + _AT_ONCE]
            flat = np.unpackbits(unpacked.bits[part], axis=1, count=pixels)
            flat *= 255
            out[first : first + len(part)] = flat.reshape(len(part), *out.shape[1:])

    def _load(self) -> UInt8:
        count, pixels = self._shape[0], math.prod(self._shape[1:])
        check_memory(self._path, count * -(-pixels // 8))
        bits = np.empty((count, -(-pixels // 8)), np.uint8)
        done = 0
        with Progress(f"unpacking {self._path.name}", count) as progress:
            for piece in self._pieces():
                if piece.max() > 1:
                    raise DatasetError(
                        f"{self._path} is no file of dSprites: its images have other values than 0 "
                        "and 1"
                    )
                bits[done : done + len(piece)] = np.packbits(piece.reshape(len(piece), -1), axis=1)
                done += len(piece)
                progress.advance(len(piece))
        if done < count:
            raise DatasetError(f"{self._path} is cut short at image {done}")
        return bits


def write_dsprites(source: SpriteSource, out: Path) -> int:
    """Write drawn sprites as an .npz file in the format of dSprites.

    Images are drawn and packed a few thousand at a time. `metadata` has the published names, as
    other readers need it, and says that the images are drawn; so does threedident.json beside it.

    Args:
        source: the drawn images.
        out: the file to write, which ends in .npz.

    Returns:
        The number of images.

    Raises:
        UsageError: the name does not fit.
        DatasetError: the file exists, or cannot be written.
    """
    if out.suffix != ".npz":
        raise UsageError(f"expected a file that ends in .npz, found {out}")
    if out.exists():
        raise DatasetError(f"{out} exists already: choose another --out")
    with explaining_write_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    count, (height, width, _) = len(source), source.shape
    grid = Grid((1, *source.sizes), NAMES)
    classes = grid.points(np.arange(count))
    tables = [np.ones(1), *source.values]
    values = np.stack([table[classes[:, k]] for k, table in enumerate(tables)], 1)
    arrays = {_CLASSES: classes, _VALUES: values, _METADATA: _metadata(source)}
    check_space(out.parent, 120 * count, "choose another --out, or smaller --sizes")
    with (
        Progress("writing", count) as progress,
        replacing(out) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive,
    ):
        archive.writestr(RECORD, json.dumps({"drawn": source.facts()["drawn"]}) + "\n")
        for name, array in arrays.items():
            content = io.BytesIO()
            np.save(content, array, allow_pickle=name == _METADATA)
            archive.writestr(f"{name}.npy", content.getvalue())
        with archive.open(f"{_IMAGES}.npy", "w", force_zip64=True) as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": (count, height, width)}
            np.lib.format.write_array_header_1_0(file, header)  # type: ignore[no-untyped-call]
            for first in range(0, count, _AT_ONCE):
                images = source.images(range(first, min(first + _AT_ONCE, count)))
                file.write((images[..., 0] // 255).data)
                progress.advance(len(images))
    return count


def _metadata(source: SpriteSource) -> npt.NDArray[np.object_]:
    """What other readers look up: the published keys, which np.save pickles."""
    content = {
        "title": "drawn images like those of dSprites, not the dataset",
        "description": source.facts()["drawn"],
        "latents_names": NAMES,
        "latents_sizes": np.array([1, *source.sizes]),
        "latents_possible_values": dict(zip(NAMES, [np.ones(1), *source.values], strict=True)),
    }
    array = np.empty((), object)
    array[()] = content
    return array


def _is_hdf5(path: Path) -> bool:
    return path.suffix.lower() in (".h5", ".hdf5")


def find(root: Path) -> bool:
    """Whether it is a file of dSprites, by the names of its arrays."""
    try:
        if _is_hdf5(root):
            with h5py.File(root, "r", locking=False) as file:
                return file.id.links.exists(_IMAGES.encode())
        with zipfile.ZipFile(root) as archive:
            return {f"{_IMAGES}.npy", f"{_CLASSES}.npy"} <= set(archive.namelist())
    except (
        OSError,
        RuntimeError,
        ValueError,
        zipfile.BadZipFile,
        NotImplementedError,
        MemoryError,
    ):
        return False


def open(root: Path, split: str | None = None) -> DSpritesSource:
    """Open a file of dSprites.

    Raises:
        UsageError: a split is named.
        DatasetError: it is damaged.
    """
    refuse_split(root, split)
    return DSpritesSource(root)
