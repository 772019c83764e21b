"""The published layout: `images/*.png`, `raw_latents.npy` and `latents.npy`.

Where we have written it there is a card beside them, `3dident.json`, which says what made it.
"""

from __future__ import annotations

import dataclasses
import io
import math
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image

from threedident.errors import DatasetError
from threedident.factors import NUM_FACTORS
from threedident.latents import latents_digest
from threedident.storage.atomic_files import explaining_write_errors, read_json, read_npy, replacing
from threedident.storage.manifest import Manifest, parse_manifest
from threedident.storage.shard_plan import joined, name_stretches
from threedident.storage.shard_record import Part, parse_parts

Float32 = npt.NDArray[np.float32]

IMAGES = "images"
RAW_LATENTS = "raw_latents.npy"
LATENTS = "latents.npy"
#: Not a part of the layout; what reads the layout alone does not look at it.
CARD = "3dident.json"


@dataclasses.dataclass(frozen=True)
class Card:
    """What is known of a published layout beside its images and latents.

    Attributes:
        manifest: what made it; None where it is not recorded.
        parts: the shards that the images were in; empty where it is not recorded.
        wanted: how many images were asked for; None where it is not recorded.
    """

    manifest: Manifest | None = None
    parts: tuple[Part, ...] = ()
    wanted: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "dataset": self.manifest and self.manifest.as_dict(),
            "shards": [part.as_dict() for part in self.parts],
            "wanted": self.wanted,
        }


def parse_card(data: Any, path: Path, count: int) -> Card:
    """The card of `count` images that a JSON document describes, where it does.

    Documents of older versions say nothing of it.

    Raises:
        DatasetError: it is damaged; `path` names where it came from.
    """
    try:
        manifest, shards, wanted = (data.get(name) for name in ("dataset", "shards", "wanted"))
        if wanted is not None and not (type(wanted) is int and wanted > 0):
            raise ValueError(f"the number of images wanted is {wanted!r:.100}")
        return Card(
            None if manifest is None else parse_manifest(manifest, path),
            parse_parts(shards, count) if shards else (),
            wanted,
        )
    except (
        *(KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError),
    ) as error:
        raise DatasetError(f"{path} is damaged: {type(error).__name__}: {error!s:.200}") from error


def read_card(root: Path, raw: Float32, latents: Float32) -> Card:
    """What is known of a published layout, if it is still what the card was written for.

    Raises:
        DatasetError: the card is damaged, or of other latents.
    """
    path = root / CARD
    if not path.exists():
        return Card()
    data = read_json(path)
    found = parse_card(data, path, len(raw))
    for name, array in (("raw_latents", raw), ("latents", latents)):
        # Cards of older versions give one of the two, and say nothing that could be wrong.
        if found != Card() and data.get(name) != latents_digest(array):
            raise DatasetError(
                f"{root / name}.npy is not what {path} was written for: if it was changed on "
                f"purpose, remove {CARD}, and what rendered the images is no longer recorded"
            )
    return found


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
    missing = joined((i, i) for i, path in enumerate(paths) if path.name not in there)
    if missing:
        raise DatasetError(
            f"{root} lacks {name_stretches(missing)}: {paths[missing[0][0]].name} is missing, and "
            f"{RAW_LATENTS} has {count} rows"
        )
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
        with path.open("rb") as file:
            return decode_image(file, str(path))
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error}") from error


def decode_image(
    content: bytes | BinaryIO, where: str, shape: tuple[int, ...] | None = None
) -> npt.NDArray[np.uint8]:
    """A PNG as (H, W, 3) uint8.

    Args:
        content: the file's, or the file.
        where: what an error calls it.
        shape: that it must have, (H, W, 3); other images are not unpacked.

    Raises:
        DatasetError: it cannot be read, is not 8-bit RGB, or of another shape.
    """
    file = io.BytesIO(content) if isinstance(content, bytes) else content
    try:
        with Image.open(file, formats=["PNG"]) as image:
            if shape is not None and (image.height, image.width, 3) != shape:
                raise DatasetError(
                    f"{where} is {image.width} x {image.height}, expected {shape[1]} x {shape[0]}"
                )
            if image.mode not in ("RGB", "RGBA"):
                raise DatasetError(f"{where}: expected an RGB image, found mode {image.mode}")
            if image.mode == "RGBA" and image.getchannel("A").getextrema() != (255, 255):
                raise DatasetError(f"{where}: expected an RGB image, found a transparent one")
            return np.asarray(image.convert("RGB"))
    except (
        *(OSError, SyntaxError, ValueError, MemoryError, Image.DecompressionBombError),
    ) as error:
        raise DatasetError(f"cannot read {where}: {error or 'it is too large'}") from error


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
