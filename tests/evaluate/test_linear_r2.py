"""The linear R2."""

import numpy as np
import pytest
import threadpoolctl
from helpers.synthetic_codes import invertible, noise, noisy_codes, rotation, seeds, uniform
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score

from threedident.errors import UsageError
from threedident.evaluate.metrics import linear_r2
from threedident.evaluate.metrics._bootstrap import bootstrap as bootstrapped
from threedident.evaluate.metrics._bootstrap import interval

FOLDS = (2, "single", "in-sample")


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Many threads on small matrices are slow where processors are busy."""
    with threadpoolctl.threadpool_limits(1):
        yield


@given(seeds, st.integers(1, 5), st.integers(1, 7), st.sampled_from(FOLDS))
@settings(max_examples=40)
def test_r2_is_invariant_under_invertible_affine_maps(seed, factors, width, folds):
    z = uniform(60, factors, seed)
    codes = noisy_codes(z, width, seed)
    shift = 1e3 * np.random.default_rng(seed).standard_normal(width)
    moved = codes @ invertible(width, seed) + shift
    before, after = (linear_r2(z, c, folds=folds).per_factor for c in (codes, moved))
    assert np.allclose(before, after, rtol=0, atol=1e-7)


@given(seeds, st.integers(1, 5), st.integers(0, 3), st.sampled_from(FOLDS))
@settings(max_examples=40)
def test_r2_of_a_perfect_encoder_is_one(seed, factors, more, folds):
    z = uniform(80, factors, seed)
    spare = np.random.default_rng(seed).standard_normal((80, more))
    codes = np.concatenate([z, spare], 1) @ invertible(factors + more, seed) + 3
    found = linear_r2(z, codes, folds=folds)
    assert abs(found.value - 1) < 1e-9
    assert np.abs(found.per_factor - 1).max() < 1e-9


@pytest.mark.parametrize("width", [1, 4, 9])
def test_r2_agrees_with_scikit_learn(width):
    z = uniform(301, 4)
    codes = noisy_codes(z, width)
    first, second = slice(0, 150), slice(150, 301)

    def reference(train, test):
        fit = LinearRegression().fit(codes[train], z[train])
        return r2_score(z[test], fit.predict(codes[test]), multioutput="raw_values")

    whole = slice(0, 301)
    both = np.mean([reference(first, second), reference(second, first)], 0)
    for folds, expected in (
        ("single", reference(first, second)),
        ("in-sample", reference(whole, whole)),
        (2, both),
    ):
        found = linear_r2(z, codes, folds=folds)
        assert np.allclose(found.per_factor, expected, rtol=0, atol=1e-10)
        assert found.value == pytest.approx(expected.mean(), abs=1e-10)
        assert found.choices["folds"] == folds


def test_more_codes_than_samples_get_the_solution_of_minimum_norm():
    z = uniform(60, 3)
    codes = noisy_codes(z, 200)
    fit = LinearRegression().fit(codes[:30], z[:30])
    expected = r2_score(z[30:], fit.predict(codes[30:]), multioutput="raw_values")
    found = linear_r2(z, codes, folds="single")
    assert np.allclose(found.per_factor, expected, atol=1e-8)
    assert found.choices["bootstrap"] == "the fit held"


def test_copies_of_codes_and_constants_change_no_r2():
    z = uniform(200, 3)
    codes = noisy_codes(z, 3)
    more = np.concatenate([codes, codes, codes @ rotation(3), np.full((200, 2), 7.3)], 1)
    before, after = linear_r2(z, codes), linear_r2(z, more)
    assert np.allclose(before.per_factor, after.per_factor, rtol=0, atol=1e-9)
    assert after.parts["rank"] == 3


def test_adjusted_r2_corrects_for_the_number_of_codes():
    plain, adjusted = [], []
    for seed in range(40):
        z, codes = uniform(400, 1, seed), np.random.default_rng(seed).standard_normal((400, 100))
        plain.append(linear_r2(z, codes, folds="in-sample").value)
        adjusted.append(linear_r2(z, codes, folds="in-sample", adjusted=True).value)
    assert adjusted[0] == pytest.approx(1 - (1 - plain[0]) * 399 / 299)
    assert np.mean(plain) == pytest.approx(100 / 399, abs=0.02)
    assert np.mean(adjusted) == pytest.approx(0, abs=0.02)
    with pytest.raises(UsageError, match="folds='in-sample'"):
        linear_r2(z, codes, adjusted=True)
    with pytest.raises(UsageError, match="more samples than codes"):
        linear_r2(z[:50], codes[:50], folds="in-sample", adjusted=True)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e4, 1e7, 1e8])
def test_more_codes_than_rows_of_any_scale(scale):
    """The published regression is of minimum norm, by singular values."""
    z = uniform(200, 2)
    codes = noisy_codes(z, 150, noise=1e-3)
    codes[:, 7] *= scale
    x, y = codes[:100] - codes[:100].mean(0), z[:100] - z[:100].mean(0)
    predicted = (codes[100:] - codes[:100].mean(0)) @ np.linalg.lstsq(x, y, rcond=1e-13)[0]
    expected = r2_score(z[100:], predicted + z[:100].mean(0))
    found = linear_r2(z, codes, folds="single")
    assert found.value == pytest.approx(expected, abs=1e-5)
    assert found.parts["rank"] == 99


def test_a_factor_that_is_constant_in_one_half_is_named():
    z = uniform(200, 3)
    z[:, 1] = 0
    z[150, 1] = 1
    found = linear_r2(z, z)
    assert np.isnan(found.per_factor[1])
    assert found.choices["constant_factors_left_out"] == [1]


def test_replicates_near_interpolation_hold_the_fit():
    """A draw has 63 % of the rows; a fit on hardly more of them than codes says nothing."""
    z = uniform(400, 2)
    codes = np.hstack([z + 0.1 * noise(400, 2), noise(400, 118)])
    found = linear_r2(z, codes)
    low, high = interval(bootstrapped(found, 200, 0).value, found.value, -np.inf)
    assert found.choices["bootstrap"] == "the fit held"
    assert 0.8 < low < found.value < high < 1
    assert linear_r2(z, codes[:, :50]).choices["bootstrap"] == "refitted"
