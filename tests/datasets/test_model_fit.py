"""`3dident model fit`: the law of a folder in Causal3DIdent's layout, as a model file."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from helpers import family_folders

from threedident.causal import Sampling, load_model
from threedident.columns import Column
from threedident.datasets.formats import open_dataset
from threedident.datasets.formats.family.causal3dident import write_causal3dident
from threedident.datasets.model_fit import fit_release, scene_ranges
from threedident.errors import UsageError
from threedident.factors import FACTOR_NAMES

pytestmark = pytest.mark.slow  # many draws and fits

MODEL = "causal3dident-recalled-primitives"
TERMS = (
    "sin(pi / 2 * spotlight_position)",
    "cos(pi / 2 * spotlight_position)",
    "spotlight_hue",
    "background_hue",
)


def release(count):
    """A dataset in memory with the law of the built-in stand-in."""
    model = load_model(MODEL)
    drawn = Sampling(model).draw(range(count), seed=5, split="train")
    raw = model.raw_latents(drawn.variables)
    latents = raw * np.array([3.0] * 3 + [math.pi / 2] * 7, np.float32)
    columns = (
        Column("shape", "discrete", values=model["shape"].values),
        *(Column(name, range=(-1.0, 1.0)) for name in FACTOR_NAMES),
    )
    source = family_folders.Memory(
        columns, np.column_stack([drawn.variables[:, 0], raw]), raw, latents, 2
    )
    source.form = "causal3dident"
    return source


def test_a_known_law_comes_back_as_a_model(tmp_path):
    fit, text = fit_release(release(35_000), TERMS)
    assert fit.misfits == []
    path = tmp_path / "fitted.toml"
    path.write_text(text)
    model, original = load_model(path), load_model(MODEL)
    assert {variable.status for variable in model.variables} == {"fitted"}
    assert model.preset.shapes == original.preset.shapes
    for name in original.names:
        extra = model.adjacency[:, model.names.index(name)]
        if name in ("shape", *FACTOR_NAMES[6:7], *FACTOR_NAMES[8:]):
            assert not extra.any()
    # Both draw the same distributions: means and spreads of each class, and the hue's slopes.
    ours, theirs = (
        Sampling(each).draw(range(30_000), seed=1, split="test").variables.astype(float)
        for each in (model, original)
    )
    assert np.array_equal(ours[:, 0], theirs[:, 0])
    for kind in range(7):
        rows = ours[:, 0] == kind
        assert np.abs(ours[rows].mean(0) - theirs[rows].mean(0)).max() < 0.02
        assert np.abs(ours[rows].std(0) - theirs[rows].std(0)).max() < 0.02
    hue = original.names.index("object_hue")
    assert np.abs(ours[:, hue] - theirs[:, hue]).mean() < 0.02  # the same noise, the same law


def test_the_ranges_of_the_scene_come_from_the_latents():
    source = release(700)
    ranges = scene_ranges(source)
    assert ranges["x"] == pytest.approx((-3, 3), abs=1e-4)
    assert ranges["object_hue"] == pytest.approx((-math.pi / 2, math.pi / 2), abs=1e-4)
    source.latents[:, 7] %= 2 * math.pi  # a wrapped hue is not affine
    assert "object_hue" not in scene_ranges(source)


def test_the_command(cli, tmp_path):
    write_causal3dident(release(700), tmp_path / "d")
    said = cli("model", "fit", "d", "--out", "fitted.toml")
    assert "object_hue:" in said.stdout
    assert "wrote fitted.toml; render it: 3dident render --model fitted.toml" in said.stdout
    model = load_model(tmp_path / "fitted.toml")
    assert "700 rows of the folder d" in model.description
    with open_dataset(tmp_path / "d") as source:
        law, text = fit_release(source)
    assert text == (tmp_path / "fitted.toml").read_text()
    printed = json.loads(cli("model", "fit", "d", "--json").stdout)
    assert printed["rows"] == 700
    assert printed["misfits"] == law.misfits
    refused = cli("model", "fit", "d", "--out", "fitted.toml", code=2).stderr
    assert "exists already" in refused


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("d",), "--out is missing"),
        (("d", "--out", "a.txt"), "--out must end in .toml"),
        (("d", "--out", "a.toml", "--term", "x"), "expected an expression of"),
        (("none", "--out", "a.toml"), "no such file"),
    ],
)
def test_the_command_refuses(cli, tmp_path, words, message):
    write_causal3dident(release(700), tmp_path / "d")
    refused = cli("model", "fit", *words, code=2).stderr
    assert message in refused
    assert not (tmp_path / "a.toml").exists()


def test_other_datasets_are_refused(small_dataset, tmp_path):
    with open_dataset(small_dataset) as source, pytest.raises(UsageError, match="no folder in the"):
        fit_release(source)
    source = family_folders.causal(classes=tuple("abcdefg"))
    source.form = "causal3dident"
    with pytest.raises(UsageError, match="a, b, c, d, e, f, g, which no built-in model has"):
        fit_release(source)
