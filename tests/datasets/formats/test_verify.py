"""Checks of every form against damage."""

from __future__ import annotations

import json
import tarfile

import h5py
import numpy as np
import pytest
from helpers.dataset_forms import build, turned
from PIL import Image

from threedident.datasets.formats.png_folder import write_image


def damage_packed(path):
    with h5py.File(path, "a") as file:
        file["images"][7, 0, 0, 0] ^= 255


def damage_published(path):
    pixels = np.asarray(Image.open(path / "images/07.png")).copy()
    pixels[0, 0, 0] ^= 255
    write_image(path / "images/07.png", pixels)


def damage_tar(path):
    """Puts the PNG of image 1 in the place of that of image 7."""
    archive = path / "data/validation-000000.tar"
    with tarfile.open(archive) as tar:
        a, b = (tar.getmember(f"0000000{i}.png") for i in (1, 7))
    content = bytearray(archive.read_bytes())
    png = content[a.offset_data : a.offset_data + a.size]
    assert a.size == b.size
    content[b.offset_data : b.offset_data + b.size] = png
    archive.write_bytes(content)


def damage_parquet(path):
    """Puts the PNG of image 1 in the place of that of image 7."""
    file = path / "data/validation-00000-of-00001.parquet"
    content = file.read_bytes()
    first = content.index(b"\x89PNG")
    starts = [first]
    while (place := content.find(b"\x89PNG", starts[-1] + 1)) > 0:
        starts.append(place)
    a, b, size = starts[1], starts[7], starts[2] - starts[1]
    assert starts[8] - b == size
    file.write_bytes(content[:b] + content[a : a + size] + content[b + size :])


@pytest.mark.parametrize(
    ("form", "damage"),
    [
        ("packed", damage_packed),
        ("published", damage_published),
        ("webdataset", damage_tar),
        ("parquet", damage_parquet),
    ],
)
def test_pixels_that_are_not_what_they_were_are_found_in_every_form(cli, tmp_path, form, damage):
    root = build(tmp_path / "d")
    there = turned(root, form, tmp_path / "other")
    good = cli("verify", there).stdout
    assert "12 images are good, the last there is 11" in good
    assert "checked: images and latents have the checksums of the shards that they were" in good
    assert "checked: latents are those that the settings give" in good
    assert "checked: how many images there are, against the 12 wanted" in good
    assert "missing: images 12 to 13\n" in cli("verify", there, "--n", 14, code=1).stderr
    damage(there)
    wrong = cli("verify", there, code=1)
    assert "7 of 12 images are good" in wrong.stdout
    assert "the checksum of images does not match the content of images 5 to 9" in wrong.stderr
    assert "missing: images 5 to 9\n" in wrong.stderr
    document = json.loads(cli("verify", there, "--json", code=1).stdout)
    assert (document["good"], document["images"], document["missing"]) == (False, 7, [[5, 9]])
    for words in (
        ("convert", there, "--to", "shards", "--out", "s"),
        ("convert", there, "--to", "published", "--out", "p"),
        ("convert", there, "--to", "webdataset", "--out", "t"),
        ("pack", there, "--out", "all.h5"),
    ):
        refused = cli(*words, code=2).stderr
        assert "the checksum of images does not match" in refused
    assert not (tmp_path / "all.h5").exists()


def test_the_number_that_was_wanted_is_held_against_what_is_there(cli, tmp_path):
    root = build(tmp_path / "d", 25, wanted=40)
    for first in (5, 10, 20):
        next(root.glob(f"shard-{first:08d}-*")).unlink()
    lines = cli("info", "d").stdout.splitlines()
    assert lines[0].startswith("d: 10 of 40 images of 8 x 8, 2 shards of up to 5, ")
    assert lines[1] == "incomplete: images 5 to 14 and 20 to 39 missing"  # adjacent gaps joined
    assert lines[2] == "to list everything that is wrong: 3dident verify d"
    assert lines[3] == "to complete it: 3dident render --extend d"
    wrong = cli("verify", "d", code=1)
    assert wrong.stdout.startswith("d: 10 of 40 images are good, the last there is 19\n")
    assert wrong.stderr.startswith("missing: images 5 to 14 and 20 to 39\n")
    document = json.loads(cli("verify", "d", "--json", code=1).stdout)
    assert document["missing"] == [[5, 14], [20, 39]]
    (root / "wanted.json").unlink()
    assert "d: 10 images of 8 x 8" in cli("info", "d").stdout
    assert "how many images were asked for is not recorded" in cli("info", "d").stdout
    said = cli("verify", "d", code=1)
    assert said.stderr.startswith("missing: images 5 to 14\n")
    assert "not checked: whether there should be more images after the last" in said.stdout


def test_a_damaged_shard_is_said_to_be_one_wherever_it_is_met(cli, tmp_path):
    root = build(tmp_path / "d")
    path = root / "shard-00000005-00005.h5"
    path.write_bytes(path.read_bytes()[:1000])
    said = cli("info", "d").stdout.splitlines()
    assert said[1] == f"damaged: {path.relative_to(tmp_path)} is cut short"
    assert "3dident verify d" in said[2]
    for words in (("preview", "d"), ("convert", "d", "--to", "published", "--out", "p")):
        refused = cli(*words, code=2).stderr
        assert "shard-00000005-00005.h5 is cut short or damaged: `3dident verify`" in refused
        assert "`3dident render`" in refused
    wrong = cli("verify", "d", code=1).stderr
    assert "is cut short or damaged" in wrong
    assert "missing: images 5 to 9\n" in wrong
