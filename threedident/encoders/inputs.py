"""Layers in front of an encoder: normalisation of images."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from threedident.errors import UsageError


class Normalize(torch.nn.Module):
    """Normalisation of uint8 images (..., C, H, W) to float32: (x / 255 - mean) / std.

    It is computed on the module's device.

    Args:
        mean: the mean of each channel, three of colours or one of grey, in [0, 1].
        std: the standard deviation of each channel, in the same units.

    Raises:
        UsageError: neither three numbers each nor one, or a std that is not above 0.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if not len(mean) == len(std) in (1, 3) or not all(s > 0 for s in std):
            raise UsageError(
                f"expected three means and three stds > 0, or one each, found {mean} and {std}"
            )
        self.register_buffer("mean", torch.tensor(mean)[:, None, None])
        self.register_buffer("std", torch.tensor(std)[:, None, None])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Normalised images, float32, in the memory format of the given ones.

        Raises:
            UsageError: they are not uint8.
        """
        if images.dtype != torch.uint8:
            raise UsageError(f"expected uint8 images, found {images.dtype}")
        mean, std = 255 * self.mean, 255 * self.std
        scaled = images.to(torch.promote_types(torch.float32, mean.dtype))
        if _has_its_colours_side_by_side(images):
            # Whole rows of pixels are much faster than three numbers at a time.
            batch, channels, height, width = images.shape
            rows = scaled.permute(0, 2, 3, 1).view(batch, height, width * channels)
            rows.sub_(_along_a_row(mean, channels, width)).div_(_along_a_row(std, channels, width))
            return scaled
        normalized: torch.Tensor = (scaled - mean).div_(std)
        return normalized


def _along_a_row(values: torch.Tensor, channels: int, width: int) -> torch.Tensor:
    """A number for each channel (C, 1, 1), or one, again and again for a row of pixels, (W C,)."""
    return values.flatten().expand(channels).repeat(width)


def _has_its_colours_side_by_side(images: torch.Tensor) -> bool:
    """Tell whether images are a batch that is kept channels-last alone."""
    is_batch = images.ndim == 4 and not images.is_contiguous()
    return is_batch and images.is_contiguous(memory_format=torch.channels_last)
