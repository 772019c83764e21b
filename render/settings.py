"""Engine settings: all that decides pixels besides latents; and the devices of a machine."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from threedident import defaults
from threedident.errors import UsageError
from threedident.presets import Preset
from threedident.render.blender import GPU_BACKENDS
from threedident.render.executors.processes import call_in_process
from threedident.render.quality import RECIPES, Whole, check_scenes, get_quality

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
        version: the engine's version, such as "1.19.0", or "4.5.15, Warp 1.19.0" for Cycles;
            empty where it is not known yet.
    """

    preset: Preset
    resolution: int = defaults.RESOLUTION
    quality: str = defaults.QUALITY
    device: str = "cpu"
    engine: str = defaults.ENGINE
    version: str = ""

    def __post_init__(self) -> None:
        get_quality(self.quality, self.engine)
        check_scenes(self.preset, self.engine, self.quality)
        if self.device not in DEVICES:
            raise UsageError(
                f"unknown device {self.device!r}: expected one of {', '.join(DEVICES)}"
            )
        if not MIN_RESOLUTION <= self.resolution <= MAX_RESOLUTION:
            raise UsageError(
                f"the resolution must lie in [{MIN_RESOLUTION}, {MAX_RESOLUTION}], "
                f"found {self.resolution}"
            )

    @property
    def preferred_batch(self) -> int:
        """The images that a render process is handed at once.

        A GPU that integrates many images in a launch wants many; else a few hide the hand-over,
        or more of small ones, which are made in no time.
        """
        if self.engine != "direct":
            return 8
        return max(8, min(64, 2**16 // self.resolution**2)) if self.device == "cpu" else 512

    @property
    def images_per_worker(self) -> int:
        """The images after which a render process is replaced, unless the user says otherwise."""
        direct = self.engine == "direct"
        return defaults.IMAGES_PER_DIRECT_WORKER if direct else defaults.IMAGES_PER_WORKER

    def as_dict(self) -> dict[str, Any]:
        """The engine's part of `dataset.json`, samples spelled out."""
        quality = get_quality(self.quality, self.engine)
        version = self.version
        if isinstance(quality, Whole):  # Blender alone
            version = version.split(defaults.VERSION_JOINT)[0]
        return {
            "name": self.engine,
            "version": version,
            "device": self.device,
            "quality": self.quality,
            "recipe": RECIPES[self.engine][self.quality],
            "method": type(quality).__name__.lower(),
            **dataclasses.asdict(quality),
        }


@dataclasses.dataclass(frozen=True)
class Probe:
    """The version and devices that an engine finds on a machine.

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

    return Probe(blender.engine_version(), blender.available_devices())


@functools.cache
def probe(engine: str = defaults.ENGINE) -> Probe:
    """Ask an engine, in a process of its own, for its version and devices.

    It is asked once: neither changes while this process runs.

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
    """The seconds that one image may take, by far more than any quality needs."""
    return defaults.RENDER_TIMEOUT * max(1.0, (resolution / defaults.RESOLUTION) ** 2)
