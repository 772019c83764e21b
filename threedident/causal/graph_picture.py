"""A model's graph as a picture: SVG, from left to right, with nothing but this file to draw it.

A graph within one image stands in columns: each variable right of its parents. An edge over more
than one column has a free lane in each that it crosses, so no line runs behind a word. A model in
time has a second graph, from each image of a sequence to the next.
"""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from threedident.causal.mechanisms import Mechanism
from threedident.causal.model import CausalModel, Mechanisms, Variable
from threedident.causal.sampling import Sampling

_LETTER, _SMALL_LETTER = 8.5, 7.0  # widths of letters of 14 and 11.5 px, in any monospaced font
_HIGH, _GAP = 42.0, 16.0  # of a node; between two
_LANE = 12.0  # the height of an edge's lane between nodes
_BETWEEN = 84.0  # columns
_MARGIN, _HEADING = 28.0, 30.0
_WIDEST = 1100.0  # a row of variables without edges
_SWEEPS = 12
_HEAD = 7.0  # the length of an arrow's head

_STYLE = """
svg { --paper: #ffffff; --ink: #1f2937; --faint: #6b7280; --line: #475569; --node: #f1f5f9;
  --mark: #c2410c; --hit: #ffedd5 }
@media (prefers-color-scheme: dark) { svg { --paper: #111827; --ink: #e5e7eb; --faint: #9ca3af;
  --line: #94a3b8; --node: #1f2937; --mark: #fb923c; --hit: #43281a } }
.paper { fill: var(--paper) }
text { fill: var(--ink); font: 14px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace }
.small { font-size: 11.5px; fill: var(--faint) }
.title { font-size: 16px; font-weight: 600 }
.node { fill: var(--node); stroke: var(--line); stroke-width: 1.5 }
.hit { fill: var(--hit); stroke: var(--mark) }
.edge { fill: none; stroke: var(--line); stroke-width: 1.5 }
.past { stroke-dasharray: 5 4 }
.head { fill: var(--line) }
.mark { fill: var(--mark) }
"""


@dataclasses.dataclass
class _Box:
    """A place in a column: a node, or the lane of an edge."""

    name: str  # empty: a lane
    wide: float
    high: float
    x: float = 0.0
    y: float = 0.0  # of its middle


@dataclasses.dataclass(frozen=True)
class _Panel:
    """A drawing: its parts, and its size."""

    parts: list[str]
    wide: float
    high: float


def graph_svg(model: CausalModel, environment: str | None = None) -> str:
    """Draw a model's graph.

    Args:
        model: the model.
        environment: the environment whose graph is drawn; None: the model as it is, with a mark at
            every variable on which an environment, or an intervention in time, acts.

    Returns:
        The text of an SVG file. It reads on a light page and on a dark one.

    Raises:
        UsageError: there is no such environment.
    """
    sampling = Sampling(model, environments=() if environment is None else (environment,))
    hit = frozenset(() if environment is None else model.environment(environment))
    first = {**{each.name: each.mechanism for each in model.variables}, **_part(sampling, hit)}
    picture = _Picture(model, hit, marks=environment is None)
    panels = []
    edges = _edges(model, first, "")
    if edges or not model.has_time:
        heading = "Within the first image of a sequence" if model.has_time else "Within an image"
        panels.append((heading, picture.columns(edges)))
    if model.has_time:
        steps = dataclasses.replace(sampling, steps=2).later_law()
        heading = "From each image of a sequence to the next"
        panels.append((heading, picture.in_time(_edges(model, steps, ""), _past(model, steps))))
    title = model.name if environment is None else f"{model.name}, environment {environment}"
    return picture.assembled(title, panels)


def _part(sampling: Sampling, names: Iterable[str]) -> Mechanisms:
    law = sampling._drawn(0)
    return {name: law[name] for name in names}


def _edges(model: CausalModel, law: Mapping[str, Mechanism], frame: str) -> list[tuple[str, str]]:
    """Pairs of parent and child, in the order of the variables."""
    return [
        (parent, child)
        for child in model.names
        for parent in model.names
        if parent in law[child].frames(frame)
    ]


def _past(model: CausalModel, law: Mapping[str, Mechanism]) -> list[tuple[str, str]]:
    own = [(name, name) for name in model.names if law[name].remembers]
    edges = _edges(model, law, "previous")
    return edges + [edge for edge in own if edge not in edges]


