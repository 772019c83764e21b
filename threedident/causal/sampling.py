"""Sampling a model: the variables of any image, from seed, split and the image's number alone.

The exogenous noise of an image is drawn first, three numbers a variable, and everything else is a
function of it. An intervention or a counterfactual evaluates other mechanisms on the same noise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident import plain_data
from threedident.causal.mechanisms import Draw, Mechanism, Shift, Uniform
from threedident.causal.model import INDEPENDENT, OBSERVED, CausalModel, Mechanisms, order
from threedident.causal.parsing import parse_interventions, parse_model
from threedident.errors import UsageError
from threedident.latents import SPLITS, check_seed_and_split
from threedident.plain_data import explaining

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

#: Noise numbers a variable an image: two for its mechanism, one for the target of interventions.
NOISE = 3
MOST_STEPS = 10_000
#: The kinds of groups of images that a sampling makes, with the names of their images.
GROUPS = ("single", "counterfactual", "views", "sequence")


@dataclasses.dataclass(frozen=True)
class Draws:
    """Drawn images, as their variables.

    Attributes:
        variables: the values, (N, D) float32; of a discrete variable the class's number.
        noise: the exogenous noise, (N, D, 3) float32, uniform in (-1, 1).
        targets: whether each variable was intervened on, (N, D) uint8.
        environment: the number of each image's environment, (N,) int64.
        item: the number of its pair or sequence, (N,) int64; its own for single images.
        frame: its number therein, (N,) int64: 0 and 1 for the factual and the counterfactual, or
            the first and the second view; the time in a sequence.
    """

    variables: Float32
    noise: Float32
    targets: npt.NDArray[np.uint8]
    environment: npt.NDArray[np.int64]
    item: npt.NDArray[np.int64]
    frame: npt.NDArray[np.int64]

    def __getitem__(self, rows: slice | npt.NDArray[Any]) -> Draws:
        """The draws of some of the images."""
        return Draws(*(getattr(self, field.name)[rows] for field in dataclasses.fields(self)))

    def __len__(self) -> int:
        return len(self.variables)


@dataclasses.dataclass(frozen=True)
class Sampling:
    """What images of a model are drawn: environments, counterfactuals, views or sequences.

    Attributes:
        model: the model.
        environments: the names of environments; item i is of environment i modulo their number.
            Empty: the model as it is.
        do: interventions beside the named ones, as in a table of `environments` in a file. They
            hold in every environment.
        counterfactual: the interventions of a counterfactual, likewise: images 2i and 2i + 1 have
            the same noise, and the second has these interventions too. Empty: no counterfactuals.
        view: the name of the law by which image 2i + 1 is a second view of image 2i; None: none.
        steps: the images of a sequence; 1: none.

    Raises:
        UsageError: a name is unknown, a value is out of range, or two of the last three are given.
    """

    model: CausalModel
    environments: tuple[str, ...] = ()
    do: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    counterfactual: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    view: str | None = None
    steps: int = 1

    def __post_init__(self) -> None:
        kinds = [
            name
            for name, given in (
                ("a counterfactual", bool(self.counterfactual)),
                ("views", self.view is not None),
                ("steps", self.steps != 1),
            )
            if given
        ]
        if len(kinds) > 1:
            raise UsageError(f"images cannot come with {' and '.join(kinds)} at once: choose one")
        if not 1 <= self.steps <= MOST_STEPS:
            raise UsageError(f"steps must be 1 to {MOST_STEPS}, found {self.steps}")
        if self.steps > 1 and not self.model.has_time:
            raise UsageError(
                f"model {self.model.name} has no transitions, so that the images of a sequence "
                "would be drawn apart: add a `transition` to a variable, or leave out the steps"
            )
        if len(set(self.environments)) < len(self.environments):
            raise UsageError(f"an environment is named twice: {', '.join(self.environments)}")
        if self.view is not None:
            self.model.view(self.view)
        for number in range(max(1, len(self.environments))):  # which checks the laws of all frames
            _Simulation(self, number, np.empty(0, np.int64), 0, "train")

    @property
    def frames(self) -> int:
        """The images of an item: 1, 2 for pairs, or the steps of a sequence."""
        return 2 if self.counterfactual or self.view is not None else self.steps

    @property
    def group(self) -> str:
        """The kind of an item: single, counterfactual, views or sequence."""
        if self.counterfactual:
            return "counterfactual"
        if self.view is not None:
            return "views"
        return "sequence" if self.steps > 1 else "single"

    @property
    def is_plain(self) -> bool:
        """Whether it draws single images of the model as it is, without an intervention."""
        return self.group == "single" and not self.do and self.environments in ((), (OBSERVED,))

    @property
    def adjacency(self) -> npt.NDArray[np.bool_]:
        """The graph of a drawn image, (D, D): [i, j] says that variable i is a parent of j.

        Interventions cut or change edges; with several environments, an edge is one of any of
        them. In a sequence, also the graph within a later frame.
        """
        names = self.model.names
        graph = np.zeros((len(names), len(names)), bool)
        for number in range(max(1, len(self.environments))):
            for name, mechanism in self._drawn(number).items():
                for parent in mechanism.frames(""):
                    graph[names.index(parent), names.index(name)] = True
        return graph | self.model.step_adjacency if self.group == "sequence" else graph

    @property
    def is_independent(self) -> bool:
        """Whether it draws single images of the environment independent alone."""
        return self.group == "single" and not self.do and self.environments == (INDEPENDENT,)

    def as_dict(self) -> dict[str, Any]:
        """The sampling as plain data, with the law of the model and without its scene."""
        return {
            "model": self.model.law(),
            "environments": list(self.environments),
            "do": _plain(self.do),
            "counterfactual": _plain(self.counterfactual),
            "view": self.view,
            "steps": self.steps,
        }

    def draw(self, indices: Iterable[int], *, seed: int, split: str) -> Draws:
        """Draw images by their numbers.

        Args:
            indices: the image numbers, >= 0.
            seed: the seed, 0 <= seed < 2^64.
            split: train, val or test.

        Raises:
            UsageError: seed or split do not fit, or a mechanism gives a value that is out of its
                variable's range or not finite.
        """
        check_seed_and_split(seed, split)
        numbers = np.fromiter(indices, np.int64)
        count, frames = len(self.model.variables), self.frames
        item, frame = numbers // frames, numbers % frames
        environment = item % max(1, len(self.environments))
        variables = np.empty((len(numbers), count), np.float32)
        noise = np.empty((len(numbers), count, NOISE), np.float32)
        targets = np.zeros((len(numbers), count), np.uint8)
        for chosen in range(max(1, len(self.environments))):
            rows = np.flatnonzero(environment == chosen)
            if not len(rows):
                continue
            items, place = np.unique(item[rows], return_inverse=True)
            last = int(frame[rows].max())
            simulation = _Simulation(self, chosen, items, seed, split)
            for number in range(last + 1):
                values, drawn, hit = simulation.step(number)
                now = frame[rows] == number
                here, there = rows[now], place[now]
                variables[here] = values[there]
                noise[here] = drawn[there]
                targets[here] = hit[there]
        return Draws(variables, noise, targets, environment, item, frame)

    def shifts(self) -> dict[str, float]:
        """The shifts of variables whose ranges have ends, by variable; the largest of several."""
        found: dict[str, float] = {}
        for number in range(max(1, len(self.environments))):
            for name, mechanism in self._drawn(number, counterfactual=True).items():
                if isinstance(mechanism, Shift) and self.model[name].kind == "continuous":
                    found[name] = max(mechanism.by, found.get(name, 0.0), key=abs)
        return found

    def held_share(self, *, seed: int = 0, split: str = "train") -> float:
        """The share of images in which a shift ends at a range's end, from 10,000 draws.

        Of counterfactual pairs these are the second images, otherwise all of them.
        """
        shifted = [
            (name, mechanism)
            for number in range(max(1, len(self.environments)))
            for name, mechanism in self._drawn(number, counterfactual=True).items()
            if isinstance(mechanism, Shift)
        ]
        if not shifted:
            return 0.0
        numbers = range(1, 20_000, 2) if self.counterfactual else range(10_000)
        values = self.draw(numbers, seed=seed, split=split).variables
        held = np.zeros(len(values), bool)
        for name, mechanism in shifted:
            variable = self.model[name]
            if variable.kind == "continuous":
                end = np.float32(variable.range[1 if mechanism.by > 0 else 0])
                held |= values[:, self.model.names.index(name)] == end
        return float(held.mean())

    def later_law(self, environment: int = 0) -> Mechanisms:
        """The mechanisms of the second image of a pair, or of a sequence's later frames.

        Args:
            environment: the number of the environment.

        Returns:
            A mechanism for each variable that is drawn; content is copied, and has none.
        """
        return _Simulation(self, environment, np.empty(0, np.int64), 0, "train").later_law

    def _replaced(self, number: int, *, counterfactual: bool) -> dict[str, Mechanism]:
        """The mechanisms that interventions put in place of the model's, by variable."""
        drawn = {each.name: each.mechanism for each in self.model.variables}
        name = self.environments[number] if self.environments else OBSERVED
        replaced = dict(self.model.environment(name))
        parts = [("do", self.do)]
        if counterfactual:
            parts.append(("counterfactual", self.counterfactual))
        for where, table in parts:
            with explaining(f"model {self.model.name}"):
                law = parse_interventions(table, where, self.model.domains, {**drawn, **replaced})
            for each, mechanism in law.items():
                if mechanism.frames("previous") or mechanism.frames("first") or mechanism.remembers:
                    raise UsageError(
                        f"{where}: {each} would need the value of another frame: an intervention "
                        "looks at its own alone"
                    )
            replaced.update(law)
        return replaced

    def _drawn(self, number: int, *, counterfactual: bool = False) -> dict[str, Mechanism]:
        drawn = {each.name: each.mechanism for each in self.model.variables}
        return {**drawn, **self._replaced(number, counterfactual=counterfactual)}


