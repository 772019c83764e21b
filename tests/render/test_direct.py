"""The direct engine: its terms alone, and its images against converged Blender renders."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from helpers.commands import SMALL
from helpers.converged_renders import scene, wholes
from helpers.references import fidelity, references
from helpers.sample_points import require_net

from threedident.errors import UsageError
from threedident.latents import sample_raw_latents
from threedident.presets import load_preset
from threedident.render.color import psnr, to_uint8
from threedident.render.engine import create_engine
from threedident.render.quality import Whole, get_quality
from threedident.render.settings import EngineSettings
from threedident.storage.shard_plan import list_shards

wp = pytest.importorskip("warp")

from threedident.render.direct import integrand  # noqa: E402
from threedident.render.direct.engine import (  # noqa: E402
    DirectEngine,
    _lamps,
    available_devices,
    filter_table,
    jacobian,
    kernels,
    render,
)

PRESET = load_preset("3dident")
UP = np.array([0.0, 0.0, 1.0])


def vectors(rows):
    return wp.array(np.asarray(rows, np.float32), dtype=wp.vec3, device="cpu")


def evaluate(function, n, v, l, *parameters):
    """A term over arrays of directions."""
    count = max(len(np.atleast_2d(x)) for x in (n, v, l))
    arrays = [vectors(np.broadcast_to(x, (count, 3))) for x in (n, v, l)]
    return wp.map(function, *arrays, *map(float, parameters)).numpy()


def sphere(steps=400):
    """Directions of the upper hemisphere, cos-stratified, and the solid angle of each."""
    z = (np.arange(steps) + 0.5) / steps
    phi = 2 * np.pi * (np.arange(steps) + 0.5) / steps
    z, phi = (grid.ravel() for grid in np.meshgrid(z, phi))
    r = np.sqrt(1 - z**2)
    return np.stack([r * np.cos(phi), r * np.sin(phi), z], 1), 2 * np.pi / steps**2


def direction(polar, azimuth=0.0):
    return np.array(
        [np.sin(polar) * np.cos(azimuth), np.sin(polar) * np.sin(azimuth), np.cos(polar)]
    )


# --- Terms ---


@pytest.mark.parametrize("ior", [1.2, 1.4])
def test_fresnel(ior):
    cosines = wp.array(np.linspace(0, 1, 101, dtype=np.float32), device="cpu")
    found = wp.map(integrand.fresnel, cosines, ior).numpy()
    assert found[-1] == pytest.approx(((ior - 1) / (ior + 1)) ** 2, rel=1e-4)
    assert found[0] == pytest.approx(1.0)
    assert (np.diff(found) <= 1e-6).all()
    # The formulas for both polarisations, by Snell's law.
    c = np.linspace(0.05, 1, 96)
    t = np.sqrt(1 - (1 - c**2) / ior**2)
    s, p = (c - ior * t) / (c + ior * t), (ior * c - t) / (ior * c + t)
    assert found[5:] == pytest.approx((s**2 + p**2) / 2, abs=1e-5)


def test_a_diffuse_surface_sends_on_all_light():
    l, omega = sphere()
    cosines = wp.array(l[:, 2].astype(np.float32), device="cpu")
    assert wp.map(integrand.diffuse, cosines).numpy().sum() * omega == pytest.approx(1, abs=1e-3)


GLOSSY = [
    pytest.param("beckmann", (0.35,), id="beckmann"),
    pytest.param("velvet", (0.6,), id="velvet"),
]


@pytest.mark.parametrize(("name", "parameters"), GLOSSY)
@pytest.mark.parametrize("polar", [0.1, 0.7, 1.2])
def test_no_surface_makes_light(name, parameters, polar):
    l, omega = sphere()
    f = evaluate(getattr(integrand, name), UP, direction(polar), l, *parameters)
    assert (f >= 0).all()
    assert f.sum() * omega < 1.0


@pytest.mark.parametrize(("name", "parameters"), GLOSSY)
def test_light_goes_both_ways_alike(name, parameters):
    rng = np.random.default_rng(0)
    v, l = (
        np.abs(x) / np.linalg.norm(x, axis=1, keepdims=True) for x in rng.normal(size=(2, 200, 3))
    )
    function = getattr(integrand, name)
    there = evaluate(function, UP, v, l, *parameters) / l[:, 2]
    back = evaluate(function, UP, l, v, *parameters) / v[:, 2]
    assert there == pytest.approx(back, rel=1e-3, abs=1e-6)


def test_light_from_below_adds_nothing():
    for name, parameters in (("beckmann", 0.35), ("velvet", 0.6)):
        function = getattr(integrand, name)
        assert evaluate(function, UP, direction(0.5), direction(2.0), parameters) == 0
        assert evaluate(function, UP, direction(2.0), direction(0.5), parameters) == 0


@pytest.mark.parametrize("alpha", [0.2, 0.35])
def test_beckmann_normals_cover_the_surface(alpha):
    h, omega = sphere(800)
    cosines = wp.array(h[:, 2].astype(np.float32), device="cpu")
    density = wp.map(integrand.beckmann_density, cosines, alpha).numpy()
    assert (density * h[:, 2]).sum() * omega == pytest.approx(1, abs=2e-3)


@pytest.mark.parametrize(("ax", "ay"), [(0.2, 0.2), (0.15, 0.3)])
def test_ggx(ax, ay):
    h, omega = sphere(800)
    directions = vectors(h)
    density = wp.map(integrand.ggx_density, directions, ax, ay).numpy()
    assert (density * h[:, 2]).sum() * omega == pytest.approx(1, abs=5e-3)
    v = vectors(np.broadcast_to(direction(0.6, 0.4), h.shape))
    pdf = wp.map(integrand.ggx_visible_pdf, v, directions, ax, ay).numpy()
    f = wp.map(integrand.ggx, v, directions, ax, ay).numpy()
    assert f.sum() * omega < 1
    # Some visible normals reflect below the surface; every other direction is counted.
    assert 0.9 < pdf.sum() * omega <= 1.005
    # Reflecting at visible normals is worth what the integral says (Heitz 2018).
    u = np.random.default_rng(1).uniform(size=(200_000, 2)).astype(np.float32)
    points = wp.array(u, dtype=wp.vec2, device="cpu")
    eye = vectors(np.broadcast_to(direction(0.6, 0.4), (len(u), 3)))
    normals = wp.map(integrand.ggx_visible_normal, eye, ax, ay, points).numpy()
    w = direction(0.6, 0.4)
    l = 2 * (normals @ w)[:, None] * normals - w
    sampled = vectors(l)
    weight = wp.map(integrand.ggx, eye, sampled, ax, ay).numpy()
    chance = wp.map(integrand.ggx_visible_pdf, eye, sampled, ax, ay).numpy()
    estimate = np.divide(weight, chance, out=np.zeros_like(weight), where=chance > 0).mean()
    assert estimate == pytest.approx(f.sum() * omega, rel=0.01)


def test_the_spotlights_edge():
    cone = math.cos(math.radians(17.5))
    inner = cone + 0.1 * (1 - cone)
    cosines = wp.array(
        np.array([cone - 0.01, cone, (cone + inner) / 2, inner, 1], np.float32), device="cpu"
    )
    found = wp.map(integrand.spot_falloff, cosines, cone, 0.1).numpy()
    assert found == pytest.approx([0, 0, 0.5, 1, 1], abs=1e-3)


def test_disk_points_are_uniform():
    grid = (np.stack(np.meshgrid(*[np.arange(200)] * 2), -1).reshape(-1, 2) + 0.5) / 200
    points = wp.map(
        integrand.disk_point, wp.array(grid.astype(np.float32), dtype=wp.vec2, device="cpu")
    ).numpy()
    radius2 = (points**2).sum(1)
    assert radius2.max() < 1
    assert np.quantile(radius2, [0.25, 0.5, 0.75]) == pytest.approx([0.25, 0.5, 0.75], abs=0.01)
    assert points.mean(0) == pytest.approx([0, 0], abs=1e-3)
    assert (points**2).mean(0) == pytest.approx([0.25, 0.25], abs=1e-3)


@wp.kernel
def _points(pair: int, seed: wp.uint32, out: wp.array(dtype=wp.vec2)):
    i = wp.tid()
    bits = integrand.sample_bits(i, pair, seed)
    out[i] = integrand.unit_square(bits[0], bits[1])


def points_of(count, pair=0, seed=1):
    out = wp.empty(count, dtype=wp.vec2, device="cpu")
    wp.launch(_points, count, inputs=[pair, wp.uint32(seed)], outputs=[out], device="cpu")
    return out.numpy()


@pytest.mark.parametrize("seed", [0, 1, 123456789])
@pytest.mark.parametrize("pair", [0, 3])
def test_sample_points_are_a_scrambled_net(seed, pair):
    points = points_of(64, pair, seed)
    require_net(points)
    assert not np.array_equal(points, points_of(64, pair + 1, seed))
    assert not np.array_equal(points, points_of(64, pair, seed + 1))


def test_the_pixel_filter():
    table = filter_table().astype(np.float64)
    assert table[0] == -1.5
    assert table[-1] == 1.5
    assert table == pytest.approx(-table[::-1], abs=1e-5)
    # Quantiles of the Blackman-Harris window: its moments by quadrature.
    x = np.linspace(-1.5, 1.5, 100_001)
    phase = 2 * np.pi * (x / 3 + 0.5)
    window = 0.35875 - 0.48829 * np.cos(phase) + 0.14128 * np.cos(2 * phase)
    window -= 0.01168 * np.cos(3 * phase)
    for power in (2, 4):
        expected = (window * x**power).sum() / window.sum()
        a, b = table[:-1], table[1:]  # linear between the quantiles
        moment = ((b ** (power + 1) - a ** (power + 1)) / (b - a) / (power + 1)).mean()
        assert moment == pytest.approx(expected, rel=0.03)


@wp.kernel
def _pdfs(
    lamps: kernels.Lamps,
    shot: kernels.Shot,
    p: wp.vec3,
    l: wp.array(dtype=wp.vec3),
    out: wp.array(dtype=wp.vec3),
):
    i = wp.tid()
    out[i] = wp.vec3(
        kernels.sun_pdf(lamps, l[i]),
        kernels.area_pdf(lamps, p, l[i]),
        kernels.spot_pdf(lamps, shot, p, l[i]),
    )


def test_each_light_is_sampled_with_its_density():
    p = wp.vec3(0.4, -0.7, 0.3)
    shot = kernels.Shot()
    shot.spot = wp.vec3(2.0, 3.0, 10.4)
    l, omega = sphere(3000)
    out = wp.empty(len(l), dtype=wp.vec3, device="cpu")
    wp.launch(_pdfs, len(l), inputs=[_lamps(), shot, p, vectors(l)], outputs=[out], device="cpu")
    assert out.numpy().sum(0) * omega == pytest.approx([1, 1, 1], abs=0.02)


# --- Images ---


@pytest.mark.parametrize(
    ("quality", "mean", "worst", "tail"),
    [("draft", 42, 38, 40), ("standard", 50, 46, 16), ("reference", 52, 48, 12)],
)
@pytest.mark.parametrize("folder", ["converged", "hard", "published"])
def test_fidelity_to_converged_blender_renders(folder, quality, mean, worst, tail):
    raw, images = references(folder)
    if quality == "reference":  # which only takes more samples
        raw, images = raw[:8], images[:8]
    ratios, tails, _ = fidelity(render(raw, PRESET, quality=quality, device="cpu"), images)
    assert ratios.mean() > mean
    assert ratios.min() > worst
    assert tails.max() <= tail


def test_rubber_seen_from_behind_is_mixed_as_by_blender():
    # Scene 8 of the hard ones: light falls into the spout and the gap around the lid.
    raw, images = references("hard")
    (image,) = render(raw[8:9], PRESET, quality="reference", device="cpu")
    errors = np.abs(image.astype(int) - images[8]).max(-1)
    assert errors[30:40, 26:36].max() < 25  # the spout: 95 with the mix of the outside
    assert errors[0:10, 30:42].max() < 25
    front, back = (integrand.rubber_mix(0.5, side) for side in (False, True))
    assert tuple(back) == pytest.approx((1.0, 1.0))  # total reflection
    assert front[0] < front[1] < 0.1


def test_shapes_and_metal_agree_with_blender():
    for shape, material in (("cube", "rubber"), ("cylinder", "metal")):
        preset, raw = scene(shape, material)
        expected = wholes(shape, material)
        found = render(raw, preset, resolution=64, quality="reference", device="cpu")
        assert min(psnr(a, b) for a, b in zip(found, expected, strict=True)) > 40


def test_pixels_do_not_depend_on_the_batch():
    raw = sample_raw_latents(range(5), seed=2, split="val")
    together = render(raw, PRESET, resolution=40, device="cpu")
    apart = [render(row[None], PRESET, resolution=40, device="cpu")[0] for row in raw]
    assert np.array_equal(together, apart)
    engine = DirectEngine(PRESET, get_quality("standard", "direct"), resolution=40, device="cpu")
    assert np.array_equal(engine.render_batch(PRESET.to_scene(raw)), together)


def test_linear_light_is_what_is_encoded():
    raw = sample_raw_latents(range(2), seed=2, split="val")
    linear = render(raw, PRESET, resolution=40, device="cpu", dtype="float32")
    assert linear.dtype == np.float32
    assert linear.shape == (2, 40, 40, 3)
    encoded = render(raw, PRESET, resolution=40, device="cpu")
    assert np.abs(encoded.astype(int) - to_uint8(linear)).max() <= 1
    assert (encoded != to_uint8(linear)).mean() < 1e-3


def test_images_of_nearby_latents_share_their_noise():
    raw = sample_raw_latents([0], seed=2, split="val")
    near = raw.copy()
    near[0, 9] += 1e-3  # the ground's colour alone
    base, moved, other = (
        render(r, PRESET, resolution=48, quality="draft", device="cpu", seed=s, dtype="float32")
        for r, s in ((raw, 0), (near, 0), (raw, 1))
    )
    assert np.abs(moved - base).mean() < 0.2 * np.abs(other - base).mean()


def test_what_the_engine_cannot_do():
    with pytest.raises(UsageError, match=r"cannot render crystal.*--engine cycles"):
        render(np.zeros((1, 10)), PRESET.changed(material="crystal"))
    if "cuda" not in available_devices():
        with pytest.raises(UsageError, match="no cuda device for the direct engine"):
            render(np.zeros((1, 10)), PRESET, device="cuda")
    with pytest.raises(UsageError, match="float32"):
        render(np.zeros((1, 10)), PRESET, dtype="float64")
    with pytest.raises(UsageError, match=r"\[-1, 1\]"):
        render(np.full((1, 10), 1.01), PRESET)
    with pytest.raises(UsageError, match="found nan"):
        render(np.full((1, 10), np.nan), PRESET)
    with pytest.raises(UsageError, match="no Whole quality"):
        DirectEngine(PRESET, Whole(4))
    with pytest.raises(UsageError, match="more than there is"):
        render(np.zeros((300_000, 10)), PRESET, resolution=4096, device="cpu")
    with pytest.raises(UsageError, match="unknown engine 'eevee'"):
        EngineSettings(PRESET, engine="eevee")


def test_a_preset_by_name_and_a_mesh_with_holes(tmp_path):
    raw = sample_raw_latents([3], seed=0, split="val")
    named = render(raw, "3dident-wrapped", resolution=16, quality="draft", device="cpu")
    preset = load_preset("3dident-wrapped")
    assert np.array_equal(named, render(raw, preset, resolution=16, quality="draft", device="cpu"))
    path = tmp_path / "open.obj"
    path.write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n")
    with pytest.warns(RuntimeWarning, match="3 open edges"):
        render(raw, preset.changed(shape=str(path)), resolution=16, device="cpu")


def test_too_little_memory_means_smaller_batches():
    engine = create_engine(EngineSettings(PRESET, 16, "draft", "cpu", "direct"))
    engine.batch = 8
    with pytest.warns(RuntimeWarning, match="4 images at a time"):
        engine.shrink()
    assert engine.batch == 4


# --- The Jacobian ---


def test_the_jacobian_of_a_colour_is_exact_where_it_is_smooth():
    # The ground's hue alone, on the wrapped preset: a finer difference gives the same.
    preset = load_preset("3dident-wrapped")
    raw = np.zeros((1, 10), np.float32)
    raw[0, 9] = 0.3
    coarse = jacobian(raw, preset, resolution=16, device="cpu", step=0.02)[0, :, 9]
    fine = jacobian(raw, preset, resolution=16, device="cpu", step=0.005)[0, :, 9]
    assert np.linalg.norm(coarse) > 0.1
    assert np.linalg.norm(coarse - fine) < 0.02 * np.linalg.norm(fine)


def test_the_unwrapped_hue_shows():
    raw = np.full((1, 10), 0.1, np.float32)
    raw[0, 7] = -0.3
    flat = jacobian(raw, PRESET, resolution=16, device="cpu")
    assert flat.shape == (1, 16 * 16 * 3, 10)
    assert np.abs(flat[0, :, 7]).max() == 0
    wrapped = jacobian(raw, load_preset("3dident-wrapped"), resolution=16, device="cpu")
    assert np.abs(wrapped[0, :, 7]).max() > 0.1


def test_the_gimbal_lock_shows():
    raw = np.zeros((2, 10), np.float32)
    raw[:, 3], raw[:, 5] = 0.2, -0.3
    raw[1, 4] = 0.999
    found = jacobian(raw, PRESET, resolution=32, quality="reference", device="cpu")[:, :, 3:6]
    values = np.linalg.svd(found, compute_uv=False)
    assert values[1, 2] / values[1, 0] < 0.4 * values[0, 2] / values[0, 0]


def test_the_ends_of_the_range_and_factors_held_fixed():
    preset = load_preset("3dident-fixed-spotlight")
    ends = preset.hold_fixed(np.ones((1, 10), np.float32))
    found = jacobian(ends, preset, resolution=16, device="cpu")
    assert np.isfinite(found).all()
    assert (found[:, :, [6, 8]] == 0).all()
    assert np.abs(found[:, :, 0]).max() > 0
    with pytest.raises(UsageError, match="step"):
        jacobian(ends, preset, step=0)


# --- Datasets ---


def test_a_dataset_of_the_direct_engine(cli, tmp_path, small_dataset):
    direct = ("render", *SMALL, "--engine", "direct", "--shard-size", 5, "--out")
    cli(*direct, "d", "--n", 7)
    cli(*direct, "d", "--n", 12, "--workers", 1)
    cli(*direct, "e", "--n", 12, "--images-per-worker", 4)
    cli("verify", "d", "--n", 12)
    from threedident.datasets.formats import open_dataset

    roots = (tmp_path / "d", tmp_path / "e", small_dataset)
    d, e, blender = (open_dataset(root) for root in roots)
    with d, e, blender:
        assert np.array_equal(d.raw_latents, blender.raw_latents)
        for i in range(12):
            assert np.array_equal(d.image(i), e.image(i))
            assert psnr(d.image(i), blender.image(i)) > 24
    engine = json.loads((tmp_path / "d/dataset.json").read_text())["settings"]["engine"]
    assert (engine["name"], engine["method"], engine["edge"]) == ("direct", "integrated", 32)
    assert len(list_shards(tmp_path / "d")) == 4


def test_engines_do_not_mix(cli, tmp_path):
    cli("render", *SMALL, "--engine", "direct", "--n", 2, "--out", "d")
    refused = cli("render", *SMALL, "--n", 4, "--out", "d", code=2).stderr
    assert "engine.name: the dataset has 'direct', this command 'cycles'" in refused


def test_bad_engines_and_what_they_lack(cli):
    words = ("render", *SMALL, "--n", 2, "--out", "d", "--engine")
    assert "unknown engine 'eevee'" in cli(*words, "eevee", code=2).stderr
    assert "--engine cycles" in cli(*words, "direct", "--material", "crystal", code=2).stderr
    assert "no optix device" in cli(*words, "direct", "--device", "optix", code=2).stderr


def test_a_mesh_with_holes_is_warned_of(cli, tmp_path):
    (tmp_path / "open.obj").write_text(
        "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 1 1 2\n"
    )
    said = cli(
        "render", *SMALL, "--engine", "direct", "--n", 1, "--out", "d", "--shape", "open.obj"
    )
    assert "4 open edges" in said.stderr
    assert "1 faces without area" in said.stderr


def test_compare_engines(cli, tmp_path):
    said = cli(
        *("compare-engines", "--n", 6, "--resolution", 48, "--quality", "standard"),
        *("--out", "sheet.png"),
    ).stdout
    mean, worst = (float(text.split()[0]) for text in said.split("mean ")[1].split("worst "))
    assert mean > 40
    assert worst > 36
    assert said.count("\n") >= 13
    assert (tmp_path / "sheet.png").stat().st_size > 1000
