"""What the page asks of a dataset."""

from __future__ import annotations

import asyncio
import io
import shutil
import threading

import numpy as np
import pytest
from helpers.explorer import with_page
from helpers.fake_dataset import as_rendered
from helpers.other_data import grid_source
from PIL import Image

from threedident.explore.stored_images import StoredImages
from threedident.presets import load_preset

COUNT = 120
POINT = {"generator": {"preset": "3dident"}, "values": [0.0] * 10}


@pytest.fixture
def root(tmp_path):
    return as_rendered(tmp_path / "here" / "data", COUNT, shard=40, side=16, wanted=200)


@pytest.fixture
def stored(root):
    return StoredImages(root)


def asked(stored, *requests, preset=None):
    """The answers to requests, one after the other."""

    async def ask(page):
        return [await page.ask(name, body) for name, body in requests]

    return with_page(ask, preset, stored=stored)


def pixels_of(answer):
    assert answer.status == 200
    assert answer.headers["content-type"] == "image/png"
    return np.asarray(Image.open(io.BytesIO(answer.body)))


def test_the_page_opens_with_what_the_dataset_is(stored, root):
    state, dataset = asked(stored, ("state", {}), ("dataset", {}))
    facts = state.json()["dataset"]
    assert (facts["name"], facts["count"], facts["wanted"]) == ("data", COUNT, 200)
    assert str(root.parent).encode() not in state.body
    assert dataset.json()["facts"] == facts
    assert all(sum(counts) == COUNT for counts in dataset.json()["counts"].values())


def test_without_a_dataset_there_is_none():
    state, *answers = asked(
        None,
        ("state", {}),
        ("dataset", {}),
        ("dataset-filter", {}),
        ("dataset-nearest", POINT),
        ("dataset-image-facts", {"number": 0}),
        ("stored-image", {"number": 0}),
    )
    assert state.json()["dataset"] is None
    for answer in answers:
        assert answer.status == 400
        assert answer.error.startswith("no dataset was given")


