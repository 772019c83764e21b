"""A render job: the images that a directory lacks, how to render them, and the summary.

`RenderJob` is what an `Executor` is handed. `run_job` finds out what is missing, holds the
directory for this process, and keeps what is finished whatever happens.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from threedident import defaults
from threedident.errors import DatasetError
from threedident.progress import Progress, format_seconds
from threedident.render.executors.process_pool import (
    Failed,
    WorkerPool,
)
from threedident.render.scene import SceneBuilder
from threedident.render.settings import EngineSettings, Probe
from threedident.render.shard_writer import ShardWriter
from threedident.storage.atomic_files import check_space, explaining_write_errors, remove_leftovers
from threedident.storage.directory import LOGS, DatasetDir
from threedident.storage.shard_plan import Interval, missing_intervals
from threedident.system import processor_name, stop_on_signals


@dataclasses.dataclass(frozen=True)
class JobOptions:
    """Options of a render, none of which changes a pixel.

    Attributes:
        workers: the number of processes.
        threads: the threads of each process.
        devices: the number of GPUs that the processes share.
        part, parts: only the shards whose number is `part` modulo `parts` are rendered.
        timeout: the seconds without a finished image after which a worker is replaced.
        images_per_worker: the images after which a worker is replaced.
    """

    workers: int
    threads: int = 1
    devices: int = 1
    part: int = 0
    parts: int = 1
    timeout: float = defaults.RENDER_TIMEOUT
    images_per_worker: int = defaults.IMAGES_PER_WORKER


@dataclasses.dataclass
class Summary:
    """A summary of what a render did; `print` shows it in lines.

    Attributes:
        rendered: the images that are in shards now and were not before.
        seconds: the time that it took.
        redone: the names of shards that were corrupt and have been rendered again.
        failed: the images that could not be rendered: number to reason.
        interrupted: whether it was asked to stop.
        peak_memory: the largest resident memory of a worker, bytes; 0 where it is not known.
        root: the dataset's directory.
        images: the images that are in it now.
    """

    rendered: int = 0
    seconds: float = 0.0
    redone: list[str] = dataclasses.field(default_factory=list)
    failed: dict[int, str] = dataclasses.field(default_factory=dict)
    interrupted: bool = False
    peak_memory: int = 0
    root: Path = Path()
    images: int = 0

    def __str__(self) -> str:
        rate = f", {self.rendered / self.seconds:.2f} images/s" if self.rendered else ""
        lines = [
            f"{self.root}: {self.images} images, {self.rendered} of them new, "
            f"in {format_seconds(self.seconds)}{rate}"
        ]
        if self.peak_memory:
            lines.append(f"peak memory of a render process: {self.peak_memory / 2**20:.0f} MiB")
        if self.redone:
            lines.append(
                f"corrupt shards rendered again, the old ones kept as *.corrupt: {len(self.redone)}"
            )
        return "\n".join(lines)

    def failures(self) -> str:
        """A line on the images that could not be rendered; empty where there are none."""
        if not self.failed:
            return ""
        numbers = ", ".join(map(str, list(self.failed)[:10]))
        return (
            f"{len(self.failed)} images could not be rendered in three attempts: {numbers}; their "
            f"latents stand above, the output of the processes in {self.root / LOGS}. Everything "
            "else is finished"
        )


class Silent:
    """A stand-in for a progress bar, where the work is short or nobody wants to see one."""

    def __init__(self, notes: bool = True) -> None:
        self._notes = notes

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def advance(self, count: int = 1) -> None:
        """Count nothing."""

    def note(self, message: str) -> None:
        """Print a line, if there shall be lines."""
        if self._notes:
            Progress.print(message)


@dataclasses.dataclass
class RenderJob:
    """The shards to render, and all that an executor needs for it.

    Attributes:
        dataset: the directory that takes the shards.
        todo: the intervals of images that are missing.
        settings: the settings that decide the pixels.
        options: the options of the render.
        progress: the bar that counts finished images.
        stop: an event; when it is set, what is finished is written and the rest left.
        summary: the record of what was done.
    """

    dataset: DatasetDir
    todo: list[Interval]
    settings: EngineSettings
    options: JobOptions
    progress: Progress | Silent
    stop: threading.Event
    summary: Summary

    @property
    def images(self) -> int:
        """The number of images to render."""
        return sum(interval.count for interval in self.todo)

    @property
    def processor(self) -> str:
        """The name of this machine's processor, which every shard records."""
        return processor_name()

    def fail(self, image: Failed) -> None:
        """Count an image that could not be rendered, and say so."""
        self.summary.failed[image.index] = image.reason
        raw = self.dataset.raw_latents([image.index])[0]
        self.progress.note(
            f"image {image.index} could not be rendered ({image.reason}); its raw latents: "
            f"{[float(v) for v in raw]}"
        )

    def open_pool(self, workers: int, log_prefix: str, *, keep: bool = False) -> WorkerPool:
        """Make the pool of render processes that the options describe.

        Args:
            workers: the number of processes.
            log_prefix: the beginning of the names of their logs, in the dataset's directory.
            keep: whether workers without work wait for another call instead of ending.
        """
        return WorkerPool(
            self.settings,
            workers=workers,
            threads=self.options.threads,
            devices=self.options.devices,
            timeout=self.options.timeout,
            images_per_worker=self.options.images_per_worker,
            log_dir=self.dataset.root / LOGS,
            log_prefix=log_prefix,
            keep=keep,
        )

    def render_with(self, pool: WorkerPool) -> None:
        """Render the shards with the workers of a pool.

        Raises:
            DatasetError: the disk is full or cannot be written to.
            RenderError: the renderer cannot start, or all images fail.
        """
        writer = ShardWriter(self)
        try:
            for result in pool.run(writer.tasks(), self.images, self.stop):
                writer.take(result)
        finally:
            self.summary.peak_memory = max(self.summary.peak_memory, pool.peak_memory)
            # Stopped, or by an error: what is finished from a shard's start is kept as well.
            with contextlib.suppress(DatasetError):
                writer.write_beginnings()


