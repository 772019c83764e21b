"""Conditionals of pairs as the page asks for them: checked, in words, and as options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from threedident import plain_data
from threedident.distributions.families import (
    Distribution,
    GeneralizedNormal,
    Laplace,
    Normal,
    Uniform,
)
from threedident.distributions.grid import Grid
from threedident.distributions.pair_process import Change, PerFactor, Unchanged
from threedident.distributions.philox_sampler import check_renderable
from threedident.distributions.transitions import DiscreteLaplace, Transition, UniformFactors
from threedident.errors import UsageError
from threedident.explore.scenes import PresetScene
from threedident.factors import FACTOR_NAMES, grouped_names

CONDITIONALS = ("normal", "laplace", "gennorm", "uniform")
TRANSITIONS = ("uni", "lap")
_WIDTH, _BETA = 0.1, 3.0  # as published
_WIDEST, _LARGEST_BETA, _LARGEST_RATE = 100.0, 1000.0, 1000.0
_MOST_CHANGE = 100


@dataclasses.dataclass(frozen=True)
class Conditional:
    """A conditional as the page asks for it, with one width for all factors that change.

    Attributes:
        name: normal, laplace, gennorm or uniform.
        width: sigma of a normal, lambda of a Laplace or generalised normal; unused for uniform.
        beta: the exponent of gennorm; unused for the others.
        unchanged: the factors that the page keeps equal.
        change: the number of the others that change, chosen anew for each pair; None: all.
        held: the factors that the preset holds.
    """

    name: str = "normal"
    width: float = _WIDTH
    beta: float = _BETA
    unchanged: tuple[str, ...] = ()
    change: int | None = None
    held: tuple[str, ...] = ()

    def over(self, factors: tuple[str, ...] = FACTOR_NAMES) -> Distribution:
        """The conditional over these factors.

        Raises:
            UsageError: a number does not fit, or no factor changes.
        """
        still = {*self.unchanged, *self.held}
        moving = tuple(c for c, name in enumerate(factors) if name not in still)
        if not moving:
            raise UsageError("no factor changes: let at least one of them change")
        family = self._family()
        if self.change is not None:
            if self.change > len(moving):
                raise UsageError(
                    f"{self.change} factors shall change, and only {len(moving)} can: choose fewer"
                )
            family = Change(family, self.change)
        if len(moving) == len(factors):
            return family
        rest = tuple(c for c in range(len(factors)) if c not in moving)
        return PerFactor(((moving, family), (rest, Unchanged())))

    def words(self) -> list[str]:
        """The conditional in words, a sentence each."""
        moving = [n for n in FACTOR_NAMES if n not in (*self.unchanged, *self.held)]
        subject = "Each factor that changes" if self.change else "Each factor"
        noise = {
            "normal": f"normal noise of standard deviation {self.width:g}",
            "laplace": f"Laplace noise of scale {self.width:g} "
            f"(standard deviation {np.sqrt(2) * self.width:.3g} before it is cut off)",
            "gennorm": "noise d of density proportional to "
            f"exp(-|d / {self.width:g}|^{self.beta:g})",
        }
        if self.name == "uniform":
            sentences = [f"{subject} of z~ is drawn anew, uniformly from [-1, 1], whatever z is."]
        else:
            sentences = [
                f"{subject} of z~ is that of z plus {noise[self.name]}, in raw units, truncated to "
                "[-1, 1]: what would fall outside is drawn again."
            ]
        if self.change is not None:
            sentences.append(
                f"Of the {len(moving)} factors that can change, {self.change} "
                f"{'does' if self.change == 1 else 'do'}, chosen anew for each pair."
            )
        if self.unchanged:
            sentences.append(f"Equal in z and z~: {', '.join(self.unchanged)}.")
        if self.held:
            sentences.append(f"Held by the preset: {', '.join(self.held)}.")
        return sentences

    def options(self) -> str:
        """The options that say it to `3dident render --pairs` and `3dident pairs`."""
        words = [f"--conditional {self.name}"]
        if self.name != "uniform":
            words.append(f"--{'sigma' if self.name == 'normal' else 'lambda'} {self.width:.12g}")
        if self.name == "gennorm":
            words.append(f"--beta {self.beta:.12g}")
        # A preset holds its factors by itself, but --change would count them.
        still = {*self.unchanged, *(self.held if self.change is not None else ())}
        words += [f"--unchanged {name}" for name in grouped_names(still)]
        if self.change is not None:
            words.append(f"--change {self.change}")
        return " ".join(words)

    def _family(self) -> Distribution:
        match self.name:
            case "normal":
                return Normal(self.width)
            case "laplace":
                return Laplace(self.width)
            case "gennorm":
                return GeneralizedNormal(self.width, self.beta)
            case _:
                return Uniform()


def check_conditional(data: Any, scene: PresetScene) -> Conditional:
    """Check the conditional that the page asks for.

    Raises:
        Misfit: a field does not fit.
        UsageError: a number does not fit its distribution, or no factor changes.
    """
    where = "conditional"
    fields = plain_data.table({} if data is None else data, where)
    plain_data.refuse_unknown(fields, ("name", "width", "beta", "unchanged", "change"), where)

    def factor(value: Any, field: str) -> str:
        return plain_data.choice(value, field, FACTOR_NAMES)

    held = tuple(control.name for control in scene.controls if control.held)
    unchanged = plain_data.sequence(
        fields.get("unchanged", []), f"{where}.unchanged", factor, least=0, most=len(FACTOR_NAMES)
    )
    conditional = Conditional(
        plain_data.choice(fields.get("name", "normal"), f"{where}.name", CONDITIONALS),
        plain_data.number(fields.get("width", _WIDTH), f"{where}.width", _WIDEST),
        plain_data.number(fields.get("beta", _BETA), f"{where}.beta", _LARGEST_BETA),
        tuple(n for n in FACTOR_NAMES if n in unchanged and n not in held),
        _change(fields, where),
        held,
    )
    check_renderable(conditional.over())
    return conditional


def check_transition(data: Any) -> tuple[Transition, str]:
    """Check the transition over a grid that the page asks for; return it and its options.

    Raises:
        Misfit: a field does not fit.
        UsageError: a number does not fit the transition.
    """
    where = "conditional"
    fields = plain_data.table({} if data is None else data, where)
    name = plain_data.choice(fields.get("name", "uni"), f"{where}.name", TRANSITIONS)
    plain_data.refuse_unknown(
        fields, ("name", "change") if name == "uni" else ("name", "rate"), where
    )
    if name == "uni":
        k = _change(fields, where)
        return UniformFactors(k), "--transition uni" + ("" if k is None else f" --change {k}")
    rate = plain_data.number(fields.get("rate", 1), f"{where}.rate", _LARGEST_RATE)
    return DiscreteLaplace(rate), f"--transition lap --rate {rate:.12g}"


def _change(fields: Mapping[str, Any], where: str) -> int | None:
    if fields.get("change") is None:
        return None
    return plain_data.whole(fields["change"], f"{where}.change", 1, _MOST_CHANGE)


def transition_words(transition: Transition, grid: Grid) -> list[str]:
    """A transition over a grid in words, a sentence each."""
    movable = [grid.names[k] for k in transition.movable(grid)]
    still = [grid.names[k] for k in grid.shown if grid.names[k] not in movable]
    if isinstance(transition, UniformFactors):
        least, most = transition.bounds(len(movable))
        number = f"{least}" if least == most else f"{least} to {most} (each number as likely)"
        sentences = [
            f"Of the {len(movable)} factors {', '.join(movable)}, {number} "
            f"change{'s' if least == most == 1 else ''}, chosen anew for each pair, each to one of "
            "its other values, all as likely."
        ]
    else:
        assert isinstance(transition, DiscreteLaplace)
        sentences = [
            f"Each of {', '.join(movable)} moves by steps that are mostly small: from value i to j "
            f"with probability proportional to exp(-{transition.rate:g} |j - i| / ln n), where n "
            "is the number of its values. z~ always differs from z: where none has moved, one does."
        ]
    if still:
        sentences.append(f"Always equal: {', '.join(still)}.")
    redrawn = [grid.names[k] for k in transition.redrawn(grid)]
    if redrawn:
        sentences.append(f"Not shown, and drawn anew for z~: {', '.join(redrawn)}; z has value 0.")
    return sentences
