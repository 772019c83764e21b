"""The training loop: on real data, small."""

from __future__ import annotations

import copy
import csv
import json
import multiprocessing as mp
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from helpers import fake_dataset as made
from lightning_fabric import Fabric

from threedident.baselines.data import make_problem
from threedident.baselines.experiment import (
    Experiment,
    load_experiment,
    parse_experiment,
    parse_setting,
)
from threedident.baselines.losses import Power, info_nce
from threedident.baselines.training import checkpoints
from threedident.baselines.training import loop as training
from threedident.baselines.training.networks import ENCODER, make_networks
from threedident.baselines.training.optimizers import MatrixMuon, make_optimizers
from threedident.baselines.training.run_folder import RESULT
from threedident.baselines.training.trainer import FAILED, Trainer
from threedident.cli import main
from threedident.datasets.dataset import ThreeDIdent
from threedident.distributions.torch_sampler import seeded
from threedident.encoders import load_encoder
from threedident.errors import DatasetError, TrainingError, UsageError

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


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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


def test_a_seed_reproduces_a_run_and_another_does_not(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run(small(), tmp_path / name)
    run(small(training__seed=1), tmp_path / "c")
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert not same(weights(tmp_path / "a"), weights(tmp_path / "c"))


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    first = run(small(), tmp_path / "run")
    written = (tmp_path / "run" / ENCODER).stat().st_mtime_ns
    assert run(small(), tmp_path / "run") == first
    assert (tmp_path / "run" / ENCODER).stat().st_mtime_ns == written


MUON = {"training__optimizer": "muon", "training__matrix_lr": 3e-3}
MATCHED = {"name": "matching-synthetic-laplace-box", "data__latents": 25_000}
STARTING = {"loss__start_steps": 6, "loss__start_tau": 2.0}


@pytest.mark.parametrize(
    "changes",
    [
        {"training__precision": "32-true"},
        {"training__precision": "bf16-mixed"},
        MUON,
        STARTING,
        MATCHED,
        {**MATCHED, "data__match": "resample"},
    ],
    ids=["float32", "bfloat16", "muon", "another start of the loss", "nearest", "resampled"],
)
def test_a_run_that_was_interrupted_ends_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    experiment = small(training__warmup=4, **changes)
    run(experiment, tmp_path / "whole")
    with monkeypatch.context() as patched:
        before_step(patched, 5, dies)
        with pytest.raises(RuntimeError, match="killed"):
            run(experiment, tmp_path / "parts")
    assert not (tmp_path / "parts" / RESULT).exists()
    training.resume(tmp_path / "parts", quiet=True, device="cpu")
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    assert rows(tmp_path / "whole") == rows(tmp_path / "parts")


def test_the_start_of_a_loss_is_the_other_loss_and_ends_when_it_says(tmp_path: Path) -> None:
    box = {"name": "table2-laplace-box-laplace", "training__log_every": 1}
    for name, changes in {
        "start": {"loss__p": 1, "loss__start_p": 2, "loss__start_steps": 4},
        "first": {"loss__p": 2},
    }.items():
        run(small(**box, **changes), tmp_path / name)
    start, first = rows(tmp_path / "start"), rows(tmp_path / "first")
    losses = [[float(row["loss"]) for row in each] for each in (start, first)]
    assert losses[0][:4] == losses[1][:4]
    assert all(abs(a - b) > 1e-3 for a, b in zip(losses[0][4:], losses[1][4:], strict=True))
    assert [bool(row["excess"]) for row in start] == [False] * 4 + [True] * 4


def test_muon_moves_matrices_and_adam_all_else(tmp_path: Path) -> None:
    torch.manual_seed(0)
    encoder = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 4))
    twin = copy.deepcopy(encoder)
    settings = small(**MUON).training
    ours = make_optimizers(settings, encoder, torch.nn.Linear(1, 1))
    theirs = [
        torch.optim.Adam([twin[0].bias, twin[1].bias], lr=settings.lr),
        torch.optim.Muon(
            [twin[0].weight, twin[1].weight],
            lr=3e-3,
            weight_decay=0.0,
            adjust_lr_fn="match_rms_adamw",
        ),
    ]
    for net, optimizers in ((encoder, ours), (twin, theirs)):
        for step in range(3):
            x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
            net(x).square().sum().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        assert all(p.grad is None for p in net.parameters())
    for a, b in zip(encoder.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_muon_moves_a_kernel_as_the_matrix_that_it_is(memory: torch.memory_format) -> None:
    torch.manual_seed(0)
    kernel = torch.nn.Conv2d(3, 4, 3, bias=False).to(memory_format=memory).weight
    gradient = torch.randn(4, 3, 3, 3)
    matrix = torch.nn.Parameter(kernel.detach().contiguous().reshape(4, -1).clone())
    plain = torch.optim.Muon([matrix], lr=0.1, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    ours = MatrixMuon([kernel], 0.1)
    kernel.grad, matrix.grad = gradient, gradient.reshape(4, -1)
    before = kernel.detach().clone()
    for each in (plain, ours):
        each.step()
    moved, expected = kernel.detach().reshape(4, -1), matrix.detach()
    assert not torch.equal(kernel, before)
    # Its polar factor is iterated in bfloat16, where the order of columns rounds.
    assert torch.allclose(
        moved, expected, atol=0.02 * (expected - before.reshape(4, -1)).abs().max()
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"loss__start_steps": 3}, "start_steps goes with"),
        ({"loss__start_tau": 2.0}, "start_steps goes with"),
        ({"loss__start_steps": 8, "loss__start_tau": 2.0}, "less than training.steps"),
        ({"loss__start_steps": 3, "loss__start_p": 2.0}, "aninfonce has no p"),
        ({**STARTING, "loss__learn_tau": True}, "fixed temperature"),
        ({"training__matrix_lr": 0.1}, "training.optimizer=muon"),
        ({"training__optimizer": "sgd"}, "adam, muon"),
        ({**MUON, "training__precision": "16-mixed"}, "bf16-mixed"),
    ],
)
def test_a_start_or_an_optimizer_that_would_not_be_held_is_refused(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        small(**changes)


def command_of_its_own(words: list[str], said: Path) -> None:
    """The command in a session of its own, what it says on standard error in a file."""
    os.setsid()
    with said.open("w") as sys.stderr:
        os.dup2(sys.stderr.fileno(), 2)
        main(words)


@pytest.mark.parametrize("devices", [1, 2])
def test_ctrl_c_saves_a_checkpoint(tmp_path: Path, devices: int) -> None:
    changes = {**SMALL, "training.steps": 100_000, "training.checkpoint_every": 100_000}
    out, said = tmp_path / "run", tmp_path / "said"
    words = ["train", "aninfonce", "--out", str(out), "--device", "cpu", "--threads", "1"]
    words += ["--devices", str(devices), *(f"--set={k}={v}" for k, v in changes.items())]
    # A fork has loaded torch already.
    process = mp.get_context("fork").Process(target=command_of_its_own, args=(words, said))
    process.start()
    deadline = time.monotonic() + 120
    while not (out / "metrics.csv").exists() or len(rows(out)) < 3:
        assert process.is_alive() and time.monotonic() < deadline, said.read_text()
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: all of its processes
    process.join(60)
    assert process.exitcode == 130
    assert "Traceback" not in said.read_text()
    state, _ = checkpoints.load_checkpoint(out)
    assert state is not None and state["step"] >= 3


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    for step in (1, 2):
        checkpoints.save_checkpoint(tmp_path, {"step": step})
    state, damaged = checkpoints.load_checkpoint(tmp_path)
    assert state is not None and state["step"] == 2 and not damaged
    path = tmp_path / checkpoints.CHECKPOINT
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    state, damaged = checkpoints.load_checkpoint(tmp_path)
    assert state is not None and state["step"] == 1 and len(damaged) == 1
    (tmp_path / checkpoints.PREVIOUS).write_bytes(b"")
    with pytest.raises(DatasetError, match="no whole checkpoint is left"):
        checkpoints.load_checkpoint(tmp_path)


def test_a_loss_that_is_not_finite_stops_at_once_and_saves_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_step(monkeypatch, 5, breaks)
    with pytest.raises(TrainingError, match=r"nan at step 5.*failed\.pt"):
        run(small(), tmp_path / "run")
    failed = torch.load(tmp_path / "run" / FAILED, weights_only=True)
    assert failed["step"] == 5
    assert [view.shape for view in failed["observations"]] == [(32, 10), (32, 10)]
    state, _ = checkpoints.load_checkpoint(tmp_path / "run")
    assert state is not None and state["step"] == 3
    assert all(torch.isfinite(value).all() for value in state["encoder"].values())


def test_another_experiment_is_refused(tmp_path: Path) -> None:
    run(small(), tmp_path / "run")
    with pytest.raises(UsageError, match=r"training\.batch_size = 32, asked for 64"):
        run(small(training__batch_size=64), tmp_path / "run")
    with pytest.raises(UsageError, match="'aninfonce', asked for 'aninfonce-infonce'"):
        run(small("aninfonce-infonce"), tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds no run"):
        run(small(), tmp_path / "other")
    with pytest.raises(UsageError, match="holds no run"):
        training.resume(tmp_path / "other")


def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UsageError, match="no CUDA device here"):
        training.train(small(), tmp_path / "run", device="cuda", quiet=True)


def test_accumulated_parts_have_their_own_negatives(tmp_path: Path) -> None:
    run(small(training__accumulate=2, training__steps=2), tmp_path / "parts")
    assert len(rows(tmp_path / "parts")) == 2
    with pytest.raises(UsageError, match="multiple of training"):
        small(training__accumulate=3)


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


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images") / "data"
    made.make(root, 80, side=32)
    return root


IMAGES = {**SMALL, "training.steps": 3, "training.batch_size": 16, "training.score_every": 3}


def of_images(name: str, **changes: Any) -> Experiment:
    return load_experiment(name).changed(
        {
            **{k: v for k, v in IMAGES.items() if not k.startswith("data")},
            **{k.replace("__", "."): v for k, v in changes.items()},
        }
    )


@pytest.mark.parametrize("name", ["table4-supervised", "table4-box", "table4-augmentations"])
def test_images(tmp_path: Path, images: Path, name: str) -> None:
    result = run(of_images(name), tmp_path / "run", data=images, test=images)
    assert set(result["scores"]) >= {
        "linear_r2",
        "mcc",
        "linear_r2_batch_statistics",
        "mcc_batch_statistics",
    }
    encoder = load_encoder(tmp_path / "run" / ENCODER)
    assert encoder.spec["kind"] == "image"
    assert result["data"]["resolution"] == 32
    assert not encoder.training


@pytest.mark.parametrize("changes", [{}, MUON], ids=["adam", "muon"])
def test_an_interrupted_run_on_images_ends_as_if_it_had_not_been(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """Batch normalisation's statistics and the place in the data are kept as well."""
    sizes = {"training__steps": 4, "training__checkpoint_every": 2, "training__batch_size": 32}
    experiment = of_images("table4-box", **sizes, **changes)
    run(experiment, tmp_path / "whole", data=images, test=images)
    with monkeypatch.context() as patched:
        before_step(patched, 3, dies)
        with pytest.raises(RuntimeError, match="killed"):
            run(experiment, tmp_path / "parts", data=images, test=images)
    training.resume(tmp_path / "parts", quiet=True, device="cpu")
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


def test_data_that_do_not_fit(tmp_path: Path, images: Path) -> None:
    with pytest.raises(UsageError, match="--data DIR"):
        run(of_images("table4-box"), tmp_path / "a")
    with pytest.raises(UsageError, match="leave out --data"):
        run(small(), tmp_path / "b", data=images)
    with pytest.raises(UsageError, match="a batch of 128 does not fit"):
        run(of_images("table4-box", training__batch_size=128), tmp_path / "c", data=images)
    rendered = of_images("table4-box").as_dict()
    rendered["data"] |= {"pairs": "rendered"}
    rendered["data"].pop("conditional")
    experiment = parse_experiment(rendered, "test", "test")
    with pytest.raises(UsageError, match="needs a dataset rendered in pairs"):
        run(experiment, tmp_path / "d", data=images)
    made.make(tmp_path / "larger", 20, side=40)
    with pytest.raises(UsageError, match=r"\(40, 40, 3\)"):
        run(of_images("table4-box"), tmp_path / "e", data=images, test=tmp_path / "larger")
    assert not any((tmp_path / name / "metrics.csv").exists() for name in "abcde")


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


def test_latents_that_were_drawn_once_come_in_pairs_as_those_of_images_do() -> None:
    experiment = small(**MATCHED, data__match="nearest")
    problem = make_problem(
        experiment, data=None, test=None, batch_size=2000, device=torch.device("cpu")
    )
    (z, z_tilde), (x, _) = problem.source.batch(0, 3)
    torch.testing.assert_close(problem.mixing(z), x)
    assert (z != z_tilde).any(1).all()  # never one latent twice
    everything = torch.cat([torch.cat(problem.source.batch(0, k)[0]) for k in range(40)])
    assert 20_000 < len(torch.unique(everything, dim=0)) <= 25_000
    drawn, _ = experiment.processes[0].sample(2000, generator=seeded(0, 0, 3))
    assert (drawn - z).norm(dim=1).mean() < 0.8  # independent ones are at 2.5
    assert problem.about["pairs"]["std"] == pytest.approx(
        float((z_tilde - z).square().mean().sqrt()), rel=0.03
    )


def test_starting_from_another_run(tmp_path: Path) -> None:
    run(small(), tmp_path / "first")
    experiment = small(start=str(tmp_path / "first"), training__lr=1e-30, training__steps=1)
    run(experiment, tmp_path / "second")
    assert same(weights(tmp_path / "first"), weights(tmp_path / "second"))


def test_command(tmp_path: Path, cli: Any) -> None:
    settings = [f"--set={k}={v}" for k, v in SMALL.items()]
    done = cli("train", "aninfonce", "--out", "run", *settings, "--seed", 3)
    assert "linear_r2: " in done.stdout and "run/encoder.pt" in done.stdout
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["experiment"]["training"]["seed"] == 3
    again = CliRunner().invoke(main, ["train", "--resume", "run"])
    assert again.output == f"run is finished already\n{done.stdout}"
    for arguments, said in (
        (["aninfonce", "--out", "x", "--set", "training.step=3"], "unknown field training.step:"),
        (["nonsense", "--out", "x"], "unknown experiment 'nonsense'"),
        (["--resume", "y"], "holds no run"),
        (["aninfonce"], "expected a PRESET"),
    ):
        failed = CliRunner().invoke(main, ["train", *arguments])
        assert failed.exit_code == 2 and said in failed.output


def test_a_factor_that_is_held_fixed(tmp_path: Path, images: Path) -> None:
    raw = ThreeDIdent(images).raw_latents.numpy().copy()
    raw[:, 2] = 0.5
    made.make(tmp_path / "flat", 80, side=32, raw=raw)
    result = run(of_images("table4-supervised"), tmp_path / "run", data=tmp_path / "flat")
    assert result["per_factor"]["linear_r2"][2] is None
    assert result["per_factor"]["linear_r2"][1] is not None
    assert result["data"]["scored_on"] == "training images"


def test_other_data_are_refused(tmp_path: Path, images: Path) -> None:
    raw = np.random.default_rng(1).uniform(-1, 1, (80, 10))
    made.make(tmp_path / "other", 80, side=32, raw=raw)
    experiment = of_images("table4-supervised")
    run(experiment, tmp_path / "run", data=images)
    with pytest.raises(UsageError, match="was trained on other images"):
        run(experiment, tmp_path / "run", data=tmp_path / "other")
    longer = experiment.changed({"training.steps": 4})
    with pytest.raises(UsageError, match="was trained on other images"):
        run(longer, tmp_path / "run", data=tmp_path / "other")
    # Nothing was lost by asking.
    assert run(experiment, tmp_path / "run", data=images)["steps"] == 3


def test_what_did_not_begin_leaves_the_folder_free(tmp_path: Path, images: Path) -> None:
    with pytest.raises(UsageError, match="a batch of 128 does not fit"):
        run(of_images("table4-box", training__batch_size=128), tmp_path / "run", data=images)
    run(of_images("table4-box"), tmp_path / "run", data=images)


def test_a_run_can_be_extended(tmp_path: Path) -> None:
    run(small(training__steps=4), tmp_path / "parts")
    with pytest.raises(UsageError, match="leave out --data"):
        run(small(training__steps=4), tmp_path / "parts", data=tmp_path)
    longer = run(small(), tmp_path / "parts")
    assert longer["steps"] == 8
    run(small(), tmp_path / "whole")
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    with pytest.raises(UsageError, match=r"training\.steps = 8, asked for 4"):
        run(small(training__steps=4), tmp_path / "parts")


def test_a_finished_run_whose_schedule_ends_says_why_it_cannot_be_extended(tmp_path: Path) -> None:
    experiment = small(training__schedule="cosine")
    run(experiment, tmp_path / "run")
    longer = experiment.changed({"training.steps": 30})
    reason = (
        r"with training\.steps = 8, asked for 30: it is finished, under training\.schedule = "
        r"cosine, .* cannot be extended; train anew into another --out with --set training\.steps="
        r"30"
    )
    for ask in (
        lambda: run(longer, tmp_path / "run"),
        lambda: training.resume(tmp_path / "run", changes={"training.steps": 30}),
    ):
        with pytest.raises(UsageError, match=reason) as refused:
            ask()
        assert "--resume" not in str(refused.value)


def test_the_steps_of_an_unfinished_run_whose_schedule_ends_are_fixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = small(training__schedule="cosine")
    with monkeypatch.context() as patched:
        before_step(patched, 5, dies)
        with pytest.raises(RuntimeError, match="killed"):
            run(experiment, tmp_path / "run")
    with pytest.raises(UsageError, match=r"fixed from the beginning; .*--resume .* to step 8"):
        run(experiment.changed({"training.steps": 30}), tmp_path / "run")


def test_resume_extends_a_run_and_refuses_to_make_it_another(tmp_path: Path, cli: Any) -> None:
    run(small(training__steps=4), tmp_path / "run")
    for name, value, there in (
        ("training.lr", 0.5, 0.0001),
        ("training.seed", 7, 0),
        ("loss.own", True, False),
    ):
        with pytest.raises(
            UsageError, match=re.escape(f"{name} cannot be set: ") + rf".*{name} = {there}, asked"
        ):
            training.resume(tmp_path / "run", changes={name: value})
    words = ["train", "--resume", "run", "--device", "cpu", "--threads", 1]
    assert "8 steps in" in cli(*words, "--set", "training.steps=8").stdout
    run(small(), tmp_path / "whole")
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "run"))
    # What changes nothing that is learned, and what is as it was, may be given.
    again = cli(*words, "--set", "training.log_every=1", "--set", "training.seed=0")
    assert "finished already" in again.stderr
    assert "leave out the preset" in cli("train", "demo", "--resume", "run", code=2).stderr


