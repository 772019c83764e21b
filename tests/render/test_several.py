"""Several shapes, materials, objects and spotlights, in both engines."""

from __future__ import annotations

import contextlib
import dataclasses
import json

import numpy as np
import pytest

pytest.importorskip("warp")

from helpers.causal import model

from threedident.causal import Sampling
from threedident.datasets import RenderedPairs
from threedident.distributions import Normal
from threedident.errors import UsageError
from threedident.presets import load_preset, parse_preset
from threedident.render.blender import BlenderEngine
from threedident.render.color import psnr, to_uint8
from threedident.render.content import Content, dataset_settings
from threedident.render.dataset import render_dataset
from threedident.render.direct.engine import DirectEngine, jacobian, render
from threedident.render.images import render_images
from threedident.render.quality import Layered, Whole, get_quality
from threedident.render.scene import SceneBuilder
from threedident.render.settings import EngineSettings

BASE = load_preset("3dident-wrapped")
SIDE = 32


def preset_of(**fields):
    return parse_preset({**BASE.as_dict(), "best_r2": {}, **fields}, "test")


def rows_of(preset, count=4, *, seed=0):
    """Scene rows within the preset's ranges, classes in turn."""
    rng = np.random.default_rng(seed)
    rows = np.empty((count, len(preset.columns)), np.float32)
    for column, name in enumerate(preset.columns):
        stem, _, number = name.rpartition("_") if name[-1].isdigit() else (name, "", "1")
        if stem in ("shape", "material"):
            classes = len(preset.shapes if stem == "shape" else preset.materials)
            rows[:, column] = (np.arange(count) + int(number) - 1) % classes
        else:
            rows[:, column] = rng.uniform(*preset.ranges[stem], count)
    return rows


def columns(preset, rows, names):
    return rows[:, [preset.columns.index(name) for name in names]]


def direct(preset, rows, quality="draft", side=SIDE):
    level = get_quality(quality, "direct")
    return DirectEngine(preset, level, resolution=side, device="cpu").render_batch(rows)


def blender(preset, rows, quality="draft", side=SIDE):
    level = get_quality(quality, "cycles") if isinstance(quality, str) else quality
    engine = BlenderEngine(SceneBuilder(preset), level, resolution=side)
    with contextlib.closing(engine):
        return engine.render_batch(rows)


ENGINES = pytest.mark.parametrize("draw", [direct, blender])


# --- One object of several shapes and materials ---


@ENGINES
def test_an_image_is_that_of_the_preset_with_its_shape_and_material_alone(draw):
    preset = preset_of(shapes=["teapot", "cube"], materials=["rubber", "metal"])
    rows = rows_of(preset)
    rows[:, 11] = [0, 0, 1, 1]
    images = draw(preset, rows)
    for k, (shape, material) in enumerate((s, m) for m in ("rubber", "metal") for s in (0, 1)):
        alone = BASE.changed(shape=preset.shapes[shape], material=material)
        assert tuple(rows[k, 10:]) == (shape, ("rubber", "metal").index(material))
        assert np.array_equal(draw(alone, rows[k : k + 1, :10])[0], images[k])


@pytest.mark.parametrize("quality", ["draft", Whole(4)])
def test_blender_forgets_what_it_showed_before(quality):
    preset = preset_of(
        shapes=["teapot", "knot"],
        materials=["metal", "rubber"],
        objects=2,
        spotlights="each",
    )
    rows = rows_of(preset, 3)
    images = blender(preset, np.concatenate([rows, rows[::-1]]), quality)
    assert np.array_equal(images[:3], images[:2:-1])
    assert len({image.tobytes() for image in images}) == 3


def test_the_direct_engine_makes_an_image_the_same_in_any_batch():
    preset = preset_of(shapes=["teapot", "cube", "knot"], objects=2)
    for one in (preset, dataclasses.replace(preset, objects=1)):
        rows = rows_of(one, 5)
        images = direct(one, rows)
        assert np.array_equal(images[::-1], direct(one, rows[::-1]))
        assert np.array_equal(images[2:3], direct(one, rows[2:3]))


@ENGINES
def test_ground_and_lift_are_the_presets(draw):
    rows = rows_of(preset_of(shapes=["cube", "teapot"]), 2)
    usual = draw(preset_of(shapes=["cube", "teapot"]), rows)
    # The teapot is the larger one: only the cube's ground is lower than usual.
    low = draw(preset_of(shapes=["cube", "teapot"], ground=["teapot"]), rows)
    assert [np.array_equal(a, b) for a, b in zip(usual, low, strict=True)] == [False, True]
    raised = rows.copy()
    builder = SceneBuilder(preset_of(shapes=["cube", "teapot"]))
    raised[:, 2] += np.array(builder.sizes, np.float32) / 2
    no_lift = draw(preset_of(shapes=["cube", "teapot"], lift="none"), raised)
    assert min(psnr(a, b) for a, b in zip(usual, no_lift, strict=True)) > 45


