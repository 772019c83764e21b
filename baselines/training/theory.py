"""Predictions of theory for what a loss learns: the scale of the codes, tau, Lambda."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from threedident.baselines.experiment import Experiment
from threedident.distributions import (
    Additive,
    Distribution,
    PairProcess,
    ProjectedNormal,
    VonMisesFisher,
)
from threedident.distributions.spaces import Sphere


def theory_scale(experiment: Experiment, processes: Sequence[PairProcess]) -> float | None:
    """Compute the scale c at which -||c z - c z~||_p^p / tau is the log density of the pairs.

    Args:
        experiment: the experiment, whose loss has p and tau.
        processes: the processes of the pairs, one for each member.

    Returns:
        c; None where the conditional is of another form than the loss, or unknown.
    """
    loss = experiment.loss
    if loss.kind != "infonce" or len(processes) != 1 or loss.p == 0 or loss.learn_tau:
        return None
    conditional = processes[0].conditional
    if not isinstance(conditional, Additive) or conditional.shape != loss.p:
        return None
    if isinstance(conditional.scale, tuple) or isinstance(processes[0].space, Sphere):
        return None
    return float(loss.tau ** (1 / loss.p) / conditional.scale)


def theory_learned(experiment: Experiment) -> dict[str, Any]:
    """Compute what tau or Lambda should become.

    With hard negatives, Lambda becomes the difference of those of positives and of hard negatives
    (Rusak et al. 2024, B.2).

    Args:
        experiment: the experiment.

    Returns:
        Lambda, (members, n), or tau, by name; empty where theory does not say it.
    """
    conditionals = [process.conditional for process in experiment.processes]
    if experiment.loss.kind == "aninfonce":
        free = experiment.loss.learn_tau or experiment.encoder.learned
        Lambda = None if free else theory_Lambda(experiment)  # else their product alone is known
        return {} if Lambda is None else {"Lambda": Lambda}
    if experiment.loss.learn_tau and len(conditionals) == 1:
        (conditional,) = conditionals
        if isinstance(conditional, VonMisesFisher) and conditional.kappa:
            return {"tau": 1 / conditional.kappa}
    return {}


def theory_Lambda(experiment: Experiment) -> list[list[float]] | None:
    """Compute what Lambda of AnInfoNCE should become with tau and radius as they begin.

    The similarity is -d^T Lambda d / (2 tau) of differences d of codes: as the codes of a sphere
    of another radius differ by another length, Lambda goes with tau / radius^2.

    Args:
        experiment: the experiment.

    Returns:
        Lambda, (members, n); None where theory does not say it.
    """
    hard = experiment.data.hard_negatives
    repelled = _concentrations(hard, experiment) if hard is not None else None
    rows = []
    for process in experiment.processes:
        row = _concentrations(process.conditional, experiment)
        if row is None or (hard is not None and repelled is None):
            return None
        less = repelled or [0.0] * len(row)
        rows.append([a - b for a, b in zip(row, less, strict=True)])
    space = experiment.data.space
    if not isinstance(space, Sphere):
        return None
    radius = 1.0 if experiment.loss.normalize else experiment.encoder.radius
    factor = experiment.loss.tau * (space.r / radius) ** 2
    return [[factor * each for each in row] for row in rows]


def _concentrations(conditional: Distribution | None, experiment: Experiment) -> list[float] | None:
    """Return Lambda of every dimension of a projected normal; None for other distributions."""
    space = experiment.data.space
    if not isinstance(conditional, ProjectedNormal) or space is None:
        return None
    Lambda = conditional.Lambda
    return list(Lambda) if isinstance(Lambda, tuple) else [Lambda] * space.n
