"""A training step on images, without and with reading them; see run.py."""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from losses import plain_loss
from pairs import OneByOne, build, matched
from torch import nn
from torch.utils.data import DataLoader
from torchvision.models import resnet18

from threedident.baselines.losses import Power, info_nce
from threedident.datasets.dataset import ThreeDIdent
from threedident.datasets.latent_matcher import LatentMatcher
from threedident.encoders import BoxOutput, ImageEncoder, ResNetEncoder
from threedident.latents import sample_raw_latents

CODES = 10
SIGMA = 0.1  # of the pairs
Step = Callable[[torch.Tensor, torch.Tensor], None]


class Plain(nn.Module):
    """The same network written down plainly, of torch's and torchvision's parts."""

    def __init__(self, mean: Any, std: Any) -> None:
        super().__init__()
        self.mean = torch.tensor(mean)[:, None, None]
        self.std = torch.tensor(std)[:, None, None]
        body = resnet18(num_classes=10 * CODES)
        self.layers = nn.Sequential(body, nn.LeakyReLU(), nn.Linear(10 * CODES, CODES))
        self.bound = nn.Parameter(torch.ones(CODES))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        normalised = (images.float() / 255 - self.mean) / self.std
        return torch.sigmoid(self.layers(normalised)) * self.bound


def make_step(encoder: nn.Module, loss: Callable[..., torch.Tensor], **options: Any) -> Step:
    """A step of Adam on both views of a batch, (B, 3, H, W) uint8 each."""
    half, last, fused = options["half"], options["last"], options["fused"]
    memory = torch.channels_last if last else torch.contiguous_format
    encoder.to(memory_format=memory)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-4, fused=fused)

    def step(x: torch.Tensor, x_tilde: torch.Tensor) -> None:
        together = torch.cat([x, x_tilde]).contiguous(memory_format=memory)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            codes = encoder(together).float()
        z, z_tilde = codes.chunk(2)
        optimizer.zero_grad()
        loss(z, z_tilde).backward()
        optimizer.step()

    return step


def make_steps(mean: Any, std: Any, short: bool) -> dict[str, Step]:
    """By name: plain ones, and ours as `3dident train` makes them."""

    def plain(half: bool) -> Step:
        loss = functools.partial(plain_loss, p=2, variant="broadcast")
        return make_step(Plain(mean, std), loss, half=half, last=False, fused=False)

    def ours(half: bool) -> Step:
        encoder = ImageEncoder(mean, std, ResNetEncoder(CODES), BoxOutput(CODES, learned=True))
        loss = functools.partial(info_nce, similarity=Power(2))
        return make_step(encoder, loss, half=half, last=True, fused=True)

    kinds = {"plain, float32": plain(False), "ours, bfloat16": ours(True)}
    if not short:
        kinds |= {"plain, bfloat16": plain(True), "ours, float32": ours(False)}
    return kinds


def seconds(step: Step, batches: Iterator[Any], count: int) -> float:
    """A step's, with getting its batch, after a first one."""
    _, pair = next(batches)
    step(*pair)
    start = time.perf_counter()
    for _ in range(count):
        _, pair = next(batches)
        step(*pair)
    return (time.perf_counter() - start) / count


def cases(short: bool) -> Iterator[Any]:
    """A step of training a ResNet-18 on pairs of 32 x 32 images: encode both views, InfoNCE with
    p = 2 and all anchors as negatives, gradients, Adam; all processors. Plain: torchvision's
    ResNet-18 and the N x N x n tensor of a broadcast. With reading: the plain step gets its
    batches from a DataLoader of two workers, which draws, matches (exactly, among all latents) and
    decodes (PNG) a pair an item; ours from `PositivePairs`.
    """
    size, images, stored = (8, 1000, 16) if short else (512, 250_000, 4000)
    rounds, count = (1, 1) if short else (3, 2)
    torch.manual_seed(0)
    latents = sample_raw_latents(range(images), seed=0, split="train")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = build(folder, stored, resolution=32)
        data = ThreeDIdent(path)
        steps = make_steps(data.mean, data.std, short)
        matcher = LatentMatcher(latents)

        def one_by_one() -> Iterator[Any]:
            items = OneByOne(latents, folder / "png", stored, SIGMA)
            return iter(DataLoader(items, size, num_workers=2))

        def ours() -> Iterator[Any]:
            return iter(matched(path, latents, matcher, SIGMA, size).loader(threads=2))

        numbers = np.random.default_rng(0).integers(0, stored, (2, size))
        held = None, tuple(data.images(row) for row in numbers.tolist())
        what = f"{size} pairs at 32 x 32"
        yield (
            f"step, {what}",
            "s",
            rounds,
            {
                label: lambda step=step: seconds(step, iter(lambda: held, None), count)
                for label, step in steps.items()
            },
        )

        def with_reading(label: str) -> float:
            return seconds(steps[label], ours() if "ours" in label else one_by_one(), count)

        contenders = {label: functools.partial(with_reading, label) for label in steps}
        yield f"step with reading, {what}", "s", rounds, contenders
