"""Separated attribute predictability."""

import numpy as np
import pytest
import threadpoolctl
from helpers.synthetic_codes import FACTORS, rotation

from threedident.evaluate.metrics import (
    sap,
)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Many threads on small matrices are slow where processors are busy."""
    with threadpoolctl.threadpool_limits(1):
        yield


def test_sap(known_codes):
    z, made = known_codes
    for name in ("perfect", "permuted", "over-complete"):
        assert sap(z, made[name]).value == pytest.approx(1, abs=0.01)
    assert sap(z, made["twice"]).value == pytest.approx(0, abs=1e-9)
    assert sap(z, made["noise"]).value < 0.01
    # The squared correlation of factor i and code j is the squared entry of the rotation.
    expected = np.mean(np.sort(rotation(FACTORS, 3) ** 2, 1) @ [0, 0, -1, 1])
    assert sap(z, made["rotated"]).value == pytest.approx(expected, abs=0.05)
    assert sap(z, made["noisy"]).value == pytest.approx((1 / 3) / (1 / 3 + 0.25), abs=0.05)
    both = np.corrcoef(z.T, made["noisy"].T)[:FACTORS, FACTORS:] ** 2
    top = np.sort(both, 1)
    assert np.allclose(sap(z, made["noisy"]).per_factor, top[:, -1] - top[:, -2])
