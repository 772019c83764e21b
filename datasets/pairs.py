"""`PositivePairs`: the positive pairs of a dataset, a whole batch at a time."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt

from threedident.datasets.dataset import ThreeDIdent, require_rendered
from threedident.datasets.formats.family import FamilySource
from threedident.datasets.formats.grouping import grouping
from threedident.distributions import Distribution, PairProcess, Uniform, check_matchable
from threedident.distributions.spaces import Box, Space
from threedident.errors import DatasetError, MatchingWarning, MissingExtraError, UsageError

try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "train", "positive pairs") from error

from threedident.datasets.latent_matcher import LatentMatcher, check_resampling, index_path
from threedident.datasets.loader import (
    Batch,
    BatchDataset,
    Buffers,
    Pair,
    PairLoader,
    batch_of_rounds,
    check_sizes,
)
from threedident.distributions.torch_sampler import seeded

_SPREAD_OFF = 0.25  # the largest relative error of a factor's spread without a warning


class PositivePairs(BatchDataset):
    """Batches of positive pairs `((z, z~), (x, x~))` of a dataset.

    z and z~ are the raw latents of the two images, (B, n) float32; x and x~ are uint8
    (B, 3, H, W), channels last in memory, to be normalised on the model's device by
    `dataset.normalization()`. The two are never the same image.

    If the dataset was rendered in pairs (`3dident render --pairs`), these are its pairs, in random
    order. An epoch holds each pair once, except those at the end that do not fill a batch. A
    dataset with fewer pairs than a batch repeats them within the batch.

    Otherwise pairs are matched: a pair is drawn, and rendered images with latents close by stand in
    for it. The denser the rendered latents, the closer the pairs follow the conditional. A warning
    names the factors whose spread is off by more than a quarter, and `3dident pairs` measures it.

    Iterate over `loader()`. As a dataset of batches this also works in a DataLoader:
    `DataLoader(pairs, batch_size=None, num_workers=4)`, with `set_epoch` before each epoch.

    Attributes:
        process: the space, the marginal and the conditional of the pairs.
        batches: the number of batches in an epoch.
        matcher: the matcher from drawn to rendered latents; None where the pairs are rendered.
    """

    def __init__(
        self,
        dataset: ThreeDIdent | str | Path,
        space: Space | None = None,
        conditional: Distribution | None = None,
        *,
        marginal: Distribution | None = None,
        batch_size: int = 512,
        batches: int | None = None,
        seed: int = 0,
        match: str = "nearest",
        matcher: LatentMatcher | None = None,
        index: str = "auto",
        pin_memory: bool = False,
    ) -> None:
        """Open the matcher; its index is kept beside the dataset.

        Args:
            dataset: the dataset, or its path; the raw latents of its chosen factors are matched.
            space: the space of the raw latents; None: the box [-1, 1]^n, or the dataset's own.
            conditional: the distribution p(z~ | z), given by name; None only for a dataset of
                pairs.
            marginal: the distribution p(z); None: uniform.
            batch_size: the number of pairs in a batch.
            batches: the number of batches in an epoch; None: as many as the dataset fills with
                its images as anchors, at least 1.
            seed: the seed for the pairs.
            match: the way of matching, "nearest" or "resample", see `LatentMatcher`.
            matcher: an existing matcher of this dataset's latents; `match` and `index` are then
                ignored.
            index: the matcher's index, see `LatentMatcher`.
            pin_memory: a flag to put images into pinned memory, from which a GPU copies faster.

        Warns:
            MatchingWarning: the spread of a factor is off by more than a quarter, a batch is
                larger than the dataset, or the images are of several classes.

        Raises:
            UsageError: an argument does not fit, the space does not fit the factors, or the
                conditional keeps factors (`Unchanged`, `Change`) and the pairs are not rendered.
            DatasetError: the dataset was rendered in pairs, and holds no whole one yet.
        """
        super().__init__()
        self.dataset = require_rendered(dataset)
        check_sizes(batch_size, batches)
        self._batch_size, self._seed = batch_size, seed
        self._buffers = Buffers(pin_memory=pin_memory)
        self.matcher = None
        recorded = self._recorded_process()
        if recorded is not None:
            self.process = recorded
            self._check_recorded(space, conditional, marginal)
        else:
            self.process = self._new_process(space, conditional, marginal)
            self.matcher = self._make_matcher(match, index) if matcher is None else matcher
            self._check_matcher(self.matcher)
            self._check_spread(self.matcher)
            self._check_classes()
        self._check_batch_size()
        self.batches = max(1, self._anchors // batch_size) if batches is None else batches

    def __repr__(self) -> str:
        if self.matcher is None:
            how = f"{len(self.dataset) // 2} rendered pairs"
        else:
            how = f"{len(self.dataset)} images, match={self.matcher.match}"
        return (
            f"{type(self).__name__}({self.dataset.root}, {how}, {self.process.conditional}, "
            f"{self.batches} x {self._batch_size} pairs an epoch)"
        )

    def loader(self, *, threads: int = 2, ahead: int = 2) -> PairLoader:
        """Make a loader: each pass is the next epoch, prepared by threads of this process."""
        return PairLoader(self, threads=threads, ahead=ahead)

    def batch(self, epoch: int, number: int) -> Batch:
        """Make batch `number` of an epoch."""
        i, j = self.indices(epoch, number)
        z = (self.dataset.raw_latents[i], self.dataset.raw_latents[j])
        images = self._buffers.images(self.dataset, torch.cat([i, j]))
        device = images.device
        if device.type != "cpu":
            z = (z[0].to(device), z[1].to(device))
        count = len(i)
        return Batch(z, (images[:count], images[count:]))

    def indices(self, epoch: int, number: int) -> Pair:
        """Choose the images of a batch's pairs: two tensors of image numbers, (B,) int64 each.

        They depend on the dataset, the process, the seed, the epoch and the number alone.
        """
        if self.matcher is None:
            pairs = batch_of_rounds(
                len(self.dataset) // 2,
                self._batch_size,
                seed=self._seed,
                epoch=epoch,
                number=number,
            )
            return 2 * pairs, 2 * pairs + 1
        generator = seeded(self._seed, epoch, number)
        return self.matcher.pairs(self.process, self._batch_size, generator)

    @property
    def _anchors(self) -> int:
        """The number of different images that can be z."""
        return len(self.dataset) // 2 if self.matcher is None else len(self.dataset)

    def _recorded_process(self) -> PairProcess | None:
        """The process that a dataset of pairs was rendered from; None for single images."""
        kind, frames = grouping(self.dataset.source)
        if frames > 1:
            raise UsageError(
                f"the images of {self.dataset.root} belong together ({kind}): ImageGroups makes "
                'batches of them, and experiments train on them by data.pairs = "groups"'
            )
        manifest = self.dataset.source.manifest
        return manifest.pair_process if manifest else None

    def _check_recorded(
        self, space: Space | None, conditional: Distribution | None, marginal: Distribution | None
    ) -> None:
        """Check that the arguments are what pairs were rendered with, and that there is one."""
        arguments = {"space": space, "conditional": conditional, "marginal": marginal}
        for name, value in arguments.items():
            recorded = getattr(self.process, name)
            if value is not None and value != recorded:
                raise UsageError(
                    f"{self.dataset.root} was rendered in pairs with {name} {recorded}, asked for "
                    f"{value}: leave it out, or take a dataset of single images"
                )
        if not self._anchors:
            raise DatasetError(f"{self.dataset.root} holds no whole pair yet")

    def _new_process(
        self, space: Space | None, conditional: Distribution | None, marginal: Distribution | None
    ) -> PairProcess:
        """Make the process of pairs among single images, and check that these can hold it."""
        names = self.dataset.factor_names
        if isinstance(space, Distribution):
            raise UsageError(f"space must be one such as Box(10): write conditional={space}")
        if conditional is None:
            raise UsageError(
                f"{self.dataset.root} was not rendered in pairs: say from which conditional they "
                "are drawn, e.g. Normal(0.3)"
            )
        if not isinstance(conditional, Distribution):
            raise UsageError(f"conditional must be one such as Normal(0.3), found {conditional!r}")
        space = Box(len(names)) if space is None else space
        if space.n != len(names):
            raise UsageError(
                f"{space} has {space.n} dimensions, the dataset's latents {len(names)} "
                f"({', '.join(names)}): choose other factors, or another space"
            )
        process = PairProcess(space, conditional, marginal or Uniform())
        check_matchable(conditional, self.dataset.raw_latents.numpy(), names)
        return process

    def _make_matcher(self, match: str, index: str) -> LatentMatcher:
        dataset = self.dataset
        path = index_path(dataset.root, dataset.columns, index, len(dataset))
        return LatentMatcher(dataset.raw_latents, index=index, match=match, path=path)

    def _check_matcher(self, matcher: LatentMatcher) -> None:
        """Check that a matcher has the dataset's latents, and can resample if it is to."""
        if not np.array_equal(matcher.latents, self.dataset.raw_latents.numpy()):
            raise UsageError(
                f"the matcher has other latents, {matcher.latents.shape}, than {self.dataset.root}"
                f", {tuple(self.dataset.raw_latents.shape)}: make it of the dataset's raw_latents"
            )
        if matcher.match == "resample":
            check_resampling(self.process)

    def _check_classes(self) -> None:
        """Warn if images are of several classes, which the matched factors do not tell apart."""
        source, model = self.dataset.source, self.dataset.model
        kinds: dict[str, str] = {}
        if isinstance(source, FamilySource):
            kinds = {column.name: column.kind for column in source.columns}
        elif model is not None:
            kinds = {variable.name: variable.kind for variable in model.variables}
        values = self.dataset.variables if kinds else torch.empty(0, 0)
        names = [
            name
            for k, (name, kind) in enumerate(kinds.items())
            if kind == "discrete" and bool((values[:, k] != values[0, k]).any())
        ]
        if names:
            warnings.warn(
                f"pairs of {self.dataset.root} are matched by its factors alone: the two images of "
                f"a pair can differ in {', '.join(names)}. Views of a causal model keep what they "
                "shall keep (`3dident render --model NAME --views`)",
                MatchingWarning,
                stacklevel=3,
            )

    def _check_batch_size(self) -> None:
        """Warn if a batch holds more pairs than the dataset has anchors."""
        if self._batch_size > self._anchors:
            warnings.warn(
                f"a batch of {self._batch_size} pairs is more than the {self._anchors} of "
                f"{self.dataset.root}: images come several times in it, so that some negatives "
                "are the anchor itself or its positive. Take a smaller batch_size, or more images",
                MatchingWarning,
                stacklevel=3,
            )

    def _check_spread(self, matcher: LatentMatcher) -> None:
        """Warn if the spread of a factor is not that of the conditional."""
        names, preset = self.dataset.factor_names, self.dataset.preset
        free = np.array([preset is None or name not in preset.fixed for name in names])

        def off(match: str) -> tuple[npt.NDArray[np.float64], ...]:
            """The requested and the realised spread, and the share by which they differ."""
            requested, realised = matcher.spread(self.process, match)
            share = np.abs(realised - requested) / np.where(requested > 0, requested, np.inf)
            return requested, realised, share * free

        requested, realised, share = off(matcher.match)
        if share.max() <= _SPREAD_OFF:
            return
        worst = int(share.argmax())
        far = [name for name, each in zip(names, share, strict=True) if each > _SPREAD_OFF]
        which = f"all {len(far)} factors" if len(far) == len(names) > 1 else ", ".join(far)
        better = ""
        if matcher.match == "nearest":
            with contextlib.suppress(UsageError):  # it may not be possible
                if off("resample")[2].max() <= _SPREAD_OFF:
                    better = '; match="resample" brings it within a quarter'
        warnings.warn(
            f"pairs matched among {len(matcher.latents)} images do not have the spread of "
            f"{self.process.conditional}: the standard deviation of z~ - z is about "
            f"{realised[worst]:.2g} instead of {requested[worst]:.2g} for {names[worst]}, and off "
            f"by more than a quarter for {which}. More images, a wider conditional or fewer "
            f"factors bring it closer{better}; pairs of `3dident render --pairs` and of "
            "RenderedPairs are exact. `3dident pairs` measures it",
            MatchingWarning,
            stacklevel=3,
        )
