from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from helpers.small_runs import (
    MUON,
    small,
)

from threedident.baselines.criterion import make_criterion
from threedident.baselines.experiment import Loss
from threedident.baselines.training.optimizers import MatrixMuon, make_optimizers


def test_muon_moves_matrices_and_adam_all_else(tmp_path: Path) -> None:
    torch.manual_seed(0)
    encoder = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 4))
    twin = copy.deepcopy(encoder)
    settings = small(**MUON).training
    ours = make_optimizers(settings, encoder, make_criterion(Loss(learn_tau=True), 4))
    theirs = [
        torch.optim.Adam([twin[0].bias, twin[1].bias], lr=settings.lr),
        torch.optim.Muon(
            [twin[0].weight, twin[1].weight],
            lr=3e-3,
            weight_decay=0.0,
            adjust_lr_fn="match_rms_adamw",
        ),
    ]
    for net, optimizers in ((encoder, ours), (twin, theirs)):
        for step in range(3):
            x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
            net(x).square().sum().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        assert all(p.grad is None for p in net.parameters())
    for a, b in zip(encoder.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_muon_moves_a_kernel_as_the_matrix_that_it_is(memory: torch.memory_format) -> None:
    torch.manual_seed(0)
    kernel = torch.nn.Conv2d(3, 4, 3, bias=False).to(memory_format=memory).weight
    gradient = torch.randn(4, 3, 3, 3)
    matrix = torch.nn.Parameter(kernel.detach().contiguous().reshape(4, -1).clone())
    plain = torch.optim.Muon([matrix], lr=0.1, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    ours = MatrixMuon([kernel], 0.1)
    kernel.grad, matrix.grad = gradient, gradient.reshape(4, -1)
    before = kernel.detach().clone()
    for each in (plain, ours):
        each.step()
    moved, expected = kernel.detach().reshape(4, -1), matrix.detach()
    assert not torch.equal(kernel, before)
    # Its polar factor is iterated in bfloat16, where the order of columns rounds.
    assert torch.allclose(
        moved, expected, atol=0.02 * (expected - before.reshape(4, -1)).abs().max()
    )