def test_a_run_that_cannot_be_extended_keeps_one_checkpoint_of_which_it_can_be_scored(
    tmp_path: Path,
) -> None:
    experiment = small(training__schedule="cosine")
    first = run(experiment, tmp_path / "run")
    assert not (tmp_path / "run" / checkpoints.PREVIOUS).exists()
    (tmp_path / "run" / RESULT).unlink()
    (tmp_path / "run" / ENCODER).unlink()
    written = rows(tmp_path / "run")
    assert run(experiment, tmp_path / "run") == first
    assert rows(tmp_path / "run") == written
    run(small(), tmp_path / "constant")
    assert (tmp_path / "constant" / checkpoints.PREVIOUS).exists()


def test_a_training_says_at_its_start_what_it_does_and_where(
    tmp_path: Path, images: Path, cli: Any
) -> None:
    words = [f"--set={k}={v}" for k, v in IMAGES.items() if not k.startswith("data")]
    done = cli("train", "table4-supervised", "--data", images, "--out", "run", *words)
    lines = done.stderr.splitlines()
    assert re.fullmatch(
        r"training table4-supervised \(.+\): 3 steps of 16, seed 0, on cpu, 1 thread\(s\)", lines[0]
    )
    assert lines[1:4] == [
        f"trained on {images}: 80 images of 32 x 32",
        f"scored on 64 of 80 images of {images}",
        "writes to run; Ctrl-C saves a checkpoint and stops, and the same command or "
        "`3dident train --resume run` goes on",
    ]
    assert lines[4].startswith("note: R2 and MCC are those of images that it is trained on")
    assert any("32 samples to fit 10 codes on" in line for line in lines[5:])
    table = dict(line.rsplit(maxsplit=2)[::2] for line in done.stdout.splitlines()[5:15])
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    mcc = dict(zip(result["data"]["factors"], result["per_factor"]["mcc"], strict=True))
    assert table == {name: f"{value:.4f}" for name, value in mcc.items()}


