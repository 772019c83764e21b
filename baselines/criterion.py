"""The criterion of a training: an experiment's loss, with the parameters that it learns itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from threedident.baselines import losses, vae
from threedident.baselines.experiment import Loss
from threedident.encoders import ConvDecoder, MLPDecoder
from threedident.encoders.outputs import split_gaussian
from threedident.errors import UsageError

Codes = Sequence[torch.Tensor]
#: Rows (N, ...) of this process to those of all, (M, ...), and where the own ones begin.
Gather = Callable[[torch.Tensor], tuple[torch.Tensor, int]]

_SPREAD = 0.1  # of the raw Lambda at the beginning, as in the published code


Decoder = ConvDecoder | MLPDecoder


def make_criterion(
    loss: Loss, codes: int, *, members: int = 1, hard: int = 0, decoder: Decoder | None = None
) -> Criterion:
    """Make the criterion of a loss, its parameters drawn from torch's global random numbers.

    Args:
        loss: the experiment's fields.
        codes: the number of codes, n.
        members: the number of members of an ensemble.
        hard: the number of hard negatives of each anchor.
        decoder: the decoder of an autoencoder; None for all other losses.
    """
    return _KINDS[loss.kind](loss, codes, members=members, hard=hard, decoder=decoder)


class Criterion(nn.Module):
    """The loss of the codes of a batch, with what it learns besides the encoder.

    Codes come as one tensor (N, n) a view, in the order of the data: anchors and positives,
    then hard negatives (k N, n) where there are any; pair after pair for an ensemble; the codes
    alone where the latents are the targets. An autoencoder's are the means and log-variances of
    Gaussians over codes, (N, 2 n), of any number of views.

    Attributes:
        loss: the experiment's fields.
        members: the number of pairs of views, each with a Lambda of its own.
        hard: the number of hard negatives of an anchor.
        starting: whether `start_p`, `start_tau` and `start_own` stand for `p`, `tau` and `own`; set
            by the training.
        raw_Lambda: Lambda before the softplus, (members, n); None but in AnInfoNCE.
        raw_S: S before the softplus, (n,); None but in TriCL.
        log_tau: the logarithm of a temperature that is learned; None where it is fixed.
        decoder: the decoder of an autoencoder, which is trained like the encoder; None elsewhere.
        terms: the terms of an autoencoder's last loss by name, () each; empty elsewhere.
    """

    def __init__(
        self,
        loss: Loss,
        codes: int,
        *,
        members: int = 1,
        hard: int = 0,
        decoder: Decoder | None = None,
    ) -> None:
        """See `make_criterion`."""
        super().__init__()
        self.loss, self.members, self.hard = loss, members, hard
        self.decoder = decoder
        self.terms: dict[str, torch.Tensor] = {}
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

    @property
    def own(self) -> bool:
        """Whether an anchor's own code is among its negatives."""
        start = self.loss.start_own if self.starting else None
        return self.loss.own if start is None else start

    def forward(
        self,
        codes: Codes,
        latents: Codes = (),
        gather: Gather | None = None,
        images: Codes = (),
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        """Compute the loss, a scalar in float32 or wider.

        Args:
            codes: the codes of the views.
            latents: the latents of the views; only supervised losses look at them.
            gather: the function that brings the codes of other processes; None: there are none.
            images: the uint8 images of the views; only autoencoders look at them.
            generator: the source of an autoencoder's noise.

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
            own=self.own,
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
        self,
        codes: Codes,
        latents: Codes = (),
        gather: Gather | None = None,
        images: Codes = (),
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        """Compute the loss, a scalar in float32 or wider.

        Args:
            codes: the codes of the one view.
            latents: its latents.
            gather: unused: every process has the latents of its own codes.
            images, generator: unused.
        """
        return losses.mean_squared_error(_wide(codes[0]), latents[0])


class BetaVAE(Criterion):
    """The loss of a beta-VAE: the mean of -log p(x | z) + beta KL(q(z | x) || N(0, I)).

    Higgins et al. 2017; with beta = 1 it is the negative ELBO of a VAE, at one draw of z. The mean
    is over the images of all views alike.
    """

    def forward(
        self,
        codes: Codes,
        latents: Codes = (),
        gather: Gather | None = None,
        images: Codes = (),
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        """Compute the loss, a scalar in float32 or wider.

        Args:
            codes: the means and log-variances of the views, (N, 2 n).
            latents: unused.
            gather: unused: every process has the images of its own codes.
            images: the uint8 images of the views, (N, C, H, W).
            generator: the source of the noise; None: torch's global random numbers.
        """
        assert self.decoder is not None
        views = [split_gaussian(_wide(each)) for each in codes]
        views, extra = self._posteriors(views)
        mean, log_variance = (torch.cat(parts) for parts in zip(*views, strict=True))
        logits = _wide(self.decoder(vae.draw(mean, log_variance, generator)))
        targets = torch.cat(list(images)).to(logits.dtype) / 255
        reconstruction = vae.reconstruction(logits, targets.reshape(logits.shape)).mean()
        divergence = vae.gaussian_kl(mean, log_variance).sum(1).mean()
        self.terms = {"reconstruction": reconstruction.detach(), "kl": divergence.detach()}
        return self._total(reconstruction, divergence, extra)

    def _posteriors(
        self, views: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], torch.Tensor | None]:
        """Return the Gaussians that codes are drawn from, and a term of the loss about them."""
        return views, None

    def _total(
        self, reconstruction: torch.Tensor, divergence: torch.Tensor, extra: torch.Tensor | None
    ) -> torch.Tensor:
        """Sum up the terms, each a mean over the images or the pairs."""
        return reconstruction + self.loss.beta * divergence


class SlowVAE(BetaVAE):
    """The loss of SlowVAE: 2 (-log p(x | z)) + beta KL(q || N(0, I)) + gamma (the transition).

    Klindt et al. 2021, as coded: the first two terms are means over the images of both views,
    the third is `vae.slow_transition`, a mean over pairs. With gamma = 0 it is the beta-VAE of the
    same code, whose beta is thus twice that of `BetaVAE`.
    """

    def _posteriors(
        self, views: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], torch.Tensor | None]:
        first, second = views
        transition = vae.slow_transition(
            *first, *second, self.loss.rate, as_coded=self.loss.as_coded
        )
        return views, transition.mean()

    def _total(
        self, reconstruction: torch.Tensor, divergence: torch.Tensor, extra: torch.Tensor | None
    ) -> torch.Tensor:
        assert extra is not None
        self.terms["transition"] = extra.detach()
        return 2 * reconstruction + self.loss.beta * divergence + self.loss.gamma * extra


class AdaGVAE(BetaVAE):
    """The loss of Ada-GVAE: a beta-VAE of pairs, the Gaussians of shared codes averaged.

    Locatello et al. 2020; see `vae.shared_posteriors`.
    """

    def _posteriors(
        self, views: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], torch.Tensor | None]:
        first, second = views
        *both, _ = vae.shared_posteriors(*first, *second)
        return list(both), None


_KINDS: dict[str, type[Criterion]] = {
    "infonce": InfoNCE,
    "aninfonce": AnInfoNCE,
    "tricl": TriCL,
    "alignment-uniformity": AlignmentUniformity,
    "mse": MeanSquaredError,
    "vae": BetaVAE,
    "slowvae": SlowVAE,
    "adagvae": AdaGVAE,
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
