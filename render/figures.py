"""Pictures to look at: contact sheets and traversals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from threedident.errors import UsageError
from threedident.factors import FACTORS, NUM_FACTORS

Array = npt.NDArray[Any]

_PAPER, _INK, _GREY = (255, 255, 255), (20, 20, 20), (110, 110, 110)
_GAP = 4


def _font(size: int) -> Any:
    return ImageFont.load_default(size)


def _fitting_font(draw: ImageDraw.ImageDraw, texts: list[str], width: int, largest: int) -> Any:
    """The largest font in which every text fits a width."""
    for size in range(largest, 7, -1):
        font = _font(size)
        if all(draw.textlength(text, font) <= width for text in texts):
            return font
    return _font(7)


def picture(pixels: Array) -> Image.Image:
    """Make a picture of pixels (H, W, C) of colours or of grey."""
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def contact_sheet(images: Array, labels: list[str], *, columns: int | None = None) -> Image.Image:
    """Lay out images (N, H, W, C) in rows, each with its label below."""
    count, height, width = images.shape[:3]
    columns = columns or max(1, math.ceil(math.sqrt(count)))
    rows = math.ceil(count / columns)
    band = max(14, height // 12)
    across, down = width + _GAP, height + _GAP + band
    sheet = Image.new("RGB", (columns * across + _GAP, rows * down + _GAP), _PAPER)
    draw = ImageDraw.Draw(sheet)
    font = _fitting_font(draw, labels, width, band - 2)
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        left, top = _GAP + i % columns * across, _GAP + i // columns * down
        sheet.paste(picture(image), (left, top))
        draw.text((left + width / 2, top + height + 1), label, _GREY, font, anchor="mt")
    return sheet


def titled(figure: Image.Image, title: str) -> Image.Image:
    """Put a line of text above a picture, in the largest letters that fit."""
    band = 26
    larger = Image.new("RGB", (figure.width, figure.height + band), _PAPER)
    larger.paste(figure, (0, band))
    draw = ImageDraw.Draw(larger)
    font = _fitting_font(draw, [title], figure.width - 2 * _GAP, 15)
    draw.text((_GAP, band / 2 + 2), title, _INK, font, anchor="lm")
    return larger


def comparison_sheet(
    first: Array, second: Array, decibels: Array, numbers: list[int], gain: int = 16
) -> Image.Image:
    """Lay out pairs of images (N, H, W, 3) side by side, their amplified difference beside them."""
    difference = second.astype(int) - first
    amplified = np.clip(128 + gain * difference, 0, 255).astype(np.uint8)
    images = np.stack([first, second, amplified], axis=1).reshape(-1, *first.shape[1:])
    labels = []
    for number, value in zip(numbers, decibels, strict=True):
        labels += [f"{number}: cycles", "direct", f"x {gain}: {value:.1f} dB"]
    return contact_sheet(images, labels, columns=6 if len(first) > 1 else 3)


def traversal_latents(steps: int, base: dict[int, float] | None = None) -> Array:
    """Raw latents (steps, 10, 10): row s has factor f, on the second axis, at step s.

    The other factors stay at 0, or at what `base` says by column.

    Raises:
        UsageError: fewer than two steps.
    """
    if steps < 2:
        raise UsageError(f"a traversal needs at least 2 steps, found {steps}")
    raw = np.zeros((steps, NUM_FACTORS, NUM_FACTORS), np.float32)
    for column, value in (base or {}).items():
        raw[:, :, column] = value
    for factor in range(NUM_FACTORS):
        raw[:, factor, factor] = np.linspace(-1, 1, steps)
    return raw


def traversal_figure(images: Array, title: str) -> Image.Image:
    """Lay out images (steps, factors, H, W, 3) as in the paper's Figure 3, a column a factor.

    Rows run from raw -1 at the top to raw +1 at the bottom.
    """
    steps, factors, side = images.shape[:3]
    head, number = max(56, side // 2), _font(max(10, side // 8))
    left = math.ceil(number.getlength("+0.00")) + 3 * _GAP
    cell = side + _GAP
    figure = Image.new("RGB", (left + factors * cell, head + steps * cell), _PAPER)
    draw = ImageDraw.Draw(figure)
    draw.text((_GAP, 3), title, _INK, _font(max(11, head // 4)))
    # A label may take a line for each of its words.
    lines = [FACTORS[f].label.split() for f in range(factors)]
    font = _fitting_font(draw, [word for words in lines for word in words], side - 2, head // 4)
    for f, words in enumerate(lines):
        draw.multiline_text(
            (left + f * cell + side / 2, head - 3),
            "\n".join(words),
            _INK,
            font,
            anchor="md",
            align="center",
            spacing=1,
        )
    for s, value in enumerate(np.linspace(-1, 1, steps)):
        draw.text(
            (left - 2 * _GAP, head + s * cell + side / 2), f"{value:+.2f}", _GREY, number, "rm"
        )
        for f in range(factors):
            figure.paste(Image.fromarray(images[s, f]), (left + f * cell, head + s * cell))
    return figure
