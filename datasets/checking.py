"""What a dataset in any form says of itself, held against what it holds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.datasets.formats.sources import Source, read_images
from threedident.errors import DatasetError, ThreeDIdentError
from threedident.latents import latents_digest
from threedident.progress import Progress
from threedident.render.mesh import SHAPES
from threedident.render.scene import SceneBuilder
from threedident.storage.directory import DatasetDir
from threedident.storage.manifest import Manifest
from threedident.storage.shard_plan import Interval, default_shard_size, missing_intervals
from threedident.storage.shard_record import Part, checksum
from threedident.storage.statistics import ImageSums, statistics
from threedident.version import toolkit_version

UInt8 = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]


def manifest_of(source: Source, command: str | None = None) -> Manifest:
    """What made a dataset; where its form does not say, a manifest that says just that.

    Raises:
        DatasetError: the images are not square.
    """
    return imported(source, command) if source.manifest is None else source.manifest


def imported(source: Source, command: str | None = None) -> Manifest:
    """A manifest of images and latents of which no more is known.

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


def intervals_of(source: Source) -> list[Interval]:
    """The stretches that a dataset is read in: those of its shards, where they are recorded."""
    recorded = [part.interval for part in source.parts()]
    return recorded or missing_intervals(len(source), default_shard_size(source.shape[0]), [])


def checked_blocks(source: Source) -> Iterator[tuple[Part, UInt8]]:
    """All images of a dataset, a stretch at a time, and what is to be said of them.

    Raises:
        DatasetError: an image cannot be read, or is not what the dataset says that it is.
    """
    checks = Checks(source)
    recorded = {part.interval: part for part in source.parts()}
    for interval in intervals_of(source):
        images = read_images(source, interval.indices)
        checks.check(interval, images)
        yield recorded.get(interval) or new_part(source, interval, images), images
    checks.check_whole()


def require_sound(source: Source) -> None:
    """Checks a dataset before it is written in a form that nobody will check as it is made.

    Raises:
        DatasetError: an image cannot be read, or is not what the dataset says that it is.
    """
    with Progress("checking", len(source)) as progress:
        checks = Checks(source)
        for interval in intervals_of(source):
            checks.check(interval, read_images(source, interval.indices))
            progress.advance(interval.count)
        checks.check_whole()


def measure(source: Source) -> dict[str, Any]:
    """The statistics of all images, made from the images.

    Raises:
        DatasetError: one cannot be read.
    """
    sums = ImageSums()
    with Progress("measuring", len(source)) as progress:
        for interval in intervals_of(source):
            images = read_images(source, interval.indices)
            sums = sums + new_part(source, interval, images).sums
            progress.advance(interval.count)
    return statistics(sums)


class Checks:
    """Holds a dataset's images and latents against what its form records of them.

    Attributes:
        done: what is checked, a line each.
        left: what is not, and why, a line each.
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
        """Checks a stretch of images and their latents.

        Raises:
            DatasetError: what is wrong with them.
        """
        source, window = self._source, slice(interval.first, interval.stop)
        raw, scene = source.raw_latents[window], source.latents[window]
        if interval in self._parts:
            arrays: Mapping[str, npt.NDArray[Any]]
            arrays = {"images": images, "raw_latents": raw, "latents": scene}
            self._parts[interval].check(arrays, str(source.root))
        if self._dataset is not None:
            self._dataset.check_rows(interval, raw, scene, str(source.root))

    def check_whole(self) -> None:
        """Checks what can only be checked of all latents at once.

        Raises:
            DatasetError: what is wrong with them.
        """
        source = self._source
        if source.manifest is not None:
            check_imported(source.manifest, source.raw_latents, source.latents, str(source.root))


def check_imported(manifest: Manifest, raw: Float32, scene: Float32, where: str) -> None:
    """Checks that the latents of an imported dataset are those imported, where all are there.

    Raises:
        DatasetError: they are not.
    """
    said = manifest.settings["latents"]
    if said["source"] != "imported" or len(raw) != said["count"]:
        return
    if (latents_digest(raw), latents_digest(scene)) != (said["sha256"], said["scene_sha256"]):
        raise DatasetError(f"{where}: the latents are not those imported")


def new_part(source: Source, interval: Interval, images: UInt8) -> Part:
    """What is to be said of images that were no shard before."""
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
        ImageSums.of(images, _share_in_frame(source.manifest, scene)),
    )


def _share_in_frame(manifest: Manifest | None, scene: Float32) -> npt.NDArray[np.float64]:
    """Which share of the object lies in the frame, (N,); NaN where the object is not known."""
    preset = manifest.preset if manifest else None
    if preset is not None and preset.shape in SHAPES:
        with contextlib.suppress(ThreeDIdentError):
            return np.asarray(SceneBuilder(preset).share_in_frame(scene))
    return np.full(len(scene), np.nan)
