"""Causal models from plain data, every field checked, and held against each other."""

from __future__ import annotations

import dataclasses
import keyword
import math
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from threedident import plain_data
from threedident.causal.mechanism_fields import KINDS, parse_mechanism
from threedident.causal.mechanisms import Domain, Mechanism, Shift, Uniform
from threedident.causal.model import (
    INDEPENDENT,
    OBSERVED,
    STATUSES,
    TARGETS,
    CausalModel,
    Interventions,
    Mechanisms,
    Variable,
    base_column,
    order,
)
from threedident.errors import UsageError
from threedident.factors import FACTOR_NAMES
from threedident.plain_data import Misfit
from threedident.presets import Preset, parse_preset

_LARGEST = 1e4
_MOST_VARIABLES = 64
_NAME = 40  # characters of a name
_SCENE = (*FACTOR_NAMES, "shape", "material")  # of a scene's first object
_FIELDS = (
    "name",
    "description",
    "sources",
    "scene",
    "variables",
    "environments",
    "views",
    "interventions",
)


def parse_model(data: Mapping[str, Any], source: str) -> CausalModel:
    """Make a model from plain data, every field checked.

    Args:
        data: the fields, as `CausalModel.as_dict` returns them; `scene` is a whole preset, without
            a base.
        source: the name of their source in errors.

    Raises:
        UsageError: a field is unknown, missing, of the wrong type or out of range; variables
            depend on each other in a circle, or feed what the scene has not.
    """
    with plain_data.explaining(source):
        model = _parse(plain_data.table(data, "a model"), source)
    check_model(model, source)
    return model


def _parse(data: Mapping[str, Any], source: str) -> CausalModel:
    plain_data.refuse_unknown(data, _FIELDS)
    name = plain_data.text(data.get("name", "unnamed"), "name", _NAME * 2)
    description = plain_data.text(data.get("description", ""), "description")
    scene = plain_data.table(data.get("scene", {}), "scene")
    preset = parse_preset({**scene, "name": name, "description": description}, f"{source}: [scene]")
    tables = plain_data.table(plain_data.needed(data, "variables"), "variables", "variables")
    if not 1 <= len(tables) <= _MOST_VARIABLES:
        raise Misfit(f"variables must be 1 to {_MOST_VARIABLES} tables, found {len(tables)}")
    domains = {key: _domain(key, each) for key, each in tables.items()}
    variables = tuple(_variable(tables[key], domains[key], domains, preset) for key in tables)
    preset = _rendered(preset, variables)
    drawn = {variable.name: variable.mechanism for variable in variables}
    environments: dict[str, Mechanisms] = {}
    for key, law in _named(data, "environments", (OBSERVED, INDEPENDENT)).items():
        environments[key] = parse_interventions(law, f"environments.{key}", domains, drawn)
    views = {
        key: _view(law, f"views.{key}", domains) for key, law in _named(data, "views", ()).items()
    }
    return CausalModel(
        name=name,
        description=description,
        sources=plain_data.text(data.get("sources", ""), "sources"),
        preset=preset,
        variables=variables,
        environments=environments,
        views=views,
        interventions=_interventions(data.get("interventions", {}), variables),
    )


def _named(data: Mapping[str, Any], key: str, taken: Sequence[str]) -> dict[str, Any]:
    tables = plain_data.table(data.get(key, {}), key, "tables")
    for name in tables:
        if name in taken:
            raise Misfit(f"{key}.{name}: every model has an environment of that name already")
        plain_data.text(name, f"a name in {key}", _NAME)
    return tables


