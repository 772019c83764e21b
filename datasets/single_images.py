"""Batches of single images with their factors, for supervised training."""

from __future__ import annotations

import torch

from threedident.datasets.dataset import ImageDataset
from threedident.datasets.loader import Batch
from threedident.distributions.torch_sampler import seeded


class SingleImages:
    """Batches `((z,), (x,))` of single images in random order, each once an epoch.

    Attributes:
        batches: the number of batches in an epoch; images that do not fill one are left out.
    """

    def __init__(self, dataset: ImageDataset, batch_size: int, seed: int) -> None:
        self._dataset, self._size, self._seed = dataset, batch_size, seed
        self.batches = len(dataset) // batch_size
        self._order: tuple[int, torch.Tensor] | None = None  # the last epoch's

    def batch(self, epoch: int, number: int) -> Batch:
        """Make batch `number` of an epoch."""
        order = self._order
        if order is None or order[0] != epoch:
            drawn = torch.randperm(len(self._dataset), generator=seeded(self._seed, epoch))
            order = self._order = epoch, drawn
        chosen = order[1][number * self._size : (number + 1) * self._size]
        return Batch((self._dataset.factors[chosen],), (self._dataset.images(chosen),))
