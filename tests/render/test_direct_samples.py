"""Where the direct engine's samples go: its points, its first looks, and what it leaves out."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.sample_points import require_net
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from threedident.latents import sample_raw_latents
from threedident.presets import load_preset, parse_preset
from threedident.render.quality import get_quality
from threedident.render.scene import SceneBuilder

wp = pytest.importorskip("warp")

from threedident.render.direct.engine import DirectEngine, _shot, kernels  # noqa: E402

PRESET = load_preset("3dident")
SIDE = 24


@pytest.fixture(scope="module")
def engine():
    level = get_quality("draft", "direct")
    return DirectEngine(PRESET, level, resolution=SIDE, device="cpu")


def shots(engine, raw):
    builder = SceneBuilder(engine._builder.preset)
    scenes = [builder.build(row) for row in engine._builder.preset.to_scene(raw)]
    return wp.array(
        [_shot(s, engine._solid().sphere) for s in scenes], dtype=kernels.Shot, device="cpu"
    )


# --- Points ---


@wp.kernel
def _points(samples: kernels.Samples, pair: int, own: wp.uint32, out: wp.array(dtype=wp.vec2)):
    i = wp.tid()
    out[i] = kernels.sample_point(samples, i, pair, own)


def points_of(engine, count, pair, own):
    out = wp.empty(count, dtype=wp.vec2, device="cpu")
    inputs = [engine._samples, pair, wp.uint32(own)]
    wp.launch(_points, count, inputs=inputs, outputs=[out], device="cpu")
    return out.numpy()


@pytest.mark.parametrize("own", [0, 1, 3_000_000_000])
@pytest.mark.parametrize("pair", [0, 2, 4])
def test_every_pixels_points_are_a_net(engine, pair, own):
    points = points_of(engine, 64, pair, own)
    require_net(points)
    assert not np.array_equal(points, points_of(engine, 64, pair, own + 1))


def test_more_points_than_the_table_has_are_new_ones(engine):
    count = int(kernels.POINTS)
    points = points_of(engine, 2 * count, 1, 7)
    assert not np.isclose(points[:count], points[count:]).all(1).any()
    assert np.abs(points[count:].mean(0) - 0.5).max() < 1e-3


def test_close_pixels_of_a_tile_share_one_sequence():
    # What the grid's pixels take of it lies side by side, and no two take the same.
    out = wp.empty(64, dtype=int, device="cpu")
    wp.launch(_places, 64, outputs=[out], device="cpu")
    places = out.numpy().reshape(8, 8)
    for i in (0, 4):
        for j in (0, 4):
            assert sorted(places[i : i + 4, j : j + 4].ravel()) == list(range(16))
            for k in (0, 2):  # two by two, an aligned stretch of four
                assert np.ptp(places[i : i + 2, j + k : j + k + 2]) == 3


@wp.kernel
def _places(out: wp.array(dtype=int)):
    i = wp.tid()
    out[i] = kernels.place_in_tile(i / 8, i % 8)


# --- Nothing is left out that would have been seen ---


@wp.kernel
def _left_out(
    body: kernels.Body,
    lamps: kernels.Lamps,
    view: kernels.View,
    samples: kernels.Samples,
    normals: wp.array(dtype=wp.vec3),
    shots: wp.array(dtype=kernels.Shot),
    out: wp.array(dtype=wp.vec4, ndim=3),
    tested: wp.array(dtype=wp.vec4, ndim=3),
):
    """What the looks leave out, seen all the same: shaded shares, and the object."""
    b, i, j = wp.tid()
    shot = shots[b]
    found = wp.vec4(0.0)
    skipped = wp.vec4(0.0)
    for light in range(3):
        if not kernels.may_be_shaded(body, light, lamps, shot, view, i, j):
            share = kernels.seen_share(
                light, body, lamps, shot, view, samples, i, j, 0, 64, wp.uint32(b)
            )
            found[light] = 1.0 - share[1]
            skipped[light] = 1.0
    if not kernels.near_object(body, view, shot, i, j):
        skipped[3] = 1.0
        for s in range(64):
            x = kernels.object_sample(
                body, lamps, view, samples, normals, shot, i, j, s, wp.uint32(b)
            )
            found[3] = found[3] + x[3]
    out[b, i, j] = found
    tested[b, i, j] = skipped


def several_objects(raw):
    """An engine of three objects of two materials, and what it looks at for raw latents."""
    data = {**PRESET.as_dict(), "best_r2": {}, "objects": 3, "materials": ["metal", "rubber"]}
    data["scale"] = 0.6
    preset = parse_preset(data, "test")
    level = get_quality("draft", "direct")
    engine = DirectEngine(preset, level, resolution=SIDE, device="cpu")
    more = [sample_raw_latents(range(len(raw)), seed=seed, split="val") for seed in (5, 6)]
    own = [PRESET.to_scene(each)[:, [*range(6), 7]] for each in more]
    numbers = np.ones((len(raw), 1), np.float32)
    return engine, np.hstack(
        [PRESET.to_scene(raw), 0 * numbers, own[0], numbers, own[1], 0 * numbers]
    )


def test_what_is_not_looked_at_of_several_objects_has_neither():
    engine, rows = several_objects(sample_raw_latents(range(4), seed=3, split="val"))
    skipped = []
    for row in rows:
        scene = engine._builder.build(row)
        solid = engine._merged(scene)
        shot = _shot(scene, solid.sphere, merged=True)
        scenes = wp.array([shot], dtype=kernels.Shot, device="cpu")
        skipped += [what_is_left_out(engine, solid, scenes)]
    assert (np.mean(skipped, axis=(0, 1)) > 0.02).all()


def test_what_is_not_looked_at_has_neither_shadow_nor_object(engine):
    raw = np.concatenate(
        [
            sample_raw_latents(range(12), seed=3, split="val"),
            np.sign(sample_raw_latents(range(4), seed=4, split="val")),  # corners of the range
        ]
    )
    skipped = what_is_left_out(engine, engine._solid(), shots(engine, raw))
    assert (np.array(skipped) > 0.02).all()  # much is left out


def what_is_left_out(engine, solid, scenes):
    """The shares of lights and object that are not looked at, by view; none of it is seen."""
    shares = []
    for view in (engine._fine, engine._shadows):
        shape = (len(scenes), view.side, view.side)
        out, tested = (wp.empty(shape, dtype=wp.vec4, device="cpu") for _ in range(2))
        inputs = [solid.body, engine._lamps, view, engine._samples, solid.tree.normals, scenes]
        wp.launch(_left_out, shape, inputs=inputs, outputs=[out, tested], device="cpu")
        found, skipped = out.numpy().reshape(-1, 4), tested.numpy().reshape(-1, 4)
        assert found.max() < 1e-5  # of sums of weights
        shares.append(skipped.mean(0))
    return shares


# --- Smoothing ---


def smooth(shares, count):
    found = wp.array(shares[None].astype(np.float32), dtype=wp.vec4, device="cpu")
    out = wp.empty(found.shape, dtype=wp.vec4, device="cpu")
    wp.launch(kernels.smooth_kernel, out.shape, inputs=[found, count], outputs=[out], device="cpu")
    return out.numpy()[0]


@settings(max_examples=30, deadline=None)
@given(
    arrays.arrays(np.float32, (9, 9, 4), elements=st.floats(0, 1, width=32)),
    st.sampled_from([8, 64, 256]),
)
def test_smoothing_stays_within_the_noise_of_the_samples(shares, count):
    out = smooth(shares, count)
    assert np.array_equal(out[..., 3], shares[..., 3])  # the cone is no estimate
    moved = np.abs(out - shares)[..., :3]
    assert moved[..., :2].max() <= 0.75 * count**-0.75 + 1e-5  # 1.5 of the largest spread, 1/2
    assert moved[..., 2].max() <= 0.75 + 1e-5


@pytest.mark.parametrize("count", [8, 256])
def test_smoothing_keeps_parabolas_and_steps(count):
    y, x = np.mgrid[0:12, 0:12] / 11.0
    parabola = 0.2 + 0.3 * x + 0.2 * x * y + 0.1 * y**2
    out = smooth(np.stack([parabola, parabola, parabola, np.ones_like(x)], -1), count)
    assert np.abs(out[2:-2, 2:-2, 0] - parabola[2:-2, 2:-2]).max() < 1e-5
    step = (x > 0.5).astype(float)
    out = smooth(np.stack([step, step, step, np.ones_like(x)], -1), 256)
    assert np.abs(out[..., 0] - step).max() < 0.02
    assert np.array_equal(out[:, :3, 0], step[:, :3])  # and far from it nothing rings


def test_noise_is_smoothed():
    random = np.random.default_rng(0)
    noise = 0.5 + 0.5 * 64**-0.75 * random.standard_normal((40, 40, 4))
    out = smooth(noise, 64)
    assert out[..., 0].std() < 0.5 * noise[..., 0].std()


# --- Where samples go ---


def test_samples_go_where_the_first_ones_differ():
    level = get_quality("standard", "direct")
    engine = DirectEngine(PRESET, level, resolution=96, device="cpu")
    raw = sample_raw_latents([0], seed=2, split="val")
    scenes = [SceneBuilder(PRESET).build(row) for row in PRESET.to_scene(raw)]
    ground, layer, counts = engine._layers(scenes)
    counts, covered = counts.numpy()[0], layer.numpy()[0, ..., 3]
    assert ground.shape == (1, 96, 96)
    edge = (covered > 0.05) & (covered < 0.95)
    inside = covered == 1
    assert set(np.unique(counts)) <= {0, *(level.inside * 2**k for k in range(6))}
    assert counts.max() == level.edge
    assert (counts[covered > 0] >= level.inside).all()
    assert counts[edge].mean() > counts[inside].mean()
    assert (counts[inside] == level.inside).any()
    _, _, differ = engine.render_layers(scenes)
    assert np.array_equal(differ[0], counts > level.inside)
