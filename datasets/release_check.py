"""Tell which generator made a dataset: compare its latents and images with those of presets.

The published release is the reason for this module. Its code passes negative hues to a conversion
that does not wrap them; only its files can tell whether its images were made so.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from threedident.datasets.formats.source import Source
from threedident.errors import DatasetError
from threedident.factors import FACTOR_NAMES, GROUPS
from threedident.presets import Preset
from threedident.render.color import psnr
from threedident.render.figures import contact_sheet
from threedident.render.images import render_images
from threedident.render.scene import SceneBuilder

Array = npt.NDArray[Any]

TOLERANCE = 1e-5  # m or rad: a few roundings of float32
FITTING = 35.0  # dB: the least PSNR of a preset that made the dataset
VISIBLE = 40.0  # dB between two presets' images: below it, these can tell the presets apart
AHEAD = 3.0  # dB: the least lead of the preset that fits over the next
_EQUAL = 99.0  # dB: the value of equal images in a mean
_POOL = 4096  # images, evenly spread, from which the sample is chosen


def _span(low: float, high: float, digits: int) -> str:
    return f"{low:.{digits}f} to {high:.{digits}f}"


def describe_latents(source: Source, presets: Sequence[Preset]) -> list[str]:
    """Tabulate how a dataset's latents follow from its raw latents, beside the presets' ranges.

    Presets of the same ranges share a table. The line through the scene values is fitted by
    least squares; its values at raw -1 and +1 stand in the column `here`.

    Args:
        source: the dataset.
        presets: the candidates.

    Returns:
        The lines of the tables.
    """
    raw, scene = source.raw_latents.astype(np.float64), source.latents.astype(np.float64)
    low, high, center, mean = raw.min(0), raw.max(0), raw.mean(0), scene.mean(0)
    varies = high > low
    variance = np.where(varies, ((raw - center) ** 2).mean(0), 1.0)
    slope = ((raw - center) * (scene - mean)).mean(0) / variance
    bend = np.abs(scene - mean - slope * (raw - center)).max(0)
    groups: dict[tuple[tuple[float, float], ...], list[Preset]] = {}
    for preset in presets:
        groups.setdefault(tuple(preset.ranges[name] for name in FACTOR_NAMES), []).append(preset)
    lines = [f"scene values at raw -1 and +1, by all {len(raw)} rows of the latents"]
    for ranges, members in groups.items():
        names = " and ".join(preset.name for preset in members)
        off = np.abs(scene - members[0].to_scene(source.raw_latents)).max(0)
        lines.append(f"{'factor':<20}{'raw range':<18}{'here':<20}{'preset':<20}most off")
        for f, name in enumerate(FACTOR_NAMES):
            ends = mean[f] + slope[f] * (np.array([-1, 1]) - center[f])
            here = _span(ends[0], ends[1], 4) if varies[f] else f"{mean[f]:.4f}, raw is fixed"
            if bend[f] > TOLERANCE:
                here = "not affine in raw"
            lines.append(
                f"{name:<20}{_span(low[f], high[f], 3):<18}{here:<20}"
                f"{_span(*ranges[f], 4):<20}{off[f]:.2g}"
            )
        wrong = ", ".join(name for f, name in enumerate(FACTOR_NAMES) if off[f] > TOLERANCE)
        lines.append(
            f"not what the raw latents mean in {names}: {wrong}\n"
            if wrong
            else f"these are what the raw latents mean in {names}\n"
        )
    return lines


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A sample of a dataset's images beside the presets' renders of the same raw latents.

    Attributes:
        presets: the candidates.
        indices: the numbers of the images, (n,).
        raw: the raw latents of the images, (n, 10).
        images: the images of the dataset, (n, H, W, 3).
        renders: the renders of each preset, (presets, n, H, W, 3).
        decibels: the PSNR of the renders to the images, (presets, n).
        between: the least PSNR between two presets' renders, (n,); infinite where all render the
            same image.
    """

    presets: tuple[Preset, ...]
    indices: Array
    raw: Array
    images: Array
    renders: Array
    decibels: Array
    between: Array

    @property
    def telling(self) -> Array:
        """The mask of the images that can tell the presets apart, (n,)."""
        return self.between < VISIBLE

    def verdict(self) -> str:
        """Say which preset fits, if any."""
        means = self._means(self.telling)
        order = np.argsort(-means, kind="stable")
        best = means[order[0]]
        names = [f"{self.presets[k].name} (hues {self.presets[k].hue})" for k in order]
        where, ahead, behind = f"the {len(self.raw)} images", np.inf, ""
        if self.telling.any() and len(order) > 1:
            ahead = best - means[order[1]]
            where = f"the {self.telling.sum()} images that tell the presets apart"
            behind = f"; {names[1]} has {_decibels(means[order[1]])}"
        if best < FITTING:
            none = {1: "it does not fit", 2: "neither fits"}.get(len(order), "none fits")
            sentence = (
                f"{none}: {names[0]} comes nearest with {_decibels(best)} on {where}, and what "
                f"made them would have {FITTING:g} dB or more{behind}"
            )
            others = ~self.telling if self.telling.any() else self.telling
            if others.any() and self._means(others)[order[0]] >= FITTING:
                sentence += (
                    f"; on the other images it has {_decibels(self._means(others)[order[0]])}"
                )
            return sentence
        if not self.telling.any() and len(order) > 1:
            return f"they cannot be told apart by {where}: all presets render them alike"
        if ahead < AHEAD:
            return f"they cannot be told apart: {names[0]} has {_decibels(best)} on {where}{behind}"
        return f"{names[0]} fits: {_decibels(best)} on {where}{behind}"

    def _means(self, chosen: Array) -> Array:
        """The mean PSNR of each preset over the chosen images, or over all if none is chosen."""
        chosen = chosen if chosen.any() else np.ones_like(chosen)
        return np.minimum(self.decibels[:, chosen], _EQUAL).mean(1)

    def lines(self) -> list[str]:
        """Tabulate the images, and end with the verdict."""
        widths = [max(10, len(preset.name) + 2) for preset in self.presets]
        hues = GROUPS["hue"]

        def row(first: object, *cells: tuple[str, int]) -> str:
            return f"{first!s:<8}" + "".join(f"{text:>{width}}" for text, width in cells)

        def decibels(values: Array) -> list[tuple[str, int]]:
            return [(_cell(value), w) for value, w in zip(values, widths, strict=True)]

        names = [(preset.name, w) for preset, w in zip(self.presets, widths, strict=True)]
        lines = [
            "raw values of the hues, and PSNR in dB: of each preset's render to the image, and "
            "between them",
            row("image", *((FACTOR_NAMES[f], 16) for f in hues), *names, ("between", 12)),
        ]
        for i, index in enumerate(self.indices):
            raw = [(f"{self.raw[i, f]:.3f}", 16) for f in hues]
            between = "same image" if np.isinf(self.between[i]) else _cell(self.between[i])
            lines.append(row(index, *raw, *decibels(self.decibels[:, i]), (between, 12)))
        lines.append(row("mean", ("", 48), *decibels(self._means(self.between >= 0))))
        if self.telling.any():
            title = f"of {self.telling.sum()} with less than {VISIBLE:g} dB between"
            lines.append(row("mean", (title, 48), *decibels(self._means(self.telling))))
        return [*lines, "", f"verdict: {self.verdict()}"]

    def figure(self) -> Image.Image:
        """Draw a contact sheet: each image, and the presets' renders beside it."""
        cells = np.concatenate([self.images[None], self.renders]).swapaxes(0, 1)
        times = max(1, 128 // cells.shape[2])  # labels need some room
        cells = cells.repeat(times, 2).repeat(times, 3)
        labels = []
        for i, index in enumerate(self.indices):
            labels.append(f"{index}: dataset")
            for preset, value in zip(self.presets, self.decibels[:, i], strict=True):
                labels.append(f"{preset.name}: {_cell(value)}")
        columns = cells.shape[1] * (1 if len(cells) < 8 else 2)
        return contact_sheet(cells.reshape(-1, *cells.shape[2:]), labels, columns=columns)


def _cell(value: float) -> str:
    return "equal" if value >= _EQUAL else f"{value:.1f}"


def _decibels(value: float) -> str:
    return "equality" if value >= _EQUAL else f"{value:.1f} dB"


def compare(
    source: Source,
    presets: Sequence[Preset],
    *,
    count: int,
    engine: str,
    quality: str,
    device: str,
    workers: int | None,
) -> Comparison:
    """Render some of a dataset's raw latents with each preset, at the dataset's resolution.

    Args:
        source: the dataset.
        presets: the candidates.
        count: the number of images to compare.
        engine: the engine that renders.
        quality: the quality of the renders: draft, standard or reference.
        device: the device that renders.
        workers: the number of render processes; None: one for each processor or GPU.

    Raises:
        DatasetError: raw latents outside [-1, 1], or images that are not square or not of one
            size.
        UsageError: an option does not fit.
        RenderError: an image could not be rendered.
    """
    _check_renderable(source)
    indices = choose_sample(source.raw_latents, presets, count)
    images = source.images(indices.tolist())
    raw = source.raw_latents[indices]
    renders = np.stack(
        [
            render_images(
                preset.hold_fixed(raw),
                preset,
                resolution=source.shape[0],
                quality=quality,
                device=device,
                engine=engine,
                workers=workers,
                title=preset.name,
            )
            for preset in presets
        ]
    )
    between = np.full(len(raw), np.inf)
    for k in range(len(presets)):
        for other in range(k):
            pairs = zip(renders[k], renders[other], strict=True)
            between = np.minimum(between, [psnr(a, b) for a, b in pairs])
    decibels = [[psnr(a, b) for a, b in zip(each, images, strict=True)] for each in renders]
    return Comparison(tuple(presets), indices, raw, images, renders, np.array(decibels), between)


def _check_renderable(source: Source) -> None:
    """Check that presets can render a dataset's raw latents, at its resolution.

    Raises:
        DatasetError: raw latents outside [-1, 1], or images that are not square.
    """
    low, high = source.raw_latents.min(0), source.raw_latents.max(0)
    outside = [
        f"{name} from {low[f]:.4g} to {high[f]:.4g}"
        for f, name in enumerate(FACTOR_NAMES)
        if low[f] < -1 or high[f] > 1
    ]
    if outside:
        raise DatasetError(
            f"expected raw latents in [-1, 1], found {', '.join(outside)}: they are in other units "
            "than every preset takes, so nothing can be rendered from them"
        )
    height, width = source.shape[:2]
    if height != width:
        raise DatasetError(f"the images are {width} x {height}, expected square ones")


def choose_sample(raw: npt.NDArray[np.float32], presets: Sequence[Preset], count: int) -> Array:
    """Choose images, evenly spread, three in four from those whose scenes differ by preset.

    The others tell whether the presets fit at all.

    Args:
        raw: the raw latents of the dataset, (N, 10).
        presets: the candidates.
        count: the number of images to choose.

    Returns:
        The numbers of the images, (count,) or fewer, ascending.
    """
    pool = np.unique(np.linspace(0, len(raw) - 1, max(_POOL, count)).round().astype(int))
    scenes = []
    for preset in presets:
        builder = SceneBuilder(preset)
        latents = preset.to_scene(preset.hold_fixed(raw[pool]))
        scenes.append([np.hstack(dataclasses.astuple(builder.build(row))) for row in latents])
    differ = (np.ptp(np.array(scenes), 0) > 0.1).any(1)  # of a colour, in which 1 is white
    apart, alike = pool[differ], pool[~differ]
    first = min(len(apart), max(math.ceil(0.75 * count), count - len(alike)))
    return np.sort(np.concatenate([_spread(apart, first), _spread(alike, count - first)]))


def _spread(numbers: Array, count: int) -> Array:
    """Take `count` of the numbers, evenly spread; all where there are fewer."""
    count = min(count, len(numbers))
    return numbers[np.linspace(0, len(numbers) - 1, count).round().astype(int)]
