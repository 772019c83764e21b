"""Checks of sample points."""

from __future__ import annotations

import numpy as np


def require_net(points: np.ndarray) -> None:
    """Fails unless 64 points in [0, 1)^2 are the beginning of a (0, 2)-sequence."""
    assert points.shape == (64, 2)
    assert (points >= 0).all()
    assert (points < 1).all()
    # Every 2^k points have one in each of 2^k boxes, of any shape.
    for k in range(7):
        for start in range(0, 64, 2**k):
            some = points[start : start + 2**k]
            for a in range(k + 1):
                boxes = np.floor(some * [2**a, 2 ** (k - a)]).astype(int)
                assert len({tuple(box) for box in boxes}) == 2**k
