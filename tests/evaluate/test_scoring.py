"""All scores of codes at once."""

import json
import math
import os
import runpy
import subprocess
import sys

import numpy as np
import pytest
import threadpoolctl
from helpers.synthetic_codes import (
    Z,
    data,
    noise,
    noisy_codes,
    rotation,
    uniform,
    warning_codes,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from threedident.errors import UsageError
from threedident.evaluate.metrics import (
    dci,
    linear_r2,
)
from threedident.evaluate.metrics._kinds import as_kinds
from threedident.evaluate.metrics.registry import all_metrics, default_metrics
from threedident.evaluate.scoring import score
from threedident.factors import FACTOR_NAMES
from threedident.presets import load_preset

FOUR = ("x", "y", "phi", "object_hue")
METRICS = all_metrics(None, np.ones(4, bool), None)


@pytest.fixture(scope="module")
def everything():
    """Every metric on one encoder of four factors, one of them half lost, and its JSON."""
    z = uniform(400, 4).astype(np.float32)
    codes = z.copy()
    codes[:, 3] = np.maximum(z[:, 3], 0)
    found = score(
        z,
        codes @ rotation(4).astype(np.float32),
        factors=FOUR,
        metrics=METRICS,
        best_r2={"x": 1.0, "y": 1.0, "phi": 0.0, "object_hue": 0.9},
        not_injective=("hues share one colour",),
        bootstrap=100,
    )
    return z, found, json.loads(json.dumps(found.as_dict(), allow_nan=False))


def test_every_metric_has_all_it_promises(everything):
    _, found, plain = everything
    assert list(plain) == ["settings", "scores", "warnings"]
    assert list(plain["scores"]) == list(METRICS)
    for name, entry in plain["scores"].items():
        low, high = entry["interval"]
        assert low <= entry["value"] <= high, name
        least, most = entry["chance_interval"]
        assert least <= entry["chance"] <= most, name
        assert isinstance(entry["choices"], dict)
        if entry["per_factor"] is None:
            assert name in ("dci", "modularity", "infomec")
            continue
        assert list(entry["per_factor"]) == list(FOUR)
        assert np.mean(list(entry["per_factor"].values())) == pytest.approx(entry["value"])
        for factor, (below, above) in entry["per_factor_interval"].items():
            assert below <= entry["per_factor"][factor] <= above, (name, factor)
    assert set(plain["scores"]["dci"]["parts"]) >= {"completeness_interval", "importance"}
    assert plain["scores"]["mcc"]["parts"]["permutation"] == [
        int(i) for i in found.scores["mcc"].score.parts["permutation"]
    ]
    assert plain["settings"]["bootstrap"] == 100


def test_chance_is_below_what_a_good_encoder_gets(everything):
    for name, entry in everything[2]["scores"].items():
        if name not in (
            "dci",
            "modularity",
            "mig",
            "infomec",
        ):  # chance says little of codes, or all is low
            assert entry["interval"][0] > entry["chance_interval"][1], name


def test_the_best_possible_stands_beside_the_score(everything):
    scores = everything[2]["scores"]
    linear = scores["linear_r2"]
    assert linear["best_per_factor"] == {"x": 1, "y": 1, "phi": 0, "object_hue": 0.9}
    assert linear["share_of_best"]["object_hue"] == pytest.approx(
        linear["per_factor"]["object_hue"] / 0.9
    )
    assert "phi" not in linear["share_of_best"]
    # The largest correlation is the root of the largest R2.
    assert scores["mcc"]["best_per_factor"]["object_hue"] == pytest.approx(math.sqrt(0.9))
    for name in ("mcc_spearman", "mig", "dci"):
        assert scores[name]["best_per_factor"] is None
        assert scores[name]["share_of_best"] is None
    z = everything[0]
    assert score(z, z, factors=FOUR, bootstrap=0).scores["mcc"].best is None


def test_the_best_encoder_reaches_the_share_one():
    """Of the published preset: hues in a flat range are recovered as the range's middle."""
    preset = load_preset("3dident")
    z = uniform(20_000, 10)
    best = z.copy()
    flat = {"object_hue": (-2 / 3, 0), "spotlight_hue": (-2 / 3, -1 / 6)}
    for name, (low, high) in flat.items():
        column = best[:, FACTOR_NAMES.index(name)]
        column[(column > low) & (column < high)] = (low + high) / 2
    found = score(z, best, factors=FACTOR_NAMES, best_r2=preset.best_r2, bootstrap=0).as_dict()[
        "scores"
    ]
    for metric in ("linear_r2", "mcc"):
        for name in flat:
            assert found[metric]["per_factor"][name] < 0.995
            assert found[metric]["share_of_best"][name] == pytest.approx(1, abs=0.002)


SCRIPT = """
import json
import numpy as np
from threedident.evaluate.metrics.registry import all_metrics
from threedident.evaluate.scoring import score
generator = np.random.default_rng(0)
z = generator.uniform(-1, 1, (300, 3))
codes = z @ generator.standard_normal((3, 4)) + 0.1 * generator.standard_normal((300, 4))
metrics = all_metrics(None, np.ones(3, bool), None)
found = score(z, codes, factors=["x", "y", "z"], metrics=metrics, bootstrap=100)
text = json.dumps(found.as_dict())
if __name__ == "__main__":
    print(text)
"""


def test_the_same_inputs_give_the_same_bytes_on_any_number_of_threads(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    with threadpoolctl.threadpool_limits(1):
        one = runpy.run_path(str(path))["text"]
    done = subprocess.run(
        [sys.executable, path],
        env={**os.environ, "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"},
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout == one + "\n"
    assert len(one) > 1000


def test_seeds_change_what_is_random_and_nothing_else():
    z, codes = data()
    first, second = (score(z, codes, factors="abc", bootstrap=100, seed=seed) for seed in (0, 1))
    assert first.scores["mcc"].score.value == second.scores["mcc"].score.value
    assert first.scores["mcc"].interval != second.scores["mcc"].interval
    assert first.scores["mcc"].chance != second.scores["mcc"].chance


@given(st.integers(0, 2**32 - 1), st.integers(8, 30), st.integers(1, 4), st.integers(1, 5))
@settings(max_examples=25)
def test_whatever_comes_in_json_holds_no_nan(seed, samples, factors, width):
    generator = np.random.default_rng(seed)
    z, codes = uniform(samples, factors, seed), noise(samples, width, seed)
    codes[:, 0] = generator.integers(0, 2)
    z[: samples // 2, -1] = generator.choice([z[0, -1], z[-1, -1]])
    found = score(z, codes, factors=list("abcd")[:factors], bootstrap=100)
    json.dumps(found.as_dict(), allow_nan=False)
    for each in found.scores.values():
        assert math.isfinite(each.score.value) or "undefined_score" in warning_codes(found)


def test_constant_factors_are_null():
    z, codes = data()
    z[:, 1] = 0.5
    found = score(z, codes, factors="abc", bootstrap=100).as_dict()
    for entry in found["scores"].values():
        assert entry["per_factor"]["b"] is None
        assert entry["per_factor_interval"]["b"] == [None, None]
        assert entry["value"] is not None
    assert [each["code"] for each in found["warnings"]] == [
        "few_samples",
        "constant_factors",
        "unequal_dimensions",
    ]


def test_more_codes_than_rows_depend_on_their_scales():
    z = uniform(40, 2)
    codes = noisy_codes(z, 60)
    scaled = codes * np.where(np.arange(60) < 30, 100, 1)
    assert linear_r2(z, codes).value != pytest.approx(linear_r2(z, scaled).value, abs=1e-3)
    few, scaled = codes[:, :4], codes[:, :4] * [100, 1, 1, 0.01]
    assert linear_r2(z, few).value == pytest.approx(linear_r2(z, scaled).value)


def test_the_weights_of_the_literature_for_completeness():
    """What docs/scores.md says makes DCI's completeness that of disentanglement_lib."""
    z = uniform(400, 3)
    parts = dci(z, noisy_codes(z, 4), importance="fit").parts
    table = parts["importance"]
    share = table / table.sum(0)
    logs = np.log(share, where=share > 0, out=np.zeros_like(share))
    each = 1 + (share * logs).sum(0) / np.log(4)
    expected = (each * table.sum(0)).sum() / table.sum()
    weighted = np.average(parts["completeness_per_factor"], weights=table.sum(0))
    assert weighted == pytest.approx(expected)


KINDS = ("continuous", "circular", "discrete")


def causal(samples=400):
    """A number, an angle that depends on it, and a class; and codes that hold them all."""
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, samples)
    angle = np.mod(2 * x + 0.5 * generator.standard_normal(samples), 2 * np.pi)
    shape = generator.integers(0, 3, samples)
    points = [x, np.cos(angle), np.sin(angle), *(shape[:, None] == np.arange(3)).T]
    return np.stack([x, angle, shape], 1), np.stack(points, 1) @ rotation(6)


def test_every_kind_of_factor_has_its_scores():
    z, codes = causal()
    metrics = all_metrics(as_kinds(KINDS, 3), np.ones(3, bool), ((), (0,), ()))
    assert set(METRICS) | {"r2_beyond_parents", "accuracy", "kernel_accuracy"} == {
        *metrics,
        *("dci",),  # which needs two numbers
    }
    found = score(
        z, codes, factors="abc", metrics=metrics, kinds=KINDS, parents={"b": ["a"]}, bootstrap=100
    )
    plain = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert plain["settings"]["kinds"] == dict(zip("abc", KINDS, strict=True))
    assert plain["settings"]["parents"] == {"a": [], "b": ["a"], "c": []}
    for name, entry in plain["scores"].items():
        low, high = entry["interval"]
        assert low <= entry["value"] <= high, name
        left_out = entry["choices"].get("other_kinds_left_out", [])
        if entry["per_factor"] is not None:
            gone = [i for i, value in enumerate(entry["per_factor"].values()) if value is None]
            assert gone == left_out or name.endswith("accuracy")
    for name in ("linear_r2", "kernel_r2", "r2_beyond_parents", "accuracy", "kernel_accuracy"):
        assert plain["scores"][name]["value"] > 0.95, name
    assert plain["scores"]["mcc"]["choices"]["other_kinds_left_out"] == [1, 2]
    assert plain["scores"]["mcc"]["choices"]["constant_factors_left_out"] == []
    assert plain["scores"]["accuracy"]["chance"] == pytest.approx(1 / 3, abs=0.06)
    assert plain["scores"]["linear_r2"]["chance"] == pytest.approx(0, abs=0.06)


def test_a_code_of_the_cause_alone_is_seen_through():
    z, _ = causal(1000)
    codes = np.stack([z[:, 0], z[:, 0] ** 2], 1)
    found = score(
        z,
        codes,
        factors="abc",
        kinds=KINDS,
        parents={"b": ["a"]},
        bootstrap=0,
        metrics=["kernel_r2", "r2_beyond_parents"],
    ).as_dict()["scores"]
    assert found["kernel_r2"]["per_factor"]["b"] > 0.5
    assert abs(found["r2_beyond_parents"]["per_factor"]["b"]) < 0.05
    assert found["r2_beyond_parents"]["per_factor"]["a"] > 0.99


@pytest.mark.parametrize(
    ("kinds", "parents", "expected"),
    [
        (None, None, ("linear_r2", "mcc")),
        (KINDS, None, ("linear_r2", "mcc", "accuracy")),
        (KINDS, ((), (0,), ()), ("linear_r2", "mcc", "r2_beyond_parents", "accuracy")),
        (("circular",) * 3, ((), (), ()), ("linear_r2",)),
    ],
)
def test_metrics_that_nobody_chose(kinds, parents, expected):
    own = None if kinds is None else as_kinds(kinds, 3)
    assert default_metrics(own, np.ones(3, bool), parents) == expected


def test_dependence_is_seen_among_angles_and_classes():
    z, codes = causal(1000)
    z[:, 2] = z[:, 1] > 1
    found = score(z, codes, factors="abc", kinds=KINDS, metrics=["linear_r2"], bootstrap=0)
    messages = {each.code: each.message for each in found.warnings}
    assert "a and b" in messages["dependent_factors"]
    assert "b and c" in messages["dependent_factors"]
    apart = np.random.default_rng(0).permuted(z, axis=0)
    found = score(apart, codes, factors="abc", kinds=KINDS, metrics=["linear_r2"], bootstrap=0)
    assert "dependent_factors" not in warning_codes(found)


def test_rare_classes_and_factors_that_parents_tell_are_warned_of():
    z, codes = causal(200)
    z[:3, 2] = 7
    z[:, 1] = np.mod(z[:, 0], 2 * np.pi)
    found = score(
        z,
        codes,
        factors="abc",
        kinds=KINDS,
        parents={"b": ["a"]},
        bootstrap=0,
        metrics=["r2_beyond_parents"],
    )
    messages = {each.code: each.message for each in found.warnings}
    assert "c 7 (0)" in messages["rare_classes"]
    assert messages["told_by_parents"].startswith("b: parents predict more than 99.9 %")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": ["accuracy"]}, "metric accuracy cannot be computed here: it scores 1 or more"),
        ({"metrics": ["r2_beyond_parents"]}, "it needs factors that have parents, as those of a"),
        (
            {"metrics": ["r2_beyond_parents"], "parents": {"a": []}},
            "no factor has a parent among those that are scored",
        ),
        ({"metrics": ["mcc"], "kinds": ["circular"] * 3}, "1 or more continuous factors that vary"),
        ({"metrics": ["dci"], "kinds": KINDS}, "2 or more continuous factors that vary, found 1"),
        ({"kinds": ["circular"]}, "expected 3 kinds"),
        ({"parents": {"a": ["d"]}}, "the parents name 'd', which is none of the factors a, b, c"),
    ],
)
def test_kinds_and_parents_that_do_not_fit(options, message):
    with pytest.raises(UsageError, match=message):
        score(causal()[0], Z[:400], **{"factors": "abc", **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factors": "ab"}, "expected 3 different names"),
        ({"factors": "aab"}, "expected 3 different names"),
        ({"metrics": ()}, "metrics must name some of linear_r2"),
        ({"metrics": "mcc"}, "metrics must name some of"),
        ({"metrics": ["f1"]}, "unknown metric 'f1': expected some of linear_r2, adjusted_r2"),
        ({"folds": 5}, "folds must be one of"),
        ({"bootstrap": 5}, "bootstrap must be 0 .* or at least 100, found 5"),
        ({"bootstrap": -1}, "bootstrap must be 0"),
        ({"seed": -1}, "seed must lie"),
    ],
)
def test_arguments_that_do_not_fit(options, message):
    with pytest.raises(UsageError, match=message):
        score(Z, Z, **{"factors": "abc", **options})


def test_intervals_of_parts_hold_their_values():
    """Parts have bounds of their own: informativeness is an R2, which may lie below 0."""
    z = uniform(120, 3)
    found = score(z, noise(120, 20), factors=["a", "b", "c"], metrics=["dci"], bootstrap=100)
    dci_report = found.scores["dci"]
    low, high = dci_report.part_intervals["informativeness"]
    assert dci_report.score.parts["informativeness"] < -0.05
    assert low <= dci_report.score.parts["informativeness"] <= high
