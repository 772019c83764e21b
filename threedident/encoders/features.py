"""Features of images in two places of an encoder: behind its backbone, and behind its projector."""

from __future__ import annotations

import torch
from torch import nn

from threedident.encoders.encoder import ImageEncoder
from threedident.encoders.resnet import ResNetEncoder
from threedident.errors import UsageError


def backbone_and_codes(
    encoder: ImageEncoder, images: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the features that an encoder's projector gets, and the codes that it makes of them.

    The projector of a `ResNetEncoder` is all that stands behind the averages over a map's pixels:
    the ResNet's own linear layer, LeakyReLU, the last linear layer and the space of the codes. Of
    any other encoder it is the last linear layer and the space of the codes.

    Args:
        encoder: the encoder; it computes as it is, in training or evaluation mode.
        images: uint8 images, (B, C, H, W).

    Returns:
        Features (B, k) and codes (B, m).

    Raises:
        UsageError: the encoder has no linear layer.
    """
    features: list[torch.Tensor] = []
    handle = _projector(encoder).register_forward_pre_hook(
        lambda _, inputs: features.append(inputs[0].flatten(1))
    )
    try:
        codes: torch.Tensor = encoder(images)
    finally:
        handle.remove()
    return features[-1], codes


def _projector(encoder: ImageEncoder) -> nn.Module:
    """The first layer of the projector."""
    body = encoder.encoder
    if isinstance(body, ResNetEncoder):
        first: nn.Module = body.layers[0].fc  # type: ignore[assignment]
        return first
    linear = [module for module in body.modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise UsageError(
            f"a {type(body).__name__} has no linear layer, so that nothing tells its backbone from "
            "its projector"
        )
    return linear[-1]
