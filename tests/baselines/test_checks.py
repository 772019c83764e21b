from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import fake_dataset as made
from helpers.small_runs import (
    IMAGES,
    of_images,
    run,
    small,
)

from threedident.baselines.data import make_problem
from threedident.baselines.experiment import (
    load_experiment,
    parse_experiment,
    parse_setting,
)
from threedident.baselines.training.loop import train
from threedident.datasets.dataset import ThreeDIdent
from threedident.distributions import Laplace
from threedident.errors import UsageError
from threedident.render.dataset import render_dataset


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
    (scored,) = (x for x in done.stdout.splitlines() if x.startswith("linear_r2_batch_statistics"))
    assert scored.endswith("own statistics, as in the published scores)")
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


def test_pairs_that_were_rendered(tmp_path: Path, small_dataset: Path) -> None:
    unset = load_experiment("table4-box").changed(
        dict(map(parse_setting, ["data.pairs=rendered", "data.conditional=null"]))
    )
    assert unset.data.conditional is None
    with pytest.raises(UsageError, match="holds single images"):
        run(unset.changed({"training.batch_size": 4}), tmp_path / "run", data=small_dataset)


def test_a_conditional_that_is_stated_is_that_of_the_images(tmp_path: Path) -> None:
    pytest.importorskip("warp")
    process = {"engine": "direct", "quality": "draft", "resolution": 32}
    render_dataset(tmp_path / "pairs", 16, pairs=Laplace(0.1), **process)
    changes = {"training__batch_size": 8, "training__score_samples": 16, "training__steps": 1}
    exact = of_images("matching-exact-laplace-box-laplace", **changes)
    result = run(exact, tmp_path / "run", data=tmp_path / "pairs")
    assert result["experiment"]["data"]["conditional"] == {"name": "laplace", "lam": 0.1}
    # A run from before the conditional was stated goes on, as its images are the same.
    unstated = exact.changed({"data.conditional": None, "training.steps": 2})
    assert run(unstated, tmp_path / "run", data=tmp_path / "pairs")["steps"] == 2
    for name in ("matching-exact-wide-laplace-box-laplace", "matching-exact-normal-box-normal"):
        with pytest.raises(UsageError, match=r"data\.conditional is .* rendered in pairs of Lapl"):
            run(of_images(name, **changes), tmp_path / name, data=tmp_path / "pairs")


def test_the_old_name_of_the_device_is_accepted_with_a_warning(tmp_path: Path) -> None:
    with pytest.warns(FutureWarning, match="accelerator= is now called device="):
        train(small(training__steps=1), tmp_path / "run", accelerator="cpu", quiet=True)
    with (
        pytest.warns(FutureWarning, match="now called device="),
        pytest.raises(UsageError, match="unknown device 'gpu'"),
    ):
        train(small(), tmp_path / "other", accelerator="gpu", quiet=True)
