"""`ThreeDIdent`: the images and latents of a dataset, as a PyTorch dataset."""

from __future__ import annotations

import concurrent.futures
import math
import operator
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.datasets.formats import Source, open_rendered
from threedident.datasets.formats.source import check_numbers
from threedident.errors import DatasetError, MissingExtraError, UsageError
from threedident.factors import FACTOR_NAMES, factor_columns
from threedident.presets import Preset
from threedident.progress import Progress
from threedident.storage.statistics import ImageSums, statistics

try:
    import torch
    from torch.utils import data
except ImportError as error:
    raise MissingExtraError("torch", "train", "loading a dataset in PyTorch") from error

from threedident.datasets.causal_variables import CausalVariables
from threedident.encoders.inputs import Normalize

Transform = Callable[[Any], Any]

TARGETS = ("raw_latents", "latents", "variables")
_SAMPLED = 4096  # images whose statistics stand for all, where none are recorded
_READ_AT_ONCE = 64


class ThreeDIdent(CausalVariables, data.Dataset[tuple[Any, Any]]):
    """A dataset in any of its forms: shards, a packed file, the published layout, an export.

    An item is `(image, latents)`. The image is a uint8 tensor (3, H, W). A transform gets a PIL
    image instead, as in torchvision. `data[10:20]` and `data[[3, 1]]` stack several items. Threads
    can read the dataset, and so can forked and spawned workers of a DataLoader.

    Attributes:
        raw_latents: the raw latents, a (N, n) float32 tensor in [-1, 1]; the chosen factors'
            columns.
        latents: the scene's latents (m, rad), a (N, n) float32 tensor of the same columns.
        factor_names: the names of the columns.
        columns: the places of the columns among the ten factors.
        preset: the generator; None where it is not recorded (the published layout).
        source: the reader of the files, from `open_rendered`.
    """

    def __init__(
        self,
        root: str | Path,
        transform: Transform | None = None,
        target_transform: Transform | None = None,
        factors: str | Iterable[str] | None = None,
        *,
        target: str = "raw_latents",
        cache: str | torch.device | None = None,
    ) -> None:
        """Open a dataset in whichever form it is.

        Args:
            root: the path of a dataset in any form, as `open_rendered` takes it.
            transform: a function of the PIL image.
            target_transform: a function of the latents, a float32 tensor (n,).
            factors: the names of factors or groups, which choose and order the latents' columns;
                None: all ten.
            target: the latents that an item holds: "raw_latents", "latents", or of a causal model
                its "variables", all of them.
            cache: the place of a copy of all images: "ram", or a device such as "cuda", which
                holds them for `images`; None: no copy.

        Raises:
            DatasetError: the path is no dataset, or a damaged one.
            UsageError: an argument does not fit, or the images do not fit into the cache.
        """
        if target not in TARGETS:
            raise UsageError(f"target must be one of {', '.join(TARGETS)}, found {target!r}")
        self.root = Path(root)
        self.transform = transform
        self.target_transform = target_transform
        names = FACTOR_NAMES if factors is None else factors
        self.columns = factor_columns([names] if isinstance(names, str) else names)
        if not self.columns:
            raise UsageError("factors names no factor")
        self.factor_names = tuple(FACTOR_NAMES[c] for c in self.columns)
        self.source: Source = open_rendered(root)
        columns = list(self.columns)
        self.raw_latents = torch.from_numpy(self.source.raw_latents[:, columns])
        self.latents = torch.from_numpy(self.source.latents[:, columns])
        if target == "variables" and factors is not None:
            raise UsageError("factors choose among the scene's: leave them out for the variables")
        self._target = getattr(self, target)
        manifest = self.source.manifest
        self.preset: Preset | None = manifest.preset if manifest else None
        self._stats: dict[str, Any] | None = None
        self._cached: torch.Tensor | None = None
        if cache is not None:
            self._cached = self._load("cpu" if cache == "ram" else cache)

    def __len__(self) -> int:
        return len(self.source)

    def __repr__(self) -> str:
        height, width, _ = self.source.shape
        parts = [str(self.root), f"{len(self)} x {height} x {width}"]
        if self.model is not None:
            parts.append(f"model {self.model.name}")
        elif self.preset is not None:
            parts.append(f"preset {self.preset.name}")
        manifest = self.source.manifest
        if manifest is not None and manifest.settings.get("split"):
            parts.append(f"{manifest.settings['split']} split")
        if manifest is not None and manifest.pair_process is not None:
            parts.append("in pairs")
        count = len(self.factor_names)
        parts.append(f"{count} factors" if count > 1 else f"factor {self.factor_names[0]}")
        return f"{type(self).__name__}({', '.join(parts)})"

    def __getitem__(
        self, index: int | slice | Sequence[int] | npt.NDArray[Any] | torch.Tensor
    ) -> tuple[Any, Any]:
        """The image and the latents of one number, or those of several, stacked.

        Several are a slice, a list, an array of numbers, or a mask. Numbers below 0 count from the
        end. Results of transforms are stacked if they are tensors, and come as lists otherwise.

        Raises:
            IndexError: there is no such image.
            TypeError: the index is of another kind.
            DatasetError: an image cannot be read.
        """
        numbers = self._positions(index)
        if numbers is None:
            number = position(index, len(self), "image", f"{self.root} holds")
            images, latents = self._transformed([number])
            return images[0], latents[0]
        images, latents = self._transformed(numbers)
        return _stacked(images), _stacked(latents)

    def _transformed(self, numbers: list[int]) -> tuple[Any, Any]:
        """The images and the latents: one tensor each, or a list if there is a transform."""
        pixels = self.images(numbers)
        images: Any = pixels
        if self.transform is not None:
            from PIL import Image

            arrays = pixels.permute(0, 2, 3, 1).cpu().numpy()
            images = [self.transform(Image.fromarray(each)) for each in arrays]
        latents: Any = self._target[numbers]  # a copy, the caller's own to change as it likes
        if self.target_transform is not None:
            latents = [self.target_transform(each) for each in latents]
        return images, latents

    def _positions(self, index: Any) -> list[int] | None:
        """The image numbers of a slice, a list or an array; None for anything else."""
        if isinstance(index, slice):
            return list(range(len(self))[index])
        if isinstance(index, torch.Tensor | np.ndarray) and index.ndim == 1:
            if index.dtype in (torch.bool, np.bool_):
                if len(index) != len(self):
                    raise IndexError(
                        f"a mask of {len(index)} values: {self.root} holds {len(self)} images"
                    )
                return [number for number, chosen in enumerate(index.tolist()) if chosen]
            index = index.tolist()
        if not isinstance(index, list | range):
            return None
        return [position(each, len(self), "image", f"{self.root} holds") for each in index]

    def images(self, indices: Sequence[int] | torch.Tensor) -> torch.Tensor:
        """Read many images at once, without transforms.

        Args:
            indices: the image numbers, in [0, N).

        Returns:
            The images, (k, 3, H, W) uint8 in channels-last memory format, on the cache's device.

        Raises:
            IndexError: there is no such image.
            DatasetError: one cannot be read.
        """
        if self._cached is not None:
            return self._cached[self._rows(indices, self._cached.device)].permute(0, 3, 1, 2)
        out = np.empty((len(indices), *self.source.shape), np.uint8)
        self.read_into(indices, out)
        return torch.from_numpy(out).permute(0, 3, 1, 2)

    def read_into(self, indices: Sequence[int] | torch.Tensor, out: npt.NDArray[np.uint8]) -> None:
        """Read many images, like `images`, into an array (k, H, W, 3)."""
        if self._cached is None:
            self.source.read(_plain(indices), out)
        elif self._cached.device.type == "cpu":
            rows = self._rows(indices, self._cached.device)
            torch.index_select(self._cached, 0, rows, out=torch.from_numpy(out))
        else:
            torch.from_numpy(out).copy_(self.images(indices).permute(0, 2, 3, 1))

    def _rows(self, indices: Sequence[int] | torch.Tensor, device: torch.device) -> torch.Tensor:
        numbers = check_numbers(_plain(indices), len(self))
        return torch.tensor(numbers, dtype=torch.int64, device=device)

    @property
    def cache_device(self) -> torch.device | None:
        """The device that holds the images; None where they are read from the disk."""
        return None if self._cached is None else self._cached.device

    @property
    def mean(self) -> tuple[float, ...]:
        """The mean of each channel (R, G, B) over all pixels, in [0, 1]."""
        return tuple(self._statistics()["mean"])

    @property
    def std(self) -> tuple[float, ...]:
        """The standard deviation of each channel within an image, averaged over the images.

        The published statistics are defined in the same way. `3dident stats` prints a dataset's
        other figures.
        """
        return tuple(self._statistics()["std_within_image"])

    def normalization(self) -> Normalize:
        """Make the module that normalises this dataset's uint8 images."""
        return Normalize(self.mean, self.std)

    def _statistics(self) -> dict[str, Any]:
        """The recorded statistics; if none are, those of up to 4,096 images, evenly spread."""
        if self._stats is None:
            self._stats = self.source.stats() or self._measure()
        return self._stats

    def _measure(self) -> dict[str, Any]:
        count = min(len(self), _SAMPLED)
        numbers = np.linspace(0, len(self) - 1, count).round().astype(int).tolist()
        sums = ImageSums()
        for start in range(0, count, _READ_AT_ONCE):
            images = self.images(numbers[start : start + _READ_AT_ONCE]).permute(0, 2, 3, 1)
            sums = sums + ImageSums.of(images.cpu().numpy(), np.full(len(images), np.nan))
        return statistics(sums)

    def _load(self, place: str | torch.device) -> torch.Tensor:
        shape = (len(self), *self.source.shape)
        size = math.prod(shape)
        try:
            device = torch.device(place)
        except RuntimeError as error:  # whose text lists every device of torch's
            raise UsageError(
                f'cache must be "ram" or a device of torch such as "cuda", found {place!r}'
            ) from error
        try:
            if device.type == "cpu":
                _check_memory(size)
            cached = torch.empty(shape, dtype=torch.uint8, device=device)
        except (RuntimeError, MemoryError, AssertionError) as error:
            needed = f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
            raise UsageError(
                f"{len(self)} images need {needed} on {place}, which cannot be had "
                f"({str(error).splitlines()[0]}): leave out cache, or choose another"
            ) from error
        starts = range(0, len(self), _READ_AT_ONCE)

        def load(start: int) -> int:
            numbers = range(start, min(start + _READ_AT_ONCE, len(self)))
            block = cached[start : numbers.stop]
            if device.type == "cpu":
                self.source.read(numbers, block.numpy())
            else:
                pixels = np.empty((len(numbers), *self.source.shape), np.uint8)
                self.source.read(numbers, pixels)
                block.copy_(torch.from_numpy(pixels))
            return len(numbers)

        threads = min(8, os.cpu_count() or 1)
        with (
            Progress(f"reading into {device}", len(self)) as progress,
            concurrent.futures.ThreadPoolExecutor(threads) as executor,
        ):
            for done in executor.map(load, starts):
                progress.advance(done)
        return cached


