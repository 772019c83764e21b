"""The mean correlation coefficient."""

import itertools

import numpy as np
import pytest
import threadpoolctl
from helpers.synthetic_codes import noisy_codes, rotation, seeds, uniform
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from scipy.stats import pearsonr, spearmanr

from threedident.evaluate.metrics import mcc


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Many threads on small matrices are slow where processors are busy."""
    with threadpoolctl.threadpool_limits(1):
        yield


@given(seeds, st.integers(1, 6), st.integers(0, 3), st.sampled_from(["pearson", "spearman"]))
@settings(max_examples=40)
def test_mcc_is_invariant_under_permutation_sign_scale_and_shift(seed, factors, more, kind):
    z = uniform(50, factors, seed)
    codes = noisy_codes(z, factors + more, seed)
    generator = np.random.default_rng(seed)
    order = generator.permutation(factors + more)
    scale = generator.choice([-1, 1], factors + more) * 10 ** generator.uniform(
        -3, 3, factors + more
    )
    moved = codes[:, order] * scale + 10 * generator.standard_normal(factors + more)
    before, after = (mcc(z, c, correlation=kind) for c in (codes, moved))
    assert np.allclose(before.per_factor, after.per_factor, rtol=0, atol=1e-9)
    assert np.array_equal(order[after.parts["permutation"]], before.parts["permutation"])


@given(seeds, st.integers(1, 6))
@settings(max_examples=30)
def test_mcc_of_a_perfect_encoder_is_one_in_every_variant(seed, factors):
    z = uniform(60, factors, seed)
    generator = np.random.default_rng(seed)
    order = generator.permutation(factors)
    codes = -3 * z[:, order] + 5
    for options in ({}, {"correlation": "spearman"}, {"aligned": True}, {"noise_padded": True}):
        assert abs(mcc(z, codes, **options).value - 1) < 1e-9
    assert np.array_equal(order[mcc(z, codes).parts["permutation"]], np.arange(factors))


def test_a_rotation_lowers_the_mcc_unless_it_is_aligned():
    z = uniform(2000, 10)
    codes = z @ rotation(10)
    assert mcc(z, codes).value < 0.7
    assert mcc(z, codes, aligned=True).value == pytest.approx(1, abs=1e-9)


def test_spearman_is_invariant_under_monotone_maps_and_pearson_is_not():
    z = uniform(500, 3)
    codes = np.exp(4 * z)
    assert mcc(z, codes, correlation="spearman").value == pytest.approx(1, abs=1e-12)
    assert mcc(z, codes).value < 0.95


@given(seeds, st.integers(1, 4), st.integers(1, 6), st.booleans())
@settings(max_examples=25)
def test_mcc_agrees_with_scipy(seed, factors, width, ties):
    z = uniform(40, factors, seed)
    codes = noisy_codes(z, width, seed)
    if ties:
        z, codes = np.round(3 * z), np.round(codes)
        z[0], codes[0], codes[1] = 9, 9, -9  # no constants
    for kind, function in (("pearson", pearsonr), ("spearman", spearmanr)):
        table = np.array([[function(a, b)[0] for b in codes.T] for a in z.T])
        found = mcc(z, codes, correlation=kind)
        assert np.allclose(found.parts["correlation"], table, atol=1e-12)
        rows, columns = linear_sum_assignment(np.abs(table), maximize=True)
        expected = np.abs(table)[rows, columns].sum() / factors
        assert found.value == pytest.approx(expected, abs=1e-12)
        if factors <= width:
            best = max(
                np.abs(table)[np.arange(factors), list(order)].mean()
                for order in itertools.permutations(range(width), factors)
            )
            assert found.value == pytest.approx(best, abs=1e-12)


def test_mcc_with_fewer_and_with_more_codes():
    z = uniform(500, 4)
    fewer = mcc(z, z[:, [2, 0]])
    assert fewer.value == pytest.approx(0.5)
    assert sorted(fewer.parts["permutation"]) == [-1, -1, 0, 1]
    assert fewer.per_factor == pytest.approx([1, 0, 1, 0])
    more = mcc(z, np.concatenate([uniform(500, 5, 9), z[:, ::-1]], 1))
    assert more.value == pytest.approx(1)
    assert more.parts["permutation"].tolist() == [8, 7, 6, 5]
    assert more.parts["correlation"].shape == (4, 9)


def test_noise_padding_can_only_lower_the_mcc():
    z, codes = uniform(300, 3), np.random.default_rng(5).standard_normal((300, 10))
    plain = mcc(z, codes).value
    padded = [mcc(z, codes, noise_padded=True, seed=seed) for seed in range(10)]
    assert all(each.value <= plain + 1e-12 for each in padded)
    assert min(each.value for each in padded) < plain
    assert padded[0].choices["noise_padded"] == {"columns": 7, "seed": 0}
    assert padded[0].parts["correlation"].shape == (3, 10)
    assert mcc(z, codes[:, :3], noise_padded=True).value == mcc(z, codes[:, :3]).value