def parse_sampling(
    data: Mapping[str, Any],
    preset: Mapping[str, Any],
    about: Mapping[str, Any],
    source: str,
) -> Sampling:
    """Make a sampling from plain data.

    Args:
        data: the fields, as `Sampling.as_dict` returns them; others are left aside.
        preset: the scene, as `Preset.as_dict` returns it, without a description.
        about: the texts, as `CausalModel.about` returns them.
        source: the name of their source in errors.

    Raises:
        UsageError: a field does not fit.
    """
    with explaining(source):
        law = plain_data.table(plain_data.needed(data, "model"), "model")
        tables = plain_data.table(law.get("variables"), "model.variables")
        texts = plain_data.table(about.get("variables", {}), "variables")
        variables = {
            name: {**plain_data.table(each, name), **plain_data.table(texts.get(name, {}), name)}
            for name, each in tables.items()
        }
        scene = {key: value for key, value in preset.items() if key != "name"}
        whole = {
            **law,
            "name": preset.get("name"),
            "scene": scene,
            "description": about.get("description", ""),
            "sources": about.get("sources", ""),
            "variables": variables,
        }
        names = plain_data.sequence(
            data.get("environments", []), "environments", plain_data.text, least=0, most=1000
        )
        view, steps = data.get("view"), data.get("steps", 1)
        return Sampling(
            parse_model(whole, source),
            names,
            plain_data.table(data.get("do", {}), "do"),
            plain_data.table(data.get("counterfactual", {}), "counterfactual"),
            None if view is None else plain_data.text(view, "view"),
            plain_data.whole(steps, "steps", 1),
        )


