"""Decoders: networks from codes to the logits of pixels, which variational autoencoders train."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from threedident.encoders.conv import (
    WIDTH,
    check_images,
    halving_channels,
    initialize,
    three_layers,
)
from threedident.encoders.part import Part, check_size
from threedident.errors import UsageError


class ConvDecoder(Part):
    """The decoder of SlowVAE (Klindt et al. 2021): `ConvEncoder` the other way round.

    A linear layer takes the codes to a vector of 256; a transposed convolution (4 x 4) of 64
    channels takes it to 4 x 4 pixels; four more (stride 2, padding 1) of 64, 32, 32 and C
    channels to 64 x 64; ReLUs between. The linear layer's weights are Kaiming-normal and its
    biases 0; transposed convolutions keep torch's default, as in the published code.

    For images of 32 x 32, the layer before the last is left out.

    Args:
        codes: the number of codes, m.
        channels: the number of the images' channels, 1 or 3.
        side: the number of pixels along each side of the images, 64 or 32.

    Raises:
        UsageError: a number does not fit.
    """

    def __init__(self, codes: int, channels: int = 3, side: int = 64) -> None:
        super().__init__()
        check_size("codes", codes)
        check_images(channels, side)
        self.spec = {"kind": "conv-decoder", "codes": codes, "channels": channels, "side": side}
        before, *others = reversed(halving_channels(side))
        layers: list[nn.Module] = [nn.Linear(codes, WIDTH), nn.Unflatten(1, (WIDTH, 1, 1))]
        layers += [nn.ReLU(inplace=True), nn.ConvTranspose2d(WIDTH, before, 4)]
        for after in (*others, channels):
            layers += [nn.ReLU(inplace=True), nn.ConvTranspose2d(before, after, 4, 2, 1)]
            before = after
        self.layers = nn.Sequential(*layers)
        initialize(self)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Logits (B, C, H, W) of the images with codes (B, m)."""
        logits: torch.Tensor = self.layers(codes)
        return logits


class MLPDecoder(Part):
    """A decoder of three linear layers, with LeakyReLU between (Rusak et al. 2024, App. F).

    The widths of the paper's are not published.

    Args:
        codes: the number of codes, m.
        outputs: the number of outputs, n; of an image, of its pixels times its channels.
        hidden: the width of both hidden layers.

    Raises:
        UsageError: a number does not fit.
    """

    def __init__(self, codes: int, outputs: int, hidden: int = 512) -> None:
        super().__init__()
        for name, value in (("codes", codes), ("outputs", outputs), ("hidden", hidden)):
            check_size(name, value)
        self.spec = {"kind": "mlp-decoder", "codes": codes, "outputs": outputs, "hidden": hidden}
        self.layers = three_layers(codes, hidden, outputs)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Logits (B, n) of what has codes (B, m)."""
        logits: torch.Tensor = self.layers(codes)
        return logits


_FIELDS = {
    "conv-decoder": (ConvDecoder, ("codes", "channels", "side")),
    "mlp-decoder": (MLPDecoder, ("codes", "outputs", "hidden")),
}


def build_decoder(spec: Any) -> ConvDecoder | MLPDecoder:
    """Build the decoder that a description asks for, with new weights.

    Args:
        spec: the `spec` of a `ConvDecoder` or an `MLPDecoder`.

    Raises:
        UsageError: the description does not fit.
    """
    kind = spec.get("kind") if isinstance(spec, dict) else None
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise UsageError(
            f"expected the description of a decoder, of kind {' or '.join(_FIELDS)}, found "
            f"{spec!r:.100}"
        )
    make, names = _FIELDS[kind]
    fields = {name: value for name, value in spec.items() if name != "kind"}
    if set(fields) != {*names} or not all(type(value) is int for value in fields.values()):
        raise UsageError(
            f"{kind} is described by whole numbers {', '.join(names)}, found {spec!r:.200}"
        )
    decoder: ConvDecoder | MLPDecoder = make(**fields)
    return decoder
