"""The leaderboard: what it takes in, how it ranks, what its page says, and checks of entries."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import statistics
import tomllib

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from helpers.commands import run_command
from helpers.fake_dataset import as_rendered
from helpers.fake_scores import (
    HOSTILE,
    Structure,
    changed,
    fill,
    hostile_run,
    make_manifest,
    make_scores,
    put,
    written,
)

from threedident.cli import main
from threedident.datasets.dataset import ThreeDIdent
from threedident.errors import UsageError
from threedident.evaluate.evaluation import evaluate, write
from threedident.evaluate.leaderboard import reverify as recheck_module
from threedident.evaluate.leaderboard.entries import add, as_toml, find_runs, read_board, read_run
from threedident.evaluate.leaderboard.page import index, write_site
from threedident.evaluate.leaderboard.published_scores import TABLE_4
from threedident.evaluate.leaderboard.ranking import average, make_rows, remarks
from threedident.evaluate.leaderboard.reverify import (
    Encoder,
    check_fresh_seed,
    recheck,
    render_fresh,
)
from threedident.evaluate.scores_file import check_scores, read_scores
from threedident.evaluate.submissions.manifest import NAME as BESIDE
from threedident.latents import sample_raw_latents
from threedident.render.direct import engine as direct

LINK = "https://example.org/encoder.onnx"


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A board of entries of every sort. Read it; to change it, take a copy."""
    root = tmp_path_factory.mktemp("filled")
    fill(root / "board")
    return root / "board"


@pytest.fixture
def board(filled, tmp_path):
    """One to be changed."""
    return shutil.copytree(filled, tmp_path / "board")


# What is taken in.


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
    assert read_board(tmp_path / "board")[0].manifest["authors"] == old["authors"]


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


def test_runs_of_an_entry_may_name_files_of_their_own(tmp_path):
    for seed in range(2):
        scores = make_scores(seed=seed, submission=f"encoder-{seed}.onnx")
        add(written(scores, tmp_path / "out"), tmp_path / "board", link=LINK)
    assert len(read_board(tmp_path / "board")) == 2


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