def test_images_that_are_not_named_are_those_at_the_places_of_the_commands(
    tmp_path: Path, cli: Any
) -> None:
    made.make(tmp_path / "data" / "3dident", 80, side=16)
    words = [f"--set={k}={v}" for k, v in IMAGES.items() if not k.startswith("data")]
    words += ["--device", "cpu"]
    alone = cli("train", "table4-supervised", "--out", "alone", *words)
    assert "data/3dident: 80 images of 16 x 16 (found here; --data names others)" in alone.stderr
    assert "images that it is trained on" in alone.stderr
    raw = np.random.default_rng(1).uniform(-1, 1, (40, 10))
    made.make(tmp_path / "data" / "3dident-test", 40, side=16, raw=raw)
    both = cli("train", "table4-supervised", "--out", "both", *words)
    assert "40 images of data/3dident-test (found beside them; --test names others)" in both.stderr
    assert "images that it is trained on" not in both.stderr
    result = json.loads((tmp_path / "both" / "result.json").read_text())
    assert (result["data"]["scored_on"], result["data"]["scored"]) == ("test images", 40)
    # A run keeps to what it began with.
    more = cli("train", "--resume", "alone", "--set", "training.steps=4", "--device", "cpu")
    assert "scored on 64 of 80 images of" in more.stderr
    result = json.loads((tmp_path / "alone" / "result.json").read_text())
    assert (result["data"]["scored_on"], result["steps"]) == ("training images", 4)


