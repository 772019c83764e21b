"""Shards and packed files."""

from __future__ import annotations

import shutil

import h5py
import numpy as np
import pytest
from helpers.dataset_forms import build, everything, settings_of, turned

from threedident.datasets.formats import hdf5, open_dataset
from threedident.errors import UsageError
from threedident.storage.directory import DatasetDir


def test_shards_are_not_written_where_another_process_writes(cli, tmp_path, small_dataset):
    cli("convert", small_dataset, "--to", "published", "--out", "p")
    shutil.copytree(small_dataset, tmp_path / "s")
    gone = sorted((tmp_path / "s").glob("shard-*"))[0]
    gone.unlink()
    with DatasetDir.open(tmp_path / "s").only_render():
        said = cli("convert", "p", "--to", "shards", "--out", "s", code=2).stderr
    assert "another process writes to s (all of it): pid " in said
    assert not gone.exists()
    cli("convert", "p", "--to", "shards", "--out", "s")
    assert gone.exists()
    assert not list((tmp_path / "s").glob(".render-*"))


def test_a_render_waits_for_shards_that_are_being_converted(tmp_path, small_dataset, monkeypatch):
    def write_or_refuse(*_, **__):
        with DatasetDir.open(tmp_path / "s").only_render():
            pass

    monkeypatch.setattr(hdf5, "write_shard", write_or_refuse)
    with open_dataset(small_dataset) as source, pytest.raises(UsageError, match="another process"):
        hdf5.to_shards(source, tmp_path / "s")


def test_a_bad_compression_leaves_nothing(cli, tmp_path, small_dataset):
    cli("convert", small_dataset, "--to", "published", "--out", "p")
    words = ("convert", "p", "--to", "shards", "--out", "s", "--compression")
    assert "unknown compression" in cli(*words, "zip", code=2).stderr
    cli(*words, "gzip")


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_packing(cli, tmp_path, small_dataset, compression):
    cli("pack", small_dataset, "--out", "all.h5", "--compression", compression)
    for ours, theirs in zip(
        everything(small_dataset), everything(tmp_path / "all.h5"), strict=True
    ):
        assert np.array_equal(ours, theirs)
    assert "preset     3dident" in cli("info", "all.h5").stdout
    assert "exists already" in cli("pack", small_dataset, "--out", "all.h5", code=2).stderr
    cli("preview", "all.h5")
    assert (tmp_path / "all.png").exists()


def test_a_corrupt_shard_is_not_packed(cli, tmp_path, small_dataset):
    shutil.copytree(small_dataset, tmp_path / "d")
    with h5py.File(next((tmp_path / "d").glob("shard-*")), "a") as file:
        file["images"][0, 0, 0, 0] ^= 255
    assert "checksum of images" in cli("pack", "d", "--out", "all.h5", code=2).stderr
    assert not (tmp_path / "all.h5").exists()


def test_a_packed_file_cut_short(cli, tmp_path, small_dataset):
    cli("pack", small_dataset, "--out", "all.h5")
    path = tmp_path / "all.h5"
    path.write_bytes(path.read_bytes()[:5000])
    assert "all.h5" in cli("info", "all.h5", code=2).stderr


def test_a_packed_import_stays_an_import(cli, tmp_path, small_dataset):
    cli("convert", small_dataset, "--to", "published", "--out", "p")
    (tmp_path / "p/3dident.json").unlink()
    cli("pack", "p", "--out", "p.h5")
    assert "imported from the published layout" in cli("info", "p.h5").stdout
    said = cli("verify", "p.h5").stdout
    assert "checked: latents are those that were imported" in said
    assert "checked: images and latents have the checksums" in said
    cli("convert", "p.h5", "--to", "shards", "--out", "s")
    cli("verify", "s", "--n", 12)
    for ours, theirs in zip(everything(small_dataset), everything(tmp_path / "s"), strict=True):
        assert np.array_equal(ours, theirs)


def test_a_packed_file_of_an_older_version_comes_back(cli, tmp_path):
    root = build(tmp_path / "d")
    there = turned(root, "packed", tmp_path / "all")
    with h5py.File(there, "a") as file:
        del file["shards"]
        for name in ("sha256_shards", "wanted"):
            del file.attrs[name]
    said = cli("verify", there).stdout
    assert "not checked: pixels: this form was written without checksums of them" in said
    assert "checked: latents are those that the settings give" in said
    assert "not checked: whether there should be more images after the last" in said
    assert "how many images were asked for is not recorded" in cli("info", there).stdout
    cli("convert", there, "--to", "shards", "--out", "back")
    cli("verify", "back", "--n", 12)
    assert settings_of(tmp_path / "back") == settings_of(root)
    for ours, theirs in zip(everything(root), everything(tmp_path / "back"), strict=True):
        assert np.array_equal(ours, theirs)


def test_packing_where_nothing_can_be_written(cli, tmp_path):
    build(tmp_path / "d")
    words = ("pack", "d", "--out", "/proc/all.h5", "--compression", "gzip")
    # No text of HDF5's own.
    expected = "error: cannot write /proc/all.h5: No such file or directory\n"
    assert cli(*words, code=2).stderr == expected
