"""Statistics of the family's models beside what is published of them: 100,000 images each.

    python benchmarks/family.py [--n 100000] [--out FOLDER]

FOLDER (benchmarks/results) gets family.md. What is published are the rules of the datasets' code
and papers; the numbers beside are what these rules come to.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np

from threedident.causal import Sampling, load_model
from threedident.causal.quantiles import truncated_normal
from threedident.datasets.captions import PALETTES, ColorNames
from threedident.factors import FACTOR_NAMES
from threedident.render.scene import hue_color
from threedident.storage.atomic_files import replacing

HERE = Path(__file__).resolve().parent
TURN = 2 * math.pi
Row = tuple[str, str, float, float]  # model, what, published, drawn


def columns(sampling: Sampling, count: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Values and targets by variable: (items, frames)."""
    drawn = sampling.draw(range(count), seed=0, split="train")
    shape = (-1, sampling.frames)
    names = sampling.model.names
    values = {n: drawn.variables[:, i].astype(float).reshape(shape) for i, n in enumerate(names)}
    targets = {n: drawn.targets[:, i].reshape(shape) for i, n in enumerate(names)}
    return values, targets


def short_way(angle: np.ndarray) -> np.ndarray:
    return (angle + math.pi) % TURN - math.pi


def temporal(name: str, count: int, rate: float) -> list[Row]:
    """Half steps towards the goals, and how often is intervened."""
    v, t = columns(Sampling(load_model(name), steps=100), count)
    late = name.startswith("instantaneous")
    before = {n: x[:, :-1] for n, x in v.items()}
    of = {n: x[:, 1:] for n, x in v.items()} if late else before
    rows: list[Row] = []

    def step(variable: str, goal: np.ndarray, std: float, *, circle: bool) -> None:
        free = t[variable][:, 1:] == 0
        moved, way = v[variable][:, 1:] - before[variable], goal - before[variable]
        if circle:
            moved, way = short_way(moved), short_way(way)
            free &= np.abs(way) < 2.5  # where noise cannot take it round
        else:
            free &= np.abs(before[variable] + way / 2) < 1.5  # where it is not cut off
        slope = float((moved * way)[free].sum() / (way**2)[free].sum())
        rows.append((name, f"{variable}: share of the way to its goal", 0.5, slope))
        noise = float((moved - way / 2)[free].std())
        rows.append((name, f"{variable}: std of the noise", std, noise))

    step("x", 1.5 * np.sin(of["theta"]), 0.1, circle=False)
    step("z", 1.5 * np.cos(of["phi"]), 0.1, circle=False)
    step("phi", of["background_hue"], 0.15, circle=True)
    step("spotlight_position", np.arctan2(of["x"], of["y"]), 0.15, circle=True)
    step("spotlight_hue", TURN - of["background_hue"], 0.15, circle=True)
    for variable in ("x", "spotlight_hue"):
        hits = float(t[variable][:, 1:].mean())
        rows.append((name, f"{variable}: rate of interventions", rate, hits))
    same = float((t["x"] == t["z"]).mean())
    rows.append((name, "x and z are intervened on together", 1.0, same))
    hit = t["x"][:, 1:] == 1
    rows.append(
        (name, "x: std where intervened", 4 / math.sqrt(12), float(v["x"][:, 1:][hit].std()))
    )
    if "shape" in v:
        free = t["shape"][:, 1:] == 0
        other = float((v["shape"][:, 1:] != before["shape"])[free].mean())
        rows.append((name, "shape: another one after a step", 0.05 * 6 / 7, other))
    return rows


