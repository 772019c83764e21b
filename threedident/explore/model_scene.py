"""`ModelScene`: a causal model's variables as sliders and switches, and what is drawn of it."""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident import defaults, plain_data
from threedident.causal import CausalModel, Draws, Sampling, Variable
from threedident.causal.description import describe_model
from threedident.causal.files import load_model, model_names
from threedident.causal.graph_picture import graph_svg
from threedident.causal.mechanisms import Constant
from threedident.causal.model import INDEPENDENT, OBSERVED, base_column
from threedident.causal.parsing import parse_interventions
from threedident.errors import UsageError
from threedident.explore.controls import Control
from threedident.explore.renderers import Renderers
from threedident.explore.scenes import FACTOR_BY_NAME, RenderedScene, View
from threedident.plain_data import Misfit
from threedident.presets import SATURATION
from threedident.render.content import Content
from threedident.render.scene import SceneBuilder, hue_colors

Float32 = npt.NDArray[np.float32]

FRAMES = 8  # of a sequence that the page shows
_MOST_UNIT = 2**53 - 1  # the largest whole number that every browser keeps exactly

#: What is drawn of a unit: its image, its first frames, a second view, or a counterfactual pair.
KINDS = ("image", "sequence", "views", "counterfactual")


@dataclasses.dataclass(frozen=True)
class Unit:
    """A unit of a model: its noise, and what acts on it.

    Attributes:
        number: the seed of its exogenous noise.
        environment: the name of its environment.
        do: the values at which interventions hold variables, by name; of a class its number.
    """

    number: int
    environment: str
    do: Mapping[str, float]

    @property
    def environments(self) -> tuple[str, ...]:
        """The environment as an argument of `Sampling`: none where nothing acts."""
        return () if self.environment == OBSERVED else (self.environment,)


class ModelScene(RenderedScene):
    """A causal model's scene: a control for each of its variables.

    Attributes:
        model: the model.
        source: the name or the file that a command names the model by; empty where none does.
    """

    kind = "model"

    def __init__(
        self,
        model: CausalModel,
        generator: Mapping[str, Any],
        renderers: Renderers,
        device: str,
        *,
        source: str = "",
    ) -> None:
        """Make the controls of a model.

        Args:
            model: the model.
            generator: the page's name for it.
            renderers: the processes that render.
            device: the kind of device: auto, cpu or cuda.
            source: the name or the file that a command names the model by; empty: none does.

        Raises:
            UsageError: the direct engine does not render it, or a mesh file is missing.
        """
        super().__init__(renderers, device)
        self.model, self.preset, self.source = model, model.preset, source
        self.generator = generator
        self.title = str(generator.get("model", model.name))
        try:
            self.settings(View())  # which refuses a material
            if self.preset.mesh_files:
                SceneBuilder(self.preset)  # and a file that cannot be used
        except UsageError as error:
            raise UsageError(f"model {model.name} cannot be shown here: {error}") from error
        start = self.draw(Unit(0, OBSERVED, {})).variables[0].tolist()
        self.controls = tuple(
            variable_control(model, variable, value)
            for variable, value in zip(model.variables, start, strict=True)
        )

    def rows(self, values: Float32) -> Float32:
        """The scene rows (B, W) of variables (B, D)."""
        return self.model.scene_rows(values)

    def notes(self) -> list[str]:
        """The reasons why the scene is not injective, and what jumps where a circle closes."""
        jumps = Content(self.preset, sampling=Sampling(self.model)).circle_warning()
        return self.preset.ambiguities() + ([jumps] if jumps else [])

    def describe(self) -> dict[str, Any]:
        """The scene as plain data for the page, with the model's graph and laws."""
        model = self.model
        about = describe_model(model, ())
        later = model.step_adjacency | model.lagged_adjacency
        for place, each in enumerate(about["variables"]):
            each["children"] = _names(model, model.adjacency[place])
            each["children_later"] = _names(model, later[place]) if model.has_time else []
            if self.source not in model_names():  # a file says nothing of it as a rule
                each["status"] = each["status"] if each["status"] != "published" else None
        return {
            **super().describe(),
            "model": {
                "name": model.name,
                "description": model.description,
                "sources": model.sources,
                "variables": about["variables"],
                "environments": [OBSERVED, INDEPENDENT, *model.environments],
                "views": list(model.views),
                "frames": FRAMES if model.has_time else 0,
                "command": bool(self.source),
            },
        }

    def check_unit(self, data: Mapping[str, Any]) -> Unit:
        """Check a request's `unit`, `environment` and `do`.

        Raises:
            Misfit: a field does not fit. Interventions are numbers or names of classes; the
                expressions and laws of model files are not for the page.
        """
        number = plain_data.whole(data.get("unit", 0), "unit", 0, _MOST_UNIT)
        model = self.model
        known = (OBSERVED, INDEPENDENT, *model.environments)
        environment = plain_data.choice(data.get("environment", OBSERVED), "environment", known)
        table = plain_data.table(data.get("do", {}), "do", "variables")
        plain_data.refuse_unknown(table, model.names, "do")
        return Unit(
            number,
            environment,
            {
                control.name: _held_value(control, variable, table[control.name])
                for control, variable in zip(self.controls, model.variables, strict=True)
                if control.name in table
            },
        )

    def sampling(self, unit: Unit, kind: str = "image", view: str | None = None) -> Sampling:
        """What is drawn of a unit.

        Args:
            unit: the unit.
            kind: one of `KINDS`. Of a counterfactual pair the first image is without the unit's
                interventions; otherwise they act on the first image, and as far as `Sampling`
                carries them on those that follow.
            view: the name of the views, where that is the kind.

        Raises:
            UsageError: the model has no such views, no time, or the unit no interventions.
        """
        if kind == "counterfactual":
            if not unit.do:
                raise UsageError("a counterfactual needs an intervention: move a slider first")
            return Sampling(self.model, unit.environments, counterfactual=unit.do)
        if kind == "sequence":
            return Sampling(self.model, unit.environments, unit.do, steps=FRAMES)
        if kind == "views":
            self.model.view(view)
            return Sampling(self.model, unit.environments, unit.do, view=view)
        return Sampling(self.model, unit.environments, unit.do)

    def draw(self, unit: Unit, kind: str = "image", view: str | None = None) -> Draws:
        """Draw all images of a unit; see `sampling`.

        Raises:
            UsageError: as of `sampling`; or a mechanism gives a value out of its variable's range.
        """
        sampling = self.sampling(unit, kind, view)
        return sampling.draw(range(sampling.frames), seed=unit.number, split="train")

    def graph(self, unit: Unit) -> str:
        """Draw the model's graph as SVG; edges into what is intervened on are cut."""
        model, name = self.model, unit.environment
        if not unit.do:
            return graph_svg(model, None if name == OBSERVED else name)
        drawn = {each.name: each.mechanism for each in model.variables}
        law = {**model.environment(name)}
        law |= parse_interventions(unit.do, "do", model.domains, {**drawn, **law})
        held = f"do({', '.join(unit.do)})"
        name = held if name == OBSERVED else f"{name}, {held}"
        changed = dataclasses.replace(model, environments={**model.environments, name: law})
        return graph_svg(changed, name)


