"""Images and latents of a dataset in any of its forms, without torch."""

from __future__ import annotations

import bisect
import collections
import contextlib
import dataclasses
import functools
import io
import math
import operator
import os
import shlex
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, cast

import h5py
import numpy as np
import numpy.typing as npt

from threedident.datasets.formats import dataset_card as card
from threedident.datasets.formats import hdf5 as packed
from threedident.datasets.formats import png_folder as published
from threedident.errors import DatasetError, UsageError
from threedident.latents import latents_digest
from threedident.render.mesh import SHAPES
from threedident.storage.atomic_files import read_json
from threedident.storage.directory import STATS, DatasetDir
from threedident.storage.manifest import MANIFEST, Manifest
from threedident.storage.shard_plan import parse_name, require_complete
from threedident.storage.shard_record import Part
from threedident.storage.shards import check_arrays, open_hdf5, read_part, safe_array
from threedident.storage.statistics import ImageSums, statistics

UInt8 = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]

_MOST_FILES = 128  # open at once: file handles are scarce


class Source(Protocol):
    """A dataset's images and latents. Reading is safe from threads and in forked processes.

    Attributes:
        root: where it lies.
        form: what the form is called.
        raw_latents, latents: (N, 10) float32.
        manifest: what made it; None where the form does not say.
        shape: (H, W, 3), of every image.
    """

    root: Path
    form: str
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

    def parts(self) -> Sequence[Part]:
        """The shards that the images are in, or were in; empty where it is not recorded."""

    def wanted(self) -> int | None:
        """How many images were asked for, where it is recorded."""

    def given(self) -> Float32 | None:
        """The raw latents that were given to render, in full; None where there are none."""

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
    try:
        images = np.empty((len(indices), *source.shape), np.uint8)
    except (MemoryError, ValueError) as error:
        raise DatasetError(f"{len(indices)} images of {source.shape}: {error}") from error
    source.read(indices, images)
    return images


def count_shared(latents: Float32, others: Float32) -> int:
    """How many rows of `others` (M, n) are rows of `latents` (N, n) as well, to the bit."""
    there = {row.tobytes() for row in latents}
    return sum(row.tobytes() in there for row in others)


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
                    f"cannot read image {index} from {place.path}: {error}; `3dident verify` "
                    "names all that is damaged"
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

    form = "shards"

    def __init__(self, root: Path) -> None:
        super().__init__()
        dataset = DatasetDir.open(root)
        self.root = root
        self.manifest: Manifest | None = dataset.manifest
        side = dataset.manifest.resolution
        self.shape = (side, side, 3)
        raw, latents = [], []
        self._shards = dataset.shards()
        require_complete(root, self._shards, _cure(dataset))
        for interval, path in self._shards.items():
            with open_hdf5(path) as file:
                check_arrays(file, path, interval.count, side)
                raw.append(file["raw_latents"][()])
                latents.append(file["latents"][()])
                self._add(_Stack.of(file, path, interval.first))
        self.raw_latents = np.concatenate(raw)
        self.latents: Float32 = np.concatenate(latents)
        self._parts: tuple[Part, ...] | None = None

    def stats(self) -> dict[str, Any] | None:
        """What `stats.json` says, or what the shards' sums give."""
        with contextlib.suppress(DatasetError):
            found = read_json(self.root / STATS)
            if _is_whole(found, len(self)):
                return found
        return DatasetDir.open(self.root).compute_stats()

    def parts(self) -> tuple[Part, ...]:
        """What the shards say of their images."""
        if self._parts is None:
            self._parts = tuple(
                read_part(path, interval) for interval, path in self._shards.items()
            )
        return self._parts

    def wanted(self) -> int | None:
        """How many images were asked for."""
        return DatasetDir.open(self.root).wanted()

    def given(self) -> Float32 | None:
        """The latents that lie beside the shards."""
        return DatasetDir.open(self.root).given_latents()


#: What to do about an import that is not whole.
IMPORT_AGAIN = "import it again from what it was imported from (`3dident convert --to shards`)"


def _cure(dataset: DatasetDir) -> str:
    """What to do about a dataset directory of which images are missing."""
    preset = dataset.manifest.preset
    if preset is None:
        return IMPORT_AGAIN
    wanted = None
    with contextlib.suppress(DatasetError):  # the command says what is wrong with the record
        wanted = dataset.wanted()
    return f"run `{extend_command(dataset.root, preset.shape, wanted)}`"


def extend_command(root: Path | str, shape: str, wanted: int | None) -> str:
    """The command that renders what a dataset directory lacks.

    Args:
        root: the directory.
        shape: of the object.
        wanted: how many images were asked for, where it is recorded.
    """
    mesh = "" if shape in SHAPES else " --shape FILE"
    count = "" if wanted else " --n N"
    return f"3dident render --extend {shlex.quote(str(root))}{mesh}{count}"


