"""`GridPairs`: exact pairs of a dataset that holds an image of every combination of factors."""

from __future__ import annotations

from pathlib import Path

from threedident.datasets.dataset import ImageDataset
from threedident.datasets.formats.grouping import require_grid
from threedident.datasets.indexed_pairs import IndexedPairs
from threedident.distributions import Distribution, Grid, PairProcess
from threedident.errors import MissingExtraError, UsageError

try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "train", "pairs over a grid") from error

from threedident.datasets.loader import Pair


class GridPairs(IndexedPairs):
    """Batches of positive pairs `((z, z~), (x, x~))` of a dataset on a grid, such as dSprites.

    z is the factors of an image, each image once an epoch. z~ is drawn from the transition around
    it, and x~ is the image of z~: there is one of each point of the grid, so the pairs follow the
    transition exactly.

    Iterate over `loader()`, or use it in a DataLoader with `batch_size=None`, as `PositivePairs`.

    Attributes:
        process: the grid, the uniform marginal, and the transition.
    """

    def __init__(
        self,
        dataset: ImageDataset | str | Path,
        transition: Distribution,
        *,
        batch_size: int = 32,
        batches: int | None = None,
        seed: int = 0,
        pin_memory: bool = False,
    ) -> None:
        """Check that the transition is one over the dataset's grid.

        Args:
            dataset: the dataset, or its path, or the name of drawn images, such as drawn:sprites.
            transition: the distribution p(z~ | z): `UniformFactors` or `DiscreteLaplace`, or what
                joins them, such as `PerFactor`.
            batch_size: the number of pairs in a batch; papers that count images have twice as
                many.
            batches: the number of batches in an epoch; None: as many as the images fill.
            seed: the seed for the order and the partners.
            pin_memory: a flag to put images into pinned memory, from which a GPU copies faster.

        Warns:
            MatchingWarning: a batch holds more pairs than there are images.

        Raises:
            UsageError: an argument does not fit, or the dataset is on no grid.
            DatasetError: the dataset holds no image.
        """
        super().__init__(
            dataset, batch_size=batch_size, batches=batches, seed=seed, pin_memory=pin_memory
        )
        grid = require_grid(self.dataset.source)
        if not isinstance(transition, Distribution):
            raise UsageError(
                f"transition must be one such as DiscreteLaplace(), found {transition!r:.100}"
            )
        self.process = PairProcess(grid, transition)
        self._begin(len(grid))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.dataset.root}, {len(self.dataset)} images, "
            f"{self.process.conditional}, {self.batches} x {self._batch_size} pairs an epoch)"
        )

    def pairs_of(self, anchors: torch.Tensor, generator: torch.Generator) -> Pair:
        """Draw a partner of each image (B,) from the transition."""
        grid = self.process.space
        assert isinstance(grid, Grid)
        z = grid.points(anchors).float()
        z_tilde = self.process.conditional.sample(grid, z, generator=generator)
        return anchors, grid.index(z_tilde)
