"""Time against fidelity of every quality of both engines, in one run on one processor.

    python benchmarks/render.py [--published N] [--json FILE]

Renders the twenty scenes of tests/data/converged and the fourteen hard ones of tests/data/hard at
each level, in this process and on one thread. Prints CPU-seconds an image, how many times less that
is than the published settings take, and three distances to the converged renders: PSNR, the
99.9th percentile of the pixels' largest errors (levels of 255), and the share of pixels off by more
than 8 levels. The published settings are slow: they are measured on the first N of the scenes
(default 4; 34 for all of them).
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from threadpoolctl import threadpool_limits

from threedident.presets import load_preset
from threedident.render.blender import blender_version, quiet_blender
from threedident.render.color import psnr, share_off, tail_error
from threedident.render.direct.engine import warp_version
from threedident.render.engine import create_engine
from threedident.render.quality import QUALITIES
from threedident.render.settings import EngineSettings
from threedident.system import processor_name

DATA = Path(__file__).parents[1] / "tests" / "data"
FOLDERS = ("converged", "hard")
PUBLISHED = ("cycles", "reference")
SCENES = 34


def references() -> tuple[np.ndarray, list[np.ndarray]]:
    """Raw latents (N, 10) and converged images of all scenes."""
    raw = [np.load(DATA / folder / "raw_latents.npy") for folder in FOLDERS]
    paths = [
        DATA / folder / f"{i:02d}.png"
        for folder, rows in zip(FOLDERS, raw, strict=True)
        for i in range(len(rows))
    ]
    return np.concatenate(raw), [np.asarray(Image.open(path).convert("RGB")) for path in paths]


def measure(engine_name: str, quality: str, scenes: range) -> dict[str, Any]:
    preset = load_preset("3dident")
    raw, converged = references()
    latents, expected = preset.to_scene(raw)[list(scenes)], [converged[i] for i in scenes]
    count = len(scenes)
    # As in the render processes of `3dident render`: a second thread of BLAS only spins.
    threadpool_limits(1, "blas")
    engine = create_engine(EngineSettings(preset, 224, quality, "cpu", engine_name))
    if (engine_name, quality) != PUBLISHED:
        engine.render_batch(latents[-1:])  # the first image of a process is slower
    begin, wall = time.process_time(), time.perf_counter()
    images = [engine.render_batch(row[None])[0] for row in latents]
    seconds, wall = time.process_time() - begin, time.perf_counter() - wall
    engine.close()
    pairs = list(zip(images, expected, strict=True))
    ratios, tails, off = ([f(*pair) for pair in pairs] for f in (psnr, tail_error, share_off))
    return {
        "engine": engine_name,
        "quality": quality,
        "images": count,
        "cpu_seconds_per_image": seconds / count,
        "wall_seconds_per_image": wall / count,
        "psnr_mean_db": float(np.mean(ratios)),
        "psnr_worst_db": min(ratios),
        "tail_mean_levels": float(np.mean(tails)),
        "tail_worst_levels": max(tails),
        "share_off_mean": float(np.mean(off)),
        "share_off_worst": max(off),
    }


def cases(short: bool) -> Iterator[Any]:
    """Rendering at 224 x 224 on one thread: processor time against fidelity (PSNR against the
    converged renders of tests/data). The published settings (`cycles`, `reference`)
    render one of its scenes a round, all others all of them.
    """
    # In short mode a quick level stands in for the published settings, which take 33 s an image.
    base = ("direct", "standard") if short else PUBLISHED
    levels = ("draft",) if short else ("reference", "standard", "draft")
    others = [(e, q) for e in QUALITIES for q in levels if (e, q) != base]
    published: list[float] = []  # PSNR, a scene a round

    def render(engine: str, quality: str) -> tuple[float, str]:
        slow = (engine, quality) == PUBLISHED
        scenes = (
            range(len(published), len(published) + 1) if slow else range(1 if short else SCENES)
        )
        with quiet_blender():
            row = measure(engine, quality, scenes)
        mean, worst = row["psnr_mean_db"], row["psnr_worst_db"]
        if slow:
            published.append(mean)
            mean, worst = float(np.mean(published)), min(published)
        return row["cpu_seconds_per_image"], f"{mean:.1f} dB, worst {worst:.1f}"

    contenders = {f"{e}, {q}": functools.partial(render, e, q) for e, q in (base, *others)}
    yield "image", "CPU-s", 1 if short else 3, contenders


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--published", type=int, default=4, help="scenes of the published settings")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with quiet_blender():
        rows = [
            measure(
                engine,
                quality,
                range(arguments.published if (engine, quality) == PUBLISHED else SCENES),
            )
            for engine in QUALITIES
            for quality in ("reference", "standard", "draft")
        ]
        version = blender_version()
    base = float(rows[0]["cpu_seconds_per_image"])
    print(f"224 x 224, one thread, Blender {version}, Warp {warp_version()}, {processor_name()}\n")
    print(
        "| engine | quality | images | CPU-seconds per image | times less | PSNR mean / worst, dB "
        "| 99.9th percentile mean / worst | off by more than 8, mean / worst |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        seconds = float(row["cpu_seconds_per_image"])
        print(
            f"| {row['engine']} | {row['quality']} | {row['images']} | {seconds:.3g} "
            f"| {base / seconds:.0f} | {row['psnr_mean_db']:.1f} / {row['psnr_worst_db']:.1f} "
            f"| {row['tail_mean_levels']:.1f} / {row['tail_worst_levels']:.0f} "
            f"| {row['share_off_mean']:.2%} / {row['share_off_worst']:.2%} |"
        )
    if arguments.json:
        machine = {"processor": processor_name(), "blender": version, "warp": warp_version()}
        arguments.json.write_text(json.dumps({**machine, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
