"""Datasets in the order of a grid or of time: a sample of their images is scored."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from threedident.datasets.dataset import ImageDataset
from threedident.datasets.formats import open_dataset
from threedident.errors import UsageError
from threedident.evaluate import evaluate, evaluation, score_codes
from threedident.evaluate.sampled_source import SAMPLES, SampledSource, apart_by_sequence, sampled
from threedident.evaluate.test_set import TestSet as ScoredSet  # a name that pytest leaves alone

GRID = "drawn:sprites:3x2x4x5x5"  # 600 images
#: Metrics that take seconds, or the published numbers of points.
FAST = ["linear_r2", "mcc_spearman_noise_padded", "mig_discrete", "modularity_discrete"]


def test_a_sample_is_in_random_order_and_always_the_same():
    whole = open_dataset(GRID)
    some = SampledSource(whole, 100)
    assert len(some) == 100
    assert len(np.unique(some.numbers)) == 100
    assert not (np.diff(some.numbers) > 0).all()
    assert np.array_equal(some.numbers, SampledSource(whole, 100).numbers)
    assert np.array_equal(some.factors, whole.factors[some.numbers])
    assert np.array_equal(some.images([3, 0]), whole.images(some.numbers[[3, 0]]))
    assert some.fingerprint == whole.fingerprint
    with pytest.raises(IndexError, match="no image 100"):
        some.images([100])


def test_a_sequence_is_in_one_half():
    """Codes that tell the sequence and nothing else score at chance."""
    data = ScoredSet.open("drawn:blobs", samples=2000)
    source = data.source
    starts = source.whole.sequences
    of = np.searchsorted(starts, source.numbers, side="right") - 1
    assert len(set(of[:1000]) & set(of[1000:])) <= 1
    assert len(np.unique(source.numbers)) == 2000
    assert not (np.diff(source.numbers[:1000]) > 0).all()
    assert data.record().sample["order"] == "random, sequences in one half"
    codes = np.random.default_rng(0).normal(size=(len(starts), 50))[
        np.searchsorted(starts, np.arange(len(source.whole)), side="right") - 1
    ]
    found = score_codes(codes, "drawn:blobs", metrics=["linear_r2", "kernel_r2"], samples=2000)
    assert found.scores["linear_r2"].value < 0.05
    assert found.scores["kernel_r2"].value < 0.05
    assert any(each.code == "paired_images" for each in found.warnings)


@settings(max_examples=50)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=40), seed=st.integers(0, 99))
def test_halves_share_the_sequence_in_the_middle_alone(lengths, seed):
    starts = np.cumsum([0, *lengths])
    generator = np.random.default_rng(seed)
    numbers = generator.permutation(starts[-1])[: max(1, starts[-1] - 2)]
    found = apart_by_sequence(numbers, starts, generator)
    assert sorted(found) == sorted(numbers)
    of = np.searchsorted(starts, found, side="right")
    assert len(set(of[: len(of) // 2]) & set(of[len(of) // 2 :])) <= 1
    assert np.array_equal(apart_by_sequence(numbers, None, generator), numbers)


def test_where_there_are_fewer_all_are_scored():
    data = ScoredSet.open(GRID)
    assert sorted(data.source.numbers) == list(range(600))
    assert data.record().sample == {"images": 600, "of": 600, "order": "random", "seed": [0, 6]}
    assert ScoredSet.open("drawn:sprites").record().sample["images"] == SAMPLES
    assert data.identity.images == 600
    assert ScoredSet.open(GRID, samples=50).identity == data.identity


def test_rendered_images_are_all_scored(rendered):
    assert not isinstance(ScoredSet.open(rendered["test"]).source, SampledSource)
    with pytest.raises(UsageError, match="Leave it out"):
        ScoredSet.open(rendered["test"], samples=50)
    with pytest.raises(UsageError, match="at least 8 samples"):
        ScoredSet.open(GRID, samples=3)


def test_codes_of_all_images_or_of_the_sample_score_alike():
    data = ImageDataset(GRID)
    codes = data.factors.numpy()[:, ::-1].copy()
    found = score_codes(codes, data, metrics=FAST, samples=400, bootstrap=0)
    assert found.settings["samples"] == 400
    assert found.scores["mig_discrete"].value > 0.98
    numbers = sampled(data.source, 400).numbers
    again = score_codes(codes[numbers], data, metrics=FAST, samples=400, bootstrap=0)
    assert again == found
    with pytest.raises(UsageError, match=r"shape \(600, m\), or \(400, m\)"):
        score_codes(codes[:500], data, samples=400)


def test_an_evaluation_says_what_it_drew_and_takes_its_embeddings_back(tmp_path):
    options = {"metrics": FAST, "samples": 300, "bootstrap": 0}
    found = evaluate("reference:pca=4", GRID, **options)
    found.write(tmp_path / "out")
    scores = json.loads((tmp_path / "out/scores.json").read_text())
    assert scores["data"]["images"] == 600
    assert scores["data"]["sample"]["images"] == 300
    assert scores["settings"]["samples"] == len(found.z) == 300
    assert np.array_equal(found.dataset.factors.numpy(), found.z)
    embeddings = tmp_path / "out/embeddings.npy"
    assert len(np.load(embeddings)) == 300
    again = evaluate(embeddings, GRID, **options)
    assert again.scores["scores"] == found.scores["scores"]
    whole = np.zeros((600, 4), np.float32)
    whole[sampled(open_dataset(GRID), 300).numbers] = found.z_hat
    np.save(tmp_path / "whole.npy", whole)
    assert (
        evaluate(tmp_path / "whole.npy", GRID, **options).scores["scores"]
        == (found.scores["scores"])
    )
    np.save(tmp_path / "other.npy", whole[:200])
    with pytest.raises(UsageError, match="200 rows, the test set 600 images"):
        evaluate(tmp_path / "other.npy", GRID, **options)


def test_embeddings_of_all_images_are_written_in_their_order(tmp_path):
    options = {"metrics": ["linear_r2"], "bootstrap": 0}
    found = evaluate("reference:pca=4", GRID, **options)
    found.write(tmp_path / "out")
    again = evaluate(tmp_path / "out/embeddings.npy", GRID, **options)
    assert again.scores["scores"] == found.scores["scores"]
    codes = np.load(tmp_path / "out/embeddings.npy")
    assert np.array_equal(codes[ScoredSet.open(GRID).source.numbers], found.z_hat)
    value = score_codes(codes, GRID, **options).scores["linear_r2"].value
    assert value == pytest.approx(found.scores["scores"]["linear_r2"]["value"], abs=1e-6)


def test_metrics_of_values_are_refused_before_anything_is_encoded(monkeypatch):
    monkeypatch.setattr(evaluation, "_encode", None)
    with pytest.raises(UsageError, match=r"metric beta_vae .* such as those of dSprites or drawn"):
        evaluate("reference:pca", "drawn:blobs", metrics=["beta_vae"])
    chosen = ScoredSet.open("drawn:blobs").choose_metrics(["all"])
    assert "mcc_spearman_noise_padded" in chosen
    assert not {"beta_vae", "factor_vae", "mig_discrete", "dci_discrete"} & set(chosen)
    chosen = ScoredSet.open(GRID).choose_metrics(["all"])
    assert {"beta_vae", "factor_vae", "mig_discrete", "dci_discrete"} <= set(chosen)
    with pytest.raises(UsageError, match="8 or more to a value"):  # a sample of too few
        ScoredSet.open("drawn:sprites", samples=100).choose_metrics(["factor_vae"])
