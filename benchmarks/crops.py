"""Enlarged crops of quality standard beside converged renders, to be looked at.

    python benchmarks/crops.py FIGURE.png

The last four scenes of tests/data/hard: images 5, 8, 9 and 16 of the training split of seed 0.
A row each: both engines at quality `standard`, the converged render, and the errors of the first
times 16. A mean over pixels does not show blotchy shadows or stray pixels; this does.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

from threedident.presets import load_preset
from threedident.render.blender import quiet_blender
from threedident.render.engine import create_engine
from threedident.render.settings import EngineSettings

DATA = Path(__file__).parents[1] / "tests" / "data" / "hard"
CROPS = ((60, 0), (90, 60), (50, 20), (80, 90))  # row and column of each one's corner
SIDE, TIMES = 120, 2


def main() -> None:
    (target,) = sys.argv[1:]
    preset = load_preset("3dident")
    latents = preset.to_scene(np.load(DATA / "raw_latents.npy"))[-4:]
    paths = sorted(DATA.glob("*.png"))[-4:]
    expected = [np.asarray(Image.open(path).convert("RGB")) for path in paths]
    columns = []
    for engine in ("cycles", "direct"):
        with quiet_blender():
            made = create_engine(EngineSettings(preset, 224, "standard", "cpu", engine))
            columns.append([made.render_batch(row[None])[0] for row in latents])
            made.close()
    columns.append(expected)
    errors = [
        np.clip(16 * np.abs(a.astype(int) - b), 0, 255).astype(np.uint8)
        for a, b in zip(columns[0], expected, strict=True)
    ]
    columns.append(errors)
    rows = [
        np.concatenate([column[k][i : i + SIDE, j : j + SIDE] for column in columns], axis=1)
        for k, (i, j) in enumerate(CROPS)
    ]
    sheet = Image.fromarray(np.concatenate(rows))
    size = (TIMES * sheet.width, TIMES * sheet.height)
    sheet.resize(size, Image.Resampling.NEAREST).save(target)


if __name__ == "__main__":
    main()
