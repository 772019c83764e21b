"""What tells a loss that is not minimised from one whose minimum does not identify the latents."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from threedident.baselines import losses
from threedident.baselines.criterion import Objective
from threedident.baselines.experiment import Experiment
from threedident.distributions import Additive, Distribution, PairProcess, ProjectedNormal
from threedident.distributions.spaces import Sphere

Codes = Sequence[torch.Tensor]

_ROWS = 512  # of a batch, where all pairs are looked at
_STEPS = 60
_WIDEST = math.log(1e3)


@dataclasses.dataclass(frozen=True)
class AtLatents:
    """The loss of an encoder that gives the latents themselves, as well scaled as can be.

    Attributes:
        loss: there.
        scale: the best factor of the latents; None where nothing can be scaled.
        Lambda: the best ones of AnInfoNCE, (members, n).
        tau: the best temperature, where it is learned.
    """

    loss: float
    scale: float | None = None
    Lambda: list[list[float]] | None = None
    tau: float | None = None


def loss_at_latents(
    experiment: Experiment, objective: Objective, batches: Sequence[Codes]
) -> AtLatents:
    """The loss at the ground-truth latents, under the best scale, temperature or Lambda.

    What the encoder and the loss are free to choose is optimised: the scale of unbounded codes
    and of boxes and spheres that are learned, tau where it is learned, Lambda of AnInfoNCE. A
    box that is not learned holds scales up to its own size.

    Args:
        experiment: which.
        objective: of it; its parameters are left alone.
        batches: latents of the views, (N, n) each; the loss is averaged over them.
    """
    if experiment.supervised:
        return AtLatents(0.0)
    lengths = [[len(view) for view in batch] for batch in batches]
    together = torch.cat([view.detach().float() for batch in batches for view in batch])
    space, encoder = experiment.data.space, experiment.encoder
    trial = Objective(
        experiment.loss, together.shape[1], members=objective.members, hard=objective.hard
    ).to(together.device)
    trial.load_state_dict(objective.state_dict())
    fixed = (encoder.output == "sphere" and not encoder.learned) or experiment.loss.normalize
    largest = _WIDEST
    if encoder.output == "box" and not encoder.learned:
        low, high = together.amin(0), together.amax(0)
        together = together - low
        largest = math.log(encoder.size / float((high - low).max()))
    elif isinstance(space, Sphere):
        together = together / space.r * encoder.radius
    views = [list(torch.split(part, lengths[0])) for part in torch.split(together, sum(lengths[0]))]
    log_scale = torch.zeros((), device=together.device, requires_grad=True)
    learned = [] if fixed else [log_scale]
    if trial.raw_Lambda is not None:
        # Its scale and Lambda's are one: Lambda alone moves.
        learned = [trial.raw_Lambda]
        with torch.no_grad():
            trial.raw_Lambda.fill_(5.0)
    elif trial.log_tau is not None:
        learned.append(trial.log_tau)
    elif trial.raw_S is not None:
        learned.append(trial.raw_S)

    def loss() -> torch.Tensor:
        scale = log_scale.clamp(max=largest).exp()
        losses = [trial([each * scale for each in batch], batch) for batch in views]
        return torch.stack(losses).mean()

    if learned and learned[0] is log_scale:
        with torch.no_grad():  # from the best of a grid: the loss is flat far from it
            grid = torch.linspace(-4, 6, 21).clamp(max=largest)
            losses = [float(_at(log_scale, value, loss)) for value in grid]
            log_scale.fill_(float(grid[losses.index(min(losses))]))
    if learned:
        best = _minimise(learned, loss)
    else:
        with torch.no_grad():
            best = float(loss())
    found = trial.learned()
    scale = (
        None
        if fixed or trial.raw_Lambda is not None
        else float(log_scale.detach().clamp(max=largest).exp())
    )
    return AtLatents(best, scale, found.get("Lambda"), found.get("tau"))


def _at(parameter: torch.Tensor, value: torch.Tensor, loss: Callable[[], torch.Tensor]) -> Any:
    parameter.fill_(float(value))
    return loss()


def _minimise(parameters: list[torch.Tensor], loss: Callable[[], torch.Tensor]) -> float:
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=_STEPS, tolerance_change=1e-7, line_search_fn="strong_wolfe"
    )
    least = math.inf

    def closure() -> torch.Tensor:
        nonlocal least
        optimizer.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        least = min(least, float(value.detach()))
        return value

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return least


def theory_scale(experiment: Experiment, processes: Sequence[PairProcess]) -> float | None:
    """The scale c at which -||c z - c z~||_p^p / tau is the log density of the conditional.

    None where the conditional is of another form than the loss, or unknown.
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
    """What tau or Lambda should become, where theory says it."""
    conditionals = [process.conditional for process in experiment.processes]
    found: dict[str, Any] = {}
    if experiment.loss.kind == "aninfonce":
        hard = experiment.data.hard_negatives
        rows = []
        for conditional in conditionals:
            row = _concentrations(conditional, experiment)
            less = _concentrations(hard, experiment) if hard is not None else None
            if row is None or (hard is not None and less is None):
                return {}
            # R24, B.2: with hard negatives the optimum is the difference.
            rows.append([a - b for a, b in zip(row, less or [0.0] * len(row), strict=True)])
        found["Lambda"] = rows
    elif experiment.loss.learn_tau and len(conditionals) == 1:
        kappa = getattr(conditionals[0], "kappa", 0)  # of a von Mises-Fisher
        found |= {"tau": 1 / kappa} if kappa else {}
    return found