class Executor(Protocol):
    """An executor: runs render jobs in processes of this machine, or on a cluster."""

    def probe(self, engine: str, device: str, threads: int) -> Probe:
        """Ask for an engine's version and devices where the job will run.

        Args:
            engine: the engine's name.
            device: the kind of device that is wanted, or "auto".
            threads: the threads of a render process.

        Raises:
            MissingExtraError, RenderError: the engine is missing or does not load.
        """

    def default_workers(self, device: str, available: Probe, threads: int) -> int:
        """The number of processes where the user names none."""

    def place(self, options: JobOptions) -> str:
        """A phrase that says where the job runs, such as "4 processes"."""

    def run(self, job: RenderJob) -> None:
        """Render the shards of a job into its dataset.

        Raises:
            DatasetError: the disk is full or cannot be written to.
            RenderError: the renderer cannot start, or all images fail.
        """


def run_job(
    dataset: DatasetDir,
    total: int,
    settings: EngineSettings,
    options: JobOptions,
    executor: Executor,
    *,
    announce: Callable[[], None] = lambda: None,
    quiet: bool = False,
) -> Summary:
    """Render what a dataset lacks of its first `total` images.

    Finished shards stay whatever happens. On SIGINT or SIGTERM it stops within seconds,
    keeping the images that it can write as a shorter shard.

    Args:
        dataset: the directory.
        total: the number of images that it shall have.
        settings: the settings that decide the pixels.
        options: the options of the render.
        executor: the executor that runs the job.
        announce: a function that is called when no other process can be at the same work.
        quiet: whether to print nothing.

    Raises:
        UsageError: another process renders some of the same shards.
        DatasetError: the disk is full or cannot be written to.
        RenderError: the renderer cannot start.
    """
    root = dataset.root
    logs = root / LOGS
    with explaining_write_errors(logs):
        logs.mkdir(exist_ok=True)
        tempfile.TemporaryFile(dir=logs).close()  # said now rather than by every worker
        remove_leftovers(root)
    summary = Summary(root=root)
    started = time.monotonic()
    with dataset.only_render(options.part, options.parts), stop_on_signals() as stop:
        announce()
        silent = Silent(notes=not quiet)
        good, summary.redone = _check_finished(dataset, options, stop, silent if quiet else None)
        size = dataset.manifest.shard_size
        todo = missing_intervals(total, size, good, part=options.part, parts=options.parts)
        job = RenderJob(dataset, todo, settings, options, silent, stop, summary)
        if job.images:
            SceneBuilder(settings.preset)  # a mesh that cannot be used is said before the rest
            _check_space(dataset, job.images)
        dataset.record_wanted(total)  # now that it can be had: it never shrinks
        if job.images and not stop.is_set():
            _execute(job, executor, finished=sum(interval.count for interval in good), quiet=quiet)
    summary.interrupted = stop.is_set()
    summary.seconds = time.monotonic() - started
    summary.images = sum(interval.count for interval in dataset.shards())
    if summary.images:
        try:
            dataset.write_stats()
        except DatasetError as error:  # the images are there all the same
            silent.note(f"stats.json is not up to date: {error}")
    return summary


def _execute(job: RenderJob, executor: Executor, *, finished: int, quiet: bool) -> None:
    if quiet:
        executor.run(job)
        return
    total = finished + job.images
    with Progress("rendering", total, finished=finished, forecast=True) as job.progress:
        executor.run(job)


def _check_finished(
    dataset: DatasetDir, options: JobOptions, stop: threading.Event, silent: Silent | None
) -> tuple[list[Interval], list[str]]:
    """The shards that are good, and the names of those set aside as corrupt.

    Every shard of this part of the job is read and its checksums compared: that takes
    seconds where rendering took hours. The others are taken at their word.
    """
    size = dataset.manifest.shard_size
    shards = dataset.shards()
    ours = {
        interval: path
        for interval, path in shards.items()
        if interval.first // size % options.parts == options.part
    }
    good = [interval for interval in shards if interval not in ours]
    redone = []
    bar = Progress("checking", len(ours), unit="shards") if len(ours) > 200 else Silent()
    threads = min(8, os.cpu_count() or 1)
    with concurrent.futures.ThreadPoolExecutor(threads) as pool, silent or bar as progress:
        for interval, path, fault in pool.map(
            lambda item: (*item, None if stop.is_set() else _fault(dataset, item[1])),
            ours.items(),
        ):
            progress.advance()
            if fault is None:
                good.append(interval)
            else:
                progress.note(f"rendering a corrupt shard again: {fault}")
                with explaining_write_errors(path):
                    path.replace(path.with_name(path.name + ".corrupt"))
                redone.append(path.name)
    return sorted(good), redone


def _fault(dataset: DatasetDir, path: Path) -> str | None:
    """A sentence on what is wrong with a shard; None for a good one."""
    try:
        dataset.read_shard(path)
    except DatasetError as error:
        return str(error)
    return None


def _check_space(dataset: DatasetDir, images: int) -> None:
    if dataset.manifest.compression != "none":
        return  # how much it takes is not known beforehand
    check_space(
        dataset.root,
        image_bytes(images, dataset.manifest.resolution),
        "Make room, choose a smaller --n or --resolution, or start a new dataset with "
        "--compression gzip",
    )


def image_bytes(images: int, resolution: int) -> int:
    """The bytes that images take on the disk uncompressed, latents included."""
    return images * (resolution**2 * 3 + 100)
