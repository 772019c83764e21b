"""A real browser for tests, where there is one: Chromium by WebDriver."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    "--disable-dev-shm-usage",
]

PIXELS = """
const image = document.querySelector(arguments[0]);
try { await image.decode(); } catch { return null; }  // still asked for, or being replaced
const canvas = document.createElement('canvas');
canvas.width = image.naturalWidth;
canvas.height = image.naturalHeight;
const context = canvas.getContext('2d');
context.drawImage(image, 0, 0);
const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
const text = Array.from(data, (byte) => String.fromCharCode(byte)).join('');
return [canvas.height, canvas.width, btoa(text)];
"""

needs_browser = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="no browser: apt-get install chromium chromium-driver (Debian)",
)


class Browser:
    """As much of WebDriver (W3C) as these tests need."""

    def __init__(self, port):
        self.base = f"http://127.0.0.1:{port}"

    def start(self):
        options = {"binary": CHROMIUM, "args": FLAGS}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        made = self.call("/session", {"capabilities": {"alwaysMatch": wanted}})
        self.base += f"/session/{made['sessionId']}"

    def call(self, path, body=None, method=None):
        data = None if body is None else json.dumps(body).encode()
        head = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.base + path, data, head, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error

    def open(self, path):
        """Open a file, or an address."""
        self.call("/url", {"url": path.as_uri() if isinstance(path, Path) else path})

    def run(self, script, *arguments):
        """The value that JavaScript returns."""
        return self.call("/execute/sync", {"script": script, "args": list(arguments)})

    def click(self, selector):
        found = self.call("/element", {"using": "css selector", "value": selector})
        self.call(f"/element/{next(iter(found.values()))}/click", {})

    def command(self, name, **parameters):
        """One of Chromium's own commands."""
        return self.call("/goog/cdp/execute", {"cmd": name, "params": parameters})

    def width(self, pixels, height=844):
        size = {"width": pixels, "height": height, "deviceScaleFactor": 1, "mobile": pixels < 800}
        self.command("Emulation.setDeviceMetricsOverride", **size)

    def press(self, *keys):
        """Press keys one after the other, as WebDriver names them, in what has the focus."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.call("/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def wait(self, script, *arguments, seconds=60):
        """Wait until JavaScript returns something true; return it."""
        end = time.monotonic() + seconds
        while not (value := self.run(script, *arguments)):
            assert time.monotonic() < end, f"waited {seconds} s for: {script}"
            time.sleep(0.05)
        return value

    def dark(self, on=True):
        """Prefer dark colours, or light ones."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        self.command("Emulation.setEmulatedMedia", features=[feature])

    def pixels(self, selector):
        """The pixels of an image on the page, once it is there: (H, W, 3) uint8."""
        height, width, content = self.wait(PIXELS, selector)
        whole = np.frombuffer(base64.b64decode(content), np.uint8).reshape(height, width, 4)
        return whole[..., :3]

    def screenshot(self, path):
        """Write what is seen as a PNG file."""
        Path(path).write_bytes(base64.b64decode(self.call("/screenshot")))

    def complaints(self):
        """What the console has said since it was last asked.

        Not that a newer request has come before an older one was answered: pages count on it.
        """
        said = [line["message"] for line in self.call("/se/log", {"type": "browser"})]
        return [line for line in said if "409 (Conflict)" not in line]


@contextlib.contextmanager
def running_browser():
    """A browser, which ends with the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = subprocess.Popen(
        [DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    made = Browser(port)
    try:
        for _ in range(300):
            with contextlib.suppress(OSError):
                if made.call("/status")["ready"]:
                    break
            time.sleep(0.1)
        made.start()
        yield made
        made.call("", method="DELETE")
    finally:
        driver.terminate()
        driver.wait(20)
