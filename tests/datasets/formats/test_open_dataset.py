"""Opening a dataset, whatever its form."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from helpers.dataset_forms import build, files_of

from threedident.datasets.dataset import ThreeDIdent
from threedident.datasets.formats import open_dataset
from threedident.datasets.formats.export import export
from threedident.errors import UsageError


def test_what_is_no_dataset(cli, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.h5").write_text("hello")
    (tmp_path / "torus.obj").write_text("v 0 0 0")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["images"] = np.zeros(3)
    for name, message in (
        ("empty", "none of these"),
        ("missing", "no such file or directory"),
        ("text.h5", "text.h5 is no HDF5 file"),
        ("torus.obj", "it is no dataset. Expected a directory made by `3dident render`"),
        ("other.h5", "not a dataset packed"),
    ):
        assert message in cli("info", name, code=2).stderr
        assert message in cli("preview", name, code=2).stderr
        assert message in cli("convert", name, "--to", "published", "--out", "p", code=2).stderr


def test_an_export_of_several_splits_asks_which(cli, tmp_path):
    for split, count in (("train", 7), ("test", 4)):
        root = build(tmp_path / split, count, split=split)
        with open_dataset(root) as source:
            export(source, tmp_path / "hub", "parquet")
    with pytest.raises(UsageError, match="hub holds the splits train, test: choose one with"):
        ThreeDIdent(tmp_path / "hub")
    with pytest.raises(UsageError, match="hub has no split validation: it holds train, test"):
        open_dataset(tmp_path / "hub", "val")
    with pytest.raises(UsageError, match="is the split test, asked for train"):
        open_dataset(tmp_path / "hub/3dident-test.json", "train")
    for name in ("info", "verify", "stats", "preview"):
        assert "holds the splits train, test" in cli(name, "hub", code=2).stderr
        cli(name, "hub", "--split", "test")
    assert (tmp_path / "hub-test-preview.png").is_file()
    assert len(ThreeDIdent(tmp_path / "hub/3dident-test.json")) == 4
    cli("pack", "hub", "--split", "test", "--out", "test.h5")
    cli("convert", "hub", "--split", "test", "--to", "shards", "--out", "back")
    assert files_of(tmp_path / "back") == files_of(tmp_path / "test")
    cli("convert", "hub/3dident-train.json", "--to", "shards", "--out", "back-train")
    assert files_of(tmp_path / "back-train") == files_of(tmp_path / "train")
    cli("convert", "hub", "--split", "test", "--to", "webdataset", "--out", "tar")
    assert (tmp_path / "tar/3dident-test.json").is_file()
    refused = cli("info", "train", "--split", "test", code=2).stderr
    assert "has no splits to choose from" in refused