MANY = {"a": 1}
for _ in range(30):
    MANY = {"a": MANY}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("extra", 1, "unknown field 'extra'"),
        ("format", "3dident", "expected format 3dident-scores in version 1"),
        ("format_version", 2, "in version 2"),
        ("created", 3, "created must be text"),
        ("toolkit", "x" * 5000, "at most 4000 characters"),
        ("libraries", [], "libraries must be an object"),
        ("libraries.numpy", 1, "libraries.numpy must be text"),
        ("submission.kind", "pickle", "submission.kind must be one of embeddings, onnx"),
        ("submission.sha256", "abc", "submission.sha256 must be a SHA-256"),
        ("submission.sha256", None, "submission.sha256 must be a SHA-256"),
        ("submission.codes", 0, "submission.codes must be a whole number of at least 1"),
        ("submission.codes", True, "submission.codes must be a whole number"),
        ("submission.manifest.entry", "../../etc", "entry must be an id"),
        ("submission.manifest.entry", "", "entry must be"),
        ("submission.manifest.seed", -1, "seed must be a whole number"),
        ("submission.manifest.seed", None, "seed is missing"),
        ("submission.manifest.link", "javascript:alert(1)", "link must begin with https://"),
        ("submission.manifest.name", "x" * 200, "name must be text of 1 to 80"),
        ("submission.manifest.name", "a\u202eb", "invisible"),
        ("submission.manifest.track", "best", "track must be one of supervised"),
        ("submission.manifest.more", "x", "unknown field 'more'"),
        ("data.fingerprint", None, "data.fingerprint must be a SHA-256"),
        ("data.images", 1.5, "data.images must be a whole number"),
        ("data.factors", [], "data.factors names no factor"),
        ("data.factors", "x", "data.factors must be a list"),
        ("data.engine", {"name": "direct"}, "data.engine.version must be text"),
        ("data.best_r2", {"x": "1"}, "data.best_r2.x must be a finite number"),
        ("settings.folds", 3, "settings.folds must be one of 2, single, in-sample"),
        ("settings.bootstrap", -1, "settings.bootstrap must be"),
        ("settings.seed", [], "settings.seed must be"),
        ("settings.other", {"a": 1e300}, "without bounds"),
        ("settings.other", MANY, "nested too deeply"),
        ("settings.other", "\ud800", "half of a character"),
        ("scores", {}, "scores holds no metric"),
        ("scores.best_ever", {"value": 1}, "'best_ever' is no metric"),
        ("scores.mcc.value", 1.01, "scores.mcc.value must lie in \\[0, 1\\]"),
        ("scores.mcc.value", -0.1, "scores.mcc.value must lie in \\[0, 1\\]"),
        ("scores.linear_r2.value", 1.01, "scores.linear_r2.value must lie in \\[-inf, 1\\]"),
        ("scores.mcc.value", math.nan, "without bounds"),
        ("scores.mcc.value", "1", "must be a finite number"),
        ("scores.mcc.value", True, "must be a finite number"),
        ("scores.mcc.interval", [0.9, 0.8], "must be \\[low, high\\]"),
        ("scores.mcc.interval", [0.9], "must be \\[low, high\\]"),
        ("scores.mcc.per_factor", {"x": 2}, "scores.mcc.per_factor.x must lie"),
        ("scores.mcc.per_factor_interval", {"x": 3}, "must be \\[low, high\\]"),
        ("scores.mcc.parts", [], None),
        ("scores.mcc.parts", [1], "scores.mcc.parts must be an object"),
        ("warnings", {}, "warnings must be a list"),
        ("warnings", [{"code": "x"}], "warnings\\[0\\].message must be text"),
        ("scores.linear_r2.value", -3.5, None),
        ("scores.mcc.value", None, None),
        ("scores.mcc.interval", [None, None], None),
        ("data.engine", None, None),
    ],
)
def test_scores_are_read_strictly(path, value, message):
    scores = changed(make_scores(), path, value)
    if message is None:
        assert check_scores(scores, "a.json") == scores
        return
    with pytest.raises(UsageError, match=message) as caught:
        check_scores(scores, "a.json")
    assert str(caught.value).startswith("a.json")
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("key", list(make_scores()))
def test_every_part_is_needed(key):
    scores = make_scores()
    del scores[key]
    with pytest.raises(UsageError, match=f"the document lacks {key}"):
        check_scores(scores, "a.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[]", "the document must be an object"),
        (b"{", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"a": NaN}', "NaN is no finite number"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "is not JSON"),
        (b" " * 8_000_001, "larger than the 8000000 bytes"),
    ],
)
def test_files_that_are_no_scores(tmp_path, content, message):
    path = tmp_path / "scores.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read_scores(path)
    with pytest.raises(UsageError, match="cannot read"):
        read_scores(tmp_path / "missing.json")


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


# How it ranks.


def test_mean_and_standard_deviation_over_seeds():
    values = [0.953, 0.951, 0.955]
    found = average(values)
    assert found.mean == pytest.approx(statistics.mean(values))
    assert found.std == pytest.approx(statistics.stdev(values))
    assert average([0.5]).std is None
    assert average([0.1] * 3).mean == pytest.approx(0.1)


def by_name(rows):
    return {row.name: row for row in rows}


def test_ranks_are_within_a_track_for_each_metric(filled):
    rows = by_name(make_rows(read_board(filled)))
    normal, laplace = rows["Exact normal pairs"], rows["Exact Laplace pairs"]
    assert normal.averages["linear_r2"].mean == pytest.approx(0.953)
    assert normal.averages["linear_r2"].std == pytest.approx(0.002)
    assert (normal.averages["linear_r2"].rank, laplace.averages["linear_r2"].rank) == (2, 1)
    assert (normal.averages["mcc"].rank, laplace.averages["mcc"].rank) == (1, 2)
    trained = rows["A supervised one"]
    assert trained.preliminary and trained.seeds == 2
    assert trained.averages["mcc"].rank is None
    assert not trained.verifiable and normal.verifiable
    assert not normal.preliminary


