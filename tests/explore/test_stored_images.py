"""The dataset behind the page: filters, what is near, and images that may be gone."""

from __future__ import annotations

import concurrent.futures
import itertools
import json
import os
import shutil

import numpy as np
import pytest
from helpers import family_folders
from helpers.causal import WHOLE, whole
from helpers.dataset_forms import turned
from helpers.fake_dataset import MadeUp, as_rendered, make
from helpers.other_data import SPRITES, NumberedSource, grid_source, sequence_source
from PIL import Image

from threedident.causal import Sampling
from threedident.columns import Column
from threedident.distributions import Grid, Normal
from threedident.errors import DatasetError
from threedident.explore.stored_images import StoredImages
from threedident.factors import FACTOR_NAMES

TURN = 360.0


def mixed(count=400, seed=0):
    """A factor of each kind, and one that never changes."""
    random = np.random.default_rng(seed)
    factors = np.column_stack(
        [
            random.normal(size=count),
            random.uniform(0, TURN, count),
            random.integers(0, 3, count),
            np.full(count, 7.0),
        ]
    )
    columns = (
        Column("size", "continuous", (-5.0, 5.0)),
        Column("angle", "circular", (0.0, TURN)),
        Column("shape", "discrete", None, ("square", "ellipse", "heart")),
        Column("held", "continuous", None),
    )
    return StoredImages.of(NumberedSource(factors, columns))


def expected(stored, filters):
    """The images that pass, and the counts of each histogram, one comparison at a time."""
    passes = {}
    for axis, values in zip(stored.axes, stored.values.T, strict=True):
        wanted = filters.get(axis.column.name)
        if wanted is None:
            passes[axis.column.name] = np.ones(len(values), bool)
        elif axis.classes:
            passes[axis.column.name] = np.isin(values, wanted)
        else:
            low, high = np.float32(wanted)
            within = (values >= low) & (values <= high) if low <= high else None
            outside = (values > high) & (values < low)
            passes[axis.column.name] = ~outside if within is None else within
    counts = {}
    for axis, values in zip(stored.axes, stored.values.T, strict=True):
        others = [p for name, p in passes.items() if name != axis.column.name]
        rows = values[np.logical_and.reduce([np.ones(len(values), bool), *others])]
        counts[axis.column.name] = np.histogram(rows, axis.edges)[0]
    return np.flatnonzero(np.logical_and.reduce(list(passes.values()))), counts


def check(stored, filters):
    answer = stored.filter(filters)
    numbers, counts = expected(stored, filters)
    assert answer.numbers.tolist() == numbers.tolist()
    assert {name: each.tolist() for name, each in answer.counts.items()} == {
        name: each.tolist() for name, each in counts.items()
    }
    return answer


FILTERS = {
    "none": {},
    "one": {"size": (-0.5, 1.0)},
    "two": {"size": (-0.5, 1.0), "angle": (30.0, 200.0)},
    "round the turn": {"angle": (300.0, 40.0), "size": (0.0, 5.0)},
    "classes": {"shape": (0.0, 2.0), "size": (-1.0, 0.0)},
    "all kinds": {"shape": (1.0,), "size": (-2.0, 2.0), "angle": (90.0, 30.0), "held": (7.0, 7.0)},
    "no class": {"shape": ()},
    "nothing is there": {"size": (4.9, 5.0)},
}


@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS.keys())
def test_filters_are_those_of_every_image_by_itself(filters):
    check(mixed(), filters)


def test_a_histogram_counts_what_passes_the_filters_of_all_others():
    stored = mixed()
    alone = stored.filter({"size": (-0.5, 0.5)})
    assert alone.counts["size"].tolist() == stored.histograms["size"].tolist()
    assert alone.counts["shape"].sum() == len(alone.numbers) < len(stored)


def test_a_quarter_of_a_million_images():
    stored = StoredImages.of(MadeUp(250_000, 1, None))
    assert all(bins.dtype == np.uint8 for bins in stored._bins)
    check(stored, {"x": (-0.5, 0.25), "psi": (-1.0, 0.0), "object_hue": (0.9, 1.0)})
    check(stored, dict.fromkeys(FACTOR_NAMES, (-0.9, 0.9)))
    point = np.linspace(-0.8, 0.8, 10, dtype=np.float32)
    numbers, distances = stored.nearest(point, 8)
    gaps = np.linalg.norm(stored.source.raw_latents.astype(float) - point, axis=1)
    assert numbers.tolist() == np.argsort(gaps)[:8].tolist()
    np.testing.assert_allclose(distances, np.sort(gaps)[:8], rtol=1e-5)


