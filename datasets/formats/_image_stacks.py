"""Reading images out of HDF5 files: the base of the forms that keep them there."""

from __future__ import annotations

import bisect
import collections
import contextlib
import dataclasses
import io
import math
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np

from threedident.datasets.formats.source import ImageSource, UInt8, check_numbers
from threedident.errors import DatasetError
from threedident.storage.shards import safe_array

_MOST_FILES = 128  # open at once: file handles are scarce


@dataclasses.dataclass
class ImageStack:
    """The stack of images in one file.

    Attributes:
        path: the file.
        first: the number of its first image.
        offset: the place of its first byte in the file; None where the images are compressed.
    """

    path: Path
    first: int
    offset: int | None

    @classmethod
    def of(cls, file: Any, path: Path, first: int) -> ImageStack:
        """The stack of an open file."""
        return cls(path, first, file["images"].id.get_offset())


@dataclasses.dataclass
class _Handles:
    """The files that a process has open; one that is forked from it opens its own."""

    process: int = dataclasses.field(default_factory=os.getpid)
    lock: Any = dataclasses.field(default_factory=threading.Lock)
    files: collections.OrderedDict[Path, Any] = dataclasses.field(
        default_factory=collections.OrderedDict
    )


class StackSource(ImageSource):
    """A dataset whose images lie in HDF5 files.

    Plain images are read from where they lie in the file, past HDF5: no lock, no handle that a
    forked process could share. Compressed ones go through h5py, with handles of this process.
    """

    def __init__(self) -> None:
        self._stacks: list[ImageStack] = []
        self._starts: list[int] = []
        self._handles = _Handles()

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

    def _add(self, stack: ImageStack) -> None:
        self._stacks.append(stack)
        self._starts.append(stack.first)

    def read(self, indices: Sequence[int], out: UInt8) -> None:
        """Read images into an array (k, H, W, C)."""
        size = math.prod(self.shape)
        with contextlib.ExitStack() as opened:
            files: dict[Path, io.FileIO] = {}
            for row, index in enumerate(check_numbers(indices, len(self))):
                stack = self._stacks[bisect.bisect_right(self._starts, index) - 1]
                if stack.offset is None:
                    self._read_compressed(stack, index, out[row])
                    continue
                try:
                    file = files.get(stack.path)
                    if file is None:
                        if len(files) >= _MOST_FILES:
                            opened.close()
                            files.clear()
                        file = opened.enter_context(stack.path.open("rb", buffering=0))
                        files[stack.path] = file
                    file.seek(stack.offset + (index - stack.first) * size)
                    count = _fill(memoryview(out[row]).cast("B"), file)
                except OSError as error:
                    raise DatasetError(f"cannot read image {index}: {error}") from error
                if count < size:
                    raise DatasetError(
                        f"{stack.path} is cut short at image {index}: `3dident verify` says what "
                        "is missing"
                    )

    def _read_compressed(self, stack: ImageStack, index: int, out: UInt8) -> None:
        handles = self._handles
        if handles.process != os.getpid():
            # Two threads may both come here; either's handles will do.
            handles = self._handles = _Handles()
        with handles.lock:
            try:
                if stack.path not in handles.files:
                    if len(handles.files) >= _MOST_FILES:
                        handles.files.popitem(last=False)[1].close()
                    handles.files[stack.path] = h5py.File(stack.path, "r", locking=False)
                images = safe_array(handles.files[stack.path], "images", stack.path)
                images.read_direct(out, np.s_[index - stack.first])
            except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
                raise DatasetError(
                    f"cannot read image {index} from {stack.path}: {error}; `3dident verify` "
                    "names all that is damaged"
                ) from error


def _fill(view: memoryview, file: io.FileIO) -> int:
    """Fill a view from a file as far as it goes; return the number of bytes read."""
    done = 0
    while done < len(view):
        count = file.readinto(view[done:])
        if not count:
            break
        done += count
    return done
