"""Fidelity of the quick qualities for the other shapes and materials.

    python benchmarks/materials.py [--n 6]

Renders the first N scenes of the test split of seed 0 at every quality, and compares with
quality `reference` (the published settings, some 33 CPU-seconds an image), since there are no
converged renders of these. The last scene lies on the ground (raw z = -1).
"""

from __future__ import annotations

import argparse
import contextlib
import time

import numpy as np

from threedident.latents import sample_raw_latents
from threedident.presets import load_preset
from threedident.render.blender import BlenderEngine, quiet_blender
from threedident.render.color import psnr
from threedident.render.quality import get_quality
from threedident.render.scene import SceneBuilder

OTHERS = (
    ("cube", "rubber"),
    ("sphere", "rubber"),
    ("cylinder", "rubber"),
    ("teapot", "metal"),
    ("teapot", "crystal"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=6)
    arguments = parser.parse_args()
    raw = sample_raw_latents(range(arguments.n), seed=0, split="test")
    raw[-1, 2] = -1
    print("| shape | material | quality | CPU-seconds per image | PSNR mean / worst, dB |")
    print("| --- | --- | --- | --- | --- |")
    for shape, material in OTHERS:
        preset = load_preset("3dident").changed(shape=shape, material=material)
        latents = preset.to_scene(raw)
        references: list[np.ndarray] = []
        for quality in ("reference", "standard", "draft"):
            builder = SceneBuilder(preset)
            level = get_quality(quality)
            with quiet_blender(), contextlib.closing(BlenderEngine(builder, level)) as engine:
                if references:
                    engine.render(latents[0])
                start = time.process_time()
                images = [engine.render(row) for row in latents]
                seconds = (time.process_time() - start) / len(latents)
            references = references or images
            found = [psnr(a, b) for a, b in zip(images, references, strict=True)]
            same = quality == "reference"
            fidelity = "" if same else f"{np.mean(found):.1f} / {min(found):.1f}"
            print(f"| {shape} | {material} | {quality} | {seconds:.3g} | {fidelity} |", flush=True)


if __name__ == "__main__":
    main()
