"""The table of the ten latent factors, from which names, order and groups derive everywhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable

from threedident.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Factor:
    """A latent factor.

    Attributes:
        name: the name of its column, in files and on the command line.
        group: its group: position, rotation, spotlight or hue.
        label: its caption in figures.
        unit: the unit of its scene value (`latents`); raw latents have none and lie in [-1, 1].
    """

    name: str
    group: str
    label: str
    unit: str


FACTORS: tuple[Factor, ...] = (
    Factor("x", "position", "x", "m"),
    Factor("y", "position", "y", "m"),
    Factor("z", "position", "z", "m"),
    Factor("phi", "rotation", "phi", "rad"),
    Factor("theta", "rotation", "theta", "rad"),
    Factor("psi", "rotation", "psi", "rad"),
    Factor("spotlight_position", "spotlight", "spotlight position", "rad"),
    Factor("object_hue", "hue", "object hue", "rad"),
    Factor("spotlight_hue", "hue", "spotlight hue", "rad"),
    Factor("background_hue", "hue", "background hue", "rad"),
)

NUM_FACTORS = len(FACTORS)
FACTOR_NAMES: tuple[str, ...] = tuple(f.name for f in FACTORS)
GROUPS: dict[str, tuple[int, ...]] = {
    group: tuple(i for i, f in enumerate(FACTORS) if f.group == group)
    for group in dict.fromkeys(f.group for f in FACTORS)
}


def factor_index(name: str) -> int:
    """The column of a factor.

    Args:
        name: the factor's name.

    Raises:
        UsageError: no factor has that name.
    """
    try:
        return FACTOR_NAMES.index(name)
    except ValueError:
        raise UsageError(
            f"unknown factor {name!r}: expected one of {', '.join(FACTOR_NAMES)}"
        ) from None


def factor_columns(names: Iterable[str]) -> tuple[int, ...]:
    """The columns of factors and groups, in the order of their names, each once.

    Args:
        names: the names of factors and groups.

    Raises:
        UsageError: a name is neither a factor nor a group.
    """
    columns: dict[int, None] = {}
    for name in names:
        if name in GROUPS:
            columns.update(dict.fromkeys(GROUPS[name]))
        elif name in FACTOR_NAMES:
            columns[FACTOR_NAMES.index(name)] = None
        else:
            raise UsageError(
                f"unknown factor or group {name!r}: expected one of "
                f"{', '.join((*FACTOR_NAMES, *GROUPS))}"
            )
    return tuple(columns)


def grouped_names(names: Container[str]) -> list[str]:
    """Name factors by their groups where those are complete, in the order of the columns.

    Args:
        names: names of factors.
    """
    words = []
    for group, columns in GROUPS.items():
        members = [FACTOR_NAMES[c] for c in columns]
        chosen = [name for name in members if name in names]
        words += [group] if len(chosen) == len(members) > 1 else chosen
    return words
