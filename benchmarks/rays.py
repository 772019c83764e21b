"""What bounds the direct engine: time and rays of each of its kernels, at quality standard.

    python benchmarks/rays.py [--device cpu]

Camera rays are counted exactly; of the shadow rays, the number that would be cast if no light
were left out because it shines from behind a surface or not at all.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import warp as wp

from threedident.presets import load_preset
from threedident.render.direct.engine import DirectEngine
from threedident.render.quality import get_quality

DATA = Path(__file__).parents[1] / "tests" / "data" / "converged"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    preset, quality = load_preset("3dident"), get_quality("standard", "direct")
    engine = DirectEngine(preset, quality, device=arguments.device)
    latents = preset.to_scene(np.load(DATA / "raw_latents.npy"))
    engine.render_batch(latents)
    seconds: dict[str, float] = defaultdict(float)
    camera: dict[str, int] = defaultdict(int)
    shadow: dict[str, int] = defaultdict(int)
    launch = wp.launch

    def timed(kernel: Any, dim: Any, inputs: Any = (), outputs: Any = (), **rest: Any) -> None:
        start = time.perf_counter()
        launch(kernel, dim, inputs=inputs, outputs=outputs, **rest)
        wp.synchronize()
        seconds[kernel.key] += time.perf_counter() - start
        if kernel.key == "scout_kernel":
            camera[kernel.key] += 4 * int(np.prod(dim))
        elif kernel.key == "ground_kernel":
            shadow[kernel.key] += 3 * quality.ground * int(np.prod(dim))
        elif kernel.key == "object_kernel":
            hits = np.pad(inputs[6].numpy(), ((0, 0), (1, 1), (1, 1)), mode="edge")
            around = np.lib.stride_tricks.sliding_window_view(hits, (3, 3), axis=(1, 2))
            most, least = around.max((-1, -2)), around.min((-1, -2))
            effort = np.array([shot["effort"] for shot in inputs[5].numpy()])[:, None, None]
            rays = effort * np.where(
                most == 0, 0, np.where(least == 4, quality.inside, quality.edge)
            )
            camera[kernel.key] += int(rays.sum())
            covered = outputs[0].numpy()[..., 3]
            shadow[kernel.key] += round(3 * float((rays * covered).sum()))

    wp.launch = timed
    engine.render_batch(latents)
    wp.launch = launch
    print("| kernel | ms an image | camera rays | shadow rays, at most | million rays a second |")
    print("| --- | --- | --- | --- | --- |")
    for key, spent in seconds.items():
        rays = camera[key] + shadow[key]
        print(
            f"| {key} | {1e3 * spent / len(latents):.2f} | {camera[key] / len(latents):.0f} "
            f"| {shadow[key] / len(latents):.0f} | {rays / spent / 1e6:.1f} |"
        )


if __name__ == "__main__":
    main()
