from __future__ import annotations

import json

import pytest
from helpers.causal import CHAIN, UNIFORM, model, whole

from threedident.causal import load_model, model_names
from threedident.causal.description import (
    describe_mechanism,
    describe_model,
    list_lines,
    model_lines,
)

CLASSES = {"kind": "discrete", "values": ["a", "b"], "mechanism": UNIFORM}


def test_mechanisms_in_words():
    made = whole()

    def said(name, mechanism):
        return describe_mechanism(mechanism, made[name].domain)

    assert [said(each.name, each.mechanism) for each in made.variables] == [
        "off 0.5, on 0.25, broken 0.25",
        "uniform",
        "uniform",
        "uniform",
        "by switch: off: uniform from -0.5 to min(1, 1.5); on: normal around 1.5 * sin(theta), "
        "std 0.4; else = -2",
        "Laplace around x / 2, scale 0.2",
        "= 0.25 * (x + y)",
    ]
    assert [said(v.name, v.transition) for v in made.variables if v.transition] == [
        "stays; with probability 0.2 any class",
        "half of the way to background_hue_goal, std 0.15",
        "half of the way to previous(background_hue), std 0.15",
        "half of the way to 1.5 * sin(theta), std 0.1",
    ]
    held, moved = made.environment("held"), made.environment("moved")
    assert said("switch", held["switch"]) == "= broken"
    assert said("y", moved["y"]) == "Laplace around x / 2, scale 0.2; then +0.2"
    some = model({"s": CLASSES | {"mechanism": {"kind": "choice"}}, "t": CLASSES})
    for name in ("s", "t"):
        words = describe_mechanism(some[name].mechanism, some[name].domain)
        assert words == "any class, all as likely"


def test_a_description_has_the_variables_with_their_parents():
    about = describe_model(whole())
    by_name = {each["name"]: each for each in about["variables"]}
    assert by_name["x"]["parents"] == ["switch", "theta"]
    assert by_name["x"]["parents_in_step"] == ["theta"]
    assert by_name["x"]["parents_before"] == ["x"]
    assert by_name["theta"]["parents_before"] == ["background_hue", "theta"]
    assert by_name["switch"]["values"] == ["off", "on", "broken"]
    assert by_name["switch"]["renders"] is None
    assert by_name["x"]["scene"] == [-2.0, 2.0]
    assert by_name["y"]["status"] == "unknown"
    assert by_name["switch"]["note"] == "it renders nothing"
    assert about["views"]["style"]["roles"] == {
        "content": ["switch", "background_hue_goal", "theta", "x", "z"],
        "style": ["y"],
        "private": ["background_hue"],
    }
    assert about["environments"]["held"] == {"x": "= 0.3", "switch": "= broken"}
    assert about["interventions"]["probability"] == 0.25
    assert "parents_before" not in describe_model(model(CHAIN))["variables"][0]


@pytest.mark.parametrize("name", ["whole", "chain", *model_names()])
def test_lines_name_all_and_are_not_too_long(name):
    made = {"whole": whole, "chain": lambda: model(CHAIN)}.get(name, lambda: load_model(name))()
    about = json.loads(json.dumps(describe_model(made), allow_nan=False))
    lines = list(model_lines(made))
    text = "\n".join(lines)
    for variable in made.variables:
        assert any(line.startswith(f"{variable.name} ") for line in lines)
        assert variable.status in text
    words = " ".join(text.split())
    for each in about["assumptions"]:
        assert f"{each['text'].removesuffix('.')}: {each['reason']}." in words
    for law in (*made.environments, *made.views):
        assert law in text
    rows = [line for line in lines if not line.startswith(" ")]
    assert max(len(line) for line in lines if line not in rows) <= 100
    assert max(map(len, rows)) <= 160
    assert not any(line != line.rstrip() for line in lines)


def test_a_table_stands_in_columns():
    lines = list(model_lines(model(CHAIN)))
    head = next(line for line in lines if line.startswith("variable"))
    assert head.split() == ["variable", "kind", "values", "scene", "parents", "status"]
    row = next(line for line in lines if line.startswith("z "))
    for word, title in (("continuous", "kind"), ("x, y", "parents"), ("published", "status")):
        assert row.index(word) == head.index(title)
    assert lines[lines.index(row) + 1] == "    Laplace around y - x, scale 0.2"


def test_a_list_gives_shared_sources_once():
    one, other = whole(sources="From a paper."), model(CHAIN, sources="From another.")
    lines = list(list_lines([one, one, other]))
    assert [line for line in lines if "Sources" in line] == [
        "  Sources: From a paper.",
        "  Sources: From another.",
    ]
