"""The forms of a dataset: shards, packed, published; and what is read from each."""

from __future__ import annotations

import shutil

import h5py
import numpy as np
import pytest
from conftest import SMALL
from PIL import Image

from threedident.datasets.published import image_name
from threedident.datasets.reading import open_source


def everything(root):
    with open_source(root) as source:
        images = np.stack([source.image(i) for i in range(len(source))])
        return images, source.raw_latents, source.latents


def test_the_published_layout_round_trips(cli, tmp_path, small_dataset):
    cli("convert", small_dataset, "--to", "published", "--out", "p")
    names = sorted(p.name for p in (tmp_path / "p/images").iterdir())
    assert names == [f"{i:02d}.png" for i in range(12)]
    assert np.load(tmp_path / "p/raw_latents.npy").shape == (12, 10)
    cli("convert", "p", "--to", "shards", "--out", "s")
    cli("verify", "s", "--n", 12)
    for form in (tmp_path / "p", tmp_path / "s"):
        for ours, theirs in zip(everything(small_dataset), everything(form), strict=True):
            assert np.array_equal(ours, theirs)
            assert ours.dtype == theirs.dtype


def test_images_carry_pixels_and_nothing_else(cli, tmp_path, small_dataset):
    cli("convert", small_dataset, "--to", "published", "--out", "p")
    content = (tmp_path / "p/images/03.png").read_bytes()
    kinds, position = [], 8
    while position < len(content):
        length = int.from_bytes(content[position : position + 4], "big")
        kinds.append(content[position + 4 : position + 8])
        position += 12 + length
    assert set(kinds) == {b"IHDR", b"IDAT", b"IEND"}


@pytest.mark.parametrize(
    ("count", "name"), [(1, "0.png"), (10, "7.png"), (11, "07.png"), (250_000, "000007.png")]
)
def test_names_are_as_wide_as_published(count, name):
    assert image_name(0 if count == 1 else 7, count) == name


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


def test_transparent_images_are_not_taken_for_opaque_ones(cli, tmp_path, small_dataset):
    cli("convert", small_dataset, "--to", "published", "--out", "p")
    path = tmp_path / "p/images/04.png"
    with Image.open(path) as image:
        image.convert("RGBA").save(path)
    cli("convert", "p", "--to", "shards", "--out", "s")
    with Image.open(path) as image:
        image.putalpha(100)
        image.save(path)
    refused = cli("convert", "p", "--to", "shards", "--out", "t", code=2).stderr
    assert "transparent" in refused


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


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("images/04.png", lambda p: p.unlink(), "04.png is missing"),
        ("images/04.png", lambda p: p.write_bytes(p.read_bytes()[:200]), "04.png"),
        ("images/04.png", lambda p: p.write_bytes(b"not a png"), "04.png"),
        ("images/04.png", lambda p: Image.new("L", (32, 32)).save(p), "RGB image, found mode L"),
        (
            "images/04.png",
            lambda p: Image.new("RGB", (16, 16)).save(p),
            "image 4 has shape (16, 16, 3)",
        ),
        ("images/12.png", lambda p: Image.new("RGB", (32, 32)).save(p), "one too many"),
        ("latents.npy", lambda p: p.unlink(), "latents.npy: there is no such file"),
        ("latents.npy", lambda p: p.write_bytes(b"x"), "not a .npy array"),
        (
            "latents.npy",
            lambda p: np.save(p, np.zeros((12, 9))),
            "expected shape (N, 10), found (12, 9)",
        ),
        ("latents.npy", lambda p: np.save(p, np.zeros((7, 10))), "12 rows and latents.npy 7"),
        ("latents.npy", lambda p: np.save(p, np.full((12, 10), np.inf)), "finite"),
        ("raw_latents.npy", lambda p: np.save(p, np.array([None] * 3)), "raw_latents.npy"),
    ],
)
def test_a_damaged_published_layout(cli, tmp_path, small_dataset, name, change, message):
    cli("convert", small_dataset, "--to", "published", "--out", "p")
    change(tmp_path / "p" / name)
    assert message in cli("convert", "p", "--to", "shards", "--out", "s", code=2).stderr


def test_what_is_no_dataset(cli, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.h5").write_text("hello")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["images"] = np.zeros(3)
    for name, message in (
        ("empty", "none of these"),
        ("missing", "no such file or directory"),
        ("text.h5", "text.h5 is not a readable file"),
        ("other.h5", "not a dataset packed"),
    ):
        assert message in cli("info", name, code=2).stderr
        assert message in cli("preview", name, code=2).stderr
        assert message in cli("convert", name, "--to", "published", "--out", "p", code=2).stderr


def test_a_packed_file_cut_short(cli, tmp_path, small_dataset):
    cli("pack", small_dataset, "--out", "all.h5")
    path = tmp_path / "all.h5"
    path.write_bytes(path.read_bytes()[:5000])
    assert "all.h5" in cli("info", "all.h5", code=2).stderr


def test_conversions_that_make_no_sense(cli, tmp_path, small_dataset):
    shutil.copytree(small_dataset, tmp_path / "d")
    assert (
        "another directory" in cli("convert", "d", "--to", "published", "--out", "d", code=2).stderr
    )
    assert (
        "no published layout" in cli("convert", "d", "--to", "shards", "--out", "s", code=2).stderr
    )
    (tmp_path / "p/images").mkdir(parents=True)
    (tmp_path / "p/images/holiday.jpg").write_text("")
    refused = cli("convert", "d", "--to", "published", "--out", "p", code=2).stderr
    assert "holiday.jpg" in refused
