from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.fake_dataset import make

from threedident.baselines.experiment import Experiment
from threedident.baselines.reproduce import comparison
from threedident.baselines.reproduce import images as images_module
from threedident.baselines.reproduce.figures import factor_figure, figure
from threedident.baselines.reproduce.outcomes import collect
from threedident.baselines.reproduce.runs import reproduce
from threedident.baselines.reproduce.scales import Rendering
from threedident.baselines.reproduce.studies import STUDIES, ImageSet
from threedident.baselines.training import run_folder as rundir
from threedident.baselines.training.theory import theory_learned
from threedident.baselines.training.training_log import COLUMNS
from threedident.distributions import Laplace, Normal
from threedident.errors import DatasetError, RenderError, UsageError
from threedident.factors import FACTOR_NAMES
from threedident.render.dataset import RenderInterrupted
from threedident.render.job import Summary
from threedident.storage.directory import DatasetDir

FAST = {
    "data.mixing_trials": 5,
    "training.batch_size": 256,
    "training.final_batches": 1,
}
ROWS = "aninfonce,aninfonce-infonce"


class Killed(BaseException):
    """Stands for a signal that nothing catches."""


class FakeTraining:
    """Writes what a training writes, and counts; is killed in the middle of some runs."""

    def __init__(
        self,
        *,
        die_at: int | None = None,
        Lambda: Any = (*[5.0, 25.0] * 5,),
        per_factor: Any = (*[0.5] * 10,),
    ) -> None:
        self.done: list[str] = []
        self.begun = 0
        self.die_at = die_at
        self.data: list[Path | None] = []
        self.Lambda, self.per_factor = Lambda, per_factor

    def __call__(
        self,
        experiment: Experiment,
        out: Path,
        *,
        data: Path | None = None,
        test: Path | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        finished = rundir.check(experiment, out, data)
        if finished is not None:
            return finished
        out.mkdir(parents=True, exist_ok=True)
        rundir.claim(experiment, out, data, test)
        if experiment.start:
            assert (Path(experiment.start) / rundir.RESULT).exists()
        self.begun += 1
        self.data.append(data)
        steps = experiment.training.steps
        with (out / "metrics.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerow({"step": 1, "loss": 5.0})
            for step in (steps // 2, steps):
                r2 = 0.5 + step / 1e4
                factors = json.dumps([r2, None, *[0.25] * 8])
                row = {"linear_r2": r2, "mcc": 0.25, "linear_r2_per_factor": factors}
                writer.writerow({"step": step, **row})
        if self.begun == self.die_at:
            raise Killed
        seed = experiment.training.seed
        scores = {"linear_r2": 0.90 + seed / 100, "mcc": 0.5}
        if experiment.loss.kind == "aninfonce":
            scores |= {"linear_r2_content": 0.99, "linear_r2_style": 0.75}
        learned = {"Lambda": self.Lambda} if experiment.loss.kind == "aninfonce" else {}
        result = {
            "format": rundir.FORMAT,
            "format_version": rundir.FORMAT_VERSION,
            "experiment": experiment.as_dict(),
            "scores": scores,
            "per_factor": {"linear_r2": self.per_factor},
            "learned": learned,
            "theory": theory_learned(experiment),
            "loss": 2.5 + seed,
            "at_latents": {"loss": 2.25},
            "steps": steps,
            "seconds": 61.0,
            "hardware": "a machine",
            "data": {"best_r2": {"x": 1.0, "object_hue": 0.625}},
        }
        (out / rundir.RESULT).write_text(json.dumps(result))
        self.done.append(f"{experiment.name}/{seed}")
        return result


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Drawing takes longer than all else: the figures that would have been drawn."""
    drawn: list[str] = []

    class Figure:
        def savefig(self, path: Path, **_: Any) -> None:
            path.touch()

    def draw(study: Any, _: Any) -> Figure:
        drawn.append(study.name)
        return Figure()

    monkeypatch.setattr(comparison, "figure", draw)
    monkeypatch.setattr(comparison, "factor_figure", lambda *_: Figure())
    return drawn


def cells(table: str, row: str) -> dict[str, str]:
    """A row's cells by column."""
    lines = table.splitlines()
    head, line = (
        next(line for line in lines if line.startswith(start))
        for start in ("| row", f"| `{row}` |")
    )
    split = ([cell.strip() for cell in each.strip("|").split("|")] for each in (head, line))
    return dict(zip(*split, strict=True))


def run(what: str, out: Path, train: FakeTraining, **options: Any) -> str:
    options = {"scale": "smoke", "quiet": True, **options}
    return reproduce(what, out, train=train, **options).read_text()


def test_killed_and_started_again_it_goes_on(tmp_path: Path, undrawn: list[str]) -> None:
    first = FakeTraining(die_at=3)
    with pytest.raises(Killed):
        run("aninfonce", tmp_path / "out", first, seeds=2)
    assert first.done == ["aninfonce/0", "aninfonce-infonce/0"]
    assert len(undrawn) == 2  # after every run
    table = (tmp_path / "out" / "table.md").read_text()
    assert cells(table, "aninfonce-infonce")["R2 here"] == "90.00"
    assert cells(table, "aninfonce-linear")["R2 here"] == "-"
    second = FakeTraining()
    table = run("aninfonce", tmp_path / "out", second, seeds=2)
    names = [row.name for row in STUDIES["aninfonce"].rows]
    assert second.done == [f"{name}/0" for name in names[2:]] + [f"{name}/1" for name in names]
    assert cells(table, "aninfonce-linear")["R2 here"] == "90.50 ± 0.71"
    third = FakeTraining()
    assert run("aninfonce", tmp_path / "out", third, seeds=1) == table
    assert third.begun == 0


@pytest.mark.usefixtures("undrawn")
def test_the_table_holds_both_numbers_and_what_was_cut_down(tmp_path: Path) -> None:
    changes = {"training.lr": 0.01}
    table = run("aninfonce", tmp_path, FakeTraining(), rows=ROWS, seeds=2, changes=changes)
    found = cells(table, "aninfonce")
    assert found["R2 published"].startswith("99.60 at step 90,000, 98.20 at step 14,751")
    assert found["R2 here"] == "90.50 ± 0.71"
    assert found["MCC here"] == "50.00 ± 0.00"
    assert found["R2 style here"] == "75.00 ± 0.00"
    assert found["learned published"] == "Lambda 5.5 and 23.1"
    assert found["learned here"] == "Lambda 5 and 25 (theory 5 and 25)"
    assert (found["seeds"], found["steps"], found["time a run"]) == ("2", "20", "1:01")
    assert "training.steps 100,000 -> 20" in table
    assert "training.lr 0.0001 -> 0.01" in table
    assert "data.mixing_trials 25,000 -> 200" in table
    assert "Cost: 4 runs, 4:04 of training, on a machine." in table
    with (tmp_path / "table.csv").open(newline="") as file:
        lines = {(line["row"], line["metric"]): line for line in csv.DictReader(file)}
    line = lines["aninfonce", "linear_r2"]
    assert (line["published_mean"], line["published_step"], line["mean"]) == (
        *("0.996", "90000"),
        "0.905000",
    )
    assert math.isclose(float(line["std"]), 0.01 / math.sqrt(2), rel_tol=1e-3)
    assert lines["aninfonce-linear", "mcc"]["mean"] == ""


@pytest.mark.usefixtures("undrawn")
def test_what_only_some_rows_changed_is_said_of_them(tmp_path: Path) -> None:
    run("aninfonce", tmp_path, FakeTraining(), rows="aninfonce")
    changes = {"training.batch_size": 32}
    table = run("aninfonce", tmp_path, FakeTraining(), rows="aninfonce-linear", changes=changes)
    assert "changed: training.batch_size 1,000 -> 32 in `aninfonce-linear`" in table
    assert "changed: training.batch_size 1,000 -> 64 in `aninfonce`" in table


def test_rows_are_names_or_globs_and_the_telling_ones_come_first(tmp_path: Path) -> None:
    study = STUDIES["table2"]
    order = [row.name for row in study.choose(None)]
    assert order[0] == "table2-laplace-box-laplace"
    assert set(order) == {row.name for row in study.rows}
    found = [row.name for row in study.choose("*-unbounded-normal, supervised-box")]
    assert found == [
        "table2-laplace-unbounded-normal",
        "table2-normal-unbounded-normal",
        "table2-supervised-box",
    ]
    matching = STUDIES["matching"].choose(None)
    assert {row.name.partition("-laplace")[2] for row in matching[:4]} == {"-unbounded-laplace"}
    with pytest.raises(UsageError, match=r"no row 'table3'.*table2-identity.*normal-unbounded"):
        study.choose("table2-identity,table3")
    with pytest.raises(UsageError, match="names no row"):
        study.choose(" ,")
    with pytest.raises(UsageError, match="no row 'aninfonce-infonce2'"):
        run("aninfonce", tmp_path / "out", FakeTraining(), rows="aninfonce-infonce2")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("undrawn")
def test_a_row_that_trains_on_brings_its_start(tmp_path: Path) -> None:
    fake = FakeTraining()
    table = run("hard-negatives", tmp_path, fake, rows="hard-negatives")
    assert fake.done == ["hard-negatives-base/0", "hard-negatives/0"]
    assert cells(table, "hard-negatives-continued")["R2 here"] == "-"
    assert "optimum at Lambda 50" in table


@pytest.mark.usefixtures("undrawn")
def test_a_folder_is_of_one_study_and_scale(tmp_path: Path) -> None:
    run("aninfonce", tmp_path / "out", FakeTraining(), rows="aninfonce")
    for what, scale in (("ensemble", "smoke"), ("aninfonce", "cpu")):
        with pytest.raises(UsageError, match="holds aninfonce at scale smoke"):
            run(what, tmp_path / "out", FakeTraining(), scale=scale)
    with pytest.raises(UsageError, match=r"training.lr = 0.0001, asked for 0.1"):
        run("aninfonce", tmp_path / "out", FakeTraining(), changes={"training.lr": 0.1})
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not empty"):
        run("aninfonce", tmp_path / "else", FakeTraining())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"scale": "huge"}, "unknown scale 'huge': expected one of paper, cpu, smoke"),
        ({"seeds": 0}, "at least 1 seed"),
        ({"changes": {"training.stepz": 1}}, "unknown field training.stepz"),
        ({"data": Path("images")}, "makes its own observations"),
    ],
)
def test_arguments_that_do_not_fit(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        run("aninfonce", tmp_path / "out", FakeTraining(), **options)
    with pytest.raises(UsageError, match="unknown study 'table9'"):
        run("table9", tmp_path / "out", FakeTraining())
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    "change",
    [
        lambda whole: "",
        lambda whole: "{",
        lambda whole: "{}",
        lambda whole: '{"format": "3dident-run"}',
        lambda whole: json.dumps({**whole, "scores": {"mcc": "high"}}),
        lambda whole: json.dumps({**whole, "experiment": {"data": 3}}),
        lambda whole: json.dumps({**whole, "learned": [5.0]}),
    ],
)
def test_a_damaged_result_is_named(tmp_path: Path, change: Any) -> None:
    run("aninfonce", tmp_path, FakeTraining(), rows="aninfonce")
    path = tmp_path / "runs" / "aninfonce" / "seed0" / "result.json"
    path.write_text(change(json.loads(path.read_text())))
    for row in ("aninfonce", "aninfonce-linear"):  # its own row, and one beside it
        with pytest.raises(DatasetError, match=re.escape(str(path))):
            run("aninfonce", tmp_path, FakeTraining(), rows=row)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("row", "Lambda", "said"),
    [
        # In another order than in theory: dimensions have none.
        (
            "ensemble",
            [[250.0] * 8 + [390, 400, 410] + [14.0] * 9, [16.0] * 8 + [401.0] * 3 + [249.0] * 9],
            "Lambda of member 1: 14, 250 and 400 (theory 15, 250 and 400), "
            "of member 2: 16, 249 and 401 (theory 15, 250 and 400)",
        ),
        ("hard-negatives", [[48.0, 50.0] * 10], "Lambda 49 (theory 50)"),
        ("aninfonce-linear", [[24.0, *[10.0] * 8, 6.0]], "Lambda 6 to 24 (theory 5 to 25)"),
        ("aninfonce", [1.0, 2.0], "Lambda 1 to 2"),
    ],
)
def test_learned_lambda_stands_beside_theory(
    tmp_path: Path, row: str, Lambda: Any, said: str
) -> None:
    what = row.removesuffix("-linear")
    table = run(what, tmp_path, FakeTraining(Lambda=Lambda), rows=row)
    assert cells(table, row)["learned here"] == said


