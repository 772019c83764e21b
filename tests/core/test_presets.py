import colorsys
import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from threedident.distributions import Normal
from threedident.errors import UsageError
from threedident.factors import FACTOR_NAMES
from threedident.presets import (
    BUILT_IN_SHAPES,
    SATURATION,
    MeshFile,
    load_preset,
    parse_preset,
    preset_names,
)
from threedident.render.content import dataset_settings
from threedident.render.mesh import SHAPES
from threedident.render.scene import SceneBuilder, hue_color
from threedident.render.settings import EngineSettings
from threedident.storage.manifest import Manifest


def test_the_built_in_presets():
    assert preset_names()[0] == "3dident"
    assert set(preset_names()) == {
        *("3dident", "3dident-wrapped", "3dident-regular", "3dident-positions"),
        *("3dident-rotations", "3dident-colors", "3dident-fixed-spotlight"),
    }
    for name in preset_names():
        preset = load_preset(name)
        assert preset.name == name
        assert set(preset.best_r2) == set(FACTOR_NAMES) - set(preset.fixed)


def test_the_published_mapping():
    raw = np.array([[1.0] * 10, [-0.5] * 10], np.float32)
    expected = np.array([3.0] * 3 + [math.pi / 2] * 7)
    scene = load_preset("3dident").to_scene(raw)
    assert scene.dtype == np.float32
    assert np.allclose(scene, raw * expected, rtol=1e-7)


def test_the_published_variants():
    held = {name: dict(load_preset(f"3dident-{name}").fixed) for name in ("positions", "colors")}
    assert list(held["positions"]) == list(FACTOR_NAMES[3:])
    assert list(held["positions"].values()) == [-1, -0.66, -0.33, 0, 0.33, 0.66, 1]
    assert held["colors"] == {
        **dict.fromkeys("xyz", 0.0),
        **{"phi": -1.0, "theta": -0.5, "psi": 0.5, "spotlight_position": 1.0},
    }
    rotations = load_preset("3dident-rotations").fixed
    assert rotations == {
        **dict.fromkeys("xyz", 0.0),
        **{"object_hue": -1.0, "spotlight_hue": 0.0, "background_hue": 1.0},
    }
    fixed = load_preset("3dident-fixed-spotlight").fixed
    assert fixed == {"spotlight_position": 0.0, "spotlight_hue": 0.0}


def test_hues_that_are_not_wrapped_share_a_colour():
    # The facts of the published generator, by raw latent u with value = (pi / 2) u.
    def color(u, kind, wrap=False):
        return hue_color(math.pi / 2 * u, SATURATION[f"{kind}_hue"], wrap=wrap)

    for u in (-0.66, -0.3, -1e-3, 0.0):
        assert color(u, "object") == (1.0, 0.0, 0.0)
    # A jump: just below -2/3 there is as much blue as red, and more of it further down.
    assert color(-0.667, "object") == pytest.approx((1.0, 0.0, 1.0), abs=1e-3)
    assert color(-1.0, "object") == pytest.approx((1.0, 0.0, 1.5))
    for u in (-0.66, -0.4, -0.17):
        assert color(u, "spotlight") == pytest.approx((1.0, 0.0, 0.2))
    assert color(-0.1, "spotlight")[1] > 0
    for u in (-0.66, -0.45):
        assert color(u, "background") == pytest.approx((1.0, 0.0, 0.4))
    assert color(-0.4, "background")[1] > 0
    assert color(-0.3, "object", wrap=True) == pytest.approx(
        colorsys.hsv_to_rgb(1 - 0.3 / 4, 1.0, 1.0)
    )


#: As they were recorded, file by file, before they were computed.
RECORDED = {
    **dict.fromkeys(FACTOR_NAMES[:7], 1.0),
    "object_hue": 0.962962962962963,
    "spotlight_hue": 0.984375,
    "background_hue": 0.9986282578875172,
}


