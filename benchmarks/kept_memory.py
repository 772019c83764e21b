"""What it gains that a training on a processor keeps the memory that it frees.

    python benchmarks/kept_memory.py [--out benchmarks/results/kept-memory.md]

Steps of the image encoder of the scale `cpu` on one thread, forward and backward, in processes of
their own: as the C library does by default, and after `threedident.system.keep_freed_memory`, in
turn. It prints the medians, the pages that a step waits for, and the most memory held.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from threedident.encoders import ResNetEncoder
from threedident.encoders.inputs import Normalize
from threedident.system import keep_freed_memory, processor_name

OUT = Path(__file__).parent / "results" / "kept-memory.md"
WIDTH, RESOLUTION = 16, 64


def measure(kept: bool, batch: int, steps: int) -> dict[str, float]:
    """Times steps in this process."""
    if kept and not keep_freed_memory():
        raise SystemExit("the C library has no such setting here")
    torch.set_num_threads(1)
    encoder = torch.nn.Sequential(
        Normalize((0.4, 0.4, 0.4), (0.2, 0.2, 0.2)), ResNetEncoder(width=WIDTH)
    ).to(memory_format=torch.channels_last)
    images = torch.randint(0, 256, (batch, 3, RESOLUTION, RESOLUTION), dtype=torch.uint8)
    images = images.contiguous(memory_format=torch.channels_last)
    seconds, faults = [], []
    for _ in range(steps + 1):
        start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        with torch.autocast("cpu", torch.bfloat16):
            codes = encoder(images)
        codes.float().square().mean().backward()
        encoder.zero_grad()
        seconds.append(time.perf_counter() - start)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # kB on Linux
    return {
        "ms": 1e3 * statistics.median(seconds[1:]),
        "faults": statistics.median(faults[1:]),
        "MB": most,
    }


def main(arguments: list[str] | None = None) -> None:
    """Writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--measure", choices=("default", "kept"), help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.measure:
        print(json.dumps(measure(asked.measure == "kept", asked.images, asked.steps)))
        return
    found: dict[str, list[dict[str, float]]] = {"default": [], "kept": []}
    for _ in range(asked.rounds):
        for name, results in found.items():
            command = [sys.executable, __file__, "--measure", name]
            command += ["--images", str(asked.images), "--steps", str(asked.steps)]
            results.append(json.loads(subprocess.check_output(command, text=True)))
    lines = [
        f"{processor_name()}, one thread; a ResNet-18 of width {WIDTH}, {asked.images:,} images of "
        f"{RESOLUTION} x {RESOLUTION}, bfloat16; {asked.rounds} processes each, in turn.",
        "",
        "| freed memory | ms a step, of each process | pages waited for in a step | MB held |",
        "| --- | --- | --- | --- |",
    ]
    for name, results in found.items():
        times = ", ".join(f"{each['ms']:.0f}" for each in results)
        faults = statistics.median(each["faults"] for each in results)
        most = max(each["MB"] for each in results)
        lines.append(f"| {name} | {times} | {faults:,.0f} | {most:,.0f} |")
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text("\n".join([*lines, ""]), "utf-8")
    print(asked.out.read_text("utf-8"))


if __name__ == "__main__":
    main()
