"""The page in a real browser, where there is one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from helpers.browser import needs_browser, running_browser
from helpers.explorer import running

from threedident.factors import FACTOR_NAMES
from threedident.presets import load_preset
from threedident.render.images import render_images

pytestmark = needs_browser

STATE = "return (await import(location.origin + '/page/core.js')).state"
READY = "return document.getElementById('image').dataset.quality === 'standard'"
MOVE = """
const slider = document.getElementById('slider-' + arguments[0]);
slider.value = arguments[1];
slider.dispatchEvent(new Event('input'));
if (arguments[2]) slider.dispatchEvent(new Event('change'));
"""


def values(browser):
    """The values of the sliders."""
    return browser.run(f"{STATE}.values")


def settled(browser):
    """Wait until the image is the good one of the sliders' values."""
    browser.wait(
        "const { point } = await import(location.origin + '/page/core.js');"
        "const { quality, point: shown } = document.getElementById('image').dataset;"
        "return quality === 'standard' && shown === JSON.stringify(point())"
    )


def expected(browser, preset="3dident"):
    """The image that `render` gives for the sliders' values."""
    raw = np.array([values(browser)], np.float32)
    return render_images(raw, preset, quality="standard", engine="direct", workers=1)[0]


@pytest.fixture(scope="module")
def browser():
    with running_browser() as made:
        yield made


@pytest.fixture(scope="module")
def server():
    with running() as (process, address):
        yield process, address


@pytest.fixture
def page(browser, server):
    """The page, opened; afterwards nothing has gone wrong on it."""
    browser.width(1280)
    browser.open(server[1])
    browser.wait(READY)
    browser.complaints()
    yield browser
    assert browser.complaints() == []


def test_it_opens_with_a_slider_for_each_factor_and_asks_nobody_else(page):
    names = page.run(
        "return [...document.querySelectorAll('#sliders input[type=range]')]"
        ".map(slider => slider.dataset.factor)"
    )
    assert names == list(FACTOR_NAMES)
    origins = page.run(
        "return performance.getEntriesByType('resource').map(each => new URL(each.name))"
        ".filter(url => url.protocol !== 'blob:' && url.protocol !== 'data:').map(u => u.origin)"
    )
    assert len(origins) > 5 and set(origins) == {page.run("return location.origin")}
    assert "token" not in page.run("return location.href")


def test_a_slider_moves_the_image_to_that_of_render(page):
    before = page.pixels("#image")
    page.run(MOVE, "x", 0.75)
    page.run(MOVE, "object_hue", -0.9, True)
    settled(page)
    assert np.float32(values(page)[0]) == np.float32(0.75)
    after = page.pixels("#image")
    assert (after != before).any()
    np.testing.assert_array_equal(after, expected(page))


def test_the_keyboard_moves_a_slider(page):
    page.run("document.getElementById('slider-psi').focus()")
    page.press("\ue014", "\ue014", "\ue00e")  # right, right, page up
    assert values(page)[5] == pytest.approx(0.12)
    said = page.run("return document.activeElement.getAttribute('aria-valuetext')")
    assert said.startswith("0.120") and said.endswith("rad")
    settled(page)
    np.testing.assert_array_equal(page.pixels("#image"), expected(page))


def test_a_number_can_be_typed_and_nonsense_is_put_back(page):
    type_in = (
        "const field = document.querySelector('[data-number=y]'); field.value = arguments[0];"
        "field.dispatchEvent(new Event('change'));"
    )
    page.run(type_in, "0.123")
    assert values(page)[1] == 0.123
    page.run(type_in, "7")  # beyond the end
    assert values(page)[1] == 1
    page.run(type_in, "")
    assert page.run("return document.querySelector('[data-number=y]').value") == "1.000"


def test_a_hue_shows_where_it_is_flat(page):
    flat = page.run(
        "return [...document.querySelectorAll('.flat')].map(part => [part.dataset.flat,"
        "part.style.getPropertyValue('--from'), part.style.getPropertyValue('--to')])"
    )
    assert {name for name, *_ in flat} == {"object_hue", "spotlight_hue", "background_hue"}
    _, low, high = next(each for each in flat if each[0] == "object_hue")
    assert 2 * float(low) - 1 == pytest.approx(-2 / 3) and float(high) == 0.5


def test_it_says_what_is_invisible_here(page):
    page.run(MOVE, "object_hue", -0.3, True)
    found = page.wait(
        "const said = document.getElementById('finding')?.textContent;"
        "return said?.includes('object hue is invisible') && said"
    )
    assert found.startswith("Here object hue is invisible: the image does not change with it.")
    cells = page.run(
        "return [...document.querySelectorAll('[data-row=object_hue] td')].map(c => c.textContent)"
    )
    assert "0.9630" in cells and any("flat part" in cell for cell in cells)


HOLD = """
const ask = window.fetch;
window.held = [];
window.fetch = (address, ...more) => (String(address).endsWith(arguments[0])
  ? new Promise((go) => window.held.push(go)).then(() => ask(address, ...more))
  : ask(address, ...more));
"""


