"""Renders the converged references that the tests and the benchmarks compare with.

    python benchmarks/references.py OUT [--n 20]
    python benchmarks/references.py OUT --hard

About 80 CPU-seconds an image. Latents: the test split of seed 0, preset `3dident`. With --hard,
scenes that are hard to render: large objects under the near area light, grazing spotlights,
objects at the frame's edge and close to the ground, and four of the training split in which
shadows and the spotlight's ring are soft and large.
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

#: Raw latents, in the order of the factors.
HARD = (
    (0, 0, 1, 0.3, -0.4, 0.2, 0.5, 0.4, -0.3, 0.7),  # large, right under the area light
    (0.15, -0.1, 0.95, -0.8, 0.6, -0.5, -0.9, 0.8, 0.3, -0.6),
    (-0.95, 0.9, -0.9, 0.2, 0.5, -0.3, 1, 0.3, 0.9, 0.2),  # a grazing spotlight
    (0.95, -0.95, 0.2, -0.6, -0.2, 0.9, -1, -0.8, 0.5, 0.9),  # at the frame's edge
    (0.9, 0.9, 0.9, 0.9, 0.1, -0.9, 0.0, 0.9, 0.1, 0.5),  # close to the camera
    (0, -1, -1, 0.95, 0.9, 0.1, -0.6, 0.6, -0.9, 0.8),  # close to the ground
    (-0.3, 0.4, -1, -0.9, 0.05, 0.5, 0.95, 0.2, 0.95, 0.4),
    (0.5, 0.0, 0.9, 0.5, -0.95, 0.4, -0.2, 0.95, 0.95, 0.3),
    (-1, -1, 1, 0.1, 0.2, 0.3, 0.9, 0.5, 0.7, 0.95),
    (0.7, -0.6, -0.4, -0.5, 0.7, -0.7, -0.95, -0.3, 0.6, -0.9),
)
TRAINING = (5, 8, 9, 16)  # images of the training split of seed 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--n", type=int, default=20)
    parser.add_argument("--hard", action="store_true")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    preset = load_preset("3dident")
    raw = sample_raw_latents(range(arguments.n), seed=0, split="test")
    if arguments.hard:
        training = sample_raw_latents(TRAINING, seed=0, split="train")
        raw = np.concatenate([np.array(HARD, np.float32), training])
    np.save(arguments.out / "raw_latents.npy", raw)
    engine = BlenderEngine(SceneBuilder(preset), Whole(samples=1024, light_tree=True))
    for i, latents in enumerate(preset.to_scene(raw)):
        Image.fromarray(engine.render(latents)).save(arguments.out / f"{i:02d}.png")
        print(f"{i + 1} of {len(raw)}", flush=True)


if __name__ == "__main__":
    main()
