"""The common base of an encoder's parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
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


class ExactLinear(nn.Linear):
    """A linear layer that keeps the precision of its weights under autocast.

    It stands at the ends of encoders. In bfloat16, with its eight bits, codes from 2 to 4 are
    multiples of 1/64, while those of a pair are often no more than some of these apart.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Outputs (B, m) of `x` (B, n)."""
        return in_own_precision(super().forward, x, self.weight.dtype)


def in_own_precision(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Call a function of a tensor without autocast.

    Args:
        function: the function.
        x: its argument.
        dtype: the precision that the argument is turned into where autocast is on.
    """
    device = x.device.type
    if not torch.is_autocast_enabled(device):
        return function(x)
    with torch.autocast(device, enabled=False):
        return function(x.to(dtype))


def check_size(name: str, value: int) -> None:
    """Check a number of codes or inputs.

    Raises:
        UsageError: it is below 1, or larger than any encoder needs.
    """
    if not 1 <= value <= _LARGEST:
        raise UsageError(f"{name} must be from 1 to {_LARGEST}, found {value}")
