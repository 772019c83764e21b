"""The two forms in HDF5: a directory of shards, and one packed file with the shards' arrays joined.

A packed file keeps the manifest in an attribute. How one shard is written is in
`threedident.storage.shards`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
from collections.abc import Collection
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from threedident.datasets.formats._image_stacks import ImageStack, StackSource
from threedident.datasets.formats.checks import (
    Checks,
    checked_blocks,
    imported,
    manifest_of,
    new_part,
    require_sound,
)
from threedident.datasets.formats.source import (
    WRONG_SHAPE,
    Float32,
    ImageSource,
    Origin,
    Source,
    UInt8,
)
from threedident.errors import DatasetError
from threedident.factors import NUM_FACTORS
from threedident.presets import Preset
from threedident.progress import Progress
from threedident.storage.atomic_files import (
    check_space,
    explaining_write_errors,
    read_json,
    replacing,
)
from threedident.storage.directory import STATS, DatasetDir
from threedident.storage.manifest import Manifest, parse_manifest
from threedident.storage.shard_plan import Interval, missing_intervals, require_complete
from threedident.storage.shard_record import DRAWN, Part, checksum, parse_parts
from threedident.storage.shards import (
    check_arrays,
    join_draws,
    open_hdf5,
    read_attributes,
    read_draws,
    read_part,
    safe_array,
    storage_options,
    write_shard,
    write_text,
)

FORMAT = "3dident-packed"
FORMAT_VERSION = 1
#: An array of the text of a JSON document: the shards' records of their images.
SHARDS = "shards"
_SHARDS_CHECKSUM = "sha256_shards"
WANTED = "wanted"
#: The way to complete an import that is not whole.
IMPORT_AGAIN = "import it again from what it was imported from (`3dident convert --to shards`)"


class ShardSource(StackSource, Source):
    """A dataset directory, whose shards are complete from image 0 on."""

    form = "shards"

    def __init__(self, root: Path) -> None:
        super().__init__()
        dataset = DatasetDir.open(root)
        self.root = root
        self.origin = Origin(dataset.manifest)
        side = dataset.manifest.resolution
        self.shape = (side, side, 3)
        raw, latents = [], []
        variables, drawn = dataset.manifest.variable_count, []
        self._shards = dataset.shards()
        require_complete(root, self._shards, _cure(dataset))
        for interval, path in self._shards.items():
            with open_hdf5(path) as file:
                check_arrays(file, path, interval.count, side, variables)
                raw.append(file["raw_latents"][()])
                latents.append(file["latents"][()])
                drawn.append(read_draws(file, variables))
                self._add(ImageStack.of(file, path, interval.first))
        self.raw_latents = np.concatenate(raw)
        self.latents = np.concatenate(latents)
        self.draws = join_draws(drawn)
        self._parts: tuple[Part, ...] | None = None

    def stats(self) -> dict[str, Any] | None:
        """The statistics in `stats.json`, or those that the shards' sums give."""
        with contextlib.suppress(DatasetError):
            stats = read_json(self.root / STATS)
            if _is_whole(stats, len(self)):
                return stats
        return DatasetDir.open(self.root).compute_stats()

    def parts(self) -> tuple[Part, ...]:
        """The shards' own records of their images."""
        if self._parts is None:
            self._parts = tuple(
                read_part(path, interval) for interval, path in self._shards.items()
            )
        return self._parts

    def wanted(self) -> int | None:
        """The number of images that was asked for."""
        return DatasetDir.open(self.root).wanted()

    def given(self) -> Float32 | None:
        """The raw latents that lie beside the shards."""
        return DatasetDir.open(self.root).given_latents()


def _cure(dataset: DatasetDir) -> str:
    """The advice for a dataset directory of which images are missing."""
    preset = dataset.manifest.preset
    if preset is None:
        return IMPORT_AGAIN
    wanted = None
    with contextlib.suppress(DatasetError):  # the command says what is wrong with the record
        wanted = dataset.wanted()
    return f"run `{extend_command(dataset.root, preset, wanted)}`"


def extend_command(root: Path | str, preset: Preset, wanted: int | None) -> str:
    """The command that renders the images that a dataset directory lacks.

    Args:
        root: the directory.
        preset: the dataset's preset.
        wanted: the number of images asked for; None where it is not recorded.
    """
    mesh = ""
    if preset.mesh_files:
        mesh = " --shape FOLDER" if preset.shape_table else " --shape FILE"
    count = "" if wanted else " --n N"
    return f"3dident render --extend {shlex.quote(str(root))}{mesh}{count}"


