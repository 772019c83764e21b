"""`TwoViews`: two augmented views of one image, the pairs of the SimCLR baseline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from threedident.datasets.dataset import ImageDataset, require_images
from threedident.errors import MissingExtraError, UsageError

try:
    import torch
    from torch.utils import data
    from torchvision.transforms import v2
except ImportError as error:
    raise MissingExtraError(str(error.name), "train", "augmented views") from error

from threedident.datasets.loader import Batch, BatchDataset
from threedident.distributions.torch_sampler import seeded


def simclr(size: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Make the augmentations of the published baseline, for uint8 images (3, H, W).

    A random resized crop of 0.08 to 1 of the area, a flip, colour jitter 0.8, 0.8, 0.8, 0.2 with
    p = 0.8, and greyscale with p = 0.2 (Zimmermann et al. 2021, section 4.2.2; see CITATION.cff).

    Args:
        size: the number of pixels along each side of a view.
    """
    views: Callable[[torch.Tensor], torch.Tensor] = v2.Compose(
        [
            v2.RandomResizedCrop(size, scale=(0.08, 1.0), antialias=True),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
            v2.RandomGrayscale(p=0.2),
        ]
    )
    return views


class TwoViews(BatchDataset):
    """Batches `((z, z), (x, x~))`: x and x~ are two augmentations of the image with latents z.

    Every image comes once an epoch, in random order. A batch depends on (seed, epoch, number)
    alone, in any worker.

    Attributes:
        dataset: the dataset of the images.
        augment: the function from an image to a view.
        batches: the number of batches in an epoch; images that do not fill one are left out.
    """

    def __init__(
        self,
        dataset: ImageDataset | str | Path,
        augment: Callable[[torch.Tensor], torch.Tensor] | None = None,
        *,
        batch_size: int = 512,
        seed: int = 0,
    ) -> None:
        """Open the dataset; no image is read yet.

        Args:
            dataset: the dataset of the images, or its path.
            augment: a function from a uint8 image (C, H, W) to its view; it draws from torch's
                global random numbers, as torchvision's v2 transforms do. None: `simclr` at full
                size.
            batch_size: the number of images in a batch.
            seed: the seed for the order and the augmentations.

        Raises:
            UsageError: the dataset does not fill a batch.
        """
        super().__init__()
        self.dataset = require_images(dataset)
        if not 1 <= batch_size <= len(self.dataset):
            raise UsageError(
                f"expected a batch_size of 1 to {len(self.dataset)}, the number of images, found "
                f"{batch_size}"
            )
        self.augment = augment or simclr(self.dataset.source.shape[0])
        self.batches = len(self.dataset) // batch_size
        self._batch_size, self._seed = batch_size, seed

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.dataset.root}, {len(self.dataset)} images, "
            f"{self.batches} x {self._batch_size} images an epoch)"
        )

    def batch(self, epoch: int, number: int) -> Batch:
        """Make batch `number` of an epoch."""
        order = torch.randperm(len(self.dataset), generator=seeded(self._seed, epoch))
        chosen = order[number * self._batch_size : (number + 1) * self._batch_size]
        images = self.dataset.images(chosen)
        with torch.random.fork_rng(devices=[]):
            # Of the CPU alone: fork_rng puts nothing else back.
            torch.default_generator.manual_seed(seeded(self._seed, epoch, number).initial_seed())
            views = [torch.stack([self.augment(x) for x in images]) for _ in range(2)]
        z = self.dataset.factors[chosen]
        return Batch((z, z), (views[0], views[1]))

    def loader(self, *, workers: int = 2) -> data.DataLoader[Any]:
        """Make a DataLoader over the batches; call `set_epoch` before each pass.

        Augmentations draw from a process's global random numbers, hence processes, not threads.
        """
        return data.DataLoader(
            self, batch_size=None, num_workers=workers, persistent_workers=workers > 0
        )
