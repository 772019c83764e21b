from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from threedident.baselines import experiment_checks
from threedident.baselines.experiment import (
    Experiment,
    experiment_names,
    load_experiment,
    parse_experiment,
    parse_setting,
)
from threedident.baselines.reproduce.scales import SCALES, changes_of
from threedident.baselines.reproduce.studies import STUDIES, Row
from threedident.baselines.tables import read_tables
from threedident.distributions import Laplace, Normal, ProjectedNormal, VonMisesFisher
from threedident.distributions.spaces import Box
from threedident.errors import UsageError
from threedident.evaluate.leaderboard import published_scores

NAMES = experiment_names()
SYNTHETIC = {"data": load_experiment("aninfonce").data}


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_parses_says_what_it_is_and_survives_toml(name: str) -> None:
    experiment = load_experiment(name)
    assert experiment.name == name
    assert experiment.title and experiment.source
    again = parse_experiment(tomllib.loads(experiment.to_toml()), "text", "other")
    assert again == experiment


def test_every_table_is_a_study_and_every_preset_is_a_row_or_varied_by_one() -> None:
    assert set(STUDIES) == set(read_tables())
    trained = {row.preset for study in STUDIES.values() for row in study.rows}
    assert trained | {"demo"} == set(NAMES)
    for name in ("table1", "table2", "table4"):
        assert all(row.published is not None for row in STUDIES[name].rows)


def rows_of(*studies: str) -> list[Row]:
    return [row for study in studies for row in STUDIES[study].rows]


def test_numbers_of_papers() -> None:
    # Looked up in the papers once more, one of each block.
    expected = {
        "table1-sphere-uniform-vmf1-vmf": ("linear_r2", 0.9942, 0.0005),
        "table1-box-uniform-identity": ("linear_r2", 0.6793, 0.0740),
        "table1-unbounded-normal-supervised": ("linear_r2", 0.9961, 0.0017),
        "table2-normal-unbounded-gennorm": ("mcc", 0.4380, 0.0215),
        "table2-gennorm-box-gennorm": ("mcc", 0.9990, 0.0006),
        "table4-sphere": ("mcc", 0.4244, 0.0327),
        "ensemble-infonce": ("linear_r2", 0.48, None),
    }
    published = {row.name: row.published for row in rows_of(*STUDIES) if row.published is not None}
    for row, (metric, mean, std) in expected.items():
        assert published[row].scores[metric] == (mean, std)
    assert published["aninfonce"].earlier[14_751] == {"linear_r2": 0.982}
    sizes = [len(STUDIES[name].rows) for name in ("table1", "table2", "table4")]
    assert sizes == [12 + 10, 10 + 3, 7]
    for each in published.values():
        assert all(0 <= mean <= 1 for mean, _ in each.scores.values())


def test_table_4_is_tied_to_the_rows_it_came_from() -> None:
    for row, known in zip(STUDIES["table4"].rows, published_scores.TABLE_4, strict=True):
        assert row.published is not None and row.published.scores == known.scores
        if row.identity:
            continue
        experiment = row.published_experiment()
        assert experiment.supervised == (known.track == "supervised")
        assert (experiment.data.pairs == "views") == (known.conditional == "augmentations")
        conditional = experiment.data.conditional
        if known.conditional in ("Normal", "Laplace"):
            assert isinstance(conditional, Normal if known.conditional == "Normal" else Laplace)
        normalised = experiment.loss.normalize and experiment.loss.p == 0
        output = "sphere" if normalised else experiment.encoder.output
        assert output == known.space


@pytest.mark.parametrize("row", [row for row in rows_of("table1", "table2") if not row.identity])
def test_names_of_synthetic_rows_say_what_is_trained(row: Row) -> None:
    experiment = load_experiment(row.name)
    loss = experiment.loss
    assert experiment.training.batch_size == 6144
    assert experiment.supervised == ("supervised" in row.name)
    assert experiment.training.steps == (100_001 if experiment.supervised else 300_001)
    if not experiment.supervised:
        model = row.name.split("-")[-1]
        assert loss.p == {"vmf": 0, "laplace": 1, "normal": 2, "gennorm": 3}[model]
        assert (loss.negatives, loss.own, loss.symmetric, loss.tau) == ("anchors", True, False, 1)
        assert (experiment.encoder.output == "sphere") == (model == "vmf")
    if experiment.encoder.output == "box":
        assert experiment.encoder.learned and experiment.data.space == Box(10, 0.0, 1.0)
    if row.name.startswith("table1-"):
        space = experiment.data.space
        assert type(space).__name__.lower() == row.name.split("-")[1]
        assert experiment.data.marginal.name == row.name.split("-")[2]