def test_others_of_equal_score_share_a_rank(tmp_path):
    for entry, r2 in (("a", 0.9), ("b", 0.9), ("c", 0.8), ("d", 0.95)):
        for seed in range(3):
            put(tmp_path / "board", make_scores(entry, seed, r2, name=entry))
    for seed in range(2):
        put(tmp_path / "board", make_scores("e", seed, 0.99, name="e"))
    rows = make_rows(read_board(tmp_path / "board"), published=False)
    ranks = [(row.name, row.averages["linear_r2"].rank) for row in rows]
    assert ranks == [("d", 1), ("a", 2), ("b", 2), ("c", 4), ("e", None)]


def test_data_and_settings_part_ranks(tmp_path):
    board = tmp_path / "board"
    other = ("data.fingerprint", "cd" * 32), ("settings.folds", "single"), ("data.images", 100)
    for number, change in enumerate([None, *other]):
        for seed in range(3):
            scores = make_scores(f"entry-{number}", seed, 0.9 + number / 100, name=f"{number}")
            put(board, changed(scores, *change) if change else scores)
    harmless = changed(make_scores("entry-4", 0), "settings.bootstrap", 0)
    put(board, changed(harmless, "settings.codes", 7))
    rows = make_rows(read_board(board), published=False)
    assert [row.averages["linear_r2"].rank for row in rows if not row.preliminary] == [1] * 4
    assert len({row.data_key for row in rows}) == 4
    first, *rest = remarks(rows)
    assert first.startswith("Entries were scored on 4 different test sets or with different")
    assert len(rest) == 3
    assert {line.rsplit(": ", 1)[1] for line in rest} <= {
        *("fingerprint", "settings.folds", "images"),
        *("fingerprint, settings.folds", "fingerprint, images", "images, settings.folds"),
    }
    assert not remarks(rows[:1])


def test_seeds_scored_on_different_data_are_no_row(tmp_path):
    board = tmp_path / "board"
    for seed in range(3):
        put(board, changed(make_scores(seed=seed), "data.fingerprint", f"{seed // 2:064x}"))
    rows = make_rows(read_board(board), published=False)
    assert sorted(row.seeds for row in rows) == [1, 2]
    assert all(row.preliminary for row in rows)


def test_a_metric_that_a_seed_lacks_is_not_averaged(tmp_path):
    board = tmp_path / "board"
    for seed in range(3):
        scores = make_scores(seed=seed)
        if seed == 1:
            scores["scores"]["mcc"]["value"] = None
        put(board, scores)
    (row,) = make_rows(read_board(board), published=False)
    assert list(row.averages) == ["linear_r2"]


def test_the_papers_rows_are_there_and_not_ranked(filled):
    rows = [row for row in make_rows(read_board(filled)) if row.published]
    assert len(rows) == len(TABLE_4) == 7
    found = by_name(rows)
    assert found["Supervised"].averages["linear_r2"].mean == 0.9867
    assert found["Normal pairs, box, Normal loss"].averages["mcc"].mean == 0.9831
    assert found["Normal pairs, box, Normal loss"].averages["mcc"].std == 0.0004
    assert found["Normal pairs, sphere, vMF loss"].averages["mcc"].std == 0.0327
    assert "mcc" not in found["Identity (the pixels)"].averages
    assert all(a.rank is None for row in rows for a in row.averages.values())
    assert not any(row.preliminary or row.verifiable for row in rows)


# What the page says.


def test_the_page(filled, tmp_path):
    runs = read_board(filled)
    path = write_site(runs, tmp_path / "site")
    text = path.read_text("utf-8")
    found = Structure(text)
    for words in (
        "published, not re-run",
        "preliminary: 2 of 3 seeds",
        "embeddings: not verifiable on fresh data",
        "hyper-parameters chosen on the test set, as declared",
        "0.9530 ± 0.0020",
        "0.9831 ± 0.0004",
        "Entries were scored on 2 different test sets",
        "R2 0.9530 [0.9490, 0.9570]",
        "the generator is not injective; see best R2",
    ):
        assert words in found.text, words
    links = [value for _, name, value in found.attributes if name == "href"]
    reports = [link for link in links if link.startswith("entries/")]
    assert len(reports) == len(runs) == 9
    for link in reports:
        source = filled / link
        assert (path.parent / link).read_bytes() == source.read_bytes()
    assert {link.split(":")[0] for link in links if link not in reports} == {"https"}
    assert found.names.count("script") == 1
    policy = next(v for t, n, v in found.attributes if (t, n) == ("meta", "content"))
    assert "script-src 'sha256-" in policy and "unsafe" not in policy
    assert "hidden" in [n for t, n, v in found.attributes if t == "div"]  # controls, until a script


