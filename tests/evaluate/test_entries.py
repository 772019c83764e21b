"""A leaderboard's entries, read as a stranger's."""

from __future__ import annotations

import json
import shutil

import pytest
from helpers.boards import LINK, by_name
from helpers.fake_scores import (
    Structure,
    changed,
    make_scores,
    written,
)

from threedident.errors import UsageError
from threedident.evaluate.leaderboard.add import add, as_toml
from threedident.evaluate.leaderboard.entries import read_board
from threedident.evaluate.leaderboard.page import index
from threedident.evaluate.leaderboard.ranking import make_rows, remarks


def test_entries_of_a_training_split_are_read_and_not_ranked(filled, tmp_path):
    """Of earlier versions, which took them."""
    board = shutil.copytree(filled, tmp_path / "board")
    for seed in range(3):
        path = board / "entries" / "laplace" / str(seed) / "scores.json"
        path.write_text(json.dumps(changed(json.loads(path.read_text()), "data.split", "train")))
    rows = make_rows(read_board(board))
    laplace, normal = by_name(rows)["Exact Laplace pairs"], by_name(rows)["Exact normal pairs"]
    assert {each.rank for each in laplace.averages.values()} == {None}
    assert {each.rank for each in normal.averages.values()} == {1}
    assert any("Exact Laplace pairs was scored on images of a training" in r for r in remarks(rows))
    assert "scored on a training split: not ranked" in Structure(index(rows)).text


def test_runs_of_an_entry_may_name_files_of_their_own(tmp_path):
    for seed in range(2):
        scores = make_scores(seed=seed, submission=f"encoder-{seed}.onnx")
        add(written(scores, tmp_path / "out"), tmp_path / "board", link=LINK)
    assert len(read_board(tmp_path / "board")) == 2


def test_entries_are_looked_at_again_when_they_are_read(board, tmp_path):
    """What comes in a pull request has not been through `add`."""
    entry = board / "entries" / "normal"
    run = entry / "0"

    def refused(message):
        with pytest.raises(UsageError, match=message):
            read_board(board)
        shutil.rmtree(board)
        shutil.copytree(tmp_path / "good", board)

    shutil.copytree(board, tmp_path / "good")
    run.rename(entry / "7")
    refused("should hold entry 'normal' at seed 7; its scores are of 'normal' at 0")
    (run / "manifest.toml").write_text("name = 'x'\n")
    refused("is not the manifest in scores.json")
    (run / "manifest.toml").write_text("name = \n")
    refused("is not TOML")
    (run / "report.html").write_text("<script>alert(1)</script>")
    refused("is no report")
    (run / "report.html").unlink()
    (run / "report.html").symlink_to("/etc/passwd")
    refused("is a symbolic link")
    shutil.move(run, tmp_path / "elsewhere")
    run.symlink_to(tmp_path / "elsewhere")
    refused("is a symbolic link")
    (run / "submission.json").write_text('{"kind": "onnx"}')
    refused("does not describe a submission")
    note = json.loads((run / "submission.json").read_text())
    for key, value, message in (
        ("sha256", "0" * 63 + "1", "is not of the submission that scores.json is of"),
        ("link", "javascript:alert(1)", "the link must begin with"),
        ("file", "../../../x", "file must be the name of a file beside it"),
        ("file", "gone.onnx", "which is not beside it"),
        ("extra", 1, "does not describe a submission"),
    ):
        (run / "submission.json").write_text(json.dumps({**note, key: value}))
        refused(message)
    scores = json.loads((run / "scores.json").read_text())
    scores["submission"]["manifest"]["method"] = "another"
    (run / "scores.json").write_text(json.dumps(scores))
    (run / "manifest.toml").write_text(as_toml(scores["submission"]["manifest"]))
    refused("another manifest: method differ")
    (board / "entries" / "Not an id").mkdir()
    refused("no folder of an entry has such a name")
    assert len(read_board(board)) == 9
    with pytest.raises(UsageError, match="is no leaderboard"):
        read_board(tmp_path)
