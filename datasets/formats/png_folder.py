"""The published layout, a folder of PNGs: `images/*.png`, `raw_latents.npy` and `latents.npy`.

Where `3dident convert` has written it there is a card beside them, `3dident.json`: the record of
what made it.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image

from threedident.causal import Draws
from threedident.datasets.formats.checks import require_sound
from threedident.datasets.formats.source import (
    Float32,
    Origin,
    Source,
    UInt8,
    check_numbers,
    parse_origin,
)
from threedident.errors import DatasetError
from threedident.factors import NUM_FACTORS
from threedident.latents import latents_digest
from threedident.progress import Progress
from threedident.storage.atomic_files import (
    explaining_write_errors,
    read_json,
    read_npy,
    replacing,
    write_json,
)
from threedident.storage.shard_plan import joined, name_stretches
from threedident.storage.shard_record import DRAWN

IMAGES = "images"
RAW_LATENTS = "raw_latents.npy"
LATENTS = "latents.npy"
#: Not a part of the layout; readers of the layout alone do not look at it.
CARD = "3dident.json"

_UNREADABLE = (OSError, SyntaxError, ValueError, MemoryError, Image.DecompressionBombError)


class PngSource(Source):
    """A folder in the published layout."""

    form = "published"

    def __init__(self, root: Path) -> None:
        self.root = root
        self.raw_latents, self.latents = read_latents(root)
        self.origin = read_card(root, self.raw_latents, self.latents)
        self._paths = image_paths(root, len(self.raw_latents))
        self.shape = read_image(self._paths[0]).shape

    def files(self) -> list[Path]:
        """The files that it is made of."""
        return [path for path in self.root.rglob("*") if path.is_file()]

    def read(self, indices: Sequence[int], out: UInt8) -> None:
        """Read images into an array (k, H, W, 3)."""
        read_images(self._paths, check_numbers(indices, len(self)), self.shape, out)


def read_images(
    paths: Sequence[Path], indices: Sequence[int], shape: tuple[int, ...], out: UInt8
) -> None:
    """Read image files of one size into an array.

    Args:
        paths: the files of all images.
        indices: the numbers of those to read, in [0, N).
        shape: the (H, W, 3) of every image.
        out: the array to fill, (k, H, W, 3).

    Raises:
        DatasetError: an image cannot be read, or has another size.
    """
    for row, index in enumerate(indices):
        pixels = read_image(paths[index])
        if pixels.shape != shape:
            raise DatasetError(
                f"{paths[index]}: image {index} has shape {pixels.shape}, expected "
                f"{shape} as image 0"
            )
        out[row] = pixels


def read_card(root: Path, raw: Float32, latents: Float32) -> Origin:
    """Read the origin of a published layout from its card, if there is one.

    Raises:
        DatasetError: the card is damaged, or was written for other latents.
    """
    path = root / CARD
    if not path.exists():
        return Origin()
    data = read_json(path)
    origin = parse_origin(data, path, len(raw))
    for name, array in (("raw_latents", raw), ("latents", latents)):
        # Cards of older versions give one of the two, and say nothing that could be wrong.
        if origin != Origin() and data.get(name) != latents_digest(array):
            raise DatasetError(
                f"{root / name}.npy is not what {path} was written for: if it was changed on "
                f"purpose, remove {CARD}, and what rendered the images is no longer recorded"
            )
    return origin


def name_width(count: int) -> int:
    """The number of digits in image names: ceil(log10 N), as published (and at least 1)."""
    return max(1, math.ceil(math.log10(count)))


def image_name(index: int, count: int) -> str:
    """The file name of one of `count` images."""
    return f"{index:0{name_width(count)}d}.png"


def read_latents(root: Path) -> tuple[Float32, Float32]:
    """Read raw latents and latents, (N, 10), rounded to float32 as everywhere in the toolkit.

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
    names = {path.name for path in (root / IMAGES).glob("*.png")}
    paths = [root / IMAGES / image_name(index, count) for index in range(count)]
    missing = joined((i, i) for i, path in enumerate(paths) if path.name not in names)
    if missing:
        raise DatasetError(
            f"{root} lacks {name_stretches(missing)}: {paths[missing[0][0]].name} is missing, and "
            f"{RAW_LATENTS} has {count} rows"
        )
    if len(names) > count:
        extra = sorted(names - {path.name for path in paths})[0]
        raise DatasetError(
            f"{root / IMAGES} holds {len(names)} images for {count} latents: "
            f"{extra} is one too many"
        )
    return paths


