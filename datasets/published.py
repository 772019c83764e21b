"""The published layout: `images/*.png`, `raw_latents.npy` and `latents.npy`."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from threedident.errors import DatasetError
from threedident.factors import NUM_FACTORS
from threedident.files import explaining_write_errors, read_npy, replacing

Float32 = npt.NDArray[np.float32]

IMAGES = "images"
RAW_LATENTS = "raw_latents.npy"
LATENTS = "latents.npy"


def name_width(count: int) -> int:
    """Digits of the image names: ceil(log10 N), as published (and at least 1)."""
    return max(1, math.ceil(math.log10(count)))


def image_name(index: int, count: int) -> str:
    """The file name of one of `count` images."""
    return f"{index:0{name_width(count)}d}.png"


def read_latents(root: Path) -> tuple[Float32, Float32]:
    """Raw latents and latents, (N, 10), rounded to float32 as everywhere in the toolkit.

    Raises:
        DatasetError: a file is missing, unreadable, of another shape or not finite.
    """
    arrays = []
    for name in (RAW_LATENTS, LATENTS):
        path = root / name
        try:
            array = read_npy(path)
        except ValueError as error:
            raise DatasetError(f"cannot read {error}: the published layout has it") from error
        if array.ndim != 2 or array.shape[1] != NUM_FACTORS:
            raise DatasetError(f"{path}: expected shape (N, {NUM_FACTORS}), found {array.shape}")
        if array.dtype.kind != "f" or not np.isfinite(array).all():
            raise DatasetError(f"{path}: expected finite numbers")
        arrays.append(array.astype(np.float32))
    raw, latents = arrays
    if len(raw) != len(latents) or not len(raw):
        raise DatasetError(
            f"{root}: {RAW_LATENTS} has {len(raw)} rows and {LATENTS} {len(latents)}: "
            "expected the same number, at least 1"
        )
    return raw, latents


def image_paths(root: Path, count: int) -> list[Path]:
    """The image files, in order.

    Raises:
        DatasetError: one is missing, or there are more images than latents.
    """
    there = {path.name for path in (root / IMAGES).glob("*.png")}
    paths = [root / IMAGES / image_name(index, count) for index in range(count)]
    for path in paths:
        if path.name not in there:
            raise DatasetError(f"{path} is missing: {RAW_LATENTS} has {count} rows")
    if len(there) > count:
        extra = sorted(there - {path.name for path in paths})[0]
        raise DatasetError(
            f"{root / IMAGES} holds {len(there)} images for {count} latents: "
            f"{extra} is one too many"
        )
    return paths


def read_image(path: Path) -> npt.NDArray[np.uint8]:
    """One PNG as (H, W, 3) uint8.

    Raises:
        DatasetError: it cannot be read, or is not 8-bit RGB.
    """
    try:
        with Image.open(path, formats=["PNG"]) as image:
            if image.mode not in ("RGB", "RGBA"):
                raise DatasetError(f"{path}: expected an RGB image, found mode {image.mode}")
            if image.mode == "RGBA" and image.getchannel("A").getextrema() != (255, 255):
                raise DatasetError(f"{path}: expected an RGB image, found a transparent one")
            return np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DatasetError(f"cannot read {path}: {error}") from error


def write_image(path: Path, pixels: npt.NDArray[np.uint8]) -> None:
    """Writes a PNG with pixels and nothing else: no date, no path.

    Raises:
        DatasetError: the disk is full or cannot be written to.
    """
    with replacing(path) as temporary:
        Image.fromarray(pixels).save(temporary, format="PNG")


def write_latents(root: Path, raw: Float32, latents: Float32) -> None:
    """Writes both latent files, last of all: with them the layout is complete.

    Raises:
        DatasetError: the disk is full or cannot be written to.
    """
    with explaining_write_errors(root):
        for name, array in ((LATENTS, latents), (RAW_LATENTS, raw)):
            with replacing(root / name) as temporary, temporary.open("wb") as file:
                np.save(file, array)
