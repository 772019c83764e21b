"""3DIdentBox as published: pairs, whose first image is of metal and whose second is of rubber.

    samples/m1/000000.png ...   samples/m2/000000.png ...
    factors/m1/latents.npy (N, 10)   factors/m1/raw_latents.npy   factors/m2/...

The columns of the arrays are those of the released script for one object, in its own order. Images
2i and 2i + 1 are here the two images of pair i, as in datasets of pairs of this toolkit.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from threedident.columns import Column
from threedident.datasets.formats.family.layout import (
    BOX_SHAPES,
    FamilySource,
    PngFamilySource,
    check_classes,
    numbered_images,
    read_classes,
    read_rows,
    require_empty,
    write_classes,
)
from threedident.datasets.formats.png_folder import write_image
from threedident.datasets.formats.source import Float32
from threedident.errors import DatasetError, UsageError
from threedident.factors import FACTOR_NAMES, NUM_FACTORS
from threedident.progress import Progress
from threedident.storage.atomic_files import explaining_write_errors, replacing

FORM = "3didentbox"
SPLITS = {"train": "train", "val": "val", "test": "test"}
MATERIALS = ("metal", "rubber")  # of the first and of the second image
#: The columns of the arrays for one object. psi, the third rotation, is held at 0 and not among
#: them; the last one is the number of the shape.
ORDER = (
    *("spotlight_hue", "background_hue", "spotlight_position", "object_hue"),
    *("phi", "theta", "x", "y", "z", "shape"),
)
VIEWS = ("m1", "m2")


def is_layout(root: Path) -> bool:
    """Whether a folder is a split in this layout, perhaps an incomplete one."""
    return any((root / part / view).is_dir() for part in ("samples", "factors") for view in VIEWS)


class IdentBoxSource(PngFamilySource):
    """A split of one of the datasets of 3DIdentBox."""

    form = FORM

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        classes = read_classes(root, {"shape": BOX_SHAPES})["shape"]
        raw, scene, shapes, paths = [], [], [], []
        for view in VIEWS:
            folder = root / "factors" / view
            given = _read(folder / "raw_latents.npy")
            check_rows_of(given, folder / "raw_latents.npy")
            there = _read(folder / "latents.npy")
            if len(given) != len(there):
                raise DatasetError(
                    f"{folder}: raw_latents.npy has {len(given)} rows and latents.npy "
                    f"{len(there)}: expected the same number"
                )
            shape = np.round(there[:, ORDER.index("shape")])
            check_classes(there[:, ORDER.index("shape")], str(folder / "latents.npy"), len(classes))
            raw.append(_ours(given))
            scene.append(_ours(there))
            shapes.append(shape)
            label = f"factors/{view}/raw_latents.npy"
            paths.append(numbered_images(root / "samples" / view, len(given), label))
        if len(raw[0]) != len(raw[1]):
            raise DatasetError(
                f"{root}: m1 has {len(raw[0])} rows and m2 {len(raw[1])}: expected pairs"
            )
        count = 2 * len(raw[0])
        self.raw_latents = np.clip(np.stack(raw, 1).reshape(count, NUM_FACTORS), -1, 1)
        self.latents = np.stack(scene, 1).reshape(count, NUM_FACTORS)
        self.pairs = np.arange(count, dtype=np.int64).reshape(-1, 2)
        names = tuple(name for name in FACTOR_NAMES if name != "psi")
        self.columns = (
            *(Column(name, range=(-1.0, 1.0)) for name in names),
            Column("shape", "discrete", values=classes),
            Column("material", "discrete", values=MATERIALS),
        )
        kept = [FACTOR_NAMES.index(name) for name in names]
        self.variables = np.column_stack(
            [
                self.raw_latents[:, kept],
                np.stack(shapes, 1).reshape(count),
                np.tile(np.arange(2, dtype=np.float32), count // 2),
            ]
        ).astype(np.float32)
        self._open_images([path for pair in zip(*paths, strict=True) for path in pair])


def _read(path: Path) -> Float32:
    try:
        return read_rows(path, len(ORDER))
    except DatasetError as error:
        if "expected shape" not in str(error):
            raise
        raise DatasetError(
            f"{error}; the columns are {', '.join(ORDER)}, and datasets of several objects have "
            "more, which are not read"
        ) from error


def check_rows_of(raw: Float32, path: Path) -> None:
    """Check that the raw latents of all columns but the shape's lie in [-1, 1].

    Raises:
        DatasetError: one does not.
    """
    bad = np.abs(raw[:, : ORDER.index("shape")]) > 1 + 1e-5
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise DatasetError(
            f"{path}: raw latents lie in [-1, 1], found {raw[row, column]} in row {row}, column "
            f"{column} ({ORDER[column]})"
        )


def _ours(array: Float32) -> Float32:
    """The ten factors, in the toolkit's order, of rows in the published order."""
    rows = np.zeros((len(array), NUM_FACTORS), np.float32)
    for k, name in enumerate(ORDER[:-1]):
        rows[:, FACTOR_NAMES.index(name)] = array[:, k]
    return rows


