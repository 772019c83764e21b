"""Small renders, processes that render beside a test, and the arrays of a dataset."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import h5py
import numpy as np

from helpers.commands import SMALL, command
from threedident.storage.shard_plan import list_shards

RENDER = ("render", *SMALL, "--shard-size", 5)
#: Renders that take a second.
QUICK = (*SMALL, "--engine", "direct")


def content(root: Path) -> dict[str, np.ndarray]:
    """All arrays of a dataset, in order, whatever its shards."""
    parts: dict[str, list[np.ndarray]] = {}
    for path in list_shards(root).values():
        with h5py.File(path) as file:
            for name in ("index", "images", "raw_latents", "latents"):
                parts.setdefault(name, []).append(file[name][()])
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def same(a: Path, b: Path) -> bool:
    left, right = content(a), content(b)
    return all(np.array_equal(left[name], right[name]) for name in left)


def start(*arguments: object, cwd: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*command(), *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
