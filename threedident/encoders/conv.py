"""The encoder of small images that the papers' sprites and masks are encoded with."""

from __future__ import annotations

import torch
from torch import nn

from threedident.encoders.part import SLOPE, ExactLinear, Part, check_size
from threedident.errors import UsageError

#: The channels of the layers that halve the image, down to 4 x 4, by the image's side.
_CHANNELS = {64: (32, 32, 64, 64), 32: (32, 64, 64)}
#: The sides of the images that the convolutional networks take; the larger one is the published.
SIDES = tuple(_CHANNELS)
#: The width of the vector between the 4 x 4 maps and the codes.
WIDTH = 256


class ConvEncoder(Part):
    """The convolutional encoder of SlowVAE (Klindt et al. 2021) and of its competitors.

    Four convolutions (4 x 4, stride 2, padding 1) of 32, 32, 64 and 64 channels take 64 x 64
    pixels to 4 x 4; one more of 256 channels takes these to a vector; a linear layer gives the
    codes; ReLUs between. Weights are Kaiming-normal, biases 0. Images are floats in [0, 1].

    For images of 32 x 32, which nobody has published, the second of the four is left out.

    Args:
        codes: the number of outputs, m.
        channels: the number of the images' channels, 1 or 3.
        side: the number of pixels along each side of the images, 64 or 32.

    Raises:
        UsageError: a number does not fit.
    """

    def __init__(self, codes: int, channels: int = 3, side: int = 64) -> None:
        super().__init__()
        check_size("codes", codes)
        check_images(channels, side)
        self.spec = {"kind": "conv", "codes": codes, "channels": channels, "side": side}
        layers: list[nn.Module] = []
        before = channels
        for after in _CHANNELS[side]:
            layers += [nn.Conv2d(before, after, 4, 2, 1), nn.ReLU(inplace=True)]
            before = after
        layers += [
            nn.Conv2d(before, WIDTH, 4),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            ExactLinear(WIDTH, codes),
        ]
        self.layers = nn.Sequential(*layers)
        initialize(self)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Codes (B, m) of images (B, C, H, W).

        Raises:
            UsageError: the images are of another size.
        """
        side, channels = self.spec["side"], self.spec["channels"]
        if tuple(images.shape[1:]) != (channels, side, side):
            raise UsageError(
                f"this convolutional encoder takes images of {channels} x {side} x {side}, found "
                f"{' x '.join(map(str, images.shape[1:]))}"
            )
        codes: torch.Tensor = self.layers(images)
        return codes


class MLPImageEncoder(Part):
    """An encoder of images as vectors: three linear layers, with LeakyReLU between.

    The VAE that makes the digits of Rusak et al. 2024 (App. F) has such an encoder; its widths
    are not published. Images are floats in [0, 1].

    Args:
        codes: the number of outputs, m.
        inputs: the number of an image's pixels times its channels.
        hidden: the width of both hidden layers.

    Raises:
        UsageError: a number does not fit.
    """

    def __init__(self, codes: int, inputs: int, hidden: int) -> None:
        super().__init__()
        for name, value in (("codes", codes), ("inputs", inputs), ("hidden", hidden)):
            check_size(name, value)
        self.spec = {"kind": "mlp-image", "codes": codes, "inputs": inputs, "hidden": hidden}
        self.layers = three_layers(inputs, hidden, codes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Codes (B, m) of images (B, C, H, W).

        Raises:
            UsageError: the images are of another size.
        """
        if images[0].numel() != self.spec["inputs"]:
            raise UsageError(
                f"this encoder takes images of {self.spec['inputs']} numbers, found "
                f"{' x '.join(map(str, images.shape[1:]))}"
            )
        codes: torch.Tensor = self.layers(images.flatten(1))
        return codes


def check_images(channels: int, side: int) -> None:
    """Check the form of the images that a convolutional network takes or gives.

    Raises:
        UsageError: it does not take such images.
    """
    if channels not in (1, 3):
        raise UsageError(f"channels must be 1 or 3, found {channels}")
    if side not in SIDES:
        raise UsageError(
            f"a convolutional encoder or decoder is for images of 64 x 64 (or 32 x 32), found "
            f"{side}"
        )


def halving_channels(side: int) -> tuple[int, ...]:
    """Return the channels of the layers between an image of this side and 4 x 4, image first."""
    return _CHANNELS[side]


def initialize(network: nn.Module) -> None:
    """Draw Kaiming-normal weights of convolutions and linear layers, and set their biases to 0.

    Transposed convolutions keep torch's default, as in the published code.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
            assert module.bias is not None
            nn.init.zeros_(module.bias)


def three_layers(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Make a perceptron of three linear layers, with LeakyReLU between."""
    return nn.Sequential(
        *(nn.Linear(inputs, hidden), nn.LeakyReLU(SLOPE)),
        *(nn.Linear(hidden, hidden), nn.LeakyReLU(SLOPE)),
        ExactLinear(hidden, outputs),
    )
