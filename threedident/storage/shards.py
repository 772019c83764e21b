"""Shard files: the images of a dataset, about a hundred to a file, in HDF5.

A shard holds `images` uint8 (k, H, W, 3), `raw_latents` and `latents` float32 (k, 10) and
`index` int64 (k,). It appears under its name only when it is whole; its attributes hold
checksums and the sums that a dataset's statistics are made of.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import hashlib
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from threedident.errors import DatasetError, ThreeDIdentError, UsageError
from threedident.factors import NUM_FACTORS
from threedident.storage.atomic_files import replacing

Array = npt.NDArray[Any]

FORMAT = "3dident-shard"
FORMAT_VERSION = 1
#: Stored plain, an image is one contiguous read, 17 times faster than through gzip (see
#: benchmarks/storage.py); gzip makes a dataset a fifth of the size.
COMPRESSIONS = ("none", "gzip")
ARRAYS = ("images", "raw_latents", "latents", "index")
_CHECKED = ("images", "raw_latents", "latents")

_NAME = re.compile(r"shard-(\d{8,})-(\d{5,})\.h5")
_CHECKSUM = "sha256_"
_GZIP_LEVEL = 4
_LARGEST_CHUNK = 1 << 24  # bytes that are unpacked to read an image


@dataclasses.dataclass(frozen=True, order=True)
class Interval:
    """Images first..first + count - 1."""

    first: int
    count: int

    @property
    def stop(self) -> int:
        """The image after the last."""
        return self.first + self.count

    @property
    def indices(self) -> range:
        """The images' numbers."""
        return range(self.first, self.stop)

    @property
    def file_name(self) -> str:
        """The shard's name."""
        return f"shard-{self.first:08d}-{self.count:05d}.h5"


def parse_name(name: str) -> Interval | None:
    """The images that a shard's file name promises; None for any other file."""
    match = _NAME.fullmatch(name)
    return Interval(int(match[1]), int(match[2])) if match else None


def list_shards(root: Path) -> dict[Interval, Path]:
    """The shard files of a dataset directory, by first image; no image twice.

    Two runs at once, asked for different numbers of images, can leave shards that overlap.
    Their content is the same; the larger one is taken.
    """
    named = ((parse_name(path.name), path) for path in root.iterdir())
    found = {interval: path for interval, path in named if interval is not None and interval.count}
    taken: list[Interval] = []
    for interval in sorted(found, key=lambda i: (-i.count, i.first)):
        place = bisect.bisect(taken, interval)
        before = place == 0 or taken[place - 1].stop <= interval.first
        if before and (place == len(taken) or interval.stop <= taken[place].first):
            taken.insert(place, interval)
    return {interval: found[interval] for interval in taken}


def gaps(shards: Iterable[Interval], total: int | None = None) -> list[tuple[int, int]]:
    """The images that are missing between and before shards, first to last of each gap.

    Args:
        shards: by first image.
        total: how many images there should be; None: those up to the last shard.
    """
    found, position = [], 0
    for interval in shards:
        if interval.first > position:
            found.append((position, interval.first - 1))
        position = max(position, interval.stop)
    if total is not None and position < total:
        found.append((position, total - 1))
    return found


