"""How many images the direct engine makes in a second of processor time, and what else takes some.

    python benchmarks/rates.py [--sides 32,64,224] [--qualities draft,standard] [--seconds 10]
                               [--rounds 3] [--json FILE]

Renders datasets with `render_dataset`, on one worker, and counts the processor time of all of its
processes: start-up, rendering, sending images and writing shards. As many images are rendered as
the engine alone, in this process, makes in so many seconds; the table has its time as well, and
what is left for everything else. The two take turns; a figure is the median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from threedident.latents import sample_raw_latents
from threedident.presets import load_preset
from threedident.render import render_dataset
from threedident.render.engine import Engine, create_engine
from threedident.render.settings import EngineSettings
from threedident.system import processor_name


def cpu_seconds() -> float:
    """The processor time of this process and of its children that have ended."""
    used = os.times()
    return time.process_time() + used.children_user + used.children_system


def alone(engine: Engine, latents: Any) -> float:
    """Seconds of processor time that the engine takes for these images."""
    begin = cpu_seconds()
    with threadpool_limits(1, "blas"):  # as in the render processes
        for first in range(0, len(latents), engine.batch):
            engine.render_batch(latents[first : first + engine.batch])
    return cpu_seconds() - begin


def whole(side: int, quality: str, images: int) -> float:
    """Seconds of processor time that a dataset of so many images takes."""
    begin = cpu_seconds()
    with tempfile.TemporaryDirectory() as folder:
        render_dataset(
            *(Path(folder) / "data", images),
            engine="direct",
            quality=quality,
            resolution=side,
            device="cpu",
            workers=1,
            quiet=True,
        )
    return cpu_seconds() - begin


def measure(side: int, quality: str, seconds: float, rounds: int) -> dict[str, Any]:
    preset = load_preset("3dident")
    engine = create_engine(EngineSettings(preset, side, quality, "cpu", "direct"))
    latents = preset.to_scene(sample_raw_latents(range(100_000), seed=0, split="train"))
    first = latents[: max(8, engine.batch)]
    alone(engine, first)  # the first images of a process are slower
    images = min(max(1, round(seconds * len(first) / alone(engine, first))), len(latents))
    figures: dict[str, list[float]] = {"alone": [], "whole": []}
    for _ in range(rounds):
        figures["alone"].append(alone(engine, latents[:images]) / images)
        figures["whole"].append(whole(side, quality, images) / images)
    median = {name: statistics.median(each) for name, each in figures.items()}
    return {
        "side": side,
        "quality": quality,
        "images": images,
        "images_per_cpu_second": 1 / median["whole"],
        "cpu_seconds_per_image": median["whole"],
        "engine_alone": median["alone"],
        "rest": median["whole"] - median["alone"],
        "rounds": figures,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sides", default="32,64,224", help="pixels along each side")
    parser.add_argument("--qualities", default="draft,standard")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the engine alone, a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print(f"direct engine, one worker, {processor_name()}\n")
    print("| pixels | quality | images | images a CPU-second | ms an image | engine alone | rest |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    rows = []
    for side in map(int, arguments.sides.split(",")):
        for quality in arguments.qualities.split(","):
            row = measure(side, quality, arguments.seconds, arguments.rounds)
            rows.append(row)
            times = (row["cpu_seconds_per_image"], row["engine_alone"], row["rest"])
            print(
                f"| {side} x {side} | {quality} | {row['images']} "
                f"| {row['images_per_cpu_second']:.3g} "
                f"| {' | '.join(f'{1e3 * each:.3g}' for each in times)} |",
                flush=True,
            )
    if arguments.json:
        content = {"processor": processor_name(), "rows": rows}
        arguments.json.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
