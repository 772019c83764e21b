"""Datasets that are shown as they are stored: grids exactly, others by the nearest image."""

from __future__ import annotations

import asyncio
import dataclasses
import io

import numpy as np
import pytest
from helpers.explorer import with_page
from helpers.fake_dataset import as_rendered, make
from helpers.other_data import SPRITES, NumberedSource, grid_source
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from threedident.columns import Column
from threedident.distributions import Grid
from threedident.errors import UsageError
from threedident.explore.scenes import View, require_rendered
from threedident.explore.stored_images import StoredImages
from threedident.explore.stored_scene import StoredScene, why_stored
from threedident.plain_data import Misfit
from threedident.presets import load_preset

TINY = "drawn:sprites:3x2x4x3x2"


def images_of(scene, values):
    return asyncio.run(scene.images(np.asarray(values, np.float32), View()))


def numbers_in(images):
    """The numbers that a `NumberedSource`'s images show."""
    return (256 * images[:, 0, 0, 0].astype(int) + images[:, 0, 1, 0]).tolist()


def some_factors(count=40, seed=0):
    random = np.random.default_rng(seed)
    columns = (
        Column("place", "continuous", (0.0, 10.0)),
        Column("angle", "circular", (0.0, 360.0)),
        Column("class", "discrete", None, ("cat", "dog", "cow")),
    )
    values = random.uniform(0, 1, (count, 3)) * [10, 360, 3]
    values[:, 2] = np.floor(values[:, 2])
    return NumberedSource(values, columns)


def test_each_point_of_a_grid_shows_its_stored_image():
    stored = StoredImages(TINY)
    scene = StoredScene(stored)
    source = stored.source
    points = source.grid.points(np.arange(len(source)))
    for point in points.tolist():
        scene.check(point)
    shown = images_of(scene, points)
    assert np.array_equal(shown, source.images(range(len(source))))
    numbers, distances = scene.numbers(points.astype(np.float32))
    assert numbers.tolist() == list(range(len(source))) and not distances.any()


def test_the_controls_of_a_grid_are_steps_and_classes():
    scene = StoredScene(StoredImages(TINY))
    about = {control.name: control for control in scene.controls}
    assert about["shape"].values == ("square", "ellipse", "heart")
    assert about["shape"].kind == "discrete"
    assert (about["posX"].kind, about["posX"].low, about["posX"].high) == ("step", 0, 2)
    turning = about["orientation"]
    assert (turning.kind, turning.high) == ("step", 3)
    assert turning.note == "It comes round after 3 steps: 3 looks as 0 does."
    around = StoredScene(StoredImages.of(grid_source(SPRITES))).controls[2]
    assert around.note == "It comes round: after 3 comes 0 again."
    with pytest.raises(Misfit, match="must be a whole number"):
        scene.check([0, 0, 0.5, 0, 0])
    with pytest.raises(UsageError, match="no point of a grid"):
        scene.numbers(np.full((1, 5), 7, np.float32))


def test_a_hidden_factor_is_at_its_first_value_and_the_scene_says_so():
    grid = Grid([3, 4, 2], ["kind", "copy", "turn"], categorical=["kind"], hidden=["copy"])
    scene = StoredScene(StoredImages.of(grid_source(grid)))
    assert scene.names == ("kind", "turn")
    assert numbers_in(images_of(scene, [[2, 1]])) == [int(grid.index(np.array([2, 0, 1])))]
    assert any("also differ in copy" in note for note in scene.notes())


def test_without_a_grid_the_nearest_image_is_shown_with_its_number_and_distance():
    source = some_factors()
    stored = StoredImages.of(source)
    scene = StoredScene(stored, why_stored(stored))
    own = source.factors.copy()
    numbers, distances = scene.numbers(own)
    assert numbers.tolist() == list(range(40)) and not distances.any()
    assert numbers_in(images_of(scene, own)) == list(range(40))
    point = np.array([5.0, 1.0, 1.0], np.float32)
    gaps = source.factors - point
    gaps[:, 1] = np.minimum(np.abs(gaps[:, 1]), 360 - np.abs(gaps[:, 1]))
    squares = (gaps[:, 0] / 5) ** 2 + (gaps[:, 1] / 180) ** 2 + 4 * (gaps[:, 2] != 0)
    number, distance = (each[0] for each in scene.numbers(point[None]))
    assert number == squares.argmin()
    assert distance == pytest.approx(np.sqrt(squares.min()), rel=1e-5)
    notes = " ".join(scene.notes())
    assert "what made them is not recorded" in notes and "the nearest one is shown" in notes


