from __future__ import annotations

import copy
import math
import re

import hypothesis
import hypothesis.strategies as st
import pytest
from helpers.causal import CHAIN, NORMAL, UNIFORM, WHOLE, model, plain

from threedident.causal import load_model, model_names, parse_model
from threedident.errors import UsageError

X = {"x": {"mechanism": UNIFORM}}
CLASSES = {"kind": "discrete", "values": ["a", "b"], "mechanism": UNIFORM}
CIRCULAR = {"kind": "circular", "mechanism": UNIFORM}


def x(mechanism=None, **fields):
    """A variable x, and a class s beside it."""
    return {"x": {"mechanism": mechanism or UNIFORM, **fields}, "s": CLASSES, "a": CIRCULAR}


def table(**fields):
    return {"kind": "table", "by": "s", "cases": {"a": UNIFORM, "b": UNIFORM}, **fields}


STEP = {"kind": "step", "goal": "x", "std": 0.1}

#: Plain data that do not fit, and what the error says: field, expected, found, what to do.
FAULTS = {
    "unknown field": (plain(X, colour=1), "unknown field 'colour': expected some of name, desc"),
    "name": (plain(X) | {"name": ""}, "name must be text of 1 to 80 characters, found ''"),
    "name of two lines": (plain(X) | {"name": "a\nb"}, "name must be one line"),
    "description": (plain(X) | {"description": 3}, "description must be a string, found 3"),
    "sources": (plain(X) | {"sources": ["a"]}, "sources must be a string, found"),
    "scene": (plain(X) | {"scene": 3}, "scene must be a table of fields, found 3"),
    "no ranges": (plain(X) | {"scene": {}}, r"\[scene\]: ranges lacks x"),
    "scene field": (plain(X, scene={"light": 3}), r"\[scene\]: unknown field 'light'"),
    "no variables": ({"scene": plain(X)["scene"]}, "variables is missing"),
    "empty": (plain({}), "variables must be 1 to 64 tables, found 0"),
    "many": (plain({f"v{n}": x()["x"] for n in range(65)}), "1 to 64 tables, found 65"),
    "variables": (plain(X) | {"variables": [1]}, "variables must be a table of variables"),
    "variable": (plain(X) | {"variables": {"x": 3}}, "variables.x must be a table of fields"),
    "variable's name": (plain({"a b": UNIFORM}), "variables.a b: .*letters, digits and _"),
    "pi": (plain({"pi": UNIFORM}), "variables.pi: .*letters, digits and _"),
    "keyword": (plain({"lambda": x()["x"]}), "variables.lambda: .*Python"),
    "True": (plain({"True": x()["x"]}), "variables.True: .*Python"),
    "long name": (plain({"v" * 41: UNIFORM}), "letters, digits and _"),
    "ligature": (plain({"ﬁeld": x()["x"]}), "letters, digits and _"),
    "field": (plain(x(colour="red")), "unknown field 'colour' in variables.x"),
    "kind": (plain(x(kind="box")), "x.kind must be one of continuous, circular, discrete, found"),
    "range": (plain(x(range=[1])), r"x.range must be two numbers, found \[1\]"),
    "range's order": (plain(x(range=[1.0, -1.0])), "x.range must be .*low < high, found"),
    "range's width": (plain(x(range=[1.0, 1.0])), "x.range must be .*low < high, found"),
    "range's type": (plain(x(range=["a", 1])), "x.range must be a finite number"),
    "range's end": (plain(x(range=[0.0, math.inf])), "x.range must be a finite number"),
    "range's size": (plain(x(range=[0.0, 1e9])), "x.range must be a finite number, at most"),
    "range of classes": (plain({"s": CLASSES | {"range": [0, 1]}}), "has values, and no range"),
    "values of none": (plain(x(values=["a"])), 'add kind = "discrete"'),
    "no values": (plain({"s": {"kind": "discrete"}}), "s.values is missing"),
    "values": (plain({"s": CLASSES | {"values": []}}), "s.values must be a list of 1 to 10000"),
    "value": (plain({"s": CLASSES | {"values": ["a", 3]}}), "s.values must be text of 1 to 40"),
    "value twice": (plain({"s": CLASSES | {"values": ["a", "a"]}}), "names a class twice"),
    "renders": (plain(x(renders="w")), "x.renders: the scene has no 'w': expected one of x, y"),
    "unseen class": (plain(X | {"shape": CLASSES}), r'has no shape: .*\(shapes, .*renders = ""'),
    "unseen object": (plain(X | {"x_2": x()["x"]}), "variables.x_2: the scene has no x_2"),
    "renders both": (plain(X | {"w": x()["x"] | {"renders": "x"}}), "x and w both render x"),
    "renders fixed": (plain(X, scene={"fixed": {"x": 0.5}}), "renders x, which scene.fixed holds"),
    "scene of none": (plain({"w": x()["x"] | {"scene": [0, 1]}}), "w.scene gives values of a fac"),
    "scene's values": (plain(x(scene=[1, 0])), r"x.scene must be \[low, high\], found"),
    "status": (plain(x(status="sure")), "x.status must be one of published, inferred, unknown"),
    "note": (plain(x(note=3)), "x.note must be a string"),
    "no mechanism": (plain({"x": {}}), "variables.x.mechanism is missing"),
    "no kind": (plain(x({"std": 1})), "variables.x.mechanism.kind is missing"),
    "mechanism": (plain(x({"kind": "normal"})), "x.mechanism.kind must be one of uniform, choice"),
    "mechanism's field": (plain(x(UNIFORM | {"mean": 0})), "unknown field 'mean' in .*mechanism"),
    "list": (plain(x([0.3])), "x.mechanism must be a number or an expression, found"),
    "shift": (plain(x({"shift": 0.3})), "x.mechanism.kind is missing"),
    "no std": (plain(x({"kind": "truncated_normal", "mean": 0})), "x.mechanism.std is missing"),
    "no mean": (plain(x({"kind": "truncated_laplace", "scale": 1})), "mechanism.mean is missing"),
    "std 0": (plain(x(NORMAL | {"std": 0})), "x.mechanism.std must be > 0, found 0"),
    "std nan": (plain(x(NORMAL | {"std": math.nan})), "x.mechanism.std must be a finite number"),
    "std text": (plain(x(NORMAL | {"std": "y"})), "x.mechanism.std must be a finite number"),
    "expression": (plain(x(NORMAL | {"mean": "x +"})), "x.mechanism.mean: 'x \\+' is no expr"),
    "unknown name": (plain(x(NORMAL | {"mean": "w"})), "mean: 'w' is no variable: .*x, s, a"),
    "unknown previous": (plain(x(transition=STEP | {"goal": "previous(w)"})), "'w' is no variable"),
    "function": (plain(x(NORMAL | {"mean": "exp(x)"})), "unknown function 'exp': .*sin, cos"),
    "number": (plain(x(NORMAL | {"mean": math.inf})), "x.mechanism.mean must be a finite number"),
    "bool": (plain(x(NORMAL | {"mean": True})), "mean must be a number or an expression, found T"),
    "constant": (plain(x(3.0)), r"expected a value in \[-1, 1\] for x, found 3.0"),
    "constant in table": (plain(x({"kind": "constant", "value": -3})), "x.mechanism.value: expec"),
    "division": (plain(x("1 / 0")), "x.mechanism: expected a value in"),
    "class": (
        plain({"s": CLASSES | {"mechanism": "c"}}),
        "s has no class 'c': expected one of a, b",
    ),
    "class number": (plain({"s": CLASSES | {"mechanism": 2}}), "expected one of a, b for s"),
    "half a class": (plain({"s": CLASSES | {"mechanism": 0.5}}), "expected one of a, b for s"),
    "choice of x": (plain(x({"kind": "choice"})), "choice is no mechanism of a continuous"),
    "normal circle": (plain({"a": CIRCULAR | {"mechanism": NORMAL}}), "no mechanism of a circular"),
    "low of classes": (plain({"s": CLASSES | {"mechanism": UNIFORM | {"low": 0}}}), "use choice"),
    "stay of x": (plain(x(transition={"kind": "stay", "redraw": 0.1})), "no mechanism of a contin"),
    "redraw": (
        plain({"s": CLASSES | {"transition": {"kind": "stay", "redraw": 2}}}),
        r"redraw must lie in \[0, 1\], found 2",
    ),
    "rate": (plain(x(transition=STEP | {"rate": -0.1})), r"rate must lie in \[0, 1\], found -0.1"),
    "probabilities": (
        plain({"s": CLASSES | {"mechanism": {"kind": "choice", "probabilities": [1]}}}),
        "probabilities must be 2 numbers, one a class",
    ),
    "sum": (
        plain({"s": CLASSES | {"mechanism": {"kind": "choice", "probabilities": [0.5, 0.4]}}}),
        "probabilities must be >= 0 and sum to 1",
    ),
    "negative": (
        plain({"s": CLASSES | {"mechanism": {"kind": "choice", "probabilities": [1.5, -0.5]}}}),
        "probabilities must be",
    ),
    "table by x": (
        plain(x(table(by="x"))),
        "by must be the name of a discrete variable, found 'x'",
    ),
    "table by sum": (plain(x(table(by="s + 1"))), "by must be the name of a discrete variable"),
    "table by none": (plain(x(table(by="1"))), "by must be the name of a discrete variable"),
    "case": (plain(x(table(cases={"c": UNIFORM}))), "s has no class 'c': expected some of a, b"),
    "missing case": (plain(x(table(cases={"a": UNIFORM}))), "cases lacks b: add them, or a mech"),
    "cases": (plain(x(table(cases=[]))), "cases must be a table of classes"),
    "in a case": (
        plain(x(table(cases={"a": UNIFORM, "b": NORMAL | {"std": -1}}))),
        "variables.x.mechanism.cases.b.std must be > 0",
    ),
    "environments": (plain(X, environments=3), "environments must be a table of tables"),
    "taken": (plain(X, environments={"independent": {}}), "every model has an environment of that"),
    "environment's name": (plain(X, environments={" ": {}}), "a name in environments must be text"),
    "environment": (plain(X, environments={"e": {"w": 0}}), "environments.e: 'w' is no variable"),
    "environment's value": (
        plain(X, environments={"e": {"x": 2.0}}),
        r"environments.e.x: expected",
    ),
    "environment's shift": (
        plain(X, environments={"e": {"x": {"shift": -2}}}),
        "environments.e.x: a shift by -2 leaves no value in its range",
    ),
    "environment of classes": (
        plain({"s": CLASSES}, environments={"e": {"s": {"shift": 1}}}),
        "a class cannot be shifted; name one",
    ),
    "environment's past": (
        plain(X, environments={"e": {"x": "previous(x)"}}),
        "environments.e: x needs the value of the frame before, which only a transition has",
    ),
    "environment's circle": (
        plain(CHAIN, environments={"e": {"x": "y"}}),
        "environments.e: variables depend on each other in a circle: (x -> y -> x|y -> x -> y)",
    ),
    "views": (plain(X, views={"v": 3}), "views.v must be a table of variables"),
    "view": (plain(X, views={"v": {"w": 0}}), "views.v: 'w' is no variable"),
    "view's past": (
        plain(X, views={"v": {"x": "previous(x)"}}),
        "views.v: x needs the value of the",
    ),
    "view's shift": (plain(X, views={"v": {"x": {"shift": 0.1}}}), "views.v.x.kind is missing"),
    "past": (plain(x("previous(x)")), "variables: x needs the value of the frame before"),
    "step at first": (plain(x(STEP)), "variables: x needs the value of the frame before"),
    "first": (plain(x("first(x)")), "variables: x needs the value of the first view"),
    "first in time": (
        plain(x(transition="first(x)")),
        "transitions: x needs the value of the first",
    ),
    "circle": (
        plain(CHAIN | {"x": {"mechanism": "z"}}),
        r"variables: variables depend on each other in a circle: \w -> \w.*previous\(x\)",
    ),
    "circle of one": (plain(x("x / 2")), "in a circle: x -> x"),
    "circle in time": (
        plain(
            {
                "x": {"mechanism": UNIFORM, "transition": STEP | {"goal": "y"}},
                "y": {"mechanism": UNIFORM, "transition": STEP | {"goal": "x"}},
            }
        ),
        "transitions: variables depend on each other in a circle: (x -> y -> x|y -> x -> y)",
    ),
    "circle in time of an environment": (
        plain(
            {
                "x": {"mechanism": UNIFORM, "transition": STEP | {"goal": "y"}},
                "y": {"mechanism": UNIFORM},
            },
            environments={"e": {"y": "x"}},
        ),
        "environments.e.*in a circle",
    ),
    "circle in time of a shift": (
        plain(
            {
                "x": {"mechanism": UNIFORM, "transition": STEP | {"goal": "y"}},
                "y": {"mechanism": UNIFORM},
            },
            environments={"e": {"x": {"shift": 0.1}, "y": "x"}},
        ),
        "environments.e.*in a circle",
    ),
    "out of range": (plain(x("2 * a")), "test: variable x: its mechanism gives .*outside of its r"),
    "not finite": (
        plain(X | {"y": {"mechanism": "1 / (x - x)"}}),
        "test: variable y: .*not finite",
    ),
    "not finite inside": (
        plain(X | {"y": {"mechanism": NORMAL | {"mean": "0 / (x - x)"}}}),
        "test: variable y: .*not finite",
    ),
    "no class": (
        plain({"s": CLASSES | {"mechanism": "cos(x)"}, "x": x()["x"]}),
        "variable s: .*cl",
    ),
    "out of range in time": (
        plain(x(transition="previous(x) * 2")),
        "test: sequences: variable x: its mechanism gives",
    ),
    "out of range in an environment": (
        plain(CHAIN, environments={"e": {"z": "x + y + 1"}}),
        "test: environments.e: variable z: its mechanism gives",
    ),
    "out of range in a view": (
        plain(X, views={"v": {"x": "first(x) * 3"}}),
        "test: views.v: variable x: its mechanism gives",
    ),
    "interventions": (plain(X, interventions=3), "interventions must be a table of fields"),
    "interventions' field": (plain(X, interventions={"rate": 1}), "unknown field 'rate' in interv"),
    "targets": (plain(X, interventions={"targets": "all"}), "targets must be one of none, bernou"),
    "nothing to hit": (
        plain(X, interventions={"targets": "bernoulli", "probability": 0.5}),
        "no variable has a transition: there is nothing to intervene on",
    ),
    "probability": (
        plain(X, interventions={"targets": "bernoulli", "probability": 1.5, "groups": [["x"]]}),
        "probability must be a finite number, at most 1",
    ),
    "negative probability": (
        plain(X, interventions={"targets": "bernoulli", "probability": -0.5, "groups": [["x"]]}),
        r"probability must lie in \[0, 1\]",
    ),
    "no probability": (
        plain(X, interventions={"targets": "bernoulli", "groups": [["x"]]}),
        "needs a probability > 0",
    ),
    "idle probability": (
        plain(X, interventions={"targets": "single", "probability": 0.5, "groups": [["x"]]}),
        'interventions.probability is of targets = "bernoulli", found targets = "single"',
    ),
    "idle share": (
        plain(
            X,
            interventions={
                "targets": "bernoulli",
                "probability": 0.5,
                "observed": 0.5,
                "groups": [["x"]],
            },
        ),
        'interventions.observed is of targets = "single"',
    ),
    "groups": (
        plain(X, interventions={"targets": "single", "groups": ["x"]}),
        "groups must be a list of lists of variables, found 'x'",
    ),
    "empty group": (
        plain(X, interventions={"targets": "single", "groups": [[]]}),
        r"groups must be a list of lists of variables, found \[\]",
    ),
    "group": (
        plain(X, interventions={"targets": "single", "groups": [["w"]]}),
        "groups: 'w' is no variable: expected some of x",
    ),
    "many groups": (
        plain(
            X, interventions={"targets": "bernoulli", "probability": 1, "groups": [["x"], ["x"]]}
        ),
        "found 2 groups of 1 variables",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(name):
    data, text = FAULTS[name]
    with pytest.raises(UsageError, match=text) as caught:
        parse_model(data, "test")
    assert str(caught.value).startswith("test: ")
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize("depth", [9, 100, 5000])
@pytest.mark.parametrize("inner", [UNIFORM, 0.5, {"kind": "what"}], ids=str)
def test_tables_nest_a_few_times_only(depth, inner):
    mechanism = inner
    for _ in range(depth):
        mechanism = table(otherwise=mechanism, cases={})
    data = plain(x())
    data["variables"]["x"]["mechanism"] = mechanism
    with pytest.raises(UsageError, match=r"variables.x.mechanism.*tables in tables, at most"):
        parse_model(data, "test")


def test_tables_nest():
    mechanism = UNIFORM
    for _ in range(4):
        mechanism = table(otherwise=mechanism, cases={"a": 0.5})
    made = model(x(mechanism))
    assert parse_model(made.as_dict(), "again") == made


def test_what_is_left_out_has_its_default():
    made = model(X | {"a": CIRCULAR, "s": CLASSES | {"mechanism": {"kind": "choice"}}})
    assert made["x"].range == (-1.0, 1.0)
    assert made["x"].renders == "x"
    assert made["x"].status == "published"
    assert made["a"].range == (0.0, 2 * math.pi)
    assert made["a"].renders == ""
    assert made["s"].range == (0.0, 1.0)
    assert made["s"].values == ("a", "b")
    assert made.interventions.targets == "none"
    assert not made.has_time
    with pytest.raises(UsageError, match="no variable 'w': expected one of x, a, s"):
        made["w"]


def test_a_number_may_stand_for_an_expression():
    one = model(x(NORMAL | {"mean": 0.5}))
    two = model(x(NORMAL | {"mean": "0.5"}))
    assert one == two
    assert (
        model(x(0.5))["x"].mechanism == model(x({"kind": "constant", "value": 0.5}))["x"].mechanism
    )


# Damage

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["x", "previous(x)", "first(x)", "1/0", "(" * 100, "uniform", "step", "stay", "table"]
    ),
    st.lists(st.integers(0, 3), max_size=3),
    st.just({}),
    st.just({"kind": "uniform"}),
    st.just({"kind": "step", "goal": "previous(y)", "std": 1e-300}),
    st.just({"shift": 0.1}),
    st.just(10**400),
)


