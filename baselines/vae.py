"""The terms of the losses of variational autoencoders: beta-VAE, SlowVAE and Ada-GVAE.

The encoder gives a Gaussian over the codes of an image, q(z | x), by its means and the logarithms
of its variances; the decoder gives the logits of pixels that are Bernoulli. All values are in nats.
`threedident.baselines.criterion` has the sums of these terms, which are made small.
"""

from __future__ import annotations

import math

from threedident.errors import MissingExtraError, UsageError

try:
    import torch
    from torch.nn import functional
except ImportError as error:
    raise MissingExtraError("torch", "train", "the loss of an autoencoder") from error


def reconstruction(logits: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """Compute -log p(x | z) of each image: the binary cross-entropy, summed over its pixels.

    Args:
        logits: the logits of the pixels, (B, ...).
        images: the images, (B, ...) in [0, 1].

    Returns:
        (B,), in nats.

    Raises:
        UsageError: the shapes differ.
    """
    if logits.shape != images.shape:
        raise UsageError(
            f"expected logits of the images' shape {tuple(images.shape)}, found "
            f"{tuple(logits.shape)}"
        )
    losses = functional.binary_cross_entropy_with_logits(logits, images, reduction="none")
    return losses.flatten(1).sum(1)


def gaussian_kl(mean: torch.Tensor, log_variance: torch.Tensor) -> torch.Tensor:
    """Compute KL(q || N(0, 1)) of each code: (mean^2 + variance - 1 - log variance) / 2.

    Kingma & Welling 2014, appendix B.

    Args:
        mean, log_variance: the parameters of q, (..., m).

    Returns:
        (..., m), in nats; the KL of all codes is their sum.
    """
    return (mean.square() + log_variance.exp() - 1 - log_variance) / 2


def gaussian_entropy(log_variance: torch.Tensor) -> torch.Tensor:
    """Compute the entropy of each Gaussian: (log variance + log(2 pi e)) / 2.

    Args:
        log_variance: the logarithm of the variances, (...).

    Returns:
        (...), in nats.
    """
    return (log_variance + math.log(2 * math.pi * math.e)) / 2


def laplace_cross_entropy(
    mean: torch.Tensor, log_variance: torch.Tensor, center: torch.Tensor, rate: float
) -> torch.Tensor:
    """Compute the mean of -log p(z) over a Gaussian q, for a Laplace density p around a center.

    With p(z) = (rate / 2) exp(-rate |z - c|) it is -log(rate / 2) + rate E|z - c|, where for d =
    mean - c and the standard deviation s, E|z - c| = s sqrt(2 / pi) exp(-d^2 / (2 s^2)) +
    d erf(d / (s sqrt 2)), the mean of a folded normal. Klindt et al. 2021 (SlowVAE).

    Args:
        mean, log_variance: the parameters of q, (...).
        center: the center c of p, (...).
        rate: the rate of p, above 0: the inverse of its scale.

    Returns:
        (...), in nats.

    Raises:
        UsageError: the rate is not above 0.
    """
    if not 0 < rate < math.inf:
        raise UsageError(f"the rate of a Laplace density must be above 0, found {rate}")
    std = (log_variance / 2).exp()
    distance = (mean - center) / std
    expected = std * (
        math.sqrt(2 / math.pi) * (-distance.square() / 2).exp()
        + distance * torch.erf(distance / math.sqrt(2))
    )
    return rate * expected - math.log(rate / 2)


def draw(
    mean: torch.Tensor, log_variance: torch.Tensor, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Draw codes from q, through which gradients flow: mean + std * noise.

    Args:
        mean, log_variance: the parameters of q, (B, m).
        generator: the source of the noise; None: torch's global random numbers.
    """
    noise = torch.randn(mean.shape, dtype=mean.dtype, device=mean.device, generator=generator)
    return mean + (log_variance / 2).exp() * noise


def slow_transition(
    mean: torch.Tensor,
    log_variance: torch.Tensor,
    mean_tilde: torch.Tensor,
    log_variance_tilde: torch.Tensor,
    rate: float,
    *,
    as_coded: bool = True,
) -> torch.Tensor:
    """Compute the term of SlowVAE that asks for sparse steps between the images of a pair.

    It is CE(q, p~) + CE(q~, p) - H, summed over codes: the cross-entropies of each image's q and
    a Laplace density around the mean of the other's. As in the published code H is one entropy,
    the mean of both, although two cross-entropies are summed. With `as_coded` false it is both
    entropies, so that the term is the sum of two KL divergences. No gradient is stopped.

    Klindt et al. 2021 (SlowVAE), and their code.

    Args:
        mean, log_variance: the parameters of q of the first images, (B, m).
        mean_tilde, log_variance_tilde: those of the second images.
        rate: the rate of the Laplace density, above 0.
        as_coded: whether it is as in the published code.

    Returns:
        (B,), in nats.
    """
    crossed = laplace_cross_entropy(mean, log_variance, mean_tilde, rate)
    crossed = crossed + laplace_cross_entropy(mean_tilde, log_variance_tilde, mean, rate)
    entropies = gaussian_entropy(log_variance) + gaussian_entropy(log_variance_tilde)
    return (crossed - (entropies / 2 if as_coded else entropies)).sum(1)


def shared_posteriors(
    mean: torch.Tensor,
    log_variance: torch.Tensor,
    mean_tilde: torch.Tensor,
    log_variance_tilde: torch.Tensor,
) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Average the posteriors of the codes that a pair shares, as Ada-GVAE does.

    A code is shared where KL(q || q~) is below the middle between the least and the largest KL of
    the pair's codes. There both get the mean of both means and the mean of both variances.

    Locatello et al. 2020 (Weakly-Supervised Disentanglement Without Compromises).

    Args:
        mean, log_variance: the parameters of q of the first images, (B, m).
        mean_tilde, log_variance_tilde: those of the second images.

    Returns:
        Mean and log-variance of both, and the mask of the shared codes, (B, m) each.
    """
    variance, variance_tilde = log_variance.exp(), log_variance_tilde.exp()
    with torch.no_grad():
        divergence = (
            (mean - mean_tilde).square() / variance_tilde
            + (log_variance - log_variance_tilde).exp()
            - 1
            - (log_variance - log_variance_tilde)
        ) / 2
        ends = torch.aminmax(divergence, dim=1, keepdim=True)
        shared = divergence < (ends.min + ends.max) / 2
    middle = (mean + mean_tilde) / 2
    together = ((variance + variance_tilde) / 2).log()
    first = torch.where(shared, middle, mean), torch.where(shared, together, log_variance)
    second = (
        torch.where(shared, middle, mean_tilde),
        torch.where(shared, together, log_variance_tilde),
    )
    return first, second, shared