def _domain(name: str, data: Any) -> Domain:
    where = f"variables.{name}"
    plain = name.isidentifier() and unicodedata.normalize("NFKC", name) == name
    if not plain or len(name) > _NAME or name == "pi":
        raise Misfit(f"{where:.80}: a variable's name is made of letters, digits and _")
    if keyword.iskeyword(name):  # which no expression could name
        raise Misfit(f"{where}: {name} is a word of Python's: choose another name")
    data = plain_data.table(data, where)
    kind = plain_data.choice(data.get("kind", "continuous"), f"{where}.kind", KINDS)
    if kind == "discrete":
        if "range" in data:
            raise Misfit(f"{where}: a discrete variable has values, and no range")
        values = plain_data.needed(data, "values", where)
        names = plain_data.sequence(
            values,
            f"{where}.values",
            lambda value, at: plain_data.text(value, at, _NAME),
            least=1,
            most=10_000,
        )
        if len(set(names)) < len(names):
            raise Misfit(f"{where}.values names a class twice")
        numbers = {str(number): number for number in range(len(names))}
        for number, each in enumerate(names):  # else "1" could be a class's number or its name
            if numbers.get(each, number) != number:
                raise Misfit(
                    f"{where}.values: {each!r} is the number of another class: choose names that "
                    f"are no numbers, as in {f'at {each}'!r}"
                )
        return Domain(name, kind, 0.0, float(len(names) - 1), names)
    if "values" in data:
        raise Misfit(f'{where}: values are of a discrete variable; add kind = "discrete"')
    default = [-1.0, 1.0] if kind == "continuous" else [0.0, 2 * math.pi]
    low, high = _pair(data.get("range", default), f"{where}.range")
    if low >= high:
        raise Misfit(f"{where}.range must be [low, high] with low < high, found [{low}, {high}]")
    return Domain(name, kind, low, high)


def _pair(value: Any, where: str) -> tuple[float, float]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise Misfit(f"{where} must be two numbers, found {value!r:.80}")
    low, high = (plain_data.number(each, where, _LARGEST) for each in value)
    return low, high


def _variable(
    data: Mapping[str, Any], domain: Domain, domains: Mapping[str, Domain], preset: Preset
) -> Variable:
    where = f"variables.{domain.name}"
    names = ("kind", "range", "values", "renders", "scene", "status", "note")
    plain_data.refuse_unknown(data, (*names, "mechanism", "transition"), where)
    columns = preset.columns
    default = domain.name if domain.name in columns else ""
    if "renders" not in data and not default and base_column(domain.name) in _SCENE:
        raise Misfit(
            f"{where}: the scene has no {domain.name}: say in [scene] that it has (shapes, "
            'materials, objects or spotlights), or write renders = "" if it shall not be seen'
        )
    renders = plain_data.text(data.get("renders", default), f"{where}.renders")
    if renders and renders not in columns:
        raise Misfit(
            f"{where}.renders: the scene has no {renders!r:.60}: expected one of "
            f'{", ".join(columns)}, or ""'
        )
    scene = data.get("scene")
    base = base_column(renders)
    if scene is not None:
        if not renders or base in ("shape", "material"):
            raise Misfit(f"{where}.scene gives values of a factor, which it does not render")
        scene = _pair(scene, f"{where}.scene")
        if scene[0] > scene[1]:
            raise Misfit(f"{where}.scene must be [low, high], found {list(scene)}")
    if scene is None and renders not in ("", *FACTOR_NAMES) and base in FACTOR_NAMES:
        scene = preset.ranges[base]  # of a further object: not those of the first one's variable
    if base in ("shape", "material"):
        known = preset.shapes if base == "shape" else preset.materials
        unknown = [value for value in domain.values if value not in known]
        if domain.kind != "discrete" or unknown:
            raise Misfit(
                f"{where}: what renders {renders} is discrete, its values some of "
                f"{', '.join(known)}; found {', '.join(unknown) or domain.kind}"
            )
    transition = data.get("transition")
    mechanism = parse_mechanism(
        plain_data.needed(data, "mechanism", where), f"{where}.mechanism", domain, domains
    )
    return Variable(
        domain,
        mechanism,
        None
        if transition is None
        else parse_mechanism(transition, f"{where}.transition", domain, domains),
        renders,
        scene,
        plain_data.choice(data.get("status", "published"), f"{where}.status", STATUSES),
        plain_data.text(data.get("note", ""), f"{where}.note"),
    )


