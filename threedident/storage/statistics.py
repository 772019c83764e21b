"""Statistics of images, made from sums that add up over shards."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclasses.dataclass
class ImageSums:
    """Sums over images from which a dataset's statistics are made; they add up.

    Attributes:
        count: the number of images.
        pixels: the number of pixels of one channel.
        total: the sum over all pixels, in 0..255, per channel.
        squares: the sum over all squared pixels, per channel.
        deviations: the sum over images of the standard deviation within one, per channel.
        in_frame: the sum over images of the share of the object's vertices in the frame; NaN
            where it is not known.
        whole: the number of images with all vertices in the frame.
    """

    count: int = 0
    pixels: int = 0
    total: Array = dataclasses.field(default_factory=lambda: np.zeros(3, np.int64))
    squares: Array = dataclasses.field(default_factory=lambda: np.zeros(3, np.int64))
    deviations: Array = dataclasses.field(default_factory=lambda: np.zeros(3))
    in_frame: float = 0.0
    whole: int = 0

    @classmethod
    def of(cls, images: npt.NDArray[np.uint8], in_frame: Array) -> ImageSums:
        """Add up images.

        Args:
            images: the images, (k, H, W, C).
            in_frame: the share of each object's vertices in the frame, (k,).
        """
        channels = images.shape[-1]
        sums = cls(len(images))
        sums.total, sums.squares = np.zeros(channels, np.int64), np.zeros(channels, np.int64)
        sums.deviations = np.zeros(channels)
        sums.in_frame, sums.whole = float(in_frame.sum()), int((in_frame == 1).sum())
        for image in images:
            # Whole numbers below 2^53, which float64 adds up exactly and faster than int64.
            values = image.reshape(-1, channels).T.astype(np.float64, order="C")
            total = values.sum(1).astype(np.int64)
            squares = np.einsum("ij,ij->i", values, values).astype(np.int64)
            pixels = values.shape[1]
            sums.pixels += pixels
            sums.total = sums.total + total
            sums.squares = sums.squares + squares
            mean = total / pixels
            sums.deviations = sums.deviations + np.sqrt(np.maximum(squares / pixels - mean**2, 0))
        return sums

    def __add__(self, other: ImageSums) -> ImageSums:
        if not self.count:  # of however many channels
            return other
        return ImageSums(
            **{
                field.name: getattr(self, field.name) + getattr(other, field.name)
                for field in dataclasses.fields(self)
            }
        )


def parse_sums(attributes: Mapping[str, Any]) -> ImageSums:
    """Parse the sums that a shard's attributes hold.

    Args:
        attributes: the attributes; those of sums are named `sum_` and the field.

    Raises:
        KeyError, TypeError, ValueError: a sum is missing, or no images have it.
    """
    values: dict[str, Any] = {}
    for name, empty in vars(ImageSums()).items():
        value, expected = np.asarray(attributes[f"sum_{name}"]), np.asarray(empty)
        if value.shape != expected.shape or value.dtype.kind != expected.dtype.kind:
            raise ValueError(f"sum_{name} is {value.dtype} {value.shape}")
        values[name] = value if value.ndim else value.item()
    sums = ImageSums(**values)
    limits = (255.0 * sums.pixels, 255.0**2 * sums.pixels, 255.0 * sums.count)
    for sum_, limit in zip((sums.total, sums.squares, sums.deviations), limits, strict=True):
        if not (limit > 0 and (sum_ >= 0).all() and (sum_ <= limit).all()):
            raise ValueError(f"there are no images with such sums: {sums}")
    if not (math.isnan(sums.in_frame) or 0 <= sums.in_frame <= sums.count):
        raise ValueError(f"there are no images with such sums: {sums}")
    return sums


def statistics(sums: ImageSums) -> dict[str, Any]:
    """The content of `stats.json`: means, standard deviations, shares in the frame, definitions.

    Args:
        sums: the sums of at least one image.
    """
    mean = sums.total / sums.pixels
    variance = np.maximum(sums.squares / sums.pixels - mean**2, 0)

    def unit(values: npt.NDArray[Any]) -> list[float]:
        return [round(float(v) / 255, 6) for v in values]

    # An imported dataset does not say where its object is.
    known = not math.isnan(sums.in_frame)
    return {
        "images": sums.count,
        "mean": unit(mean),
        "std_all_pixels": unit(np.sqrt(variance)),
        "std_within_image": unit(sums.deviations / sums.count),
        "object_in_frame": round(sums.in_frame / sums.count, 6) if known else None,
        "images_fully_in_frame": round(sums.whole / sums.count, 6) if known else None,
        "definitions": {
            "mean": "per channel (R, G, B), over all pixels of all images, in [0, 1]",
            "std_all_pixels": "per channel, over all pixels of all images",
            "std_within_image": "per channel, the mean over images of the std within one image",
            "object_in_frame": "mean share of the object's vertices inside the frame",
            "images_fully_in_frame": "share of images with all of the object's vertices inside",
        },
    }
