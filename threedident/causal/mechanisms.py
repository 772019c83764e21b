"""Mechanisms: how a variable's value follows from its parents and from uniform noise.

Every mechanism is a function of its variable's own noise numbers, by inverse transforms and never
by rejection. So an intervention or a counterfactual is a second evaluation on the same noise.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.causal.expressions import Expression, Values
from threedident.causal.quantiles import normal_quantile, truncated_laplace, truncated_normal
from threedident.errors import UsageError

Float64 = npt.NDArray[np.float64]

_SLACK = 1e-6  # of a range's ends, by which float32 numbers may leave it that are computed with


@dataclasses.dataclass(frozen=True)
class Domain:
    """The values that a variable can take.

    Attributes:
        name: the variable's name.
        kind: continuous, circular or discrete.
        low: the lower end of its range; 0 for a discrete variable.
        high: the upper end; the same angle as `low` for a circular variable, the number of the
            last class for a discrete one.
        values: the names of a discrete variable's classes, in the order of their numbers.
    """

    name: str
    kind: str
    low: float
    high: float
    values: tuple[str, ...] = ()

    @property
    def width(self) -> float:
        """The length of the range."""
        return self.high - self.low

    def hold(self, values: Float64) -> Float64:
        """Round values to float32, after circular ones were taken modulo a turn.

        Raises:
            UsageError: a value is not finite, or lies outside of the range.
        """
        if not np.isfinite(values).all():
            raise UsageError(
                f"variable {self.name}: its mechanism gives values that are not finite numbers "
                "(a division by zero?)"
            )
        if self.kind == "circular":
            turned = self.low + (values - self.low) % self.width
            rounded = turned.astype(np.float32).astype(np.float64)
            low = np.float64(np.float32(self.low))
            return np.where(rounded >= np.float32(self.high), low, rounded)
        slack = _SLACK * max(abs(self.low), abs(self.high))
        outside = (values < self.low - slack) | (values > self.high + slack)
        if outside.any():
            raise UsageError(
                f"variable {self.name}: its mechanism gives {values[outside][0]:g}, outside of its "
                f"range [{self.low:g}, {self.high:g}]: make the range wider, or keep the mechanism "
                "in it (truncated_normal does)"
            )
        between = values != np.rint(values)
        if self.kind == "discrete" and between.any():
            raise UsageError(
                f"variable {self.name}: its mechanism gives {values[between][0]:g}, which is no "
                "class: expected whole numbers"
            )
        held = np.clip(values, self.low, self.high)
        return np.asarray(held.astype(np.float32), np.float64)


@dataclasses.dataclass(frozen=True)
class Draw:
    """All that a mechanism sees when values (N,) of its variable are drawn.

    Attributes:
        domain: the variable's values.
        units: the variable's own noise numbers, (N, 2) in (0, 1).
        current: values of the same frame by variable; parents are there.
        previous: values of the frame before.
        first: values of the first view.
    """

    domain: Domain
    units: Float64
    current: Values
    previous: Values
    first: Values

    def value(self, expression: Expression) -> Float64:
        """The values (N,) of an expression."""
        return expression.evaluate(self.current, self.previous, self.first, len(self.units))

    def rows(self, chosen: npt.NDArray[np.bool_]) -> Draw:
        """The same for some of the rows."""

        def cut(values: Values) -> Values:
            return {name: each[chosen] for name, each in values.items()}

        return Draw(
            self.domain,
            self.units[chosen],
            cut(self.current),
            cut(self.previous),
            cut(self.first),
        )


class Mechanism(abc.ABC):
    """A mechanism: draws a variable's values from its parents and its noise."""

    @abc.abstractmethod
    def draw(self, at: Draw) -> Float64:
        """Draw values (N,), before they are held to the variable's range."""

    def expressions(self) -> Iterator[Expression]:
        """Yield its expressions."""
        yield from ()

    def parts(self) -> Iterator[Mechanism]:
        """Yield this mechanism, and those that it chooses among."""
        yield self

    def frames(self, frame: str) -> frozenset[str]:
        """The variables that it needs of a frame: "" (the same one), previous or first."""
        names: frozenset[str] = frozenset()
        for part in self.parts():
            for expression in part.expressions():
                names |= expression.names(frame)
        return names

    @property
    def is_random(self) -> bool:
        """Whether it uses noise."""
        return True

    @property
    def remembers(self) -> bool:
        """Whether it needs its variable's value in the frame before."""
        return any(isinstance(part, Step | Stay) for part in self.parts())

    def as_dict(self) -> dict[str, Any]:
        """The mechanism as plain data, as in a model file."""
        data: dict[str, Any] = {"kind": _NAMES[type(self)]}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value is None or value == ():
                continue
            data[field.name] = value.text if isinstance(value, Expression) else value
            if isinstance(value, tuple):
                data[field.name] = list(value)
        return data


