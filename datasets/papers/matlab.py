"""Arrays of bytes in MATLAB files of versions 5 to 7: a reader of what Cars3D needs, and a writer.

Of each variable the name, sizes and type are read first; only what was named is unpacked, and no
more than its sizes say. Objects, functions and all else that a file can hold is passed over.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import IO

import numpy as np
import numpy.typing as npt

from threedident.errors import DatasetError

_HEADER = 128
_ENDIAN = {b"IM": "<", b"MI": ">"}  # the last two bytes of the header
_INT8, _UINT8, _INT32, _UINT32, _MATRIX, _COMPRESSED = 1, 2, 5, 6, 14, 15
_UINT8_CLASS = 9
_COMPLEX = 0x0800
_VERSION = 0x0100
_MOST = 1 << 26  # bytes of an array
_MOST_VARIABLES = 1000


def read_array(file: IO[bytes], name: str, where: str) -> npt.NDArray[np.uint8]:
    """Read an array of bytes.

    Args:
        file: the file, at its beginning.
        name: the array's name.
        where: the file's name, for messages.

    Raises:
        DatasetError: there is no such array, it is of another type, or the file is damaged.
    """
    names = []
    for variable in _variables(file, where):
        names.append(variable.name)
        if variable.name == name:
            return variable.values()
    raise DatasetError(f"{where} has no array {name!r}: it holds {', '.join(names) or 'none'}")


def shape_of(file: IO[bytes], name: str, where: str) -> tuple[int, ...]:
    """Read the sizes of an array, and nothing else of it.

    Args:
        file: the file, at its beginning.
        name: the array's name.
        where: the file's name, for messages.

    Raises:
        DatasetError: there is no such array, or the file is damaged.
    """
    for variable in _variables(file, where):
        if variable.name == name:
            return variable.shape
    raise DatasetError(f"{where} has no array {name!r}")


class _Variable:
    """An array of a file: its content is unpacked from the first byte on, as far as it is wanted.

    Attributes:
        name: its name.
        shape: its sizes.
    """

    def __init__(
        self, file: IO[bytes], size: int, *, compressed: bool, endian: str, where: str
    ) -> None:
        self._file, self._left, self._endian, self._where = file, size, endian, where
        self._unpacker = zlib.decompressobj() if compressed else None
        self._content = b""
        self._skipped = 8 if compressed else 0  # the tag of what is compressed
        if compressed and self._tag(-8)[0] != _MATRIX:
            raise DatasetError(f"{where} is damaged: it holds what is no array")
        self._read_head()

    def _read_head(self) -> None:
        """Read type, sizes and name."""
        kind, count, start = self._tag(0)
        self._expect(kind == _UINT32 and count == 8)
        (flags,) = struct.unpack(f"{self._endian}I", self._part(start, 4))
        self._plain = flags & 0xFF == _UINT8_CLASS and not flags & _COMPLEX
        kind, count, start = self._tag(start + 8)
        self._expect(kind == _INT32 and 8 <= count <= 128 and count % 4 == 0)
        self.shape = struct.unpack(f"{self._endian}{count // 4}i", self._part(start, count))
        kind, count, start = self._tag(start + -(-count // 8) * 8)
        self._expect(kind == _INT8 and count <= 64)
        self.name = self._part(start, count).decode("latin-1")
        # Short names lie in their tag.
        self._end = start + (-(-count // 8) * 8 if start % 8 == 0 else 4)

    def values(self) -> npt.NDArray[np.uint8]:
        """Its values.

        Raises:
            DatasetError: they are no bytes, too many, or cut short.
        """
        if not self._plain:
            raise DatasetError(f"{self._where}: {self.name} is no array of unsigned bytes")
        size = math.prod(self.shape)
        if min(self.shape) < 1 or size > _MOST:
            raise DatasetError(
                f"{self._where}: {self.name} declares the sizes {self.shape}, expected at most "
                f"{_MOST} bytes"
            )
        kind, count, start = self._tag(self._end)
        self._expect(kind == _UINT8 and count == size)
        content = np.frombuffer(self._part(start, size), np.uint8)
        return content.reshape(self.shape, order="F")

    def skip(self) -> None:
        """Pass over what is left."""
        while self._left and self._take(1 << 16):
            pass

    def _expect(self, good: bool) -> None:
        if not good:
            raise DatasetError(f"{self._where} is damaged: an array in it has no head")

    def _tag(self, place: int) -> tuple[int, int, int]:
        """The kind and the number of bytes of a part, and where they begin."""
        kind, count = struct.unpack(f"{self._endian}II", self._part(place, 8))
        if kind >> 16:  # up to four bytes, which lie in the tag
            self._expect(kind >> 16 <= 4)
            return kind & 0xFFFF, kind >> 16, place + 4
        return kind, count, place + 8

    def _part(self, place: int, count: int) -> bytes:
        first = place + self._skipped
        self._fill(first + count)
        content = self._content[first : first + count]
        if len(content) < count:
            raise DatasetError(f"{self._where} is cut short")
        return content

    def _fill(self, count: int) -> None:
        """Unpack up to `count` bytes."""
        parts = [self._content]
        have = len(self._content)
        try:
            while have < count:
                if self._unpacker is None:
                    part = packed = self._take(count - have)
                else:
                    packed = self._unpacker.unconsumed_tail or self._take(1 << 16)
                    part = self._unpacker.decompress(packed, count - have)
                if not packed:
                    break
                parts.append(part)
                have += len(part)
        except zlib.error as error:
            raise DatasetError(f"{self._where} is damaged: {error}") from error
        self._content = b"".join(parts)

    def _take(self, count: int) -> bytes:
        content = self._file.read(min(count, self._left))
        self._left -= len(content)
        return content


def _variables(file: IO[bytes], where: str) -> Iterator[_Variable]:
    """The arrays of a file."""
    header = file.read(_HEADER)
    endian = _ENDIAN.get(header[126:128], "")
    if not endian or struct.unpack(f"{endian}H", header[124:126])[0] != _VERSION:
        raise DatasetError(
            f"{where} is no MATLAB file of versions 5 to 7, as `save` writes them by default"
        )
    for _ in range(_MOST_VARIABLES):
        tag = file.read(8)
        if not tag:
            return
        if len(tag) < 8:
            raise DatasetError(f"{where} is cut short")
        kind, size = struct.unpack(f"{endian}II", tag)
        if kind not in (_MATRIX, _COMPRESSED):
            raise DatasetError(f"{where} is damaged: it holds what is no array")
        packed = kind == _COMPRESSED
        variable = _Variable(file, size, compressed=packed, endian=endian, where=where)
        yield variable
        variable.skip()
    raise DatasetError(f"{where} holds more than {_MOST_VARIABLES} arrays")


def to_bytes(arrays: Mapping[str, npt.NDArray[np.uint8]]) -> bytes:
    """The content of a file of arrays of bytes, compressed, as MATLAB's `save` writes it.

    Args:
        arrays: the arrays, by name; each of two dimensions or more.
    """
    head = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", _VERSION) + b"IM"
    content = [head]
    for name, array in arrays.items():
        values = np.asfortranarray(array, np.uint8).tobytes("F")
        parts = (
            _element(_UINT32, struct.pack("<II", _UINT8_CLASS, 0)),
            _element(_INT32, struct.pack(f"<{array.ndim}i", *array.shape)),
            _element(_INT8, name.encode("latin-1")),
            _element(_UINT8, values),
        )
        packed = zlib.compress(_element(_MATRIX, b"".join(parts)))
        content.append(struct.pack("<II", _COMPRESSED, len(packed)) + packed)
    return b"".join(content)


def _element(kind: int, content: bytes) -> bytes:
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)
