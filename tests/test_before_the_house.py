"""What was written before the code was rearranged opens, and goes on, as it did."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from threedident.cli import main

OLD = Path(__file__).parent / "data" / "before_the_house"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy to work on."""
    return Path(shutil.copytree(OLD, tmp_path / "old"))


def run(*words: object) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("name", ["test", "pairs", "test-packed.h5"])
def test_old_datasets_are_whole(old: Path, name: str) -> None:
    run("verify", old / name)
    assert json.loads(run("info", old / name, "--json"))["settings"]["preset"]["name"] == "3dident"


OPTIONS = (
    *("--engine", "direct", "--quality", "draft", "--resolution", 16, "--n", 64),
    *("--shard-size", 32, "--seed", 7, "--split", "test", "--workers", 1, "--out"),
)


def test_an_old_dataset_has_the_latents_that_are_drawn_today_and_nearly_their_images(
    old: Path,
) -> None:
    from threedident import ThreeDIdent

    run("render", *OPTIONS, old / "again")
    after, before = ThreeDIdent(old / "again"), ThreeDIdent(OLD / "test-packed.h5")
    np.testing.assert_array_equal(after.raw_latents, before.raw_latents)
    images = [np.stack([data[i][0] for i in range(64)]).astype(float) for data in (after, before)]
    # Drafts by other samples.
    assert 0.1 < np.abs(images[0] - images[1]).mean() < 3


def test_an_old_dataset_does_not_go_on_with_other_pixels(old: Path) -> None:
    (old / "test" / "shard-00000032-00032.h5").unlink()
    for words in (("render", *OPTIONS, old / "test"), ("render", "--extend", old / "test")):
        result = CliRunner().invoke(main, [str(word) for word in words])
        assert result.exit_code == 2, result.output
        assert "have changed (recipe 1, now 2), and a dataset does not mix them" in result.output
        assert "use that version of the toolkit, or render all of it anew" in result.output
    assert not (old / "test" / "shard-00000032-00032.h5").exists()


def test_an_old_run_is_continued_from_its_checkpoint(old: Path) -> None:
    run("train", "--resume", old / "run-killed", "--threads", 1)
    result = json.loads((old / "run-killed" / "result.json").read_text())
    whole = json.loads((OLD / "run-whole" / "result.json").read_text())
    assert result["steps"] == whole["steps"] == 400
    # The same to the last bit on the machine that wrote it; elsewhere sums differ in theirs.
    assert result["scores"] == pytest.approx(whole["scores"], abs=0.05)
    lines = [
        (old / name / "metrics.csv").read_text().splitlines()
        for name in ("run-killed", "run-whole")
    ]
    first = [[float(cell) for cell in each[3].split(",")[:3]] for each in lines]  # just behind it
    assert first[0][2] == pytest.approx(first[1][2], rel=1e-3)


def test_an_old_encoder_encodes(old: Path) -> None:
    import torch

    from threedident.baselines import load_encoder

    encoder = load_encoder(old / "run" / "encoder.pt")
    with torch.no_grad():
        codes = encoder(torch.zeros(3, 2))
    assert codes.shape == (3, 2)
    assert torch.isfinite(codes).all()


def test_old_scores_come_out_again(old: Path) -> None:
    run(
        *("evaluate", old / "codes.npy", "--data", old / "test", "--out", old / "again"),
        *("--metrics", "linear_r2,mcc,dci", "--bootstrap", 100),
    )
    before = json.loads((OLD / "scores" / "scores.json").read_text())
    after = json.loads((old / "again" / "scores.json").read_text())
    assert after.keys() == before.keys()
    for name in ("linear_r2", "mcc", "dci"):
        one, other = (scores["scores"][name] for scores in (before, after))
        assert other.keys() == one.keys()
        for key in ("value", "interval", "per_factor"):
            assert other[key] == pytest.approx(one[key], abs=1e-6)


def test_an_old_leaderboard_is_listed_shown_and_checked(old: Path) -> None:
    assert "Mixed latents" in run("leaderboard", "list", "--board", old / "board")
    run("leaderboard", "html", "--board", old / "board", "--out", old / "site")
    assert "Mixed latents" in (old / "site" / "index.html").read_text()
    checked = run("leaderboard", "check", "mixed", "--board", old / "board", "--data", old / "test")
    assert "it holds" in checked
    scores, codes = old / "scores" / "scores.json", old / "codes.npy"
    run("leaderboard", "add", scores, "--submission", codes, "--board", old / "another")
