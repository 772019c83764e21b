"""Fixtures of the tests of datasets."""

from __future__ import annotations

import pytest
from helpers.commands import run_command
from helpers.pairs import ENGINE, Made


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return Made(tmp_path_factory.mktemp("made") / "d")


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    """Twenty pairs."""
    root = tmp_path_factory.mktemp("rendered") / "pairs"
    words = ["render", "--pairs", "--conditional", "normal", "--sigma", 0.1, *ENGINE, "--n", 20]
    words += ["--workers", 1, "--out", root]
    run_command(*words)
    return root
