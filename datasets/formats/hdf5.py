"""A dataset in one HDF5 file: the shards' arrays joined, and the manifest in an attribute."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import numpy.typing as npt

from threedident.errors import DatasetError
from threedident.factors import NUM_FACTORS
from threedident.progress import Progress
from threedident.storage.atomic_files import check_space, explaining_write_errors, replacing
from threedident.storage.directory import STATS, DatasetDir
from threedident.storage.manifest import Manifest, parse_manifest
from threedident.storage.shard_record import Part, checksum, parse_parts
from threedident.storage.shards import (
    check_arrays,
    open_hdf5,
    read_attributes,
    safe_array,
    storage_options,
    write_text,
)

if TYPE_CHECKING:
    from threedident.datasets.formats.sources import Source

Float32 = npt.NDArray[np.float32]

FORMAT = "3dident-packed"
FORMAT_VERSION = 1
#: An array of the text of a JSON document: what the shards said of their images.
SHARDS = "shards"
_SHARDS_CHECKSUM = "sha256_shards"
WANTED = "wanted"


def pack(
    dataset: DatasetDir | Source,
    out: Path,
    *,
    compression: str | None = None,
    command: str | None = None,
) -> int:
    """Joins a dataset into one file, checking it on the way.

    Args:
        dataset: in any form; complete from image 0 on.
        out: the file; it must not exist.
        compression: none or gzip; None takes the dataset's.
        command: the command that an import records as what made it; None: "Python".

    Returns:
        How many images it holds.

    Raises:
        DatasetError: images are missing, a shard is corrupt, the file exists, or the disk
            is full.
    """
    from threedident.datasets.checking import checked_blocks, manifest_of
    from threedident.datasets.formats.sources import ShardSource

    if out.exists():
        raise DatasetError(f"{out} exists already: remove it, or choose another --out")
    source = ShardSource(dataset.root) if isinstance(dataset, DatasetDir) else dataset
    manifest = manifest_of(source, command)
    stats = source.stats()
    total, side = len(source), manifest.resolution
    shapes: dict[str, tuple[tuple[int, ...], type]] = {
        "images": ((total, side, side, 3), np.uint8),
        "raw_latents": ((total, NUM_FACTORS), np.float32),
        "latents": ((total, NUM_FACTORS), np.float32),
        "index": ((total,), np.int64),
    }
    with explaining_write_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        out.parent.stat()
    compression = compression or manifest.compression
    if compression == "none":
        check_space(out.parent, total * side**2 * 3, "Make room, or pack with --compression gzip")
    parts = []
    with (
        replacing(out) as temporary,
        h5py.File(temporary, "w", libver="v110") as file,
        Progress("packing", total) as progress,
    ):
        for name, (shape, dtype) in shapes.items():
            options = storage_options(name, shape, compression)
            file.create_dataset(name, shape=shape, dtype=dtype, **options)
        for part, images in checked_blocks(source):
            window = slice(part.interval.first, part.interval.stop)
            # HDF5 does not survive a disk that fills up below it: stop while there is room.
            check_space(out.parent, 2 * images.nbytes, "Make room, then pack again")
            file["images"][window] = images
            parts.append(part.as_dict())
            progress.advance(part.interval.count)
        file["raw_latents"][:] = source.raw_latents
        file["latents"][:] = source.latents
        file["index"][:] = np.arange(total)
        text = np.frombuffer(json.dumps(parts).encode(), np.uint8)
        file.create_dataset(SHARDS, data=text)
        write_text(file, _SHARDS_CHECKSUM, checksum(text))
        write_text(file, "format", FORMAT)
        file.attrs["format_version"] = FORMAT_VERSION
        write_text(file, "manifest", json.dumps(manifest.as_dict()))
        if stats is not None:
            write_text(file, STATS, json.dumps(stats))
        if source.wanted() is not None:
            file.attrs[WANTED] = source.wanted()
    return total


@dataclasses.dataclass(frozen=True)
class Header:
    """What a packed file holds, but for its images.

    Attributes:
        manifest: what made it.
        raw_latents, latents: (N, 10) float32.
        stats: what `3dident stats` says; None where it is not recorded.
        parts: the shards that were packed; empty in files of older versions.
        wanted: how many images were asked for; None where it is not recorded.
    """

    manifest: Manifest
    raw_latents: Float32
    latents: Float32
    stats: dict[str, Any] | None
    parts: tuple[Part, ...]
    wanted: int | None


def read_header(path: Path) -> Header:
    """What a packed file holds, but for its images.

    Raises:
        DatasetError: it is not one, or it is damaged.
    """
    with open_hdf5(path) as file:
        said = read_attributes(file)
        if said.get("format") != FORMAT or said.get("format_version") != FORMAT_VERSION:
            raise DatasetError(
                f"{path} is not a dataset packed by `3dident pack` (format {FORMAT_VERSION})"
            )
        try:
            manifest = parse_manifest(json.loads(said["manifest"]), path)
            stats = json.loads(said[STATS]) if STATS in said else None
        except json.JSONDecodeError as error:
            raise DatasetError(
                f"{path} is damaged: its manifest or statistics are not JSON: {error}"
            ) from error
        index = safe_array(file, "index", path)
        if index.ndim != 1:
            raise DatasetError(f"{path} is damaged: index has {index.ndim} dimensions")
        count = len(index)
        check_arrays(file, path, count, manifest.resolution)
        if not np.array_equal(index[()], np.arange(count)):
            raise DatasetError(f"{path} is damaged: its indices are not 0 to {count - 1}")
        wanted = said.get(WANTED)
        if wanted is not None and not (isinstance(wanted, np.integer) and wanted > 0):
            raise DatasetError(f"{path} is damaged: the number of images wanted is {wanted!r:.100}")
        return Header(
            manifest=manifest,
            raw_latents=file["raw_latents"][()],
            latents=file["latents"][()],
            stats=stats,
            parts=_read_parts(file, path, count, said.get(_SHARDS_CHECKSUM)),
            wanted=None if wanted is None else int(wanted),
        )


def _read_parts(file: Any, path: Path, count: int, digest: Any) -> tuple[Part, ...]:
    if digest is None and SHARDS not in file:
        return ()  # packed by an older version
    array = safe_array(file, SHARDS, path)
    plain = array.ndim == 1 and array.dtype == np.uint8
    if not plain or array.id.get_storage_size() < array.nbytes:
        raise DatasetError(f"{path} is damaged: {SHARDS} is no text that is stored plainly")
    text = array[()]
    if checksum(text) != digest:
        raise DatasetError(f"{path} is damaged: the checksum of {SHARDS} does not match")
    try:
        return parse_parts(json.loads(text.tobytes()), count)
    except (
        *(KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError),
    ) as error:
        raise DatasetError(
            f"{path} is damaged: what it says of its shards does not fit: {error!r:.200}"
        ) from error
