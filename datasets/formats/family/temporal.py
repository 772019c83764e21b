"""Temporal Causal3DIdent as published: one .npz file a split, frame after frame.

    train.npz   imgs (N, H, W, C) uint8, of which the first three channels count
                raw_latents (N, 10)   shape_latents (N, 2): shape, material
                interventions (N - 1, 12): row t is of the step from frame t to t + 1
    test_triplets.npz   imgs (T, 3, H, W, C), raw_latents (T, 3, 10), shape_latents (T, 3, 2)
                interventions (T, 12): 1 where the third image has a variable from the second

Positions lie in [-2, 2], all else in [0, 2 pi). Where the shapes are others than the published
ones, our writer adds their names, in the order of their numbers: shape_names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from threedident.columns import Column
from threedident.datasets.formats.family.layout import (
    CITRIS_SHAPES,
    FamilySource,
    check_classes,
    check_rows,
)
from threedident.datasets.formats.family.npz import Npz
from threedident.datasets.formats.source import Origin, UInt8, check_numbers
from threedident.errors import DatasetError, UsageError
from threedident.factors import FACTOR_NAMES, NUM_FACTORS
from threedident.progress import Progress
from threedident.storage.atomic_files import explaining_write_errors, replacing

FORM = "temporal-causal3dident"
SPLITS = {"train": "train.npz", "val": "val.npz", "test": "test.npz"}
MATERIALS = ("rubber", "crystal", "metal")
NAMES = (*FACTOR_NAMES, "shape", "material")
_TURN = 2 * math.pi
_POSITION = 2.0  # the largest absolute value of x, y and z
_ROUNDING = 1e-5  # m or rad: a few roundings of float32
_READ_AT_ONCE = 256


def is_layout(root: Path) -> bool:
    """Whether a folder has a split in this layout."""
    return any((root / name).is_file() for name in SPLITS.values())


class TemporalSource(FamilySource):
    """One file of Temporal Causal3DIdent: a sequence of frames, or triplets."""

    form = FORM

    def __init__(self, path: Path) -> None:
        self.root = path
        self.origin = Origin()
        self._npz = Npz(path)
        images = self._npz.member("imgs")
        if images.dtype != np.uint8 or len(images.shape) not in (4, 5) or images.shape[-1] < 3:
            raise DatasetError(
                f"{path}: imgs is {images.shape} of {images.dtype}, expected (N, H, W, C) or "
                "(T, 3, H, W, C) of uint8, with at least 3 channels"
            )
        *counts, height, width, channels = images.shape
        if len(counts) == 2 and counts[1] != 3:
            raise DatasetError(f"{path}: imgs is {images.shape}, expected three images a triplet")
        count = math.prod(counts)
        if not count or not height or not width:
            raise DatasetError(f"{path}: imgs is {images.shape}: there is no image")
        self.shape = (height, width, 3)
        self._stored = (height, width, channels)
        self._offset = images.offset
        self._images: UInt8 | None = None
        latents = self._rows("raw_latents", counts, NUM_FACTORS)
        shapes = self._rows("shape_latents", counts, 2)
        check_rows(latents[:, :3], f"{path}: raw_latents", 3, -_POSITION, _POSITION)
        check_rows(latents[:, 3:], f"{path}: raw_latents from column 3", 7, 0, _TURN)
        names = self._shape_names()
        for k, values in enumerate((names, MATERIALS)):
            check_classes(shapes[:, k], f"{path}: shape_latents, column {k}", len(values))
        self.latents = latents.astype(np.float32)
        self.raw_latents = np.clip(_to_raw(latents), -1, 1).astype(np.float32)
        self.columns = (
            *(Column(name, range=(-_POSITION, _POSITION)) for name in FACTOR_NAMES[:3]),
            *(Column(name, "circular", (0.0, _TURN)) for name in FACTOR_NAMES[3:]),
            Column("shape", "discrete", values=names),
            Column("material", "discrete", values=MATERIALS),
        )
        self.variables = np.column_stack([latents, shapes]).astype(np.float32)
        self._read_interventions(counts)

    def _shape_names(self) -> tuple[str, ...]:
        if "shape_names" not in self._npz.members:
            return CITRIS_SHAPES
        array = self._npz.array("shape_names")
        names = tuple(array.tolist()) if array.ndim == 1 and array.dtype.kind == "U" else ()
        if not 0 < len(names) == len(set(names)):
            raise DatasetError(f"{self.root}: shape_names are not the names of classes")
        return names

    def _rows(self, name: str, counts: Sequence[int], columns: int) -> npt.NDArray[np.float64]:
        member = self._npz.member(name)
        if member.shape != (*counts, columns):
            raise DatasetError(
                f"{self.root}: {name} is {member.shape}, expected {(*counts, columns)}, as imgs "
                f"has {counts[0]} rows"
            )
        array = self._npz.array(name).reshape(-1, columns)
        return check_rows(array, f"{self.root}: {name}", columns).astype(np.float64)

    def _read_interventions(self, counts: Sequence[int]) -> None:
        """Read the targets of a sequence, or the mask of triplets."""
        name, count = "interventions", counts[0]
        if name not in self._npz.members:
            raise DatasetError(f"{self.root} has no array interventions: the file is incomplete")
        array = self._npz.array(name)
        rows = (count,) if len(counts) == 2 else (count - 1, count)
        if array.ndim != 2 or array.shape[1] != len(NAMES) or array.shape[0] not in rows:
            raise DatasetError(
                f"{self.root}: {name} is {array.shape}, expected ({rows[0]}, {len(NAMES)})"
            )
        if array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
            raise DatasetError(f"{self.root}: {name} holds other values than 0 and 1")
        if len(counts) == 2:
            self.mask = array.astype(np.uint8)
            self.triplets = np.arange(3 * count, dtype=np.int64).reshape(count, 3)
            return
        self.targets = np.zeros((count, len(NAMES)), np.uint8)
        self.targets[1:] = array[: count - 1]

    def read(self, indices: Sequence[int], out: UInt8) -> None:
        """Read images into an array (k, H, W, 3)."""
        numbers = check_numbers(indices, len(self))
        if self._offset is None:
            if self._images is None:  # compressed: no image can be read alone
                self._images = self._npz.array("imgs").reshape(-1, *self._stored)
            out[:] = self._images[numbers, :, :, :3]
            return
        size = math.prod(self._stored)
        try:
            with self.root.open("rb", buffering=0) as file:
                for row, number in enumerate(numbers):
                    file.seek(self._offset + number * size)
                    content = file.read(size)
                    if len(content) < size:
                        raise DatasetError(f"{self.root} is cut short at image {number}")
                    pixels = np.frombuffer(content, np.uint8).reshape(self._stored)
                    out[row] = pixels[:, :, :3]
        except OSError as error:
            raise DatasetError(f"cannot read {self.root}: {error.strerror}") from error

    def files(self) -> list[Path]:
        """The file."""
        return [self.root]


def _to_raw(latents: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Raw values, in [-1, 1], of rows in the layout's units."""
    raw = latents / math.pi - 1
    raw[:, :3] = latents[:, :3] / _POSITION
    return raw