def test_test_images_that_are_training_images_are_named(tmp_path: Path, images: Path) -> None:
    raw = ThreeDIdent(images).raw_latents.numpy().copy()
    raw[30:] *= 0.5
    made.make(tmp_path / "mixed", 80, side=32, raw=raw)
    made.make(tmp_path / "fresh", 80, side=32, raw=raw * 0.9)
    shutil.copytree(images, tmp_path / "copy")

    def notes(test: Path | None) -> tuple[str, ...]:
        return make_problem(
            of_images("table4-supervised"),
            data=images,
            test=test,
            batch_size=16,
            device=torch.device("cpu"),
        ).notes

    for test in (None, images, tmp_path / "copy"):
        assert notes(test) == ("R2 and MCC are those of images that it is trained on: see --test",)
    (mixed,) = notes(tmp_path / "mixed")
    assert mixed.startswith(
        f"30 of 80 images of {tmp_path / 'mixed'} are images that it is trained"
    )
    assert notes(tmp_path / "fresh") == ()


def test_what_does_not_fit_is_said_before_torch_is_loaded(tmp_path: Path, images: Path) -> None:
    run(small(training__schedule="cosine", training__steps=1), tmp_path / "done")
    run(small(training__steps=1), tmp_path / "short")
    cases = [
        (["train"], 2),
        (["train", "--list"], 0),
        (["train", "demo", "--show"], 0),
        (["train", "nonsense", "--out", "x"], 2),
        (["train", "demo", "--out", "x"], 2),
        (["train", "demo", "--out", "x", "--data", "nowhere"], 2),
        (["train", "table4-box", "--out", "x", "--data", str(images)], 2),
        (["train", "aninfonce", "--out", "x", "--data", str(images)], 2),
        (["train", "aninfonce", "--out", "x", "--device", "gpu"], 2),
        (["train", "aninfonce", "--out", "x", "--set", "training.stepz=1"], 2),
        (["train", "aninfonce", "--out", "done"], 2),
        (["train", "--resume", "done", "--set", "training.steps=30"], 2),
        (["train", "--resume", "short", "--set", "training.lr=1"], 2),
        (["train", "--resume", "nowhere"], 2),
        (["reproduce", "table9", "--out", "x"], 2),
        (["reproduce", "table1", "--out", "x", "--scale", "huge"], 2),
        (["reproduce", "table1", "--out", "x", "--rows", "nonsense"], 2),
        (["reproduce", "table4", "--out", "x", "--data", "nowhere"], 2),
        (["reproduce", "table1", "--out", "x", "--device", "gpu"], 2),
    ]
    code = (
        "import sys\n"
        "from threedident.cli import main\n"
        f"for words, code in {cases!r}:\n"
        "    try:\n"
        "        main(words)\n"
        "    except SystemExit as end:\n"
        "        assert end.code == code, (words, end.code)\n"
        "    assert 'torch' not in sys.modules, words\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(re.findall("^error: ", done.stderr, re.MULTILINE)) == len(cases) - 2
    assert not (tmp_path / "x").exists()


def test_another_number_of_devices_is_another_run(tmp_path: Path) -> None:
    run(small(training__steps=4), tmp_path / "run")
    state, _ = checkpoints.load_checkpoint(tmp_path / "run")
    assert state is not None
    checkpoints.save_checkpoint(tmp_path / "run", {**state, "devices": [2, "cpu"]})
    with pytest.raises(UsageError, match=r"begun on 2 device.*--devices 2"):
        run(small(), tmp_path / "run")


def test_one_process_at_a_time(tmp_path: Path) -> None:
    from threedident.baselines.training.run_folder import only_one

    with only_one(tmp_path / "run"), pytest.raises(UsageError, match="another process trains"):
        run(small(), tmp_path / "run")


def test_double_precision(tmp_path: Path) -> None:
    run(small(training__precision="64-true"), tmp_path / "run")
    assert all(value.dtype == torch.float32 for value in weights(tmp_path / "run").values())


def test_a_run_goes_on_without_the_one_that_it_started_from(tmp_path: Path) -> None:
    run(small(training__steps=2), tmp_path / "first")
    started = small(start=str(tmp_path / "first"), training__steps=4)
    run(started, tmp_path / "second")
    shutil.rmtree(tmp_path / "first")
    assert run(started.changed({"training.steps": 6}), tmp_path / "second")["steps"] == 6


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("table4-supervised", {"encoder__output": "box"}, "does not hold the latents"),
        ("hard-negatives-base", {"loss__symmetric": True}, ""),
        ("hard-negatives", {"loss__symmetric": True}, "drawn around the anchor"),
        ("aninfonce", {"training__batch_size": 1}, "at least 2"),
        ("aninfonce", {"training__seed": 2**70}, "training.seed"),
        ("aninfonce", {"loss__p": 0.5}, "loss.p must be"),
        ("table4-box", {"data__conditional": {"name": "vmf", "kappa": 1.0}}, "sphere"),
        ("aninfonce", {"training__steps": "many"}, "expected a whole number, found 'many'"),
    ],
)
def test_experiments_that_contradict_themselves(
    name: str, changes: dict[str, Any], said: str
) -> None:
    changed = {k.replace("__", "."): v for k, v in changes.items()}
    if not said:
        load_experiment(name).changed(changed)
        return
    with pytest.raises(UsageError, match=re.escape(said)):
        load_experiment(name).changed(changed)


def test_pairs_that_were_rendered(tmp_path: Path, small_dataset: Path) -> None:
    unset = load_experiment("table4-box").changed(
        dict(map(parse_setting, ["data.pairs=rendered", "data.conditional=null"]))
    )
    assert unset.data.conditional is None
    with pytest.raises(UsageError, match="holds single images"):
        run(unset.changed({"training.batch_size": 4}), tmp_path / "run", data=small_dataset)


def test_codes_that_are_all_the_same_are_an_error(tmp_path: Path) -> None:
    experiment = small("table2-laplace-box-laplace", training__precision="bf16-mixed")
    with pytest.raises(TrainingError, match=r"the same code.*32-true"):
        run(experiment, tmp_path / "run")
    run(experiment.changed({"training.precision": "32-true"}), tmp_path / "exact")
