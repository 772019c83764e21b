"""MPI3D as published: `mpi3d_toy.npz`, `mpi3d_realistic.npz`, `mpi3d_real.npz`.

Each holds one array, `images` (N, 64, 64, 3), in the order of the grid. Its number of images says
which grid that is. A file with another one can say so in a second array, `sizes` (7,).
"""

from __future__ import annotations

import functools
import math
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from threedident.datasets.formats.family.npz import Npz
from threedident.datasets.formats.source import ImageSource, UInt8
from threedident.datasets.papers import refuse_split
from threedident.datasets.papers.image_arrays import (
    PIECE,
    ArraySource,
    ImageArray,
    PlainImages,
    StreamedImages,
    check_image_shape,
    varying,
)
from threedident.distributions.grid import Grid
from threedident.errors import DatasetError, UsageError
from threedident.storage.atomic_files import replacing

FORM = "mpi3d"
NAMES = (
    *("object_color", "object_shape", "object_size", "camera_height", "background_color"),
    *("horizontal_axis", "vertical_axis"),
)
CATEGORICAL = ("object_color", "object_shape", "background_color")
#: The sizes of the grid, by the number of images.
GRIDS = {1_036_800: (6, 6, 2, 3, 3, 40, 40), 460_800: (4, 4, 2, 3, 3, 40, 40)}


def find(root: Path) -> bool:
    """Whether a file is one of MPI3D's: an archive of `images`, without the latents of others."""
    if not root.is_file():
        return False
    try:
        with zipfile.ZipFile(root) as archive:
            names = set(archive.namelist())
    except Exception:  # the parser of archives raises many kinds
        return False
    return "images.npy" in names and names <= {"images.npy", "sizes.npy"}


def open(root: Path, split: str | None = None) -> ImageSource:
    """Open the file.

    Raises:
        UsageError: a split is named; there is none.
        DatasetError: the file is damaged, or of no grid that is known.
    """
    refuse_split(root, split)
    npz = Npz(root)
    member = npz.member("images")
    check_image_shape(root, "images", member.shape, (1, 3))
    if member.dtype != np.uint8:
        raise DatasetError(f"{root}: images is of {member.dtype}, expected uint8")
    images: ImageArray
    if member.offset is not None:
        images = PlainImages(root, member.offset, member.shape)
    else:
        rows = max(1, PIECE // math.prod(member.shape[1:]))
        images = StreamedImages(
            root,
            member.shape,
            functools.partial(npz.pieces, "images", rows),
            f"Pack them once, which takes little memory: `3dident pack {root} --out packed.h5`",
        )
    return ArraySource(root, FORM, images, grid=_grid(npz, member.shape[0]))


def _grid(npz: Npz, count: int) -> Grid:
    sizes = GRIDS.get(count)
    if "sizes" in npz.members:
        member = npz.member("sizes")
        if member.shape != (len(NAMES),) or member.dtype != np.int64:
            raise DatasetError(
                f"{npz.path}: sizes is {member.shape} of {member.dtype}, expected "
                f"({len(NAMES)},) of int64"
            )
        sizes = tuple(npz.array("sizes").tolist())
        if min(sizes) < 1 or math.prod(sizes) != count:
            raise DatasetError(f"{npz.path}: sizes says {sizes}, which are not its {count} images")
    if sizes is None:
        known = " or ".join(f"{number:,} {each}" for number, each in GRIDS.items())
        raise DatasetError(
            f"{npz.path} has {count:,} images: expected {known}, in the order of the factors "
            f"{', '.join(NAMES)}; or an array `sizes` that says how many values each has"
        )
    return varying(Grid(sizes, NAMES, categorical=CATEGORICAL))


def write(
    path: str | Path, images: UInt8, sizes: Sequence[int], *, compressed: bool = True
) -> None:
    """Write a file of this form.

    Args:
        path: the file.
        images: the images in the order of the grid, (N, H, W, 3).
        sizes: the sizes of the grid; those of a grid that is not published go into the file.
        compressed: a flag to compress it.

    Raises:
        UsageError: the images are not as many as the grid has points.
        DatasetError: the file cannot be written.
    """
    grid = Grid(sizes, NAMES)
    if len(images) != len(grid):
        raise UsageError(f"{len(images)} images, but the grid {sizes} has {len(grid)} points")
    arrays = {"images": images}
    if GRIDS.get(len(images)) != grid.sizes:
        arrays["sizes"] = np.array(grid.sizes, np.int64)
    with replacing(Path(path)) as temporary, temporary.open("wb") as file:
        (np.savez_compressed if compressed else np.savez)(file, **arrays)
