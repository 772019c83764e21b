"""Packed images: one HDF5 file of our own for any dataset of images, made by `3dident pack`.

    images (N, H, W, C) uint8, plain, or gzipped one by one; factors (N, n) float32
    sequences (S + 1,) and pairs (P, 2) int64, where the dataset has them
    checksums: an array of the text of a JSON list, with the SHA-256 of each stretch of images

The attributes say which factors and which grid they are, what the file was made from, and the
fingerprint, which is that of the dataset it was made from.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from threedident.columns import KINDS, Column
from threedident.datasets.formats._image_stacks import ImageStack, StackSource
from threedident.datasets.formats.source import (
    WRONG_SHAPE,
    ImageSource,
    Int64,
    Source,
    UInt8,
    fingerprint_of,
)
from threedident.datasets.papers import refuse_split
from threedident.datasets.papers.image_arrays import PIECE, check_image_shape, grid_factors
from threedident.distributions.grid import Grid
from threedident.errors import DatasetError, UsageError
from threedident.progress import Progress
from threedident.storage.atomic_files import check_space, explaining_write_errors, replacing
from threedident.storage.shard_plan import Interval, missing_intervals
from threedident.storage.shard_record import checksum
from threedident.storage.shards import (
    check_compression,
    open_hdf5,
    read_attributes,
    safe_array,
    storage_options,
    write_text,
)
from threedident.version import toolkit_version

FORM = "packed-images"
FORMAT = "3dident-images"
FORMAT_VERSION = 1
_ABOUT = "about"
_FINGERPRINT = "fingerprint"
_CHECKSUMS = "checksums"
_SHA256 = "sha256_"
_ARRAYS = ("images", "factors", "sequences", "pairs", _CHECKSUMS)
_LARGEST_CHUNK = 1 << 26  # bytes that are unpacked at once
_ADVICE = "Make room, or pack with --compression gzip"


def find(root: Path) -> bool:
    """Whether a file is of this form, by its attribute."""
    if not root.is_file():
        return False
    try:
        with open_hdf5(root) as file:
            return bool(read_attributes(file).get("format") == FORMAT)
    except DatasetError:
        return False


def open(root: Path, split: str | None = None) -> ImageSource:
    """Open a packed file.

    Raises:
        UsageError: a split is named; there is none.
        DatasetError: the file is damaged.
    """
    refuse_split(root, split)
    return PackedImages(root)


class PackedImages(StackSource):
    """A packed file of images.

    Attributes:
        about: what it was made from, by name: `form`, `root`, `toolkit`, `command` and
            `facts`, what `3dident info` said of it.
        checksums: the SHA-256 of each stretch of images.
        recorded: the fingerprint of the dataset that it was made from.
    """

    form = FORM

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.root = path
        with open_hdf5(path) as file:
            attributes = read_attributes(file)
            if (attributes.get("format"), attributes.get("format_version")) != (
                FORMAT,
                FORMAT_VERSION,
            ):
                raise DatasetError(
                    f"{path} is no file of images packed by `3dident pack` (format "
                    f"{FORMAT_VERSION})"
                )
            self._check_images(file)
            digests = {name: attributes.get(_SHA256 + name) for name in _ARRAYS}
            arrays = {
                name: _read_array(file, name, path, digests[name])
                for name in _ARRAYS[1:]
                if digests[name] is not None
            }
            try:
                self._parse(arrays, attributes)
            except WRONG_SHAPE as error:
                raise DatasetError(
                    f"{path} is damaged: what it says of its images does not fit: {error!s:.200}"
                ) from error
            self._add(ImageStack.of(file, path, 0))

    def _check_images(self, file: Any) -> None:
        """Check how the images are stored."""
        path = self.root
        images = safe_array(file, "images", path, expected=_ARRAYS)
        check_image_shape(path, "images", images.shape, (1, 3))
        if images.dtype != np.uint8:
            raise DatasetError(f"{path}: images is of {images.dtype}, expected uint8")
        if math.prod(images.chunks or ()) > _LARGEST_CHUNK:
            raise DatasetError(
                f"{path}: images is stored in chunks of {images.chunks}: at most "
                f"{_LARGEST_CHUNK} bytes are unpacked at once"
            )
        if images.chunks is None and images.id.get_storage_size() < images.nbytes:
            raise DatasetError(f"{path} is damaged: images is not stored in full")
        self.shape = tuple(images.shape[1:])
        self._count = int(images.shape[0])

    def _parse(self, arrays: Mapping[str, npt.NDArray[Any]], attributes: dict[str, Any]) -> None:
        """Take what the file says of its images."""
        about = json.loads(attributes[_ABOUT])
        count = self._count
        self.factor_columns = tuple(_parse_column(each) for each in about["columns"])
        names = self.factor_names
        if not names or len(set(names)) < len(names):
            raise ValueError(f"the factors are {names!r:.100}")
        factors = arrays["factors"]
        if factors.shape != (count, len(names)) or factors.dtype != np.float32:
            raise ValueError(f"factors is {factors.shape} of {factors.dtype}")
        if not np.isfinite(factors).all():
            raise ValueError("a factor is not finite")
        for k, column in enumerate(self.factor_columns):
            classes = factors[:, k]
            size = len(column.values)
            if (
                column.kind == "discrete"
                and not ((classes == np.round(classes)) & (classes >= 0) & (classes < size)).all()
            ):
                raise ValueError(f"{column.name} has a class that is none of its {size}")
        self.factors = factors
        if about["grid"] is not None:
            self.grid = _parse_grid(about["grid"])
            if len(self.grid) != count or not np.array_equal(grid_factors(self.grid), factors):
                raise ValueError("the factors are not the points of the grid")
        self.sequences = _parse_sequences(arrays.get("sequences"), count)
        self.pairs = _parse_pairs(arrays.get("pairs"), count)
        self.checksums = _parse_checksums(arrays[_CHECKSUMS], count)
        self.about = dict(about["made_from"])
        if not isinstance(self.about.get("facts", {}), dict | None):
            raise ValueError("its facts are no table")
        self.recorded = str(attributes[_FINGERPRINT])

    def __len__(self) -> int:
        return self._count

    def facts(self) -> dict[str, Any] | None:
        """What `3dident info` says of it: what it was made from."""
        made = {"made from": f"{self.about.get('root')} ({self.about.get('form')})"}
        return {**made, **(self.about.get("facts") or {})}

    def check(self, interval: Interval, images: UInt8) -> None:
        """Check a stretch of images.

        Args:
            interval: one of those of `checksums`.
            images: its images, (k, H, W, C).

        Raises:
            DatasetError: they are not those that were packed.
        """
        if checksum(images) != self.checksums[interval]:
            raise DatasetError(
                f"{self.root}: the checksum of images {interval.first} to {interval.stop - 1} does "
                "not match"
            )


def _read_array(file: Any, name: str, path: Path, digest: Any) -> npt.NDArray[Any]:
    """Read an array that is stored plainly, and check it."""
    array = safe_array(file, name, path, expected=_ARRAYS)
    if array.chunks is not None or array.id.get_storage_size() < array.nbytes:
        raise DatasetError(f"{path}: {name} is not stored plainly and in full")
    if array.dtype not in (np.float32, np.int64, np.uint8):
        raise DatasetError(f"{path}: {name} is of {array.dtype}")
    content: npt.NDArray[Any] = array[()]
    if checksum(content) != digest:
        raise DatasetError(f"{path} is damaged: the checksum of {name} does not match")
    return content


def _parse_column(data: Any) -> Column:
    name, kind, span, values = (data[key] for key in ("name", "kind", "range", "values"))
    texts = isinstance(name, str) and name and all(isinstance(value, str) for value in values)
    if not texts or kind not in KINDS or (kind == "discrete") != bool(values):
        raise ValueError(f"a factor is {data!r:.100}")
    if span is not None:
        low, high = (float(end) for end in span)
        ordered = low < high if kind == "circular" else low <= high
        if not (math.isfinite(low) and math.isfinite(high) and ordered):
            raise ValueError(f"the range of {name} is {span!r:.100}")
        span = (low, high)
    return Column(name, kind, span, tuple(values))


def _parse_grid(data: Any) -> Grid:
    return Grid(
        data["sizes"],
        data["names"],
        categorical=data["categorical"],
        periods=[(name, steps) for name, steps in data["periods"]],
        hidden=data["hidden"],
    )


def _parse_sequences(begins: npt.NDArray[Any] | None, count: int) -> Int64 | None:
    if begins is None:
        return None
    whole = begins.ndim == 1 and begins.dtype == np.int64 and len(begins) > 1
    if not whole or begins[0] != 0 or begins[-1] != count or (np.diff(begins) < 1).any():
        raise ValueError("sequences does not cut the images into stretches")
    return begins


def _parse_pairs(pairs: npt.NDArray[Any] | None, count: int) -> Int64 | None:
    if pairs is None:
        return None
    fits = pairs.ndim == 2 and pairs.shape[1] == 2 and pairs.dtype == np.int64 and len(pairs)
    if not fits or pairs.min() < 0 or pairs.max() >= count:
        raise ValueError("pairs names images that there are not")
    return pairs


def _parse_checksums(text: npt.NDArray[Any], count: int) -> dict[Interval, str]:
    if text.dtype != np.uint8 or text.ndim != 1:
        raise ValueError("checksums is no text")
    digests = {
        Interval(int(first), int(size)): str(digest)
        for first, size, digest in json.loads(text.tobytes())
    }
    end = 0
    for interval in digests:
        if interval.first != end or interval.count < 1:
            raise ValueError("checksums does not cut the images into stretches")
        end = interval.stop
    if end != count:
        raise ValueError(f"checksums are of {end} images")
    return digests


def pack_images(
    source: ImageSource,
    out: Path,
    *,
    compression: str | None = None,
    command: str | None = None,
) -> int:
    """Write a dataset of images into one file; its images are read once, in order.

    Args:
        source: the dataset.
        out: the file to write; it must not exist.
        compression: none or gzip; None: none.
        command: the command, for the record.

    Returns:
        The number of images in it.

    Raises:
        UsageError: it is a dataset of 3DIdent's, which `pack` of `formats.hdf5` packs.
        DatasetError: an image cannot be read, the file exists, or the disk is full.
    """
    if isinstance(source, Source):
        raise UsageError(f"{source.root} has the ten latents of 3DIdent: use `pack`")
    compression = compression or "none"
    check_compression(compression)
    if out.exists():
        raise DatasetError(f"{out} exists already: remove it, or choose another --out")
    shape = (len(source), *source.shape)
    with explaining_write_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    if not len(source):
        raise DatasetError(f"{source.root} holds no image")
    if compression == "none":
        check_space(out.parent, math.prod(shape), _ADVICE)
    arrays: dict[str, npt.NDArray[Any]] = {"factors": source.factors.astype(np.float32)}
    for name, array in (("sequences", source.sequences), ("pairs", source.pairs)):
        if array is not None:
            arrays[name] = array.astype(np.int64)
    digests = []
    with (
        replacing(out) as temporary,
        h5py.File(temporary, "w", libver="v110") as file,
        Progress("packing", len(source)) as progress,
    ):
        options = storage_options("images", shape, compression)
        file.create_dataset("images", shape=shape, dtype=np.uint8, **options)
        for interval in stretches(source):
            images = source.images(interval.indices)
            # HDF5 does not survive a disk that fills up below it: stop while there is room.
            check_space(out.parent, 2 * images.nbytes, "Make room, then pack again")
            file["images"][interval.first : interval.stop] = images
            digests.append([interval.first, interval.count, checksum(images)])
            progress.advance(interval.count)
        arrays[_CHECKSUMS] = np.frombuffer(json.dumps(digests).encode(), np.uint8)
        for name, array in arrays.items():
            file.create_dataset(name, data=array)
            write_text(file, _SHA256 + name, checksum(array))
        write_text(file, "format", FORMAT)
        file.attrs["format_version"] = FORMAT_VERSION
        write_text(file, _ABOUT, json.dumps(_about(source, command)))
        stack = file["images"]
        digest = fingerprint_of(
            source.factor_names,
            source.shape,
            source.factors,
            lambda numbers: np.stack([stack[number] for number in numbers]),
        )
        write_text(file, _FINGERPRINT, digest)
    return len(source)


def stretches(source: ImageSource) -> list[Interval]:
    """The stretches of images that are read, and checked, at once: about 8 MB each."""
    return missing_intervals(len(source), max(1, PIECE // math.prod(source.shape)), [])


def _about(source: ImageSource, command: str | None) -> dict[str, Any]:
    """What a file says of its images."""
    made = (
        {**source.about}
        if isinstance(source, PackedImages)
        else {
            "form": source.form,
            "root": source.root.name,
            "facts": _plain(source.facts()),
        }
    )
    return {
        "columns": [dataclasses.asdict(column) for column in source.factor_columns],
        "grid": None if source.grid is None else dataclasses.asdict(source.grid),
        "made_from": {**made, "toolkit": toolkit_version(), "command": command},
    }


def _plain(facts: dict[str, Any] | None) -> dict[str, Any] | None:
    """Facts as JSON has them."""
    return None if facts is None else json.loads(json.dumps(facts, default=str))
