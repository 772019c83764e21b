"""From an experiment's `loss` table to a module: the loss and its own parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from threedident.baselines import losses
from threedident.baselines.experiment import Loss
from threedident.errors import UsageError

Codes = Sequence[torch.Tensor]
#: Rows (N, ...) of this process to those of all, (M, ...), and where the own ones begin.
Gather = Callable[[torch.Tensor], tuple[torch.Tensor, int]]

_SPREAD = 0.1  # of the raw Lambda at the beginning, as in the published code


class Objective(nn.Module):
    """The loss of the codes of a batch, with what it learns besides the encoder.

    Codes come as one tensor (N, n) a view, in the order of the data: anchors and positives,
    then hard negatives (k N, n) where there are any; pair after pair for an ensemble; the codes
    alone where the latents are the targets.

    Attributes:
        members: pairs of views, each with a Lambda of its own.
        hard: hard negatives of an anchor.
        starting: whether `start_p` and `start_tau` stand for `p` and `tau`; set by the training.
    """

    def __init__(self, loss: Loss, codes: int, *, members: int = 1, hard: int = 0) -> None:
        """Draws the parameters from torch's global random numbers.

        Args:
            loss: which.
            codes: n.
            members: of an ensemble.
            hard: negatives of an anchor that are its own.
        """
        super().__init__()
        self.loss, self.members, self.hard = loss, members, hard
        self.starting = False
        self.raw_Lambda: nn.Parameter | None = None
        self.log_tau: nn.Parameter | None = None
        self.raw_S: nn.Parameter | None = None
        if loss.kind == "aninfonce":
            self.raw_Lambda = nn.Parameter(_SPREAD * torch.randn(members, codes))
        if loss.kind == "tricl":
            self.raw_S = nn.Parameter(torch.ones(codes))
        if loss.learn_tau:
            self.log_tau = nn.Parameter(torch.tensor(math.log(loss.tau)))

    @property
    def tau(self) -> torch.Tensor | float:
        """The temperature."""
        if self.starting and self.loss.start_tau is not None:
            return self.loss.start_tau
        return self.loss.tau if self.log_tau is None else self.log_tau.exp()

    @property
    def p(self) -> float:
        """The power of the similarity."""
        start = self.loss.start_p if self.starting else None
        return self.loss.p if start is None else start

    @property
    def Lambda(self) -> torch.Tensor | None:
        """Lambda^ = softplus(raw), (members, n), of AnInfoNCE."""
        return None if self.raw_Lambda is None else nn.functional.softplus(self.raw_Lambda)

    def similarity(self, member: int = 0) -> losses.Similarity:
        """The similarity of a member's pairs, with the parameters as they are."""
        if self.loss.kind == "aninfonce":
            assert self.Lambda is not None
            return losses.Quadratic(self.Lambda[member] / self.tau)
        if self.p == 0:
            return losses.Dot(self.tau)
        return losses.Power(self.p, self.tau)

    def forward(
        self, codes: Codes, latents: Codes = (), gather: Gather | None = None
    ) -> torch.Tensor:
        """The loss, a scalar in float32 or wider.

        Args:
            codes: of the views.
            latents: of the views; only targets look at them.
            gather: of negatives from other processes.

        Raises:
            UsageError: the codes do not fit the latents.
        """
        kind = self.loss.kind
        views = [each.float() if each.dtype != torch.float64 else each for each in codes]
        if kind == "mse":
            return losses.mean_squared_error(views[0], latents[0])
        if self.loss.normalize:
            views = [nn.functional.normalize(each, dim=-1) for each in views]
        step = 3 if self.hard else 2
        if len(views) != step * self.members:
            raise UsageError(f"expected {step * self.members} views, found {len(views)}")
        parts = [
            self._member(number, views[step * number : step * (number + 1)], gather)
            for number in range(self.members)
        ]
        return torch.stack(parts).sum()

    def _member(
        self, number: int, views: Sequence[torch.Tensor], gather: Gather | None
    ) -> torch.Tensor:
        z, z_tilde = views[:2]
        loss = self.loss
        if gather is not None and loss.kind in ("alignment-uniformity", "tricl"):
            # The whole loss on every process: the mean of their gradients is its gradient.
            z, z_tilde = gather(torch.stack([z, z_tilde], 1))[0].unbind(1)
        if loss.kind == "alignment-uniformity":
            return losses.alignment_uniformity(z, z_tilde, loss.alpha, self.p)
        if loss.kind == "tricl":
            assert self.raw_S is not None
            S = nn.functional.softplus(self.raw_S)
            return losses.tricl(z, z_tilde, S, weight=loss.decorrelation, contrast=loss.contrast)
        gathered = None
        if gather is not None:
            # In one go: all processes must meet in the same order.
            everyone, offset = gather(torch.stack([z, z_tilde], 1))
            gathered = (everyone[:, 0], everyone[:, 1], offset)
        return losses.info_nce(
            z,
            z_tilde,
            self.similarity(number),
            negatives=loss.negatives,
            own=loss.own,
            symmetric=loss.symmetric,
            hard=views[2].reshape(len(z), self.hard, -1) if self.hard else None,
            gathered=gathered,
        )

    def learned(self) -> dict[str, Any]:
        """What it has learned, as plain data: tau, Lambda (of each member) or S."""
        found: dict[str, Any] = {}
        with torch.no_grad():
            if self.log_tau is not None:
                found["tau"] = float(self.log_tau.exp())
            if self.Lambda is not None:
                found["Lambda"] = self.Lambda.tolist()
            if self.raw_S is not None:
                found["S"] = nn.functional.softplus(self.raw_S).tolist()
        return found
