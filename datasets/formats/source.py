"""`ImageSource` and `Source`: the images and factors of a stored dataset, without torch.

What every form shares is here: how images are asked for by number, and `Origin`, the record of what
made them. A form's own module says how its files are read and written.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
import json
import operator
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from threedident.causal import Draws
from threedident.columns import Column
from threedident.distributions.grid import Grid
from threedident.errors import DatasetError, UsageError
from threedident.factors import FACTOR_NAMES, factor_columns
from threedident.latents import latents_digest
from threedident.presets import Preset
from threedident.storage.manifest import Manifest, parse_manifest
from threedident.storage.shard_record import Part, parse_parts
from threedident.storage.statistics import ImageSums, statistics

UInt8 = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

_FINGERPRINTED = 64  # images

#: The errors that reading a JSON document of an unexpected shape can raise.
WRONG_SHAPE = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    OverflowError,
    RecursionError,
)


@dataclasses.dataclass(frozen=True)
class Origin:
    """The record of what made a dataset, apart from its images and latents.

    Attributes:
        manifest: the settings; None where they are not recorded.
        parts: the shards that the images were in; empty where they are not recorded.
        wanted: the number of images asked for; None where it is not recorded.
    """

    manifest: Manifest | None = None
    parts: tuple[Part, ...] = ()
    wanted: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """The record as plain data for JSON."""
        return {
            "dataset": self.manifest and self.manifest.as_dict(),
            "shards": [part.as_dict() for part in self.parts],
            "wanted": self.wanted,
        }


def parse_origin(data: Any, path: Path, count: int) -> Origin:
    """Read the origin from a JSON document; empty where an older version wrote it.

    Args:
        data: the document.
        path: the file that it came from, for errors.
        count: the number of images it is about.

    Raises:
        DatasetError: it is damaged.
    """
    try:
        manifest, shards, wanted = (data.get(name) for name in ("dataset", "shards", "wanted"))
        if wanted is not None and not (type(wanted) is int and wanted > 0):
            raise ValueError(f"the number of images wanted is {wanted!r:.100}")
        return Origin(
            None if manifest is None else parse_manifest(manifest, path),
            parse_parts(shards, count) if shards else (),
            wanted,
        )
    except WRONG_SHAPE as error:
        raise DatasetError(f"{path} is damaged: {type(error).__name__}: {error!s:.200}") from error


def fingerprint_of(
    names: Sequence[str],
    shape: tuple[int, ...],
    factors: Float32,
    read: Callable[[Sequence[int]], UInt8],
) -> str:
    """SHA-256 of factors (N, n), their names, and 64 images evenly spread.

    Args:
        names: the names of the factors.
        shape: (H, W, C), of every image.
        factors: the factors.
        read: a function that reads images by their numbers, which ascend.
    """
    digest = hashlib.sha256(json.dumps([names, shape]).encode())
    digest.update(np.ascontiguousarray(factors, "<f4").tobytes())
    count = min(len(factors), _FINGERPRINTED)
    if count:
        numbers = np.linspace(0, len(factors) - 1, count).round().astype(int).tolist()
        digest.update(read(numbers).tobytes())
    return digest.hexdigest()


class ImageSource(abc.ABC):
    """A stored dataset: its factors in memory, its images read when they are asked for.

    Reading is safe from threads and in forked processes. It can be closed, by `with`.

    Attributes:
        root: the file or folder that it was opened from; of drawn images their name.
        form: the name of its form; see `open_dataset`.
        shape: (H, W, C), of every image; C is 1 or 3.
        factor_columns: the n factors, in the order of the columns of `factors`.
        factors: (N, n) float32, the value of every factor in every image; of a discrete one the
            number of its class.
        grid: the grid of the images, where there is one of each point, in the order of the
            points' numbers; its factors that are not hidden are the columns. None elsewhere.
        sequences: the image numbers at which sequences begin, and N: (S + 1,) int64; the images
            of a sequence are in the order of time. None where they are in none.
        pairs: the image numbers of pairs that the dataset names, (P, 2) int64; None without.
    """

    root: Path
    form: str
    shape: tuple[int, ...]
    factor_columns: tuple[Column, ...]
    factors: Float32
    grid: Grid | None = None
    sequences: Int64 | None = None
    pairs: Int64 | None = None

    def __len__(self) -> int:
        return len(self.factors)

    def __repr__(self) -> str:
        size = " x ".join(map(str, (len(self), *self.shape[:2])))
        return f"{type(self).__name__}({self.root}, {size})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    @property
    def factor_names(self) -> tuple[str, ...]:
        """The names of the factors."""
        return tuple(column.name for column in self.factor_columns)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the factors, their names, and 64 images evenly spread.

        It tells datasets apart that have the same factors, whichever form they are in.
        """
        return fingerprint_of(self.factor_names, self.shape, self.factors, self.images)

    @functools.cached_property
    def pixels_fingerprint(self) -> str | None:
        """SHA-256 of some images, where the fingerprint is not of images; else None."""
        return None

    def facts(self) -> dict[str, Any] | None:
        """What `3dident info` says of its factors, pairs and sequences; None for nothing."""
        return None

    def files(self) -> list[Path]:
        """The files that it is made of."""
        return [self.root]

    @abc.abstractmethod
    def read(self, indices: Sequence[int], out: UInt8) -> None:
        """Read images into an array.

        Args:
            indices: the image numbers, in [0, N).
            out: the array to fill, (k, H, W, C), C-contiguous.

        Raises:
            IndexError: there is no such image.
            DatasetError: one cannot be read, or is not of the size of image 0.
        """

    def images(self, indices: Sequence[int]) -> UInt8:
        """Read some images, (k, H, W, C).

        Args:
            indices: the image numbers, in [0, N).

        Raises:
            IndexError: there is no such image.
            DatasetError: one cannot be read, or is not of the size of image 0.
        """
        try:
            images = np.empty((len(indices), *self.shape), np.uint8)
        except (MemoryError, ValueError) as error:
            raise DatasetError(f"{len(indices)} images of {self.shape}: {error}") from error
        self.read(indices, images)
        return images

    def image(self, index: int) -> UInt8:
        """Read one image, (H, W, C)."""
        return self.images([index])[0]

    # Of rendered datasets alone.

    @property
    def manifest(self) -> Manifest | None:
        """The settings that made it; None where they are not recorded."""
        return None

    @property
    def preset(self) -> Preset | None:
        """The generator; None where it is not recorded."""
        return self.manifest.preset if self.manifest else None

    @property
    def draws(self) -> Draws | None:
        """What was drawn of a causal model, in the images' order; None where there is none."""
        return None

    def stats(self) -> dict[str, Any] | None:
        """The statistics that `3dident stats` prints; None where they are not recorded."""
        return None

    def parts(self) -> tuple[Part, ...]:
        """The shards that the images are or were in; empty where they are not recorded."""
        return ()

    def wanted(self) -> int | None:
        """The number of images that was asked for; None where it is not recorded."""
        return None


