"""Causal models over the scene's factors, as plain data: `CausalModel`, and how one is parsed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.causal.mechanisms import (
    Constant,
    Domain,
    Mechanism,
    Uniform,
)
from threedident.errors import UsageError
from threedident.factors import FACTOR_NAMES, NUM_FACTORS
from threedident.presets import Preset

Float32 = npt.NDArray[np.float32]
Mechanisms = Mapping[str, Mechanism]

#: The environment that every model has: each mechanism replaced by a uniform one.
INDEPENDENT = "independent"
#: The environment without an intervention.
OBSERVED = "observed"
STATUSES = ("published", "inferred", "unknown", "fitted")
TARGETS = ("none", "bernoulli", "single")


@dataclasses.dataclass(frozen=True)
class Variable:
    """A variable of a model.

    Attributes:
        domain: its name, kind and range.
        mechanism: the mechanism of single images, and of a sequence's first frame.
        transition: the mechanism of a sequence's later frames; None: `mechanism` again.
        renders: the scene's column that it feeds; empty: none.
        scene: the scene values at the ends of its range; None: those of the scene's own range, or
            for shape and material the class of the same name.
        status: what is known of its law: published, inferred, unknown or fitted.
        note: a remark.
    """

    domain: Domain
    mechanism: Mechanism
    transition: Mechanism | None = None
    renders: str = ""
    scene: tuple[float, float] | None = None
    status: str = "published"
    note: str = ""

    @property
    def name(self) -> str:
        """Its name."""
        return self.domain.name

    @property
    def kind(self) -> str:
        """Its kind: continuous, circular or discrete."""
        return self.domain.kind

    @property
    def range(self) -> tuple[float, float]:
        """The ends of its range; of a discrete variable 0 and the last class's number."""
        return self.domain.low, self.domain.high

    @property
    def values(self) -> tuple[str, ...]:
        """The names of a discrete variable's classes."""
        return self.domain.values

    def as_dict(self) -> dict[str, Any]:
        """The variable as plain data, as in a model file."""
        data: dict[str, Any] = {"kind": self.kind}
        if self.kind == "discrete":
            data["values"] = list(self.values)
        else:
            data["range"] = list(self.range)
        data["renders"] = self.renders
        if self.scene is not None:
            data["scene"] = list(self.scene)
        data["status"] = self.status
        if self.note:
            data["note"] = self.note
        data["mechanism"] = self.mechanism.as_dict()
        if self.transition is not None:
            data["transition"] = self.transition.as_dict()
        return data