def test_filters_answer_with_a_page_of_what_passes(stored):
    body = {"filters": {"x": [-0.5, 0.5], "psi": [0.0, 1.0]}, "size": 7}
    first, last = asked(
        stored, ("dataset-filter", body), ("dataset-filter", {**body, "page": 10**9})
    )
    raw = stored.source.raw_latents
    passing = np.flatnonzero((abs(raw[:, 0]) <= 0.5) & (raw[:, 5] >= 0)).tolist()
    assert first.json()["passing"] == len(passing)
    assert first.json()["numbers"] == passing[:7]
    assert first.json()["values"] == raw[passing[:7]].tolist()
    assert sum(first.json()["counts"]["y"]) == len(passing)
    pages = -(-len(passing) // 7)
    assert (last.json()["page"], last.json()["pages"]) == (pages - 1, pages)
    assert last.json()["numbers"] == passing[7 * (pages - 1) :]


WRONG = {
    "an unknown factor": ({"filters": {"x2": [0, 1]}}, "unknown field 'x2' in filters"),
    "no table": ({"filters": [1]}, "filters must be a table"),
    "one end": ({"filters": {"x": [0]}}, "filters.x must be a list of 2"),
    "text": ({"filters": {"x": ["a", 1]}}, "filters.x must be a finite number"),
    "the high end first": ({"filters": {"x": [1, 0]}}, "its low end first"),
    "too many": ({"size": 201}, "size must be at most 200"),
    "none": ({"size": 0}, "size must be a whole number"),
    "a page before the first": ({"page": -1}, "page must be a whole number"),
    "half an order": ({"shuffle": 1}, "shuffle must be true or false"),
    "a slot that is no name": ({"tab": "a", "slot": "../b"}, "letters, digits and hyphens"),
}


def test_filters_that_do_not_fit_are_refused(stored):
    answers = asked(stored, *(("dataset-filter", body) for body, _ in WRONG.values()))
    for answer, (_, words) in zip(answers, WRONG.values(), strict=True):
        assert answer.status == 400
        assert words in answer.error


def test_classes_that_do_not_fit_are_refused():
    stored = StoredImages.of(grid_source())
    wrong, right, none = asked(
        stored,
        ("dataset-filter", {"filters": {"shape": [0, 3]}}),
        ("dataset-filter", {"filters": {"shape": [2, 0, 2]}}),
        ("dataset-filter", {"filters": {"shape": []}}),
    )
    assert wrong.error == "filters.shape must be classes from 0 to 2, found 3"
    assert right.json()["passing"] == len(stored) * 2 // 3
    assert (none.json()["passing"], none.json()["pages"]) == (0, 1)


def test_the_last_request_of_a_place_wins(stored):
    """What is overtaken while it waits is not computed; other tabs lose nothing."""

    async def ask(page):
        begun, go = threading.Event(), threading.Event()

        def slow():
            begun.set()
            go.wait(30)

        before = asyncio.create_task(stored.latest.run(slow))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        tasks = []
        for tab, high in (("a", 0.1), ("b", 0.2), ("a", 0.3), ("a", 0.4)):
            body = {"filters": {"x": [0.0, high]}, "tab": tab, "slot": "dataset-filter"}
            tasks.append(asyncio.create_task(page.ask("dataset-filter", body)))
            await asyncio.sleep(0.01)
        go.set()
        await before
        return [await task for task in tasks]

    answers = with_page(ask, stored=stored)
    assert [answer.status for answer in answers] == [409, 200, 409, 200]
    assert {name for key in stored._filtered for name in key} == {
        ("x", (0.0, 0.2)),
        ("x", (0.0, 0.4)),
    }
    assert not stored.latest._newest


def test_the_nearest_images_and_the_filters_that_they_fail(stored):
    body = {**POINT, "count": 5, "filters": {"x": [0.0, 1.0], "y": [0.0, 1.0]}}
    (answer,) = asked(stored, ("dataset-nearest", body))
    data = answer.json()
    raw = stored.source.raw_latents
    gaps = np.linalg.norm(raw.astype(float), axis=1)
    assert [image["number"] for image in data["images"]] == np.argsort(gaps)[:5].tolist()
    for image in data["images"]:
        row = raw[image["number"]]
        assert image["distance"] == pytest.approx(gaps[image["number"]], rel=1e-5)
        assert image["values"] == row.tolist()
        fails = [name for name, value in zip("xy", row[:2], strict=True) if value < 0]
        assert image["fails"] == fails
    assert "raw units" in data["distance"]
    assert data["note"] == data["reason"] == ""


def test_near_the_point_of_another_generator(stored):
    other = {**POINT, "generator": {"preset": "3dident-wrapped"}}
    wide = {**POINT, "count": 49}
    shape = {**POINT, "generator": {"preset": "3dident", "shape": "cube"}}
    answer, cube, refused = asked(
        stored, ("dataset-nearest", other), ("dataset-nearest", shape), ("dataset-nearest", wide)
    )
    for each in (answer, cube):
        assert "these images were made by 3dident, with other settings" in each.json()["note"]
        assert len(each.json()["images"]) == 8
    assert "count must be at most 48" in refused.error


def test_held_factors_do_not_make_another_generator(stored):
    preset = load_preset("3dident").changed(fixed={"x": 0.25})
    values = [0.25, *[0.0] * 9]
    generator = {"preset": "3dident (as given)"}
    (answer,) = asked(
        stored, ("dataset-nearest", {"generator": generator, "values": values}), preset=preset
    )
    assert answer.json()["note"] == ""


def test_nothing_is_near_where_the_sliders_move_other_factors():
    # x and y of a grid are no raw latents, though their names are the same.
    (answer,) = asked(StoredImages.of(grid_source()), ("dataset-nearest", POINT))
    assert answer.json()["images"] == []
    assert "have no shape, scale, orientation or 2 more as the images" in answer.json()["reason"]


def test_an_image_is_the_stored_one(stored):
    own, half, large, *wrong = asked(
        stored,
        ("stored-image", {"number": 41}),
        ("stored-image", {"number": 41, "size": 8}),
        ("stored-image", {"number": 41, "size": 300}),
        ("stored-image", {}),
        ("stored-image", {"number": COUNT}),
        ("stored-image", {"number": "../../etc/passwd"}),
        ("stored-image", {"number": 0, "size": 0}),
        ("stored-image", {"number": 0, "size": 10**6}),
    )
    image = stored.source.image(41)
    np.testing.assert_array_equal(pixels_of(own), image)
    np.testing.assert_array_equal(pixels_of(large), image)
    assert np.abs(pixels_of(half) - image.reshape(8, 2, 8, 2, 3).mean((1, 3))).max() <= 0.5
    assert [answer.status for answer in wrong] == 5 * [400]
    assert wrong[1].error == f"there is no image {COUNT}: expected 0 to {COUNT - 1}"


def test_grey_images_are_images_too():
    (answer,) = asked(StoredImages.of(grid_source()), ("stored-image", {"number": 5}))
    assert pixels_of(answer).shape == (16, 16)


def test_all_of_one_image(stored):
    known, unknown = asked(
        stored,
        ("dataset-image-facts", {"number": 7}),
        ("dataset-image-facts", {"number": 7.5}),
    )
    raw = [row["raw"] for row in known.json()["scene"]]
    assert raw == stored.source.raw_latents[7].tolist()
    assert unknown.status == 400


def test_a_dataset_that_disappears_leaves_the_page_at_work(stored, root):
    async def ask(page):
        (root / "shard-00000040-00040.h5").unlink()
        numbers = (0, 45, 119)
        one_gone = [await page.ask("stored-image", {"number": number}) for number in numbers]
        shutil.rmtree(root)
        all_gone = [await page.ask("stored-image", {"number": number}) for number in numbers]
        others = [
            await page.ask(name, body)
            for name, body in (
                ("state", {}),
                ("dataset", {}),
                ("dataset-filter", {"filters": {"x": [0.0, 1.0]}}),
                ("dataset-nearest", POINT),
                ("dataset-image-facts", {"number": 45}),
                ("image", {**POINT, "resolution": 8, "quality": "draft"}),
            )
        ]
        return one_gone, all_gone, others

    one_gone, all_gone, others = with_page(ask, stored=stored)
    assert [answer.status for answer in one_gone] == [200, 400, 200]
    assert "shard-00000040-00040.h5" in one_gone[1].error
    for answer in all_gone:
        assert answer.status == 400
        assert "the dataset data is no longer there" in answer.error
        assert str(root.parent) not in answer.error
    assert [answer.status for answer in others] == 6 * [200]
