"""Reads exports to WebDataset and Parquet as `3dident convert` writes them.

Their files are indexed when they are opened: a pass over all tar headers, or over Parquet's columns
of numbers. Images of Parquet are read by row groups, so one image costs as much as a hundred; for
training, convert to shards.
"""

from __future__ import annotations

import bisect
import contextlib
import io
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

from threedident.datasets.formats import png_folder as published
from threedident.datasets.formats.dataset_card import (
    DATA,
    Split,
    read_split,
    record_path,
    records,
    split_name,
)
from threedident.datasets.formats.sources import CardSource, check_numbers, read_images
from threedident.errors import DatasetError, MissingExtraError, UsageError
from threedident.factors import NUM_FACTORS
from threedident.latents import latents_digest
from threedident.storage.shard_plan import joined, name_stretches

UInt8 = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]

#: The least that an image takes in a file: a PNG, and two vectors.
_LEAST_BYTES = 140
_VECTOR_BYTES = 4 * NUM_FACTORS
#: The encodings of Parquet that `3dident convert` writes: values plain, RLE where there are nulls.
_AS_THEY_ARE = {"PLAIN", "RLE"}


def open_export(path: Path, split: str | None = None) -> ExportSource:
    """One split of an export.

    Args:
        path: the export's folder, or the JSON file of a split.
        split: train, val or test; None where there is one.

    Raises:
        UsageError: there is no such split, or there are several and none is named.
        DatasetError: the export is damaged.
        MissingExtraError: Parquet without pyarrow.
    """
    folder = path.parent if path.is_file() else path
    there = records(folder)
    wanted = None if split is None else split_name(split)
    if path.is_file():
        named = next(name for name, record in there.items() if record == path)
        if wanted not in (None, named):
            raise UsageError(f"{path} is the split {named}, asked for {wanted}")
        wanted = named
    if wanted is None:
        if len(there) > 1:
            raise UsageError(
                f"{folder} holds the splits {', '.join(there)}: choose one with --split, or name "
                f"its file, such as {record_path(folder, list(there)[-1])}"
            )
        wanted = next(iter(there))
    if wanted not in there:
        raise UsageError(f"{folder} has no split {wanted}: it holds {', '.join(there)}")
    described = read_split(there[wanted], wanted)
    kind = {"webdataset": TarSource, "parquet": ParquetSource}[described.form]
    return kind(folder, described)


