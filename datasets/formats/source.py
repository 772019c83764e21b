"""`Source`: the images and latents of a stored dataset, in whichever form, without torch.

What every form shares is here: how images are asked for by number, and `Origin`, the record of what
made them. A form's own module says how its files are read and written.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import operator
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from threedident.causal import Draws
from threedident.errors import DatasetError
from threedident.latents import latents_digest
from threedident.presets import Preset
from threedident.storage.manifest import Manifest, parse_manifest
from threedident.storage.shard_record import Part, parse_parts
from threedident.storage.statistics import ImageSums, statistics

UInt8 = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]

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


class Source(abc.ABC):
    """A stored dataset: its latents in memory, its images read when they are asked for.

    Reading is safe from threads and in forked processes. It can be closed, by `with`.

    Attributes:
        root: the file or folder that it was opened from.
        form: shards, packed, published, webdataset, parquet, or the name of a layout of the family.
        raw_latents: (N, 10) float32, as they are drawn, in [-1, 1].
        latents: (N, 10) float32, their values in the scene (m, rad).
        shape: (H, W, 3), of every image.
        origin: the record of what made it.
    """

    root: Path
    form: str
    raw_latents: Float32
    latents: Float32
    shape: tuple[int, ...]
    origin: Origin

    def __len__(self) -> int:
        return len(self.raw_latents)

    def __repr__(self) -> str:
        height, width, _ = self.shape
        return f"{type(self).__name__}({self.root}, {len(self)} x {height} x {width})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

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

    @abc.abstractmethod
    def read(self, indices: Sequence[int], out: UInt8) -> None:
        """Read images into an array.

        Args:
            indices: the image numbers, in [0, N).
            out: the array to fill, (k, H, W, 3), C-contiguous.

        Raises:
            IndexError: there is no such image.
            DatasetError: one cannot be read, or is not of the size of image 0.
        """

    def images(self, indices: Sequence[int]) -> UInt8:
        """Read some images, (k, H, W, 3).

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
        """Read one image, (H, W, 3)."""
        return self.images([index])[0]

    @property
    def manifest(self) -> Manifest | None:
        """The settings that made it; None where they are not recorded."""
        return self.origin.manifest

    @property
    def preset(self) -> Preset | None:
        """The generator; None where it is not recorded."""
        return self.manifest.preset if self.manifest else None

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


def count_shared(latents: Float32, others: Float32) -> int:
    """Count the rows of `others` (M, n) that are rows of `latents` (N, n) as well, to the bit."""
    rows = {row.tobytes() for row in latents}
    return sum(row.tobytes() in rows for row in others)