@pytest.mark.parametrize("name", preset_names())
def test_the_best_scores_are_those_that_were_recorded(name):
    preset = load_preset(name)
    recorded = dict.fromkeys(FACTOR_NAMES, 1.0) if preset.hue == "wrapped" else RECORDED
    left = {factor: best for factor, best in recorded.items() if factor not in preset.fixed}
    assert preset.best_r2 == left
    assert list(preset.best_r2) == list(left)


def test_best_scores_are_computed_as_far_as_they_are_known(tmp_path):
    def best(text, base="3dident-wrapped"):
        (tmp_path / "mine.toml").write_text(f"base = '{base}'\n{text}")
        return load_preset(tmp_path / "mine.toml").best_r2

    rotation = {"phi", "theta", "psi"}
    assert best("") == load_preset("3dident-wrapped").best_r2
    assert {best("shape = 'sphere'")[name] for name in rotation} == {0.0}
    assert not rotation & set(best("shape = 'cube'"))
    assert not rotation & set(best("shape = 'mine.obj'"))
    assert not rotation & set(best("[ranges]\ntheta = [-1.6, 1.6]"))  # beyond a quarter turn
    assert not rotation & set(best("[ranges]\nphi = [-3.2, 3.2]"))
    assert not rotation & set(best("[fixed]\ntheta = 1.0"))  # gimbal lock throughout
    assert best("[fixed]\ntheta = 1.0\nphi = 0.0")["psi"] == 1.0
    assert "object_hue" not in best("[ranges]\nobject_hue = [-3.2, 3.2]")
    assert "spotlight_position" not in best("[ranges]\nspotlight_position = [-4, 4]")
    assert best("[ranges]\nx = [1, 1]")["x"] == 0.0
    # Half of the range from -pi/3 to pi/3 is red.
    assert best("[ranges]\nobject_hue = [-1.0471975511965976, 1.0471975511965976]", "3dident")[
        "object_hue"
    ] == pytest.approx(1 - 0.5**3)
    assert best("[ranges]\nobject_hue = [0.1, 2]", "3dident")["object_hue"] == 1.0
    assert "object_hue" not in best("[ranges]\nobject_hue = [-6.5, 2]", "3dident")
    assert "object_hue" not in best("[ranges]\nobject_hue = [0, 6.4]", "3dident")
    assert best("[best_r2]\nx = 0.5") == {"x": 0.5}  # a table takes its place
    assert "phi" not in load_preset("3dident").changed(fixed={"theta": 1.0}).best_r2
    assert load_preset("3dident").changed(fixed={"theta": 0.5}).best_r2["phi"] == 1.0


def test_a_file_changes_what_it_states_of_its_base(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        "base = '3dident-rotations'\nscale = 2.0\nshape = 'mine.obj'\n"
        "[ranges]\nx = [-1, 1]\n[fixed]\ny = 0.5\n"
    )
    mine, base = load_preset(path), load_preset("3dident-rotations")
    assert (mine.name, mine.description, mine.scale) == ("mine", "", 2.0)
    assert mine.shape == str(tmp_path / "mine.obj")
    assert mine.ranges == {**base.ranges, "x": (-1.0, 1.0)}
    assert mine.fixed == {**base.fixed, "y": 0.5}
    assert parse_preset(mine.as_dict(), "copy") == mine


@pytest.mark.parametrize("base", ["'4dident'", "3", "['3dident']", "'other.toml'"])
def test_only_a_built_in_preset_is_a_base(tmp_path, base):
    (tmp_path / "mine.toml").write_text(f"base = {base}\n")
    with pytest.raises(UsageError, match=r"mine\.toml: base must be one of 3dident, .*, found"):
        load_preset(tmp_path / "mine.toml")


@pytest.mark.parametrize("kind", ["object", "spotlight", "background"])
def test_the_best_score_is_what_the_colours_leave(kind):
    # Fine bins of equal colour: the best prediction is the conditional mean in each.
    u = (np.arange(40_000) + 0.5) / 20_000 - 1
    colors = [hue_color(math.pi / 2 * v, SATURATION[f"{kind}_hue"], wrap=False) for v in u]
    _, group = np.unique(np.round(colors, 9), axis=0, return_inverse=True)
    group = group.reshape(-1)
    mean = np.bincount(group, u) / np.bincount(group)
    best = 1 - ((u - mean[group]) ** 2).mean() / u.var()
    assert load_preset("3dident").best_r2[f"{kind}_hue"] == pytest.approx(best, abs=1e-4)