class ExportSource(CardSource):
    """A split of an export."""

    latents: Float32

    def __init__(self, folder: Path, split: Split) -> None:
        card = published.Card(split.manifest, split.parts, split.wanted)
        super().__init__(record_path(folder, split.name), card)
        self.folder = folder
        self.form = split.form
        self.split = split
        self.shape: tuple[int, ...] = (split.height, split.width, 3)
        self.files = {folder / DATA / name: part for name, part in _files(split, folder).items()}
        self.raw_latents = np.empty((split.images, NUM_FACTORS), np.float32)
        self.latents = np.empty((split.images, NUM_FACTORS), np.float32)
        for path, part in self.files.items():
            self._index(path, part)
        for name, digest in (
            ("raw_latents", split.raw_latents_sha256),
            ("latents", split.latents_sha256),
        ):
            if latents_digest(getattr(self, name)) != digest:
                raise DatasetError(
                    f"{folder / DATA}: the {name} of the split {split.name} are not those of "
                    f"{self.root}: files of another export, or damaged ones; write it again"
                )
        self.image(0)  # is there, and of the shape that is promised

    def _index(self, path: Path, part: range) -> None:
        """Reads the latents of a file's images, and where these lie."""
        raise NotImplementedError

    def _encoded(self, path: Path, numbers: Sequence[int]) -> list[bytes]:
        """PNGs of some images of a file."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.split.images

    def image(self, index: int) -> UInt8:
        """One image, (H, W, 3) uint8."""
        return read_images(self, [index])[0]

    def read(self, indices: Sequence[int], out: UInt8) -> None:
        """Reads images into an array (k, H, W, 3)."""
        numbers = check_numbers(indices, len(self))
        rows: dict[Path, list[int]] = {}
        paths = list(self.files)
        for row, number in enumerate(numbers):
            rows.setdefault(paths[number // self.split.images_per_file], []).append(row)
        for path, those in rows.items():
            encoded = self._encoded(path, [numbers[row] for row in those])
            for row, content in zip(those, encoded, strict=True):
                where = f"image {numbers[row]} in {path}"
                out[row] = published.decode_image(content, where, self.shape)

    def stats(self) -> dict[str, Any] | None:
        """What the shards gave that the images were in, or what little is recorded."""
        split, found = self.split, super().stats()
        if found is None and split.mean and split.std:
            return {
                "images": len(self),
                "mean": list(split.mean),
                "std_within_image": list(split.std),
            }
        return found


def _files(split: Split, folder: Path) -> dict[str, range]:
    """The images of each file, by name; all are there, and large enough for them.

    Raises:
        DatasetError: they are not.
    """
    there = {path.name: path.stat().st_size for path in (folder / DATA).glob(f"{split.name}-*")}
    expected = -(-split.images // split.images_per_file)
    if expected > 10 * len(there) + 1000:  # more names than one wants to make
        raise DatasetError(
            f"{folder / DATA} holds {len(there)} of the {expected} files of the split {split.name}"
        )
    files = split.files()
    lost = [name for name in files if name not in there]
    if lost:
        missing = joined((files[name].start, files[name].stop - 1) for name in lost)
        raise DatasetError(
            f"{folder} lacks {name_stretches(missing)} of the split {split.name}: "
            f"{DATA}/{lost[0]} is missing; the `3dident convert` that wrote it goes on with it"
        )
    for name, part in files.items():
        if there[name] < len(part) * _LEAST_BYTES:
            raise DatasetError(
                f"{folder / DATA / name} has {there[name]} bytes, too few for {len(part)} images: "
                "it is cut short"
            )
    return files


def _vector(array: Float32) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


_NPY_HEADER = _vector(np.zeros(NUM_FACTORS, np.float32))[:-_VECTOR_BYTES]


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
                for name in ("raw_latents", "latents"):
                    member = f"{index:08d}.{name}.npy"
                    offset, size = _find(tar, member, path)
                    file.seek(offset)
                    content = file.read(min(size, len(_NPY_HEADER) + _VECTOR_BYTES + 1))
                    header, values = content[:-_VECTOR_BYTES], content[-_VECTOR_BYTES:]
                    if header != _NPY_HEADER:
                        raise DatasetError(f"{path}: {member} is no vector of float32")
                    getattr(self, name)[index] = np.frombuffer(values, "<f4")
            if tar.next() is not None:
                raise DatasetError(f"{path} holds more than images {part[0]} to {part[-1]}")

    def _encoded(self, path: Path, numbers: Sequence[int]) -> list[bytes]:
        places, first, found = self._places[path], self.files[path].start, []
        try:
            with path.open("rb", buffering=0) as file:
                for number in numbers:
                    offset, size = map(int, places[number - first])
                    file.seek(offset)
                    found.append(file.read(size))
        except OSError as error:
            raise DatasetError(f"cannot read image {numbers[0]}: {error}") from error
        return found


class _PlainFile(tarfile.TarInfo):
    """A header in a tar file: of a plain file, as `3dident convert` writes them, or refused.

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
    """A tar file that is not compressed, and its content.

    Raises:
        DatasetError: it cannot be read.
    """
    try:
        with (
            path.open("rb") as file,
            tarfile.open(fileobj=file, mode="r:", tarinfo=_PlainFile) as tar,
        ):
            yield file, tar
    except (
        *(tarfile.TarError, OSError, ValueError, OverflowError, EOFError, RecursionError),
        MemoryError,
    ) as error:
        raise DatasetError(f"cannot read {path}: {error!r:.200}") from error


