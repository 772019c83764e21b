"""The papers' encoder of vectors: a multilayer perceptron."""

from __future__ import annotations

import itertools

import torch
from torch import nn

from threedident.encoders.part import SLOPE, ExactLinear, Part, check_size, in_own_precision
from threedident.errors import UsageError

_WIDTHS = (10, 50, 50, 50, 50, 10)  # of the hidden layers, in units


class MLPEncoder(Part):
    """The encoder of the synthetic benchmark of Zimmermann et al. 2021.

    Its layers are n -> 10 n -> 50 n (four times) -> 10 n -> m, with LeakyReLU between. Where an
    observation has more dimensions than there are latents, the latents' number stands for n in
    the hidden layers.

    Args:
        n: the dimensions of an observation.
        codes: the number of codes, m; None: n.
        unit: the number that stands for n in the hidden layers; None: n.
    """

    def __init__(self, n: int, codes: int | None = None, unit: int | None = None) -> None:
        super().__init__()
        codes = n if codes is None else codes
        unit = n if unit is None else unit
        check_size("n", n)
        check_size("codes", codes)
        check_size("unit", unit)
        self.spec = {"kind": "mlp", "n": n, "codes": codes}
        if unit != n:  # files of the published one stay as they were
            self.spec["unit"] = unit
        widths = (n, *(factor * unit for factor in _WIDTHS), codes)
        layers: list[nn.Module] = []
        last = len(_WIDTHS)
        for i, (before, after) in enumerate(itertools.pairwise(widths)):
            kind = ExactLinear if i in (0, last) else nn.Linear
            layers += [kind(before, after), nn.LeakyReLU(SLOPE)]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Codes (B, m) of observations (B, n)."""
        codes: torch.Tensor = self.layers(observations)
        return codes


class WhitenedMLP(MLPEncoder):
    """An MLP behind an affine map, which gives observations mean 0 and unit covariance.

    The map is invertible and fixed: what can be identified stays the same, and training is many
    times shorter. It is the identity until `whiten` is called.

    Args:
        n: the dimensions of an observation.
        codes: the number of codes, m; None: n.
        unit: the number that stands for n in the hidden layers; None: n.
    """

    def __init__(self, n: int, codes: int | None = None, unit: int | None = None) -> None:
        super().__init__(n, codes, unit)
        self.spec = {**self.spec, "kind": "whitened-mlp"}
        self.mean: torch.Tensor
        self.matrix: torch.Tensor
        self.register_buffer("mean", torch.zeros(n))
        self.register_buffer("matrix", torch.eye(n))

    def whiten(self, observations: torch.Tensor, *, floor: float = 0.0) -> None:
        """Set the map from observations (N, n), with N well above n.

        Args:
            observations: the observations.
            floor: the least variance along a direction, as a share of the largest; a direction
                with less is scaled as if it had that, and stays below unit variance.

        Raises:
            UsageError: they lie in a plane, so that no map does it.
        """
        exact = observations.double()
        mean = exact.mean(0)
        values, axes = torch.linalg.eigh(torch.cov(exact.T))
        values = values.clamp(min=floor * float(values[-1]))
        if not values[0] > 1e-9 * values[-1]:
            raise UsageError(
                "observations cannot be whitened: along some direction they do not vary "
                f"(variances from {float(values[0]):.2g} to {float(values[-1]):.2g})"
            )
        self.mean.copy_(mean)
        self.matrix.copy_(axes * values.rsqrt())

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Codes (B, m) of observations (B, n)."""
        return super().forward(in_own_precision(self._whiten, observations, self.matrix.dtype))

    def _whiten(self, observations: torch.Tensor) -> torch.Tensor:
        return (observations - self.mean) @ self.matrix
