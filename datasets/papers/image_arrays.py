"""Images that lie in files of other people's: plain at an offset, or in a compressed stream.

`ArraySource` is a dataset of such images; nothing is extracted to disk.
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import dataclasses
import gzip
import itertools
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from threedident.columns import Column
from threedident.datasets.formats.source import Float32, ImageSource, UInt8, check_numbers
from threedident.distributions.grid import Grid
from threedident.errors import DatasetError
from threedident.progress import Progress
from threedident.system import free_memory

#: Bytes of images that are unpacked at once, and that are kept of what was unpacked last.
PIECE, WINDOW = 1 << 23, 1 << 26
_SHARE = 0.5  # of the memory that is free: no more is filled with unpacked images
_NEAR = 4096  # images that are skipped to get to a later stretch, at most


class ImageArray(Protocol):
    """Images that can be read by number.

    Attributes:
        shape: (N, H, W, C).
    """

    shape: tuple[int, ...]

    def read(self, numbers: Sequence[int], out: UInt8) -> None:
        """Read images into an array (k, H, W, C)."""


class PlainImages:
    """Images that lie uncompressed in a file, each at a fixed distance from the one before.

    Args:
        path: the file.
        offset: the place of the first byte of image 0.
        shape: (N, H, W, C).
        stride: the bytes from one image to the next; None: an image's own.
    """

    def __init__(
        self, path: Path, offset: int, shape: tuple[int, ...], stride: int | None = None
    ) -> None:
        self.path = path
        self.shape = shape
        self._offset = offset
        self._stride = stride or math.prod(shape[1:])

    def read(self, numbers: Sequence[int], out: UInt8) -> None:
        """Read images into an array (k, H, W, C).

        Raises:
            DatasetError: the file is cut short or cannot be read.
        """
        try:
            with self.path.open("rb", buffering=0) as file:
                for row, number in enumerate(numbers):
                    file.seek(self._offset + number * self._stride)
                    view = memoryview(out[row]).cast("B")
                    done = 0
                    while done < len(view):
                        count = file.readinto(view[done:])
                        if not count:
                            raise DatasetError(f"{self.path} is cut short at image {number}")
                        done += count
        except OSError as error:
            raise DatasetError(f"cannot read {self.path}: {error.strerror or error}") from error


class _Stream:
    """The images of a stream that a process has unpacked; one that is forked begins its own."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = threading.Lock()
        self.held: UInt8 | None = None
        self.rewind()

    def rewind(self) -> None:
        """Start again at image 0."""
        self.source: Iterator[UInt8] | None = None
        self.window: collections.deque[UInt8] = collections.deque()
        self.starts: list[int] = []  # the numbers of the first images of the window's pieces
        self.end = 0  # the number of the first image that is not unpacked yet

    @property
    def begin(self) -> int:
        """The number of the first image that can be had without starting again."""
        return self.starts[0] if self.starts else 0

    def is_next(self, numbers: Sequence[int]) -> bool:
        """Whether images are a stretch that comes next, or begins with image 0."""
        first, last = min(numbers), max(numbers)
        if last - first + 1 != len(numbers):
            return False
        return first == 0 or self.begin <= first <= self.end + _NEAR

    def is_onward(self, numbers: Sequence[int]) -> bool:
        """Whether one pass over what is left, or from image 0 on, meets the images in order."""
        onward = all(a <= b for a, b in itertools.pairwise(numbers))
        return onward and (numbers[0] == 0 or numbers[0] >= self.begin)


