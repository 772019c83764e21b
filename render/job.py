"""Rendering: a whole dataset into its directory, or a few images into an array."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.distributions import Distribution, PairProcess, raw_box
from threedident.distributions.philox_sampler import check_renderable
from threedident.distributions.serialisation import space_as_dict
from threedident.errors import DatasetError, RenderError, UsageError
from threedident.latents import check_raw_latents, latents_digest, sample_raw_latents
from threedident.presets import DEFAULT_PRESET, Preset, load_preset
from threedident.progress import Progress
from threedident.render.blender import GPU_BACKENDS
from threedident.render.engine import EngineSettings
from threedident.render.executors.process_pool import (
    DEFAULT_TIMEOUT,
    IMAGES_PER_WORKER,
    Done,
    Failed,
    Task,
    WorkerPool,
    call_in_process,
)
from threedident.render.image_regions import enclosing_points
from threedident.render.mesh import SHAPES
from threedident.render.quality import DEFAULT_ENGINE
from threedident.render.scene import CAMERA, SceneBuilder
from threedident.storage.atomic_files import check_space, explaining_write_errors, remove_leftovers
from threedident.storage.directory import LOGS, DatasetDir
from threedident.storage.shard_plan import Interval, missing_intervals
from threedident.storage.shards import read_shard, write_shard
from threedident.storage.statistics import ImageSums
from threedident.system import processor_name, stop_on_signals, usable_processors
from threedident.version import toolkit_version

Array = npt.NDArray[Any]

GIVE_UP = 20  # images that fail in a row, each three times
_LOOKED_AT = 128  # latents, of which the object may miss the frame in this share
_MAY_MISS = 0.05


@dataclasses.dataclass(frozen=True)
class Probe:
    """What an engine finds on this machine: its version, and devices by kind."""

    version: str
    devices: Mapping[str, int]


def probe_here(engine: str) -> Probe:
    """As `probe`, in this process."""
    if engine == "direct":
        from threedident.render.direct import engine as direct

        return Probe(direct.warp_version(), direct.available_devices())

    from threedident.render import blender

    return Probe(blender.blender_version(), blender.available_devices())


def probe(engine: str = DEFAULT_ENGINE) -> Probe:
    """Asks an engine, in a process of its own, for its version and devices.

    Raises:
        MissingExtraError: its package is not installed.
        RenderError: it does not load.
    """
    found: Probe = call_in_process(probe_here, engine)
    return found


def resolve_device(device: str, found: Probe) -> str:
    """The kind of device to use: the best one there is for "auto".

    Raises:
        UsageError: the device is not there.
    """
    if device == "auto":
        return next(kind for kind in (*GPU_BACKENDS, "cpu") if kind in found.devices)
    if device not in found.devices:
        raise UsageError(
            f"no {device} device found; here are: {', '.join(found.devices)}. "
            "Choose one of them, or --device auto"
        )
    return device


def default_workers(device: str, found: Probe, threads: int) -> int:
    """A worker per processor this process may use, or per GPU."""
    if device != "cpu":
        return found.devices[device]
    return max(1, usable_processors() // threads)


@dataclasses.dataclass(frozen=True)
class Content:
    """What a dataset shall hold, whatever device renders it.

    Attributes:
        preset: the generator.
        resolution: pixels along each side.
        quality: draft, standard or reference.
        engine: its name.
        seed, split: of the latents.
        given: raw latents (N, 10) that do not come from the seed.
        conditional: images 2i and 2i + 1 are a positive pair from it.
    """

    preset: Preset
    resolution: int = 224
    quality: str = "standard"
    engine: str = DEFAULT_ENGINE
    seed: int = 0
    split: str = "train"
    given: npt.NDArray[np.float32] | None = None
    conditional: Distribution | None = None

    @classmethod
    def of(cls, dataset: DatasetDir, shape: str | None = None) -> Content:
        """The content of a dataset that is there.

        Args:
            dataset: one that was rendered.
            shape: the mesh file, of a dataset whose object is one: it does not hold that file.

        Raises:
            UsageError: it was imported, or the mesh file is missing, or is not wanted.
            DatasetError: its given latents are damaged.
        """
        root, manifest = dataset.root, dataset.manifest
        preset = manifest.preset
        if preset is None:
            raise UsageError(f"{root} was imported: what rendered it is not known")
        if preset.shape not in SHAPES:
            if shape is None:
                raise UsageError(
                    f"the object of {root} is the mesh file {preset.shape}, which the dataset "
                    "does not hold: add --shape FILE"
                )
            preset = preset.changed(shape=shape)
        elif shape is not None:
            raise UsageError(f"the object of {root} is a {preset.shape}: leave out --shape")
        process = manifest.pair_process
        seed, split = manifest.settings["seed"], manifest.settings["split"]
        return cls(
            preset,
            manifest.resolution,
            manifest.engine["quality"],
            manifest.engine["name"],
            0 if seed is None else seed,
            "train" if split is None else split,
            dataset.given_latents(),
            process.conditional if process else None,
        )

    def engine_settings(self, device: str, version: str = "") -> EngineSettings:
        """What decides the pixels, on a kind of device, by a version of the engine.

        Raises:
            UsageError: some of it does not fit together.
        """
        return EngineSettings(
            self.preset, self.resolution, self.quality, device, self.engine, version
        )

    def settings(self, engine: EngineSettings) -> dict[str, Any]:
        """As `dataset_settings`."""
        return dataset_settings(
            engine,
            seed=self.seed,
            split=self.split,
            given=self.given,
            conditional=self.conditional,
        )

    def frame_warning(self) -> str | None:
        """A warning where the object is out of sight in many images; None where it is not."""
        raw = self.given
        if raw is None:
            raw = sample_raw_latents(range(_LOOKED_AT), seed=self.seed, split=self.split)
            raw = self.preset.hold_fixed(raw)
        raw = raw[:: max(1, len(raw) // _LOOKED_AT)]
        builder = SceneBuilder(self.preset)
        points = enclosing_points(builder.mesh.vertices)
        missed = [
            CAMERA.misses(builder.build(row).place(points)) for row in self.preset.to_scene(raw)
        ]
        share = float(np.mean(missed))
        if share <= _MAY_MISS:
            return None
        camera = ", ".join(f"{each:g}" for each in CAMERA.location)
        return (
            f"the object is wholly outside the frame in about {share:.0%} of the images (looked "
            f"at: {len(raw)}). The camera stands at ({camera}) m and looks at the origin: choose "
            "smaller ranges of x, y and z, or a smaller scale"
        )


def dataset_settings(
    engine: EngineSettings,
    *,
    seed: int,
    split: str,
    given: npt.NDArray[np.float32] | None = None,
    conditional: Distribution | None = None,
) -> dict[str, Any]:
    """All that decides a dataset's content, for `dataset.json`.

    Args:
        engine: what decides the pixels.
        seed, split: of the latents.
        given: raw latents that do not come from the seed.
        conditional: images 2i and 2i + 1 are a positive pair from it.
    """
    preset = engine.preset.as_dict()
    for key in engine.preset.about():
        del preset[key]
    mesh = None
    if preset["shape"] not in SHAPES:
        # The file's content decides, not where it lies.
        path = Path(preset["shape"])
        preset["shape"], mesh = path.name, hashlib.sha256(path.read_bytes()).hexdigest()
    latents: dict[str, Any] = {"source": "seed"}
    if given is not None:
        latents = {"source": "file", "count": len(given), "sha256": latents_digest(given)}
    elif conditional is not None:
        check_renderable(conditional)
        process = PairProcess(raw_box(), conditional)
        latents = {
            "source": "pairs",
            "space": space_as_dict(process.space),
            "marginal": process.marginal.as_dict(),
            "conditional": conditional.as_dict(),
        }
    return {
        "preset": preset,
        "mesh_sha256": mesh,
        # Given latents depend on neither.
        "seed": seed if given is None else None,
        "split": split if given is None else None,
        "latents": latents,
        "resolution": engine.resolution,
        "engine": engine.as_dict(),
    }


@dataclasses.dataclass(frozen=True)
class JobOptions:
    """How to render, none of which changes a pixel.

    Attributes:
        workers: processes.
        threads: of each process.
        devices: GPUs that the processes share.
        part, parts: render only the shards whose number is `part` modulo `parts`.
        timeout: seconds without a finished image after which a worker is replaced.
        images_per_worker: images after which a worker is replaced.
    """

    workers: int
    threads: int = 1
    devices: int = 1
    part: int = 0
    parts: int = 1
    timeout: float = DEFAULT_TIMEOUT
    images_per_worker: int = IMAGES_PER_WORKER


@dataclasses.dataclass
class Summary:
    """What a run of `render_dataset` did.

    Attributes:
        rendered: images that are now in shards and were not before.
        seconds: it took.
        redone: shards that were corrupt and have been rendered again.
        failed: images that could not be rendered: number to reason.
        interrupted: whether it was asked to stop.
        peak_memory: the largest resident memory of a worker, bytes.
    """

    rendered: int = 0
    seconds: float = 0.0
    redone: list[str] = dataclasses.field(default_factory=list)
    failed: dict[int, str] = dataclasses.field(default_factory=dict)
    interrupted: bool = False
    peak_memory: int = 0

    def fail(self, image: Failed, dataset: DatasetDir, progress: Progress | Silent) -> None:
        """Counts an image that could not be rendered, and says so."""
        self.failed[image.index] = image.reason
        raw = dataset.raw_latents([image.index])[0]
        progress.note(
            f"image {image.index} could not be rendered ({image.reason}); its raw latents: "
            f"{[float(v) for v in raw]}"
        )


class _OpenShard:
    """A shard whose images are coming in."""

    def __init__(self, interval: Interval, raw: Array, latents: Array, resolution: int) -> None:
        self.interval = interval
        self.raw_latents, self.latents = raw, latents
        self.images = np.empty((interval.count, resolution, resolution, 3), np.uint8)
        self.have = np.zeros(interval.count, bool)
        self.failed = 0

    def runs(self) -> list[tuple[int, int]]:
        """The stretches of finished images: offset of the first, and count."""
        edges = np.flatnonzero(np.diff(np.concatenate([[False], self.have, [False]])))
        return [(int(a), int(b - a)) for a, b in edges.reshape(-1, 2)]


def render_here(
    dataset: DatasetDir,
    todo: list[Interval],
    engine: EngineSettings,
    options: JobOptions,
    progress: Progress,
    stop: threading.Event,
    summary: Summary,
) -> None:
    """Renders shards in processes of this machine.

    Args:
        dataset: takes the shards.
        todo: which ones.
        engine, options: what to render with, and how.
        progress: counts finished images.
        stop: when it is set, what is finished is written and the rest left.
        summary: takes down what was done.

    Raises:
        DatasetError: the disk is full or cannot be written to.
        RenderError: the renderer cannot start, or all images fail.
    """
    images = sum(interval.count for interval in todo)
    prefix = f"worker-{platform.node()}-{options.part}"
    with make_pool(dataset.root, engine, options, min(options.workers, images), prefix) as pool:
        render_shards(dataset, todo, engine, pool, progress, stop, summary)


def make_pool(
    root: Path,
    engine: EngineSettings,
    options: JobOptions,
    workers: int,
    log_prefix: str,
    *,
    keep: bool = False,
) -> WorkerPool:
    """A pool as the options want it, whose logs lie in the dataset `root`."""
    return WorkerPool(
        engine,
        workers=workers,
        threads=options.threads,
        devices=options.devices,
        timeout=options.timeout,
        images_per_worker=options.images_per_worker,
        log_dir=root / LOGS,
        log_prefix=log_prefix,
        keep=keep,
    )


def render_dataset(
    dataset: DatasetDir,
    total: int,
    engine: EngineSettings,
    options: JobOptions,
    render: Callable[..., None] = render_here,
    announce: Callable[[], None] = lambda: None,
) -> Summary:
    """Renders what a dataset lacks of its first `total` images.

    Finished shards stay whatever happens. On SIGINT or SIGTERM it stops within seconds,
    keeping the images that it can write as a shorter shard.

    Args:
        dataset, total: which images.
        engine, options: what to render with, and how.
        render: does the work, with the arguments of `render_here`.
        announce: called when no other process can be at the same work.

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
    summary = Summary()
    started = time.monotonic()
    with dataset.only_render(options.part, options.parts), stop_on_signals() as stop:
        announce()
        _render_missing(dataset, total, engine, options, render, stop, summary)
    summary.interrupted = stop.is_set()
    summary.seconds = time.monotonic() - started
    if dataset.shards():
        try:
            dataset.write_stats()
        except DatasetError as error:  # the images are there all the same
            Progress.print(f"stats.json is not up to date: {error}")
    return summary


