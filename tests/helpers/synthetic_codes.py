"""Factors and codes of known structure."""

import numpy as np
from hypothesis import strategies as st

FACTORS = 4  # of the codes of known structure

seeds = st.integers(0, 2**32 - 1)


def uniform(samples, factors, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (samples, factors))


def noisy_codes(z, width, seed=1, noise=0.3):
    generator = np.random.default_rng(seed)
    mixed = z @ generator.standard_normal((z.shape[1], width))
    return mixed + noise * generator.standard_normal(mixed.shape)


def rotation(size, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((size, size)))[0]


def invertible(size, seed):
    """A random matrix with singular values between 1e-3 and 1e3."""
    scales = 10 ** np.random.default_rng(seed).uniform(-3, 3, size)
    return rotation(size, seed) * scales @ rotation(size, seed + 1)


def noise(samples, width, seed=9):
    return np.random.default_rng(seed).standard_normal((samples, width))


def data(samples=120):
    z = uniform(samples, 3)
    return z, noisy_codes(z, 4)


def warning_codes(found):
    return [warning.code for warning in found.warnings]


Z = uniform(1000, 3)
