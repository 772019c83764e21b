"""Small converged renders of Blender, of every material and of other shapes, for the tests.

    python tests/wholes.py

renders them into tests/data/wholes: about 2 CPU-minutes, which the tests need not spend again.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
from PIL import Image

from threedident.latents import sample_raw_latents
from threedident.presets import Preset, load_preset

FOLDER = Path(__file__).parents[1] / "data" / "wholes"

#: (shape, material, resolution, samples) of the renders.
SCENES = (
    ("teapot", "rubber", 48, 2048),
    ("teapot", "metal", 48, 2048),
    ("teapot", "crystal", 48, 2048),
    ("cube", "rubber", 64, 1024),
    ("cylinder", "metal", 64, 1024),
)


def scene(shape: str, material: str) -> tuple[Preset, np.ndarray]:
    """A preset, and the raw latents (2, 10) that are rendered of it."""
    preset = load_preset("3dident").changed(shape=shape, material=material)
    return preset, sample_raw_latents([1, 4], seed=0, split="test")


def wholes(shape: str, material: str) -> np.ndarray:
    """The converged renders of a scene: (2, H, W, 3) uint8."""
    paths = sorted(FOLDER.glob(f"{shape}-{material}-*.png"))
    return np.stack([np.asarray(Image.open(path)) for path in paths])


def main() -> None:
    from threedident.render.blender import BlenderEngine
    from threedident.render.quality import Whole
    from threedident.render.scene import SceneBuilder

    FOLDER.mkdir(parents=True, exist_ok=True)
    for shape, material, resolution, samples in SCENES:
        preset, raw = scene(shape, material)
        level = Whole(samples, light_tree=True)
        engine = BlenderEngine(SceneBuilder(preset), level, resolution=resolution)
        with contextlib.closing(engine):
            for i, latents in enumerate(preset.to_scene(raw)):
                Image.fromarray(engine.render(latents)).save(FOLDER / f"{shape}-{material}-{i}.png")


if __name__ == "__main__":
    main()
