"""Captions, and the names of colours."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import CSS4_COLORS, TABLEAU_COLORS, XKCD_COLORS, to_rgb

from threedident.datasets import captions
from threedident.datasets.captions import (
    SLOTS,
    TEMPLATES,
    ColorNames,
    load_templates,
    make_captions,
    write_templates,
)
from threedident.errors import UsageError

TABLES = (TABLEAU_COLORS, CSS4_COLORS, XKCD_COLORS)


@pytest.fixture(scope="module")
def colors():
    return ColorNames()


def some(count=200, **options):
    rng = np.random.default_rng(0)
    shapes = [("teapot", "hare")[k] for k in rng.integers(0, 2, count)]
    xpos = [captions.XPOS[k] for k in rng.integers(0, 3, count)]
    ypos = [captions.YPOS[k] for k in rng.integers(0, 3, count)]
    return shapes, xpos, ypos, rng.uniform(0, 1, count), options


def make(count=200, **options):
    *words, hues, options = some(count, **options)
    return make_captions(*words, hues, **options)


def test_the_names_that_can_occur(colors):
    # Of 1,107 names 99 are the nearest to a hue: 8, 22 and 69.
    assert len(colors.names) == 1107
    hues = np.arange(2000) / 2000
    counts = [len(set(colors.nearest(hues, np.full(2000, k)))) for k in range(3)]
    assert counts == [8, 22, 69]


@given(st.floats(0, 1, exclude_max=True), st.integers(0, 2))
def test_the_nearest_name_is_that_of_a_plain_search(hue, palette):
    rgb, best, chosen = np.array(colorsys.hsv_to_rgb(hue, 1, 1)), np.inf, None
    for value in TABLES[palette].values():
        distance = ((np.array(to_rgb(value)) - rgb) ** 2).sum()
        if distance < best:
            best, chosen = distance, to_rgb(value)
    last = [name for name, value in TABLES[palette].items() if to_rgb(value) == chosen][-1]
    assert ColorNames().nearest([hue], [palette]) == [last]


def test_of_two_names_of_one_colour_the_last_is_taken(colors):
    assert CSS4_COLORS["aqua"] == CSS4_COLORS["cyan"]
    assert colors.nearest([0.5], [1]) == ["cyan"]
    assert colors.nearest([5 / 6], [1]) == ["magenta"]  # and not fuchsia


def test_an_index_is_the_rank_among_all_names(colors):
    assert list(colors.names) == sorted({name for table in TABLES for name in table})
    assert colors.names[colors.index("xkcd:red")] == "xkcd:red"


def test_a_caption_says_shape_place_and_colour():
    shapes, xpos, ypos, hues, _ = some()
    done = make()
    assert len(done) == 200
    assert set(done.phrasings) == set(range(5))
    for k, text in enumerate(done.texts):
        for word in (shapes[k], f"{ypos[k]}-{xpos[k]}", f'"{done.color_names[k]}"'):
            assert word in text
        expected = TEMPLATES[done.phrasings[k]].format(
            shape=shapes[k], xpos=xpos[k], ypos=ypos[k], color=done.color_names[k]
        )
        assert text == expected
    assert len(hues) == len(done.color_indices)
    places = {name: index for index, name in enumerate(ColorNames().names)}
    assert [places[name] for name in done.color_names] == done.color_indices.tolist()


def test_palettes_and_phrasings_are_drawn_evenly():
    count = 6000
    words = [["teapot"] * count, ["left"] * count, ["top"] * count]
    done = make_captions(*words, np.zeros(count), seed=1)
    shares = np.bincount(done.phrasings, minlength=5) / count
    assert np.abs(shares - 1 / 5).max() < 0.02
    by_palette = [sum(name.startswith(p) for name in done.color_names) for p in ("tab:", "xkcd:")]
    assert np.abs(np.array(by_palette) / count - 1 / 3).max() < 0.02


def test_a_caption_depends_on_seed_split_and_number_alone():
    shapes, xpos, ypos, hues, _ = some()
    whole = make()
    part = make_captions(
        shapes[50:60], xpos[50:60], ypos[50:60], hues[50:60], indices=range(50, 60)
    )
    assert part.texts == whole.texts[50:60]
    assert make().texts == whole.texts
    assert make(seed=1).texts != whole.texts
    assert make(split="test").texts != whole.texts


def test_templates_of_a_file(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("# mine\n\n{shape}!\n  {xpos} {color} {{x}} \n")
    assert load_templates(path) == ("{shape}!", "{xpos} {color} {{x}}")
    done = make(20, templates=load_templates(path))
    assert set(done.phrasings) == {0, 1}
    assert any("{x}" in text for text in done.texts)
    write_templates(tmp_path / "start.txt")
    assert load_templates(tmp_path / "start.txt") == TEMPLATES
    assert all(f"{{{slot}}}" in (tmp_path / "start.txt").read_text() for slot in SLOTS)
    with pytest.raises(UsageError, match="exists already"):
        write_templates(tmp_path / "start.txt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected 1 to 1000 templates, a line each, found 0"),
        (b"# nothing\n", "found 0"),
        (b"ok\n{colour} here\n", r"line 2: a template's slots are .* found \{colour\}"),
        (b"{shape.__class__}\n", "found {shape.__class__}"),
        (b"{shape!r}\n", "slots are"),
        (b"{shape:>{xpos}}\n", "slots are"),
        (b"{}\n", "slots are"),
        (b"{shape\n", "line 1: .* in the template"),
        (b"\xff\xfe", "cannot read the templates"),
        (b"x" * 200_000, "larger than 100000 bytes"),
    ],
)
def test_a_file_of_templates_that_does_not_fit(tmp_path, content, message):
    path = tmp_path / "t.txt"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        load_templates(path)


def test_arguments_that_do_not_fit(tmp_path):
    shapes, xpos, ypos, hues, _ = some()
    with pytest.raises(UsageError, match="found 199, 200, 200, 200 and 199"):
        make_captions(shapes[1:], xpos, ypos, hues)
    with pytest.raises(UsageError, match="finite"):
        make_captions(shapes, xpos, ypos, hues * np.nan)
    with pytest.raises(UsageError, match="unknown split"):
        make(split="new")
    with pytest.raises(UsageError, match="image numbers must be >= 0"):
        make_captions(["cow"], ["left"], ["top"], [0.5], indices=[-1])
    with pytest.raises(UsageError, match="one line of text"):
        make(templates=())
    with pytest.raises(UsageError, match="No such file"):
        load_templates(tmp_path / "none.txt")
