"""Positive pairs of a dataset, a whole batch at a time."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt

from threedident.datasets.dataset import ThreeDIdent, require_images
from threedident.distributions import Distribution, PairProcess, Uniform, check_matchable
from threedident.distributions.spaces import Box, Space
from threedident.errors import DatasetError, MatchingWarning, MissingExtraError, UsageError

try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "train", "positive pairs") from error

from threedident.datasets.latent_matcher import LatentMatcher, check_resampling, index_path
from threedident.datasets.loader import Batch, BatchDataset, Buffers, Pair, PairLoader
from threedident.distributions.torch_sampler import seeded

_SPREAD_OFF = 0.25  # of what is asked for: beyond it there is a warning


class PositivePairs(BatchDataset):
    """Batches of positive pairs `((z, z~), (x, x~))` of a dataset.

    z and z~ are the raw latents of the two images, (B, n) float32; x and x~ are uint8
    (B, 3, H, W), channels last in memory, to be normalised on the model's device by
    `dataset.normalization()`. The two are never the same image.

    Where the dataset was rendered in pairs (`3dident render --pairs`), these are its pairs, in
    random order: each once an epoch, but for those that do not fill a batch (fewer pairs than a
    batch holds are repeated in it). Otherwise rendered
    latents stand in for drawn ones, and the conditional is met only as far as they are dense:
    a warning says where its spread is off by more than a quarter, and `3dident pairs` measures it.

    Iterate over `loader()`. As a dataset of batches this also works in a DataLoader:
    `DataLoader(pairs, batch_size=None, num_workers=4)`, with `set_epoch` before each epoch.

    Attributes:
        process: space, marginal and conditional.
        batches: in an epoch.
        matcher: of drawn to rendered latents; None where the pairs are rendered.
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
        """Opens the matcher; its index is kept beside the dataset.

        Args:
            dataset: whose raw latents (its chosen factors) are matched.
            space: of the raw latents; None: the box [-1, 1]^n, or the dataset's own.
            conditional: p(z~ | z); None only for a dataset of pairs.
            marginal: p(z); None: uniform.
            batch_size: pairs to a batch.
            batches: in an epoch; None: as many as the dataset fills with its images as
                anchors, at least 1.
            seed: of the pairs.
            match: nearest or resample, see `LatentMatcher`.
            matcher: one of this dataset's latents that is there already; `match` and `index` are
                then ignored.
            index: of the matcher.
            pin_memory: whether images are put where a GPU can fetch them by itself.

        Warns:
            MatchingWarning: the spread of a factor is off by more than a quarter, or a batch is
                larger than the dataset.

        Raises:
            UsageError: an argument does not fit, the space does not fit the factors, or the
                conditional keeps factors (`Unchanged`, `Change`) and the pairs are not rendered.
            DatasetError: the dataset was rendered in pairs, and holds no whole one yet.
        """
        super().__init__()
        self.dataset = require_images(dataset)
        if batch_size < 1 or (batches is not None and batches < 1):
            raise UsageError(f"expected at least 1 pair and batch, found {batch_size}, {batches}")
        self._batch_size, self._seed = batch_size, seed
        self._buffers = Buffers(pin_memory=pin_memory)
        self._orders: dict[tuple[int, int], torch.Tensor] = {}
        self.matcher = None
        rendered = self._rendered_process()
        if rendered is not None:
            self.process = rendered
            self._refuse_other(space, conditional, marginal)
            anchors = len(self.dataset) // 2
            if not anchors:
                raise DatasetError(f"{self.dataset.root} holds no whole pair yet")
        else:
            self.process = self._asked_process(space, conditional, marginal)
            latents = self.dataset.raw_latents.numpy()
            check_matchable(self.process.conditional, latents, self.dataset.factor_names)
            anchors = len(self.dataset)
            self.matcher = self._make_matcher(match, index) if matcher is None else matcher
            self._check_matcher(self.matcher)
            self._check_spread(self.matcher)
        if batch_size > anchors:
            warnings.warn(
                f"a batch of {batch_size} pairs is more than the {anchors} of {self.dataset.root}: "
                "images come several times in it, so that some negatives are the anchor itself or "
                "its positive. Take a smaller batch_size, or more images",
                MatchingWarning,
                stacklevel=2,
            )
        self.batches = max(1, anchors // batch_size) if batches is None else batches

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
        """Batches of one epoch after the other, prepared by threads of this process."""
        return PairLoader(self, threads=threads, ahead=ahead)

    def batch(self, epoch: int, number: int) -> Batch:
        """Batch `number` of an epoch."""
        i, j = self.indices(epoch, number)
        z = (self.dataset.raw_latents[i], self.dataset.raw_latents[j])
        images = self._images(torch.cat([i, j]))
        device = images.device
        if device.type != "cpu":
            z = (z[0].to(device), z[1].to(device))
        count = len(i)
        return Batch(z, (images[:count], images[count:]))

    def indices(self, epoch: int, number: int) -> Pair:
        """The image numbers of a batch's pairs, (B,) int64 each.

        They depend on the dataset, the process, the seed, the epoch and the number alone.
        """
        if self.matcher is None:
            pairs = self._rendered_pairs(epoch, number)
            return 2 * pairs, 2 * pairs + 1
        generator = seeded(self._seed, epoch, number)
        return self.matcher.pairs(self.process, self._batch_size, generator)

    def _images(self, numbers: torch.Tensor) -> torch.Tensor:
        place = self.dataset.cache_device
        if place is not None and place.type != "cpu":
            return self.dataset.images(numbers)
        pixels = self._buffers.take((len(numbers), *self.dataset.source.shape))
        self.dataset.read_into(numbers, pixels.numpy())
        return pixels.permute(0, 3, 1, 2)

    def _rendered_pairs(self, epoch: int, number: int) -> torch.Tensor:
        """Pair numbers: positions in random orders of all pairs, one after the other."""
        total = len(self.dataset) // 2
        positions = number * self._batch_size + torch.arange(self._batch_size)
        rounds = positions // total
        found = torch.empty_like(positions)
        for each in sorted(set(rounds.tolist())):
            rows = rounds == each
            found[rows] = self._order(epoch, each, total)[positions[rows] % total]
        return found

    def _order(self, epoch: int, number: int, total: int) -> torch.Tensor:
        order = self._orders.get((epoch, number))
        if order is None:
            order = torch.randperm(total, generator=seeded(self._seed, epoch, number, 1))
            self._orders = {**dict(list(self._orders.items())[-3:]), (epoch, number): order}
        return order

    def _rendered_process(self) -> PairProcess | None:
        manifest = self.dataset.source.manifest
        return manifest.pair_process if manifest else None

    def _refuse_other(
        self, space: Space | None, conditional: Distribution | None, marginal: Distribution | None
    ) -> None:
        asked = {"space": space, "conditional": conditional, "marginal": marginal}
        for what, value in asked.items():
            there = getattr(self.process, what)
            if value is not None and value != there:
                raise UsageError(
                    f"{self.dataset.root} was rendered in pairs with {what} {there}, asked for "
                    f"{value}: leave it out, or take a dataset of single images"
                )

    def _asked_process(
        self, space: Space | None, conditional: Distribution | None, marginal: Distribution | None
    ) -> PairProcess:
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
        return PairProcess(space, conditional, marginal or Uniform())

    def _make_matcher(self, match: str, index: str) -> LatentMatcher:
        dataset = self.dataset
        path = index_path(dataset.root, dataset.columns, index, len(dataset))
        return LatentMatcher(dataset.raw_latents, index=index, match=match, path=path)

    def _check_matcher(self, matcher: LatentMatcher) -> None:
        if not np.array_equal(matcher.latents, self.dataset.raw_latents.numpy()):
            raise UsageError(
                f"the matcher has other latents, {matcher.latents.shape}, than {self.dataset.root}"
                f", {tuple(self.dataset.raw_latents.shape)}: make it of the dataset's raw_latents"
            )
        if matcher.match == "resample":
            check_resampling(self.process)

    def _check_spread(self, matcher: LatentMatcher) -> None:
        """Warns where a factor of the pairs is spread otherwise than asked for."""
        names, preset = self.dataset.factor_names, self.dataset.preset
        free = np.array([preset is None or name not in preset.fixed for name in names])

        def off(match: str) -> tuple[npt.NDArray[np.float64], ...]:
            """Asked and realised spread, and by what share they differ."""
            asked, realised = matcher.spread(self.process, match)
            share = np.abs(realised - asked) / np.where(asked > 0, asked, np.inf)
            return asked, realised, share * free

        asked, realised, share = off(matcher.match)
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
            f"{realised[worst]:.2g} instead of {asked[worst]:.2g} for {names[worst]}, and off by "
            f"more than a quarter for {which}. More images, a wider conditional or fewer factors "
            f"bring it closer{better}; pairs of `3dident render --pairs` and of RenderedPairs are "
            "exact. `3dident pairs` measures it",
            MatchingWarning,
            stacklevel=3,
        )