def test_the_page_is_the_same_each_time(filled, tmp_path):
    first = write_site(read_board(filled), tmp_path / "a").read_bytes()
    assert write_site(read_board(filled)[::-1], tmp_path / "b").read_bytes() == first
    assert write_site(read_board(filled), tmp_path / "a").read_bytes() == first


def test_the_page_can_lie_in_the_board_itself(board):
    write_site(read_board(board), board)
    assert len(read_board(board)) == 9


def test_whatever_an_entry_says_is_text(filled, tmp_path):
    plain = Structure(index(make_rows(read_board(filled))))
    text = index(make_rows([*read_board(filled), hostile_run(tmp_path / "hostile")]))
    found = Structure(text)
    assert set(found.names) == set(plain.names)
    assert {n for _, n, _ in found.attributes} == {n for _, n, _ in plain.attributes}
    assert found.names.count("script") == 1
    assert not [v for _, n, v in found.attributes if n == "href" and "javascript" in v]
    assert "\u202e" not in text
    assert HOSTILE["authors"][0] in found.text
    assert HOSTILE["link"] in found.text


def test_a_board_without_entries_shows_the_papers_rows(tmp_path):
    text = index(make_rows([]))
    assert Structure(text).text.count("published, not re-run") == 7 + 1


# The command line.


def said(*words, code=0):
    """What `3dident leaderboard` prints, in this process."""
    found = CliRunner().invoke(main, ["leaderboard", *map(str, words)])
    assert found.exit_code == code, found.output
    assert isinstance(found.exception, SystemExit | None), found.exception
    return found.output


def test_add_list_and_html(cli, tmp_path):
    for seed in range(3):
        path = written(make_scores(seed=seed, r2=0.95 + seed / 100), tmp_path / f"out{seed}")
        assert said("add", path, "--link", LINK) == f"added leaderboard/entries/an-entry/{seed}\n"
    assert said("add", "out0/scores.json", "--link", LINK).startswith("there already: ")
    lines = cli("leaderboard", "list").stdout.splitlines()
    assert lines[0].split()[:4] == ["rank", "track", "entry", "seeds"]
    mine = next(line for line in lines if "An entry" in line)
    assert mine.split()[:5] == ["1", "exact", "pairs", "An", "entry"]
    assert "0.9600 +- 0.0100" in mine
    assert sum("(published)" in line for line in lines) == 7
    assert "(published)" not in said("list", "--no-published")
    assert said("html", "--out", "site") == "wrote site/index.html\n"
    assert "An entry" in (tmp_path / "site" / "index.html").read_text("utf-8")


def test_the_table_as_data_and_before_any_entry(filled):
    found = json.loads(said("list", "--json", "--board", filled))
    rows = {row["name"]: row for row in found["rows"]}
    assert rows["Exact normal pairs"]["scores"]["mcc"]["rank"] == 1
    assert rows["Exact normal pairs"]["entry"] == "normal"
    assert rows["Exact normal pairs"]["seeds"] == 3
    assert rows["Supervised"]["published"]
    assert len(found["remarks"]) == 2
    lines = said("list").splitlines()
    assert sum("(published)" in line for line in lines) == 7
    assert lines[-1].startswith("there are no entries yet: `3dident leaderboard add` makes")
    assert len(json.loads(said("list", "--json"))["rows"]) == 7


