"""`run_reference`: encoders to compare with: pixels, an untrained network, PCA, trained ones.

They are the toolkit's own, so they run in the caller's process.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from threedident.datasets.dataset import ImageDataset
from threedident.encoders import (
    ImageEncoder,
    ResNetEncoder,
    UnboundedOutput,
    read_encoder,
)
from threedident.errors import UsageError
from threedident.evaluate.runner.process import BATCH_SIZE, Encoding
from threedident.evaluate.seen import training_record
from threedident.evaluate.submissions.submission import REFERENCE, Submission
from threedident.progress import Progress

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

SIDE = 16  # pixels along each side that identity keeps
COMPONENTS = 10
_PCA_SIDE = 32  # pixels along each side that PCA looks at
#: The most images of which all pixels are compared with all: the published test has 4,096.
MOST_WHOLE = 4096
_MOST_WHOLE_BYTES = 4_000_000_000
_PIXELS_AT_ONCE = 4096
_WHOLE = "full"


def run_reference(
    submission: Submission,
    dataset: ImageDataset,
    *,
    train: ImageDataset | None = None,
    normalised_by: ImageDataset | None = None,
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
) -> Encoding:
    """Compute the codes of a reference encoder.

    Args:
        submission: `reference:identity`, `identity=full`, `random`, `pca`, `pca=COMPONENTS` or
            `supervised=CHECKPOINT` or `encoder=CHECKPOINT`.
        dataset: the test set.
        train: the images that PCA is fitted on; None: the first half of the test set.
        normalised_by: the images whose mean and standard deviation the untrained network takes;
            None: the test set's.
        seed: the seed for the untrained network.
        batch_size: the number of images at once.

    Raises:
        UsageError: it does not fit the data.
        DatasetError: the checkpoint or an image cannot be read.
    """
    name, options = submission.name.removeprefix(REFERENCE).split("=")[0], submission.options
    if train is not None and name != "pca":
        raise UsageError(f"--train is for {REFERENCE}pca, found {submission.name}")
    if options and name == "random":
        raise UsageError(f"{REFERENCE}random takes no option, found {options!r}")
    match name:
        case "identity" if options == _WHOLE:
            return _whole(dataset, batch_size)
        case "identity":
            side = _number(options, SIDE, submission.name)
            numbers = range(len(dataset))
            codes = np.concatenate(list(_averages(dataset, numbers, side, batch_size)))
            about = f"{codes.shape[1]} numbers: the pixels, averaged to at most {side} x {side}"
            return Encoding(codes.astype(np.float32), about=about)
        case "pca":
            components = _number(options, COMPONENTS, submission.name)
            return _pca(dataset, train, components, batch_size)
        case "random":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                body = ResNetEncoder(channels=dataset.source.shape[2])
            like = dataset if normalised_by is None else normalised_by
            encoder = ImageEncoder(like.mean, like.std, body, UnboundedOutput()).eval()
            about = f"an untrained ResNet-18, seed {seed}, images normalised by the test set's"
            return Encoding(_apply(encoder, dataset, batch_size), about=about)
        case _:
            assert submission.checkpoint is not None
            return _trained(submission.checkpoint, dataset, batch_size)


def _number(text: str, default: int, name: str) -> int:
    if not text:
        return default
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= 64:
        raise UsageError(f"{name}: expected a number from 1 to 64 behind the =, found {text!r}")
    return int(text)


def _batches(
    dataset: ImageDataset, numbers: range, batch_size: int, title: str
) -> Iterator[torch.Tensor]:
    with Progress(title, len(numbers)) as progress:
        for start in range(0, len(numbers), batch_size):
            some = numbers[start : start + batch_size]
            yield dataset.images(some).cpu()
            progress.advance(len(some))


def _trained(checkpoint: Path, dataset: ImageDataset, batch_size: int) -> Encoding:
    encoder, about = read_encoder(checkpoint)
    if not isinstance(encoder, ImageEncoder):
        raise UsageError(f"{checkpoint} is an encoder of vectors, expected one of images")
    own, channels = len(encoder.spec["mean"]), dataset.source.shape[2]
    if own != channels:  # a mean of three numbers would make three channels of one
        raise UsageError(
            f"{checkpoint} takes images of {own} channel{'s' if own > 1 else ''}, and "
            f"{dataset.root} has {channels}: name images as those that it was trained on"
        )
    codes = _apply(encoder, dataset, batch_size)
    return Encoding(codes, trained_on=training_record(checkpoint, about))


def _apply(encoder: ImageEncoder, dataset: ImageDataset, batch_size: int) -> Float32:
    batches = _batches(dataset, range(len(dataset)), batch_size, "encoding")
    with torch.inference_mode():
        codes: Float32 = torch.cat([encoder(images) for images in batches]).numpy()
    if not np.isfinite(codes).all():
        raise UsageError(
            f"the codes of {int((~np.isfinite(codes)).any(1).sum())} images are not finite"
        )
    return codes


def _averages(
    dataset: ImageDataset, numbers: range, side: int, batch_size: int
) -> Iterator[Float64]:
    """Yield pixels in [0, 1], averaged to at most side x side x 3, in batches (B, pixels)."""
    height, width, _ = dataset.source.shape
    size = min(side, height), min(side, width)
    for images in _batches(dataset, numbers, batch_size, "reading pixels"):
        small = torch.nn.functional.adaptive_avg_pool2d(images.double() / 255, size)
        yield small.flatten(1).numpy()


def _whole(dataset: ImageDataset, batch_size: int) -> Encoding:
    """Return all pixels, in coordinates of the space that the images span.

    N images span at most N - 1 dimensions around their mean. A rotation into that space changes
    no inner product, hence no regression of minimum norm: the published identity baseline.
    """
    count, pixels = len(dataset), int(np.prod(dataset.source.shape))
    if count > MOST_WHOLE or 4 * count * pixels > _MOST_WHOLE_BYTES:
        raise UsageError(
            f"{REFERENCE}identity={_WHOLE} compares all pixels of all images, which is done for up "
            f"to {MOST_WHOLE} images of up to {_MOST_WHOLE_BYTES / 1e9:g} GB of numbers; found "
            f"{count} of {4 * count * pixels / 1e9:.3g} GB. Leave out ={_WHOLE}, or take fewer"
        )
    normalize = dataset.normalization()
    rows, start = np.empty((count, pixels), np.float32), 0
    for images in _batches(dataset, range(count), batch_size, "reading pixels"):
        rows[start : start + len(images)] = normalize(images).flatten(1).numpy()
        start += len(images)
    products = np.zeros((count, count))
    for start in range(0, pixels, _PIXELS_AT_ONCE):
        # In float64: most directions vary a million times less than the brightest, and hold most
        # of what a regression of minimum norm does.
        part = rows[:, start : start + _PIXELS_AT_ONCE].astype(np.float64)
        part -= part.mean(0)
        products += part @ part.T
    values, vectors = np.linalg.eigh(products)
    kept = values > values[-1] * count * np.finfo(np.float64).eps
    codes = _signed(vectors[:, kept][:, ::-1] * np.sqrt(values[kept][::-1]))
    about = f"all {pixels} pixels, rotated into the {codes.shape[1]} dimensions that they span"
    return Encoding(codes.astype(np.float32), about=about)


def _pca(
    dataset: ImageDataset, train: ImageDataset | None, components: int, batch_size: int
) -> Encoding:
    """Compute the largest principal components of the pixels."""
    fitted_on, numbers = dataset, range(len(dataset) // 2)
    if train is not None:
        fitted_on, numbers = train, range(len(train))
        if train.source.shape != dataset.source.shape:
            raise UsageError(
                f"--train has images of shape {train.source.shape}, the test set "
                f"{dataset.source.shape}: expected the same"
            )
    total: Float64 | float = 0.0
    products: Float64 | float = 0.0
    for rows in _averages(fitted_on, numbers, _PCA_SIDE, batch_size):
        total, products = total + rows.sum(0), products + rows.T @ rows
    mean = np.asarray(total) / max(len(numbers), 1)
    if not 1 <= components <= min(len(numbers) - 1, mean.size):
        raise UsageError(
            f"{components} components need more than {components} images to be fitted on and as "
            f"many numbers in an image, found {len(numbers)} and {mean.size}"
        )
    _, vectors = np.linalg.eigh(products - len(numbers) * np.outer(mean, mean))
    axes = _signed(vectors[:, ::-1][:, :components])
    parts = _averages(dataset, range(len(dataset)), _PCA_SIDE, batch_size)
    codes = np.concatenate([(rows - mean) @ axes for rows in parts])
    images = f"{len(train)} training images" if train else "the first half of the test images"
    about = f"{components} principal components of the pixels, averaged to at most {_PCA_SIDE} x "
    return Encoding(codes.astype(np.float32), about=f"{about}{_PCA_SIDE}, fitted on {images}")


def _signed(columns: Float64) -> Float64:
    """Turn columns so that their largest entry is positive: their sign is arbitrary otherwise."""
    largest = np.take_along_axis(columns, np.abs(columns).argmax(0)[None], 0)
    return columns * np.where(largest < 0, -1, 1)