def _render_missing(
    dataset: DatasetDir,
    total: int,
    engine: EngineSettings,
    options: JobOptions,
    render: Callable[..., None],
    stop: threading.Event,
    summary: Summary,
) -> None:
    good, summary.redone = _check_finished(dataset, options, stop)
    todo = missing_intervals(
        total, dataset.manifest.shard_size, good, part=options.part, parts=options.parts
    )
    images = sum(interval.count for interval in todo)
    if images:
        SceneBuilder(engine.preset)  # complains at once
        _check_space(dataset.root, images, dataset)
    dataset.record_wanted(total)  # now that it can be had: it never shrinks
    if images and not stop.is_set():
        before = sum(interval.count for interval in good)
        with Progress("rendering", before + images, finished=before, forecast=True) as progress:
            render(dataset, todo, engine, options, progress, stop, summary)


def render_shards(
    dataset: DatasetDir,
    todo: list[Interval],
    engine: EngineSettings,
    pool: WorkerPool,
    progress: Progress | Silent,
    stop: threading.Event,
    summary: Summary,
) -> None:
    """Renders shards with the workers of a pool; arguments and errors as in `render_here`."""
    builder = SceneBuilder(engine.preset)
    open_shards: collections.OrderedDict[int, _OpenShard] = collections.OrderedDict()
    preset = engine.preset
    provenance = {
        "device": engine.device,
        "engine_version": engine.version,
        "toolkit_version": toolkit_version(),
        "processor": processor_name(),
    }

    def tasks() -> Iterator[Task]:
        for interval in todo:
            raw = dataset.raw_latents(interval.indices)
            latents = preset.to_scene(raw)
            open_shards[interval.first] = _OpenShard(interval, raw, latents, engine.resolution)
            for offset in range(interval.count):
                yield Task(interval.first + offset, latents[offset])

    def shard_of(index: int) -> _OpenShard:
        return next(
            shard
            for shard in open_shards.values()
            if shard.interval.first <= index < shard.interval.stop
        )

    def write(shard: _OpenShard, offset: int, count: int) -> None:
        window = slice(offset, offset + count)
        interval = Interval(shard.interval.first + offset, count)
        images, latents = shard.images[window], shard.latents[window]
        write_shard(
            dataset.root,
            interval,
            images=images,
            raw_latents=shard.raw_latents[window],
            latents=latents,
            sums=ImageSums.of(images, builder.share_in_frame(latents)),
            fingerprint=dataset.manifest.fingerprint,
            provenance=provenance,
            compression=dataset.manifest.compression,
        )
        summary.rendered += count

    total = sum(interval.count for interval in todo)
    failed_in_a_row = 0
    try:
        for result in pool.run(tasks(), total, stop):
            shard = shard_of(result.index)
            offset = result.index - shard.interval.first
            if isinstance(result, Failed):
                summary.fail(result, dataset, progress)
                shard.failed += 1
                failed_in_a_row += 1
            else:
                shard.images[offset] = result.image
                shard.have[offset] = True
                failed_in_a_row = 0
                progress.advance()
            if shard.have.sum() + shard.failed == shard.interval.count:
                # One stretch, the whole shard, unless an image in it has failed for good.
                for run in shard.runs():
                    write(shard, *run)
                del open_shards[shard.interval.first]
            if failed_in_a_row >= GIVE_UP:
                raise all_fail(dataset.root, summary.failed[result.index])
    finally:
        summary.peak_memory = max(summary.peak_memory, pool.peak_memory)
        # Stopped, or by an error: what is finished from a shard's start is kept as well.
        with contextlib.suppress(DatasetError):
            for shard in open_shards.values():
                for offset, count in shard.runs()[:1]:
                    if offset == 0:
                        write(shard, offset, count)


