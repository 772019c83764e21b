"""The decoder of a small VAE, by which latents on a sphere are made into images.

Rusak et al. (2024), appendix F: encoder and decoder are fully connected, with three layers and
LeakyReLU, and see the images 50 times. What it does not say is ours: `HIDDEN`, `BATCH_SIZE`, `LR`
and `BETA`. At beta = 1 a VAE of small images leaves some of ten codes unused, and the decoder would
not see the latents that belong to them.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from threedident.baselines import vae
from threedident.baselines.experiment import Experiment
from threedident.baselines.experiment_checks import PUBLISHED_EPOCHS
from threedident.baselines.training.run_folder import DECODER, has_begun
from threedident.datasets.decoder_mixing import DecoderMixing
from threedident.datasets.formats import find_form, open_dataset
from threedident.distributions.spaces import Sphere
from threedident.distributions.torch_sampler import seeded
from threedident.encoders import MLPDecoder, MLPImageEncoder, read_decoder, save_decoder
from threedident.encoders.files import Decoder
from threedident.encoders.outputs import split_gaussian
from threedident.errors import DatasetError, UsageError
from threedident.progress import Progress
from threedident.storage.atomic_files import explaining_write_errors

BATCH_SIZE, LR, HIDDEN, BETA = 64, 1e-3, 512, 0.1

_MOST_IMAGES, _MOST_PIXELS = 60_000, 4096
_SPLIT_FORMS = ("mnist", "cifar10")


def prepare_decoder(experiment: Experiment, out: Path, *, quiet: bool = False) -> Path | None:
    """Return the file of the decoder in a run folder, which is made first where it is missing.

    A decoder that is there and was made of the same images, seed and number of codes is kept; that
    of a run that has begun always is, whether its images are still there or not.

    Args:
        experiment: the experiment.
        out: the run folder.
        quiet: whether progress is left out.

    Returns:
        The path; None for an experiment that needs no decoder.

    Raises:
        UsageError: the images do not fit.
        DatasetError: they, or a decoder, cannot be read, or the file not be written.
    """
    data = experiment.data
    if data.mixing != "decoder":
        return None
    assert data.space is not None
    path = out / DECODER
    if path.exists() and has_begun(out):
        return path
    given = Path(data.decoder)
    if given.suffix == ".pt" or (given / DECODER).is_file():
        decoder, about = read_decoder(given / DECODER if given.is_dir() else given)
        if decoder.spec["codes"] != data.space.n:
            raise UsageError(
                f"{data.decoder} decodes {decoder.spec['codes']} codes, and data.space is "
                f"{data.space}: expected as many"
            )
        if not path.exists() or digest_of(read_decoder(path)[0]) != digest_of(decoder):
            save_decoder(path, decoder, about)
        return path
    seed = experiment.training.seed if data.mixing_seed is None else data.mixing_seed
    images, shape = read_images(data.decoder)
    settings = _settings(images, shape, data.space.n, seed, data.decoder_epochs)
    if path.exists() and read_decoder(path)[1].get("made_of") == settings:
        return path
    decoder, losses = train_decoder(
        images, data.space.n, epochs=data.decoder_epochs, seed=seed, quiet=quiet
    )
    save_decoder(path, decoder, {"made_of": settings, **losses})
    return path


def share_decoder(experiment: Experiment, folder: Path, out: Path, *, quiet: bool = False) -> None:
    """Put the decoder of a folder into a run folder in it, so that runs need not make it anew.

    Args:
        experiment: the run's experiment.
        folder: the folder, in which the decoder is made where it is missing.
        out: the run folder.
        quiet: whether progress is left out.

    Raises:
        UsageError: the images do not fit.
        DatasetError: they, or a decoder, cannot be read, or a file not be written.
    """
    path = prepare_decoder(experiment, folder, quiet=quiet)
    if path is not None and not (out / DECODER).exists():
        with explaining_write_errors(out):
            out.mkdir(parents=True, exist_ok=True)
        save_decoder(out / DECODER, *read_decoder(path))


def _settings(
    images: torch.Tensor, shape: tuple[int, ...], codes: int, seed: int, epochs: int
) -> dict[str, Any]:
    return {
        "images": len(images),
        "shape": list(shape),
        "sha256": hashlib.sha256(images.numpy().tobytes()).hexdigest(),
        "codes": codes,
        "seed": seed,
        "epochs": epochs,
        "batch_size": BATCH_SIZE,
        "lr": LR,
        "hidden": HIDDEN,
        "beta": BETA,
    }


def read_images(name: str) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Read the images that a VAE learns, the first 60,000 of them.

    Args:
        name: the path of a dataset, or `sklearn:digits` for those of scikit-learn.

    Returns:
        Images (N, d) with pixels in [0, 1], and the shape (H, W, C) of one.

    Raises:
        UsageError: they are too large for a fully connected network.
        DatasetError: they cannot be read.
        MissingExtraError: scikit-learn, whose digits they are, is not installed.
    """
    # Of a folder with both splits the VAE learns the one to train on.
    split = "train" if find_form(Path(name)) in _SPLIT_FORMS else None
    with open_dataset(name, split) as source:
        size, count = int(np.prod(source.shape)), min(len(source), _MOST_IMAGES)
        if size > _MOST_PIXELS:
            raise UsageError(
                f"{name} has images of {' x '.join(map(str, source.shape))}, {size:,} numbers "
                f"each: a fully connected decoder is for at most {_MOST_PIXELS:,}; take smaller "
                "images, such as MNIST's"
            )
        if count < BATCH_SIZE:
            raise UsageError(f"{name} holds {count} images, expected at least {BATCH_SIZE}")
        pixels = np.ascontiguousarray(source.images(range(count)), np.float32) / 255
        return torch.from_numpy(pixels.reshape(count, -1)), source.shape


