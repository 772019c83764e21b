from __future__ import annotations

import gc
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest
from helpers.commands import SMALL, command, made_once, run_command
from helpers.fast import pytest_addoption, pytest_configure

__all__ = ["pytest_addoption", "pytest_configure"]  # pytest looks for hooks here

# Tests run in several processes and start more: threads in each would wait for one another.
# Libraries read this when they are loaded, numpy among them.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

# No time limit on an example: a busy machine is no failure.
# The same examples in every run, so that a change fails or passes for good; others on request.
hypothesis.settings.register_profile(
    "patient", deadline=None, derandomize=not os.environ.get("THREEDIDENT_EXPLORE")
)
hypothesis.settings.load_profile("patient")

# Thousands of tests and all of torch stay until the end: Python's collector need not look at them
# again and again, which takes a twentieth of the time.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # else Triton's bindings say at the end that it leaks


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _without_lines_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command prints does not depend on how busy the machine is."""
    monkeypatch.setattr("threedident.progress.SHORT", 3600.0)


@pytest.fixture
def cli() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`run_command`, in the test's own folder."""
    return run_command


@pytest.fixture(scope="session")
def small_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve small images in shards of five. Read it; to change it, take a copy."""

    def make(folder: Path) -> None:
        words = ["render", "--n", 12, "--shard-size", 5, "--out", folder, *SMALL]
        words += ["--workers", 2]
        subprocess.run([*command(), *map(str, words)], check=True, capture_output=True)

    return made_once(tmp_path_factory, "small_dataset", make)
