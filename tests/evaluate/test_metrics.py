import itertools

import numpy as np
import pytest
import threadpoolctl
import torch
from helpers.synthetic_codes import invertible, noisy_codes, rotation, uniform
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from scipy.stats import pearsonr, spearmanr
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score

from threedident.errors import UsageError
from threedident.evaluate.metrics import _kernel_ridge as nonlinear
from threedident.evaluate.metrics import block_r2, linear_r2, mcc, nonlinear_r2

seeds = st.integers(0, 2**32 - 1)
FOLDS = (2, "single", "in-sample")


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Many threads on small matrices are slow where processors are busy."""
    with threadpoolctl.threadpool_limits(1):
        yield


# Linear R2


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


# MCC


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


# Chance, constants, kinds of arrays


def test_noise_scores_at_chance():
    z, codes = uniform(4000, 5), np.random.default_rng(1).standard_normal((4000, 5))
    # Held out, R2 is -m / N_train on average, with a standard deviation near 2 sqrt(m) / N.
    assert -0.02 < linear_r2(z, codes).value < 0.005
    assert -0.02 < nonlinear_r2(z[:600], codes[:600]).value < 0.005
    # The largest of a few correlations of standard error 1 / sqrt(N).
    for options in ({}, {"correlation": "spearman"}, {"aligned": True}, {"noise_padded": True}):
        assert 0.002 < mcc(z, codes, **options).value < 0.04


def test_constant_columns():
    z = uniform(200, 3)
    z[:, 1] = 0.7
    codes = np.concatenate([z[:, [2]], np.full((200, 1), 5.0), z[:, [0]]], 1)
    for metric in (linear_r2, mcc):
        found = metric(z, codes)
        assert found.value == pytest.approx(1)
        assert np.isnan(found.per_factor).tolist() == [False, True, False]
        assert found.choices["constant_factors_left_out"] == [1]
    assert (mcc(z, codes).parts["correlation"][:, 1] == 0).all()
    assert mcc(z, codes).parts["permutation"].tolist() == [2, -1, 0]
    nothing = np.full((200, 2), 3.0)
    assert mcc(z, nothing).value == 0
    assert linear_r2(z, nothing).value <= 0
    assert nonlinear_r2(z, nothing).value <= 0


def test_tensors_and_other_arrays_give_the_same_scores():
    z = uniform(100, 2).astype(np.float32)
    codes = noisy_codes(z, 2).astype(np.float32)
    expected = mcc(z, codes).value
    assert mcc(torch.tensor(z), torch.tensor(codes, requires_grad=True)).value == expected
    assert mcc(z.tolist(), np.asfortranarray(codes)).value == expected


@pytest.mark.parametrize(
    ("z", "z_hat", "message"),
    [
        (np.zeros(5), np.zeros((5, 2)), r"z: expected a 2-D array, .* found shape \(5,\)"),
        (np.zeros((5, 2)), np.zeros((5, 0)), r"z_hat: expected a 2-D array"),
        (np.zeros((5, 2)), np.zeros((4, 2)), "found 5 and 4 rows"),
        (np.zeros((3, 2)), np.zeros((3, 2)), "at least 4 samples, found 3"),
        (np.zeros((5, 2)), np.full((5, 2), np.nan), "z_hat: expected finite.*nan in row 0"),
        (np.full((5, 2), np.inf), np.zeros((5, 2)), "z: expected finite"),
        (np.zeros((5, 2)), np.full((5, 2), 1j), "real numbers, found dtype complex128"),
        (np.zeros((5, 2)), np.full((5, 2), "a"), "real numbers"),
        ([[1, 2], [3]], np.zeros((2, 2)), "z: expected a 2-D array of numbers"),
        (np.ones((5, 2)), np.zeros((5, 2)), "no factor varies"),
    ],
)
def test_arrays_that_do_not_fit(z, z_hat, message):
    for metric in (linear_r2, mcc):
        with pytest.raises(UsageError, match=message):
            metric(z, z_hat)


@pytest.mark.parametrize(
    ("metric", "options", "message"),
    [
        (linear_r2, {"folds": 3}, "folds must be one of 2, 'single', 'in-sample', found 3"),
        (mcc, {"correlation": "kendall"}, "correlation must be one of pearson, spearman"),
        (mcc, {"aligned": True, "noise_padded": True}, "leave one out"),
        (nonlinear_r2, {"regressor": "forest"}, "regressor must be one of kernel, mlp"),
        (nonlinear_r2, {"folds": "in-sample"}, "use folds=2"),
    ],
)
def test_arguments_that_do_not_fit(metric, options, message):
    with pytest.raises(UsageError, match=message):
        metric(uniform(40, 2), uniform(40, 2), **options)


# Non-linear R2 and blocks


@pytest.mark.parametrize("regressor", ["kernel", "mlp"])
def test_non_linear_regression_sees_what_a_linear_one_does_not(regressor):
    z = uniform(800, 3)
    codes = np.stack([np.tanh(5 * z[:, 0]), z[:, 1] ** 5, np.exp(3 * z[:, 2])], 1) @ rotation(3)
    linear = linear_r2(z, codes).value
    found = nonlinear_r2(z, codes, regressor=regressor)
    assert linear < 0.85
    assert found.value > linear + 0.08
    again = nonlinear_r2(z, codes, regressor=regressor)
    assert np.array_equal(found.per_factor, again.per_factor)
    assert found.choices["samples"] == 800
    assert nonlinear_r2(z, codes, regressor=regressor, most=100).choices["samples"] == 100
    one = nonlinear_r2(z[:, :1], codes, regressor=regressor, folds="single")
    assert one.parts["folds"].shape == (1, 1)


def test_kernel_ridge_agrees_with_scikit_learn(monkeypatch):
    z = uniform(300, 2)
    codes = noisy_codes(np.sin(3 * z), 3) * [1, 10, 100] + 5
    train, test = codes[:200], codes[200:]
    monkeypatch.setattr(nonlinear, "WIDTHS", (0.7,))
    monkeypatch.setattr(nonlinear, "RIDGES", (1e-3,))
    scaled = (codes - train.mean(0)) / train.std(0)
    pairs = scaled[:200][:, None] - scaled[:200][None]
    median = np.median((pairs**2).sum(2)[np.triu_indices(200, 1)])
    model = KernelRidge(alpha=200 * 1e-3, kernel="rbf", gamma=1 / (2 * 0.7**2 * median))
    mean = z[:200].mean(0)
    expected = model.fit(scaled[:200], z[:200] - mean).predict(scaled[200:]) + mean
    assert np.allclose(nonlinear.kernel_ridge(train, z[:200], test), expected, atol=1e-9)


def test_kernel_ridge_chooses_for_every_factor_by_itself():
    z = uniform(400, 2)
    codes = np.stack([z[:, 0], np.abs(z[:, 1])], 1)
    together = nonlinear_r2(z, codes).per_factor
    alone = [nonlinear_r2(z[:, [i]], codes).value for i in range(2)]
    assert np.allclose(together, alone, atol=1e-9)


@pytest.mark.parametrize("kernel", [False, True])
def test_blocks_of_codes_and_factors(kernel):
    z = uniform(800, 5)
    codes = np.concatenate([z[:, :3] @ rotation(3), z[:, [3]]], 1)
    blocks = {"content": [0, 1, 2], "style": [3, 4]}
    found = block_r2(z, codes, blocks, {"content": [0, 1, 2], "style": [3]}, kernel)
    expected = np.array([[1, 0], [0, 0.5]])
    assert np.allclose(found.parts["r2"], expected, atol=0.03)
    assert found.value == pytest.approx(0.8, abs=0.02)
    assert found.parts["own"] == ["content", "style"]
    single = linear_r2(z, codes[:, :3]).per_factor
    if not kernel:
        assert found.per_factor[:3] == pytest.approx(single[:3])
    unnamed = block_r2(z, codes, blocks, {"a": [3], "b": [0, 1, 2]}, kernel)
    assert unnamed.parts["own"] == ["b", "a"]
    assert unnamed.choices["own"] == "the best block"


def test_blocks_that_do_not_fit():
    z = uniform(50, 3)
    for blocks, message in (
        ({}, "at least one block of factors"),
        ({"a": []}, "factor block 'a' must name"),
        ({"a": [3]}, "columns 0 to 2"),
    ):
        with pytest.raises(UsageError, match=message):
            block_r2(z, z, blocks, {"a": [0]})