def joined(stretches: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Stretches of images in order, those that touch made one."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(stretches):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found


def name_stretches(stretches: Sequence[tuple[int, int]], most: int = 10) -> str:
    """Stretches of images in words: images 3, 10 to 19 and 40 to 41."""
    words = [f"{a}" if a == b else f"{a} to {b}" for a, b in stretches[:most]]
    if len(stretches) > most:
        words.append(f"{len(stretches) - most} more stretches")
    text = " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
    single = len(stretches) == 1 and stretches[0][0] == stretches[0][1]
    return f"{'image' if single else 'images'} {text}"


def require_complete(root: Path, shards: Iterable[Interval], cure: str) -> int:
    """How many images there are, if they run from image 0 on without a gap.

    Args:
        root: where they lie.
        shards: by first image.
        cure: what to do where images are missing, for the error.

    Raises:
        DatasetError: images are missing, or there are none.
    """
    intervals = list(shards)
    missing = gaps(intervals)
    if missing:
        raise DatasetError(
            f"{root} lacks {name_stretches(missing)}: `3dident verify` says what else is wrong; "
            f"to complete it, {cure}"
        )
    if not intervals:
        raise DatasetError(f"{root} holds no finished shard yet: {cure}")
    return intervals[-1].stop


def missing_intervals(
    total: int,
    shard_size: int,
    finished: Iterable[Interval],
    *,
    part: int = 0,
    parts: int = 1,
) -> list[Interval]:
    """What is still to be rendered of images 0..total - 1, in intervals of one shard each.

    The images are cut into cells of `shard_size`; cell c belongs to part c mod `parts`, so
    that the members of a job array agree on who does what, whatever is finished when they
    start. A cell that is finished in part (the dataset was smaller once) is completed by
    shards for the rest of it.
    """
    cells: dict[int, list[Interval]] = {}
    for done in sorted(finished):
        for cell in range(done.first // shard_size, (done.stop - 1) // shard_size + 1):
            cells.setdefault(cell, []).append(done)
    missing = []
    for cell in range(part, -(-total // shard_size), parts):
        position, end = cell * shard_size, min((cell + 1) * shard_size, total)
        for done in cells.get(cell, []):
            if done.first > position:
                missing.append(Interval(position, min(done.first, end) - position))
            position = max(position, done.stop)
            if position >= end:
                break
        if position < end:
            missing.append(Interval(position, end - position))
    return missing


@dataclasses.dataclass
class ImageSums:
    """Sums over images from which a dataset's statistics are made; they add up.

    Attributes:
        count: how many images.
        pixels: how many pixels of one channel.
        total, squares: per channel, over all pixels in 0..255.
        deviations: per channel, the sum over images of the standard deviation within one.
        in_frame: the sum over images of the share of the object's vertices in the frame.
        whole: how many images have all of them in it.
    """

    count: int = 0
    pixels: int = 0
    total: Array = dataclasses.field(default_factory=lambda: np.zeros(3, np.int64))
    squares: Array = dataclasses.field(default_factory=lambda: np.zeros(3, np.int64))
    deviations: Array = dataclasses.field(default_factory=lambda: np.zeros(3))
    in_frame: float = 0.0
    whole: int = 0

    @classmethod
    def of(cls, images: npt.NDArray[np.uint8], in_frame: Array) -> ImageSums:
        """The sums of images (k, H, W, 3) and their shares in the frame (k,)."""
        sums = cls(len(images))
        sums.in_frame, sums.whole = float(in_frame.sum()), int((in_frame == 1).sum())
        for image in images:
            values = image.reshape(-1, 3).astype(np.int64)
            total, squares = values.sum(0), (values**2).sum(0)
            sums.pixels += len(values)
            sums.total = sums.total + total
            sums.squares = sums.squares + squares
            mean = total / len(values)
            sums.deviations = sums.deviations + np.sqrt(
                np.maximum(squares / len(values) - mean**2, 0)
            )
        return sums

    def __add__(self, other: ImageSums) -> ImageSums:
        return ImageSums(
            **{
                field.name: getattr(self, field.name) + getattr(other, field.name)
                for field in dataclasses.fields(self)
            }
        )


def checksum(array: Array) -> str:
    """SHA-256 of an array's bytes in C order."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


@dataclasses.dataclass(frozen=True)
class Part:
    """What a shard says of its images, for the forms of a dataset that have no shards.

    Attributes:
        interval: which images they are.
        checksums: SHA-256 of images, raw_latents and latents.
        provenance: what rendered them, as in `write_shard`.
        sums: of the images.
    """

    interval: Interval
    checksums: Mapping[str, str]
    provenance: Mapping[str, str]
    sums: ImageSums

    @classmethod
    def of(cls, interval: Interval, attributes: Mapping[str, Any]) -> Part:
        """That of a shard with these attributes.

        Raises:
            KeyError, TypeError, ValueError: one is missing or does not fit.
        """
        known = {"format", "fingerprint", *(_CHECKSUM + name for name in ARRAYS)}
        provenance = {
            name: value
            for name, value in attributes.items()
            if isinstance(value, str) and name not in known
        }
        checksums = {name: attributes[_CHECKSUM + name] for name in _CHECKED}
        return cls(interval, checksums, provenance, _read_sums(attributes))

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        sums = {name: np.asarray(value).tolist() for name, value in vars(self.sums).items()}
        if math.isnan(self.sums.in_frame):
            sums["in_frame"] = None
        return {
            "first": self.interval.first,
            "count": self.interval.count,
            "sha256": dict(self.checksums),
            "provenance": dict(self.provenance),
            "sums": sums,
        }

    def check(self, arrays: Mapping[str, Array], where: str) -> None:
        """Checks that these are its images and latents; an error calls them `where`.

        Raises:
            DatasetError: they are not.
        """
        for name, digest in self.checksums.items():
            if checksum(arrays[name]) != digest:
                raise DatasetError(
                    f"{where}: the checksum of {name} does not match the content of images "
                    f"{self.interval.first} to {self.interval.stop - 1}"
                )


def parse_parts(data: Any, total: int) -> tuple[Part, ...]:
    """The parts of a dataset of `total` images, from what their `as_dict` gave.

    Raises:
        KeyError, TypeError, ValueError: they are none, or not of these images.
    """
    parts, position = [], 0
    for each in data:
        interval = Interval(each["first"], each["count"])
        if type(interval.first) is not int or type(interval.count) is not int:
            raise TypeError("first and count of a shard are whole numbers")
        if interval.first != position or interval.count < 1:
            raise ValueError(f"the shard at image {position} is missing")
        position = interval.stop
        sums = dict(each["sums"])
        if sums["in_frame"] is None:
            sums["in_frame"] = math.nan
        attributes = {f"sum_{name}": value for name, value in sums.items()}
        for prefix, texts in ((_CHECKSUM, each["sha256"]), ("", each["provenance"])):
            for name, text in dict(texts).items():
                if not isinstance(text, str):
                    raise TypeError(f"{name} of a shard is {text!r:.100}")
                attributes[prefix + name] = text
        part = Part.of(interval, attributes)
        if part.sums.count != interval.count:
            raise ValueError(f"the shard at image {interval.first} has sums of other images")
        parts.append(part)
    if position != total:
        raise ValueError(f"the shards hold {position} images, not {total}")
    return tuple(parts)


def read_part(path: Path, interval: Interval) -> Part:
    """What a shard says of its images.

    Raises:
        DatasetError: the file or an attribute is unreadable.
    """
    with open_hdf5(path) as file:
        return Part.of(interval, read_attributes(file))


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
) -> Path:
    """Writes a shard: under a temporary name first, renamed when it is whole.

    Args:
        root: the dataset's directory.
        interval: which images these are.
        images: (k, H, W, 3).
        raw_latents: (k, 10).
        latents: (k, 10).
        sums: of these images.
        fingerprint: of the dataset's settings.
        provenance: what rendered them: device, engine version, toolkit version, processor.
        compression: none or gzip.

    Raises:
        DatasetError: the disk is full or cannot be written to.
    """
    path = root / interval.file_name
    arrays: dict[str, Array] = {
        "images": images,
        "raw_latents": raw_latents,
        "latents": latents,
        "index": np.array(interval.indices, np.int64),
    }
    # In memory first: HDF5 does not recover from a disk that fills up below it.
    content = io.BytesIO()
    with h5py.File(content, "w", libver="v110") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, **storage_options(name, array.shape, compression))
            write_text(file, _CHECKSUM + name, checksum(array))
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


def default_shard_size(resolution: int) -> int:
    """A hundred images; fewer where they are large, for about the same number of bytes."""
    return max(1, min(100, round(100 * (224 / resolution) ** 2)))


def storage_options(name: str, shape: tuple[int, ...], compression: str) -> dict[str, Any]:
    """How an array is laid out: contiguous, or images compressed one by one.

    Raises:
        UsageError: an unknown compression.
    """
    if compression not in COMPRESSIONS:
        raise UsageError(
            f"unknown compression {compression!r}: expected one of {', '.join(COMPRESSIONS)}"
        )
    if name != "images" or compression == "none":
        return {}
    return {"chunks": (1, *shape[1:]), "compression": "gzip", "compression_opts": _GZIP_LEVEL}


@contextlib.contextmanager
def open_hdf5(path: Path) -> Iterator[Any]:
    """An HDF5 file, read-only.

    Raises:
        DatasetError: it cannot be opened, or reading from it fails.
    """
    try:
        with h5py.File(path, "r", locking=False) as file:
            yield file
    except (
        *(OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError),
    ) as error:
        if isinstance(error, ThreeDIdentError):
            raise
        raise DatasetError(f"{path} {_why_unreadable(path)} ({error})") from error


def _why_unreadable(path: Path) -> str:
    """What is wrong with a file that HDF5 does not read, and what to do."""
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
    """Writes an attribute of fixed length, which lies in the file's header.

    HDF5 looks at the header's checksum. Strings of free length lie elsewhere, without one, and a
    flipped bit there can keep HDF5 busy for ever.
    """
    content = text.encode()
    kind = h5py.string_dtype("utf-8", max(1, len(content)))
    file.attrs.create(name, np.array(content, kind), dtype=kind)


def read_attributes(file: Any) -> dict[str, Any]:
    """A file's attributes, strings as str.

    Raises:
        UnicodeDecodeError: one is not UTF-8.
    """
    return {k: v.decode() if isinstance(v, bytes) else v for k, v in file.attrs.items()}


def safe_array(file: Any, name: str, path: Path) -> Any:
    """One of a file's arrays, if it is stored in the file itself and in a form we write.

    A foreign HDF5 file can name other files on the disk (external storage, links, virtual
    datasets) and filters that run plugins; none of that is followed.

    Raises:
        DatasetError: the array is missing or stored in another way.
    """
    # Names are looked up below h5py: what it says of a link, it says once it has followed it.
    links, key = file.id.links, name.encode()
    if not links.exists(key):
        raise DatasetError(f"{path} lacks the array {name!r}: expected {', '.join(ARRAYS)}")
    if links.get_info(key).type != h5py.h5l.TYPE_HARD:
        raise DatasetError(f"{path}: {name!r} is a link to elsewhere, which is not followed")
    array = file[name]
    if not isinstance(array, h5py.Dataset):
        raise DatasetError(f"{path}: {name!r} is not an array")
    if array.is_virtual or array.external:
        raise DatasetError(f"{path}: {name!r} is stored in other files, which are not read")
    plist = array.id.get_create_plist()
    filters = [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]
    if any(code != h5py.h5z.FILTER_DEFLATE for code in filters):
        raise DatasetError(f"{path}: {name!r} uses HDF5 filters {filters}; only gzip is read")
    return array


def check_arrays(file: Any, path: Path, count: int, resolution: int) -> None:
    """Checks that the four arrays are there, with the shapes and types of the format.

    Raises:
        DatasetError: one does not fit.
    """
    expected = {
        "images": ((count, resolution, resolution, 3), np.uint8),
        "raw_latents": ((count, NUM_FACTORS), np.float32),
        "latents": ((count, NUM_FACTORS), np.float32),
        "index": ((count,), np.int64),
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


@dataclasses.dataclass(frozen=True)
class Shard:
    """A shard's arrays, read and checked.

    Attributes:
        interval: which images these are.
        images: (k, H, W, 3) uint8.
        raw_latents, latents: (k, 10) float32.
        sums: of the images.
        attributes: everything the file says of itself.
    """

    interval: Interval
    images: npt.NDArray[np.uint8]
    raw_latents: npt.NDArray[np.float32]
    latents: npt.NDArray[np.float32]
    sums: ImageSums
    attributes: Mapping[str, Any]


def read_shard(path: Path, *, resolution: int, fingerprint: str | None = None) -> Shard:
    """Reads a whole shard and checks it: form, indices, checksums.

    Raises:
        DatasetError: what is wrong with it.
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
        check_arrays(file, path, interval.count, resolution)
        arrays = {name: file[name][()] for name in ARRAYS}
        for name, array in arrays.items():
            if attributes.get(_CHECKSUM + name) != checksum(array):
                raise DatasetError(f"{path}: the checksum of {name} does not match its content")
        sums = _read_sums(attributes)
    if not np.array_equal(arrays["index"], interval.indices):
        raise DatasetError(f"{path}: its indices are not {interval.first}..{interval.stop - 1}")
    return Shard(
        interval, arrays["images"], arrays["raw_latents"], arrays["latents"], sums, attributes
    )


def read_sums(path: Path) -> ImageSums:
    """The sums that a shard's attributes hold.

    Raises:
        DatasetError: the file or an attribute is unreadable.
    """
    with open_hdf5(path) as file:
        return _read_sums(read_attributes(file))


def _read_sums(attributes: Mapping[str, Any]) -> ImageSums:
    values: dict[str, Any] = {}
    for name, empty in vars(ImageSums()).items():
        value, expected = np.asarray(attributes[f"sum_{name}"]), np.asarray(empty)
        if value.shape != expected.shape or value.dtype.kind != expected.dtype.kind:
            raise ValueError(f"sum_{name} is {value.dtype} {value.shape}")
        values[name] = value if value.ndim else value.item()
    sums = ImageSums(**values)
    limits = (255.0 * sums.pixels, 255.0**2 * sums.pixels, 255.0 * sums.count)
    for sum_, limit in zip((sums.total, sums.squares, sums.deviations), limits, strict=True):
        if not (limit > 0 and (sum_ >= 0).all() and (sum_ <= limit).all()):
            raise ValueError(f"there are no images with such sums: {sums}")
    if not (math.isnan(sums.in_frame) or 0 <= sums.in_frame <= sums.count):
        raise ValueError(f"there are no images with such sums: {sums}")
    return sums
