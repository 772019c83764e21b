from __future__ import annotations

import math

import pytest
from helpers.causal import CHAIN, NORMAL, TEN, UNIFORM, model, whole

from threedident.causal import INDEPENDENT, OBSERVED, Sampling, load_model, model_names
from threedident.causal.assumptions import (
    VERDICTS,
    model_assumptions,
    sampling_assumptions,
    support,
)

TURN = 2 * math.pi
CIRCLE = {"kind": "circular", "scene": [0.0, TURN], "mechanism": UNIFORM}
CLASSES = {"kind": "discrete", "values": ["a", "b"], "mechanism": UNIFORM}
REGULAR = {"base": "3dident-regular"}
STEP = {"kind": "step", "std": 0.1}


def verdicts(sampling):
    return {(a.about, a.key): (a.verdict, a.reason) for a in sampling_assumptions(sampling)}


def of_images(variables, key, **options):
    return verdicts(Sampling(model(variables, **REGULAR, **options)))["images", key]


def x(mechanism, **more):
    return {"x": {"mechanism": mechanism, **more}, "y": {"mechanism": UNIFORM}, "s": CLASSES}


def table(a, b):
    return {"kind": "table", "by": "s", "cases": {"a": a, "b": b}}


@pytest.mark.parametrize(
    "mechanism, expected",
    [
        (UNIFORM, "range"),
        (NORMAL, "range"),
        ({"kind": "truncated_laplace", "mean": "y", "scale": 0.1}, "range"),
        (UNIFORM | {"low": 0}, "part"),
        (UNIFORM | {"low": 0.5, "high": 0.5}, "point"),
        (UNIFORM | {"low": "y"}, "varies"),
        (UNIFORM | {"low": "y", "high": "y"}, "function"),
        (0.5, "point"),
        ("y / 2", "function"),
        (table(UNIFORM, NORMAL), "range"),
        (table(UNIFORM, 0.5), "varies"),
        (table(0.25, 0.5), "function"),
        (table("y", "y / 2"), "function"),
        (table(UNIFORM, UNIFORM | {"low": 0}), "varies"),
        (table(UNIFORM | {"low": 0}, UNIFORM | {"low": 0}), "part"),
    ],
)
def test_the_support_is_that_of_drawn_values(mechanism, expected):
    made = model(x(mechanism), **REGULAR)
    assert support(made["x"].mechanism, made["x"].domain) == expected
    values = Sampling(made).draw(range(4000), seed=0, split="train").variables
    other = Sampling(made, do={"y": -0.9, "s": "a"}).draw(range(4000), seed=0, split="train")
    ends = values[:, 0].min(), values[:, 0].max()
    if expected == "range":
        assert ends[0] < -0.9
        assert ends[1] > 0.9
    assert (ends[0] == ends[1]) == (expected == "point")
    if expected == "function":
        assert len(set(other.variables[:, 0])) == 1
    if expected in ("range", "part"):
        assert other.variables[:, 0].min() == pytest.approx(ends[0], abs=0.05)


@pytest.mark.parametrize(
    "mechanism, expected",
    [
        ({"kind": "choice"}, "range"),
        ({"kind": "choice", "probabilities": [0.5, 0.5, 0]}, "part"),
        ({"kind": "choice", "probabilities": [0, 1, 0]}, "point"),
        ("b", "point"),
        (UNIFORM, "range"),
    ],
)
def test_the_support_of_classes(mechanism, expected):
    made = model({"s": CLASSES | {"values": ["a", "b", "c"], "mechanism": mechanism}})
    assert support(made["s"].mechanism, made["s"].domain) == expected


def test_the_support_of_shifts_stays_and_single_classes():
    made = whole()
    moved = made.environment("moved")
    assert support(moved["y"], made["y"].domain) == "part"
    assert support(moved["theta"], made["theta"].domain) == "range"
    assert support(made["switch"].transition, made["switch"].domain) == "range"
    still = model({"s": CLASSES | {"transition": {"kind": "stay", "redraw": 0}}})["s"]
    assert support(still.transition, still.domain) == "function"
    alone = model({"s": CLASSES | {"values": ["a"]}})["s"]
    assert support(alone.mechanism, alone.domain) == "point"


