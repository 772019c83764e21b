"""The encoder's panel in a real browser, where there is one."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
from helpers.browser import needs_browser, running_browser
from helpers.explorer import running
from helpers.fake_dataset import as_rendered
from helpers.submissions import AXES, dividing, mean_nodes, save_onnx

pytestmark = needs_browser

SHOWN = "return document.querySelectorAll('#encoder-curves svg.encoder-chart').length === 2"
MOVE = """
const slider = document.getElementById('slider-' + arguments[0]);
slider.value = arguments[1];
slider.dispatchEvent(new Event('input'));
slider.dispatchEvent(new Event('change'));
"""
TRUE = """
const row = document.querySelector(`#encoder-factors [data-row="${arguments[0]}"]`);
return row && row.querySelector('.true').textContent === arguments[1];
"""
CHOOSE = """
const select = document.getElementById(arguments[0]);
select.value = arguments[1];
select.dispatchEvent(new Event('change', { bubbles: true }));
"""


@pytest.fixture(scope="module")
def browser():
    with running_browser() as made:
        yield made


def opened(browser, address):
    browser.width(1280)
    browser.open(address)
    browser.complaints()  # those of a page whose server has ended
    browser.wait("return document.getElementById('tab-encoder')")
    browser.click("#tab-encoder")


def test_codes_and_factors_follow_the_sliders_and_curves_a_factor(browser, tmp_path):
    data = as_rendered(tmp_path / "data", 60)
    path = save_onnx(tmp_path / "means.onnx", mean_nodes(), initializers=[AXES])
    with running(data, "--encoder", path) as (_, address):
        opened(browser, address)
        browser.wait(SHOWN)
        assert browser.run("return document.getElementById('encoder-summary').textContent") == (
            "3 codes, of images of 16 x 16."
        )
        browser.wait(TRUE, "x", "0.00")
        bars = "return [...document.querySelectorAll('#encoder-codes rect')].map(r => r.outerHTML)"
        before = browser.run(bars)
        assert len(before) == 3
        browser.run(MOVE, "x", 0.75)
        browser.wait(TRUE, "x", "0.75")
        assert browser.run(bars) != before
        # The line stands at the slider's value, and other sliders make the curves old.
        assert browser.run("return document.getElementById('encoder-moved').hidden")
        browser.run(MOVE, "y", -0.5)
        browser.wait("return !document.getElementById('encoder-moved').hidden")
        # Another factor, another shape: the page says that the read-out is of other images.
        browser.run(CHOOSE, "encoder-factor", "object_hue")
        browser.wait(
            "return document.querySelector('#encoder-curves svg')?.getAttribute('aria-label')"
            "?.startsWith('Codes along object hue')"
        )
        browser.run(CHOOSE, "shape", "cube")
        browser.wait(
            "return document.getElementById('encoder-differs').textContent"
            ".includes('differs in shape')"
        )
        browser.wait(SHOWN)
        # The legend brings a line to the front, by the keyboard as well.
        browser.run("document.querySelector('[data-curve]').focus()")
        front = "return document.querySelectorAll('.encoder-chart .curve.front').length"
        assert browser.run(front) == 1
        browser.width(390)
        wide = "return document.documentElement.scrollWidth - window.innerWidth"
        assert browser.run(wide) <= 0
        assert browser.complaints() == []


def test_what_a_strangers_encoder_does_wrong_is_said_and_the_page_goes_on(browser, tmp_path):
    data = as_rendered(tmp_path / "data", 40)
    file = dividing(tmp_path / "bad.onnx")
    with running(data, "--encoder", file) as (process, address):
        opened(browser, address)
        browser.wait("return document.querySelectorAll('#encoder-codes rect').length === 3")
        # Its process is gone, and what lies there now is no encoder any more.
        file.write_bytes(b"no graph")
        listed = subprocess.run(
            ["ps", "-o", "pid=,args=", "--ppid", str(process.pid)],
            capture_output=True,
            text=True,
            check=True,
        )
        (pid,) = (line.split()[0] for line in listed.stdout.splitlines() if "runner" in line)
        os.kill(int(pid), signal.SIGKILL)
        browser.run(MOVE, "y", 0.5)
        browser.wait(
            "return [...document.querySelectorAll('#panel-encoder .error')]"
            ".some(line => line.textContent.includes('bad.onnx is no ONNX file'))"
        )
        browser.run(MOVE, "x", 0.5)
        browser.wait("return document.getElementById('image').dataset.quality === 'standard'")
        said = browser.complaints()
        assert all("status of 400" in line for line in said)


def test_without_a_dataset_there_are_codes_alone(browser, tmp_path):
    with running("--encoder", dividing(tmp_path / "one.onnx")) as (_, address):
        opened(browser, address)
        browser.wait("return document.querySelectorAll('#encoder-codes rect').length === 3")
        text = browser.run("return document.getElementById('encoder-readout').textContent")
        assert "Without a dataset there are codes alone" in text
        assert browser.complaints() == []
