"""Converged renders to measure a renderer against."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from threedident.render.color import psnr, share_off, tail_error

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


def fidelity(
    images: Iterable[np.ndarray], references: Iterable[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """PSNR (dB), tail error (levels) and share of pixels that are off, of each image."""
    pairs = list(zip(images, references, strict=True))
    ratios, tails, off = (
        np.array([f(*pair) for pair in pairs]) for f in (psnr, tail_error, share_off)
    )
    return ratios, tails, off
