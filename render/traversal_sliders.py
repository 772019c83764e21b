"""Traversals as a page with a slider for each factor, which needs no server and no network."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from threedident.errors import UsageError
from threedident.factors import FACTORS, Factor
from threedident.presets import SATURATION, Preset
from threedident.render.scene import hue_colors
from threedident.storage.atomic_files import explaining_write_errors, replacing

UInt8 = npt.NDArray[np.uint8]

#: The page in its folder, beside a picture of frames for each factor.
PAGE = "index.html"
#: How the frames are compressed: WebP, lossy.
QUALITY = 85
_WIDEST = 16383  # pixels: what WebP can hold


def check_sliders(steps: int, resolution: int) -> None:
    """Check the numbers of a page of sliders, before anything is rendered.

    Args:
        steps: the number of frames of each factor.
        resolution: the pixels along each side of a frame.

    Raises:
        UsageError: there is no middle frame, or the frames do not fit into one picture.
    """
    if steps < 3 or steps % 2 == 0:
        raise UsageError(
            f"sliders begin at the middle, so that they need an odd number of steps, at least 3: "
            f"found {steps}"
        )
    if steps * resolution > _WIDEST:
        raise UsageError(
            f"{steps} steps of {resolution} pixels do not fit into one picture of {_WIDEST} "
            "pixels: choose fewer steps or a smaller resolution"
        )


def write_sliders(out: str | Path, images: UInt8, preset: Preset) -> list[Path]:
    """Write traversals as a page with ten sliders, and a WebP of frames for each factor.

    Each slider moves its own factor; the others stay in the middle, as `traversal_latents` has
    them. Open `index.html` in any browser, also from a folder.

    Args:
        out: the folder; made if it is missing.
        images: the frames, (steps, 10, H, H, 3) uint8, from raw -1 to raw 1.
        preset: the generator that made them.

    Returns:
        The files, the page first.

    Raises:
        UsageError: the number of steps is even, or the frames do not fit into one picture.
        DatasetError: a file cannot be written.
    """
    folder = Path(out)
    steps, _, side = images.shape[:3]
    check_sliders(steps, side)
    with explaining_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    files = [folder / PAGE]
    for place, factor in enumerate(FACTORS):
        files.append(folder / _file(factor))
        frames = Image.fromarray(np.concatenate(list(images[:, place]), axis=1))
        with replacing(files[-1]) as temporary:
            frames.save(temporary, "WEBP", quality=QUALITY, method=6)
    with replacing(files[0]) as temporary:  # last: it names the others
        temporary.write_text(_page(preset, steps, side), "utf-8")
    return files


def _file(factor: Factor) -> str:
    return f"{factor.name.replace('_', '-')}.webp"


def _page(preset: Preset, steps: int, side: int) -> str:
    raw = np.linspace(-1, 1, steps)
    cards = "\n".join(_card(preset, factor, raw, side) for factor in FACTORS)
    about = f"{preset.name} ({preset.about_objects()})"
    others = "at raw 0, or where they are held" if preset.fixed else "at raw 0"
    note = (
        f"{html.escape(about)}. Each slider moves one factor from raw -1 to raw +1; the others "
        f"stay {others}. A double click sets it back."
    )
    if any(preset.flat_ranges(factor.name) for factor in FACTORS):
        note += f" {_FLAT}"
    parts = {"TITLE": html.escape(preset.name), "CARDS": cards, "NOTE": note}
    return re.sub("@([A-Z]+)@", lambda match: parts[match[1]], _TEMPLATE)


def _card(preset: Preset, factor: Factor, raw: npt.NDArray[Any], side: int) -> str:
    """A factor's image and slider."""
    low, high = preset.ranges[factor.name]
    scene = (low + high) / 2 + (high - low) / 2 * raw
    flat = preset.flat_ranges(factor.name)
    texts = []
    for value, number in zip(raw.tolist(), scene.tolist(), strict=True):
        same = any(start <= value <= end for start, end in flat)
        texts.append(
            [f"{value:+.2f}", f"{number:+.2f} {factor.unit}", "one colour" if same else ""]
        )
    label, name = html.escape(factor.label), html.escape(factor.name)
    return _CARD.format(
        name=name,
        label=label,
        file=_file(factor),
        side=side,
        last=len(raw) - 1,
        start=int(np.abs(raw - preset.fixed.get(factor.name, 0.0)).argmin()),
        texts=html.escape(json.dumps(texts)),
        bar=_bar(preset, factor.name, flat),
    )


