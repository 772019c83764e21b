"""Estimates of the time and disk that a render will take, from a few images rendered here."""

from __future__ import annotations

import dataclasses
import math
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.errors import RenderError, UsageError
from threedident.progress import Progress, format_seconds
from threedident.render.dataset import bind_request
from threedident.render.executors.local import LocalExecutor
from threedident.render.executors.process_pool import Done, Task, WorkerPool
from threedident.render.job import JobOptions
from threedident.render.scene import SceneBuilder
from threedident.render.settings import EngineSettings
from threedident.storage.atomic_files import explaining_write_errors
from threedident.storage.directory import DatasetDir
from threedident.storage.manifest import MANIFEST
from threedident.storage.shard_plan import Interval, missing_intervals
from threedident.storage.shards import write_shard
from threedident.storage.statistics import ImageSums
from threedident.system import processor_name, usable_processors

Array = npt.NDArray[Any]

_LEAST, _SECONDS = 4, 30.0  # images of a worker, besides its first ones; and when that is enough


@dataclasses.dataclass(frozen=True)
class Measured:
    """A measurement of render processes and of writing a shard.

    Attributes:
        workers: the number of processes that rendered at the same time.
        start: the seconds until a worker has its first image, less what a later one takes.
        seconds: the seconds of every later image, in its process; images that are made at once
            share their time evenly.
        write: the seconds to write one shard, checksums and statistics included.
        shard_bytes: the size of that shard.
    """

    workers: int
    start: float
    seconds: npt.NDArray[np.float64]
    write: float
    shard_bytes: int

    def mean(self) -> tuple[float, float, float]:
        """The seconds an image takes on average, and a 95 % interval of that (Student's t)."""
        count = max(len(np.unique(self.seconds)), 2)  # images made at once are one measurement
        mean = float(self.seconds.mean())
        error = float(self.seconds.std(ddof=1)) / math.sqrt(count)
        half = _student(count - 1) * error
        return mean, max(mean - half, float(self.seconds.min())), mean + half


