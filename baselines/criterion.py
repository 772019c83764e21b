"""The criterion of a training: an experiment's loss, with the parameters that it learns itself."""

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


def make_criterion(loss: Loss, codes: int, *, members: int = 1, hard: int = 0) -> Criterion:
    """Make the criterion of a loss, its parameters drawn from torch's global random numbers.

    Args:
        loss: the experiment's fields.
        codes: the number of codes, n.
        members: the number of members of an ensemble.
        hard: the number of hard negatives of each anchor.
    """
    return _KINDS[loss.kind](loss, codes, members=members, hard=hard)


class Criterion(nn.Module):
    """The loss of the codes of a batch, with what it learns besides the encoder.

    Codes come as one tensor (N, n) a view, in the order of the data: anchors and positives,
    then hard negatives (k N, n) where there are any; pair after pair for an ensemble; the codes
    alone where the latents are the targets.

    Attributes:
        loss: the experiment's fields.
        members: the number of pairs of views, each with a Lambda of its own.
        hard: the number of hard negatives of an anchor.
        starting: whether `start_p` and `start_tau` stand for `p` and `tau`; set by the training.
        raw_Lambda: Lambda before the softplus, (members, n); None but in AnInfoNCE.
        raw_S: S before the softplus, (n,); None but in TriCL.
        log_tau: the logarithm of a temperature that is learned; None where it is fixed.
    """

    def __init__(self, loss: Loss, codes: int, *, members: int = 1, hard: int = 0) -> None:
        """See `make_criterion`."""
        super().__init__()
        self.loss, self.members, self.hard = loss, members, hard
        self.starting = False
        self.raw_Lambda: nn.Parameter | None = None
        self.raw_S: nn.Parameter | None = None
        self.log_tau: nn.Parameter | None = None
        self._make_parameters(codes)  # first, as a checkpoint's optimiser counts parameters
        if loss.learn_tau:
            self.log_tau = nn.Parameter(torch.tensor(math.log(loss.tau)))

    def _make_parameters(self, codes: int) -> None:
        """Make the parameters of this kind of loss."""

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

    def forward(
        self, codes: Codes, latents: Codes = (), gather: Gather | None = None
    ) -> torch.Tensor:
        """Compute the loss, a scalar in float32 or wider.

        Args:
            codes: the codes of the views.
            latents: the latents of the views; only supervised losses look at them.
            gather: the function that brings the codes of other processes; None: there are none.

        Raises:
            UsageError: the number of views does not fit the members.
        """
        views = [_wide(each) for each in codes]
        if self.loss.normalize:
            views = [nn.functional.normalize(each, dim=-1) for each in views]
        step = 3 if self.hard else 2
        if len(views) != step * self.members:
            raise UsageError(f"expected {step * self.members} views, found {len(views)}")
        parts = [
            self._member_loss(number, views[step * number : step * (number + 1)], gather)
            for number in range(self.members)
        ]
        return torch.stack(parts).sum()

    def _member_loss(
        self, number: int, views: Sequence[torch.Tensor], gather: Gather | None
    ) -> torch.Tensor:
        """Compute the loss of one member's views."""
        raise NotImplementedError

    def learned(self) -> dict[str, Any]:
        """Return what it has learned, as plain data: tau, Lambda (of each member) or S."""
        values: dict[str, Any] = {}
        with torch.no_grad():
            if self.log_tau is not None:
                values["tau"] = float(self.log_tau.exp())
            if self.raw_Lambda is not None:
                values["Lambda"] = nn.functional.softplus(self.raw_Lambda).tolist()
            if self.raw_S is not None:
                values["S"] = nn.functional.softplus(self.raw_S).tolist()
        return values


class InfoNCE(Criterion):
    """The loss InfoNCE, with the similarity -||.||_p^p / tau, or the dot product where p is 0."""

    def similarity(self, member: int = 0) -> losses.Similarity:
        """Make the similarity of a member's pairs, with the parameters as they are.

        Args:
            member: the number of the member.
        """
        return losses.Dot(self.tau) if self.p == 0 else losses.Power(self.p, self.tau)

    def _member_loss(
        self, number: int, views: Sequence[torch.Tensor], gather: Gather | None
    ) -> torch.Tensor:
        z, z_tilde = views[:2]
        gathered = None
        if gather is not None:
            # In one go: all processes must meet in the same order.
            everyone, offset = gather(torch.stack([z, z_tilde], 1))
            gathered = (everyone[:, 0], everyone[:, 1], offset)
        return losses.info_nce(
            z,
            z_tilde,
            self.similarity(number),
            negatives=self.loss.negatives,
            own=self.loss.own,
            symmetric=self.loss.symmetric,
            hard=views[2].reshape(len(z), self.hard, -1) if self.hard else None,
            gathered=gathered,
        )


class AnInfoNCE(InfoNCE):
    """The loss AnInfoNCE: InfoNCE with a weight a dimension, learned as Lambda = softplus(raw)."""

    def _make_parameters(self, codes: int) -> None:
        self.raw_Lambda = nn.Parameter(_SPREAD * torch.randn(self.members, codes))

    def similarity(self, member: int = 0) -> losses.Similarity:
        """Make the similarity of a member's pairs, with the parameters as they are.

        Args:
            member: the number of the member.
        """
        assert self.raw_Lambda is not None
        return losses.Quadratic(nn.functional.softplus(self.raw_Lambda)[member] / self.tau)


class TriCL(Criterion):
    """The loss of TriCL, with S = softplus(raw)."""

    def _make_parameters(self, codes: int) -> None:
        self.raw_S = nn.Parameter(torch.ones(codes))

    def _member_loss(
        self, number: int, views: Sequence[torch.Tensor], gather: Gather | None
    ) -> torch.Tensor:
        assert self.raw_S is not None
        z, z_tilde = _whole_batch(views, gather)
        S = nn.functional.softplus(self.raw_S)
        loss = self.loss
        return losses.tricl(z, z_tilde, S, weight=loss.decorrelation, contrast=loss.contrast)


class AlignmentUniformity(Criterion):
    """The weighted sum of uniformity and alignment."""

    def _member_loss(
        self, number: int, views: Sequence[torch.Tensor], gather: Gather | None
    ) -> torch.Tensor:
        z, z_tilde = _whole_batch(views, gather)
        return losses.alignment_uniformity(z, z_tilde, self.loss.alpha, self.p)


class MeanSquaredError(Criterion):
    """The mean squared error to the latents."""

    def forward(
        self, codes: Codes, latents: Codes = (), gather: Gather | None = None
    ) -> torch.Tensor:
        """Compute the loss, a scalar in float32 or wider.

        Args:
            codes: the codes of the one view.
            latents: its latents.
            gather: unused: every process has the latents of its own codes.
        """
        return losses.mean_squared_error(_wide(codes[0]), latents[0])


_KINDS: dict[str, type[Criterion]] = {
    "infonce": InfoNCE,
    "aninfonce": AnInfoNCE,
    "tricl": TriCL,
    "alignment-uniformity": AlignmentUniformity,
    "mse": MeanSquaredError,
}


def _wide(codes: torch.Tensor) -> torch.Tensor:
    return codes if codes.dtype == torch.float64 else codes.float()


def _whole_batch(views: Sequence[torch.Tensor], gather: Gather | None) -> Codes:
    """Return both views of all processes.

    With the whole loss on every process, the mean of their gradients is its gradient.
    """
    if gather is None:
        return views[:2]
    return gather(torch.stack(list(views[:2]), 1))[0].unbind(1)
