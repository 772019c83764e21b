"""The loss of the true latents, which no fit to the very pairs makes too low."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from helpers.small_runs import small

from threedident.baselines.criterion import Criterion, make_criterion
from threedident.baselines.data import make_problem
from threedident.baselines.experiment import Experiment
from threedident.baselines.training.at_latents import loss_at_latents
from threedident.baselines.training.theory import theory_learned
from threedident.distributions import VonMisesFisher


def latents(experiment: Experiment, number: int) -> list[tuple[torch.Tensor, ...]]:
    problem = make_problem(
        experiment, data=None, test=None, batch_size=64, device=torch.device("cpu")
    )
    return [problem.source.batch(0, k)[0] for k in range(number)]


def criterion(experiment: Experiment) -> Criterion:
    space, hard = experiment.data.space, experiment.data.hard_negatives
    assert space is not None
    return make_criterion(
        experiment.loss,
        space.n,
        members=len(experiment.processes),
        hard=0 if hard is None else experiment.data.hard_count,
    )


def at_Lambda(objective: Criterion, batches: Any, Lambda: Any) -> float:
    raw = torch.as_tensor(Lambda, dtype=torch.float64)
    with torch.no_grad():
        objective.raw_Lambda.copy_(raw + torch.log(-torch.expm1(-raw)))
        return float(torch.stack([objective(list(views), views) for views in batches]).mean())


@pytest.mark.parametrize("name", ["hard-negatives-base", "hard-negatives", "ensemble"])
def test_Lambda_is_what_theory_says(name: str) -> None:
    """Where losses are small, 20 weights would fit the few pairs that decide them."""
    experiment = small(name, training__batch_size=64)
    theory = {
        "hard-negatives-base": [[150.0] * 20],
        "hard-negatives": [[50.0] * 20],
    }.get(name) or [list(each.conditional.Lambda) for each in experiment.processes]
    batches, objective = latents(experiment, 2), criterion(experiment)
    before = objective.raw_Lambda.clone()
    found = loss_at_latents(experiment, objective, batches)
    assert torch.equal(objective.raw_Lambda, before)
    assert found.Lambda is not None
    assert torch.allclose(torch.tensor(found.Lambda), torch.tensor(theory))
    assert found.loss == pytest.approx(at_Lambda(objective, batches, theory), rel=1e-4)


def test_Lambda_is_fitted_where_theory_says_none() -> None:
    experiment = small("aninfonce", training__batch_size=64)
    data = dataclasses.replace(experiment.data, conditional=VonMisesFisher(kappa=10.0))
    experiment = dataclasses.replace(experiment, data=data)
    batches, objective = latents(experiment, 2), criterion(experiment)
    found = loss_at_latents(experiment, objective, batches)
    tried = [at_Lambda(objective, batches, [[each] * 10]) for each in (1.0, 3, 10, 30, 100)]
    assert found.loss <= min(tried)
    assert found.Lambda is not None
    assert sum(found.Lambda[0]) / 10 == pytest.approx(10, rel=0.25)


@pytest.mark.parametrize(("tau", "radius"), [(0.1, 1.0), (1.0, 2.0), (0.5, 3.0)])
def test_theory_goes_with_tau_and_radius(tau: float, radius: float) -> None:
    """Lambda / tau on codes of another length is the same loss."""
    plain = small("aninfonce", training__batch_size=64)
    other = plain.changed({"loss.tau": tau, "encoder.radius": radius})
    batches = latents(plain, 2)
    expected = loss_at_latents(plain, criterion(plain), batches)
    found = loss_at_latents(other, criterion(other), batches)
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    assert theory_learned(other)["Lambda"][0][0] == pytest.approx(5 * tau / radius**2)
    assert theory_learned(other.changed({"encoder.learned": True})) == {}
