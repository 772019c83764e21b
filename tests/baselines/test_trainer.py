from __future__ import annotations

import os
import platform
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.small_runs import (
    before_step,
    breaks,
    of_images,
    rows,
    run,
    same,
    small,
    weights,
)

from threedident.baselines import train
from threedident.baselines.training import checkpoints
from threedident.baselines.training.run_folder import ENCODER
from threedident.baselines.training.trainer import FAILED
from threedident.encoders import MLPEncoder, load_encoder, save_encoder
from threedident.encoders.files import read_encoder
from threedident.errors import PrecisionWarning, TrainingError, UsageError

_COMPILER = shutil.which(os.environ.get("CXX", "g++"))


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ({"loss__p": 1, "loss__start_p": 2}, {"loss__p": 2}),
        ({"loss__own": True, "loss__start_own": False}, {"loss__own": False}),
    ],
)
def test_the_start_of_a_loss_is_the_other_loss_and_ends_when_it_says(
    tmp_path: Path, start: dict[str, Any], first: dict[str, Any]
) -> None:
    box = {"name": "table2-laplace-box-laplace", "training__log_every": 1}
    for name, changes in {"start": {**start, "loss__start_steps": 4}, "first": first}.items():
        run(small(**box, **changes), tmp_path / name)
    records = rows(tmp_path / "start"), rows(tmp_path / "first")
    losses = [[float(row["loss"]) for row in each] for each in records]
    assert losses[0][:4] == losses[1][:4]
    assert all(abs(a - b) > 1e-3 for a, b in zip(losses[0][4:], losses[1][4:], strict=True))
    assert [bool(row["excess"]) for row in records[0]] == [False] * 4 + [True] * 4


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


def test_a_batch_that_does_not_fit_into_a_gpu_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    before_step(monkeypatch, 5, lambda trainer: monkeypatch.setattr(trainer, "_forward", full))
    with pytest.raises(
        TrainingError,
        match=r"too little memory on cpu at step 5, for 64 observations of 10.*batch_size",
    ):
        run(small(), tmp_path / "run")
    state, _ = checkpoints.load_checkpoint(tmp_path / "run")
    assert state is not None and state["step"] == 3


@pytest.mark.skipif(not _COMPILER, reason="torch.compile needs a C++ compiler")
def test_a_compiled_encoder_learns_the_same(tmp_path: Path) -> None:
    losses = {}
    for name, compiled in {"compiled": True, "plain": False}.items():
        run(small(training__compile=compiled, training__log_every=1), tmp_path / name)
        losses[name] = [float(row["loss"]) for row in rows(tmp_path / name)]
    assert losses["compiled"] == pytest.approx(losses["plain"], rel=1e-4)
    assert load_encoder(tmp_path / "compiled" / ENCODER)(torch.zeros(2, 10)).shape == (2, 10)


def test_an_encoder_that_cannot_be_compiled_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.compiler.reset()
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", (None, str(tmp_path / "no-compiler")))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(TrainingError, match=r"cannot compile.*no-compiler.*training.compile=false"):
        run(small(training__compile=True), tmp_path / "run")


def test_accumulated_parts_have_their_own_negatives(tmp_path: Path) -> None:
    run(small(training__accumulate=2, training__steps=2), tmp_path / "parts")
    assert len(rows(tmp_path / "parts")) == 2
    with pytest.raises(UsageError, match="multiple of training"):
        small(training__accumulate=3)


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


def test_starting_from_another_run(tmp_path: Path) -> None:
    run(small(), tmp_path / "first")
    experiment = small(start=str(tmp_path / "first"), training__lr=1e-30, training__steps=1)
    run(experiment, tmp_path / "second")
    assert same(weights(tmp_path / "first"), weights(tmp_path / "second"))


@pytest.mark.parametrize(
    ("name", "value"), [("encoder.radius", 3.0), ("encoder.whiten", True), ("training.seed", 1)]
)
def test_a_start_whose_weights_are_of_something_else_is_refused(
    tmp_path: Path, name: str, value: Any
) -> None:
    """A radius and whitening would be replaced, and another seed has another mixing."""
    run(small(training__steps=2), tmp_path / "first")
    experiment = small(start=str(tmp_path / "first")).changed({name: value})
    with pytest.raises(UsageError, match=f"was trained with {name} = .*set {name} = "):
        run(experiment, tmp_path / "second")


