"""`Matching`: what nearest matching and resampling make of pairs among a dataset's latents."""

from __future__ import annotations

import collections
import dataclasses
import functools
import threading
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import numpy as np
import numpy.typing as npt

from threedident.datasets.formats.family import FamilySource
from threedident.datasets.formats.grouping import grouping
from threedident.datasets.formats.source import Source
from threedident.distributions.pair_process import PairProcess, check_matchable
from threedident.distributions.philox_sampler import sample_partners
from threedident.distributions.spaces import Box
from threedident.errors import UsageError
from threedident.explore.conditionals import Conditional
from threedident.explore.scenes import PresetScene, look_of
from threedident.factors import FACTOR_NAMES
from threedident.plain_data import Misfit

if TYPE_CHECKING:
    from threedident.datasets.latent_matcher import LatentMatcher

Float32 = npt.NDArray[np.float32]
_Piece = tuple[Float32, Float32, npt.NDArray[np.float64]]

_SPREADS = 32  # conditionals whose spread is kept
_DRAWS = 4_000  # pairs that are drawn and matched to the nearest, to measure their spread
_WEIGHTS = 2**26  # weights that are computed to measure the spread of resampled pairs
_AT_ONCE = 2**22  # of them in memory
_LEAST_ANCHORS, _MOST_ANCHORS = 200, 2_000
_AROUND = 200  # exact partners of z, whose mean distance a match is compared with
#: A match at this share of a pair's length widens the pairs by about a quarter.
_FAR = 0.5


