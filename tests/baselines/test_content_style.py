"""The study of content and style: which block is which, and how it is scored, shown and kept."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import fake_dataset as made

from threedident.baselines.experiment import experiment_names
from threedident.baselines.reproduce import images as images_module
from threedident.baselines.reproduce.blocks import (
    BLOCKS,
    Blocks,
    content_of,
    kinds_of,
    read_blocks,
    score_blocks,
)
from threedident.baselines.reproduce.heat_map import heat_map
from threedident.baselines.reproduce.images import _generator
from threedident.baselines.reproduce.outcomes import collect
from threedident.baselines.reproduce.runs import reproduce
from threedident.baselines.reproduce.studies import STUDIES, ImageSet
from threedident.causal import Sampling, load_model
from threedident.encoders import ImageEncoder, ResNetEncoder, UnboundedOutput, save_encoder
from threedident.errors import DatasetError, UsageError

STUDY = STUDIES["content-style"]
ROWS = "positions,supervised,box-positions-untrained"


def test_content_is_what_the_views_share() -> None:
    contents = {
        row.name.removeprefix("content-style-"): content_of(row.train_on) for row in STUDY.rows
    }
    hues = ("object_hue", "spotlight_hue", "background_hue")
    assert contents["positions"] == ("phi", "theta", "psi", *hues)
    assert contents["hues"] == ("x", "y", "z", "phi", "theta", "psi", "spotlight_position")
    assert contents["rotations"] == ("x", "y", "z", "spotlight_position", *hues)
    assert contents["box-hues"] == contents["box-hues-supervised"] == hues
    assert contents["box-rotations"] == ("phi", "theta", "spotlight_position")
    assert contents["recalled-positions"] == ("shape", "phi", "theta", "psi", *hues)
    assert contents["augmentations"] is contents["supervised"] is None


def test_there_is_a_code_more_than_content_and_two_for_a_full_turn() -> None:
    for row in STUDY.rows:
        experiment, content = row.published_experiment(), content_of(row.train_on)
        if experiment.data.pairs == "groups":
            assert content is not None and row.train_on is not None
            model = load_model(row.train_on.model)
            kinds = dict(zip(model.names, kinds_of(model), strict=True))
            turns = {kinds[name].name == "circular" for name in content}
            assert len(turns) == 1
            codes = 2 * len(content) if turns == {True} else len(content) + 1
            assert experiment.encoder.codes == codes
            loss = experiment.loss
            assert (loss.negatives, loss.own, loss.symmetric) == ("both", False, True)
            assert loss.tau == (0.1 if row.name.endswith("-cold") else 1)
    assert "content-style-untrained" not in experiment_names()  # nobody can train it


def test_angles_of_a_full_turn_are_scored_as_points_on_the_circle() -> None:
    kinds = {
        name: dict(zip(model.names, kinds_of(model), strict=True))
        for name in (
            "3dident-views",
            "3didentbox-rotations-hues-positions-1",
            "3didentbox-rotations-hues-positions-1-regular",
            "temporal-causal3dident",
        )
        for model in [load_model(name)]
    }
    whole = {each: [k for k, v in kinds[each].items() if v.name == "circular"] for each in kinds}
    assert whole["3dident-views"] == []
    box = "3didentbox-rotations-hues-positions-1"
    # Hues below 0 are not wrapped there: the ends of their range are two colours.
    assert whole[box] == ["phi", "theta", "spotlight_position"]
    assert kinds[box]["phi"].turn == 2  # of a variable in [-1, 1]
    assert kinds[box]["material"].name == "discrete"
    assert whole[f"{box}-regular"] == []
    assert "spotlight_hue" in whole["temporal-causal3dident"]
    assert kinds["temporal-causal3dident"]["spotlight_hue"].turn == pytest.approx(2 * math.pi)


def _with_codes(monkeypatch: pytest.MonkeyPatch, codes: np.ndarray) -> None:
    from threedident.evaluate import reference_encoders

    monkeypatch.setattr(
        reference_encoders, "_apply", lambda encoder, images, size: codes[: len(images)]
    )


def _encoder(folder: Path) -> None:
    folder.mkdir()
    body = ResNetEncoder(3, "resnet18", 4)
    save_encoder(
        folder / "encoder.pt", ImageEncoder((0.5,) * 3, (0.5,) * 3, body, UnboundedOutput())
    )


def test_scores_are_of_disjoint_images_and_of_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = Sampling(load_model("3didentbox-positions-hues-rotations-1"))
    test = made.as_rendered(tmp_path / "test", 400, side=8, split="test", sampling=sampling)
    drawn = sampling.draw(range(400), seed=0, split="test").variables
    names = sampling.model.names
    x, y, phi = (drawn[:, names.index(name)] for name in ("x", "y", "phi"))
    # A linear code, one that no line reads, and an angle as a point.
    codes = np.stack([x, y + 3 * y**3, np.cos(np.pi * phi), np.sin(np.pi * phi)], 1)
    _with_codes(monkeypatch, codes.astype(np.float32))
    _encoder(tmp_path / "run")
    score_blocks(tmp_path / "run", test)
    row = STUDY.row("content-style-box-positions")
    blocks = read_blocks(tmp_path / "run", row)
    assert blocks is not None
    assert blocks.factors == names
    assert blocks.linear("x") > 0.999
    assert blocks.linear("phi") > 0.999
    assert blocks.linear("y") < 0.95
    assert blocks.kernel("y") > 0.97
    assert abs(blocks.kernel("z")) < 0.3
    for constant in ("theta", "spotlight_position", "material"):
        assert math.isnan(blocks.linear(constant))
    scores = blocks.scores()
    expected = np.mean([blocks.kernel(name) for name in ("x", "y", "z")])
    assert scores["kernel_r2_content"] == pytest.approx(expected)
    style = ("phi", "object_hue", "spotlight_hue", "background_hue")
    assert scores["linear_r2_style"] == pytest.approx(np.mean([blocks.linear(n) for n in style]))
    plain = json.loads((tmp_path / "run" / BLOCKS).read_text())
    assert (plain["fitted"], plain["scored"]) == (200, 200)
    # Codes that hold the first half alone score nothing: the second is what counts.
    codes[200:] = np.random.default_rng(0).normal(size=(200, 4))
    _with_codes(monkeypatch, codes.astype(np.float32))
    score_blocks(tmp_path / "run", test)  # scored already
    assert json.loads((tmp_path / "run" / BLOCKS).read_text()) == plain
    (tmp_path / "run" / BLOCKS).unlink()
    score_blocks(tmp_path / "run", test)
    blocks = read_blocks(tmp_path / "run", row)
    assert blocks is not None
    assert blocks.linear("x") < 0


def test_images_in_groups_are_not_scored(tmp_path: Path) -> None:
    _encoder(tmp_path / "run")
    sampling = Sampling(load_model("3dident-views"), view="hues")
    test = made.as_rendered(tmp_path / "test", 40, side=32, sampling=sampling)
    with pytest.raises(UsageError, match="must hold single images of a causal model"):
        score_blocks(tmp_path / "run", test)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"format": "3dident-run"}',
        '{"format": "3dident-blocks", "factors": ["x"], "linear_r2": [1], "kernel_r2": []}',
        '{"format": "3dident-blocks", "factors": ["x"], "linear_r2": ["a"], "kernel_r2": [1]}',
        '{"format": "3dident-blocks", "factors": [1], "linear_r2": [1], "kernel_r2": [1]}',
        '{"format": "3dident-blocks"}',
    ],
)
def test_a_damaged_file_of_scores_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / BLOCKS).write_text(text)
    with pytest.raises(DatasetError, match=BLOCKS):
        read_blocks(tmp_path, STUDY.rows[0])
    assert read_blocks(tmp_path / "elsewhere", STUDY.rows[0]) is None


def test_what_is_rendered_of_a_model() -> None:
    sets = {each.name: each for row in STUDY.rows for each in (row.train_on, row.score_on) if each}
    assert _generator(sets["box-hues"]) == {
        "model": "3didentbox-hues-positions-rotations-1",
        "views": "second",
        "environments": (),
    }
    assert _generator(sets["recalled-test"])["environments"] == ("independent",)
    assert _generator(ImageSet("a", "train", "images", preset="3dident")) == {"preset": "3dident"}
    for row in STUDY.rows:
        assert row.train_on is not None and row.score_on is not None
        assert row.train_on.model == row.score_on.model
        assert not row.score_on.is_paired


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of noise in place of rendered ones."""

    def render(folder: Path, images: ImageSet, sizes: Any, side: int, *_: Any, **__: Any) -> None:
        if not folder.exists():
            sampling = Sampling(load_model(images.model), view=images.view or None)
            count = getattr(sizes, images.count) * (1 + images.is_paired)
            made.as_rendered(folder, count, side=side, split=images.split, sampling=sampling)

    monkeypatch.setattr(images_module, "_render", render)


