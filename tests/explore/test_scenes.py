"""Sliders of presets: their ranges, what is held, where hues are flat, and the Jacobian."""

from __future__ import annotations

import asyncio
import itertools
import threading

import numpy as np
import pytest
from helpers.explorer import with_page
from hypothesis import given
from hypothesis import strategies as st

from threedident.errors import UsageError
from threedident.explore.explorer import Explorer
from threedident.explore.scene_part import AVERAGED, JACOBIAN_VIEW, STEP, jacobian_at
from threedident.explore.scenes import View
from threedident.factors import FACTOR_NAMES, factor_index
from threedident.latents import sample_raw_latents
from threedident.plain_data import Misfit
from threedident.presets import SATURATION, load_preset, preset_names
from threedident.render import jacobian
from threedident.render.images import render_images
from threedident.render.scene import hue_color

PRESETS = {name: load_preset(name) for name in preset_names()}


@pytest.mark.parametrize("name", PRESETS)
def test_a_slider_for_each_factor_in_raw_and_scene_units(name):
    preset = PRESETS[name]

    async def test(page):
        return page.explorer.start

    scene = with_page(test, preset)
    assert scene.names == FACTOR_NAMES
    for control in scene.controls:
        assert (control.low, control.high) == (-1, 1) and control.scene == preset.ranges[
            control.name
        ]
        assert control.held == (control.name in preset.fixed)
        assert control.start == preset.fixed.get(control.name, 0)
        assert control.best_r2 == preset.best_r2.get(control.name)
        assert bool(control.colors) == (control.name in SATURATION)


def test_a_hue_is_flat_just_where_its_colour_does_not_change():
    for preset in PRESETS.values():
        for name in SATURATION:
            values = np.linspace(-1, 1, 61)
            wrap = preset.hue == "wrapped"
            hues = np.interp(values, [-1, 1], preset.ranges[name])
            # Of light, which can be brighter than a screen shows: there the bar's colours are one.
            colors = [hue_color(hue, SATURATION[name], wrap=wrap) for hue in hues]
            same = np.array([a == b for a, b in itertools.pairwise(colors)])
            middles = (values[1:] + values[:-1]) / 2
            flat = np.zeros(60, bool)
            near = np.zeros(60, bool)
            for low, high in preset.flat_ranges(name):
                flat |= (low <= middles) & (middles <= high)
                for end in (low, high):
                    near |= np.abs(middles - end) < 0.04
            np.testing.assert_array_equal(same[~near], flat[~near])


@given(st.data())
def test_flat_ranges_lie_within_the_slider_and_make_the_best_r2(data):
    preset = PRESETS[data.draw(st.sampled_from(sorted(PRESETS)))]
    for name in SATURATION:
        ranges = preset.flat_ranges(name)
        assert all(-1 <= low < high <= 1 for low, high in ranges)
        if name in preset.best_r2:
            lost = sum(((high - low) / 2) ** 3 for low, high in ranges)
            assert preset.best_r2[name] == pytest.approx(1 - lost)


def test_values_are_checked():
    async def test(page):
        return page.explorer.start

    scene = with_page(test, PRESETS["3dident"].changed(fixed={"x": 0.1}))
    good = [0.1] + [0.5] * 9
    assert scene.check(good).dtype == np.float32
    assert scene.check(scene.check(good).tolist()).tolist() == scene.check(good).tolist()
    for bad in ([0.2] + [0.5] * 9, [0.1] + [1.5] * 9, good[1:], "values", None):
        with pytest.raises(Misfit):
            scene.check(bad)


def test_the_image_is_what_render_gives_for_the_same_latents():
    raw = sample_raw_latents(range(3), seed=9, split="test")

    async def test(page):
        body = {"generator": {"preset": "3dident-wrapped", "shape": "knot", "material": "metal"}}
        scene = page.explorer.scene(body["generator"])
        return await scene.images(raw, View(48, "standard"))

    images = with_page(test)
    preset = load_preset("3dident-wrapped").changed(shape="knot", material="metal")
    expected = render_images(raw, preset, resolution=48, quality="standard", engine="direct")
    np.testing.assert_array_equal(images, expected)


def test_the_jacobian_is_the_librarys_and_finds_what_is_invisible():
    raw = sample_raw_latents(range(1), seed=1, split="test")
    raw[0, factor_index("object_hue")] = -0.3  # in its flat part

    async def test(page):
        names, matrix = await jacobian_at(page.explorer.start, raw[0])
        answer = await page.ask(
            "jacobian", {"generator": {"preset": "3dident"}, "values": raw[0].tolist()}
        )
        return names, matrix, answer.json()

    names, matrix, answer = with_page(test)
    expected = jacobian(
        raw, "3dident", step=STEP, resolution=JACOBIAN_VIEW.resolution, quality="standard"
    )[0]
    side = JACOBIAN_VIEW.resolution // AVERAGED
    expected = expected.reshape(side, AVERAGED, side, AVERAGED, 3, 10).mean((1, 3)).reshape(-1, 10)
    assert names == FACTOR_NAMES
    np.testing.assert_allclose(matrix, expected, atol=2e-3 * np.abs(expected).max())
    weakest = np.abs(answer["directions"][-1])
    assert answer["singular_values"][-1] < 1e-6 * answer["singular_values"][0]
    assert FACTOR_NAMES[int(weakest.argmax())] == "object_hue" and weakest.max() > 0.999


def test_what_is_held_has_no_column():
    async def test(page):
        body = {"generator": page.explorer.start.generator}
        values = [control.start for control in page.explorer.start.controls]
        return (await page.ask("jacobian", {**body, "values": values})).json()

    answer = with_page(test, PRESETS["3dident-positions"])
    assert answer["factors"] == ["x", "y", "z"] and len(answer["singular_values"]) == 3


def test_a_preset_that_only_blender_renders_is_refused():
    async def test(page):
        raise AssertionError("it was opened")

    with pytest.raises(UsageError, match="crystal"):
        with_page(test, PRESETS["3dident"].changed(material="crystal"))


def test_nobody_waits_while_a_scene_is_made(monkeypatch):
    made = threading.Event()
    make = Explorer._make

    def slow(self, data):
        assert made.wait(20)
        return make(self, data)

    async def test(page):
        monkeypatch.setattr(Explorer, "_make", slow)
        waiting = asyncio.create_task(
            page.ask("scene", {"generator": {"preset": "3dident", "shape": "cube"}})
        )
        await asyncio.sleep(0)
        others = [await page.ask("state") for _ in range(3)]
        body = {"generator": page.explorer.start.generator, "values": [0.0] * 10, "resolution": 16}
        others.append(await page.ask("image", body))
        assert not waiting.done()
        made.set()
        return [each.status for each in (*others, await waiting)]

    assert with_page(test) == [200] * 5
