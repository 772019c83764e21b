import json
import math
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import threadpoolctl
from helpers.synthetic_codes import noisy_codes, rotation, uniform
from hypothesis import given, settings
from hypothesis import strategies as st

from threedident.errors import UsageError
from threedident.evaluate.assumptions import WARNING_CODES, check_assumptions
from threedident.evaluate.metrics import (
    block_r2,
    dci,
    explicitness,
    linear_r2,
    mcc,
    mig,
    modularity,
    nonlinear_r2,
    sap,
)
from threedident.evaluate.metrics._bootstrap import bootstrap, draw_counts, interval
from threedident.evaluate.scoring import METRICS, score
from threedident.factors import FACTOR_NAMES
from threedident.presets import load_preset

FOUR = ("x", "y", "phi", "object_hue")
BLOCKS = {"a": [0, 1], "b": [2]}

MEASURES = {
    "two folds": linear_r2,
    "single": lambda z, c: linear_r2(z, c, folds="single"),
    "in-sample": lambda z, c: linear_r2(z, c, folds="in-sample"),
    "adjusted": lambda z, c: linear_r2(z, c, folds="in-sample", adjusted=True),
    "wide": lambda z, c: linear_r2(z, np.concatenate([c, c**2, c**3] * 20, 1)),
    "kernel": nonlinear_r2,
    "mcc": mcc,
    "spearman": lambda z, c: mcc(z, c, correlation="spearman"),
    "spearman, ties": lambda z, c: mcc(np.round(z, 1), np.round(c), correlation="spearman"),
    "aligned": lambda z, c: mcc(z, c, aligned=True),
    "padded": lambda z, c: mcc(z, c, noise_padded=True),
    "many codes": lambda z, c: mcc(z, np.concatenate([c, noise(len(c), 600)], 1)),
    "blocks": lambda z, c: block_r2(z, c, BLOCKS, BLOCKS),
    "dci": lambda z, c: dci(z, c, regressor="lasso"),
    "mig": mig,
    "sap": sap,
    "modularity": modularity,
    "explicitness": explicitness,
}
#: These fit or cut anew in every draw, so that rows drawn twice are as good as rows twice.
REFITTED = ("two folds", "single", "in-sample", "mcc", "spearman", "spearman, ties", "aligned")


def noise(samples, width, seed=9):
    return np.random.default_rng(seed).standard_normal((samples, width))


INTERVALS = Path(__file__).parents[2] / "benchmarks" / "intervals.py"


def data(samples=120):
    z = uniform(samples, 3)
    return z, noisy_codes(z, 4)


# The bootstrap


