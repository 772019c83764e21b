"""Drawn images like those of dSprites: grid, symmetries, edges of the frame, names."""

from __future__ import annotations

import math
import pickle

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from threedident.datasets.formats import open_dataset
from threedident.datasets.papers import drawing
from threedident.datasets.papers.drawing import DSPRITES_SHAPES, PATCH, PLACES, SIDE, hard_patch
from threedident.datasets.papers.sprites import (
    NAMES,
    SIZES,
    SpriteSource,
    explained,
    parse_sizes,
    values,
)
from threedident.errors import DatasetError, UsageError


@pytest.fixture(scope="module")
def full():
    return SpriteSource()


def test_the_grid_is_the_published_one(full):
    assert len(full) == 737_280
    assert full.shape == (64, 64, 1)
    assert full.grid.sizes == SIZES == (3, 6, 40, 32, 32)
    assert full.factor_names == full.grid.names == NAMES
    assert [column.kind for column in full.factor_columns] == [
        *("discrete", "continuous", "circular", "continuous", "continuous")
    ]
    assert full.factor_columns[0].values == DSPRITES_SHAPES
    assert full.factor_columns[2].range == (0.0, 39.0)  # both ends of a turn are in
    assert full.factors.dtype == np.float32
    assert full.factors[0].tolist() == [0, 0, 0, 0, 0]
    assert full.factors[1].tolist() == [0, 0, 0, 0, 1]
    assert full.factors[-1].tolist() == [2, 5, 39, 31, 31]
    scale, orientation, column = full.values[1], full.values[2], full.values[3]
    np.testing.assert_allclose(scale, [0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
    assert orientation[0] == 0 and orientation[-1] == 2 * math.pi
    assert (column[0], column[-1], len(column)) == (0, 1, 32)


def test_images_are_black_and_white_and_always_the_same(full):
    numbers = np.linspace(0, len(full) - 1, 200).astype(int)
    images = full.images(numbers)
    assert set(np.unique(images)) == {0, 255}
    assert (SpriteSource().images(numbers) == images).all()
    assert (pickle.loads(pickle.dumps(full)).images(numbers) == images).all()
    # One by one, in one call, and in another order.
    assert all((full.image(number) == images[k]).all() for k, number in enumerate(numbers))
    assert (full.images(numbers[::-1]) == images[::-1]).all()


def test_an_image_shows_the_point_of_its_number(full):
    rng = np.random.default_rng(0)
    points = np.stack([rng.integers(0, size, 100) for size in SIZES], 1)
    images = full.images(full.grid.index(points))[..., 0]
    for image, (shape, scale, orientation, column, row) in zip(images, points, strict=True):
        patch = hard_patch(
            DSPRITES_SHAPES[shape], full.values[1][scale], full.values[2][orientation]
        )
        expected = np.zeros((SIDE, SIDE), np.uint8)
        expected[row : row + PATCH, column : column + PATCH] = patch
        assert (image == expected).all()


def test_no_pixel_leaves_the_frame_or_hangs_on_rounding():
    """Drawn on a larger canvas, no shape is larger; and no centre lies next to an edge."""
    scales, orientations = values()[1:3]
    reach = np.arange(40) - 20.0
    right, down = np.meshgrid(reach, reach)
    outside = np.maximum(np.abs(right), np.abs(down)) > PATCH // 2
    for name in DSPRITES_SHAPES:
        for orientation in orientations:
            cosine, sine = math.cos(orientation), math.sin(orientation)
            x, y = cosine * right + sine * down, sine * right - cosine * down
            assert not (_inside(name, x, y) & outside).any()
            for scale in scales:
                depth = drawing._depth(name, scale, orientation)
                assert np.abs(depth).min() > 1e-9
    # The patch fits at each of the places.
    assert PATCH + PLACES - 1 == SIDE


def _inside(name, x, y):
    """Whether points lie in a shape at scale 1, from its definition in the page of sprites."""
    if name == "square":
        return np.maximum(np.abs(x), np.abs(y)) < 11.1
    area = 22.2**2
    if name == "ellipse":
        short = math.sqrt(area / (1.5 * math.pi))
        return (x / (1.5 * short)) ** 2 + (y / short) ** 2 < 1
    unit = math.sqrt(area / 3.66015)
    x, y = x / unit, y / unit + 0.2935
    return (x**2 + y**2 - 1) ** 3 < x**2 * y**3


def test_the_shapes_have_one_area_and_their_centre_in_the_middle():
    steps = np.linspace(-20, 20, 2001)
    x, y = np.meshgrid(steps, steps)
    for name in DSPRITES_SHAPES:
        inside = _inside(name, x, y)
        assert inside.sum() * 0.02**2 == pytest.approx(22.2**2, rel=4e-3)
        assert abs(x[inside].mean()) < 0.01 and abs(y[inside].mean()) < 0.01
        patch = hard_patch(name, 1.0, 0.0)
        assert (patch > 0).sum() == pytest.approx(22.2**2, rel=0.08)


@hypothesis.given(st.sampled_from(DSPRITES_SHAPES), st.floats(0.5, 1), st.floats(0, 2 * math.pi))
@hypothesis.settings(max_examples=100, deadline=None)
def test_a_quarter_of_a_turn_turns_the_patch(shape, scale, orientation):
    drawn = [drawing._depth(shape, scale, orientation + k * math.pi / 2) for k in range(4)]
    for k in range(1, 4):
        turned = np.rot90(drawn[0], -k)  # clockwise
        np.testing.assert_allclose(turned, drawn[k], atol=1e-8)
    if shape == "square":
        np.testing.assert_allclose(drawn[1], drawn[0], atol=1e-8)
    if shape == "ellipse":
        np.testing.assert_allclose(drawn[2], drawn[0], atol=1e-8)


def test_a_square_turned_by_a_quarter_is_the_same_image_and_a_heart_is_not():
    source = SpriteSource((3, 6, 5, 4, 4))  # orientations 0, 90, 180, 270, 360 degrees
    images = source.images(range(len(source))).reshape(3, 6, 5, 16, 64, 64)
    square, ellipse, heart = images
    assert (square == square[:, :1]).all()
    assert (ellipse[:, ::2] == ellipse[:, :1]).all()
    assert (ellipse[:, 1] != ellipse[:, 0]).any((1, 2, 3)).all()
    assert (heart[:, 4] == heart[:, 0]).all()
    for k in range(1, 4):
        assert (heart[:, k] != heart[:, 0]).any((1, 2, 3)).all()


def test_the_first_and_the_last_orientation_are_one(full):
    rng = np.random.default_rng(1)
    points = np.stack([rng.integers(0, size, 50) for size in SIZES], 1)
    points[:, 2] = 0
    first = full.images(full.grid.index(points))
    points[:, 2] = 39
    assert (full.images(full.grid.index(points)) == first).all()


def test_a_place_moves_a_sprite_by_whole_pixels():
    source = SpriteSource((3, 2, 4, 4, 4))
    images = source.images(range(len(source))).reshape(3, 2, 4, 4, 4, 64, 64)
    steps = [0, 10, 21, 31]  # of 31 pixels, rounded
    for column, right in enumerate(steps):
        for row, down in enumerate(steps):
            moved = np.roll(images[:, :, :, 0, 0], (down, right), (-2, -1))
            assert (images[:, :, :, column, row] == moved).all()


def test_the_best_r2_of_the_orientation_is_that_of_equal_images():
    source = SpriteSource((3, 2, 6, 2, 2))
    images = source.images(range(len(source))).reshape(len(source), -1)
    _, groups = np.unique(images, axis=0, return_inverse=True)
    orientation = source.factors[:, 2].astype(np.float64)
    means = {group: orientation[groups == group].mean() for group in set(groups.tolist())}
    best = np.array([means[group] for group in groups.tolist()])
    share = 1 - ((orientation - best) ** 2).mean() / orientation.var()
    assert source.best_orientation() == pytest.approx(share)
    assert source.best_orientation(within_a_step=True) <= share + 1e-12
    # Of hearts alone only the two ends are alike: 6 values, of which 0 and 5 are seen as 2.5.
    assert explained(np.array([0, 1, 2, 3, 4, 0]), np.arange(6)) == pytest.approx(1 - 12.5 / 17.5)


def test_info_says_what_it_is_and_what_looks_alike(full):
    facts = full.facts()
    assert "not the dataset" in facts["drawn"]
    assert "9.75 steps" in facts["alike"] and "19.5" in facts["alike"]
    assert f"{full.best_orientation():.4f}" in facts["best R2"]
    assert "alike" not in SpriteSource((3, 2, 1, 4, 4)).facts()


def test_factors_of_one_value_are_none():
    source = SpriteSource((1, 2, 3, 1, 4))
    assert source.factor_names == ("scale", "orientation", "posY")
    assert source.grid.sizes == (2, 3, 4)
    assert len(source) == 24
    whole = SpriteSource((3, 2, 3, 1, 4))
    assert (whole.images(range(24)) == source.images(range(24))).all()


def test_drawn_images_are_opened_by_their_name():
    source = open_dataset("drawn:sprites:3x2x4x4x4")
    assert isinstance(source, SpriteSource)
    assert source.form == "drawn-sprites"
    assert len(source) == 384
    again = open_dataset(str(source.root))
    assert again.fingerprint == source.fingerprint
    assert source.files() == []
    assert str(open_dataset("drawn:sprites").root) == "drawn:sprites"
    assert str(open_dataset("drawn:sprites:3x6x40x32x32").root) == "drawn:sprites"
    assert parse_sizes("3,2,4,4,4") == parse_sizes("3x2x4x4x4")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("drawn:sprits", "expected one of .*drawn:sprites"),
        ("drawn:", "expected one of .*drawn:sprites"),
        ("drawn:sprites:huge", "expected sizes such as"),
        ("drawn:sprites:3x2", "expected 5 sizes"),
        ("drawn:sprites:3x2x4x4x33", "posY 32"),
        ("drawn:sprites:0x2x4x4x4", "1 or more"),
        ("drawn:sprites:1x1x1x1x1", "not all of them 1"),
        ("drawn:sprites:3x1000x1000x32x32", "at most 10,000,000"),
        ("drawn:sprites:3x1000x1000x1x1", "at most 100,000|100,000 at most"),
    ],
)
def test_names_that_do_not_fit_are_refused(name, words):
    with pytest.raises((DatasetError, UsageError), match=words):
        open_dataset(name)


def test_drawn_images_have_no_splits():
    with pytest.raises(UsageError, match="no splits"):
        open_dataset("drawn:sprites:3x2x4x4x4", "train")


def test_there_is_no_image_beyond_the_last():
    source = SpriteSource((3, 2, 4, 4, 4))
    for number in (-1, 384):
        with pytest.raises(IndexError, match="expected 0 to 383"):
            source.image(number)
