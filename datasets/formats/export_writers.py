"""Exports for other tools: WebDataset tar files, or Parquet with image bytes, and a card.

    OUT/README.md                              the dataset card, written last
    OUT/3dident-train.json                     what the split holds and what made it
    OUT/data/train-000000.tar                  or
    OUT/data/train-00000-of-00010.parquet

A data file that is there is whole: it is written under another name and renamed. The same
dataset gives the same bytes.
"""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from threedident.datasets.checking import require_sound
from threedident.datasets.formats.dataset_card import (
    DATA,
    SPLIT_NAMES,
    SPLITS,
    Split,
    card,
    is_unchanged,
    read_splits,
    record_path,
    split_name,
)
from threedident.datasets.formats.exports import ExportSource, parquet_schema
from threedident.datasets.formats.sources import Source, read_images
from threedident.errors import DatasetError, MissingExtraError, UsageError
from threedident.factors import NUM_FACTORS
from threedident.latents import latents_digest
from threedident.progress import Progress
from threedident.storage.atomic_files import (
    check_space,
    explaining_write_errors,
    remove_leftovers,
    replacing,
    write_json,
)
from threedident.storage.manifest import differences

CARD = "README.md"
#: Images to a row group of Parquet: 2.4 MB at 224 x 224. Even, so that it divides no pair.
ROW_GROUP = 100

_MOST_PER_FILE = 10_000  # 240 MB at 224 x 224
_TRIED = 16  # images whose PNGs say how much room all of them need
_OVERHEAD = {"webdataset": 4096, "parquet": 128}  # bytes an image, beside the PNG


def export(
    source: Source,
    out: Path,
    form: str,
    *,
    split: str | None = None,
    shard_size: int | None = None,
) -> int:
    """Writes a dataset as one split of an export; finished files are kept.

    Args:
        source: the dataset.
        out: the folder; it may hold other splits of the same generator.
        form: webdataset or parquet.
        split: train, validation (or val) or test; None: the dataset's own, or train.
        shard_size: images to a file; None: those of the files that are there, or about 240 MB.

    Returns:
        How many images the split holds.

    Raises:
        MissingExtraError: Parquet without pyarrow.
        UsageError: an argument does not fit.
        DatasetError: `out` holds something else, an image cannot be read, or the disk is full.
    """
    if form not in _OVERHEAD:
        raise UsageError(f"form must be one of {', '.join(_OVERHEAD)}, found {form!r}")
    write = _parquet_writer() if form == "parquet" else _write_tar
    with explaining_write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    splits = read_splits(out)
    made = _describe(source, form, split, shard_size, splits)
    _refuse_other(out, made, splits)
    folder = out / DATA
    with explaining_write_errors(folder):
        folder.mkdir(exist_ok=True)
    if made.name not in splits:
        # Before the first file, so that what an interrupted export has left is not taken for a
        # part of another dataset.
        write_json(record_path(out, made.name), made.as_dict())
        splits[made.name] = made
    remove_leftovers(folder)
    todo = {name: part for name, part in made.files().items() if not (folder / name).exists()}
    left = sum(map(len, todo.values()))
    if left:
        require_sound(source)
        _check_room(source, folder, left, form)
    with Progress("writing", made.images, finished=made.images - left) as progress:
        for name, part in todo.items():
            write(folder / name, source, part, progress)
    _write_card(out, [splits[name] for name in SPLITS if name in splits])
    return made.images


def split_of(source: Source, name: str | None = None) -> str:
    """What an export calls a dataset: by this name, or its own, or train.

    Raises:
        UsageError: there is no such split.
    """
    if name is not None:
        return split_name(name)
    if isinstance(source, ExportSource):
        return source.split.name
    own = source.manifest.settings["split"] if source.manifest else None
    return SPLIT_NAMES.get(str(own), "train")


