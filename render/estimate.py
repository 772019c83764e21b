"""What a job will take, from a few images rendered on this machine."""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.errors import RenderError
from threedident.progress import Progress, format_seconds
from threedident.render.engine import EngineSettings
from threedident.render.executors.process_pool import Done, Task, WorkerPool
from threedident.render.job import JobOptions
from threedident.render.scene import SceneBuilder
from threedident.storage.atomic_files import explaining_write_errors
from threedident.storage.shard_plan import Interval
from threedident.storage.shards import write_shard
from threedident.storage.statistics import ImageSums
from threedident.system import processor_name, usable_processors

Array = npt.NDArray[Any]

_LEAST, _SECONDS = 4, 30.0  # images of a worker, besides its first ones; and when that is enough


@dataclasses.dataclass(frozen=True)
class Measured:
    """What was measured.

    Attributes:
        workers: processes that rendered at the same time.
        start: seconds until a worker has its first image, less what a later one takes.
        seconds: of every later image, in its process.
        write: seconds to write one shard, checksums and statistics included.
        shard_bytes: size of that shard.
    """

    workers: int
    start: float
    seconds: npt.NDArray[np.float64]
    write: float
    shard_bytes: int

    def mean(self) -> tuple[float, float, float]:
        """Seconds an image takes on average, and a 95 % interval of that (Student's t)."""
        count = len(self.seconds)
        mean = float(self.seconds.mean())
        error = float(self.seconds.std(ddof=1)) / math.sqrt(count)
        half = _student(count - 1) * error
        return mean, max(mean - half, float(self.seconds.min())), mean + half


def _student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, to 3 % from three degrees of freedom on."""
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def measure(
    engine: EngineSettings,
    raw_latents: npt.NDArray[np.float32],
    options: JobOptions,
    *,
    folder: Path,
    shard_size: int,
    compression: str,
    per_worker: int | None = None,
) -> Measured:
    """Renders images with all workers at once, and writes one shard that is removed again.

    Args:
        engine, options: what to render with, and how.
        raw_latents: (N, 10), of images like those of the job; some of them are rendered.
        folder: on the disk that the shard is written to.
        shard_size, compression: of that shard.
        per_worker: images, unless 30 s are over; None: twice what it is handed at once.

    Raises:
        RenderError: an image could not be rendered.
        DatasetError: the disk is full or cannot be written to.
    """
    latents = engine.preset.to_scene(raw_latents)
    images: list[Array] = []
    later: list[float] = []
    first: dict[int, float] = {}
    with (
        tempfile.TemporaryDirectory(prefix="3dident-log-") as logs,
        WorkerPool(
            engine,
            workers=options.workers,
            threads=options.threads,
            devices=options.devices,
            timeout=options.timeout,
            log_dir=Path(logs),
        ) as pool,
    ):
        many = options.workers * (per_worker or 2 * pool.at_once)
        began = time.monotonic()
        tasks = (Task(i, latents[i % len(latents)]) for i in range(many))
        with Progress("measuring", many) as progress:
            for result in pool.run(tasks, many):
                if not isinstance(result, Done):
                    raise RenderError(
                        f"image {result.index} could not be rendered: {result.reason}"
                    )
                # What is rendered in one launch took one time: a worker's first, cold.
                if result.seconds != first.setdefault(result.worker, result.seconds):
                    later.append(result.seconds)
                images.append(result.image)
                progress.advance()
                enough = len(later) >= _LEAST * options.workers
                if enough and time.monotonic() - began > _SECONDS:
                    break
        starts = list(pool.starts)
    seconds = np.array(later)
    start = float(np.mean(starts) + np.mean(list(first.values())) - seconds.mean())
    stack = np.stack([images[i % len(images)] for i in range(shard_size)])
    rows = np.arange(shard_size) % len(latents)
    with (
        explaining_write_errors(folder),
        tempfile.TemporaryDirectory(prefix=".3dident-estimate-", dir=folder) as scratch,
    ):
        began = time.monotonic()
        path = write_shard(
            Path(scratch),
            Interval(0, shard_size),
            images=stack,
            raw_latents=raw_latents[rows],
            latents=latents[rows],
            sums=ImageSums.of(stack, SceneBuilder(engine.preset).share_in_frame(latents[rows])),
            fingerprint="",
            provenance={},
            compression=compression,
        )
        return Measured(
            options.workers, max(start, 0.0), seconds, time.monotonic() - began, path.stat().st_size
        )


def job_seconds(
    measured: Measured, seconds: float, todo: list[Interval], options: JobOptions
) -> float:
    """How long a job takes on this machine, if an image takes so many seconds."""
    images = sum(interval.count for interval in todo)
    workers = measured.workers
    writing = len(todo) * measured.write
    starts = max(math.ceil(images / workers / options.images_per_worker), 1)
    work = images * seconds + workers * starts * measured.start
    if workers * options.threads >= usable_processors():
        work += writing  # on processors that would render otherwise
    return max(work / workers, measured.start + writing) + measured.write


def describe(
    measured: Measured,
    engine: EngineSettings,
    todo: list[Interval],
    options: JobOptions,
    free: int,
) -> list[str]:
    """Lines that say what a job will take.

    Args:
        measured: on this machine.
        engine, todo, options: the job.
        free: bytes left on the disk.
    """
    images = sum(interval.count for interval in todo)
    mean, low, high = measured.mean()
    times = [format_seconds(job_seconds(measured, s, todo, options)) for s in (mean, low, high)]
    each = sum(interval.count for interval in todo) / max(len(todo), 1)
    size = measured.shard_bytes * images / max(each, 1)
    return [
        f"{engine.engine} {engine.quality}, {engine.resolution} x {engine.resolution}, on "
        f"{measured.workers} process(es) of {options.threads} thread(s), {engine.device}, "
        f"{processor_name()}; {len(measured.seconds)} images measured",
        f"a process starts in: {measured.start:.2f} s",
        f"it renders an image in: {mean:.3g} s (the mean; 95 % interval {low:.3g} to {high:.3g}; "
        f"single ones {measured.seconds.min():.3g} to {measured.seconds.max():.3g})",
        f"a shard is written in: {measured.write:.2f} s",
        f"to be rendered: {images} images, {len(todo)} shards",
        f"time: {times[0]} (95 % interval {times[1]} to {times[2]}; this machine as busy as now)",
        f"disk: {size / 1e9:.3g} GB; {free / 1e9:.3g} GB are free",
    ]