@pytest.mark.usefixtures("unrendered")
def test_a_study_of_views_from_images_to_figure(tmp_path: Path) -> None:
    changes = {"training.steps": 2, "encoder.width": 4, "training.log_every": 1}

    def study(rows: str) -> str:
        return reproduce(
            "content-style",
            tmp_path,
            rows=rows,
            scale="smoke",
            changes=changes,
            device="cpu",
            quiet=True,
        ).read_text()

    table = study(ROWS)
    assert study(ROWS) == table
    lines = {line.split("|")[1].strip(): line for line in table.splitlines() if "|" in line}
    head = [cell.strip() for cell in lines["row"].split("|")]
    assert head[2:4] == ["x", "y"]  # of the second table
    whole = lines["`content-style-positions`"]
    assert whole.count("**") == 2 * 6
    assert "**" not in lines["`content-style-supervised`"]
    box = lines["`content-style-box-positions-untrained`"]
    assert box.split("|")[1 + head[1:].index("theta")].strip() == "-"
    assert box.split("|")[1 + head[1:].index("x")].strip().startswith("**")
    result = json.loads(
        (tmp_path / "runs/content-style-box-positions-untrained/seed0/result.json").read_text()
    )
    assert result["steps"] == 0
    with (tmp_path / "table.csv").open(newline="") as file:
        numbers = {(line["row"], line["metric"]): line["mean"] for line in csv.DictReader(file)}
    outcomes = collect(STUDY, tmp_path / "runs")
    blocks = {each.row.name: each.blocks() for each in outcomes}
    shown = blocks["content-style-positions"]
    assert isinstance(shown, Blocks)
    assert float(numbers["content-style-positions", "kernel_r2 x"]) == pytest.approx(
        shown.kernel("x"), abs=1e-6
    )
    assert float(numbers["content-style-positions", "linear_r2_content"]) == pytest.approx(
        shown.scores()["linear_r2_content"], abs=1e-6
    )
    assert numbers["content-style-supervised", "linear_r2_content"] == ""
    assert blocks["content-style-hues"] is None
    drawing = heat_map(STUDY, outcomes)
    linear = drawing.axes[0]
    assert [each.get_text() for each in linear.get_yticklabels()] == [
        *("positions", "supervised", "box-positions-untrained")
    ]
    frames = [patch.get_y() + 0.44 for patch in linear.patches]
    assert sorted(set(frames)) == pytest.approx([0, 2])  # the rows that have content
    values = np.asarray(linear.images[0].get_array())
    assert values.shape == (3, 10)
    (gaps,) = np.nonzero(~np.isfinite(np.ma.filled(linear.images[0].get_array(), np.nan)[2]))
    names = [each.get_text() for each in linear.get_xticklabels()]
    assert [names[k] for k in gaps] == ["theta", "psi", "spotlight_position"]
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert (tmp_path / "factors.png").exists()


def test_the_mean_over_seeds_is_of_each_factor(tmp_path: Path) -> None:
    row = STUDY.row("content-style-positions")
    for seed, value in enumerate((0.25, 0.75)):
        folder = tmp_path / row.name / f"seed{seed}"
        folder.mkdir(parents=True)
        content = {
            "format": "3dident-blocks",
            "factors": ["x", "phi"],
            "linear_r2": [value, None],
            "kernel_r2": [value, 0.5],
        }
        (folder / BLOCKS).write_text(json.dumps(content))
    outcome = next(each for each in collect(STUDY, tmp_path) if each.row == row)
    blocks = outcome.blocks()
    assert blocks is not None
    assert (blocks.linear("x"), blocks.kernel("phi")) == (0.5, 0.5)
    assert math.isnan(blocks.linear("phi"))
    np.testing.assert_array_equal(outcome.values("kernel_r2_style"), [0.25, 0.75])
    np.testing.assert_array_equal(outcome.values("kernel_r2_content"), [0.5, 0.5])
    assert not len(outcome.values("linear_r2_content"))
