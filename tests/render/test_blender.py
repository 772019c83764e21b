"""The Blender engine on real renders, against converged ones."""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import pytest
from helpers.converged_renders import scene, wholes
from helpers.references import fidelity, references
from PIL import Image

from threedident.errors import UsageError
from threedident.latents import sample_raw_latents
from threedident.presets import load_preset
from threedident.render.blender import BlenderEngine, available_devices, blender_version
from threedident.render.color import psnr
from threedident.render.engine import create_engine
from threedident.render.image_regions import Grid
from threedident.render.quality import Layered, Whole, get_quality
from threedident.render.scene import SceneBuilder
from threedident.render.settings import EngineSettings, probe

PRESET = load_preset("3dident")


def render_all(latents, preset=PRESET, quality="standard", **options) -> list[np.ndarray]:
    """Images of rows of latents, from an engine that is started for them."""
    level = get_quality(quality) if isinstance(quality, str) else quality
    with contextlib.closing(BlenderEngine(SceneBuilder(preset), level, **options)) as engine:
        return [engine.render(row) for row in latents]


@pytest.mark.parametrize("folder", ["converged", "hard", "published"])
def test_standard_is_close_to_converged_renders_at_its_worst_pixels_too(folder):
    raw, images = references(folder)
    found = render_all(PRESET.to_scene(raw), quality="standard")
    ratios, tails, off = fidelity(found, images)
    assert ratios.mean() > 50
    assert ratios.min() > 46
    assert tails.mean() < 12
    assert tails.max() < 16
    assert off.max() < 0.006


def test_draft_shows_the_same_scene():
    raw, images = references("published")
    ratios, _, _ = fidelity(render_all(PRESET.to_scene(raw), quality="draft"), images)
    assert ratios.min() > 40


@pytest.mark.parametrize("material", ["rubber", "metal"])
def test_what_both_engines_share_fits_to_what_blender_makes(material):
    # No seam: pixels by Blender beside those by the other engine's code are of one image.
    preset, raw = scene("teapot", material)
    level = get_quality("standard")
    assert isinstance(level, Layered)
    latents = preset.to_scene(raw)
    blender = Layered((64, 64, 256), (64, 64, 64), coarseness=1)
    shared = render_all(latents, preset, level, resolution=48)
    alone = render_all(latents, preset, blender, resolution=48)
    assert min(psnr(a, b) for a, b in zip(shared, alone, strict=True)) > 36


def test_crystal_is_blenders_alone():
    preset, raw = scene("teapot", "crystal")
    latents = preset.to_scene(raw)[:1]
    level = get_quality("standard")
    alone = dataclasses.replace(level, direct=None)
    (one,), (other,) = (render_all(latents, preset, q, resolution=48) for q in (level, alone))
    assert np.array_equal(one, other)


def test_reference_keeps_50_db():
    preset, raw = scene("teapot", "rubber")
    found = render_all(preset.to_scene(raw), quality="reference", resolution=48)
    expected = wholes("teapot", "rubber")
    assert min(psnr(a, b) for a, b in zip(found, expected, strict=True)) > 50


@pytest.mark.parametrize("quality", ["draft", "standard", Whole(4)])
def test_pixels_do_not_depend_on_threads_or_on_what_was_rendered_before(quality):
    latents = PRESET.to_scene(sample_raw_latents(range(3), seed=5, split="val"))
    there_and_back = np.concatenate([latents, latents[::-1]])
    images = render_all(there_and_back, quality=quality, resolution=64)
    forwards, backwards = images[:3], images[:2:-1]
    assert np.array_equal(forwards, backwards)
    again = render_all(latents, quality=quality, resolution=64, threads=2)
    assert np.array_equal(forwards, again)
    assert forwards[0].shape == (64, 64, 3)
    assert forwards[0].dtype == np.uint8


@pytest.mark.parametrize("material", ["rubber", "metal", "crystal"])
def test_layers_are_the_whole_image(material):
    # Without the layers' approximations (few samples, a coarse ground), taking the image
    # apart must change nothing but noise.
    preset, raw = scene("teapot", material)
    fine = Layered((64, 64, 256), (64, 64, 64), coarseness=1)
    layered = render_all(preset.to_scene(raw), preset, fine, resolution=48)
    whole = wholes("teapot", material)
    # The metal's narrow highlight is found by sampling the lights alone: it stays noisy.
    bound = 38 if material == "metal" else 44
    assert min(psnr(a, b) for a, b in zip(layered, whole, strict=True)) > bound


