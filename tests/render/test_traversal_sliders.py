"""Traversals as a page of sliders."""

from __future__ import annotations

import dataclasses
import html
import json
import re

import numpy as np
import pytest
from PIL import Image

from threedident.errors import DatasetError, UsageError
from threedident.factors import FACTORS
from threedident.presets import load_preset
from threedident.render.color import psnr
from threedident.render.figures import traversal_latents
from threedident.render.images import render_images
from threedident.render.traversal_sliders import check_sliders, write_sliders

STEPS, SIDE = 5, 32
#: dB. WebP keeps colours at half the resolution: here the worst frame has 32.0, the median 33.3.
LOSS = 30.0


def cards(page):
    """Of each factor on the page: its file, its texts, and where its slider begins and ends."""
    pattern = (
        r'data-file="(\S+)" data-texts="(.*)">\s<canvas width="(\d+)".*\s.*\s'
        r'.*max="(\d+)" value="(\d+)"'
    )
    return [
        (file, json.loads(html.unescape(texts)), *map(int, numbers))
        for file, texts, *numbers in re.findall(pattern, page.read_text("utf-8"))
    ]


def test_the_command_writes_a_page_whose_frames_are_the_images(cli, tmp_path):
    said = cli(
        *("traverse", "--sliders", "page", "--steps", STEPS, "--resolution", SIDE),
        *("--engine", "direct", "--quality", "draft", "--workers", 1),
    ).stdout
    assert re.fullmatch(r"wrote page/index.html and 10 pictures, [\d.]+ kB\n", said)
    names = {f"{factor.name.replace('_', '-')}.webp" for factor in FACTORS}
    assert {path.name for path in (tmp_path / "page").iterdir()} == {"index.html", *names}
    images = render_images(
        traversal_latents(STEPS).reshape(-1, 10),
        resolution=SIDE,
        quality="draft",
        engine="direct",
        workers=1,
    ).reshape(STEPS, 10, SIDE, SIDE, 3)
    shown = cards(tmp_path / "page/index.html")
    assert len(shown) == 10
    for place, (file, texts, side, last, start) in enumerate(shown):
        assert file in names
        assert (side, last, start, len(texts)) == (SIDE, STEPS - 1, 2, STEPS)
        frames = Image.open(tmp_path / "page" / file).convert("RGB")
        assert frames.size == (STEPS * SIDE, SIDE)
        for step in range(STEPS):
            frame = np.asarray(frames)[:, step * SIDE : (step + 1) * SIDE]
            scores = [psnr(frame, image) for image in images[:, place]]
            assert scores[step] > LOSS, (file, step)
            if place < 6:  # positions and rotations: no two steps look alike
                assert np.argmax(scores) == step, (file, step)


def blank(steps, side=8):
    return np.zeros((steps, 10, side, side, 3), np.uint8)


def test_the_page_says_values_and_where_a_hue_does_not_change(tmp_path):
    write_sliders(tmp_path / "a", blank(9), load_preset("3dident"))
    texts = {file: texts for file, texts, *_ in cards(tmp_path / "a/index.html")}
    assert texts["x.webp"][0] == ["-1.00", "-3.00 m", ""]
    notes = [note for _, _, note in texts["object-hue.webp"]]
    flat = load_preset("3dident").flat_ranges("object_hue")
    values = np.linspace(-1, 1, 9)
    assert notes == [
        "one colour" if any(low <= value <= high for low, high in flat) else "" for value in values
    ]
    assert "one colour" in notes
    write_sliders(tmp_path / "b", blank(9), load_preset("3dident-wrapped"))
    page = (tmp_path / "b/index.html").read_text("utf-8")
    assert "one colour" not in page
    assert 'class="flat"' not in page


def test_a_held_factor_begins_where_it_is_held(tmp_path):
    preset = load_preset("3dident").changed(fixed={"psi": -0.5})
    write_sliders(tmp_path, blank(5), preset)
    start = {file: start for file, _, _, _, start in cards(tmp_path / "index.html")}
    assert (start["psi.webp"], start["phi.webp"]) == (1, 2)
    assert "or where they are held" in (tmp_path / "index.html").read_text("utf-8")


def test_the_page_loads_nothing_from_elsewhere_and_escapes_names(tmp_path):
    preset = dataclasses.replace(load_preset("3dident"), name="<script>&@CARDS@")
    page = write_sliders(tmp_path, blank(3), preset)[0].read_text("utf-8")
    assert "http" not in page
    assert page.count("<script>") == 1
    assert len(cards(tmp_path / "index.html")) == 10


def test_what_cannot_be_a_page_is_refused_before_rendering(cli, tmp_path):
    for steps in (2, 4):
        with pytest.raises(UsageError, match="an odd number of steps"):
            check_sliders(steps, 8)
    with pytest.raises(UsageError, match="do not fit into one picture"):
        check_sliders(99, 224)
    assert "name one of" in cli("traverse", code=2).stderr
    assert "name one of" in cli("traverse", "--out", "a.png", "--sliders", "b", code=2).stderr
    assert "odd" in cli("traverse", "--sliders", "b", "--steps", 4, code=2).stderr
    assert not (tmp_path / "b").exists()
    (tmp_path / "file").touch()
    with pytest.raises(DatasetError, match="cannot write"):
        write_sliders(tmp_path / "file", blank(3), load_preset("3dident"))
