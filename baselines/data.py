"""Problems: an experiment's `data` table made into training batches and data to score on."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import data as torch_data

from threedident.baselines.checks import BY_NUMBER, check_images
from threedident.baselines.experiment import Experiment
from threedident.datasets.augmented_views import TwoViews
from threedident.datasets.dataset import (
    ImageDataset,
    ThreeDIdent,
    open_images,
    require_images,
    require_rendered,
)
from threedident.datasets.formats import count_shared_images
from threedident.datasets.formats.family import FamilySource
from threedident.datasets.grid_pairs import GridPairs
from threedident.datasets.groups import ImageGroups
from threedident.datasets.indexed_pairs import IndexedPairs
from threedident.datasets.latent_matcher import LatentMatcher, check_resampling
from threedident.datasets.loader import Batch, BatchSource, EndlessBatches, PairLoader, Strided
from threedident.datasets.matching_report import Spread
from threedident.datasets.pairs import PositivePairs
from threedident.datasets.papers import FORMS
from threedident.datasets.sequence_pairs import SequencePairs, TablePairs
from threedident.datasets.single_images import SingleImages
from threedident.datasets.synthetic import LatentMap, Mixing, SyntheticPairs
from threedident.distributions import PairProcess, Uniform, check_matchable
from threedident.distributions.serialisation import space_as_dict
from threedident.distributions.spaces import Box, Sphere
from threedident.distributions.torch_sampler import seeded
from threedident.errors import UsageError
from threedident.evaluate.metrics._kinds import Kind, kinds_of_columns
from threedident.evaluate.sampled_source import apart_by_sequence
from threedident.factors import FACTOR_NAMES

Tensors = tuple[torch.Tensor, ...]
#: The latents (N, n) and observations of each view, as a `Batch` has them.
Views = tuple[Tensors, Tensors]

_SCORED, _HARD, _MEMBER, _LATENTS = 1, 2, 3, 4  # words that tell streams of random numbers apart
_CONTINUED = 500_009
_PARTNERS = 16  # of each synthetic latent, where they are resampled
_MEASURED = 8192  # synthetic pairs of which spread and kurtosis are taken


@dataclasses.dataclass(frozen=True)
class Problem:
    """The data that an encoder is trained on and scored on.

    Attributes:
        n: the number of latents that count.
        source: the source of the training batches.
        mixing: the map that makes synthetic observations; None for images.
        images: the images to score on; None for synthetic observations.
        experiment: the experiment whose data these are.
        normalization: the mean and the std of the images; None for vectors.
        about: a description of the data, as plain data for the record.
        processes: the processes of the pairs; none without pairs.
        notes: the notes for the user.
    """

    n: int
    source: BatchSource
    mixing: LatentMap | None
    images: ImageDataset | None
    experiment: Experiment
    normalization: tuple[tuple[float, ...], tuple[float, ...]] | None
    about: dict[str, Any]
    processes: tuple[PairProcess, ...] = ()
    notes: tuple[str, ...] = ()

    def fresh(self, count: int, number: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Return latents (N, n) and observations to score on.

        Synthetic ones are drawn, anew for each number; of images the first `count` of the test
        set come back, in its order, which is random; of a grid always the same, in random order.

        Args:
            count: the number of samples; of images, at most as many as there are.
            number: the number of the draw.
        """
        if self.images is not None:
            numbers = self._first_of(self.images, min(count, len(self.images)))
            return self.images.factors[numbers], self.images.images(numbers)
        assert self.mixing is not None and self.experiment.data.space is not None
        generator = seeded(
            self.experiment.training.seed, _SCORED, number, device=self.mixing.device
        )
        z = self.experiment.data.marginal.marginal(
            self.experiment.data.space, count, generator=generator
        )
        with torch.no_grad():
            return z, self.mixing(z)

    @staticmethod
    def _first_of(images: ImageDataset, count: int) -> list[int]:
        """The numbers of the images to score on: where their order is not random, drawn once.

        Frames of a sequence are in one half of them: a regression is fitted on the first.
        """
        source = images.source
        if isinstance(images, ThreeDIdent) and not isinstance(source, FamilySource):
            return list(range(count))  # rendered in random order
        drawn = torch.randperm(len(images), generator=seeded(0, _SCORED))[:count].numpy()
        apart = apart_by_sequence(drawn, source.sequences, np.random.default_rng([0, _SCORED]))
        numbers: list[int] = apart.tolist()
        return numbers

    @property
    def kinds(self) -> tuple[Kind, ...] | None:
        """The kind of each factor; None where all are numbers."""
        if self.images is None or isinstance(self.images, ThreeDIdent):
            return None
        return kinds_of_columns(self.images.factor_columns)

    def batches(self, first: int, stride: int, threads: int) -> Iterator[Views]:
        """Iterate over every stride-th batch of the endless sequence; they are prepared ahead.

        Args:
            first: the position of the first batch.
            stride: the distance from one batch to the next.
            threads: the number of threads (or processes, for augmentations) that prepare them.
        """
        strided = Strided(self.source, first, stride)
        if isinstance(self.source, TwoViews):
            # In processes: its augmentations draw from global random numbers.
            views = EndlessBatches(strided)
            return iter(
                torch_data.DataLoader(
                    views, batch_size=None, num_workers=threads, worker_init_fn=_calm
                )
            )
        return iter(PairLoader(strided, threads=threads))


