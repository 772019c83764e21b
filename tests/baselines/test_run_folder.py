from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import fake_dataset as made
from helpers.small_runs import (
    before_step,
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
from threedident.baselines.training.run_folder import ENCODER, RESULT, encoder_digest
from threedident.datasets.dataset import ThreeDIdent
from threedident.errors import DatasetError, UsageError


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


def test_other_images_of_the_same_latents_are_refused(tmp_path: Path) -> None:
    """Those of another preset, engine or quality."""
    one, other = (made.as_rendered(tmp_path / f"d{k}", 80, side=32, noise=k) for k in range(2))
    experiment, out = of_images("table4-supervised"), tmp_path / "run"
    result = run(experiment, out, data=one)
    for steps in (3, 4):  # 4: it goes on
        with pytest.raises(UsageError, match=f"on other images of the same latents, .*{one}"):
            run(experiment.changed({"training.steps": steps}), out, data=other)
    assert run(experiment, out, data=one) == result
    with pytest.raises(UsageError, match="was scored on other images of the same latents"):
        run(experiment, out, data=one, test=other)


def test_other_test_images_are_refused_by_finished_and_unfinished_runs(
    tmp_path: Path, images: Path
) -> None:
    places = [tmp_path / "test", tmp_path / "other"]
    for seed, place in enumerate(places):
        raw = np.random.default_rng(seed).uniform(-1, 1, (40, 10))
        made.make(place, 40, side=32, raw=raw)
    experiment, out = of_images("table4-supervised"), tmp_path / "run"
    result = run(experiment, out, data=images, test=places[0])
    refusal = rf"was scored on other images: .*{places[0]} .*asked for {places[1]} .*another --out"
    for steps in (3, 4):  # 4: it goes on
        asked = experiment.changed({"training.steps": steps})
        with pytest.raises(UsageError, match=refusal):
            run(asked, out, data=images, test=places[1])
    for options in ({}, {"test": places[0]}):
        assert run(experiment, out, data=images, **options) == result
    run(experiment, tmp_path / "alone", data=images)
    with pytest.raises(UsageError, match=rf"scored on other images: those of {images} "):
        run(experiment, tmp_path / "alone", data=images, test=places[1])


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


def test_one_process_at_a_time(tmp_path: Path) -> None:
    from threedident.baselines.training.run_folder import only_one

    with only_one(tmp_path / "run"), pytest.raises(UsageError, match="another process trains"):
        run(small(), tmp_path / "run")


def test_the_digest_of_an_encoder_is_that_of_its_file(tmp_path: Path) -> None:
    (tmp_path / ENCODER).write_bytes(b"weights")
    first = encoder_digest(tmp_path)
    assert first == hashlib.sha256(b"weights").hexdigest()
    (tmp_path / ENCODER).write_bytes(b"others")
    assert encoder_digest(tmp_path) != first
    with pytest.raises(DatasetError, match="cannot be read"):
        encoder_digest(tmp_path / "nowhere")
