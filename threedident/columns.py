"""`Column`: a factor or variable of a dataset, as its files describe it."""

from __future__ import annotations

import dataclasses
import math

KINDS = ("continuous", "circular", "discrete")


@dataclasses.dataclass(frozen=True)
class Column:
    """A factor or variable of a dataset.

    Attributes:
        name: its name.
        kind: continuous (a number; also the place in an ordered list), circular (it comes round
            again) or discrete (the number of a class).
        range: the ends of its values; of a circular one, those of a turn; None for a discrete one.
        values: the names of a discrete one's classes, in the order of their numbers.
    """

    name: str
    kind: str = "continuous"
    range: tuple[float, float] | None = None
    values: tuple[str, ...] = ()

    def means_the_same(self, other: Column) -> bool:
        """Whether a value of another column, whatever its name, means what it means here."""
        if self.kind != other.kind:
            return False
        if self.kind == "discrete":
            return self.values == other.values
        if self.range is None or other.range is None:
            return self.range == other.range
        pairs = zip(self.range, other.range, strict=True)
        return all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-8) for a, b in pairs)