def train_decoder(
    images: torch.Tensor,
    codes: int,
    *,
    epochs: int = PUBLISHED_EPOCHS,
    seed: int = 0,
    quiet: bool = True,
) -> tuple[MLPDecoder, dict[str, Any]]:
    """Train a VAE, and return its decoder and what its last epoch was like.

    The loss is the binary cross-entropy, summed over pixels, plus `BETA` times the divergence of
    the codes' posterior from the standard normal distribution. It takes one thread, so that the
    number of threads changes nothing, and leaves torch's global random numbers as they are.

    Args:
        images: the images, (N, d), with pixels in [0, 1]; N is at least `BATCH_SIZE`.
        codes: the number of codes.
        epochs: the number of times that the images are seen.
        seed: the seed for weights, order and noise.
        quiet: whether progress is left out.

    Returns:
        The decoder in evaluation mode, and a record: the mean cross-entropy of an image, and the
        mean divergence of each code, in nats; of a code that is not used it is 0.

    Raises:
        DatasetError: the images give a loss that is not finite.
    """
    size = images.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = MLPImageEncoder(2 * codes, size, HIDDEN)
        decoder = MLPDecoder(codes, size, HIDDEN)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], LR)
    generator = seeded(seed, 1)
    progress = None if quiet else Progress(f"VAE of {len(images):,} images", epochs, unit="epochs")
    record: dict[str, Any] = {}
    with _one_thread(), progress or contextlib.nullcontext():
        for _ in range(epochs):
            order = torch.randperm(len(images), generator=generator)
            sums, batches = torch.zeros(1 + codes), len(images) // BATCH_SIZE
            for number in range(batches):
                x = images[order[number * BATCH_SIZE : (number + 1) * BATCH_SIZE]]
                mean, log_variance = split_gaussian(encoder(x))
                logits = decoder(vae.draw(mean, log_variance, generator))
                errors = vae.reconstruction(logits, x)
                divergences = vae.gaussian_kl(mean, log_variance)
                loss = errors.mean() + BETA * divergences.sum(1).mean()
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
                with torch.no_grad():
                    sums += torch.cat([errors.mean()[None], divergences.mean(0)]) / batches
            values = sums.tolist()
            record = {"cross_entropy": values[0], "divergences": values[1:]}
            if progress is not None:
                progress.advance(1, f"cross-entropy {values[0]:.4g}")
    if not bool(sums.isfinite().all()):
        raise DatasetError("the VAE's loss is not finite: check that pixels lie in [0, 1]")
    return decoder.eval(), record


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def digest_of(decoder: Decoder) -> str:
    """Return SHA-256 of a decoder's weights.

    Args:
        decoder: the decoder.
    """
    digest = hashlib.sha256()
    for name, value in decoder.state_dict().items():
        digest.update(name.encode() + value.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def open_mixing(
    path: Path, space: Sphere, device: torch.device
) -> tuple[DecoderMixing, dict[str, Any]]:
    """Open a decoder as a mixing, and describe it.

    Args:
        path: the file of the decoder.
        space: the sphere of the latents.
        device: the device that computes.

    Raises:
        UsageError: the decoder does not fit the space.
        DatasetError: it cannot be read.
    """
    decoder, about = read_decoder(path)
    digest = digest_of(decoder)
    mixing = DecoderMixing(decoder, space, device=device)
    return mixing, {**about, "sha256": digest, "stretching": vars(mixing.stretching())}
