import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from threedident.presets import load_preset
from threedident.render.image_regions import (
    Grid,
    area_shadow,
    enclosing_points,
    is_near_light,
    spline_matrix,
    spot_pool,
    sun_shadow,
)
from threedident.render.scene import AREA, SPOT, SUN, SceneBuilder

PRESET = load_preset("3dident")
BUILDER = SceneBuilder(PRESET)
GRID = Grid(56, 2)
raw_rows = st.lists(st.floats(-1, 1, width=32), min_size=10, max_size=10)
unit = st.floats(0, 1)


def scene_of(raw):
    return BUILDER.build(PRESET.to_scene(np.array([raw], np.float32))[0])


def on_ground(scene, light, through):
    """Where the line from a point of a light through a point meets the ground."""
    reach = (scene.ground_height - light[2]) / (through[2] - light[2])
    return light + reach * (through - light)


def inside(region, point):
    """Whether a point shows in the region, if it shows in the grid at all."""
    column, row, depth = GRID.camera.project(point[None], GRID.side)
    if depth[0] <= 0 or not (0 <= column[0] <= GRID.side and 0 <= row[0] <= GRID.side):
        return True
    # The filter reaches 1.5 pixels beyond a pixel's centre.
    return (
        region.left <= column[0] - 1 <= column[0] + 1 <= region.right
        or region.left <= max(column[0] - 1, 0) <= min(column[0] + 1, GRID.side) <= region.right
    ) and (region.top <= max(row[0] - 1, 0) and min(row[0] + 1, GRID.side) <= region.bottom)


@given(raw_rows, st.integers(0, 3241), unit, unit)
def test_no_shadow_falls_outside_its_region(raw, vertex, a, b):
    scene = scene_of(raw)
    points = scene.place(BUILDER.mesh.vertices)
    point = points[vertex]
    radius, turn = np.tan(SUN.angle / 2) * np.sqrt(a), 2 * np.pi * b
    far = 1e4 * np.array([radius * np.cos(turn), radius * np.sin(turn), 1.0])
    assert inside(GRID.around(sun_shadow(scene, points)), on_ground(scene, point + far, point))

    light = np.array(AREA.location) + AREA.side * np.array([a - 0.5, b - 0.5, 0.0])
    if point[2] < light[2] - 0.1:
        region = GRID.around(area_shadow(scene, points))
        assert inside(region, on_ground(scene, light, point))


@given(raw_rows, unit, unit, unit, unit)
def test_no_light_of_the_spot_falls_outside_its_pool(raw, a, b, c, d):
    scene = scene_of(raw)
    spot, target = np.array(scene.spot_location), np.array(scene.location)
    axis = (target - spot) / np.linalg.norm(target - spot)
    # Any point of the ball around the lamp, any ray within its cone.
    direction = np.array([np.sin(6 * a), np.cos(6 * a), 2 * b - 1])
    light = spot + SPOT.radius * direction / np.linalg.norm(direction)
    side = np.cross(axis, [0.3, 0.5, 0.8])
    side /= np.linalg.norm(side)
    tilt = np.tan(SPOT.cone / 2) * c
    across = np.cos(6.3 * d) * side + np.sin(6.3 * d) * np.cross(axis, side)
    ray = axis + tilt * across
    if ray[2] > -0.05:
        return
    assert inside(GRID.around(spot_pool(scene)), on_ground(scene, light, light + ray))


def test_where_nothing_is_known_the_region_is_everything():
    assert GRID.around(np.full((1, 3), np.nan)) == GRID.whole
    assert GRID.around(np.array([[20.0, 0.0, 20.0]])) == GRID.whole
    scene = scene_of([0, 0, 1, 0, 0, 0, 0, 0, 0, 0])
    tall = scene.place(BUILDER.mesh.vertices * 2)
    assert tall[:, 2].max() > AREA.location[2]
    assert GRID.around(area_shadow(scene, tall)) == GRID.whole


@given(st.integers(0, 2**32 - 1), st.integers(10, 3000))
def test_few_points_enclose_many(seed, count):
    rng = np.random.default_rng(seed)
    vertices = rng.normal(size=(count, 3)) * rng.uniform(0.1, 2, 3)
    points = enclosing_points(vertices, most=100)
    assert len(points) <= max(count, 8 * 8**3)
    assert count > 100 or points is vertices
    directions = rng.normal(size=(50, 3))
    assert ((points @ directions.T).max(0) >= (vertices @ directions.T).max(0) - 1e-12).all()


@pytest.mark.parametrize(
    ("point", "near"),
    [
        ((0, 0, 7), True),
        ((0.5, 0.5, 5.1), True),
        ((0, 0, 4.9), False),
        ((2.4, 0, 7), True),
        ((2.6, 0, 7), False),
        ((1.9, 1.9, 7), True),
        ((2, 2, 7), False),
    ],
)
def test_what_is_near_the_area_light(point, near):
    far = np.array([[-3.0, 3.0, 0.0]])
    assert not is_near_light(far)
    assert is_near_light(np.concatenate([far, [point]])) == near


def test_an_object_out_of_sight_has_an_empty_region():
    assert Grid(224).around(np.array([[-3.0, 30.0, 0.0]])).empty


@pytest.mark.parametrize(("pixels", "resolution"), [(56, 224), (56, 100), (32, 32), (64, 256)])
def test_splines_pass_through_what_they_interpolate(pixels, resolution):
    grid = Grid(pixels, 2)
    matrix = spline_matrix(grid, resolution)
    assert matrix.shape == (resolution, grid.side)
    assert matrix.sum(1) == pytest.approx(1.0)
    # Centres of the grid's pixels and of the image's, in units of the view's side.
    coarse = (np.arange(grid.side) - grid.padding + 0.5) / pixels
    fine = (np.arange(resolution) + 0.5) / resolution
    assert matrix @ (2 * coarse - 1) == pytest.approx(2 * fine - 1)
    wave = np.sin(9 * coarse)
    assert matrix @ wave == pytest.approx(np.sin(9 * fine), abs=2e-3)
    if pixels == resolution:
        assert matrix == pytest.approx(np.eye(resolution, grid.side, 2), abs=1e-12)
