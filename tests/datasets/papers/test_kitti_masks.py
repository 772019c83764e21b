"""KITTI Masks: the file's sequences, masks and factors, and the toy that has its form."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from threedident.datasets.dataset import ImageDataset
from threedident.datasets.formats import find_form, open_dataset
from threedident.datasets.formats.describe import describe, lines
from threedident.datasets.papers import blobs
from threedident.datasets.papers.kitti_masks import FILE, measure_masks, write_kitti_masks
from threedident.datasets.sequence_pairs import SequencePairs
from threedident.errors import DatasetError, UsageError


def sequences(lengths=(3, 2, 4), side: int = 16):
    rng = np.random.default_rng(0)
    masks = [rng.random((length, side, side)) < 0.3 for length in lengths]
    return masks, [measure_masks(each) for each in masks]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / FILE
    write_kitti_masks(path, *sequences())
    return path


def test_a_file_and_its_folder_are_opened(file):
    masks, latents = sequences()
    for root in (file, file.parent):
        assert find_form(root) == "kitti-masks"
        with open_dataset(root) as source:
            assert source.files() == [file]
            assert source.shape == (16, 16, 1)
            assert source.factor_names == ("y", "x", "area")
            assert source.sequences.tolist() == [0, 3, 5, 9]
            np.testing.assert_array_equal(source.factors, np.concatenate(latents))
            shown = source.images([8, 0, 4])
            expected = np.concatenate(masks)[[8, 0, 4]] * np.uint8(255)
            np.testing.assert_array_equal(shown[..., 0], expected)
            with pytest.raises(IndexError, match="there is no image 9"):
                source.images([9])
    with pytest.raises(UsageError, match="no splits"):
        open_dataset(file, "test")


def test_as_a_torch_dataset_with_pairs(file):
    data = ImageDataset(file)
    image, factors = data[3]
    assert image.shape == (1, 16, 16)
    np.testing.assert_allclose(factors, data.source.factors[3])
    pairs = SequencePairs(data, max_gap=2, batch_size=3)
    (z, _), (x, x_tilde) = pairs.batch(0, 0)
    assert x.shape == x_tilde.shape == (3, 1, 16, 16)
    np.testing.assert_allclose(z, measure_masks(x[:, 0].numpy()))


def test_info_tells_sequences_and_factors(file):
    text = "\n".join(lines(describe(file)))
    assert "sequences  3" in text
    assert "2 to 4 in a sequence" in text
    assert "area" in text


def test_factors_are_measured_from_the_mask():
    mask = np.zeros((1, 8, 8), bool)
    mask[0, 2:4, 5:8] = True
    np.testing.assert_allclose(measure_masks(mask), [[2.5, 6.0, 6.0]])


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.uint8, np.int64, bool])
def test_masks_of_any_numbers_are_read(tmp_path, kind):
    masks, latents = sequences()
    path = tmp_path / "other.pkl"
    data = {
        "pedestrians": [each.astype(kind) for each in masks],
        "pedestrians_latents": [each.astype(np.float64) for each in latents],
    }
    path.write_bytes(pickle.dumps(data))
    with open_dataset(path) as source:
        assert source.factors.dtype == np.float32
        assert set(np.unique(source.images([0, 8]))) == {0, 255}


def changed(**changes):
    masks, latents = sequences()
    data = {"pedestrians": masks, "pedestrians_latents": latents}
    return {**data, **{key: change(data[key]) for key, change in changes.items()}}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([1, 2], "expected a dict with the lists pedestrians"),
        ({"pedestrians": []}, "expected a dict with the lists"),
        (changed(pedestrians=lambda m: m[:2]), "2 sequences of masks and 3 of latents"),
        (changed(pedestrians=lambda m: [*m[:2], m[2][:, :8]]), "sequence 2 has masks"),
        (changed(pedestrians=lambda m: [*m[:2], m[2][:2]]), "sequence 2 has masks"),
        (changed(pedestrians=lambda m: [*m[:2], "no"]), "sequence 2 has masks .* str"),
        (changed(pedestrians=lambda m: [m[0] * 7, *m[1:]]), "no sequence of masks of 0 and 1"),
        (changed(pedestrians=lambda m: [m[0][0], *m[1:]]), r"shape \(T, 64, 64\)"),
        (changed(pedestrians_latents=lambda m: [m[0] * np.nan, *m[1:]]), "not all finite"),
        (changed(pedestrians_latents=lambda m: [m[0][:, :2], *m[1:]]), "sequence 0 has masks"),
        (
            {"pedestrians": [np.zeros((0, 4, 4))], "pedestrians_latents": [np.zeros((0, 3))]},
            "sequence 0 is no sequence",
        ),
    ],
)
def test_other_pickles_are_refused(tmp_path, data, message):
    path = tmp_path / "data.pickle"
    path.write_bytes(pickle.dumps(data))
    with pytest.raises(DatasetError, match=message):
        open_dataset(path)


def test_a_file_that_names_one_array_many_times_takes_no_more_memory(tmp_path):
    (mask, *_), (latent, *_) = sequences()
    path = tmp_path / "data.pickle"
    data = {"pedestrians": [mask] * 1000, "pedestrians_latents": [latent] * 1000}
    path.write_bytes(pickle.dumps(data))
    with pytest.raises(DatasetError, match="names more masks than it holds"):
        open_dataset(path)


@pytest.fixture(scope="module")
def drawn():
    return blobs.BlobSource(40, 15)


def test_blobs_are_drawn_sequences_whose_factors_are_those_of_their_masks(drawn):
    assert drawn.shape == (64, 64, 1)
    assert len(drawn) == 600
    assert drawn.sequences.tolist() == list(range(0, 601, 15))
    images = drawn.images(range(600))
    assert set(np.unique(images)) == {0, 255}
    np.testing.assert_array_equal(measure_masks(images[..., 0]), drawn.factors)
    assert drawn.factors[:, 2].min() >= 30  # as in the dataset
    assert drawn.files() == []
    assert drawn.facts()["frames"] == "15 in a sequence"
    assert "not the dataset" in drawn.facts()["a toy"]


def test_blobs_are_the_same_each_time_and_differ_by_seed(drawn):
    again, other = blobs.BlobSource(40, 15), blobs.BlobSource(40, 15, seed=1)
    assert again.fingerprint == drawn.fingerprint != other.fingerprint


def test_blobs_move_by_laplace_steps():
    path = blobs.walk(3000, 2, 0)
    assert path[..., :2].min() >= 8
    assert path[..., :2].max() <= 56
    inside = np.abs(path[:, 0] - [32, 32, 28]).max(1) < 10  # far from where they turn back
    steps = (path[:, 1] - path[:, 0])[inside][:, :2]
    assert np.abs(steps).mean() == pytest.approx(1.5, rel=0.1)
    assert (steps**4).mean() / (steps**2).mean() ** 2 == pytest.approx(6, abs=1.5)


def test_their_name_opens_them():
    assert find_form(blobs.Path("drawn:blobs")) == "drawn-blobs"
    with open_dataset("drawn:blobs") as source:
        assert len(source) == 12_000
    for name in ("drawn:blob", "drawn:blobs:2"):
        with pytest.raises(DatasetError, match="drawn:blobs"):
            open_dataset(name)
    with pytest.raises(UsageError, match="no splits"):
        open_dataset("drawn:blobs", "test")
