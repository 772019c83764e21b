"""How images are best stored: random reads of single images, and size, by HDF5 layout.

    python benchmarks/storage.py [--n 1000] [--reads 3000]

Renders images (224 x 224, quality draft, one of them in four distinct), writes them in each
layout as a shard would, and reads single images in random order from the page cache. PNG
files, as the published dataset has them, are the baseline. Layouts that need another package
(Blosc2) are left out where hdf5plugin is not installed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from PIL import Image

from threedident.latents import sample_raw_latents
from threedident.presets import load_preset
from threedident.render.direct.engine import render
from threedident.render.images import render_images


def layouts(shape: tuple[int, ...]) -> dict[str, dict[str, object]]:
    one = (1, *shape[1:])
    found: dict[str, dict[str, object]] = {
        "contiguous (none)": {},
        "chunked, plain": {"chunks": one},
        "lzf": {"chunks": one, "compression": "lzf"},
        "gzip 1": {"chunks": one, "compression": "gzip", "compression_opts": 1},
        "gzip 4 (gzip)": {"chunks": one, "compression": "gzip", "compression_opts": 4},
        "gzip 4, shuffled": {
            **{"chunks": one, "compression": "gzip", "compression_opts": 4},
            "shuffle": True,
        },
    }
    try:
        import hdf5plugin
    except ImportError:
        return found
    found["blosc2 zstd"] = {"chunks": one, **hdf5plugin.Blosc2(cname="zstd")}
    found["blosc2 lz4"] = {"chunks": one, **hdf5plugin.Blosc2(cname="lz4")}
    return found


def rate(read: Callable[[int], object], order: np.ndarray, rounds: int = 3) -> float:
    """Reads a second, the best of some rounds."""
    best = 0.0
    for _ in range(rounds):
        start = time.perf_counter()
        for index in order:
            read(int(index))
        best = max(best, len(order) / (time.perf_counter() - start))
    return best


def save_pngs(images: np.ndarray, folder: Path) -> float:
    """Writes 0.png and so on; returns bytes an image."""
    for i, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{i}.png")
    return sum(p.stat().st_size for p in folder.glob("*.png")) / len(images)


def read_png(folder: Path, number: int) -> np.ndarray:
    return np.asarray(Image.open(folder / f"{number}.png"))


def save_hdf5(images: np.ndarray, path: Path, options: dict[str, object]) -> float:
    """Writes a file in a layout; returns bytes an image."""
    with h5py.File(path, "w", libver="v110") as file:
        file.create_dataset("images", data=images, **options)
    return path.stat().st_size / len(images)


def cases(short: bool) -> Iterator[Any]:
    """Reading single images of 224 x 224 in random order from the page cache, on one thread, by how
    they are stored.
    """
    count, reads = (8, 20) if short else (1000, 2000)
    raw = sample_raw_latents(range(count // 4), seed=0, split="train")
    images = np.concatenate([render(raw, "3dident", quality="draft", device="cpu")] * 4)
    order = np.random.default_rng(0).integers(0, count, reads)
    known = layouts(images.shape)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sizes = {"PNG files": save_pngs(images, folder)}
        readers: dict[str, Callable[[int], object]] = {"PNG files": lambda i: read_png(folder, i)}
        for number, name in enumerate(("contiguous (none)", "lzf", "gzip 4 (gzip)")):
            path = folder / f"{number}.h5"
            sizes[name] = save_hdf5(images, path, known[name])
            stored = stack.enter_context(h5py.File(path, "r"))["images"]
            readers[name] = lambda i, stored=stored: stored[i]

        def measure(name: str) -> tuple[float, str]:
            return rate(readers[name], order, 1), f"{sizes[name] / 1e3:.0f} KB an image"

        contenders = {name: functools.partial(measure, name) for name in readers}
        yield "random reads", "images/s", 1 if short else 5, contenders


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--reads", type=int, default=3000)
    arguments = parser.parse_args()
    raw = sample_raw_latents(range(max(arguments.n // 4, 1)), seed=0, split="train")
    images = render_images(raw, load_preset("3dident"), quality="draft")
    images = np.concatenate([images] * 4)[: arguments.n]
    order = np.random.default_rng(0).integers(0, len(images), arguments.reads)
    print("| layout | KB an image | random reads a second | times PNG |")
    print("| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        size = save_pngs(images, Path(folder))
        base = rate(lambda i: read_png(Path(folder), i), order)
        print(f"| PNG files | {size / 1e3:.0f} | {base:.0f} | 1.0 |")
        for name, options in layouts(images.shape).items():
            path = Path(folder, "images.h5")
            save_hdf5(images, path, options)
            with h5py.File(path, "r") as file:
                stored = file["images"]
                found = rate(lambda i, stored=stored: stored[i], order)
            size = path.stat().st_size / len(images)
            print(f"| {name} | {size / 1e3:.0f} | {found:.0f} | {found / base:.1f} |", flush=True)


if __name__ == "__main__":
    main()