def _describe(
    source: Source, form: str, name: str | None, shard_size: int | None, splits: dict[str, Split]
) -> Split:
    """The split that a dataset makes."""
    manifest, name = source.manifest, split_of(source, name)
    height, width = source.shape[:2]
    if shard_size is None:
        fitting = round(_MOST_PER_FILE * 224**2 / (height * width))
        shard_size = max(2, min(_MOST_PER_FILE, fitting // 2 * 2))
        if name in splits:
            shard_size = splits[name].images_per_file
    elif shard_size < 1:
        raise UsageError(f"--shard-size must be at least 1, found {shard_size}")
    stats = source.stats() or {"mean": None, "std_within_image": None}
    mean, std = (stats[key] and tuple(stats[key]) for key in ("mean", "std_within_image"))
    made = Split(
        form=form,
        name=name,
        images=len(source),
        height=height,
        width=width,
        images_per_file=shard_size,
        raw_latents_sha256=latents_digest(source.raw_latents),
        latents_sha256=latents_digest(source.latents),
        fingerprint=manifest.fingerprint if manifest else None,
        mean=mean,
        std=std,
        manifest=manifest,
        parts=tuple(source.parts()),
        wanted=source.wanted(),
    )
    if made.pairs and shard_size % 2:
        raise UsageError(
            f"--shard-size {shard_size} divides a pair: images 2i and 2i + 1 belong together, so "
            "choose an even number"
        )
    return made


def _refuse_other(out: Path, made: Split, splits: dict[str, Split]) -> None:
    """Checks that a split may go into a folder that holds some splits already.

    Raises:
        DatasetError: it may not.
    """
    for name, split in splits.items():
        same = name == made.name
        found = (
            differences(split.content(), made.content())
            if same
            else differences(split.generator(), made.generator())
        )
        if found:
            what = "another dataset, or other files," if same else "what does not go with this"
            lines = [f"  {key}: there {a!r}, now {b!r}" for key, a, b in found]
            raise DatasetError(
                f"{out} holds {what} as its split {name}:\n"
                + "\n".join(lines)
                + "\nChoose another --out"
                + (" or --split" if same else "")
            )
    strangers = _visible(out / DATA) - {name for s in splits.values() for name in s.files()}
    if not splits:
        strangers |= _visible(out) - {DATA}
    if strangers:
        raise DatasetError(
            f"{out} holds {min(strangers)}, no part of an export: choose another --out"
        )


def _visible(folder: Path) -> set[str]:
    """What a folder holds, but for temporary files and what git and the Hub's client keep."""
    if not folder.exists():
        return set()
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def _check_room(source: Source, folder: Path, left: int, form: str) -> None:
    numbers = np.linspace(0, len(source) - 1, min(len(source), _TRIED)).round().astype(int)
    sizes = [len(_png(source.image(int(number)))) for number in numbers]
    needed = left * (float(np.mean(sizes)) + _OVERHEAD[form])
    check_space(folder, needed, "Make room, or choose another --out")


def _write_card(out: Path, splits: list[Split]) -> None:
    path, text = out / CARD, card(splits)
    with contextlib.suppress(FileNotFoundError):
        if not is_unchanged(path.read_text("utf-8", errors="replace")):
            Progress.print(
                f"{path} was edited and stays as it is; to have it written anew, remove it and run "
                "the same command again"
            )
            return
    with replacing(path) as temporary:
        temporary.write_text(text, "utf-8")


def _png(pixels: npt.NDArray[np.uint8]) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, format="PNG")
    return content.getvalue()


def _write_tar(path: Path, source: Source, part: range, progress: Progress) -> None:
    with (
        replacing(path) as temporary,
        tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for index in part:
            members = {
                "png": _png(source.image(index)),
                "raw_latents.npy": _npy(source.raw_latents[index]),
                "latents.npy": _npy(source.latents[index]),
            }
            for suffix, content in members.items():
                info = tarfile.TarInfo(f"{index:08d}.{suffix}")  # no date, no owner
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            progress.advance()


def _npy(array: npt.NDArray[np.float32]) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def _parquet_writer() -> Callable[[Path, Source, range, Progress], None]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "export", "writing Parquet") from error

    schema = parquet_schema().with_metadata({"huggingface": json.dumps(_FEATURES)})

    def vectors(array: npt.NDArray[np.float32]) -> Any:
        return pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()), NUM_FACTORS)

    def write(path: Path, source: Source, part: range, progress: Progress) -> None:
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
                images = read_images(source, rows)
                window = slice(rows.start, rows.stop)
                columns = {
                    "image": pa.array(
                        [
                            {"bytes": _png(pixels), "path": f"{index:08d}.png"}
                            for index, pixels in zip(rows, images, strict=True)
                        ],
                        schema.field("image").type,
                    ),
                    "index": pa.array(rows, schema.field("index").type),
                    "raw_latents": vectors(source.raw_latents[window]),
                    "latents": vectors(source.latents[window]),
                }
                writer.write_table(pa.table(columns, schema=schema))
                progress.advance(len(rows))

    return write


_VECTOR = {
    "feature": {"dtype": "float32", "_type": "Value"},
    "length": NUM_FACTORS,
    "_type": "Sequence",  # List, since datasets 4; they read either
}
#: By this, Hugging Face `datasets` knows that the structs are images.
_FEATURES = {
    "info": {
        "features": {
            "image": {"_type": "Image"},
            "index": {"dtype": "int64", "_type": "Value"},
            "raw_latents": _VECTOR,
            "latents": _VECTOR,
        }
    }
}
