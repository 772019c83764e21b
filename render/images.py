"""Rendering a few images into an array, in processes of their own."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from threedident import defaults
from threedident.errors import RenderError
from threedident.latents import check_raw_latents
from threedident.presets import Preset, load_preset
from threedident.progress import Progress
from threedident.render.executors.local import LocalExecutor
from threedident.render.executors.process_pool import Done, Task, WorkerPool
from threedident.render.scene import SceneBuilder
from threedident.render.settings import EngineSettings, default_timeout, resolve_device


def render_images(
    raw_latents: npt.ArrayLike,
    preset: Preset | str = defaults.PRESET,
    *,
    resolution: int = defaults.RESOLUTION,
    quality: str = defaults.QUALITY,
    device: str = "auto",
    engine: str = defaults.ENGINE,
    workers: int | None = None,
    title: str = "rendering",
) -> npt.NDArray[np.uint8]:
    """Render raw latents into an array, in worker processes.

    Args:
        raw_latents: the raw latents, (N, 10) in [-1, 1]; factors that the preset holds fixed at
            their values, as `Preset.hold_fixed` puts them.
        preset: the generator, or a preset's name or file.
        resolution: the pixels along each side.
        quality: the quality level: draft, standard or reference.
        device: auto or a kind of device.
        engine: the engine: cycles or direct.
        workers: the number of processes; None: one per processor or GPU.
        title: the text beside the progress bar.

    Returns:
        The images, (N, H, W, 3) uint8 sRGB.

    Raises:
        UsageError: an argument does not fit.
        RenderError: an image could not be rendered.
    """
    raw = check_raw_latents(raw_latents)
    if not isinstance(preset, Preset):
        preset = load_preset(preset)
    preset.require_ten_columns(
        "render scene rows, as Preset.columns names them, with an engine's render_batch"
    )
    preset.require_fixed(raw, "raw latents")
    latents = preset.to_scene(raw)
    EngineSettings(preset, resolution, quality, device, engine)  # refuses before a process starts
    SceneBuilder(preset)  # as does a mesh that cannot be used
    executor = LocalExecutor()
    available = executor.probe(engine, device, 1)
    kind = resolve_device(device, available)
    settings = EngineSettings(preset, resolution, quality, kind, engine, available.version)
    images = np.empty((len(raw), resolution, resolution, 3), np.uint8)
    count = workers or executor.default_workers(kind, available, 1)
    with (
        tempfile.TemporaryDirectory(prefix="3dident-log-") as logs,
        WorkerPool(
            settings,
            workers=min(count, len(raw)),
            devices=available.devices[kind],
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