def test_answers_are_the_same_from_threads_that_ask_at_once():
    stored = mixed(5000)
    wanted = list(itertools.chain.from_iterable([list(FILTERS.values())] * 5))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(stored.filter, wanted))
    for filters, answer in zip(wanted, answers, strict=True):
        assert answer.numbers.tolist() == expected(stored, filters)[0].tolist()


def test_few_answers_are_kept():
    stored = mixed()
    first = stored.filter({"size": (0.0, 1.0)})
    assert stored.filter({"size": (0.0, 1.0)}) is first
    for k in range(20):
        stored.filter({"size": (0.0, 1.0 + k)})
    assert len(stored._filtered) <= 4


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_pages_hold_each_image_once(shuffle):
    stored = mixed(101)
    for filters in ({}, {"size": (-0.5, 0.5)}):
        passing = stored.filter(filters).numbers
        pages = [stored.page(passing, k, 9, shuffle=shuffle) for k in range(len(passing) // 9 + 1)]
        numbers = np.concatenate(pages)
        assert sorted(numbers) == passing.tolist()
        assert (numbers.tolist() != passing.tolist()) == shuffle
    assert not len(stored.page(passing, 500, 9, shuffle=shuffle))


def test_a_bin_for_each_value_of_a_grid():
    stored = StoredImages.of(grid_source())
    sizes = [axis.bins for axis in stored.axes]
    assert sizes == [3, 2, 4, 4, 4]
    for axis, size in zip(stored.axes, sizes, strict=True):
        assert (stored.histograms[axis.column.name] == len(SPRITES) // size).all()
    # The third value and what is beside it in the histogram: from edge to edge of its bar.
    answer = check(stored, {"x": (1.5, 2.5)})
    assert set(stored.values[answer.numbers, 3]) == {2.0}


def test_a_long_grid_has_fewer_bins_than_values():
    stored = StoredImages.of(grid_source(Grid([200, 2], ["long", "short"])))
    assert [axis.bins for axis in stored.axes] == [40, 2]
    check(stored, {"long": (9.5, 99.5)})


def test_more_classes_than_a_byte_can_number():
    columns = (Column("class", "discrete", None, tuple(f"c{k}" for k in range(300))),)
    stored = StoredImages.of(NumberedSource(np.arange(600)[:, None] % 300, columns))
    answer = check(stored, {"class": (299.0, 3.0)})
    assert answer.numbers.tolist() == [3, 299, 303, 599]


def test_values_beyond_their_range_are_seen():
    stored = StoredImages.of(NumberedSource([[0.0], [1.5]], (Column("f", "continuous", (0, 1)),)))
    assert (stored.axes[0].low, stored.axes[0].high) == (0.0, 1.5)
    assert stored.histograms["f"].sum() == 2


def test_an_axis_is_no_wider_than_its_values_need():
    columns = (Column("area", "continuous", (0, 4096)), Column("x", "continuous", (0, 10)))
    stored = StoredImages.of(NumberedSource([[100, 0], [300, 5], [200, 6]], columns))
    assert [(axis.low, axis.high) for axis in stored.axes] == [(100.0, 300.0), (0.0, 10.0)]
    # Distances are in what is shown, or areas would count for next to nothing.
    assert stored.nearest(np.array([100, 5], np.float32), 1)[0].tolist() == [0]


def test_factors_that_are_no_numbers_are_refused():
    with pytest.raises(DatasetError, match="no finite numbers"):
        StoredImages.of(NumberedSource([[np.nan]], (Column("f", "continuous", (0, 1)),)))


# What is near.


def test_the_nearest_are_those_of_the_distance_that_is_named():
    stored = mixed()
    point = np.array([0.3, 350.0, 1.0, 7.0], np.float32)
    numbers, distances = stored.nearest(point, 20)
    gaps = np.abs(stored.values.astype(float) - point)
    gaps[:, 0] /= 5  # half of its range
    gaps[:, 1] = np.minimum(gaps[:, 1], TURN - gaps[:, 1]) / (TURN / 2)
    gaps[:, 2] = 2.0 * (gaps[:, 2] > 0)
    true = np.linalg.norm(gaps, axis=1)
    assert numbers.tolist() == np.argsort(true, kind="stable")[:20].tolist()
    np.testing.assert_allclose(distances, np.sort(true)[:20], rtol=1e-5)
    for words in ("4 factors", "range is 2 long", "short way", "another class counts 2"):
        assert words in stored.distance
    angles = stored.values[numbers, 1]
    assert angles.max() > TURN - 60
    assert angles.min() < 60


def test_a_turn_of_a_grid_that_ends_where_it_begins():
    # As drawn sprites: 40 orientations of 39 steps a turn, so that the last looks like the first.
    stored = StoredImages.of(grid_source(Grid([5], ["angle"], periods={"angle": 4})))
    numbers, distances = stored.nearest(np.array([0.0], np.float32), 5)
    assert numbers.tolist() == [0, 4, 1, 3, 2]
    assert distances.tolist() == [0.0, 0.0, 0.5, 0.5, 1.0]
    assert stored.axes[0].bins == 5  # each value can be chosen by itself


def test_among_equals_the_first_comes_first_and_no_more_than_there_are():
    stored = StoredImages.of(NumberedSource(np.zeros((5, 1)), (Column("f", "continuous", (0, 1)),)))
    assert stored.nearest(np.zeros(1, np.float32), 3)[0].tolist() == [0, 1, 2]
    assert stored.nearest(np.zeros(1, np.float32), 30)[0].tolist() == [0, 1, 2, 3, 4]


# Single images.


class Pixels(NumberedSource):
    def __init__(self, height, width, channels):
        super().__init__([[0.0]], (Column("f", "continuous", (0, 1)),), channels=channels)
        self.shape = (height, width, channels)
        random = np.random.default_rng(0)
        self.pixels = random.integers(0, 256, self.shape, np.uint8)

    def read(self, indices, out):
        out[:] = self.pixels


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_reduced_and_never_enlarged(channels):
    source = Pixels(24, 48, channels)
    stored = StoredImages.of(source)
    for size in (None, 48, 100):
        np.testing.assert_array_equal(stored.image(0, size), source.pixels)
    half = stored.image(0, 12)
    means = source.pixels.reshape(6, 4, 12, 4, channels).mean((1, 3))
    assert half.shape == (6, 12, channels)
    assert np.abs(half - means).max() <= 0.5
    other = stored.image(0, 20)
    assert other.shape == (10, 20, channels)
    grey = source.pixels[..., 0]
    lanczos = np.asarray(Image.fromarray(grey).resize((20, 10), Image.Resampling.LANCZOS))
    np.testing.assert_array_equal(other[..., 0], lanczos)
    assert stored.image(0, 1).shape == (1, 1, channels)


@pytest.fixture
def shards(tmp_path):
    root = tmp_path / "here" / "data"
    made = make(root, 250, side=4)
    return root, made, StoredImages(root)


def read(stored, numbers, made):
    for number in numbers:
        np.testing.assert_array_equal(stored.image(number), made.pixels[number])


def refused(stored, number, root):
    with pytest.raises(DatasetError) as error:
        stored.image(number)
    text = str(error.value)
    assert text.startswith(f"image {number} cannot be read: ")
    assert str(root.parent) not in text
    return text


def test_a_shard_that_is_gone_takes_no_other_image_with_it(shards):
    root, made, stored = shards
    (root / "shard-00000100-00100.h5").unlink()
    assert "shard-00000100-00100.h5" in refused(stored, 100, root)
    read(stored, (0, 99, 200, 249), made)
    check(stored, {"x": (0.0, 1.0)})


def test_a_shard_that_is_cut_short(shards):
    root, made, stored = shards
    os.truncate(root / "shard-00000100-00100.h5", 3000)
    refused(stored, 199, root)
    refused(stored, 100, root)
    read(stored, (99, 200), made)


def test_a_shard_that_was_written_anew_shows_no_wrong_image(shards):
    root, made, stored = shards
    path = root / "shard-00000000-00100.h5"
    path.write_bytes(bytes(path.stat().st_size))
    assert "has changed since" in refused(stored, 5, root)
    read(stored, (100, 249), made)


def test_a_dataset_that_is_gone_as_a_whole_is_said_to_be(shards):
    root, made, stored = shards
    shutil.move(root, root.parent / "elsewhere")
    text = refused(stored, 7, root)
    assert "the dataset data is no longer there" in text
    check(stored, {"x": (0.0, 1.0)})
    assert stored.nearest(made.raw_latents[7], 1)[0].tolist() == [7]
    assert stored.facts()["count"] == 250
    shutil.move(root.parent / "elsewhere", root)
    read(stored, (7,), made)


@pytest.mark.parametrize("form", ["packed", "published"])
def test_other_forms_that_are_gone(shards, tmp_path, form):
    path = turned(shards[0], form, tmp_path / form)
    stored = StoredImages(path)
    read(stored, (3,), shards[1])
    shutil.move(path, tmp_path / "elsewhere")
    assert "no longer there" in refused(stored, 3, path)


def test_compressed_shards_that_are_open_and_gone(tmp_path):
    root = tmp_path / "data"
    made = make(root, 120, side=4, compression="gzip")
    stored = StoredImages(root)
    read(stored, (0, 119), made)  # their files stay open
    (root / "shard-00000100-00020.h5").unlink()
    assert "no longer there" in refused(stored, 119, root)
    read(stored, (0,), made)


# Facts.


def test_a_dataset_that_is_still_rendered_opens_with_what_is_there(tmp_path):
    root = as_rendered(tmp_path / "data", 60, shard=20, wanted=100)
    facts = StoredImages(root).facts()
    assert (facts["count"], facts["wanted"]) == (60, 100)
    assert facts["preset"] == "3dident"
    assert facts["name"] == "data"
    assert str(tmp_path) not in json.dumps(facts)
    (root / "wanted.json").write_text("{")
    assert StoredImages(root).facts()["wanted"] is None


def test_the_scene_values_of_each_factor(tmp_path):
    stored = StoredImages(as_rendered(tmp_path / "data", 3))
    x = stored.facts()["factors"][0]
    assert (x["low"], x["high"], x["scene"], x["unit"]) == (-1.0, 1.0, (-3.0, 3.0), "m")
    about = stored.facts_of(2)
    assert about["same"]
    raw, latents = stored.source.raw_latents[2], stored.source.latents[2]
    assert [row["raw"] for row in about["scene"]] == raw.tolist()
    assert [row["scene"] for row in about["scene"]] == latents.tolist()
    assert [row["value"] for row in about["values"]] == raw.tolist()


def test_of_a_causal_model_the_factors_are_its_variables(tmp_path):
    sampling = Sampling(whole(), environments=("observed", "held"))
    stored = StoredImages(as_rendered(tmp_path / "data", 40, sampling=sampling))
    assert [column.name for column in stored.columns] == list(WHOLE["variables"])
    assert stored.model is not None
    assert stored.facts()["model"] == "model"
    switch = stored.axes[0]
    assert switch.classes == ("off", "on", "broken")
    answer = check(stored, {"switch": (2.0,), "background_hue": (6.0, 1.0)})
    assert len(answer.numbers)
    about = stored.facts_of(1)
    assert about["environment"] == "held"
    assert sorted(about["intervened"]) == ["switch", "x"]
    assert about["values"][0]["class"] == "broken"
    assert len(about["scene"]) == 10
    assert not about["same"]


def test_of_the_family_the_factors_are_its_variables():
    source = family_folders.causal(40)
    stored = StoredImages.of(source)
    assert stored.axes[0].classes == source.columns[0].values
    check(stored, {"shape": (0.0, 3.0), "x": (-0.5, 1.0)})


PLACES = {
    "sequences": (sequence_source, 5, "sequence 2, frame 1 of 0 to 4"),
    "single": (mixed, 5, ""),
}


@pytest.mark.parametrize("make_source, number, words", PLACES.values(), ids=PLACES.keys())
def test_the_place_of_an_image(make_source, number, words):
    source = make_source()
    stored = source if isinstance(source, StoredImages) else StoredImages.of(source)
    assert stored.place(number) == words
    assert stored.facts_of(number)["place"] == words


DRAWN = {
    "sequence": ({"steps": 6}, 9, "sequence 1, frame 3 of 0 to 5"),
    "counterfactual": ({"counterfactual": {"x": 0.3}}, 9, "pair 4, the counterfactual"),
    "views": ({"view": "style"}, 8, "pair 4, view 1 of 2"),
}


@pytest.mark.parametrize("more, number, words", DRAWN.values(), ids=DRAWN.keys())
def test_the_place_of_an_image_of_a_model(tmp_path, more, number, words):
    sampling = Sampling(whole(), **more)
    stored = StoredImages(as_rendered(tmp_path / "data", 12, sampling=sampling))
    assert stored.place(number) == words


def test_sequences_are_counted(tmp_path):
    assert StoredImages.of(sequence_source()).facts()["sequences"] == 4
    sampling = Sampling(whole(), steps=6)
    root = as_rendered(tmp_path / "data", 12, sampling=sampling)
    assert StoredImages(root).facts()["sequences"] == 2


def test_the_place_of_an_image_of_a_rendered_pair(tmp_path):
    root = as_rendered(tmp_path / "data", 4, conditional=Normal(0.3))
    assert StoredImages(root).place(3) == "pair 1, z~"


def test_names_of_drawn_images():
    stored = StoredImages("drawn:sprites")
    assert stored.name == "drawn:sprites"
    facts = stored.facts()
    assert (facts["grid"], facts["count"]) == (True, 737_280)
    answer = check(stored, {"shape": (1.0,), "posX": (-0.5, 15.5)})
    assert len(answer.numbers) == 737_280 // 6


def test_the_axis_of_a_raw_latent_is_always_whole(tmp_path):
    raw = np.full((3, 10), 0.1, np.float32)
    raw[0] = 0.2
    stored = StoredImages(as_rendered(tmp_path / "data", 3, given=raw))
    axis = stored.axes[0]
    assert (axis.low, axis.high, axis.scene) == (-1.0, 1.0, (-3.0, 3.0))