def _rendered(preset: Preset, variables: Sequence[Variable]) -> Preset:
    """The preset with the ranges of the variables, and all other factors held."""
    ranges, fixed = dict(preset.ranges), dict(preset.fixed)
    seen: dict[str, str] = {}
    for variable in variables:
        if not variable.renders:
            continue
        if variable.renders in seen:
            raise Misfit(
                f"variables {seen[variable.renders]} and {variable.name} both render "
                f'{variable.renders}: one of them needs renders = ""'
            )
        seen[variable.renders] = variable.name
        if variable.renders in FACTOR_NAMES:
            if variable.scene is not None:
                ranges[variable.renders] = variable.scene
            if variable.renders in preset.fixed:
                raise Misfit(
                    f"variables.{variable.name} renders {variable.renders}, which scene.fixed "
                    "holds: leave one of them out"
                )
    for name in FACTOR_NAMES:
        if name not in seen:
            fixed.setdefault(name, 0.0)
    rendered = dataclasses.replace(preset, ranges=ranges, fixed=fixed, best_r2={})
    computed, alone = rendered.computed_best_r2(), _uniform_alone(variables)
    best = {name: computed[name] for name in FACTOR_NAMES if name in alone and name in computed}
    return dataclasses.replace(rendered, best_r2=best)


def _uniform_alone(variables: Sequence[Variable]) -> set[str]:
    """The columns of variables that are uniform and have neither parents nor children.

    Of these alone the preset's best R2 holds: others say something of each other.
    """
    parents = {name for each in variables for name in each.mechanism.frames("")}
    return {
        each.renders
        for each in variables
        if isinstance(each.mechanism, Uniform)
        and each.mechanism.is_whole
        and each.kind != "discrete"
        and each.name not in parents
    }


def parse_interventions(
    data: Any, where: str, domains: Mapping[str, Domain], mechanisms: Mechanisms
) -> Mechanisms:
    """Make the mechanisms of an environment from plain data.

    Args:
        data: for each variable that is intervened on a constant, a table with the `kind` of
            another mechanism, or { shift = number }.
        where: the name of its field.
        domains: the domains of all variables, by name.
        mechanisms: the mechanisms that are there, which a shift keeps.

    Raises:
        Misfit: a field does not fit.
    """
    replaced: dict[str, Mechanism] = {}
    for name, value in plain_data.table(data, where, "variables").items():
        domain = _known(name, where, domains)
        if isinstance(value, Mapping) and "shift" in value:
            plain_data.refuse_unknown(value, ("shift",), f"{where}.{name}")
            if domain.kind == "discrete":
                raise Misfit(f"{where}.{name}: a class cannot be shifted; name one")
            by = plain_data.number(value["shift"], f"{where}.{name}.shift", _LARGEST)
            if domain.kind == "continuous" and abs(by) >= domain.width:
                raise Misfit(
                    f"{where}.{name}: a shift by {by:g} leaves no value in its range "
                    f"[{domain.low:g}, {domain.high:g}]"
                )
            replaced[name] = Shift(by, mechanisms[name])
        else:
            replaced[name] = parse_mechanism(value, f"{where}.{name}", domain, domains)
    return replaced


def _view(data: Any, where: str, domains: Mapping[str, Domain]) -> Mechanisms:
    return {
        name: parse_mechanism(value, f"{where}.{name}", _known(name, where, domains), domains)
        for name, value in plain_data.table(data, where, "variables").items()
    }


def _known(name: str, where: str, domains: Mapping[str, Domain]) -> Domain:
    if name not in domains:
        raise Misfit(f"{where}: {name!r:.60} is no variable: expected some of {', '.join(domains)}")
    return domains[name]