def test_what_was_measured_elsewhere_does_not_stand_beside_newer_sliders(page):
    page.wait("return document.getElementById('finding')")
    shown = (
        "return [document.getElementById('hidden').classList.contains('stale'),"
        "document.querySelectorAll('#factors svg').length]"
    )
    page.run(HOLD, "api/jacobian")
    page.run(MOVE, "x", 0.5, True)
    page.wait("return held.length === 1")
    assert page.run(shown) == [True, 0]
    page.run(MOVE, "x", -0.5, True)
    page.run("held[0]()")
    page.wait("return held.length === 2")  # the first has been answered
    assert page.run(shown) == [True, 0]
    page.run("held[1]()")
    page.wait("return !document.getElementById('hidden').classList.contains('stale')")
    assert page.run(shown) == [False, 10]


def test_another_preset_shape_and_material(page):
    choose = (
        "const select = document.getElementById(arguments[0]); select.value = arguments[1];"
        "select.dispatchEvent(new Event('change', {bubbles: true}));"
    )
    for name, value in (("preset", "3dident-wrapped"), ("shape", "knot"), ("material", "metal")):
        page.run(choose, name, value)
        page.wait(
            f"const generator = {STATE[7:]}.generator;"
            f"return (generator.{name} ?? '') === {json.dumps(value)}"
        )
    settled(page)
    preset = load_preset("3dident-wrapped").changed(shape="knot", material="metal")
    np.testing.assert_array_equal(page.pixels("#image"), expected(page, preset))


def memory(pid):
    """The resident memory of a process and those that it has started, in MB."""
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    total = 0
    for each in [pid, *listed.stdout.split()]:
        for line in Path(f"/proc/{each}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                total += int(line.split()[1]) / 1024
    return total


def test_a_thousand_moves_leave_the_last_image_and_no_memory_behind(page, server):
    run = """
    const [count] = arguments;
    const names = [...document.querySelectorAll('#sliders input[type=range]')];
    for (let i = 0; i < count; i += 1) {
      const slider = names[Math.floor(Math.random() * names.length)];
      slider.value = Math.random() * 2 - 1;
      slider.dispatchEvent(new Event('input'));
      await new Promise((done) => setTimeout(done, 4));
    }
    """
    page.run(run, 200)
    settled(page)
    before = memory(server[0].pid)
    page.run(run, 800)
    settled(page)
    np.testing.assert_array_equal(page.pixels("#image"), expected(page))
    assert memory(server[0].pid) < before + 60
    assert page.run("return document.querySelectorAll('*').length") < 2000


def test_a_page_that_is_loaded_again_shows_what_it_has_shown(page):
    page.run(MOVE, "y", -0.4, True)
    page.click("#tab-take")
    settled(page)
    page.call("/refresh", {})
    page.wait(READY)
    page.wait(f"return {STATE[7:]}.values[1] === -0.4")
    shown = "return document.querySelector('[role=tab][aria-selected=true]').id"
    assert page.run(shown) == "tab-take"


def test_two_tabs_do_not_disturb_each_other(page, server):
    first = page.call("/window")
    second = page.call("/window/new", {"type": "tab"})["handle"]
    try:
        page.call("/window", {"handle": second})
        page.open(server[1])
        page.wait(READY)
        page.run(MOVE, "z", -0.8, True)
        page.call("/window", {"handle": first})
        page.run(MOVE, "z", 0.8, True)
        settled(page)
        assert values(page)[2] == 0.8
        np.testing.assert_array_equal(page.pixels("#image"), expected(page))
        page.call("/window", {"handle": second})
        settled(page)
        assert values(page)[2] == -0.8
        np.testing.assert_array_equal(page.pixels("#image"), expected(page))
    finally:
        page.call("/window", {"handle": second})
        page.call("/window", method="DELETE")
        page.call("/window", {"handle": first})


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_it_fits_the_screen(page, width):
    page.width(width)
    assert page.run("return document.documentElement.scrollWidth") <= width


def test_dark_and_light_are_legible(page):
    luminance = """
    const parse = (text) => text.match(/[0-9.]+/g).slice(0, 3).map(Number);
    const light = ([r, g, b]) => 0.2126 * r + 0.7152 * g + 0.0722 * b;
    const style = getComputedStyle(document.body);
    return [light(parse(style.backgroundColor)), light(parse(style.color))];
    """
    for dark in (True, False):
        page.dark(dark)
        paper, ink = page.run(luminance)
        assert (paper < 60 and ink > 190) if dark else (paper > 200 and ink < 60)


def test_a_server_that_has_ended_is_told_in_a_sentence(browser):
    with running() as (process, address):
        browser.width(1280)
        browser.open(address)
        browser.wait(READY)
        process.kill()
        process.wait(20)
        browser.run(MOVE, "x", 0.5, True)
        said = browser.wait("return document.getElementById('scene-error').textContent")
    assert "does not answer" in said
    browser.complaints()  # that a connection was refused
