from __future__ import annotations

import copy
import dataclasses
import functools
import math
import pickle

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from helpers.causal import CHAIN, NORMAL, TEN, UNIFORM, WHOLE, model, plain, whole
from scipy import stats

from threedident.causal import INDEPENDENT, OBSERVED, Sampling, load_model, model_names, parse_model
from threedident.causal.sampling import parse_sampling, sample_noise
from threedident.errors import UsageError
from threedident.latents import sample_raw_latents

TRAIN = {"seed": 0, "split": "train"}
FIELDS = ("variables", "noise", "targets", "environment", "item", "frame")


def columns(sampling, count=2000, **which):
    """The values by variable, and the whole draws."""
    draws = sampling.draw(range(count), **(TRAIN | which))
    return dict(zip(sampling.model.names, draws.variables.T, strict=True)), draws


@functools.cache
def samplings():
    either = whole()
    time = whole(interventions=WHOLE["interventions"] | {"probability": 0.5})
    return {
        "single": Sampling(either),
        "environments": Sampling(either, environments=("observed", "held", "moved", "independent")),
        "do": Sampling(either, do={"x": 0.5}),
        "counterfactual": Sampling(either, counterfactual={"theta": {"shift": 0.5}}),
        "views": Sampling(either, view="style", environments=("observed", "other")),
        "sequence": Sampling(time, steps=5, environments=("observed", "moved")),
    }


# Noise


@pytest.mark.parametrize("seed, split", [(0, "train"), (7, "val"), (2**64 - 1, "test")])
def test_ten_uniform_variables_are_the_raw_latents_to_the_bit(seed, split):
    ten = model(TEN)
    draws = Sampling(ten).draw(range(500), seed=seed, split=split)
    raw = sample_raw_latents(range(500), seed=seed, split=split)
    assert draws.variables.tobytes() == raw.tobytes()
    assert draws.noise[:, :, 0].tobytes() == raw.tobytes()
    assert ten.raw_latents(draws.variables).tobytes() == raw.tobytes()
    rows = ten.scene_rows(draws.variables)
    assert rows.tobytes() == ten.preset.to_scene(raw).tobytes()


def test_noise_is_uniform_exact_and_apart():
    noise = sample_noise(range(20_000), 0, 4, **TRAIN)
    assert noise.shape == (20_000, 4, 3)
    assert noise.dtype == np.float32
    flat = noise.reshape(len(noise), -1)
    for column in flat.T:
        assert stats.kstest(column, stats.uniform(-1, 2).cdf).pvalue > 1e-5
    correlation = np.corrcoef(flat.T) - np.eye(12)
    assert np.abs(correlation).max() < 5 / math.sqrt(len(flat))
    scaled = (noise.astype(np.float64) + 1) * 2**24
    assert (scaled == np.rint(scaled)).all()
    assert (scaled % 2 == 1).all()
    others = [
        sample_noise(range(100), 1, 4, **TRAIN),
        sample_noise(range(100), 0, 4, seed=1, split="train"),
        sample_noise(range(100), 0, 4, seed=0, split="val"),
    ]
    for other in others:
        assert not (other == noise[:100]).any()


# Image i depends on seed, split and i alone


@pytest.mark.parametrize("name", samplings())
@hypothesis.given(st.lists(st.integers(0, 400), min_size=1, max_size=12), st.integers(0, 2**64 - 1))
@hypothesis.settings(max_examples=25)
def test_an_image_depends_on_its_number_alone(name, numbers, seed):
    sampling = samplings()[name]
    together = sampling.draw(numbers, seed=seed, split="val")
    for place, number in enumerate(numbers):
        alone = sampling.draw([number], seed=seed, split="val")
        for field in FIELDS:
            one, many = getattr(alone, field)[0], getattr(together, field)[place]
            assert one.tobytes() == many.tobytes(), field