class Matching:
    """Nearest matching and resampling among the latents of a dataset of 3DIdent.

    All of it is computed in threads, one request of a kind at a time. The index is built once.

    Attributes:
        source: the reader of the dataset.
    """

    def __init__(self, source: Source) -> None:
        """Take the dataset; nothing is computed before it is asked for."""
        self.source = source
        self._lock = threading.Lock()
        self._matcher: LatentMatcher | None = None
        self._spreads: collections.OrderedDict[Any, dict[str, Any]] = collections.OrderedDict()
        self._limits: dict[str, anyio.CapacityLimiter] = {}

    async def around(
        self, scene: PresetScene, z: Float32, conditional: Conditional, count: int, seed: int
    ) -> dict[str, Any]:
        """Match exact partners of z, and draw partners of the image nearest to it.

        Args:
            scene: the scene of the sliders.
            z: their values, (10,).
            conditional: the conditional.
            count: the number of partners.
            seed: the seed for them; the exact partners are those of `sample_partners`.

        Returns:
            Plain data: `refusal`, or what either way gives, with the images' numbers and latents.

        Raises:
            MissingExtraError: torch or FAISS is not installed.
        """
        limit = self._limits.setdefault("around", anyio.CapacityLimiter(1))
        work = functools.partial(self._around, scene, z, conditional, count, seed)
        return await anyio.to_thread.run_sync(work, limiter=limit)

    async def spread(self, scene: PresetScene, conditional: Conditional) -> dict[str, Any]:
        """Measure how wide pairs of a conditional come out: exact, nearest and resampled.

        Args:
            scene: the scene of the sliders.
            conditional: the conditional.

        Returns:
            Plain data: `refusal`, or the spread of each way; the last 32 are kept.

        Raises:
            MissingExtraError: torch or FAISS is not installed.
        """
        limit = self._limits.setdefault("spread", anyio.CapacityLimiter(1))
        async with limit:
            try:
                process = await anyio.to_thread.run_sync(self._process, scene, conditional)
            except UsageError as error:
                return {"refusal": _sentence(error)}
            key = process.conditional
            if key not in self._spreads:
                self._spreads[key] = await self._measure(process)
            self._spreads.move_to_end(key)
            while len(self._spreads) > _SPREADS:
                self._spreads.popitem(last=False)
            return self._spreads[key]

    @functools.cached_property
    def _columns(self) -> tuple[int, ...]:
        """The factors that vary among the images."""
        raw = self.source.raw_latents
        return tuple(np.flatnonzero(raw.max(0) > raw.min(0)).tolist()) if len(raw) else ()

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(FACTOR_NAMES[c] for c in self._columns)

    def _open(self) -> LatentMatcher:
        from threedident.datasets.latent_matcher import LatentMatcher

        with self._lock:
            if self._matcher is None:
                latents = self.source.raw_latents[:, list(self._columns)]
                # No file keeps the index: a page that looks at a dataset leaves nothing in it.
                self._matcher = LatentMatcher(latents)
            return self._matcher

    def _process(self, scene: PresetScene, conditional: Conditional) -> PairProcess:
        """The process of the factors that vary among the images.

        Raises:
            UsageError: its pairs cannot be matched among them; the text says why.
        """
        kind, frames = grouping(self.source)
        if frames > 1:
            raise UsageError(
                f"The dataset's images belong together ({kind}): nothing is matched among them."
            )
        manifest = self.source.manifest
        if manifest is not None and manifest.pair_process is not None:
            raise UsageError(
                "The dataset was rendered in pairs, with "
                f"{manifest.pair_process.conditional}: training takes those, and matches none."
            )
        if not self._columns:
            raise UsageError("No factor varies among the dataset's images.")
        kept = [name for name in self._names if name in scene.preset.fixed]
        if kept:
            raise UsageError(
                f"The sliders' preset holds {', '.join(kept)}, and the "
                "dataset's images differ in them: pairs that share them cannot be matched. "
                "Choose the preset that the dataset was rendered with."
            )
        check_matchable(conditional.over(), self.source.raw_latents, FACTOR_NAMES)
        # Which lets --change pass only where it names all factors that can change.
        every = dataclasses.replace(conditional, change=None)
        return PairProcess(Box(len(self._names)), every.over(self._names))

    def _notes(self, scene: PresetScene, z: Float32 | None) -> list[str]:
        """Sentences on what the matched images are, where it is not what the sliders show."""
        notes = []
        preset = self.source.preset
        if preset is None:
            notes.append(
                "The dataset does not record its preset: whether its raw values mean what the "
                "sliders' mean is not known."
            )
        elif look_of(preset) != look_of(scene.preset):
            notes.append(
                f"The dataset was rendered with {preset.name} ({preset.shape}, {preset.material}), "
                f"the sliders show {scene.preset.name} ({scene.preset.shape}, "
                f"{scene.preset.material}): one raw value can look different in the two."
            )
        if z is not None:
            constant = [c for c in range(len(FACTOR_NAMES)) if c not in self._columns]
            held = self.source.raw_latents[0]
            off = [
                f"{FACTOR_NAMES[c]} {held[c]:.3g} (z has {z[c]:.3g})"
                for c in constant
                if held[c] != z[c]
            ]
            if off:
                notes.append(
                    f"All images have {', '.join(off)}: distances here leave that out, the "
                    "images do not."
                )
        if classes := _classes(self.source):
            notes.append(
                f"Pairs are matched by the ten factors alone: two images can differ in "
                f"{', '.join(classes)}."
            )
        return notes

    def _around(
        self, scene: PresetScene, z: Float32, conditional: Conditional, count: int, seed: int
    ) -> dict[str, Any]:
        try:
            process = self._process(scene, conditional)
        except UsageError as error:
            return {"refusal": _sentence(error)}
        matcher = self._open()
        columns = list(self._columns)
        exact = sample_partners(z, max(count, _AROUND), conditional=conditional.over(), seed=seed)[
            :, columns
        ]
        here = z[columns]
        reach = float(np.linalg.norm(exact - here, axis=1).mean())
        distances, numbers = matcher.nearest(here[None])
        distance, anchor = float(distances[0, 0]), int(numbers[0, 0])
        about = {"anchor": self._image(scene, anchor), "distance": distance}
        return {
            "images": len(matcher.latents),
            "search": "exact" if matcher.factory == "Flat" else "approximate",
            "factors": list(self._names),
            "reach": reach,
            "far": distance > _FAR * reach,
            "nearest": {**about, **self._nearest(scene, matcher, here, exact[:count])},
            "resampled": {**about, **self._resampled(scene, matcher, process, anchor, count, seed)},
            "notes": self._notes(scene, z),
        }

    def _nearest(
        self, scene: PresetScene, matcher: LatentMatcher, z: Float32, exact: Float32
    ) -> dict[str, Any]:
        i, j = matcher.nearest_pairs(np.repeat(z[None], len(exact), 0), exact)
        rows = matcher.latents
        to_match = np.linalg.norm(rows[j] - exact, axis=1)
        return {
            "partners": [
                {**self._image(scene, int(number)), "distance": float(off)}
                for number, off in zip(j, to_match, strict=True)
            ],
            "exact_length": float(np.linalg.norm(exact - z, axis=1).mean()),
            "length": float(np.linalg.norm(rows[j] - rows[i], axis=1).mean()),
        }

    def _resampled(
        self,
        scene: PresetScene,
        matcher: LatentMatcher,
        process: PairProcess,
        anchor: int,
        count: int,
        seed: int,
    ) -> dict[str, Any]:
        import torch

        from threedident.distributions.torch_sampler import seeded

        try:
            drawn = matcher.resample(torch.full((count,), anchor), process, seeded(seed))
        except UsageError as error:
            return {"refusal": _sentence(error)}
        numbers = drawn.partners.numpy()
        rows = matcher.latents
        return {
            "partners": [self._image(scene, int(number)) for number in numbers],
            "effective": float(drawn.effective[0]),
            "length": float(np.linalg.norm(rows[numbers] - rows[anchor], axis=1).mean()),
        }

    def _image(self, scene: PresetScene, number: int) -> dict[str, Any]:
        """An image of the dataset: its number, its latents, and whether sliders can be there."""
        values = self.source.raw_latents[number].tolist()
        try:
            scene.check(values)
        except Misfit:
            return {"number": number, "values": values, "reachable": False}
        return {"number": number, "values": values, "reachable": True}

    async def _measure(self, process: PairProcess) -> dict[str, Any]:
        """Measure the spread of pairs, in pieces between which it can be cancelled."""
        result = await anyio.to_thread.run_sync(self._measure_nearest, process)
        pieces: list[_Piece] = []
        count = max(_LEAST_ANCHORS, min(_MOST_ANCHORS, _WEIGHTS // result["images"]))
        step = max(1, _AT_ONCE // result["images"])
        try:
            for first in range(0, count, step):
                size = min(step, count - first)
                work = functools.partial(self._resample, process, first, size)
                pieces.append(await anyio.to_thread.run_sync(work))
        except UsageError as error:
            return {**result, "resampled": {"refusal": _sentence(error)}}
        z, z_tilde, effective = (np.concatenate(each) for each in zip(*pieces, strict=True))
        resampled = {**_spread_of(z, z_tilde), "draws": count}
        return {**result, "resampled": {**resampled, "effective": float(np.median(effective))}}

    def _measure_nearest(self, process: PairProcess) -> dict[str, Any]:
        """Draw pairs, and match them to the nearest latents."""
        matcher = self._open()
        from threedident.distributions.torch_sampler import seeded

        rows = matcher.latents
        z, z_tilde = (each.numpy() for each in process.sample(_DRAWS, generator=seeded(0)))
        distances, numbers = matcher.nearest(np.concatenate([z, z_tilde]))
        i, j = matcher.nearest_pairs(z, z_tilde)
        return {
            "images": len(rows),
            "draws": _DRAWS,
            "factors": list(self._names),
            "asked": _spread_of(z, z_tilde),
            "nearest": {
                **_spread_of(rows[i], rows[j]),
                "to_match": float(distances.mean()),
                "one_image": float((numbers[:_DRAWS] == numbers[_DRAWS:]).mean()),
            },
        }

    def _resample(self, process: PairProcess, first: int, count: int) -> _Piece:
        """Draw latents, and partners of theirs among the others: z, z~, and the sample sizes."""
        matcher = self._open()
        from threedident.distributions.torch_sampler import seeded

        generator = seeded(0, 1 + first)
        anchors = matcher.anchors(process, count, generator)
        drawn = matcher.resample(anchors, process, generator)
        rows = matcher.latents
        return rows[anchors.numpy()], rows[drawn.partners.numpy()], drawn.effective.numpy()


def _spread_of(z: Float32, z_tilde: Float32) -> dict[str, Any]:
    """The spread of pairs (N, n), as plain data."""
    from threedident.datasets.matching_report import Spread

    spread = Spread.of(z, z_tilde)
    return {
        "std": spread.std.tolist(),
        "overall": spread.overall,
        "kurtosis": spread.kurtosis if np.isfinite(spread.kurtosis) else None,
        "length": spread.distance,
    }


def _sentence(error: Exception) -> str:
    """An error's text as a sentence."""
    text = str(error)
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _classes(source: Source) -> list[str]:
    """The variables of several classes among the images, which the ten factors do not tell."""
    values: Float32 | None = None
    kinds: dict[str, str] = {}
    if isinstance(source, FamilySource):
        kinds, values = {each.name: each.kind for each in source.columns}, source.variables
    elif source.manifest is not None and source.manifest.sampling is not None:
        kinds = {each.name: each.kind for each in source.manifest.sampling.model.variables}
        values = None if source.draws is None else source.draws.variables
    if values is None or not len(values):
        return []
    return [
        name
        for k, (name, kind) in enumerate(kinds.items())
        if kind == "discrete" and np.ptp(values[:, k]) > 0
    ]