def _names(model: CausalModel, chosen: npt.NDArray[np.bool_]) -> list[str]:
    return [model.names[column] for column in np.flatnonzero(chosen)]


def command_of(
    scene: ModelScene,
    unit: Unit,
    kind: str = "image",
    *,
    view: str | None = None,
    resolution: int = defaults.RESOLUTION,
    quality: str = defaults.QUALITY,
) -> str:
    """Write the command that renders what is drawn of a unit.

    Args:
        scene: the model's scene.
        unit: the unit.
        kind: one of `KINDS`.
        view: the name of the views, where that is the kind.
        resolution: the pixels along each side.
        quality: the quality.

    Raises:
        UsageError: no file has the model; or what `ModelScene.sampling` raises.
    """
    if not scene.source:
        raise UsageError(
            "the model is recorded in the dataset alone, and no file has it that a command could "
            "name: write one, as docs/models.md says, and give it with --model FILE"
        )
    sampling = scene.sampling(unit, kind, view)
    words = ["3dident", "render", "--model", scene.source, "--seed", str(unit.number), "--n", "1"]
    for name in sampling.environments:
        words += ["--environment", name]
    for option, table in (("--do", sampling.do), ("--counterfactual", sampling.counterfactual)):
        for name, value in table.items():
            words += [option, f"{name}={_typed(scene.model[name], value)}"]
    if sampling.view is not None:
        words += ["--views", sampling.view]
    if sampling.steps > 1:
        words += ["--steps", str(sampling.steps)]
    words += ["--engine", "direct", "--resolution", str(resolution)]
    if quality != defaults.QUALITY:
        words += ["--quality", quality]
    plain = re.sub(r"[^\w.-]+", "-", scene.model.name).strip("-.") or "model"
    words += ["--out", f"data/{plain}-unit-{unit.number}" + ("" if kind == "image" else f"-{kind}")]
    return shlex.join(words)


