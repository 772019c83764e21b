import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from threedident.latents import sample_raw_latents
from threedident.presets import load_preset
from threedident.render.color import psnr, srgb_encode, to_uint8
from threedident.render.scene import CAMERA, SceneBuilder

PRESET = load_preset("3dident")
BUILDER = SceneBuilder(PRESET)
raw_rows = st.lists(st.floats(-1, 1, width=32), min_size=10, max_size=10)


def scene_of(raw):
    return BUILDER.build(PRESET.to_scene(np.array([raw], np.float32))[0])


def test_the_camera_is_the_published_one():
    # The formula for a pixel's ray, turned round: a point on it projects to the pixel.
    i, j, width = 30, 171, 224
    x = (2 * (j + 0.5) / width - 1) * 25 / 35
    y = (1 - 2 * (i + 0.5) / width) * 25 / 35
    root = math.sqrt(2)
    direction = np.array([-1 / root - y / root, x, -1 / root + y / root])
    point = np.array([8.0, 0.0, 8.0]) + 7.3 * direction
    column, row, depth = CAMERA.project(point[None], width)
    assert (column[0], row[0]) == pytest.approx((j + 0.5, i + 0.5))
    assert depth[0] == pytest.approx(7.3)
    assert CAMERA.project(np.zeros((1, 3)), width)[:2] == (pytest.approx(112), pytest.approx(112))
    assert CAMERA.project(np.array([[20.0, 0, 20]]), width)[2] < 0


@given(raw_rows)
def test_what_stands_where(raw):
    scene = scene_of(raw)
    size = BUILDER.size
    x, y, z, phi, theta, psi, angle, *_ = (float(np.float32(v)) for v in raw)
    half_pi = math.pi / 2
    assert scene.location == pytest.approx((3 * x, 3 * y, 3 * z + size / 2), abs=1e-5)
    assert scene.rotation == pytest.approx(
        (half_pi * phi, half_pi * theta, half_pi * psi), abs=1e-6
    )
    assert scene.ground_height == -size
    sx, sy, sz = scene.spot_location
    assert sz == pytest.approx(6 + size)
    assert math.hypot(sx, sy) == pytest.approx(4)
    assert math.atan2(sx, sy) == pytest.approx(half_pi * angle, abs=1e-6)
    assert min(scene.object_color + scene.spot_color + scene.ground_color) >= 0


@given(raw_rows)
def test_the_object_is_scaled_and_turned_but_not_bent(raw):
    matrix = scene_of(raw).matrix()
    assert matrix @ matrix.T == pytest.approx(1.5**2 * np.eye(3), abs=1e-9)
    assert np.linalg.det(matrix) == pytest.approx(1.5**3)


def test_the_order_of_the_turns():
    scene = scene_of([0, 0, 0, 1, 0, 1, 0, 0, 0, 0])
    # Rx(90 deg) takes y to z, where Rz leaves it.
    assert scene.matrix() @ [0, 1, 0] == pytest.approx([0, 0, 1.5], abs=1e-6)
    # x is left alone by Rx, and Rz(90 deg) takes it to y.
    assert scene.matrix() @ [1, 0, 0] == pytest.approx([0, 1.5, 0], abs=1e-6)


def test_how_often_the_object_is_in_the_frame():
    # Known of the published scene: fully in about 84 % of the images, and less than 90 % of
    # its vertices in 4.7 % of them.
    raw = sample_raw_latents(range(1500), seed=11, split="train")
    shares = BUILDER.share_in_frame(PRESET.to_scene(raw))
    assert (shares == 1).mean() == pytest.approx(0.84, abs=0.035)
    assert (shares < 0.9).mean() == pytest.approx(0.047, abs=0.02)


def test_srgb():
    assert srgb_encode(np.array([-1.0, 0.0, 0.0031308, 0.5, 1.0, 7.0])) == pytest.approx(
        [0, 0, 0.04045, 0.735357, 1, 1], abs=1e-5
    )
    levels = np.arange(256)
    encoded = levels / 255
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    assert np.array_equal(to_uint8(linear), levels)


def test_psnr():
    image = np.zeros((4, 4, 3), np.uint8)
    assert psnr(image, image) == math.inf
    assert psnr(image, image + 1) == pytest.approx(20 * math.log10(255))
