"""Entries scored again."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from helpers.boards import LINK, linear_encoder, said
from helpers.commands import run_command
from helpers.fake_scores import (
    make_manifest,
)

from threedident.datasets.dataset import ThreeDIdent
from threedident.errors import UsageError
from threedident.evaluate.evaluation import evaluate, write
from threedident.evaluate.leaderboard import reverify as recheck_module
from threedident.evaluate.leaderboard.add import add, as_toml
from threedident.evaluate.leaderboard.entries import find_runs, read_run
from threedident.evaluate.leaderboard.reverify import (
    EncoderChoice,
    check_fresh_seed,
    recheck,
    render_fresh,
)
from threedident.evaluate.metric_report import MetricReport
from threedident.evaluate.submissions.manifest import MANIFEST_FILE as BESIDE
from threedident.latents import sample_raw_latents
from threedident.render.direct import engine as direct

SMALL = ("--engine", "direct", "--quality", "draft", "--resolution", "16", "--workers", "1")


CUBE = ("--shape", "cube")


def render(root, name, *options):
    run_command("render", *SMALL, "--out", root / name, *options)
    return root / name


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """A test set of 300 small images, and a board of encoders that were really scored on it.

    `honest` has learned from other images, `cheat` from the test set itself.
    """
    root = tmp_path_factory.mktemp("scored")
    render(root, "test", "--split", "test", "--seed", "7", "--n", "300")
    test = ThreeDIdent(root / "test")
    images = test.images(range(300)).permute(0, 2, 3, 1).numpy()
    taught = sample_raw_latents(range(500), seed=0, split="train")
    seen = direct.render(taught, "3dident", resolution=16, quality="draft", device="cpu")
    for name, *data, ridge in (
        ("honest", seen, taught, 1.0),
        ("cheat", images, test.raw_latents.numpy(), 1e-6),
    ):
        folder = root / name
        folder.mkdir()
        linear_encoder(folder / "encoder.onnx", *data, ridge)
        other = {"track": "supervised", "conditional": None, "width": None, "name": name}
        (folder / BESIDE).write_text(as_toml(make_manifest(name, 0, **other)))
        write(evaluate(folder / "encoder.onnx", root / "test", bootstrap=200), folder / "out")
        add(
            folder / "out" / "scores.json",
            root / "board",
            submission=folder / "encoder.onnx",
        )
    return root


def test_an_entry_holds_on_the_data_it_was_scored_on(scored):
    words = ("--board", scored / "board", "--data", scored / "test")
    found = said("check", "honest", *words).splitlines()
    assert found[0] == "honest, seed 0"
    assert found[1].startswith("  linear_r2: claimed 0.")
    assert found[-1] == "  it holds"
    assert "it holds" in said("check", "cheat", *words)


def test_scores_that_were_changed_do_not_hold(scored, tmp_path):
    run = find_runs("honest", scored / "board")[0]
    for path, by in (("scores.mcc.value", 2e-6), ("scores.linear_r2.per_factor.psi", -0.01)):
        scores = json.loads((run.folder / "scores.json").read_text())
        place = scores
        for key in path.split("."):
            before, place = place, place[key]
        before[path.split(".")[-1]] += by
        shutil.rmtree(tmp_path / "board", ignore_errors=True)
        shutil.copytree(scored / "board", tmp_path / "board")
        folder = tmp_path / "board" / "entries" / "honest" / "0"
        (folder / "scores.json").write_text(json.dumps(scores))
        found = said("check", folder, "--data", scored / "test", code=1)
        assert f"fault: {path.split('.')[1]} differs by {abs(by):.1e}, more than 1e-06" in found
        assert found.splitlines()[-1] == "  it does not hold"


def test_another_submission_or_another_test_set(scored, small_dataset, tmp_path):
    run = find_runs("honest", scored / "board")[0]
    with pytest.raises(UsageError, match=r"is not the test set that .* its fingerprint is"):
        recheck(run, small_dataset, EncoderChoice())
    found = recheck(run, scored / "test", EncoderChoice(str(scored / "cheat" / "encoder.onnx")))
    assert any(fault.startswith("the submission's sha256 is") for fault in found.faults)
    folder = tmp_path / "honest" / "0"
    shutil.copytree(run.folder, folder)
    (folder / "encoder.onnx").write_bytes(b"something else")
    with pytest.raises(UsageError, match=r"encoder.onnx is not what was scored"):
        recheck(read_run(folder), scored / "test", EncoderChoice())
    note = json.loads((folder / "submission.json").read_text())
    (folder / "submission.json").write_text(json.dumps({**note, "file": None, "link": LINK}))
    with pytest.raises(UsageError, match=f"get it from {LINK}, and give it with --submission"):
        recheck(read_run(folder), scored / "test", EncoderChoice())


def test_python_needs_trust(scored, tmp_path):
    run = find_runs("honest", scored / "board")[0]
    (tmp_path / "theirs.py").write_text("raise SystemExit('it ran')\n")
    with pytest.raises(UsageError, match="Add --trust if you know who made it"):
        recheck(run, scored / "test", EncoderChoice("theirs:factory"))


def test_on_fresh_images_an_honest_entry_holds_and_a_cheat_does_not(scored, tmp_path):
    words = ("--board", scored / "board", "--fresh", 99, "--n", 300, "--out", "fresh")
    found = said("check", "honest", *words).splitlines()
    assert any("on fresh images 0." in line for line in found)
    assert found[-1] == "  it holds"
    fresh = ThreeDIdent(tmp_path / "fresh")
    old = ThreeDIdent(scored / "test")
    assert len(fresh) == 300
    assert not np.isin(fresh.raw_latents, old.raw_latents).any()
    first, second = (d.source.manifest.settings for d in (fresh, old))
    assert {**first, "seed": 7} == second
    assert (first["seed"], first["split"]) == (99, "test")
    found = said("check", "cheat", *words, code=1)
    assert "fault: linear_r2 is lower on fresh images than both intervals allow" in found
    assert "it does not hold" in found


def test_a_preset_that_was_changed_is_known_by_its_fingerprint(scored, tmp_path):
    data = render(tmp_path, "cubes", *("--split", "test", "--seed", "7", "--n", "40"), *CUBE)
    shutil.copytree(scored / "honest", tmp_path / "cube")
    write(evaluate(tmp_path / "cube" / "encoder.onnx", data, bootstrap=0), tmp_path / "out")
    run, _ = add(tmp_path / "out" / "scores.json", tmp_path / "board", link=LINK)
    assert run.scores.data.preset == "3dident"  # the name alone would mislead
    with pytest.raises(UsageError, match="--data TEST, that test set, says what did"):
        render_fresh(run, 99, tmp_path / "fresh", count=8, workers=1)
    assert not (tmp_path / "fresh").exists()
    render_fresh(run, 99, tmp_path / "fresh", count=8, workers=1, data=data)
    assert ThreeDIdent(tmp_path / "fresh").preset.shape == "cube"
    with pytest.raises(UsageError, match="is not the test set that"):
        render_fresh(run, 99, tmp_path / "other", count=8, data=scored / "test")


def test_seeds_that_an_entry_knows_are_refused(scored):
    run = find_runs("honest", scored / "board")[0]
    for seed in (0, 7):  # trained on, scored on
        with pytest.raises(UsageError, match=f"--fresh {seed}: the entry 'honest' was trained"):
            check_fresh_seed(run, seed)
    check_fresh_seed(run, 1)


def test_scores_without_intervals_hold_within_the_fresh_ones():
    score = MetricReport.from_dict({"value": 0.9, "interval": [0.88, 0.92]})
    bare = MetricReport.from_dict({"value": 0.93, "interval": None})
    assert recheck_module._lower(bare, score) == pytest.approx(0.91)
    assert recheck_module._upper(score) == 0.92
    assert recheck_module._lower(score, bare) == 0.88
    assert recheck_module._upper(bare) == 0.93