def _is_whole(stats: Any, count: int) -> bool:
    """Check that recorded statistics are those of `count` images, and complete."""
    if not isinstance(stats, dict) or stats.get("images") != count:
        return False
    numbers = [stats.get(name) for name in ("mean", "std_within_image")]
    return all(
        isinstance(each, list) and [type(value) for value in each] == 3 * [float]
        for each in numbers
    )


def to_shards(
    source: Source,
    out: Path,
    *,
    shard_size: int | None = None,
    compression: str | None = None,
    command: str | None = None,
) -> int:
    """Write a dataset as a directory of shards; finished shards are kept.

    The record of what made it is kept where its form has one, and everything is held against it:
    rendering can then go on in the directory. Where it has none, the dataset says so: its latents
    are given, its engine is "imported", its preset maps nothing.

    Args:
        source: the dataset.
        out: the directory to write.
        shard_size: images to a shard; None: the shards that there were, or the default.
        compression: none or gzip; None: as it was, or none.
        command: the command that an import records as what made it; None: "Python".

    Returns:
        The number of images in it.

    Raises:
        DatasetError: an image is missing, damaged or of another size, or the disk is full.
        UsageError: another process writes to the directory.
    """
    count, given = len(source), source.given()
    kept = _kept_manifest(source, given, out, command)
    manifest = dataclasses.replace(
        kept,
        shard_size=shard_size or kept.shard_size,
        compression=compression or kept.compression,
    )
    dataset = DatasetDir.create_or_open(
        out,
        manifest.settings,
        shard_size=manifest.shard_size,
        compression=manifest.compression,
        given=given,
        kept=manifest,
    )
    with dataset.only_render():
        wanted = count if kept.preset is None else source.wanted()
        if wanted is not None:
            dataset.record_wanted(wanted)
        parts = {part.interval: part for part in source.parts()}
        as_before = kept.shard_size == manifest.shard_size
        todo = _intervals_to_write(source, parts if as_before else {}, dataset, manifest)
        checks = Checks(source)
        finished = count - sum(interval.count for interval in todo)
        with Progress("writing", count, finished=finished) as progress:
            for interval in todo:
                images = source.images(interval.indices)
                checks.check(interval, images)
                part = parts.get(interval) or new_part(source, interval, images)
                _write_part(source, part, images, out, manifest)
                progress.advance(interval.count)
        checks.check_whole()
        dataset.write_stats()
    return count


def _intervals_to_write(
    source: Source, parts: Collection[Interval], dataset: DatasetDir, manifest: Manifest
) -> list[Interval]:
    """The intervals that a directory lacks: the source's parts, if its shards are such parts."""
    done = dataset.shards()
    if parts and set(done) <= set(parts):
        return [interval for interval in parts if interval not in done]
    todo = missing_intervals(len(source), manifest.shard_size, done)
    if todo and source.parts():
        require_sound(source)  # what is cut anew has checksums of its own
    return todo


def _kept_manifest(
    source: Source, given: Float32 | None, out: Path, command: str | None
) -> Manifest:
    """The manifest that goes along; that of an import where given latents are not all kept."""
    manifest = manifest_of(source, command)
    latents = manifest.settings["latents"]
    if latents["source"] != "file" or given is not None:
        return manifest
    Progress.print(
        f"{source.root} keeps {len(source)} of the {latents['count']} latents that "
        f"were given to render: {out} is written as an import, which cannot be gone on with, "
        "and does not say what rendered it"
    )
    return imported(source, command)


def _write_part(source: Source, part: Part, images: UInt8, out: Path, manifest: Manifest) -> None:
    """Write the shard of a stretch of images."""
    window = slice(part.interval.first, part.interval.stop)
    write_shard(
        out,
        part.interval,
        images=images,
        raw_latents=source.raw_latents[window],
        latents=source.latents[window],
        sums=part.sums,
        fingerprint=manifest.fingerprint,
        provenance=part.provenance,
        compression=manifest.compression,
        draws=source.draws[window] if manifest.sampling and source.draws else None,
    )


