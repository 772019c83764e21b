"""Warnings of assumptions that do not hold."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from helpers.synthetic_codes import Z, noise, rotation, uniform, warning_codes

from threedident.evaluate.assumptions import WARNING_CODES, check_assumptions
from threedident.evaluate.scoring import score
from threedident.presets import load_preset

INTERVALS = Path(__file__).parents[2] / "benchmarks" / "intervals.py"


def _warned(z, codes, **options):
    names = [f"f{i}" for i in range(z.shape[1])]
    return score(z, codes, factors=names, bootstrap=0, **options)


def test_a_sound_evaluation_has_no_warnings():
    z = uniform(1000, 3)
    assert _warned(z, z @ rotation(3)).warnings == ()


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


@pytest.mark.parametrize(
    ("folds", "word"), [(2, "0.008 x (1 - R2) too low"), ("in-sample", "0.004 x (1 - R2) too high")]
)
def test_few_samples_for_the_codes_are_warned_of_until_they_do_no_harm(folds, word):
    """25 m^2 samples: benchmarks/intervals.py measures what lies below."""
    enough = uniform(2500, 10)
    assert "few_samples" not in warning_codes(_warned(enough, enough, folds=folds))
    z = enough[:2499]
    found = _warned(z, z, folds=folds)
    (message,) = [each.message for each in found.warnings if each.code == "few_samples"]
    assert f"with 2,499 images and 10 codes, the linear R2 is about {word}" in message
    assert "use 2,500 images or more" in message
    assert "few_samples" not in warning_codes(_warned(z, z, metrics=["mcc"]))


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
    assert "floored_r2" not in warning_codes(_warned(Z, Z))


def test_best_scores_are_said_to_be_known_where_they_are():
    for best, words in ((None, "are not known for these latents"), ({"f0": 0.9}, "stands beside")):
        found = _warned(Z, Z, not_injective=["a reason"], best_r2=best)
        assert words in found.warnings[-1].message


def test_a_generator_that_is_not_injective():
    reasons = load_preset("3dident").ambiguities()
    found = _warned(Z, Z, not_injective=reasons)
    assert warning_codes(found) == ["not_injective"]
    assert "hue is not wrapped" in found.warnings[0].message


def test_codes_that_are_only_counted_matter_for_the_mcc_alone():
    assert "unequal_dimensions" not in warning_codes(_warned(Z, Z[:, :2], metrics=["linear_r2"]))


def test_a_score_that_is_no_number():
    z = Z[:40, :1].copy()
    z[20:] = 0.5
    found = _warned(z, Z[:40])
    assert "undefined_score" in warning_codes(found)
    assert found.as_dict()["scores"]["linear_r2"]["value"] is None


def test_a_factor_that_varies_in_one_half_alone_is_named():
    z = uniform(1000, 3)
    z[:, 1] = 0
    z[600, 1] = 1
    said = [each for each in _warned(z, z @ rotation(3)).warnings if "one half" in each.message]
    assert [each.code for each in said] == ["constant_factors"]
    assert "f1" in said[0].message