def best_of_colors(kind, low, high):
    """The best R2 by the colours themselves: the mean of a hue is all that an equal colour says."""
    hue = low + (high - low) * (np.arange(48_000) + 0.5) / 48_000
    colors = [hue_color(v, SATURATION[kind], wrap=False) for v in hue]
    _, group = np.unique(np.round(colors, 9), axis=0, return_inverse=True)
    group = group.reshape(-1)
    mean = np.bincount(group, hue) / np.bincount(group)
    return 1 - ((hue - mean[group]) ** 2).mean() / hue.var()


@pytest.mark.parametrize("kind", SATURATION)
@pytest.mark.parametrize(
    ("low", "high"),
    [(-0.5, 0.5), (-1, 0), (-1, 0.999), (-0.75, 0.25), (-0.4, -0.05), (0.1, 0.9), (-0.25, 0.25)],
)
def test_the_best_score_of_a_hue_that_is_not_wrapped_down_to_a_whole_turn(kind, low, high):
    low, high = 2 * math.pi * low, 2 * math.pi * high
    ranges = {**load_preset("3dident").ranges, kind: (low, high)}
    preset = dataclasses.replace(load_preset("3dident"), ranges=ranges)
    best = preset.computed_best_r2()[kind]
    assert best == pytest.approx(best_of_colors(kind, low, high), abs=2e-4)
    said = " ".join(preset.ambiguities()).split("share one colour")[0]
    assert (kind in said) == (best < 1)


def test_the_best_scores_of_hues_of_half_a_turn_to_either_side():
    # h in [-1/2, 1/2]: two stretches of one colour each, of a sixth of a turn at saturation 1.
    ranges = {**load_preset("3dident").ranges, **dict.fromkeys(SATURATION, (-math.pi, math.pi))}
    best = dataclasses.replace(load_preset("3dident"), ranges=ranges).computed_best_r2()
    assert [best[name] for name in SATURATION] == pytest.approx(
        [1 - 2 / 6**3, 1 - 2 / 8**3, 1 - 2 / 18**3]
    )
    assert best["object_hue"] == pytest.approx(0.9907, abs=5e-5)


@given(st.floats(-1, 1), st.floats(-1, 1))
def test_wrapped_hues_are_injective(a, b):
    if abs(a - b) < 1e-6:
        return
    colors = [hue_color(math.pi / 2 * u, 1.0, wrap=True) for u in (a, b)]
    assert np.abs(np.subtract(*colors)).max() > 1e-7


def test_what_a_preset_says_of_its_ambiguities():
    def reasons(name, **changes):
        return " ".join(load_preset(name).changed(**changes).ambiguities())

    assert "hue is not wrapped" in reasons("3dident")
    assert "gimbal" in reasons("3dident-wrapped")
    assert "hue" not in reasons("3dident-wrapped")
    assert reasons("3dident-regular") == ""
    assert "rotation" in reasons("3dident-regular", shape="sphere")
    assert "own axis" in reasons("3dident-regular", shape="cylinder")
    assert "quarter turns" in reasons("3dident-regular", shape="cube")
    assert "not known" in reasons("3dident-regular", shape="rabbit.obj")
    assert reasons("3dident-wrapped", fixed={"theta": 0.5}) == ""
    narrow = dict(load_preset("3dident-regular").as_dict(), hue="unwrapped")
    narrow["ranges"] = {**narrow["ranges"], **{name: [-0.2, 1.0] for name in SATURATION}}
    said = " ".join(parse_preset(narrow, "test").ambiguities())
    assert "object_hue" in said
    assert "spotlight_hue" not in said
    wide = dict(load_preset("3dident-regular").as_dict())
    wide["ranges"] = {**wide["ranges"], "object_hue": [-3.2, 3.2]}
    assert "full turn" in " ".join(parse_preset(wide, "test").ambiguities())
    assert "gimbal" in reasons("3dident-wrapped", fixed={"theta": 1.0})
    assert reasons("3dident-colors") != ""
    assert load_preset("3dident").changed(shape="sphere").best_r2["phi"] == 0.0
    assert "phi" not in load_preset("3dident").changed(shape="cube").best_r2