@pytest.mark.usefixtures("undrawn")
def test_a_seed_that_is_not_finished_counts_as_far_as_it_came(tmp_path: Path) -> None:
    run("aninfonce", tmp_path, FakeTraining(), rows="aninfonce", seeds=2)
    path = tmp_path / "runs" / "aninfonce" / "seed1"
    (path / "result.json").unlink()
    lines = (path / "metrics.csv").read_text().splitlines(keepends=True)
    (path / "metrics.csv").write_text("".join(lines[:-1]))
    study = STUDIES["aninfonce"]
    outcomes = collect(study, tmp_path / "runs")
    steps, scores = outcomes[0].curve("linear_r2")
    assert steps.tolist() == [10, 20]
    np.testing.assert_array_equal(scores, [[0.501, 0.502], [0.501, np.nan]])
    drawn = figure(study, outcomes)
    drawn.savefig(tmp_path / "drawn.png")
    axis = drawn.axes[0]
    assert axis.lines[0].get_ydata().tolist() == [0.501, 0.502]


@pytest.mark.usefixtures("undrawn")
def test_figure_2_is_drawn_against_the_concentration(tmp_path: Path) -> None:
    fake = FakeTraining()
    table = run("fig2", tmp_path, fake, rows="fig2-box-1*,sphere-0.25", seeds=1)
    study = STUDIES["fig2"]
    points = ("sphere-0.25", "box-1", "box-16", "box-1024")
    assert fake.done == [f"fig2-{point}/0" for point in points]
    assert len(study.rows) == 8 + 9
    assert cells(table, "fig2-sphere-0.25")["what"] == "sphere, vMF marginal of concentration 0.25"
    plain = json.loads((tmp_path / "runs/fig2-box-16/seed0/result.json").read_text())
    assert plain["experiment"]["data"]["marginal"] == {"name": "normal", "sigma": 0.25}
    drawn = figure(study, collect(study, tmp_path / "runs"))
    drawn.savefig(tmp_path / "drawn.png")
    lines = next(axis for axis in drawn.axes if axis.get_title().startswith("box")).lines
    assert lines[0].get_xdata().tolist() == [1, 16, 1024]
    assert lines[-1].get_xdata() == pytest.approx([400, 400])