def make_problem(
    experiment: Experiment,
    *,
    data: Path | None,
    test: Path | None,
    batch_size: int,
    device: torch.device,
    decoder: Path | None = None,
) -> Problem:
    """Open the data of an experiment.

    Args:
        experiment: the experiment.
        data: a dataset of images; None for synthetic observations.
        test: the images that scores are taken on; None: those of `data`.
        batch_size: the number of pairs in a batch of one process.
        device: the device that makes synthetic observations.
        decoder: the file of the decoder, where observations are decoded images.

    Raises:
        UsageError: the data do not fit the experiment.
        DatasetError: they cannot be read.
    """
    if experiment.data.observations == "synthetic":
        return _synthetic(experiment, batch_size, device, decoder)
    if data is None:
        raise UsageError(f"{experiment.name} is trained on images: say which by --data DIR")
    return _images(experiment, data, test, batch_size, pin_memory=device.type == "cuda")


class _Matched:
    """A source of pairs of synthetic latents, drawn once and matched as those of images are."""

    def __init__(
        self,
        experiment: Experiment,
        mixing: LatentMap,
        batch_size: int,
        seed: int,
        latents: torch.Tensor,
    ) -> None:
        self._size, self._seed, self._latents = batch_size, seed, latents
        self._process = experiment.processes[0]
        check_matchable(
            self._process.conditional,
            latents.numpy(),
            [f"latent {number}" for number in range(latents.shape[1])],
        )
        match = experiment.data.match
        if match == "resample":
            check_resampling(self._process)
        # Or else a run that goes on might find other neighbours than one that was not stopped.
        self._matcher = LatentMatcher(latents, match=match, repeatable=True)
        self._partners = None
        if match == "resample":  # anew for each batch, it would take hours
            generator = seeded(experiment.training.seed, _LATENTS, 1)
            self._partners = self._matcher.partners(self._process, _PARTNERS, generator)
        self._device = mixing.device
        self._z = latents.to(self._device)
        with torch.no_grad():
            self._x = mixing(self._z)

    def batch(self, epoch: int, number: int) -> Batch:
        generator = seeded(self._seed, epoch, number)
        if self._partners is None:
            i, j = self._matcher.pairs(self._process, self._size, generator)
        else:
            i = self._matcher.anchors(self._process, self._size, generator)
            which = torch.randint(_PARTNERS, (self._size,), generator=generator)
            j = self._partners[i, which].long()
        i, j = i.to(self._device), j.to(self._device)
        return Batch((self._z[i], self._z[j]), (self._x[i], self._x[j]))


class _Synthetic:
    """A source of the views of every member's pairs, and of hard negatives."""

    batches = None

    def __init__(self, experiment: Experiment, mixing: LatentMap, batch_size: int) -> None:
        self._data, self._mixing, self._size = experiment.data, mixing, batch_size
        # What trains on another run sees other pairs than that has seen.
        self._seed = experiment.training.seed + (_CONTINUED if experiment.start else 0)
        self._supervised = experiment.supervised
        self._pairs: list[Any] = []
        if self._data.latents:
            space = self._data.space
            assert space is not None
            generator = seeded(experiment.training.seed, _LATENTS)
            latents = Uniform().marginal(space, self._data.latents, generator=generator)
            self._pairs = [_Matched(experiment, mixing, batch_size, self._seed, latents)]
            return
        self._pairs = [
            SyntheticPairs(
                mixing, process, batch_size=batch_size, seed=self._seed + _MEMBER * 1_000_003 * k
            )
            for k, process in enumerate(experiment.processes)
        ]

    def batch(self, epoch: int, number: int) -> Batch:
        device = self._mixing.device
        space = self._data.space
        assert space is not None
        if self._supervised:
            generator = seeded(self._seed, epoch, number, device=device)
            z = self._data.marginal.marginal(space, self._size, generator=generator)
            with torch.no_grad():
                return Batch((z,), (self._mixing(z),))
        latents: Tensors = ()
        observations: Tensors = ()
        for member, pairs in enumerate(self._pairs):
            z_pair, x_pair = pairs.batch(epoch, number)
            latents, observations = latents + z_pair, observations + x_pair
            if self._data.hard_negatives is not None:
                generator = seeded(self._seed, epoch, number, _HARD, member, device=device)
                around = z_pair[0].repeat_interleave(self._data.hard_count, 0)
                drawn = self._data.hard_negatives.sample(space, around, generator=generator)
                with torch.no_grad():
                    latents, observations = (*latents, drawn), (*observations, self._mixing(drawn))
        return Batch(latents, observations)


