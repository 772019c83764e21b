"""Converged renders to measure a renderer against."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

DATA = Path(__file__).parents[1] / "data"


def references(folder: str) -> tuple[np.ndarray, list[np.ndarray]]:
    """Raw latents and converged images of tests/data/FOLDER."""
    raw = np.load(DATA / folder / "raw_latents.npy").astype(np.float32)
    images = [
        np.asarray(Image.open(path).convert("RGB"))
        for path in sorted((DATA / folder).glob("*.png"))
    ]
    assert len(images) == len(raw)
    return raw, images
