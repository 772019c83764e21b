from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.small_runs import (
    SMALL,
    rows,
    run,
    small,
)
from lightning_fabric import Fabric

from threedident.baselines.data import make_problem
from threedident.baselines.training import checkpoints
from threedident.baselines.training import loop as training
from threedident.baselines.training.networks import make_networks
from threedident.baselines.training.trainer import Trainer
from threedident.errors import UsageError


def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UsageError, match="no CUDA device here"):
        training.train(small(), tmp_path / "run", device="cuda", quiet=True)


@pytest.mark.parametrize("by", ["devices", "torchrun"])
def test_two_processes_share_batch_and_negatives(
    tmp_path: Path, by: str, cli: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """The losses of two processes are those of one with their batches together."""
    out = tmp_path / "two"
    changes = {**SMALL, "training.steps": 3, "training.lr": 0.01, "training.log_every": 1}
    words = ["train", "aninfonce", "--device", "cpu", "--threads", "1", "--out", str(out)]
    words += [f"--set={k}={v}" for k, v in changes.items()]
    if by == "devices":
        said = cli(*words, "--devices", 2).stdout + capfd.readouterr().out
    else:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        done = subprocess.run(
            [*torchrun, "--nproc-per-node", "2", "-m", "threedident", *words],
            env={**os.environ, "PYTHONSAFEPATH": "1"},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        said = done.stdout
    assert said.count("linear_r2: ") == 1
    experiment = small(training__steps=3, training__lr=0.01)
    fabric = Fabric(accelerator="cpu", devices=1)
    problem = make_problem(experiment, data=None, test=None, batch_size=16, device=fabric.device)
    alone = Trainer(fabric, experiment, *make_networks(experiment, problem), tmp_path / "one")
    losses = []
    for first in (0, 2, 4):
        halves = [problem.source.batch(0, number)[1] for number in (first, first + 1)]
        codes = [alone.encoder(torch.cat(views)) for views in zip(*halves, strict=True)]
        loss = alone.objective(codes)
        losses.append(loss.item())
        alone.optimizers[0].zero_grad()
        loss.backward()
        alone.optimizers[0].step()
    # From the second on they also tell that the gradients were the same.
    assert [float(row["loss"]) for row in rows(out)] == pytest.approx(losses, rel=1e-5)


def test_another_number_of_devices_is_another_run(tmp_path: Path) -> None:
    run(small(training__steps=4), tmp_path / "run")
    state, _ = checkpoints.load_checkpoint(tmp_path / "run")
    assert state is not None
    checkpoints.save_checkpoint(tmp_path / "run", {**state, "devices": [2, "cpu"]})
    with pytest.raises(UsageError, match=r"begun on 2 device.*--devices 2"):
        run(small(), tmp_path / "run")
