"""Explicitness."""

import numpy as np
import pytest
import threadpoolctl
from helpers.synthetic_codes import noisy_codes, rotation, uniform
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from threedident.evaluate.metrics import (
    explicitness,
)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Many threads on small matrices are slow where processors are busy."""
    with threadpoolctl.threadpool_limits(1):
        yield


def test_explicitness(known_codes):
    z, made = known_codes
    for name in ("perfect", "permuted", "rotated", "over-complete"):
        assert explicitness(z, made[name]).value > 0.9
    assert 0.3 < explicitness(z, made["noisy"]).value < 0.8
    assert abs(explicitness(z, made["noise"]).value) < 0.05


def test_explicitness_agrees_with_scikit_learn():
    z = uniform(300, 2)
    codes = noisy_codes(z, 2)
    found = explicitness(z, codes, classes=3, folds="single", penalty=1e-2)
    scaled = codes - codes[:150].mean(0)
    scaled = scaled @ np.linalg.inv(np.linalg.cholesky(np.cov(scaled[:150].T, bias=True))).T
    for factor in range(2):
        labels = np.searchsorted(np.quantile(z[:, factor], [1 / 3, 2 / 3]), z[:, factor], "right")
        model = LogisticRegression(C=1 / (1e-2 * 150), max_iter=500)
        chances = model.fit(scaled[:150], labels[:150]).predict_proba(scaled[150:])
        areas = [roc_auc_score(labels[150:] == k, chances[:, k]) for k in range(3)]
        assert np.allclose(found.parts["auc"][factor], areas, atol=1e-9)
        assert found.per_factor[factor] == pytest.approx(2 * np.mean(areas) - 1, abs=1e-9)


def test_explicitness_does_not_depend_on_how_collinear_codes_are():
    z = uniform(2000, 4)
    codes = z @ rotation(4) * [1, 1e-1, 1e-2, 1e-3] @ rotation(4, 1)
    whole = explicitness(z, z).value
    assert whole > 0.99
    assert explicitness(z, codes).value == pytest.approx(whole, abs=1e-3)
