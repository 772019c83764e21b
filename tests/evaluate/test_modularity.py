"""Modularity."""

import numpy as np
import pytest
import threadpoolctl

from threedident.evaluate.metrics import (
    modularity,
)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Many threads on small matrices are slow where processors are busy."""
    with threadpoolctl.threadpool_limits(1):
        yield


def test_modularity(known_codes):
    z, made = known_codes
    for name in ("perfect", "permuted", "twice"):
        assert modularity(z, made[name]).value > 0.99
    assert modularity(z, made["rotated"]).value < 0.95
    assert modularity(z, made["noise"]).value < 0.4
    # Codes of noise tell of all factors alike, and count as much as the others.
    assert modularity(z, made["over-complete"]).value < 0.7
    still = np.concatenate([z, np.ones((len(z), 1))], 1)
    assert modularity(z, still).parts["per_code"][-1] == 0
