"""Whole evaluations, by the command and in Python."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.fake_dataset import make
from helpers.submissions import (
    AXES,
    COUNT,
    can_have_namespaces,
    codes,
    mean_nodes,
    save_manifest,
    save_onnx,
    scored,
    warned,
)

from threedident.datasets.dataset import ThreeDIdent
from threedident.datasets.formats import open_dataset
from threedident.datasets.formats.convert import to_published
from threedident.encoders import (
    ImageEncoder,
    ResNetEncoder,
    SphereOutput,
    save_encoder,
)
from threedident.errors import DatasetError, UsageError
from threedident.evaluate import evaluation as run
from threedident.evaluate.metrics.registry import all_metrics
from threedident.evaluate.scores_schema import check_scores
from threedident.evaluate.submissions.submission import file_digest

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")


def test_the_same_inputs_give_the_same_scores(tmp_path, root):
    folder = tmp_path / "submission"
    folder.mkdir()
    path = save_onnx(folder / "a.onnx", mean_nodes(), initializers=[AXES])
    save_manifest(folder)
    texts = []
    for out in (tmp_path / "first", tmp_path / "second"):
        run.write(run.evaluate(path, root, bootstrap=100), out)
        assert {p.name for p in out.iterdir()} == {"scores.json", "embeddings.npy", "report.html"}
        lines = (out / "scores.json").read_text().splitlines()
        texts.append([line for line in lines if '"created"' not in line])
        assert len(texts[-1]) == len(lines) - 1
        time.sleep(1.1)  # a time stamp of its own
    assert texts[0] == texts[1]
    scores = json.loads((out / "scores.json").read_text())
    check_scores(scores, "scores.json")
    assert scores["submission"]["sha256"] == file_digest(path)
    assert scores["submission"]["manifest"]["entry"] == "an-entry"
    assert scores["submission"]["network_blocked"] is can_have_namespaces()
    assert scores["data"]["images"] == COUNT
    assert np.load(out / "embeddings.npy").shape == (COUNT, 3)
    kept = run.evaluate(out / "embeddings.npy", root, bootstrap=100).scores
    assert kept["scores"] == scores["scores"]


def test_a_rendered_test_set_and_its_published_form(cli, tmp_path, small_dataset):
    from threedident.evaluate.test_set import TestSet

    encoder = ImageEncoder([0.5] * 3, [0.2] * 3, ResNetEncoder(10), SphereOutput())
    save_encoder(tmp_path / "encoder.pt", encoder)
    words = ("--data", small_dataset, "--bootstrap", 100, "--metrics", "mcc", "--factors", "hue")
    said = cli("evaluate", "reference:encoder=encoder.pt", "--out", "out", *words).stdout
    assert "reference:encoder=encoder.pt: 10 codes of 12 images" in said
    page = (tmp_path / "out/report.html").read_text()
    assert "<title>reference:encoder=encoder.pt: scores</title>" in page
    assert "<h1><bdi>reference:encoder=encoder.pt</bdi></h1>" in page
    assert said.count("warning: ") >= 2
    scores = json.loads((tmp_path / "out/scores.json").read_text())
    for run_or_file in (".", "encoder.pt"):
        cli("evaluate", run_or_file, "--out", "again", *words)
        again = json.loads((tmp_path / "again/scores.json").read_text())
        assert {**again, "created": ""} == {**scores, "created": ""}
    check_scores(scores, "scores.json")
    assert scores["submission"]["name"] == "reference:encoder"  # wherever the file lies
    with open_dataset(small_dataset) as source:
        assert source.manifest is not None
        assert scores["data"]["fingerprint"] == source.manifest.fingerprint
        to_published(source, tmp_path / "published")
    assert scores["data"]["preset"] == "3dident"
    assert scores["data"]["split"] == "train"
    assert scores["data"]["why_no_best_r2"] is None
    assert scores["data"]["factors"] == ["object_hue", "spotlight_hue", "background_hue"]
    assert scores["data"]["best_r2"]["object_hue"] == pytest.approx(0.963, abs=1e-3)
    assert any("hue is not wrapped" in reason for reason in scores["data"]["not_injective"])
    assert scores["submission"]["sha256"] == file_digest(tmp_path / "encoder.pt")
    assert list(scores["scores"]) == ["mcc"]
    published = TestSet.open(tmp_path / "published").record()
    assert published.preset == "3dident"
    (tmp_path / "published/3dident.json").unlink()  # the released dataset says less
    published = TestSet.open(tmp_path / "published").record()
    assert published.preset is None
    assert len(published.fingerprint) == 64
    assert TestSet.open(tmp_path / "published").record().images == 12


def test_what_the_command_refuses(cli, tmp_path, root):
    np.save(tmp_path / "a.npy", codes(count=39))
    said = cli("evaluate", "a.npy", "--data", root, "--out", "out", code=2).stderr
    assert said.startswith("error: a.npy has 39 rows, the test set 40 images")
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()
    assert 'entry = "FILL IN"' in cli("evaluate", "--template").stdout


def test_an_unknown_metric_is_refused_before_anything_runs(tmp_path, root):
    np.save(tmp_path / "a.npy", codes())
    with pytest.raises(UsageError, match="unknown metric 'mmc': expected some of linear_r2"):
        run.evaluate(tmp_path / "a.npy", root, metrics=["mmc"])
    with pytest.raises(UsageError, match="--train is for reference:pca"):
        run.evaluate(tmp_path / "a.npy", root, train=root)
    shutil.rmtree(tmp_path / "none", ignore_errors=True)
    with pytest.raises(DatasetError, match="cannot open"):
        run.evaluate(tmp_path / "a.npy", tmp_path / "none")


def test_best_scores_stand_beside_those_of_uniform_latents_alone(rendered, root):
    np.save("a.npy", codes())
    uniform = scored("a.npy", rendered["test"])
    assert uniform["data"]["best_r2"]["object_hue"] == pytest.approx(0.963, abs=1e-3)
    assert uniform["data"]["why_no_best_r2"] is None
    best = uniform["scores"]["mcc"]["best_per_factor"]["object_hue"]
    assert best == pytest.approx(0.963**0.5, abs=1e-3)
    assert "best R2" in "\n".join(run.summary(uniform))
    for name, reason in (
        (rendered["given"], "the latents were given"),
        (rendered["pairs"], "the second images of pairs are not uniform"),
        (root, "what drew the latents and rendered the images is not recorded"),
    ):
        found = scored("a.npy", name)
        assert found["data"]["best_r2"] == {}
        assert reason in found["data"]["why_no_best_r2"]
        for score in found["scores"].values():
            assert score["best_per_factor"] is score["share_of_best"] is None
        said = "\n".join(run.summary(found))
        assert f"no best possible scores are given: {reason}" in said
        assert "best R2" not in said
        assert (
            "not known for these latents" in warned(found).get("not_injective", said)
            or name == root
        )
        check_scores(json.loads(json.dumps(found)), "scores.json")


def test_lists_of_metrics_and_factors(cli, rendered):
    np.save("a.npy", codes(10))
    words = ("evaluate", "a.npy", "--data", rendered["test"], "--bootstrap", 0)

    def found(*more):
        cli(*words, *more)
        return json.loads(Path("scores/a/scores.json").read_text())

    scores = found("--metrics", "mcc,sap", "--metrics", "mig", "--factors", "hue,x")
    assert list(scores["scores"]) == ["mcc", "sap", "mig"]
    assert scores["data"]["factors"] == ["object_hue", "spotlight_hue", "background_hue", "x"]
    said = cli(*words, "--metrics", "typo,mcc", code=2).stderr
    assert "unknown metric 'typo'" in said


def test_all_metrics_at_once(cli, tmp_path):
    z = np.random.default_rng(0).uniform(-1, 1, (80, 10)).astype(np.float32)
    make(tmp_path / "data/3dident-test", 80, raw=z)
    np.save("a.npy", z[:, :3])
    said = cli("evaluate", "a.npy", "--metrics", "all", "--bootstrap", 0, "--factors", "x,y").stdout
    scores = json.loads(Path("scores/a/scores.json").read_text())["scores"]
    assert tuple(scores) == all_metrics(None, np.ones(2, bool), None)
    assert "accuracy" not in scores
    assert "dci: not as in most of the literature" in said
    said = cli("evaluate", "a.npy", "--metrics", "accuracy", code=2).stderr
    assert "metric accuracy cannot be computed here: it scores 1 or more discrete factors" in said


def test_the_terminal_shows_scores_by_factor(cli, rendered):
    np.save("a.npy", codes(3))
    said = cli("evaluate", "a.npy", "--data", rendered["test"], "--bootstrap", 100).stdout
    scores = json.loads(Path("scores/a/scores.json").read_text())["scores"]
    lines = {line.split()[0]: line.split()[1:] for line in said.splitlines() if line}
    assert "factor                      R2   best R2       MCC  best MCC" in said
    for factor, value in scores["linear_r2"]["per_factor"].items():
        assert lines[factor][0] == f"{value:.4f}"
        assert lines[factor][1] == f"{scores['linear_r2']['best_per_factor'][factor]:.4f}"
        assert lines[factor][2] == f"{scores['mcc']['per_factor'][factor]:.4f}"
        assert lines[factor][3] == f"{scores['mcc']['best_per_factor'][factor]:.4f}"
    assert "Intervals are for a test set of this size." in said
    assert "hue is not wrapped" not in said  # which the report says
    assert "hue is not wrapped" in Path("scores/a/report.html").read_text()


def test_codes_at_hand_score_as_those_of_a_file(rendered):
    np.save("a.npy", codes())
    whole = run.evaluate("a.npy", rendered["test"], bootstrap=100).scores
    for data in (rendered["test"], ThreeDIdent(rendered["test"])):
        found = run.score_codes(torch.from_numpy(codes()), data, bootstrap=100)
        assert found.as_dict() == {
            key: whole[key] for key in ("data", "settings", "scores", "warnings")
        }
    assert run.summary(found) == run.summary(whole)
    found = run.score_codes(codes(), rendered["test"], factors=["hue"], bootstrap=0)
    assert len(found.data.factors) == 3
    with pytest.raises(UsageError, match="factors goes with a path"):
        run.score_codes(codes(), data, factors=["hue"])


def test_a_dataset_that_is_open_is_scored_on_as_its_path_is(tmp_path, rendered):
    path = save_onnx(tmp_path / "a.onnx", mean_nodes(), initializers=[AXES])
    words = {"bootstrap": 0, "metrics": ["mcc"]}
    by_path = run.evaluate(path, rendered["test"], factors=["hue"], **words).scores
    hues = ThreeDIdent(rendered["test"], factors=["hue"])
    found = run.evaluate(path, hues, **words).scores
    assert {**found, "created": ""} == {**by_path, "created": ""}
    with pytest.raises(UsageError, match="factors goes with a path"):
        run.evaluate(path, hues, factors=["hue"])


def test_arguments_of_other_kinds_are_refused_before_the_work(monkeypatch, rendered):
    monkeypatch.setattr(run, "_score", None)
    expected = "the test set must be a ThreeDIdent or the path of a dataset, found "
    with pytest.raises(UsageError, match=f"{expected}Tensor"):
        run.score_codes(codes(), torch.zeros(COUNT, 3))
    with pytest.raises(UsageError, match=f"{expected}ndarray"):
        run.evaluate("reference:pca", codes())
    data = ThreeDIdent(rendered["test"])
    for swapped in (data, rendered["test"], str(rendered["test"])):
        with pytest.raises(UsageError, match=r"must be an array of codes \(N, m\), found"):
            run.score_codes(swapped, codes())
    with pytest.raises(UsageError, match="expected a submission's path or name, found function"):
        run.evaluate(codes, data)
