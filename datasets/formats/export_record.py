"""The record of an export: the JSON file that describes one of its splits.

It lies beside the folder of data files, one for each split, and says what the split holds and what
made it. Readers and writers of WebDataset and Parquet start from it.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from threedident.datasets.formats.source import Origin, parse_origin
from threedident.errors import DatasetError, UsageError
from threedident.storage.atomic_files import read_json
from threedident.storage.manifest import Manifest
from threedident.storage.shard_record import Part

FORMAT = "3dident-export"
FORMAT_VERSION = 1
SPLITS = ("train", "validation", "test")
#: A dataset's own splits, and their names in exports.
SPLIT_NAMES = {"train": "train", "val": "validation", "test": "test"}
#: The folder of the data files, beside the records and the card.
DATA = "data"

_NO_CONTENT = ("mean", "std", "manifest", "parts", "wanted")
_SUFFIX = {"webdataset": "tar", "parquet": "parquet"}
_RECORD = "3dident-"


@dataclasses.dataclass(frozen=True)
class Split:
    """One split of an export.

    Attributes:
        form: webdataset or parquet.
        name: train, validation or test.
        images: the number of images.
        height, width: the size of each image, in pixels.
        images_per_file: the number of images in each file but the last.
        raw_latents_sha256, latents_sha256: the digests of the arrays as little-endian float32.
        fingerprint: the digest of the dataset's settings; None where they are not recorded.
        mean, std: the statistics of each channel, in [0, 1], as `ThreeDIdent` has them; None where
            they are not recorded.
        manifest: the settings that made the images; None where they are not recorded.
        parts: the shards that the images were in; empty where they are not recorded.
        wanted: the number of images asked for; None where it is not recorded.
    """

    form: str
    name: str
    images: int
    height: int
    width: int
    images_per_file: int
    raw_latents_sha256: str
    latents_sha256: str
    fingerprint: str | None
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    manifest: Manifest | None
    parts: tuple[Part, ...] = ()
    wanted: int | None = None

    @property
    def pairs(self) -> bool:
        """The flag that images 2i and 2i + 1 are a positive pair."""
        return self.manifest is not None and self.manifest.pair_process is not None

    @property
    def pattern(self) -> str:
        """The glob pattern of its files, from the card's folder."""
        return f"{DATA}/{self.name}-*.{_SUFFIX[self.form]}"

    def files(self) -> dict[str, range]:
        """The images of each file, by the file's name."""
        size = self.images_per_file
        starts = range(0, self.images, size)
        if self.form == "webdataset":
            names = [f"{self.name}-{i:06d}.tar" for i in range(len(starts))]
        else:
            names = [
                f"{self.name}-{i:05d}-of-{len(starts):05d}.parquet" for i in range(len(starts))
            ]
        stops = (min(start + size, self.images) for start in starts)
        return {name: range(*ends) for name, *ends in zip(names, starts, stops, strict=True)}

    def content(self) -> dict[str, Any]:
        """The values that must be the same for an interrupted export to go on."""
        names = [field.name for field in dataclasses.fields(self)]
        return {n: getattr(self, n) for n in names if n not in _NO_CONTENT}

    def generator(self) -> dict[str, Any]:
        """The values that must be the same for two splits to share a folder."""
        settings = self.manifest.settings if self.manifest else {}
        return {
            "form": self.form,
            "height": self.height,
            "width": self.width,
            "preset": settings.get("preset"),
            "mesh_sha256": settings.get("mesh_sha256"),
        }

    def as_dict(self) -> dict[str, Any]:
        """The content of the split's JSON file; without the command, which names local files."""
        manifest = self.manifest and dataclasses.replace(self.manifest, command="")
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            **self.content(),
            "mean": self.mean,
            "std": self.std,
            **Origin(manifest, self.parts, self.wanted).as_dict(),
        }


def split_name(name: str) -> str:
    """Return the name that exports give a split: val is their validation.

    Raises:
        UsageError: there is no such split.
    """
    name = SPLIT_NAMES.get(name, name)
    if name not in SPLITS:
        raise UsageError(f"split must be one of {', '.join(SPLIT_NAMES)}, found {name!r}")
    return name


def record_path(out: Path, name: str) -> Path:
    """The path of the JSON file that describes a split."""
    return out / f"{_RECORD}{name}.json"


def records(folder: Path) -> dict[str, Path]:
    """The files in which an export describes its splits, by split; empty for any other folder."""
    paths = {name: record_path(folder, name) for name in SPLITS}
    return {name: path for name, path in paths.items() if path.is_file()}


def is_record(path: Path) -> bool:
    """Check that a file has the name of one that describes a split of an export."""
    return path in records(path.parent).values()


def read_splits(folder: Path) -> dict[str, Split]:
    """Read the splits that a folder holds, or was to hold when an export was interrupted.

    Raises:
        DatasetError: one is described wrongly.
    """
    return {name: read_split(path, name) for name, path in records(folder).items()}


def read_split(path: Path, name: str) -> Split:
    """Read the split that a file describes.

    Raises:
        DatasetError: it is damaged, or of a split of another name.
    """
    split = parse_split(read_json(path), path)
    if split.name != name:
        raise DatasetError(f"{path} describes the split {split.name}: rename it")
    return split


def parse_split(data: Any, path: Path) -> Split:
    """Read a split from a JSON document.

    Args:
        data: the document.
        path: the file that it came from, for errors.

    Raises:
        DatasetError: it describes none.
    """

    def numbers(name: str) -> tuple[float, ...] | None:
        return None if data[name] is None else tuple(map(float, data[name]))

    try:
        if data["format"] != FORMAT or data["format_version"] != FORMAT_VERSION:
            raise ValueError(f"expected format {FORMAT} {FORMAT_VERSION}")
        counts = ("images", "height", "width", "images_per_file")
        if data["form"] not in _SUFFIX or data["name"] not in SPLITS:
            raise ValueError("its form or name is not known")
        origin = parse_origin(data, path, int(data["images"]))
        split = Split(
            form=data["form"],
            name=data["name"],
            **{name: int(data[name]) for name in counts},
            raw_latents_sha256=str(data["raw_latents_sha256"]),
            latents_sha256=str(data["latents_sha256"]),
            fingerprint=data["fingerprint"],
            mean=numbers("mean"),
            std=numbers("std"),
            manifest=origin.manifest,
            parts=origin.parts,
            wanted=origin.wanted,
        )
        if min(getattr(split, name) for name in counts) < 1:
            raise ValueError("expected positive counts")
        fits = split.manifest is None or split.manifest.fingerprint == split.fingerprint
        if not fits or not isinstance(split.fingerprint, str | None):
            raise ValueError("its fingerprint is not that of its settings")
    except (KeyError, TypeError, ValueError, OverflowError, DatasetError) as error:
        raise DatasetError(
            f"{path} is not what `3dident convert` writes beside an export "
            f"({type(error).__name__}: {error}): restore it, or choose another folder"
        ) from error
    return split
