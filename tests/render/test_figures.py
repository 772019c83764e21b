"""Figures of images."""

from __future__ import annotations

import numpy as np
import pytest

from threedident.errors import UsageError
from threedident.render.figures import contact_sheet, traversal_figure, traversal_latents


def test_traversals_change_one_factor_at_a_time():
    raw = traversal_latents(5, {4: 0.5})
    assert raw.shape == (5, 10, 10)
    for f in range(10):
        rest = np.delete(raw[:, f], f, axis=1)
        assert (rest == rest[0]).all()
        assert raw[:, f, f].tolist() == [-1, -0.5, 0, 0.5, 1]
    assert (raw[:, 0, 4] == 0.5).all()
    with pytest.raises(UsageError, match="at least 2"):
        traversal_latents(1)


@pytest.mark.parametrize("side", [8, 64, 300])
def test_figures_show_every_image_once(side):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, side, side, 3), np.uint8)
    sheet = np.asarray(contact_sheet(images, list("abcdef"), columns=4))
    assert sheet.shape[1] >= 4 * side
    grid = rng.integers(0, 256, (3, 10, side, side, 3), np.uint8)
    figure = np.asarray(traversal_figure(grid, "title"))
    last = figure[figure.shape[0] - side - 4 : -4, figure.shape[1] - side - 4 : -4]
    assert np.array_equal(last, grid[2, 9])


@pytest.mark.parametrize("shape", [(24, 48, 3), (48, 24, 1)])
def test_images_that_are_no_squares_do_not_overlap(shape):
    images = np.full((4, *shape), 7, np.uint8)
    sheet = np.asarray(contact_sheet(images, list("abcd"), columns=2))
    assert (sheet == 7).all(-1).sum() == 4 * shape[0] * shape[1]
