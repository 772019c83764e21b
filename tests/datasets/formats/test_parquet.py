"""Parquet files that are not read."""

from __future__ import annotations

import base64

import numpy as np
import pytest
from helpers.dataset_forms import build, turned

from threedident.datasets.formats import open_dataset
from threedident.errors import DatasetError


def test_parquet_that_unfolds_to_more_than_it_holds_is_not_read(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    there = turned(build(tmp_path / "d"), "parquet", tmp_path / "hub")
    path = next((there / "data").iterdir())
    table = parquet.read_table(path)
    for options in ({"compression": "zstd"}, {"compression": "none", "use_dictionary": True}):
        parquet.write_table(table, path, **options)
        with pytest.raises(DatasetError, match="is compressed or encoded"):
            open_dataset(there)


def packed_by_prefixes(path):
    """Rewrites a Parquet file: all images share 1 MB, which it holds once."""
    import pyarrow as pa
    from pyarrow import parquet

    table = parquet.read_table(path)
    images = table["image"].combine_chunks()
    large = [np.random.default_rng(1).bytes(1 << 20)] * len(table)
    image = pa.StructArray.from_arrays([pa.array(large), images.field("path")], ["bytes", "path"])
    encodings = dict.fromkeys(
        ("image.path", "index", "raw_latents.list.element", "latents.list.element"), "PLAIN"
    )
    parquet.write_table(
        table.set_column(0, table.schema.field("image"), image),
        path,
        compression="none",
        use_dictionary=False,
        column_encoding={"image.bytes": "DELTA_BYTE_ARRAY", **encodings},
    )


def test_parquet_whose_images_share_what_they_begin_with_is_not_read(tmp_path):
    pytest.importorskip("pyarrow")
    there = turned(build(tmp_path / "d"), "parquet", tmp_path / "hub")
    path = next((there / "data").iterdir())
    packed_by_prefixes(path)
    assert path.stat().st_size < 2 << 20
    with pytest.raises(
        DatasetError, match=r"image\.bytes is compressed or encoded .*DELTA_BYTE_ARR"
    ):
        open_dataset(there)
    # The footer says PLAIN, the pages are what they were: no more is read than the file holds.
    content = path.read_bytes()
    said, lie = bytes([0x25, 2 * 3, 2 * 7]), bytes([0x25, 2 * 3, 0])  # a list of RLE, DELTA_...
    assert content.count(said) == 1
    path.write_bytes(content.replace(said, lie))
    with pytest.raises(DatasetError, match="its images are more than the file holds"):
        open_dataset(there)


def test_parquet_of_other_columns_is_not_read(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    there = turned(build(tmp_path / "d"), "parquet", tmp_path / "hub")
    path = next((there / "data").iterdir())
    table = parquet.read_table(path)
    options = {"compression": "none", "use_dictionary": False}
    wide = table.set_column(1, "index", table["index"].cast(pa.float64()))
    parquet.write_table(wide, path, **options)
    with pytest.raises(
        DatasetError, match=r"columns .*index \(double\).* expected .*index \(int64\)"
    ):
        open_dataset(there)
    # Lists of free length that say they are vectors; nulls take no room.
    nulls = pa.array([[None] * 5000] * len(table), pa.list_(pa.float32()))
    kept = base64.b64encode(table.schema.serialize())
    table = table.set_column(2, "raw_latents", nulls)
    table = table.replace_schema_metadata({"ARROW/schema": kept})
    parquet.write_table(table, path, **options)
    content = path.read_bytes().replace(b"ARROW:schema", b"ARROW-schema")
    path.write_bytes(content.replace(b"ARROW/schema", b"ARROW:schema"))
    with pytest.raises(DatasetError, match="has 60000 values in 12 rows, expected 10 in each"):
        open_dataset(there)
