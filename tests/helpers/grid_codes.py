"""Codes of images of a grid, in known relations to its factors."""

from __future__ import annotations

import numpy as np

from threedident.distributions.grid import Grid
from threedident.evaluate.metrics._arrays import Float64

GRID = Grid((3, 2, 4, 4, 5), ("shape", "scale", "orientation", "x", "y"), categorical=["shape"])
ROWS = 900


def grid_rows(seed: int = 0, count: int = ROWS) -> Float64:
    """Points of the grid, (count, 5), drawn uniformly and with replacement."""
    numbers = np.random.default_rng(seed).integers(0, len(GRID), count)
    return GRID.points(numbers).astype(np.float64)


def codes_of_rows(z: Float64, seed: int = 1) -> dict[str, Float64]:
    """Codes of rows (N, 5) by what they are: a mixture, some factors and noise, all, none."""
    generator = np.random.default_rng(seed)
    noise = generator.standard_normal((len(z), 10))
    centred = (z - z.mean(0)) / z.std(0)
    mixed = np.tanh(centred @ generator.standard_normal((5, 7))) + 0.1 * noise[:, :7]
    some = np.concatenate([noise[:, :2], centred[:, [3, 0, 3]] + 0.3 * noise[:, 2:5]], 1)
    return {
        "mixed": mixed,
        "some": some,
        "exchanged": centred[:, ::-1] * [1.0, -1.0, 2.0, 1.0, 1.0],
        "noise": noise[:, :6],
    }
