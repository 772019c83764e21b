"""Multimodal3DIdent as published: images, captions, and a CSV file of latents for each.

    images/000000.png ...   latents_image.csv
    text/text_raw.txt       latents_text.csv

Line i of the text is the caption of image i.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from threedident.columns import Column
from threedident.datasets.captions import TEMPLATES, XPOS, YPOS, Captions, make_captions
from threedident.datasets.formats.family.layout import (
    SHAPES,
    FamilySource,
    PngFamilySource,
    check_classes,
    check_rows,
    numbered_images,
    read_classes,
    require_empty,
    write_classes,
)
from threedident.datasets.formats.png_folder import write_image
from threedident.errors import DatasetError, UsageError
from threedident.factors import FACTOR_NAMES, NUM_FACTORS
from threedident.progress import Progress
from threedident.storage.atomic_files import explaining_write_errors, replacing

FORM = "multimodal3dident"
SPLITS = {"train": "train", "val": "val", "test": "test"}
IMAGE_CSV, TEXT_CSV, TEXT = "latents_image.csv", "latents_text.csv", "text/text_raw.txt"

#: The columns of latents_image.csv, and the variable of each.
IMAGE_COLUMNS = {
    "object_shape": "shape",
    "object_xpos": "xpos",
    "object_ypos": "ypos",
    "object_zpos": "",
    "object_alpharot": "phi",
    "object_betarot": "theta",
    "object_gammarot": "psi",
    "object_color": "object_hue",
    "spotlight_pos": "spotlight_position",
    "spotlight_color": "spotlight_hue",
    "background_color": "background_hue",
}
_SHARED = ("object_shape", "object_xpos", "object_ypos", "object_zpos")
_DRAWN = ("object_color_name", "object_color_index", "text_phrasing")
TEXT_COLUMNS = (*_SHARED, *_DRAWN)

#: The raw value of a factor is scale * v + shift, of the variable that it is made of.
_RAW = {
    "x": ("ypos", 1.0, -1.0),  # the scene's x axis runs from top to bottom
    "y": ("xpos", 1.0, -1.0),  # and its y axis from left to right
    **{name: (name, 2.0, -1.0) for name in FACTOR_NAMES[3:]},
}
#: Scene values at raw -1 and +1.
_HALF = math.pi / 2
RANGES = {
    **dict.fromkeys(FACTOR_NAMES[:3], (-3.0, 3.0)),
    **dict.fromkeys(FACTOR_NAMES[3:], (-_HALF, _HALF)),
    "object_hue": (0.0, 2 * math.pi),
}


def is_layout(root: Path) -> bool:
    """Whether a folder is a split in this layout, perhaps an incomplete one."""
    return any((root / name).is_file() for name in (IMAGE_CSV, TEXT_CSV, TEXT))


class MultimodalSource(PngFamilySource):
    """A split of Multimodal3DIdent."""

    form = FORM

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        shapes = read_classes(root, {"shape": SHAPES})["shape"]
        self.columns = (
            Column("shape", "discrete", values=shapes),
            Column("xpos", "discrete", values=XPOS),
            Column("ypos", "discrete", values=YPOS),
            *(Column(name, range=(0.0, 1.0)) for name in list(IMAGE_COLUMNS.values())[4:]),
        )
        table = _read_csv(root / IMAGE_CSV, tuple(IMAGE_COLUMNS))
        count = len(table["object_shape"])
        arrays = {name: _numbers(table, name, root / IMAGE_CSV) for name in IMAGE_COLUMNS}
        if arrays["object_zpos"].any():
            raise DatasetError(f"{root / IMAGE_CSV}: object_zpos is not 0, as it is in the layout")
        by_name = {name: arrays[column] for column, name in IMAGE_COLUMNS.items() if name}
        for column in self.columns:
            where = f"{root / IMAGE_CSV}, {column.name}"
            if column.kind == "discrete":
                check_classes(by_name[column.name], where, len(column.values))
            else:
                check_rows(by_name[column.name][:, None], where, 1, 0, 1)
        self.variables = np.column_stack([by_name[name] for name in self.names]).astype(np.float32)
        raw = np.zeros((count, NUM_FACTORS))
        for name, (variable, scale, shift) in _RAW.items():
            raw[:, FACTOR_NAMES.index(name)] = scale * by_name[variable] + shift
        self.raw_latents = np.clip(raw, -1, 1).astype(np.float32)
        low, high = np.array([RANGES[name] for name in FACTOR_NAMES]).T
        self.latents = ((low + high) / 2 + (high - low) / 2 * raw).astype(np.float32)
        self._read_text(arrays)
        self._open_images(numbered_images(root / "images", count, IMAGE_CSV))

    def _read_text(self, arrays: Mapping[str, Any]) -> None:
        """Read the captions and what was drawn for them."""
        root, count = self.root, len(self.variables)
        table = _read_csv(root / TEXT_CSV, TEXT_COLUMNS)
        if len(table["text_phrasing"]) != count:
            raise DatasetError(
                f"{root}: {IMAGE_CSV} has {count} rows and {TEXT_CSV} "
                f"{len(table['text_phrasing'])}: expected the same number"
            )
        for name in _SHARED:
            if not np.array_equal(_numbers(table, name, root / TEXT_CSV), arrays[name]):
                raise DatasetError(f"{root}: {name} is not the same in {IMAGE_CSV} and {TEXT_CSV}")
        try:
            lines = (root / TEXT).read_text("utf-8").removesuffix("\n").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise DatasetError(
                f"cannot read {root / TEXT}: {error}. The folder is incomplete, fetch it again"
            ) from error
        if len(lines) != count:
            raise DatasetError(
                f"{root / TEXT} has {len(lines)} lines for {count} images: expected one each"
            )
        self.captions = tuple(lines)
        self.caption_variables = {
            "color_name": table["object_color_name"],
            **{
                short: _numbers(table, name, root / TEXT_CSV).astype(np.int64)
                for short, name in (
                    ("color_index", "object_color_index"),
                    ("phrasing", "text_phrasing"),
                )
            },
        }


def _read_csv(path: Path, columns: Sequence[str]) -> dict[str, list[str]]:
    """Read a CSV file with a header, by columns.

    Raises:
        DatasetError: it is missing, a column is, or a row has another length.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.reader(file)
            header = next(rows, [])
            lost = [name for name in columns if name not in header]
            if lost:
                raise DatasetError(
                    f"{path} has no column {lost[0]}: expected {', '.join(columns)}, found "
                    f"{', '.join(header)!s:.200}"
                )
            table: list[list[str]] = []
            for row in rows:
                if len(row) != len(header):
                    raise DatasetError(
                        f"{path}, line {rows.line_num}: expected {len(header)} fields, found "
                        f"{len(row)}"
                    )
                table.append(row)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DatasetError(
            f"cannot read {path}: {error}. The folder is incomplete, fetch it again"
        ) from error
    if not table:
        raise DatasetError(f"{path} has no row")
    return {name: [row[header.index(name)] for row in table] for name in columns}