def test_ten_uniform_factors_of_the_regular_preset_have_all():
    for (about, key), (verdict, reason) in verdicts(Sampling(model(TEN, **REGULAR))).items():
        assert (about, verdict) == ("images", "holds"), (key, reason)


@pytest.mark.parametrize(
    "key, variables, verdict, words",
    [
        ("independent", CHAIN, "fails", "y on x; z on x and y"),
        ("independent", x(table(UNIFORM, NORMAL)), "fails", "x on s"),
        ("independent", {"x": {"mechanism": "y"}, "y": {"mechanism": 0.5}}, "holds", "no variable"),
        ("uniform", x(NORMAL), "fails", "x has another law"),
        ("uniform", x(NORMAL | {"mean": "y"}), "unknown", "x follow from their parents"),
        ("uniform", x(UNIFORM | {"low": 0}), "holds", "drawn evenly"),
        ("product", x(UNIFORM | {"low": "y"}), "fails", "x can take depend on other variables"),
        ("product", x("y"), "fails", "x can take depend"),
        ("product", x(table(UNIFORM, 0.5)), "fails", "x can take depend"),
        ("product", x(NORMAL | {"mean": "3 * y"}), "holds", "every combination"),
        ("no_functions", x("y / 2"), "fails", "x of y"),
        ("no_functions", x(table(0.1, 0.2)), "fails", "x of s"),
        ("no_functions", x(table(0.1, UNIFORM)), "holds", "no mechanism"),
        ("noise", x(table(0.1, UNIFORM)), "fails", "x has none, or none in some cases"),
        ("noise", x("y / 2"), "fails", "x has none"),
        ("noise", x(0.5), "holds", "x is one number, left out"),
        ("box", x(UNIFORM), "fails", "s is discrete"),
        ("box", {"theta": CIRCLE, "x": {"mechanism": UNIFORM}}, "fails", "theta is circular"),
        ("injective", x(UNIFORM), "fails", "s renders nothing"),
        ("injective", x(UNIFORM, renders=""), "fails", "x and s render nothing"),
        ("injective", {"x": {"mechanism": UNIFORM, "scene": [1, 1]}}, "fails", "range of x is one"),
        ("injective", {"theta": CIRCLE}, "holds", "no two values share"),
        ("injective", {"theta": CIRCLE, "phi": CIRCLE}, "holds", "no two values share"),
        ("injective", {"theta": CIRCLE, "phi": CIRCLE, "psi": CIRCLE}, "fails", "gimbal lock"),
        (
            "injective",
            {"theta": CIRCLE, "phi": CIRCLE, "psi": CIRCLE | {"mechanism": 0.5}},
            "holds",
            "no two values share",
        ),
        (
            "injective",
            {"theta": {"mechanism": UNIFORM, "scene": [0.0, TURN]}},
            "fails",
            "theta spans a full turn",
        ),
        ("injective", {"phi": CIRCLE | {"scene": [0.0, 2 * TURN]}}, "fails", "phi spans a full"),
        (
            "injective",
            {"spotlight_position": {"mechanism": UNIFORM, "scene": [-math.pi, math.pi]}},
            "fails",
            "spotlight_position spans a full turn",
        ),
        ("injective", {"spotlight_position": CIRCLE}, "holds", "no two values share"),
        ("smooth", {"theta": CIRCLE}, "holds", "without a jump"),
        ("smooth", {"theta": CIRCLE | {"scene": [0.0, 3.0]}}, "fails", "where the theta circle"),
        ("smooth", {"x": CIRCLE | {"scene": [-1.0, 1.0]}}, "fails", "where the x circle"),
        ("smooth", {"x": CLASSES}, "fails", "from class to class of x"),
    ],
)
def test_a_verdict_on_images_and_its_reason(key, variables, verdict, words):
    now, reason = of_images(variables, key)
    assert (now, words in reason) == (verdict, True), (now, reason)


