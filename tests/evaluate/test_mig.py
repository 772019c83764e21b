"""The mutual information gap, and the information behind it."""

import numpy as np
import pytest
import threadpoolctl
from helpers.synthetic_codes import noisy_codes, uniform
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import mutual_info_score

from threedident.evaluate.metrics import (
    mig,
    modularity,
)
from threedident.evaluate.metrics._mutual_information import binned


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Many threads on small matrices are slow where processors are busy."""
    with threadpoolctl.threadpool_limits(1):
        yield


def test_mig(known_codes):
    z, made = known_codes
    # Finite samples give codes of other factors (bins - 1)^2 / (2 N) nats.
    bias = 19**2 / (2 * len(z)) / np.log(20)
    for name in ("perfect", "permuted", "over-complete"):
        assert mig(z, made[name]).value == pytest.approx(1 - bias, abs=0.02)
    assert mig(z, made["twice"]).value == pytest.approx(0, abs=1e-9)
    assert mig(z, made["rotated"]).value < 0.25
    assert mig(z, made["noise"]).value < 0.02
    assert 0.1 < mig(z, made["noisy"]).value < 0.4
    assert mig(z, made["perfect"][:, :1]).per_factor[0] == pytest.approx(1, abs=1e-9)


@given(st.integers(0, 2**32 - 1), st.integers(2, 9), st.sampled_from(["width", "quantile"]))
@settings(max_examples=15)
def test_mig_and_modularity_agree_with_their_formulas(seed, bins, binning):
    z = uniform(100, 3, seed)
    codes = noisy_codes(z, 5, seed)
    cut_z, cut_c = binned(z, bins, binning), binned(codes, bins, binning)
    assert cut_z.min() == 0
    assert cut_z.max() == bins - 1
    table = np.array([[mutual_info_score(a, b) for b in cut_c.T] for a in cut_z.T])
    entropy = np.array([mutual_info_score(a, a) for a in cut_z.T])
    found = mig(z, codes, bins=bins, binning=binning)
    assert np.allclose(found.parts["information"], table, atol=1e-6)
    top = np.sort(table, 1)
    assert np.allclose(found.per_factor, (top[:, -1] - top[:, -2]) / entropy, atol=1e-6)
    squares = np.sort(table**2, 0)
    expected = 1 - squares[:-1].sum(0) / squares[-1] / 2
    whole = modularity(z, codes, bins=bins, binning=binning)
    assert np.allclose(whole.parts["per_code"], expected, atol=1e-5)
    assert whole.value == pytest.approx(expected.mean(), abs=1e-5)


def test_bins():
    values = np.array([[0.0], [0.1], [0.2], [1.0]])
    assert binned(values, 2, "width").ravel().tolist() == [0, 0, 0, 1]
    assert binned(values, 2, "quantile").ravel().tolist() == [0, 0, 1, 1]
    assert (binned(np.ones((4, 1)), 5, "width") == 0).all()


def test_classes_are_taken_as_they_are():
    """Their numbers say nothing, and there may be more of them than bins."""
    z = np.random.default_rng(0).integers(0, 60, (6000, 2))
    codes, renumbered = z * 1.0, np.random.default_rng(1).permutation(60)[z]
    kinds = ["discrete", "discrete"]
    for metric in (mig, modularity):
        found = metric(z, codes, kinds=kinds)
        assert metric(renumbered, codes, kinds=kinds).value == pytest.approx(found.value)
    assert mig(renumbered, codes).value < mig(z, codes, kinds=kinds).value - 0.05
    # Far numbers do not make neighbours of near ones.
    far = np.array([0, 1, 100])[z % 3]
    blind = np.where(far == 1, 0, far)
    assert mig(far, blind, kinds=kinds).value < 0.6