def test_an_object_in_the_ground_is_cut_off_by_it():
    # A cube that lies on its corner at the lowest z reaches below the ground.
    preset = PRESET.changed(shape="cube")
    raw = np.array([[0.2, 0.1, -1, 0.5, 0.4, 0.3, 0.1, 0.4, 0.6, 0.2]], np.float32)
    builder = SceneBuilder(preset)
    latents = preset.to_scene(raw)
    scene = builder.build(latents[0])
    assert scene.place(builder.mesh.vertices)[:, 2].min() < scene.ground_height - 0.2
    (layered,) = render_all(latents, preset, resolution=64)
    (whole,) = render_all(latents, preset, Whole(512, light_tree=True), resolution=64)
    assert psnr(layered, whole) > 38


@pytest.mark.parametrize("shape", ["teapot", "cube", "sphere", "cylinder"])
def test_a_shape_shows_where_it_projects_to(shape):
    preset = PRESET.changed(shape=shape)
    raw = np.zeros((2, 10), np.float32)
    raw[1, 7] = 1  # the same scene with another colour of the object
    latents = preset.to_scene(raw)
    red, green = render_all(latents, preset, "draft", resolution=64)
    builder = SceneBuilder(preset)
    points = builder.build(latents[0]).place(builder.mesh.vertices)
    region = Grid(64).around(points)
    changed = (red != green).any(2)
    inside = changed[region.window]
    assert changed.sum() == inside.sum()
    # The region has a margin, the teapot a handle, and every shape a dark side.
    assert inside.mean() > 0.25


def test_a_users_mesh_is_rendered_like_the_same_shape_built_in(tmp_path):
    # Our own teapot through a file: the smooth normals travel along.
    import trimesh

    mesh = SceneBuilder(PRESET).mesh
    path = tmp_path / "teapot.ply"
    solid = trimesh.Trimesh(
        mesh.vertices[mesh.corners],
        mesh.triangles(),
        vertex_normals=mesh.normals,
        process=False,
    )
    solid.export(path, vertex_normal=True)
    preset = PRESET.changed(shape=str(path))
    builder = SceneBuilder(preset)
    assert builder.size == pytest.approx(SceneBuilder(PRESET).size, abs=1e-5)
    # A file's mesh is centred by its bounding box, which the teapot as published is not.
    offset = (mesh.vertices.min(0) + mesh.vertices.max(0)) / 2 * 1.5
    latents = PRESET.to_scene(np.zeros((1, 10), np.float32))
    moved = latents.copy()
    moved[0, :3] += offset
    (built_in,) = render_all(latents, quality=Whole(64), resolution=64)
    (own,) = render_all(moved, preset, Whole(64), resolution=64)
    # The spotlight is aimed at the origin of each, so only the rest of the light agrees.
    assert psnr(built_in, own) > 25
    assert np.isfinite(builder.mesh.normals).all()


@pytest.mark.parametrize("resolution", [8, 33, 300])
def test_any_resolution(resolution):
    latents = PRESET.to_scene(np.zeros((1, 10), np.float32))
    (image,) = render_all(latents, quality="draft", resolution=resolution)
    assert image.shape == (resolution, resolution, 3)
    (large,) = render_all(latents, quality="draft", resolution=96)
    shrunk = np.asarray(Image.fromarray(large).resize((8, 8), Image.Resampling.BOX))
    same = np.asarray(Image.fromarray(image).resize((8, 8), Image.Resampling.BOX))
    assert psnr(same, shrunk) > 27


def test_an_object_outside_the_frame():
    latents = PRESET.to_scene(np.zeros((1, 10), np.float32))
    latents[0, 1] = 30
    (image,) = render_all(latents, quality="draft", resolution=32)
    assert image.std((0, 1)).max() < 30


def test_what_is_there():
    assert blender_version().startswith(("4.5.", "5.0."))
    assert available_devices()["cpu"] == 1


def test_an_engine_with_settings_that_do_not_fit():
    with pytest.raises(UsageError, match="draft, standard, reference"):
        EngineSettings(PRESET, quality="best")
    with pytest.raises(UsageError, match="resolution"):
        EngineSettings(PRESET, resolution=4)
    with pytest.raises(UsageError, match="device"):
        EngineSettings(PRESET, device="tpu")
    if "cuda" not in available_devices():
        with pytest.raises(UsageError, match="no cuda device"):
            create_engine(EngineSettings(PRESET, device="cuda"))


def test_a_process_that_is_started_beside_blender_finds_it_too():
    # Blender puts folders of its own on this process's path, which the other one inherits.
    here = blender_version()
    assert probe("cycles").version.startswith(f"{here}, Warp 1.")
