"""`ImageDataset` and `ThreeDIdent`: images and their factors, as a PyTorch dataset."""

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

from threedident.datasets.formats import (
    ImageSource,
    Source,
    find_form,
    open_dataset,
    open_rendered,
)
from threedident.datasets.formats.source import check_numbers, columns_of
from threedident.datasets.papers import FORMS
from threedident.errors import DatasetError, MissingExtraError, UsageError
from threedident.presets import Preset
from threedident.progress import Progress
from threedident.storage.statistics import ImageSums, statistics
from threedident.system import free_memory

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


class ImageDataset(data.Dataset[tuple[Any, Any]]):
    """A dataset of images and their factors, in any form: 3DIdent's, a grid, sprites, sequences.

    An item is `(image, factors)`. The image is a uint8 tensor (C, H, W). A transform gets a PIL
    image instead, as in torchvision. `data[10:20]` and `data[[3, 1]]` stack several items. Threads
    can read the dataset, and so can forked and spawned workers of a DataLoader.

    Attributes:
        factors: the values of the chosen factors, a (N, n) float32 tensor; of 3DIdent its raw
            latents, of a grid whole numbers from 0, of a class its number.
        factor_names: the names of the columns.
        factor_columns: the kind, range and classes of each.
        columns: the places of the columns among all factors of the dataset.
        source: the reader of the files, from `open_dataset`.
    """

    source: ImageSource
    _target: torch.Tensor

    def __init__(
        self,
        root: str | Path,
        transform: Transform | None = None,
        target_transform: Transform | None = None,
        factors: str | Iterable[str] | None = None,
        *,
        cache: str | torch.device | None = None,
    ) -> None:
        """Open a dataset in whichever form it is.

        Args:
            root: the path of a dataset in any form, as `open_dataset` takes it, or the name of
                images that are drawn, such as drawn:sprites.
            transform: a function of the PIL image.
            target_transform: a function of the factors, a float32 tensor (n,).
            factors: the names of factors, which choose and order the columns; None: all.
            cache: the place of a copy of all images: "ram", or a device such as "cuda", which
                holds them for `images`; None: no copy.

        Raises:
            DatasetError: the path is no dataset, or a damaged one.
            UsageError: an argument does not fit, or the images do not fit into the cache.
        """
        self._open(open_dataset(root), root, transform, target_transform, factors)
        self._target = self.factors
        self._keep(cache)

    def _open(
        self,
        source: ImageSource,
        root: str | Path,
        transform: Transform | None,
        target_transform: Transform | None,
        factors: str | Iterable[str] | None,
    ) -> None:
        for name, function in (("transform", transform), ("target_transform", target_transform)):
            if function is not None and not callable(function):
                raise UsageError(
                    f"{name} must be a function, or None for the tensors as they are, "
                    f"found {function!r}"
                )
        self.root = Path(root)
        self.source = source
        self.transform = transform
        self.target_transform = target_transform
        self.columns = columns_of(source, factors)
        self.factor_columns = tuple(source.factor_columns[c] for c in self.columns)
        self.factor_names = tuple(column.name for column in self.factor_columns)
        self.factors = torch.from_numpy(source.factors[:, list(self.columns)])

    def _keep(self, cache: str | torch.device | None) -> None:
        """Copy all images to the cache, if there is to be one."""
        self._stats: dict[str, Any] | None = None
        self._cached: torch.Tensor | None = None
        if cache is not None:
            self._cached = self._load("cpu" if cache == "ram" else cache)

    def __len__(self) -> int:
        return len(self.source)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._described())})"

    def _described(self) -> list[str]:
        size = " x ".join(map(str, (len(self), *self.source.shape[:2])))
        count = len(self.factor_names)
        factors = f"{count} factors" if count > 1 else f"factor {self.factor_names[0]}"
        return [str(self.root), size, *self._details(), factors]

    def _details(self) -> list[str]:
        return [FORMS.get(self.source.form, self.source.form)]

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
            from threedident.render.figures import picture

            arrays = pixels.permute(0, 2, 3, 1).cpu().numpy()
            images = [self.transform(picture(each)) for each in arrays]
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
            The images, (k, C, H, W) uint8 in channels-last memory format, on the cache's device.

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
        """Read many images, like `images`, into an array (k, H, W, C)."""
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


