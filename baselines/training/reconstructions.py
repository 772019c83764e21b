"""A picture of what an autoencoder makes of images: each above its reconstruction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from threedident.baselines.criterion import Decoder
from threedident.encoders import ImageEncoder
from threedident.storage.atomic_files import replacing

RECONSTRUCTIONS = "reconstructions.png"
COUNT = 16  # images, side by side

_GAP = 2  # pixels between images
_GREY = 128


@torch.no_grad()
def reconstruct(encoder: ImageEncoder, decoder: Decoder, images: torch.Tensor) -> torch.Tensor:
    """Decode the mean codes of images: uint8, (B, C, H, W), in evaluation mode.

    Args:
        encoder: the encoder.
        decoder: the decoder.
        images: the images, uint8 (B, C, H, W), on the device of both.
    """
    probabilities = torch.sigmoid(decoder.eval()(encoder.eval()(images)).float())
    return (255 * probabilities).round().to(torch.uint8).reshape(images.shape)


def write_reconstructions(
    path: Path, encoder: ImageEncoder, decoder: Decoder, images: torch.Tensor
) -> None:
    """Write a picture of images in a row, and their reconstructions below.

    Args:
        path: the file, which ends in .png.
        encoder: the encoder, on the CPU.
        decoder: the decoder, on the CPU.
        images: the images, uint8 (B, C, H, W).

    Raises:
        DatasetError: the disk is full or cannot be written to.
    """
    rows = [images, reconstruct(encoder, decoder, images)]
    pixels = torch.stack(rows).permute(0, 3, 1, 4, 2).numpy()  # row, y, number, x, channel
    _, height, count, width, channels = pixels.shape
    shape = (2, height + _GAP, count, width + _GAP, channels)
    sheet = np.full(shape, _GREY, np.uint8)
    sheet[:, :height, :, :width] = pixels
    sheet = sheet.reshape(2 * (height + _GAP), count * (width + _GAP), channels)[:-_GAP, :-_GAP]
    picture = Image.fromarray(sheet[:, :, 0] if channels == 1 else sheet)
    with replacing(path) as temporary:
        picture.save(temporary, "png")