def _synthetic(
    experiment: Experiment, batch_size: int, device: torch.device, decoder: Path | None
) -> Problem:
    data = experiment.data
    assert data.space is not None
    mixing, about = _make_mixing(experiment, device, decoder)
    about = {"observations": "synthetic", **about}
    source = _Synthetic(experiment, mixing, batch_size)
    if isinstance(data.space, Box) and len(experiment.processes) == 1:
        about["pairs"] = _measure_pairs(source, batch_size)
    return Problem(
        data.space.n, source, mixing, None, experiment, None, about, experiment.processes
    )


def _make_mixing(
    experiment: Experiment, device: torch.device, decoder: Path | None
) -> tuple[LatentMap, dict[str, Any]]:
    """Make the map from latents to observations, and a record of it."""
    data, seed = experiment.data, experiment.training.seed
    assert data.space is not None
    if data.mixing == "decoder":
        from threedident.baselines.training.decoder import open_mixing

        if decoder is None:
            raise UsageError(f"{experiment.name} needs the file of a decoder, see prepare_decoder")
        assert isinstance(data.space, Sphere)
        mixing, about = open_mixing(decoder, data.space, device)
        return mixing, {"decoder": about}
    network = Mixing(
        data.space.n,
        layers=data.mixing_layers,
        trials=data.mixing_trials,
        seed=seed if data.mixing_seed is None else data.mixing_seed,
        device=device,
    )
    return network, {"condition_numbers": [round(c, 4) for c in network.condition_numbers]}