@pytest.mark.usefixtures("undrawn")
def test_the_line_of_figure_2_is_at_the_conditional_that_was_run(tmp_path: Path) -> None:
    changes = {"data.conditional.kappa": 10}
    run("fig2", tmp_path, FakeTraining(), rows="fig2-sphere-*", seeds=1, changes=changes)
    drawn = figure(STUDIES["fig2"], collect(STUDIES["fig2"], tmp_path / "runs"))
    for axis in drawn.axes:
        if axis.get_visible():
            assert axis.lines[-1].get_xdata() == [10, 10]


@pytest.mark.usefixtures("undrawn")
def test_panels_of_one_block_have_one_legend_beside_them(tmp_path: Path) -> None:
    run("aninfonce", tmp_path, FakeTraining(), rows="aninfonce-infonce,aninfonce-linear", seeds=1)
    study = STUDIES["aninfonce"]
    outcomes = collect(study, tmp_path / "runs")
    one_block = [each for each in outcomes if each.row.name.endswith("-linear")]
    for rows, beside in ((outcomes, 0), (one_block, 1)):
        drawn = figure(study, rows)
        assert len(drawn.legends) == beside
        alone = [axis.get_legend() for axis in drawn.axes if axis.get_visible()]
        assert [each is None for each in alone] == [bool(beside)] * len(alone)