@dataclasses.dataclass(frozen=True)
class Interventions:
    """The interventions in a sequence: perfect ones, whose values are uniform over the range.

    Attributes:
        targets: none; bernoulli: each group by itself; single: one group at a time.
        probability: the probability of each group, for bernoulli.
        observed: the probability that no group is intervened on, for single.
        groups: the variables that are intervened on together.
    """

    targets: str = "none"
    probability: float = 0.0
    observed: float = 0.0
    groups: tuple[tuple[str, ...], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The interventions as plain data, as in a model file."""
        return {
            "targets": self.targets,
            "probability": self.probability,
            "observed": self.observed,
            "groups": [list(group) for group in self.groups],
        }


@dataclasses.dataclass(frozen=True)
class CausalModel:
    """A structural causal model whose variables make the scene.

    Attributes:
        name: its name, which files and leaderboards show.
        description: a line that says what it is.
        sources: what of it is published, inferred or unknown.
        preset: the scene: how the columns become an image.
        variables: the variables, in the order of their columns.
        environments: interventions by name: a mechanism for each variable that they replace.
        views: laws of a second view by name: a mechanism for each variable that is not copied.
        interventions: the interventions in sequences.
    """

    name: str
    description: str
    sources: str
    preset: Preset
    variables: tuple[Variable, ...]
    environments: Mapping[str, Mechanisms]
    views: Mapping[str, Mechanisms]
    interventions: Interventions

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the variables."""
        return tuple(variable.name for variable in self.variables)

    @property
    def domains(self) -> dict[str, Domain]:
        """The variables' domains, by name."""
        return {variable.name: variable.domain for variable in self.variables}

    def __getitem__(self, name: str) -> Variable:
        """The variable of a name.

        Raises:
            UsageError: there is none.
        """
        for variable in self.variables:
            if variable.name == name:
                return variable
        raise UsageError(
            f"model {self.name} has no variable {name!r:.60}: expected one of "
            f"{', '.join(self.names)}"
        )

    @property
    def has_time(self) -> bool:
        """Whether a variable has a transition."""
        return any(variable.transition is not None for variable in self.variables)

    @property
    def adjacency(self) -> npt.NDArray[np.bool_]:
        """The graph of one image, (D, D): [i, j] says that variable i is a parent of j."""
        return self._graph([variable.mechanism for variable in self.variables], "")

    @property
    def step_adjacency(self) -> npt.NDArray[np.bool_]:
        """The graph within a later frame of a sequence, (D, D)."""
        return self._graph(self._transitions, "")

    @property
    def lagged_adjacency(self) -> npt.NDArray[np.bool_]:
        """The graph from a frame to the next, (D, D): [i, j] says that i is a parent of j there."""
        return self._graph(self._transitions, "previous")

    @property
    def _transitions(self) -> list[Mechanism]:
        return [variable.transition or variable.mechanism for variable in self.variables]

    def _graph(self, mechanisms: Sequence[Mechanism], frame: str) -> npt.NDArray[np.bool_]:
        names = self.names
        graph = np.zeros((len(names), len(names)), bool)
        for column, mechanism in enumerate(mechanisms):
            for parent in mechanism.frames(frame):
                graph[names.index(parent), column] = True
            if frame == "previous" and mechanism.remembers:
                graph[column, column] = True
        return graph

    def environment(self, name: str) -> Mechanisms:
        """The mechanisms that an environment replaces, by variable.

        Args:
            name: its name, as in the file; or observed (none), or independent (all by uniform
                ones, but for variables that are one number at all times).

        Raises:
            UsageError: there is no such environment.
        """
        if name == OBSERVED:
            return {}
        if name == INDEPENDENT:
            return {
                variable.name: Uniform()
                for variable in self.variables
                if variable.transition is not None
                or not (isinstance(variable.mechanism, Constant) and variable.mechanism.is_fixed)
            }
        if name not in self.environments:
            raise UsageError(
                f"model {self.name} has no environment {name!r:.60}: expected one of "
                f"{', '.join((OBSERVED, INDEPENDENT, *self.environments))}"
            )
        return self.environments[name]

    def view(self, name: str | None = None) -> Mechanisms:
        """The mechanisms of the second view, by variable; those that it leaves out are copied.

        Args:
            name: the name of the views; None: the only ones that the model has.

        Raises:
            UsageError: there are none of that name, or not just one.
        """
        if name is None and len(self.views) == 1:
            return next(iter(self.views.values()))
        if name is None or name not in self.views:
            if not self.views:
                raise UsageError(
                    f"model {self.name} has no views: add a table [views.NAME] to its file, or "
                    "choose another model"
                )
            which = (
                "which views" if name is None else f"model {self.name} has no views {name!r:.60}"
            )
            raise UsageError(f"{which}: expected one of {', '.join(self.views)}")
        return self.views[name]

    def role(self, variable: str, view: str | None = None) -> str:
        """The role of a variable in two views: content, style or private.

        Content is equal in both, style differs but depends on its value in the first, and private
        is drawn apart from it.
        """
        law = self.view(view)
        if variable not in law:
            return "content"
        return "style" if variable in law[variable].frames("first") else "private"

    def raw_latents(self, variables: npt.ArrayLike) -> Float32:
        """The raw latents (N, 10) in [-1, 1] of variables (N, D).

        A factor that no variable renders is where the preset holds it.
        """
        values = np.asarray(variables, np.float64)
        raw = np.zeros((len(values), NUM_FACTORS))
        for name, held in self.preset.fixed.items():
            raw[:, FACTOR_NAMES.index(name)] = held
        for column, variable in enumerate(self.variables):
            if variable.renders in FACTOR_NAMES:
                share = _share(variable.domain, values[:, column])
                raw[:, FACTOR_NAMES.index(variable.renders)] = share
        return np.clip(raw, -1, 1).astype(np.float32)

    def scene_range(self, variable: Variable) -> tuple[float, float]:
        """The scene values (m, rad) at the ends of a variable's range; (0, 0) if it sets none."""
        base = base_column(variable.renders)
        return variable.scene or self.preset.ranges.get(base, (0.0, 0.0))

    def scene_rows(self, variables: npt.ArrayLike) -> Float32:
        """The rows (N, W) that engines render, of variables (N, D): see `Preset.columns`."""
        values = np.asarray(variables, np.float64)
        rows = np.zeros((len(values), len(self.preset.columns)), np.float32)
        rows[:, :NUM_FACTORS] = self.preset.to_scene(self.raw_latents(values))
        for place, name in enumerate(self.preset.columns[NUM_FACTORS:], NUM_FACTORS):
            for column, variable in enumerate(self.variables):
                if variable.renders == name:
                    rows[:, place] = self._extra(variable, values[:, column])
                    break
            else:
                rows[:, place] = self._unset(name)
        return rows

    def _extra(self, variable: Variable, values: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
        """The values of a column beyond the ten factors."""
        base = base_column(variable.renders)
        if base in ("shape", "material"):
            names = self.preset.shapes if base == "shape" else self.preset.materials
            numbers = np.array([names.index(name) for name in variable.values], np.float64)
            return np.asarray(numbers[values.astype(int)])
        low, high = variable.scene or self.preset.ranges[base]
        return np.asarray((low + high) / 2 + (high - low) / 2 * _share(variable.domain, values))

    def _unset(self, name: str) -> float:
        """The value of a column that no variable renders."""
        base = base_column(name)
        if base in ("shape", "material"):
            return 0.0
        low, high = self.preset.ranges[base]
        return (low + high) / 2

    def about(self) -> dict[str, Any]:
        """The fields that describe the model and decide no image, as plain data."""
        return {
            "description": self.description,
            "sources": self.sources,
            "variables": {
                each.name: {"status": each.status, "note": each.note} for each in self.variables
            },
        }

    def law(self) -> dict[str, Any]:
        """The fields that decide images, but for the scene, as plain data."""
        data = self.as_dict()
        for name in ("name", "scene", "description", "sources"):
            del data[name]
        for variable in data["variables"].values():
            variable.pop("status")
            variable.pop("note", None)
        return data

    def graph(self) -> dict[str, Any]:
        """The graph as plain data: adjacency matrices; row i, column j is an edge from i to j."""
        return {
            "variables": list(self.names),
            "adjacency": self.adjacency.astype(int).tolist(),
            "within_step": self.step_adjacency.astype(int).tolist() if self.has_time else None,
            "from_previous": self.lagged_adjacency.astype(int).tolist() if self.has_time else None,
        }

    def as_dict(self) -> dict[str, Any]:
        """The model as plain data, as in a TOML file."""
        scene = self.preset.as_dict()
        for key in ("name", "description", "best_r2"):
            scene.pop(key)
        return {
            "name": self.name,
            "description": self.description,
            "sources": self.sources,
            "scene": scene,
            "variables": {variable.name: variable.as_dict() for variable in self.variables},
            "environments": _tables(self.environments),
            "views": _tables(self.views),
            "interventions": self.interventions.as_dict(),
        }


def _tables(laws: Mapping[str, Mechanisms]) -> dict[str, Any]:
    return {
        name: {variable: mechanism.as_dict() for variable, mechanism in law.items()}
        for name, law in laws.items()
    }


def _share(domain: Domain, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Values of a range in [-1, 1]."""
    if domain.width == 0:
        return np.zeros(len(values))
    return np.asarray(2 * ((values - domain.low) / domain.width) - 1)


def base_column(name: str) -> str:
    """The column of the first object that corresponds to one of any object: x of x_2."""
    base, _, number = name.rpartition("_")
    return base if number.isdigit() else name


def order(names: Iterable[str], mechanisms: Mechanisms, where: str) -> tuple[str, ...]:
    """Sort variables so that parents in the same frame come first.

    Args:
        names: the variables.
        mechanisms: the mechanism of each; one that has none has no parents.
        where: the name of their source in errors.

    Raises:
        UsageError: they form a cycle.
    """
    needs = {name: mechanisms[name].frames("") if name in mechanisms else () for name in names}
    try:
        return tuple(TopologicalSorter(needs).static_order())
    except CycleError as error:
        cycle = " -> ".join(error.args[1])
        raise UsageError(
            f"{where}: variables depend on each other in a circle: {cycle}. One of them must do "
            "without, or take the value of the frame before, as in previous(x)"
        ) from error
