"""Causal3DIdent as published: for each class c a folder `images_c` and two arrays of latents.

    trainset/images_0/00000.png ...   raw_latents_0.npy (N_0, 10)   latents_0.npy (N_0, 10)

The class is in the files' names alone. Images are numbered class after class.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from threedident.columns import Column
from threedident.datasets.formats.family.layout import (
    SHAPES,
    FamilySource,
    PngFamilySource,
    numbered_images,
    read_classes,
    read_rows,
    require_empty,
    write_classes,
)
from threedident.datasets.formats.png_folder import image_name, write_image
from threedident.errors import DatasetError, UsageError
from threedident.factors import FACTOR_NAMES, NUM_FACTORS
from threedident.progress import Progress
from threedident.storage.atomic_files import explaining_write_errors, replacing

FORM = "causal3dident"
#: The folder of each split.
SPLITS = {"train": "trainset", "test": "testset"}


def is_layout(root: Path) -> bool:
    """Whether a folder is a split in this layout, perhaps an incomplete one."""
    return any(
        (root / f"raw_latents_{c}.npy").is_file() or (root / f"images_{c}").is_dir()
        for c in range(len(SHAPES))
    )


class Causal3DIdentSource(PngFamilySource):
    """A split of Causal3DIdent."""

    form = FORM

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        names = read_classes(root, {"shape": SHAPES})["shape"]
        raw, latents, classes, paths = [], [], [], []
        for c, name in enumerate(names):
            label = f"raw_latents_{c}.npy"
            if not (root / label).is_file():
                raise DatasetError(
                    f"{root / label} is missing, the latents of the class {c} ({name}): "
                    f"Causal3DIdent has the classes 0 to {len(names) - 1}. The folder is "
                    "incomplete, fetch it again"
                )
            raw.append(read_rows(root / label, NUM_FACTORS, -1, 1))
            latents.append(read_rows(root / f"latents_{c}.npy", NUM_FACTORS))
            if len(raw[-1]) != len(latents[-1]):
                raise DatasetError(
                    f"{root}: {label} has {len(raw[-1])} rows and latents_{c}.npy "
                    f"{len(latents[-1])}: expected the same number"
                )
            classes.append(np.full(len(raw[-1]), c, np.float32))
            paths += numbered_images(root / f"images_{c}", len(raw[-1]), label)
        self.raw_latents = np.clip(np.concatenate(raw), -1, 1)
        self.latents = np.concatenate(latents)
        self.columns = (
            Column("shape", "discrete", values=names),
            *(Column(name, range=(-1.0, 1.0)) for name in FACTOR_NAMES),
        )
        self.variables = np.column_stack([np.concatenate(classes), self.raw_latents])
        self._open_images(paths)


def write_causal3dident(source: FamilySource, out: Path) -> int:
    """Write a dataset in the layout of one split of Causal3DIdent.

    Images are put in order by their classes, and keep their order within a class.

    Args:
        source: the dataset, with the variable `shape`.
        out: the folder, new or empty.

    Returns:
        The number of images in it.

    Raises:
        UsageError: a class has no image.
        DatasetError: the folder is not empty, or cannot be written.
    """
    column = source.column("shape")
    shapes = column.values
    order = SHAPES if set(shapes) == set(SHAPES) else shapes
    names = source.values("shape")
    members = {name: np.flatnonzero(names == name) for name in order}
    empty = [name for name, rows in members.items() if not len(rows)]
    if empty:
        raise UsageError(
            f"{source.root} has no image of the class {empty[0]}: the layout of Causal3DIdent has "
            "at least one of each"
        )
    require_empty(out)
    write_classes(out, {"shape": order})
    with Progress("writing", len(source)) as progress:
        for c, rows in enumerate(members.values()):
            folder = out / f"images_{c}"
            with explaining_write_errors(folder):
                folder.mkdir()
            for number, row in enumerate(rows):
                write_image(folder / image_name(number, len(rows)), source.image(int(row)))
                progress.advance()
            for label, array in (("latents", source.latents), ("raw_latents", source.raw_latents)):
                with replacing(out / f"{label}_{c}.npy") as temporary, temporary.open("wb") as file:
                    np.save(file, array[rows])
    return len(source)