def _find(tar: tarfile.TarFile, name: str, path: Path) -> tuple[int, int]:
    """Where the next member of a tar file lies, and how long it is; it must have this name.

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


class ParquetSource(ExportSource):
    """A split of Parquet files."""

    def __init__(self, folder: Path, split: Split) -> None:
        self._groups: dict[Path, list[int]] = {}  # the first image of each row group
        super().__init__(folder, split)

    def _index(self, path: Path, part: range) -> None:
        with _reading(path) as file:
            described = file.metadata
            if described.num_rows != len(part):
                raise DatasetError(f"{path} has {described.num_rows} rows, expected {len(part)}")
            _refuse_packed(file, path)
            starts, position = [], part.start
            for number in range(described.num_row_groups):
                starts.append(position)
                rows = described.row_group(number).num_rows
                position += rows
                table = file.read_row_group(
                    number, columns=["index", "raw_latents", "latents"], use_threads=False
                )
                window = np.arange(starts[-1], position)
                index = table["index"].to_numpy()
                if not np.array_equal(index, window):
                    raise DatasetError(f"{path}: its rows are not images {part[0]} to {part[-1]}")
                for name in ("raw_latents", "latents"):
                    values = table[name].combine_chunks().flatten().to_numpy()
                    if values.dtype != np.float32 or len(values) != rows * NUM_FACTORS:
                        raise DatasetError(f"{path}: {name} are not {NUM_FACTORS} float32 each")
                    getattr(self, name)[window] = values.reshape(rows, NUM_FACTORS)
            self._groups[path] = starts

    def _encoded(self, path: Path, numbers: Sequence[int]) -> list[bytes]:
        starts = self._groups[path]
        groups: dict[int, list[int]] = {}
        for place, number in enumerate(numbers):
            groups.setdefault(bisect.bisect_right(starts, number) - 1, []).append(place)
        found = [b""] * len(numbers)
        with _reading(path) as file:
            for group, places in groups.items():
                wanted = {numbers[place] for place in places}
                images = _images(file, group, starts[group], wanted, path)
                for place in places:
                    found[place] = images[numbers[place]]
        return found


def _images(file: Any, group: int, first: int, wanted: set[int], path: Path) -> dict[int, bytes]:
    """PNGs of a row group that begins with image `first`.

    One at a time: of an image, even a footer that lies about encodings cannot make more than the
    file holds.

    Raises:
        DatasetError: they are none, or more than the file holds.
    """
    left = path.stat().st_size
    found = {}
    rows = file.iter_batches(1, row_groups=[group], columns=["image.bytes"], use_threads=False)
    for number, row in enumerate(rows, first):
        content = row.column(0).field("bytes")[0].as_py()
        if not isinstance(content, bytes):
            raise DatasetError(f"{path}: image {number} is no PNG")
        left -= len(content)
        if left < 0:
            raise DatasetError(f"{path}: its images are more than the file holds")
        if number in wanted:
            found[number] = content
    return found


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[Any]:
    """A Parquet file.

    Raises:
        MissingExtraError: there is no pyarrow.
        DatasetError: it cannot be read.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "export", "reading Parquet") from error
    try:
        with path.open("rb") as content, parquet.ParquetFile(content, pre_buffer=False) as file:
            yield file
    except (
        *(pa.ArrowException, OSError, ValueError, TypeError, KeyError, IndexError),
        *(AttributeError, OverflowError, MemoryError, RuntimeError),
    ) as error:
        raise DatasetError(f"cannot read {path}: {str(error).splitlines()[0]:.200}") from error


def parquet_schema() -> Any:
    """The columns of a Parquet file of an export, a `pyarrow.Schema`.

    Raises:
        ImportError: there is no pyarrow.
    """
    import pyarrow as pa

    vector = pa.list_(pa.float32(), NUM_FACTORS)
    image = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    return pa.schema(
        {"image": image, "index": pa.int64(), "raw_latents": vector, "latents": vector}
    )


def _refuse_packed(file: Any, path: Path) -> None:
    """Checks, before a column is read, that by the footer none unfolds to more than is stored.

    Raises:
        DatasetError: columns are others, are not stored as they are, or promise more values or
            bytes than there are.
    """
    schema = parquet_schema()
    if not file.schema_arrow.equals(schema):
        raise DatasetError(
            f"{path} has the columns {_columns(file.schema_arrow)}; expected {_columns(schema)}"
        )
    size = path.stat().st_size
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        for place in range(group.num_columns):
            column = group.column(place)
            if (
                column.compression != "UNCOMPRESSED"
                or column.dictionary_page_offset is not None
                or not set(column.encodings) <= _AS_THEY_ARE
            ):
                raise DatasetError(
                    f"{path}: {column.path_in_schema} is compressed or encoded "
                    f"({column.compression}, {', '.join(column.encodings)}); `3dident convert` "
                    "writes PNGs and numbers as they are"
                )
            of_each = NUM_FACTORS if "latents" in column.path_in_schema else 1
            if column.num_values != of_each * group.num_rows:
                raise DatasetError(
                    f"{path}: {column.path_in_schema} has {column.num_values} values in "
                    f"{group.num_rows} rows, expected {of_each} in each"
                )
            if not 0 <= column.total_uncompressed_size <= size:
                raise DatasetError(f"{path} is cut short: a column promises more than there is")


def _columns(schema: Any) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in schema)[:500]