def all_fail(root: Path, reason: str) -> RenderError:
    """The error of a job whose images fail one after the other."""
    return RenderError(
        f"{GIVE_UP} images in a row could not be rendered, the last because: {reason}. Something "
        f"is wrong with all of them; the output of the render processes is in {root / LOGS}"
    )


def _check_finished(
    dataset: DatasetDir, options: JobOptions, stop: threading.Event
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
    threads = min(8, os.cpu_count() or 1)
    with (
        concurrent.futures.ThreadPoolExecutor(threads) as executor,
        _checking(len(ours)) as progress,
    ):
        for interval, path, fault in executor.map(
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


def _checking(shards: int) -> Progress | Silent:
    return Progress("checking", shards, unit="shards") if shards > 200 else Silent()


class Silent:
    """Stands in for a progress bar where the work is short."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def advance(self) -> None:
        """Counts nothing."""

    def note(self, message: str) -> None:
        """Prints a line."""
        Progress.print(message)


def _fault(dataset: DatasetDir, path: Path) -> str | None:
    """What is wrong with a shard; None for a good one."""
    try:
        shard = read_shard(
            path,
            resolution=dataset.manifest.resolution,
            fingerprint=dataset.manifest.fingerprint,
        )
        dataset.check_latents(shard)
    except DatasetError as error:
        return str(error)
    return None


def _check_space(root: Path, images: int, dataset: DatasetDir) -> None:
    if dataset.manifest.compression != "none":
        return  # how much it takes is not known beforehand
    check_space(
        root,
        image_bytes(images, dataset.manifest.resolution),
        "Make room, choose a smaller --n or --resolution, or start a new dataset with "
        "--compression gzip",
    )


def image_bytes(images: int, resolution: int) -> int:
    """Bytes that images take on the disk, latents included, where they are not compressed."""
    return images * (resolution**2 * 3 + 100)


def render_images(
    raw_latents: npt.ArrayLike,
    preset: Preset | str = DEFAULT_PRESET,
    *,
    resolution: int = 224,
    quality: str = "standard",
    device: str = "auto",
    engine: str = DEFAULT_ENGINE,
    workers: int | None = None,
    title: str = "rendering",
) -> npt.NDArray[np.uint8]:
    """Renders raw latents into an array, in worker processes.

    Args:
        raw_latents: (N, 10), in [-1, 1]; factors that the preset holds fixed at their values, as
            `Preset.hold_fixed` puts them.
        preset: the generator, or a preset's name or file.
        resolution: pixels along each side.
        quality: draft, standard or reference.
        device: auto or a kind of device.
        engine: cycles or direct.
        workers: processes; None: one per processor or GPU.
        title: what the progress bar says.

    Returns:
        (N, H, W, 3) uint8 sRGB.

    Raises:
        UsageError: an argument does not fit.
        RenderError: an image could not be rendered.
    """
    raw = check_raw_latents(raw_latents)
    if not isinstance(preset, Preset):
        preset = load_preset(preset)
    preset.require_fixed(raw, "raw latents")
    latents = preset.to_scene(raw)
    EngineSettings(preset, resolution, quality, device, engine)  # complains at once
    SceneBuilder(preset)
    found = probe(engine)
    kind = resolve_device(device, found)
    settings = EngineSettings(preset, resolution, quality, kind, engine, found.version)
    images = np.empty((len(raw), resolution, resolution, 3), np.uint8)
    count = workers or default_workers(kind, found, 1)
    with (
        tempfile.TemporaryDirectory(prefix="3dident-log-") as logs,
        WorkerPool(
            settings,
            workers=min(count, len(raw)),
            devices=found.devices[kind],
            timeout=default_timeout(resolution),
            log_dir=Path(logs),
        ) as pool,
        Progress(title, len(raw)) as progress,
    ):
        for result in pool.run((Task(i, row) for i, row in enumerate(latents)), len(raw)):
            if not isinstance(result, Done):
                raise RenderError(f"image {result.index} could not be rendered: {result.reason}")
            images[result.index] = result.image
            progress.advance()
    return images


def default_timeout(resolution: int) -> float:
    """Seconds that one image may take, by far more than any quality needs."""
    return DEFAULT_TIMEOUT * max(1.0, (resolution / 224) ** 2)