def test_double_precision(tmp_path: Path) -> None:
    run(small(training__precision="64-true"), tmp_path / "run")
    assert all(value.dtype == torch.float32 for value in weights(tmp_path / "run").values())


def test_a_run_goes_on_without_the_one_that_it_started_from(tmp_path: Path) -> None:
    run(small(training__steps=2), tmp_path / "first")
    started = small(start=str(tmp_path / "first"), training__steps=4)
    run(started, tmp_path / "second")
    shutil.rmtree(tmp_path / "first")
    assert run(started.changed({"training.steps": 6}), tmp_path / "second")["steps"] == 6


@pytest.mark.parametrize("steps", [4, 6])
def test_a_run_is_not_taken_for_one_of_another_start(tmp_path: Path, steps: int) -> None:
    """Neither a finished one (4 steps) nor one that goes on (6); a copy is the same start."""
    for name, lr in {"first": 1e-3, "other": 1e-2}.items():
        run(small(training__steps=2, training__lr=lr), tmp_path / name)
    started = small(start=str(tmp_path / "first"), training__steps=4)
    run(started, tmp_path / "second")
    again = started.changed({"training.steps": steps})
    with pytest.raises(UsageError, match=r"second started from .*first.*asked for .*other"):
        run(again.changed({"start": str(tmp_path / "other")}), tmp_path / "second")
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    copied = again.changed({"start": str(tmp_path / "copy" / ENCODER)})
    assert run(copied, tmp_path / "second")["steps"] == steps


def test_a_start_that_has_changed_since_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(small(training__steps=2), tmp_path / "first")
    started = small(start=str(tmp_path / "first"), training__steps=4)
    result = train(started, tmp_path / "second")
    train(started, tmp_path / "second")
    assert "than the one that" not in capsys.readouterr().err
    run(small(training__steps=3), tmp_path / "first")
    assert train(started, tmp_path / "second") == result
    assert "another than the one that" in capsys.readouterr().err
    train(started.changed({"training.steps": 5}), tmp_path / "second")
    assert "another than the one that" in capsys.readouterr().err


def test_codes_that_are_all_the_same_are_an_error(tmp_path: Path) -> None:
    run(small(training__steps=2), tmp_path / "first")
    encoder, note = read_encoder(tmp_path / "first" / ENCODER)
    with torch.no_grad():
        for weight in encoder.encoder.layers[-1].parameters():
            weight.zero_().add_(0.5 * (weight.ndim == 1))
    save_encoder(tmp_path / "constant.pt", encoder, note)
    with pytest.raises(TrainingError, match=r"the same code.*start"):
        run(small(start=str(tmp_path / "constant.pt"), training__steps=4), tmp_path / "second")


def test_bfloat16_leaves_observations_and_codes_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Tensor] = []
    forward = MLPEncoder.forward

    def watched(encoder: MLPEncoder, observations: torch.Tensor) -> torch.Tensor:
        codes = forward(encoder, observations)
        hidden = encoder.layers[2](encoder.layers[:2](observations))
        seen.extend((observations.detach(), codes.detach(), hidden.detach()))
        return codes

    monkeypatch.setattr(MLPEncoder, "forward", watched)
    # Its observations are so nearly alike that codes rounded to bfloat16 were all the same.
    experiment = small("table2-laplace-box-laplace", training__precision="bf16-mixed")
    run(experiment, tmp_path / "run")
    observations, codes, hidden = seen[:3]
    assert hidden.dtype == torch.bfloat16
    for exact in (observations, codes):
        assert exact.dtype == torch.float32
        assert (exact != exact.bfloat16().float()).float().mean() > 0.9


def test_bfloat16_is_warned_of_where_the_processor_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False)
    with pytest.warns(PrecisionWarning, match="32-true"):
        run(small(training__precision="bf16-mixed", training__steps=2), tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrecisionWarning)
        run(small(training__precision="32-true", training__steps=2), tmp_path / "exact")
