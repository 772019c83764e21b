"""Optimisers of a training: Adam, or Muon on weight matrices with Adam on the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from threedident.baselines.criterion import Criterion
from threedident.baselines.experiment import Training


class MatrixMuon(torch.optim.Muon):
    """Muon on weight matrices, and on convolution kernels as matrices (out, in * height * width).

    Its updates are scaled to the root mean square of Adam's, so that learning rates are of the
    same order. Source: Jordan et al. 2024 (Muon); the scale is Liu et al. 2025, equation 4.
    """

    def __init__(self, weights: Sequence[nn.Parameter], lr: float) -> None:
        """Keep views of the weights: they must not be moved or replaced afterwards.

        Args:
            weights: the parameters, of two dimensions or more.
            lr: the learning rate.
        """
        self._weights = list(weights)
        self._last = [_is_channels_last(weight) for weight in self._weights]
        matrices = [
            nn.Parameter(_matrix(weight.detach(), last))
            for weight, last in zip(self._weights, self._last, strict=True)
        ]
        for weight, matrix in zip(self._weights, matrices, strict=True):
            assert weight.data_ptr() == matrix.data_ptr()
        super().__init__(matrices, lr=lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
        self._matrices = matrices

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Take a step on the gradients that the weights have."""
        for weight, last, matrix in zip(self._weights, self._last, self._matrices, strict=True):
            matrix.grad = None if weight.grad is None else _matrix(weight.grad, last)
        return super().step(closure)  # type: ignore[no-untyped-call]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of the weights."""
        for weight, matrix in zip(self._weights, self._matrices, strict=True):
            weight.grad = matrix.grad = None


def _is_channels_last(weight: torch.Tensor) -> bool:
    return weight.ndim == 4 and not weight.is_contiguous()


def _matrix(weight: torch.Tensor, channels_last: bool) -> torch.Tensor:
    """A weight as a matrix, without a copy where its memory permits."""
    if channels_last:
        weight = weight.permute(0, 2, 3, 1)
    return weight.reshape(len(weight), -1)


def make_optimizers(
    training: Training, encoder: nn.Module, objective: Criterion
) -> list[torch.optim.Optimizer]:
    """Make the optimisers of an experiment; every parameter is in one of them.

    Args:
        training: the experiment's fields.
        encoder: the network, on the device on which it is trained.
        objective: the loss and its own parameters, which are always Adam's; its decoder is
            trained as the encoder is.
    """
    networks = [encoder, *([] if objective.decoder is None else [objective.decoder])]
    weights = [p for network in networks for p in network.parameters()]
    parameters = [p for p in weights if p.requires_grad]
    muon = training.optimizer == "muon"
    matrices = [p for p in parameters if muon and p.ndim >= 2]
    rest = [p for p in parameters if not (muon and p.ndim >= 2)]
    groups: list[dict[str, Any]] = [{"params": rest}] if rest else []
    known = set(weights)
    if learned := [p for p in objective.parameters() if p not in known]:
        groups.append({"params": learned, "lr": training.loss_lr or training.lr})
    optimizers: list[torch.optim.Optimizer] = []
    if groups:
        optimizers.append(torch.optim.Adam(groups, lr=training.lr, fused=True))
    if matrices:
        optimizers.append(MatrixMuon(matrices, training.matrix_lr or training.lr))
    return optimizers


class LearningRates:
    """The learning rates of optimisers over the steps of a training: warm-up, and a schedule.

    Attributes:
        factor: the factor of all learning rates in the last step.
    """

    def __init__(self, training: Training, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Keep the rates that the optimisers have now.

        Args:
            training: the experiment's fields.
            optimizers: the optimisers, before their first step.
        """
        self._training, self._optimizers = training, optimizers
        self._rates = [[group["lr"] for group in each.param_groups] for each in optimizers]
        self.factor = 1.0

    @property
    def encoder(self) -> float:
        """The learning rate of the first group of parameters in the last step."""
        rate: float = self._rates[0][0]
        return rate * self.factor

    def set(self, step: int) -> None:
        """Set the learning rates for a step; steps count from 0."""
        training = self._training
        factor = min(1.0, (step + 1) / training.warmup) if training.warmup else 1.0
        if training.schedule == "cosine":
            factor *= (1 + math.cos(math.pi * step / training.steps)) / 2
        self.factor = factor
        for optimizer, rates in zip(self._optimizers, self._rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
