from __future__ import annotations

import re
from xml.etree import ElementTree

import hypothesis
import hypothesis.strategies as st
import pytest
from helpers.causal import CHAIN, TEN, UNIFORM, model, plain, whole

from threedident.causal import load_model, model_names, parse_model
from threedident.causal.graph_picture import graph_svg
from threedident.errors import UsageError

SVG = "{http://www.w3.org/2000/svg}"
LETTERS = {"": 0.602 * 14, "small": 0.602 * 11.5, "title": 0.602 * 16}  # of DejaVu Sans Mono


class Drawing:
    """What a picture shows, in the picture's own units."""

    def __init__(self, svg):
        self.root = ElementTree.fromstring(svg)
        _, _, *size = map(float, self.root.get("viewBox").split())
        self.wide, self.high = size
        self.texts, self.nodes, self.lines, self.past = [], [], [], []
        self._walk(self.root, 0.0, 0.0)

    def _walk(self, element, x, y):
        moved = re.fullmatch(r"translate\((\S+) (\S+)\)", element.get("transform", ""))
        if moved:
            x, y = x + float(moved[1]), y + float(moved[2])
        kind, place = element.get("class", ""), [float(element.get(k, 0)) for k in ("x", "y")]
        if element.tag == f"{SVG}text":
            wide = LETTERS[kind] * len(element.text)
            left = x + place[0] - (wide / 2 if element.get("text-anchor") == "middle" else 0)
            top = y + place[1]
            self.texts.append((left, top - 11, left + wide, top + 3, element.text))
        elif element.tag == f"{SVG}rect" and kind.startswith("node"):
            size = [float(element.get(k)) for k in ("width", "height")]
            left, top = x + place[0], y + place[1]
            self.nodes.append((left, top, left + size[0], top + size[1], kind))
        elif element.tag == f"{SVG}path" and kind.startswith("edge"):
            points = [(x + a, y + b) for a, b in curve(element.get("d"))]
            self.lines.append(points)
            if "past" in kind:
                self.past.append(points)
        for child in element:
            self._walk(child, x, y)


def curve(path):
    """Points along a path of M, C and H."""
    x = y = 0.0
    for command, numbers in re.findall(r"([MCH])([^MCH]*)", path):
        values = [float(each) for each in numbers.split()]
        match command:
            case "M":
                x, y = values
                yield x, y
            case "H":
                start, x = x, values[0]
                yield from ((start + (x - start) * n / 20, y) for n in range(21))
            case _:
                points = [(x, y), *zip(values[::2], values[1::2], strict=True)]
                for n in range(41):
                    t = n / 40
                    weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
                    yield tuple(
                        sum(w * point[k] for w, point in zip(weights, points, strict=True))
                        for k in (0, 1)
                    )
                x, y = points[-1]


def overlap(one, two):
    return one[0] < two[2] and two[0] < one[2] and one[1] < two[3] and two[1] < one[3]


def check(svg):
    """No words overlap, words lie in the picture, and no line runs through a node or a word."""
    drawing = Drawing(svg)
    texts, nodes = drawing.texts, drawing.nodes
    for number, text in enumerate(texts):
        assert text[0] >= 0, text
        assert text[2] <= drawing.wide, text
        assert 0 <= text[1] < text[3] <= drawing.high, text
        for other in texts[number + 1 :]:
            assert not overlap(text, other), (text, other)
        for node in nodes:
            inside = (
                node[0] < text[0] and text[2] < node[2] and node[1] < text[1] and text[3] < node[3]
            )
            assert inside or not overlap(text, node), (text, node)
    outer = [node for node in nodes if not any(_holds(other, node) for other in nodes)]
    for number, node in enumerate(outer):
        for other in outer[number + 1 :]:
            assert not overlap(node, other), (node, other)
    for line in drawing.lines:
        for x, y in line:
            assert -1 <= x <= drawing.wide
            assert -1 <= y <= drawing.high
            for node in outer:
                assert not (node[0] + 1 < x < node[2] - 1 and node[1] < y < node[3]), (line, node)
            for text in texts:
                assert not (text[0] < x < text[2] and text[1] < y < text[3]), (line, text)
    return drawing


def _holds(outer, inner):
    return outer != inner and all(
        (a <= b) if k < 2 else (a >= b)
        for k, (a, b) in enumerate(zip(outer[:4], inner[:4], strict=True))
    )