def _measure_pairs(source: _Synthetic, batch_size: int) -> dict[str, float]:
    """Measure the spread and the kurtosis of the first pairs, over all latents."""
    count = max(1, _MEASURED // batch_size)
    batches = [source.batch(0, number)[0] for number in range(count)]
    z, z_tilde = (torch.cat(views).cpu().numpy() for views in list(zip(*batches, strict=True))[:2])
    spread = Spread.of(z, z_tilde)
    return {"std": spread.overall, "kurtosis": spread.kurtosis}


def _calm(_: int) -> None:
    """Leave Ctrl-C to the training process, which ends its workers when it is done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _images(
    experiment: Experiment,
    data: Path,
    test: Path | None,
    batch_size: int,
    *,
    pin_memory: bool,
) -> Problem:
    wanted, training = experiment.data, experiment.training
    factors = wanted.factors or None
    dataset = require_images(open_images(data, factors))
    scored = dataset if test is None else require_images(open_images(test, factors))
    n = len(dataset.factor_names)
    check_images(experiment, dataset.source, scored.source, (dataset.root, scored.root))
    manifest = dataset.source.manifest
    paired = manifest is not None and manifest.pair_process is not None
    source: BatchSource
    if wanted.pairs == "none":
        source = SingleImages(dataset, batch_size, training.seed)
    elif wanted.pairs == "groups":
        source = ImageGroups(
            require_rendered(dataset),
            2,
            batch_size=batch_size,
            seed=training.seed,
            pin_memory=pin_memory,
        )
    elif wanted.pairs in BY_NUMBER:
        source = _pairs_by_number(experiment, dataset, batch_size, pin_memory=pin_memory)
    elif wanted.pairs == "views":
        source = TwoViews(dataset, batch_size=batch_size, seed=training.seed)
    else:
        source = PositivePairs(
            require_rendered(dataset),
            wanted.space,
            wanted.conditional,
            marginal=None if paired else wanted.marginal,
            batch_size=batch_size,
            seed=training.seed,
            match=wanted.match,
            pin_memory=pin_memory,
        )
    digest, tested = dataset.source.fingerprint, scored.source.fingerprint
    presets = [each.source.preset for each in (dataset, scored)]
    about: dict[str, Any] = {
        "observations": "images",
        "images": len(dataset),
        "resolution": dataset.source.shape[0],
        "preset": presets[0].name if presets[0] else None,
        "latents": digest,
        "test_latents": tested,
        "pixels": dataset.source.pixels_fingerprint,
        "test_pixels": scored.source.pixels_fingerprint,
        "factors": list(dataset.factor_names),
        "scored_on": "training images" if digest == tested else "test images",
        "scored": min(len(scored), training.score_samples),
        "best_r2": dict(scored.source.manifest.best_r2) if scored.source.manifest else {},
    }
    if not isinstance(dataset, ThreeDIdent):
        about["form"] = dataset.source.form
    elif dataset.sampling is not None:
        sampling = dataset.sampling
        about["model"] = {
            "name": sampling.model.name,
            "images": sampling.group,
            "view": sampling.view,
        }
    processes = experiment.processes
    if manifest is not None and manifest.pair_process is not None:
        processes = (manifest.pair_process,)
    if isinstance(source, GridPairs):
        processes = (source.process,)
    if wanted.pairs in BY_NUMBER:
        about["images_in_a_batch"] = 2 * training.batch_size
        about["processes"] = [
            {"space": space_as_dict(each.space), "conditional": each.conditional.as_dict()}
            for each in processes
        ]
    normalization = (dataset.mean, dataset.std)
    notes = _notes(dataset, scored)
    return Problem(
        n, source, None, scored, experiment, normalization, about, processes, tuple(notes)
    )


def _pairs_by_number(
    experiment: Experiment, dataset: ImageDataset, batch_size: int, *, pin_memory: bool
) -> IndexedPairs:
    """The pairs of a grid, of sequences, or of a table."""
    wanted = experiment.data
    seed = experiment.training.seed
    if wanted.pairs == "grid":
        assert wanted.conditional is not None
        return GridPairs(
            dataset, wanted.conditional, batch_size=batch_size, seed=seed, pin_memory=pin_memory
        )
    if wanted.pairs == "sequence":
        return SequencePairs(
            dataset, wanted.max_gap, batch_size=batch_size, seed=seed, pin_memory=pin_memory
        )
    return TablePairs(dataset, batch_size=batch_size, seed=seed, pin_memory=pin_memory)


def _notes(dataset: ImageDataset, scored: ImageDataset) -> list[str]:
    """What the user should know of the images that scores are taken on."""
    notes = []
    first, second = dataset.source, scored.source
    if first.fingerprint == second.fingerprint:
        notes.append(
            "R2 and MCC are those of images that it is trained on: see --test"
            if isinstance(dataset, ThreeDIdent)
            else f"R2 and MCC are those of images that it is trained on, as is usual of "
            f"{FORMS[first.form]}; --test names others"
        )
    elif shared := count_shared_images(first, second):
        notes.append(
            f"{shared:,} of {len(scored):,} images of {scored.root} are images that it is trained "
            "on: R2 and MCC are too good, see --test"
        )
    names = [None if each.preset is None else each.preset.name for each in (first, second)]
    if names[0] != names[1]:
        notes.append(f"trained on images of the preset {names[0]}, scored on those of {names[1]}")
    return notes + _notes_of_kinds(scored)


def _notes_of_kinds(dataset: ImageDataset) -> list[str]:
    """A note where factors are not all numbers, or a model's variables more than are scored."""
    if not isinstance(dataset, ThreeDIdent):
        others = [c.name for c in dataset.factor_columns if c.kind != "continuous"]
        return [f"MCC leaves out {', '.join(others)}: no numbers in an order"] if others else []
    if dataset.model is None:
        return []
    names = set(dataset.factor_names)
    classes = [
        each.name
        for each in dataset.model.variables
        if each.kind == "discrete" and each.renders and each.renders not in FACTOR_NAMES
    ]
    circular = [
        each.name
        for each in dataset.model.variables
        if each.kind == "circular" and each.renders in names
    ]
    parts = [
        *([f"{', '.join(classes)} not at all"] if classes else []),
        *([f"{', '.join(circular)} as numbers that do not come round"] if circular else []),
    ]
    if not parts:
        return []
    return [
        f"R2 and MCC are of the scene's factors in {dataset.root}: {'; '.join(parts)}. "
        "`3dident evaluate` scores the variables of the model by their kinds"
    ]
