"""Writing a dataset in another form, from any form, without loss."""

from __future__ import annotations

from pathlib import Path

from threedident.datasets.formats.export import export
from threedident.datasets.formats.hdf5 import to_shards
from threedident.datasets.formats.png_folder import to_published
from threedident.datasets.formats.source import Source
from threedident.errors import UsageError

FORMS = ("published", "shards", "webdataset", "parquet")


def convert(
    source: Source,
    out: Path,
    form: str,
    *,
    split: str | None = None,
    shard_size: int | None = None,
    compression: str | None = None,
    command: str | None = None,
) -> int:
    """Write a dataset in another form; after an interruption, the same call goes on.

    The record of what made it goes along, so that shards written from any form can be rendered on.

    Args:
        source: the dataset, in any form.
        out: the folder to write.
        form: published, shards, webdataset or parquet.
        split: the split's name in an export; None: the dataset's own, or train.
        shard_size: images to a file; None: for shards as they were, or 100; about 240 MB for
            webdataset and parquet.
        compression: none or gzip, for shards; None: as it was, or none.
        command: the command that an import records as what made it; None: "Python".

    Returns:
        The number of images written.

    Raises:
        UsageError: an argument does not fit the form, or another process writes to `out`.
        DatasetError: `out` holds something else, an image cannot be read, or the disk is full.
        MissingExtraError: Parquet without pyarrow.
    """
    taken = {
        "published": (),
        "shards": ("shard_size", "compression"),
        "webdataset": ("split", "shard_size"),
        "parquet": ("split", "shard_size"),
    }
    if form not in FORMS:
        raise UsageError(f"form must be one of {', '.join(FORMS)}, found {form!r}")
    options = {"split": split, "shard_size": shard_size, "compression": compression}
    for name, value in options.items():
        if value is not None and name not in taken[form]:
            raise UsageError(f"the form {form} takes no {name}, found {value!r}")
    if form == "published":
        return to_published(source, out)
    if form == "shards":
        return to_shards(
            source, out, shard_size=shard_size, compression=compression, command=command
        )
    return export(source, out, form, split=split, shard_size=shard_size)
