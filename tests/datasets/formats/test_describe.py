"""Information and statistics of every form."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.dataset_forms import FRAME, OTHERS, build, turned

from threedident.distributions import Normal
from threedident.storage.directory import DatasetDir


@pytest.mark.parametrize("form", OTHERS)
def test_stats_of_every_form_are_those_of_the_shards(cli, tmp_path, form):
    root = build(tmp_path / "d")
    expected = json.loads((root / "stats.json").read_text())
    assert expected["object_in_frame"] == FRAME
    there = turned(root, form, tmp_path / "other")
    assert json.loads(cli("stats", there).stdout) == expected
    if form == "published":  # nothing recorded: measured, but for where the object is
        (there / "3dident.json").unlink()
        unknown = {"object_in_frame": None, "images_fully_in_frame": None}
        assert json.loads(cli("stats", there).stdout) == {**expected, **unknown}


@pytest.mark.parametrize("form", OTHERS)
def test_info_of_every_form_says_what_rendered_it(cli, tmp_path, form):
    root = build(tmp_path / "d", wanted=20)
    there = turned(root, form, tmp_path / "other")
    lines = cli("info", there).stdout.splitlines()
    assert lines[0].startswith(f"{there}: 12 of 20 images of 8 x 8, ")
    assert lines[1] == "incomplete: images 12 to 19 missing"
    assert any(line.startswith("preset     3dident: teapot") for line in lines)
    document = json.loads(cli("info", there, "--json").stdout)
    assert document["form"] == form
    assert (document["images"], document["wanted"], document["missing"]) == (12, 20, [[12, 19]])
    assert document["fingerprint"] == DatasetDir.open(root).manifest.fingerprint
    cli("preview", there)
    assert not list(tmp_path.glob("other/**/preview.png"))


def test_info_of_one_shard(cli, tmp_path):
    build(tmp_path / "d", 3)
    assert ", 1 shard of up to 5, " in cli("info", "d").stdout


def test_best_scores_are_shown_where_they_apply(cli, tmp_path):
    def shown(root):
        lines = cli("info", root).stdout.splitlines()
        row = next(line for line in lines if line.startswith("object_hue"))
        return row.split()[-1], lines[-1]

    assert shown(build(tmp_path / "uniform"))[0] == "0.9630"
    given = np.zeros((12, 10), np.float32)
    for root, reason in (
        (build(tmp_path / "given", given=given), "the latents were given"),
        (build(tmp_path / "pairs", conditional=Normal(0.1)), "pairs are not uniform"),
    ):
        best, last = shown(root)
        assert best == "-"
        assert last.startswith("best R2 is not known: ")
        assert reason in last