def test_a_preset_survives_its_plain_form():
    for name in preset_names():
        preset = load_preset(name)
        assert parse_preset(preset.as_dict(), "copy") == preset


def test_a_preset_file(tmp_path):
    text = "hue = 'wrapped'\nshape = 'cube'\n[fixed]\nz = 0.25\n[ranges]\n" + "".join(
        f"{name} = [-1, 2.0]\n" for name in FACTOR_NAMES
    )
    path = tmp_path / "mine.toml"
    path.write_text(text)
    preset = load_preset(path)
    assert (preset.name, preset.shape, preset.material) == ("mine", "cube", "rubber")
    assert preset.to_scene(np.zeros((1, 10), np.float32)).tolist() == [[0.5] * 10]
    assert preset.hold_fixed(np.ones((2, 10), np.float32))[:, 2].tolist() == [0.25, 0.25]
    assert SceneBuilder(preset).size == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": 1}, "unknown field 'colour'"),
        ({"hue": "round"}, "hue must be one of unwrapped, wrapped"),
        ({"material": "gold"}, "material must be one of"),
        ({"scale": -1}, "scale must be > 0"),
        ({"scale": True}, "finite number"),
        ({"fixed": {"x": 2}}, r"raw value in \[-1, 1\]"),
        ({"fixed": {"w": 0}}, "unknown factor 'w'"),
        ({"fixed": 3}, "table"),
        ({"scale": 10**400}, "at most 10000"),
        ({"ranges": {"x": [-1e308, 1e308]}}, "at most 10000"),
        ({"ranges": {}}, "ranges lacks x"),
        ({"ranges": {"x": [1]}}, r"\[low, high\]"),
        ({"ranges": {"x": [2, 1]}}, r"\[low, high\]"),
        ({"ranges": {"x": [float("nan"), 1]}}, "finite"),
        ({"best_r2": {"x": 1.5}}, "best_r2.x"),
    ],
)
def test_presets_that_do_not_fit(change, message):
    data = {**load_preset("3dident").as_dict(), **change}
    with pytest.raises(UsageError, match=message):
        parse_preset(data, "test")


# --- Several shapes, materials and objects ---

HARE = {"hare": {"file": "hare.ply"}}


def several(**fields):
    """A preset with some of the fields of several shapes or objects."""
    data = {**load_preset("3dident").as_dict(), "best_r2": {}, **fields}
    preset = parse_preset(data, "test")
    assert parse_preset(preset.as_dict(), "copy") == preset
    return preset


def test_fields_at_their_defaults_are_not_in_the_plain_form():
    # What decides the fingerprint of every dataset that there is.
    assert list(load_preset("3dident").as_dict()) == [
        *("name", "description", "hue", "shape", "material", "scale"),
        *("ranges", "fixed", "best_r2"),
    ]


def test_the_columns_of_a_scene():
    assert several().columns == FACTOR_NAMES
    assert several(shapes=["cube", "knot"]).columns == (*FACTOR_NAMES, "shape")
    assert several(materials=["metal", "rubber"]).columns == (*FACTOR_NAMES, "material")
    own = ("x", "y", "z", "phi", "theta", "psi", "object_hue")
    assert several(objects=2).columns == (*FACTOR_NAMES, *(f"{name}_2" for name in own))
    all_of_it = several(
        shapes=["cube", "knot"], materials=["metal", "rubber"], objects=3, spotlights="each"
    )
    own = (*own, "shape", "material", "spotlight_position")
    assert all_of_it.columns == (
        *(*FACTOR_NAMES, "shape", "material"),
        *(f"{name}_{k}" for k in (2, 3) for name in own),
    )


