"""Conversions from every form to every other."""

from __future__ import annotations

import json
import shutil

import h5py
import numpy as np
import pytest
from helpers.commands import SMALL, run_command
from helpers.dataset_forms import OTHERS, build, everything, files_of, settings_of, turned

from threedident.datasets.formats import open_dataset
from threedident.distributions import Normal
from threedident.latents import sample_raw_latents
from threedident.storage.directory import DatasetDir


def test_a_conversion_goes_on_where_it_stopped(cli, tmp_path, small_dataset):
    cli("convert", small_dataset, "--to", "published", "--out", "p")
    kept = (tmp_path / "p/images/00.png").stat().st_mtime_ns
    for gone in ("images/05.png", "raw_latents.npy"):
        (tmp_path / "p" / gone).unlink()
    cli("convert", small_dataset, "--to", "published", "--out", "p")
    assert (tmp_path / "p/images/00.png").stat().st_mtime_ns == kept
    assert np.array_equal(everything(tmp_path / "p")[0], everything(small_dataset)[0])


def test_conversions_do_not_mix_datasets(cli, tmp_path, small_dataset):
    cli("render", *SMALL, "--seed", 1, "--n", 12, "--out", "other")
    cli("convert", small_dataset, "--to", "published", "--out", "p")
    (tmp_path / "p/raw_latents.npy").unlink()
    (tmp_path / "p/images/11.png").unlink()  # as if it had been interrupted
    refused = cli("convert", "other", "--to", "published", "--out", "p", code=2).stderr
    assert "another dataset" in refused
    (tmp_path / "p/3dident.json").unlink()
    assert (
        "another" in cli("convert", small_dataset, "--to", "published", "--out", "p", code=2).stderr
    )


def test_conversions_that_make_no_sense(cli, tmp_path, small_dataset):
    shutil.copytree(small_dataset, tmp_path / "d")
    assert (
        "another directory" in cli("convert", "d", "--to", "published", "--out", "d", code=2).stderr
    )
    refused = cli("info", next((tmp_path / "d").glob("shard-*")), code=2).stderr
    assert "is one shard of the dataset " in refused
    (tmp_path / "p/images").mkdir(parents=True)
    (tmp_path / "p/images/holiday.jpg").write_text("")
    refused = cli("convert", "d", "--to", "published", "--out", "p", code=2).stderr
    assert "holiday.jpg" in refused


@pytest.mark.parametrize("form", OTHERS)
def test_every_form_comes_back_as_the_same_shards(cli, tmp_path, form):
    root = build(tmp_path / "d", wanted=20)
    there = turned(root, form, tmp_path / "other")
    said = cli("convert", there, "--to", "shards", "--out", "back").stdout
    assert said.splitlines()[0] == "wrote back: 12 of 20 images"
    # The sums, what rendered each shard, and the number that was wanted, too.
    assert files_of(tmp_path / "back") == files_of(root)
    assert settings_of(tmp_path / "back") == settings_of(root)
    before, after = (DatasetDir.open(p).manifest for p in (root, tmp_path / "back"))
    assert after.command == ("" if form in ("webdataset", "parquet") else before.command)
    assert cli("verify", "back", "--n", 12).stdout.endswith("all is well\n")


@pytest.mark.parametrize("form", ["packed", "webdataset"])
def test_a_dataset_that_comes_back_can_be_rendered_on(cli, tmp_path, small_dataset, form):
    there = turned(small_dataset, form, tmp_path / "other")
    cli("convert", there, "--to", "shards", "--out", "back")
    said = cli("render", *SMALL, "--shard-size", 5, "--n", 13, "--out", "back").stdout
    assert "13 images, 1 of them new" in said
    cli("verify", "back", "--n", 13)


@pytest.mark.parametrize("form", OTHERS)
def test_every_form_becomes_every_other(cli, tmp_path, form):
    root = build(tmp_path / "d")
    first = turned(root, form, tmp_path / "first")
    for then in OTHERS:
        second = turned(first, then, tmp_path / f"{form}-{then}")
        cli("convert", second, "--to", "shards", "--out", f"{form}-{then}-back")
        assert files_of(tmp_path / f"{form}-{then}-back") == files_of(root)


@pytest.mark.parametrize("form", ["shards", *OTHERS])
def test_other_shards_of_the_same_images(cli, tmp_path, form):
    root = build(tmp_path / "d")
    there = root if form == "shards" else turned(root, form, tmp_path / "other")
    words = ("convert", there, "--to", "shards", "--shard-size", 4, "--compression", "gzip")
    cli(*words, "--out", "cut")
    assert sorted(p.name for p in tmp_path.glob("cut/shard-*")) == [
        f"shard-{first:08d}-00004.h5" for first in (0, 4, 8)
    ]
    cli("verify", "cut")
    for ours, theirs in zip(everything(root), everything(tmp_path / "cut"), strict=True):
        assert np.array_equal(ours, theirs)
    with h5py.File(tmp_path / "cut/shard-00000004-00004.h5") as file:
        assert file.attrs["processor"].decode() == "P0, P5"  # of either shard that it was cut from
    # The share in the frame is not noted for each image: it is worked out again.
    shares = json.loads((tmp_path / "cut/stats.json").read_text())["object_in_frame"]
    assert 0 < shares < 1


def test_a_way_back_that_is_interrupted_goes_on(cli, tmp_path):
    root = build(tmp_path / "d")
    there = turned(root, "webdataset", tmp_path / "tar")
    cli("convert", there, "--to", "shards", "--out", "back")
    kept = tmp_path / "back/shard-00000000-00005.h5"
    when = kept.stat().st_mtime_ns
    (tmp_path / "back/shard-00000005-00005.h5").unlink()
    cli("convert", there, "--to", "shards", "--out", "back")
    assert kept.stat().st_mtime_ns == when
    assert files_of(tmp_path / "back") == files_of(root)
    other = turned(build(tmp_path / "e", seed=4), "webdataset", tmp_path / "tar-e")
    refused = cli("convert", other, "--to", "shards", "--out", "back", code=2).stderr
    assert "made with other settings:\n  seed: the dataset has 3, this command 4" in refused


@pytest.mark.parametrize("form", OTHERS)
def test_given_latents_come_back_where_all_of_them_are_there(cli, tmp_path, form):
    given = sample_raw_latents(range(12), seed=9, split="train")
    root = build(tmp_path / "d", given=given)
    there = turned(root, form, tmp_path / "other")
    assert "not all of those" not in cli("verify", there).stdout
    cli("convert", there, "--to", "shards", "--out", "back")
    assert files_of(tmp_path / "back") == files_of(root)
    few = build(tmp_path / "few", 7, given=given)
    there = turned(few, form, tmp_path / "other-few")
    said = cli("verify", there).stdout
    assert "not checked: latents: not all of those that were given to render are kept" in said
    done = cli("convert", there, "--to", "shards", "--out", "import")
    assert "keeps 7 of the 12 latents that were given to render: import is written" in done.stderr
    assert "what rendered it is not recorded" in cli("info", "import").stdout
    cli("verify", "import")


@pytest.mark.parametrize("form", OTHERS)
def test_pairs_come_back_as_pairs(tmp_path, form):
    root = build(tmp_path / "d", 8, conditional=Normal(0.1))
    there = turned(root, form, tmp_path / "other")
    run_command("verify", there)
    with open_dataset(there) as source:
        assert source.manifest.pair_process is not None
    assert "pairs      images 2i and 2i + 1" in run_command("info", there).stdout