def _plain(table: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _plain(value) if isinstance(value, Mapping) else value
        for name, value in table.items()
    }


def _carried(intervention: Mechanism, own: Mechanism, later: Mechanism) -> Mechanism:
    """An intervention in a later image: a shift keeps the law that the variable has there.

    Args:
        intervention: the mechanism that an intervention puts in place in the first image.
        own: the model's mechanism there, which shifts refer to.
        later: the model's mechanism in the later image.
    """
    if isinstance(intervention, Shift):
        return Shift(intervention.by, _carried(intervention.of, own, later))
    return later if intervention is own else intervention


class _Simulation:
    """The images of some items, frame by frame."""

    def __init__(
        self,
        sampling: Sampling,
        environment: int,
        items: npt.NDArray[np.int64],
        seed: int,
        split: str,
    ) -> None:
        self._sampling = sampling
        self._model = sampling.model
        self._items, self._seed, self._split = items, seed, split
        replaced = sampling._replaced(environment, counterfactual=False)
        self._replaced = replaced
        names = self._model.names
        drawn = {each.name: each.mechanism for each in self._model.variables}
        self._first_law: dict[str, Mechanism] = {**drawn, **replaced}
        where = f"model {self._model.name}" + (", with these interventions" if replaced else "")
        self._first_order = order(names, self._first_law, where)
        group = sampling.group
        self.later_law: Mechanisms = {}
        self._hit = frozenset(replaced)
        if group == "counterfactual":
            changed = sampling._replaced(environment, counterfactual=True)
            self.later_law = {**drawn, **changed}
            self._hit = frozenset(changed)
            where = f"model {self._model.name}, with these interventions"
        elif group == "views":
            law = self._model.view(sampling.view)
            self.later_law = {
                name: _carried(replaced[name], drawn[name], mechanism)
                if name in replaced
                else mechanism
                for name, mechanism in law.items()
            }
        elif group == "sequence":
            transitions = {
                each.name: each.transition or each.mechanism for each in self._model.variables
            }
            carried = {
                name: _carried(each, drawn[name], transitions[name])
                for name, each in replaced.items()
            }
            self.later_law = {**transitions, **carried}
        self._later_order = order(names, self.later_law, where)
        self._first: dict[str, Float64] = {}
        self._previous: dict[str, Float64] = {}

    def step(self, frame: int) -> tuple[Float32, Float32, npt.NDArray[np.uint8]]:
        """Draw the next frame: variables (n, D), noise (n, D, 3) and targets (n, D)."""
        model, group = self._model, self._sampling.group
        source = 0 if group == "counterfactual" else frame
        noise = sample_noise(
            self._items, source, len(model.variables), seed=self._seed, split=self._split
        )
        units = (noise.astype(np.float64) + 1) / 2
        targets = np.zeros((len(self._items), len(model.variables)), np.uint8)
        law, names = self.later_law, self._later_order
        hit: Iterable[str] = self._hit
        if frame == 0:
            law, names, hit = self._first_law, self._first_order, self._replaced
        for name in hit:
            targets[:, model.names.index(name)] = 1
        if group == "sequence" and frame:
            targets |= self._drawn_targets(units[:, :, 2])
        current: dict[str, Float64] = {}
        for name in names:
            column = model.names.index(name)
            if name not in law:  # content of a second view
                current[name] = self._first[name]
                continue
            at = Draw(
                model.variables[column].domain,
                units[:, column, :2],
                current,
                self._previous,
                self._first,
            )
            current[name] = self._draw(law[name], at, targets[:, column], frame)
        if frame == 0:
            self._first = current
        self._previous = current
        values = np.stack([current[name] for name in model.names], axis=1).astype(np.float32)
        return values, noise, targets

    def _draw(
        self, mechanism: Mechanism, at: Draw, targets: npt.NDArray[np.uint8], frame: int
    ) -> Float64:
        """Values of one variable; where an intervention in time hits it, uniform ones."""
        name, domain = at.domain.name, at.domain
        intervened = (
            targets.astype(bool)
            if self._sampling.group == "sequence" and frame and name not in self._replaced
            else np.zeros(len(targets), bool)
        )
        if not intervened.any():
            return domain.hold(mechanism.draw(at))
        values = np.empty(len(targets))
        values[intervened] = Uniform().draw(at.rows(intervened))
        if not intervened.all():
            values[~intervened] = mechanism.draw(at.rows(~intervened))
        return domain.hold(values)

    def _drawn_targets(self, units: Float64) -> npt.NDArray[np.uint8]:
        """The targets of interventions in time, (n, D), by the target numbers (n, D)."""
        model, law = self._model, self._model.interventions
        names = model.names
        targets = np.zeros(units.shape, np.uint8)
        if law.targets == "none":
            return targets
        groups = [np.array([names.index(name) for name in group]) for group in law.groups]
        if law.targets == "bernoulli":
            for number, group in enumerate(groups):  # which are at most as many as variables
                targets[np.ix_(units[:, number] < law.probability, group)] = 1
            return targets
        share = units[:, 0]
        acting = share >= law.observed
        rest = max(1 - law.observed, 1e-12)
        chosen = np.minimum(
            ((share - law.observed) / rest * len(groups)).astype(int), len(groups) - 1
        )
        for number, group in enumerate(groups):
            targets[np.ix_(acting & (chosen == number), group)] = 1
        return targets


