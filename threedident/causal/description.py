"""A model in words: what its file says, for people and as plain data."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from threedident.causal.assumptions import Assumption, model_assumptions
from threedident.causal.expressions import Expression
from threedident.causal.mechanisms import (
    Choice,
    Constant,
    Domain,
    Mechanism,
    Shift,
    Stay,
    Step,
    Table,
    TruncatedLaplace,
    TruncatedNormal,
    Uniform,
)
from threedident.causal.model import CausalModel, Mechanisms, Variable, base_column
from threedident.factors import FACTORS

_WIDTH = 100
_UNITS = {factor.name: factor.unit for factor in FACTORS}
_MOST_CLASSES = 8  # that a line names
_ROLES = ("content", "style", "private")


def describe_mechanism(mechanism: Mechanism, domain: Domain) -> str:
    """Say what a mechanism does, in a few words.

    Args:
        mechanism: the mechanism.
        domain: the values of its variable.
    """
    match mechanism:
        case Shift():
            words = f"{describe_mechanism(mechanism.of, domain)}; then {mechanism.by:+g}"
        case Constant():
            words = f"= {_constant(mechanism.value, domain)}"
        case Uniform() if domain.kind != "discrete":
            low = f"{domain.low:g}" if mechanism.low is None else mechanism.low.text
            high = f"{domain.high:g}" if mechanism.high is None else mechanism.high.text
            words = "uniform" if mechanism.is_whole else f"uniform from {low} to {high}"
        case Choice() if mechanism.probabilities:
            shares = zip(domain.values, mechanism.probabilities, strict=True)
            words = ", ".join(f"{name} {share:.4g}" for name, share in shares)
        case Uniform() | Choice():
            words = "any class, all as likely"
        case TruncatedNormal():
            words = f"normal around {mechanism.mean.text}, std {mechanism.std:g}"
        case TruncatedLaplace():
            words = f"Laplace around {mechanism.mean.text}, scale {mechanism.scale:g}"
        case Step():
            way = "half" if mechanism.rate == 0.5 else f"{mechanism.rate:g}"
            words = f"{way} of the way to {mechanism.goal.text}, std {mechanism.std:g}"
        case Stay():
            words = f"stays; with probability {mechanism.redraw:g} any class"
        case Table():
            cases = [
                f"{mechanism.classes[number]}: {describe_mechanism(each, domain)}"
                for number, each in mechanism.cases
            ]
            if mechanism.otherwise is not None:
                cases.append(f"else {describe_mechanism(mechanism.otherwise, domain)}")
            words = f"by {mechanism.by.text}: {'; '.join(cases)}"
        case _:
            raise TypeError(f"a mechanism without words: {mechanism}")
    return words


def _constant(value: Expression, domain: Domain) -> str:
    if domain.kind == "discrete" and Constant(value).is_fixed:
        return domain.values[int(value.evaluate({}, {}, {}, 1)[0])]
    try:
        return f"{float(value.text):g}"
    except ValueError:
        return value.text


def describe_model(
    model: CausalModel, assumptions: Sequence[Assumption] | None = None
) -> dict[str, Any]:
    """Describe a model as plain data, as `3dident model NAME --json` prints it.

    Args:
        model: the model.
        assumptions: the assumptions to include; None: those of `model_assumptions`.
    """
    found = model_assumptions(model) if assumptions is None else assumptions
    return {
        "name": model.name,
        "description": model.description,
        "sources": model.sources,
        "variables": [_variable(model, each) for each in model.variables],
        "graph": model.graph(),
        "environments": {name: _laws(model, law) for name, law in model.environments.items()},
        "views": {
            name: {"roles": _by_role(model, name), "laws": _laws(model, law)}
            for name, law in model.views.items()
        },
        "interventions": model.interventions.as_dict(),
        "assumptions": [each.as_dict() for each in found],
    }


def _laws(model: CausalModel, law: Mechanisms) -> dict[str, str]:
    domains = model.domains
    return {name: describe_mechanism(each, domains[name]) for name, each in law.items()}


def _by_role(model: CausalModel, view: str) -> dict[str, list[str]]:
    return {
        role: [name for name in model.names if model.role(name, view) == role] for role in _ROLES
    }


def _variable(model: CausalModel, variable: Variable) -> dict[str, Any]:
    later = variable.transition or variable.mechanism
    known = model.names
    past = later.frames("previous") | ({variable.name} if later.remembers else set())
    data: dict[str, Any] = {"name": variable.name, "kind": variable.kind}
    if variable.kind == "discrete":
        data["values"] = list(variable.values)
    else:
        data["range"] = list(variable.range)
    data["renders"] = variable.renders or None
    data["scene"] = _scene(model, variable)
    data["parents"] = [name for name in known if name in variable.mechanism.frames("")]
    data["mechanism"] = describe_mechanism(variable.mechanism, variable.domain)
    if model.has_time:
        data["parents_in_step"] = [name for name in known if name in later.frames("")]
        data["parents_before"] = [name for name in known if name in past]
        data["transition"] = describe_mechanism(later, variable.domain)
    data["status"] = variable.status
    data["note"] = variable.note
    return data


def _scene(model: CausalModel, variable: Variable) -> list[float] | None:
    base = base_column(variable.renders)
    if base not in model.preset.ranges:
        return None
    return list(variable.scene or model.preset.ranges[base])


def model_lines(model: CausalModel) -> Iterator[str]:
    """Yield a description of a model, line by line, as `3dident model NAME` prints it."""
    about = describe_model(model)
    yield model.name
    for text in (model.description, f"Sources: {model.sources}" if model.sources else ""):
        yield from _wrapped(text, "  ", "  ")
    missing = [file for file in model.preset.mesh_files.values() if not Path(file).is_file()]
    if missing:
        text = f"Meshes of your own, which are not there yet: {', '.join(missing)}"
        yield from _wrapped(text, "  ", "    ")
    yield ""
    yield from _variables(about)
    for name, law in about["environments"].items():
        yield from _law(f"environment {name}", law)
    for name, view in about["views"].items():
        yield from _law(f"second views {name}", view["laws"])
        for role, names in view["roles"].items():
            yield from _wrapped(f"{role}: {', '.join(names) or 'none'}", "  ", "    ")
    interventions = model.interventions
    if interventions.targets != "none":
        groups = "; ".join(", ".join(group) for group in interventions.groups)
        how = (
            f"each group with probability {interventions.probability:.4g}"
            if interventions.targets == "bernoulli"
            else f"one group, or none with probability {interventions.observed:.4g}"
        )
        yield ""
        yield f"interventions in every later image of a sequence, on {how}"
        yield from _wrapped(groups, "  ", "  ")
    yield from _assumptions(about["assumptions"])


def list_lines(models: Iterable[CausalModel]) -> Iterator[str]:
    """Yield what models are, line by line; sources that the model before has are left out.

    Args:
        models: the models, those of one source one after the other.
    """
    before = ""
    for model in models:
        yield model.name
        yield from _wrapped(model.description, "  ", "  ")
        if model.sources and model.sources != before:
            yield from _wrapped(f"Sources: {model.sources}", "  ", "  ")
        before = model.sources


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=rest)


def _law(title: str, law: Mapping[str, str]) -> Iterator[str]:
    yield ""
    yield title
    for name, words in law.items():
        yield from _wrapped(f"{name}: {words}", "  ", "      ")


def _variables(about: Mapping[str, Any]) -> Iterator[str]:
    timed = about["graph"]["from_previous"] is not None
    head = ["variable", "kind", "values", "scene", "parents", "status"]
    if timed:
        head[4:5] = ["parents at first", "later", "from the image before"]
    rows = [head]
    for each in about["variables"]:
        parents = [each["parents"]]
        if timed:
            parents += [each["parents_in_step"], each["parents_before"]]
        rows.append(
            [
                each["name"],
                each["kind"],
                _values(each),
                _rendered(each),
                *(_few(names) for names in parents),
                each["status"],
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    texts = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    yield texts[0]
    for text, each in zip(texts[1:], about["variables"], strict=True):
        yield text
        if timed and each["transition"] != each["mechanism"]:
            yield from _wrapped(f"at first: {each['mechanism']}", "    ", "      ")
            yield from _wrapped(f"later: {each['transition']}", "    ", "      ")
        else:
            yield from _wrapped(each["mechanism"], "    ", "      ")
        if each["note"]:
            yield from _wrapped(f"({each['note']})", "    ", "      ")


def _few(names: Sequence[str]) -> str:
    """Join names; many are counted, as the graph's picture shows them."""
    if len(names) <= 3:
        return ", ".join(names) or "-"
    return f"{', '.join(names[:2])}, {len(names) - 2} more"


