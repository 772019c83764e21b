"""Decoders: maps from codes back to observations."""

from __future__ import annotations

import torch
from torch import nn

from threedident.encoders.part import SLOPE, Part, check_size


class MLPDecoder(Part):
    """A multilayer perceptron of three layers, with LeakyReLU between them.

    Args:
        codes: the number of codes, m.
        outputs: the number of outputs, d.
        hidden: the width of both hidden layers.
    """

    def __init__(self, codes: int, outputs: int, hidden: int = 512) -> None:
        super().__init__()
        for name, value in (("codes", codes), ("outputs", outputs), ("hidden", hidden)):
            check_size(name, value)
        self.spec = {"kind": "mlp-decoder", "codes": codes, "outputs": outputs, "hidden": hidden}
        self.layers = nn.Sequential(
            nn.Linear(codes, hidden),
            nn.LeakyReLU(SLOPE),
            nn.Linear(hidden, hidden),
            nn.LeakyReLU(SLOPE),
            nn.Linear(hidden, outputs),
        )

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Outputs (B, d) of codes (B, m), unbounded: of pixels their logits."""
        outputs: torch.Tensor = self.layers(codes)
        return outputs
