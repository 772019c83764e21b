"""The types that every metric returns: a score with its parts, and how it is resampled."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from threedident.evaluate.metrics._arrays import Float64


@dataclasses.dataclass(frozen=True)
class Replicates:
    """A score under b draws of rows.

    Attributes:
        value: (b,), the score in each draw.
        per_factor: (b, n), the score of each factor; None where the metric has none.
        parts: (b,) each, further numbers that get an interval, by name.
    """

    value: Float64
    per_factor: Float64 | None = None
    parts: Mapping[str, Float64] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Resample:
    """A recipe for a score when rows are drawn again.

    Attributes:
        folds: stretches of rows that are drawn among themselves; together, all rows in use.
        replicate: a function from counts (b, N), how often each row was drawn, to the scores
            under them.
    """

    folds: tuple[slice, ...]
    replicate: Callable[[Float64], Replicates]


@dataclasses.dataclass(frozen=True, repr=False)
class MetricResult:
    """A metric's score, with all that was computed on the way to it.

    Attributes:
        value: the score; NaN where it is not defined.
        per_factor: (n,), whose mean over the factors that vary is the value; NaN for a
            constant factor; None where the metric has no such parts.
        parts: further results by name: arrays and numbers.
        choices: every choice that was made, as plain data for JSON.
        resample: the recipe for intervals; None where the result stands alone.
    """

    value: float
    per_factor: Float64 | None
    parts: Mapping[str, Any]
    choices: Mapping[str, Any]
    resample: Resample | None = dataclasses.field(default=None, compare=False)

    def __float__(self) -> float:
        """Return the score alone."""
        return self.value

    def __repr__(self) -> str:
        """Show the score, and the names of what else there is."""
        more = [] if self.per_factor is None else ["per_factor"]
        names = ", ".join([*more, *(f"parts[{name!r}]" for name in self.parts)])
        return f"{type(self).__name__}({self.value:.6g}{'; ' if names else ''}{names})"

    def alone(self) -> MetricResult:
        """Return the same result without the data that its resampling holds."""
        return dataclasses.replace(self, resample=None)