@pytest.mark.usefixtures("undrawn")
def test_panels_against_the_number_of_latents_have_one_scale_a_metric(tmp_path: Path) -> None:
    rows = "exact-laplace-box,nearest-laplace-box-10000,nearest-normal-unbounded-250000"
    run("matching-synthetic", tmp_path, FakeTraining(), rows=rows, seeds=1)
    study = STUDIES["matching-synthetic"]
    drawn = figure(study, collect(study, tmp_path / "runs"))
    by_metric: dict[str, list[Any]] = {}
    for axis in drawn.axes:
        if axis.get_visible():
            by_metric.setdefault(axis.get_ylabel(), []).append(axis)
    assert [len(axes) for axes in by_metric.values()] == [2, 2]
    for axes in by_metric.values():
        assert axes[0].get_xlim() == axes[1].get_xlim()
        assert axes[0].get_ylim() == axes[1].get_ylim()
        at = [x for axis in axes for c in axis.containers for x in c.lines[0].get_xdata()]
        assert axes[0].get_xlim()[0] < min(at) and max(at) < axes[0].get_xlim()[1]


@pytest.mark.usefixtures("undrawn")
def test_matching_of_vectors_is_drawn_against_the_number_of_latents(tmp_path: Path) -> None:
    fake = FakeTraining()
    study = STUDIES["matching-synthetic"]
    rows = "nearest-laplace-box-*,exact-laplace-box,exact-wide-laplace-box-100000"
    table = run("matching-synthetic", tmp_path, fake, rows=rows, seeds=1, scale="cpu")
    assert len(fake.done) == 4 + 1 + 1
    drawn = figure(study, collect(study, tmp_path / "runs"))
    drawn.savefig(tmp_path / "drawn.png")
    for axis in drawn.axes[:2]:
        lines = {line.get_label(): line for line in axis.lines}
        assert lines["exact"].get_xdata() == [0, 1]  # from side to side
    containers = {each.get_label(): each for each in drawn.axes[0].containers}
    nearest = containers["nearest"].lines[0]
    assert nearest.get_xdata().tolist() == [10_000, 100_000, 250_000, 1_000_000]
    assert containers["exact-wide"].lines[0].get_xdata().tolist() == [100_000]
    assert drawn.axes[0].get_legend() is None
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == [
        *("exact", "nearest", "exact-wide")
    ]
    row = cells(table, "matching-synthetic-exact-wide-laplace-box-100000")
    assert row["what"] == "exact pairs, as wide as nearest, Laplace(0.2459): 100,000 latents"
    folder = tmp_path / "runs/matching-synthetic-nearest-laplace-box-10000/seed0"
    plain = json.loads((folder / "result.json").read_text())
    assert plain["experiment"]["data"]["latents"] == 10_000


