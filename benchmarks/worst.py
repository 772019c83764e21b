"""The worst of many random scenes at quality standard, of both engines.

    python benchmarks/worst.py [--n 150]

Twenty converged renders say little about the rare hard scene. Here quality `reference` of the
direct engine (above 55 dB itself) stands in for converged renders, which makes many scenes
affordable. Latents: the train split of seed 0, preset `3dident`.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from threadpoolctl import threadpool_limits

from threedident.latents import sample_raw_latents
from threedident.presets import load_preset
from threedident.render.blender import quiet_blender
from threedident.render.color import psnr, share_off, tail_error
from threedident.render.direct.engine import DirectEngine
from threedident.render.engine import create_engine
from threedident.render.quality import get_quality
from threedident.render.settings import EngineSettings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=150)
    arguments = parser.parse_args()
    threadpool_limits(1, "blas")  # as in render processes: a second thread only spins
    preset = load_preset("3dident")
    raw = sample_raw_latents(range(arguments.n), seed=0, split="train")
    latents = preset.to_scene(raw)

    def images(engine: str, quality: str) -> tuple[list[np.ndarray], float]:
        made = create_engine(EngineSettings(preset, 224, quality, "cpu", engine))
        made.render_batch(latents[:1])
        start = time.process_time()
        found = [made.render_batch(row[None])[0] for row in latents]
        seconds = (time.process_time() - start) / len(latents)
        made.close()
        return found, seconds

    # Of other sample points: with the same ones it would share a part of the errors.
    level = get_quality("reference", "direct")
    integrator = DirectEngine(preset, level, device="cpu", seed=1)
    truth = [integrator.render_batch(row[None])[0] for row in latents]
    print(
        "| engine | CPU-seconds per image | PSNR mean / worst, dB | share below 46 dB "
        "| 99.9th percentile mean / worst | off by more than 8, mean / worst |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for engine in ("cycles", "direct"):
        with quiet_blender():
            found, seconds = images(engine, "standard")
        ratios, tails, off = (
            np.array([f(a, b) for a, b in zip(found, truth, strict=True)])
            for f in (psnr, tail_error, share_off)
        )
        print(
            f"| {engine} | {seconds:.3g} | {ratios.mean():.1f} / {ratios.min():.1f} "
            f"| {(ratios < 46).mean():.1%} | {tails.mean():.1f} / {tails.max():.0f} "
            f"| {off.mean():.2%} / {off.max():.2%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