class PackedSource(StackSource, Source):
    """A dataset packed into one HDF5 file."""

    form = "packed"

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.root = path
        with open_hdf5(path) as file:
            self._read_header(file)
        with open_hdf5(path) as file:
            self._add(ImageStack.of(file, path, 0))

    def _read_header(self, file: Any) -> None:
        """Read all but the images.

        Raises:
            DatasetError: the file is no packed dataset, or damaged.
        """
        path, attributes = self.root, read_attributes(file)
        if attributes.get("format") != FORMAT or attributes.get("format_version") != FORMAT_VERSION:
            raise DatasetError(
                f"{path} is not a dataset packed by `3dident pack` (format {FORMAT_VERSION})"
            )
        try:
            manifest = parse_manifest(json.loads(attributes["manifest"]), path)
            self._stats = json.loads(attributes[STATS]) if STATS in attributes else None
        except json.JSONDecodeError as error:
            raise DatasetError(
                f"{path} is damaged: its manifest or statistics are not JSON: {error}"
            ) from error
        index = safe_array(file, "index", path)
        if index.ndim != 1:
            raise DatasetError(f"{path} is damaged: index has {index.ndim} dimensions")
        count, side = len(index), manifest.resolution
        check_arrays(file, path, count, side, manifest.variable_count)
        if not np.array_equal(index[()], np.arange(count)):
            raise DatasetError(f"{path} is damaged: its indices are not 0 to {count - 1}")
        wanted = attributes.get(WANTED)
        if wanted is not None and not (isinstance(wanted, np.integer) and wanted > 0):
            raise DatasetError(f"{path} is damaged: the number of images wanted is {wanted!r:.100}")
        self.shape = (side, side, 3)
        self.raw_latents, self.latents = file["raw_latents"][()], file["latents"][()]
        self.draws = read_draws(file, manifest.variable_count)
        parts = _read_parts(file, path, count, attributes.get(_SHARDS_CHECKSUM))
        self.origin = Origin(manifest, parts, None if wanted is None else int(wanted))

    def stats(self) -> dict[str, Any] | None:
        """The statistics that were packed with it; None where there are none."""
        return self._stats if _is_whole(self._stats, len(self)) else None


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
    except WRONG_SHAPE as error:
        raise DatasetError(
            f"{path} is damaged: what it says of its shards does not fit: {error!r:.200}"
        ) from error


def pack(
    dataset: DatasetDir | ImageSource,
    out: Path,
    *,
    compression: str | None = None,
    command: str | None = None,
) -> int:
    """Join a dataset into one file, checking it on the way.

    Args:
        dataset: a dataset in any form, complete from image 0 on. One that is none of 3DIdent's is
            packed with its own factors; see `threedident.datasets.papers.packed`.
        out: the file to write; it must not exist.
        compression: none or gzip; None: as the dataset has it.
        command: the command that an import records as what made it; None: "Python".

    Returns:
        The number of images in it.

    Raises:
        DatasetError: images are missing, a shard is corrupt, the file exists, or the disk
            is full.
    """
    if out.exists():
        raise DatasetError(f"{out} exists already: remove it, or choose another --out")
    source = ShardSource(dataset.root) if isinstance(dataset, DatasetDir) else dataset
    if not isinstance(source, Source):
        from threedident.datasets.papers.packed import pack_images

        return pack_images(source, out, compression=compression, command=command)
    manifest = manifest_of(source, command)
    stats = source.stats()
    total, side = len(source), manifest.resolution
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
        _create_arrays(file, total, side, compression)
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
        if manifest.sampling is not None and source.draws is not None:
            for name in DRAWN:
                file.create_dataset(name, data=getattr(source.draws, name))
        _write_record(file, source, manifest, parts, stats)
    return total


def _write_record(
    file: h5py.File,
    source: Source,
    manifest: Manifest,
    parts: list[dict[str, Any]],
    stats: dict[str, Any] | None,
) -> None:
    """Write the record of a packed file: manifest, shards, statistics and wanted number."""
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


def _create_arrays(file: h5py.File, count: int, side: int, compression: str) -> None:
    """Create the empty arrays of a packed file of `count` images of `side` pixels."""
    shapes: dict[str, tuple[tuple[int, ...], type]] = {
        "images": ((count, side, side, 3), np.uint8),
        "raw_latents": ((count, NUM_FACTORS), np.float32),
        "latents": ((count, NUM_FACTORS), np.float32),
        "index": ((count,), np.int64),
    }
    for name, (shape, dtype) in shapes.items():
        options = storage_options(name, shape, compression)
        file.create_dataset(name, shape=shape, dtype=dtype, **options)
