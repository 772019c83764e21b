"""Images and latents of a dataset in any of its forms, without torch."""

from __future__ import annotations

import bisect
import collections
import contextlib
import dataclasses
import io
import math
import operator
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, cast

import h5py
import numpy as np
import numpy.typing as npt

from threedident.datasets import packed, published
from threedident.errors import DatasetError
from threedident.files import read_json
from threedident.shards import check_arrays, open_hdf5, parse_name, require_complete, safe_array
from threedident.store import MANIFEST, STATS, DatasetDir, Manifest

UInt8 = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]

_MOST_FILES = 128  # open at once: file handles are scarce


class Source(Protocol):
    """A dataset's images and latents. Reading is safe from threads and in forked processes.

    Attributes:
        raw_latents, latents: (N, 10) float32.
        manifest: what made it; None for the published layout.
        shape: (H, W, 3), of every image.
    """

    raw_latents: Float32
    latents: Float32
    manifest: Manifest | None
    shape: tuple[int, ...]

    def __len__(self) -> int:
        """How many images there are."""

    def image(self, index: int) -> UInt8:
        """One image, (H, W, 3) uint8."""

    def read(self, indices: Sequence[int], out: UInt8) -> None:
        """Reads images into an array (k, H, W, 3), C-contiguous.

        Raises:
            IndexError: there is no such image.
            DatasetError: one cannot be read.
        """

    def stats(self) -> dict[str, Any] | None:
        """What `3dident stats` says, where it is recorded."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def read_images(source: Source, indices: Sequence[int]) -> UInt8:
    """Some images of a dataset, (k, H, W, 3).

    Raises:
        IndexError: there is no such image.
        DatasetError: one cannot be read, or is not of the size of image 0.
    """
    images = np.empty((len(indices), *source.shape), np.uint8)
    source.read(indices, images)
    return images


def check_numbers(indices: Iterable[Any], count: int) -> list[int]:
    """Image numbers as plain ints.

    Raises:
        IndexError: one is not in [0, count).
    """
    numbers = [operator.index(i) for i in indices]
    if numbers and not 0 <= min(numbers) <= max(numbers) < count:
        wrong = next(i for i in numbers if not 0 <= i < count)
        raise IndexError(f"there is no image {wrong}: expected 0 to {count - 1}")
    return numbers


@dataclasses.dataclass
class _Stack:
    """One file's stack of images.

    Attributes:
        path: the file.
        first: the number of its first image.
        offset: where in the file its first byte is; None where the images are compressed.
    """

    path: Path
    first: int
    offset: int | None

    @classmethod
    def of(cls, file: Any, path: Path, first: int) -> _Stack:
        return cls(path, first, file["images"].id.get_offset())


@dataclasses.dataclass
class _Handles:
    """The files that a process has open; one that is forked from it opens its own."""

    process: int = dataclasses.field(default_factory=os.getpid)
    lock: Any = dataclasses.field(default_factory=threading.Lock)
    files: collections.OrderedDict[Path, Any] = dataclasses.field(
        default_factory=collections.OrderedDict
    )


class _Stacks:
    """Images in HDF5 files.

    Plain images are read from where they lie in the file, past HDF5: no lock, no handle that a
    forked process could share. Compressed ones go through h5py, with handles of this process.
    """

    raw_latents: Float32
    shape: tuple[int, ...]

    def __init__(self) -> None:
        self._stacks: list[_Stack] = []
        self._starts: list[int] = []
        self._handles = _Handles()

    def __len__(self) -> int:
        return len(self.raw_latents)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_handles"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._handles = _Handles()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._handles.files.values():
            file.close()
        self._handles.files.clear()

    def _add(self, stack: _Stack) -> None:
        self._stacks.append(stack)
        self._starts.append(stack.first)

    def image(self, index: int) -> UInt8:
        """One image, (H, W, 3) uint8."""
        return read_images(cast(Source, self), [index])[0]

    def read(self, indices: Sequence[int], out: UInt8) -> None:
        """Reads images into an array (k, H, W, 3)."""
        size = math.prod(self.shape)
        with contextlib.ExitStack() as stack:
            files: dict[Path, io.FileIO] = {}
            for row, index in enumerate(check_numbers(indices, len(self))):
                place = self._stacks[bisect.bisect_right(self._starts, index) - 1]
                if place.offset is None:
                    self._read_compressed(place, index, out[row])
                    continue
                try:
                    file = files.get(place.path)
                    if file is None:
                        if len(files) >= _MOST_FILES:
                            stack.close()
                            files.clear()
                        file = stack.enter_context(place.path.open("rb", buffering=0))
                        files[place.path] = file
                    file.seek(place.offset + (index - place.first) * size)
                    found = _read_into(file, memoryview(out[row]).cast("B"))
                except OSError as error:
                    raise DatasetError(f"cannot read image {index}: {error}") from error
                if found < size:
                    raise DatasetError(
                        f"{place.path} is cut short at image {index}: `3dident verify` says what "
                        "is missing"
                    )

    def _read_compressed(self, place: _Stack, index: int, out: UInt8) -> None:
        handles = self._handles
        if handles.process != os.getpid():
            # Two threads may both come here; either's handles will do.
            handles = self._handles = _Handles()
        with handles.lock:
            try:
                if place.path not in handles.files:
                    if len(handles.files) >= _MOST_FILES:
                        handles.files.popitem(last=False)[1].close()
                    handles.files[place.path] = h5py.File(place.path, "r", locking=False)
                images = safe_array(handles.files[place.path], "images", place.path)
                images.read_direct(out, np.s_[index - place.first])
            except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
                raise DatasetError(
                    f"cannot read image {index} from {place.path}: {error}"
                ) from error


def _read_into(file: io.FileIO, view: memoryview) -> int:
    """Fills a view from a file as far as it goes; how many bytes that was."""
    done = 0
    while done < len(view):
        count = file.readinto(view[done:])
        if not count:
            break
        done += count
    return done


class ShardSource(_Stacks):
    """A dataset directory. Its shards must be complete from image 0 on."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        dataset = DatasetDir.open(root)
        self._root = root
        self.manifest: Manifest | None = dataset.manifest
        side = dataset.manifest.resolution
        self.shape = (side, side, 3)
        raw, latents = [], []
        shards = dataset.shards()
        require_complete(root, shards)
        for interval, path in shards.items():
            with open_hdf5(path) as file:
                check_arrays(file, path, interval.count, side)
                raw.append(file["raw_latents"][()])
                latents.append(file["latents"][()])
                self._add(_Stack.of(file, path, interval.first))
        self.raw_latents = np.concatenate(raw)
        self.latents: Float32 = np.concatenate(latents)

    def stats(self) -> dict[str, Any] | None:
        """What `stats.json` says, or what the shards' sums give."""
        with contextlib.suppress(DatasetError):
            found = read_json(self._root / STATS)
            if _is_whole(found, len(self)):
                return found
        return DatasetDir.open(self._root).compute_stats()


