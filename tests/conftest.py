from __future__ import annotations

import fcntl
import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import hypothesis
import pytest
from click.testing import CliRunner
from PIL import Image

from threedident.cli import main

if TYPE_CHECKING:
    import numpy as np

# Tests run in several processes and start more: threads in each would wait for one another.
# Libraries read this when they are loaded, numpy among them.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

# No time limit on an example: a busy machine is no failure.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")

DATA = Path(__file__).parent / "data"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _without_lines_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command prints does not depend on how busy the machine is."""
    monkeypatch.setattr("threedident.progress.SHORT", 3600.0)


def command() -> list[str]:
    """The console command of the environment that the tests run in."""
    return [str(Path(sys.executable).with_name("3dident"))]


#: Makes a function that remembers what it has returned, one and the same of each function.
_remembering = functools.cache(functools.cache)


def run_command(
    *arguments: object, code: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs `3dident` as a user would, but in this process: its start takes longer than most tests.

    Engines are asked for their version and devices only once, which takes a process, too. Fails on
    a traceback, and unless it exits as expected.
    """
    from threedident.render import job

    words = list(map(str, arguments))
    with (
        mock.patch.object(sys, "argv", ["3dident", *words]),
        mock.patch.dict(os.environ, environment),
        mock.patch.object(job, "probe", _remembering(job.probe)),
    ):
        result = CliRunner().invoke(main, words, prog_name="3dident", catch_exceptions=False)
    done = subprocess.CompletedProcess(words, result.exit_code, result.stdout, result.stderr)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture
def cli() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`run_command`, in the test's own folder."""
    return run_command


def references(folder: str) -> tuple[np.ndarray, list[np.ndarray]]:
    """Raw latents and converged images of tests/data/FOLDER."""
    import numpy as np

    raw = np.load(DATA / folder / "raw_latents.npy").astype(np.float32)
    images = [
        np.asarray(Image.open(path).convert("RGB"))
        for path in sorted((DATA / folder).glob("*.png"))
    ]
    assert len(images) == len(raw)
    return raw, images


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


#: One worker: each loads Blender, which takes longer than such images.
SMALL = ("--resolution", 32, "--quality", "draft", "--workers", 1)


@pytest.fixture(scope="session")
def small_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve small images in shards of five. Read it; to change it, take a copy."""

    def make(folder: Path) -> None:
        words = ["render", "--n", 12, "--shard-size", 5, "--out", folder, *SMALL]
        words += ["--workers", 2]
        subprocess.run([*command(), *map(str, words)], check=True, capture_output=True)

    return made_once(tmp_path_factory, "small_dataset", make)
