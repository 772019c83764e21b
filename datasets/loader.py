"""Batches: `Batch`, the protocol `BatchSource`, and loaders and datasets of batches.

An epoch and a number name a batch; with the source's seed, they alone determine it. So any thread
or process can make any batch, and a training can go on in the middle of an epoch.
"""

from __future__ import annotations

import concurrent.futures
import functools
import itertools
import numbers
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from threedident.datasets.dataset import ImageDataset, position
from threedident.errors import MissingExtraError, UsageError

try:
    import torch
    from torch.utils import data
except ImportError as error:
    raise MissingExtraError("torch", "train", "batches of pairs") from error

from threedident.distributions.torch_sampler import seeded

_MOST_FREE = 8  # arrays of a shape that are kept for later

Pair: TypeAlias = tuple[torch.Tensor, torch.Tensor]


class Batch(NamedTuple):
    """One batch: latents and observations, with one tensor for each view.

    A batch of pairs unpacks as `(z, z~), (x, x~)`. It is a named tuple, so a DataLoader pins and
    moves it like any tuple.

    Attributes:
        latents: the latents of each view, (B, n) float32.
        observations: the images of each view, (B, 3, H, W) uint8, or vectors (B, n) float32.
    """

    latents: tuple[torch.Tensor, ...]
    observations: tuple[torch.Tensor, ...]


class BatchSource(Protocol):
    """A source of numbered batches, whose content depends on (seed, epoch, number) alone."""

    @property
    def batches(self) -> int | None:
        """The number of batches in an epoch; None for no end."""

    def batch(self, epoch: int, number: int) -> Batch:
        """Make one batch; several threads may call this at once."""


def check_sizes(batch_size: int, batches: int | None) -> None:
    """Check the number of pairs in a batch and of batches in an epoch.

    Raises:
        UsageError: either is below 1, or no whole number.
    """
    sizes: tuple[tuple[str, Any], ...] = (("batch_size", batch_size), ("batches", batches))
    for name, value in sizes:
        # A bool is an int, and never meant.
        whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        if not whole and not (value is None and name == "batches"):
            raise UsageError(f"{name} must be a whole number, found {value!r:.100}")
    if batch_size < 1 or (batches is not None and batches < 1):
        raise UsageError(f"expected at least 1 pair and batch, found {batch_size}, {batches}")


class PairLoader:
    """An iterator over batches that threads of this process prepare ahead.

    Every pass is the next epoch. Breaking off and starting again is a new pass.

    Attributes:
        epoch: the epoch of the next pass; set it to go on where an earlier run stopped.
        start: the first batch of the next pass, to go on within an epoch; then 0 again.
    """

    def __init__(self, source: BatchSource, *, threads: int = 2, ahead: int = 2) -> None:
        """Take a source; nothing starts before the first iteration.

        Args:
            source: the source of the batches.
            threads: the number of threads that prepare batches.
            ahead: the number of batches, beyond one for each thread, that wait for the training
                loop.

        Raises:
            UsageError: an argument does not fit.
        """
        if threads < 1 or ahead < 0:
            raise UsageError(f"expected threads >= 1 and ahead >= 0, found {threads} and {ahead}")
        self._source, self._threads, self._ahead = source, threads, ahead
        self.epoch = 0
        self.start = 0

    def __len__(self) -> int:
        """The number of batches in an epoch.

        Raises:
            TypeError: the source has no end.
        """
        if self._source.batches is None:
            raise TypeError("an endless source of pairs has no length")
        return self._source.batches

    def __iter__(self) -> Iterator[Batch]:
        epoch, first = self.epoch, self.start
        self.epoch, self.start = epoch + 1, 0
        end = self._source.batches
        numbers = iter(itertools.count(first) if end is None else range(first, end))
        return self._iterate(epoch, numbers)

    def _iterate(self, epoch: int, numbers: Iterator[int]) -> Iterator[Batch]:
        executor = concurrent.futures.ThreadPoolExecutor(self._threads, "pairs")
        waiting: deque[concurrent.futures.Future[Batch]] = deque()
        try:
            for number in itertools.islice(numbers, self._threads + self._ahead):
                waiting.append(executor.submit(self._source.batch, epoch, number))
            while waiting:
                batch = waiting.popleft().result()
                for number in itertools.islice(numbers, 1):
                    waiting.append(executor.submit(self._source.batch, epoch, number))
                yield batch
                del batch  # its buffer is free as soon as the user lets go of it
        finally:
            executor.shutdown(wait=True, cancel_futures=True)


class Strided:
    """Every stride-th batch of a source, in one endless sequence over all its epochs.

    Attributes:
        batches: always None: the sequence has no end.
    """

    batches = None

    def __init__(self, source: BatchSource, first: int, stride: int) -> None:
        """Start at a batch of the sequence.

        Args:
            source: the source of the batches.
            first: the position of the first batch.
            stride: the distance from one batch to the next.
        """
        self._source, self._first, self._stride = source, first, stride

    def batch(self, epoch: int, number: int) -> Batch:
        """Make batch `number` of the sequence."""
        place = self._first + number * self._stride
        if self._source.batches is None:
            return self._source.batch(0, place)
        return self._source.batch(*divmod(place, self._source.batches))


