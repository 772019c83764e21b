"""The family's datasets as models: what 100,000 draws are, beside what is published of each."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest

from threedident.causal import Sampling, load_model, model_names
from threedident.causal.files import joined
from threedident.errors import UsageError
from threedident.factors import FACTOR_NAMES

pytestmark = pytest.mark.slow  # many draws and fits

COUNT = 40_000
BLOCKS = {
    "rotations": ("phi", "theta", "spotlight_position"),
    "positions": ("x", "y", "z"),
    "hues": ("object_hue", "spotlight_hue", "background_hue"),
}
BOXES = tuple(itertools.permutations(BLOCKS))
TEMPORAL = ("temporal-causal3dident-teapot", "temporal-causal3dident")
INSTANTANEOUS = "instantaneous-temporal-causal3dident"
#: The orders of classes of the published code.
CITRIS = ("teapot", "armadillo", "hare", "cow", "dragon", "head", "horse")
CAUSAL = ("teapot", "hare", "dragon", "cow", "armadillo", "horse", "head")
STEPS = 100
TURN = 2 * math.pi


@functools.cache
def draws(name, **options):
    sampling = Sampling(load_model(name), **options)
    return sampling.draw(range(COUNT), seed=7, split="train")


def columns(name, **options):
    model, drawn = load_model(name), draws(name, **options)
    return {key: drawn.variables[:, k].astype(float) for k, key in enumerate(model.names)}


def truncated_std(std):
    """The standard deviation of a normal around 0, truncated to [-1, 1], by quadrature."""
    x = np.linspace(-1, 1, 20_001)
    weight = np.exp(-((x / std) ** 2) / 2)
    return math.sqrt((weight * x**2).sum() / weight.sum())


def test_the_models_of_the_family():
    names = set(model_names())
    boxes = {f"3didentbox-{'-'.join(box)}-{part}" for box in BOXES for part in (1, 2)}
    assert names >= boxes | {f"{box}-regular" for box in boxes}
    assert names >= {*TEMPORAL, INSTANTANEOUS, "multimodal3dident", "causal3dident-recalled"}
    assert "causal3dident" not in names  # its law is not public
    for name in names:
        model = load_model(name)
        assert model.name == name
        assert model.description.endswith(".")
        assert model.sources.endswith(".")


@pytest.mark.parametrize("name", ["multimodal3dident", "causal3dident-recalled"])
@pytest.mark.parametrize("primitives", [False, True])
def test_the_classes_are_in_the_order_of_their_code(name, primitives):
    model = load_model(f"{name}-primitives" if primitives else name)
    assert len(model["shape"].values) == 7
    assert model["shape"].values == model.preset.shapes
    if not primitives:
        assert model["shape"].values == CAUSAL


@pytest.mark.parametrize("name", [TEMPORAL[1], INSTANTANEOUS])
def test_the_classes_of_the_temporal_datasets_are_in_another_order(name):
    model = load_model(name)
    assert model["shape"].values == model.preset.shapes == CITRIS
    assert model.preset.ground == CITRIS[:3]
    stand_in = load_model(f"{name}-primitives")
    assert stand_in["shape"].values == stand_in.preset.shapes
    assert not set(stand_in.preset.shapes[1:]) & set(CITRIS)
    # The same law, class by class.
    ours, theirs = (each["object_hue"].transition.as_dict()["cases"] for each in (model, stand_in))
    assert list(ours.values()) == list(theirs.values())


@pytest.mark.parametrize("box", BOXES, ids="-".join)
@pytest.mark.parametrize("part", [1, 2])
def test_the_box_has_its_content_style_and_private_factors(box, part):
    name = f"3didentbox-{'-'.join(box)}-{part}"
    model, drawn = load_model(name), draws(name, view="second")
    content, style, private = (BLOCKS[block] for block in box)
    values = {key: drawn.variables[:, k].astype(float) for k, key in enumerate(model.names)}
    first = {key: each[0::2] for key, each in values.items()}
    second = {key: each[1::2] for key, each in values.items()}
    for key in content:
        assert np.array_equal(first[key], second[key])
        assert model.role(key) == "content"
    for key in style:
        assert model.role(key) == "style"
        assert np.abs(second[key] - first[key]).mean() > 0.3
        slope = np.polyfit(first[key], second[key], 1)[0]
        assert 0.2 < slope < 0.4  # a normal of width 1, truncated to a box of half-width 1
    # View 1 draws its first private factor and holds the others; view 2 draws its last.
    assert first[private[0]].std() == pytest.approx(1 / math.sqrt(3), abs=0.01)
    assert second[private[2]].std() == pytest.approx(1 / math.sqrt(3), abs=0.01)
    held = [first[private[1]], first[private[2]], second[private[0]], second[private[1]]]
    assert not any(each.any() for each in held)
    assert set(first["material"]) == {0.0}  # metal
    assert set(second["material"]) == {1.0}  # rubber
    assert model["material"].values == ("metal", "rubber")
    edges = {
        (model.names[i], model.names[j]) for i, j in zip(*np.nonzero(model.adjacency), strict=True)
    }
    expected = {(content[1], content[0]), (style[1], style[0]), (content[2], style[2])}
    assert edges == (expected if part == 2 else set())
    for key in (*content, *style):
        assert abs(first[key].mean()) < 0.02
        assert np.abs(first[key]).max() <= 1
    for parent, child in expected:
        correlation = np.corrcoef(first[parent], first[child])[0, 1]
        # Of b ~ U(-1, 1) and a normal of width 1 around it, truncated: by quadrature.
        assert correlation == pytest.approx(_edge_correlation() if part == 2 else 0, abs=0.02)


@functools.cache
def _edge_correlation():
    x = np.linspace(-1, 1, 801)
    weight = np.exp(-((x[None] - x[:, None]) ** 2) / 2)
    weight /= weight.sum(1, keepdims=True)
    mean, square = weight @ x, weight @ x**2
    return (x * mean).mean() / math.sqrt((x**2).mean() * square.mean())


def test_the_box_is_placed_as_published():
    model = load_model("3didentbox-hues-positions-rotations-1")
    ranges = model.preset.ranges
    assert [ranges[name] for name in BLOCKS["positions"]] == 3 * [(-2, 2)]
    for name in (*BLOCKS["rotations"], *BLOCKS["hues"]):
        assert ranges[name] == (-math.pi, math.pi)
    assert model.preset.hue == "unwrapped"
    row = model.preset.to_scene(model.raw_latents(np.zeros((1, 10))))[0]
    assert row[FACTOR_NAMES.index("psi")] == 0
    regular = load_model("3didentbox-hues-positions-rotations-1-regular").preset
    assert regular.hue == "wrapped"
    assert regular.ranges["object_hue"] == (-math.pi / 2, math.pi / 2)
    assert regular.ranges["x"] == (-2, 2)


def test_the_best_score_of_the_hues_of_the_box():
    # Two stretches of a sixth of the range each have one colour: 1 - 2 / 6^3.
    preset = load_model("3didentbox-positions-hues-rotations-1").preset
    best = dataclasses.replace(preset, fixed={}).computed_best_r2()
    assert best["object_hue"] == pytest.approx(1 - 2 / 6**3)
    assert best["object_hue"] < best["spotlight_hue"] < best["background_hue"] < 1
    regular = load_model("3didentbox-positions-hues-rotations-1-regular").preset
    assert set(dataclasses.replace(regular, fixed={}).computed_best_r2().values()) == {1.0}


def test_multimodal3dident_draws_as_published():
    values = columns("multimodal3dident")
    for name, count in (("shape", 7), ("xpos", 3), ("ypos", 3)):
        shares = np.bincount(values[name].astype(int), minlength=count) / COUNT
        assert len(shares) == count
        assert np.abs(shares - 1 / count).max() < 0.005
    for name in ("phi", "theta", "psi", "object_hue", "spotlight_position", "background_hue"):
        assert values[name].min() < 0.001
        assert values[name].max() > 0.999
        assert values[name].mean() == pytest.approx(0.5, abs=0.005)
        assert values[name].std() == pytest.approx(1 / math.sqrt(12), abs=0.005)
    between = np.corrcoef(np.stack(list(values.values())))
    assert np.abs(between - np.eye(len(between))).max() < 0.02


def test_multimodal3dident_is_placed_as_published():
    model = load_model("multimodal3dident")
    values = np.full((3, len(model.names)), 0.25)
    values[:, 0] = 0
    values[:, model.names.index("xpos")] = [0, 1, 2]
    values[:, model.names.index("ypos")] = [2, 0, 1]
    scene = dict(zip(FACTOR_NAMES, model.preset.to_scene(model.raw_latents(values)).T, strict=True))
    assert scene["y"].tolist() == [-3, 0, 3]  # left, center, right
    assert scene["x"].tolist() == [3, -3, 0]  # bottom, top, mid
    assert scene["z"].tolist() == [0, 0, 0]
    assert scene["phi"] == pytest.approx(-math.pi / 4)
    assert scene["spotlight_position"] == pytest.approx(-math.pi / 4)
    assert scene["object_hue"] == pytest.approx(TURN / 4)
    # h = (v - 1/2) / 2, negative here, and handed on as it is.
    assert scene["spotlight_hue"] / TURN == pytest.approx(-1 / 8)
    assert model.preset.hue == "unwrapped"
    assert model.preset.lift == "none"
    assert load_model("multimodal3dident-regular").preset.hue == "wrapped"


def test_the_colour_can_depend_on_the_place():
    values = columns("multimodal3dident-position-dependent-color")
    inside = 3 * values["object_hue"] - values["xpos"]
    assert inside.min() > -1e-6
    assert inside.max() < 1 + 1e-6
    assert inside.mean() == pytest.approx(0.5, abs=0.005)
    model = load_model("multimodal3dident-position-dependent-color")
    assert model.adjacency.sum() == 1


def _sequence(name):
    """The variables of consecutive frames, and the targets of the second, a row a step."""
    model, drawn = load_model(name), draws(name, steps=STEPS)
    later = np.flatnonzero(drawn.frame > 0)
    values = drawn.variables.astype(float)
    before = {key: values[later - 1, k] for k, key in enumerate(model.names)}
    after = {key: values[later, k] for k, key in enumerate(model.names)}
    return before, after, {key: drawn.targets[later, k] for k, key in enumerate(model.names)}


def _goals(before, after, shapes, instantaneous):
    """The published goals, from the values that each looks at."""
    at = after if instantaneous else before
    goals = {
        "x": 1.5 * np.sin(at["theta"]),
        "y": 1.5 * np.sin(at["phi"]),
        "z": 1.5 * np.cos(at["phi"]),
        "phi": at["background_hue"],
        "theta": at["object_hue"],
        "spotlight_position": np.arctan2(at["x"], at["y"]) % TURN,
        "spotlight_hue": TURN - at["background_hue"],
        "background_hue": before["background_hue"],
        "object_hue": before["object_hue"],
    }
    if shapes:
        spot, ground = at["spotlight_hue"], at["background_hue"]
        mean = np.angle(np.exp(1j * spot) + np.exp(1j * ground))
        fixed = {"teapot": 0, "armadillo": 1, "cow": 2, "head": 3, "horse": 4}
        hue = np.empty(len(mean))
        for number, shape in enumerate(CITRIS):
            rows = at["shape"] == number
            if shape in fixed:
                hue[rows] = TURN * fixed[shape] / 5
            else:
                hue[rows] = mean[rows] + (math.pi if shape == "dragon" else 0)
        goals["object_hue"] = hue % TURN
    return goals


def _way(start, end):
    return (end - start + math.pi) % TURN - math.pi


@pytest.mark.parametrize("name", [*TEMPORAL, INSTANTANEOUS])
def test_the_temporal_datasets_step_as_published(name):
    before, after, targets = _sequence(name)
    shapes = "shape" in before
    goals = _goals(before, after, shapes, name == INSTANTANEOUS)
    rate = 1 / 7 if shapes else 1 / 6
    for key, goal in goals.items():
        hit = targets[key].astype(bool)
        assert hit.mean() == pytest.approx(rate, abs=0.006), key
        free = ~hit
        if key in "xyz":
            assert np.abs(after[key]).max() <= 2
            noise = after[key] - (before[key] + (goal - before[key]) / 2)
            inside = free & (np.abs(after[key] - noise) < 1.6)  # where nothing is cut off
            assert noise[inside].std() == pytest.approx(0.1, rel=0.02), key
            assert after[key][hit].std() == pytest.approx(4 / math.sqrt(12), rel=0.03), key
        else:
            assert after[key].min() >= 0
            assert after[key].max() < TURN
            noise = _way(before[key] + _way(before[key], goal) / 2, after[key])
            # Where the goal lies just opposite, either way round is half the way.
            inside = free & (np.abs(_way(before[key], goal)) < 3)
            assert noise[inside].std() == pytest.approx(0.15, rel=0.02), key
            assert after[key][hit].std() == pytest.approx(TURN / math.sqrt(12), rel=0.03), key
        assert abs(noise[inside].mean()) < 0.003, key
    for group in (("x", "y", "z"), ("phi", "theta")):
        assert all(np.array_equal(targets[group[0]], targets[each]) for each in group)
    assert not np.array_equal(targets["x"], targets["phi"])


@pytest.mark.parametrize("name", [TEMPORAL[1], INSTANTANEOUS])
def test_shapes_stay_but_for_one_in_twenty(name):
    before, after, targets = _sequence(name)
    free = targets["shape"] == 0
    changed = (before["shape"] != after["shape"])[free].mean()
    assert changed == pytest.approx(0.05 * 6 / 7, abs=0.003)
    shares = np.bincount(after["shape"].astype(int), minlength=7) / len(after["shape"])
    assert np.abs(shares - 1 / 7).max() < 0.02


@pytest.mark.parametrize("name", [*TEMPORAL, INSTANTANEOUS])
def test_first_frames_are_uniform(name):
    values = columns(name)
    for key in ("x", "z"):
        assert values[key].std() == pytest.approx(4 / math.sqrt(12), rel=0.01)
    for key in ("phi", "object_hue", "background_hue"):
        assert values[key].mean() == pytest.approx(math.pi, rel=0.01)
        assert values[key].std() == pytest.approx(TURN / math.sqrt(12), rel=0.01)


def test_the_recalled_law_says_of_each_variable_what_is_known():
    model = load_model("causal3dident-recalled")
    status = {variable.name: variable.status for variable in model.variables}
    roots = {"shape", "spotlight_position", "spotlight_hue", "background_hue"}
    for variable in model.variables:
        if variable.name in roots:
            assert not model.adjacency[:, model.names.index(variable.name)].any()
        else:
            assert status[variable.name] == "unknown"
            assert "stand-in" in variable.note
    assert "NOT" in model.description
    values = columns("causal3dident-recalled")
    hare, dragon = (values["shape"] == CAUSAL.index(name) for name in ("hare", "dragon"))
    mean = (values["spotlight_hue"] + values["background_hue"]) / 2
    assert np.corrcoef(mean[hare], values["object_hue"][hare])[0, 1] > 0.4
    assert np.corrcoef(mean[dragon], values["object_hue"][dragon])[0, 1] < -0.4
    assert np.abs(values["x"]).max() <= 1


@pytest.mark.parametrize("view", ["positions", "hues", "rotations"])
def test_the_latent_changes_keep_all_else(view):
    model, drawn = load_model("causal3dident-recalled"), draws("causal3dident-recalled", view=view)
    first, second = drawn.variables[0::2], drawn.variables[1::2]
    moved = {name for name in model.names if model.role(name, view) == "style"}
    assert len(moved) == (4 if view == "positions" else 3)
    for k, name in enumerate(model.names):
        assert np.array_equal(first[:, k], second[:, k]) == (name not in moved)
    if view == "hues":  # of a root in the middle, the step is a normal, truncated
        k = model.names.index("spotlight_hue")
        near = np.abs(first[:, k]) < 0.02
        assert second[near, k].std() == pytest.approx(truncated_std(1.0), rel=0.05)


def test_tables_of_a_variant_join_those_of_its_model():
    base = {
        "scene": {"hue": "unwrapped", "ranges": {"x": [0, 1], "y": [0, 1]}},
        "variables": {"x": {"range": [0, 1], "mechanism": {"kind": "uniform", "low": 0.5}}},
        "views": {"a": {"x": {"kind": "uniform", "low": 0.2}}},
        "variants": {"v": {"scene": {"hue": "wrapped", "ranges": {"x": [0, 2]}}}},
    }
    own = {
        "scene": {"ranges": {"x": [0, 3]}},
        "variables": {"x": {"mechanism": {"kind": "uniform"}}, "y": {"mechanism": 0.0}},
        "views": {"a": {"x": {"kind": "uniform"}}},
        "variants": {"v": {"scene": {"ranges": {"y": [0, 4]}}}},
    }
    both = joined(base, own)
    assert both["scene"] == {"hue": "unwrapped", "ranges": {"x": [0, 3], "y": [0, 1]}}
    assert both["variables"]["x"] == {"range": [0, 1], "mechanism": {"kind": "uniform"}}
    assert list(both["variables"]) == ["x", "y"]
    assert both["views"]["a"]["x"] == {"kind": "uniform"}
    changed = both["variants"]["v"]["scene"]
    assert changed == {"hue": "wrapped", "ranges": {"x": [0, 2], "y": [0, 4]}}
    assert base["scene"]["ranges"]["x"] == [0, 1]


def test_several_variants_at_once_and_a_users_file_on_a_base(tmp_path):
    both = load_model("multimodal3dident-primitives-regular")
    assert both.preset.hue == "wrapped"
    assert both.preset.shapes[1] == "knot"
    own = tmp_path / "mine.toml"
    own.write_text(
        'base = "3didentbox-hues-positions-rotations-2-regular"\ndescription = "Mine."\n'
        "[variables.x]\nmechanism = 0.5\n"
    )
    model = load_model(own)
    assert (model.name, model.description) == ("mine", "Mine.")
    assert model.preset.hue == "wrapped"
    assert set(Sampling(model).draw(range(10), seed=0, split="train").variables[:, 0]) == {0.5}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('base = "multimodal"', "unknown model 'multimodal': did you mean multimodal3dident"),
        ("base = 3", "base must be the name of a built-in model, found 3"),
        ("variants = 3", "variants must be a table of variants, found 3"),
        ("[variants]\na = 3", "variants.a must be a table"),
        ('[variants."a b"]', "a name is made of letters, digits and -"),
    ],
)
def test_bases_and_variants_that_do_not_fit(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text + "\n")
    with pytest.raises(UsageError, match=message):
        load_model(path)


def test_an_unknown_sister_is_refused():
    with pytest.raises(UsageError, match="multimodal3dident-primitive"):
        load_model("multimodal3dident-primitive")
    with pytest.raises(UsageError, match="unknown model '_3didentbox'"):
        load_model("_3didentbox")