@pytest.mark.usefixtures("undrawn")
def test_the_loss_stands_beside_that_of_the_true_latents(tmp_path: Path) -> None:
    table = run("aninfonce", tmp_path, FakeTraining(), rows="aninfonce", seeds=2)
    row = cells(table, "aninfonce")
    assert (row["loss"], row["loss of the true latents"]) == ("3", "2.25")
    assert "Where it is lower, the loss's minimum is elsewhere" in table
    path = tmp_path / "runs" / "aninfonce" / "seed0" / "result.json"
    whole = json.loads(path.read_text())
    for loss in ("low", [1.0, 2.0]):
        path.write_text(json.dumps({**whole, "loss": loss}))
        with pytest.raises(DatasetError, match=re.escape(str(path))):
            run("aninfonce", tmp_path, FakeTraining(), rows="aninfonce", seeds=2)
    del whole["loss"], whole["at_latents"]  # as runs were before
    path.write_text(json.dumps(whole))
    table = run("aninfonce", tmp_path, FakeTraining(), rows="aninfonce", seeds=2)
    row = cells(table, "aninfonce")
    assert (row["loss"], row["loss of the true latents"]) == ("3.5 (1 of 2)", "2.25 (1 of 2)")


@pytest.mark.usefixtures("undrawn")
def test_every_factor_has_a_panel(tmp_path: Path) -> None:
    run("aninfonce", tmp_path, FakeTraining(), rows=ROWS, seeds=2)
    study = STUDIES["aninfonce"]
    outcomes = collect(study, tmp_path / "runs")
    drawn = factor_figure(study, outcomes)
    drawn.savefig(tmp_path / "drawn.png")
    assert [axis.get_title() for axis in drawn.axes] == list(FACTOR_NAMES)
    x, y, z = (axis.lines[0] for axis in drawn.axes[:3])
    assert x.get_xdata().tolist() == [10, 20]
    np.testing.assert_allclose(x.get_ydata(), [0.501, 0.502])
    assert np.isnan(y.get_ydata()).all()  # one that does not vary
    assert z.get_ydata().tolist() == [0.25, 0.25]
    metrics = tmp_path / "runs" / "aninfonce" / "seed0" / "metrics.csv"
    metrics.write_text(metrics.read_text().replace("[0.502", "[oops"))
    with pytest.raises(DatasetError, match=r"metrics\.csv of aninfonce, step 20, is damaged"):
        factor_figure(study, collect(study, tmp_path / "runs"))


