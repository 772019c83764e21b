"""WebDataset: a split of an export in tar files, one PNG and two .npy vectors to an image.

Files are indexed when they are opened, by a pass over all tar headers.
"""

from __future__ import annotations

import contextlib
import functools
import io
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
import numpy.typing as npt

from threedident.datasets.formats.export import ExportSource, vectors_of
from threedident.datasets.formats.export_record import Split
from threedident.datasets.formats.png_folder import encode_image
from threedident.datasets.formats.source import Source
from threedident.errors import DatasetError
from threedident.progress import Progress
from threedident.storage.atomic_files import replacing

_UNREADABLE = (
    tarfile.TarError,
    OSError,
    ValueError,
    OverflowError,
    EOFError,
    RecursionError,
    MemoryError,
)


def _npy(array: npt.NDArray[np.float32]) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


@functools.cache
def _header(length: int) -> bytes:
    """The header of a .npy file of so many float32."""
    empty = np.zeros(length, np.float32)
    return _npy(empty)[: -empty.nbytes]


class TarSource(ExportSource):
    """A split of tar files for WebDataset."""

    def __init__(self, folder: Path, split: Split) -> None:
        self._places: dict[Path, npt.NDArray[np.int64]] = {}  # offset and size of each PNG
        super().__init__(folder, split)

    def _index(self, path: Path, part: range) -> None:
        places = self._places[path] = np.empty((len(part), 2), np.int64)
        with _reading_tar(path) as (file, tar):
            for row, index in enumerate(part):
                places[row] = _find(tar, f"{index:08d}.png", path)
                for name, array in self.vectors.items():
                    member = f"{index:08d}.{name}.npy"
                    offset, size = _find(tar, member, path)
                    file.seek(offset)
                    expected, length = _header(array.shape[1]), array[index].nbytes
                    content = file.read(min(size, len(expected) + length + 1))
                    if content[:-length] != expected:
                        raise DatasetError(f"{path}: {member} is no vector of float32")
                    array[index] = np.frombuffer(content[-length:], "<f4")
            if tar.next() is not None:
                raise DatasetError(f"{path} holds more than images {part[0]} to {part[-1]}")

    def _encoded(self, path: Path, numbers: Sequence[int]) -> list[bytes]:
        places, first = self._places[path], self.parts_by_file[path].start
        encoded = []
        try:
            with path.open("rb", buffering=0) as file:
                for number in numbers:
                    offset, size = map(int, places[number - first])
                    file.seek(offset)
                    encoded.append(file.read(size))
        except OSError as error:
            raise DatasetError(f"cannot read image {numbers[0]}: {error}") from error
        return encoded


class _PlainFile(tarfile.TarInfo):
    """A header in a tar file; other than that of a plain file, it is refused.

    Others (long names, pax records, sparse files) have tarfile read as much as they declare.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            raise tarfile.ReadError(
                f"{header.name[:100]!r} has a header of type {header.type!r}, expected plain files "
                "alone, as `3dident convert` writes them"
            )
        return header


@contextlib.contextmanager
def _reading_tar(path: Path) -> Iterator[tuple[BinaryIO, tarfile.TarFile]]:
    """Open a tar file that is not compressed, and its content.

    Raises:
        DatasetError: it cannot be read.
    """
    try:
        with (
            path.open("rb") as file,
            tarfile.open(fileobj=file, mode="r:", tarinfo=_PlainFile) as tar,
        ):
            yield file, tar
    except _UNREADABLE as error:
        raise DatasetError(f"cannot read {path}: {error!r:.200}") from error


def _find(tar: tarfile.TarFile, name: str, path: Path) -> tuple[int, int]:
    """Find the offset and the size of the next member of a tar file; it must have this name.

    Raises:
        DatasetError: it is another one, or the file ends.
    """
    member = tar.next()
    if member is None or not member.isreg() or member.name != name:
        found = "its end" if member is None else repr(member.name[:100])
        raise DatasetError(
            f"{path} has {found} where {name} is expected: it is cut short, or not as `3dident "
            "convert` wrote it"
        )
    if not 0 <= member.size <= path.stat().st_size - member.offset_data:
        raise DatasetError(f"{path} is cut short at {name}")
    return member.offset_data, member.size


def write_tar(path: Path, source: Source, part: range, progress: Progress) -> None:
    """Write some images of a dataset into a tar file, with no date and no owner.

    Args:
        path: the file to write.
        source: the dataset.
        part: the image numbers.
        progress: the bar to advance, one an image.

    Raises:
        DatasetError: an image cannot be read, or the disk is full.
    """
    with (
        replacing(path) as temporary,
        tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        vectors = vectors_of(source)
        for index in part:
            members = {
                "png": encode_image(source.image(index)),
                **{f"{name}.npy": _npy(array[index]) for name, array in vectors.items()},
            }
            for suffix, content in members.items():
                info = tarfile.TarInfo(f"{index:08d}.{suffix}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            progress.advance()
