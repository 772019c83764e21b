"""The dataset's panel in a real browser, where there is one."""

from __future__ import annotations

import contextlib
import shutil
import time

import numpy as np
import pytest
from helpers.browser import needs_browser, running_browser
from helpers.explorer import running
from helpers.fake_dataset import as_rendered

from threedident.datasets.formats import open_dataset

pytestmark = needs_browser

COUNT, SIDE = 500, 16
NUMBERS = """
return [...document.querySelectorAll('#dataset-sheet .tile')].map((tile) => +tile.dataset.number)
"""
LOADED = """
const tiles = [...document.querySelectorAll('#dataset-sheet .tile')].slice(0, 8);
return tiles.length && tiles.every((tile) => tile.querySelector('img').complete
  && tile.querySelector('img').naturalWidth);
"""
GONE = "return document.querySelectorAll('#dataset-sheet .gone:not([hidden])').length"
RIGHT, LEFT, DOWN, PAGE_UP, ENTER, ESCAPE = (
    "\ue014",
    "\ue012",
    "\ue015",
    "\ue00e",
    "\ue007",
    "\ue00c",
)


@pytest.fixture(scope="module")
def browser():
    with running_browser() as made:
        yield made


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return as_rendered(tmp_path_factory.mktemp("here") / "data", COUNT, side=SIDE, shard=100)


@pytest.fixture(scope="module")
def source(data):
    return open_dataset(data)


@pytest.fixture(scope="module")
def address(data):
    with running(data) as (_, address):
        yield address


@pytest.fixture
def page(browser, address):
    """The panel, opened; afterwards nothing has gone wrong on it."""
    browser.width(1280, 1500)
    browser.open(address)
    browser.wait("return document.getElementById('tab-dataset')")
    browser.run(
        "window.now = 0; window.most = 0; const before = window.fetch;"
        "window.fetch = async (path, ...more) => {"
        "  if (!path.endsWith('/stored-image')) return before(path, ...more);"
        "  window.most = Math.max(window.most, ++window.now);"
        "  try { return await before(path, ...more); } finally { window.now -= 1; }"
        "}"
    )
    browser.click("#tab-dataset")
    browser.wait(LOADED, seconds=20)
    browser.complaints()
    yield browser
    assert browser.complaints() == []


def text(page, selector):
    return page.run("return document.querySelector(arguments[0]).textContent", selector)


def values(page):
    return page.run("return (await import(location.origin + '/page/core.js')).state.values")


def drag(page, name, start, end, kind="mouse"):
    """Draw over a histogram, from one share of its width to another."""
    where = []
    while len(where) < 2 or where[-1] != where[-2]:  # until nothing on the page moves any more
        where.append(_place_of(page, name))
        time.sleep(0.2)
    left, top, width = where[-1]
    y = int(top + 25)  # in its middle
    steps = [
        {"type": "pointerMove", "x": int(left + width * start), "y": y},
        {"type": "pointerDown", "button": 0},
        {"type": "pointerMove", "x": int(left + width * end), "y": y, "duration": 100},
        {"type": "pointerUp", "button": 0},
    ]
    pointer = {"type": "pointer", "id": kind, "parameters": {"pointerType": kind}}
    page.call("/actions", {"actions": [{**pointer, "actions": steps}]})


def _place_of(page, name):
    """The left end, the top and the width of a histogram, in the middle of the screen."""
    return page.run(
        "const area = document.querySelector(`[data-filter=${arguments[0]}] .brush`);"
        "area.scrollIntoView({block: 'center'});"
        "const box = area.getBoundingClientRect(); return [box.left, box.top, box.width]",
        name,
    )


def ends(page, name):
    """The two ends of a filter, as its handles say."""
    return page.run(
        "return [...document.querySelectorAll(`[data-filter=${arguments[0]}] .handle`)]"
        ".map((handle) => +handle.getAttribute('aria-valuenow'))",
        name,
    )


def shows(page, source, filters):
    """Wait until the sheet shows the images that pass filters, and the count is theirs."""
    passing = np.ones(COUNT, bool)
    for name, (low, high) in filters.items():
        column = source.raw_latents[:, source.factor_names.index(name)]
        passing &= (column >= np.float32(low)) & (column <= np.float32(high))
    numbers = np.flatnonzero(passing).tolist()
    page.wait(
        "const shown = [...document.querySelectorAll('#dataset-sheet .tile')]"
        ".map((tile) => +tile.dataset.number);"
        "return JSON.stringify(shown) === JSON.stringify(arguments[0])",
        numbers[:48],
    )
    said = text(page, "[data-place=passing]")
    assert said == (f"{len(numbers)} of 500 images pass" if filters else "All 500 images pass")
    return numbers


@pytest.mark.parametrize("kind", ["mouse", "touch"])
def test_a_range_is_drawn_over_a_histogram(page, source, kind):
    drag(page, "x", 0.25, 0.6, kind)
    low, high = ends(page, "x")
    assert low == pytest.approx(-0.5, abs=0.06)
    assert high == pytest.approx(0.2, abs=0.06)
    shows(page, source, {"x": (low, high)})
    drag(page, "x", (low + high + 2) / 4, 0.9, kind)  # the range moves as it is
    moved = ends(page, "x")
    assert moved[1] - moved[0] == pytest.approx(high - low)
    assert moved[0] > low + 0.3
    drag(page, "y", 0.5, 0.99, kind)
    numbers = shows(page, source, {"x": moved, "y": ends(page, "y")})
    assert 0 < len(numbers) < COUNT / 4
    np.testing.assert_array_equal(page.pixels("#dataset-sheet .tile img"), source.image(numbers[0]))
    page.click("#dataset-clear")
    shows(page, source, {})


