"""Draws docs/images/family.png: a row of images of each of the family's models.

    python docs/family_picture.py [FOLDER]

FOLDER (a temporary one) takes the rendered datasets. Under two minutes on two cores.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from threedident.datasets.formats import open_dataset
from threedident.render.dataset import render_dataset

OUT = Path(__file__).parent / "images" / "family.png"
SIDE, COUNT, GAP, BAND = 112, 8, 4, 24
#: Titles, models, and what is drawn of them.
ROWS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("Causal3DIdent, stand-in law and shapes", "causal3dident-recalled-primitives", {}),
    (
        "the same: factual, and counterfactual with another spotlight hue",
        "causal3dident-recalled-primitives",
        {"counterfactual": {"spotlight_hue": 0.9}},
    ),
    ("Multimodal3DIdent, stand-in shapes", "multimodal3dident-primitives", {}),
    (
        "3DIdentBox: two views; content positions, style hues, private rotations",
        "3didentbox-positions-hues-rotations-1",
        {"views": True},
    ),
    (
        "Temporal Causal3DIdent, teapot: eight frames",
        "temporal-causal3dident-teapot",
        {"steps": COUNT},
    ),
    (
        "Temporal Causal3DIdent, stand-in shapes: eight frames",
        "temporal-causal3dident-primitives",
        {"steps": COUNT},
    ),
)


def draw(folder: Path) -> Image.Image:
    """Render the rows into a folder, and lay them out."""
    width = COUNT * (SIDE + GAP) + GAP
    sheet = Image.new("RGB", (width, len(ROWS) * (SIDE + BAND + GAP)), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    for number, (title, model, options) in enumerate(ROWS):
        root = folder / str(number)
        items = {"counterfactual": 4, "views": 4, "steps": 1}.get(next(iter(options), ""), COUNT)
        render_dataset(
            root, items, model=model, engine="direct", resolution=SIDE, quiet=True, **options
        )
        top = number * (SIDE + BAND + GAP)
        pen.text((GAP, top + 4), title, "black", font)
        with open_dataset(root) as source:
            for place, image in enumerate(source.images(range(COUNT))):
                at = (GAP + place * (SIDE + GAP), top + BAND)
                sheet.paste(Image.fromarray(image), at)
    return sheet


if __name__ == "__main__":
    if len(sys.argv) > 1:
        draw(Path(sys.argv[1])).save(OUT)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            draw(Path(scratch)).save(OUT)
    print(f"wrote {OUT}")
