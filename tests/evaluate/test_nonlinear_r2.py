"""R2 of kernel ridge regression and of an MLP."""

import numpy as np
import pytest
import threadpoolctl
from helpers.synthetic_codes import noisy_codes, rotation, uniform
from sklearn.kernel_ridge import KernelRidge

from threedident.evaluate.metrics import _kernel_ridge as nonlinear
from threedident.evaluate.metrics import linear_r2, nonlinear_r2


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Many threads on small matrices are slow where processors are busy."""
    with threadpoolctl.threadpool_limits(1):
        yield


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
