"""The panel of pairs in a real browser, where there is one."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from helpers import fake_dataset as made
from helpers.browser import needs_browser, running_browser
from helpers.explorer import running
from PIL import Image

from threedident.datasets.formats import open_dataset
from threedident.distributions import Laplace
from threedident.distributions.philox_sampler import sample_partners
from threedident.render.images import render_images

pytestmark = needs_browser

STATE = "return (await import(location.origin + '/page/core.js')).state"
SHOWN = """
const images = [...document.querySelectorAll('#pairs-rows .tile img')];
return images.length > 1 && images.every(image => image.src && image.complete)
  && !document.querySelector('#panel-pairs .stale') && !document.getElementById('pairs-measuring');
"""
CHOOSE = """
const control = document.getElementById(arguments[0]);
control.value = arguments[1];
control.dispatchEvent(new Event('change'));
"""
OPTIONS = "return document.getElementById('pairs-options')?.textContent"
IMAGES = """
return [...document.querySelectorAll('[data-way=exact] img')].map(image => image.src);
"""
NUMBERS = """
return [...document.querySelectorAll(`[data-way=${arguments[0]}] img`)]
  .map(image => Number(image.dataset.stored));
"""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return made.as_rendered(tmp_path_factory.mktemp("pairs") / "data", 80)


@pytest.fixture(scope="module")
def page(dataset):
    """The page with a dataset and the panel open; afterwards nothing has gone wrong on it."""
    with running(dataset) as (_, address), running_browser() as browser:
        browser.width(1280, 1400)
        browser.open(address)
        browser.wait("return document.getElementById('tab-pairs') !== null")
        browser.click("#tab-pairs")
        yield browser
        assert browser.complaints() == []


def choose(page, **values):
    """Change fields of the form, and wait for the pairs."""
    for name, value in values.items():
        page.run(CHOOSE, f"pairs-{name}", str(value))
    page.run("window.before = document.querySelector('[data-way=exact] .tiles')")
    page.wait("return document.querySelector('[data-way=exact] .tiles') !== window.before")
    page.wait(SHOWN)


def point(page):
    return np.float32(page.run(f"{STATE}.values"))


def test_the_images_are_those_of_exact_partners(page):
    page.wait(SHOWN)
    choose(page, name="laplace", width=0.3, count=3)
    assert page.run(OPTIONS) == "--conditional laplace --lambda 0.3"
    z = point(page)
    rows = np.concatenate([z[None], sample_partners(z, 3, conditional=Laplace(0.3), seed=0)])
    expected = render_images(
        rows, "3dident", resolution=104, quality="standard", engine="direct", workers=1
    )
    urls = page.run(IMAGES)
    assert len(urls) == 4
    for url, image in zip(urls, expected, strict=True):
        content = base64.b64decode(url.removeprefix("data:image/png;base64,"))
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(content))), image)
    page.click("#pairs-again")
    page.wait("return document.getElementById('pairs-seed').textContent === 'seed 1'")
    page.wait(SHOWN)
    assert page.run(IMAGES)[1:] != urls[1:]


def test_rows_of_the_dataset_stand_beside_the_exact_ones(page, dataset):
    page.wait(SHOWN)
    with open_dataset(dataset) as source:
        latents = source.raw_latents
    anchor = int(np.linalg.norm(latents - point(page), axis=1).argmin())
    count = len(page.run(IMAGES))
    for way in ("nearest", "resampled"):
        numbers = page.run(NUMBERS, way)
        assert len(numbers) == count
        assert numbers[0] == anchor
        assert anchor not in numbers[1:]
    assert "Far off here" in page.run("return document.getElementById('pairs-far').textContent")
    assert page.run("return document.querySelectorAll('#pairs-spread .track').length") == 10
    page.run("document.querySelector('[data-tile=nearest-0]').focus()")
    page.press("\ue007")  # the return key
    page.wait("return document.querySelector('[data-tile=nearest-0]').innerText.includes('0 from')")
    page.wait(SHOWN)
    np.testing.assert_array_equal(point(page), latents[anchor])
    assert page.run("return document.activeElement.dataset.tile") == "nearest-0"


def test_content_is_refused_in_a_sentence_and_exact_pairs_stay(page):
    page.click("#pairs-moves-psi")
    page.wait("return document.getElementById('pairs-refusal') !== null")
    assert "(psi)" in page.run("return document.getElementById('pairs-refusal').textContent")
    assert page.run(OPTIONS).endswith("--unchanged psi")
    assert len(page.run(IMAGES)) > 1
    page.click("#pairs-moves-psi")
    page.wait("return document.getElementById('pairs-refusal') === null")
    page.wait(SHOWN)


@pytest.mark.parametrize("width", [390, 1280])
def test_the_panel_fits_the_screen(page, width):
    page.width(width, 1400)
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")
    page.width(1280, 1400)
