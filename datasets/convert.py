"""From the toolkit's forms to the published layout and back, without loss."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from threedident.datasets import published
from threedident.datasets.reading import PublishedSource, Source, read_images
from threedident.errors import DatasetError
from threedident.files import explaining_write_errors, read_json, write_json
from threedident.progress import Progress
from threedident.shards import ImageSums, missing_intervals, write_shard
from threedident.store import DatasetDir, latents_digest, toolkit_version

#: Beside a published layout that we wrote: which dataset it is of.
IDENTITY = "3dident.json"


def to_published(source: Source, out: Path) -> int:
    """Writes a dataset in the published layout; images that are there already are kept.

    Returns:
        How many images it holds.

    Raises:
        DatasetError: `out` holds something else, or the disk is full.
    """
    count = len(source)
    folder = out / published.IMAGES
    with explaining_write_errors(out):
        folder.mkdir(parents=True, exist_ok=True)
    # Which dataset this is: written before the first image, so that what an interrupted
    # conversion has left is not taken for a part of another dataset.
    identity = {
        "latents": latents_digest(source.latents),
        "fingerprint": source.manifest.fingerprint if source.manifest else None,
        "images": count,
    }
    names = {published.image_name(i, count) for i in range(count)}
    strangers = sorted(p.name for p in folder.iterdir() if p.name not in names)
    if (out / IDENTITY).exists():
        foreign = read_json(out / IDENTITY) != identity
    else:
        foreign = any(p != folder for p in out.iterdir()) or any(folder.iterdir())
    if foreign or strangers:
        what = strangers[0] if strangers else "another dataset"
        raise DatasetError(f"{out} holds {what}, not of this dataset: choose another --out")
    write_json(out / IDENTITY, identity)
    # A PNG is renamed into place when it is whole, so one that is there is finished.
    have = {p.name for p in folder.iterdir()}
    with Progress("writing", count, finished=len(have)) as progress:
        for index in range(count):
            name = published.image_name(index, count)
            if name not in have:
                published.write_image(folder / name, source.image(index))
                progress.advance()
    published.write_latents(out, source.raw_latents, source.latents)
    return count


def from_published(
    source: PublishedSource,
    out: Path,
    *,
    shard_size: int | None = None,
    compression: str | None = None,
) -> int:
    """Writes a published layout as a dataset directory; finished shards are kept.

    What made the images is not known from the layout, and the dataset says so: its latents
    are given, its engine is "imported", its preset maps nothing.

    Returns:
        How many images it holds.

    Raises:
        DatasetError: an image is missing or of another size, or the disk is full.
    """
    count = len(source)
    first = source.image(0)
    if first.shape[0] != first.shape[1]:
        raise DatasetError(
            f"the images are {first.shape[1]} x {first.shape[0]}, expected square ones"
        )
    settings = {
        "preset": None,
        "mesh_sha256": None,
        "seed": None,
        "split": None,
        "latents": {
            "source": "imported",
            "count": count,
            "sha256": latents_digest(source.raw_latents),
            "scene_sha256": latents_digest(source.latents),
        },
        "resolution": first.shape[0],
        "engine": {"name": "imported", "version": "", "device": "", "quality": ""},
    }
    dataset = DatasetDir.create_or_open(
        out, settings, shard_size=shard_size, compression=compression
    )
    manifest = dataset.manifest
    todo = missing_intervals(count, manifest.shard_size, dataset.shards())
    left = sum(interval.count for interval in todo)
    with Progress("reading", count, finished=count - left) as progress:
        for interval in todo:
            window = slice(interval.first, interval.stop)
            images = read_images(source, interval.indices)
            write_shard(
                out,
                interval,
                images=images,
                raw_latents=source.raw_latents[window],
                latents=source.latents[window],
                sums=ImageSums.of(images, np.full(len(images), np.nan)),
                fingerprint=manifest.fingerprint,
                provenance={"device": "", "toolkit_version": toolkit_version()},
                compression=manifest.compression,
            )
            progress.advance(interval.count)
    dataset.write_stats()
    return count
