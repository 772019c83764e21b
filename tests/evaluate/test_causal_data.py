"""Test sets of causal models: their variables, kinds and parents, and independent ones beside."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from helpers import family_folders
from helpers.fake_dataset import as_rendered
from helpers.submissions import AXES, mean_nodes, save_onnx, warned

from threedident.causal import Sampling, load_model
from threedident.datasets.dataset import ThreeDIdent
from threedident.datasets.formats import open_dataset
from threedident.datasets.formats.family.temporal import write_temporal
from threedident.errors import UsageError
from threedident.evaluate import evaluation as run
from threedident.evaluate.causal_data import (
    check_independent,
    kinds_of,
    parents_of,
    render_command,
    warn_of_layout,
    why_dependent,
)
from threedident.evaluate.report.recovery import Recovery
from threedident.evaluate.scores_file import ScoresFile
from threedident.evaluate.scores_schema import check_scores
from threedident.evaluate.seen import check_seen
from threedident.evaluate.test_set import TestSet as ScoredSet  # a name that pytest leaves alone
from threedident.storage.manifest import read_manifest

MODEL = Path(__file__).parents[1] / "data" / "model.toml"
NAMES = ("kind", "x", "y", "phi", "object_hue", "background_hue")
COUNT = 400

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")


@pytest.fixture(scope="module")
def model():
    return load_model(MODEL)


@pytest.fixture(scope="module")
def roots(model, tmp_path_factory):
    """The model as it is; independent variables of it; and what is neither."""
    folder = tmp_path_factory.mktemp("causal")
    other = MODEL.read_text().replace("std = 0.3", "std = 0.4")
    (folder / "other.toml").write_text(other)
    apart = {"environments": ("independent",)}
    return {
        "test": as_rendered(folder / "test", COUNT, split="test", sampling=Sampling(model)),
        "independent": as_rendered(
            folder / "independent", 300, split="test", seed=1, sampling=Sampling(model, **apart)
        ),
        "red": as_rendered(
            folder / "red", 40, sampling=Sampling(model, environments=("observed", "red"))
        ),
        "sequences": as_rendered(folder / "steps", 40, sampling=Sampling(model, steps=4)),
        "other": as_rendered(
            folder / "other", 40, sampling=Sampling(load_model(folder / "other.toml"), **apart)
        ),
        "large": as_rendered(folder / "large", 40, side=24, sampling=Sampling(model, **apart)),
        "plain": as_rendered(folder / "plain", 40),
    }


def variables(root) -> np.ndarray:
    return ThreeDIdent(root).variables.numpy()


def holding(values, columns=range(6)):
    """Codes that hold some variables of `MODEL` linearly."""
    parts = {
        0: (values[:, :1] == np.arange(3)).astype(float),
        3: np.stack([np.cos(values[:, 3]), np.sin(values[:, 3])], 1),
    }
    return np.concatenate([parts.get(c, values[:, [c]]) for c in columns], 1)


def test_kinds_and_parents_are_those_of_the_model(model):
    kinds = kinds_of(model)
    assert [kinds[name].name for name in NAMES] == [
        *("discrete", "continuous", "continuous", "circular", "continuous", "continuous")
    ]
    assert kinds["phi"].turn == pytest.approx(2 * np.pi)
    parents = parents_of(Sampling(model))
    assert parents == {
        **dict.fromkeys(NAMES, ()),
        "y": ("x",),
        "object_hue": ("kind", "y"),
    }
    assert parents_of(Sampling(model, environments=("red",)))["object_hue"] == ()
    both = Sampling(model, environments=("observed", "red"))
    assert parents_of(both)["object_hue"] == ("kind", "y")
    assert not any(parents_of(Sampling(model, environments=("independent",))).values())


@pytest.mark.parametrize(
    ("drawn", "reason"),
    [
        ({}, "variables depend on others: y on x, object_hue on kind and y"),
        ({"environments": ("red",)}, "variables depend on others: y on x"),
        ({"environments": ("independent", "red")}, "it mixes environments"),
        ({"environments": ("independent",), "steps": 3}, "its images come as sequences"),
        ({"environments": ("independent",), "view": "hues"}, "its images come as two views"),
        ({"environments": ("independent",)}, None),
        ({"environments": ("independent",), "do": {"y": 0.5}}, None),
        ({"environments": ("independent",), "do": {"y": "x / 2"}}, "others: y on x"),
        ({"do": {"y": 0.5, "object_hue": 0.1}}, None),
    ],
)
def test_which_variables_are_independent(model, drawn, reason):
    found = why_dependent(Sampling(model, **drawn))
    assert found is None if reason is None else reason in found


def test_the_factors_are_the_variables(roots):
    data = ScoredSet.open(roots["test"])
    assert data.factor_names == NAMES
    assert np.array_equal(data.values, variables(roots["test"]))
    assert ScoredSet.of(ThreeDIdent(roots["test"])).factor_names == NAMES
    some = ScoredSet.open(roots["test"], ["phi", "x"])
    assert some.factor_names == ("phi", "x")
    assert np.array_equal(some.values, data.values[:, [3, 1]])
    assert [kind.name for kind in some.kinds] == ["circular", "continuous"]
    assert ScoredSet.of(ThreeDIdent(roots["test"], factors=["x"])).factor_names == ("x",)
    with pytest.raises(UsageError, match="model small has no variable 'theta'"):
        ScoredSet.open(roots["test"], ["theta"])
    with pytest.raises(UsageError, match="model small has no variable 'z'"):
        ScoredSet.of(ThreeDIdent(roots["test"], factors=["position"]))
    plain = ScoredSet.open(roots["plain"])
    assert plain.kinds is plain.parents is plain.scored_parents is None
    record = data.record()
    assert (record.model, record.drawn["environments"]) == ("small", ["observed"])
    assert set(record.best_r2) <= {"x", "y", "object_hue", "background_hue"}
    assert "model" not in plain.record().as_dict()


def test_metrics_of_a_model(roots):
    whole = ScoredSet.open(roots["test"])
    assert whole.choose_metrics(None) == ("linear_r2", "mcc", "r2_beyond_parents", "accuracy")
    assert {"kernel_accuracy", "infomec", "dci"} < set(whole.choose_metrics(["all"]))
    assert whole.choose_metrics(["mcc"]) == ("mcc",)
    some = ScoredSet.open(roots["test"], ["y", "object_hue"])
    assert some.choose_metrics(None) == ("linear_r2", "mcc")
    with pytest.raises(UsageError, match=r"needs the parents of every factor .*: add kind, x to"):
        some.choose_metrics(["r2_beyond_parents"])
    with pytest.raises(UsageError, match="metric accuracy cannot be computed here"):
        some.choose_metrics(["accuracy"])
    apart = ScoredSet.open(roots["independent"])
    assert apart.choose_metrics(None) == ("linear_r2", "mcc", "accuracy")
    plain = ScoredSet.open(roots["plain"])
    assert plain.choose_metrics(None) == ("linear_r2", "mcc")
    with pytest.raises(UsageError, match="it needs factors that have parents"):
        plain.choose_metrics(["r2_beyond_parents"])


def test_codes_that_hold_all_variables_score_one(roots):
    found = run.score_codes(holding(variables(roots["test"])), roots["test"], bootstrap=0)
    for name in ("linear_r2", "r2_beyond_parents"):
        assert min(found.scores[name].per_factor.values()) > 0.99, name
    assert found.scores["accuracy"].per_factor["kind"] > 0.99
    assert found.scores["mcc"].per_factor["phi"] is None
    assert found.settings["kinds"]["phi"] == "circular"
    assert found.settings["parents"]["object_hue"] == ["kind", "y"]
    text = "\n".join(run.summary(found))
    assert "R2 beyond parents" in text and "accuracy" in text
    codes = [warning.code for warning in found.warnings]
    assert codes[0] == "no_independent_set"


def test_what_a_published_layout_has_beside_ten_numbers_is_warned_of(tmp_path):
    source = family_folders.temporal()
    write_temporal(source, tmp_path / "d.npz")
    found = run.score_codes(source.raw_latents, tmp_path / "d.npz", bootstrap=0, folds="in-sample")
    (text,) = (each.message for each in found.warnings if each.code == "published_layout")
    assert "not scored: shape" in text
    assert "come round again: phi, theta" in text
    still = family_folders.box()
    (warning,) = warn_of_layout(still)
    assert "not scored: " in warning.message and "round again" not in warning.message


def test_a_plain_dataset_has_nothing_that_is_not_scored(roots):
    for name in ("plain", "test"):
        with open_dataset(roots[name]) as source:
            assert warn_of_layout(source) == ()


def test_a_code_of_a_cause_says_nothing_beyond_it(roots):
    codes = holding(variables(roots["test"]), [1])
    found = run.score_codes(
        codes, roots["test"], metrics=["linear_r2", "r2_beyond_parents"], bootstrap=0
    ).scores
    assert found["linear_r2"].per_factor["y"] > 0.5
    assert abs(found["r2_beyond_parents"].per_factor["y"]) < 0.05


def test_the_command_shows_both_sets_side_by_side(cli, tmp_path, roots):
    path = save_onnx(tmp_path / "a.onnx", mean_nodes(), initializers=[AXES])
    words = ("evaluate", path, "--data", roots["test"], "--bootstrap", 100, "--out", "out")
    alone = cli(*words).stdout
    assert (
        "warning: scores on dependent variables alone: variables depend on others: y on x" in alone
    )
    assert "--model small.toml --environment independent --split test --n 2000" in alone
    assert "--engine direct --quality draft --resolution 16 --out DIR" in alone
    said = cli(*words, "--independent", roots["independent"]).stdout
    assert "dependent variables alone" not in said
    assert "on independent variables of the same generator:" in said
    scores = json.loads((tmp_path / "out/scores.json").read_text())
    check_scores(scores, "scores.json")
    beside = scores["independent"]
    assert list(beside) == ["data", "settings", "scores", "warnings"]
    assert beside["data"]["images"] == 300
    assert beside["data"]["drawn"]["environments"] == ["independent"]
    assert list(scores["scores"]) == ["linear_r2", "mcc", "r2_beyond_parents", "accuracy"]
    assert list(beside["scores"]) == ["linear_r2", "mcc", "accuracy"]
    again = ScoresFile.read(tmp_path / "out/scores.json")
    assert again.as_dict() == scores
    expected = run.evaluate(path, roots["independent"], bootstrap=100).scores
    assert beside["scores"] == {name: expected["scores"][name] for name in beside["scores"]}
    page = (tmp_path / "out/report.html").read_text()
    for words in ("R2, independent", '<th scope="col">independent</th>', "small", "multiple"):
        assert words in page, words


def test_reference_encoders_are_the_same_on_both(roots):
    both = run.evaluate(
        "reference:random", roots["test"], independent=roots["independent"], bootstrap=0
    )
    alone = run.evaluate("reference:random", roots["test"], bootstrap=0)
    assert both.scores["scores"] == alone.scores["scores"]
    assert "no_independent_set" in warned(alone.scores)
    assert "no_independent_set" not in warned(both.scores)
    assert both.file.independent is not None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("plain", "is of no causal model. Render one: `3dident render --model small.toml --envi"),
        ("other", "is of another generator than the test set: they differ in variables.y"),
        ("large", "is of another generator than the test set: they differ in resolution"),
        ("test", "has no independent variables: variables depend on others: y on x"),
        ("red", "has no independent variables: it mixes environments"),
        ("sequences", "has no independent variables: its images come as sequences"),
    ],
)
def test_another_dataset_beside_is_refused(roots, name, message):
    with pytest.raises(UsageError, match=f"--independent .*{message}"):
        run.evaluate("reference:random", roots["test"], independent=roots[name])


@pytest.mark.parametrize(
    ("place", "value", "name"),
    [
        (("mesh_sha256",), "0" * 64, "mesh_sha256"),
        (("engine", "quality"), "reference", "engine.quality"),
        (("engine", "name"), "other", "engine.name"),
        (("engine", "device"), "other", None),
    ],
)
def test_independent_images_are_made_in_the_same_way(roots, place, value, name):
    first, second = (read_manifest(roots[each]) for each in ("test", "independent"))
    settings = copy.deepcopy(dict(second.settings))
    inner = settings
    for key in place[:-1]:
        inner = inner[key]
    assert inner[place[-1]] != value
    inner[place[-1]] = value
    changed = dataclasses.replace(second, settings=settings)
    if name is None:
        check_independent(first, changed, "other")
        return
    with pytest.raises(UsageError, match=f"of another generator .* they differ in {name}"):
        check_independent(first, changed, "other")


def test_what_cannot_be_run_on_another_dataset(tmp_path, roots):
    np.save(tmp_path / "a.npy", holding(variables(roots["test"])))
    with pytest.raises(UsageError, match="embeddings are of one test set alone"):
        run.evaluate(tmp_path / "a.npy", roots["test"], independent=roots["independent"])
    with pytest.raises(UsageError, match="reference:pca would be fitted on each dataset anew"):
        run.evaluate("reference:pca", roots["test"], independent=roots["independent"])
    with pytest.raises(UsageError, match="--independent goes with a test set of a causal model"):
        run.evaluate("reference:random", roots["plain"], independent=roots["independent"])


def test_groups_of_images_are_warned_of(roots):
    with open_dataset(roots["sequences"]) as source:
        messages = {each.code: each.message for each in check_seen(source)}
        assert messages["paired_images"].startswith("the test set was rendered in sequences")
    with open_dataset(roots["test"]) as source:
        assert "paired_images" not in {each.code for each in check_seen(source)}
        command = render_command(source.manifest)
    assert command.startswith("`3dident render --model small.toml --environment independent")


def test_a_report_predicts_points(roots):
    values = variables(roots["test"]).astype(float)
    kinds = ScoredSet.open(roots["test"]).kinds
    found = Recovery.of(values, holding(values), kinds)
    assert np.allclose(found.predicted, values, atol=1e-5)
    assert found.error.max() < 1e-5
    assert found.correlation[3, 3:5] == pytest.approx(0, abs=0.3)
    assert found.correlation[3, 5] == pytest.approx(1)
    assert found.correlation[0, :3] == pytest.approx(1)
    blurred = holding(values) + 0.3 * np.random.default_rng(0).standard_normal((COUNT, 9))
    off = Recovery.of(values, blurred, kinds).predicted[:, 3] - values[:, 3]
    assert 0.1 < np.abs(off).max() <= np.pi + 1e-9


def test_old_and_damaged_parts_are_told_apart(roots):
    scores = run.evaluate(
        "reference:random", roots["test"], independent=roots["independent"], bootstrap=0
    ).scores
    for path, value, message in (
        (("independent",), [], "independent must be an object"),
        (("independent", "scores"), {}, "independent.scores holds no metric"),
        (("independent", "extra"), 1, "independent has an unknown field 'extra'"),
        (("independent", "data", "images"), 0, "independent.data.images"),
        (("data", "model"), 3, "data.model must be text"),
        (("data", "drawn"), {"group": "single"}, "data.drawn.environments must be a list"),
    ):
        changed = json.loads(json.dumps(scores))
        place = changed
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        with pytest.raises(UsageError, match=message):
            check_scores(changed, "scores.json")