@pytest.mark.usefixtures("undrawn")
def test_the_identity_baseline_is_scored_without_training(tmp_path: Path) -> None:
    fake = FakeTraining()
    table = run("table2", tmp_path, fake, rows="table2-identity", seeds=2, changes=FAST)
    assert fake.begun == 0
    row = cells(table, "table2-identity")
    assert row["MCC published"] == "46.55 ± 1.34"
    assert 10 < float(row["MCC here"].split(" ± ")[0]) < 90
    assert "Nothing is trained yet." in table
    before = (tmp_path / "runs/table2-identity/seed0/result.json").stat().st_mtime_ns
    run("table2", tmp_path, fake, rows="table2-identity", seeds=2, changes=FAST)
    assert (tmp_path / "runs/table2-identity/seed0/result.json").stat().st_mtime_ns == before


@pytest.mark.usefixtures("undrawn")
def test_images_are_rendered_once_where_none_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = tmp_path / "images"
    make(images, 40)
    asked: list[tuple[str, int, str]] = []

    def render(
        folder: Path, which: ImageSet, sizes: Any, resolution: int, quality: str, *, quiet: bool
    ) -> None:
        asked.append((which.name, resolution, quality))
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.symlink_to(images)

    monkeypatch.setattr(images_module, "_render", render)
    fake = FakeTraining()
    options = {"rows": "*laplace-unbounded-laplace", "datasets": tmp_path / "shared"}
    table = run("matching", tmp_path / "a", fake, **options)
    names = ["3dident", "pairs-laplace-0.1", "pairs-laplace-0.21"]
    assert [str(path) for path in fake.data] == [
        str(tmp_path / "shared" / name) for name in ("3dident", *names)
    ]
    assert sorted(asked) == sorted((name, 32, "draft") for name in [*names, "3dident-test"])
    assert "3dident-test: 40 images of 8 x 8" in table
    with pytest.raises(UsageError, match="compares datasets of its own"):
        run("generators", tmp_path / "b", FakeTraining(), data=images)
    fake = FakeTraining(per_factor=[None, 0.7] + [0.5] * 8)
    table = run("generators", tmp_path / "b", fake, rows="*-3dident")
    assert [name for name, *_ in asked[-2:]] == ["generator-3dident", "generator-3dident-test"]
    assert "| object_hue | 50.00 | 62.50 | 80.0% |" in table
    # A factor that does not vary has no score, and does not count.
    assert "| x | - | - | - |" in table
    assert "| y | 70.00 | - | - |" in table
    assert "| **mean** | 52.22 | - | - |" in table
    table = run(
        *("table4", tmp_path / "c", FakeTraining()),
        **{"data": images, "test": images, "seeds": 2},
        rows="table4-identity,table4-box",
    )
    identity = cells(table, "table4-identity")
    assert (identity["seeds"], identity["steps"]) == ("1", "0")
    assert identity["R2 published"] == "5.25 ± 1.20"
    box = cells(table, "table4-box")
    assert box["MCC, batch statistics published"] == "98.31 ± 0.04"
    assert box["R2 here"] == "90.50 ± 0.71"


