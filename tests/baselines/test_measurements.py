from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.small_runs import (
    run,
    small,
)

from threedident.baselines.data import make_problem
from threedident.baselines.experiment import (
    load_experiment,
)
from threedident.baselines.losses import Power, info_nce
from threedident.baselines.training.run_folder import ENCODER
from threedident.encoders import load_encoder


def test_loss_at_the_latents_is_what_an_ideal_encoder_has(tmp_path: Path) -> None:
    result = run(small(training__batch_size=512, training__steps=1), tmp_path / "run")
    at = result["at_latents"]
    Lambda = at["Lambda"][0]
    assert sum(Lambda[:5]) / 5 == pytest.approx(5, rel=0.15)
    assert sum(Lambda[5:]) / 5 == pytest.approx(25, rel=0.15)
    assert result["theory"]["Lambda"] == [[5.0] * 5 + [25.0] * 5]


def test_the_loss_at_the_end_is_that_of_the_encoder_on_the_pairs_of_the_latents(
    tmp_path: Path,
) -> None:
    box = {"name": "table2-laplace-box-laplace", "training__batch_size": 512}
    result = run(small(**box, loss__start_p=2, loss__start_steps=4), tmp_path / "run")
    experiment = load_experiment(tmp_path / "run" / "experiment.toml")
    problem = make_problem(
        experiment, data=None, test=None, batch_size=512, device=torch.device("cpu")
    )
    encoder = load_encoder(tmp_path / "run" / ENCODER)
    losses = []
    for number in range(8):
        _, (x, x_tilde) = problem.source.batch(0, number)
        with torch.no_grad():
            losses.append(float(info_nce(encoder(x), encoder(x_tilde), Power(1))))
    assert result["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert result["loss"] > result["at_latents"]["loss"]
