"""The commands that look at datasets."""

from __future__ import annotations

import json
import shutil

import click
import numpy as np
import pytest
from helpers.commands import without
from PIL import Image

from threedident.cli import main
from threedident.factors import FACTORS


@pytest.mark.parametrize(
    "name",
    ["info", "verify", "stats", "preview", "pack", "convert", "doctor", "compare-release"],
)
def test_every_option_of_the_commands_that_look_at_datasets_has_words(cli, name):
    options = [p for p in main.commands[name].params if isinstance(p, click.Option)]
    assert [option.name for option in options if not option.help] == []
    for option in options:
        if option.name == "workers":
            assert "[default: " in option.help


def test_info_and_stats(cli, small_dataset):
    said = cli("info", small_dataset).stdout
    for factor in FACTORS:
        assert factor.name in said
    assert "0.9630" in said
    assert "not injective: the hue is not wrapped" in said
    stats = json.loads(cli("stats", small_dataset).stdout)
    assert stats["images"] == 12
    assert set(stats["definitions"]) == set(stats) - {"images", "definitions"}


def test_looking_at_a_dataset_needs_no_name_where_the_default_is_there(
    cli, tmp_path, small_dataset
):
    for name in ("info", "verify", "stats", "preview"):
        refused = cli(name, code=2).stderr
        assert "Missing argument 'DATASET'" in refused
        assert "no data/3dident" in refused
        assert "`3dident render`" in refused
    shutil.copytree(small_dataset, tmp_path / "data/3dident")
    assert cli("info").stdout.startswith("data/3dident: 12 images")
    assert cli("verify").stdout.startswith("data/3dident: 12 images are good")
    assert json.loads(cli("stats").stdout)["images"] == 12
    assert cli("preview").stdout == "wrote data/3dident/preview.png\n"


def test_preview(cli, tmp_path, small_dataset):
    cli("preview", small_dataset, "--out", "sheet.png", "--count", 6)
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    from threedident.datasets.formats import open_dataset

    with open_dataset(small_dataset) as source:
        assert np.array_equal(sheet[4:36, 4:36], source.image(0))
        assert np.array_equal(sheet[4:36, 40:72], source.image(1))
    assert "ends in .png" in cli("preview", small_dataset, "--out", "sheet.doc", code=2).stderr
    cli("preview", small_dataset, "--out", "six.png", "--n", 6)
    assert (tmp_path / "six.png").read_bytes() == (tmp_path / "sheet.png").read_bytes()


def test_a_preview_leaves_what_was_published_as_it_is(cli, tmp_path, small_dataset):
    cli("convert", small_dataset, "--to", "published", "--out", "png")
    there = sorted(tmp_path.glob("png/*"))
    assert cli("preview", "png").stdout.endswith("png-preview.png\n")
    assert sorted(tmp_path.glob("png/*")) == there
    assert (tmp_path / "png-preview.png").is_file()


def test_a_figure_that_cannot_be_drawn_is_said_before_the_work():
    words = ["pairs", "--n", "250000", "--conditional", "normal", "--sigma", "0.1"]
    words += ["--out", "figure.png"]
    code = "import threedident.latents as latents\nlatents.sample_raw_latents = None\n"
    done = without("matplotlib", code + f"from threedident.cli import main\nmain({words!r})")
    assert done.returncode == 2
    assert "the figure needs matplotlib" in done.stderr
    assert "Traceback" not in done.stderr
