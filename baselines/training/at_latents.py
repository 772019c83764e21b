"""The loss of the true latents, which tells how far a training is from the minimum."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch

from threedident.baselines.criterion import Criterion, make_criterion
from threedident.baselines.experiment import Experiment
from threedident.baselines.training.theory import theory_Lambda
from threedident.distributions.spaces import Sphere

Codes = Sequence[torch.Tensor]

_STEPS = 60
_WIDEST = math.log(1e3)
_GRID = (-4, 6, 21)  # of the logarithms of scales and of Lambda: first, last, number


@dataclasses.dataclass(frozen=True)
class AtLatents:
    """The loss of an encoder that gives the latents themselves, as well scaled as can be.

    Attributes:
        loss: the loss, in nats.
        scale: the best factor of the latents; None where nothing can be scaled.
        Lambda: Lambda of AnInfoNCE, (members, n): theory's, else the best; None for other losses.
        tau: the best temperature; None where it is not learned.
    """

    loss: float
    scale: float | None = None
    Lambda: list[list[float]] | None = None
    tau: float | None = None


def loss_at_latents(
    experiment: Experiment, objective: Criterion, batches: Sequence[Codes]
) -> AtLatents:
    """Take the loss at the true latents, under the best scale or temperature, or theory's Lambda.

    What the encoder and the loss are free to choose is optimised: the scale of unbounded codes
    and of boxes and spheres that are learned, tau where it is learned. A box that is not learned
    holds scales up to its own size. Lambda of AnInfoNCE has a weight a factor and member, enough
    to fit the very pairs where the loss is small: it is what theory says, and is fitted only to
    pairs of which theory says nothing.

    Args:
        experiment: the experiment.
        objective: the loss; its parameters are left alone.
        batches: the latents of each batch's views, (N, n) each; the loss is averaged over them.
    """
    if experiment.supervised:
        return AtLatents(0.0)
    encoder = experiment.encoder
    views, largest = _fit_into_output_space(experiment, batches)
    trial = make_criterion(
        experiment.loss, views[0][0].shape[1], members=objective.members, hard=objective.hard
    ).to(views[0][0].device)
    trial.load_state_dict(objective.state_dict())
    fixed = (encoder.output == "sphere" and not encoder.learned) or experiment.loss.normalize
    log_scale = torch.zeros((), device=views[0][0].device, requires_grad=True)
    free = [] if fixed else [log_scale]
    if trial.raw_Lambda is not None:
        Lambda = theory_Lambda(experiment)
        # Its scale and Lambda's are one: Lambda alone moves.
        free = [] if Lambda is not None else [trial.raw_Lambda]
        _put_Lambda(trial.raw_Lambda, 1.0 if Lambda is None else Lambda)
    elif trial.log_tau is not None:
        free.append(trial.log_tau)
    elif trial.raw_S is not None:
        free.append(trial.raw_S)

    def loss() -> torch.Tensor:
        scale = log_scale.clamp(max=largest).exp()
        losses = [trial([each * scale for each in batch], batch) for batch in views]
        return torch.stack(losses).mean()

    if free and free[0] is log_scale:
        _move_to_the_best_of_a_grid(log_scale.fill_, largest, loss)
    elif free and free[0] is trial.raw_Lambda:
        _move_to_the_best_of_a_grid(
            lambda value: _put_Lambda(free[0], math.exp(value)), _WIDEST, loss
        )
    if free:
        best = _minimise(free, loss)
    else:
        with torch.no_grad():
            best = float(loss())
    learned = trial.learned()
    scale = (
        None
        if fixed or trial.raw_Lambda is not None
        else float(log_scale.detach().clamp(max=largest).exp())
    )
    return AtLatents(best, scale, learned.get("Lambda"), learned.get("tau"))


def _fit_into_output_space(
    experiment: Experiment, batches: Sequence[Codes]
) -> tuple[list[list[torch.Tensor]], float]:
    """The latents moved into the codes' space, and the logarithm of the largest scale there."""
    space, encoder = experiment.data.space, experiment.encoder
    lengths = [len(view) for view in batches[0]]
    together = torch.cat([view.detach().float() for batch in batches for view in batch])
    largest = _WIDEST
    if encoder.output == "box" and not encoder.learned:
        low, high = together.amin(0), together.amax(0)
        together = together - low
        largest = math.log(encoder.size / float((high - low).max()))
    elif isinstance(space, Sphere):
        together = together / space.r * encoder.radius
    parts = torch.split(together, sum(lengths))
    return [list(torch.split(part, lengths)) for part in parts], largest


@torch.no_grad()
def _put_Lambda(raw: torch.Tensor, Lambda: float | list[list[float]]) -> None:
    """Put the numbers whose softplus is Lambda into raw (members, n)."""
    wanted = torch.as_tensor(Lambda, dtype=torch.float64, device=raw.device)
    raw.copy_(wanted + torch.log(-torch.expm1(-wanted)))


@torch.no_grad()
def _move_to_the_best_of_a_grid(
    put: Callable[[float], object], largest: float, loss: Callable[[], torch.Tensor]
) -> None:
    """Begin the search where it has a slope: the loss is flat far from the best scale.

    Args:
        put: the function that puts the logarithm of a scale, or of all Lambda, in its place.
        largest: the largest of them.
        loss: the loss as it then is.
    """
    first, last, number = _GRID
    grid = torch.linspace(first, last, number).clamp(max=largest).tolist()
    losses = []
    for value in grid:
        put(value)
        losses.append(float(loss()))
    put(grid[losses.index(min(losses))])


def _minimise(parameters: list[torch.Tensor], loss: Callable[[], torch.Tensor]) -> float:
    """The least loss that L-BFGS meets, with tolerances relative to the loss at its start."""
    with torch.no_grad():
        unit = abs(float(loss())) or 1.0
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=_STEPS, tolerance_change=1e-7, line_search_fn="strong_wolfe"
    )
    least = math.inf

    def closure() -> torch.Tensor:
        nonlocal least
        optimizer.zero_grad()
        value = loss()
        (value / unit).backward()  # type: ignore[no-untyped-call]
        least = min(least, float(value.detach()))
        return value / unit

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return least