def test_rotations_are_known_where_every_shape_shows_them():
    rotation = {"phi", "theta", "psi"}
    assert rotation <= set(several(shapes=["teapot", "knot", "star"]).computed_best_r2())
    for shapes in (["teapot", "cube"], ["teapot", "sphere"], ["teapot", "hare"]):
        table = HARE if "hare" in shapes else {}
        preset = several(shapes=shapes, shape_table=table)
        assert not rotation & set(preset.computed_best_r2())
    assert several(shapes=["sphere"]).computed_best_r2()["phi"] == 0.0
    said = several(shapes=["torus", "cone", "hare"], shape_table=HARE).ambiguities()
    assert [reason for reason in said if "hides" in reason or "symmetries" in reason] == [
        "a torus hides its turn about its own axis",
        "a cone hides its turn about its own axis",
        "the symmetries of a user's mesh are not known",
    ]
    assert several(hue="wrapped", shapes=["teapot", "pebble"]).ambiguities() == [
        "gimbal lock: at theta = +-pi/2, phi and psi turn about one axis"
    ]


def test_of_several_objects_only_what_they_share_is_known():
    preset = several(hue="wrapped", objects=2)
    assert preset.computed_best_r2() == {"spotlight_hue": 1.0, "background_hue": 1.0}
    assert "can change places" in " ".join(preset.ambiguities())


def test_a_shape_table_in_a_file(tmp_path):
    (tmp_path / "meshes").mkdir()
    (tmp_path / "meshes" / "hare.ply").write_text("")
    (tmp_path / "mine.toml").write_text(
        'base = "3dident"\nshapes = ["teapot", "hare", "cow"]\nground = ["cow"]\n'
        '[shape_table.hare]\nfile = "meshes/hare.ply"\nscale = 2\nrotate = [90, 0, 0]\n'
        'smooth = true\nlicence = "CC0"\n[shape_table.cow]\nfile = "cow.ply"\n'
    )
    preset = load_preset(tmp_path / "mine.toml")
    file = str(tmp_path / "meshes" / "hare.ply")
    assert preset.shape_table == {
        "hare": MeshFile(file, 2.0, (90.0, 0.0, 0.0), True, "CC0"),
        "cow": MeshFile("cow.ply"),  # not beside the preset: where the command is run
    }
    assert preset.mesh_files == {"hare": file, "cow": "cow.ply"}
    assert preset.shape == "teapot"
    assert parse_preset(preset.as_dict(), "copy") == preset
    with pytest.raises(UsageError, match=r"the shape 'hare': cannot read the mesh"):
        SceneBuilder(preset)
    (tmp_path / "long.toml").write_text(
        f'base = "3dident"\nshape = "hare"\n[shape_table.hare]\nfile = "{"a" * 900}.ply"\n'
    )
    with pytest.raises(UsageError, match="there is no such file"):
        SceneBuilder(load_preset(tmp_path / "long.toml"))
    (tmp_path / "meshes" / "hare.ply").unlink()
    missing = "'hare' is a mesh file of your own, .*hare.ply, and there is no such file"
    with pytest.raises(UsageError, match=missing):
        SceneBuilder(preset)