@dataclasses.dataclass(frozen=True)
class Uniform(Mechanism):
    """Uniform between two expressions; without them over the whole range or all classes.

    Attributes:
        low: the lower end; None: the range's.
        high: the upper end; None: the range's.
    """

    low: Expression | None = None
    high: Expression | None = None

    def draw(self, at: Draw) -> Float64:
        """Draw values (N,)."""
        unit, domain = at.units[:, 0], at.domain
        if domain.kind == "discrete":
            count = len(domain.values)
            return np.minimum(np.floor(unit * count), count - 1)
        low = np.float64(domain.low) if self.low is None else at.value(self.low)
        high = np.float64(domain.high) if self.high is None else at.value(self.high)
        turned = np.broadcast_to(low > high, unit.shape)
        if turned.any():
            first, last = (np.broadcast_to(each, unit.shape)[turned][0] for each in (low, high))
            raise UsageError(
                f"variable {domain.name}: its mechanism is uniform from {first:g} to {last:g}: "
                "expected low <= high"
            )
        return np.asarray(low + (high - low) * unit)

    def expressions(self) -> Iterator[Expression]:
        """Yield its expressions."""
        yield from (each for each in (self.low, self.high) if each is not None)

    @property
    def is_whole(self) -> bool:
        """Whether it covers the whole range, whatever the other variables are."""
        return self.low is None and self.high is None


@dataclasses.dataclass(frozen=True)
class Choice(Mechanism):
    """One of a discrete variable's classes.

    Attributes:
        probabilities: the classes' probabilities; empty: all equal.
    """

    probabilities: tuple[float, ...] = ()

    def draw(self, at: Draw) -> Float64:
        """Draw class numbers (N,)."""
        if not self.probabilities:
            return Uniform().draw(at)
        ends = np.cumsum(self.probabilities)[:-1]
        return np.searchsorted(ends, at.units[:, 0], side="right").astype(np.float64)


@dataclasses.dataclass(frozen=True)
class Constant(Mechanism):
    """A value without noise: an expression; a number and a class name are expressions too."""

    value: Expression

    def draw(self, at: Draw) -> Float64:
        """Compute values (N,)."""
        return at.value(self.value)

    def expressions(self) -> Iterator[Expression]:
        """Yield its expression."""
        yield self.value

    @property
    def is_random(self) -> bool:
        """False: it uses no noise."""
        return False

    @property
    def is_fixed(self) -> bool:
        """Whether it is one number, whatever the other variables are."""
        names = self.value.parents | self.value.names("previous") | self.value.names("first")
        return not names


@dataclasses.dataclass(frozen=True)
class TruncatedNormal(Mechanism):
    """The normal distribution around an expression, truncated to the variable's range.

    Attributes:
        mean: the mean before truncation.
        std: the standard deviation before truncation.
    """

    mean: Expression
    std: float

    def draw(self, at: Draw) -> Float64:
        """Draw values (N,)."""
        domain = at.domain
        mean = _finite(at, at.value(self.mean))
        return truncated_normal(at.units[:, 0], mean, self.std, domain.low, domain.high)

    def expressions(self) -> Iterator[Expression]:
        """Yield the mean."""
        yield self.mean


@dataclasses.dataclass(frozen=True)
class TruncatedLaplace(Mechanism):
    """The Laplace distribution around an expression, truncated to the variable's range.

    Attributes:
        mean: the mean before truncation.
        scale: the scale before truncation.
    """

    mean: Expression
    scale: float

    def draw(self, at: Draw) -> Float64:
        """Draw values (N,)."""
        domain = at.domain
        mean = _finite(at, at.value(self.mean))
        return truncated_laplace(at.units[:, 0], mean, self.scale, domain.low, domain.high)

    def expressions(self) -> Iterator[Expression]:
        """Yield the mean."""
        yield self.mean


@dataclasses.dataclass(frozen=True)
class Step(Mechanism):
    """A step from the previous value towards a goal, with normal noise.

    On a range the noise is truncated so that the value stays in it. On a circle the step goes the
    shorter way round.

    Attributes:
        goal: the goal.
        std: the standard deviation of the noise, before truncation.
        rate: the share of the way to the goal.
    """

    goal: Expression
    std: float
    rate: float = 0.5

    def draw(self, at: Draw) -> Float64:
        """Draw values (N,)."""
        domain, unit = at.domain, at.units[:, 0]
        before = at.previous[domain.name]
        way = _finite(at, at.value(self.goal)) - before
        if domain.kind == "circular":
            half = domain.width / 2
            way = (way + half) % domain.width - half
            noise = self.std * normal_quantile(unit)
            return np.asarray(before + self.rate * way + noise)
        return truncated_normal(unit, before + self.rate * way, self.std, domain.low, domain.high)

    def expressions(self) -> Iterator[Expression]:
        """Yield the goal."""
        yield self.goal