def _bar(preset: Preset, name: str, flat: Sequence[tuple[float, float]]) -> str:
    """A hue's colours along its slider, and lines where they do not change."""
    if name not in SATURATION:
        return ""
    colors = hue_colors(preset, name)
    width = 200 / len(colors)
    parts = [
        f'<rect x="{place * width:.2f}" width="{width + 0.5:.2f}" height="7" fill="{color}"/>'
        for place, color in enumerate(colors)
    ]
    parts += [
        f'<rect class="flat" x="{100 * (start + 1):.2f}" y="9" '
        f'width="{100 * (end - start):.2f}" height="3"/>'
        for start, end in flat
    ]
    return (
        '<svg viewBox="0 0 200 12" preserveAspectRatio="none" shape-rendering="crispEdges" '
        'aria-hidden="true">' + "".join(parts) + "</svg>"
    )


_FLAT = (
    "The line under a hue's colours marks where all values have one colour: no image tells them "
    "apart."
)

_CARD = """\
<div class="factor" data-file="{file}" data-texts="{texts}">
<canvas width="{side}" height="{side}" role="img" aria-label="{label}"></canvas>
<label for="{name}">{label}</label>
<input type="range" id="{name}" min="0" max="{last}" value="{start}" autocomplete="off">
{bar}<output for="{name}"></output>
</div>"""

_TEMPLATE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>@TITLE@: what each factor does</title>
<style>
:root { --paper: #ffffff; --ink: #1f2328; --faint: #59636e; --accent: #0b62c4; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #1e2129; --ink: #e6e8ee; --faint: #a3abb8; --accent: #7db5ff; }
}
* { box-sizing: border-box; }
body { margin: 0; padding: 4px; background: var(--paper); color: var(--ink);
  font: 14px/1.35 system-ui, sans-serif; }
.factors { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 14px 12px; }
@media (min-width: 560px) { .factors { grid-template-columns: repeat(5, minmax(0, 1fr)); } }
.factor { display: flex; flex-direction: column; }
canvas { width: 100%; aspect-ratio: 1; border-radius: 4px; }
label { margin-top: 4px; font-size: 13px; font-weight: 600; white-space: nowrap; overflow: hidden;
  text-overflow: ellipsis; }
input { width: 100%; margin: 4px 0; height: 20px; accent-color: var(--accent); }
input:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
svg { display: block; width: calc(100% - 14px); height: 12px; margin: 0 7px 3px; }
svg + output { min-height: 2.7em; } /* a second line comes and goes */
.flat { fill: var(--ink); }
output { color: var(--faint); font-size: 12px; font-variant-numeric: tabular-nums; }
p { margin: 12px 0 0; color: var(--faint); font-size: 13px; }
</style>
</head>
<body>
<div class="factors">
@CARDS@
</div>
<p>@NOTE@</p>
<noscript><p>The sliders need JavaScript.</p></noscript>
<script>
"use strict";
for (const factor of document.querySelectorAll(".factor")) {
  const [canvas, slider, output] = ["canvas", "input", "output"].map(
    (name) => factor.querySelector(name));
  const texts = JSON.parse(factor.dataset.texts);
  const frames = new Image();
  const show = () => {
    const [raw, scene, note] = texts[slider.value];
    output.textContent = `raw ${raw}, ${scene}${note && ": " + note}`;
    slider.setAttribute("aria-valuetext", output.textContent);
    if (frames.complete && frames.naturalWidth) {
      const side = frames.naturalHeight;
      canvas.getContext("2d").drawImage(
        frames, slider.value * side, 0, side, side, 0, 0, canvas.width, canvas.height);
    }
  };
  frames.addEventListener("load", show);
  frames.addEventListener("error", () => {
    output.textContent = `${factor.dataset.file} is missing`;
  });
  slider.addEventListener("input", show);
  slider.addEventListener("dblclick", () => { slider.value = slider.defaultValue; show(); });
  show();
  frames.src = factor.dataset.file;
}
</script>
</body>
</html>
"""