@pytest.mark.parametrize("name", ["whole", "chain", "ten", "one", *model_names()])
def test_a_picture_is_legible(name):
    made = {
        "whole": whole,
        "chain": lambda: model(CHAIN),
        "ten": lambda: model(TEN),
        "one": lambda: model({"x": {"mechanism": UNIFORM}}),
    }.get(name, lambda: load_model(name))()
    for environment in (None, "independent", *made.environments):
        drawing = check(graph_svg(made, environment))
        assert {each[4] for each in drawing.texts} >= {*made.names}


@st.composite
def graphs(draw):
    """Models of random graphs, in time or not."""
    count = draw(st.integers(1, 30))
    letters = st.text("abcdefgh_", min_size=1, max_size=draw(st.sampled_from([1, 8, 30])))
    names = [f"{draw(letters)}{n}" for n in range(count)]
    timed = draw(st.booleans())
    density = draw(st.sampled_from([0, 1, 3, 10]))
    kinds = st.sampled_from(["continuous", "continuous", "circular", "discrete"])
    variables = {}
    for place, name in enumerate(names):
        kind = draw(kinds)
        parents = draw(st.lists(st.sampled_from(names[:place] or [name]), max_size=density))
        parents = [each for each in dict.fromkeys(parents) if each != name]
        mean = " + ".join(parents)[:200].rpartition(" + ")[0] if len(parents) > 8 else None
        mean = mean or " + ".join(parents[:5]) or "0"
        if kind == "discrete":
            variables[name] = {"kind": kind, "values": ["a", "b"], "mechanism": UNIFORM}
        elif kind == "circular":
            variables[name] = {"kind": kind, "mechanism": {"kind": "constant", "value": mean}}
        else:
            law = {"kind": "truncated_normal", "mean": mean, "std": 0.5}
            variables[name] = {"mechanism": law}
            if timed:
                past = draw(st.sampled_from(names))
                goal = f"previous({past}) + {mean}"
                variables[name]["transition"] = {"kind": "step", "goal": goal, "std": 0.5}
    return model(variables)


@hypothesis.given(graphs())
@hypothesis.settings(max_examples=25, suppress_health_check=[hypothesis.HealthCheck.too_slow])
def test_any_graph_is_legible_and_has_its_edges(made):
    drawing = check(graph_svg(made))
    count = int(made.lagged_adjacency.sum())
    if made.has_time:
        count += int(made.step_adjacency.sum())
    count += int(made.adjacency.sum())
    signs = bool(made.adjacency.any() or (made.has_time and made.step_adjacency.any()))
    past = made.has_time and made.lagged_adjacency.any()
    assert len(drawing.lines) == count + signs + bool(past)
    assert len(drawing.past) == int(made.lagged_adjacency.sum()) + bool(past)


def test_edges_lead_from_parents_to_children():
    drawing = check(graph_svg(model(CHAIN)))
    centres = {each[4]: ((each[0] + each[2]) / 2, each[1]) for each in drawing.texts}
    assert centres["x"][0] < centres["y"][0] < centres["z"][0]

    def node_at(x, y):
        for name, (middle, top) in centres.items():
            for left, above, right, below, _ in drawing.nodes:
                inside = left <= middle <= right and above <= top <= below
                if inside and left - 9 <= x <= right + 9 and above <= y <= below:
                    return name
        return None

    ends = {(node_at(*line[0]), node_at(*line[-1])) for line in drawing.lines}
    assert {("x", "y"), ("x", "z"), ("y", "z")} <= ends


def test_an_environment_cuts_edges_and_colours_its_targets():
    made = whole()
    plain, held = graph_svg(made), graph_svg(made, "held")
    assert held.count('class="node hit"') > 2
    assert 'class="node hit"' not in plain
    assert plain.count('class="mark"') > 2
    assert 'class="mark"' not in held
    assert len(Drawing(held).lines) < len(Drawing(plain).lines)
    assert "intervened on" in held
    assert len(Drawing(graph_svg(model(CHAIN), "independent")).lines) == 0
    with pytest.raises(UsageError, match="no environment 'red'"):
        graph_svg(made, "red")


def test_words_are_escaped_and_the_picture_fetches_nothing():
    svg = graph_svg(_named("<b> & 'c'"))
    ElementTree.fromstring(svg)
    assert "&lt;b&gt; &amp; " in svg
    assert "<b>" not in svg
    assert not re.search(r"(?:href|src|url)\s*[=(]", svg)
    assert "prefers-color-scheme: dark" in svg
    assert svg == graph_svg(_named("<b> & 'c'"))


def _named(name):
    return parse_model(plain(CHAIN) | {"name": name}, "test")
