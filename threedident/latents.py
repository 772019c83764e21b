"""Raw latents: drawn from a seed, or read from a file and checked.

Image i of a dataset has latents that depend on (seed, split, i) alone, so that a dataset
can be extended, and rendered in any order, by any number of machines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from threedident.errors import UsageError
from threedident.factors import NUM_FACTORS
from threedident.storage.atomic_files import read_npy

Float32 = npt.NDArray[np.float32]

#: The stream of each split (the second word of the generator's key), and its default size.
SPLITS: dict[str, int] = {"train": 0, "val": 1, "test": 2}
SPLIT_SIZES: dict[str, int] = {"train": 250_000, "val": 25_000, "test": 25_000}


def check_seed_and_split(seed: int, split: str) -> None:
    """Check the two that decide the raw latents of a dataset.

    Args:
        seed: the seed.
        split: the name of the split.

    Raises:
        UsageError: the seed is out of range or the split is unknown.
    """
    if split not in SPLITS:
        raise UsageError(f"unknown split {split!r}: expected one of {', '.join(SPLITS)}")
    if not 0 <= seed < 2**64:
        raise UsageError(f"the seed must lie in [0, 2^64), found {seed}")


def sample_raw_latents(indices: Iterable[int], *, seed: int, split: str) -> Float32:
    """Draw the raw latents of images, i.i.d. uniform in [-1, 1].

    u_j = (2 k_j + 1) / 2^24 - 1, where k_j is the top 24 bits of the j-th raw output of
    Philox with key [seed, stream of the split] and counter [0, i, 0, 0]. Every value is
    exact in float32, and Philox's raw output does not change between numpy versions.

    Args:
        indices: the image numbers, >= 0.
        seed: the seed, 0 <= seed < 2^64.
        split: train, val or test.

    Returns:
        The raw latents, (N, 10) float32, strictly inside (-1, 1).

    Raises:
        UsageError: the seed is out of range or the split is unknown.
    """
    check_seed_and_split(seed, split)
    key = np.array([seed, SPLITS[split]], np.uint64)
    rows = [
        np.random.Philox(key=key, counter=np.array([0, i, 0, 0], np.uint64)).random_raw(NUM_FACTORS)
        for i in indices
    ]
    if not rows:
        return np.empty((0, NUM_FACTORS), np.float32)
    top = np.stack(rows) >> np.uint64(40)
    return ((2.0 * top.astype(np.float64) + 1.0) / 2.0**24 - 1.0).astype(np.float32)


def check_raw_latents(raw: npt.ArrayLike, source: str = "raw latents") -> Float32:
    """Check raw latents, and convert them to (N, 10) float32.

    Args:
        raw: the raw latents.
        source: the name of their source in errors.

    Raises:
        UsageError: the shape or the type is wrong, or a value is not finite or outside [-1, 1].
    """
    array = np.asarray(raw)
    if array.ndim != 2 or array.shape[1] != NUM_FACTORS:
        raise UsageError(
            f"{source}: expected an array of shape (N, {NUM_FACTORS}), found {array.shape}"
        )
    if array.dtype.kind not in "fiu":
        raise UsageError(f"{source}: expected real numbers, found dtype {array.dtype}")
    if len(array) == 0:
        raise UsageError(f"{source}: expected at least one row, found none")
    values = array.astype(np.float32)
    bad = ~(np.isfinite(values) & (np.abs(values) <= 1))
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise UsageError(
            f"{source}: raw latents lie in [-1, 1], found {array[row, column]} "
            f"in row {row}, column {column} ({int(bad.any(1).sum())} rows of {len(array)} are off)"
        )
    return values


def load_raw_latents(path: str | Path) -> Float32:
    """Read raw latents (N, 10) in [-1, 1] from a .npy file.

    Raises:
        UsageError: the file is missing, is no .npy file of numbers, or does not fit.
    """
    try:
        array = read_npy(Path(path))
    except ValueError as error:
        advice = f". Save them with numpy.save, as an array of shape (N, {NUM_FACTORS})"
        raise UsageError(
            f"cannot read the latents {error}{advice if Path(path).is_file() else ''}"
        ) from error
    return check_raw_latents(array, str(path))


def latents_digest(raw: Float32) -> str:
    """The SHA-256 of raw latents."""
    return hashlib.sha256(np.ascontiguousarray(raw, np.float32).tobytes()).hexdigest()
