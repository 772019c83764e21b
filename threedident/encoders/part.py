"""The common base of an encoder's parts."""

from __future__ import annotations

from typing import Any

from torch import nn

from threedident.errors import UsageError

#: The slope of every LeakyReLU below 0.
SLOPE = 0.01

_LARGEST = 100_000  # codes or inputs


class Part(nn.Module):
    """A module with a description from which `build` makes another one like it.

    Attributes:
        spec: the description, as plain data for JSON; see `build`.
    """

    spec: dict[str, Any]


def check_size(name: str, value: int) -> None:
    """Check a number of codes or inputs.

    Raises:
        UsageError: it is below 1, or larger than any encoder needs.
    """
    if not 1 <= value <= _LARGEST:
        raise UsageError(f"{name} must be from 1 to {_LARGEST}, found {value}")
