"""Spaces and the points that they hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from threedident.distributions.spaces import Box, Product, Sphere, Unbounded, check_points
from threedident.errors import UsageError


def test_points_outside_a_product():
    space = Product(Box(1), Sphere(2, 2.0), Unbounded(1))
    points = [[1, 2, 0, 9], [1.1, 2, 0, 9], [1, 1, 0, 9], [1, 2, 0, math.inf], [-1, 0, -2, -9]]
    for made in (np.array(points), torch.tensor(points)):
        assert space.outside(made).tolist() == [False, True, True, True, False]
    with pytest.raises(UsageError, match=r"points: \(1.1, 2, 0, 9\) in row 1 is not a point of P"):
        check_points(space, np.array(points), "points")
