"""What decides an image's pixels besides its latents, and what an engine finds on this machine."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident import defaults
from threedident.distributions import Distribution, PairProcess, raw_box
from threedident.distributions.philox_sampler import check_renderable
from threedident.distributions.spaces import space_as_dict
from threedident.errors import UsageError
from threedident.presets import Preset
from threedident.render.blender import GPU_BACKENDS
from threedident.render.executors.processes import call_in_process
from threedident.render.mesh import SHAPES
from threedident.render.quality import RECIPES, check_material, get_quality
from threedident.storage.directory import latents_digest

DEVICES = ("auto", "cpu", "cuda", "optix", "hip", "metal", "oneapi")
MIN_RESOLUTION, MAX_RESOLUTION = 8, 4096


@dataclasses.dataclass(frozen=True)
class EngineSettings:
    """All that decides the pixels of an image, apart from its latents.

    Attributes:
        preset: the generator.
        resolution: the pixels along each side.
        quality: the quality level: draft, standard or reference.
        device: the kind of device that renders, resolved (not "auto").
        engine: the engine's name.
        version: the engine's version, such as 4.5.15; empty where it is not known yet.
    """

    preset: Preset
    resolution: int = defaults.RESOLUTION
    quality: str = defaults.QUALITY
    device: str = "cpu"
    engine: str = defaults.ENGINE
    version: str = ""

    def __post_init__(self) -> None:
        get_quality(self.quality, self.engine)
        check_material(self.preset.material, self.engine)
        if self.device not in DEVICES:
            raise UsageError(
                f"unknown device {self.device!r}: expected one of {', '.join(DEVICES)}"
            )
        if not MIN_RESOLUTION <= self.resolution <= MAX_RESOLUTION:
            raise UsageError(
                f"the resolution must lie in [{MIN_RESOLUTION}, {MAX_RESOLUTION}], "
                f"found {self.resolution}"
            )

    def as_dict(self) -> dict[str, Any]:
        """The engine's part of `dataset.json`, samples spelled out."""
        quality = get_quality(self.quality, self.engine)
        return {
            "name": self.engine,
            "version": self.version,
            "device": self.device,
            "quality": self.quality,
            "recipe": RECIPES[self.engine],
            "method": type(quality).__name__.lower(),
            **dataclasses.asdict(quality),
        }


def dataset_settings(
    engine: EngineSettings,
    *,
    seed: int,
    split: str,
    given: npt.NDArray[np.float32] | None = None,
    conditional: Distribution | None = None,
) -> dict[str, Any]:
    """Collect all that decides a dataset's content, for `dataset.json`.

    Args:
        engine: the settings that decide the pixels.
        seed: the seed of the latents.
        split: the split of the latents: train, val or test.
        given: the raw latents (N, 10), if they do not come from the seed.
        conditional: the conditional that makes images 2i and 2i + 1 a positive pair.
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
class Probe:
    """What an engine finds on a machine.

    Attributes:
        version: the engine's version.
        devices: the number of devices, by kind.
    """

    version: str
    devices: Mapping[str, int]


def probe_here(engine: str) -> Probe:
    """Ask an engine for its version and devices, as `probe` does, in this process."""
    if engine == "direct":
        from threedident.render.direct import engine as direct

        return Probe(direct.warp_version(), direct.available_devices())

    from threedident.render import blender

    return Probe(blender.blender_version(), blender.available_devices())


def probe(engine: str = defaults.ENGINE) -> Probe:
    """Ask an engine, in a process of its own, for its version and devices.

    Raises:
        MissingExtraError: its package is not installed.
        RenderError: it does not load.
    """
    answer: Probe = call_in_process(probe_here, engine)
    return answer


def resolve_device(device: str, available: Probe) -> str:
    """Choose the kind of device to use: the best available one for "auto".

    Raises:
        UsageError: the device is not available.
    """
    if device == "auto":
        return next(kind for kind in (*GPU_BACKENDS, "cpu") if kind in available.devices)
    if device not in available.devices:
        raise UsageError(
            f"no {device} device found; here are: {', '.join(available.devices)}. "
            "Choose one of them, or --device auto"
        )
    return device


def default_timeout(resolution: int) -> float:
    """Seconds that one image may take, by far more than any quality needs."""
    return defaults.RENDER_TIMEOUT * max(1.0, (resolution / defaults.RESOLUTION) ** 2)