class _Picture:
    """The drawings of one model."""

    def __init__(self, model: CausalModel, hit: frozenset[str], *, marks: bool) -> None:
        self._model, self._hit = model, hit
        marked: set[str] = set()
        if marks:
            marked = {name for law in model.environments.values() for name in law}
            if model.interventions.targets != "none":
                marked |= {name for group in model.interventions.groups for name in group}
        self._marked = marked
        self._has_lanes = self._has_past = False

    # Panels

    def columns(self, edges: Sequence[tuple[str, str]]) -> _Panel:
        """Draw a graph without circles in columns, and variables without edges below."""
        ends = {name for edge in edges for name in edge}
        inner = [name for name in self._model.names if name in ends]
        alone = [name for name in self._model.names if name not in ends]
        self._has_lanes |= bool(edges)
        columns, lanes = _layers(inner, edges, self._boxes(inner))
        _order(columns, lanes)
        _place(columns, lanes)
        parts = [self._curve(lane) for lane in lanes]
        parts += [self._node(box) for column in columns for box in column if box.name]
        wide = max((box.x + box.wide for column in columns for box in column), default=0.0)
        high = max((box.y + box.high / 2 for column in columns for box in column), default=0.0)
        if alone:
            high += 2 * _GAP if inner else 0.0
            boxes = list(self._boxes(alone).values())
            broadest = max(box.wide for box in boxes)
            a_row = max(1, int((max(wide, _WIDEST / 2) + _GAP) // (broadest + _GAP)))
            for number, box in enumerate(boxes):
                box.x = (number % a_row) * (broadest + _GAP)
                box.y = high + (number // a_row) * (_HIGH + _GAP) + _HIGH / 2
                box.wide = broadest
                parts.append(self._node(box))
            wide = max(wide, min(len(boxes), a_row) * (broadest + _GAP) - _GAP)
            high = boxes[-1].y + _HIGH / 2
        return _Panel(parts, wide, high)

    def in_time(
        self, edges: Sequence[tuple[str, str]], past: Sequence[tuple[str, str]]
    ) -> _Panel:
        """Draw two images: edges from the one before, and within the later one."""
        names = self._model.names
        parents = {parent for parent, _ in past}
        before, now = self._boxes(names), self._boxes(names)
        broadest = max(box.wide for box in now.values())
        self._has_past |= bool(past)
        self._has_lanes |= bool(edges)
        left = broadest + 1.6 * _BETWEEN + 5 * len(names) if past else 0.0
        top, farthest = _HEADING, left + broadest
        parts = []
        for number, name in enumerate(names):
            for box, x in ((before[name], 0.0), (now[name], left)):
                box.x, box.wide = x, broadest
                box.y = top + number * (_HIGH + _GAP) + _HIGH / 2
        for parent, child in past:
            parts.append(self._curve([before[parent], now[child]], past=True))
        for parent, child in edges:
            one, two = now[parent], now[child]
            far = 26.0 + 0.32 * abs(one.y - two.y)
            farthest = max(farthest, left + broadest + 0.75 * far)
            parts.append(_arc(left + broadest, one.y + 7, two.y - 7, far))
        words = [("the image before", 0.0), ("an image", left)] if past else [("an image", left)]
        for text, x in words:
            parts.append(_words(x + broadest / 2, 12, text, "small", "middle"))
        parts += [self._node(before[name], now=False) for name in names if name in parents]
        parts += [self._node(box) for box in now.values()]
        return _Panel(parts, farthest, top + len(names) * (_HIGH + _GAP) - _GAP)

    def assembled(self, title: str, panels: Sequence[tuple[str, _Panel]]) -> str:
        """Join panels, one below the other, under a title and above a legend."""
        parts, y = [], _MARGIN
        parts.append(_words(_MARGIN, y + 12, title, "title"))
        wide = _length(title, 10.0)
        y += 44
        for heading, panel in panels:
            parts.append(_words(_MARGIN, y + 8, heading, "small"))
            wide = max(wide, panel.wide, _length(heading, _SMALL_LETTER))
            y += 26
            parts.append(f'<g transform="translate({_MARGIN:g} {y:g})">')
            parts += [*panel.parts, "</g>"]
            y += panel.high + 2 * _GAP
        legend, reach, deep = self._legend(max(wide, 420.0))
        parts += [f'<g transform="translate({_MARGIN:g} {y:g})">', *legend, "</g>"]
        wide, y = max(wide, reach) + 2 * _MARGIN, y + deep + _MARGIN
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {y:g}" '
                f'width="{wide:g}" height="{y:g}" role="img">',
                f"<title>The graph of {escape(title)}</title>",
                f"<style>{_STYLE}</style>",
                f'<rect class="paper" width="{wide:g}" height="{y:g}" rx="10"/>',
                *parts,
                "</svg>\n",
            ]
        )

    # Parts

    def _boxes(self, names: Iterable[str]) -> dict[str, _Box]:
        boxes = {}
        for name in names:
            small = _length(_about(self._model[name]), _SMALL_LETTER)
            boxes[name] = _Box(name, max(_length(name, _LETTER), small) + 32, _HIGH)
        return boxes

    def _node(self, box: _Box, *, now: bool = True) -> str:
        """A variable; those of the image before show no interventions."""
        variable = self._model[box.name]
        hit = " hit" if now and box.name in self._hit else ""
        left, top = box.x, box.y - box.high / 2
        middle = left + box.wide / 2
        parts = [_outline(variable.kind, left, top, box.wide, box.high, hit)]
        if now and box.name in self._marked:
            parts.append(_mark(left + box.wide - 12, top - 5))
        parts.append(_words(middle, box.y - 2, box.name, "", "middle"))
        parts.append(_words(middle, box.y + 13, _about(variable), "small", "middle"))
        return "".join(parts)

    def _curve(self, lane: Sequence[_Box], *, past: bool = False) -> str:
        """An arrow from the first box through lanes to the last one."""
        x, y = lane[0].x + lane[0].wide, lane[0].y
        path = [f"M{x:.1f} {y:.1f}"]
        for box in lane[1:]:
            end = box.x - (_HEAD if box.name else 0)
            bend = (end - x) / 2
            path.append(
                f"C{x + bend:.1f} {y:.1f} {end - bend:.1f} {box.y:.1f} {end:.1f} {box.y:.1f}"
            )
            x, y = end, box.y
            if not box.name:
                x += box.wide
                path.append(f"H{x:.1f}")
        kind = "edge past" if past else "edge"
        return f'<path class="{kind}" d="{"".join(path)}"/>{_head(lane[-1].x, y, 1)}'

    def _legend(self, most: float) -> tuple[list[str], float, float]:
        """The signs that occur: parts, width and height."""
        kinds = [each.kind for each in self._model.variables]
        signs = [
            (_outline(kind, 0, 0, 30, 18, ""), kind)
            for kind in ("continuous", "circular", "discrete")
            if kind in kinds
        ]
        line = '<path class="edge{}" d="M0 9H{}"/>' + _head(30, 9, 1)
        if self._has_lanes:
            signs.append((line.format("", 30 - _HEAD), "a parent in the same image"))
        if self._has_past:
            signs.append((line.format(" past", 30 - _HEAD), "a parent in the image before"))
        if self._marked:
            signs.append((_mark(12, 4), "an intervention of the model acts on it"))
        if self._hit:
            signs.append((_outline("continuous", 0, 0, 30, 18, " hit"), "intervened on"))
        parts, x, y, reach = [], 0.0, 0.0, 0.0
        for sign, text in signs:
            wide = 40 + _length(text, _SMALL_LETTER)
            if x and x + wide > most:
                x, y = 0.0, y + 28
            words = _words(40, 13, text, "small")
            parts.append(f'<g transform="translate({x:g} {y:g})">{sign}{words}</g>')
            reach = max(reach, x + wide)
            x += wide + 28
        return parts, reach, y + 18


def _about(variable: Variable) -> str:
    """The line below a name."""
    if variable.kind == "discrete":
        count = len(variable.values)
        about = f"{count} class" + ("es" if count > 1 else "")
    elif variable.kind == "circular":
        about = "circle"
    else:
        about = "[{:g}, {:g}]".format(*variable.range)
    return about if variable.renders else f"{about}, not seen"


def _length(text: str, letter: float) -> float:
    """The width of a text; some letters are twice as wide as others."""
    return letter * sum(2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text)


def _words(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _outline(kind: str, x: float, y: float, wide: float, high: float, hit: str) -> str:
    """The shape of a kind of variables: a box, a box with round ends, or a double box."""
    radius = high / 2 if kind == "circular" else 2.0 if kind == "discrete" else high / 6
    frames = [(0.0, radius)] + ([(3.0, 1.0)] if kind == "discrete" else [])
    return "".join(
        f'<rect class="node{hit}" x="{x + inset:.1f}" y="{y + inset:.1f}" '
        f'width="{wide - 2 * inset:.1f}" height="{high - 2 * inset:.1f}" rx="{corner:g}"/>'
        for inset, corner in frames
    )


def _mark(x: float, y: float) -> str:
    return f'<path class="mark" d="M{x - 7:.1f} {y:.1f}h14l-7 11z"/>'


def _head(x: float, y: float, way: int) -> str:
    back = x - way * (_HEAD + 1)
    return f'<path class="head" d="M{x:.1f} {y:.1f}L{back:.1f} {y - 4.5:.1f}V{y + 4.5:.1f}z"/>'


def _arc(x: float, start: float, end: float, far: float) -> str:
    """An arrow from a node's right side to that of another one in the same column."""
    tip = x + _HEAD
    path = f"M{x:.1f} {start:.1f}C{x + far:.1f} {start:.1f} {x + far:.1f} {end:.1f} {tip:.1f} {end:.1f}"
    return f'<path class="edge" d="{path}"/>{_head(x, end, -1)}'


# Columns

_Columns = list[list[_Box]]
_Lanes = list[list[_Box]]


def _layers(
    names: Sequence[str], edges: Sequence[tuple[str, str]], boxes: Mapping[str, _Box]
) -> tuple[_Columns, _Lanes]:
    """Put variables right of their parents, and lanes where an edge crosses a column.

    Returns:
        The columns, and for each edge the boxes from its parent to its child.
    """
    parents = {name: [one for one, two in edges if two == name] for name in names}
    children = {name: [two for one, two in edges if one == name] for name in names}
    depth: dict[str, int] = {}

    def deep(name: str) -> int:
        if name not in depth:
            depth[name] = 1 + max((deep(parent) for parent in parents[name]), default=-1)
        return depth[name]

    for name in names:
        deep(name)
    for name in names:  # roots stand beside their children
        if not parents[name]:
            depth[name] = min(depth[child] for child in children[name]) - 1
    columns: _Columns = [[] for _ in range(1 + max(depth.values(), default=-1))]
    for name in names:
        columns[depth[name]].append(boxes[name])
    lanes = []
    for one, two in edges:
        between = [_Box("", 0.0, _LANE) for _ in range(depth[one] + 1, depth[two])]
        for number, lane in enumerate(between, depth[one] + 1):
            columns[number].append(lane)
        lanes.append([boxes[one], *between, boxes[two]])
    return columns, lanes


def _neighbours(lanes: _Lanes) -> dict[tuple[int, int], list[_Box]]:
    """The boxes to which each box has a line, by its id and the side: -1 left, 1 right."""
    beside: dict[tuple[int, int], list[_Box]] = {}
    for lane in lanes:
        for one, two in zip(lane, lane[1:], strict=False):
            beside.setdefault((id(one), 1), []).append(two)
            beside.setdefault((id(two), -1), []).append(one)
    return beside


def _order(columns: _Columns, lanes: _Lanes) -> None:
    """Order each column so that few lines cross."""
    beside = _neighbours(lanes)
    best, least = [list(column) for column in columns], _crossings(columns, beside)
    for sweep in range(_SWEEPS):
        side = -1 if sweep % 2 == 0 else 1
        for column in columns if side == -1 else columns[::-1]:
            place = {id(box): n for each in columns for n, box in enumerate(each)}
            rank = {
                id(box): _mean([place[id(other)] for other in beside.get((id(box), side), ())])
                for box in column
            }
            column.sort(key=lambda box: place[id(box)] if rank[id(box)] is None else rank[id(box)])
        count = _crossings(columns, beside)
        if count < least:
            best, least = [list(column) for column in columns], count
    columns[:] = best


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _crossings(columns: _Columns, beside: Mapping[tuple[int, int], list[_Box]]) -> int:
    count = 0
    for column, following in zip(columns, columns[1:], strict=False):
        place = {id(box): n for n, box in enumerate(following)}
        ends = [
            sorted(place[id(other)] for other in beside.get((id(box), 1), ())) for box in column
        ]
        for number, upper in enumerate(ends):
            for lower in ends[number + 1 :]:
                count += sum(one > two for one in upper for two in lower)
    return count


def _place(columns: _Columns, lanes: _Lanes) -> None:
    """Give boxes their places: columns side by side, each box near those it has lines to."""
    beside, x = _neighbours(lanes), 0.0
    for column in columns:
        wide = max(box.wide for box in column)
        y = 0.0
        for box in column:
            box.x, box.wide = x, wide
            box.y = y + box.high / 2
            y += box.high + _GAP
        x += wide + _BETWEEN
    for sweep in range(_SWEEPS):
        for column in columns if sweep % 2 == 0 else columns[::-1]:
            wanted = []
            for box in column:
                others = [*beside.get((id(box), -1), ()), *beside.get((id(box), 1), ())]
                middle = _mean([other.y for other in others])
                wanted.append(box.y if middle is None else middle)
            _settle(column, wanted)
    top = min((box.y - box.high / 2 for column in columns for box in column), default=0.0)
    for column in columns:
        for box in column:
            box.y -= top


def _settle(column: Sequence[_Box], wanted: Sequence[float]) -> None:
    """Move boxes as near to where they want to be as they can without touching.

    Boxes that would touch form a block, which takes the mean of what its boxes want.
    """
    offsets = [0.0]
    for above, below in zip(column, column[1:], strict=False):
        offsets.append(offsets[-1] + (above.high + below.high) / 2 + _GAP)
    blocks: list[list[float]] = []  # the sum of what is wanted, and the number of boxes
    for want, offset in zip(wanted, offsets, strict=True):
        blocks.append([want - offset, 1.0])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += count
    place = 0
    for total, count in blocks:
        for _ in range(int(count)):
            column[place].y = total / count + offsets[place]
            place += 1