def test_the_keyboard_moves_the_ends_of_a_range(page, source):
    page.run("document.querySelector('[data-filter=psi] .end-0').focus()")
    page.press(RIGHT, RIGHT, PAGE_UP)
    assert ends(page, "psi") == [pytest.approx(-0.65), 1.0]
    said = page.run("return document.activeElement.getAttribute('aria-valuetext')")
    assert said == "-0.65, -1.02 rad"
    shows(page, source, {"psi": (-0.65, 1.0)})
    page.run("document.querySelector('[data-filter=psi] .end-1').focus()")
    page.press(*[LEFT] * 50)  # not beyond the other end
    assert ends(page, "psi") == [pytest.approx(-0.65), pytest.approx(-0.6)]
    page.press(ESCAPE)
    shows(page, source, {})


def test_an_image_that_is_chosen_sets_the_sliders(page, source):
    page.click("#dataset-sheet .tile:nth-child(8)")
    page.wait("return document.querySelector('[data-place=chosen-image]').naturalWidth")
    assert np.float32(values(page)).tolist() == source.raw_latents[7].tolist()
    assert text(page, "[data-place=chosen-title]") == "Image 7"
    page.wait("return document.querySelectorAll('#dataset-chosen tbody tr').length === 10")
    page.wait("return document.querySelector('[data-place=near] .tile').dataset.number === '7'")
    assert text(page, "[data-place=near] .under") == "0"
    np.testing.assert_array_equal(page.pixels("[data-place=chosen-image]"), source.image(7))
    page.run("document.querySelector('#dataset-sheet .tile').focus()")
    page.press(RIGHT, RIGHT, ENTER)
    page.wait(
        "return document.querySelector('[data-place=chosen-title]').textContent === 'Image 2'"
    )
    assert np.float32(values(page)).tolist() == source.raw_latents[2].tolist()
    page.click("#dataset-close")
    assert page.run("return document.activeElement.dataset.number") == "2"


def test_the_nearest_images_follow_the_sliders(page, source):
    for x in (-0.9, 0.9):
        page.run(
            "const slider = document.getElementById('slider-x'); slider.value = arguments[0];"
            "slider.dispatchEvent(new Event('input'))",
            x,
        )
        point = np.array([x, *[0.0] * 9])
        gaps = np.linalg.norm(source.raw_latents - point, axis=1)
        page.wait(
            "const near = [...document.querySelectorAll('[data-place=near] .tile')];"
            "return JSON.stringify(near.map((tile) => +tile.dataset.number))"
            " === JSON.stringify(arguments[0])",
            np.argsort(gaps)[:8].tolist(),
        )
        nearest = float(text(page, "[data-place=near] .under"))
        assert nearest == pytest.approx(gaps.min(), rel=0.01)


def test_another_scene_is_asked_about_with_its_own_values_alone(page):
    page.run(
        "const select = document.getElementById('preset'); select.value = '3dident-wrapped';"
        "select.dispatchEvent(new Event('change', {bubbles: true}));"
    )
    page.wait("return document.querySelector('[data-place=note]').textContent")
    assert page.complaints() == []  # as of a request that was refused


def test_pages_load_what_is_seen_a_few_at_a_time(page, source):
    for _ in range(20):  # faster than any answer
        page.run("document.querySelector('[data-place=after]').click()")
    page.wait(f"const shown = (() => {{ {NUMBERS} }})(); return shown[0] === 480")
    assert text(page, "[data-place=pages]") == " of 11"
    assert page.run("return document.querySelector('[data-place=after]').disabled")
    page.wait(LOADED)
    assert 1 <= page.run("return window.most") <= 6
    page.run("document.getElementById('dataset-shuffle').click()")
    page.wait(f"const shown = (() => {{ {NUMBERS} }})(); return shown.some((n) => n < 480)")


@pytest.mark.parametrize("width", [320, 390])
def test_it_fits_a_phone(page, width):
    page.width(width)
    page.run("document.querySelector('#dataset-sheet .tile').click()")
    page.wait("return document.querySelectorAll('#dataset-chosen tbody tr').length === 10")
    assert page.run("return document.documentElement.scrollWidth") <= width


@contextlib.contextmanager
def moved(path, place):
    shutil.move(path, place)
    try:
        yield
    finally:
        shutil.move(place, path)


def turn(page, number):
    page.run(
        "const field = document.querySelector('[data-place=page]'); field.value = arguments[0];"
        "field.dispatchEvent(new Event('change'))",
        number,
    )
    page.wait(
        f"const shown = (() => {{ {NUMBERS} }})(); return shown[0] === 48 * (arguments[0] - 1)",
        number,
    )


def test_a_dataset_that_disappears_is_said_to_and_comes_back(browser, page, data, tmp_path):
    error = "#dataset-images > .error"
    with moved(data / "shard-00000200-00100.h5", tmp_path / "shard"):
        turn(page, 5)  # images 192 to 239
        page.run("document.getElementById('dataset-images').scrollIntoView()")
        page.wait(GONE)
        page.wait(LOADED)  # those before image 200
        assert "shard-00000200-00100.h5 is no longer there" in text(page, error)
    with moved(data, tmp_path / "away"):
        turn(page, 9)
        page.wait(f"return ({GONE[7:]}) > 8")
        assert "the dataset data is no longer there" in text(page, error)
        drag(page, "x", 0.2, 0.6)
        page.wait(
            "return document.querySelector('[data-place=passing]').textContent.includes(' of 500')"
        )
        page.click("#dataset-clear")
    turn(page, 8)
    page.wait(LOADED)
    assert page.run("return document.querySelector(arguments[0]).hidden", error)
    assert all("stored-image" in line for line in browser.complaints())
