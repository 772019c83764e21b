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
from helpers.synthetic_codes import Z, data, noise, noisy_codes, rotation, uniform, warning_codes
from hypothesis import given, settings
from hypothesis import strategies as st

from threedident.errors import UsageError
from threedident.evaluate.metrics import (
    dci,
    linear_r2,
)
from threedident.evaluate.scoring import METRICS, score
from threedident.factors import FACTOR_NAMES
from threedident.presets import load_preset

FOUR = ("x", "y", "phi", "object_hue")


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
        metrics=tuple(METRICS),
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
            assert name in ("dci", "modularity")
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
        if name not in ("dci", "modularity", "mig"):  # chance says little of codes, or all is low
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
from threedident.evaluate.scoring import METRICS, score
generator = np.random.default_rng(0)
z = generator.uniform(-1, 1, (300, 3))
codes = z @ generator.standard_normal((3, 4)) + 0.1 * generator.standard_normal((300, 4))
found = score(z, codes, factors=["x", "y", "z"], metrics=list(METRICS), bootstrap=100)
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
