"""`SequencePairs` and `TablePairs`: pairs of neighbouring frames, and pairs that data name."""

from __future__ import annotations

from pathlib import Path

from threedident.datasets.dataset import ImageDataset
from threedident.datasets.formats.grouping import require_pairs, require_sequences
from threedident.datasets.indexed_pairs import IndexedPairs
from threedident.errors import DatasetError, MissingExtraError, UsageError

try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "train", "pairs of frames") from error

from threedident.datasets.loader import Pair


class SequencePairs(IndexedPairs):
    """Batches of pairs `((z, z~), (x, x~))` of frames of a sequence, as in KITTI Masks.

    Anchors are all frames but the last of each sequence, each once an epoch. The partner is later
    in time: by a number of frames that is uniform in 1 to max_gap, or the last frame of the
    sequence where that is past its end (Klindt et al. 2021; Zimmermann et al. 2021).

    Attributes:
        max_gap: the largest number of frames from one to the other.
    """

    def __init__(
        self,
        dataset: ImageDataset | str | Path,
        max_gap: int = 1,
        *,
        batch_size: int = 32,
        batches: int | None = None,
        seed: int = 0,
        pin_memory: bool = False,
    ) -> None:
        """Find the sequences of a dataset.

        Args:
            dataset: the dataset, or its path, or drawn:blobs.
            max_gap: the largest number of frames from one to the other.
            batch_size: the number of pairs in a batch; papers that count frames have twice as
                many.
            batches: the number of batches in an epoch; None: as many as the anchors fill.
            seed: the seed for the order and the partners.
            pin_memory: a flag to put images into pinned memory, from which a GPU copies faster.

        Warns:
            MatchingWarning: a batch holds more pairs than there are anchors.

        Raises:
            UsageError: an argument does not fit, or the dataset is in no sequences.
            DatasetError: the dataset holds no image, or no sequence of two.
        """
        super().__init__(
            dataset, batch_size=batch_size, batches=batches, seed=seed, pin_memory=pin_memory
        )
        if type(max_gap) is not int or max_gap < 1:
            raise UsageError(f"max_gap must be a whole number of frames >= 1, found {max_gap!r}")
        self.max_gap = max_gap
        starts = torch.from_numpy(require_sequences(self.dataset.source))
        lengths = starts.diff()
        self._last = (starts[1:] - 1).repeat_interleave(lengths)
        frames = torch.arange(len(self._last))
        self._first = frames[frames < self._last]
        if not len(self._first):
            raise DatasetError(f"{self.dataset.root} has no sequence of two frames")
        self._begin(len(self._first))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.dataset.root}, {len(self._first)} anchors, max_gap="
            f"{self.max_gap}, {self.batches} x {self._batch_size} pairs an epoch)"
        )

    def pairs_of(self, anchors: torch.Tensor, generator: torch.Generator) -> Pair:
        """Draw a later frame for each anchor."""
        first = self._first[anchors]
        gap = torch.randint(1, self.max_gap + 1, first.shape, generator=generator)
        return first, torch.minimum(first + gap, self._last[first])


class TablePairs(IndexedPairs):
    """Batches of the pairs `((z, z~), (x, x~))` that a dataset names, such as Natural Sprites.

    Each pair comes once an epoch, its members in the order that the dataset has.
    """

    def __init__(
        self,
        dataset: ImageDataset | str | Path,
        *,
        batch_size: int = 32,
        batches: int | None = None,
        seed: int = 0,
        pin_memory: bool = False,
    ) -> None:
        """Find the pairs of a dataset.

        Args:
            dataset: the dataset, or its path, or the name of drawn images.
            batch_size: the number of pairs in a batch; papers that count images have twice as
                many.
            batches: the number of batches in an epoch; None: as many as the pairs fill.
            seed: the seed for their order.
            pin_memory: a flag to put images into pinned memory, from which a GPU copies faster.

        Warns:
            MatchingWarning: a batch holds more pairs than the dataset.

        Raises:
            UsageError: an argument does not fit, or the dataset names no pairs.
            DatasetError: the dataset holds no image.
        """
        super().__init__(
            dataset, batch_size=batch_size, batches=batches, seed=seed, pin_memory=pin_memory
        )
        self._pairs = torch.from_numpy(require_pairs(self.dataset.source))
        self._begin(len(self._pairs))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.dataset.root}, {len(self._pairs)} pairs, {self.batches} "
            f"x {self._batch_size} pairs an epoch)"
        )

    def pairs_of(self, anchors: torch.Tensor, generator: torch.Generator) -> Pair:
        """Take the members of each pair."""
        return self._pairs[anchors, 0], self._pairs[anchors, 1]
