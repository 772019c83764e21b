"""The report: whole, the same each time, and safe whatever a manifest says."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import re

import numpy as np
import pytest
import torch
from helpers.fake_scores import Structure, changed, make_codes, make_scores, scores_file
from PIL import Image

from threedident.datasets.dataset import ThreeDIdent
from threedident.errors import UsageError
from threedident.evaluate.report.html import (
    runs_nothing,
)
from threedident.evaluate.report.recovery import Recovery
from threedident.evaluate.report.report import report, write_report
from threedident.evaluate.scores_file import ScoresFile


@pytest.fixture(scope="module")
def codes():
    return make_codes()


HOSTILE = (
    "<script>window.hacked=1</script>",
    '"><img src=x onerror=alert(1)>',
    "</title></style></svg><script>alert(1)</script>",
    "a" * 4000,
    "\u202egnp.exe\u202c \u2066x\u2069 \u200f",
    "&lt;b&gt; ' \" \x00 \x1b[31m",
)


def altered(scores, path, value) -> ScoresFile:
    return ScoresFile.from_dict(changed(scores, path, value))


def test_a_whole_page(codes):
    text = report(scores_file(), *codes)
    found = Structure(text)
    for words in (
        *("An entry", "J. Doe, R. Roe", "exact pairs", "InfoNCE, ResNet-18", "250,000"),
        *("0.9500", "0.9460 to 0.9540", "-0.0020", "0.9946", "95.5%"),
        *("the generator is not injective; see best R2", "spotlight_position", "0.9630"),
        *("direct 1.19.0 standard", "ab" * 32, "numpy 1.26.4, scipy 1.17.1", '"folds": 2'),
        "Worst recovered",
    ):
        assert words in found.text, words
    assert found.names.count("svg") == 1 + 10
    assert found.names.count("figure") == 12
    assert "script" not in found.names
    assert "style" not in [name for _, name, _ in found.attributes]
    assert [v for _, n, v in found.attributes if n in ("href", "src")] == [
        "https://example.org/our-paper"
    ]


def column(text, heading):
    """A column of the table by factor."""
    table = text.split("By factor")[1]
    heads = [html.unescape(h) for h in re.findall("<th[^>]*>(.*?)</th>", table.split("<tbody>")[0])]
    place = [re.sub("<[^>]*>", "", head) for head in heads].index(heading)
    rows = re.findall("<tr>(.*?)</tr>", table.split("<tbody>")[1].split("</tbody>")[0], re.S)
    cells = [re.findall("<t[hd][^>]*>(.*?)</t[hd]>", row, re.S) for row in rows]
    return {re.sub("<[^>]*>", "", row[0]): re.sub("<[^>]*>", "", row[place]) for row in cells}


def test_each_metric_stands_beside_ceilings_of_its_own(codes):
    scores = make_scores()
    best = scores["data"]["best_r2"]
    roots = {name: value**0.5 for name, value in best.items()}
    text = report(altered(scores, "scores.mcc.best_per_factor", roots), *codes)
    assert column(text, "best R2")["object_hue"] == "0.9630"
    assert column(text, "best MCC")["object_hue"] == "0.9813"
    assert column(text, "best R2")["spotlight_hue"] == "0.9844"


def test_what_scores_mean_stands_beside_them(codes):
    reason = "the latents were given, and the figures are of latents drawn uniformly"
    scores = changed(make_scores(), "data.why_no_best_r2", reason)
    scores["scores"]["dci"] = scores["scores"]["mcc"]
    found = Structure(report(ScoresFile.from_dict(scores), *codes)).text
    assert f"No best possible scores are given: {reason}." in found
    assert "DCI: not as in most of the literature" in found
    assert "Intervals are for a test set of this size. Chance is" in found
    plain = Structure(report(scores_file(), *codes)).text
    assert "No best possible" not in plain
    assert "literature" not in plain


def test_what_cannot_be_told_apart_is_said_once(codes):
    reason = "the hues are not wrapped: whole ranges share one colour"
    assert reason not in Structure(report(scores_file(), *codes)).text
    text = Structure(report(altered(make_scores(), "warnings", []), *codes)).text
    assert f"no encoder can reach the score of a perfect one: {reason} ." in text


def test_the_rules_of_the_page_let_its_style_through(codes):
    text = report(scores_file(), *codes)
    policy = html.unescape(re.search('Security-Policy" content="([^"]*)"', text)[1])
    style = re.search("<style>(.*?)</style>", text, re.S)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; "
        "form-action 'none'"
    )
    assert runs_nothing(text)


def test_the_same_each_time(codes, tmp_path):
    scores = make_scores()
    for name in ("a.html", "b/c.html"):
        write_report(ScoresFile.from_dict(scores), *codes, None, tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b" / "c.html").read_bytes()
    tensors = (torch.from_numpy(each) for each in codes)
    assert (
        report(ScoresFile.from_dict(scores), *tensors).encode()
        == (tmp_path / "a.html").read_bytes()
    )


@pytest.mark.parametrize("bad", HOSTILE)
def test_whatever_a_manifest_says_is_text(codes, bad):
    plain = Structure(report(scores_file(), *codes))
    scores = make_scores(
        name=bad,
        authors=[bad, bad],
        method=bad,
        link="javascript:alert(1)",
        preprocessing=bad,
        output_space=bad,
        track=bad,
        conditional=bad,
        preset=bad,
        hyperparameters=bad,
        steps=bad,
        entry=bad,
    )
    for path, value in (
        ("submission.name", bad),
        ("submission.kind", bad),
        ("submission.sha256", bad),
        ("data.preset", bad),
        ("data.fingerprint", bad),
        ("data.not_injective", [bad]),
        ("data.engine", {"name": bad, "version": bad, bad: bad}),
        ("data.factors", [bad, *scores["data"]["factors"][1:]]),
        ("settings", {bad: bad}),
        ("libraries", {bad: bad}),
        ("created", bad),
        ("toolkit", bad),
        ("warnings", [{"code": bad, "message": bad}]),
        ("scores.mcc.choices", {bad: [bad]}),
        ("scores.mcc.per_factor", {bad: 0.5}),
    ):
        scores = changed(scores, path, value)
    text = report(ScoresFile.from_dict(scores), *codes)
    found = Structure(text)
    assert set(found.names) <= {*plain.names, "bdi"}
    assert {n for _, n, _ in found.attributes} <= {n for _, n, _ in plain.attributes}
    assert not [v for _, n, v in found.attributes if n in ("href", "src")]
    assert "javascript:alert(1)" in found.text
    assert runs_nothing(text)
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069\u200e\u200f]", text)


def test_codes_that_are_less_than_the_factors(codes):
    z, z_hat = codes
    scores = changed(make_scores(), "scores.mcc.parts.permutation", [0, 1, 2, *[-1] * 7])
    found = Structure(report(ScoresFile.from_dict(scores), z, z_hat[:, :3]))
    framed = [v for t, n, v in found.attributes if t == "rect" and n == "class" and "matched" in v]
    assert len(framed) == 3


def test_the_worst_image_is_shown(small_dataset):
    data = ThreeDIdent(small_dataset)
    z = data.raw_latents.numpy()
    scores = changed(make_scores(), "data.images", len(z))
    recovery = Recovery.of(z.astype(float), z.astype(float) + np.eye(12, 10))
    worst = recovery.worst(12)
    assert sorted(worst) == list(range(12))
    text = report(ScoresFile.from_dict(scores), z, z + np.eye(12, 10), data.source)
    sources = [v for t, n, v in Structure(text).attributes if (t, n) == ("img", "src")]
    assert len(sources) == 12
    for row, source in zip(worst, sources, strict=True):
        head, _, body = source.partition(",")
        assert head == "data:image/png;base64"
        found = np.asarray(Image.open(io.BytesIO(base64.b64decode(body))))
        assert np.array_equal(found, data.images([row])[0].permute(1, 2, 0).numpy())
    assert text == report(ScoresFile.from_dict(scores), z, z + np.eye(12, 10), data.source)


def test_scores_that_are_not_defined(codes):
    scores = make_scores()
    for key in ("value", "chance", "interval", "per_factor", "best_per_factor", "share_of_best"):
        scores = changed(scores, f"scores.linear_r2.{key}", None)
    scores = changed(scores, "scores.mcc.interval", [None, None])
    scores = changed(scores, "scores.mcc.per_factor.x", None)
    scores = changed(scores, "submission.manifest", None)
    found = Structure(report(ScoresFile.from_dict(scores), *codes))
    assert "encoder.onnx" in found.text
    assert "None" not in found.text
    assert "nan" not in found.text


@pytest.mark.parametrize(
    ("z", "z_hat", "message"),
    [
        (np.zeros((10, 10)), np.ones((9, 10)), "found 10 and 9 rows"),
        (np.random.rand(10, 9), np.ones((10, 10)), "the scores name 10 factors, the latents 9"),
        (np.random.rand(10, 10), np.ones(10), "z_hat: expected a 2-D array"),
        (np.random.rand(10, 10), np.full((10, 2), np.nan), "found nan in row 0"),
    ],
)
def test_arrays_that_do_not_fit(z, z_hat, message):
    with pytest.raises(UsageError, match=message):
        report(scores_file(), z, z_hat)


def test_a_dataset_that_is_too_small(small_dataset, codes):
    with pytest.raises(UsageError, match="the dataset has 12 images, the latents 400 rows"):
        report(scores_file(), *codes, ThreeDIdent(small_dataset).source)