class PackedSource(_Stacks):
    """A dataset packed into one HDF5 file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.manifest: Manifest | None
        self.manifest, self.raw_latents, self.latents, self._recorded = packed.read_header(path)
        side = self.manifest.resolution
        self.shape = (side, side, 3)
        with open_hdf5(path) as file:
            self._add(_Stack.of(file, path, 0))

    def stats(self) -> dict[str, Any] | None:
        """What was packed with it."""
        return self._recorded if _is_whole(self._recorded, len(self)) else None


def _is_whole(stats: Any, count: int) -> bool:
    """Whether recorded statistics are of so many images, and have what is asked of them."""
    if not isinstance(stats, dict) or stats.get("images") != count:
        return False
    numbers = [stats.get(name) for name in ("mean", "std_within_image")]
    return all(
        isinstance(each, list) and [type(value) for value in each] == 3 * [float]
        for each in numbers
    )


class PublishedSource:
    """The published layout: `images/*.png`, `raw_latents.npy`, `latents.npy`."""

    manifest: Manifest | None = None

    def __init__(self, root: Path) -> None:
        self.raw_latents, self.latents = published.read_latents(root)
        self._paths = published.image_paths(root, len(self.raw_latents))
        self.shape: tuple[int, ...] = published.read_image(self._paths[0]).shape

    def __len__(self) -> int:
        return len(self._paths)

    def image(self, index: int) -> UInt8:
        """One image, (H, W, 3) uint8."""
        return read_images(self, [index])[0]

    def read(self, indices: Sequence[int], out: UInt8) -> None:
        """Reads images into an array (k, H, W, 3)."""
        for row, index in enumerate(check_numbers(indices, len(self))):
            pixels = published.read_image(self._paths[index])
            if pixels.shape != self.shape:
                raise DatasetError(
                    f"{self._paths[index]}: image {index} has shape {pixels.shape}, expected "
                    f"{self.shape} as image 0"
                )
            out[row] = pixels

    def stats(self) -> dict[str, Any] | None:
        """Nothing is recorded."""
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def open_source(root: str | Path) -> Source:
    """A dataset in whichever form it is: a directory of shards, a packed file, PNG files.

    Raises:
        DatasetError: it is none of them, or damaged.
    """
    root = Path(root)
    if root.is_file():
        if parse_name(root.name) and (root.parent / MANIFEST).is_file():
            raise DatasetError(
                f"{root} is one shard of the dataset {root.parent}: open that directory"
            )
        return PackedSource(root)
    if (root / MANIFEST).is_file():
        return ShardSource(root)
    if (root / published.RAW_LATENTS).is_file() or (root / published.IMAGES).is_dir():
        return PublishedSource(root)
    what = "there is no such file or directory" if not root.exists() else "it is none of these"
    raise DatasetError(
        f"cannot open {root} as a dataset: {what}. Expected a directory made by `3dident render` "
        f"({MANIFEST}), a file made by `3dident pack` (.h5), or the published layout "
        f"({published.IMAGES}/, {published.RAW_LATENTS}, {published.LATENTS})"
    )
