from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from PIL import Image

# No time limit on an example: a busy machine is no failure.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")

DATA = Path(__file__).parent / "data"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def command() -> list[str]:
    """The console command of the environment that the tests run in."""
    return [str(Path(sys.executable).with_name("3dident"))]


Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Runs `3dident` as a user would; fails on a traceback, and unless it exits as expected."""

    def run(
        *arguments: object, code: int = 0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*command(), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=tmp_path,
            env={**os.environ, **environment},
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run


def references(folder: str) -> tuple[np.ndarray, list[np.ndarray]]:
    """Raw latents and converged images of tests/data/FOLDER."""
    raw = np.load(DATA / folder / "raw_latents.npy").astype(np.float32)
    images = [
        np.asarray(Image.open(path).convert("RGB"))
        for path in sorted((DATA / folder).glob("*.png"))
    ]
    assert len(images) == len(raw)
    return raw, images


SMALL = ("--resolution", 32, "--quality", "draft")


@pytest.fixture(scope="session")
def small_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve small images in shards of five. Read it; to change it, take a copy."""
    root = tmp_path_factory.mktemp("small") / "dataset"
    subprocess.run(
        [*command(), "render", "--n", "12", "--shard-size", "5", "--out", str(root)]
        + [str(a) for a in SMALL],
        check=True,
        capture_output=True,
    )
    return root
