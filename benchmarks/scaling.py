"""What many cores make of a dataset: measured on one and two workers, computed for more.

    python benchmarks/scaling.py [--images 275000] [--resolution 224] [--quality standard]
                                 [--engines cycles,direct] [--per-worker 100] [--folder FOLDER]
                                 [--json FILE]

Measures rendering on 1 and on 2 workers in the same run: images a second, how long a worker
takes to start, how long a shard takes to be written (into FOLDER, the disk in question). From
that it computes, on paper, the whole dataset on 16, 64 and 1,000 cores with a worker each. There
every image takes as long as with two workers here; shards are given out one by one to
whoever is free, with times drawn from the measured ones. What is not measured is not in it:
a machine with more cores has more (or less) memory bandwidth to a core, and a shared disk serves
all of them.
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import json
import math
from pathlib import Path

import numpy as np

from threedident.latents import sample_raw_latents
from threedident.presets import load_preset
from threedident.progress import format_seconds
from threedident.render.estimate import Measured, measure
from threedident.render.job import JobOptions
from threedident.render.settings import EngineSettings, default_timeout, probe
from threedident.storage.shard_plan import default_shard_size
from threedident.system import processor_name

CORES = (16, 64, 1000)


@dataclasses.dataclass(frozen=True)
class Paper:
    """A whole job, computed: seconds, and where they go, as shares of the cores' time."""

    cores: int
    seconds: float
    rendering: float
    starting: float
    writing: float
    waiting: float
    bytes_per_second: float

    @property
    def bound(self) -> str:
        others = {
            "start-up": self.starting,
            "writing shards": self.writing,
            "the last shards": self.waiting,
        }
        worst = max(others, key=others.__getitem__)
        return f"rendering; after it {worst}" if others[worst] < self.rendering else worst


def on_paper(measured: Measured, images: int, size: int, cores: int, per_worker: int) -> Paper:
    random = np.random.default_rng(0)
    shards = math.ceil(images / size)
    work = [
        float(random.choice(measured.seconds, min(size, images - i * size)).sum())
        for i in range(shards)
    ]
    free = [measured.start] * min(cores, shards)
    since = [0] * len(free)
    starts = len(free)
    queue = [(at, worker) for worker, at in enumerate(free)]
    for index, seconds in enumerate(work):
        at, worker = heapq.heappop(queue)
        if since[worker] >= per_worker:  # it is replaced by a fresh one
            at, since[worker], starts = at + measured.start, 0, starts + 1
        since[worker] += min(size, images - index * size)
        heapq.heappush(queue, (at + seconds + measured.write, worker))
    end = max(queue)[0]
    whole = cores * end
    rendering, starting = sum(work) / whole, starts * measured.start / whole
    writing = shards * measured.write / whole
    return Paper(
        *(cores, end, rendering, starting, writing, 1 - rendering - starting - writing),
        measured.shard_bytes * shards / end,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=275_000)
    parser.add_argument("--resolution", type=int, default=224)
    parser.add_argument("--quality", default="standard")
    parser.add_argument("--engines", default="cycles,direct")
    parser.add_argument("--per-worker", type=int, default=100, help="images, for 30 s at most")
    parser.add_argument("--folder", type=Path, default=Path(), help="where shards are written")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    size = default_shard_size(arguments.resolution)
    raw = sample_raw_latents(range(1024), seed=0, split="train")
    measurements: dict[str, dict[int, Measured]] = {}
    lasting: dict[str, int] = {}  # the images that a worker makes, by engine
    for name in arguments.engines.split(","):
        engine = EngineSettings(
            *(load_preset("3dident"), arguments.resolution, arguments.quality, "cpu", name),
            probe(name).version,
        )
        lasting[name] = engine.images_per_worker
        measurements[name] = {
            workers: measure(
                *(engine, raw, JobOptions(workers, timeout=default_timeout(arguments.resolution))),
                folder=arguments.folder,
                shard_size=size,
                compression="none",
                per_worker=arguments.per_worker,
            )
            for workers in (1, 2)
        }

    print(
        f"{arguments.resolution} x {arguments.resolution}, {arguments.quality}, a thread to a "
        f"worker, {processor_name()}\n"
    )
    print(
        "| engine | workers | seconds an image (95 %) | images/s | efficiency | start, s "
        f"| writing a shard of {size}, s | MB/s of that |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    rows = []
    for name, by_workers in measurements.items():
        one = by_workers[1].mean()[0]
        for workers, found in by_workers.items():
            mean, low, high = found.mean()
            rows.append(
                {
                    "engine": name,
                    "workers": workers,
                    "seconds_per_image": [mean, low, high],
                    "images_per_second": workers / mean,
                    "efficiency": one / mean,
                    "start_seconds": found.start,
                    "write_seconds": found.write,
                    "shard_bytes": found.shard_bytes,
                }
            )
            print(
                f"| {name} | {workers} | {mean:.3g} ({low:.3g} to {high:.3g}) "
                f"| {workers / mean:.2f} | {one / mean:.0%} | {found.start:.2f} "
                f"| {found.write:.2f} | {found.shard_bytes / found.write / 1e6:.0f} |"
            )
    print(
        f"\nOn paper, {arguments.images:,} images in shards of {size} "
        f"({arguments.images * arguments.resolution**2 * 3 / 1e9:.1f} GB):\n"
    )
    print(
        "| engine | cores | time | rendering | start-up | writing | idle at the end "
        "| MB/s to the disk | bound by |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    computed = []
    for name, by_workers in measurements.items():
        for cores in CORES:
            paper = on_paper(by_workers[2], arguments.images, size, cores, lasting[name])
            computed.append({"engine": name, **dataclasses.asdict(paper), "bound": paper.bound})
            print(
                f"| {name} | {cores} | {format_seconds(paper.seconds)} | {paper.rendering:.1%} "
                f"| {paper.starting:.1%} | {paper.writing:.1%} | {paper.waiting:.1%} "
                f"| {paper.bytes_per_second / 1e6:.1f} | {paper.bound} |"
            )
        print(f"| {name} | one GPU | not measured | | | | | | |")
    if arguments.json:
        machine = {"processor": processor_name(), "resolution": arguments.resolution}
        machine |= {"quality": arguments.quality, "images": arguments.images}
        text = json.dumps({**machine, "measured": rows, "on_paper": computed}, indent=2)
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