def write_3didentbox(source: FamilySource, out: Path) -> int:
    """Write a dataset of pairs in the layout of one split of 3DIdentBox.

    Args:
        source: the dataset, whose images 2i and 2i + 1 are pairs.
        out: the folder, new or empty.

    Returns:
        The number of images in it.

    Raises:
        UsageError: the images are no pairs, psi varies, or the views are not of metal and rubber.
        DatasetError: the folder is not empty, or cannot be written.
    """
    count = len(source) // 2
    numbers = np.arange(2 * count, dtype=np.int64).reshape(-1, 2)
    if source.pairs is None or not np.array_equal(source.pairs, numbers) or len(source) % 2:
        raise UsageError(f"{source.root} holds no pairs: the layout of 3DIdentBox is of pairs")
    psi = source.latents[:, FACTOR_NAMES.index("psi")]
    if np.ptp(psi) > 0 or abs(float(psi[0])) > 1e-6:
        raise UsageError(f"{source.root}: psi varies, and the layout of 3DIdentBox holds it at 0")
    _check_materials(source)
    alone = "teapot" if source.preset is None else Path(source.preset.shape).stem
    shapes: tuple[str, ...] = (alone,)
    numbers_of_shapes = np.zeros(len(source), np.float32)
    if "shape" in source.names:
        column = source.column("shape")
        shapes = BOX_SHAPES if set(column.values) <= set(BOX_SHAPES) else column.values
        values = source.values("shape")
        numbers_of_shapes = np.array([shapes.index(value) for value in values], np.float32)
    require_empty(out)
    write_classes(out, {"shape": shapes})
    width = max(6, len(str(count - 1)))
    with Progress("writing", len(source)) as progress:
        for v, view in enumerate(VIEWS):
            with explaining_write_errors(out):
                (out / "samples" / view).mkdir(parents=True)
                (out / "factors" / view).mkdir(parents=True)
            for i in range(count):
                write_image(out / "samples" / view / f"{i:0{width}d}.png", source.image(2 * i + v))
                progress.advance()
            for label, array in (("latents", source.latents), ("raw_latents", source.raw_latents)):
                columns = [array[v::2, FACTOR_NAMES.index(name)] for name in ORDER[:-1]]
                rows = np.column_stack([*columns, numbers_of_shapes[v::2]])
                path = out / "factors" / view / f"{label}.npy"
                with replacing(path) as temporary, temporary.open("wb") as file:
                    np.save(file, rows.astype(np.float32))
    return len(source)


def _check_materials(source: FamilySource) -> None:
    """Check that first views are of metal and second ones of rubber, as readers take them.

    Raises:
        UsageError: one is of another material.
    """
    if "material" in source.names:
        found = source.values("material")
    elif source.preset is not None:
        found = np.full(len(source), source.preset.material)
    else:
        return
    wrong = np.flatnonzero(found != np.tile(MATERIALS, len(source) // 2))
    if len(wrong):
        raise UsageError(
            f"{source.root}: the layout of 3DIdentBox holds first views of {MATERIALS[0]} and "
            f"second ones of {MATERIALS[1]}, and image {wrong[0]} is of {found[wrong[0]]}"
        )