def test_ranges_are_those_of_the_factors_and_hold_all_that_is_stored():
    source = some_factors()
    source.factors[3, 0] = 10.5  # beyond what its column says
    place, angle, kind = StoredScene(StoredImages.of(source)).controls
    assert (place.low, place.high) == (0, 10.5) and "Images have" in place.note
    assert (angle.kind, angle.low, angle.high) == ("circular", 0, 360)
    assert (kind.kind, kind.values) == ("discrete", ("cat", "dog", "cow"))


_SCENES = {
    "grid": StoredScene(StoredImages(TINY)),
    "numbers": StoredScene(StoredImages.of(some_factors())),
}


@given(st.sampled_from(sorted(_SCENES)), st.data())
def test_any_values_within_range_have_an_image(name, data):
    scene = _SCENES[name]
    values = [
        data.draw(
            st.integers(int(control.low), int(control.high))
            if control.kind in ("discrete", "step")
            else st.floats(control.low, control.high)
        )
        for control in scene.controls
    ]
    numbers, distances = scene.numbers(scene.check(values)[None])
    assert 0 <= numbers[0] < len(scene.stored) and distances[0] >= 0
    scene.check(scene.values_of(numbers[0]).tolist())


# The generator of a dataset


def test_a_dataset_without_a_generator_opens_as_it_is_stored(tmp_path):
    make(tmp_path / "data", 5)
    stored = StoredImages(tmp_path / "data")

    async def run(page):
        assert page.explorer.generator_of_dataset() == {"dataset": True}
        about = (await page.ask("state")).json()["scene"]
        assert about["kind"] == "stored" and len(about["controls"]) == 10
        assert "what made them is not recorded" in about["notes"][0]
        values = [control["start"] for control in about["controls"]]
        body = {"generator": {"dataset": True}, "values": values}
        answer = await page.ask("stored-number", body)
        number = int(np.linalg.norm(stored.values, axis=1).argmin())  # nearest to the middle
        assert answer.json() == {"number": number, "distance": 0.0, "values": values}
        shown = np.asarray(Image.open(io.BytesIO((await page.ask("image", body)).body)))
        assert np.array_equal(shown, stored.source.image(number))
        with pytest.raises(UsageError, match="needs a scene that can be rendered"):
            require_rendered(page.explorer.start, "this")
        wrong = {"generator": {"dataset": True, "preset": "3dident"}}
        assert "unknown field 'preset'" in (await page.ask("scene", wrong)).error

    with_page(run, stored=stored)


def test_a_dataset_with_its_preset_opens_rendered_and_can_be_seen_as_stored(tmp_path):
    stored = StoredImages(as_rendered(tmp_path / "data", 4, preset="3dident-regular"))

    async def run(page):
        explorer = page.explorer
        assert explorer.generator_of_dataset() == {"preset": "3dident-regular"}
        assert explorer.start.kind == "preset"
        scene = explorer.scene({"dataset": True})
        assert scene.kind == "stored" and "not rendered:" not in " ".join(scene.notes())

    with_page(run, stored=stored)


def test_a_preset_of_its_own_has_a_name_of_its_own(tmp_path, monkeypatch):
    stored = StoredImages(as_rendered(tmp_path / "data", 4))
    own = load_preset("3dident").changed(fixed={"psi": 0.5})
    monkeypatch.setattr(StoredImages, "preset", own)

    async def run(page):
        assert page.explorer.generator_of_dataset() == {"preset": "3dident (of the dataset)"}
        assert page.explorer.start.preset is own

    with_page(run, stored=stored)


def test_a_given_preset_is_shown_in_place_of_the_datasets(tmp_path):
    stored = StoredImages(as_rendered(tmp_path / "data", 4, preset="3dident-regular"))

    async def run(page):
        assert page.explorer.start.generator == {"preset": "3dident-rotations"}

    with_page(run, load_preset("3dident-rotations"), stored=stored)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shape": "own.obj"}, "mesh files (own.obj), which the dataset does not hold"),
        ({"material": "crystal"}, "cannot render crystal"),
        ({"objects": 2}, "more than the ten factors"),
    ],
)
def test_what_cannot_be_rendered_again_is_shown_as_stored(tmp_path, monkeypatch, changes, words):
    stored = StoredImages(as_rendered(tmp_path / "data", 4))
    own = dataclasses.replace(load_preset("3dident"), **changes)
    monkeypatch.setattr(StoredImages, "preset", own)
    assert words in why_stored(stored)

    async def run(page):
        assert page.explorer.start.kind == "stored"
        assert words in page.explorer.start.notes()[0]

    with_page(run, stored=stored)