def _typed(variable: Variable, value: float) -> str:
    """An intervention's value as an option of `3dident render` takes it."""
    if variable.kind != "discrete":
        return repr(value)
    name = variable.values[int(value)]
    # Of others, such as "uniform" or "1e3", the command would take the name for something else.
    plain = name.isidentifier() and name != "uniform" and not _is_number(name)
    return name if plain else repr(value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _held_value(control: Control, variable: Variable, value: Any) -> float:
    """Check the value at which an intervention holds a variable; of a class its number."""
    where = f"do.{control.name}"
    if control.held:
        raise Misfit(f"{where}: the model holds {control.name} at {control.start:g}")
    if variable.kind == "discrete":
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        numbers = range(len(variable.values))
        names = variable.values
        chosen = plain_data.choice(value, where, (*names, *numbers))
        return float(names.index(chosen) if isinstance(chosen, str) else chosen)
    number = plain_data.number(value, where)
    if not control.low <= number <= control.high:
        raise Misfit(
            f"{where} must be a value in [{control.low:g}, {control.high:g}], found {number:g}"
        )
    # The control's ends are those of the range in float32: off by less than the slider shows.
    return min(max(number, variable.domain.low), variable.domain.high)


def variable_control(model: CausalModel, variable: Variable, start: float) -> Control:
    """The control of a variable.

    Args:
        model: the model.
        variable: the variable.
        start: its value when the page opens, float32.
    """
    low, high = (float(np.float32(end)) for end in variable.range)
    if variable.kind == "circular":  # the high end is the low one again
        high = float(np.nextafter(np.float32(high), np.float32(-math.inf)))
    base = base_column(variable.renders)
    factor = FACTOR_BY_NAME.get(base)
    scene = model.scene_range(variable) if factor else None
    _, _, number = variable.renders.rpartition("_")
    group = factor.group if factor else "object" if base else ""
    colors: tuple[str, ...] = ()
    flat: list[tuple[float, float]] = []
    if base in SATURATION and scene is not None and variable.kind != "discrete":
        ranges = {**model.preset.ranges, base: scene}
        hues = dataclasses.replace(model.preset, ranges=ranges)
        colors = hue_colors(hues, base)
        middle, half = (low + high) / 2, (high - low) / 2
        flat = [(middle + half * a, middle + half * b) for a, b in hues.flat_ranges(base)]
    return Control(
        variable.name,
        variable.name.replace("_", " "),
        kind=variable.kind,
        low=low,
        high=high,
        start=start,
        group=f"{group} {number}" if base != variable.renders else group,
        unit=factor.unit if factor else "",
        scene=scene,
        values=variable.values,
        held=_is_held(model, variable),
        flat=tuple(flat),
        colors=colors,
        best_r2=None if variable.kind == "discrete" else model.preset.best_r2.get(variable.renders),
        note=_note(variable),
    )


def _is_held(model: CausalModel, variable: Variable) -> bool:
    """Whether a variable is one number in each image, whatever acts."""
    fixed = isinstance(variable.mechanism, Constant) and variable.mechanism.is_fixed
    acted = any(variable.name in law for law in model.environments.values())
    return fixed and variable.transition is None and not acted


def _note(variable: Variable) -> str:
    parts = [] if variable.renders else ["No image shows it."]
    if variable.kind == "circular":
        parts.append("It comes round again: both ends are one value.")
    if variable.note:
        note = variable.note[0].upper() + variable.note[1:]
        parts.append(note if note.endswith(".") else f"{note}.")
    return " ".join(parts)


class Models:
    """The models that the page offers, by name: those built in, one that was given, a dataset's.

    Attributes:
        given: the name of the one that was given; empty without.
        of_dataset: the name of the dataset's; empty without.
    """

    def __init__(
        self,
        given: CausalModel | None = None,
        source: str = "",
        of_dataset: CausalModel | None = None,
    ) -> None:
        """Collect the models.

        Args:
            given: the model that was given; None: none.
            source: the name or the file that a command names it by; empty: none does.
            of_dataset: the model that drew the dataset's images; None: none.
        """
        self._models: dict[str, CausalModel | None] = dict.fromkeys(model_names())
        self._sources = {name: name for name in self._models}
        self.of_dataset = self.given = ""
        if of_dataset is not None:
            self.of_dataset = self._add(of_dataset, "", "of the dataset")
        if given is not None:
            self.given = self._add(given, source, "as given")

    def _add(self, model: CausalModel, source: str, words: str) -> str:
        """Put a model at the head; return its name there."""
        name = model.name
        if name in self._models:
            known = self[name]
            if known.law() == model.law() and known.preset.as_dict() == model.preset.as_dict():
                return name
            name = f"{name} ({words})"
        self._models = {name: model, **self._models}
        self._sources[name] = source
        return name

    def __getitem__(self, name: str) -> CausalModel:
        """A model by its name on the page; built-in ones are read when they are wanted."""
        model = self._models[name]
        if model is None:
            model = self._models[name] = load_model(name)
        return model

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self._models)

    def describe(self) -> list[dict[str, Any]]:
        """What each is, and why it cannot be shown, as plain data."""
        return [
            {
                "name": name,
                "description": self[name].description,
                "missing": list(_missing_meshes(self[name])),
            }
            for name in self.names
        ]

    def scene(self, data: Mapping[str, Any], renderers: Renderers, device: str) -> ModelScene:
        """Make the scene of a generator `{"model": NAME}`.

        Raises:
            Misfit: it names none of the models.
            UsageError: the model cannot be rendered.
        """
        plain_data.refuse_unknown(data, ("model",), "generator")
        name = plain_data.choice(data.get("model"), "generator.model", self.names)
        source = self._sources[name]
        return ModelScene(self[name], {"model": name}, renderers, device, source=source)


def _missing_meshes(model: CausalModel) -> Sequence[str]:
    return [file for file in model.preset.mesh_files.values() if not Path(file).is_file()]
