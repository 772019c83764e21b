"""Datasets that are made up instead of rendered, for the tests of what reads them."""

from __future__ import annotations

import multiprocessing as mp
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from threedident.causal import Sampling
from threedident.datasets.formats.hdf5 import to_shards
from threedident.datasets.formats.source import Origin, Source
from threedident.distributions import Distribution
from threedident.presets import load_preset
from threedident.render.content import dataset_settings
from threedident.render.settings import EngineSettings
from threedident.storage.directory import DatasetDir
from threedident.storage.shard_plan import Interval
from threedident.storage.shards import write_shard
from threedident.storage.statistics import ImageSums


class MadeUp(Source):
    """Noise for images; raw latents uniform, unless they are given."""

    root, form, origin = Path("made up"), "made up", Origin()

    def __init__(self, count: int, side: int, raw: np.ndarray | None) -> None:
        random = np.random.default_rng(5)
        self.shape = (side, side, 3)
        self.pixels = random.integers(0, 256, (count, *self.shape), np.uint8)
        uniform = random.uniform(-1, 1, (count, 10)).astype(np.float32)
        self.raw_latents = uniform if raw is None else raw.astype(np.float32)
        self.latents = 3 * self.raw_latents

    def read(self, indices, out) -> None:
        out[:] = self.pixels[list(indices)]


def make(
    root: Path,
    count: int,
    *,
    side: int = 8,
    raw: np.ndarray | None = None,
    compression: str = "none",
) -> MadeUp:
    """Writes a dataset directory of shards of 100; returns what it must hold."""
    made = MadeUp(count, side, raw)
    to_shards(made, root, shard_size=100, compression=compression)
    return made


def as_rendered(
    root: Path,
    count: int,
    *,
    side: int = 16,
    seed: int = 0,
    split: str = "train",
    preset: str = "3dident",
    shard: int | None = None,
    wanted: int | None = None,
    noise: int | None = None,
    coverage: float = 1.0,
    given: np.ndarray | None = None,
    conditional: Distribution | None = None,
    sampling: Sampling | None = None,
) -> Path:
    """A dataset as `3dident render` records it, of noise.

    Args:
        root: the directory.
        count, side, seed, split, preset, given, conditional: what is rendered.
        shard: the images to a shard; None: one shard.
        wanted: the images that were asked for; None: no record of it.
        noise: the seed of the images; None: that of the latents.
        coverage: the share of the object in the frame.
        sampling: what is drawn of a causal model, whose scene then is the preset.
    """
    generator = sampling.model.preset if sampling else load_preset(preset)
    about = generator.about()
    if sampling:
        about["model"] = sampling.model.about()
    engine = EngineSettings(generator, side, "draft", "cpu", "direct", "1.0")
    dataset = DatasetDir.create_or_open(
        root,
        dataset_settings(
            engine,
            seed=seed,
            split=split,
            given=given,
            conditional=conditional,
            sampling=sampling,
        ),
        shard_size=shard or count,
        compression=None,
        about=about,
        given=given,
    )
    if wanted is not None:
        dataset.record_wanted(wanted)
    random = np.random.default_rng(seed if noise is None else noise)
    pixels = random.integers(0, 256, (count, side, side, 3), np.uint8)
    for first in range(0, count, shard or count):
        interval = Interval(first, min(shard or count, count - first))
        images, raw = pixels[first : interval.stop], dataset.raw_latents(interval.indices)
        write_shard(
            root,
            interval,
            images=images,
            raw_latents=raw,
            latents=generator.to_scene(raw),
            sums=ImageSums.of(images, np.full(len(images), coverage)),
            fingerprint=dataset.manifest.fingerprint,
            provenance={"device": "cpu", "toolkit_version": "1.0", "processor": f"P{first}"},
            draws=dataset.draws(interval.indices),
        )
    return root


def same(a, b) -> bool:
    """Whether two batches of pairs are equal."""
    flat = [[t for pair in batch for t in pair] for batch in (a, b)]
    return all(torch.equal(p, q) for p, q in zip(*flat, strict=True))


def in_a_fork(work: Callable[..., Any], *arguments: Any) -> None:
    """Runs a function in a forked process; fails where that fails, or hangs."""
    child = mp.get_context("fork").Process(target=work, args=arguments)
    child.start()
    wait_for(child)


def wait_for(child: Any) -> None:
    """Fails unless a process ends well."""
    child.join(120)
    ended = child.exitcode
    child.kill()
    child.join()
    assert ended == 0
