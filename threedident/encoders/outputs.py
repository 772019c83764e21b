"""Layers behind an encoder: the space of its codes."""

from __future__ import annotations

import math

import torch
from torch import nn

from threedident.encoders.part import Part, check_size
from threedident.errors import UsageError


class UnboundedOutput(Part):
    """Unbounded space, R^m: the codes stay as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.spec = {"kind": "unbounded"}

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """The codes, unchanged."""
        return codes


class SphereOutput(Part):
    """The hypersphere: x / ||x|| times a radius.

    Args:
        radius: the radius; where it is learned, its value at the beginning.
        learned: whether the radius is a parameter.
    """

    def __init__(self, radius: float = 1.0, learned: bool = False) -> None:
        super().__init__()
        if not 0 < radius < math.inf:
            raise UsageError(f"the radius of a sphere must be above 0, found {radius}")
        self.spec = {"kind": "sphere", "radius": float(radius), "learned": learned}
        self.radius = nn.Parameter(torch.tensor(float(radius)), requires_grad=learned)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """The codes (B, m), scaled to the radius."""
        return nn.functional.normalize(codes, dim=-1) * self.radius


class BoxOutput(Part):
    """A box: sigmoid(x) times a bound per dimension.

    Args:
        n: the number of dimensions, m.
        learned: whether the bounds are parameters; they begin at 1, and are fixed there if not.
    """

    def __init__(self, n: int, learned: bool = False) -> None:
        super().__init__()
        check_size("n", n)
        self.spec = {"kind": "box", "n": n, "learned": learned}
        self.bound = nn.Parameter(torch.ones(n), requires_grad=learned)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Codes in the box, (B, m)."""
        return torch.sigmoid(codes) * self.bound


class GaussianOutput(Part):
    """A Gaussian over the codes with independent dimensions, q(z | x), of which the mean is kept.

    The network before it gives 2 m numbers: the m means, then the m logarithms of the variances.

    Args:
        n: the number of codes, m.
    """

    def __init__(self, n: int) -> None:
        super().__init__()
        check_size("n", n)
        self.spec = {"kind": "gaussian", "n": n}

    def forward(self, parameters: torch.Tensor) -> torch.Tensor:
        """The means (B, m) of Gaussians with parameters (B, 2 m): the codes that are scored."""
        return split_gaussian(parameters)[0]


def split_gaussian(parameters: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Split the parameters (B, 2 m) of Gaussians into means and log-variances, (B, m) each."""
    mean, log_variance = parameters.chunk(2, dim=-1)
    return mean, log_variance