def _interventions(data: Any, variables: Sequence[Variable]) -> Interventions:
    where = "interventions"
    data = plain_data.table(data, where)
    plain_data.refuse_unknown(data, ("targets", "probability", "observed", "groups"), where)
    targets = plain_data.choice(data.get("targets", "none"), f"{where}.targets", TARGETS)

    def share(name: str) -> float:
        value = plain_data.number(data.get(name, 0.0), f"{where}.{name}", 1)
        if value < 0:
            raise Misfit(f"{where}.{name} must lie in [0, 1], found {value:g}")
        return value

    names = [variable.name for variable in variables]
    default = [[variable.name] for variable in variables if variable.transition is not None]
    groups = data.get("groups") or default
    if not isinstance(groups, list | tuple) or len(groups) > _MOST_VARIABLES:
        raise Misfit(f"{where}.groups must be a list of lists of variables, found {groups!r:.80}")
    parsed = []
    for group in groups:
        if not isinstance(group, list | tuple) or not group:
            raise Misfit(
                f"{where}.groups must be a list of lists of variables, found {group!r:.80}"
            )
        for name in group:
            if name not in names:
                raise Misfit(
                    f"{where}.groups: {name!r:.60} is no variable: expected some of "
                    f"{', '.join(names)}"
                )
        parsed.append(tuple(group))
    if targets != "none" and not parsed:
        raise Misfit(f"{where}: no variable has a transition: there is nothing to intervene on")
    probability, observed = share("probability"), share("observed")
    for field, value, needs in (
        ("probability", probability, "bernoulli"),
        ("observed", observed, "single"),
    ):
        if value and targets != needs:
            raise Misfit(f'{where}.{field} is of targets = "{needs}", found targets = "{targets}"')
    if targets == "bernoulli" and not probability:
        raise Misfit(f'{where}: targets = "bernoulli" needs a probability > 0')
    if targets == "bernoulli" and len(parsed) > len(names):
        raise Misfit(
            f"{where}.groups: at most as many groups as variables can be hit each by itself, found "
            f"{len(parsed)} groups of {len(names)} variables"
        )
    return Interventions(targets, probability, observed, tuple(parsed))


def check_model(model: CausalModel, source: str) -> None:
    """Check how a model's mechanisms depend on each other, by drawing a few images.

    Raises:
        UsageError: variables depend on each other in a circle; previous() or first() stands where
            there is no such frame; or values leave their range or are not finite.
    """
    from threedident.causal.sampling import Sampling

    drawn: dict[str, Mechanism] = {each.name: each.mechanism for each in model.variables}
    later = {each.name: each.transition or each.mechanism for each in model.variables}
    _check_law(drawn, f"{source}: variables", "previous", "first")
    _check_law(later, f"{source}: transitions", "first")
    samplings: dict[str, dict[str, Any]] = {"": {}}
    for name, law in model.environments.items():
        where = f"{source}: environments.{name}"
        _check_law({**drawn, **law}, where, "previous", "first")
        _check_law({**later, **law}, f"{where}, transitions", "first")
        samplings[f"environments.{name}"] = {"environments": (name,)}
        if model.has_time:
            samplings[f"environments.{name}, sequences"] = {"environments": (name,), "steps": 8}
    for name, law in model.views.items():
        _check_law(law, f"{source}: views.{name}", "previous")
        samplings[f"views.{name}"] = {"view": name}
    if model.has_time:
        samplings["sequences"] = {"steps": 8}
    for place, options in samplings.items():
        try:
            sampling = Sampling(model, **options)
            sampling.draw(range(64 * sampling.frames), seed=0, split="train")
        except UsageError as error:
            where = f"{source}: {place}" if place else source
            raise UsageError(f"{where}: {error}") from error


_OTHER_FRAMES = {
    "previous": "the frame before, which only a transition has",
    "first": "the first view, which only the second one has",
}


def _check_law(law: Mechanisms, where: str, *missing: str) -> None:
    """Check mechanisms that hold together: the frames that they look into, and their order."""
    for name, mechanism in law.items():
        for frame in missing:
            if mechanism.frames(frame) or (frame == "previous" and mechanism.remembers):
                raise UsageError(f"{where}: {name} needs the value of {_OTHER_FRAMES[frame]}")
    order(law, law, where)
