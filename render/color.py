"""Conversion of linear light to the 8 bits of an image file, and distances of such images."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def srgb_encode(linear: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The sRGB curve (IEC 61966-2-1) of linear values, clamped to [0, 1] first."""
    x = np.clip(linear, 0.0, 1.0)
    return np.where(x <= 0.0031308, 12.92 * x, 1.055 * np.power(x, 1 / 2.4) - 0.055)


def to_uint8(linear: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Convert linear light to 8-bit sRGB, rounded to the nearest level."""
    return np.floor(srgb_encode(linear) * 255.0 + 0.5).astype(np.uint8)


def psnr(image: npt.NDArray[np.uint8], reference: npt.NDArray[np.uint8]) -> float:
    """Compute the peak signal-to-noise ratio of 8-bit images in dB; infinite for equal ones."""
    error = np.mean((image.astype(np.float64) - reference.astype(np.float64)) ** 2)
    return float("inf") if error == 0 else float(10 * np.log10(255.0**2 / error))


def largest_errors(
    image: npt.NDArray[np.uint8], reference: npt.NDArray[np.uint8]
) -> npt.NDArray[np.int64]:
    """Compute the largest error of a pixel's channels, in levels of 255: (H, W)."""
    errors: npt.NDArray[np.int64] = np.abs(image.astype(np.int64) - reference).max(-1)
    return errors


def tail_error(image: npt.NDArray[np.uint8], reference: npt.NDArray[np.uint8]) -> float:
    """Compute the 99.9th percentile of the pixels' largest errors, in levels of 255.

    A mean hides it: it is what is seen at edges and as stray pixels.
    """
    return float(np.percentile(largest_errors(image, reference), 99.9))


def share_off(
    image: npt.NDArray[np.uint8], reference: npt.NDArray[np.uint8], levels: int = 8
) -> float:
    """Compute the share of pixels that are off by more than some levels of 255, in [0, 1]."""
    return float((largest_errors(image, reference) > levels).mean())
