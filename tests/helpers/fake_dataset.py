"""Datasets that are made up instead of rendered, for the tests of what reads them."""

from __future__ import annotations

import multiprocessing as mp
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from threedident.datasets.formats.convert import to_shards
from threedident.datasets.formats.sources import read_images
from threedident.presets import load_preset
from threedident.render.settings import EngineSettings, dataset_settings
from threedident.storage.directory import DatasetDir
from threedident.storage.shards import ImageSums, Interval, write_shard


class MadeUp:
    """Noise for images; raw latents uniform, unless they are given."""

    root, form, manifest = Path("made up"), "made up", None

    def __init__(self, count: int, side: int, raw: np.ndarray | None) -> None:
        random = np.random.default_rng(5)
        self.shape = (side, side, 3)
        self.pixels = random.integers(0, 256, (count, *self.shape), np.uint8)
        uniform = random.uniform(-1, 1, (count, 10)).astype(np.float32)
        self.raw_latents = uniform if raw is None else raw.astype(np.float32)
        self.latents = 3 * self.raw_latents

    def __len__(self) -> int:
        return len(self.pixels)

    def read(self, indices, out) -> None:
        out[:] = self.pixels[list(indices)]

    def image(self, index: int) -> np.ndarray:
        return read_images(self, [index])[0]

    def parts(self):
        return ()

    def wanted(self):
        return None

    given = wanted


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
    root: Path, count: int, *, side: int = 16, seed: int = 0, split: str = "train", **latents: Any
) -> Path:
    """A dataset as `3dident render` records it, of noise; `latents` are given or conditional."""
    preset = load_preset("3dident")
    engine = EngineSettings(preset, side, "draft", "cpu", "direct", "1.0")
    settings = dataset_settings(engine, seed=seed, split=split, **latents)
    dataset = DatasetDir.create_or_open(
        root,
        settings,
        shard_size=count,
        compression=None,
        about=preset.about(),
        given=latents.get("given"),
    )
    raw = dataset.raw_latents(range(count))
    images = np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), np.uint8)
    write_shard(
        root,
        Interval(0, count),
        images=images,
        raw_latents=raw,
        latents=preset.to_scene(raw),
        sums=ImageSums.of(images, np.ones(count)),
        fingerprint=dataset.manifest.fingerprint,
        provenance={"device": "cpu", "toolkit_version": "1.0"},
        compression="none",
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