class Source(ImageSource):
    """A stored dataset of 3DIdent or of its family: what has the scene's ten latents.

    Attributes:
        form: shards, packed, published, webdataset, parquet, or the name of a layout of the family.
        raw_latents: (N, 10) float32, as they are drawn, in [-1, 1].
        latents: (N, 10) float32, their values in the scene (m, rad).
        shape: (H, W, 3), of every image.
        origin: the record of what made it.
    """

    raw_latents: Float32
    latents: Float32
    origin: Origin
    factor_columns = tuple(Column(name, "continuous", (-1.0, 1.0)) for name in FACTOR_NAMES)

    @property
    def factors(self) -> Float32:  # type: ignore[override]
        """The raw latents."""
        return self.raw_latents

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the raw latents."""
        return latents_digest(self.raw_latents)

    @functools.cached_property
    def pixels_fingerprint(self) -> str | None:
        """SHA-256 of the raw latents and of 64 images evenly spread.

        It tells images apart that were rendered of the same latents by another preset, engine or
        quality, or at another size.
        """
        return fingerprint_of(self.factor_names, self.shape, self.factors, self.images)

    @functools.cached_property
    def draws(self) -> Draws | None:
        """What was drawn of the causal model, in the images' order; None where there is none.

        Forms that do not store it draw it again, which the record of what made them allows.
        """
        manifest = self.manifest
        if manifest is None or manifest.sampling is None:
            return None
        settings = manifest.settings
        return manifest.sampling.draw(
            range(len(self)), seed=settings["seed"], split=settings["split"]
        )

    @property
    def manifest(self) -> Manifest | None:
        """The settings that made it; None where they are not recorded."""
        return self.origin.manifest

    def stats(self) -> dict[str, Any] | None:
        """The statistics that `3dident stats` prints; None where they are not recorded."""
        parts = self.parts()
        if not parts:
            return None
        return statistics(functools.reduce(operator.add, (p.sums for p in parts), ImageSums()))

    def parts(self) -> tuple[Part, ...]:
        """The shards that the images are or were in; empty where they are not recorded."""
        return self.origin.parts

    def wanted(self) -> int | None:
        """The number of images that was asked for; None where it is not recorded."""
        return self.origin.wanted

    def given(self) -> Float32 | None:
        """The raw latents that were given to render, if all of them are kept; otherwise None."""
        latents = self.manifest.settings["latents"] if self.manifest else {"source": ""}
        if latents["source"] != "file" or latents_digest(self.raw_latents) != latents["sha256"]:
            return None
        return self.raw_latents


def check_numbers(indices: Iterable[Any], count: int) -> list[int]:
    """Return image numbers as plain ints.

    Raises:
        IndexError: one is not in [0, count).
    """
    numbers = [operator.index(i) for i in indices]
    if numbers and not 0 <= min(numbers) <= max(numbers) < count:
        wrong = next(i for i in numbers if not 0 <= i < count)
        raise IndexError(f"there is no image {wrong}: expected 0 to {count - 1}")
    return numbers


def columns_of(source: ImageSource, factors: str | Iterable[str] | None) -> tuple[int, ...]:
    """The places of factors among those of a dataset, in the order of their names, each once.

    Args:
        source: the dataset.
        factors: the names of factors, of 3DIdent also of groups; None: all.

    Raises:
        UsageError: a name is none of them, or there is none.
    """
    if factors is None:
        return tuple(range(len(source.factor_columns)))
    names = [factors] if isinstance(factors, str) else list(factors)
    if not names:
        raise UsageError("factors names no factor")
    if isinstance(source, Source):
        return factor_columns(names)
    for name in names:
        if name not in source.factor_names:
            raise UsageError(
                f"{source.root} has no factor {name!r:.100}: expected some of "
                f"{', '.join(source.factor_names)}"
            )
    return tuple(dict.fromkeys(source.factor_names.index(name) for name in names))


def count_shared_images(first: ImageSource, second: ImageSource) -> int:
    """Count the images of a dataset that another one has as well.

    Of 3DIdent by their latents; of others, whose factors many images share, all or none.

    Args:
        first: the other one.
        second: the dataset whose images are counted.
    """
    if isinstance(first, Source) and isinstance(second, Source):
        return count_shared(first.raw_latents, second.raw_latents)
    return len(second) if first.fingerprint == second.fingerprint else 0


def count_shared(latents: Float32, others: Float32) -> int:
    """Count the rows of `others` (M, n) that are rows of `latents` (N, n) as well, to the bit."""
    rows = {row.tobytes() for row in latents}
    return sum(row.tobytes() in rows for row in others)