def test_exact_rows_state_the_conditional_of_their_images() -> None:
    exact = [row for row in rows_of("matching") if row.name.startswith("matching-exact")]
    assert len(exact) == 16
    for row in exact:
        data = row.published_experiment().data
        assert row.train_on is not None and data.pairs == "rendered"
        assert data.conditional == row.train_on.conditional is not None


def test_a_file_can_change_a_preset(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'base = "table4-box"\ntitle = "Wider pairs"\n[data]\nconditional = { sigma = 0.2 }\n'
        "[training]\nsteps = 100\n"
    )
    mine, base = load_experiment(path), load_experiment("table4-box")
    assert (mine.name, mine.title, mine.source) == ("mine", "Wider pairs", base.source)
    assert mine == base.changed(
        {
            **{"name": "mine", "title": "Wider pairs"},
            **{"data.conditional.sigma": 0.2, "training.steps": 100},
        }
    )
    path.write_text('base = "table4-box"\n[data]\nconditional = { name = "laplace", lam = 0.1 }\n')
    assert load_experiment(path).data.conditional == Laplace(0.1)
    for base_line, message in (
        ('base = "table9"', r"mine\.toml: unknown experiment 'table9'"),
        ("base = 3", "base must be the name of a preset, found 3"),
        ('base = "mine2.toml"', r"must be the name of a preset \(`3dident train --list`.*'mine2"),
    ):
        path.write_text(base_line)
        with pytest.raises(UsageError, match=message):
            load_experiment(path)


def test_a_changed_experiment_does_not_claim_what_it_was(tmp_path: Path, cli: Any) -> None:
    demo = load_experiment("demo")
    assert "Normal(0.3)" in demo.title
    wider = demo.changed({"data.conditional.sigma": 0.5})
    assert wider.title == "demo, changed: data.conditional"
    assert demo.changed({"training.steps": 7, "training.seed": 1, "name": "x"}).title == demo.title
    assert demo.changed({"loss.p": 2}).title == demo.title
    named = {"data.conditional.sigma": 0.5, "title": "Mine"}
    assert demo.changed(named).title == "Mine"
    again = wider.changed({"name": "y", "loss.p": 1, "encoder.size": 3.0})
    assert again.title == "demo, changed: data.conditional, encoder.size, loss.p"
    untitled = wider.changed({"title": ""})
    assert untitled.changed({"loss.p": 1}).title == ""
    path = tmp_path / "mine.toml"
    path.write_text('base = "demo"\ndata.conditional = { name = "laplace", lambda = 0.1 }\n')
    mine = load_experiment(path)
    assert (mine.name, mine.title) == ("mine", "demo, changed: data.conditional")
    path.write_text('base = "demo"\ntraining.steps = 9\n')
    assert load_experiment(path).title == demo.title
    shown = cli("train", "demo", "--set", "data.conditional.sigma=0.5", "--show").stdout
    assert 'title = "demo, changed: data.conditional"' in shown