def read_image(path: Path) -> UInt8:
    """Read one PNG, (H, W, 3) uint8.

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
) -> UInt8:
    """Decode a PNG, (H, W, 3) uint8.

    Args:
        content: the PNG's bytes, or a file with them.
        where: its name in errors.
        shape: the shape that it must have, (H, W, 3); other images are not unpacked.

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
    except _UNREADABLE as error:
        raise DatasetError(f"cannot read {where}: {error or 'it is too large'}") from error


def encode_image(pixels: UInt8) -> bytes:
    """Encode an image (H, W, 3) as a PNG with pixels and nothing else."""
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, format="PNG")
    return content.getvalue()


def write_image(path: Path, pixels: UInt8) -> None:
    """Write a PNG with pixels and nothing else: no date, no path.

    Raises:
        DatasetError: the disk is full or cannot be written to.
    """
    with replacing(path) as temporary:
        Image.fromarray(pixels).save(temporary, format="PNG")


def write_latents(root: Path, raw: Float32, latents: Float32) -> None:
    """Write both latent files, last of all: with them the layout is complete.

    Raises:
        DatasetError: the disk is full or cannot be written to.
    """
    with explaining_write_errors(root):
        for name, array in ((LATENTS, latents), (RAW_LATENTS, raw)):
            with replacing(root / name) as temporary, temporary.open("wb") as file:
                np.save(file, array)


def _write_draws(root: Path, draws: Draws) -> None:
    """Write what was drawn of a causal model, a .npy file an array, for readers without it."""
    with explaining_write_errors(root):
        for name in DRAWN:
            with replacing(root / f"{name}.npy") as temporary, temporary.open("wb") as file:
                np.save(file, getattr(draws, name))


def to_published(source: Source, out: Path) -> int:
    """Write a dataset in the published layout; images that are there already are kept.

    Args:
        source: the dataset.
        out: the folder to write.

    Returns:
        The number of images in it.

    Raises:
        DatasetError: `out` holds something else, or the disk is full.
    """
    count = len(source)
    folder = out / IMAGES
    with explaining_write_errors(out):
        folder.mkdir(parents=True, exist_ok=True)
    # Which dataset this is: written before the first image, so that what an interrupted
    # conversion has left is not taken for a part of another dataset.
    identity = {
        "latents": latents_digest(source.latents),
        "fingerprint": source.manifest.fingerprint if source.manifest else None,
        "images": count,
    }
    names = {image_name(i, count) for i in range(count)}
    strangers = sorted(p.name for p in folder.iterdir() if p.name not in names)
    if (out / CARD).exists():
        card = read_json(out / CARD)
        foreign = not isinstance(card, dict) or any(
            card.get(name) != value for name, value in identity.items()
        )
    else:
        foreign = any(p != folder for p in out.iterdir()) or any(folder.iterdir())
    if foreign or strangers:
        what = strangers[0] if strangers else "another dataset"
        raise DatasetError(f"{out} holds {what}, not of this dataset: choose another --out")
    origin = Origin(source.manifest, source.parts(), source.wanted())
    raw = {"raw_latents": latents_digest(source.raw_latents)}
    write_json(out / CARD, {**identity, **raw, **origin.as_dict()})
    # A PNG is renamed into place when it is whole, so one that is there is finished.
    have = {p.name for p in folder.iterdir()}
    if len(have) < count:
        require_sound(source)
    with Progress("writing", count, finished=len(have)) as progress:
        for index in range(count):
            name = image_name(index, count)
            if name not in have:
                write_image(folder / name, source.image(index))
                progress.advance()
    if source.draws is not None:
        _write_draws(out, source.draws)
    write_latents(out, source.raw_latents, source.latents)
    return count