def test_data_are_named_as_in_the_report(filled):
    """By the first digits of the fingerprint, which stands in both."""
    run = find_runs("normal", filled)[0]
    fingerprint = run.scores["data"]["fingerprint"]
    row = by_name(make_rows(read_board(filled)))["Exact normal pairs"]
    assert row.data_key.split("-")[0] == fingerprint[:8]
    assert fingerprint in Structure((run.folder / "report.html").read_text("utf-8")).text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("add", "missing.json", "--link", LINK), "cannot read missing.json"),
        (("list", "--board", "nothing"), "nothing is no leaderboard"),
        (("check", "normal"), "what shall it be scored on?"),
        (("check", "no-entry", "--fresh", "5"), "there is no entry 'no-entry'"),
        (("check", "../x", "--fresh", "5"), "there is no entry '../x'"),
        (("check", "normal", "--fresh", "0"), "was trained or scored on images of that seed"),
        (("check", "normal", "--fresh", "7"), "was trained or scored on images of that seed"),
        (("check", "normal", "--fresh", "-1"), "the seed must lie in"),
        (("check", "trained", "--fresh", "5"), "hold no encoder that could be run on another"),
        (("check", "normal", "--fresh", "5"), "does not keep its submission: get it from https://"),
        (("check", "normal", "--fresh", "5", "--submission", "x:y"), "Add --trust if you know"),
        (
            ("check", "normal", "--fresh", "5", "--submission", "x:y", "--trust"),
            "what rendered its test set is not known",
        ),
        (
            ("check", "normal", "--data", "nothing", "--submission", "reference:random"),
            "cannot open nothing as a dataset",
        ),
    ],
)
def test_commands_that_do_not_fit(filled, words, message):
    words = words if words[0] == "add" or "--board" in words else (*words, "--board", filled)
    assert message in said(*words, code=2)


# Entries, scored again.

SMALL = ("--engine", "direct", "--quality", "draft", "--resolution", "16", "--workers", "1")
CUBE = ("--shape", "cube")


def render(root, name, *options):
    run_command("render", *SMALL, "--out", root / name, *options)
    return root / name


def linear_encoder(path, images, latents, ridge):
    """An ONNX file: pixels to latents, by ridge regression on images (N, 16, 16, 3)."""
    pixels = images.transpose(0, 3, 1, 2).reshape(len(images), -1) / 255
    center, mean = pixels.mean(0), latents.mean(0)
    centred = pixels - center
    gram = centred @ centred.T + ridge * np.eye(len(centred))
    weights = centred.T @ np.linalg.solve(gram, latents - mean) / 255
    offset = mean - 255 * center @ weights
    helper = onnx.helper
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["images"], ["numbers"], to=onnx.TensorProto.FLOAT),
            helper.make_node("Flatten", ["numbers"], ["flat"]),
            helper.make_node("Gemm", ["flat", "weights", "offset"], ["codes"]),
        ],
        "linear",
        [helper.make_tensor_value_info("images", onnx.TensorProto.UINT8, ["B", 3, 16, 16])],
        [helper.make_tensor_value_info("codes", onnx.TensorProto.FLOAT, ["B", 10])],
        [
            onnx.numpy_helper.from_array(array.astype(np.float32), name)
            for name, array in (("weights", weights), ("offset", offset))
        ],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)


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
        recheck(run, small_dataset, Encoder())
    found = recheck(run, scored / "test", Encoder(str(scored / "cheat" / "encoder.onnx")))
    assert any(fault.startswith("the submission's sha256 is") for fault in found.faults)
    folder = tmp_path / "honest" / "0"
    shutil.copytree(run.folder, folder)
    (folder / "encoder.onnx").write_bytes(b"something else")
    with pytest.raises(UsageError, match=r"encoder.onnx is not what was scored"):
        recheck(read_run(folder), scored / "test", Encoder())
    note = json.loads((folder / "submission.json").read_text())
    (folder / "submission.json").write_text(json.dumps({**note, "file": None, "link": LINK}))
    with pytest.raises(UsageError, match=f"get it from {LINK}, and give it with --submission"):
        recheck(read_run(folder), scored / "test", Encoder())


def test_python_needs_trust(scored, tmp_path):
    run = find_runs("honest", scored / "board")[0]
    (tmp_path / "theirs.py").write_text("raise SystemExit('it ran')\n")
    with pytest.raises(UsageError, match="Add --trust if you know who made it"):
        recheck(run, scored / "test", Encoder("theirs:factory"))


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
    assert run.scores["data"]["preset"] == "3dident"  # the name alone would mislead
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
    score = {"value": 0.9, "interval": [0.88, 0.92]}
    bare = {"value": 0.93, "interval": None}
    assert recheck_module._lower(bare, score) == pytest.approx(0.91)
    assert recheck_module._upper(score) == 0.92
    assert recheck_module._lower(score, bare) == 0.88
    assert recheck_module._upper(bare) == 0.93
