"""The panel Take in a real browser, where there is one."""

from __future__ import annotations

import shlex
import time

import numpy as np
import pytest
from helpers.browser import needs_browser, running_browser
from helpers.explorer import running
from PIL import Image

from threedident.factors import FACTOR_NAMES
from threedident.latents import load_raw_latents
from threedident.render.images import render_images

pytestmark = needs_browser

STATE = "return (await import(location.origin + '/page/core.js')).state"
COMMAND = "return document.getElementById('take-command').textContent"
SHOWN = """
const preview = document.getElementById('take-preview');
return !document.getElementById('panel-take').classList.contains('moved')
  && preview && preview.complete && preview.naturalWidth && preview.alt.includes(arguments[0])
  && document.getElementById('take-command').textContent.includes('--resolution ' + arguments[1]);
"""
CHOOSE = """
for (const [id, value] of Object.entries(arguments[0])) {
  const control = document.getElementById('take-' + id);
  control.value = value;
  control.dispatchEvent(new Event('change', { bubbles: true }));
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="module")
def page(folder):
    """The page with the panel open; afterwards nothing has gone wrong on it."""
    with running() as (_, address), running_browser() as browser:
        browser.width(1280, 1200)
        browser.command("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
        browser.open(address)
        browser.wait("return document.getElementById('tab-take') !== null")
        browser.click("#tab-take")
        browser.run(CHOOSE, {"size": 32, "quality": "draft", "factor": "psi", "steps": 3})
        browser.click("#random")
        browser.wait(SHOWN, "psi", 32)
        yield browser
        assert browser.complaints() == []


def saved(page, folder, name, button):
    """The file that a button saves."""
    page.click(f"#take-{button}")
    end = time.monotonic() + 30
    while not (folder / name).is_file():
        assert time.monotonic() < end, [path.name for path in folder.iterdir()]
        time.sleep(0.05)
    return folder / name


def test_what_is_saved_is_what_the_sliders_show(page, folder):
    raw = np.array([page.run(f"{STATE}.values")], np.float32)
    words = shlex.split(page.run(COMMAND))
    assert words[:2] == ["3dident", "render"]
    name = words[words.index("--latents") + 1]
    assert np.array_equal(load_raw_latents(saved(page, folder, name, "latents")), raw)
    image = np.asarray(Image.open(saved(page, folder, "3dident-image.png", "image")))
    how = {"resolution": 32, "quality": "draft", "engine": "direct", "workers": 1}
    np.testing.assert_array_equal(image, render_images(raw, **how)[0])
    ends = np.repeat(raw, 3, axis=0)
    ends[:, FACTOR_NAMES.index("psi")] = [-1, 0, 1]
    strip = np.asarray(Image.open(saved(page, folder, "3dident-psi.png", "strip")))
    shown = [strip[30:62, left : left + 32] for left in (4, 40, 76)]
    np.testing.assert_array_equal(shown, render_images(ends, **how))


def test_the_command_follows_the_sliders_and_can_be_copied(page):
    before = page.run(COMMAND)
    page.click("#random")
    page.wait(f"{COMMAND} !== arguments[0]", before)
    page.click("#take-copy")
    said = page.wait("return document.getElementById('take-copied').textContent")
    assert said in ("Copied.", "Selected: copy it with the keyboard.")
    if said != "Copied.":
        assert page.run("return getSelection().toString()") == page.run(COMMAND)


def test_what_does_not_fit_is_said_and_mended(page):
    page.run(CHOOSE, {"size": 1000})
    wrong = "return document.getElementById('take-command').textContent"
    page.wait(f"{wrong}.includes('at most 512')")
    assert page.run("return document.getElementById('take-copy').disabled")
    page.click("#take-image")
    page.wait("return document.querySelector('#panel-take > .error')?.textContent.includes('512')")
    page.run(CHOOSE, {"size": 32})
    page.wait(SHOWN, "psi", 32)
    page.wait("return document.querySelector('#panel-take > .error').hidden")
    said = page.complaints()  # the browser's own, of what the server has refused
    assert said and all("400" in line for line in said)


def test_nothing_is_wider_than_a_phone(page):
    page.width(390)
    assert page.run("return document.documentElement.scrollWidth") == 390
    page.width(1280, 1200)
