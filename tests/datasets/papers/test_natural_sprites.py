"""Natural Sprites: tables of transitions, their pairs, and the images that are drawn of them."""

from __future__ import annotations

import math
import pickle

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from threedident.datasets.formats import open_dataset
from threedident.datasets.papers import natural_sprites
from threedident.datasets.papers.drawing import (
    NATURAL_SHAPES,
    fill_polygons,
    natural_vertices,
    place_natural,
)
from threedident.datasets.papers.natural_sprites import (
    NAMES,
    SIZES,
    Transitions,
    grid_source,
    read_table,
    table_source,
    write_table,
)
from threedident.errors import DatasetError, ThreeDIdentError, UsageError

ROOT = math.sqrt(0.5)


# Drawing


@pytest.mark.parametrize("name", NATURAL_SHAPES)
def test_the_shapes_have_area_one_and_their_centre_in_the_middle(name):
    x, y = natural_vertices(name).T
    cross = x * np.roll(y, -1) - np.roll(x, -1) * y
    assert cross.sum() / 2 == pytest.approx(1)
    assert ((x + np.roll(x, -1)) * cross).sum() == pytest.approx(0, abs=1e-12)
    assert ((y + np.roll(y, -1)) * cross).sum() == pytest.approx(0, abs=1e-12)
    assert len(x) == {"square": 4, "triangle": 3, "star_4": 8, "spoke_4": 12}[name]


def test_a_square_covers_the_pixels_that_it_should():
    image = np.empty((1, 8, 8), np.uint8)
    corners = np.array([[[2.0, 1.0], [2.0, 5.0], [6.0, 5.0], [6.0, 1.0]]])
    fill_polygons(corners, image)
    expected = np.zeros((8, 8), np.uint8)
    expected[1:5, 2:6] = 255
    assert (image[0] == expected).all()
    fill_polygons(corners + np.array([0.4, 0.0]), image)  # 2 of 5 columns of samples
    assert set(image[0, 1:5, 2]) == {153} and set(image[0, 1:5, 6]) == {102}
    fill_polygons(corners - np.array([4.0, 0.0]), image)  # cut off at the left
    assert image[0, 1:5, :2].min() == 255 and (image > 0).sum() == 8
    fill_polygons(corners - np.array([40.0, 0.0]), image)
    assert not image.any()
    fill_polygons(corners * 100 - 200, image)
    assert image.min() == 255


