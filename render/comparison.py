"""Comparison of the two engines: the same latents rendered by both."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from threedident import defaults
from threedident.factors import FACTOR_NAMES
from threedident.presets import Preset, load_preset
from threedident.render.color import psnr, share_off, tail_error
from threedident.render.figures import comparison_sheet
from threedident.render.images import render_images
from threedident.render.quality import QUALITIES, Layered, get_quality

if TYPE_CHECKING:
    from PIL.Image import Image

_MOST_SHOWN = 16


@dataclasses.dataclass(frozen=True)
class EngineComparison:
    """Images of the same latents by both engines; `print` shows how far they differ.

    Attributes:
        raw_latents: the raw latents, (N, 10).
        cycles: the images by Blender, (N, H, W, 3) uint8 sRGB.
        direct: the images by direct integration, of the same shape.
        quality: the quality level of both.
    """

    raw_latents: npt.NDArray[np.float32]
    cycles: npt.NDArray[np.uint8]
    direct: npt.NDArray[np.uint8]
    quality: str

    @property
    def psnr(self) -> npt.NDArray[np.float64]:
        """The peak signal-to-noise ratio between the engines, (N,), dB."""
        return np.array([psnr(a, b) for a, b in zip(self.cycles, self.direct, strict=True)])

    @property
    def tails(self) -> npt.NDArray[np.float64]:
        """The 99.9th percentile of the pixels' largest differences, (N,), levels of 255."""
        return np.array([tail_error(a, b) for a, b in zip(self.cycles, self.direct, strict=True)])

    @property
    def shares_off(self) -> npt.NDArray[np.float64]:
        """The share of pixels that differ by more than 8 levels of 255, (N,)."""
        return np.array([share_off(a, b) for a, b in zip(self.cycles, self.direct, strict=True)])

    def __str__(self) -> str:
        ratios, tails, off = self.psnr, self.tails, self.shares_off
        side = self.cycles.shape[1]
        level = get_quality(self.quality, "cycles")
        shared = isinstance(level, Layered) and level.direct is not None
        lines = [
            f"{len(ratios)} images, {side} x {side}, quality {self.quality}: PSNR between the "
            f"engines mean {ratios.mean():.1f} dB, worst {ratios.min():.1f} dB",
            f"99.9th percentile of the pixels' differences: mean {tails.mean():.1f} levels of 255, "
            f"worst {tails.max():.0f}; pixels that differ by more than 8: mean {off.mean():.2%}, "
            f"worst {off.max():.2%}",
        ]
        if shared:
            lines += [
                f"At quality {self.quality} the engine cycles takes the ground and the object's "
                "edges from the other one's code, but for crystal: only quality reference "
                "compares two programs"
            ]
        lines += [
            "",
            f"{'mean PSNR, dB, by raw value':<28}{'-1 to -1/3':>12}{'to 1/3':>12}{'to 1':>12}",
        ]
        third = np.clip(((self.raw_latents + 1) * 1.5).astype(int), 0, 2)
        for column, name in enumerate(FACTOR_NAMES):
            groups = [ratios[third[:, column] == k] for k in range(3)]
            means = [f"{group.mean():.1f}" if len(group) else "-" for group in groups]
            lines.append(f"{name:<28}" + "".join(f"{text:>12}" for text in means))
        return "\n".join(lines)

    def figure(self) -> Image:
        """Draw the images that differ most: both engines, and their difference."""
        ratios = self.psnr
        order = np.argsort(ratios)[:_MOST_SHOWN]
        return comparison_sheet(
            self.cycles[order], self.direct[order], ratios[order], [int(i) for i in order]
        )


def compare_engines(
    raw_latents: npt.NDArray[np.float32],
    preset: Preset | str = defaults.PRESET,
    *,
    resolution: int = defaults.RESOLUTION,
    quality: str = defaults.QUALITY,
    device: str = "auto",
    engine: str = defaults.ENGINE,
    workers: int | None = None,
) -> EngineComparison:
    """Render the same raw latents with both engines.

    At qualities draft and standard Blender's engine takes the ground and the object's edges from
    the other one's code (`Layered.direct`): quality reference compares two programs.

    Args:
        raw_latents: the raw latents, (N, 10) in [-1, 1].
        preset: the generator, or a preset's name or file.
        resolution: the pixels along each side.
        quality: the quality level: draft, standard or reference.
        device: the kind of device of the engine `engine`; the other one chooses for itself.
        engine: the engine that `device` is of.
        workers: the number of processes; None: one per processor or GPU.

    Raises:
        UsageError: an argument does not fit.
        RenderError: an image could not be rendered.
    """
    if not isinstance(preset, Preset):
        preset = load_preset(preset)
    images = {
        each: render_images(
            raw_latents,
            preset,
            resolution=resolution,
            quality=quality,
            device=device if each == engine else "auto",
            engine=each,
            workers=workers,
            title=each,
        )
        for each in sorted(QUALITIES, reverse=True)  # the quick one first: it complains at once
    }
    return EngineComparison(raw_latents, images["cycles"], images["direct"], quality)
