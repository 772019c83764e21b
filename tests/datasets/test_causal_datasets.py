"""Tests of datasets of causal models: on disk, in every form, and in PyTorch."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from helpers.fake_dataset import as_rendered

from threedident.causal import Sampling, load_model
from threedident.datasets import ImageGroups, PositivePairs, ThreeDIdent, convert, pack, verify
from threedident.datasets.formats import open_dataset
from threedident.datasets.formats.describe import describe, lines
from threedident.errors import DatasetError, UsageError
from threedident.presets import load_preset
from threedident.storage.directory import DatasetDir
from threedident.storage.shard_record import CHECKSUM, checksum

MODEL = Path(__file__).parents[1] / "data" / "model.toml"


@pytest.fixture(scope="module")
def model():
    return load_model(MODEL)


@pytest.fixture(scope="module")
def sequences(model, tmp_path_factory):
    root = tmp_path_factory.mktemp("causal") / "sequences"
    return as_rendered(root, 60, shard=25, sampling=Sampling(model, steps=6))


def test_a_dataset_holds_what_was_drawn(model, sequences):
    data, drawn = (
        ThreeDIdent(sequences),
        Sampling(model, steps=6).draw(range(60), seed=0, split="train"),
    )
    assert data.variable_names == model.names
    for name in ("variables", "noise", "targets", "environment", "frame"):
        assert np.array_equal(getattr(data, name).numpy(), getattr(drawn, name)), name
    assert data.frame[:8].tolist() == [0, 1, 2, 3, 4, 5, 0, 1]
    assert torch.equal(data.graph, torch.from_numpy(model.step_adjacency))
    assert data.targets[data.frame == 0].sum() == 0
    image, variables = ThreeDIdent(sequences, target="variables")[7]
    assert image.shape == (3, 16, 16) and torch.equal(variables, data.variables[7])
    # The ten factors, as of any dataset: x is scaled, and what no variable renders is held.
    assert torch.allclose(data.raw_latents[:, 0], data.variables[:, 1] / 2)
    assert torch.equal(data.latents[:, 0], data.variables[:, 1])
    assert (data.raw_latents[:, 2] == 0).all()
    assert data.model == model


def test_shards_hold_the_arrays_for_readers_without_the_toolkit(sequences):
    with h5py.File(next(iter(sorted(sequences.glob("*.h5"))))) as file:
        assert file["variables"].shape == (25, 6) and file["noise"].shape == (25, 6, 3)
        assert file["targets"].dtype == np.uint8 and file["frame"][5] == 5 and file["item"][6] == 1


@pytest.mark.parametrize("form", ["packed", "published", "webdataset", "parquet"])
def test_every_form_carries_them_and_comes_back(sequences, form, tmp_path):
    source = open_dataset(sequences)
    out = tmp_path / ("all.h5" if form == "packed" else form)
    if form == "packed":
        pack(source, out)
    else:
        convert(source, out, form)
    assert verify(out).good
    data, before = ThreeDIdent(out), ThreeDIdent(sequences)
    assert torch.equal(data.variables, before.variables)
    assert torch.equal(data.targets, before.targets)
    convert(open_dataset(out), tmp_path / "back", "shards")
    back, first = (DatasetDir.open(root).manifest for root in (tmp_path / "back", sequences))
    assert back.fingerprint == first.fingerprint and back.about == first.about
    assert verify(tmp_path / "back").good


@pytest.mark.parametrize("name", ["variables", "noise", "targets", "frame"])
def test_verify_finds_a_changed_value(model, name, tmp_path):
    root = as_rendered(tmp_path / "d", 8, sampling=Sampling(model))
    path = next(iter(root.glob("*.h5")))
    with h5py.File(path, "r+") as file:
        file[name][3, ...] = file[name][3, ...] + 1
        digest = np.array(checksum(file[name][()]).encode())
        file.attrs.modify(CHECKSUM + name, digest.astype(file.attrs.get_id(CHECKSUM + name).dtype))
    report = verify(root)
    assert not report.good and name in report.faults[0] and "image 3" in report.faults[0]


def test_another_model_or_environment_does_not_go_on(model, tmp_path):
    root = as_rendered(tmp_path / "d", 8, sampling=Sampling(model))
    with pytest.raises(DatasetError, match=r"latents\.environments"):
        as_rendered(root, 8, sampling=Sampling(model, ("red",)))
    with pytest.raises(DatasetError, match=r"latents\.do\.x"):
        as_rendered(root, 8, sampling=Sampling(model, do={"x": 0.5}))


def test_environments_are_subsets(model, tmp_path):
    sampling = Sampling(model, ("observed", "red", "independent"))
    data = ThreeDIdent(as_rendered(tmp_path / "d", 30, sampling=sampling))
    assert data.environments == ("observed", "red", "independent")
    red = data.in_environment("red")
    assert len(red) == 10 and red.indices == list(range(1, 30, 3))
    assert torch.allclose(data.variables[red.indices, 4], torch.tensor(0.3))
    assert data.targets[1].tolist() == [0, 1, 0, 0, 1, 0]
    with pytest.raises(UsageError, match="observed, red, independent"):
        data.in_environment("blue")


def test_groups_of_a_sequence_are_its_frames_in_a_row(sequences):
    groups = ImageGroups(sequences, 3, batch_size=8, seed=4)
    assert groups.batches == 10 * 4 // 8
    seen = []
    for number in range(groups.batches):
        first, second, third = groups.indices(0, number)
        assert torch.equal(first + 1, second) and torch.equal(first + 2, third)
        assert (first % 6 <= 3).all()
        seen += first.tolist()
    assert len(set(seen)) == 40
    (z, _, later), (x, *_) = groups.batch(1, 2)
    data = ThreeDIdent(sequences)
    indices = groups.indices(1, 2)
    assert torch.equal(z, data.variables[indices[0]]) and torch.equal(x, data.images(indices[0]))
    assert torch.equal(later, data.variables[indices[2]])
    assert torch.equal(groups.targets(1, 2)[1], data.targets[indices[1]])
    again = ImageGroups(sequences, 3, batch_size=8, seed=4).indices(1, 2)
    assert all(torch.equal(a, b) for a, b in zip(indices, again, strict=True))
    assert not torch.equal(indices[0], groups.indices(2, 2)[0])


@pytest.mark.parametrize("kind", ["counterfactual", "views"])
def test_groups_of_pairs(model, kind, tmp_path):
    options = {"counterfactual": {"y": 0.5}} if kind == "counterfactual" else {"view": "hues"}
    root = as_rendered(tmp_path / "d", 20, sampling=Sampling(model, **options))
    groups = ImageGroups(root, batch_size=5)
    assert groups.kind == kind and groups.length == 2 and "10 groups" in repr(groups)
    (z, z_tilde), _ = groups.batch(0, 0)
    assert torch.equal(z[:, :2], z_tilde[:, :2])
    if kind == "counterfactual":
        assert (z_tilde[:, 2] == 0.5).all() and torch.equal(z[:, 5], z_tilde[:, 5])
    with pytest.raises(UsageError, match="have 2 images, found length 1"):
        ImageGroups(root, 1)
    with pytest.raises(UsageError, match="ImageGroups"):
        PositivePairs(root)


def test_groups_of_one_environment(model, tmp_path):
    sampling = Sampling(model, ("observed", "red"), steps=4)
    root = as_rendered(tmp_path / "d", 40, sampling=sampling)
    groups = ImageGroups(root, batch_size=3, environment="red")
    data = ThreeDIdent(root)
    for number in range(groups.batches):
        for numbers in groups.indices(0, number):
            assert (data.environment[numbers] == 1).all()
    assert groups.batches == 5 * 3 // 3
    with pytest.raises(UsageError, match="no environment 'blue'"):
        ImageGroups(root, batch_size=3, environment="blue")


def test_the_card_of_an_export_says_which_image_is_which(model, tmp_path):
    sampling = Sampling(model, ("observed", "red"), do={"y": 0.1}, steps=4)
    root = as_rendered(tmp_path / "d", 40, sampling=sampling)
    convert(open_dataset(root), tmp_path / "export", "parquet")
    card = (tmp_path / "export" / "README.md").read_text()
    assert "number floor(i / 4) mod 2 of observed, red" in card
    assert "images 4s to 4s + 3 are sequence s" in card and 'do `{"y": 0.1}`' in card
    assert "| `targets` |" in card and "causal model: small" in card


def test_what_has_no_model_says_so(tmp_path):
    root = as_rendered(tmp_path / "d", 8)
    data = ThreeDIdent(root)
    assert data.model is None
    for name in ("variables", "graph", "environment", "environments"):
        with pytest.raises(UsageError, match="not of a causal model"):
            getattr(data, name)
    with pytest.raises(UsageError, match="single images"):
        ImageGroups(root)
    with pytest.raises(UsageError, match="leave them out"):
        ThreeDIdent(root, factors=["x"], target="variables")


def test_info_says_what_was_drawn(model, sequences, tmp_path):
    text = "\n".join(lines(describe(sequences)))
    assert "sequences of 6 images" in text and "model      small" in text
    assert "x (continuous: -2 to 2), of -; the frame before: x, phi" in text
    root = as_rendered(
        tmp_path / "d", 8, sampling=Sampling(model, ("red",), counterfactual={"y": {"shift": 0.1}})
    )
    text = "\n".join(lines(describe(root)))
    assert "environments red" in text and "counterfactual of image 2i: y shifted by 0.1" in text


def test_best_r2_is_of_variables_that_stand_alone(model, tmp_path):
    plain = DatasetDir.open(as_rendered(tmp_path / "a", 8, sampling=Sampling(model))).manifest
    # x and kind have children; y and object_hue have parents; phi goes all the way round.
    assert plain.best_r2 == {"background_hue": load_preset("3dident").best_r2["background_hue"]}
    alone = as_rendered(tmp_path / "i", 8, sampling=Sampling(model, ("independent",)))
    assert set(DatasetDir.open(alone).manifest.best_r2) == {
        "x",
        "y",
        "object_hue",
        "background_hue",
    }
    do = DatasetDir.open(as_rendered(tmp_path / "b", 8, sampling=Sampling(model, do={"x": 0})))
    assert not do.manifest.best_r2 and "interventions" in do.manifest.why_no_best_r2