def _concentrations(conditional: Distribution | None, experiment: Experiment) -> list[float] | None:
    space = experiment.data.space
    if not isinstance(conditional, ProjectedNormal) or space is None:
        return None
    Lambda = conditional.Lambda
    return list(Lambda) if isinstance(Lambda, tuple) else [Lambda] * space.n


@torch.no_grad()
def shares(objective: Objective, codes: Codes) -> dict[str, float]:
    """Which share of the denominator is self, the positive and true negatives; means.

    Of up to 512 anchors of the first member, for the losses that have a denominator.
    """
    loss = objective.loss
    if loss.kind not in ("infonce", "aninfonce"):
        return {}
    # Some accelerators have no double precision.
    wide = torch.float32 if codes[0].device.type == "mps" else torch.float64
    views = [each.to(wide) for each in codes[:3]]
    if loss.normalize:
        views = [torch.nn.functional.normalize(each, dim=1) for each in views]
    similarity = objective.similarity()
    z, z_tilde = views[0][:_ROWS], views[1][:_ROWS]
    rows = len(z)
    positive = similarity.paired(z, z_tilde)
    numbers = torch.arange(rows, device=z.device)
    inner, cross = _matrix(similarity, z, views[0]), _matrix(similarity, z, views[1])
    itself = inner[numbers, numbers].clone()
    inner[numbers, numbers] = -math.inf
    cross[numbers, numbers] = -math.inf
    parts = []
    if loss.negatives in ("anchors", "both"):
        parts.append(inner)
    if loss.negatives in ("positives", "both"):
        parts.append(cross)
    if objective.hard:
        hard = views[2].reshape(len(views[0]), objective.hard, -1)[:rows]
        columns = [similarity.paired(z, hard[:, k]) for k in range(objective.hard)]
        parts.append(torch.stack(columns, 1))
    has_self = loss.own and loss.negatives in ("anchors", "both")
    if not has_self:
        itself = torch.full_like(itself, -math.inf)
    negatives = torch.cat(parts, 1).logsumexp(1)
    whole = torch.stack([itself, positive, negatives]).softmax(0).mean(1)
    return {
        "share_self": float(whole[0]),
        "share_positive": float(whole[1]),
        "share_negatives": float(whole[2]),
    }


def _matrix(similarity: losses.Similarity, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """All similarities, (N, M)."""
    first, second, p = similarity.reduced(a, b)
    if p is None:
        return first @ second.T
    return -(torch.cdist(first, second, p=p, compute_mode="donot_use_mm_for_euclid_dist") ** p)


@torch.no_grad()
def isometry(codes: torch.Tensor, latents: torch.Tensor) -> float:
    """R2 of a linear fit between all distances of codes and of latents (squared correlation).

    1 for codes that are an isometry of the latents up to scale, whatever rotates or shifts
    them. Of up to 512 rows.
    """
    a = torch.pdist(codes[:_ROWS].double())
    b = torch.pdist(latents[:_ROWS].double())
    a, b = a - a.mean(), b - b.mean()
    norm = a.norm() * b.norm()
    return float((a @ b / norm) ** 2) if norm > 0 else 0.0


@torch.no_grad()
def learned_scale(codes: torch.Tensor, latents: torch.Tensor) -> float:
    """The factor c of c z that the codes have: the ratio of root-mean-square spreads."""
    return float((codes.double().var(0).sum() / latents.double().var(0).sum()).sqrt())