@dataclasses.dataclass(frozen=True)
class Stay(Mechanism):
    """A discrete variable's previous class, now and then drawn anew from all classes.

    Attributes:
        redraw: the probability with which it is drawn anew; the same class can come again.
    """

    redraw: float

    def draw(self, at: Draw) -> Float64:
        """Draw class numbers (N,)."""
        count = len(at.domain.values)
        anew = np.minimum(np.floor(at.units[:, 1] * count), count - 1)
        return np.where(at.units[:, 0] < self.redraw, anew, at.previous[at.domain.name])


@dataclasses.dataclass(frozen=True)
class Table(Mechanism):
    """A mechanism for each class of a discrete parent.

    Attributes:
        by: the parent: its name, or previous(name), or first(name).
        cases: the mechanisms by class number.
        classes: the names of the parent's classes.
        otherwise: the mechanism of the other classes.
    """

    by: Expression
    cases: tuple[tuple[int, Mechanism], ...]
    classes: tuple[str, ...]
    otherwise: Mechanism | None = None

    def draw(self, at: Draw) -> Float64:
        """Draw values (N,)."""
        number = at.value(self.by)
        values = np.empty(len(number))
        rest = np.ones(len(number), bool)
        for case, mechanism in self.cases:
            chosen = number == case
            if chosen.any():
                values[chosen] = mechanism.draw(at.rows(chosen))
            rest &= ~chosen
        if self.otherwise is not None and rest.any():
            values[rest] = self.otherwise.draw(at.rows(rest))
        return values

    def expressions(self) -> Iterator[Expression]:
        """Yield the parent."""
        yield self.by

    def parts(self) -> Iterator[Mechanism]:
        """Yield this mechanism, and those of the cases."""
        yield self
        for _, mechanism in self.cases:
            yield from mechanism.parts()
        if self.otherwise is not None:
            yield from self.otherwise.parts()

    @property
    def is_random(self) -> bool:
        """Whether one of the cases uses noise."""
        return any(part.is_random for part in self.parts() if part is not self)

    def as_dict(self) -> dict[str, Any]:
        """The mechanism as plain data, as in a model file."""
        data: dict[str, Any] = {
            "kind": "table",
            "by": self.by.text,
            "cases": {self.classes[case]: each.as_dict() for case, each in self.cases},
        }
        if self.otherwise is not None:
            data["otherwise"] = self.otherwise.as_dict()
        return data


@dataclasses.dataclass(frozen=True)
class Shift(Mechanism):
    """Another mechanism's value plus a number: an intervention that keeps the parents.

    On a circle the sum is taken modulo a turn; on a range it is held at the range's ends.

    Attributes:
        by: the number.
        of: the mechanism that it shifts.
    """

    by: float
    of: Mechanism

    def draw(self, at: Draw) -> Float64:
        """Draw values (N,)."""
        values = at.domain.hold(self.of.draw(at)) + self.by
        if at.domain.kind == "circular":
            return values
        return np.clip(values, at.domain.low, at.domain.high)

    def parts(self) -> Iterator[Mechanism]:
        """Yield this mechanism, and the one that it shifts."""
        yield self
        yield from self.of.parts()

    @property
    def is_random(self) -> bool:
        """Whether the mechanism that it shifts uses noise."""
        return self.of.is_random

    def as_dict(self) -> dict[str, Any]:
        """The shift as plain data, as in a model file."""
        return {"shift": self.by}


#: The mechanisms by the name of their kind in files.
MECHANISMS: dict[str, type[Mechanism]] = {
    "uniform": Uniform,
    "choice": Choice,
    "constant": Constant,
    "truncated_normal": TruncatedNormal,
    "truncated_laplace": TruncatedLaplace,
    "step": Step,
    "stay": Stay,
    "table": Table,
}
_NAMES = {cls: name for name, cls in MECHANISMS.items()}


def _finite(at: Draw, values: Float64) -> Float64:
    if not np.isfinite(values).all():
        raise UsageError(
            f"variable {at.domain.name}: an expression of its mechanism gives values that are not "
            "finite numbers (a division by zero?)"
        )
    return values