@hypothesis.given(
    st.sampled_from(NATURAL_SHAPES),
    st.floats(0, 360),
    st.floats(0.1, 0.5),
    st.floats(0.45, 0.55),
    st.floats(0.45, 0.55),
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_an_image_is_what_counting_samples_one_by_one_gives(name, degrees, scale, x, y):
    number = NATURAL_SHAPES.index(name)
    side = 16
    image = np.empty((1, side, side, 3), np.uint8)
    place_natural(
        [number], np.array([x]), np.array([y]), np.array([scale]), np.array([degrees]), image
    )
    turn = np.radians(degrees % (120 if name == "triangle" else 90))
    vertices = natural_vertices(name) @ [
        [math.cos(turn), math.sin(turn)],
        [-math.sin(turn), math.cos(turn)],
    ]
    corners = np.array([x, y]) + scale * vertices
    steps = (np.arange(5 * side) + 0.5) / (5 * side)
    right, up = np.meshgrid(steps, 1 - steps)
    crossings = np.zeros(right.shape, int)
    for (x1, y1), (x2, y2) in zip(corners, np.roll(corners, -1, 0), strict=True):
        spans = (y1 > up) != (y2 > up)
        with np.errstate(divide="ignore", invalid="ignore"):
            crossings += spans & (right < x1 + (up - y1) * (x2 - x1) / (y2 - y1))
    inside = crossings % 2 == 1
    share = inside.reshape(side, 5, side, 5).mean((1, 3))
    # A sample on an edge may fall to either side.
    assert np.abs(image[0, :, :, 0] - 255 * share).max() <= 2 * 255 / 25 + 0.5
    assert np.abs(image[0, :, :, 0] - 255 * share).mean() < 0.1
    assert (image == image[..., :1]).all()


def test_what_looks_alike_is_equal_in_each_pixel():
    source = grid_source((2, 2, 6, 40, 4))
    images = source.images(range(len(source))).reshape(24, 40, 4, -1)
    for number, name in enumerate(NATURAL_SHAPES):
        distinct = {image.tobytes() for image in images[7, :, number]}
        assert len(distinct) == (40 if name == "triangle" else 10)
    assert (images[:, 10:, [0, 2, 3]] == images[:, :-10, [0, 2, 3]]).all()


def test_the_vertical_axis_points_upwards_and_the_triangle_with_it():
    low, high = np.empty((2, 1, 64, 64, 3), np.uint8)
    half, size, flat = np.array([0.5]), np.array([0.3]), np.array([0.0])
    place_natural([1], half, np.array([0.3]), size, flat, low)
    place_natural([1], half, np.array([0.7]), size, flat, high)
    rows = [np.flatnonzero(image[0, :, :, 0].any(1)).mean() for image in (low, high)]
    assert rows[0] > 32 > rows[1]
    widths = (high[0, :, :, 0] > 0).sum(1)
    assert widths[np.flatnonzero(widths)[0]] < widths[np.flatnonzero(widths)[-1]]


# The grid


def test_the_grid_is_the_published_one():
    source = open_dataset("drawn:natural-sprites")
    assert source.form == "drawn-natural-sprites"
    assert source.grid.sizes == SIZES == (32, 32, 6, 40, 4)
    assert len(source) == 983_040
    assert source.factor_names == NAMES
    assert source.shape == (64, 64, 3)
    assert dict(source.grid.periods) == {"angle": 40}
    assert source.factor_columns[-1].values == NATURAL_SHAPES
    assert source.pairs is None
    # Three of four shapes show the angle up to a quarter of a turn, of 10 values.
    assert source.best_angle() == pytest.approx((1 + 3 * 99 / 1599) / 4)
    assert "not the dataset" in source.facts()["drawn"]
    numbers = [0, 500_000, 983_039]
    images = source.images(numbers)
    assert images.any((1, 2, 3)).all()
    assert (pickle.loads(pickle.dumps(source)).images(numbers) == images).all()
    assert (source.images(numbers[::-1]) == images[::-1]).all()


def test_smaller_grids_and_factors_of_one_value():
    source = open_dataset("drawn:natural-sprites:4x3x1x8x2")
    assert source.grid.sizes == (4, 3, 8, 2)
    assert source.factor_columns[-1].values == ("square", "triangle")
    assert len(source.images(range(192))) == 192
    again = open_dataset(str(source.root))
    assert again.fingerprint == source.fingerprint


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("drawn:natural-sprites:3d", "expected sizes"),
        ("drawn:natural-sprites:smooth", "expected continuous, discrete"),
        ("drawn:natural-sprites:4x4x4x4x5", "shape 4"),
        ("drawn:natural-sprites:1000x1000x9x9x4", "at most 10,000,000"),
    ],
)
def test_names_that_do_not_fit_are_refused(name, words):
    with pytest.raises(UsageError, match=words):
        open_dataset(name)


# Tables


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("natural") / "table.csv"
    assert write_table(path, 40, seed=3) == 40
    return path


def write(path, *rows, frames=3):
    names = ",".join(f"t_{k}" for k in range(frames))
    path.write_text("\n".join([f"id,cat_id,{names}", *rows]) + "\n")
    return path


def test_pairs_are_consecutive_frames_in_the_same_window(tmp_path):
    path = write(
        tmp_path / "table.csv",
        '1,5,"[(1.5, 2, 10), None, (3, 4, 20)]","[(2.5, 3, 11), (7, 7, 7), None]",',
        '2,5,,"[None, None, (9, 8, 30)]","[(1, 1, 1), None, (8.25, 1e1, 31)]"',
        "3,6,,,",
    )
    transitions = read_table(path)
    assert transitions.y.tolist() == [[1.5, 2.5], [9, 8.25]]
    assert transitions.x.tolist() == [[2, 3], [8, 10]]
    assert transitions.area.tolist() == [[10, 11], [30, 31]]
    assert not transitions.synthetic


def test_pairs_of_extreme_areas_are_left_out():
    area = np.arange(1.0, 101.0)
    kept = Transitions(*np.zeros((2, 100, 2)), np.stack([area, area], 1)).filtered()
    assert kept.area[:, 0].tolist() == area[5:95].tolist()  # quantiles 5.95 and 95.05
    second = np.stack([area, np.roll(area, 50)], 1)
    kept = Transitions(*np.zeros((2, 100, 2)), second).filtered()
    assert len(kept) == 80