def position(index: Any, count: int, what: str, owner: str) -> int:
    """The position in [0, count) of an index that may count from the end.

    Args:
        index: the index, as a user gives it.
        count: the number of positions.
        what: the noun for what is indexed, for the messages.
        owner: the owner of the positions and its verb, for the messages.

    Raises:
        IndexError: there is no such position.
        TypeError: the index is no whole number.
    """
    try:
        if isinstance(index, bool):
            raise TypeError
        number = operator.index(index)
    except TypeError:
        text = " ".join(repr(index).split())
        raise TypeError(f"there is no {what} {text:.50}: expected a whole number") from None
    if not -count <= number < count:
        positions = f"{owner} {count}" + (f", 0 to {count - 1}" if count else "")
        raise IndexError(f"there is no {what} {number}: {positions}")
    return number % count


def _stacked(values: Any) -> Any:
    """Stack a list of tensors of one shape; return anything else as it is."""
    if not isinstance(values, list) or not all(isinstance(v, torch.Tensor) for v in values):
        return values
    return torch.stack(values) if len({value.shape for value in values}) == 1 else values


def _plain(indices: Sequence[int] | torch.Tensor) -> Sequence[int]:
    return indices.tolist() if isinstance(indices, torch.Tensor) else indices


def _check_memory(size: int) -> None:
    """Raise MemoryError for more bytes than are free, where the system tells how many are."""
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        with Path("/proc/meminfo").open() as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    free = int(line.split()[1]) * 1024
    except (OSError, ValueError, AttributeError):
        return
    if size > free:
        raise MemoryError(f"{free / 1e9:.1f} GB are available")


def require_images(dataset: Any) -> ThreeDIdent:
    """Return a dataset that holds images: the one given, or the one at a path.

    Raises:
        UsageError: the argument is neither a dataset nor a path.
        DatasetError: the dataset holds no image.
    """
    if isinstance(dataset, str | Path):
        dataset = ThreeDIdent(dataset)
    if not isinstance(dataset, ThreeDIdent):
        raise UsageError(f"expected a ThreeDIdent dataset or its path, found {dataset!r:.100}")
    if not len(dataset):
        raise DatasetError(f"{dataset.root} holds no image")
    return dataset
