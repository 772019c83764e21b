"""`Control`: a slider or a choice of the page, as plain data."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.columns import Column

KINDS = ("continuous", "circular", "discrete", "step")


@dataclasses.dataclass(frozen=True)
class Control:
    """A slider of the page, or a choice among classes.

    Attributes:
        name: the name of the factor or variable.
        label: its caption.
        kind: continuous, circular, discrete (a choice among `values`) or step (whole numbers).
        low: its least value; of a discrete one 0.
        high: its largest value; of a discrete one the last class's number.
        start: its value when the page opens.
        group: the name of its group: position, rotation, ...; empty for none.
        unit: the unit of scene values; empty for none.
        scene: the scene values at the ends of the range; None where there are none.
        values: the names of the classes of a discrete one.
        held: whether it is held at `start` and cannot be moved.
        flat: ranges of values within which no image differs, each as its two ends.
        colors: colours as CSS writes them, evenly spaced from the low to the high end.
        best_r2: the best R2 that any encoder can reach; None where it is not known.
        note: a sentence about it; empty for none.
    """

    name: str
    label: str
    kind: str = "continuous"
    low: float = -1.0
    high: float = 1.0
    start: float = 0.0
    group: str = ""
    unit: str = ""
    scene: tuple[float, float] | None = None
    values: tuple[str, ...] = ()
    held: bool = False
    flat: tuple[tuple[float, float], ...] = ()
    colors: tuple[str, ...] = ()
    best_r2: float | None = None
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The control as plain data for JSON."""
        return dataclasses.asdict(self)

    def along(self, count: int) -> npt.NDArray[np.float32]:
        """Values from its low end to its high end, evenly spaced.

        Classes and whole numbers come once at most.

        Args:
            count: the largest number of values.
        """
        values = np.linspace(self.low, self.high, count)
        if self.kind in ("discrete", "step"):
            values = np.unique(values.round())
        return values.astype(np.float32).clip(self.low, self.high)

    @property
    def column(self) -> Column:
        """The factor that it moves, as a column of a dataset."""
        if self.kind == "discrete":
            return Column(self.name, "discrete", None, self.values)
        kind = "circular" if self.kind == "circular" else "continuous"
        return Column(self.name, kind, (self.low, self.high))
