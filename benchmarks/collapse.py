"""Do codes of sprites collapse under the papers' contrastive losses?

    python benchmarks/collapse.py [--steps 800] [--out FOLDER]

FOLDER (benchmarks/results) gets collapse.md; rows that it has already are kept. Each row is a
short training of the convolutional encoder on pairs of drawn sprites, with the published settings:
InfoNCE at temperature 1, or L_AU, 32 pairs, Adam at 1e-4, 10 unbounded codes.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from pathlib import Path

import numpy as np
import torch

from threedident.baselines.criterion import make_criterion
from threedident.baselines.experiment import Loss
from threedident.datasets.dataset import ImageDataset
from threedident.datasets.grid_pairs import GridPairs
from threedident.distributions.transitions import DiscreteLaplace, UniformFactors
from threedident.encoders import ConvEncoder, ImageEncoder, UnboundedOutput
from threedident.evaluate.metrics import linear_r2
from threedident.storage.atomic_files import replacing

HERE = Path(__file__).resolve().parent
CODES, PAIRS, SCORED, LAST = 10, 32, 2048, 100


@dataclasses.dataclass(frozen=True)
class Row:
    """A training.

    Attributes:
        loss: the loss.
        pairs: UNI or LAP.
    """

    loss: Loss
    pairs: str


def _l_au(alpha: float) -> Loss:
    return Loss(kind="alignment-uniformity", p=1, alpha=alpha)


ROWS = (
    *(Row(Loss(p=p), pairs) for p in (1, 2) for pairs in ("LAP", "UNI")),
    *(Row(_l_au(0.9), pairs) for pairs in ("LAP", "UNI")),
    Row(_l_au(0.1), "LAP"),
)


def train(row: Row, data: ImageDataset, steps: int) -> tuple[ImageEncoder, list[float]]:
    """Train an encoder; return it and the loss of each step."""
    torch.manual_seed(0)
    body = ConvEncoder(CODES, channels=1)
    encoder = ImageEncoder((0.0,), (1.0,), body, UnboundedOutput())
    encoder = encoder.to(memory_format=torch.channels_last)
    objective = make_criterion(row.loss, CODES)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-4, fused=True)
    transition = {"UNI": UniformFactors(), "LAP": DiscreteLaplace()}[row.pairs]
    pairs = GridPairs(data, transition, batch_size=PAIRS, seed=0)
    losses = []
    for number in range(steps):
        images = torch.cat(pairs.batch(0, number).observations)
        codes = encoder(images.contiguous(memory_format=torch.channels_last))
        loss = objective(codes.chunk(2))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return encoder, losses


@torch.no_grad()
def measure(encoder: ImageEncoder, data: ImageDataset) -> tuple[float, float, list[float]]:
    """The mean standard deviation of a code, the dimensions that the codes fill, and R2."""
    generator = torch.Generator().manual_seed(1)
    numbers = torch.randperm(len(data), generator=generator)[:SCORED]
    parts = [encoder(data.images(part)) for part in numbers.split(256)]
    codes = torch.cat(parts).double()
    variances = torch.linalg.eigvalsh(torch.cov(codes.T)).clamp(min=0)
    dimensions = float(variances.sum() ** 2 / variances.square().sum())
    r2 = linear_r2(data.factors[numbers].double().numpy(), codes.numpy(), folds="single")
    assert r2.per_factor is not None
    columns = [data.factor_names.index(name) for name in ("scale", "posX", "posY")]
    return float(codes.std(0).mean()), dimensions, [float(r2.per_factor[c]) for c in columns]


def key(row: Row) -> str:
    """How the row's line begins: its loss and its pairs."""
    if row.loss.kind == "infonce":
        name = f"InfoNCE, p = {row.loss.p:g}"
    else:
        name = f"L_AU({row.loss.alpha:g}, {row.loss.p:g})"
    return f"| {name} | {row.pairs} |"


def line(row: Row, data: ImageDataset, steps: int) -> str:
    encoder, losses = train(row, data, steps)
    spread, dimensions, r2 = measure(encoder, data)
    # Of codes that are all the same: the denominator has the anchors and the positive.
    flat = math.log(PAIRS + 1) if row.loss.kind == "infonce" else 0
    numbers = " | ".join(f"{value:.2f}" for value in r2)
    end = float(np.mean(losses[-LAST:]))
    return f"{key(row)} {flat:.2f} | {end:.2f} | {spread:.2g} | {dimensions:.1f} | {numbers} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    data = ImageDataset("drawn:sprites")
    path = given.out / "collapse.md"
    known = path.read_text("utf-8").splitlines() if path.exists() else []
    lines = [
        f"Drawn sprites, {given.steps} steps; one run a row, seed 0. *Flat* is the loss of codes "
        f"that are all the same, *loss* the mean of the last {LAST} steps, *spread* the mean "
        "standard deviation of a code, *dimensions* the participation ratio of the codes' "
        f"covariance, at most {CODES}. Then the linear R2 of three factors.",
        "",
        "| loss | pairs | flat | loss | spread | dimensions | scale | posX | posY |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    if lines[0] not in known:  # of other settings
        known = []
    for row in ROWS:
        old = [each for each in known if each.startswith(key(row))]
        lines += old or [line(row, data, given.steps)]
        print(lines[-1], flush=True)
    with replacing(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
