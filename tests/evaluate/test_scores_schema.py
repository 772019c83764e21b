"""scores.json, read strictly."""

from __future__ import annotations

import math

import pytest
from helpers.fake_scores import (
    changed,
    make_scores,
)

from threedident.errors import UsageError
from threedident.evaluate.scores_file import ScoresFile
from threedident.evaluate.scores_schema import check_scores

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
        ("submission.codes", 0, "submission.codes must be a whole number in .1, 2"),
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
        ScoresFile.read(path)
    with pytest.raises(UsageError, match="cannot read"):
        ScoresFile.read(tmp_path / "missing.json")