def _places(tree, path=()):
    keys = tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in keys:
        yield (*path, key)
        yield from _places(tree[key], (*path, key))


def _at(tree, path):
    for key in path:
        tree = tree[key]
    return tree


@pytest.fixture(scope="module")
def whole():
    return model(WHOLE["variables"], **_rest()).as_dict()


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=200)
def test_a_damaged_model_is_read_or_refused_with_an_error_of_ours(whole, data):
    tree = copy.deepcopy(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        paths = list(_places(tree))
        *outer, key = data.draw(st.sampled_from(paths))
        place = _at(tree, outer)
        match data.draw(st.sampled_from(["value", "value", "remove", "other", "add", "rename"])):
            case "remove":
                del place[key]
            case "other":
                place[key] = copy.deepcopy(_at(tree, data.draw(st.sampled_from(paths))))
            case "add" if isinstance(place, dict):
                place[data.draw(st.text(max_size=4))] = copy.deepcopy(data.draw(VALUES))
            case "rename" if isinstance(place, dict):
                place[data.draw(st.text(max_size=4))] = place.pop(key)
            case _:
                place[key] = copy.deepcopy(data.draw(VALUES))  # or it might come to hold itself
    try:
        made = parse_model(tree, "test")
    except UsageError as error:
        assert str(error).startswith("test")
    else:
        assert parse_model(made.as_dict(), "again") == made


def _rest():
    return {key: value for key, value in WHOLE.items() if key != "variables"}


@pytest.mark.parametrize("data", [None, [], "x", 3, [["x"]]])
def test_what_is_no_table_is_no_model(data):
    with pytest.raises(UsageError, match="test: a model must be a table"):
        parse_model(data, "test")


# Files

FILE = """
description = "Two of them."
[scene]
base = "3dident-wrapped"
[variables.x]
mechanism = { kind = "uniform" }
[variables.y]
mechanism = { kind = "truncated_normal", mean = "x", std = 0.1 }
"""


def test_a_model_is_read_from_a_file(tmp_path):
    file = tmp_path / "two.toml"
    file.write_text(FILE)
    made = load_model(file)
    assert made == load_model(str(file))
    assert made.name == "two"
    assert made.names == ("x", "y")
    assert made.preset.hue == "wrapped"
    assert made.preset.description == "Two of them."


@pytest.mark.parametrize(
    "content, text",
    [
        (None, "there is no such file"),
        (b"x = ", "not valid TOML"),
        (b"\xff", "not valid TOML"),
        (b"", "variables is missing"),
        (b"#" * 30_001, "larger than"),
        (b"scene = 3", "scene must be a table"),
        (b"[scene]\nbase = 3\n", "base must be one of 3dident"),
        (b"[scene]\nranges = 3\n[variables.x]\nmechanism = 0\n", "ranges must be a table"),
        (b"variables.x = 3\n", "variables.x must be a table"),
    ],
)
def test_a_file_that_does_not_fit_is_named(tmp_path, content, text):
    file = tmp_path / "own.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError, match=re.escape("own.toml") + ".*" + text):
        load_model(file)


@pytest.mark.parametrize("name", ["", "own", "models/own", 3, "../x", "x.toml.txt", "_3didentbox"])
def test_an_unknown_name_lists_the_known_ones(name):
    with pytest.raises(UsageError, match=r"unknown model.*path of a \.toml file"):
        load_model(name)


@pytest.mark.parametrize("name", model_names())
def test_every_built_in_model_says_what_it_is(name):
    made = load_model(name)
    assert made.name == name
    assert made.description.endswith(".")
    assert made.sources.endswith(".")