# --- Several objects ---


def exchanged(preset, rows):
    """The same scenes with the two objects, and their spotlights, the other way round."""
    own = [name for name in preset.columns if f"{name}_2" in preset.columns]
    first = [preset.columns.index(name) for name in own]
    second = [preset.columns.index(f"{name}_2") for name in own]
    other = rows.copy()
    other[:, first], other[:, second] = rows[:, second], rows[:, first]
    return other


@ENGINES
def test_which_object_is_the_first_does_not_show(draw):
    preset = preset_of(
        shapes=["teapot", "horn"], materials=["metal", "rubber"], objects=2, spotlights="each"
    )
    rows = rows_of(preset)
    images, others = (draw(preset, each, "standard") for each in (rows, exchanged(preset, rows)))
    assert min(psnr(a, b) for a, b in zip(images, others, strict=True)) > 38
    # A single spotlight is the first one's.
    preset = dataclasses.replace(preset, spotlights="one")
    rows = rows[:1, : len(preset.columns)]
    (image,), (other,) = (
        draw(preset, each, "standard") for each in (rows, exchanged(preset, rows))
    )
    assert psnr(image, other) < 30


@pytest.mark.parametrize("material", ["rubber", "metal"])
def test_an_object_beside_one_that_is_far_away_is_as_it_is_alone(material):
    preset = preset_of(objects=2, materials=[material])
    rows = rows_of(preset)
    rows[:, preset.columns.index("y_2")] = 1e3
    alone = direct(BASE.changed(material=material), rows[:, :10], "standard", 48)
    images = direct(preset, rows, "standard", 48)
    assert min(psnr(a, b) for a, b in zip(images, alone, strict=True)) > 42


def test_light_of_spotlights_adds_up():
    each = preset_of(objects=2, spotlights="each")
    one = preset_of(objects=2)
    rows = rows_of(each, 2)
    level = get_quality("standard", "direct")

    def light(preset, rows):
        engine = DirectEngine(preset, level, resolution=SIDE, device="cpu")
        return engine.render_linear(rows).numpy()

    def unlit(preset, rows):
        """The same without any spotlight: of no colour, which no hue has."""
        engine = DirectEngine(preset, level, resolution=SIDE, device="cpu")
        scenes = [engine._builder.build(row) for row in rows]
        dark = [dataclasses.replace(scene, spot_color=(0.0, 0.0, 0.0)) for scene in scenes]
        ground, layer, _ = engine.render_layers(dark)
        return layer[..., :3] + (1 - layer[..., 3:]) * ground

    both = light(each, rows)
    swapped = exchanged(each, rows)
    first, second = (light(one, part[:, : len(one.columns)]) for part in (rows, swapped))
    dark = unlit(one, rows[:, : len(one.columns)])
    assert (first - dark).max() > 0.1
    assert (second - dark).max() > 0.1
    errors = np.abs(both - (first + second - dark))
    assert np.median(errors) < 1e-3
    assert psnr(to_uint8(both), to_uint8(first + second - dark)) > 38


@pytest.mark.parametrize(("spotlights", "count"), [("one", 1), ("each", 2)])
def test_both_engines_show_the_same_objects(spotlights, count):
    preset = preset_of(
        shapes=["teapot", "star", "cube"],
        materials=["rubber", "metal"],
        objects=3,
        spotlights=spotlights,
    )
    rows = rows_of(preset, count, seed=4)
    converged = blender(preset, rows, Whole(512, light_tree=True), 48)
    found = direct(preset, rows, "reference", 48)
    assert min(psnr(a, b) for a, b in zip(found, converged, strict=True)) > 39
    shared = blender(preset, rows, "standard", 48)
    assert min(psnr(a, b) for a, b in zip(shared, converged, strict=True)) > 35


# --- What is refused ---


def test_crystal_among_several():
    several = preset_of(materials=["rubber", "crystal"])
    with pytest.raises(UsageError, match="the direct engine cannot render crystal"):
        DirectEngine(several, get_quality("draft", "direct"), device="cpu")
    with pytest.raises(UsageError, match="the direct engine cannot render crystal"):
        EngineSettings(several, engine="direct")
    for preset in (several, preset_of(material="crystal", objects=2)):
        with pytest.raises(UsageError, match="take --quality reference with --engine cycles"):
            EngineSettings(preset, quality="draft", engine="cycles")
        EngineSettings(preset, quality="reference", engine="cycles")
    level = dataclasses.replace(get_quality("draft", "cycles"), direct=None)
    assert isinstance(level, Layered)
    with pytest.raises(UsageError, match="one object of one shape"):
        BlenderEngine(SceneBuilder(several), level, resolution=SIDE)
    rows = rows_of(several, 2)
    rubber, crystal = blender(several, rows, Whole(4))
    assert np.array_equal(blender(BASE, rows[:1, :10], Whole(4))[0], rubber)
    alone = BASE.changed(material="crystal")
    assert np.array_equal(blender(alone, rows[1:, :10], Whole(4))[0], crystal)