@pytest.mark.parametrize("name", MEASURES)
def test_a_draw_of_every_row_once_is_the_score_itself(name):
    z, codes = data()
    measured = MEASURES[name](z, codes)
    drawn = measured.resample.replicate(np.ones((2, 120)))
    assert np.allclose(drawn.value, measured.value, rtol=0, atol=1e-7)
    if measured.per_factor is not None:
        assert np.allclose(drawn.per_factor, measured.per_factor[None], rtol=0, atol=1e-7)
    for part, values in drawn.parts.items():
        assert np.allclose(values, measured.parts[part], rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", [*REFITTED, "sap"])
def test_a_draw_is_the_score_of_the_rows_drawn(name):
    z, codes = data()
    measured = MEASURES[name](z, codes)
    counts = np.concatenate(list(draw_counts(measured.resample.folds, 3, 0)))
    for row, value in zip(counts, measured.resample.replicate(counts).value, strict=True):
        rows = np.repeat(np.arange(120), row.astype(int))
        assert MEASURES[name](z[rows], codes[rows]).value == pytest.approx(value, abs=1e-8)


def test_rows_are_drawn_inside_their_fold():
    folds = (slice(0, 7), slice(7, 20))
    counts = np.concatenate(list(draw_counts(folds, 450, 3)))
    assert counts.shape == (450, 20)
    assert (counts[:, :7].sum(1) == 7).all()
    assert (counts[:, 7:].sum(1) == 13).all()
    assert np.abs(counts.mean(0) - 1).max() < 0.25
    assert np.array_equal(counts, np.concatenate(list(draw_counts(folds, 450, 3))))
    assert not np.array_equal(counts, np.concatenate(list(draw_counts(folds, 450, 4))))


def test_intervals():
    draws = np.linspace(0, 0.1, 1001)[:, None] + [0.0, 0.3, np.nan]
    ends = interval(draws, [0.5, 0.99, 0.2], 0.0)
    assert ends[:, 0] == pytest.approx([0.5 - 0.0475, 0.5 + 0.0475])
    assert ends[:, 1] == pytest.approx([0.99 - 0.0475, 1])
    assert np.isnan(ends[:, 2]).all()
    assert interval(draws[:, 0], 0.01, 0.0)[0] == 0


@pytest.mark.parametrize(("width", "folds"), [(1, 2), (5, 2), (5, "in-sample"), (5, "single")])
def test_intervals_cover_the_known_r2_of_a_gaussian_regression(width, folds):
    """z = sqrt(R2) w.c + sqrt(1 - R2) e with |w| = 1 has R2 exactly; 95 % are asked for."""
    truth, runs, hits = 0.7, 200, 0
    for run in range(runs):
        generator = np.random.default_rng(run)
        codes = generator.standard_normal((500, width))
        weights = generator.standard_normal((width, 2))
        weights /= np.linalg.norm(weights, axis=0)
        z = math.sqrt(truth) * codes @ weights
        z += math.sqrt(1 - truth) * generator.standard_normal(z.shape)
        measured = linear_r2(z, codes, folds=folds)
        low, high = interval(bootstrap(measured, 200, run).value, measured.value, -math.inf)
        hits += low <= truth <= high
    assert 0.88 <= hits / runs <= 0.99


def test_intervals_cover_the_known_correlation():
    truth, runs, hits = 0.6, 200, 0
    for run in range(runs):
        generator = np.random.default_rng(run)
        z = generator.standard_normal((300, 2))
        codes = truth * z + math.sqrt(1 - truth**2) * generator.standard_normal(z.shape)
        measured = mcc(z, codes)
        low, high = interval(bootstrap(measured, 200, run).value, measured.value, 0)
        hits += low <= truth <= high
    assert 0.88 <= hits / runs <= 0.99


# Everything together


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
        assert math.isfinite(each.score.value) or "undefined_score" in _codes(found)


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


# Warnings


def _codes(found):
    return [warning.code for warning in found.warnings]


def _warned(z, codes, **options):
    names = [f"f{i}" for i in range(z.shape[1])]
    return score(z, codes, factors=names, bootstrap=0, **options)


def test_a_sound_evaluation_has_no_warnings():
    z = uniform(1000, 3)
    assert _warned(z, z @ rotation(3)).warnings == ()


Z = uniform(1000, 3)
SQUARE = np.concatenate([Z, Z[:, :1] ** 2], 1)
NEARLY = np.concatenate([Z, Z.sum(1, keepdims=True) + 0.01 * noise(1000, 1)], 1)


@pytest.mark.parametrize(
    ("z", "codes", "code", "message"),
    [
        (Z[:60], Z[:60], "few_samples", "30 samples to fit 3 codes"),
        (Z * [1, 0, 1], Z[:, :2], "constant_factors", "f1 do not vary"),
        (NEARLY, NEARLY, "dependent_factors", r"f0 and f3 \(0.5"),
        (SQUARE, SQUARE, "dependent_factors", r"f0 and f3 \(1.00\)"),
        (Z, Z * [1, 0, 1], "collapsed_codes", "codes 1 do not vary; the codes have rank 2"),
        (Z, Z[:, [0, 1, 0]], "collapsed_codes", "rank 2, where 3 factors"),
        (Z, Z[:, [0, 1, 2, 1]], "duplicated_codes", "codes 1 and 3 are copies"),
        (Z, Z[:, :2], "unequal_dimensions", "1 factors can have no code"),
        (Z, np.concatenate([Z, noise(1000, 2)], 1), "unequal_dimensions", "picks the best 3"),
        (np.sort(Z, 0), np.sort(Z, 0), "halves_differ", "f0, f1, f2, the codes differ"),
    ],
)
def test_assumptions_that_do_not_hold(z, codes, code, message):
    found = _warned(z, codes)
    messages = {warning.code: warning.message for warning in found.warnings}
    assert code in messages
    assert re.search(message, messages[code]), messages[code]
    assert set(messages) <= set(WARNING_CODES)
    assert found.as_dict()["warnings"][0]["code"] in WARNING_CODES


def test_factors_can_be_dependent_without_any_pair_of_them():
    z = uniform(20_000, 200)
    z = np.concatenate([z, z.sum(1, keepdims=True)], 1)
    names = [f"f{i}" for i in range(201)]
    (found,) = check_assumptions(z, z[:, :2], factors=names, metrics=(), folds=2)[:1]
    assert found.code == "dependent_factors"
    assert "nearly collinear" in found.message


@pytest.mark.parametrize(("folds", "word"), [(2, "lower"), ("in-sample", "higher")])
def test_few_samples_for_the_codes_are_warned_of_until_they_do_no_harm(folds, word):
    """25 m^2 samples: benchmarks/intervals.py measures what lies below."""
    enough = uniform(2500, 10)
    assert "few_samples" not in _codes(_warned(enough, enough, folds=folds))
    z = enough[:2499]
    found = _warned(z, z, folds=folds)
    (message,) = [each.message for each in found.warnings if each.code == "few_samples"]
    assert f"R2 is {word} than with ever more samples" in message
    assert "from 2500 samples on" in message
    assert "few_samples" not in _codes(_warned(z, z, metrics=["mcc"]))


def test_intervals_are_of_the_score_at_this_many_samples():
    """Not of that of ever more: what the warning says, and docs/scores.md has a table of."""
    simulate = runpy.run_path(str(INTERVALS))["simulate"]
    population, off, held = simulate(500, 50, 0.3, runs=30)
    assert held < 0.2
    assert off == pytest.approx(50 / 250 * (1 - population), rel=0.5)
    population, off, held = simulate(2500, 10, 0.3, runs=30)
    assert held > 0.8
    assert 0 < off < 0.02 * (1 - population)


def test_an_r2_at_its_floor_is_said():
    z = uniform(400, 2)
    codes = z.copy()
    codes[200:] *= 1e12
    codes[:200, 1] = z[:200, 1]
    found = score(z, codes, factors="ab", metrics=["linear_r2", "mcc"], bootstrap=0)
    assert found.scores["linear_r2"].score.value < -1e8
    (message,) = [each.message for each in found.warnings if each.code == "floored_r2"]
    assert "linear_r2 of a" in message
    assert "floored_r2" not in _codes(_warned(Z, Z))


def test_a_score_is_a_number_with_a_short_name():
    z = uniform(1000, 10)
    found = linear_r2(z, z)
    assert float(found) == found.value == pytest.approx(1)
    assert repr(found) == "MetricResult(1; per_factor, parts['folds'], parts['rank'])"
    assert len(repr(dci(z[:200], z[:200]))) < 300
    assert found.resample is not None
    assert found.alone().resample is None
    assert repr(found.alone()) == repr(found)


def test_more_codes_than_rows_depend_on_their_scales():
    z = uniform(40, 2)
    codes = noisy_codes(z, 60)
    scaled = codes * np.where(np.arange(60) < 30, 100, 1)
    assert linear_r2(z, codes).value != pytest.approx(linear_r2(z, scaled).value, abs=1e-3)
    few, scaled = codes[:, :4], codes[:, :4] * [100, 1, 1, 0.01]
    assert linear_r2(z, few).value == pytest.approx(linear_r2(z, scaled).value)


def test_best_scores_are_said_to_be_known_where_they_are():
    for best, words in ((None, "are not known for these latents"), ({"f0": 0.9}, "stands beside")):
        found = _warned(Z, Z, not_injective=["a reason"], best_r2=best)
        assert words in found.warnings[-1].message


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


def test_a_generator_that_is_not_injective():
    reasons = load_preset("3dident").ambiguities()
    found = _warned(Z, Z, not_injective=reasons)
    assert _codes(found) == ["not_injective"]
    assert "hue is not wrapped" in found.warnings[0].message


def test_codes_that_are_only_counted_matter_for_the_mcc_alone():
    assert "unequal_dimensions" not in _codes(_warned(Z, Z[:, :2], metrics=["linear_r2"]))


def test_a_score_that_is_no_number():
    z = Z[:40, :1].copy()
    z[20:] = 0.5
    found = _warned(z, Z[:40])
    assert "undefined_score" in _codes(found)
    assert found.as_dict()["scores"]["linear_r2"]["value"] is None


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