def sample_noise(
    items: Sequence[int] | npt.NDArray[np.int64], frame: int, count: int, *, seed: int, split: str
) -> Float32:
    """Draw the exogenous noise of images, i.i.d. uniform in (-1, 1).

    The numbers are those of `sample_raw_latents`: the top 24 bits of the raw words of Philox with
    key [seed, stream of the split] and counter [0, item, frame, 0]. The first `count` words are the
    first number of every variable, so that uniform variables in [-1, 1] are the raw latents.

    Args:
        items: the numbers of single images, pairs or sequences.
        frame: the number of the image therein.
        count: the number of variables.
        seed: the seed, 0 <= seed < 2^64.
        split: train, val or test.

    Returns:
        The noise, (N, count, 3) float32, exact.
    """
    key = np.array([seed, SPLITS[split]], np.uint64)
    rows = [
        np.random.Philox(key=key, counter=np.array([0, item, frame, 0], np.uint64)).random_raw(
            NOISE * count
        )
        for item in items
    ]
    words = np.array(rows, np.uint64).reshape(len(rows), NOISE, count)
    top = (words >> np.uint64(40)).astype(np.float64)
    return np.moveaxis((2.0 * top + 1.0) / 2.0**24 - 1.0, 1, 2).astype(np.float32)


def second_views(
    model: CausalModel, view: str, values: npt.ArrayLike, count: int, *, seed: int
) -> Float32:
    """Draw second views of a first one that is given.

    They are drawn as `Sampling(model, view=view)` draws those of items 0, 1, ... of the split
    train, from the same noise.

    Args:
        model: the model.
        view: the name of the law of its views.
        values: the variables of the first view, (D,).
        count: the number of second views.
        seed: the seed, 0 <= seed < 2^64.

    Returns:
        Their variables, (count, D) float32.

    Raises:
        UsageError: the model has no such views, or a mechanism gives a value that does not fit.
    """
    law = model.view(view)
    given = np.asarray(values, np.float32).astype(np.float64)
    first = {name: np.full(count, given[k]) for k, name in enumerate(model.names)}
    noise = sample_noise(range(count), 1, len(model.names), seed=seed, split="train")
    units = (noise.astype(np.float64) + 1) / 2
    drawn: dict[str, Float64] = {}
    for name in order(model.names, law, f"model {model.name}"):
        if name not in law:
            drawn[name] = first[name]
            continue
        domain = model[name].domain
        at = Draw(domain, units[:, model.names.index(name), :2], drawn, first, first)
        drawn[name] = domain.hold(law[name].draw(at))
    return np.stack([drawn[name] for name in model.names], axis=1).astype(np.float32)
