"""`StoredScene`: a dataset whose images are shown as they are stored, and not rendered."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable

import anyio.to_thread
import numpy as np
import numpy.typing as npt

from threedident.columns import Column
from threedident.datasets.papers import is_drawn
from threedident.explore.controls import Control
from threedident.explore.renderers import WAITING
from threedident.explore.scenes import Scene, View
from threedident.explore.stored_images import StoredImages
from threedident.presets import Preset
from threedident.render.quality import DIRECT_MATERIALS

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]


class StoredScene(Scene):
    """A dataset's scene: a control for each factor, and the stored image of their values.

    Of a grid there is one image for each point; elsewhere the nearest image is shown.

    Attributes:
        stored: the dataset.
    """

    kind = "stored"

    def __init__(self, stored: StoredImages, reason: str = "") -> None:
        """Make the controls of a dataset.

        Args:
            stored: the dataset.
            reason: why its images are not rendered, as a clause; empty: there is nothing to say.
        """
        self.stored = stored
        self.generator = {"dataset": True}
        self.title = stored.name
        self._reason = reason
        controls = [self._control(place, column) for place, column in enumerate(stored.columns)]
        middle = np.array([[_middle(each) for each in controls]], np.float32)
        number, _ = self.numbers(middle)  # so that the page opens with values of an image
        self.controls = tuple(
            dataclasses.replace(control, start=value)
            for control, value in zip(
                controls, self.values_of(int(number[0])).tolist(), strict=True
            )
        )

    def notes(self) -> list[str]:
        """How values lead to an image, and why nothing is rendered."""
        grid = self.stored.source.grid
        notes = [f"These images are not rendered: {self._reason}."] * bool(self._reason)
        if grid is None:
            notes.append(
                "There is no image for every value: the nearest one is shown, by the "
                f"{self.stored.distance}."
            )
        elif grid.hidden:
            notes.append(
                f"Images also differ in {', '.join(grid.hidden)}, which no slider has: the first "
                "one of each is shown."
            )
        return notes

    def _control(self, place: int, column: Column) -> Control:
        """The control of a factor, still without its start."""
        stored, axis = self.stored, self.stored.axes[place]
        label = column.name.replace("_", " ")
        if column.kind == "discrete":
            high = float(axis.bins - 1)
            return Control(
                column.name,
                label,
                kind="discrete",
                low=0.0,
                high=high,
                values=tuple(axis.classes),
                held=high == 0,
            )
        grid = stored.source.grid
        if grid is not None:
            size = grid.sizes[grid.shown[place]]
            return Control(
                column.name,
                label,
                kind="step",
                low=0.0,
                high=float(size - 1),
                held=size == 1,
                note=_turn_note(column, size),
            )
        values = stored.values[:, place]
        least, most = float(values.min()), float(values.max())
        low, high = (float(np.float32(end)) for end in (axis.low, axis.high))
        if least == most:
            low = high = least  # its histogram is wider than that
        low, high = min(low, least), max(high, most)
        notes = [f"Images have {least:.4g} to {most:.4g}."]
        if column.kind == "circular":
            notes.append("It comes round again: both ends are one value.")
        return Control(
            column.name,
            label,
            kind=column.kind,
            low=low,
            high=high,
            held=low == high,
            note=" ".join(notes),
        )

    def numbers(self, values: Float32) -> tuple[Int64, Float64]:
        """Find the images of values.

        Args:
            values: the controls' values, (B, n).

        Returns:
            The images' numbers (B,), and the distances (B,) of their values from these, as
            `StoredImages.distance` says; of a grid 0.

        Raises:
            UsageError: values are no point of the grid.
        """
        grid = self.stored.source.grid
        if grid is not None:
            points = np.zeros((len(values), grid.n))
            points[:, list(grid.shown)] = values
            return np.asarray(grid.index(points), np.int64), np.zeros(len(values))
        numbers, distances = np.empty(len(values), np.int64), np.empty(len(values))
        for row, point in enumerate(values):
            nearest, apart = self.stored.nearest(point, 1)
            numbers[row], distances[row] = nearest[0], apart[0]
        return numbers, distances

    def values_of(self, number: int) -> Float32:
        """The controls' values (n,) of an image, by its number."""
        return np.asarray(self.stored.values[number], np.float32)

    async def images(
        self, values: Float32, view: View, *, slot: Hashable | None = None, priority: int = WAITING
    ) -> UInt8:
        """The stored images (B, H, W, C) of values (B, n), C being 1 or 3.

        Raises:
            UsageError: values are no point of the grid.
            DatasetError: an image cannot be read.
        """

        def read() -> UInt8:
            numbers, _ = self.numbers(values)
            return np.stack([self.stored.image(int(number)) for number in numbers])

        return await anyio.to_thread.run_sync(read)


def _middle(control: Control) -> float:
    middle = (control.low + control.high) / 2
    return float(int(middle)) if control.kind in ("discrete", "step") else middle


def _turn_note(column: Column, size: int) -> str:
    """The sentence about a factor of a grid that comes round; empty for others."""
    if column.kind != "circular" or column.range is None:
        return ""
    turn = round(column.range[1] - column.range[0])
    if turn < size:
        return f"It comes round after {turn} steps: {turn} looks as 0 does."
    return f"It comes round: after {size - 1} comes 0 again."


def why_stored(stored: StoredImages) -> str:
    """Say why a dataset's images cannot be rendered here, as a clause; empty where they can.

    Args:
        stored: the dataset.
    """
    if is_drawn(stored.root):
        return (
            "this toolkit draws them, like those of a published dataset. They are not that dataset"
        )
    preset: Preset | None = stored.preset
    if preset is None:
        return "what made them is not recorded"
    if preset.mesh_files:
        names = ", ".join(preset.mesh_files)
        return f"they show mesh files ({names}), which the dataset does not hold"
    for material in preset.drawn_materials:
        if material not in DIRECT_MATERIALS:
            return f"the direct engine cannot render {material}, which lets light through"
    if stored.model is None and preset.columns[10:]:
        return "their scenes have more than the ten factors, and no causal model is recorded"
    return ""
