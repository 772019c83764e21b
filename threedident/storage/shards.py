"""Shard files: the images of a dataset, about a hundred to a file, in HDF5.

A shard holds `images` uint8 (k, H, W, 3), `raw_latents` and `latents` float32 (k, 10) and
`index` int64 (k,). One of a causal model also holds what was drawn of it, the arrays of `Draws`
by their names. It appears under its name only when it is whole; its attributes hold
checksums and the sums that a dataset's statistics are made of.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from threedident.causal import Draws
from threedident.causal.sampling import NOISE
from threedident.errors import DatasetError, ThreeDIdentError, UsageError
from threedident.factors import NUM_FACTORS
from threedident.storage.atomic_files import replacing
from threedident.storage.shard_plan import Interval, parse_name
from threedident.storage.shard_record import ARRAYS, CHECKSUM, DRAWN, Part, checksum
from threedident.storage.statistics import ImageSums, parse_sums

Array = npt.NDArray[Any]

FORMAT = "3dident-shard"
FORMAT_VERSION = 1
#: Stored plain, an image is one contiguous read, 17 times faster than through gzip (see
#: benchmarks/storage.py); gzip makes a dataset a fifth of the size.
COMPRESSIONS = ("none", "gzip")

_GZIP_LEVEL = 4
_LARGEST_CHUNK = 1 << 24  # bytes that are unpacked to read an image
_HDF5_ERRORS = (
    OSError,
    RuntimeError,
    KeyError,
    ValueError,
    TypeError,
    OverflowError,
    MemoryError,
)


def write_shard(
    root: Path,
    interval: Interval,
    *,
    images: npt.NDArray[np.uint8],
    raw_latents: npt.NDArray[np.float32],
    latents: npt.NDArray[np.float32],
    sums: ImageSums,
    fingerprint: str,
    provenance: Mapping[str, str],
    compression: str = "none",
    draws: Draws | None = None,
) -> Path:
    """Write a shard: under a temporary name first, renamed when it is whole.

    Args:
        root: the dataset's directory.
        interval: the images' numbers.
        images: the images, (k, H, W, 3).
        raw_latents: their raw latents, (k, 10).
        latents: their latents, (k, 10).
        sums: the sums over these images.
        fingerprint: the fingerprint of the dataset's settings.
        provenance: device, engine version, toolkit version and processor, by name.
        compression: none or gzip.
        draws: what was drawn of a causal model; None where there is none.

    Returns:
        The shard's file.

    Raises:
        DatasetError: the disk is full or cannot be written to.
    """
    path = root / interval.file_name
    arrays: dict[str, Array] = {
        "images": images,
        "raw_latents": raw_latents,
        "latents": latents,
        "index": np.array(interval.indices, np.int64),
        **({} if draws is None else {name: getattr(draws, name) for name in DRAWN}),
    }
    # In memory first: HDF5 does not recover from a disk that fills up below it.
    content = io.BytesIO()
    with h5py.File(content, "w", libver="v110") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, **storage_options(name, array.shape, compression))
            write_text(file, CHECKSUM + name, checksum(array))
        write_text(file, "format", FORMAT)
        file.attrs["format_version"] = FORMAT_VERSION
        file.attrs["first"] = interval.first
        file.attrs["count"] = interval.count
        write_text(file, "fingerprint", fingerprint)
        for name, text in provenance.items():
            write_text(file, name, text)
        for field in dataclasses.fields(sums):
            file.attrs[f"sum_{field.name}"] = getattr(sums, field.name)
    with replacing(path) as temporary:
        temporary.write_bytes(content.getbuffer())
    return path


def check_compression(compression: str) -> None:
    """Check the name of a compression.

    Raises:
        UsageError: there is none of that name.
    """
    if compression not in COMPRESSIONS:
        raise UsageError(
            f"unknown compression {compression!r}: expected one of {', '.join(COMPRESSIONS)}"
        )


def storage_options(name: str, shape: tuple[int, ...], compression: str) -> dict[str, Any]:
    """The layout of an array, for h5py: contiguous, or images compressed one by one.

    Args:
        name: the array.
        shape: its shape.
        compression: none or gzip.

    Raises:
        UsageError: an unknown compression.
    """
    check_compression(compression)
    if name != "images" or compression == "none":
        return {}
    return {"chunks": (1, *shape[1:]), "compression": "gzip", "compression_opts": _GZIP_LEVEL}


@contextlib.contextmanager
def open_hdf5(path: Path) -> Iterator[Any]:
    """Open an HDF5 file, read-only.

    Raises:
        DatasetError: the file cannot be opened, or reading from it fails.
    """
    try:
        with h5py.File(path, "r", locking=False) as file:
            yield file
    except _HDF5_ERRORS as error:
        if isinstance(error, ThreeDIdentError):
            raise
        raise DatasetError(f"{path} {_why_unreadable(path)} ({error})") from error


def _why_unreadable(path: Path) -> str:
    """Say what is wrong with a file that HDF5 does not read, and what to do."""
    with contextlib.suppress(OSError):
        if not path.exists():
            return "is missing"
        if parse_name(path.name):
            return (
                "is cut short or damaged: `3dident verify` names all such shards, and `3dident "
                "render` with the settings of the dataset renders them again"
            )
        if not h5py.is_hdf5(path):
            return "is no HDF5 file, or its beginning is damaged"
    return "is not a readable file: cut short, damaged, or not of this toolkit"


def write_text(file: Any, name: str, text: str) -> None:
    """Write an attribute of fixed length, which lies in the file's header.

    HDF5 looks at the header's checksum. Strings of free length lie elsewhere, without one, and a
    flipped bit there can keep HDF5 busy for ever.
    """
    content = text.encode()
    kind = h5py.string_dtype("utf-8", max(1, len(content)))
    file.attrs.create(name, np.array(content, kind), dtype=kind)


def read_attributes(file: Any) -> dict[str, Any]:
    """Read a file's attributes, strings as str.

    Raises:
        UnicodeDecodeError: a string is not UTF-8.
    """
    return {k: v.decode() if isinstance(v, bytes) else v for k, v in file.attrs.items()}


def safe_array(
    file: Any,
    name: str,
    path: Path,
    *,
    expected: Sequence[str] = ARRAYS,
    filters: Collection[int] = (h5py.h5z.FILTER_DEFLATE,),
) -> Any:
    """Open one of a file's arrays, if it is stored in the file itself and in a form we write.

    A foreign HDF5 file can name other files on the disk (external storage, links, virtual
    datasets) and filters that run plugins; none of that is followed.

    Args:
        file: the open file.
        name: the array's name.
        path: the file's path, for errors.
        expected: the names of the arrays of such a file, for errors.
        filters: the filters that may be.

    Raises:
        DatasetError: the array is missing or stored in another way.
    """
    # Names are looked up below h5py: what it says of a link, it says once it has followed it.
    links, key = file.id.links, name.encode()
    if not links.exists(key):
        raise DatasetError(f"{path} lacks the array {name!r}: expected {', '.join(expected)}")
    if links.get_info(key).type != h5py.h5l.TYPE_HARD:
        raise DatasetError(f"{path}: {name!r} is a link to elsewhere, which is not followed")
    array = file[name]
    if not isinstance(array, h5py.Dataset):
        raise DatasetError(f"{path}: {name!r} is not an array")
    if array.is_virtual or array.external:
        raise DatasetError(f"{path}: {name!r} is stored in other files, which are not read")
    plist = array.id.get_create_plist()
    used = [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]
    if not set(used) <= set(filters):
        raise DatasetError(
            f"{path}: {name!r} uses HDF5 filters {used}; only those of HDF5 itself are read"
            if len(filters) > 1
            else f"{path}: {name!r} uses HDF5 filters {used}; only gzip is read"
        )
    return array


def check_arrays(
    file: Any, path: Path, count: int, resolution: int, variables: int | None = None
) -> None:
    """Check that a file has the format's arrays, with their shapes and types.

    Args:
        file: the open file.
        path: its path, for errors.
        count: the number of images.
        resolution: the pixels along each side of an image.
        variables: the number of variables of the causal model; None where there is none.

    Raises:
        DatasetError: an array does not fit.
    """
    expected: dict[str, tuple[tuple[int, ...], Any]] = {
        "images": ((count, resolution, resolution, 3), np.uint8),
        "raw_latents": ((count, NUM_FACTORS), np.float32),
        "latents": ((count, NUM_FACTORS), np.float32),
        "index": ((count,), np.int64),
        **({} if variables is None else drawn_shapes(count, variables)),
    }
    for name, (shape, dtype) in expected.items():
        array = safe_array(file, name, path)
        if array.shape != shape or array.dtype != dtype:
            raise DatasetError(
                f"{path}: {name} is {array.dtype} {array.shape}, expected {np.dtype(dtype)} {shape}"
            )
        chunk = math.prod(array.chunks or ()) * array.dtype.itemsize
        if chunk > max(_LARGEST_CHUNK, array.nbytes // max(count, 1)):
            raise DatasetError(
                f"{path}: {name} is stored in chunks of {array.chunks}: at most {_LARGEST_CHUNK} "
                "bytes, or one image, are unpacked at once"
            )
        # All but the images is read at once: no more than the file holds.
        if name != "images" and array.id.get_storage_size() < array.nbytes:
            raise DatasetError(f"{path}: {name} is not stored plainly and in full")


def drawn_shapes(count: int, variables: int) -> dict[str, tuple[tuple[int, ...], Any]]:
    """The shapes and types of the arrays that a dataset of a causal model has beside the others.

    Args:
        count: the number of images.
        variables: the number of variables.
    """
    shapes = {
        "variables": ((count, variables), np.float32),
        "noise": ((count, variables, NOISE), np.float32),
        "targets": ((count, variables), np.uint8),
    }
    return {name: shapes.get(name, ((count,), np.int64)) for name in DRAWN}


def read_draws(file: Any, variables: int | None) -> Draws | None:
    """Read what was drawn of a causal model from a file whose arrays are checked.

    Args:
        file: the open file.
        variables: the number of variables; None where there is no model.
    """
    return None if variables is None else Draws(**{name: file[name][()] for name in DRAWN})


def join_draws(parts: Sequence[Draws | None]) -> Draws | None:
    """Join what was drawn of the images of several files; None where it is not all there."""
    whole = [part for part in parts if part is not None]
    if not whole or len(whole) < len(parts):
        return None
    return Draws(**{name: np.concatenate([getattr(p, name) for p in whole]) for name in DRAWN})


@dataclasses.dataclass(frozen=True)
class Shard:
    """A shard's arrays, read and checked.

    Attributes:
        interval: the images' numbers.
        images: the images, (k, H, W, 3) uint8.
        raw_latents: their raw latents, (k, 10) float32.
        latents: their latents, (k, 10) float32.
        sums: the sums over the images.
        attributes: all attributes of the file.
        draws: what was drawn of a causal model; None where there is none.
    """

    interval: Interval
    images: npt.NDArray[np.uint8]
    raw_latents: npt.NDArray[np.float32]
    latents: npt.NDArray[np.float32]
    sums: ImageSums
    attributes: Mapping[str, Any]
    draws: Draws | None = None


def read_shard(
    path: Path,
    *,
    resolution: int,
    fingerprint: str | None = None,
    variables: int | None = None,
) -> Shard:
    """Read a whole shard and check it: form, indices, checksums.

    Args:
        path: the shard's file.
        resolution: the pixels along each side of an image.
        fingerprint: the fingerprint of the dataset's settings; None: any.
        variables: the number of variables of the causal model; None where there is none.

    Raises:
        DatasetError: the shard is damaged, foreign, or of other settings.
    """
    interval = parse_name(path.name)
    if interval is None:
        raise DatasetError(f"{path} is not named like a shard")
    with open_hdf5(path) as file:
        attributes = read_attributes(file)
        if attributes.get("format") != FORMAT or attributes.get("format_version") != FORMAT_VERSION:
            raise DatasetError(f"{path} is not a shard of format version {FORMAT_VERSION}")
        if fingerprint is not None and attributes.get("fingerprint") != fingerprint:
            raise DatasetError(f"{path} belongs to a dataset with other settings")
        check_arrays(file, path, interval.count, resolution, variables)
        names = ARRAYS if variables is None else (*ARRAYS, *DRAWN)
        arrays = {name: file[name][()] for name in names}
        for name, array in arrays.items():
            if attributes.get(CHECKSUM + name) != checksum(array):
                raise DatasetError(f"{path}: the checksum of {name} does not match its content")
        sums = parse_sums(attributes)
    if not np.array_equal(arrays["index"], interval.indices):
        raise DatasetError(f"{path}: its indices are not {interval.first}..{interval.stop - 1}")
    return Shard(
        interval,
        arrays["images"],
        arrays["raw_latents"],
        arrays["latents"],
        sums,
        attributes,
        None if variables is None else Draws(**{name: arrays[name] for name in DRAWN}),
    )


def read_sums(path: Path) -> ImageSums:
    """Read the sums that a shard's attributes hold.

    Raises:
        DatasetError: the file or an attribute is unreadable.
    """
    with open_hdf5(path) as file:
        return parse_sums(read_attributes(file))


def read_part(path: Path, interval: Interval) -> Part:
    """Read the record of a shard.

    Args:
        path: the shard's file.
        interval: its images.

    Raises:
        DatasetError: the file or an attribute is unreadable.
    """
    with open_hdf5(path) as file:
        return Part.of(interval, read_attributes(file))