def box(part: int, count: int) -> list[Row]:
    """The pairs of 3DIdentBox: content positions, style hues, private rotations."""
    name = f"3didentbox-positions-hues-rotations-{part}"
    model = load_model(name)
    v, _ = columns(Sampling(model, view=next(iter(model.views))), count)
    rows: list[Row] = []
    x, z = v["x"], v["z"]
    rows.append((name, "content: largest change between the views", 0.0, float(np.ptp(x, 1).max())))
    rows.append((name, "content z: std", 1 / math.sqrt(3), float(z[:, 0].std())))
    s = v["object_hue"]
    units = (np.arange(400) + 0.5) / 400
    grid = np.linspace(-1, 1, 401)

    def spread(around: np.ndarray) -> float:
        """The root of the mean square distance of Normal(around, 1) in [-1, 1] to its mean."""
        unit, middle = (each.ravel() for each in np.meshgrid(units, around))
        draws = truncated_normal(unit, middle, 1.0, -1.0, 1.0)
        return float(np.sqrt(((draws - middle) ** 2).mean()))

    if part == 1:
        rows.append((name, "content x: std", 1 / math.sqrt(3), float(x[:, 0].std())))
        rows.append(
            (
                name,
                "style: rms of the change",
                spread(grid),
                float(np.sqrt((np.diff(s) ** 2).mean())),
            )
        )
    else:
        rows.append(
            (
                name,
                "content x around y: rms distance",
                spread(grid),
                float(np.sqrt(((x - v["y"])[:, 0] ** 2).mean())),
            )
        )
    return rows


def multimodal(count: int) -> list[Row]:
    name = "multimodal3dident-primitives"
    v, _ = columns(Sampling(load_model(name)), count)
    shape = max(abs(float((v["shape"] == k).mean()) - 1 / 7) for k in range(7))
    rows: list[Row] = [(name, "shape: largest deviation from 1/7", 0.0, shape)]
    rows.append((name, "xpos: share in the middle", 1 / 3, float((v["xpos"] == 1).mean())))
    low, high = load_model(name)["object_hue"].range
    rows.append(
        (name, "object_hue: std", (high - low) / math.sqrt(12), float(v["object_hue"].std()))
    )
    hues, names = np.linspace(0, 1, 2000, endpoint=False), ColorNames()
    found = {n for k in range(len(PALETTES)) for n in names.nearest(hues, np.full(len(hues), k))}
    rows.append((name, "colour names that can occur", 99, float(len(found))))
    return rows


def best_scores() -> list[Row]:
    """The best R2 of 3DIdentBox's hues: numerically, from the colours of 200,000 values."""
    rows: list[Row] = []
    model = load_model("3didentbox-positions-hues-rotations-1")
    low, high = model.preset.ranges["object_hue"]
    values = np.linspace(low, high, 200_001)
    colors = np.array([hue_color(value, 1.0, wrap=False) for value in values])
    _, group = np.unique(colors.round(9), axis=0, return_inverse=True)
    group = group.ravel()
    mean = np.bincount(group, values) / np.bincount(group)
    numeric = 1 - float(((values - mean[group]) ** 2).mean() / values.var())
    given = model.preset.computed_best_r2()["object_hue"]
    rows.append((model.name, "object_hue: best R2, by rule and from colours", numeric, given))
    assert set(model.preset.best_r2) <= set(FACTOR_NAMES)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=100_000, help="images of each model")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    count = options.n
    rows = [
        *temporal("temporal-causal3dident-teapot", count, 1 / 6),
        *temporal("temporal-causal3dident-primitives", count, 1 / 7),
        *temporal("instantaneous-temporal-causal3dident-primitives", count, 1 / 7),
        *box(1, count),
        *box(2, count),
        *best_scores(),
        *multimodal(count),
    ]
    lines = [
        "# The family's models beside what is published",
        "",
        f"Of {count:,} images each. `published`: what the rules of the released code or paper come "
        "to. Made by `python benchmarks/family.py`.",
        "",
        "| model | what | published | drawn |",
        "| --- | --- | --- | --- |",
        *(f"| `{m}` | {what} | {a:.4f} | {b:.4f} |" for m, what, a, b in rows),
        "",
    ]
    with replacing(options.out / "family.md") as temporary:
        temporary.write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
