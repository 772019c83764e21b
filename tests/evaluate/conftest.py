"""Fixtures of the tests of evaluate."""

from __future__ import annotations

import shutil
import tempfile
import textwrap
import uuid
from pathlib import Path

import numpy as np
import pytest
from helpers.fake_dataset import as_rendered, make
from helpers.fake_scores import fill
from helpers.submissions import COUNT, FACTORIES, GIVEN, MARK, SIDE, running
from helpers.synthetic_codes import FACTORS, rotation, uniform

from threedident.datasets.dataset import ThreeDIdent
from threedident.distributions import Normal


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("test set") / "data"
    make(path, COUNT, side=SIDE)
    return path


@pytest.fixture(scope="module")
def data(root) -> ThreeDIdent:
    return ThreeDIdent(root)


@pytest.fixture
def nothing_is_left_behind(tmp_path_factory, monkeypatch):
    mark, scratch = uuid.uuid4().hex, tmp_path_factory.mktemp("scratch")
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield
    assert running(mark) == []
    # What torch makes when it is first asked to compile stays for later tests; .ses is what
    # onnxruntime leaves where an encoder is exported, outside of any sandbox.
    left = [each.name for each in scratch.iterdir()]
    assert [name for name in left if not name.startswith(("torchinductor_", ".ses"))] == []


@pytest.fixture
def factories(tmp_path):
    (tmp_path / "mine.py").write_text(textwrap.dedent(FACTORIES))


@pytest.fixture(scope="module")
def rendered(tmp_path_factory) -> dict[str, Path]:
    """Datasets as they are rendered, by where their latents come from."""
    folder = tmp_path_factory.mktemp("rendered")
    return {
        "test": as_rendered(folder / "test", COUNT, split="test"),
        "train": as_rendered(folder / "train", COUNT),
        "given": as_rendered(folder / "given", COUNT, given=GIVEN),
        "pairs": as_rendered(folder / "pairs", COUNT, split="test", conditional=Normal(0.3)),
    }


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A board of entries of every sort. Read it; to change it, take a copy."""
    root = tmp_path_factory.mktemp("filled")
    fill(root / "board")
    return root / "board"


@pytest.fixture
def board(filled, tmp_path):
    """One to be changed."""
    return shutil.copytree(filled, tmp_path / "board")


@pytest.fixture(scope="module")
def known_codes():
    """Codes of known structure, and the factors they are of."""
    z = uniform(800, FACTORS)
    order = np.random.default_rng(0).permutation(FACTORS)
    noise = np.random.default_rng(1).standard_normal(z.shape)
    turned = rotation(FACTORS, 3)
    assert np.abs(turned).max() < 0.9  # far from a permutation
    return z, {
        "perfect": z,
        "permuted": -2 * z[:, order] + 1,
        "rotated": z @ turned,
        "noisy": z + 0.5 * noise,
        "noise": noise,
        "over-complete": np.concatenate([z, noise], 1),
        "twice": np.concatenate([z, z], 1),
    }