def test_an_unwrapped_hue_is_not_injective_and_breaks_a_circle_at_blue():
    hue = {"object_hue": CIRCLE | {"scene": [-math.pi, math.pi]}}
    found = verdicts(Sampling(model(hue)))
    assert found["images", "injective"][0] == "fails"
    assert "object_hue share one colour" in found["images", "injective"][1]
    assert "object_hue circle" in found["images", "smooth"][1]
    wrapped = verdicts(Sampling(model(hue, base="3dident-wrapped")))
    assert wrapped["images", "injective"][0] == "holds"
    assert wrapped["images", "smooth"][0] == "holds"


def test_what_is_drawn_from_an_environment_is_judged_by_its_law():
    chain = model(CHAIN, **REGULAR)
    assert verdicts(Sampling(chain, environments=(INDEPENDENT,)))["images", "uniform"][0] == "holds"
    both = verdicts(Sampling(chain, environments=(INDEPENDENT, OBSERVED)))
    assert both["images", "independent"] == (
        "fails",
        "in observed: depend on others: y on x; z on x and y",
    )
    done = verdicts(Sampling(chain, do={"y": UNIFORM, "z": 0.5}))
    assert done["images", "independent"][0] == "holds"
    assert "z is one number" in done["images", "noise"][1]


# Environments


def environments(laws, names=None, variables=CHAIN):
    made = model(variables, environments=laws)
    return verdicts(Sampling(made, environments=names or (OBSERVED, *laws)))


def test_environments_with_one_perfect_intervention_each():
    laws = {f"on {name}": {name: 0.25} for name in CHAIN}
    found = environments(laws)
    for key in ("observed", "known_targets", "single_node", "perfect"):
        assert found["environments", key][0] == "holds"
    assert found["environments", "paired"] == ("fails", "not so: x, y, z and object_hue")
    assert found["environments", "variability"][0] == "unknown"
    twice = laws | {f"again {name}": {name: -0.25} for name in CHAIN}
    assert environments(twice)["environments", "paired"][0] == "holds"
    alone = environments(laws, tuple(laws))
    assert alone["environments", "observed"][0] == "fails"


def test_environments_that_lack_something_say_what():
    laws = {"both": {"x": 0.1, "y": 0.1}, "soft": {"z": {"shift": 0.1}}}
    found = environments(laws)
    assert found["environments", "single_node"] == (
        "fails",
        "x, y and object_hue are never intervened on alone",
    )
    assert found["environments", "perfect"] == ("fails", "z in soft keeps parents")
    assert environments({"one": {"x": 0.1}}, (OBSERVED,))["environments", "perfect"][0] == "fails"
    root = environments({"one": {"x": {"shift": 0.1}}})
    assert root["environments", "perfect"][0] == "holds"


def test_a_counterfactual_has_the_same_noise():
    found = verdicts(Sampling(model(CHAIN), counterfactual={"y": {"shift": 0.1}}))
    assert found["counterfactuals", "same_noise"][0] == "holds"
    assert found["counterfactuals", "perfect"] == ("fails", "y keeps parents")
    assert found["counterfactuals", "single_node"][0] == "fails"
    only = model({"x": {"mechanism": UNIFORM}, "y": {"mechanism": 0.5}})
    found = verdicts(Sampling(only, counterfactual={"x": 0.5}))
    assert found["counterfactuals", "single_node"][0] == "holds"


# Views


def views(law, variables=CHAIN):
    return verdicts(Sampling(model(variables, views={"v": law}), view="v"))


def test_views_of_content_and_style():
    found = views({"z": NORMAL | {"mean": "first(z)"}})
    assert found["views", "content"] == ("holds", "copied: x, y and object_hue")
    assert found["views", "style"] == ("holds", "z can take every value in the second view")
    for key in ("content_first", "same_mixing"):
        assert found["views", key][0] == "holds"
    assert found["views", "injective"][0] == "fails"  # the hue is not wrapped
    assert ("views", "private") not in found


def test_views_that_lack_something_say_what():
    found = views({"x": {"kind": "uniform", "low": "first(x)"}})
    assert found["views", "style"] == ("fails", "x cannot take every value in the second view")
    assert found["views", "content_first"] == ("fails", "x -> y and x -> z")
    everything = views(dict.fromkeys(CHAIN, UNIFORM))
    assert everything["views", "content"] == ("fails", "no variable is copied")
    assert everything["views", "private"][0] == "fails"
    apart = views({"object_hue": UNIFORM})
    assert apart["views", "private"] == ("holds", "object_hue has neither parents nor children")
    assert apart["views", "style"] == ("holds", "no variable is style")
    tied = views({"z": UNIFORM | {"low": "0 * x"}})
    assert tied["views", "private"] == ("fails", "depend on others: z on x and y")