class ThreeDIdent(CausalVariables, ImageDataset):
    """A dataset of 3DIdent in any of its forms: shards, packed, as published, an export.

    An item is `(image, latents)`; see `ImageDataset`.

    Attributes:
        raw_latents: the raw latents, a (N, n) float32 tensor in [-1, 1]; the chosen factors'
            columns. These are its `factors`, too.
        latents: the scene's latents (m, rad), a (N, n) float32 tensor of the same columns.
        factor_names: the names of the columns.
        columns: the places of the columns among the ten factors.
        preset: the generator; None where it is not recorded (the published layout).
        source: the reader of the files, from `open_dataset`.
    """

    source: Source

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
            root: the path of a dataset in any form, as `open_dataset` takes it.
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
            UsageError: an argument does not fit, it is a dataset of other factors than the ten of
                3DIdent, or the images do not fit into the cache.
        """
        if target not in TARGETS:
            raise UsageError(f"target must be one of {', '.join(TARGETS)}, found {target!r}")
        if target == "variables" and factors is not None:
            raise UsageError("factors choose among the scene's: leave them out for the variables")
        source = open_rendered(root)
        self._open(source, root, transform, target_transform, factors)
        self.raw_latents = self.factors
        self.latents = torch.from_numpy(source.latents[:, list(self.columns)])
        self._target = getattr(self, target)
        manifest = source.manifest
        self.preset: Preset | None = manifest.preset if manifest else None
        self._keep(cache)

    def _details(self) -> list[str]:
        parts = []
        if self.model is not None:
            parts.append(f"model {self.model.name}")
        elif self.preset is not None:
            parts.append(f"preset {self.preset.name}")
        manifest = self.source.manifest
        if manifest is not None and manifest.settings.get("split"):
            parts.append(f"{manifest.settings['split']} split")
        if manifest is not None and manifest.pair_process is not None:
            parts.append("in pairs")
        return parts


def open_images(
    root: str | Path,
    factors: str | Iterable[str] | None = None,
    *,
    cache: str | torch.device | None = None,
) -> ImageDataset:
    """Open a dataset of whichever factors: a `ThreeDIdent`, or an `ImageDataset` of others.

    Args:
        root: the path of the dataset, or the name of images that are drawn.
        factors: the names of factors, which choose and order the columns; None: all.
        cache: the place of a copy of all images; see `ImageDataset`.

    Raises:
        DatasetError: the path is no dataset, or a damaged one.
        UsageError: an argument does not fit, or the images do not fit into the cache.
    """
    kind = ImageDataset if find_form(Path(root)) in FORMS else ThreeDIdent
    return kind(root, factors=factors, cache=cache)


def images_of(source: ImageSource, factors: str | Iterable[str] | None = None) -> ImageDataset:
    """Take files that are open, of any factors, as a dataset.

    Args:
        source: the files.
        factors: the names of factors, which choose and order the columns; None: all.

    Raises:
        UsageError: there is no such factor.
    """
    dataset = ImageDataset.__new__(ImageDataset)
    dataset._open(source, source.root, None, None, factors)
    dataset._target = dataset.factors
    dataset._keep(None)
    return dataset


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
    free = free_memory()
    if free is not None and size > free:
        raise MemoryError(f"{free / 1e9:.1f} GB are available")


def require_images(dataset: Any) -> ImageDataset:
    """Return a dataset that holds images: the one given, or the one at a path.

    Raises:
        UsageError: the argument is neither a dataset nor a path.
        DatasetError: the dataset holds no image.
    """
    if isinstance(dataset, str | Path):
        dataset = open_images(dataset)
    if not isinstance(dataset, ImageDataset):
        raise UsageError(f"expected a ThreeDIdent dataset or its path, found {dataset!r:.100}")
    if not len(dataset):
        raise DatasetError(f"{dataset.root} holds no image")
    return dataset


def require_rendered(dataset: Any) -> ThreeDIdent:
    """Return a dataset of 3DIdent that holds images: the one given, or the one at a path.

    Raises:
        UsageError: the argument is neither a dataset nor a path, or the dataset has other factors
            than the ten of 3DIdent.
        DatasetError: the dataset holds no image.
    """
    if isinstance(dataset, str | Path):
        dataset = ThreeDIdent(dataset)
    images = require_images(dataset)
    if not isinstance(images, ThreeDIdent):
        raise UsageError(
            f"{images.root} has the factors {', '.join(images.factor_names)}: this needs the ten "
            "latents of 3DIdent (`ThreeDIdent`)"
        )
    return images
