"""Packed files of images: `3dident pack` of the papers' other datasets, and `verify` of them."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers import paper_files
from helpers.fake_dataset import as_rendered
from helpers.paper_files import FORMS
from PIL import Image

from threedident.columns import Column
from threedident.datasets.formats import ImageSource, open_dataset
from threedident.datasets.formats.describe import describe, lines
from threedident.datasets.formats.hdf5 import pack
from threedident.datasets.formats.resized import ResizedSource
from threedident.datasets.formats.source import check_numbers
from threedident.datasets.formats.verify import verify_any
from threedident.datasets.papers import packed
from threedident.errors import DatasetError, UsageError
from threedident.storage.shard_record import checksum
from threedident.storage.shards import write_text


class Frames(ImageSource):
    """Two sequences of grey images, some of which are pairs."""

    root, form, shape = Path("frames"), "frames", (6, 5, 1)
    factor_columns = (
        Column("area", "continuous", (0.0, 5.0)),
        Column("class", "discrete", None, ("cat", "dog")),
    )
    sequences = np.array([0, 4, 10])
    pairs = np.array([[0, 1], [7, 5]])

    def __init__(self):
        self.factors = np.column_stack([np.linspace(0, 5, 10), np.arange(10) % 2]).astype("f4")
        self._images = paper_files.noise(10, *self.shape)

    def read(self, indices, out):
        out[:] = self._images[check_numbers(indices, len(self))]

    def facts(self):
        return {"frames a second": 10}


@pytest.fixture
def path(tmp_path):
    pack(Frames(), tmp_path / "p.h5")
    return tmp_path / "p.h5"


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_all_that_a_dataset_says_comes_back(tmp_path, compression):
    source = Frames()
    assert pack(source, tmp_path / "p.h5", compression=compression) == 10
    with open_dataset(tmp_path / "p.h5") as copy:
        assert copy.form == "packed-images"
        assert np.array_equal(copy.images(range(10)), source.images(range(10)))
        assert np.array_equal(copy.images([7, 2, 2]), source.images([7, 2, 2]))
        assert np.array_equal(copy.factors, source.factors)
        assert copy.factor_columns == source.factor_columns
        assert np.array_equal(copy.sequences, source.sequences)
        assert np.array_equal(copy.pairs, source.pairs)
        assert copy.grid is None
        assert copy.fingerprint == source.fingerprint == copy.recorded
        assert copy.facts() == {"made from": "frames (frames)", "frames a second": 10}
        # One that is packed again remembers where it came from.
        pack(copy, tmp_path / "again.h5")
    with open_dataset(tmp_path / "again.h5") as again:
        assert again.facts() == copy.facts()
        assert again.fingerprint == source.fingerprint


@pytest.mark.parametrize("name", FORMS)
def test_every_form_can_be_packed(tmp_path, name):
    with open_dataset(FORMS[name].write(tmp_path)) as source:
        pack(source, tmp_path / "packed.h5", compression="gzip")
        with open_dataset(tmp_path / "packed.h5") as copy:
            assert np.array_equal(copy.images(range(len(copy))), source.images(range(len(source))))
            assert copy.grid == source.grid
            assert copy.factor_columns == source.factor_columns
            assert copy.fingerprint == source.fingerprint


def test_images_are_resized_and_all_else_stays(tmp_path, cli):
    with open_dataset("drawn:sprites:3x2x4x4x4") as whole:
        small = ResizedSource(whole, 32)
        assert small.shape == (32, 32, 1) and small.grid == whole.grid
        pixels = whole.image(7)[..., 0]
        expected = Image.fromarray(pixels).resize((32, 32), Image.Resampling.LANCZOS)
        assert np.array_equal(small.images([3, 7])[1][..., 0], np.asarray(expected))
        with pytest.raises(UsageError, match="1 to 1024 pixels"):
            ResizedSource(whole, 0)
    cli("pack", "drawn:sprites:3x2x4x4x4", "--resolution", 16, "--out", tmp_path / "small.h5")
    with open_dataset(tmp_path / "small.h5") as packed_small:
        assert packed_small.shape == (16, 16, 1)
        assert np.array_equal(packed_small.factors, whole.factors)
        assert "64 x 64" in packed_small.facts()["resized"]


def test_rendered_images_are_not_resized(small_dataset):
    with open_dataset(small_dataset) as source, pytest.raises(UsageError, match="any size"):
        ResizedSource(source, 16)


def test_the_commands_pack_describe_and_verify(cli, tmp_path):
    root = paper_files.write_smallnorb(tmp_path)
    said = cli("pack", root, "--split", "train", "--out", "norb.h5").stdout
    assert "wrote norb.h5: 432 images" in said
    assert "exists already" in cli("pack", root, "--out", "norb.h5", code=2).stderr
    about = "\n".join(lines(describe(tmp_path / "norb.h5")))
    assert "made from  norb (smallnorb)\nsplit      train" in about
    said = cli("verify", "norb.h5").stdout
    assert "images and factors have the checksums that they were packed with" in said
    assert "all is well" in said
    assert "without checksums" in cli("verify", root).stdout
    with h5py.File("norb.h5", "r+") as file:
        assert "pack" in json.loads(file.attrs["about"])["made_from"]["command"]
        file["images"][17, 3, 3] ^= 1
    done = cli("verify", "norb.h5", code=1)
    assert "the checksum of images 0 to 431 does not match" in done.stderr
    assert "write it again with `3dident pack`" in done.stderr


def test_verify_names_what_is_missing_in_published_files(tmp_path):
    root = paper_files.write_digits(tmp_path)
    assert verify_any(root).good
    report = verify_any(root, 40)
    assert report.missing == [(30, 39)]
    assert "fetch it again from where it is published" in report.cure
    images = root / "MNIST/raw/train-images-idx3-ubyte"
    images.write_bytes(images.read_bytes()[:-5])
    assert "declares the sizes" in verify_any(root).faults[0]


def test_pixels_that_changed_since_are_found_with_their_stretch(tmp_path, monkeypatch):
    monkeypatch.setattr(packed, "PIECE", 3 * 6 * 5)
    pack(Frames(), tmp_path / "p.h5")
    with h5py.File(tmp_path / "p.h5", "r+") as file:
        file["images"][4, 0, 0, 0] ^= 1
    report = verify_any(tmp_path / "p.h5")
    assert report.missing == [(3, 5)]
    assert report.images == 7


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("factors", np.zeros((10, 3), np.float32)),
        ("factors", np.full((10, 2), np.nan, np.float32)),
        ("factors", np.full((10, 2), 2, np.float32)),
        ("sequences", np.array([0, 4, 11])),
        ("sequences", np.array([0, 4, 4, 10])),
        ("sequences", np.array([[0, 10]])),
        ("pairs", np.array([[0, 10]])),
        ("pairs", np.array([[-1, 1]])),
        ("checksums", np.frombuffer(b"[[0, 9, 1]]", np.uint8)),
        ("checksums", np.frombuffer(b"[" * 2000, np.uint8)),
    ],
)
def test_arrays_that_do_not_fit(path, name, value):
    with h5py.File(path, "r+") as file:
        del file[name]
        file[name] = value
    with pytest.raises(DatasetError, match="is damaged: the checksum of"):
        open_dataset(path)
    with h5py.File(path, "r+") as file:
        file.attrs[f"sha256_{name}"] = checksum(value)
    with pytest.raises(DatasetError, match="what it says of its images does not fit"):
        open_dataset(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda about: about["columns"].pop(),
        lambda about: about["columns"][0].update(kind="odd"),
        lambda about: about["columns"][1].update(values=[]),
        lambda about: about["columns"][0].update(name=about["columns"][1]["name"]),
        lambda about: about["columns"][0].update(range=[0, "x"]),
        lambda about: about.update(made_from=3),
        lambda about: about.update(
            grid={"sizes": [5, 2], "names": ["a", "b"], "categorical": [], "periods": []}
            | {"hidden": []}
        ),
        lambda about: about.update(grid={"sizes": [2**70], "names": ["a"]}),
        lambda about: about.pop("grid"),
    ],
)
def test_descriptions_that_do_not_fit(path, change):
    with h5py.File(path, "r+") as file:
        about = json.loads(file.attrs["about"])
        change(about)
        write_text(file, "about", json.dumps(about))
    with pytest.raises(DatasetError, match="what it says of its images does not fit"):
        open_dataset(path)


def test_what_cannot_be_packed(tmp_path):
    as_rendered(tmp_path / "d", 3, side=8)
    with open_dataset(tmp_path / "d") as source, pytest.raises(UsageError, match="ten latents"):
        packed.pack_images(source, tmp_path / "p.h5")
    with pytest.raises(UsageError, match="unknown compression"):
        pack(Frames(), tmp_path / "p.h5", compression="zip")
    empty = Frames()
    empty.factors = empty.factors[:0]
    with pytest.raises(DatasetError, match="holds no image"):
        pack(empty, tmp_path / "p.h5")
    assert not (tmp_path / "p.h5").exists()


def test_a_dataset_that_breaks_off_leaves_no_file(tmp_path):
    source = Frames()
    source._images = source._images[:5]
    with pytest.raises(IndexError):
        pack(source, tmp_path / "p.h5")
    assert not list(tmp_path.iterdir())