def _numbers(table: Mapping[str, Sequence[str]], name: str, path: Path) -> Any:
    """A column as numbers, (N,) float64.

    Raises:
        DatasetError: a field is no finite number.
    """
    try:
        array = np.array([float(text) for text in table[name]])
    except ValueError as error:
        raise DatasetError(f"{path}, {name}: {error}") from error
    if not np.isfinite(array).all():
        raise DatasetError(f"{path}, {name}: expected finite numbers")
    return array


def caption(
    source: FamilySource,
    *,
    seed: int = 0,
    split: str = "train",
    templates: Sequence[str] = TEMPLATES,
) -> Captions:
    """Make captions for a dataset with the variables shape, xpos, ypos and object_hue.

    Args:
        source: the dataset.
        seed: the seed for palettes and phrasings.
        split: train, val or test.
        templates: the phrasings.

    Raises:
        UsageError: a variable is missing, or an argument does not fit.
        MissingExtraError: matplotlib is not installed.
    """
    hue = source.latents[:, FACTOR_NAMES.index("object_hue")].astype(np.float64)
    shapes, xpos, ypos = (list(map(str, source.values(name))) for name in ("shape", "xpos", "ypos"))
    turns = hue / (2 * math.pi)
    return make_captions(shapes, xpos, ypos, turns, seed=seed, split=split, templates=templates)


