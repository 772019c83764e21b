"""Positive pairs a second: ours against one query an item and PNG decoding.

    python benchmarks/pairs.py [--images 250000] [--stored 4000] [--large FOLDER]

A stand-in for the training set: all its latents, and images of 224 x 224 of which `--stored`
lie on the disk (image i is number i mod that; a few hundred of them are distinct). The baseline
does what the published loader does: a DataLoader of two workers whose `__getitem__` draws one
pair, searches its two nearest latents exactly, and decodes two PNG files. Both read from the
page cache, in turn, on the same processors. `--large` also writes the whole set (37.6 GB) into
one packed file in FOLDER and reads from that, which does not fit into a small memory.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss
import h5py
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from threedident.datasets.dataset import ThreeDIdent
from threedident.datasets.formats import Source
from threedident.datasets.formats import png_folder as published
from threedident.datasets.formats.hdf5 import pack, to_shards
from threedident.datasets.formats.png_folder import PngSource
from threedident.datasets.latent_matcher import LatentMatcher
from threedident.datasets.pairs import PositivePairs
from threedident.datasets.rendered_pairs import RenderedPairs
from threedident.distributions import Normal
from threedident.latents import sample_raw_latents
from threedident.presets import load_preset
from threedident.render.direct.engine import render
from threedident.storage.directory import DatasetDir

BATCH = 512
INDICES: list[tuple[str, dict[str, Any]]] = [
    ("exact", {}),
    *(("ivf", {"nprobe": n}) for n in (5, 10, 16, 32)),
    *(("hnsw", {"ef_search": e}) for e in (16, 32)),
]


class OneByOne(Dataset):
    """A pair an item, one exact query each, two PNG files."""

    def __init__(self, latents: np.ndarray, folder: Path, stored: int, sigma: float) -> None:
        self.latents, self.folder, self.stored, self.sigma = latents, folder, stored, sigma
        self.index = faiss.IndexFlatL2(latents.shape[1])
        self.index.add(latents)

    def __len__(self) -> int:
        return len(self.latents)

    def image(self, number: int) -> torch.Tensor:
        with Image.open(self.folder / f"{number % self.stored}.png") as image:
            pixels = np.asarray(image.convert("RGB"))
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1)

    def __getitem__(self, _: int) -> Any:
        faiss.omp_set_num_threads(1)
        z = 2 * torch.rand(1, self.latents.shape[1]) - 1
        moved = z + self.sigma * torch.randn_like(z)
        while (moved.abs() > 1).any():
            again = z + self.sigma * torch.randn_like(z)
            moved = torch.where(moved.abs() > 1, again, moved)
        i = int(self.index.search(z.numpy(), 1)[1][0, 0])
        j = next(int(k) for k in self.index.search(moved.numpy(), 2)[1][0] if k != i)
        rows = (torch.from_numpy(self.latents[i]), torch.from_numpy(self.latents[j]))
        return rows, (self.image(i), self.image(j))


class Folded:
    """A source with more latents than images: image i is image i mod what there is."""

    def __init__(self, source: Source, latents: np.ndarray) -> None:
        self._source = source
        self.raw_latents = self.latents = latents
        self.manifest, self.shape = source.manifest, source.shape

    def __len__(self) -> int:
        return len(self.raw_latents)

    def read(self, indices: Any, out: np.ndarray) -> None:
        count = len(self._source)
        self._source.read([int(i) % count for i in indices], out)


def pairs_per_second(batches: Any, seconds: float) -> float:
    """After a first batch, which also pays for the start."""
    iterator = iter(batches)
    next(iterator)
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        _, (x, _) = next(iterator)
        count += len(x)
    return count / (time.perf_counter() - start)


def copied_per_second(threads: int) -> float:
    """Bytes a second that threads copy from one large array to another."""
    source = np.ones((threads, 2**28), np.uint8)
    target = np.empty_like(source)
    np.copyto(target, source)  # its pages exist from now on
    rounds = 8

    def copy(row: int) -> None:
        for _ in range(rounds):
            np.copyto(target[row], source[row])

    workers = [threading.Thread(target=copy, args=(row,)) for row in range(threads)]
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return rounds * source.nbytes / (time.perf_counter() - start)


def build(folder: Path, stored: int, resolution: int = 224) -> Path:
    """A rendered, packed dataset, and the same images as PNG files."""
    distinct = min(stored, 200)
    raw = sample_raw_latents(range(distinct), seed=0, split="train")
    preset = load_preset("3dident")
    pixels = render(raw, preset, resolution=resolution, quality="draft", device="cpu")
    (folder / "few" / published.IMAGES).mkdir(parents=True)
    names = [
        folder / "few" / published.IMAGES / published.image_name(i, distinct)
        for i in range(distinct)
    ]
    for name, image in zip(names, pixels, strict=True):
        published.write_image(name, image)
    published.write_latents(folder / "few", raw, preset.to_scene(raw))
    to_shards(PngSource(folder / "few"), folder / "d")
    pack(DatasetDir.open(folder / "d"), folder / "few.h5")
    (folder / "png").mkdir()
    for i in range(stored):
        shutil.copyfile(names[i % distinct], folder / "png" / f"{i}.png")
    return repeat(folder / "few.h5", folder / "stored.h5", stored)


def repeat(few: Path, out: Path, count: int) -> Path:
    """A packed file of many images from one of few."""
    with h5py.File(few) as source, h5py.File(out, "w", libver="v110") as target:
        images = source["images"][()]
        for name, value in source.attrs.items():
            if not name.startswith("sha256"):  # of the few
                target.attrs[name] = value
        shape = (count, *images.shape[1:])
        stack = target.create_dataset("images", shape, np.uint8)
        for start in range(0, count, len(images)):
            stack[start : start + len(images)] = images[: count - start]
        latents = sample_raw_latents(range(count), seed=0, split="train")
        target["raw_latents"] = target["latents"] = latents
        target["index"] = np.arange(count)
    return out


def matched(
    path: Path, latents: np.ndarray, matcher: LatentMatcher, sigma: float, batch: int
) -> PositivePairs:
    """Endless pairs of all the latents, with the images of a file."""
    dataset = ThreeDIdent(path)
    if len(dataset) < len(latents):
        dataset.source = Folded(dataset.source, latents)  # type: ignore[assignment]
        dataset.raw_latents = torch.from_numpy(latents)
    return PositivePairs(
        dataset, conditional=Normal(sigma), matcher=matcher, batch_size=batch, batches=10**9
    )


def rate(path: Path, latents: np.ndarray, matcher: LatentMatcher, seconds: float) -> float:
    return pairs_per_second(matched(path, latents, matcher, 0.1, BATCH).loader(threads=2), seconds)


def cases(short: bool) -> Iterator[Any]:
    """Positive pairs of 224 x 224 images, matched to the nearest of all latents, from the page
    cache, with two workers or threads. One by one: what the published loader does, a DataLoader
    whose items draw one pair, search its two nearest latents exactly and decode two PNG files.
    """
    size, images, stored = (16, 1000, 20) if short else (BATCH, 250_000, 4000)
    seconds = 0.05 if short else 8.0
    latents = sample_raw_latents(range(images), seed=0, split="train")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = build(folder, stored)
        matcher = LatentMatcher(latents)
        items = OneByOne(latents, folder / "png", stored, 0.1)

        def one_by_one() -> float:
            return pairs_per_second(DataLoader(items, size, num_workers=2), seconds)

        def ours() -> float:
            pairs = matched(path, latents, matcher, 0.1, size)
            return pairs_per_second(pairs.loader(threads=2), seconds)

        contenders = {"one by one": one_by_one, "ours": ours}
        yield "pairs", "pairs/s", 1 if short else 3, contenders


def matching_cases(short: bool) -> Iterator[Any]:
    """The nearest of all rendered latents to drawn ones, ten dimensions, in batches, on all
    processors, by index. The baseline is FAISS's exhaustive search.
    """
    images, queries, slow = (2000, 500, 100) if short else (250_000, 40_000, 4000)
    latents = sample_raw_latents(range(images), seed=0, split="train")
    points = np.random.default_rng(1).uniform(-1, 1, (queries, latents.shape[1]))
    contenders: dict[str, Any] = {}
    for index, options in INDICES:
        matcher = LatentMatcher(latents, index=index, **options)
        some = points[: slow if index == "exact" else None]
        matcher.nearest(some[:100])
        found = f"recall {matcher.recall():.4f}"

        def measure(
            matcher: LatentMatcher = matcher, some: np.ndarray = some, found: str = found
        ) -> tuple[float, str]:
            start = time.perf_counter()
            matcher.nearest(some)
            return len(some) / (time.perf_counter() - start), found

        what = " ".join([matcher.factory, *(f"{k} {v}" for k, v in options.items())])
        contenders[what] = measure
    yield f"{images:,} latents", "queries/s", 1 if short else 5, contenders


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=250_000)
    parser.add_argument("--stored", type=int, default=4000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--large", type=Path)
    arguments = parser.parse_args()
    latents = sample_raw_latents(range(arguments.images), seed=0, split="train")
    matchers(latents)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = build(folder, arguments.stored)
        matcher = LatentMatcher(latents)
        plain = OneByOne(latents, folder / "png", arguments.stored, 0.1)
        found: list[tuple[float, float]] = []
        print(
            "\n| round | one by one, pairs/s | ours, pairs/s | ratio |\n| --- | --- | --- | --- |"
        )
        for number in range(arguments.rounds):
            theirs = pairs_per_second(DataLoader(plain, BATCH, num_workers=2), arguments.seconds)
            ours = rate(path, latents, matcher, arguments.seconds)
            found.append((theirs, ours))
            print(f"| {number + 1} | {theirs:.0f} | {ours:.0f} | {ours / theirs:.1f} |", flush=True)
        ours = float(np.median([o for _, o in found]))
        per_pair = 2 * 224 * 224 * 3
        copied = copied_per_second(2)
        print(
            f"\nimages: {ours * per_pair / 1e9:.2f} GB/s from the page cache; two threads copy "
            f"{copied / 1e9:.2f} GB/s in memory, so that is {ours * per_pair / copied:.0%} of it"
        )
        rendered(arguments.seconds)
        if arguments.large:
            arguments.large.mkdir(parents=True, exist_ok=True)
            large = repeat(folder / "few.h5", arguments.large / "large.h5", arguments.images)
            size = large.stat().st_size / 1e9
            found_rate = rate(large, latents, matcher, 3 * arguments.seconds)
            print(f"from a file of {size:.1f} GB: {found_rate:.0f} pairs/s")
            large.unlink()


def rendered(seconds: float) -> None:
    """Exact pairs rendered on demand, all processors, 64 x 64."""
    print("\n| rendered on demand, 64 x 64 | images/s |\n| --- | --- |")
    for quality in ("draft", "standard"):
        options = {"resolution": 64, "batch_size": 64, "quality": quality}
        with RenderedPairs(None, Normal(0.1), **options) as source:
            speed = 2 * pairs_per_second(source.loader(), seconds)
            print(f"| {quality} | {speed:.0f} |", flush=True)


def matchers(latents: np.ndarray) -> None:
    """Queries a second and recall of the indices, on all processors."""
    points = np.random.default_rng(1).uniform(-1, 1, (20_000, latents.shape[1]))
    print("| index | built in, s | queries/s | recall@1 |\n| --- | --- | --- | --- |")
    for index, options in INDICES:
        start = time.perf_counter()
        matcher = LatentMatcher(latents, index=index, **options)
        built = time.perf_counter() - start
        some = points[: 2000 if index == "exact" else None]
        matcher.nearest(some[:100])
        start = time.perf_counter()
        matcher.nearest(some)
        speed = len(some) / (time.perf_counter() - start)
        what = " ".join([matcher.factory, *(f"{k} {v}" for k, v in options.items())])
        print(f"| {what} | {built:.1f} | {speed:.0f} | {matcher.recall():.4f} |", flush=True)


if __name__ == "__main__":
    main()