def _student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, to 3 % from three degrees of freedom on."""
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def measure(
    settings: EngineSettings,
    raw_latents: npt.NDArray[np.float32],
    options: JobOptions,
    *,
    folder: Path,
    shard_size: int,
    compression: str,
    per_worker: int | None = None,
    rows: npt.NDArray[np.float32] | None = None,
) -> Measured:
    """Render images with all workers at once, and write one shard that is removed again.

    Args:
        settings: the settings that decide the pixels.
        raw_latents: the raw latents (N, 10) of images like those of the job; some are rendered.
        options: the options of the render.
        folder: a folder on the disk that the shard is written to.
        shard_size: the images in that shard.
        compression: the compression of that shard.
        per_worker: the images of each worker, unless 30 s are over; None: twice what it is
            handed at once.
        rows: the scene rows (N, W) of the same images. None: those of the raw latents, where the
            ten factors say all of a scene.

    Raises:
        RenderError: an image could not be rendered.
        DatasetError: the disk is full or cannot be written to.
    """
    latents = settings.preset.to_scene(raw_latents) if rows is None else rows
    images: list[Array] = []
    later: list[float] = []
    first: dict[int, float] = {}
    with (
        tempfile.TemporaryDirectory(prefix="3dident-log-") as logs,
        WorkerPool(
            settings,
            workers=options.workers,
            threads=options.threads,
            devices=options.devices,
            timeout=options.timeout,
            log_dir=Path(logs),
        ) as pool,
    ):
        many = options.workers * (per_worker or 2 * settings.preferred_batch)
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
    chosen = np.arange(shard_size) % len(latents)
    write, size = _write_one(
        settings,
        np.stack([images[i % len(images)] for i in range(shard_size)]),
        raw_latents[chosen],
        latents[chosen],
        folder=folder,
        compression=compression,
    )
    return Measured(options.workers, max(start, 0.0), seconds, write, size)


def _write_one(
    settings: EngineSettings,
    images: npt.NDArray[np.uint8],
    raw: npt.NDArray[np.float32],
    rows: npt.NDArray[np.float32],
    *,
    folder: Path,
    compression: str,
) -> tuple[float, int]:
    """Write a shard and remove it again; the seconds that it took, and its bytes."""
    with (
        explaining_write_errors(folder),
        tempfile.TemporaryDirectory(prefix=".3dident-estimate-", dir=folder) as scratch,
    ):
        began = time.monotonic()
        path = write_shard(
            Path(scratch),
            Interval(0, len(images)),
            images=images,
            raw_latents=raw,
            latents=settings.preset.to_scene(raw),
            sums=ImageSums.of(images, SceneBuilder(settings.preset).share_in_frame(rows)),
            fingerprint="",
            provenance={},
            compression=compression,
        )
        return time.monotonic() - began, path.stat().st_size


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The time and disk that the rest of a render will take; `print` shows it in lines.

    Attributes:
        measured: the measurement; None where nothing is left to render.
        settings: the settings that decide the pixels.
        options: the options of the render.
        todo: the intervals of images that are missing.
        free: the bytes that are free on the disk.
        root: the dataset's directory.
        total: the number of images that it shall have.
    """

    measured: Measured | None
    settings: EngineSettings
    options: JobOptions
    todo: list[Interval]
    free: int
    root: Path
    total: int

    @property
    def images(self) -> int:
        """The number of images that are missing."""
        return sum(interval.count for interval in self.todo)

    @property
    def bytes(self) -> int:
        """The bytes of disk that they will take."""
        if self.measured is None:
            return 0
        return round(self.measured.shard_bytes * len(self.todo))

    def seconds(self) -> tuple[float, float, float]:
        """The seconds that it will take, and a 95 % interval of that."""
        if self.measured is None:
            return 0.0, 0.0, 0.0
        mean, low, high = (self._job_seconds(self.measured, s) for s in self.measured.mean())
        return mean, low, high

    def _job_seconds(self, measured: Measured, seconds: float) -> float:
        """Estimate the seconds that the job takes on this machine, if an image takes so many."""
        workers = measured.workers
        writing = len(self.todo) * measured.write
        starts = max(math.ceil(self.images / workers / self.options.images_per_worker), 1)
        work = self.images * seconds + workers * starts * measured.start
        if workers * self.options.threads >= usable_processors():
            work += writing  # on processors that would render otherwise
        return max(work / workers, measured.start + writing) + measured.write

    def __str__(self) -> str:
        measured, settings = self.measured, self.settings
        if measured is None:
            return f"{self.root}: all {self.total} images are there"
        mean, low, high = measured.mean()
        times = [format_seconds(seconds) for seconds in self.seconds()]
        return "\n".join(
            [
                f"{settings.engine} {settings.quality}, {settings.resolution} x "
                f"{settings.resolution}, on {measured.workers} process(es) of "
                f"{self.options.threads} thread(s), {settings.device}, "
                f"{processor_name()}; {len(measured.seconds)} images measured",
                f"a process starts in: {measured.start:.2f} s",
                f"it renders an image in: {mean:.3g} s (the mean; 95 % interval {low:.3g} to "
                f"{high:.3g}; single ones {measured.seconds.min():.3g} to "
                f"{measured.seconds.max():.3g})",
                f"a shard is written in: {measured.write:.2f} s",
                f"to be rendered: {self.images} images, {len(self.todo)} shards",
                f"time: {times[0]} (95 % interval {times[1]} to {times[2]}; this machine as busy "
                "as now)",
                f"disk: {self.bytes / 1e9:.3g} GB; {self.free / 1e9:.3g} GB are free",
            ]
        )


def estimate_render(out: str | Path, n: int | None = None, **arguments: Any) -> Estimate:
    """Measure a few images here, and say what the rest of a render will take.

    Nothing is written into `out`.

    Args:
        out: the dataset's directory, which may be missing.
        n: the number of images, or of pairs.
        arguments: the other arguments of `render_dataset`.

    Raises:
        UsageError, DatasetError, RenderError: as `render_dataset`.
    """
    request = bind_request(out, n, **arguments)
    if request.executor != "local":
        raise UsageError("--estimate measures this machine: leave out --executor ray")
    content, total = request.prepare()
    settings, options = request.resolve(content, LocalExecutor())
    root = request.out
    if (root / MANIFEST).exists():
        dataset = request.open_dataset(content, settings, "")
        shards = dataset.shards()
    else:
        dataset = DatasetDir(root, request.manifest(content, settings, ""))
        shards = {}
    size = dataset.manifest.shard_size
    todo = missing_intervals(total, size, shards, part=options.part, parts=options.parts)
    images = sum(interval.count for interval in todo)
    folder = next(place for place in (root, *root.absolute().parents) if place.is_dir())
    measured = None
    if images:
        options = dataclasses.replace(options, workers=min(options.workers, images))
        chosen = np.random.default_rng(0).choice(total, min(total, 1024), replace=False)
        given = content.given
        draws, sampling = dataset.draws(chosen), content.sampling
        measured = measure(
            settings,
            dataset.raw_latents(chosen, draws)
            if given is None
            else settings.preset.hold_fixed(given[chosen]),
            options,
            folder=folder,
            shard_size=min(size, images),
            compression=dataset.manifest.compression,
            rows=sampling.model.scene_rows(draws.variables) if sampling and draws else None,
        )
    free = shutil.disk_usage(folder).free
    return Estimate(measured, settings, options, todo, free, root, total)
