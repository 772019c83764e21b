"""`3dident pairs` on grids, sequences and tables."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from helpers.other_data import grid_source, open_by_name, sequence_source
from PIL import Image


@pytest.fixture(autouse=True)
def sources(monkeypatch):
    named, nothing = sequence_source([50]), sequence_source([50])
    named.sequences = nothing.sequences = None
    named.pairs = np.stack([np.arange(40), np.arange(40) + 10], 1)
    known = {
        "drawn:grid": grid_source(),
        "drawn:walks": sequence_source([6] * 20),
        "drawn:table": named,
        "drawn:single": nothing,
    }
    open_by_name(monkeypatch, known)


def test_a_grid_is_measured_by_its_transition(cli):
    said = cli("pairs", "drawn:grid", "--transition", "UNI", "--change", "2", "--draws", 4000)
    first, *lines = said.stdout.splitlines()
    assert first.startswith("drawn:grid: 384 images on a grid; UniformFactors(k=2")
    assert first.endswith("4,000 pairs")
    assert lines[-1] == "factors that change in a pair, of 5: 2.00 asked, 2.00 realised"
    said = cli(
        *("pairs", "drawn:grid", "--transition", "lap", "--rate", "1-10", "--redraw", "reject"),
        *("--draws", 4000, "--json", "--out", "pairs.png"),
    )
    plain = json.loads(said.stdout)
    assert "rate=(1.0, 10.0), redraw='reject'" in plain["pairs"]
    assert plain["realised"]["unchanged"]["shape"] == 1
    for name in ("scale", "orientation", "x", "y"):
        asked, realised = (plain[way]["unchanged"][name] for way in ("asked", "realised"))
        assert realised == pytest.approx(asked, abs=0.05)


def test_its_figure_is_saved(cli, tmp_path):
    words = ("pairs", "drawn:grid", "--transition", "uni", "--coin", "--replace")
    cli(*words, "--draws", 200, "--out", "pairs.png")
    with Image.open(tmp_path / "pairs.png") as picture:
        assert picture.width > 1000


def test_factors_are_chosen_by_the_names_of_the_dataset(cli):
    words = ("pairs", "drawn:grid", "--transition", "lap", "--draws", 200, "--json")
    plain = json.loads(cli(*words, "--factors", "x", "--factors", "shape").stdout)
    assert list(plain["realised"]["std"]) == ["x", "shape"]
    assert "'hue'" in cli(*words, "--factors", "hue", code=2).stderr


def test_sequences_and_tables_need_no_transition(cli):
    said = cli("pairs", "drawn:walks", "--max-gap", 3, "--draws", 500).stdout
    assert "120 images in sequences; pairs with max_gap 3; 500 pairs" in said
    assert "asked" not in said
    said = cli("pairs", "drawn:table", "--draws", 500).stdout
    assert "50 images; the pairs that they name; 500 pairs" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["drawn:grid"], "--transition must be uni .* or lap .*, it is missing"),
        (["drawn:grid", "--transition", "normal"], "found 'normal'"),
        (["drawn:grid", "--transition", "uni", "--rate", "1"], "uni takes no --rate"),
        (["drawn:grid", "--transition", "lap", "--change", "2"], "lap takes no --change"),
        (["drawn:grid", "--transition", "lap", "--rate", "1-2-3"], "--rate expects RATE"),
        (["drawn:grid", "--transition", "lap", "--rate", "1.2.3"], "--rate expects RATE"),
        (["drawn:grid", "--transition", "lap", "--redraw", "all"], "one of one, reject"),
        (["drawn:grid", "--transition", "uni", "--change", "6"], "more than the 5 factors"),
        (["drawn:grid", "--transition", "uni", "--max-gap", "2"], "--max-gap is for sequences"),
        (["drawn:grid", "--max-gap", "2"], "has no sequences of frames.*GridPairs"),
        (["drawn:grid", "--conditional", "normal", "--sigma", "0.1"], "a grid has --transition"),
        (["drawn:walks", "--transition", "lap"], "each point of a grid.*SequencePairs"),
        (["drawn:walks", "--rate", "2"], "each point of a grid.*SequencePairs"),
        (["drawn:walks", "--index", "hnsw"], "--index is for matched pairs"),
        (["drawn:single"], "each point of a grid.*TwoViews"),
        (["--n", "100", "--transition", "lap"], "for datasets on a grid and in sequences"),
    ],
)
def test_options_that_do_not_fit_are_refused(cli, words, message):
    assert re.search(message, cli("pairs", *words, code=2).stderr)
