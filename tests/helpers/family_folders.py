"""Small datasets of 3DIdent's family, in memory and in their published layouts."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from threedident.columns import Column
from threedident.datasets.captions import XPOS, YPOS
from threedident.datasets.formats.family import FamilySource
from threedident.datasets.formats.family.identbox import MATERIALS
from threedident.datasets.formats.family.layout import CITRIS_SHAPES, SHAPES
from threedident.datasets.formats.family.multimodal3dident import RANGES
from threedident.datasets.formats.source import Origin, check_numbers
from threedident.factors import FACTOR_NAMES

TURN = 2 * math.pi
RAW = tuple(Column(name, range=(-1.0, 1.0)) for name in FACTOR_NAMES)


class Memory(FamilySource):
    """A dataset in memory: noise for images."""

    form = "memory"

    def __init__(self, columns, variables, raw, latents, side=6):
        self.root = Path("memory")
        self.origin = Origin()
        self.columns = columns
        self.variables = np.asarray(variables, np.float32)
        self.raw_latents = np.asarray(raw, np.float32)
        self.latents = np.asarray(latents, np.float32)
        self.shape = (side, side, 3)
        self.pixels = np.random.default_rng(5).integers(
            0, 256, (len(self.raw_latents), side, side, 3), np.uint8
        )

    def read(self, indices, out):
        out[:] = self.pixels[check_numbers(indices, len(self))]

    def files(self):
        return []


def causal(count=23, classes=SHAPES, seed=0):
    """Causal3DIdent: every class, in no order, and the ten latents."""
    rng = np.random.default_rng(seed)
    shape = np.concatenate([np.arange(7), rng.integers(0, 7, count - 7)])
    rng.shuffle(shape)
    raw = rng.uniform(-1, 1, (count, 10)).astype(np.float32)
    latents = raw * np.array([3.0] * 3 + [math.pi / 2] * 7)
    columns = (Column("shape", "discrete", values=tuple(classes)), *RAW)
    return Memory(columns, np.column_stack([shape, raw]), raw, latents)


def multimodal(count=17):
    """Multimodal3DIdent, without captions."""
    rng = np.random.default_rng(1)
    shape, xpos, ypos = (rng.integers(0, n, count) for n in (7, 3, 3))
    v = rng.uniform(0, 1, (count, 7)).astype(np.float32)
    names = (
        *("phi", "theta", "psi", "object_hue"),
        *("spotlight_position", "spotlight_hue", "background_hue"),
    )
    raw = np.zeros((count, 10))
    raw[:, 0], raw[:, 1] = ypos - 1, xpos - 1
    for k, name in enumerate(names):
        raw[:, FACTOR_NAMES.index(name)] = 2 * v[:, k].astype(np.float64) - 1
    low, high = np.array([RANGES[name] for name in FACTOR_NAMES]).T
    latents = (low + high) / 2 + (high - low) / 2 * raw
    columns = (
        Column("shape", "discrete", values=SHAPES),
        Column("xpos", "discrete", values=XPOS),
        Column("ypos", "discrete", values=YPOS),
        *(Column(name, range=(0.0, 1.0)) for name in names),
    )
    return Memory(columns, np.column_stack([shape, xpos, ypos, v]), raw, latents)


def box(pairs=7):
    """3DIdentBox: pairs of metal and rubber."""
    rng = np.random.default_rng(2)
    count = 2 * pairs
    raw = rng.uniform(-1, 1, (count, 10)).astype(np.float32)
    raw[:, FACTOR_NAMES.index("psi")] = 0
    names = tuple(name for name in FACTOR_NAMES if name != "psi")
    columns = (
        *(Column(name, range=(-1.0, 1.0)) for name in names),
        Column("shape", "discrete", values=("teapot",)),
        Column("material", "discrete", values=MATERIALS),
    )
    kept = [FACTOR_NAMES.index(name) for name in names]
    variables = np.column_stack([raw[:, kept], np.zeros(count), np.arange(count) % 2])
    source = Memory(columns, variables, raw, raw * np.array([2.0] * 3 + [math.pi] * 7))
    source.pairs = np.arange(count).reshape(-1, 2)
    return source


def temporal(count=29):
    """Temporal Causal3DIdent with seven shapes: a sequence, and what was intervened upon."""
    rng = np.random.default_rng(3)
    values = np.column_stack(
        [
            rng.uniform(-2, 2, (count, 3)),
            rng.uniform(0, TURN, (count, 2)),
            rng.uniform(0, TURN, (count, 4)),
            rng.integers(0, 7, count),
        ]
    ).astype(np.float32)
    names = [name for name in FACTOR_NAMES if name != "psi"]
    columns = (
        *(Column(name, range=(-2.0, 2.0)) for name in names[:3]),
        *(Column(name, "circular", (0.0, TURN)) for name in names[3:]),
        Column("shape", "discrete", values=CITRIS_SHAPES),
    )
    latents = np.zeros((count, 10))
    latents[:, [FACTOR_NAMES.index(name) for name in names]] = values[:, :-1]
    raw = latents / math.pi - 1
    raw[:, :3] = latents[:, :3] / 2
    source = Memory(columns, values, raw, latents)
    source.targets = rng.integers(0, 2, (count, len(columns))).astype(np.uint8)
    source.targets[0] = 0
    return source