def test_anisotropic_rows() -> None:
    for name in ("aninfonce", "aninfonce-infonce", "aninfonce-learned-tau"):
        experiment = load_experiment(name)
        assert experiment.data.conditional == ProjectedNormal((5.0,) * 5 + (25.0,) * 5)
        loss = experiment.loss
        assert (loss.negatives, loss.own, loss.symmetric) == ("both", False, True)
        assert loss.learn_tau == name.endswith("tau")
    linear = load_experiment("aninfonce-linear").data.conditional
    assert isinstance(linear, ProjectedNormal) and isinstance(linear.Lambda, tuple)
    steps = [b - a for a, b in zip(linear.Lambda, linear.Lambda[1:], strict=False)]
    assert (linear.Lambda[0], linear.Lambda[-1]) == (5, 25)
    assert max(steps) - min(steps) < 0.02
    hard = load_experiment("hard-negatives").data
    assert hard.hard_negatives == ProjectedNormal(100.0) and hard.hard_count == 3
    first, second = load_experiment("ensemble").data.conditionals
    assert isinstance(first, ProjectedNormal) and isinstance(second, ProjectedNormal)
    assert isinstance(first.Lambda, tuple) and isinstance(second.Lambda, tuple)
    assert first.Lambda[:3] == second.Lambda[:3] == (400.0,) * 3
    swapped = {15.0: 250.0, 250.0: 15.0}
    assert second.Lambda[3:] == tuple(swapped[v] for v in first.Lambda[3:])


def test_fields_are_overridden_by_name() -> None:
    before = load_experiment("table1-sphere-uniform-vmf1-vmf")
    after = before.changed(
        {
            "training.steps": 7,
            "training.loss_lr": 1e-3,
            "data.conditional": {"name": "vmf", "kappa": 3.0},
            "name": "mine",
        }
    )
    assert after.training.steps == 7 and after.name == "mine"
    assert after.data.conditional == VonMisesFisher(3.0)
    assert after.changed({"training.loss_lr": None}).training.loss_lr is None
    assert before.training.steps == 300_001


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"training.stepz": 1}, "unknown field training.stepz"),
        ({"traning.steps": 1}, "unknown field 'traning.steps'"),
        ({"steps": 1}, "such as training.steps"),
        ({"training.steps": "many"}, "training.steps: expected a whole number, found 'many'"),
        ({"training.steps": 0}, "at least 1"),
        ({"training.lr": -1.0}, "training.lr must be above 0"),
        ({"training.accumulate": 5}, "multiple of training.accumulate"),
        ({"loss.p": 0.5}, "from 1 to 64"),
        ({"loss.kind": "nce"}, "one of infonce"),
        ({"encoder.body": "resnet18"}, "need encoder.body mlp"),
        ({"data.conditional": {"name": "cauchy"}}, "unknown distribution 'cauchy'"),
        ({"data.conditional": None}, "need data.conditional"),
        ({"data.space": {"name": "unbounded", "n": 10}}, "unbounded"),
        ({"encoder.width": 32}, "encoder.body = 'mlp' has none"),
        ({"data.match": "resample"}, "set data.latents"),
        ({"data.latents": 6143}, "does not fit data.latents = 6143"),
        ({"data.latents": -1}, "does not fit data.latents = -1"),
        (
            {"data.latents": 10_000, "data.space": {"name": "sphere", "n": 10, "r": 1.0}},
            "uniform in a box",
        ),
        ({"data.latents": 10_000, "loss.kind": "mse"}, "leave it out of supervised"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], said: str) -> None:
    experiment = load_experiment("table1-box-uniform-normal-normal")
    with pytest.raises(UsageError, match=said.replace("(", r"\(")):
        experiment.changed(change)


def test_fields_of_vectors_and_of_images_are_kept_apart() -> None:
    images = load_experiment("table4-box")
    assert images.changed({"encoder.width": 32}).encoder.width == 32
    for change, said in (
        ({"data.latents": 100_000}, "images bring their own latents"),
        ({"encoder.width": 0}, "from 1 to 512"),
        ({"encoder.width": 4096}, "from 1 to 512"),
    ):
        with pytest.raises(UsageError, match=said):
            images.changed(change)


def test_unknown_presets_and_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown experiment 'table9'.*table4-"):
        load_experiment("table9")
    with pytest.raises(UsageError, match="there is no such file"):
        load_experiment(tmp_path / "none.toml")
    path = tmp_path / "mine.toml"
    path.write_text("title = ")
    with pytest.raises(UsageError, match="not valid TOML"):
        load_experiment(path)
    path.write_text("[data]\nobservations = 'images'\n[los]\n")
    with pytest.raises(UsageError, match="unknown field 'los'"):
        load_experiment(path)
    path.write_text(load_experiment("ensemble").to_toml().replace("ensemble", "mine", 1))
    assert load_experiment(path).data == load_experiment("ensemble").data


