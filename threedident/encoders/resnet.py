"""The papers' encoder of images: a ResNet from scratch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from threedident.encoders.part import SLOPE, ExactLinear, Part, check_size
from threedident.errors import MissingExtraError, UsageError

ARCHITECTURES = ("resnet18", "resnet34", "resnet50")
#: Channels of the first layer of a published ResNet.
PUBLISHED_WIDTH = 64
#: Channels of an image of colours.
COLORS = 3


class ResNetEncoder(Part):
    """The 3DIdent encoder of Zimmermann et al. 2021.

    It is torchvision's ResNet from scratch with 10 outputs a code, LeakyReLU, and a linear layer.

    Args:
        codes: the number of codes, m.
        arch: the architecture: resnet18, resnet34 or resnet50.
        width: the channels of the first layer, 64 as published; all other layers follow it.
        channels: the channels of an image: 3, or 1 of grey images.

    Raises:
        UsageError: an unknown architecture, or a width or channels that do not fit.
        MissingExtraError: torchvision is not installed.
    """

    def __init__(
        self,
        codes: int = 10,
        arch: str = "resnet18",
        width: int = PUBLISHED_WIDTH,
        channels: int = COLORS,
    ) -> None:
        super().__init__()
        if arch not in ARCHITECTURES:
            raise UsageError(
                f"unknown architecture {arch!r}: expected one of {', '.join(ARCHITECTURES)}"
            )
        check_size("codes", codes)
        check_size("width", width)
        self.spec = {"kind": "resnet", "codes": codes, "arch": arch}
        if width != PUBLISHED_WIDTH:  # files of the published one stay as they were
            self.spec["width"] = width
        if channels not in (1, COLORS):
            raise UsageError(f"an image has 1 or {COLORS} channels, found {channels}")
        if channels != COLORS:
            self.spec["channels"] = channels
        body = _resnet(arch, 10 * codes, width)
        if channels != COLORS:
            first = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
            nn.init.kaiming_normal_(first.weight, mode="fan_out", nonlinearity="relu")
            body.conv1 = first
        for module in body.modules():
            if type(module) is nn.Conv2d and module.kernel_size == (3, 3):
                module.__class__ = _Conv3x3  # without a bias or groups, in these architectures
        self.layers = nn.Sequential(
            body,
            nn.LeakyReLU(SLOPE),
            ExactLinear(10 * codes, codes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Codes (B, m) of normalised images (B, C, H, W)."""
        codes: torch.Tensor = self.layers(images)
        return codes


def _resnet(arch: str, outputs: int, width: int) -> nn.Module:
    """A torchvision ResNet with all channels scaled by width / 64.

    Raises:
        MissingExtraError: torchvision is not installed.
    """
    try:
        from torchvision import models
        from torchvision.models.resnet import BasicBlock, Bottleneck
    except ImportError as error:
        raise MissingExtraError("torchvision", "train", "building a ResNet") from error
    if width == PUBLISHED_WIDTH:
        body: nn.Module = getattr(models, arch)(weights=None, num_classes=outputs)
        return body

    class Scaled(models.ResNet):  # type: ignore[misc]
        def _make_layer(self, block: Any, planes: int, *rest: Any, **options: Any) -> Any:
            if planes == PUBLISHED_WIDTH:  # the first one: its input is as wide as the stem
                self.inplanes = width
            return super()._make_layer(block, planes // PUBLISHED_WIDTH * width, *rest, **options)

    blocks = [2, 2, 2, 2] if arch == "resnet18" else [3, 4, 6, 3]
    block = Bottleneck if arch == "resnet50" else BasicBlock
    scaled = Scaled(block, blocks, num_classes=outputs)
    scaled.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
    nn.init.kaiming_normal_(scaled.conv1.weight, mode="fan_out", nonlinearity="relu")
    scaled.bn1 = nn.BatchNorm2d(width)
    scaled.fc = nn.Linear(8 * width * block.expansion, outputs)
    return scaled


class _Conv3x3(nn.Conv2d):
    """A 3 x 3 convolution that is one matrix product where its map is 2 x 2 or a single pixel.

    The last layers of a ResNet see such maps on images of 32 x 32, and libraries of convolutions
    are several times slower there, in bfloat16 above all.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve `x` (B, C, H, W), as `nn.Conv2d` does."""
        height, width = x.shape[-2:]
        if max(height, width) > 2 or self.padding != (1, 1) or torch.compiler.is_exporting():
            return super().forward(x)
        # An output at i sees the input at k through the kernel's row 1 - stride i + k.
        taps = self.weight.unfold(2, height, 1).unfold(3, width, 1)
        for dim, size in ((2, height), (3, width)):
            outputs = (size - 1) // self.stride[0] + 1
            taps = taps.flip(dim) if outputs == 2 else taps.narrow(dim, 1, 1)
        rows, columns = taps.shape[2:4]
        matrix = taps.permute(2, 3, 0, 4, 5, 1).reshape(rows * columns * self.out_channels, -1)
        y = nn.functional.linear(x.permute(0, 2, 3, 1).flatten(1), matrix)
        return y.view(-1, rows, columns, self.out_channels).permute(0, 3, 1, 2)
