"""`3dident sprites`, and drawn images in the other commands."""

from __future__ import annotations

import json

import click
import numpy as np
import pytest
from PIL import Image

from threedident.cli import main


def test_every_option_has_words():
    options = [p for p in main.commands["sprites"].params if isinstance(p, click.Option)]
    assert [option.name for option in options if not option.help] == []


def test_sprites_are_written_and_looked_at(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = cli("sprites", "--out", "data/small.npz", "--sizes", "3x2x4x3x2").stdout
    assert "144 images" in said
    assert "exists already" in cli("sprites", "--out", "data/small.npz", code=2).stderr
    for name in ("data/small.npz", "drawn:sprites:3x2x4x3x2"):
        said = cli("info", name).stdout
        assert "144 images of 64 x 64" in said
        assert "not the dataset" in said
        for factor in ("shape", "scale", "orientation", "posX", "posY"):
            assert factor in said
    about = json.loads(cli("info", "drawn:sprites", "--json").stdout)
    assert about["images"] == 737_280 and about["form"] == "drawn-sprites"
    said = cli("preview", "drawn:sprites").stdout
    sheet = np.asarray(Image.open(said.split()[-1]))
    assert sheet.ndim >= 2 and sheet.std() > 10


def test_a_table_is_written_and_looked_at(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = cli("sprites", "natural-sprites", "--out", "table.csv", "--n", 20, "--seed", 1).stdout
    assert "20 objects" in said
    assert "a table of Natural Sprites" in cli("info", "table.csv").stdout
    assert "983,040 images" in cli("info", "table.csv:discrete").stdout
    assert cli("preview", "table.csv").stdout.endswith("table.png\n")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--out", "a.h5"], ".npz"),
        (["--out", "a.npz", "--sizes", "3"], "expected 5 sizes"),
        (["--out", "a.npz", "--sizes", "none"], "expected sizes such as"),
        (["--out", "a.npz", "--seed", 1], "--seed is for natural-sprites"),
        (["--out", "a.npz", "--n", 1], "--n is for natural-sprites"),
        (["natural-sprites", "--out", "a.npz"], ".csv"),
        (["natural-sprites", "--out", "a.csv", "--seed", -1], "seed must lie"),
        (["natural-sprites", "--out", "a.csv", "--sizes", "3x2"], "--sizes is for dsprites"),
    ],
)
def test_options_that_do_not_fit_are_refused(cli, tmp_path, monkeypatch, words, error):
    monkeypatch.chdir(tmp_path)
    assert error in cli("sprites", *words, code=2).stderr
    assert list(tmp_path.iterdir()) == []
