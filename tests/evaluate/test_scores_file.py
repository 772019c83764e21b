"""scores.json as an object: what is read is what was written."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.fake_scores import changed, make_scores

from threedident.evaluate import ScoresFile, score
from threedident.evaluate.metric_report import MetricReport
from threedident.evaluate.scores_file import DatasetIdentity, ScoresOwner

OLD = Path(__file__).parents[1] / "data" / "before_the_house" / "scores" / "scores.json"


def test_a_file_of_before_is_written_as_it_was(tmp_path):
    ScoresFile.read(OLD).write(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == OLD.read_bytes()


def test_fields_that_are_not_known_stay():
    document = json.loads(OLD.read_text())
    for part in ("submission", "data"):
        document[part]["of tomorrow"] = {"a": [1, None]}
    assert ScoresFile.parse(document, "scores.json").as_dict() == document


def test_fields_of_an_earlier_version_may_be_missing():
    scores = make_scores()  # which lacks what later versions added
    read = ScoresFile.parse(scores, "scores.json")
    assert (read.submission.files, read.submission.batch_size) == (None, None)
    assert read.scores["mcc"].chance_interval is None
    assert read.scores["linear_r2"].value == 0.95
    assert read.scores["linear_r2"].best == scores["scores"]["linear_r2"]["best_per_factor"]


def test_only_the_time_may_differ():
    one = ScoresFile.from_dict(make_scores())
    later = ScoresFile.from_dict(changed(make_scores(), "created", "2027-01-01T00:00:00+00:00"))
    other = ScoresFile.from_dict(changed(make_scores(), "scores.mcc.value", 0.5))
    assert one.same_but_for_time(later)
    assert one != later
    assert one == ScoresFile.from_dict(make_scores())
    assert not one.same_but_for_time(other)


@pytest.mark.parametrize("value", [None, [], {}, 0, "", False])
@pytest.mark.parametrize(
    "path",
    [
        *("submission.files", "data.not_injective", "data.best_r2", "scores.mcc.per_factor"),
        *("scores.mcc.per_factor_interval", "scores.mcc.best_per_factor", "scores.mcc.parts"),
        *("scores.mcc.choices", "scores.mcc.share_of_best", "scores.mcc.chance_interval"),
    ],
)
def test_whatever_the_schema_lets_through_can_be_read(path, value):
    read = ScoresFile.parse(changed(make_scores(), path, value), "scores.json")
    again = ScoresFile.parse(json.loads(json.dumps(read.as_dict())), "scores.json")
    assert again == read


@pytest.mark.parametrize("value", ["high", [0.1], [0.1, "b"], [[0.1], 0.2], {"low": 0, "up": 1}])
def test_an_interval_of_chance_that_is_none_is_left_out(value):
    scores = changed(make_scores(), "scores.mcc.chance_interval", value)
    assert ScoresFile.parse(scores, "scores.json").scores["mcc"].chance_interval is None


def test_a_report_of_a_metric_comes_back_from_its_data():
    z = np.random.default_rng(0).uniform(-1, 1, (200, 3))
    z[:, 1] = 0.5
    found = score(z, z[:, [2, 0]], factors=["a", "b", "c"], metrics=["linear_r2", "mcc", "dci"])
    for report in found.scores.values():
        data = json.loads(json.dumps(report.as_dict()))
        read = MetricReport.from_dict(data)
        assert read.as_dict() == data
        assert read.value == pytest.approx(report.value, rel=1e-9)
        assert read.ends == pytest.approx(report.ends, rel=1e-9)
    linear = found.scores["linear_r2"]
    assert linear.per_factor["b"] is None
    assert linear.factor_ends("b") is None
    assert linear.factor_ends("a")[0] < linear.per_factor["a"] + 1e-9


def test_whose_scores_a_file_holds_is_read_where_the_rest_is_not_checked(tmp_path):
    path = tmp_path / "scores.json"
    scores = changed(make_scores(), "scores", {"of tomorrow": {"value": 1}})
    path.write_text(json.dumps(scores))
    owner = ScoresOwner.read(path)
    assert owner is not None
    assert (owner.name, owner.files) == ("encoder.onnx", None)
    assert owner.scored_on == DatasetIdentity("ab" * 32, 4096)
    for damaged in ("[]", "{", '{"submission": 1, "data": 2}', '{"submission": {}, "data": {}}'):
        path.write_text(damaged)
        assert ScoresOwner.read(path) is None