class EndlessBatches(data.IterableDataset[Batch]):
    """The batches of an endless source in order, shared between the workers of a DataLoader."""

    def __init__(self, source: BatchSource) -> None:
        self._source = source

    def __iter__(self) -> Iterator[Batch]:
        worker = data.get_worker_info()
        number, stride = (0, 1) if worker is None else (worker.id, worker.num_workers)
        while True:
            yield self._source.batch(0, number)
            number += stride


class Buffers:
    """A pool of arrays for batches of images; an array is free again once its batch is gone.

    A fresh array of 150 MB costs as much to get from the system as to fill. Pinned memory is
    left to torch, which pools it in the same way, and waits for copies to the GPU that are
    still under way when their source is released.
    """

    def __init__(self, *, pin_memory: bool = False) -> None:
        if pin_memory and not torch.cuda.is_available():
            raise UsageError("pin_memory is for a GPU, and torch finds none here: leave it out")
        self._pin = pin_memory
        self._free: dict[tuple[int, ...], list[npt.NDArray[np.uint8]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_free": {}}

    def take(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Lend a uint8 tensor of arbitrary content, until it and its views are gone."""
        if self._pin:
            return torch.empty(shape, dtype=torch.uint8, pin_memory=True)
        # No lock: the garbage collector may give an array back in the middle of this.
        try:
            memory = self._free.setdefault(shape, []).pop()
        except IndexError:
            memory = torch.empty(shape, dtype=torch.uint8).numpy()
        # The tensor's storage holds this view, and nothing else does: when the view goes, so
        # has every tensor on it.
        lease = memory.view()
        weakref.finalize(lease, self._give_back, shape, memory).atexit = False
        return torch.from_numpy(lease)

    def images(self, dataset: ImageDataset, numbers: torch.Tensor) -> torch.Tensor:
        """Read images (k, 3, H, W) of a dataset into a lent array; or where its cache holds them.

        Args:
            dataset: the dataset.
            numbers: the image numbers, (k,).
        """
        place = dataset.cache_device
        if place is not None and place.type != "cpu":
            return dataset.images(numbers)
        pixels = self.take((len(numbers), *dataset.source.shape))
        dataset.read_into(numbers, pixels.numpy())
        return pixels.permute(0, 3, 1, 2)

    def _give_back(self, shape: tuple[int, ...], memory: npt.NDArray[np.uint8]) -> None:
        free = self._free[shape]
        if len(free) < _MOST_FREE:  # more was held at once, and will hardly be again
            free.append(memory)


def batch_of_rounds(total: int, size: int, *, seed: int, epoch: int, number: int) -> torch.Tensor:
    """Choose the members of a batch: positions in one random order of all after another.

    Args:
        total: the number of all members.
        size: the size of a batch, which may be larger.
        seed: the seed of the orders.
        epoch: the epoch.
        number: the number of the batch in it.

    Returns:
        The members, (size,) int64 in [0, total).
    """
    positions = number * size + torch.arange(size)
    rounds = positions // total
    members = torch.empty_like(positions)
    for each in sorted(set(rounds.tolist())):
        rows = rounds == each
        members[rows] = _random_order(total, seed, epoch, each)[positions[rows] % total]
    return members


@functools.lru_cache(maxsize=4)
def _random_order(total: int, seed: int, epoch: int, number: int) -> torch.Tensor:
    """Draw a random order of all members; the next batches need the same one, so it is kept."""
    return torch.randperm(total, generator=seeded(seed, epoch, number, 1))


class BatchDataset(data.Dataset[Batch]):
    """A dataset whose items are whole batches, for a DataLoader with `batch_size=None`.

    Attributes:
        batches: the number of batches in an epoch.
    """

    batches: int

    def __init__(self) -> None:
        # In shared memory, so that worker processes see it change.
        self._epoch = torch.zeros((), dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, number: int) -> Batch:
        """Make a batch of the epoch that was set last.

        Raises:
            IndexError: there is no such batch.
            TypeError: the number is not a whole number.
        """
        return self.batch(int(self._epoch), position(number, self.batches, "batch", "an epoch has"))

    def __getitems__(self, numbers: list[int]) -> NoReturn:
        """Refuse a DataLoader that would make batches of batches.

        Raises:
            UsageError: always, with the right call.
        """
        raise UsageError(
            f"the items of {type(self).__name__} are whole batches: "
            "DataLoader(pairs, batch_size=None), or iterate over pairs.loader()"
        )

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the items, in worker processes as well."""
        self._epoch.fill_(epoch)

    def batch(self, epoch: int, number: int) -> Batch:
        """Make batch `number` of an epoch."""
        raise NotImplementedError
