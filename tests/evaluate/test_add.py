"""Scores made an entry of a leaderboard."""

from __future__ import annotations

import hashlib
import json
import shutil
import tomllib

import numpy as np
import onnx
import pytest
from helpers.boards import LINK, linear_encoder
from helpers.fake_dataset import as_rendered
from helpers.fake_scores import (
    changed,
    make_manifest,
    make_scores,
    written,
)

from threedident.errors import UsageError
from threedident.evaluate.evaluation import evaluate, write
from threedident.evaluate.leaderboard.add import add, as_toml
from threedident.evaluate.leaderboard.entries import find_runs, read_board, read_run
from threedident.evaluate.leaderboard.reverify import (
    recheck,
)
from threedident.evaluate.submissions.manifest import MANIFEST_FILE as BESIDE


def test_an_entry_is_a_folder_fit_for_a_pull_request(tmp_path):
    scores = make_scores("mine", 3)
    run, new = add(written(scores, tmp_path / "out"), tmp_path / "board", link=LINK)
    assert new
    assert run.folder == tmp_path / "board" / "entries" / "mine" / "3"
    assert sorted(p.name for p in run.folder.iterdir()) == [
        "manifest.toml",
        "report.html",
        "scores.json",
        "submission.json",
    ]
    assert json.loads((run.folder / "scores.json").read_text()) == scores
    assert tomllib.loads((run.folder / "manifest.toml").read_text()) == make_manifest("mine", 3)
    assert json.loads((run.folder / "submission.json").read_text()) == {
        "kind": "onnx",
        "name": "encoder.onnx",
        "sha256": f"{3:064x}",
        "file": None,
        "link": LINK,
        "files": [],
    }
    assert read_board(tmp_path / "board") == [run]
    assert add(tmp_path / "out", tmp_path / "board", link=LINK) == (run, False)
    assert [run] == find_runs("mine", tmp_path / "board") == find_runs(str(run.folder), tmp_path)
    assert [p.name for p in run.folder.parent.iterdir()] == ["3"]  # nothing is left behind


def test_the_submission_is_kept_if_it_is_what_was_scored(tmp_path):
    file = tmp_path / "encoder.onnx"
    file.write_bytes(b"weights")
    path = written(make_scores(), tmp_path / "out")
    with pytest.raises(UsageError, match="is not what was scored: its SHA-256 is not 000"):
        add(path, tmp_path / "board", submission=file)
    assert not (tmp_path / "board").exists()
    digest = hashlib.sha256(b"weights").hexdigest()
    path = written(changed(make_scores(), "submission.sha256", digest), tmp_path / "out")
    run, _ = add(path, tmp_path / "board", submission=file)
    assert (run.folder / "encoder.onnx").read_bytes() == b"weights"
    assert run.submission.file == "encoder.onnx"
    for name in ("report.html", "x.svg", "scores.json", "a b.onnx", "..onnx"):
        shutil.copy(file, tmp_path / name)
        with pytest.raises(UsageError, match="cannot be called"):
            add(path, tmp_path / "other", submission=tmp_path / name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "--submission FILE keeps it with the entry, --link URL says"),
        ({"link": "javascript:alert(1)"}, "--link must begin with https://"),
        ({"submission": "missing.onnx"}, "cannot read .*missing.onnx: No such file"),
    ],
)
def test_an_entry_needs_its_submission(tmp_path, options, message):
    path = written(make_scores(), tmp_path / "out")
    if "submission" in options:
        options = {"submission": tmp_path / options["submission"]}
    with pytest.raises(UsageError, match=message):
        add(path, tmp_path / "board", **options)


def test_scores_of_a_training_split_are_no_entry(tmp_path):
    board = tmp_path / "board"
    said = {"code": "seen_images", "message": "the encoder was trained on images of the same"}
    for scores, reason in (
        (changed(make_scores(), "data.split", "train"), "are of images of the split `train`"),
        (changed(make_scores(), "warnings", [said]), "was trained on images of the same"),
    ):
        path = written(scores, tmp_path / "out")
        with pytest.raises(
            UsageError, match=f"cannot be ranked: .*{reason}.*--split test"
        ) as caught:
            add(path, board, link=LINK)
        assert str(path) in str(caught.value)
    assert not board.exists()
    assert add(written(make_scores(), tmp_path / "out"), board, link=LINK)[1]


def test_the_authors_of_the_template_are_no_authors(tmp_path):
    old = {"authors": ["A. Author", "B. Author"], "link": "https://example.org/paper"}
    path = written(make_scores("our-encoder", name="Our encoder", **old), tmp_path / "out")
    with pytest.raises(UsageError, match="name, authors, link, entry are as in the template"):
        add(path, tmp_path / "board", link=LINK)
    # One that is there stays readable.
    run, _ = add(written(make_scores(), tmp_path / "out"), tmp_path / "board", link=LINK)
    scores = changed(make_scores(), "submission.manifest.authors", old["authors"])
    (run.folder / "scores.json").write_text(json.dumps(scores))
    (run.folder / "manifest.toml").write_text(as_toml(scores["submission"]["manifest"]))
    assert read_board(tmp_path / "board")[0].manifest.authors == tuple(old["authors"])


def two_files(folder):
    """An ONNX file and its weights beside it, as torch writes them by itself."""
    folder.mkdir()
    values = np.arange(768 * 10, dtype=np.float32).reshape(768, 10) / 768
    linear_encoder(folder / "whole.onnx", np.zeros((2, 16, 16, 3)), np.zeros((2, 10)), 1.0)
    model = onnx.load(folder / "whole.onnx")
    weights = next(each for each in model.graph.initializer if each.name == "weights")
    weights.CopyFrom(onnx.numpy_helper.from_array(values, "weights"))
    path = folder / "mine.onnx"
    onnx.save(model, path, save_as_external_data=True, location="mine.onnx.data")
    (folder / "whole.onnx").unlink()
    assert (folder / "mine.onnx.data").is_file()
    (folder / BESIDE).write_text(as_toml(make_manifest(submission="mine.onnx")))
    return path


