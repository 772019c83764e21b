"""Renders the converged references that the tests and the benchmark compare with.

    python benchmarks/references.py OUT [--n 20]

About 80 CPU-seconds an image. Latents: the test split of seed 0, preset `3dident`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from threedident.latents import sample_raw_latents
from threedident.presets import load_preset
from threedident.render.blender import BlenderEngine
from threedident.render.quality import Whole
from threedident.render.scene import SceneBuilder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--n", type=int, default=20)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    preset = load_preset("3dident")
    raw = sample_raw_latents(range(arguments.n), seed=0, split="test")
    np.save(arguments.out / "raw_latents.npy", raw)
    engine = BlenderEngine(SceneBuilder(preset), Whole(samples=1024, light_tree=True))
    for i, latents in enumerate(preset.to_scene(raw)):
        Image.fromarray(engine.render(latents)).save(arguments.out / f"{i:02d}.png")
        print(f"{i + 1} of {arguments.n}", flush=True)


if __name__ == "__main__":
    main()