@pytest.mark.usefixtures("undrawn")
def test_a_reproduction_keeps_to_its_images(tmp_path: Path) -> None:
    first, other = tmp_path / "first", tmp_path / "other"
    make(first, 40)
    make(other, 40, raw=np.random.default_rng(1).uniform(-1, 1, (40, 10)))
    out = tmp_path / "out"

    def on(data: Path, test: Path, row: str) -> str:
        return run("table4", out, FakeTraining(), rows=f"table4-{row}", data=data, test=test)

    on(first, other, "box")
    # For a finished row, for another one, and the test images alone.
    for data, test, row in ((other, other, "box"), (other, other, "sphere"), (first, first, "box")):
        with pytest.raises(UsageError, match=r"holds runs on another 3dident.*40 images of 8 x 8"):
            on(data, test, row)
    assert cells(on(first, other, "sphere"), "table4-box")["R2 here"] == "90.00"
    # A folder from before this was recorded: the run itself says what it was trained on.
    claim = json.loads((out / "reproduce.json").read_text())
    del claim["datasets"]
    (out / "reproduce.json").write_text(json.dumps(claim))
    path = out / "runs" / "table4-box" / "seed0" / "result.json"
    result = json.loads(path.read_text())
    result["data"]["latents"] = "0" * 64
    path.write_text(json.dumps(result))
    with pytest.raises(UsageError, match="was trained on other images"):
        on(first, other, "box")


IMAGES = {
    each.name: each
    for study in STUDIES.values()
    for row in study.rows
    for each in (row.train_on, row.score_on)
    if each is not None
}
SIZES = Rendering(images=4, test=3, pairs=2, generators=5, resolution=32, quality="draft")


@pytest.mark.parametrize(
    ("name", "images", "preset", "split", "pairs"),
    [
        ("3dident", 4, "3dident", "train", None),
        ("3dident-test", 3, "3dident", "test", None),
        ("pairs-laplace-0.1", 4, "3dident", "train", Laplace(0.1)),
        ("pairs-normal-0.28", 4, "3dident", "train", Normal(0.28)),
        ("generator-3dident-wrapped", 5, "3dident-wrapped", "train", None),
        ("generator-3dident-wrapped-test", 3, "3dident-wrapped", "test", None),
    ],
)
def test_a_dataset_is_rendered_as_its_table_says(
    tmp_path: Path, name: str, images: int, preset: str, split: str, pairs: Any
) -> None:
    pytest.importorskip("warp")
    for _ in range(2):  # the second time it is there
        images_module._render(tmp_path / name, IMAGES[name], SIZES, 32, "draft")
    dataset = DatasetDir.open(tmp_path / name)
    assert sum(interval.count for interval in dataset.shards()) == images
    manifest = dataset.manifest
    assert manifest.preset is not None and manifest.preset.name == preset
    assert (manifest.settings["split"], manifest.resolution) == (split, 32)
    assert (manifest.engine["name"], manifest.engine["quality"]) == ("direct", "draft")
    assert (manifest.pair_process and manifest.pair_process.conditional) == pairs


def test_a_dataset_that_cannot_be_rendered_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Summary:
        return Summary(root=tmp_path, failed={3: "no such luck"})

    def refuse(*_: Any, **__: Any) -> Summary:
        raise RenderError("the renderer cannot start: libgl1 is missing")

    def interrupt(*_: Any, **__: Any) -> Summary:
        raise RenderInterrupted(Summary(root=tmp_path, interrupted=True))

    for render, message in ((fail, r"1 images could not be rendered"), (refuse, "libgl1")):
        monkeypatch.setattr("threedident.render.dataset.render_dataset", render)
        with pytest.raises(DatasetError, match=f"could not be rendered: .*{message}"):
            images_module._render(tmp_path / "d", IMAGES["3dident"], SIZES, 32, "draft")
    monkeypatch.setattr("threedident.render.dataset.render_dataset", interrupt)
    with pytest.raises(KeyboardInterrupt):  # a reproduction stops as well
        images_module._render(tmp_path / "d", IMAGES["3dident"], SIZES, 32, "draft")


