"""A dataset in one HDF5 file: the shards' arrays joined, and the manifest in an attribute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from threedident.errors import DatasetError
from threedident.factors import NUM_FACTORS
from threedident.files import check_space, explaining_write_errors, replacing
from threedident.progress import Progress
from threedident.shards import (
    check_arrays,
    open_hdf5,
    read_attributes,
    read_shard,
    require_complete,
    safe_array,
    storage_options,
    write_text,
)
from threedident.store import STATS, DatasetDir, Manifest, parse_manifest

Float32 = npt.NDArray[np.float32]

FORMAT = "3dident-packed"
FORMAT_VERSION = 1


def pack(dataset: DatasetDir, out: Path, *, compression: str | None = None) -> int:
    """Joins a dataset's shards into one file, checking each on the way.

    Args:
        dataset: complete from image 0 on.
        out: the file; it must not exist.
        compression: none or gzip; None takes the dataset's.

    Returns:
        How many images it holds.

    Raises:
        DatasetError: images are missing, a shard is corrupt, the file exists, or the disk
            is full.
    """
    if out.exists():
        raise DatasetError(f"{out} exists already: remove it, or choose another --out")
    manifest = dataset.manifest
    shards = dataset.shards()
    total = require_complete(dataset.root, shards)
    side = manifest.resolution
    shapes: dict[str, tuple[tuple[int, ...], type]] = {
        "images": ((total, side, side, 3), np.uint8),
        "raw_latents": ((total, NUM_FACTORS), np.float32),
        "latents": ((total, NUM_FACTORS), np.float32),
        "index": ((total,), np.int64),
    }
    with explaining_write_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    if (compression or manifest.compression) == "none":
        check_space(out.parent, total * side**2 * 3, "Make room, or pack with --compression gzip")
    with (
        replacing(out) as temporary,
        h5py.File(temporary, "w", libver="v110") as file,
        Progress("packing", total) as progress,
    ):
        for name, (shape, dtype) in shapes.items():
            options = storage_options(name, shape, compression or manifest.compression)
            file.create_dataset(name, shape=shape, dtype=dtype, **options)
        for interval, path in shards.items():
            shard = read_shard(path, resolution=side, fingerprint=manifest.fingerprint)
            window = slice(interval.first, interval.stop)
            # HDF5 does not survive a disk that fills up below it: stop while there is room.
            check_space(out.parent, 2 * shard.images.nbytes, "Make room, then pack again")
            file["images"][window] = shard.images
            file["raw_latents"][window] = shard.raw_latents
            file["latents"][window] = shard.latents
            file["index"][window] = np.array(interval.indices)
            progress.advance(interval.count)
        write_text(file, "format", FORMAT)
        file.attrs["format_version"] = FORMAT_VERSION
        write_text(file, "manifest", json.dumps(manifest.as_dict()))
        write_text(file, STATS, json.dumps(dataset.compute_stats()))
    return total


def read_header(path: Path) -> tuple[Manifest, Float32, Float32, dict[str, Any] | None]:
    """The manifest, raw latents, latents and statistics of a packed file.

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
        check_arrays(file, path, len(index), manifest.resolution)
        return manifest, file["raw_latents"][()], file["latents"][()], stats
