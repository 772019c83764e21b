"""Scores of circular and discrete factors."""

import numpy as np
import pytest
import threadpoolctl
from helpers.synthetic_codes import noisy_codes, rotation, seeds, uniform
from hypothesis import given, settings
from hypothesis import strategies as st

from threedident.errors import UsageError
from threedident.evaluate.metrics import Kind, block_r2, linear_r2, nonlinear_r2
from threedident.evaluate.metrics._bootstrap import draw_counts
from threedident.evaluate.metrics._kinds import Points, as_kinds

MIXED = ("continuous", "circular", "discrete")


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    with threadpoolctl.threadpool_limits(1):
        yield


def mixed(samples=400, seed=0):
    generator = np.random.default_rng(seed)
    columns = (
        generator.uniform(-1, 1, samples),
        generator.uniform(0, 2 * np.pi, samples),
        generator.integers(0, 4, samples),
    )
    return np.stack(columns, 1)


def held(z, noise=0.0, seed=1):
    """Codes that hold all of `mixed` linearly."""
    parts = [z[:, :1], np.cos(z[:, 1:2]), np.sin(z[:, 1:2]), z[:, 2:] == np.arange(4)]
    codes = np.concatenate(parts, 1) @ rotation(7, seed)
    return codes + noise * np.random.default_rng(seed).standard_normal(codes.shape)


@pytest.mark.parametrize(
    "measure",
    [
        linear_r2,
        lambda z, c, **o: linear_r2(z, c, folds="in-sample", adjusted=True, **o),
        nonlinear_r2,
        lambda z, c, **o: block_r2(z, c, {"all": range(z.shape[1])}, {"all": range(4)}, **o),
    ],
)
def test_kinds_that_are_all_continuous_change_no_bit(measure):
    z = uniform(120, 3)
    codes = noisy_codes(z, 4)
    plain, named = measure(z, codes), measure(z, codes, kinds=["continuous"] * 3)
    assert np.array_equal(plain.per_factor, named.per_factor)
    counts = np.random.default_rng(0).integers(0, 3, (3, 120)).astype(float)
    first, second = (each.resample.replicate(counts) for each in (plain, named))
    assert np.array_equal(first.per_factor, second.per_factor)


def test_codes_that_hold_every_kind_score_one():
    z = mixed()
    for measure in (linear_r2, nonlinear_r2):
        assert measure(z, held(z), kinds=MIXED).per_factor == pytest.approx(1, abs=1e-5)
    found = linear_r2(z, held(z)[:, :0:-1] * 0 + uniform(400, 6), kinds=MIXED)
    assert np.abs(found.per_factor).max() < 0.1


def test_an_angle_is_not_a_number():
    """A code that holds cos and sin has all of the angle, which jumps at the origin."""
    z = mixed(2000)[:, 1:2]
    codes = np.concatenate([np.cos(z), np.sin(z)], 1)
    assert linear_r2(z, codes).value < 0.7
    assert linear_r2(z, codes, kinds=["circular"]).value == pytest.approx(1)
    half = linear_r2(z, np.cos(z), kinds=["circular"])
    assert half.value == pytest.approx(0.5, abs=0.02)


@given(seeds, st.floats(-7, 7), st.sampled_from([linear_r2, nonlinear_r2]))
@settings(max_examples=25)
def test_circular_r2_does_not_depend_on_the_origin(seed, origin, measure):
    z = np.random.default_rng(seed).uniform(0, 2 * np.pi, (80, 2))
    codes = np.concatenate([np.cos(z), noisy_codes(z, 3, seed)], 1)
    moved = np.mod(z + np.array([origin, 0]), 2 * np.pi)
    before, after = (measure(a, codes, kinds=["circular"] * 2) for a in (z, moved))
    assert np.allclose(before.per_factor, after.per_factor, rtol=0, atol=1e-6)
    counts = np.random.default_rng(seed).integers(0, 3, (3, 80)).astype(float)
    drawn = [each.resample.replicate(counts).per_factor for each in (before, after)]
    assert np.allclose(*drawn, rtol=0, atol=1e-6)


@given(seeds, st.floats(0.1, 100))
@settings(max_examples=15)
def test_an_angle_is_in_the_units_of_its_turn(seed, turn):
    z = np.random.default_rng(seed).uniform(0, 2 * np.pi, (60, 1))
    codes = noisy_codes(np.cos(z), 3, seed)
    radians = linear_r2(z, codes, kinds=["circular"]).value
    other = linear_r2(z / (2 * np.pi) * turn, codes, kinds=[Kind("circular", turn)]).value
    assert other == pytest.approx(radians, abs=1e-9)


@given(seeds, st.permutations(range(4)), st.sampled_from([linear_r2, nonlinear_r2]))
@settings(max_examples=15)
def test_discrete_r2_does_not_depend_on_the_numbers_of_classes(seed, order, measure):
    z = np.random.default_rng(seed).integers(0, 4, (90, 1))
    codes = noisy_codes(z == np.arange(4), 3, seed)
    named = np.array(order)[z] + 7
    before, after = (measure(a, codes, kinds=["discrete"]).value for a in (z, named))
    assert after == pytest.approx(before, abs=1e-6)


def test_replicates_of_points_are_the_score_of_the_rows_drawn():
    z = mixed(120)
    codes = held(z, noise=0.3)[:, :4]
    measured = linear_r2(z, codes, kinds=MIXED)
    counts = next(iter(draw_counts(measured.resample.folds, 1, 0)))
    rows = np.repeat(np.arange(120), counts[0].astype(int))
    again = linear_r2(z[rows], codes[rows], kinds=MIXED)
    drawn = measured.resample.replicate(counts).per_factor[0]
    assert again.per_factor == pytest.approx(drawn, abs=1e-8)


def test_factors_that_are_constant_as_points_have_no_score():
    z = mixed(80)
    z[:, 1] = 2 * np.pi * np.arange(80)  # whole turns
    z[:, 2] = 3
    found = linear_r2(z, uniform(80, 2), kinds=MIXED).per_factor
    assert np.isnan(found).tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (["continuous"], "expected 3 kinds"),
        ("continuous", "expected 3 kinds"),
        (["continuous", "angle", "discrete"], "must be one of continuous, circular, discrete"),
        (["discrete"] * 3, "factor 0 is discrete: expected class numbers, found"),
    ],
)
def test_kinds_that_do_not_fit(kinds, message):
    with pytest.raises(UsageError, match=message):
        linear_r2(mixed(40), uniform(40, 2), kinds=kinds)


def test_a_turn_is_a_positive_number():
    for turn in (0, -1, np.inf, np.nan):
        with pytest.raises(UsageError, match="a turn must be a positive number"):
            Kind("circular", turn)
    assert as_kinds(None, 2) == (Kind(), Kind())


def test_too_many_classes_are_no_classes():
    with pytest.raises(UsageError, match="has 1001 classes"):
        Points.of(np.arange(1001.0)[:, None], ["discrete"])
