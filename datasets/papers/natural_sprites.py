"""Natural Sprites: polygons that move as objects of YouTube videos do; images are drawn.

The published data is a table of transitions, a CSV file: a row an object, with the columns id,
cat_id and t_0, t_1, ... of the frames. A cell is empty, or a list with an entry for each of the
windows of the frame: None, or (y, x, area) of the object's mask in that window, in pixels of
64 x 64. Two cells side by side make a pair in each window that both have. Pairs are left out whose
area lies outside the 5 to 95 % quantiles, of their first or of their second frames.

A pair's images share a shape and an angle. They are drawn once for each pair, from a seed; the
published code draws them anew whenever a pair is used.

- `table.csv`: the continuous variant, whose images are those of the pairs.
- `table.csv:discrete`: x and y in 32 bins, the area in 6, each of equal width. The images are those
  of the whole grid, and the pairs are some of them.
- `drawn:natural-sprites`: the grid without a table, at the values that the published code has where
  it uses none; `drawn:natural-sprites:8x8x6x40x4` in other sizes.
- `drawn:natural-sprites:continuous` and `drawn:natural-sprites:discrete`: the two variants of a
  table of our own, of Laplace steps, in place of the published one. Numbers measured on them are
  not numbers of Natural Sprites.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.columns import Column
from threedident.datasets.formats.source import ImageSource, UInt8, check_numbers
from threedident.datasets.papers import DRAWN, refuse_split
from threedident.datasets.papers.drawing import NATURAL_SHAPES, NATURAL_TURNS, SIDE, place_natural
from threedident.datasets.papers.image_arrays import grid_factors
from threedident.datasets.papers.sprites import (
    check_sizes,
    explained,
    name_classes,
    name_with_sizes,
    parse_sizes,
)
from threedident.distributions.grid import Grid
from threedident.errors import DatasetError, UsageError
from threedident.progress import Progress
from threedident.storage.atomic_files import explaining_write_errors, replacing

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

FORM, DRAWN_FORM = "natural-sprites", "drawn-natural-sprites"
NAMES = ("x", "y", "scale", "angle", "shape")
#: The published sizes of the grid.
SIZES = (32, 32, 6, 40, 4)
DISCRETE = ":discrete"
_MOST = (1000, 1000, 1000, 1000, len(NATURAL_SHAPES))
_ANGLES = 40
_QUANTILES = (0.05, 0.95)
_WINDOWS = 3
_LARGEST_CELL = 10_000  # characters
_MOST_FRAMES = 10_000
_DRAWS = 0x73706E61  # the third word of the generator's counter: shapes and angles
_STEPS = 0x73706E62  # that of tables of our own

_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{0,20})?(?:[eE][-+]?[0-9]{1,3})?"
_TRIPLE = rf"\(({_NUMBER}), ?({_NUMBER}), ?({_NUMBER})\)"
_ENTRY = re.compile(rf"None|{_TRIPLE}")
#: A cell whose triples are taken out.
_CELL = re.compile(r"\[None(?:, ?None)*\]")

#: What an object's mask is in a window, of one frame: y, x and area; None where it is not there.
Mask = tuple[float, float, float] | None


@dataclasses.dataclass(frozen=True)
class Transitions:
    """Pairs of frames.

    Attributes:
        x: the masses' centres from the left, (P, 2), in pixels of 64.
        y: those from above, (P, 2); the drawn images have them from below, as the published ones.
        area: the areas, (P, 2), in pixels.
        synthetic: whether they are steps of our own, and not those of videos.
    """

    x: Float64
    y: Float64
    area: Float64
    synthetic: bool = False

    def __len__(self) -> int:
        return len(self.x)

    def filtered(self) -> Transitions:
        """The pairs with both areas within the quantiles of their column."""
        low, high = np.quantile(self.area, _QUANTILES, axis=0)
        kept = ((self.area >= low) & (self.area <= high)).all(1)
        return Transitions(self.x[kept], self.y[kept], self.area[kept], self.synthetic)


class NaturalSpriteSource(ImageSource):
    """Natural Sprites, (64, 64, 3), white on black; each image is drawn from its factors.

    Attributes:
        values: of a grid the values of each factor: x, y and scale in shares of the frame, the
            angle in degrees, the number of the shape; None where factors are no grid's.
        synthetic: whether the pairs are steps of our own, and not those of videos.
    """

    shape = (SIDE, SIDE, 3)
    values: tuple[Float64, ...] | None = None
    synthetic = False

    def __init__(self, root: Path) -> None:
        """Take the name; `grid_source` and `table_source` say how its images come about."""
        self.root = root
        self.form = DRAWN_FORM if str(root).startswith(DRAWN) else FORM

    def read(self, indices: Sequence[int], out: UInt8) -> None:
        """Draw images into an array (k, 64, 64, 3)."""
        rows = self.factors[check_numbers(indices, len(self))].astype(np.float64)
        if self.values is not None:
            points = np.zeros((len(rows), len(NAMES)), np.int64)
            points[:, [NAMES.index(name) for name in self.factor_names]] = rows
            rows = np.stack([each[points[:, k]] for k, each in enumerate(self.values)], 1)
        x, y, scale, degrees, shapes = rows.T
        place_natural(shapes.astype(np.int64), x, y, scale, degrees, out)

    def files(self) -> list[Path]:
        """The table, where there is one."""
        return [] if self.form == DRAWN_FORM else [_path_of(self.root)]

    def facts(self) -> dict[str, Any]:
        """What the images are, what looks alike in them, and what follows for the angle."""
        facts = {}
        if self.pairs is None:
            facts["drawn"] = "by this toolkit, and not the dataset: there are no pairs"
        elif self.synthetic:
            facts["drawn"] = "by this toolkit, and not the dataset: the pairs are Laplace steps"
        facts["alike"] = (
            "square, star_4 and spoke_4 look alike after each quarter of a turn, the triangle "
            "after each third"
        )
        if self.grid is not None and "angle" in self.grid.names:
            facts["best R2"] = f"of the angle {self.best_angle():.4f}, as some images are equal"
        return facts

    def best_angle(self) -> float:
        """The largest R2 with which any function of an image can predict the angle of a grid.

        It is the share of the variance between groups of images that are equal.

        Raises:
            UsageError: the images are those of no grid.
        """
        if self.values is None:
            raise UsageError(f"{self.root} is no grid: its angles are drawn for each pair")
        degrees, groups = self.values[3], []
        for number in self.values[4]:
            turn = NATURAL_TURNS[NATURAL_SHAPES[int(number)]]
            # To a millionth of a degree: steps need not be whole.
            _, phases = np.unique(np.rint(degrees * 1e6) % (turn * 1e6), return_inverse=True)
            groups.append(int(number) * len(degrees) + phases)
        return explained(np.concatenate(groups), np.tile(np.arange(len(degrees)), len(groups)))


def grid_source(
    sizes: Sequence[int] = SIZES, *, root: Path | None = None, values: Sequence[Float64] = ()
) -> NaturalSpriteSource:
    """The images of a whole grid.

    Args:
        sizes: the number of values of x, y, scale, angle and shape; a factor of size 1 is none.
        root: the name of the dataset; None for the drawn one of these sizes.
        values: those of x, y and scale; empty for 0.2 to 0.8 in x and y, and scales up to 0.5.

    Raises:
        UsageError: a size does not fit.
    """
    sizes = tuple(sizes)
    check_sizes(sizes, NAMES, _MOST)
    source = NaturalSpriteSource(root or name_with_sizes(f"{DRAWN}natural-sprites", sizes, SIZES))
    own = (
        np.linspace(0.2, 0.8, sizes[0]),
        np.linspace(0.2, 0.8, sizes[1]),
        np.linspace(0, 0.5, sizes[2] + 1)[1:],
    )
    source.values = (
        *(values or own),
        np.arange(sizes[3]) * (360 / sizes[3]),
        np.arange(float(sizes[4])),
    )
    grid = Grid(sizes, NAMES, categorical=("shape",), periods={"angle": sizes[3]})
    source.grid = grid.sub([k for k, size in enumerate(sizes) if size > 1])
    source.factor_columns = name_classes(source.grid, "shape", NATURAL_SHAPES)
    source.factors = grid_factors(source.grid)
    return source


def table_source(
    transitions: Transitions, root: Path, *, discrete: bool = False, seed: int = 0
) -> NaturalSpriteSource:
    """The images of a table's pairs.

    Args:
        transitions: the pairs.
        root: the path of the table, or a name of drawn images.
        discrete: whether x, y and area are put into bins, and the images are all of a grid.
        seed: the seed of the pairs' shapes and angles.

    Raises:
        DatasetError: no pair is left by the filter of areas, or all of them are alike.
    """
    if len(transitions) == 0:
        raise DatasetError(f"{root} has no two frames of an object side by side: there is no pair")
    kept = transitions.filtered()
    if len(kept) == 0:
        raise DatasetError(
            f"{root}: none of its {len(transitions)} pairs has both areas within the "
            f"{_QUANTILES[0]:.0%} to {_QUANTILES[1]:.0%} quantiles"
        )
    angles, shapes = _angles_and_shapes(len(kept), seed)
    if discrete:
        return _discrete_source(kept, root, angles, shapes)
    source = NaturalSpriteSource(root)
    source.factor_columns = (
        *(Column(name, "continuous", (0.0, 1.0)) for name in NAMES[:3]),
        Column("angle", "circular", (0.0, 360.0)),
        Column("shape", "discrete", None, NATURAL_SHAPES),
    )
    columns = (
        kept.x / SIDE,
        kept.y / SIDE,
        np.sqrt(kept.area) / SIDE,
        np.repeat(angles[:, None] * (360 / _ANGLES), 2, 1),
        np.repeat(shapes[:, None], 2, 1),
    )
    source.factors = np.stack([column.ravel() for column in columns], 1).astype(np.float32)
    source.pairs = np.arange(2 * len(kept), dtype=np.int64).reshape(-1, 2)
    source.synthetic = kept.synthetic
    return source


def _discrete_source(
    kept: Transitions, root: Path, angles: Int64, shapes: Int64
) -> NaturalSpriteSource:
    numbers, centers = [], []
    for name, size in zip(("x", "y", "area"), SIZES, strict=False):
        column = getattr(kept, name)
        edges = np.linspace(column.min(), column.max(), size + 1)
        if not (np.diff(edges) > 0).all():
            raise DatasetError(f"{root}: {name} is {column.min():g} everywhere: there are no bins")
        # Of two centres that are as near, the lower one.
        numbers.append(np.searchsorted(edges[1:-1], column, side="left"))
        centers.append((edges[1:] + edges[:-1]) / 2)
    x, y, area = centers
    values = (x / SIDE, y / SIDE, np.sqrt(area) / SIDE)
    source = grid_source(SIZES, root=root, values=values)
    fixed = (np.repeat(each[:, None], 2, 1) for each in (angles, shapes))
    assert source.grid is not None
    source.pairs = source.grid.index(np.stack([*numbers, *fixed], -1))
    source.synthetic = kept.synthetic
    return source


def _angles_and_shapes(count: int, seed: int) -> tuple[Int64, Int64]:
    """Draw the angle and the shape of each pair, as numbers: that of pair p is of (seed, p)."""
    words = np.random.Philox(
        key=np.array([_check_seed(seed), 0], np.uint64),
        counter=np.array([0, 0, _DRAWS, 0], np.uint64),
    ).random_raw(count)
    high = (words >> np.uint64(40)).astype(np.int64)  # 24 bits
    number = high * (_ANGLES * len(NATURAL_SHAPES)) >> 24
    return number // len(NATURAL_SHAPES), number % len(NATURAL_SHAPES)


def _check_seed(seed: int) -> int:
    if not (type(seed) is int and 0 <= seed < 2**64):
        raise UsageError(f"the seed must lie in [0, 2^64), found {seed!r:.50}")
    return seed


# The table


def read_table(path: Path) -> Transitions:
    """Read the pairs of consecutive frames of a table.

    Raises:
        DatasetError: it cannot be read, or is no such table.
    """
    windows = 0
    categories = set()

    def objects() -> Iterator[list[tuple[Mask, ...]]]:
        nonlocal windows
        for line, (_, category, *cells) in _rows(path):
            categories.add(category)
            masks = [_parse_cell(cell, path, line, k) for k, cell in enumerate(cells)]
            for each in filter(None, masks):
                windows = windows or len(each)
                if len(each) != windows:
                    raise DatasetError(
                        f"{path}, line {line}: a cell with {len(each)} windows, expected "
                        f"{windows} as in the others"
                    )
            yield masks

    transitions = _transitions(objects())
    return dataclasses.replace(transitions, synthetic=categories == {_NO_CATEGORY})


def _transitions(objects: Iterable[Sequence[tuple[Mask, ...]]]) -> Transitions:
    """The pairs of consecutive frames of objects, each given by its cells."""
    pairs = [
        (first, second)
        for cells in objects
        for before, after in itertools.pairwise(cells)
        for first, second in zip(before, after, strict=False)
        if first is not None and second is not None
    ]
    array = np.array(pairs, np.float64).reshape(-1, 2, 3)
    return Transitions(array[..., 1], array[..., 0], array[..., 2])


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The number of each line of a table, and its cells."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.reader(file, strict=True)
            frames = _frames(next(rows, []))
            if frames is None:
                raise DatasetError(
                    f"{path} is no table of Natural Sprites: expected the columns id, cat_id, t_0, "
                    "t_1 and so on"
                )
            for row in rows:
                if len(row) != frames + 2 and row:
                    raise DatasetError(
                        f"{path}, line {rows.line_num}: {len(row)} cells, expected {frames + 2}"
                    )
                if row:
                    yield rows.line_num, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DatasetError(f"cannot read {path}: {error!s:.200}") from error


def _frames(header: Sequence[str]) -> int | None:
    """The number of frames by a table's header; None where it is another one's."""
    count = len(header) - 2
    if not 1 <= count <= _MOST_FRAMES:
        return None
    return count if [*header] == ["id", "cat_id", *(f"t_{k}" for k in range(count))] else None


def _parse_cell(cell: str, path: Path, line: int, frame: int) -> tuple[Mask, ...]:
    """Read a cell: nothing in it is run."""
    if not cell:
        return ()
    if len(cell) > _LARGEST_CELL or not _CELL.fullmatch(_ENTRY.sub("None", cell)):
        raise DatasetError(
            f"{path}, line {line}, t_{frame}: expected a list of None and (y, x, area), found "
            f"{cell!r:.100}"
        )
    masks: list[Mask] = []
    for entry in _ENTRY.finditer(cell):
        if entry[1] is None:
            masks.append(None)
            continue
        y, x, area = (float(each) for each in entry.groups())
        if not (0 <= y <= SIDE and 0 <= x <= SIDE and 0 < area <= SIDE**2):
            raise DatasetError(
                f"{path}, line {line}, t_{frame}: expected y and x in [0, {SIDE}] and an area in "
                f"(0, {SIDE**2}], found {entry[0]!r:.100}"
            )
        masks.append((y, x, area))
    return tuple(masks)


# Tables of our own

_NO_CATEGORY = "0"  # the cat_id of our own objects: those of videos are 1 and more
#: Objects of a table, where no number is given.
DEFAULT_OBJECTS = 2000
_FRAMES = 36
_WIDTH = 2 * SIDE  # of a whole frame, whose windows begin at 0, 32 and 64
_STEP = 1.5  # the mean of the steps' absolute value, in pixels
_GROWTH = 0.5  # that of the steps of an area's root
_ROOT = (6.0, 32.0)  # the least and the largest root of an area
_HIDDEN = 0.05  # the share of frames in which an object is not seen


def synthetic_masks(objects: int, seed: int) -> Iterator[list[tuple[Mask, ...]]]:
    """Move objects by Laplace steps, and look at them through three windows.

    Args:
        objects: their number.
        seed: the seed, 0 <= seed < 2^64.

    Yields:
        The cells of an object: a tuple of windows a frame, empty where it is not seen.
    """
    key = np.array([_check_seed(seed), 0], np.uint64)
    low = np.array([0.0, 0.0, _ROOT[0]])
    high = np.array([SIDE, _WIDTH, _ROOT[1]], np.float64)
    widths = np.array([_STEP, _STEP, _GROWTH])
    for number in range(objects):
        words = np.random.Philox(key=key, counter=np.array([0, number, _STEPS, 0]))
        raw = words.random_raw(5 * _FRAMES).reshape(_FRAMES, 5) >> np.uint64(12)
        uniform = (raw.astype(np.float64) + 0.5) / 2.0**52
        start, length = uniform[0, :3], 10 + int(uniform[0, 3] * (_FRAMES - 9))
        away = 1 - np.abs(2 * uniform[1:, :3] - 1)
        steps = -widths * np.sign(uniform[1:, :3] - 0.5) * np.log(away)
        path = low + start * (high - low) + np.vstack([np.zeros(3), np.cumsum(steps, 0)])
        # Reflected at the ends, as often as needed.
        path = high - np.abs((path - low) % (2 * (high - low)) - (high - low))
        cells: list[tuple[Mask, ...]] = []
        for frame in range(_FRAMES):
            if frame >= length or uniform[frame, 4] < _HIDDEN:
                cells.append(())
                continue
            y, x, root = path[frame].tolist()
            cells.append(
                tuple(
                    (round(y, 4), round(x - left, 4), float(max(1, round(root**2))))
                    if 0 <= x - left < SIDE
                    else None
                    for left in (0, 32, 64)
                )
            )
        yield cells


def write_table(out: Path, objects: int = DEFAULT_OBJECTS, *, seed: int = 0) -> int:
    """Write a table of our own, in the format of the published one.

    Args:
        out: the file to write, which ends in .csv.
        objects: the number of objects, each a row.
        seed: the seed of their steps.

    Returns:
        The number of objects.

    Raises:
        UsageError: the name, the number or the seed does not fit.
        DatasetError: the file exists, or cannot be written.
    """
    if out.suffix != ".csv":
        raise UsageError(f"expected a file that ends in .csv, found {out}")
    if out.exists():
        raise DatasetError(f"{out} exists already: choose another --out")
    if objects < 1:
        raise UsageError(f"expected at least one object, found {objects}")
    _check_seed(seed)
    with explaining_write_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with (
        Progress("writing", objects, unit="objects") as progress,
        replacing(out) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["id", "cat_id", *(f"t_{k}" for k in range(_FRAMES))])
        for number, cells in enumerate(synthetic_masks(objects, seed)):
            rows.writerow([number + 1, _NO_CATEGORY, *(_cell(cell) for cell in cells)])
            progress.advance()
    return objects


def _cell(masks: Iterable[Mask]) -> str:
    entries = [None if mask is None else (mask[0], mask[1], int(mask[2])) for mask in masks]
    return str(entries) if entries else ""


# Opening


def _path_of(root: Path) -> Path:
    return Path(str(root).removesuffix(DISCRETE))


def find(root: Path) -> bool:
    """Whether it is a table of transitions, by its header."""
    path = _path_of(root)
    try:
        with path.open(encoding="utf-8") as file:
            return _frames(file.readline(_MOST_FRAMES * 8).strip().split(",")) is not None
    except (OSError, UnicodeDecodeError):
        return False


def open(root: Path, split: str | None = None, *, seed: int = 0) -> NaturalSpriteSource:
    """Open a table, or drawn images.

    Args:
        root: the path of a table, perhaps with :discrete; or a name of drawn images.
        split: none.
        seed: the seed of the pairs' shapes and angles.

    Raises:
        UsageError: a split is named, or a size does not fit.
        DatasetError: the table is damaged.
    """
    refuse_split(root, split)
    text = str(root)
    if text.startswith(DRAWN):
        variant = text.removeprefix(f"{DRAWN}natural-sprites").removeprefix(":")
        if variant in ("continuous", "discrete"):
            steps = _transitions(synthetic_masks(DEFAULT_OBJECTS, 0))
            steps = dataclasses.replace(steps, synthetic=True)
            return table_source(steps, root, discrete=variant == "discrete", seed=seed)
        if not variant[:1].isdigit() and variant:
            raise UsageError(
                f"there is no variant {variant!r:.50} of {DRAWN}natural-sprites: expected "
                "continuous, discrete, or sizes such as 8x8x6x40x4"
            )
        return grid_source(parse_sizes(variant) if variant else SIZES)
    path = _path_of(root)
    return table_source(read_table(path), root, discrete=path != root, seed=seed)
