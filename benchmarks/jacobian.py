"""Where the generator is nearly not injective: singular values of its Jacobian.

    python benchmarks/jacobian.py OUT.png [--n 1000]

At N random latents, for three presets, in linear light at 32 x 32 by the direct engine: the
smallest singular value of the Jacobian, whole and of each group of factors, and for the
rotations the closed form sqrt(1 - |sin theta|), the smallest singular value of the map from
the three angles to the angular velocity.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import numpy as np

from threedident.factors import GROUPS
from threedident.latents import sample_raw_latents
from threedident.presets import load_preset
from threedident.render.direct.engine import jacobian

mpl.use("Agg")
import matplotlib.pyplot as plt

PRESETS = ("3dident", "3dident-wrapped", "3dident-regular")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--n", type=int, default=1000)
    arguments = parser.parse_args()
    raw = sample_raw_latents(range(arguments.n), seed=0, split="val")
    parts = {"all ten": tuple(range(10)), **GROUPS}
    figure, axes = plt.subplots(2, 4, figsize=(16, 7.5), layout="constrained")
    print("| preset | factors | median | 10 % are below | 1 % are below | exactly 0 |")
    print("| --- | --- | --- | --- | --- | --- |")
    turns: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name in PRESETS:
        preset = load_preset(name)
        found = jacobian(raw, preset, device="cpu")
        for axis, (part, columns) in zip(axes.flat, parts.items(), strict=False):
            smallest = np.linalg.svd(found[:, :, columns], compute_uv=False)[:, -1]
            zero = smallest <= 1e-5  # float32 rounding of a column of zeros
            values = np.sort(smallest)
            share = (np.arange(len(values)) + 0.5) / len(values)
            axis.plot(np.maximum(values, 1e-4), share, label=name)
            axis.set(xscale="log", title=f"smallest singular value: {part}", ylim=(0, 1))
            axis.set(xlabel="linear light per raw unit", ylabel="share of latents below")
            low, tenth = np.quantile(smallest, [0.01, 0.1])
            print(
                f"| {name} | {part} | {np.median(smallest):.3g} | {tenth:.3g} | {low:.3g} "
                f"| {zero.mean():.1%} |"
            )
        theta = preset.to_scene(raw)[:, 4].astype(float)
        closed = np.sqrt(1 - np.abs(np.sin(theta)))
        rotation = np.linalg.svd(found[:, :, GROUPS["rotation"]], compute_uv=False)
        turns[name] = closed, rotation[:, -1] / rotation[:, 0]
        hue = np.linalg.norm(found[:, :, 7], axis=1)
        axes.flat[5].plot(raw[:, 7], hue, ".", ms=2, label=name)
    axes.flat[0].legend()
    axes.flat[5].set_yscale("symlog", linthresh=1)
    axes.flat[5].set(
        title="change with the object's hue", xlabel="object hue, raw", ylabel="norm of its column"
    )
    for name in PRESETS[1:]:
        axes.flat[6].plot(*turns[name], ".", ms=2, label=name)
    axes.flat[6].set(
        title="rotations: image against closed form",
        xlabel="sqrt(1 - |sin theta|)",
        ylabel="smallest / largest singular value",
    )
    axes.flat[6].legend()
    for name in PRESETS:
        axes.flat[7].plot(*(np.sort(turns[name][0]), (np.arange(len(raw)) + 0.5) / len(raw)))
    axes.flat[7].set(
        title="rotations, closed form", xlabel="sqrt(1 - |sin theta|)", ylabel="share below"
    )
    closed, image = turns["3dident-wrapped"]
    order = [np.argsort(np.argsort(x)) for x in (closed, image)]
    print(f"\nrank correlation of closed form and image: {np.corrcoef(*order)[0, 1]:.2f}")
    print(f"closed form below 0.1: {(closed < 0.1).mean():.1%}, median {np.median(closed):.2f}")
    figure.savefig(arguments.out, dpi=80)
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
