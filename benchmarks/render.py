"""Time against fidelity of every quality level, in one run on one processor.

    python benchmarks/render.py [--published N] [--json FILE]

Renders the twenty scenes of tests/data/converged at each level, in this process and on one
thread, and prints CPU-seconds an image, PSNR against the converged renders, and how many
times less CPU time that is than the published settings take. Those are slow: they are
measured on the first N of the scenes (default 4; 20 for all of them).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
from PIL import Image

from threedident.presets import load_preset
from threedident.render.blender import BlenderEngine, blender_version, quiet_blender
from threedident.render.color import psnr
from threedident.render.job import processor_name
from threedident.render.quality import get_quality
from threedident.render.scene import SceneBuilder

DATA = Path(__file__).parents[1] / "tests" / "data" / "converged"


def measure(quality: str, count: int) -> dict[str, float | int | str]:
    preset = load_preset("3dident")
    latents = preset.to_scene(np.load(DATA / "raw_latents.npy"))[:count]
    references = [
        np.asarray(Image.open(DATA / f"{i:02d}.png").convert("RGB")) for i in range(count)
    ]
    start = time.process_time()
    engine = BlenderEngine(SceneBuilder(preset), get_quality(quality))
    start = time.process_time() - start
    if quality != "reference":
        engine.render(latents[-1])  # the first image of a process is slower
    begin, wall = time.process_time(), time.perf_counter()
    images = [engine.render(row) for row in latents]
    seconds, wall = time.process_time() - begin, time.perf_counter() - wall
    engine.close()
    found = [psnr(image, reference) for image, reference in zip(images, references, strict=True)]
    return {
        "quality": quality,
        "images": count,
        "cpu_seconds_per_image": seconds / count,
        "wall_seconds_per_image": wall / count,
        "cpu_seconds_to_start": start,
        "psnr_mean_db": float(np.mean(found)),
        "psnr_worst_db": min(found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--published", type=int, default=4, help="scenes of the published settings")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with quiet_blender():
        rows = [measure("reference", arguments.published), measure("standard", 20)]
        rows.append(measure("draft", 20))
        version = blender_version()
    base = float(rows[0]["cpu_seconds_per_image"])
    print(f"224 x 224, one thread, Blender {version}, {processor_name()}\n")
    print("| quality | images | CPU-seconds per image | times less | PSNR mean / worst, dB |")
    print("| --- | --- | --- | --- | --- |")
    for row in rows:
        seconds = float(row["cpu_seconds_per_image"])
        print(
            f"| {row['quality']} | {row['images']} | {seconds:.3g} | {base / seconds:.0f} "
            f"| {row['psnr_mean_db']:.1f} / {row['psnr_worst_db']:.1f} |"
        )
    if arguments.json:
        machine = {"processor": processor_name(), "blender": version}
        arguments.json.write_text(json.dumps({**machine, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
