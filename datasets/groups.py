"""`ImageGroups`: images of a causal model that belong together, a whole batch at a time."""

from __future__ import annotations

from pathlib import Path

from threedident.datasets.dataset import ThreeDIdent, require_rendered
from threedident.datasets.formats.grouping import grouping
from threedident.errors import DatasetError, MissingExtraError, UsageError

try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "train", "groups of images") from error

from threedident.datasets.loader import (
    Batch,
    BatchDataset,
    Buffers,
    PairLoader,
    batch_of_rounds,
    check_sizes,
)


class ImageGroups(BatchDataset):
    """Batches of images of a causal model that belong together.

    These are a factual image and its counterfactual, two views, or frames in a row of a sequence,
    as the dataset was rendered; or the pairs, triplets and frames of a published layout of the
    family. A batch is a `Batch`: for each image of a group the variables,
    (B, D) float32, and the images, uint8 (B, 3, H, W). An epoch holds each group once, in random
    order, except those at the end that do not fill a batch.

    As a dataset of batches this also works in a DataLoader: `DataLoader(groups, batch_size=None)`,
    with `set_epoch` before each epoch.

    Attributes:
        dataset: the dataset.
        kind: the kind of a group: counterfactual, views, sequence or triplets.
        length: the images of a group.
        batches: the number of batches in an epoch.
    """

    def __init__(
        self,
        dataset: ThreeDIdent | str | Path,
        length: int | None = None,
        *,
        batch_size: int = 512,
        batches: int | None = None,
        seed: int = 0,
        environment: str | None = None,
        pin_memory: bool = False,
    ) -> None:
        """Find the groups of a dataset.

        Args:
            dataset: the dataset, or its path: of a causal model, with a counterfactual, views or
                steps.
            length: the images of a group; None: 2, or 3 for triplets. In a sequence every stretch
                of so many frames is a group.
            batch_size: the number of groups in a batch.
            batches: the number of batches in an epoch; None: as many as the groups fill.
            seed: the seed of their order.
            environment: the name of an environment, whose groups alone are taken; None: all.
            pin_memory: a flag to put images into pinned memory, from which a GPU copies faster.

        Raises:
            UsageError: an argument does not fit, or the dataset has no groups.
            DatasetError: the dataset holds fewer groups than a batch.
        """
        super().__init__()
        self.dataset = require_rendered(dataset)
        check_sizes(batch_size, batches)
        self.kind, frames = grouping(self.dataset.source)
        if frames == 1:
            raise UsageError(
                f"{self.dataset.root} holds single images: groups come from `3dident render "
                "--model` with --counterfactual, --views or --steps, and pairs of single images "
                "from PositivePairs"
            )
        default = 3 if self.kind == "triplets" else 2
        self.length = default if length is None else length
        if type(self.length) is not int or not 1 <= self.length <= frames:
            raise UsageError(f"length must be a whole number from 1 to {frames}, found {length!r}")
        if self.kind != "sequence" and self.length != frames:
            raise UsageError(f"groups of {self.kind} have {frames} images, found length {length}")
        # The first image of every group that is there as a whole, in one item.
        first = torch.arange(max(0, len(self.dataset) - self.length + 1))
        frame = first % frames
        self._first = first[frame + self.length <= frames]
        if environment is not None:
            self.dataset.in_environment(environment)  # refuses what is none
            number = self.dataset.environments.index(environment)
            self._first = self._first[self.dataset.environment[self._first] == number]
        if len(self._first) < batch_size:
            raise DatasetError(
                f"{self.dataset.root} holds {len(self._first)} groups of {self.length} images, "
                f"fewer than a batch of {batch_size}: take a smaller batch_size, or render more"
            )
        self._batch_size, self._seed = batch_size, seed
        self._buffers = Buffers(pin_memory=pin_memory)
        self.batches = len(self._first) // batch_size if batches is None else batches

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.dataset.root}, {len(self._first)} groups of "
            f"{self.length} images ({self.kind}), {self.batches} x {self._batch_size} an epoch)"
        )

    def loader(self, *, threads: int = 2, ahead: int = 2) -> PairLoader:
        """Make a loader: each pass is the next epoch, prepared by threads of this process."""
        return PairLoader(self, threads=threads, ahead=ahead)

    def indices(self, epoch: int, number: int) -> tuple[torch.Tensor, ...]:
        """The image numbers of a batch's groups: for each image of a group a tensor (B,) int64.

        They depend on the dataset, the seed, the epoch and the number alone.
        """
        chosen = batch_of_rounds(
            len(self._first), self._batch_size, seed=self._seed, epoch=epoch, number=number
        )
        first = self._first[chosen]
        return tuple(first + offset for offset in range(self.length))

    def batch(self, epoch: int, number: int) -> Batch:
        """Make batch `number` of an epoch."""
        indices = self.indices(epoch, number)
        count = len(indices[0])
        chosen = torch.cat(indices)
        images = self._buffers.images(self.dataset, chosen)
        variables = self.dataset.variables[chosen].to(images.device)
        windows = [slice(k * count, (k + 1) * count) for k in range(self.length)]
        return Batch(
            tuple(variables[window] for window in windows),
            tuple(images[window] for window in windows),
        )

    def targets(self, epoch: int, number: int) -> tuple[torch.Tensor, ...]:
        """The intervention targets of a batch: for each image of a group (B, D) uint8."""
        return tuple(self.dataset.targets[each] for each in self.indices(epoch, number))
