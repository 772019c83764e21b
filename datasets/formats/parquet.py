"""Parquet: a split of an export in tables, with the bytes of a PNG in each row.

Files are indexed when they are opened, by a pass over the columns of numbers. Images are read by
row groups, so one image costs as much as a hundred; for training, convert to shards.
"""

from __future__ import annotations

import bisect
import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.datasets.formats.export import ExportSource, vectors_of
from threedident.datasets.formats.export_record import Split
from threedident.datasets.formats.png_folder import encode_image
from threedident.datasets.formats.source import Source
from threedident.errors import DatasetError, MissingExtraError
from threedident.progress import Progress
from threedident.storage.atomic_files import replacing

#: Images to a row group: 2.4 MB at 224 x 224. Even, so that it divides no pair.
ROW_GROUP = 100
#: The encodings that `3dident convert` writes: values plain, RLE where there are nulls.
_AS_THEY_ARE = {"PLAIN", "RLE"}
_UNREADABLE = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    OverflowError,
    MemoryError,
    RuntimeError,
)


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
            lengths = {name: array.shape[1] for name, array in self.vectors.items()}
            _refuse_packed(file, path, lengths)
            starts, position = [], part.start
            for number in range(described.num_row_groups):
                starts.append(position)
                rows = described.row_group(number).num_rows
                position += rows
                table = file.read_row_group(number, columns=["index", *lengths], use_threads=False)
                window = np.arange(starts[-1], position)
                index = table["index"].to_numpy()
                if not np.array_equal(index, window):
                    raise DatasetError(f"{path}: its rows are not images {part[0]} to {part[-1]}")
                for name, length in lengths.items():
                    values = table[name].combine_chunks().flatten().to_numpy()
                    if values.dtype != np.float32 or len(values) != rows * length:
                        raise DatasetError(f"{path}: {name} are not {length} float32 each")
                    self.vectors[name][window] = values.reshape(rows, length)
            self._groups[path] = starts

    def _encoded(self, path: Path, numbers: Sequence[int]) -> list[bytes]:
        starts = self._groups[path]
        groups: dict[int, list[int]] = {}
        for place, number in enumerate(numbers):
            groups.setdefault(bisect.bisect_right(starts, number) - 1, []).append(place)
        encoded = [b""] * len(numbers)
        with _reading(path) as file:
            for group, places in groups.items():
                wanted = {numbers[place] for place in places}
                images = _images(file, group, starts[group], wanted, path)
                for place in places:
                    encoded[place] = images[numbers[place]]
        return encoded


def _images(file: Any, group: int, first: int, wanted: set[int], path: Path) -> dict[int, bytes]:
    """Read PNGs of a row group that begins with image `first`.

    One at a time: for an image, even a footer that lies about encodings cannot make more than the
    file holds.

    Raises:
        DatasetError: they are none, or more than the file holds.
    """
    left = path.stat().st_size
    encoded = {}
    rows = file.iter_batches(1, row_groups=[group], columns=["image.bytes"], use_threads=False)
    for number, row in enumerate(rows, first):
        content = row.column(0).field("bytes")[0].as_py()
        if not isinstance(content, bytes):
            raise DatasetError(f"{path}: image {number} is no PNG")
        left -= len(content)
        if left < 0:
            raise DatasetError(f"{path}: its images are more than the file holds")
        if number in wanted:
            encoded[number] = content
    return encoded


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[Any]:
    """Open a Parquet file.

    Raises:
        MissingExtraError: pyarrow is not installed.
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
    except (pa.ArrowException, *_UNREADABLE) as error:
        raise DatasetError(f"cannot read {path}: {str(error).splitlines()[0]:.200}") from error


def parquet_schema(lengths: Mapping[str, int]) -> Any:
    """The columns of a Parquet file of an export, a `pyarrow.Schema`.

    Args:
        lengths: the lengths of the vectors by name, as `vector_lengths` gives them.

    Raises:
        ImportError: pyarrow is not installed.
    """
    import pyarrow as pa

    vectors = {name: pa.list_(pa.float32(), length) for name, length in lengths.items()}
    image = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    return pa.schema({"image": image, "index": pa.int64(), **vectors})


def _refuse_packed(file: Any, path: Path, lengths: Mapping[str, int]) -> None:
    """Check, before a column is read, that by the footer none unfolds to more than is stored.

    Raises:
        DatasetError: columns are others, are not stored as they are, or promise more values or
            bytes than there are.
    """
    schema = parquet_schema(lengths)
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
            of_each = lengths.get(column.path_in_schema.split(".")[0], 1)
            if column.num_values != of_each * group.num_rows:
                raise DatasetError(
                    f"{path}: {column.path_in_schema} has {column.num_values} values in "
                    f"{group.num_rows} rows, expected {of_each} in each"
                )
            if not 0 <= column.total_uncompressed_size <= size:
                raise DatasetError(f"{path} is cut short: a column promises more than there is")


def _columns(schema: Any) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in schema)[:500]


def parquet_writer() -> Callable[[Path, Source, range, Progress], None]:
    """Return the function that writes a Parquet file, with the arguments of `write_tar`.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "export", "writing Parquet") from error

    def vectors(array: npt.NDArray[np.float32]) -> Any:
        return pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()), array.shape[1])

    def write(path: Path, source: Source, part: range, progress: Progress) -> None:
        arrays = vectors_of(source)
        lengths = {name: array.shape[1] for name, array in arrays.items()}
        about = {"huggingface": json.dumps(_features(lengths))}
        schema = parquet_schema(lengths).with_metadata(about)
        with (
            replacing(path) as temporary,
            temporary.open("wb") as file,
            parquet.ParquetWriter(
                file,
                schema,
                compression="none",  # PNGs are compressed, and latents are noise
                use_dictionary=False,
                write_statistics=["index"],
            ) as writer,
        ):
            for first in range(part.start, part.stop, ROW_GROUP):
                rows = range(first, min(first + ROW_GROUP, part.stop))
                images = source.images(rows)
                window = slice(rows.start, rows.stop)
                columns = {
                    "image": pa.array(
                        [
                            {"bytes": encode_image(pixels), "path": f"{index:08d}.png"}
                            for index, pixels in zip(rows, images, strict=True)
                        ],
                        schema.field("image").type,
                    ),
                    "index": pa.array(rows, schema.field("index").type),
                    **{name: vectors(array[window]) for name, array in arrays.items()},
                }
                writer.write_table(pa.table(columns, schema=schema))
                progress.advance(len(rows))

    return write


def _features(lengths: Mapping[str, int]) -> dict[str, Any]:
    """The metadata by which Hugging Face `datasets` knows that the structs are images."""
    vectors = {
        name: {
            "feature": {"dtype": "float32", "_type": "Value"},
            "length": length,
            "_type": "Sequence",  # List, since datasets 4; they read either
        }
        for name, length in lengths.items()
    }
    index = {"dtype": "int64", "_type": "Value"}
    return {"info": {"features": {"image": {"_type": "Image"}, "index": index, **vectors}}}
