"""Small files of the papers' other datasets, in the forms that they are published in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from threedident.datasets.papers import (
    blobs,
    cars3d,
    digits,
    dsprites,
    kitti_masks,
    mpi3d,
    natural_sprites,
    shapes3d,
    smallnorb,
)
from threedident.datasets.papers.sprites import SpriteSource

SIDE = 16
SHAPES3D, MPI3D, CARS3D = (3, 2, 2, 2, 4, 3), (2, 3, 2, 1, 3, 2, 2), (2, 3, 4)
NORB = (2, 3, 2, 18, 2)  # elevations and the like of a half


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def write_shapes3d(root: Path, **options: Any) -> Path:
    path = root / "3dshapes.h5"
    images = noise(int(np.prod(SHAPES3D)), SIDE, SIDE, 3)
    shapes3d.write(path, images, SHAPES3D, **options)
    return path


def write_shapes3d_gzip(root: Path) -> Path:
    """As h5py lays out what it is not told how to: in chunks with parts of many images."""
    return write_shapes3d(root, compression="gzip", chunks=(72, 4, 4, 1))


def write_mpi3d(root: Path, *, compressed: bool = True) -> Path:
    path = root / "mpi3d_toy.npz"
    images = noise(int(np.prod(MPI3D)), SIDE, SIDE, 3)
    mpi3d.write(path, images, MPI3D, compressed=compressed)
    return path


def write_mpi3d_plain(root: Path) -> Path:
    return write_mpi3d(root, compressed=False)


def write_cars3d(root: Path, *, side: int = SIDE) -> Path:
    path = root / "nips2015-analogy-data.tar.gz"
    cars3d.write(path, noise(*CARS3D, side, side, 3))
    return path


def write_cars3d_folder(root: Path) -> Path:
    path = root / "cars"
    cars3d.write(path, noise(*CARS3D, SIDE, SIDE, 3), archive=False)
    return path


def norb_rows(split: str) -> np.ndarray:
    """Labels in the order of the grid, and then in another one."""
    instances = smallnorb.INSTANCES[split][: NORB[1]]
    values = (range(NORB[0]), instances, range(NORB[2]), range(0, 36, 2), range(NORB[4]))
    rows = np.stack(np.meshgrid(*values, indexing="ij"), -1).reshape(-1, 5)
    return np.random.default_rng(1).permutation(rows).astype(np.int32)


def write_smallnorb(root: Path, *, compressed: bool = True) -> Path:
    labels = {split: norb_rows(split) for split in smallnorb.SPLITS}
    images = {
        split: noise(len(rows), 2, SIDE, SIDE, seed=k)
        for k, (split, rows) in enumerate(labels.items())
    }
    smallnorb.write(root / "norb", images, labels, compressed=compressed)
    return root / "norb"


def write_smallnorb_plain(root: Path) -> Path:
    return write_smallnorb(root, compressed=False)


def write_digits(root: Path, *, compressed: bool = False, splits: int = 1) -> Path:
    names = list(digits.SPLITS)[:splits]
    images = {split: noise(30, 28, 28, seed=k) for k, split in enumerate(names)}
    classes = {split: (np.arange(30) % 10).astype(np.uint8) for split in names}
    digits.write(root / "MNIST/raw", images, classes, compressed=compressed)
    return root


def write_digits_gzip(root: Path) -> Path:
    return write_digits(root, compressed=True)


SPRITES = (3, 2, 4, 4, 3)


def write_dsprites(root: Path) -> Path:
    dsprites.write_dsprites(SpriteSource(SPRITES), root / "dsprites.npz")
    return root / "dsprites.npz"


def write_dsprites_hdf5(root: Path) -> Path:
    source = SpriteSource(SPRITES)
    classes = np.insert(source.factors.astype(np.int64), 0, 0, axis=1)
    with h5py.File(root / "dsprites.h5", "w", libver="v110") as file:
        images = source.images(range(len(source)))[..., 0] // 255
        file.create_dataset("imgs", data=images, compression="gzip", chunks=(16, 64, 64))
        file["latents/classes"] = classes
    return root / "dsprites.h5"


def write_table(root: Path) -> Path:
    natural_sprites.write_table(root / "table.csv", 12)
    return root / "table.csv"


def write_kitti_masks(root: Path) -> Path:
    masks = blobs.draw_blobs(blobs.walk(3, 5, 0).reshape(-1, 3))
    frames = masks.reshape(3, 5, *masks.shape[-2:])
    factors = [kitti_masks.measure_masks(each) for each in frames]
    kitti_masks.write_kitti_masks(root / kitti_masks.FILE, list(frames), factors)
    return root / kitti_masks.FILE


@dataclasses.dataclass(frozen=True)
class Form:
    """A form of the papers' datasets, with a writer of small files.

    Attributes:
        name: its name.
        write: writes files into a folder, and returns what is to be opened.
        place: where in the folder that is.
    """

    name: str
    write: Callable[[Path], Path]
    place: str


_CARS, _TABLE = "nips2015-analogy-data.tar.gz", "3dshapes.h5"
#: All forms that are files; each is written in every way that it is read in.
FORMS = {
    "Shapes3D": Form("shapes3d", write_shapes3d, _TABLE),
    "compressed Shapes3D": Form("shapes3d", write_shapes3d_gzip, _TABLE),
    "MPI3D": Form("mpi3d", write_mpi3d, "mpi3d_toy.npz"),
    "plain MPI3D": Form("mpi3d", write_mpi3d_plain, "mpi3d_toy.npz"),
    "Cars3D": Form("cars3d", write_cars3d, _CARS),
    "folder of Cars3D": Form("cars3d", write_cars3d_folder, "cars"),
    "SmallNORB": Form("smallnorb", write_smallnorb, "norb"),
    "plain SmallNORB": Form("smallnorb", write_smallnorb_plain, "norb"),
    "IDX files": Form("mnist", write_digits, "."),
    "gzipped IDX files": Form("mnist", write_digits_gzip, "."),
    "dSprites": Form("dsprites", write_dsprites, "dsprites.npz"),
    "dSprites in HDF5": Form("dsprites", write_dsprites_hdf5, "dsprites.h5"),
    "Natural Sprites": Form("natural-sprites", write_table, "table.csv"),
    "KITTI Masks": Form("kitti-masks", write_kitti_masks, kitti_masks.FILE),
}
