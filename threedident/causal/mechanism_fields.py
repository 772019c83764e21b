"""Mechanisms from plain data, as in a model file, every field checked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from threedident import plain_data
from threedident.causal.expressions import Expression
from threedident.causal.mechanisms import (
    MECHANISMS,
    Choice,
    Constant,
    Domain,
    Mechanism,
    Stay,
    Step,
    Table,
    TruncatedLaplace,
    TruncatedNormal,
    Uniform,
)
from threedident.plain_data import Misfit

KINDS = ("continuous", "circular", "discrete")
_LARGEST = 1e6
_DEEPEST = 8  # tables in tables
_FOR = {
    "choice": ("discrete",),
    "stay": ("discrete",),
    "truncated_normal": ("continuous",),
    "truncated_laplace": ("continuous",),
    "step": ("continuous", "circular"),
}


def parse_mechanism(
    data: Any, where: str, domain: Domain, domains: Mapping[str, Domain], depth: int = 0
) -> Mechanism:
    """Make a mechanism from plain data.

    Args:
        data: a table with `kind` and the fields of that mechanism; or a number, an expression or
            the name of a class, which is a constant.
        where: the name of its field.
        domain: the values of its variable.
        domains: those of all variables, by name.
        depth: the number of tables in which it lies.

    Raises:
        Misfit: a field is unknown, missing, of the wrong type or out of range.
    """
    if depth > _DEEPEST:
        raise Misfit(f"{where:.80}...: tables in tables, at most {_DEEPEST} deep, are allowed")
    if not isinstance(data, Mapping):
        return Constant(_constant(data, where, domain, domains))
    kind = plain_data.choice(
        plain_data.needed(data, "kind", where), f"{where}.kind", tuple(MECHANISMS)
    )
    if domain.kind not in _FOR.get(kind, KINDS):
        raise Misfit(f"{where}: {kind} is no mechanism of a {domain.kind} variable")
    names = [field.name for field in dataclasses.fields(MECHANISMS[kind])]  # type: ignore[arg-type]
    plain_data.refuse_unknown(data, ["kind", *(n for n in names if n != "classes")], where)
    return _PARSERS[kind](_Fields(data, where, domain, domains, depth))


@dataclasses.dataclass(frozen=True)
class _Fields:
    """The fields of a mechanism, still to be checked."""

    data: Mapping[str, Any]
    where: str
    domain: Domain
    domains: Mapping[str, Domain]
    depth: int

    def needed(self, name: str) -> Any:
        return plain_data.needed(self.data, name, self.where)

    def expression(self, name: str) -> Expression:
        return parse_expression(self.needed(name), f"{self.where}.{name}", self.domains)

    def positive(self, name: str) -> float:
        positive = plain_data.number(self.needed(name), f"{self.where}.{name}", _LARGEST)
        if positive <= 0:
            raise Misfit(f"{self.where}.{name} must be > 0, found {positive:g}")
        return positive

    def share(self, name: str, default: float | None = None) -> float:
        value = self.needed(name) if default is None else self.data.get(name, default)
        share = plain_data.number(value, f"{self.where}.{name}", _LARGEST)
        if not 0 <= share <= 1:
            raise Misfit(f"{self.where}.{name} must lie in [0, 1], found {share:g}")
        return share

    def mechanism(self, data: Any, place: str) -> Mechanism:
        where = f"{self.where}.{place}"
        return parse_mechanism(data, where, self.domain, self.domains, self.depth + 1)


def _uniform(fields: _Fields) -> Uniform:
    bounds = ("low", "high")
    if fields.domain.kind == "discrete" and any(name in fields.data for name in bounds):
        raise Misfit(f"{fields.where}: a discrete variable takes no low and high; use choice")
    low, high = (fields.expression(n) if n in fields.data else None for n in bounds)
    return Uniform(low, high)


def _choice(fields: _Fields) -> Choice:
    value, where = fields.data.get("probabilities"), f"{fields.where}.probabilities"
    count = len(fields.domain.values)
    if value is None:
        return Choice()
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != count:
        raise Misfit(f"{where} must be {count} numbers, one a class, found {value!r:.80}")
    shares = tuple(plain_data.number(each, where, 1) for each in value)
    if min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
        raise Misfit(f"{where} must be >= 0 and sum to 1, found {list(shares)}")
    return Choice(shares)


def _table(fields: _Fields) -> Table:
    where, domains = fields.where, fields.domains
    by = fields.expression("by")
    names = by.parents | by.names("previous") | by.names("first")
    parent = domains[next(iter(names))] if len(names) == 1 else None
    forms = [form.format(parent and parent.name) for form in ("{}", "previous({})", "first({})")]
    if parent is None or parent.kind != "discrete" or by.text.strip() not in forms:
        raise Misfit(f"{where}.by must be the name of a discrete variable, found {by.text!r:.60}")
    cases = plain_data.table(fields.needed("cases"), f"{where}.cases", "classes")
    for name in cases:
        if name not in parent.values:
            raise Misfit(
                f"{where}.cases: {parent.name} has no class {name!r:.60}: expected some of "
                f"{', '.join(parent.values)}"
            )
    otherwise = None
    if "otherwise" in fields.data:
        otherwise = fields.mechanism(fields.data["otherwise"], "otherwise")
    missing = [name for name in parent.values if name not in cases]
    if missing and otherwise is None:
        raise Misfit(
            f"{where}.cases lacks {', '.join(missing)}: add them, or a mechanism `otherwise`"
        )
    numbered = [(number, name) for number, name in enumerate(parent.values) if name in cases]
    return Table(
        by,
        tuple((n, fields.mechanism(cases[name], f"cases.{name}")) for n, name in numbered),
        parent.values,
        otherwise,
    )


_PARSERS: dict[str, Callable[[_Fields], Mechanism]] = {
    "uniform": _uniform,
    "choice": _choice,
    "constant": lambda f: Constant(
        _constant(f.needed("value"), f"{f.where}.value", f.domain, f.domains)
    ),
    "truncated_normal": lambda f: TruncatedNormal(f.expression("mean"), f.positive("std")),
    "truncated_laplace": lambda f: TruncatedLaplace(f.expression("mean"), f.positive("scale")),
    "step": lambda f: Step(f.expression("goal"), f.positive("std"), f.share("rate", 0.5)),
    "stay": lambda f: Stay(f.share("redraw")),
    "table": _table,
}


def parse_expression(value: Any, where: str, domains: Mapping[str, Domain]) -> Expression:
    """Make an expression from a number or a text, whose names must be variables.

    Raises:
        Misfit: it is no expression, or names what is no variable.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = repr(plain_data.number(value, where, _LARGEST))
    if not isinstance(value, str):
        raise Misfit(f"{where} must be a number or an expression, found {value!r:.80}")
    try:
        expression = Expression(value)
    except Misfit as error:
        raise Misfit(f"{where}: {error}") from error
    for name in sorted(
        expression.parents | expression.names("previous") | expression.names("first")
    ):
        if name not in domains:
            raise Misfit(
                f"{where}: {name!r:.60} is no variable: expected some of {', '.join(domains)}"
            )
    return expression


def _constant(value: Any, where: str, domain: Domain, domains: Mapping[str, Domain]) -> Expression:
    """The expression of a constant, whose value is checked where it is one number."""
    if domain.kind == "discrete" and isinstance(value, str) and value in domain.values:
        return Expression(str(domain.values.index(value)))
    try:
        expression = parse_expression(value, where, domains)
    except Misfit as error:
        if domain.kind == "discrete" and isinstance(value, str) and value.isidentifier():
            raise Misfit(
                f"{where}: {domain.name} has no class {value!r:.60}: expected one of "
                f"{', '.join(domain.values)}"
            ) from error
        raise
    constant = Constant(expression)
    if constant.is_fixed:
        number = float(expression.evaluate({}, {}, {}, 1)[0])
        fits = domain.low <= number <= domain.high
        if domain.kind == "discrete":
            fits = fits and number.is_integer()
        if not math.isfinite(number) or not (fits or domain.kind == "circular"):
            allowed = (
                f"one of {', '.join(domain.values)}"
                if domain.kind == "discrete"
                else f"a value in [{domain.low:g}, {domain.high:g}]"
            )
            raise Misfit(f"{where}: expected {allowed} for {domain.name}, found {value!r:.60}")
    return expression
