"""The published layout: a folder of PNG images and two arrays."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.dataset_forms import build, everything, turned
from PIL import Image

from threedident.datasets.formats.png_folder import image_name


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


def test_a_published_layout_whose_latents_were_changed_is_not_taken_for_ours(cli, tmp_path):
    there = turned(build(tmp_path / "d"), "published", tmp_path / "p")
    raw = np.load(there / "raw_latents.npy")
    np.save(there / "raw_latents.npy", -raw)
    for words in (("info", "p"), ("convert", "p", "--to", "shards", "--out", "s")):
        refused = cli(*words, code=2).stderr
        assert "raw_latents.npy is not what" in refused
        assert "remove 3dident.json" in refused
    assert "raw_latents.npy is not what" in cli("verify", "p", code=1).stderr
    (there / "3dident.json").unlink()
    assert "not recorded" in cli("info", "p").stdout


def test_a_published_layout_of_an_older_version_reads_as_before(cli, tmp_path):
    there = turned(build(tmp_path / "d"), "published", tmp_path / "p")
    card = json.loads((there / "3dident.json").read_text())
    old = {name: card[name] for name in ("latents", "fingerprint", "images")}
    (there / "3dident.json").write_text(json.dumps(old))
    said = cli("verify", "p").stdout
    assert "not checked: pixels: this form was written without checksums of them" in said
    assert "not checked: latents: what drew them is not recorded" in said
    assert "not recorded" in cli("info", "p").stdout
    # The command that wrote it goes on with it, and adds what it did not keep.
    cli("convert", "d", "--to", "published", "--out", "p")
    assert json.loads((there / "3dident.json").read_text()) == card
