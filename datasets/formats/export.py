"""Exports for other tools: a folder of splits, in WebDataset or Parquet files, and a card.

    OUT/README.md                              the dataset card, written last
    OUT/3dident-train.json                     the record of a split: its content and its origin
    OUT/data/train-000000.tar                  or
    OUT/data/train-00000-of-00010.parquet

A data file that is there is whole: it is written under another name and renamed. The same
dataset gives the same bytes. Here is what both forms share; their files are read and written in
`webdataset` and `parquet`.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from threedident.datasets.formats import dataset_card
from threedident.datasets.formats.checks import require_sound
from threedident.datasets.formats.export_record import (
    DATA,
    SPLIT_NAMES,
    SPLITS,
    Split,
    read_split,
    read_splits,
    record_path,
    records,
    split_name,
)
from threedident.datasets.formats.png_folder import decode_image, encode_image
from threedident.datasets.formats.source import Float32, Origin, Source, UInt8, check_numbers
from threedident.errors import DatasetError, UsageError
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
from threedident.storage.directory import NEARLY
from threedident.storage.manifest import Manifest, differences
from threedident.storage.shard_plan import joined, name_stretches

CARD = "README.md"

_LEAST_BYTES = 140  # that an image takes in a file: a PNG, and two vectors
_MOST_PER_FILE = 10_000  # images: 240 MB at 224 x 224
_TRIED = 16  # images whose PNGs say how much room all of them need
_OVERHEAD = {"webdataset": 4096, "parquet": 128}  # bytes an image, beside the PNG


class ExportSource(Source):
    """A split of an export."""

    def __init__(self, folder: Path, split: Split) -> None:
        self.root = record_path(folder, split.name)
        self.origin = Origin(split.manifest, split.parts, split.wanted)
        self.folder = folder
        self.form = split.form
        self.split = split
        self.shape = (split.height, split.width, 3)
        self.parts_by_file = {
            folder / DATA / name: part for name, part in _files(split, folder).items()
        }
        lengths = vector_lengths(split.manifest)
        self.vectors = {
            name: np.empty((split.images, length), np.float32) for name, length in lengths.items()
        }
        self.raw_latents, self.latents = self.vectors["raw_latents"], self.vectors["latents"]
        for path, part in self.parts_by_file.items():
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
        if self.draws is not None:
            for name in ("variables", "targets"):
                expected = getattr(self.draws, name)
                if not np.allclose(expected, self.vectors[name], rtol=0, atol=NEARLY):
                    raise DatasetError(
                        f"{folder / DATA}: the {name} of the split {split.name} are not those that "
                        f"the model in {self.root} gives: damaged files; write it again"
                    )
        self.image(0)  # is there, and of the shape that is promised

    def files(self) -> list[Path]:
        """The files that it is made of."""
        return list(self.parts_by_file)

    @abc.abstractmethod
    def _index(self, path: Path, part: range) -> None:
        """Read the latents of a file's images, and find where these lie."""

    @abc.abstractmethod
    def _encoded(self, path: Path, numbers: Sequence[int]) -> list[bytes]:
        """Read the PNGs of some images of a file."""

    def read(self, indices: Sequence[int], out: UInt8) -> None:
        """Read images into an array (k, H, W, 3)."""
        numbers = check_numbers(indices, len(self))
        rows: dict[Path, list[int]] = {}
        paths = list(self.parts_by_file)
        for row, number in enumerate(numbers):
            rows.setdefault(paths[number // self.split.images_per_file], []).append(row)
        for path, of_file in rows.items():
            encoded = self._encoded(path, [numbers[row] for row in of_file])
            for row, content in zip(of_file, encoded, strict=True):
                where = f"image {numbers[row]} in {path}"
                out[row] = decode_image(content, where, self.shape)

    def stats(self) -> dict[str, Any] | None:
        """The statistics of the shards that the images were in, or what little is recorded."""
        split, stats = self.split, super().stats()
        if stats is None and split.mean and split.std:
            return {
                "images": len(self),
                "mean": list(split.mean),
                "std_within_image": list(split.std),
            }
        return stats


def vector_lengths(manifest: Manifest | None) -> dict[str, int]:
    """The vectors of float32 that every image of an export has: their names and lengths.

    Args:
        manifest: the settings of the dataset; None where they are not recorded.
    """
    lengths = {"raw_latents": NUM_FACTORS, "latents": NUM_FACTORS}
    if manifest is not None and manifest.variable_count is not None:
        lengths["variables"] = lengths["targets"] = manifest.variable_count
    return lengths


def vectors_of(source: Source) -> dict[str, Float32]:
    """The vectors that an export of a dataset holds, by their names: (N, n) float32 each."""
    vectors = {"raw_latents": source.raw_latents, "latents": source.latents}
    if source.draws is not None:
        vectors["variables"] = source.draws.variables
        vectors["targets"] = source.draws.targets.astype(np.float32)
    return vectors


def _files(split: Split, folder: Path) -> dict[str, range]:
    """The images of each file, by its name; all files are there, and large enough for them.

    Raises:
        DatasetError: they are not.
    """
    sizes = {path.name: path.stat().st_size for path in (folder / DATA).glob(f"{split.name}-*")}
    expected = -(-split.images // split.images_per_file)
    if expected > 10 * len(sizes) + 1000:  # more names than one wants to make
        raise DatasetError(
            f"{folder / DATA} holds {len(sizes)} of the {expected} files of the split {split.name}"
        )
    files = split.files()
    lost = [name for name in files if name not in sizes]
    if lost:
        missing = joined((files[name].start, files[name].stop - 1) for name in lost)
        raise DatasetError(
            f"{folder} lacks {name_stretches(missing)} of the split {split.name}: "
            f"{DATA}/{lost[0]} is missing; the `3dident convert` that wrote it goes on with it"
        )
    for name, part in files.items():
        if sizes[name] < len(part) * _LEAST_BYTES:
            raise DatasetError(
                f"{folder / DATA / name} has {sizes[name]} bytes, too few for {len(part)} images: "
                "it is cut short"
            )
    return files


def open_export(path: Path, split: str | None = None) -> ExportSource:
    """Open one split of an export.

    Args:
        path: the export's folder, or the JSON file of a split.
        split: train, val or test; None where there is one.

    Raises:
        UsageError: there is no such split, or there are several and none is named.
        DatasetError: the export is damaged.
        MissingExtraError: Parquet without pyarrow.
    """
    from threedident.datasets.formats.parquet import ParquetSource
    from threedident.datasets.formats.webdataset import TarSource

    folder = path.parent if path.is_file() else path
    splits = records(folder)
    wanted = None if split is None else split_name(split)
    if path.is_file():
        named = next(name for name, record in splits.items() if record == path)
        if wanted not in (None, named):
            raise UsageError(f"{path} is the split {named}, asked for {wanted}")
        wanted = named
    if wanted is None:
        if len(splits) > 1:
            raise UsageError(
                f"{folder} holds the splits {', '.join(splits)}: choose one with --split, or name "
                f"its file, such as {record_path(folder, list(splits)[-1])}"
            )
        wanted = next(iter(splits))
    if wanted not in splits:
        raise UsageError(f"{folder} has no split {wanted}: it holds {', '.join(splits)}")
    split_record = read_split(splits[wanted], wanted)
    kind = {"webdataset": TarSource, "parquet": ParquetSource}[split_record.form]
    return kind(folder, split_record)


def export(
    source: Source,
    out: Path,
    form: str,
    *,
    split: str | None = None,
    shard_size: int | None = None,
) -> int:
    """Write a dataset as one split of an export; finished files are kept.

    Args:
        source: the dataset.
        out: the folder; it may hold other splits of the same generator.
        form: webdataset or parquet.
        split: train, validation (or val) or test; None: the dataset's own, or train.
        shard_size: images to a file; None: those of the files that are there, or about 240 MB.

    Returns:
        The number of images in the split.

    Raises:
        MissingExtraError: Parquet without pyarrow.
        UsageError: an argument does not fit.
        DatasetError: `out` holds something else, an image cannot be read, or the disk is full.
    """
    if form not in _OVERHEAD:
        raise UsageError(f"form must be one of {', '.join(_OVERHEAD)}, found {form!r}")
    write = _writer(form)
    with explaining_write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    splits = read_splits(out)
    new = _describe(source, form, split, shard_size, splits)
    _refuse_other(out, new, splits)
    folder = out / DATA
    with explaining_write_errors(folder):
        folder.mkdir(exist_ok=True)
    if new.name not in splits:
        # Before the first file, so that what an interrupted export has left is not taken for a
        # part of another dataset.
        write_json(record_path(out, new.name), new.as_dict())
        splits[new.name] = new
    remove_leftovers(folder)
    todo = {name: part for name, part in new.files().items() if not (folder / name).exists()}
    left = sum(map(len, todo.values()))
    if left:
        require_sound(source)
        _check_room(source, folder, left, form)
    with Progress("writing", new.images, finished=new.images - left) as progress:
        for name, part in todo.items():
            write(folder / name, source, part, progress)
    _write_card(out, [splits[name] for name in SPLITS if name in splits])
    return new.images


def _writer(form: str) -> Callable[[Path, Source, range, Progress], None]:
    """The function that writes a file of a form."""
    if form == "parquet":
        from threedident.datasets.formats.parquet import parquet_writer

        return parquet_writer()
    from threedident.datasets.formats.webdataset import write_tar

    return write_tar


def split_of(source: Source, name: str | None = None) -> str:
    """The name of a dataset's split in an export: this one, or its own, or train.

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
    """The split that an export of a dataset will be."""
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
    new = Split(
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
    if new.pairs and shard_size % 2:
        raise UsageError(
            f"--shard-size {shard_size} divides a pair: images 2i and 2i + 1 belong together, so "
            "choose an even number"
        )
    return new


def _refuse_other(out: Path, new: Split, splits: dict[str, Split]) -> None:
    """Check that a split may go into a folder that holds some splits already.

    Raises:
        DatasetError: it may not.
    """
    for name, split in splits.items():
        same = name == new.name
        found = (
            differences(split.content(), new.content())
            if same
            else differences(split.generator(), new.generator())
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
    """The names in a folder, except temporary ones and those of git and of the Hub's client."""
    if not folder.exists():
        return set()
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def _check_room(source: Source, folder: Path, left: int, form: str) -> None:
    numbers = np.linspace(0, len(source) - 1, min(len(source), _TRIED)).round().astype(int)
    sizes = [len(encode_image(source.image(int(number)))) for number in numbers]
    needed = left * (float(np.mean(sizes)) + _OVERHEAD[form])
    check_space(folder, needed, "Make room, or choose another --out")


def _write_card(out: Path, splits: list[Split]) -> None:
    path, text = out / CARD, dataset_card.card(splits)
    with contextlib.suppress(FileNotFoundError):
        if not dataset_card.is_unchanged(path.read_text("utf-8", errors="replace")):
            Progress.print(
                f"{path} was edited and stays as it is; to have it written anew, remove it and run "
                "the same command again"
            )
            return
    with replacing(path) as temporary:
        temporary.write_text(text, "utf-8")