def write_multimodal3dident(
    source: FamilySource, out: Path, captions: Captions | None = None
) -> int:
    """Write a dataset in the layout of one split of Multimodal3DIdent.

    Args:
        source: the dataset, with the variables of `IMAGE_COLUMNS`.
        out: the folder, new or empty.
        captions: the captions; None: the dataset's own, or those that `caption` makes with the
            dataset's seed and split.

    Returns:
        The number of images in it.

    Raises:
        UsageError: a variable is missing, or the number of captions is another.
        DatasetError: the folder is not empty, or cannot be written.
        MissingExtraError: captions are made, and matplotlib is not installed.
    """
    count = len(source)
    for name in IMAGE_COLUMNS.values():
        if name:
            source.column(name)
    if captions is None:
        captions = _own_captions(source) or caption(source, **seed_and_split(source))
    if len(captions) != count:
        raise UsageError(f"found {len(captions)} captions for {count} images")
    shapes = source.column("shape").values
    order = SHAPES if set(shapes) == set(SHAPES) else shapes
    columns = {name: _as_written(source, variable) for name, variable in IMAGE_COLUMNS.items()}
    columns["object_shape"] = np.array([order.index(name) for name in source.values("shape")])
    require_empty(out)
    with explaining_write_errors(out):
        (out / "images").mkdir()
        (out / "text").mkdir()
    write_classes(out, {"shape": order})
    width = max(6, len(str(count - 1)))
    with Progress("writing", count) as progress:
        for i in range(count):
            write_image(out / "images" / f"{i:0{width}d}.png", source.image(i))
            progress.advance()
    shared = {name: columns[name] for name in _SHARED}
    drawn = (captions.color_names, captions.color_indices, captions.phrasings)
    _write(out / TEXT, "\n".join(captions.texts))
    _write(out / TEXT_CSV, _csv({**shared, **dict(zip(_DRAWN, drawn, strict=True))}))
    _write(out / IMAGE_CSV, _csv(columns))
    return count


def _as_written(source: FamilySource, variable: str) -> Any:
    """The column of a variable as the layout has it: whole numbers, or numbers from 0 to 1."""
    if not variable:
        return np.zeros(len(source))
    column = source.column(variable)
    values = source.variables[:, source.names.index(variable)]
    if column.kind == "discrete":
        return values.astype(np.int64)
    low, high = column.range or (0.0, 1.0)
    if (low, high) == (0.0, 1.0):
        return values
    return np.clip((values.astype(np.float64) - low) / (high - low), 0, 1).astype(np.float32)


def seed_and_split(source: FamilySource) -> dict[str, Any]:
    """The seed and the split of a dataset that was rendered; none where they are not recorded."""
    settings = source.manifest.settings if source.manifest else {}
    return {name: settings[name] for name in ("seed", "split") if settings.get(name) is not None}


def _own_captions(source: FamilySource) -> Captions | None:
    if source.captions is None:
        return None
    known = source.caption_variables
    return Captions(
        source.captions,
        tuple(known["color_name"]),
        np.asarray(known["color_index"]),
        np.asarray(known["phrasing"]),
    )


def _csv(columns: Mapping[str, Any]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        # float32's shortest text, from which the same float32 is read again
        writer.writerow(str(each) for each in row)
    return text.getvalue()


def _write(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, "utf-8", newline="\n")
