import colorsys
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from threedident.distributions import Normal
from threedident.errors import UsageError
from threedident.factors import FACTOR_NAMES
from threedident.presets import SATURATION, load_preset, parse_preset, preset_names
from threedident.render.scene import SceneBuilder, hue_color
from threedident.render.settings import EngineSettings, dataset_settings
from threedident.storage.directory import Manifest


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


@pytest.mark.parametrize("kind", ["object", "spotlight", "background"])
def test_the_best_score_is_what_the_colours_leave(kind):
    # Fine bins of equal colour: the best prediction is the conditional mean in each.
    u = (np.arange(200_000) + 0.5) / 100_000 - 1
    colors = [hue_color(math.pi / 2 * v, SATURATION[f"{kind}_hue"], wrap=False) for v in u]
    _, group = np.unique(np.round(colors, 9), axis=0, return_inverse=True)
    group = group.reshape(-1)
    mean = np.bincount(group, u) / np.bincount(group)
    best = 1 - ((u - mean[group]) ** 2).mean() / u.var()
    assert load_preset("3dident").best_r2[f"{kind}_hue"] == pytest.approx(best, abs=1e-4)


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
