"""The command line as tests run it, and folders that several tests share."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner

from threedident.cli import main

#: One worker: each loads Blender, which takes longer than such images.
SMALL = ("--resolution", 32, "--quality", "draft", "--workers", 1)


def command() -> list[str]:
    """The console command of the environment that the tests run in."""
    return [str(Path(sys.executable).with_name("3dident"))]


def run_command(
    *arguments: object, code: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs `3dident` as a user would, but in this process: its start takes longer than most tests.

    Fails on a traceback, and unless it exits as expected.
    """
    from threedident.errors import RenderWarning

    words = list(map(str, arguments))
    with (
        mock.patch.object(sys, "argv", ["3dident", *words]),
        mock.patch.dict(os.environ, environment),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("always", RenderWarning)  # as in a process of its own
        result = CliRunner().invoke(main, words, prog_name="3dident", catch_exceptions=False)
    done = subprocess.CompletedProcess(words, result.exit_code, result.stdout, result.stderr)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a fresh Python process."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def without(module: str, code: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a process where a module cannot be found."""
    return python(
        "import sys, importlib.abc\n"
        "class Hide(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name.split('.')[0] == {module!r}:\n"
        f"            raise ModuleNotFoundError(f'No module named {{name!r}}', name={module!r})\n"
        "sys.meta_path.insert(0, Hide())\n" + code
    )


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that is made by the first process of the tests that wants it, for all of them."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    folder = root / name
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            make(root / f"{name}.part")
            (root / f"{name}.part").rename(folder)
    return folder
