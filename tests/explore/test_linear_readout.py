"""Factors read out of codes: what is fitted, on which images, and what is measured."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from helpers.fake_dataset import MadeUp, as_rendered

from threedident.causal import Sampling, load_model
from threedident.columns import Column
from threedident.datasets.formats import open_dataset
from threedident.distributions import Normal
from threedident.errors import UsageError
from threedident.explore.controls import Control
from threedident.explore.linear_readout import (
    LinearReadout,
    Sample,
    best_r2_of,
    draw_sample,
    error_of,
)
from threedident.explore.stored_images import StoredImages

COLUMNS = (
    Column("size", "continuous", (-1.0, 1.0)),
    Column("turn", "circular", (0.0, 360.0)),
    Column("shape", "discrete", None, ("ball", "cube", "cone")),
    Column("held", "continuous", (-1.0, 1.0)),
)


def made(noise=0.0, count=300):
    """A sample, and codes that hold all of its factors linearly, but for the noise."""
    random = np.random.default_rng(0)
    size, turn = random.uniform(-1, 1, count), random.uniform(0, 360, count)
    shape = random.integers(0, 3, count)
    angle = np.radians(turn)
    held = np.stack([size, np.cos(angle), np.sin(angle), *(shape == k for k in range(3))], 1)
    codes = held @ random.normal(size=(6, 8)) + 5 + noise * random.normal(size=(count, 8))
    values = np.stack([size, turn, shape, np.zeros(count)], 1).astype(np.float32)
    fitted = np.arange(count) % 3 != 2
    sample = Sample(MadeUp(count, 4, None), np.arange(count), fitted, COLUMNS, values)
    return sample, codes.astype(np.float32)


def test_what_is_held_linearly_is_read_out():
    sample, codes = made()
    readout = LinearReadout(sample, codes)
    assert (readout.fitted, readout.measured) == (200, 100)
    assert [score.r2 for score in readout.scores[:3]] == pytest.approx([1, 1, 1], abs=1e-4)
    assert readout.scores[2].accuracy == 1
    assert readout.scores[3].r2 is None  # it does not vary
    told = readout.predict(codes)
    for place, column in enumerate(COLUMNS):
        errors = [
            error_of(column, *pair)
            for pair in zip(sample.values[:, place], told[place], strict=True)
        ]
        assert np.abs(errors).max() < 0.05
    assert told[1].min() >= 0
    assert told[1].max() < 360
    np.testing.assert_allclose(
        readout.scaled(codes), (codes - codes.mean(0)) / codes.std(0), atol=1e-4
    )


def test_r2_is_of_images_that_it_was_not_fitted_on():
    sample, codes = made(noise=2.0)
    readout = LinearReadout(sample, codes)
    rows = sample.fitted
    design = np.column_stack([codes, np.ones(len(codes))]).astype(np.float64)
    weights = np.linalg.lstsq(design[rows], sample.values[rows, 0], rcond=None)[0]
    true = sample.values[~rows, 0]
    left = ((true - design[~rows] @ weights) ** 2).sum() / ((true - true.mean()) ** 2).sum()
    assert readout.scores[0].r2 == pytest.approx(1 - left, abs=1e-5)
    assert 0 < readout.scores[0].r2 < 0.9
    flipped = dataclasses.replace(sample, fitted=~rows)
    assert LinearReadout(flipped, codes).scores[0].r2 != readout.scores[0].r2


def test_noise_is_not_read_out_however_many_codes_there_are():
    sample, _ = made(count=60)
    noise = np.random.default_rng(1).normal(size=(60, 200)).astype(np.float32)
    readout = LinearReadout(sample, noise)
    assert readout.underdetermined
    np.testing.assert_allclose(
        readout.predict(noise)[0][sample.fitted], sample.values[sample.fitted, 0], atol=1e-5
    )
    assert readout.scores[0].r2 < 0.3
    assert not LinearReadout(*made()).underdetermined


def test_a_code_that_does_not_move_stays_at_zero():
    sample, codes = made()
    codes[:, 3] = 7
    readout = LinearReadout(sample, codes)
    codes[0, 3] = 9
    assert readout.scaled(codes[:1])[0, 3] == 0


def test_controls_find_the_factor_of_the_same_meaning():
    readout = LinearReadout(*made())
    turn = Control("turn", "Turn", "circular", 0.0, 360.0)
    shape = Control("shape", "Shape", "discrete", 0.0, 2.0, values=("ball", "cube", "cone"))
    assert readout.place_of(Control("size", "Size")) == 0
    assert readout.place_of(turn) == 1
    assert readout.place_of(shape) == 2
    for other in (
        Control("held", "Held"),  # it does not vary in the dataset
        Control("size", "Size", low=0.0, high=5.0),
        dataclasses.replace(turn, kind="continuous"),
        dataclasses.replace(shape, values=("ball", "cone", "cube")),
        Control("unknown", "Unknown"),
    ):
        assert readout.place_of(other) is None
    # Of the dataset's own factors the name is enough: those of a grid have numbers for controls.
    step = Control("turn", "Turn", "step", 0.0, 7.0)
    assert (readout.place_of(step), readout.place_of(step, stored=True)) == (None, 1)
    assert readout.place_of(Control("held", "Held"), stored=True) is None


def test_of_a_causal_model_variables_are_read_out_as_well(tmp_path):
    model = load_model("causal3dident-recalled-primitives")
    data = open_dataset(as_rendered(tmp_path / "data", 40, sampling=Sampling(model)))
    sample = draw_sample(StoredImages.of(data))
    assert [column.name for column in sample.columns[: len(model.names)]] == list(model.names)
    np.testing.assert_array_equal(
        sample.values[:, : len(model.names)], data.draws.variables[sample.numbers]
    )
    rest = [column.name for column in sample.columns[len(model.names) :]]
    assert set(rest) <= set(data.factor_names)
    LinearReadout(sample, np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32))


def test_errors_go_the_shorter_way_round():
    assert error_of(COLUMNS[0], 0.5, 0.25) == -0.25
    assert error_of(COLUMNS[1], 350.0, 10.0) == 20
    assert error_of(COLUMNS[1], 10.0, 350.0) == -20
    assert (error_of(COLUMNS[2], 1.0, 1.0), error_of(COLUMNS[2], 1.0, 2.0)) == (0, 1)


def test_images_are_spread_over_the_dataset_and_each_is_in_one_lot():
    sample = draw_sample(StoredImages.of(MadeUp(10_000, 2, None)))
    assert len(sample.numbers) == len(set(sample.numbers)) == 3000
    assert (sample.fitted.sum(), (~sample.fitted).sum()) == (2000, 1000)
    assert (sample.numbers[0], sample.numbers[-1]) == (0, 9999)
    assert np.diff(sample.numbers).max() <= 4
    for lot in (sample.fitted, ~sample.fitted):
        assert np.diff(sample.numbers[lot]).max() <= 14
    few = draw_sample(StoredImages.of(MadeUp(31, 2, None)))
    np.testing.assert_array_equal(few.numbers, np.arange(31))
    assert 9 <= (~few.fitted).sum() <= 11
    with pytest.raises(UsageError, match="has 29 images; a read-out is fitted and measured on at"):
        draw_sample(StoredImages.of(MadeUp(29, 2, None)))


def test_images_that_depend_on_each_other_are_not_shared_between_the_lots(tmp_path):
    pairs = open_dataset(as_rendered(tmp_path / "pairs", 60, conditional=Normal(0.3)))
    sample = draw_sample(StoredImages.of(pairs))
    assert sample.numbers[sample.fitted].max() < sample.numbers[~sample.fitted].min()
    assert (~sample.fitted).sum() == 20


def test_of_a_grid_images_are_drawn_at_random():
    source = open_dataset("drawn:sprites")
    sample = draw_sample(StoredImages.of(source), 200, 100)
    assert len(sample.numbers) == 300
    assert [column.kind for column in sample.columns].count("discrete") >= 1
    images = sample.source.images(sample.numbers[:3].tolist())
    assert images.shape[1:] == source.shape
    # Of each factor every part of its range occurs, which a fixed step through a grid would miss.
    for place in range(len(sample.columns)):
        everything = source.factors[:, place]
        seen = np.unique(sample.values[:, place])
        assert len(seen) > 0.7 * min(len(np.unique(everything)), 30)
    assert (
        draw_sample(StoredImages.of(source), 200, 100).numbers.tolist() == sample.numbers.tolist()
    )


def test_the_best_r2_is_that_of_the_law_that_drew_the_dataset(tmp_path, monkeypatch):
    source = open_dataset(as_rendered(tmp_path / "data", 40, side=8))
    stored = StoredImages.of(source)
    assert best_r2_of(stored) == source.preset.best_r2 != {}
    latents = {**source.manifest.settings["latents"], "source": "file"}
    settings = {**source.manifest.settings, "latents": latents}
    given = dataclasses.replace(source.manifest, settings=settings)
    assert given.why_no_best_r2
    for manifest in (given, None):
        monkeypatch.setattr(type(source), "manifest", manifest)
        assert best_r2_of(stored) == {}
