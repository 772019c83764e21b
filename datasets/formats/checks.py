"""Checks of a dataset in any form against its own record: checksums, latents, what drew them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.datasets.formats.source import Float32, ImageSource, Source, UInt8
from threedident.errors import DatasetError, ThreeDIdentError
from threedident.latents import latents_digest
from threedident.progress import Progress
from threedident.render.scene import SceneBuilder
from threedident.storage.directory import DatasetDir
from threedident.storage.manifest import Manifest
from threedident.storage.shard_plan import Interval, default_shard_size, missing_intervals
from threedident.storage.shard_record import Part, checksum
from threedident.storage.statistics import ImageSums, statistics
from threedident.version import toolkit_version


def manifest_of(source: Source, command: str | None = None) -> Manifest:
    """The manifest of a dataset; where its form has none, that of an import.

    Raises:
        DatasetError: the images are not square.
    """
    return imported(source, command) if source.manifest is None else source.manifest


def imported(source: Source, command: str | None = None) -> Manifest:
    """The manifest of an import: of images and latents about which nothing else is known.

    The latents are given, the engine is "imported", the preset maps nothing.

    Raises:
        DatasetError: the images are not square.
    """
    height, width = source.shape[:2]
    if height != width:
        raise DatasetError(f"the images are {width} x {height}, expected square ones")
    settings = {
        "preset": None,
        "mesh_sha256": None,
        "seed": None,
        "split": None,
        "latents": {
            "source": "imported",
            "count": len(source),
            "sha256": latents_digest(source.raw_latents),
            "scene_sha256": latents_digest(source.latents),
        },
        "resolution": height,
        "engine": {"name": "imported", "version": "", "device": "", "quality": ""},
    }
    return Manifest.new(settings, default_shard_size(height), "none", {}, command)


def intervals_of(source: ImageSource) -> list[Interval]:
    """The stretches to read a dataset in: those of its shards, where they are recorded."""
    recorded = [part.interval for part in source.parts()]
    return recorded or missing_intervals(len(source), default_shard_size(source.shape[0]), [])


def checked_blocks(source: Source) -> Iterator[tuple[Part, UInt8]]:
    """Read and check all images of a dataset, a stretch at a time, with the record of each.

    Raises:
        DatasetError: an image cannot be read, or is not what the dataset says that it is.
    """
    checks = Checks(source)
    recorded = {part.interval: part for part in source.parts()}
    for interval in intervals_of(source):
        images = source.images(interval.indices)
        checks.check(interval, images)
        yield recorded.get(interval) or new_part(source, interval, images), images
    checks.check_whole()


def require_sound(source: Source) -> None:
    """Check a whole dataset, before it is written in a form that is not checked on the way.

    Raises:
        DatasetError: an image cannot be read, or is not what the dataset says that it is.
    """
    with Progress("checking", len(source)) as progress:
        checks = Checks(source)
        for interval in intervals_of(source):
            checks.check(interval, source.images(interval.indices))
            progress.advance(interval.count)
        checks.check_whole()


def measure(source: ImageSource) -> dict[str, Any]:
    """Measure the statistics of all images, from the images.

    Raises:
        DatasetError: one cannot be read.
    """
    sums = ImageSums()
    with Progress("measuring", len(source)) as progress:
        for interval in intervals_of(source):
            images = source.images(interval.indices)
            if isinstance(source, Source):
                sums = sums + new_part(source, interval, images).sums
            else:
                sums = sums + ImageSums.of(images, np.full(len(images), np.nan))
            progress.advance(interval.count)
    return statistics(sums)


class Checks:
    """Checks of a dataset's images and latents against the records that its form keeps of them.

    Attributes:
        done: the checks that are made, a line each.
        left: the checks that cannot be made, and why, a line each.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._parts = {part.interval: part for part in source.parts()}
        self._dataset: DatasetDir | None = None
        self.done = ["every image can be read"]
        self.left: list[str] = []
        if self._parts:
            self.done.append("images and latents have the checksums of the shards that they were")
        else:
            self.left.append("pixels: this form was written without checksums of them")
        manifest = source.manifest
        if manifest is None:
            self.left.append("latents: what drew them is not recorded")
        elif manifest.preset is None:
            self.done.append("latents are those that were imported")
        elif source.given() is None and manifest.settings["latents"]["source"] == "file":
            self.left.append("latents: not all of those that were given to render are kept")
        else:
            self.done.append("latents are those that the settings give")
            self._dataset = DatasetDir(source.root, manifest, source.given())

    def check(self, interval: Interval, images: UInt8) -> None:
        """Check a stretch of images and their latents.

        Args:
            interval: the stretch.
            images: its images, (k, H, W, 3).

        Raises:
            DatasetError: they are not those recorded.
        """
        source, window = self._source, slice(interval.first, interval.stop)
        raw, scene = source.raw_latents[window], source.latents[window]
        if interval in self._parts:
            arrays: Mapping[str, npt.NDArray[Any]]
            arrays = {"images": images, "raw_latents": raw, "latents": scene}
            self._parts[interval].check(arrays, str(source.root))
        if self._dataset is not None:
            held = None if source.draws is None else source.draws[window]
            self._dataset.check_rows(interval, raw, scene, str(source.root), held)

    def check_whole(self) -> None:
        """Check the latents as a whole.

        Raises:
            DatasetError: they are not those recorded.
        """
        source = self._source
        if source.manifest is not None:
            check_imported(source.manifest, source.raw_latents, source.latents, str(source.root))


def check_imported(manifest: Manifest, raw: Float32, scene: Float32, where: str) -> None:
    """Check that the latents of an imported dataset are those imported, where all are there.

    Raises:
        DatasetError: they are not.
    """
    latents = manifest.settings["latents"]
    if latents["source"] != "imported" or len(raw) != latents["count"]:
        return
    digests = (latents_digest(raw), latents_digest(scene))
    if digests != (latents["sha256"], latents["scene_sha256"]):
        raise DatasetError(f"{where}: the latents are not those imported")


def new_part(source: Source, interval: Interval, images: UInt8) -> Part:
    """The record of a stretch of images that was no shard before."""
    window = slice(interval.first, interval.stop)
    raw, scene = source.raw_latents[window], source.latents[window]
    arrays: Mapping[str, npt.NDArray[Any]] = {
        "images": images,
        "raw_latents": raw,
        "latents": scene,
    }
    # Where several shards are cut anew, all that rendered them is named.
    touched = [
        part.provenance
        for part in source.parts()
        if part.interval.first < interval.stop and part.interval.stop > interval.first
    ]
    names = dict.fromkeys(name for each in touched for name in each)
    provenance = {
        name: ", ".join(dict.fromkeys(each[name] for each in touched if name in each))
        for name in names
    }
    return Part(
        interval,
        {name: checksum(array) for name, array in arrays.items()},
        provenance or {"device": "", "toolkit_version": toolkit_version()},
        ImageSums.of(images, _share_in_frame(source, window)),
    )


def _share_in_frame(source: Source, window: slice) -> npt.NDArray[np.float64]:
    """The share of the object that lies in the frame, (N,); NaN where the object is not known."""
    manifest, scene = source.manifest, source.latents[window]
    preset = manifest.preset if manifest else None
    if manifest is not None and preset is not None and not preset.mesh_files:
        rows = manifest.scene_rows(scene, source.draws[window] if source.draws else None)
        with contextlib.suppress(ThreeDIdentError):
            return np.asarray(SceneBuilder(preset).share_in_frame(rows))
    return np.full(len(scene), np.nan)
