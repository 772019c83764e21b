"""Read-outs: linear probes of which augmentation an image went through, and of its class.

Rusak et al. (2024), table 1, ask what an encoder that is trained on augmented views keeps of the
augmentations, behind its backbone and behind its projector. They print neither the strengths nor
the settings of the probes; those here are ours: see `augmentations` and `read_out`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.defaults import BOOTSTRAP
from threedident.errors import MissingExtraError, UsageError

try:
    import torch
    from torchvision.transforms import v2
except ImportError as error:
    raise MissingExtraError(str(error.name), "train", "read-outs") from error

from threedident.datasets.dataset import ImageDataset, ThreeDIdent, require_images
from threedident.datasets.formats import Source, open_dataset
from threedident.datasets.formats.family import FamilySource
from threedident.datasets.formats.grouping import group_starts
from threedident.distributions.torch_sampler import seeded
from threedident.encoders import ImageEncoder, read_encoder
from threedident.encoders.features import backbone_and_codes
from threedident.evaluate.metrics import accuracy
from threedident.evaluate.metrics._bootstrap import bootstrap as draw_replicates
from threedident.evaluate.metrics._bootstrap import interval
from threedident.evaluate.sampled_source import apart_by_sequence
from threedident.evaluate.scoring import one_thread
from threedident.progress import Progress

#: The augmentations, in the order of the published table, and two more.
AUGMENTATIONS = ("greyscale", "brightness", "contrast", "hue", "saturation", "crop", "blur")
#: Where the features are taken.
PLACES = ("backbone", "codes")
FORMAT, FORMAT_VERSION = "3dident-readout", 1
IMAGES = 4096

_NEED_COLOUR = ("greyscale", "hue", "saturation")
_LEAST = 20
_CLASS = "class"

Float32 = npt.NDArray[np.float32]
Augmentation = Callable[[torch.Tensor], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Probe:
    """The score of one linear probe.

    Attributes:
        name: an augmentation, `class`, or `class NAME` of a discrete factor of another name.
        place: where the features are taken, backbone or codes.
        accuracy: the balanced accuracy on held-out images, in [0, 1].
        low: the lower end of its 95 % interval; None without a bootstrap.
        high: the upper end.
        chance: the accuracy of guessing, 1 / K of K classes.
    """

    name: str
    place: str
    accuracy: float
    low: float | None
    high: float | None
    chance: float


@dataclasses.dataclass(frozen=True)
class Readout:
    """The scores of all probes of an encoder.

    Attributes:
        probes: the probes, classes first.
        sizes: the number of features by place.
        fitted: the number of images that probes are fitted on.
        scored: the number of other images that they are scored on.
        settings: all choices, as plain data.
    """

    probes: tuple[Probe, ...]
    sizes: Mapping[str, int]
    fitted: int
    scored: int
    settings: Mapping[str, Any]

    def mean(self, place: str) -> float:
        """Return the mean accuracy over the published table's five augmentations, of those taken.

        Args:
            place: backbone or codes.
        """
        values = [
            each.accuracy
            for each in self.probes
            if each.place == place and each.name in AUGMENTATIONS[:5]
        ]
        return float(np.mean(values)) if values else float("nan")

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "probes": [dataclasses.asdict(each) for each in self.probes],
            "sizes": dict(self.sizes),
            "fitted": self.fitted,
            "scored": self.scored,
            "settings": dict(self.settings),
        }

    def text(self) -> str:
        """Return a table for people: accuracies in percent, with their intervals."""
        heads = [f"{place} ({self.sizes[place]})" for place in PLACES]
        lines = [f"{'probe':24}{'chance':>8}  {heads[0]:24}{heads[1]}"]
        for name in dict.fromkeys(each.name for each in self.probes):
            both = {each.place: each for each in self.probes if each.name == name}
            cells = [_cell(both[place]) for place in PLACES]
            chance = f"{100 * both['codes'].chance:.1f}"
            lines.append(f"{name:24}{chance:>8}  {cells[0]:24}{cells[1]}")
        means = [f"{100 * self.mean(place):.1f}" for place in PLACES]
        if "nan" not in means:
            lines.append(f"{'mean of the colours':24}{50:>8.1f}  {means[0]:24}{means[1]}")
        return "\n".join(lines)


def _cell(probe: Probe) -> str:
    text = f"{100 * probe.accuracy:.1f}"
    if probe.low is None or probe.high is None:
        return text
    return f"{text} ({100 * probe.low:.1f} to {100 * probe.high:.1f})"


def augmentations(height: int, width: int) -> dict[str, Augmentation]:
    """Make the augmentations of SimCLR's views, each alone, at the strength that it has there.

    Brightness, contrast and saturation are multiplied by a factor from 0.2 to 1.8, hue is turned
    by up to 0.2 of a turn; greyscale; a crop of 0.08 to 1 of the area, resized; a Gaussian blur of
    0.1 to 2 pixels. They draw from torch's global random numbers.

    Args:
        height: the number of rows of an image.
        width: the number of columns.
    """
    kernel = max(3, min(height, width) // 10 // 2 * 2 + 1)
    return {
        "greyscale": v2.Grayscale(num_output_channels=3),
        "brightness": v2.ColorJitter(brightness=0.8),
        "contrast": v2.ColorJitter(contrast=0.8),
        "hue": v2.ColorJitter(hue=0.2),
        "saturation": v2.ColorJitter(saturation=0.8),
        "crop": v2.RandomResizedCrop((height, width), scale=(0.08, 1.0), antialias=True),
        "blur": v2.GaussianBlur(kernel, sigma=(0.1, 2.0)),
    }


def read_out(
    encoder: ImageEncoder | str | Path,
    data: ImageDataset | str | Path,
    *,
    images: int = IMAGES,
    only: Iterable[str] | None = None,
    bootstrap: int = BOOTSTRAP,
    seed: int = 0,
    batch_size: int = 256,
    quiet: bool = True,
) -> Readout:
    """Probe an encoder for augmentations and classes, behind its backbone and its projector.

    The images are drawn at random; those of a pair or sequence are in the same half. Of each
    augmentation, half of the images go through it, and the others stay as they are; a logistic
    regression on standardised features, with next to no penalty, is fitted on the first half of
    the images, and tells of the second which went through it. Classes are those of the dataset's
    discrete factors, of images as they are. The accuracy is balanced: the mean over classes of the
    share that is recognised.

    Args:
        encoder: the encoder, its file, or the folder of a run.
        data: the images, or the path of a dataset in any form.
        images: the most images to take.
        only: the names of augmentations; None: all that fit the images.
        bootstrap: the number of replicates behind the intervals; 0 for none.
        seed: the seed for images, coins, augmentations and replicates.
        batch_size: the number of images that are encoded at once.
        quiet: whether progress is left out.

    Raises:
        UsageError: an argument does not fit, or there are too few images.
        DatasetError: the encoder or an image cannot be read.
    """
    if bootstrap < 0 or batch_size < 1 or images < _LEAST:
        raise UsageError(
            f"expected images >= {_LEAST}, bootstrap >= 0 and batch_size >= 1, found {images}, "
            f"{bootstrap} and {batch_size}"
        )
    network = load_image_encoder(encoder)
    dataset = open_images(data)
    height, width, channels = dataset.source.shape
    if len(network.spec["mean"]) != channels:
        raise UsageError(
            f"the encoder takes images of {len(network.spec['mean'])} channels, and {dataset.root} "
            f"has {channels}: name images as those that it was trained on"
        )
    transforms = {name: augmentations(height, width)[name] for name in _chosen(only, channels)}
    count = min(images, len(dataset)) // 2 * 2
    if count < _LEAST:
        raise UsageError(
            f"{dataset.root} holds {len(dataset)} images: expected at least {_LEAST}, half of them "
            "to fit on and half to score on"
        )
    drawn = torch.randperm(len(dataset), generator=seeded(seed))[:count].numpy()
    numbers = torch.from_numpy(
        apart_by_sequence(drawn, group_starts(dataset.source), np.random.default_rng(seed))
    )
    labels = {
        name if name == _CLASS else f"{_CLASS} {name}": column[numbers.numpy()]
        for name, column in class_columns(dataset)
    }
    labels = {name: column for name, column in labels.items() if len(np.unique(column)) > 1}
    if not labels and not transforms:
        raise UsageError(
            f"there is nothing to probe for: {dataset.root} has no discrete factor, and no "
            "augmentation is named"
        )
    views = _Views(network.eval(), dataset, numbers, batch_size, quiet=quiet)
    tasks: list[tuple[str, Any, Mapping[str, Float32]]] = []
    if labels:
        features = views.encode("images as they are", None, None, seed)
        tasks += [(name, column, features) for name, column in labels.items()]
    for name, transform in transforms.items():
        stream = 1 + AUGMENTATIONS.index(name)  # whichever others are probed for
        coins = _coins(count, seeded(seed, stream))
        features = views.encode(name, transform, coins, seed + 1_000_003 * stream)
        tasks.append((name, coins.numpy(), features))
    with one_thread():
        probes = [
            _probe(name, place, column, features[place], bootstrap, seed)
            for name, column, features in tasks
            for place in PLACES
        ]
    sizes = {place: tasks[0][2][place].shape[1] for place in PLACES}
    settings = {
        "images": count,
        "seed": seed,
        "bootstrap": bootstrap,
        "probe": "logistic regression on standardised features, classes weighted equally",
        "data": dataset.source.fingerprint,
    }
    return Readout(tuple(probes), sizes, count // 2, count // 2, settings)


def load_image_encoder(encoder: ImageEncoder | str | Path) -> ImageEncoder:
    """Return an encoder of images: the one given, that of a file, or that of a run folder.

    Raises:
        UsageError: it is an encoder of vectors.
        DatasetError: it cannot be read.
    """
    if isinstance(encoder, str | Path):
        path = Path(encoder)
        loaded, _ = read_encoder(path / "encoder.pt" if path.is_dir() else path)
        if not isinstance(loaded, ImageEncoder):
            raise UsageError(
                f"{encoder} is an encoder of vectors: read-outs are of images, so name an encoder "
                "that `3dident train` trained on images"
            )
        return loaded
    if not isinstance(encoder, ImageEncoder):
        raise UsageError(
            f"expected an ImageEncoder, its file or a run folder, found {type(encoder).__name__}"
        )
    return encoder


def open_images(data: ImageDataset | str | Path) -> ImageDataset:
    """Return a dataset of images, in any form.

    Raises:
        UsageError: it is neither a dataset nor a path.
        DatasetError: it cannot be read, or holds no image.
    """
    if isinstance(data, str | Path):
        with open_dataset(data) as source:
            rendered = isinstance(source, Source)
        return require_images(ThreeDIdent(data) if rendered else ImageDataset(data))
    return require_images(data)


def class_columns(dataset: ImageDataset) -> list[tuple[str, npt.NDArray[np.int64]]]:
    """List the discrete factors of a dataset, of a causal model its variables, with their values.

    Args:
        dataset: the dataset.

    Returns:
        The names, and the class numbers (N,) of all images.
    """
    values, kinds = dataset.factors, [(each.name, each.kind) for each in dataset.factor_columns]
    if isinstance(dataset.source, FamilySource):
        values = torch.from_numpy(dataset.source.variables)
        kinds = [(each.name, each.kind) for each in dataset.source.columns]
    elif isinstance(dataset, ThreeDIdent) and dataset.model is not None:
        values, kinds = dataset.variables, [(v.name, v.kind) for v in dataset.model.variables]
    table = values.numpy()
    return [
        (name, table[:, column].astype(np.int64))
        for column, (name, kind) in enumerate(kinds)
        if kind == "discrete"
    ]


def _chosen(only: Iterable[str] | None, channels: int) -> Sequence[str]:
    """The augmentations to probe for.

    Raises:
        UsageError: one is unknown, or needs colours that the images lack.
    """
    possible = [name for name in AUGMENTATIONS if channels == 3 or name not in _NEED_COLOUR]
    if only is None:
        return possible
    names = list(dict.fromkeys([only] if isinstance(only, str) else only))
    for name in names:
        if name not in AUGMENTATIONS:
            raise UsageError(
                f"unknown augmentation {name!r:.100}: expected some of {', '.join(AUGMENTATIONS)}"
            )
        if name not in possible:
            raise UsageError(f"{name} is for images of three channels, found {channels}")
    return names


def _coins(count: int, generator: torch.Generator) -> torch.Tensor:
    """Say of each image whether it is augmented: exactly half, in each half of them."""
    half = count // 2
    halves = []
    for _ in range(2):
        coins = torch.arange(half) % 2
        halves.append(coins[torch.randperm(half, generator=generator)])
    return torch.cat(halves)


class _Views:
    """The chosen images, encoded under one augmentation after the other."""

    def __init__(
        self,
        encoder: ImageEncoder,
        dataset: ImageDataset,
        numbers: torch.Tensor,
        batch_size: int,
        *,
        quiet: bool,
    ) -> None:
        self._encoder, self._dataset, self._numbers = encoder, dataset, numbers
        self._size, self._quiet = batch_size, quiet

    def encode(
        self, title: str, transform: Augmentation | None, coins: torch.Tensor | None, seed: int
    ) -> dict[str, Float32]:
        """Compute the features of all images, (N, k), by place."""
        parts: dict[str, list[torch.Tensor]] = {place: [] for place in PLACES}
        device = next(self._encoder.parameters()).device
        if not self._quiet:
            Progress.print(f"encoding: {title}")
        with torch.random.fork_rng(devices=[]), torch.inference_mode():
            torch.default_generator.manual_seed(seed)
            for start in range(0, len(self._numbers), self._size):
                images = self._dataset.images(self._numbers[start : start + self._size]).cpu()
                if transform is not None and coins is not None:
                    some = coins[start : start + self._size]
                    images = torch.stack(
                        [
                            transform(image) if coin else image
                            for image, coin in zip(images, some.tolist(), strict=True)
                        ]
                    )
                both = backbone_and_codes(self._encoder, images.to(device))
                for place, values in zip(PLACES, both, strict=True):
                    parts[place].append(values.float().cpu())
        features = {place: torch.cat(values).numpy() for place, values in parts.items()}
        for place, table in features.items():
            if not np.isfinite(table).all():
                raise UsageError(f"the encoder's features ({place}) are not finite")
        return features


def _probe(
    name: str, place: str, column: Any, features: Float32, bootstrap: int, seed: int
) -> Probe:
    """Fit one probe on the first half of the images, and score it on the second."""
    result = accuracy(column[:, None], features, folds="single", most=len(column))
    low = high = None
    if bootstrap:
        draws = draw_replicates(result, bootstrap, seed)
        ends = interval(draws.value, result.value, 0.0)
        low, high = float(ends[0]), float(ends[1])
    chance = float(result.parts["chance_per_factor"][0])
    return Probe(name, place, result.value, low, high, chance)
