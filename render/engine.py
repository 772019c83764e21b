"""The engines: what one must offer, and how one is made from settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from threedident.render.quality import get_quality
from threedident.render.scene import SceneBuilder
from threedident.render.settings import EngineSettings

Array = npt.NDArray[Any]


class Engine(Protocol):
    """An engine: makes images of one preset at one resolution and quality.

    Attributes:
        batch: the number of images that it makes at once.
    """

    batch: int

    def render_batch(self, latents: Array) -> npt.NDArray[np.uint8]:
        """Render scene rows (B, W) into images (B, H, W, 3), uint8 sRGB.

        Args:
            latents: the rows, as `Preset.columns` names their columns: of most presets the ten
                scene values.
        """

    def close(self) -> None:
        """Free what the engine holds."""


def create_engine(
    settings: EngineSettings,
    *,
    threads: int = 1,
    device_index: int = 0,
    scratch: Path | None = None,
) -> Engine:
    """Make an engine in this process.

    Args:
        settings: the settings that decide the pixels.
        threads: the threads of each render on the CPU.
        device_index: the number of the device among those of its kind.
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
