"""Small datasets on grids, in sequences and in named pairs, whose images show their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from threedident.columns import Column
from threedident.datasets import papers
from threedident.datasets.dataset import ImageDataset
from threedident.datasets.formats.source import ImageSource, check_numbers
from threedident.distributions import Grid

#: A small dSprites: shape, scale, orientation, x and y.
SPRITES = Grid(
    [3, 2, 4, 4, 4],
    ["shape", "scale", "orientation", "x", "y"],
    categorical=["shape"],
    periods={"orientation": 4},
)


class NumberedSource(ImageSource):
    """Images whose first two pixels spell their number; the rest is grey."""

    def __init__(
        self,
        factors: np.ndarray,
        columns: tuple[Column, ...],
        *,
        side: int = 16,
        channels: int = 1,
    ) -> None:
        self.root = Path("numbered")
        self.form = "kitti-masks"
        self.shape = (side, side, channels)
        self.factors = np.ascontiguousarray(factors, np.float32)
        self.factor_columns = columns

    def read(self, indices: Sequence[int], out: np.ndarray) -> None:
        out[:] = 128
        for row, number in enumerate(check_numbers(indices, len(self))):
            out[row, 0, :2, 0] = divmod(number, 256)


def numbers_of(images) -> list[int]:
    """The numbers that images (B, C, H, W) show."""
    high, low = images[:, 0, 0, 0].int(), images[:, 0, 0, 1].int()
    return (256 * high + low).tolist()


def grid_source(grid: Grid = SPRITES, **about) -> NumberedSource:
    points = grid.points(np.arange(len(grid)))[:, list(grid.shown)]
    columns = tuple(grid.columns[k] for k in grid.shown)
    source = NumberedSource(points, columns, **about)
    source.grid = grid
    return source


def sequence_source(lengths: Sequence[int] = (3, 1, 5, 2)) -> NumberedSource:
    count = sum(lengths)
    columns = tuple(Column(name, "continuous", (0.0, 1.0)) for name in ("y", "x", "area"))
    factors = np.random.default_rng(0).uniform(size=(count, 3))
    source = NumberedSource(factors, columns)
    source.sequences = np.cumsum([0, *lengths]).astype(np.int64)
    return source


class FakeDataset(ImageDataset):
    """An ImageDataset of a source that is made up."""

    def __init__(self, source: ImageSource, factors=None) -> None:
        self._open(source, source.root, None, None, factors)
        self._target = self.factors
        self._keep(None)


def open_by_name(patch: pytest.MonkeyPatch, sources: Mapping[str, ImageSource]) -> None:
    """Let `open_dataset` open made up sources by names such as drawn:grid."""

    def find_form(root: Path) -> str | None:
        return "kitti-masks" if str(root) in sources else find_before(root)

    def open_source(root: Path, form: str, split: str | None = None) -> ImageSource:
        return sources[str(root)] if str(root) in sources else open_before(root, form, split)

    find_before, open_before = papers.find_form, papers.open_source
    patch.setattr(papers, "find_form", find_form)
    patch.setattr(papers, "open_source", open_source)