def test_settings_of_the_command_line() -> None:
    assert parse_setting("training.steps=1_000") == ("training.steps", 1000)
    assert parse_setting("encoder.output = box") == ("encoder.output", "box")
    assert parse_setting("data.factors=['x']") == ("data.factors", ["x"])
    with pytest.raises(UsageError, match="NAME=VALUE"):
        parse_setting("training.steps")


@pytest.mark.parametrize("scale", SCALES)
def test_every_row_fits_every_scale(scale: str) -> None:
    for study in STUDIES.values():
        for row in study.rows:
            changes = changes_of(SCALES[scale], study, row)
            made: Experiment = row.published_experiment().changed(changes)
            assert made.name == row.name
            assert (made.data.observations == "images") == study.of_images
            assert (row.score_on is not None) == study.of_images
            if row.train_on is not None and row.train_on.conditional is not None:
                assert made.data.pairs == "rendered"


def test_a_scale_changes_rows_by_globs_and_the_last_that_fits_decides() -> None:
    def changed(study: str, row: str) -> Experiment:
        chosen = STUDIES[study].row(row)
        changes = changes_of(SCALES["cpu"], STUDIES[study], chosen)
        return chosen.published_experiment().changed(changes)

    stubborn = changed("table1", "table1-sphere-uniform-vmf1-vmf")
    other = changed("table1", "table1-sphere-uniform-vmf10-vmf")
    assert stubborn.training.batch_size > other.training.batch_size == 6144
    laplace, normal = (changed("table2", f"table2-laplace-box-{q}") for q in ("laplace", "normal"))
    assert (laplace.loss.p, laplace.loss.start_p, normal.loss.start_p) == (1, 2, None)
    assert 0 < laplace.loss.start_steps < laplace.training.steps
    assert laplace.encoder.size == normal.encoder.size == 5
    # The targets of a supervised box lie in [0, 1]: no other start suits them better.
    assert changed("table2", "table2-supervised-box").encoder.size == 1
    assert changed("table4", "table4-box").encoder.size == 4
    assert changed("table4", "table4-unbounded").encoder.size == 1
    assert changes_of(SCALES["paper"], STUDIES["table1"], STUDIES["table1"].rows[0]) == {}


def test_the_list_of_presets_is_grouped_by_table_and_says_what_each_needs(cli: Any) -> None:
    lines = cli("train", "--list").stdout.splitlines()
    assert lines[0].split() == ["preset", "trained", "on", "steps", "what"]
    place = {line.split()[0]: number for number, line in enumerate(lines) if line}
    assert set(experiment_names()) < set(place)
    assert lines[place["demo"]].split()[1:3] == ["images", "250"]
    assert lines[place["table2-gennorm-box-laplace"]].split()[1:3] == ["synthetic", "300,001"]
    heads = [line for line in lines if "`3dident reproduce " in line]
    assert len(heads) == len({*STUDIES} - {"generators"})  # whose rows are those of table 4
    table = next(
        number for number, line in enumerate(lines) if "`3dident reproduce table2`" in line
    )
    until = lines.index("", table)
    assert {line.split("-")[0] for line in lines[table + 1 : until]} == {"table2"}


def test_the_help_of_reproduce_names_every_study(cli: Any) -> None:
    text = " ".join(cli("reproduce", "--help").stdout.split())
    text = text.replace("- ", "-")  # where a line ends within a name
    assert f"WHAT is one of {', '.join(STUDIES)}." in text


@pytest.mark.parametrize("section", Experiment.SECTIONS)
def test_the_docs_have_a_row_for_every_field(section: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text("utf-8")
    table = text.partition(f"\n### {section}\n")[2].partition("\n### ")[0].partition("\n## ")[0]
    firsts = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    documented = re.findall(r"`(\w+)`", " ".join(firsts))
    assert sorted(documented) == sorted(vars(getattr(Experiment("any", **SYNTHETIC), section)))


def test_the_width_of_a_published_encoder_is_one_number() -> None:
    from threedident.encoders import resnet

    assert resnet.PUBLISHED_WIDTH == experiment_checks.PUBLISHED_WIDTH
