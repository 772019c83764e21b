"""Statistics of images, from sums."""

from __future__ import annotations

import json

import numpy as np
import pytest

from threedident.storage.statistics import ImageSums, statistics


def test_statistics_are_those_of_all_images_together():
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (12, 5, 5, 3), np.uint8)
    shares = rng.uniform(0, 1, 12)
    shares[:3] = 1
    parts = ImageSums.of(images[:5], shares[:5]) + ImageSums.of(images[5:], shares[5:])
    found = statistics(parts)
    unit = images / 255
    assert found["images"] == 12
    assert found["mean"] == pytest.approx(unit.mean((0, 1, 2)), abs=1e-6)
    assert found["std_all_pixels"] == pytest.approx(unit.std((0, 1, 2)), abs=1e-6)
    assert found["std_within_image"] == pytest.approx(unit.std((1, 2)).mean(0), abs=1e-6)
    assert found["object_in_frame"] == pytest.approx(shares.mean(), abs=1e-6)
    assert found["images_fully_in_frame"] == 0.25


def test_shares_that_are_not_known_are_null():
    images = np.zeros((2, 4, 4, 3), np.uint8)
    unknown = statistics(ImageSums.of(images, np.full(2, np.nan)))
    assert unknown["object_in_frame"] is None and unknown["images_fully_in_frame"] is None
    json.dumps(unknown, allow_nan=False)
    nowhere = statistics(ImageSums.of(images, np.zeros(2)))
    assert nowhere["object_in_frame"] == 0.0 and nowhere["images_fully_in_frame"] == 0.0
