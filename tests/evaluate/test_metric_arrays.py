"""Arrays of every kind, and what all metrics refuse."""

import numpy as np
import pytest
import threadpoolctl
import torch
from helpers.synthetic_codes import noisy_codes, uniform

from threedident.errors import UsageError
from threedident.evaluate.metrics import linear_r2, mcc, nonlinear_r2


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Many threads on small matrices are slow where processors are busy."""
    with threadpoolctl.threadpool_limits(1):
        yield


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


def test_masked_numbers_are_refused():
    z = uniform(100, 2)
    with pytest.raises(UsageError, match="masked: leave out those rows"):
        mcc(z, np.ma.masked_less(z, -0.9))
    assert mcc(z, np.ma.masked_less(z, -2)).value == pytest.approx(1)