class PackedSource(_Stacks):
    """A dataset packed into one HDF5 file."""

    form = "packed"

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.root = path
        self._header = packed.read_header(path)
        self.manifest: Manifest | None = self._header.manifest
        self.raw_latents, self.latents = self._header.raw_latents, self._header.latents
        side = self._header.manifest.resolution
        self.shape = (side, side, 3)
        with open_hdf5(path) as file:
            self._add(_Stack.of(file, path, 0))

    def stats(self) -> dict[str, Any] | None:
        """What was packed with it."""
        return self._header.stats if _is_whole(self._header.stats, len(self)) else None

    def parts(self) -> tuple[Part, ...]:
        """The shards that were packed."""
        return self._header.parts

    def wanted(self) -> int | None:
        """How many images were asked for."""
        return self._header.wanted

    def given(self) -> Float32 | None:
        """The raw latents, if they are those that were given."""
        return given_among(self.manifest, self.raw_latents)


def given_among(manifest: Manifest | None, raw_latents: Float32) -> Float32 | None:
    """A dataset's raw latents, if they are all of those that were given to render it."""
    latents = manifest.settings["latents"] if manifest else {"source": ""}
    if latents["source"] != "file" or latents_digest(raw_latents) != latents["sha256"]:
        return None
    return raw_latents


def _is_whole(stats: Any, count: int) -> bool:
    """Whether recorded statistics are of so many images, and have what is asked of them."""
    if not isinstance(stats, dict) or stats.get("images") != count:
        return False
    numbers = [stats.get(name) for name in ("mean", "std_within_image")]
    return all(
        isinstance(each, list) and [type(value) for value in each] == 3 * [float]
        for each in numbers
    )


class CardSource:
    """Images and latents of a form that has a `Card` beside them, which says what made them."""

    raw_latents: Float32

    def __init__(self, root: Path, card: published.Card) -> None:
        self.root = root
        self.manifest: Manifest | None = card.manifest
        self._card = card

    def stats(self) -> dict[str, Any] | None:
        """What the shards gave that the images were in, where that is recorded."""
        return stats_of(self._card.parts)

    def parts(self) -> tuple[Part, ...]:
        """The shards that the images were in, where that is recorded."""
        return self._card.parts

    def wanted(self) -> int | None:
        """How many images were asked for, where that is recorded."""
        return self._card.wanted

    def given(self) -> Float32 | None:
        """The raw latents, if they are those that were given."""
        return given_among(self.manifest, self.raw_latents)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class PublishedSource(CardSource):
    """The published layout: `images/*.png`, `raw_latents.npy`, `latents.npy`."""

    form = "published"

    def __init__(self, root: Path) -> None:
        self.raw_latents, self.latents = published.read_latents(root)
        # What made it is known where `3dident convert` has written the layout.
        super().__init__(root, published.read_card(root, self.raw_latents, self.latents))
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


def stats_of(parts: Sequence[Part]) -> dict[str, Any] | None:
    """What `3dident stats` says of the shards that a dataset was in; None where none are known."""
    if not parts:
        return None
    return statistics(functools.reduce(operator.add, (part.sums for part in parts), ImageSums()))


def open_source(root: str | Path, split: str | None = None) -> Source:
    """A dataset in whichever form it is.

    Args:
        root: a directory of shards, a packed file, the published layout, or an export to
            WebDataset or Parquet: its folder, or the JSON file of one of its splits.
        split: train, val or test: which of an export of several.

    Raises:
        UsageError: a split of what has none.
        DatasetError: it is none of them, or damaged.
        MissingExtraError: Parquet without pyarrow.
    """
    root = Path(root)
    found = find_form(root)
    if found == "export":
        from threedident.datasets.formats.exports import open_export

        return open_export(root, split)
    if split is not None:
        raise UsageError(
            f"{root} has no splits to choose from: --split is for exports to WebDataset and Parquet"
        )
    if found == "packed":
        return PackedSource(root)
    if found == "shards":
        return ShardSource(root)
    return PublishedSource(root)


def find_form(root: Path) -> str:
    """Which form a dataset is in: shards, packed, published, or export.

    Raises:
        DatasetError: it is none of them.
    """
    if root.is_file():
        if parse_name(root.name):
            raise DatasetError(
                f"{root} is one shard of the dataset {root.parent}: open that directory"
            )
        if root.suffix == ".json" and card.is_record(root):
            return "export"
        if root.suffix in (".tar", ".parquet") and card.records(root.parent.parent):
            folder = root.parent.parent
            raise DatasetError(f"{root} is one file of an export: give its folder, {folder}")
        # A packed file whose beginning is damaged still says so by its name.
        if root.suffix.lower() in (".h5", ".hdf5") or h5py.is_hdf5(root):
            return "packed"
    elif (root / MANIFEST).is_file():
        return "shards"
    elif card.records(root):
        return "export"
    elif (root / published.RAW_LATENTS).is_file() or (root / published.IMAGES).is_dir():
        return "published"
    what = "it is none of these" if root.exists() else "there is no such file or directory"
    if root.is_file():
        what = "it is no dataset"
    raise DatasetError(
        f"cannot open {root} as a dataset: {what}. Expected a directory made by `3dident render` "
        f"({MANIFEST}), a file made by `3dident pack` (.h5), the published layout "
        f"({published.IMAGES}/, {published.RAW_LATENTS}, {published.LATENTS}), or a folder made by "
        "`3dident convert` (3dident-*.json)"
    )
