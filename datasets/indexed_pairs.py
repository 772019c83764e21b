"""`IndexedPairs`: batches of pairs that are chosen by the numbers of their images alone."""

from __future__ import annotations

import warnings
from pathlib import Path

from threedident.datasets.dataset import ImageDataset, require_images
from threedident.errors import MatchingWarning, MissingExtraError

try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "train", "pairs of images") from error

from threedident.datasets.loader import (
    Batch,
    BatchDataset,
    Buffers,
    Pair,
    PairLoader,
    batch_of_rounds,
    check_sizes,
)
from threedident.distributions.torch_sampler import seeded

_PARTNERS = 2  # a word that tells the partners' random numbers from those of the order


class IndexedPairs(BatchDataset):
    """The base of `GridPairs`, `SequencePairs` and `TablePairs`: anchors in turn, and partners.

    A batch is `((z, z~), (x, x~))`: the chosen factors of both images, (B, n) float32, and the
    images, uint8 (B, C, H, W), channels last in memory. An epoch holds each anchor once, in random
    order, except those at the end that do not fill a batch.

    Attributes:
        dataset: the dataset.
        batches: the number of batches in an epoch.
    """

    def __init__(
        self,
        dataset: ImageDataset | str | Path,
        *,
        batch_size: int,
        batches: int | None,
        seed: int,
        pin_memory: bool,
    ) -> None:
        """Open the dataset; the subclass then calls `_begin` with the number of anchors.

        Args:
            dataset: the dataset, or its path.
            batch_size: the number of pairs in a batch.
            batches: the number of batches in an epoch; None: as many as the anchors fill.
            seed: the seed for the order and the partners.
            pin_memory: a flag to put images into pinned memory, from which a GPU copies faster.

        Raises:
            UsageError: an argument does not fit.
            DatasetError: the dataset holds no image.
        """
        super().__init__()
        self.dataset = require_images(dataset)
        check_sizes(batch_size, batches)
        self._batch_size, self._wanted, self._seed = batch_size, batches, seed
        self._buffers = Buffers(pin_memory=pin_memory)

    def _begin(self, anchors: int) -> None:
        """Take the number of anchors, and warn if a batch holds more pairs than that."""
        self._anchors = anchors
        filled = max(1, anchors // self._batch_size)
        self.batches = filled if self._wanted is None else self._wanted
        if self._batch_size > anchors:
            warnings.warn(
                f"a batch of {self._batch_size} pairs is more than the {anchors} anchors of "
                f"{self.dataset.root}: images come several times in it, so that some negatives are "
                "the anchor itself or its positive. Take a smaller batch_size, or more images",
                MatchingWarning,
                stacklevel=4,
            )

    def loader(self, *, threads: int = 2, ahead: int = 2) -> PairLoader:
        """Make a loader: each pass is the next epoch, prepared by threads of this process."""
        return PairLoader(self, threads=threads, ahead=ahead)

    def batch(self, epoch: int, number: int) -> Batch:
        """Make batch `number` of an epoch."""
        i, j = self.indices(epoch, number)
        images = self._buffers.images(self.dataset, torch.cat([i, j]))
        factors = self.dataset.factors
        z = (factors[i].to(images.device), factors[j].to(images.device))
        return Batch(z, (images[: len(i)], images[len(i) :]))

    def indices(self, epoch: int, number: int) -> Pair:
        """Choose the images of a batch's pairs: two tensors of image numbers, (B,) int64 each.

        They depend on the dataset, the arguments, the epoch and the number alone.
        """
        chosen = batch_of_rounds(
            self._anchors, self._batch_size, seed=self._seed, epoch=epoch, number=number
        )
        return self.pairs_of(chosen, seeded(self._seed, epoch, number, _PARTNERS))

    def pairs_of(self, anchors: torch.Tensor, generator: torch.Generator) -> Pair:
        """Choose a partner of each anchor.

        Args:
            anchors: the positions of anchors among all of them, (B,) int64.
            generator: the source of random numbers.

        Returns:
            The image numbers of the anchors and of their partners, (B,) int64 each.
        """
        raise NotImplementedError
