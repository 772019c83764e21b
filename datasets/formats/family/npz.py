"""Arrays in .npz files, without pickle: nothing that a header declares is believed unchecked."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.errors import DatasetError

#: What the reading of a damaged archive raises.
_DAMAGE = (
    *(OSError, ValueError, RuntimeError, NotImplementedError, EOFError, struct.error, zlib.error),
    tokenize.TokenError,  # of headers as old versions wrote them
    zipfile.BadZipFile,
    MemoryError,
)
_LOCAL = struct.Struct("<4s22xHH")  # the header before a member: magic, length of name, of extras
_PIECE = 2**24  # bytes that are unpacked at once
_MOST = 1100  # a byte of deflate stands for at most 1,032


@dataclasses.dataclass(frozen=True)
class Member:
    """An array of an archive.

    Attributes:
        name: its name.
        shape: its shape.
        dtype: its type.
        offset: the place of its first byte in the file; None where it is compressed.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int | None

    @property
    def size(self) -> int:
        """Its bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


class Npz:
    """The arrays of an .npz file.

    Attributes:
        path: the file.
        members: the arrays, by name.
    """

    def __init__(self, path: Path, ignored: Collection[str] = ()) -> None:
        """Read the headers.

        Args:
            path: the file.
            ignored: the names of arrays that are never looked at.

        Raises:
            DatasetError: the file is no such archive, is damaged, or holds Python objects.
        """
        self.path = path
        self.members: dict[str, Member] = {}
        with self._explaining(), zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                name = info.filename.removesuffix(".npy")
                if name != info.filename and name not in ignored:
                    member = self._read_header(archive, info)
                    self.members[member.name] = member

    def member(self, name: str) -> Member:
        """An array's header.

        Raises:
            DatasetError: there is no such array.
        """
        if name not in self.members:
            held = ", ".join(self.members) or "none"
            raise DatasetError(f"{self.path} has no array {name!r}: it holds {held}")
        return self.members[name]

    def array(self, name: str) -> npt.NDArray[Any]:
        """Read an array whole.

        Raises:
            DatasetError: there is none, or it is damaged.
        """
        member = self.member(name)
        with (
            self._explaining(),
            zipfile.ZipFile(self.path) as archive,
            archive.open(f"{name}.npy") as file,
        ):
            self._skip_header(file)
            flat = np.empty(member.size, np.uint8)
            done = 0
            while done < member.size:
                part = file.read(min(member.size - done, _PIECE))
                if not part:
                    raise DatasetError(f"{self.path} is damaged: {name} is cut short")
                flat[done : done + len(part)] = np.frombuffer(part, np.uint8)
                done += len(part)
            if file.read(1):  # reading to the end checks the sum, too
                raise DatasetError(f"{self.path} is damaged: {name} is longer than declared")
            array = flat.view(member.dtype).reshape(member.shape)
        return array

    def pieces(self, name: str, rows: int) -> Iterator[npt.NDArray[Any]]:
        """Unpack an array from its first row on.

        Args:
            name: the array's name.
            rows: the rows of a piece; the last one may have fewer.

        Raises:
            DatasetError: there is none, or it is damaged.
        """
        member = self.member(name)
        row = math.prod(member.shape[1:]) * member.dtype.itemsize
        with (
            self._explaining(),
            zipfile.ZipFile(self.path) as archive,
            archive.open(f"{name}.npy") as file,
        ):
            self._skip_header(file)
            for first in range(0, member.shape[0], rows):
                count = min(rows, member.shape[0] - first)
                content = file.read(count * row)
                if len(content) < count * row:
                    raise DatasetError(f"{self.path} is damaged: {name} is cut short")
                piece = np.frombuffer(content, member.dtype)
                yield piece.reshape(count, *member.shape[1:])
            if file.read(1):  # reading to the end checks the sum, too
                raise DatasetError(f"{self.path} is damaged: {name} is longer than declared")

    def _read_header(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Member:
        name = info.filename.removesuffix(".npy")
        with archive.open(info) as file:
            shape, fortran, dtype = self._skip_header(file)
            start = file.tell()
        if dtype.hasobject:
            raise DatasetError(f"{self.path}: {name} holds Python objects, which are not unpickled")
        if fortran and len(shape) > 1:
            raise DatasetError(f"{self.path}: {name} is in Fortran's order, expected C's")
        member = Member(name, shape, dtype, None)
        if any(side < 0 for side in shape) or start + member.size != info.file_size:
            raise DatasetError(
                f"{self.path} is damaged: {name} declares {shape} of {dtype}, but has "
                f"{info.file_size} bytes"
            )
        if info.file_size > _MOST * info.compress_size + _MOST:
            raise DatasetError(f"{self.path} is damaged: {name} declares more than it can hold")
        if info.compress_type != zipfile.ZIP_STORED:
            return member
        with self.path.open("rb") as file:
            file.seek(info.header_offset)
            magic, name_length, extra_length = _LOCAL.unpack(file.read(_LOCAL.size))
            end = file.seek(0, 2)
        offset = info.header_offset + _LOCAL.size + name_length + extra_length + start
        if magic != b"PK\x03\x04" or offset + member.size > end:
            raise DatasetError(f"{self.path} is damaged: {name} reaches beyond the file's end")
        return dataclasses.replace(member, offset=offset)

    def _skip_header(self, file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        """Read the header of a .npy file."""
        version = np.lib.format.read_magic(file)  # type: ignore[no-untyped-call]
        if version == (1, 0):
            return np.lib.format.read_array_header_1_0(file)  # type: ignore[no-untyped-call]
        if version == (2, 0):
            return np.lib.format.read_array_header_2_0(file)  # type: ignore[no-untyped-call]
        raise DatasetError(f"{self.path}: an array of the unknown version {version}")

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise DatasetError(f"{self.path}: there is no such file") from None
        except _DAMAGE as error:
            if isinstance(error, DatasetError):
                raise
            text = str(error) or type(error).__name__
            raise DatasetError(f"cannot read {self.path}: {text:.200}") from error
