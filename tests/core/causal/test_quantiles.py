from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from scipy import stats

from threedident.causal.quantiles import (
    normal_cdf,
    normal_quantile,
    truncated_laplace,
    truncated_normal,
)

#: Noise numbers as they are drawn: multiples of 2^-25, the least and the largest among them.
UNITS = (2 * np.unique(np.geomspace(1, 2**23, 200).astype(int)) - 1) / 2**25
UNITS = np.unique(np.concatenate([UNITS, 1 - UNITS]))
QUANTILES = {"normal": truncated_normal, "laplace": truncated_laplace}


def _reference(name, mean, spread, low, high):
    """The quantiles by scipy, on the logarithm of probabilities where they are small."""
    a, b = (low - mean) / spread, (high - mean) / spread
    if name == "normal":
        return stats.truncnorm.ppf(UNITS, a, b, loc=mean, scale=spread)
    if b <= 0 or a >= 0:  # a piece of one side: an exponential distribution, from its upper end
        inner = b if b <= 0 else -a
        mass = -np.expm1(-(b - a))  # of the range, relative to the density at the inner end
        share = UNITS if b <= 0 else 1 - UNITS
        way = -np.log1p(-(1 - share) * mass)  # from the inner end
        return mean + spread * (inner - way) * (1 if b <= 0 else -1)
    below, above = (stats.laplace.cdf(each) for each in (a, b))
    return mean + spread * stats.laplace.ppf(below + UNITS * (above - below))


@pytest.mark.parametrize("name", QUANTILES)
@pytest.mark.parametrize("spread", [0.01, 0.1, 0.5, 1.0, 10.0])
@pytest.mark.parametrize(
    "mean", [-30.0, -8.0, -3.0, -1.1, -1.0, -0.999, -0.3, 0.0, 0.5, 1.0, 1.2, 4.0, 25.0]
)
def test_quantiles_are_those_of_scipy(name, mean, spread):
    low, high = -1.0, 1.0
    values = QUANTILES[name](UNITS, np.full(len(UNITS), mean), spread, low, high)
    np.testing.assert_allclose(
        values, _reference(name, mean, spread, low, high), rtol=0, atol=2e-6 * min(spread, 1.0)
    )


@pytest.mark.parametrize("name", QUANTILES)
@pytest.mark.parametrize("away", [20.0, 30.0, 36.0, 37.0, 38.0, 50.0, 200.0, 1e4])
@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_far_out_the_noise_still_moves_the_value(name, away, side):
    """The range begins `away` spreads from the mean; the values crowd at its nearer end."""
    spread = 0.01
    mean = side * (1.0 + away * spread)
    values = QUANTILES[name](UNITS, np.full(len(UNITS), mean), spread, -1.0, 1.0)
    reference = _reference("laplace", mean, spread, -1.0, 1.0)
    if name == "normal":
        # From end e: exp(-(x^2 - e^2) / 2) e / x, whose logarithm is solved by Newton's steps.
        share = UNITS if side > 0 else 1 - UNITS
        x = np.full(len(UNITS), away)
        for _ in range(50):
            x = np.sqrt(away**2 - 2 * np.log(share) - 2 * np.log(x / away))
        reference = side * (1 - spread * (x - away))
    crowd = spread * (1.0 if name == "laplace" else 1 / away)  # the width of the crowd
    np.testing.assert_allclose(values, reference, rtol=0, atol=1e-2 * crowd)
    assert (np.diff(values) > 0).all()


@pytest.mark.parametrize("name", QUANTILES)
@hypothesis.given(
    mean=st.floats(-1e4, 1e4),
    spread=st.floats(1e-3, 1e3),
    low=st.floats(-100, 99),
    width=st.floats(1e-2, 100),
)
def test_values_lie_in_the_range_and_grow_with_the_noise(name, mean, spread, low, width):
    high = low + width
    values = QUANTILES[name](UNITS, np.full(len(UNITS), mean), spread, low, high)
    assert np.isfinite(values).all()
    assert (values >= low).all()
    assert (values <= high).all()
    assert (np.diff(values) >= -1e-9 * max(abs(low), abs(high))).all()


@pytest.mark.parametrize("name", QUANTILES)
@pytest.mark.parametrize("mean", [1e12, -1e12, 1e300, -1e300])
@pytest.mark.parametrize("spread", [1e-300, 1e-6, 1.0, 1e6])
def test_absurd_means_give_no_warning(name, mean, spread):
    values = QUANTILES[name](UNITS, np.full(len(UNITS), mean), spread, -1.0, 1.0)
    assert (np.abs(values) <= 1).all()
    # A piece of one side of the Laplace is an exponential distribution, wherever the mean is.
    crowd = spread if name == "laplace" else spread / abs(mean) * spread
    if crowd < 1e-5:
        np.testing.assert_allclose(values, np.sign(mean), atol=1e-3)


@pytest.mark.parametrize("name", QUANTILES)
def test_a_mean_for_each_value(name):
    means = np.linspace(-3, 3, len(UNITS))
    together = QUANTILES[name](UNITS, means, 0.2, -1.0, 1.0)
    apart = [QUANTILES[name](UNITS[[n]], means[[n]], 0.2, -1.0, 1.0)[0] for n in range(len(means))]
    assert together.tolist() == apart


def test_the_normal_is_that_of_scipy():
    x = np.linspace(-37, 8, 1000)
    np.testing.assert_allclose(normal_cdf(x), stats.norm.cdf(x), rtol=1e-12)
    p = np.concatenate([np.geomspace(1e-299, 0.5, 500), 1 - np.geomspace(2**-25, 0.5, 100)])
    np.testing.assert_allclose(normal_quantile(p), stats.norm.ppf(p), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", QUANTILES)
@pytest.mark.parametrize("mean", [-2.0, 0.3])
def test_noise_gives_the_distribution(name, mean):
    """By its own distribution function: the values' probabilities are the noise again."""
    low, high, spread = -1.0, 1.0, 0.7
    values = QUANTILES[name](UNITS, np.full(len(UNITS), mean), spread, low, high)
    cdf = stats.norm.cdf if name == "normal" else stats.laplace.cdf
    a, x, b = (cdf((each - mean) / spread) for each in (low, values, high))
    np.testing.assert_allclose((x - a) / (b - a), UNITS, atol=1e-9)
