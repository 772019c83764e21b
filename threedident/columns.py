"""`Column`: a factor or variable of a dataset, as its files describe it."""

from __future__ import annotations

import dataclasses

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
