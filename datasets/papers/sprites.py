"""Images like those of dSprites, drawn when they are asked for: `drawn:sprites`.

Three shapes in all combinations of shape, scale, orientation and place: the grid, the order and
the symmetries of dSprites, whose own drawings are not published. They are a re-render and not the
dataset: no pixel count agrees, and numbers measured on them are none of dSprites.

As in dSprites, the first and the last orientation are one angle; a square looks alike after each
quarter of a turn, an ellipse after each half. No part of a sprite leaves the frame.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.columns import Column
from threedident.datasets.formats.source import ImageSource, UInt8, check_numbers
from threedident.datasets.papers import DRAWN, refuse_split
from threedident.datasets.papers.drawing import DSPRITES_SHAPES, PLACES, SIDE, hard_patch, paste
from threedident.datasets.papers.image_arrays import grid_factors
from threedident.distributions.grid import Grid
from threedident.errors import UsageError

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

FORM = "drawn-sprites"
#: The factors of dSprites but for its colour, which has one value.
NAMES = ("shape", "scale", "orientation", "posX", "posY")
#: The published sizes of the grid.
SIZES = (3, 6, 40, 32, 32)
_MOST = (len(DSPRITES_SHAPES), 1000, 1000, PLACES, PLACES)
_MOST_IMAGES = 10_000_000  # whose factors are in memory
_MOST_PATCHES = 100_000  # a kilobyte each
#: How many times a turn each shape looks alike.
_FOLDS = {"square": 4, "ellipse": 2, "heart": 1}


def values(sizes: Sequence[int] = SIZES) -> tuple[Float64, ...]:
    """The values of each factor, in dSprites' units.

    Shapes are 1, 2, 3; scales go from 0.5 to 1; orientations from 0 to 2 pi, both included; places
    from 0 to 1. Of a factor of size 1 the first is left, of the scale the largest.

    Args:
        sizes: the number of values of each factor, as `NAMES` has them.

    Raises:
        UsageError: a size does not fit.
    """
    check_sizes(sizes, NAMES, _MOST)
    shapes, scales, orientations, columns, rows = sizes
    return (
        np.arange(1.0, shapes + 1),
        np.linspace(1, 0.5, scales)[::-1],
        np.linspace(0, 2 * math.pi, orientations),
        np.linspace(0, 1, columns),
        np.linspace(0, 1, rows),
    )


def check_sizes(sizes: Sequence[int], names: Sequence[str], most: Sequence[int]) -> None:
    """Check the sizes of a grid that is to be drawn.

    Args:
        sizes: the sizes.
        names: the names of the factors.
        most: the largest that each size can be.

    Raises:
        UsageError: one does not fit, all are 1, or the grid is too large.
    """
    fits = len(sizes) == len(most) and all(
        type(size) is int and 1 <= size <= largest
        for size, largest in zip(sizes, most, strict=True)
    )
    if not fits or max(sizes) == 1:
        limits = ", ".join(f"{name} {size}" for name, size in zip(names, most, strict=True))
        raise UsageError(
            f"expected {len(most)} sizes of 1 or more, not all of them 1, and at most {limits}; "
            f"found {list(sizes)!r:.100}"
        )
    if math.prod(sizes) > _MOST_IMAGES:
        raise UsageError(
            f"a grid of {math.prod(sizes):,} images: at most {_MOST_IMAGES:,} can be drawn"
        )


class SpriteSource(ImageSource):
    """Images like those of dSprites, (64, 64, 1), with values 0 and 255.

    Image i shows point i of the grid. The patches of all shapes, scales and orientations are drawn
    once; an image is one of them, put at its place.
    """

    form = FORM
    shape = (SIDE, SIDE, 1)

    def __init__(self, sizes: Sequence[int] = SIZES) -> None:
        """Draw the patches.

        Args:
            sizes: the number of shapes, scales, orientations, columns and rows; a factor of size
                1 is none.

        Raises:
            UsageError: a size does not fit.
        """
        self.sizes = tuple(sizes)
        self.values = values(self.sizes)
        if math.prod(self.sizes[:3]) > _MOST_PATCHES:
            raise UsageError(
                f"{math.prod(self.sizes[:3]):,} combinations of shape, scale and orientation: "
                f"{_MOST_PATCHES:,} at most can be drawn"
            )
        self.root = name_with_sizes(f"{DRAWN}sprites", self.sizes, SIZES)
        self._all = Grid(self.sizes, NAMES)
        self.grid, self.factor_columns = sprite_grid(self.sizes, turn=self.sizes[2] - 1)
        self.factors = grid_factors(self.grid)
        self._patches = np.stack(
            [
                hard_patch(DSPRITES_SHAPES[int(shape) - 1], scale, orientation)
                for shape in self.values[0]
                for scale in self.values[1]
                for orientation in self.values[2]
            ]
        )
        # Whole pixels: as many places as a patch has in the frame, or fewer, evenly spread.
        self._places = [np.rint(each * (PLACES - 1)).astype(np.int64) for each in self.values[3:]]

    def read(self, indices: Sequence[int], out: UInt8) -> None:
        """Draw images into an array (k, 64, 64, 1)."""
        numbers = np.array(check_numbers(indices, len(self)), np.int64)
        points = self._all.points(numbers)
        patches = self._patches[numbers // (self.sizes[3] * self.sizes[4])]
        columns, rows = (place[points[:, k]] for place, k in zip(self._places, (3, 4), strict=True))
        paste(patches, rows, columns, out[..., 0])

    def files(self) -> list[Path]:
        """None: there are no files."""
        return []

    def facts(self) -> dict[str, Any]:
        """What the images are, what looks alike in them, and what follows for the orientation."""
        facts = {
            "drawn": "by this toolkit, and not the dataset: grid, order and symmetries are those "
            "of dSprites, the pixels are not"
        }
        if "orientation" in self.factor_names:
            turn = self.sizes[2] - 1
            facts["alike"] = (
                "the first and the last orientation are one angle; a square looks alike after each "
                f"{turn / 4:g} steps of it, an ellipse after each {turn / 2:g}"
            )
            facts["best R2"] = (
                f"of the orientation {self.best_orientation():.4f}, as some images are equal; "
                f"{self.best_orientation(within_a_step=True):.4f}, if angles that look less than a "
                "step apart are not told apart"
            )
        return facts

    def best_orientation(self, *, within_a_step: bool = False) -> float:
        """The largest R2 with which any function of an image can predict the orientation.

        It is the share of the variance between groups of images that look alike.

        Args:
            within_a_step: whether angles that look less than a step apart count as alike;
                otherwise only images that are equal in each pixel.
        """
        orientations = np.arange(self.sizes[2])
        if not within_a_step:
            # A place hides nothing that a patch shows, so that patches stand for images.
            flat = self._patches.reshape(len(self._patches), -1)
            _, group = np.unique(flat, axis=0, return_inverse=True)
            return explained(group, np.arange(len(flat)) % self.sizes[2])
        turn, groups = max(1, self.sizes[2] - 1), []
        for number in self.values[0]:
            folds = _FOLDS[DSPRITES_SHAPES[int(number) - 1]]
            # Whole numbers: the phase within a fold, in steps, is the first part over `folds`.
            phases = orientations * folds % turn // folds
            groups.append(int(number) * self.sizes[2] + phases)
        return explained(np.concatenate(groups), np.tile(orientations, len(groups)))


def explained(groups: Int64, numbers: Int64) -> float:
    """The share of the variance of numbers (N,) between groups, given by their numbers (N,)."""
    _, places, counts = np.unique(groups, return_inverse=True, return_counts=True)
    means = np.bincount(places.ravel(), numbers) / counts
    return float(np.var(means[places.ravel()]) / np.var(numbers))


def sprite_grid(sizes: Sequence[int], turn: int | None) -> tuple[Grid, tuple[Column, ...]]:
    """The grid of dSprites' factors, without those of size 1, and its columns.

    Args:
        sizes: the number of values of each factor, as `NAMES` has them.
        turn: the steps of the orientation to a turn; None where it does not come round.
    """
    periods = {"orientation": turn} if turn else {}
    grid = Grid(sizes, NAMES, categorical=("shape",), periods=periods)
    grid = grid.sub([k for k, size in enumerate(sizes) if size > 1])
    return grid, name_classes(grid, "shape", DSPRITES_SHAPES)


def name_classes(grid: Grid, name: str, classes: Sequence[str]) -> tuple[Column, ...]:
    """The columns of a grid, with the names of a categorical factor's classes."""
    return tuple(
        dataclasses.replace(column, values=tuple(classes[: len(column.values)]))
        if column.name == name and len(column.values) <= len(classes)
        else column
        for column in grid.columns
    )


def name_with_sizes(name: str, sizes: Sequence[int], default: Sequence[int]) -> Path:
    """The name of drawn images, with their sizes where these are not the default."""
    return Path(name if tuple(sizes) == tuple(default) else f"{name}:{'x'.join(map(str, sizes))}")


def parse_sizes(text: str) -> tuple[int, ...]:
    """Read sizes that are written as 3x6x40x32x32, or with commas.

    Raises:
        UsageError: they are not.
    """
    if not re.fullmatch(r"[0-9]{1,9}([x,][0-9]{1,9}){0,63}", text):
        raise UsageError(f"expected sizes such as 3x6x40x32x32, found {text!r:.100}")
    return tuple(int(size) for size in re.split("[x,]", text))


def open(root: Path, split: str | None = None) -> SpriteSource:
    """Open the drawn images of a grid.

    Args:
        root: drawn:sprites, or drawn:sprites: and sizes.
        split: none.

    Raises:
        UsageError: a split is named, or a size does not fit.
    """
    refuse_split(root, split)
    sizes = str(root).removeprefix(f"{DRAWN}sprites").removeprefix(":")
    return SpriteSource(parse_sizes(sizes) if sizes else SIZES)
