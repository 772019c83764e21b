"""`FamilySource`: a dataset of 3DIdent's family, and what the readers of its layouts share."""

from __future__ import annotations

import abc
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.columns import Column
from threedident.datasets.formats.png_folder import read_image, read_images
from threedident.datasets.formats.source import Float32, Origin, Source, UInt8, check_numbers
from threedident.errors import DatasetError, UsageError
from threedident.storage.atomic_files import read_json, read_npy, write_json
from threedident.storage.shard_plan import joined, name_stretches

Int64 = npt.NDArray[np.int64]

#: What our writers say beside the layout's own files: the names of the classes.
CARD = "3dident-family.json"

#: The orders of the classes. They differ from layout to layout: a number is never a name.
SHAPES = ("teapot", "hare", "dragon", "cow", "armadillo", "horse", "head")
CITRIS_SHAPES = ("teapot", "armadillo", "hare", "cow", "dragon", "head", "horse")
BOX_SHAPES = (*CITRIS_SHAPES, "spot")

_LARGEST = 2**62  # bytes: no array is so large, and no product overflows below it


class FamilySource(Source):
    """A dataset in a published layout of the family.

    Attributes:
        columns: the variables, in the order of the columns of `variables`.
        variables: the values, (N, D) float32; of a discrete variable, the numbers of its classes.
        pairs: the image numbers of pairs, (P, 2); None where the images are no pairs.
        triplets: the image numbers of triplets, (T, 3): the third image has each variable from the
            first or the second, as `mask` says; None where there are none.
        mask: 1 where the third image of a triplet has a variable from the second, (T, D) uint8.
        targets: 1 where a variable was intervened upon, (N, D) uint8; None where it is not known.
        captions: a caption an image; None where there are none.
        caption_variables: what is known of the captions beside the images' variables, by name.
    """

    columns: tuple[Column, ...]
    variables: Float32
    pairs: Int64 | None = None
    triplets: Int64 | None = None
    mask: UInt8 | None = None
    targets: UInt8 | None = None
    captions: tuple[str, ...] | None = None
    caption_variables: Mapping[str, Sequence[Any]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the variables."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column:
        """A variable.

        Raises:
            UsageError: there is none of that name.
        """
        for column in self.columns:
            if column.name == name:
                return column
        raise UsageError(f"{self.root} has no variable {name!r}: it has {', '.join(self.names)}")

    def values(self, name: str) -> npt.NDArray[Any]:
        """The values of a variable, (N,): numbers, or the names of classes.

        Raises:
            UsageError: there is no such variable.
        """
        column = self.column(name)
        numbers = self.variables[:, self.names.index(name)]
        if column.kind != "discrete":
            return numbers
        return np.array(column.values)[numbers.astype(np.int64)]

    def facts(self) -> dict[str, Any]:
        """What the layout says beside images and latents, as plain data for `3dident info`."""
        rates = None
        if self.targets is not None and len(self) > 1:
            shares = self.targets[1:].mean(0)
            rates = {name: float(share) for name, share in zip(self.names, shares, strict=True)}
        return {
            "variables": [
                {
                    "name": column.name,
                    "kind": column.kind,
                    "range": column.range and list(column.range),
                    "values": list(column.values),
                    "counts": self._counts(k, column),
                }
                for k, column in enumerate(self.columns)
            ],
            "pairs": None if self.pairs is None else len(self.pairs),
            "triplets": None if self.triplets is None else len(self.triplets),
            "intervention_rates": rates,
            "captions": None if self.captions is None else len(self.captions),
        }

    def _counts(self, k: int, column: Column) -> list[int] | None:
        if column.kind != "discrete":
            return None
        numbers = self.variables[:, k].astype(np.int64)
        return [int(n) for n in np.bincount(numbers, minlength=len(column.values))]

    @abc.abstractmethod
    def files(self) -> list[Path]:
        """The files that it is made of."""


class PngFamilySource(FamilySource):
    """A dataset of the family whose images are PNG files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.origin = Origin()
        self._paths: list[Path] = []

    def _open_images(self, paths: list[Path]) -> None:
        self._paths = paths
        self.shape = read_image(paths[0]).shape

    def read(self, indices: Sequence[int], out: UInt8) -> None:
        """Read images into an array (k, H, W, 3)."""
        read_images(self._paths, check_numbers(indices, len(self)), self.shape, out)

    def files(self) -> list[Path]:
        """The files that it is made of."""
        return [path for path in self.root.rglob("*") if path.is_file()]


class ModelSource(FamilySource):
    """A dataset of a causal model, as one of the family: to be written in a published layout."""

    def __init__(self, source: Source) -> None:
        """Take the variables of a dataset.

        Raises:
            UsageError: it is of no causal model.
        """
        manifest, draws = source.manifest, source.draws
        sampling = manifest.sampling if manifest else None
        if sampling is None or draws is None:
            raise UsageError(f"{source.root} is not of a causal model")
        self._source = source
        self.form, self.root, self.shape = source.form, source.root, source.shape
        self.origin = source.origin
        self.raw_latents, self.latents = source.raw_latents, source.latents
        self.variables = draws.variables
        self.columns = tuple(
            Column(each.name, each.kind, None if each.values else each.range, each.values)
            for each in sampling.model.variables
        )
        if sampling.frames == 2 and sampling.group != "sequence":
            count = len(source) // 2
            self.pairs = np.arange(2 * count, dtype=np.int64).reshape(count, 2)
        if sampling.group == "sequence" and draws.item[-1] == draws.item[0]:
            self.targets = draws.targets

    def read(self, indices: Sequence[int], out: UInt8) -> None:
        """Read images into an array (k, H, W, 3)."""
        self._source.read(indices, out)

    def files(self) -> list[Path]:
        """None: they are the dataset's own."""
        return []


def numbered_images(folder: Path, count: int, whose: str) -> list[Path]:
    """The images of a folder, `0.png` or `000000.png` on, in the order of their numbers.

    Args:
        folder: the folder.
        count: the number of images there must be.
        whose: the name of the file that says so, for errors.

    Raises:
        DatasetError: one is missing, or one too many is there.
    """
    if not folder.is_dir():
        raise DatasetError(f"{folder} is missing: the folder is incomplete, fetch it again")
    by_number: dict[int, Path] = {}
    for path in folder.glob("*.png"):
        if not re.fullmatch(r"[0-9]{1,12}", path.stem):
            raise DatasetError(f"{path} is no image of the layout: their names are numbers")
        if by_number.setdefault(int(path.stem), path) != path:
            raise DatasetError(f"{path} and {by_number[int(path.stem)].name} are both one image")
    missing = joined((i, i) for i in range(count) if i not in by_number)
    if missing:
        raise DatasetError(
            f"{folder} lacks {name_stretches(missing)}: {whose} has {count} rows. The folder is "
            "incomplete, fetch it again"
        )
    if len(by_number) > count:
        raise DatasetError(
            f"{folder} holds {len(by_number)} images, but {whose} has {count} rows: "
            f"{by_number[max(by_number)].name} is one too many"
        )
    return [by_number[i] for i in range(count)]


def read_rows(path: Path, columns: int, low: float = -np.inf, high: float = np.inf) -> Float32:
    """Read an array of numbers from a .npy file, (N, columns), as float32.

    Args:
        path: the file.
        columns: the number of columns there must be.
        low: the smallest value that is allowed, up to rounding.
        high: the largest.

    Raises:
        DatasetError: it is missing, of another shape, or a value does not fit.
    """
    try:
        array = read_npy(path)
    except ValueError as error:
        raise DatasetError(f"cannot read {error}: the layout has it, fetch it again") from error
    return check_rows(array, str(path), columns, low, high)


def check_rows(
    array: npt.NDArray[Any], where: str, columns: int, low: float = -np.inf, high: float = np.inf
) -> Float32:
    """Check an array (N, columns) of finite numbers from low to high; return it as float32.

    Raises:
        DatasetError: it does not fit.
    """
    if array.ndim != 2 or array.shape[1] != columns or not len(array):
        raise DatasetError(f"{where}: expected shape (N, {columns}), found {array.shape}")
    if array.dtype.kind not in "fiu":
        raise DatasetError(f"{where}: expected numbers, found dtype {array.dtype}")
    margin = 1e-5 * max(1.0, abs(high)) if np.isfinite(high) else 0.0
    bad = ~np.isfinite(array) | (array < low - margin) | (array > high + margin)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise DatasetError(
            f"{where}: expected finite numbers from {low:g} to {high:g}, found "
            f"{array[row, column]} in row {row}, column {column}"
        )
    return array.astype(np.float32)


def check_classes(array: npt.NDArray[Any], where: str, count: int) -> None:
    """Check that numbers (N,) are those of `count` classes.

    Raises:
        DatasetError: one is not.
    """
    bad = (array != np.round(array)) | (array < 0) | (array >= count)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise DatasetError(
            f"{where}: expected whole numbers from 0 to {count - 1}, found {array[row]} in row "
            f"{row}"
        )


def read_classes(
    folder: Path, default: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """The names of the classes of each discrete variable: the layout's, or those of our card.

    Raises:
        DatasetError: the card does not fit.
    """
    names, path = dict(default), folder / CARD
    if not path.exists():
        return names
    data = read_json(path)
    classes = data.get("classes") if isinstance(data, dict) else None
    if not isinstance(classes, dict):
        raise DatasetError(f"{path} is damaged: it names no classes")
    for name, values in classes.items():
        fits = isinstance(values, list) and all(isinstance(v, str) and v for v in values)
        if name not in names or not fits or len(values) != len(set(values)):
            raise DatasetError(f"{path} is damaged: the classes of {name!r:.60} do not fit")
        names[name] = tuple(values)
    return names


def write_classes(folder: Path, classes: Mapping[str, Sequence[str]]) -> None:
    """Write the card that names the classes, for readers of ours.

    Raises:
        DatasetError: it cannot be written.
    """
    write_json(folder / CARD, {"classes": {name: list(each) for name, each in classes.items()}})


def require_empty(out: Path) -> None:
    """Make a folder, and check that it is empty.

    Raises:
        DatasetError: it is not, or cannot be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        held = sorted(path.name for path in out.iterdir())
    except OSError as error:
        raise DatasetError(f"cannot write {out}: {error.strerror}") from error
    if held:
        raise DatasetError(f"{out} holds {held[0]}: choose another --out, or empty it")
