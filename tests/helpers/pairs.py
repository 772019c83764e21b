"""Datasets and pairs that several tests share."""

from __future__ import annotations

import threading

import numpy as np
import torch
from click.testing import CliRunner

from helpers import fake_dataset as made
from threedident import cli as cli_module
from threedident.datasets import (
    Normal,
    PositivePairs,
    RenderedPairs,
)

ENGINE = ("--engine", "direct", "--resolution", 16, "--quality", "draft")


class Made:
    """A dataset of 300 images, and what it holds."""

    def __init__(self, root):
        self.root = root
        self.truth = made.make(root, 300)

    def rows(self, z):
        """Which images latents belong to."""
        columns = z.shape[1]
        hits = (self.truth.raw_latents[None, :, :columns] == z.numpy()[:, None]).all(2)
        assert (hits.sum(1) == 1).all()
        return hits.argmax(1)

    def check(self, batch):
        """That images are those of the latents, and no pair is twice the same image."""
        numbers = []
        for z, x in zip(*batch, strict=True):
            assert z.dtype == torch.float32
            assert x.dtype == torch.uint8
            assert x.shape == (len(z), 3, 8, 8)
            assert x.is_contiguous(memory_format=torch.channels_last)
            numbers.append(self.rows(z))
            assert np.array_equal(x.permute(0, 2, 3, 1), self.truth.pixels[numbers[-1]])
        assert (numbers[0] != numbers[1]).all()
        return numbers


def both_ways(dataset, **options):
    """Pairs that are matched, and pairs that are resampled."""
    options = {"conditional": Normal(0.3), "batch_size": 40, "seed": 3, **options}
    return [PositivePairs(dataset.root, match=m, **options) for m in ("nearest", "resample")]


def loader_threads():
    return [t for t in threading.enumerate() if t.name.startswith("pairs")]


def run(*words, code=0):
    """`3dident pairs` in this process."""
    done = CliRunner().invoke(cli_module.main, ["pairs", *map(str, words)])
    assert done.exit_code == code, done.output
    return done


def on_demand(**options):
    options = {"resolution": 16, "quality": "draft", "batch_size": 10, "seed": 4, **options}
    return RenderedPairs(conditional=Normal(0.1), **options)