def _values(each: Mapping[str, Any]) -> str:
    if each["kind"] == "discrete":
        names = each["values"]
        text = ", ".join(names)
        return text if len(names) <= _MOST_CLASSES and len(text) <= 24 else f"{len(names)} classes"
    low, high = each["range"]
    return f"[{low:.4g}, {high:.4g}" + (")" if each["kind"] == "circular" else "]")


def _rendered(each: Mapping[str, Any]) -> str:
    if each["renders"] is None:
        return "-"
    if each["scene"] is None:
        return str(each["renders"])
    low, high = each["scene"]
    text = f"{low:.4g} to {high:.4g} {_UNITS[base_column(each['renders'])]}"
    return text if each["renders"] == each["name"] else f"{each['renders']}: {text}"


_TITLES = {
    "images": "single images",
    "environments": "environments, all of them together",
    "counterfactuals": "counterfactual pairs",
    "views": "pairs of views",
    "sequences": "sequences",
}


def _assumptions(found: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    about = None
    for each in found:
        if each["about"] != about:
            about = each["about"]
            yield ""
            yield f"assumptions of theory: {_TITLES[about]}"
        text = f"{each['text'].removesuffix('.')}: {each['reason']}. "
        text += f"({'; '.join(each['papers'])})"
        yield from _wrapped(text, f"  {each['verdict']:<8}", "          ")