@pytest.mark.parametrize("named", [True, False])
def test_a_submission_in_two_files_is_kept_with_its_entry(tmp_path, named):
    """Also where scores, of an earlier version, do not name the second one."""
    path = two_files(tmp_path / "mine")
    data = as_rendered(tmp_path / "data", 40, split="test")
    write(evaluate(path, data, bootstrap=0), tmp_path / "out")
    scores = json.loads((tmp_path / "out/scores.json").read_text())
    assert scores["submission"]["files"] == ["mine.onnx.data"]
    if not named:
        del scores["submission"]["files"]
        (tmp_path / "out/scores.json").write_text(json.dumps(scores))
    run, _ = add(tmp_path / "out/scores.json", tmp_path / "board", submission=path)
    assert run.submission.files == ("mine.onnx.data",)
    for name in ("mine.onnx", "mine.onnx.data"):
        assert (run.folder / name).read_bytes() == (path.parent / name).read_bytes()
    assert recheck(run, data).holds
    (run.folder / "mine.onnx.data").write_bytes(b"others")
    with pytest.raises(UsageError, match=r"mine\.onnx is not what was scored"):
        recheck(read_run(run.folder), data)
    (run.folder / "mine.onnx.data").unlink()
    with pytest.raises(UsageError, match=r"names the file 'mine\.onnx\.data', which is not beside"):
        read_run(run.folder)
    (path.parent / "mine.onnx.data").rename(path.parent / "moved")
    said = r"weights were in mine\.onnx\.data, which is not" if named else "put them beside it"
    with pytest.raises(UsageError, match=said):
        add(tmp_path / "out/scores.json", tmp_path / "other", submission=path)


def test_weights_under_a_name_that_cannot_be_kept(tmp_path):
    """The way out that the error names works."""
    path = two_files(tmp_path / "mine")
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="report.html")
    data = as_rendered(tmp_path / "data", 40, split="test")
    write(evaluate(path, data, bootstrap=0), tmp_path / "out")
    with pytest.raises(UsageError, match=r"weights in .report\.html., a name that an entry"):
        add(tmp_path / "out/scores.json", tmp_path / "board", submission=path)
    onnx.save(onnx.load(path), "one.onnx")
    (tmp_path / BESIDE).write_text(as_toml(make_manifest(submission="one.onnx")))
    write(evaluate("one.onnx", data, bootstrap=0), tmp_path / "one")
    run, _ = add(tmp_path / "one/scores.json", tmp_path / "board", submission=tmp_path / "one.onnx")
    assert run.submission.files == ()


def test_a_reference_encoder_needs_no_file(tmp_path):
    scores = changed(
        make_scores(track="other", conditional=None, width=None), "submission.kind", "reference"
    )
    scores = changed(scores, "submission.sha256", None)
    run, _ = add(written(scores, tmp_path / "out"), tmp_path / "board")
    assert run.submission.link is run.submission.file is None


def test_the_same_run_twice_and_another_of_the_same_seed(tmp_path):
    board = tmp_path / "board"
    run, _ = add(written(make_scores(), tmp_path / "out"), board, link=LINK)
    later = changed(make_scores(), "created", "2027-01-01T00:00:00+00:00")
    again, new = add(written(later, tmp_path / "out"), board, link=LINK)
    assert (again, new) == (run, False)
    with pytest.raises(UsageError, match="holds other scores of entry 'an-entry' at seed 0"):
        add(written(make_scores(r2=0.96), tmp_path / "out"), board, link=LINK)
    assert read_board(board) == [run]


def test_runs_of_an_entry_differ_in_their_seeds_alone(tmp_path):
    board = tmp_path / "board"
    add(written(make_scores(seed=0), tmp_path / "out"), board, link=LINK)
    add(written(make_scores(seed=1, data_seeds=[4]), tmp_path / "out"), board, link=LINK)
    other = make_scores(seed=2, method="another", steps=10)
    with pytest.raises(UsageError, match="another manifest: method, steps differ"):
        add(written(other, tmp_path / "out"), board, link=LINK)


def test_scores_without_a_manifest(tmp_path):
    path = written(changed(make_scores(), "submission.manifest", None), tmp_path / "out")
    with pytest.raises(UsageError, match=r"needs a manifest.*--template"):
        add(path, tmp_path / "board", link=LINK)


def test_a_report_with_a_script_is_refused(tmp_path):
    path = written(make_scores(), tmp_path / "out")
    report = path.with_name("report.html")
    for text in (
        "<script>alert(1)</script>" + report.read_text("utf-8"),
        report.read_text("utf-8").replace("<body>", '<body><meta http-equiv="refresh">'),
        "",
    ):
        report.write_text(text, "utf-8")
        with pytest.raises(UsageError, match="is no report that `3dident evaluate` made"):
            add(path, tmp_path / "board", link=LINK)
    report.unlink()
    with pytest.raises(UsageError, match=r"cannot read .*report.html"):
        add(path, tmp_path / "board", link=LINK)


def test_a_manifest_as_toml_reads_as_it_was():
    manifest = {
        **make_manifest(),
        "name": 'quotes " and \\ and \x7f and \x01 and \n',
        "method": "😀 שלום <b>",
        "width": [0.1, 1e-7, 1e22],
        "seed": 2**64 - 1,
    }
    assert tomllib.loads(as_toml(manifest)) == manifest
    assert "link" not in as_toml({**manifest, "link": None})
