"""Checking a dataset against what it says of itself."""

from __future__ import annotations

import dataclasses

import numpy as np

from threedident.errors import DatasetError
from threedident.progress import Progress
from threedident.shards import read_shard
from threedident.store import DatasetDir, latents_digest


@dataclasses.dataclass
class Report:
    """What `verify` found.

    Attributes:
        images: in good shards.
        last: number of the last image of any shard.
        faults: what is wrong, a line each; empty for a good dataset.
        missing: stretches of images that are not there, first to last.
        devices: kinds of device that rendered the shards.
    """

    images: int = 0
    last: int = -1
    faults: list[str] = dataclasses.field(default_factory=list)
    missing: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    devices: set[str] = dataclasses.field(default_factory=set)


def verify(dataset: DatasetDir, total: int | None = None) -> Report:
    """Checks every shard: readable, complete, checksums, and latents equal to the settings'.

    Args:
        dataset: to check.
        total: how many images it should hold; None: those up to the last shard.
    """
    report = Report()
    shards = dataset.shards()
    position = 0
    end = max((interval.stop for interval in shards), default=0)
    report.last = end - 1
    raw_parts, latents_parts = [], []
    with Progress("verifying", sum(i.count for i in shards)) as progress:
        for interval, path in shards.items():
            if interval.first > position:
                report.missing.append((position, interval.first - 1))
            elif interval.first < position:
                report.faults.append(f"{path} repeats images from {interval.first} on")
            position = max(position, interval.stop)
            try:
                shard = read_shard(
                    path,
                    resolution=dataset.manifest.resolution,
                    fingerprint=dataset.manifest.fingerprint,
                )
                dataset.check_latents(shard)
            except DatasetError as error:
                report.faults.append(str(error))
                report.missing.append((interval.first, interval.stop - 1))
            else:
                report.images += interval.count
                report.devices.add(str(shard.attributes.get("device", "?")))
                raw_parts.append(shard.raw_latents)
                latents_parts.append(shard.latents)
            progress.advance(interval.count)
    if total is not None and end < total:
        report.missing.append((end, total - 1))
    source = dataset.manifest.settings["latents"]
    if source["source"] == "imported" and not report.faults and raw_parts:
        for parts, key in ((raw_parts, "sha256"), (latents_parts, "scene_sha256")):
            joined = np.concatenate(parts)
            if len(joined) == source["count"] and latents_digest(joined) != source[key]:
                report.faults.append(f"{dataset.root}: the latents are not those imported")
    if not shards:
        report.faults.append(f"{dataset.root} holds no finished shard")
    return report