@pytest.mark.usefixtures("undrawn")
def test_a_reproduction_says_how_far_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"rows": ROWS, "scale": "smoke", "threads": 1}
    reproduce("aninfonce", tmp_path, **options, train=FakeTraining())
    said = capsys.readouterr().err.splitlines()
    assert said[0] == (
        f"aninfonce at scale smoke: 2 runs, 0 of them finished already; writes to {tmp_path}; "
        "Ctrl-C stops, and the same command goes on"
    )
    assert said[1] == "run 1 of 2: aninfonce, seed 0"
    assert said[2] == (
        "run 2 of 2: aninfonce-infonce, seed 0; about 1:01 of training left, at 1:01 a run"
    )
    reproduce("aninfonce", tmp_path, **options, train=FakeTraining())
    assert "2 runs, 2 of them finished already" in capsys.readouterr().err


@pytest.mark.usefixtures("undrawn")
def test_a_table_says_what_its_numbers_and_columns_mean(tmp_path: Path) -> None:
    meaningless = "The numbers mean nothing."
    smoke = run("aninfonce", tmp_path / "smoke", FakeTraining(), rows="aninfonce")
    assert meaningless in smoke
    cpu = run("aninfonce", tmp_path / "cpu", FakeTraining(), rows="aninfonce", scale="cpu")
    assert meaningless not in cpu
    for table in (smoke, cpu):
        assert "the published code uses the similarities of view 1 to view 2" in table
        assert "`matches`:" not in table  # no such column
    table = run("table2", tmp_path / "2", FakeTraining(), rows="table2-laplace-box-laplace")
    assert "`matches`: whether pairs, space and model meet the theory's assumptions." in table


def test_a_real_smoke_run(tmp_path: Path) -> None:
    options = {"rows": "sphere-uniform-vmf1-vmf", "scale": "smoke", "threads": 1, "quiet": True}
    table = reproduce("table1", tmp_path, changes=FAST, **options).read_text()
    row = cells(table, "table1-sphere-uniform-vmf1-vmf")
    assert row["matches"] == "yes" and row["R2 published"] == "99.42 ± 0.05"
    assert 0 < float(row["R2 here"]) <= 100
    assert "MCC published" not in row
    assert "training.steps 300,001 -> 20" in table
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_a_smoke_run_of_matched_vectors(tmp_path: Path) -> None:
    rows = "nearest-laplace-unbounded-10000,resampled-laplace-unbounded-10000,exact-laplace-box"
    options = {"rows": rows, "scale": "smoke", "threads": 1, "quiet": True}
    changes = {**FAST, "training.batch_size": 64}
    table = reproduce("matching-synthetic", tmp_path, changes=changes, **options).read_text()
    nearest, resampled, exact = (
        cells(table, f"matching-synthetic-{row}") for row in rows.split(",")
    )
    # Of 300 latents none is near: pairs get wider, and lose the peak of the Laplace distribution.
    assert float(exact["std of pairs"]) == pytest.approx(0.132, abs=0.005)
    assert float(exact["kurtosis of pairs"]) > 5.5
    assert float(nearest["std of pairs"]) > 0.35 and float(nearest["kurtosis of pairs"]) < 4
    assert float(exact["std of pairs"]) < float(resampled["std of pairs"])
    assert "data.latents 10,000 -> 300" in table


@pytest.mark.parametrize("name", ["training.seed", "start"])
def test_what_a_study_sets_itself_is_not_taken(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=f"a study sets {name} itself"):
        reproduce("aninfonce", tmp_path, scale="smoke", changes={name: 7}, quiet=True)
    assert not (tmp_path / "runs").exists()
