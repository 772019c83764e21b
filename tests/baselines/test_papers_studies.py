"""The studies of the papers' other datasets: what they train on, how they are scored and shown."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from threedident.baselines.reproduce import run_scores
from threedident.baselines.reproduce.dot_chart import dot_chart
from threedident.baselines.reproduce.outcomes import collect, summed_up
from threedident.baselines.reproduce.run_scores import RUN_SCORES, read_run_scores, score_run
from threedident.baselines.reproduce.runs import reproduce
from threedident.baselines.reproduce.scales import SCALES, Scoring, changes_of
from threedident.baselines.reproduce.studies import STUDIES
from threedident.datasets.papers import find_form
from threedident.encoders import ImageEncoder, ResNetEncoder, UnboundedOutput, save_encoder
from threedident.errors import DatasetError, UsageError
from threedident.evaluate.metrics.registry import METRICS

PAPERS = ("kitti", "dsprites", "natural-sprites")
GRID = "drawn:sprites:3x2x4x5x5"  # 600 images


@pytest.mark.parametrize("name", PAPERS)
def test_the_published_protocol(name: str) -> None:
    study = STUDIES[name]
    assert set(study.metrics) <= set(METRICS)
    for row in study.rows:
        made, loss = row.published_experiment(), row.published_experiment().loss
        assert (made.encoder.body, made.encoder.codes, made.training.lr) == ("conv", 10, 1e-4)
        assert made.training.steps == 300_000
        images = made.training.batch_size * (1 if made.data.pairs == "none" else 2)
        assert images == 64
        assert (loss.tau, loss.own, loss.negatives) == (1.0, True, "anchors")
        assert row.train_on == row.score_on is not None
        assert find_form(Path(row.train_on.drawn)) is not None
        if loss.kind == "slowvae":
            assert (loss.beta, loss.gamma, loss.rate) == (1.0, 10.0, 6.0)
        if loss.kind == "vae":  # in the published code 8 KL stand beside 2 cross-entropies
            assert loss.beta == 8 / 2
        if made.data.pairs == "sequence":
            assert made.data.max_gap == (5 if "-five-" in row.name else 1)
        for metric, (middle, spread) in (row.published.scores if row.published else {}).items():
            assert metric in study.metrics
            assert 0 < middle <= 1
            assert spread is None or 0 <= spread < 0.2


def test_the_published_numbers_are_where_the_papers_have_them() -> None:
    def printed(study: str, row: str, metric: str) -> Any:
        published = STUDIES[study].row(f"{study}-{row}").published
        assert published is not None
        return published.scores[metric], published.source[-25:]

    mcc = "mcc_spearman_noise_padded"
    assert printed("kitti", "next-normal-unbounded", mcc) == (
        (0.583, 0.054),
        "mann et al. 2021, Table 3",
    )
    assert printed("kitti", "five-lau-2", mcc) == ((0.683, 0.026), "mann et al. 2020, Table 5")
    assert printed("dsprites", "uni-adagvae", "dci_discrete")[0] == (0.479, None)
    assert printed("dsprites", "lap-lau-0.999", "sap_discrete")[0] == (0.096, 0.025)
    assert printed("natural-sprites", "discrete-slowvae", mcc) == (
        (0.526, 0.041),
        "mann et al. 2020, Table 3",
    )
    assert printed("natural-sprites", "continuous-slowvae", mcc) == (
        (0.491, 0.04),
        "mann et al. 2020, Table 4",
    )
    assert [STUDIES[name].statistic for name in PAPERS] == ["mean", "median", "mean"]


def test_the_dataset_itself_must_be_given_where_nothing_stands_in_for_it(tmp_path: Path) -> None:
    for name in PAPERS:
        with pytest.raises(UsageError, match=r"say where it lies by --data, or choose --scale cpu"):
            reproduce(name, tmp_path / name, scale="paper", quiet=True)
        assert not (tmp_path / name).exists()
    with pytest.raises(UsageError, match="leave out --test and --datasets"):
        reproduce("kitti", tmp_path / "a", scale="cpu", test="drawn:blobs", quiet=True)


def _codes(folder: Path, seed: int = 0) -> None:
    """Write the encoder of a run, untrained."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    body = ResNetEncoder(codes=6, channels=1, width=4)
    encoder = ImageEncoder((0.1,), (0.3,), body, UnboundedOutput())
    save_encoder(folder / "encoder.pt", encoder.eval(), {})


def test_a_run_is_scored_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _codes(tmp_path)
    metrics, scoring = ("factor_vae", "mig_discrete", "mcc_spearman_noise_padded"), Scoring(200, 90)
    score_run(tmp_path, Path(GRID), metrics, scoring)
    content = json.loads((tmp_path / RUN_SCORES).read_text())
    assert content["samples"] == 200
    assert content["factors"] == ["shape", "scale", "orientation", "posX", "posY"]
    scores = read_run_scores(tmp_path)
    assert scores is not None and list(scores) == list(metrics)
    assert all(0 <= value <= 1 for value in scores.values())
    monkeypatch.setattr(run_scores, "_measure", None)
    score_run(tmp_path, Path(GRID), metrics, scoring)  # nothing is left to do
    with pytest.raises(TypeError):
        score_run(tmp_path, Path(GRID), metrics, Scoring(300, 90))
    (tmp_path / RUN_SCORES).write_text('{"format": "another"}')
    with pytest.raises(DatasetError, match="Remove it to score again"):
        read_run_scores(tmp_path)


def test_continuous_factors_have_the_mcc_alone(tmp_path: Path) -> None:
    _codes(tmp_path)
    score_run(tmp_path, Path("drawn:blobs"), STUDIES["natural-sprites"].metrics, Scoring(100, 90))
    assert list(read_run_scores(tmp_path) or ()) == ["mcc_spearman_noise_padded"]


def test_medians_stand_beside_medians(tmp_path: Path) -> None:
    values = np.array([0.1, 0.2, 0.7])
    middle, spread = summed_up(values, "median")
    assert (middle, spread) == pytest.approx((0.2, 0.1))
    assert summed_up(values, "mean") == pytest.approx((1 / 3, np.std(values, ddof=1)))
    assert summed_up(values[:1], "median") == (0.1, None)


def test_every_cell_can_be_changed_by_its_scale() -> None:
    for name in PAPERS:
        study = STUDIES[name]
        steps = {changes_of(SCALES["cpu"], study, row)["training.steps"] for row in study.rows}
        assert steps == {2000}
    assert SCALES["paper"].draws is False


def test_a_smoke_run_on_drawn_images(tmp_path: Path) -> None:
    out = tmp_path / "out"
    rows = "next-laplace-box,untrained"
    table = reproduce("kitti", out, rows=rows, scale="smoke", threads=1, quiet=True)
    text = table.read_text()
    assert "drawn sequences of a moving blob" in text
    assert "do not reproduce them" in text
    lines = {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if "|" in line}
    assert "74.10 ± 4.40" in lines["`kitti-next-laplace-box`"]
    assert not (out / "factors.png").exists()
    assert (out / "figure.png").stat().st_size > 5000
    rows_of = list(csv.DictReader((out / "table.csv").read_text().splitlines()))
    scored = {each["row"]: each["mean"] for each in rows_of if each["mean"]}
    assert set(scored) == {"kitti-next-laplace-box", "kitti-untrained"}
    outcomes = collect(STUDIES["kitti"], out / "runs")
    assert len(dot_chart(STUDIES["kitti"], outcomes).axes) == 1
    again = reproduce("kitti", out, rows=rows, scale="smoke", threads=1, quiet=True)
    assert again.read_text() == text