def test_the_mixing_of_a_second_view_is_that_of_what_varies_there():
    """As in 3DIdentBox, whose private factors are held in one of the views."""
    turn = {"mechanism": UNIFORM, "scene": [-math.pi, math.pi]}
    variables = {"phi": turn, "theta": turn | {"mechanism": 0}, "x": {"mechanism": UNIFORM}}
    found = views({"phi": 0, "theta": UNIFORM}, variables)
    assert found["images", "injective"] == ("fails", "phi spans a full turn or more")
    assert found["views", "injective"] == ("fails", "theta spans a full turn or more")
    other = {"material": {"kind": "discrete", "values": ["metal", "rubber"], "mechanism": "metal"}}
    scene = {"materials": ["metal", "rubber"]}
    made = model(CHAIN | other, scene=scene, views={"v": {"material": "rubber", "z": UNIFORM}})
    found = verdicts(Sampling(made, view="v"))
    assert found["views", "same_mixing"][0] == "fails"
    assert found["views", "private"] == ("fails", "depend on others: z on x and y")


# Time


def sequence(variables, **interventions):
    made = model(variables, interventions=interventions or {"targets": "none"})
    return verdicts(Sampling(made, steps=3))


def test_sequences_whose_parents_are_of_the_past():
    variables = {
        "x": {"mechanism": UNIFORM, "transition": STEP | {"goal": "previous(y)"}},
        "y": {"mechanism": UNIFORM, "transition": STEP | {"goal": "y0"}},
        "y0": {"mechanism": 0.5},
    }
    found = sequence(variables, targets="bernoulli", probability=0.2)
    for key in ("given_past", "noise", "known_targets", "single_node", "perfect"):
        assert found["sequences", key][0] == "holds", key
    assert found["sequences", "variability"][0] == "unknown"


def test_sequences_that_lack_something_say_what():
    variables = {
        "x": {"mechanism": UNIFORM, "transition": STEP | {"goal": "y"}},
        "y": {"mechanism": UNIFORM, "transition": "previous(y)"},
        "z": {"mechanism": UNIFORM},
    }
    found = sequence(variables)
    assert found["sequences", "given_past"] == (
        "fails",
        "parents in the same image: y -> x",
    )
    assert found["sequences", "noise"] == ("fails", "y has none, or none in some cases")
    assert found["sequences", "known_targets"] == ("fails", "there are no interventions")
    assert found["sequences", "single_node"] == ("fails", "x, y and z are never hit")
    assert ("sequences", "perfect") not in found
    single = {"targets": "single", "groups": [["x", "y"], ["z"]]}
    found = sequence(variables, **single)
    assert found["sequences", "single_node"] == (
        "fails",
        "hit together, so one variable to the theory: x and y",
    )
    found = sequence(variables, **single | {"groups": [["x", "y"], ["y", "z"]]})
    assert found["sequences", "single_node"][0] == "holds"
    found = sequence(variables, **single | {"observed": 1.0})
    assert found["sequences", "known_targets"][0] == "fails"


# All


@pytest.mark.parametrize("name", ["whole", *model_names()])
def test_every_assumption_has_a_verdict_a_reason_and_papers(name):
    made = whole() if name == "whole" else load_model(name)
    found = model_assumptions(made)
    for each in found:
        assert each.verdict in VERDICTS
        assert each.text.endswith(".")
        assert 0 < len(each.reason) < 300
        assert not each.reason.endswith(".")
        assert each.papers
        assert all(paper[-4:].isdigit() for paper in each.papers)
        assert each.as_dict()["papers"] == list(each.papers)
    abouts = {each.about for each in found}
    assert ("sequences" in abouts) == made.has_time
    assert ("views" in abouts) == bool(made.views)
    assert ("environments" in abouts) == bool(made.environments)
