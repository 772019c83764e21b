"""What bounds the direct engine: time and rays of each of its kernels, at quality standard.

    python benchmarks/rays.py [--device cpu]

Camera rays are counted exactly. Of the shadow rays, those of the object are the number that would
be cast if no light were left out because it shines from behind a surface or not at all, and those
of the ground's first look if no light were left out because the object is far from its way.
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
    few: list[float] = []  # of each image, the share of the object that few samples are enough for
    launch = wp.launch

    def timed(kernel: Any, dim: Any, inputs: Any = (), outputs: Any = (), **rest: Any) -> None:
        start = time.perf_counter()
        launch(kernel, dim, inputs=inputs, outputs=outputs, **rest)
        wp.synchronize()
        seconds[kernel.key] += time.perf_counter() - start
        if kernel.key == "look_at_ground_kernel":
            shadow[kernel.key] += 3 * quality.look * int(np.prod(dim))
        elif kernel.key == "ground_kernel":
            bits = np.pad(inputs[5].numpy(), ((0, 0), (1, 1), (1, 1)), mode="edge")
            around = np.lib.stride_tricks.sliding_window_view(bits, (3, 3), axis=(1, 2))
            again = np.bitwise_or.reduce(around, axis=(-1, -2))
            lights = sum(int((again >> light & 1).sum()) for light in range(3))
            shadow[kernel.key] += quality.ground * lights
        elif kernel.key == "look_at_object_kernel":
            layer, _, counts = outputs
            camera[kernel.key] += int(counts.numpy().sum())
            shadow[kernel.key] += 3 * int(layer.numpy()[..., 3].sum())
        elif kernel.key == "object_kernel":
            layer, counts = (each.numpy() for each in outputs)
            more = np.maximum(counts - quality.inside, 0)
            for cover, n in zip(layer[..., 3] > 0, counts, strict=True):
                few.append(float((n[cover] <= quality.inside).mean()))
            camera[kernel.key] += int(more.sum())
            shadow[kernel.key] += round(3 * float((more * layer[..., 3]).sum()))

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
    print(
        f"\nThe first samples are enough for {np.mean(few):.0%} of the object's pixels, between "
        f"{min(few):.0%} and {max(few):.0%}: these the engine cycles leaves to Blender."
    )


if __name__ == "__main__":
    main()
