from __future__ import annotations

import json
import multiprocessing as mp
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from helpers.small_runs import (
    MATCHED,
    MUON,
    SMALL,
    STARTING,
    before_step,
    command_of_its_own,
    dies,
    of_images,
    rows,
    run,
    same,
    small,
    weights,
)

from threedident.baselines.training import checkpoints
from threedident.baselines.training import loop as training
from threedident.baselines.training.run_folder import ENCODER, RESULT
from threedident.cli import main
from threedident.errors import TrainingError, UsageError


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


@pytest.mark.parametrize(
    "changes",
    [
        {"training__precision": "32-true"},
        {"training__precision": "bf16-mixed"},
        MUON,
        STARTING,
        MATCHED,
        {**MATCHED, "data__match": "resample", "data__latents": 5000},
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


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        ("KeyboardInterrupt", KeyboardInterrupt),  # it came when a process had left the training
        ("threedident.errors.UsageError: no", UsageError),
        ("RuntimeError: no", TrainingError),
    ],
)
def test_what_ends_a_process_ends_the_training(last: str, kind: type[BaseException]) -> None:
    from torch.multiprocessing.spawn import ProcessException

    from threedident.baselines.training.distributed import launch

    class OneFails:
        def launch(self, function: object) -> None:
            raise ProcessException(f"\n\n-- Process 1 terminated --\nTraceback\n{last}", 0, 1)

    with pytest.raises(kind):
        launch(OneFails(), print)  # type: ignore[arg-type]