class StreamedImages:
    """Images that can only be unpacked one after another, from the first on.

    Stretches that are read in order are streamed. What is read out of order is unpacked into memory
    as a whole, once in a process, if that takes no more than half of the memory that is free.

    Args:
        path: the file, for messages.
        shape: (N, H, W, C).
        pieces: a function that unpacks the images from the first on, (k, H, W, C) at a time.
        cure: the way out where they do not fit into memory; the end of an error's text.
    """

    def __init__(
        self,
        path: Path,
        shape: tuple[int, ...],
        pieces: Callable[[], Iterator[UInt8]],
        cure: str,
    ) -> None:
        self.path = path
        self.shape = shape
        self._pieces = pieces
        self._cure = cure
        self._stream = _Stream()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_stream"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._stream = _Stream()

    @property
    def size(self) -> int:
        """The bytes of all images, unpacked."""
        return math.prod(self.shape)

    def read(self, numbers: Sequence[int], out: UInt8) -> None:
        """Read images into an array (k, H, W, C).

        Raises:
            DatasetError: the file is damaged; or the numbers are out of order, and the images do
                not fit into memory.
        """
        if not numbers:
            return
        stream = self._stream
        if stream.process != os.getpid() and stream.held is None:
            # It shares its parent's place in the file. Two threads may both come here; either's
            # stream will do.
            stream = self._stream = _Stream()
        with stream.lock:
            if stream.held is None and not stream.is_next(numbers):
                if self._fits():
                    stream.held = self._load(stream)
                elif not stream.is_onward(numbers):
                    self._refuse()
            if stream.held is None:
                self._read_on(stream, numbers, out)
                return
        np.take(stream.held, numbers, axis=0, out=out, mode="clip")  # they are checked

    def _read_on(self, stream: _Stream, numbers: Sequence[int], out: UInt8) -> None:
        if min(numbers) < stream.begin:
            stream.rewind()
        for row in sorted(range(len(numbers)), key=lambda row: numbers[row]):
            number = numbers[row]
            while number >= stream.end:
                self._unpack_piece(stream)
            piece = bisect.bisect_right(stream.starts, number) - 1
            out[row] = stream.window[piece][number - stream.starts[piece]]

    def _unpack_piece(self, stream: _Stream) -> None:
        """Unpack the next piece; those of long ago are forgotten."""
        if stream.source is None:
            stream.source = self._pieces()
        try:
            piece = next(stream.source, None)
            if piece is None:
                raise DatasetError(f"{self.path} is cut short at image {stream.end}")
        except Exception:
            stream.rewind()
            raise
        stream.window.append(piece)
        stream.starts.append(stream.end)
        stream.end += len(piece)
        while len(stream.window) > 1 and sum(each.nbytes for each in stream.window) > WINDOW:
            stream.window.popleft()
            del stream.starts[0]

    def _fits(self) -> bool:
        free = free_memory()
        return free is None or self.size <= _SHARE * free

    def _load(self, stream: _Stream) -> UInt8:
        stream.rewind()
        done = 0
        try:
            held = np.empty(self.shape, np.uint8)
        except (MemoryError, ValueError) as error:
            raise DatasetError(f"{self.path}: {error}. {self._cure}") from error
        with Progress(f"unpacking {self.path.name}", len(held)) as progress:
            for piece in self._pieces():
                held[done : done + len(piece)] = piece
                done += len(piece)
                progress.advance(len(piece))
        if done < len(held):
            raise DatasetError(f"{self.path} is cut short at image {done}")
        return held

    def _refuse(self) -> None:
        raise DatasetError(
            f"the images of {self.path} are compressed as one stream: out of order they are read "
            f"from memory, where they need {self.size / 1e9:.3g} GB, and half of the "
            f"{(free_memory() or 0) / 1e9:.3g} GB that are free may be used. {self._cure}"
        )