def test_ten_raw_latents_are_too_few(tmp_path):
    preset = preset_of(shapes=["teapot", "cube"], objects=2)
    raw = np.zeros((1, 10), np.float32)
    lacking = "has 19 columns, of which the ten factors lack shape, x_2, y_2, z_2, ...: "
    for function in (render, jacobian):
        with pytest.raises(UsageError, match=f"{lacking}.*DirectEngine.render_batch"):
            function(raw, preset)
    with pytest.raises(UsageError, match=f"{lacking}render scene rows"):
        render_images(raw, preset, engine="direct")
    with pytest.raises(UsageError, match=f"{lacking}.*--model FILE"):
        render_dataset(tmp_path / "d", 2, preset=preset, engine="direct", quiet=True)
    with pytest.raises(UsageError, match=lacking):
        RenderedPairs(conditional=Normal(0.3), preset=preset)
    assert not (tmp_path / "d").exists()


# --- Datasets ---


def test_settings_record_the_meshes_by_name(tmp_path):
    import trimesh

    for k, name in enumerate(("hare", "cow")):
        trimesh.creation.box((1, 2, 1 + k)).export(tmp_path / f"{name}.stl")
    table = {name: {"file": str(tmp_path / f"{name}.stl")} for name in ("hare", "cow")}
    preset = preset_of(shapes=["teapot", "hare"], ground=["cow"], shape_table=table)
    settings = dataset_settings(EngineSettings(preset, engine="direct"), seed=0, split="train")
    assert set(settings["mesh_sha256"]) == {"hare", "cow"}
    assert len(set(settings["mesh_sha256"].values())) == 2
    assert settings["preset"]["shape_table"] == {
        "hare": {"file": "hare.stl"},
        "cow": {"file": "cow.stl"},
    }
    assert str(tmp_path) not in json.dumps(settings)
    plain = dataset_settings(EngineSettings(BASE, engine="direct"), seed=0, split="train")
    assert plain["mesh_sha256"] is None
    assert Content(preset).mesh_warnings() == []
    scene = {"shapes": ["teapot", "hare"], "ground": ["cow"], "shape_table": table}
    for end, seen in ((0.5, True), (1e3, False)):
        near = {"y": {"mechanism": {"kind": "uniform"}, "scene": [end, end]}}
        sampling = Sampling(model(near, scene=scene))
        warning = Content(sampling.model.preset, sampling=sampling).frame_warning()
        assert warning is None if seen else "the object is wholly outside" in str(warning)


def test_a_dataset_with_a_shape_table_goes_on_with_its_files_alone(cli, tmp_path):
    import trimesh

    mesh = tmp_path / "files" / "box.stl"
    mesh.parent.mkdir()
    trimesh.creation.box((1, 2, 1)).export(mesh)
    (tmp_path / "mine.toml").write_text(
        'base = "3dident-wrapped"\nshape = "hare"\n[shape_table.hare]\nfile = "files/box.stl"\n'
        'scale = 1.5\nrotate = [0, 90, 0]\nlicence = "my own"\n'
    )
    words = ("--engine", "direct", "--quality", "draft", "--resolution", 16, "--workers", 1)
    cli("render", *words, "--preset", "mine.toml", "--n", 2, "--out", "d")
    said = cli("info", "d").stdout
    assert "mine: hare, rubber" in said
    assert "symmetries of a user's mesh" in said
    assert "add --shape FOLDER" in cli("render", "--extend", "d", "--n", 3, code=2).stderr
    cli("render", "--extend", "d", "--n", 3, "--shape", "files")
    cli("render", "--extend", "d", "--n", 4, "--shape", mesh)
    cli("verify", "d", "--n", 4)
    said = cli("render", "--extend", "d", "--n", 5, "--shape", tmp_path, code=2).stderr
    assert "there is no mesh file" in said
    trimesh.creation.box((1, 2, 2)).export(mesh)
    said = cli("render", "--extend", "d", "--n", 5, "--shape", "files", code=2).stderr
    assert "mesh_sha256.hare" in said


def test_a_preset_of_several_is_shown(cli, tmp_path):
    (tmp_path / "mine.toml").write_text(
        'base = "3dident-wrapped"\nshapes = ["teapot", "knot"]\nobjects = 2\nlift = "none"\n'
    )
    said = cli("presets", "mine.toml").stdout
    assert "teapot or knot of scale 1.5, rubber, hue wrapped" in said
    assert "objects 2, spotlights one" in said
    assert "lift none, ground by object" in said
    assert "background_hue, shape, x_2" in said
    assert "can change places" in said