@pytest.mark.parametrize("name", samplings())
def test_draws_have_their_shapes_types_and_numbers(name):
    sampling = samplings()[name]
    draws = sampling.draw(range(30), **TRAIN)
    count = len(sampling.model.variables)
    assert draws.variables.shape == (30, count)
    assert draws.noise.shape == (30, count, 3)
    assert draws.targets.shape == (30, count)
    assert (draws.variables.dtype, draws.noise.dtype) == (np.float32, np.float32)
    assert draws.targets.dtype == np.uint8
    assert set(np.unique(draws.targets)) <= {0, 1}
    assert draws.item.tolist() == [i // sampling.frames for i in range(30)]
    assert draws.frame.tolist() == [i % sampling.frames for i in range(30)]
    kinds = max(1, len(sampling.environments))
    assert draws.environment.tolist() == [i // sampling.frames % kinds for i in range(30)]
    assert sampling.group == ("single" if name in ("environments", "do") else name)
    empty = sampling.draw([], **TRAIN)
    assert empty.variables.shape == (0, count)
    assert empty.noise.shape == (0, count, 3)


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(UsageError, match="split"):
        Sampling(whole()).draw([0], seed=0, split="dev")
    with pytest.raises(UsageError, match="seed"):
        Sampling(whole()).draw([0], seed=-1, split="train")


def test_values_lie_in_their_ranges():
    for sampling in samplings().values():
        values, _ = columns(sampling, 3000)
        for name, column in values.items():
            low, high = map(np.float32, sampling.model[name].range)
            assert low <= column.min()
            assert column.max() <= high
            if sampling.model[name].kind == "circular":
                assert column.max() < high


def test_the_law_is_what_the_file_says():
    values, _ = columns(Sampling(whole()), 20_000)
    shares = np.bincount(values["switch"].astype(int)) / 20_000
    np.testing.assert_allclose(shares, [0.5, 0.25, 0.25], atol=0.02)
    off, on, broken = (values["switch"] == number for number in range(3))
    assert stats.kstest(values["x"][off], stats.uniform(-0.5, 1.5).cdf).pvalue > 1e-4
    assert (values["x"][broken] == -2).all()
    mean = 1.5 * np.sin(values["theta"][on].astype(float))
    low, high = stats.norm.cdf(-2, mean, 0.4), stats.norm.cdf(2, mean, 0.4)
    levels = (stats.norm.cdf(values["x"][on], mean, 0.4) - low) / (high - low)
    assert stats.kstest(levels, "uniform").pvalue > 1e-4
    np.testing.assert_allclose(values["z"], 0.25 * (values["x"] + values["y"]), atol=1e-6)


# Interventions


def test_do_cuts_the_parents_and_nothing_else():
    before, _ = columns(Sampling(model(CHAIN)))
    after, draws = columns(Sampling(model(CHAIN), do={"y": 0.25}))
    assert (after["y"] == 0.25).all()
    for name in ("x", "object_hue"):
        assert (after[name] == before[name]).all()
    assert (after["z"] != before["z"]).any()
    assert abs(np.corrcoef(before["x"], before["y"])[0, 1]) > 0.5
    assert draws.targets.tolist() == [[0, 1, 0, 0]] * len(draws.targets)


def test_do_takes_a_mechanism_a_class_and_a_shift():
    before, _ = columns(Sampling(whole()))
    law = {"y": {"kind": "uniform", "low": 0.5, "high": 1}, "switch": "on"}
    after, _ = columns(Sampling(whole(), do=law))
    assert (after["switch"] == 1).all()
    assert after["y"].min() >= 0.5
    assert abs(np.corrcoef(after["x"], after["y"])[0, 1]) < 0.1
    after, _ = columns(Sampling(whole(), do={"theta": {"shift": 1.0}}))
    way = after["theta"].astype(float) - before["theta"]
    np.testing.assert_allclose(way[way > 0], 1, atol=1e-5)
    np.testing.assert_allclose(way[way < 0], 1 - 2 * math.pi, atol=1e-5)


def test_shifts_keep_the_law_that_holds_in_a_later_image():
    law = {
        "x": {
            "mechanism": UNIFORM,
            "transition": {"kind": "step", "goal": 0.0, "std": 0.01, "rate": 1.0},
        }
    }
    moving = model(law, environments={"a": {"x": {"shift": 0.1}}, "b": {"x": UNIFORM}})
    for sampling, mean, std in (
        (Sampling(moving, environments=("a",), steps=4), 0.1, 0.01),
        (Sampling(moving, environments=("a",), do={"x": {"shift": 0.2}}, steps=4), 0.3, 0.01),
        # Of another mechanism it is that one which is shifted, and no longer the transition.
        (Sampling(moving, environments=("b",), do={"x": {"shift": 0.2}}, steps=4), 0.2, 0.55),
    ):
        values, draws = columns(sampling, 4000)
        later = values["x"][draws.frame > 0]
        assert later.mean() == pytest.approx(mean, abs=0.03)
        assert later.std() == pytest.approx(std, rel=0.1)
    two = model(law, views={"v": {"x": {"kind": "constant", "value": "first(x) / 2"}}})
    values, draws = columns(Sampling(two, view="v", do={"x": {"shift": 0.1}}))
    first, second = values["x"][draws.frame == 0], values["x"][draws.frame == 1]
    np.testing.assert_allclose(second, first / 2 + 0.1, atol=1e-6)


def test_a_uniform_law_from_high_to_low_is_refused():
    with pytest.raises(UsageError, match=r"variable y: .* uniform from 0\.5 to .*low <= high"):
        model(
            {
                "x": {"mechanism": UNIFORM},
                "y": {"mechanism": {"kind": "uniform", "low": 0.5, "high": "x"}},
            }
        )


def test_a_further_object_has_the_ranges_of_the_scene():
    two = model(
        {
            "x": {"scene": [-1.0, 1.0], "mechanism": UNIFORM},
            "x_2": {"mechanism": UNIFORM},
        },
        scene={"objects": 2},
    )
    rows = two.scene_rows(np.array([[1.0, 1.0]]))
    named = dict(zip(two.preset.columns, rows[0], strict=True))
    assert (named["x"], named["x_2"]) == (1.0, 3.0)


def test_environments_take_turns_and_are_interventions():
    sampling = Sampling(whole(), environments=("observed", "held", "moved"))
    values, draws = columns(sampling, 300)
    plain_values, _ = columns(Sampling(whole()), 300)
    names = sampling.model.names
    for number, (name, hit) in enumerate(
        [("observed", ()), ("held", ("x", "switch")), ("moved", ("y", "theta"))]
    ):
        rows = draws.environment == number
        assert rows.sum() == 100
        assert draws.targets[rows].tolist() == [[int(each in hit) for each in names]] * 100
        alone, _ = columns(Sampling(whole(), environments=(name,)), 300)
        for each in names:
            assert (values[each][rows] == alone[each][rows]).all()
        if name == "observed":
            assert all((values[e][rows] == plain_values[e][rows]).all() for e in names)
    held = draws.environment == 1
    assert (values["x"][held] == np.float32(0.3)).all()
    assert (values["switch"][held] == 2).all()


def test_the_independent_environment_is_uniform_and_independent():
    values, draws = columns(Sampling(whole(), environments=(INDEPENDENT,)), 20_000)
    assert draws.targets.all()
    table = np.stack(list(values.values()))
    correlation = np.corrcoef(table) - np.eye(len(table))
    assert np.abs(correlation).max() < 5 / math.sqrt(20_000)
    for name, column in values.items():
        variable = whole()[name]
        if variable.kind == "discrete":
            assert np.bincount(column.astype(int)).min() > 6000
        else:
            low, high = variable.range
            assert stats.kstest(column, stats.uniform(low, high - low).cdf).pvalue > 1e-4


def test_a_number_stays_one_in_the_independent_environment_unless_it_moves_in_time():
    variables = {
        "x": {"mechanism": 0.5},
        "y": {"mechanism": 0.5, "transition": {"kind": "step", "goal": "previous(z)", "std": 0.1}},
        "z": {"mechanism": UNIFORM},
    }
    law = model(variables).environment(INDEPENDENT)
    assert sorted(law) == ["y", "z"]


def test_do_holds_in_every_environment_and_counts_as_a_target():
    sampling = Sampling(whole(), environments=("held", "other"), do={"x": -0.5})
    values, draws = columns(sampling, 100)
    assert (values["x"] == -0.5).all()
    assert draws.targets[:, sampling.model.names.index("x")].all()


def test_an_intervention_may_turn_an_arrow_but_not_close_a_circle():
    turned = Sampling(model(CHAIN), do={"x": "y", "y": 0.5})
    assert columns(turned)[0]["x"].tolist() == [0.5] * 2000
    with pytest.raises(UsageError, match=r"circle.*(x -> y|y -> x)"):
        Sampling(model(CHAIN), do={"x": "y"})
    with pytest.raises(UsageError, match="circle"):
        Sampling(model(CHAIN), counterfactual={"x": "y"})


@pytest.mark.parametrize("field", ["do", "counterfactual"])
@pytest.mark.parametrize(
    "law, text",
    [
        ({"w": 1.0}, "'w' is no variable"),
        ({"x": 3.0}, r"expected a value in \[-2, 2\] for x, found 3"),
        ({"x": math.nan}, "x must be a finite number"),
        ({"x": "1 / 0"}, "expected a value in"),
        ({"x": {"shift": 4.0}}, "leaves no value"),
        ({"x": {"shift": math.inf}}, "finite number"),
        ({"x": {"shift": 0.1, "kind": "uniform"}}, "unknown field 'kind'"),
        ({"switch": {"shift": 1}}, "class cannot be shifted"),
        ({"switch": "hare"}, "has no class 'hare'.*off, on, broken"),
        ({"switch": 3}, "expected one of off, on, broken"),
        ({"switch": 0.5}, "expected one of off, on, broken"),
        ({"x": {"kind": "stay", "redraw": 0.1}}, "no mechanism of a continuous variable"),
        ({"x": {"kind": "step", "goal": 0, "std": 0.1}}, "x would need the value of another frame"),
        ({"switch": {"kind": "stay", "redraw": 0.1}}, "would need the value of another frame"),
        ({"x": "previous(x)"}, "would need the value of another frame"),
        ({"x": "first(x)"}, "would need the value of another frame"),
        ({"x": None}, "must be a number or an expression"),
        ({"x": True}, "must be a number or an expression"),
        ({"x": [0.1]}, "must be a number or an expression"),
        ({"x": {}}, "kind is missing"),
    ],
)
def test_an_intervention_that_does_not_fit_is_refused_at_once(field, law, text):
    with pytest.raises(UsageError, match=text):
        Sampling(whole(), **{field: law})


@pytest.mark.parametrize(
    "options, text",
    [
        ({"environments": ("red",)}, "no environment 'red'.*observed, independent, held"),
        ({"environments": ("held", "held")}, "named twice"),
        ({"view": "hues"}, "no views 'hues'.*style"),
        ({"steps": 0}, "steps must be 1 to 10000"),
        ({"steps": 10_001}, "steps must be 1 to 10000"),
        ({"steps": 2, "view": "style"}, "at once"),
        ({"steps": 2, "counterfactual": {"x": 0.1}}, "at once"),
        ({"view": "style", "counterfactual": {"x": 0.1}}, "at once"),
    ],
)
def test_a_sampling_that_does_not_fit_is_refused_at_once(options, text):
    with pytest.raises(UsageError, match=text):
        Sampling(whole(), **options)


def test_a_model_without_time_or_views_has_none_to_draw():
    with pytest.raises(UsageError, match="no transitions"):
        Sampling(model(CHAIN), steps=2)
    with pytest.raises(UsageError, match="has no views"):
        Sampling(model(CHAIN), view="style")


# Counterfactuals


DESCENDANTS = {
    "switch": {"switch", "x", "y", "z"},
    "background_hue": {"background_hue"},
    "theta": {"theta", "x", "y", "z"},
    "x": {"x", "y", "z"},
    "y": {"y", "z"},
}


@pytest.mark.parametrize(
    "name, value",
    [
        ("switch", "on"),
        ("background_hue", 1.0),
        ("theta", {"shift": 0.5}),
        ("x", 0.75),
        ("y", {"shift": -0.5}),
        ("y", {"kind": "uniform"}),
    ],
)
def test_a_counterfactual_changes_descendants_only_and_is_exact(name, value):
    sampling = Sampling(whole(), counterfactual={name: value})
    draws = sampling.draw(range(400), **TRAIN)
    assert (draws.noise[0::2] == draws.noise[1::2]).all()
    facts, others = draws.variables[0::2], draws.variables[1::2]
    same = Sampling(whole()).draw(range(200), **TRAIN)
    assert facts.tobytes() == same.variables.tobytes()
    done = Sampling(whole(), do={name: value}).draw(range(200), **TRAIN)
    assert others.tobytes() == done.variables.tobytes()
    assert not draws.targets[0::2].any()
    for column, each in enumerate(whole().names):
        differ = facts[:, column] != others[:, column]
        assert differ.any() == (each in DESCENDANTS[name]), each
        assert draws.targets[1::2, column].all() == (each == name)


def test_a_counterfactual_follows_the_mechanism_of_its_descendants():
    draws = Sampling(model(CHAIN), counterfactual={"x": {"shift": 0.1}}).draw(range(2000), **TRAIN)
    facts, others = draws.variables[0::2], draws.variables[1::2]
    np.testing.assert_allclose(
        others[:, 0], np.minimum(facts[:, 0] + np.float32(0.1), 1), atol=1e-6
    )
    unit = (draws.noise[1::2, 1, 0].astype(float) + 1) / 2
    mean = 0.8 * others[:, 0].astype(float)
    expected = stats.truncnorm.ppf(unit, (-1 - mean) / 0.3, (1 - mean) / 0.3, loc=mean, scale=0.3)
    np.testing.assert_allclose(others[:, 1], expected, atol=1e-6)


def test_a_counterfactual_of_an_environment_keeps_it():
    sampling = Sampling(
        whole(), environments=("observed", "other"), counterfactual={"x": {"shift": 0.5}}
    )
    values, draws = columns(sampling, 400)
    other = draws.environment == 1
    assert values["y"][other].min() >= 0.5
    assert draws.targets[other & (draws.frame == 0)].sum(1).tolist() == [1] * 100
    assert draws.targets[other & (draws.frame == 1)].sum(1).tolist() == [2] * 100


def test_a_shift_that_does_nothing_changes_no_bit():
    draws = Sampling(whole(), counterfactual={"theta": {"shift": 0.0}}).draw(range(400), **TRAIN)
    assert draws.variables[0::2].tobytes() == draws.variables[1::2].tobytes()


def test_the_share_that_a_shift_holds_at_the_end():
    ten = model(TEN)
    assert Sampling(ten).held_share() == 0
    share = Sampling(ten, counterfactual={"x": {"shift": 0.5}}).held_share()
    assert abs(share - 0.25) < 0.02
    share = Sampling(ten, do={"x": {"shift": -1.0}, "y": 0.5}).held_share()
    assert abs(share - 0.5) < 0.02
    circular = Sampling(whole(), do={"theta": {"shift": 3.0}})
    assert circular.held_share() == 0
    # The shift is one of the value that is held already.
    composed = Sampling(ten, do={"x": 0.9}, counterfactual={"x": {"shift": 0.05}})
    assert composed.held_share() == 0
    composed = Sampling(ten, do={"x": 0.9}, counterfactual={"x": {"shift": 0.5}})
    assert composed.held_share() == 1


# Views


def test_the_share_that_a_shift_holds_is_of_all_images_of_pairs_and_sequences():
    law = {"mechanism": UNIFORM, "transition": {"kind": "step", "goal": "previous(x)", "std": 0.01}}
    style = {"kind": "truncated_normal", "mean": "first(x)", "std": 0.1}
    drifting = model({"x": law}, views={"near": {"x": style}})
    for more in ({"steps": 20}, {"view": "near"}):
        sampling = Sampling(drifting, do={"x": {"shift": 0.2}}, **more)
        values = sampling.draw(range(10_000), **TRAIN).variables
        assert sampling.held_share() == pytest.approx((values == 1).mean(), abs=1e-9)
    assert Sampling(drifting, do={"x": {"shift": 0.2}}, steps=20).held_share() > 0.5


def test_views_have_their_roles():
    sampling = Sampling(whole(), view="style")
    values, _ = columns(sampling, 20_000)
    pairs = {name: (column[0::2], column[1::2]) for name, column in values.items()}
    for name in ("switch", "background_hue_goal", "theta", "x", "z"):
        assert (pairs[name][0] == pairs[name][1]).all()
    one, two = (each.astype(float) for each in pairs["y"])
    low, high = stats.norm.cdf(-1, one, 0.3), stats.norm.cdf(1, one, 0.3)
    levels = (stats.norm.cdf(two, one, 0.3) - low) / (high - low)
    assert stats.kstest(levels, "uniform").pvalue > 1e-4
    assert np.corrcoef(one, two)[0, 1] > 0.5
    one, two = pairs["background_hue"]
    assert stats.kstest(two, stats.uniform(0, 2 * math.pi).cdf).pvalue > 1e-4
    assert abs(stats.spearmanr(one, two)[0]) < 0.05


def test_the_first_view_is_the_single_image():
    draws = Sampling(whole(), view="style").draw(range(0, 200, 2), **TRAIN)
    single = Sampling(whole()).draw(range(100), **TRAIN)
    assert draws.variables.tobytes() == single.variables.tobytes()
    assert draws.noise.tobytes() == single.noise.tobytes()


def test_an_environment_holds_in_both_views():
    law = {"held": {"y": 0.25}}
    draws = Sampling(whole(environments=law), environments=("held",), view="style").draw(
        range(100), **TRAIN
    )
    column = whole().names.index("y")
    assert (draws.variables[:, column] == 0.25).all()
    assert draws.targets[:, column].all()


# Time


def test_a_shift_of_a_view_keeps_what_it_shifts():
    two = whole(views={"style": {"y": {**NORMAL, "mean": "first(y)", "std": 0.05}}})
    plain, shifted = (
        Sampling(two, view="style", **more).draw(range(4000), **TRAIN).variables
        for more in ({}, {"do": {"y": {"shift": 0.3}}})
    )
    y = two.names.index("y")
    assert np.corrcoef(shifted[0::2, y], shifted[1::2, y])[0, 1] > 0.9
    inside = (np.abs(shifted[0::2, y]) < 0.5) & (np.abs(plain[0::2, y]) < 0.5)
    # Around the first view's value, which is shifted already, and shifted once more.
    moved = (shifted[1::2, y] - shifted[0::2, y])[inside]
    assert moved.mean() == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize(
    ("environment", "total"), [({"constant": 1.0}, None), ({"shift": 0.5}, 0.7), (None, 0.2)]
)
def test_a_shift_in_time_is_of_what_the_environment_makes(environment, total):
    law = {"kind": "circular", "mechanism": UNIFORM}
    law["transition"] = {"kind": "step", "goal": "previous(phi)", "std": 1e-6}
    environments = {"own": environment.get("constant", environment)} if environment else {}
    turning = model({"phi": law}, environments={k: {"phi": v} for k, v in environments.items()})
    sampling = Sampling(turning, tuple(environments), do={"phi": {"shift": 0.2}}, steps=4)
    phi = sampling.draw(range(400), **TRAIN).variables[:, 0].reshape(100, 4)
    if total is None:
        assert phi == pytest.approx(1.2, abs=1e-6)
    else:
        assert np.diff(phi) % (2 * np.pi) == pytest.approx(total, abs=1e-4)


def sequences(steps=21, **law):
    sampling = Sampling(whole(interventions=law or {"targets": "none"}), steps=steps)
    draws = sampling.draw(range(steps * 600), **TRAIN)
    shape = (600, steps, -1)
    return sampling, draws.variables.reshape(shape), draws.targets.reshape(shape)


def _within(rate, share, count):
    """Whether a share of `count` trials is one of a rate: five standard errors."""
    return abs(share - rate) <= 5 * math.sqrt(rate * (1 - rate) / count) + 1e-12


def test_without_targets_none_is_hit():
    _, _, targets = sequences()
    assert not targets.any()


@pytest.mark.parametrize("probability", [0.1, 1 / 3, 1.0])
def test_bernoulli_targets_have_their_rate_by_group_and_apart(probability):
    groups = [["x", "y"], ["theta"], ["switch"], ["x", "z"]]
    sampling, _, targets = sequences(targets="bernoulli", probability=probability, groups=groups)
    names = sampling.model.names
    assert not targets[:, 0].any()
    later = targets[:, 1:].astype(bool)
    x, y, z, theta, switch = (
        later[..., names.index(each)] for each in ("x", "y", "z", "theta", "switch")
    )
    for hit in (y, z, theta, switch):
        assert _within(probability, hit.mean(), hit.size)
    assert (x == (y | z)).all()
    for one, two in ((y, theta), (y, z), (theta, switch)):
        assert _within(probability**2, (one & two).mean(), one.size)
    after = y[:, :-1] & y[:, 1:]
    assert _within(probability**2, after.mean(), after.size)
    for each in ("background_hue", "background_hue_goal"):
        assert not later[..., names.index(each)].any()


@pytest.mark.parametrize("observed", [0.0, 0.4, 1.0])
def test_single_targets_hit_one_group_or_none(observed):
    groups = [["x", "y"], ["theta"], ["switch"]]
    sampling, _, targets = sequences(targets="single", observed=observed, groups=groups)
    later = targets[:, 1:].astype(bool)
    hits = np.stack([later[..., sampling.model.names.index(group[0])] for group in groups])
    assert (hits.sum(0) <= 1).all()
    x, y = (later[..., sampling.model.names.index(each)] for each in ("x", "y"))
    assert (x == y).all()
    count = hits[0].size
    assert _within(observed, 1 - hits.any(0).mean(), count)
    for hit in hits:
        assert _within((1 - observed) / 3, hit.mean(), count)


def test_an_intervention_in_time_is_perfect_and_uniform():
    law = {"targets": "bernoulli", "probability": 0.3, "groups": [["x"], ["theta"], ["switch"]]}
    sampling, values, targets = sequences(**law)
    names = sampling.model.names
    for each in ("x", "theta"):
        column = names.index(each)
        hit = targets[:, 1:, column].astype(bool)
        drawn, before = values[:, 1:, column][hit], values[:, :-1, column][hit]
        low, high = sampling.model[each].range
        assert stats.kstest(drawn, stats.uniform(low, high - low).cdf).pvalue > 1e-4
        assert abs(stats.spearmanr(drawn, before)[0]) < 5 / math.sqrt(len(drawn))
    column = names.index("switch")
    hit = targets[:, 1:, column].astype(bool)
    shares = np.bincount(values[:, 1:, column][hit].astype(int)) / hit.sum()
    np.testing.assert_allclose(shares, 1 / 3, atol=5 * math.sqrt(2 / 9 / hit.sum()))
    stays = values[:, 1:, column] == values[:, :-1, column]
    assert _within(0.8 + 0.2 / 3, stays[~hit].mean(), (~hit).sum())


def test_a_step_in_time_goes_half_way_to_its_goal():
    sampling, values, _ = sequences()
    names = sampling.model.names

    def of(name):
        column = values[..., names.index(name)].astype(float)
        return column[:, :-1], column[:, 1:]

    def turned(angle):
        return (angle + math.pi) % (2 * math.pi) - math.pi

    theta, theta_next = of("theta")
    hue, hue_next = of("background_hue")
    _, goal_next = of("background_hue_goal")
    for before, after, goal in ((theta, theta_next, hue), (hue, hue_next, goal_next)):
        noise = turned(after - before - turned(goal - before) / 2)
        near = np.abs(turned(goal - before)) < 3
        assert noise[near].std() == pytest.approx(0.15, rel=0.05)
        assert abs(noise[near].mean()) < 5 * 0.15 / math.sqrt(near.sum())
    x, x_next = of("x")
    noise = x_next - (x + (1.5 * np.sin(theta_next) - x) / 2)  # theta of the same frame
    assert noise[np.abs(x) < 1.5].std() == pytest.approx(0.1, rel=0.05)


def test_lagged_parents_are_of_the_frame_before_and_others_of_the_same():
    step = {"kind": "step", "rate": 1.0, "std": 1e-6}
    variables = {
        "x": {"mechanism": UNIFORM, "transition": UNIFORM},
        "y": {"mechanism": UNIFORM, "transition": {**step, "goal": "x"}},
        "z": {"mechanism": UNIFORM, "transition": {**step, "goal": "previous(x)"}},
    }
    drawn = Sampling(model(variables), steps=4).draw(range(400), **TRAIN)
    x, y, z = np.moveaxis(drawn.variables.reshape(100, 4, 3), 2, 0)
    np.testing.assert_allclose(y[:, 1:], x[:, 1:], atol=1e-4)
    np.testing.assert_allclose(z[:, 1:], x[:, :-1], atol=1e-4)
    assert np.abs(z[:, 1:] - x[:, 1:]).max() > 0.5
    graph = model(variables)
    assert graph.step_adjacency.tolist() == [[False, True, False], [False] * 3, [False] * 3]
    assert graph.lagged_adjacency.tolist() == [
        [False, False, True],
        [False, True, False],
        [False, False, True],
    ]


def test_the_first_frame_is_the_single_image_and_longer_sequences_go_on():
    model = whole()
    single = Sampling(model).draw(range(50), **TRAIN)
    short = Sampling(model, steps=3).draw(range(150), **TRAIN)
    long = Sampling(model, steps=7).draw(range(350), **TRAIN)
    assert short.variables[0::3].tobytes() == single.variables.tobytes()
    assert (
        short.variables.reshape(50, 3, -1).tobytes()
        == np.ascontiguousarray(long.variables.reshape(50, 7, -1)[:, :3]).tobytes()
    )


def test_an_environment_holds_through_a_sequence():
    sampling = Sampling(whole(), environments=("held",), steps=6)
    values, draws = columns(sampling, 120)
    assert (values["x"] == np.float32(0.3)).all()
    assert (values["switch"] == 2).all()
    assert draws.targets[:, sampling.model.names.index("x")].all()


def test_a_circle_that_only_a_sequence_closes_is_refused_before_it_is_drawn():
    step = {"kind": "step", "std": 0.1}
    variables = {
        "x": {"mechanism": UNIFORM, "transition": {**step, "goal": "y"}},
        "y": {"mechanism": UNIFORM},
    }
    with pytest.raises(UsageError, match="circle"):
        Sampling(model(variables), do={"y": "x"}, steps=3)
    Sampling(model(variables), do={"y": "x"})


# Models as plain data


@pytest.mark.parametrize("name", ["whole", "chain", "ten"])
def test_a_model_survives_plain_data_and_pickle(name):
    made = {"whole": whole(), "chain": model(CHAIN), "ten": model(TEN)}[name]
    again = parse_model(copy.deepcopy(made.as_dict()), "again")
    assert again == made
    assert again.as_dict() == made.as_dict()
    assert pickle.loads(pickle.dumps(made)) == made
    assert copy.deepcopy(made) == made
    one, two = (Sampling(each).draw(range(100), **TRAIN).variables for each in (made, again))
    assert one.tobytes() == two.tobytes()


@pytest.mark.parametrize("name", samplings())
def test_a_sampling_survives_plain_data(name):
    import json

    sampling = samplings()[name]
    preset = sampling.model.preset.as_dict()
    about = sampling.model.about()
    for field in ("description", "best_r2"):
        preset.pop(field)
    data = json.loads(json.dumps([sampling.as_dict(), preset, about]))
    again = parse_sampling(*data, "again")
    assert again.model == sampling.model
    assert again.as_dict() == sampling.as_dict()
    one, two = (each.draw(range(60), **TRAIN) for each in (sampling, again))
    for field in FIELDS:
        assert getattr(one, field).tobytes() == getattr(two, field).tobytes()


@pytest.mark.parametrize("name", model_names())
def test_every_built_in_model_survives_plain_data_and_draws(name):
    made = load_model(name)
    assert parse_model(made.as_dict(), name) == made
    assert pickle.loads(pickle.dumps(made)) == made
    for sampling in (
        Sampling(made, environments=(OBSERVED, INDEPENDENT, *made.environments)),
        *(Sampling(made, view=view) for view in made.views),
        *([Sampling(made, steps=6)] if made.has_time else []),
    ):
        draws = sampling.draw(range(2000), **TRAIN)
        assert np.isfinite(draws.variables).all()
        assert np.isfinite(made.scene_rows(draws.variables)).all()
        assert (np.abs(made.raw_latents(draws.variables)) <= 1).all()


def test_a_class_named_by_another_number_is_refused():
    """Else the class "1", written down as number 2, would be read as the class "2"."""
    values = {"kind": "discrete", "mechanism": UNIFORM}
    for names in (["-1", "0", "1"], ["1", "0"], ["a", "0"]):
        with pytest.raises(UsageError, match=r"variables.s.values"):
            model({"s": {**values, "values": names}})
    numbered = model({"s": {**values, "values": ["0", "1", "2"]}})
    draws = Sampling(numbered, do={"s": "2"}).draw(range(3), **TRAIN)
    assert draws.variables.tolist() == [[2], [2], [2]]


# Rendering


def test_factors_that_no_variable_renders_are_held():
    made = model({"x": {"mechanism": NORMAL}, "w": {"mechanism": UNIFORM}})
    values = Sampling(made).draw(range(10), **TRAIN).variables
    raw = made.raw_latents(values)
    assert (raw[:, 0] == values[:, 0]).all()
    assert not raw[:, 1:].any()
    fixed = plain({"x": {"mechanism": NORMAL}}, scene={"fixed": {"theta": 0.5}})
    raw = parse_model(fixed, "test").raw_latents(np.zeros((2, 1)))
    assert raw[:, 4].tolist() == [0.5, 0.5]
    assert made.preset.fixed.keys() == {*TEN} - {"x"}


def test_a_range_is_mapped_to_its_scene_values():
    variable = {"range": [0.0, 4.0], "scene": [-1.0, 3.0], "renders": "y", "mechanism": UNIFORM}
    made = model({"height": variable})
    rows = made.scene_rows(np.array([[0.0], [1.0], [4.0]]))
    np.testing.assert_allclose(rows[:, 1], [-1, 0, 3], atol=1e-6)
    steps = {"kind": "discrete", "values": ["low", "mid", "high"], "mechanism": UNIFORM}
    made = model({"x": {**steps, "scene": [-3.0, 3.0]}})
    np.testing.assert_allclose(made.scene_rows([[0], [1], [2]])[:, 0], [-3, 0, 3], atol=1e-6)
    alone = model({"x": {**steps, "values": ["only"], "scene": [-3.0, 3.0]}})
    assert alone.scene_rows([[0]])[0, 0] == 0


def test_a_model_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        whole().name = "other"


def test_the_range_of_another_object_is_that_of_the_scene():
    variables = {"x": {"mechanism": UNIFORM, "scene": [-1, 1]}, "x_2": {"mechanism": UNIFORM}}
    two = model(variables, scene={"objects": 2})
    rows = two.scene_rows([[1.0, 1.0]])
    assert rows[0, 0] == 1
    assert rows[0, two.preset.columns.index("x_2")] == two["x_2"].scene[1] == 3
    assert parse_model(two.as_dict(), "again") == two