def write_temporal(source: FamilySource, out: Path) -> int:
    """Write a sequence of frames as an .npz file of this layout.

    Args:
        source: the dataset, whose images are the frames of one sequence.
        out: the file to write, which ends in .npz.

    Returns:
        The number of frames.

    Raises:
        UsageError: the variables do not fit the layout.
        DatasetError: the file exists, or cannot be written.
    """
    if out.suffix != ".npz":
        raise UsageError(f"expected a file that ends in .npz, found {out}")
    if out.exists():
        raise DatasetError(f"{out} exists already: choose another --out")
    count, targets = len(source), source.targets
    if targets is None:
        raise UsageError(
            f"{source.root} is not one sequence with known intervention targets, which the layout "
            "holds: `3dident render --model NAME --steps T --n 1` renders one"
        )
    latents = source.latents.astype(np.float32)
    shapes = np.zeros((count, 2), np.uint8)
    if source.preset is not None and "material" not in source.names:
        shapes[:, 1] = MATERIALS.index(source.preset.material)
    interventions = np.zeros((count - 1, len(NAMES)), np.int64)
    names: tuple[str, ...] = CITRIS_SHAPES
    if source.preset is not None and "shape" not in source.names:
        shape = Path(source.preset.shape).stem
        names = CITRIS_SHAPES if shape in CITRIS_SHAPES else (shape,)
        shapes[:, 0] = names.index(shape)
    for k, column in enumerate(source.columns):
        if column.name not in NAMES:
            raise UsageError(
                f"{source.root} has the variable {column.name}, which the layout has not: "
                f"{', '.join(NAMES)}"
            )
        place = NAMES.index(column.name)
        interventions[:, place] = targets[1:, k]
        if place < NUM_FACTORS:
            own = source.variables[:, k]
            if np.allclose(own, latents[:, place], rtol=0, atol=_ROUNDING):
                latents[:, place] = own  # in its units, whose last bits the scene can lose
            continue
        order: tuple[str, ...] = MATERIALS
        if column.name == "shape":
            order = names = (
                CITRIS_SHAPES if set(column.values) <= set(CITRIS_SHAPES) else column.values
            )
        unknown = set(column.values) - set(order)
        if unknown:
            raise UsageError(
                f"{source.root}: {column.name} has the class {min(unknown)}, which the layout has "
                f"not: {', '.join(order)}"
            )
        values = source.values(column.name)
        shapes[:, place - NUM_FACTORS] = [order.index(value) for value in values]
    _check_scene(source, latents)
    images = np.empty((count, *source.shape), np.uint8)
    with Progress("reading", count) as progress:
        for start in range(0, count, _READ_AT_ONCE):
            part = range(start, min(start + _READ_AT_ONCE, count))
            source.read(part, images[start : part.stop])
            progress.advance(len(part))
    with explaining_write_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as temporary, temporary.open("wb") as file:
        np.savez(
            file,
            imgs=images,
            raw_latents=latents,
            shape_latents=shapes,
            interventions=interventions,
            **({} if names == CITRIS_SHAPES else {"shape_names": np.array(names)}),
        )
    return count


def _check_scene(source: FamilySource, latents: npt.NDArray[np.float32]) -> None:
    """Check that scene values (N, 10) are such as the layout holds, which has no other units.

    Raises:
        UsageError: one is out of range.
    """
    for k, name in enumerate(FACTOR_NAMES):
        low, high = (-_POSITION, _POSITION) if k < 3 else (0.0, _TURN)
        values = latents[:, k]
        if values.min() < low - _ROUNDING or values.max() > high + _ROUNDING:
            wrong = values.min() if values.min() < low - _ROUNDING else values.max()
            raise UsageError(
                f"{source.root}: the layout of Temporal Causal3DIdent holds the scene's {name} in "
                f"[{low:g}, {high:g}], found {wrong:g}"
            )