def test_images_of_a_table_are_those_of_its_pairs(table):
    source = open_dataset(table)
    assert source.form == "natural-sprites"
    transitions = read_table(table).filtered()
    assert len(source) == 2 * len(transitions) > 1000
    assert source.pairs.tolist() == np.arange(len(source)).reshape(-1, 2).tolist()
    assert [column.kind for column in source.factor_columns] == [
        *("continuous", "continuous", "continuous", "circular", "discrete")
    ]
    first, second = source.factors[source.pairs[:, 0]], source.factors[source.pairs[:, 1]]
    np.testing.assert_allclose(first[:, 0], transitions.x[:, 0] / 64, rtol=1e-6)
    np.testing.assert_allclose(second[:, 1], transitions.y[:, 1] / 64, rtol=1e-6)
    np.testing.assert_allclose(second[:, 2] ** 2, transitions.area[:, 1] / 4096, rtol=1e-5)
    assert (first[:, 3:] == second[:, 3:]).all()  # angle and shape
    assert set(first[:, 3]) == set(range(0, 360, 9)) and set(first[:, 4]) == {0, 1, 2, 3}
    assert source.grid is None
    assert "Laplace" in source.facts()["drawn"]
    expected = np.empty((1, 64, 64, 3), np.uint8)
    x, y, scale, degrees, shape = (source.factors[7, None, k].astype(float) for k in range(5))
    place_natural(shape.astype(int), x, y, scale, degrees, expected)
    assert (source.image(7) == expected[0]).all()


def test_angles_and_shapes_are_of_the_seed_and_the_pairs_number(table):
    transitions = read_table(table)
    source = table_source(transitions, table)
    other = table_source(transitions, table, seed=1)
    assert (source.factors[:, :3] == other.factors[:, :3]).all()
    assert (source.factors[:, 3:] != other.factors[:, 3:]).any(1).mean() > 0.9
    angles, shapes = natural_sprites._angles_and_shapes(1000, 0)
    fewer = natural_sprites._angles_and_shapes(100, 0)
    assert (angles[:100] == fewer[0]).all() and (shapes[:100] == fewer[1]).all()
    counts = np.bincount(natural_sprites._angles_and_shapes(160_000, 0)[0], minlength=40)
    assert abs(counts - 4000).max() < 6 * math.sqrt(4000)
    with pytest.raises(UsageError, match="seed"):
        table_source(transitions, table, seed=-1)


def test_the_discrete_variant_has_bins_of_equal_width(table):
    source = open_dataset(f"{table}:discrete")
    kept = read_table(table).filtered()
    assert source.grid.sizes == SIZES and len(source) == 983_040
    assert source.pairs.shape == (len(kept), 2)
    points = source.grid.points(source.pairs)
    assert (points[:, 0, 3:] == points[:, 1, 3:]).all()
    for k, column in enumerate((kept.x / 64, kept.y / 64)):
        values = source.values[k]
        # Each is put to the nearest centre.
        nearest = np.abs(column[..., None] - values).argmin(-1)
        assert (points[..., k] == nearest).mean() > 0.999
        assert values[0] - column.min() == pytest.approx((values[1] - values[0]) / 2)
    areas = (64 * source.values[2]) ** 2
    np.testing.assert_allclose(np.diff(areas), areas[1] - areas[0])
    assert areas[-1] + (areas[1] - areas[0]) / 2 == pytest.approx(kept.area.max())
    continuous = open_dataset(table)
    assert (
        np.abs(
            source.images(source.pairs[:9].ravel()).astype(int) - continuous.images(range(18))
        ).mean()
        < 20
    )


def test_the_drawn_variants_are_those_of_a_table_of_ours(tmp_path, monkeypatch):
    monkeypatch.setattr(natural_sprites, "DEFAULT_OBJECTS", 50)
    path = tmp_path / "table.csv"
    write_table(path, 50)
    for drawn, written in (
        (open_dataset("drawn:natural-sprites:continuous"), open_dataset(path)),
        (open_dataset("drawn:natural-sprites:discrete"), open_dataset(f"{path}:discrete")),
    ):
        assert drawn.form == "drawn-natural-sprites" and drawn.files() == []
        assert drawn.fingerprint == written.fingerprint
        assert (drawn.pairs == written.pairs).all()
        assert written.files() == [path]
        assert drawn.synthetic and written.synthetic