class HeldImages:
    """Images that are made at the first reading, once in a process, and stay in memory.

    Args:
        path: the file or folder, for messages.
        shape: (N, H, W, C).
        load: a function that returns them.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], load: Callable[[], UInt8]) -> None:
        self.path = path
        self.shape = shape
        self._load = load
        self._stream = _Stream()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_stream"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._stream = _Stream()

    def read(self, numbers: Sequence[int], out: UInt8) -> None:
        """Read images into an array (k, H, W, C).

        Raises:
            DatasetError: the files are damaged, or the images do not fit into memory.
        """
        stream = self._stream
        if stream.process != os.getpid() and stream.held is None:
            stream = self._stream = _Stream()  # the lock may be its parent's
        with stream.lock:
            if stream.held is None:
                check_memory(self.path, math.prod(self.shape))
                stream.held = self._load()
        np.take(stream.held, numbers, axis=0, out=out, mode="clip")  # they are checked


class ArraySource(ImageSource):
    """A dataset whose images are those of one `ImageArray`.

    Args:
        root: the file or folder that it was opened from.
        form: the name of its form.
        images: the images.
        grid: the grid; image i is its point i. None where there is none.
        columns: the factors; None: those of the grid that are not hidden.
        factors: (N, n) float32; None: the points of the grid.
        rows: the place of each image in the array, (N,); None: they are in order.
        files: the files.
        facts: what `3dident info` says of it.
    """

    def __init__(
        self,
        root: Path,
        form: str,
        images: ImageArray,
        *,
        grid: Grid | None = None,
        columns: Sequence[Column] | None = None,
        factors: Float32 | None = None,
        rows: Any = None,
        files: Sequence[Path] = (),
        facts: dict[str, Any] | None = None,
    ) -> None:
        self.root = root
        self.form = form
        self.shape = tuple(images.shape[1:])
        self.grid = grid
        if grid is not None:
            shown = [grid.columns[k] for k in grid.shown]
            self.factor_columns = tuple(columns or shown)
            if factors is None:
                factors = grid_factors(grid)
        else:
            self.factor_columns = tuple(columns or ())
        assert factors is not None
        self.factors = factors
        self._images = images
        self._rows = None if rows is None else np.asarray(rows, np.int64)
        self._files = list(files) or [root]
        self._facts = facts

    def read(self, indices: Sequence[int], out: UInt8) -> None:
        """Read images into an array (k, H, W, C)."""
        numbers = check_numbers(indices, len(self))
        if self._rows is not None:
            numbers = self._rows[numbers].tolist()
        self._images.read(numbers, out)

    def files(self) -> list[Path]:
        """The files that it is made of."""
        return self._files

    def facts(self) -> dict[str, Any] | None:
        """What `3dident info` says of it."""
        return self._facts


def grid_factors(grid: Grid) -> Float32:
    """The factors of a grid that are not hidden, at all of its points: (N, n) float32."""
    points = grid.points(np.arange(len(grid), dtype=np.int64))
    return np.ascontiguousarray(points[:, list(grid.shown)], np.float32)


def varying(grid: Grid) -> Grid:
    """The grid of the factors that have more than one value; all, where none that shows has."""
    kept = [k for k, size in enumerate(grid.sizes) if size > 1]
    if not any(k in grid.shown for k in kept):
        return grid
    return grid.sub(kept)


@dataclasses.dataclass(frozen=True)
class LabelGrid:
    """The grid that the labels of images fill, each of its points once.

    Attributes:
        sizes: the number of values of each factor.
        values: the values of each factor, in ascending order.
        rows: the place of each point's image among the labels, (N,).
    """

    sizes: tuple[int, ...]
    values: tuple[npt.NDArray[Any], ...]
    rows: npt.NDArray[np.int64]


def label_grid(labels: npt.NDArray[Any], names: Sequence[str], where: str) -> LabelGrid:
    """Find the grid that labels (N, n) fill.

    Args:
        labels: the labels.
        names: the names of the n factors, for messages.
        where: the file, for messages.

    Raises:
        DatasetError: a combination of values is missing, or there twice.
    """
    if not np.isfinite(labels).all():
        raise DatasetError(f"{where}: a label is not finite")
    pairs = [np.unique(column, return_inverse=True) for column in labels.T]
    sizes = tuple(len(values) for values, _ in pairs)
    said = ", ".join(f"{name} {size}" for name, size in zip(names, sizes, strict=True))
    if math.prod(sizes) != len(labels):
        raise DatasetError(
            f"{where}: expected one image of each combination of the factors' values ({said}: "
            f"{math.prod(sizes):,}), found {len(labels):,} images"
        )
    numbers = np.zeros(len(labels), np.int64)
    for (_, places), size in zip(pairs, sizes, strict=True):
        numbers = numbers * size + places
    rows = np.full(len(labels), -1, np.int64)
    rows[numbers] = np.arange(len(labels))
    if (rows < 0).any():
        lacking = int(np.argmin(rows))
        point = [int(i) for i in np.unravel_index(lacking, sizes)]
        raise DatasetError(
            f"{where}: expected one image of each combination of the factors' values ({said}), "
            f"but there is none of {dict(zip(names, point, strict=True))}"
        )
    return LabelGrid(sizes, tuple(values for values, _ in pairs), rows)


def open_file(path: Path) -> IO[bytes]:
    """Open a file to read it, unpacked if its name ends in .gz."""
    return cast(IO[bytes], gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


@contextlib.contextmanager
def explaining(path: Path, *errors: type[Exception]) -> Iterator[None]:
    """Turn what the reading of a damaged file raises into a DatasetError.

    Args:
        path: the file.
        errors: the kinds of errors, beside those of the system and of memory.
    """
    kinds: tuple[type[Exception], ...] = (
        OSError,
        EOFError,
        ValueError,
        MemoryError,
        OverflowError,
        *errors,
    )
    try:
        yield
    except FileNotFoundError:
        raise DatasetError(f"{path}: there is no such file") from None
    except Exception as error:
        if not isinstance(error, kinds):
            raise
        text = " ".join(str(error).split()) or type(error).__name__
        raise DatasetError(f"cannot read {path}: {text:.200}") from error


def check_memory(path: Path, size: int) -> None:
    """Check that images fit into half of the memory that is free.

    Args:
        path: the file, for the message.
        size: the bytes.

    Raises:
        DatasetError: they do not.
    """
    free = free_memory()
    if free is not None and size > _SHARE * free:
        raise DatasetError(
            f"the images of {path} need {size / 1e9:.3g} GB of memory, and half of the "
            f"{free / 1e9:.3g} GB that are free may be used: free some, or take another machine"
        )


def check_image_shape(
    path: Path, name: str, shape: tuple[int, ...], channels: Sequence[int]
) -> None:
    """Check the declared shape (N, H, W, C) of images.

    Args:
        path: the file, for the message.
        name: the array's name, for the message.
        shape: the shape.
        channels: the numbers of channels that may be.

    Raises:
        DatasetError: it is none.
    """
    fits = len(shape) == 4 and shape[0] > 0 and shape[3] in channels
    if not fits or not all(1 <= side <= 4096 for side in shape[1:3]):
        many = " or ".join(map(str, channels))
        raise DatasetError(
            f"{path}: {name} has the shape {tuple(shape)}, expected (N, height, width, {many}) "
            "with sides of 1 to 4,096 pixels"
        )
