"""Small trainings, and what to look at in their folders."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from threedident.baselines.experiment import (
    Experiment,
    load_experiment,
)
from threedident.baselines.training import loop as training
from threedident.baselines.training.run_folder import ENCODER
from threedident.baselines.training.trainer import Trainer
from threedident.cli import main
from threedident.encoders import load_encoder

SMALL = {
    "training.steps": 8,
    "training.batch_size": 32,
    "training.log_every": 2,
    "training.score_every": 4,
    "training.score_samples": 64,
    "training.checkpoint_every": 3,
    "data.mixing_trials": 50,
}


def small(name: str = "aninfonce", **changes: Any) -> Experiment:
    return load_experiment(name).changed(
        {**SMALL, **{k.replace("__", "."): v for k, v in changes.items()}}
    )


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_encoder(folder / ENCODER).state_dict()


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def run(experiment: Experiment, out: Path, **options: Any) -> dict[str, Any]:
    return training.train(experiment, out, quiet=True, device="cpu", **options)


def before_step(patch: pytest.MonkeyPatch, step: int, act: Callable[[Any], None]) -> None:
    """Does something to a run before it takes a step."""
    advance = Trainer.advance

    def acts(self: Any, batches: Any) -> Any:
        if self.step == step:
            act(self)
        return advance(self, batches)

    patch.setattr(Trainer, "advance", acts)


def dies(_: Any) -> None:
    raise RuntimeError("killed")


def breaks(run: Any) -> None:
    with torch.no_grad():
        next(run.encoder.parameters()).fill_(float("nan"))


MUON = {"training__optimizer": "muon", "training__matrix_lr": 3e-3}


MATCHED = {"name": "matching-synthetic-laplace-box", "data__latents": 25_000}


STARTING = {"loss__start_steps": 6, "loss__start_tau": 2.0}


def command_of_its_own(words: list[str], said: Path) -> None:
    """The command in a session of its own, what it says on standard error in a file."""
    os.setsid()
    with said.open("w") as sys.stderr:
        os.dup2(sys.stderr.fileno(), 2)
        main(words)


IMAGES = {**SMALL, "training.steps": 3, "training.batch_size": 16, "training.score_every": 3}
IMAGES["encoder.width"] = 16  # of 64, which the documentation's pages train


def of_images(name: str, **changes: Any) -> Experiment:
    return load_experiment(name).changed(
        {
            **{k: v for k, v in IMAGES.items() if not k.startswith("data")},
            **{k.replace("__", "."): v for k, v in changes.items()},
        }
    )
