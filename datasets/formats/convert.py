"""From any form of a dataset to the published layout and to shards, without loss."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from threedident.datasets.checking import (
    Checks,
    imported,
    manifest_of,
    new_part,
    require_sound,
)
from threedident.datasets.formats import png_folder as published
from threedident.datasets.formats.sources import Source, read_images
from threedident.errors import DatasetError
from threedident.latents import latents_digest
from threedident.progress import Progress
from threedident.storage.atomic_files import explaining_write_errors, read_json, write_json
from threedident.storage.directory import DatasetDir
from threedident.storage.shard_plan import missing_intervals
from threedident.storage.shards import write_shard


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
    if (out / published.CARD).exists():
        there = read_json(out / published.CARD)
        foreign = not isinstance(there, dict) or any(
            there.get(name) != value for name, value in identity.items()
        )
    else:
        foreign = any(p != folder for p in out.iterdir()) or any(folder.iterdir())
    if foreign or strangers:
        what = strangers[0] if strangers else "another dataset"
        raise DatasetError(f"{out} holds {what}, not of this dataset: choose another --out")
    card = published.Card(source.manifest, tuple(source.parts()), source.wanted())
    raw = {"raw_latents": latents_digest(source.raw_latents)}
    write_json(out / published.CARD, {**identity, **raw, **card.as_dict()})
    # A PNG is renamed into place when it is whole, so one that is there is finished.
    have = {p.name for p in folder.iterdir()}
    if len(have) < count:
        require_sound(source)
    with Progress("writing", count, finished=len(have)) as progress:
        for index in range(count):
            name = published.image_name(index, count)
            if name not in have:
                published.write_image(folder / name, source.image(index))
                progress.advance()
    published.write_latents(out, source.raw_latents, source.latents)
    return count


def to_shards(
    source: Source,
    out: Path,
    *,
    shard_size: int | None = None,
    compression: str | None = None,
    command: str | None = None,
) -> int:
    """Writes a dataset as a dataset directory; finished shards are kept.

    What made it is kept where its form says so, and everything is held against that: the
    directory can then be gone on with. Where it does not, the dataset says so: its latents
    are given, its engine is "imported", its preset maps nothing.

    Args:
        source: the dataset.
        out: the directory.
        shard_size: images to a shard; None: the shards that there were, or the default.
        compression: none or gzip; None: what there was, or none.
        command: the command that an import records as what made it; None: "Python".

    Returns:
        How many images it holds.

    Raises:
        DatasetError: an image is missing, damaged or of another size, or the disk is full.
        UsageError: another process writes to the directory.
    """
    count, given = len(source), source.given()
    kept = manifest_of(source, command)
    if kept.settings["latents"]["source"] == "file" and given is None:
        Progress.print(
            f"{source.root} keeps {count} of the {kept.settings['latents']['count']} latents that "
            f"were given to render: {out} is written as an import, which cannot be gone on with, "
            "and does not say what rendered it"
        )
        kept = imported(source, command)
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
        done = dataset.shards()
        if parts and kept.shard_size == manifest.shard_size and set(done) <= set(parts):
            todo = [interval for interval in parts if interval not in done]
        else:
            todo = missing_intervals(count, manifest.shard_size, done)
            if todo and parts:
                require_sound(source)  # what is cut anew has checksums of its own
        checks = Checks(source)
        left = sum(interval.count for interval in todo)
        with Progress("writing", count, finished=count - left) as progress:
            for interval in todo:
                images = read_images(source, interval.indices)
                checks.check(interval, images)
                part = parts.get(interval) or new_part(source, interval, images)
                window = slice(interval.first, interval.stop)
                write_shard(
                    out,
                    interval,
                    images=images,
                    raw_latents=source.raw_latents[window],
                    latents=source.latents[window],
                    sums=part.sums,
                    fingerprint=manifest.fingerprint,
                    provenance=part.provenance,
                    compression=manifest.compression,
                )
                progress.advance(interval.count)
        checks.check_whole()
        dataset.write_stats()
    return count