def test_a_preset_with_a_column_is_not_changed_to_one_shape():
    preset = several(shapes=["cube", "knot"], materials=["metal"])
    with pytest.raises(UsageError, match=r"as a column of its .*leave out shape 'cube'"):
        preset.changed(shape="cube")
    with pytest.raises(UsageError, match="leave out material 'rubber'"):
        preset.changed(material="rubber")
    assert preset.changed(fixed={"x": 0.0}).shapes == ("cube", "knot")
    mine = several(shape="hare", shape_table=HARE)
    assert mine.mesh_files == {"hare": "hare.ply"}
    assert mine.changed(shape="cube").shape_table == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shapes": ["teapot", "hare"]}, r"'hare', which is neither .*scene\.shape_table\.NAME\]"),
        ({"shapes": "cube"}, "shapes must be a list"),
        ({"shapes": ["cube", "cube"]}, "shapes names one twice"),
        ({"materials": ["gold"]}, "materials must be one of rubber"),
        ({"materials": ["metal", "metal"]}, "materials names one twice"),
        ({"objects": 0}, r"objects must be a whole number in \[1"),
        ({"objects": 9}, "objects must be at most 8, found 9"),
        ({"objects": 2.0}, "objects must be a whole number"),
        ({"spotlights": "two"}, "spotlights must be one of one, each"),
        ({"lift": 0.5}, "lift must be one of half, none"),
        ({"ground": "hare"}, "ground must be one of object"),
        ({"ground": ["hare"]}, "ground names 'hare', which is neither built in"),
        ({"ground": []}, "ground must be a list of 1 to"),
        ({"shape_table": HARE}, "shape_table.hare is not used"),
        ({"shape_table": {"cube": {"file": "a.ply"}}}, "cube is a built-in shape"),
        ({"shape_table": {"a b": {"file": "a.ply"}}}, "a shape's name is a letter"),
        ({"shape_table": {3: {"file": "a.ply"}}}, "shape_table.3: a shape's name"),
        ({"shape_table": {"hare": 3}}, "shape_table.hare must be a table"),
        ({"shape_table": {"hare": {}}}, "shape_table.hare.file is missing"),
        ({"shape_table": {"hare": {"file": "a", "size": 1}}}, "unknown field 'size'"),
        ({"shape_table": {"hare": {"file": "a", "scale": 0}}}, "hare.scale must be > 0"),
        ({"shape_table": {"hare": {"file": "a", "smooth": 1}}}, "hare.smooth must be true or"),
        ({"shape_table": {"hare": {"file": "a", "rotate": [90]}}}, "hare.rotate must be a list of"),
    ],
)
def test_several_shapes_that_do_not_fit(change, message):
    with pytest.raises(UsageError, match=message):
        several(**change)


@pytest.mark.parametrize(("one", "many"), [("shape", "cube"), ("material", "metal")])
def test_one_of_what_a_file_has_several_of_does_nothing(tmp_path, one, many):
    path = tmp_path / "mine.toml"
    path.write_text(f"base = '3dident'\n{one} = '{many}'\n{one}s = ['{many}']\n")
    with pytest.raises(UsageError, match=f"{one} does nothing beside {one}s: leave out one"):
        load_preset(path)


def test_the_built_in_shapes_are_those_that_can_be_drawn():
    assert list(BUILT_IN_SHAPES) == list(SHAPES)


def test_presets_that_cannot_be_read(tmp_path):
    (tmp_path / "broken.toml").write_text("name = ")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    for name in ("broken.toml", "binary.toml", "missing.toml"):
        with pytest.raises(UsageError, match=name):
            load_preset(tmp_path / name)
    with pytest.raises(UsageError, match="expected one of 3dident"):
        load_preset("4dident")


def test_best_scores_are_given_for_uniform_latents_alone():
    def manifest(preset="3dident", about=True, **changes):
        generator = load_preset(preset)
        engine = EngineSettings(generator, 8, "draft", "cpu", "direct", "1.0")
        options = {"seed": 0, "split": "train", "given": None, "conditional": None, **changes}
        settings = dataset_settings(engine, **options)
        return Manifest.new(settings, 100, "none", generator.about() if about else {})

    uniform = manifest("3dident-positions")
    assert dict(uniform.best_r2) == {"x": 1.0, "y": 1.0, "z": 1.0}
    assert uniform.why_no_best_r2 is None
    for other, reason in (
        (manifest(given=np.zeros((4, 10), np.float32)), "the latents were given"),
        (manifest(conditional=Normal(0.3)), "pairs are not uniform"),
        (manifest(about=False), "the preset gives no best_r2"),
    ):
        assert other.best_r2 == {}
        assert reason in other.why_no_best_r2
        assert {row["best_r2"] for row in other.as_dict()["factors"]} == {None}
