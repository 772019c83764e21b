"""What a dataset needs of an engine, whichever makes the images."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from threedident.errors import UsageError
from threedident.presets import Preset
from threedident.render.quality import DEFAULT_ENGINE, RECIPES, check_material, get_quality
from threedident.render.scene import SceneBuilder

Array = npt.NDArray[Any]

DEVICES = ("auto", "cpu", "cuda", "optix", "hip", "metal", "oneapi")
MIN_RESOLUTION, MAX_RESOLUTION = 8, 4096


class Engine(Protocol):
    """Makes images of one preset at one resolution and quality.

    Attributes:
        batch: how many images it likes to make at once.
    """

    batch: int

    def render_batch(self, latents: Array) -> npt.NDArray[np.uint8]:
        """Images (B, H, W, 3), uint8 sRGB, of latents (B, 10), scene values."""

    def close(self) -> None:
        """Frees what the engine holds."""


@dataclasses.dataclass(frozen=True)
class EngineSettings:
    """All that decides the pixels of an image, apart from its latents.

    Attributes:
        preset: the generator.
        resolution: pixels along each side.
        quality: draft, standard or reference.
        device: what renders, resolved (not "auto").
        engine: the engine's name.
        version: the engine's version, as 4.5.15; empty where it is not known yet.
    """

    preset: Preset
    resolution: int = 224
    quality: str = "standard"
    device: str = "cpu"
    engine: str = DEFAULT_ENGINE
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


def create_engine(
    settings: EngineSettings,
    *,
    threads: int = 1,
    device_index: int = 0,
    scratch: Path | None = None,
) -> Engine:
    """An engine in this process.

    Args:
        settings: what decides the pixels.
        threads: of each render on the CPU.
        device_index: which device of its kind.
        scratch: a folder for files that live as long as the engine.

    Raises:
        MissingExtraError: the engine's package is not installed.
    """
    quality = get_quality(settings.quality, settings.engine)
    if settings.engine == "direct":
        from threedident.render.direct.engine import DirectEngine

        return DirectEngine(
            settings.preset,
            quality,
            resolution=settings.resolution,
            device=settings.device,
            device_index=device_index,
        )

    from threedident.render.blender import BlenderEngine

    return BlenderEngine(
        SceneBuilder(settings.preset),
        quality,
        resolution=settings.resolution,
        device=settings.device,
        device_index=device_index,
        threads=threads,
        scratch=scratch,
    )