def test_tables_of_ours_move_by_laplace_steps_and_stay_inside(table):
    steps = []
    for cells in natural_sprites.synthetic_masks(300, 0):
        for masks in cells:
            for mask in filter(None, masks):
                y, x, area = mask
                assert 0 <= y <= 64 and 0 <= x < 64 and 36 <= area <= 1024
    transitions = read_table(table)
    inside = ((transitions.y > 15) & (transitions.y < 49)).all(1)  # ends reflect
    steps = np.diff(transitions.y[inside], axis=1).ravel()
    assert np.abs(steps).mean() == pytest.approx(1.5, rel=0.15)
    kurtosis = (steps**4).mean() / (steps**2).mean() ** 2
    assert 4 < kurtosis < 8  # 6 of a Laplace, 3 of a normal law


def test_a_table_is_the_same_every_time_and_is_not_overwritten(table, tmp_path):
    again = tmp_path / "again.csv"
    write_table(again, 40, seed=3)
    assert again.read_bytes() == table.read_bytes()
    with pytest.raises(DatasetError, match="exists already"):
        write_table(again)
    longer = tmp_path / "longer.csv"
    write_table(longer, 41, seed=3)
    assert longer.read_bytes().startswith(table.read_bytes())
    with pytest.raises(UsageError, match=r"ends in \.csv"):
        write_table(tmp_path / "table.txt")


# What is no table


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("__import__('os').abort()", "expected a list"),
        ("[(1, 2, 3), None", "expected a list"),
        ("[(1, 2)]", "expected a list"),
        ("[(1, 2, 3, 4)]", "expected a list"),
        ("[(1, 2, nan)]", "expected a list"),
        ("[(-1, 2, 3)]", "expected a list"),
        ("[]", "expected a list"),
        ("[NoneNone]", "expected a list"),
        ("[(1, 2, 3)]*9", "expected a list"),
        ("[" * 5000, "expected a list"),
        ("[" + "None, " * 3000 + "None]", "expected a list"),
        ("[" + " " * 9000 + "None]", "expected a list"),
        ("[(65, 2, 3)]", r"in \[0, 64\]"),
        ("[(1, 2, 0)]", "area"),
        ("[(1, 2, 5000)]", "area"),
        ("[(1, 1e999, 3)]", r"in \[0, 64\]"),
    ],
)
def test_cells_that_do_not_fit_are_refused_and_never_run(tmp_path, cell, words):
    path = write(tmp_path / "table.csv", f'1,1,"{cell}","[(1, 2, 3)]",')
    with pytest.raises(DatasetError, match=f"line 2, t_0: .*{words}"):
        open_dataset(path)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["1,1,,"], "line 2: 4 cells, expected 5"),
        (['1,1,"[None]","[None, None]",'], "2 windows, expected 1"),
        (["1,1,,,"], "there is no pair"),
        (['1,1,"[(1, 2, 3)]",,"[(1, 2, 3)]"'], "there is no pair"),
        ([], "there is no pair"),
        (['1,1,"[(1, 2, 3)]'], "cannot read"),
    ],
)
def test_tables_that_do_not_fit_are_refused(tmp_path, rows, words):
    path = write(tmp_path / "table.csv", *rows)
    with pytest.raises(DatasetError, match=words):
        open_dataset(path)


def test_a_table_without_any_spread_has_no_bins(tmp_path):
    path = write(tmp_path / "table.csv", '1,1,"[(1, 2, 3)]","[(1, 2, 3)]",')
    assert len(open_dataset(path)) == 2
    with pytest.raises(DatasetError, match="no bins"):
        open_dataset(f"{path}:discrete")


def test_other_tables_are_none_of_these(tmp_path):
    for header in ("id,cat_id", "id,cat_id,t_1", "a,b,c", "", "id,cat_id,t_0,t_2", "\x00\xff"):
        path = tmp_path / "other.csv"
        path.write_bytes(header.encode("latin1") + b"\n1,2,3\n")
        with pytest.raises(DatasetError, match="cannot open"):
            open_dataset(path)


def test_damaged_tables_are_read_or_refused_with_an_error_of_ours(table, tmp_path):
    content, path = table.read_bytes()[:6000], tmp_path / "damaged.csv"
    rng = np.random.default_rng(0)
    refused = 0
    for trial in range(150):
        damaged = bytearray(content)
        if trial % 3 == 0:
            del damaged[rng.integers(len(content)) :]
        else:
            for place in rng.integers(0, len(content), rng.integers(1, 4)):
                damaged[place] = rng.choice(list(b'"\n,()[]N9-e\0\xff '))
        path.write_bytes(damaged)
        try:
            source = open_dataset(path)
            source.images(range(min(4, len(source))))
        except ThreeDIdentError:
            refused += 1
    assert refused > 75
