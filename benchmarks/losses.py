"""A training step with our contrastive losses, and with the N x N x n tensor of published code.

    python benchmarks/losses.py [--batch 6144] [--rounds 3]

The synthetic benchmark's step: two views of 10 dimensions through the MLP, InfoNCE with all
anchors as negatives, the gradients, Adam. For each p a table's row: the whole step, its most
memory (of the process, with what torch itself takes), and the N x N part alone, forward and
backward. Every cell has a process of its own, in turn; times are the least of the rounds, as
others may use the machine. Of the baselines, broadcast materialises ||z_i - z_j||, of N x N x n
numbers, or for the dot product the N x N matrix, and at 6,144 pairs needs about 10 GB; torch.cdist
gives the N x N distances at once. For the dot product cdist has nothing, and stands for the same.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from threedident.baselines.log_sum_exp import log_sum_exp
from threedident.baselines.losses import Dot, Power, info_nce
from threedident.encoders import BoxOutput, MLPEncoder, SphereOutput, VectorEncoder

N = 10
POWERS = (2, 1, 3, None)
VARIANTS = ("numba", "torch", "cdist", "broadcast")
PLAIN = ("cdist", "broadcast")  # all of the N x N at once
LABELS = {
    "numba": "ours (numba)",
    "torch": "ours (blocks of torch)",
    "cdist": "torch.cdist",
    "broadcast": "broadcast",
}


def scores(a: torch.Tensor, b: torch.Tensor, p: int | None, variant: str) -> torch.Tensor:
    """All similarities at once, (N, M)."""
    if p is None:
        return a @ b.T
    if variant == "cdist":
        return -(torch.cdist(a, b, p) ** p)
    return -torch.sum(torch.abs(a[:, None] - b[None]) ** p, -1)


def plain_loss(z: torch.Tensor, z_tilde: torch.Tensor, p: int | None, variant: str) -> torch.Tensor:
    alike = z * z_tilde if p is None else -(torch.abs(z - z_tilde) ** p)
    positive = torch.sum(alike, -1)
    both = torch.cat([positive[:, None], scores(z, z, p, variant)], 1)
    return (both.logsumexp(1) - positive).mean()


def sums(z: torch.Tensor, p: int | None, variant: str) -> torch.Tensor:
    """log sum_j exp s(z_i, z_j), (N,): the N x N part."""
    if variant in PLAIN:
        return scores(z, z, p, variant).logsumexp(1)
    return log_sum_exp(z, z, p, backend=variant)


def least(rounds: int, call: Callable[[], object]) -> float:
    """Seconds, of some calls after one that may compile."""
    taken = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return min(taken[1:])


def most_memory() -> float:
    """GiB that this process has had at most (Linux). getrusage's begins with the parent's."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) / 2**20


def measure(
    p: int | None, variant: str, step_only: bool, batch: int, rounds: int
) -> dict[str, float]:
    torch.manual_seed(0)
    output = SphereOutput() if p is None else BoxOutput(N, learned=True)
    encoder = VectorEncoder(MLPEncoder(N), output)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-4)
    x = torch.rand(batch, N)
    views = torch.cat([x, x + 0.05 * torch.randn(batch, N)])
    similarity = Dot() if p is None else Power(p)

    def step() -> None:
        z, z_tilde = encoder(views).chunk(2)
        if variant in PLAIN:
            loss = plain_loss(z, z_tilde, p, variant)
        else:
            loss = info_nce(z, z_tilde, similarity, backend=variant)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    z = torch.rand(batch, N, requires_grad=True)

    def alone() -> None:
        torch.autograd.grad(sums(z, p, variant).sum(), z)

    seconds = least(rounds, step)
    memory = most_memory()
    if step_only:
        return {"step": seconds, "memory": memory}
    return {"step": seconds, "memory": memory, "alone": least(rounds, alone)}


def apart(
    p: int | None, variant: str, batch: int, rounds: int, *, step_only: bool = False
) -> dict[str, float]:
    """`measure` in a process of its own."""
    cell = json.dumps([p, variant, step_only])
    command = [sys.executable, __file__, "--batch", str(batch), "--rounds", str(rounds)]
    done = subprocess.run([*command, "--cell", cell], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def on_one_thread(variant: str, p: int, count: int) -> float:
    """Seconds of the N x N part, forward and backward; the least of some calls."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    z = torch.rand(count, N, requires_grad=True)
    try:
        return least(5, lambda: torch.autograd.grad(sums(z, p, variant).sum(), z))
    finally:
        torch.set_num_threads(threads)


def cases(short: bool) -> Iterator[Any]:
    """Of 10 dimensions. A training step of the synthetic benchmark: two views through the MLP,
    InfoNCE with all anchors as negatives, gradients, Adam; all processors, a process for each
    figure. The broadcast stores the N x N x n tensor (N x N for the dot product), as published
    code does; torch.cdist the N x N distances. Memory is the most that the process has had, with
    what torch itself takes. Then the N x N part of the loss alone, forward and backward, on one
    thread: torch.cdist is the baseline, each figure the least of five calls.
    """
    batch, rounds = (256, 1) if short else (6144, 3)
    for p in (2,) if short else (2, None):
        variants = ["broadcast", *(["cdist"] if p and not short else []), "numba"]
        variants += [] if short else ["torch"]
        what = f"{'dot product' if p is None else f'p = {p}'}, {batch:,} pairs"
        memory: dict[str, list[float]] = {variant: [] for variant in variants}

        def step(variant: str, p: int | None = p, memory: Any = memory) -> float:
            found = apart(p, variant, batch, 1, step_only=True)
            memory[variant].append(found["memory"])
            return found["step"]

        def most(variant: str, memory: Any = memory) -> float:
            return memory[variant].pop(0)

        for name, unit, measure in (("step", "s", step), ("memory", "GiB", most)):
            contenders = {LABELS[v]: functools.partial(measure, v) for v in variants}
            yield f"{name}, {what}", unit, rounds, contenders
    count, rounds = (64, 1) if short else (2048, 5)
    for p in (2, 1, 3):
        contenders = {
            LABELS[variant]: functools.partial(on_one_thread, variant, p, count)
            for variant in ("cdist", "torch", "numba", "broadcast")
        }
        yield f"N x N part, p = {p}, {count:,} codes, one thread", "s", rounds, contenders


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=6144)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cell", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    batch, rounds = arguments.batch, arguments.rounds
    if arguments.cell is not None:
        print(json.dumps(measure(*arguments.cell, batch, rounds)))
        return
    print(f"{batch} pairs, n = {N}, {torch.get_num_threads()} threads; s and GiB\n")
    heads = [f"{what}: {variant}" for what in ("step", "memory", "N x N") for variant in VARIANTS]
    print("| p | " + " | ".join(heads) + " | step, cdist / numba | N x N |")
    print("| --- |" + " --- |" * (len(heads) + 2))
    for p in POWERS:
        found = {variant: apart(p, variant, batch, rounds) for variant in VARIANTS}
        cells = [
            f"{found[variant][what]:.{digits}f}"
            for what, digits in (("step", 2), ("memory", 2), ("alone", 3))
            for variant in VARIANTS
        ]
        ratios = [
            f"{found['cdist'][what] / found['numba'][what]:.1f}" for what in ("step", "alone")
        ]
        label = "dot" if p is None else str(p)
        print(f"| {label} | " + " | ".join([*cells, *ratios]) + " |", flush=True)


if __name__ == "__main__":
    main()
