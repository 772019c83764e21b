"""What the anchor among its own negatives does to InfoNCE on 3DIdent, without a single image.

    python benchmarks/self_term.py [--out benchmarks/results/self-term.md]

The published code counts an anchor among its own negatives (`loss.own`). This takes the loss at
the true latents, at their best scale, and at latents without the three angles: the difference is
what an encoder gains by finding the angles. Pairs are exact, Normal(0.28) in [-1, 1]^10, about as
wide as Normal(0.1) pairs that are matched to 250,000 images.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from threedident.baselines.losses import Power, info_nce
from threedident.distributions import Box, Normal
from threedident.distributions.torch_sampler import sample, uniform
from threedident.factors import GROUPS, NUM_FACTORS

OUT = Path(__file__).parent / "results" / "self-term.md"
SIGMA = 0.28
BATCHES = (128, 256, 512, 1024, 2048, 6144)
SCALES = np.linspace(0.3, 3.0, 28)
PAIRS = 12_288


def least_loss(
    z: torch.Tensor, z_tilde: torch.Tensor, batch: int, own: bool
) -> tuple[float, float]:
    """The loss at codes that are the latents times their best scale, and that scale."""
    losses = []
    for scale in SCALES:
        parts = [
            info_nce(scale * a, scale * b, Power(2, 1.0), negatives="anchors", own=own)
            for a, b in zip(z.split(batch), z_tilde.split(batch), strict=True)
        ]
        losses.append(float(torch.stack(parts).mean()))
    best = int(np.argmin(losses))
    return losses[best], float(SCALES[best])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    asked = parser.parse_args(arguments)
    space, generator = Box(10, -1.0, 1.0), torch.Generator().manual_seed(0)
    z = uniform(space, torch.empty(asked.pairs, 10), generator)
    z_tilde = sample(Normal(SIGMA), space, z, generator)
    kept = [i for i in range(NUM_FACTORS) if i not in GROUPS["rotation"]]
    lines = [
        f"{asked.pairs:,} pairs, Normal({SIGMA}), in [-1, 1]^10; in nats. `gap`: by how much the "
        "loss at all ten latents lies below that at the seven that are no angles; `scale`: the "
        "best factor of the ten.",
        "",
        "| batch | loss | scale | gap | loss without the anchor itself | scale | gap |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for batch in asked.batches:
        cells = []
        for own in (True, False):
            loss, scale = least_loss(z, z_tilde, batch, own)
            rest, _ = least_loss(z[:, kept], z_tilde[:, kept], batch, own)
            cells += [f"{loss:.3f}", f"{scale:.1f}", f"{rest - loss:.3f}"]
        lines.append(f"| {batch:,} | {' | '.join(cells)} |")
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text("\n".join([*lines, ""]), "utf-8")
    print(asked.out.read_text("utf-8"))


if __name__ == "__main__":
    main()
