"""Contrastive losses: InfoNCE and its relatives over one set of similarities, and the MSE.

A similarity is a small class: it scales codes so that it becomes a dot product or -||a - b||_p^p,
which `threedident.baselines.log_sum_exp` sums over all pairs. Its temperature or weights may be
tensors, to which gradients flow.

An ensemble (Rusak et al. 2024, B.3) needs no function: it is the sum of `info_nce` over the
pairs of each process, each with a `Quadratic` of its own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TypeAlias

from threedident.errors import MissingExtraError, UsageError

try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "train", "a contrastive loss") from error

from threedident.baselines import log_sum_exp

NEGATIVES = ("anchors", "positives", "both", "none")
CONTRASTS = ("spectral", "info_nce")

_ALMOST_NOTHING = 1e-24  # a weight: what it adds to any similarity is lost in rounding

#: Embeddings of all processes, (M, n) of each view, and where the rows of this one begin.
Gathered: TypeAlias = tuple[torch.Tensor, torch.Tensor, int]


class Similarity:
    """The similarity of two codes."""

    def reduced(
        self, a: torch.Tensor, b: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, float | None]:
        """Scale codes so that this is the plain similarity of the result.

        Args:
            a: the anchors, (..., n).
            b: the candidates, (..., n).

        Returns:
            Both, scaled, and p of `log_sum_exp.similarity`.
        """
        raise NotImplementedError

    def paired(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Compute the similarities (...) of anchors with candidates.

        Args:
            a: the anchors, (..., n).
            b: the candidates, (..., n).
        """
        return log_sum_exp.similarity(*self.reduced(a, b))


@dataclasses.dataclass(frozen=True, eq=False)
class Dot(Similarity):
    """The dot product a . b / tau (Zimmermann et al. 2021, eq. 1).

    Attributes:
        tau: the temperature, above 0; a number, or a tensor () such as exp of what is learned.
    """

    tau: float | torch.Tensor = 1.0

    def __post_init__(self) -> None:
        _check_tau(self.tau)

    def reduced(
        self, a: torch.Tensor, b: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, float | None]:
        """Divide a by tau, for the dot product with b."""
        return a / self.tau, b, None


@dataclasses.dataclass(frozen=True, eq=False)
class Power(Similarity):
    """The distance -||a - b||_p^p / tau (Zimmermann et al. 2021, eq. 6).

    Attributes:
        p: 1 (Laplace), 2 (Normal), 3 (GenNorm), or any other number from 1.
        tau: the temperature, above 0; a number, or a tensor () such as exp of what is learned.
    """

    p: float
    tau: float | torch.Tensor = 1.0

    def __post_init__(self) -> None:
        _check_p(self.p)
        _check_tau(self.tau)

    def reduced(
        self, a: torch.Tensor, b: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, float | None]:
        """Scale both by tau^(-1/p)."""
        scale = self.tau ** (-1 / self.p)
        return a * scale, b * scale, self.p


@dataclasses.dataclass(frozen=True, eq=False)
class Quadratic(Similarity):
    """The form -(a - b)^T diag(Lambda) (a - b) / 2 of AnInfoNCE (Rusak et al. 2024, eq. 3).

    The half is the published code's: with it a learned Lambda meets the Lambda of the data.

    Attributes:
        Lambda: the weights, (n,), at least 0; a softplus of what is learned. Where it is 0 its
            gradient is that of the similarity, -(a - b)^2 / 2.
    """

    Lambda: torch.Tensor

    def __post_init__(self) -> None:
        _check_weights("Lambda", self.Lambda)
        if _is_known(self.Lambda) and bool((self.Lambda < 0).any()):
            raise UsageError(f"Lambda must be at least 0, found {self.Lambda.min().item():g}")

    def reduced(
        self, a: torch.Tensor, b: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, float | None]:
        """Scale both by sqrt(Lambda / 2)."""
        _check_length("Lambda", self.Lambda, a)
        # The slope of the root is infinite at 0, and would make that gradient no number.
        zeros = (self.Lambda == 0).to(self.Lambda.dtype)
        scale = ((self.Lambda + _ALMOST_NOTHING * zeros) / 2).sqrt()
        return a * scale, b * scale, 2


@dataclasses.dataclass(frozen=True, eq=False)
class Bilinear(Similarity):
    """The form a^T diag(S) b of TriCL (Zhang et al. 2023; Rusak et al. 2024, H.4).

    Attributes:
        S: the weights, (n,).
    """

    S: torch.Tensor

    def __post_init__(self) -> None:
        _check_weights("S", self.S)

    def reduced(
        self, a: torch.Tensor, b: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, float | None]:
        """Scale a by S, for the dot product with b."""
        _check_length("S", self.S, a)
        return a * self.S, b, None


def info_nce(
    z: torch.Tensor,
    z_tilde: torch.Tensor,
    similarity: Similarity,
    *,
    negatives: str = "anchors",
    own: bool = True,
    symmetric: bool = False,
    hard: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
    gathered: Gathered | None = None,
    backend: str = "auto",
) -> torch.Tensor:
    """Compute the mean over i of log(exp s(z_i, z~_i) + sum_j exp s(z_i, z_ij^-)) - s(z_i, z~_i).

    Zimmermann et al. 2021, eq. 1 and 6, with the defaults as their code has it; Rusak et al. 2024,
    eq. 3, with `Quadratic`, "both", no own, and symmetric. The positive counts once in the sum.

    The latter, AnInfoNCE, is as in the paper, not as in the published code: for the half with the
    views exchanged, that takes s(z_i, z~_j) where the paper has s(z_j, z~_i), its transpose. At
    true latents with Lambda 5 and 25 its gradients of the codes differ from these by 3.5 % at
    N = 1,000 and by 14 % at N = 64.

    Args:
        z, z_tilde: the codes of the anchors and of their positives, (N, n).
        similarity: the similarity s.
        negatives: the negatives of z_i: "anchors", all z_j; "positives", the z~_j of other pairs;
            "both", the two together; "none", only the hard ones.
        own: whether z_i itself is among the anchors that are its negatives.
        symmetric: whether it is the mean of this and the loss with the views exchanged.
        hard: more negatives, (N, k, n), each of its own anchor alone: they are drawn around it
            (Rusak et al. 2024, D.3). With `symmetric` a pair of such, around z and around z~:
            those of the one are no draws around the other, and with hard negatives of one view
            only, the two halves would have different optima (Lambda+ - Lambda-, and Lambda+).
        gathered: the codes of all processes, from which negatives are then taken; the anchors
            are z alone. None: z and z~ are all there is.
        backend: the backend of `log_sum_exp`.

    Returns:
        (), in nats.

    Raises:
        UsageError: an argument does not fit.
    """
    _check_codes(z, z_tilde)
    if negatives not in NEGATIVES:
        raise UsageError(f"unknown negatives {negatives!r}: expected one of {', '.join(NEGATIVES)}")
    if negatives == "none" and hard is None:
        raise UsageError('negatives="none" needs hard negatives')
    z, z_tilde = _wide(z), _wide(z_tilde)
    everyone, everyone_tilde, offset = _checked_gathered(z, gathered) or (z, z_tilde, 0)
    hards = _checked_hard(z, hard, symmetric)

    def one_way(
        anchors: torch.Tensor,
        positives: torch.Tensor,
        all_anchors: torch.Tensor,
        all_positives: torch.Tensor,
        hard: torch.Tensor | None,
    ) -> torch.Tensor:
        positive = similarity.paired(anchors, positives)
        sums = []
        if negatives in ("anchors", "both"):
            left_out = None if own else offset
            sums.append(_sum(similarity, anchors, all_anchors, left_out, backend))
        if negatives in ("positives", "both"):
            sums.append(_sum(similarity, anchors, all_positives, offset, backend))
        if hard is not None:
            sums.append(similarity.paired(anchors[:, None], hard).logsumexp(1))
        # As a softplus of the negatives' lead, a small loss keeps its digits, and the positive
        # counts once whatever the negatives are.
        return _softplus(_joined(sums) - positive).mean()

    loss = one_way(z, z_tilde, everyone, everyone_tilde, hards[0])
    if symmetric:
        loss = (loss + one_way(z_tilde, z, everyone_tilde, everyone, hards[1])) / 2
    return loss


def alignment(z: torch.Tensor, z_tilde: torch.Tensor, p: float) -> torch.Tensor:
    """Compute the mean of ||z_i - z~_i||_p^p (Zimmermann et al. 2020, eq. 71).

    Args:
        z, z_tilde: the codes of positive pairs, (N, n).
        p: the power, at least 1.

    Raises:
        UsageError: an argument does not fit.
    """
    _check_codes(z, z_tilde)
    _check_p(p)
    return -log_sum_exp.similarity(_wide(z), _wide(z_tilde), p).mean()


def uniformity(
    z: torch.Tensor, p: float, *, own: bool = True, backend: str = "auto"
) -> torch.Tensor:
    """Compute the mean over i of log mean_j exp(-||z_i - z_j||_p^p).

    Zimmermann et al. 2020, eq. 72.

    Args:
        z: the codes, (N, n).
        p: the power, at least 1.
        own: whether j = i counts, as in `info_nce`; without it the mean is over N - 1, and this
            has no lower bound.
        backend: the backend of `log_sum_exp`.

    Raises:
        UsageError: an argument does not fit.
    """
    _check_codes(z, z)
    _check_p(p)
    count = len(z) if own else len(z) - 1
    if count == 0:
        raise UsageError("uniformity without the own code needs at least two codes, found one")
    sums = log_sum_exp.log_sum_exp(z, z, p, exclude=None if own else 0, backend=backend)
    return sums.mean() - math.log(count)


def alignment_uniformity(
    z: torch.Tensor,
    z_tilde: torch.Tensor,
    alpha: float,
    p: float,
    *,
    own: bool = True,
    backend: str = "auto",
) -> torch.Tensor:
    """Compute alpha `uniformity`(z) + (1 - alpha) `alignment` (Zimmermann et al. 2020, eq. 70).

    Args:
        z, z_tilde: the codes of positive pairs, (N, n).
        alpha: the weight of uniformity, from 0 to 1.
        p: the power, at least 1.
        own: whether a code is among its own negatives; see `uniformity`.
        backend: the backend of `log_sum_exp`.

    Raises:
        UsageError: an argument does not fit.
    """
    if not 0 <= alpha <= 1:
        raise UsageError(f"alpha must be from 0 to 1, found {alpha}")
    spread = uniformity(z, p, own=own, backend=backend)
    return alpha * spread + (1 - alpha) * alignment(z, z_tilde, p)


def tricl(
    z: torch.Tensor,
    z_tilde: torch.Tensor,
    S: torch.Tensor,
    *,
    weight: float = 1.0,
    contrast: str = "spectral",
    backend: str = "auto",
) -> torch.Tensor:
    """Compute the loss of TriCL (Zhang et al. 2023), the comparison of Rusak et al. 2024, H.4.

    With s = `Bilinear`(S), "spectral": mean over i of -2 s(z_i, z~_i), plus the mean over j != i
    of s(z_i, z~_j)^2. "info_nce": `info_nce` of s in the setting of Rusak et al. To either comes
    weight ||E z z^T - I||_F^2 over both views.

    Args:
        z, z_tilde: the codes of positive pairs, (N, n) with N > 1.
        S: the weights, (n,), at least 0; learned.
        weight: the weight of the decorrelation.
        contrast: the contrastive term: "spectral", as in TriCL's theory, or "info_nce".
        backend: the backend of `log_sum_exp`.

    Raises:
        UsageError: an argument does not fit.
    """
    _check_codes(z, z_tilde)
    if contrast not in CONTRASTS:
        raise UsageError(f"unknown contrast {contrast!r}: expected one of {', '.join(CONTRASTS)}")
    if len(z) < 2:
        raise UsageError("TriCL needs at least two pairs, found one")
    z, z_tilde = _wide(z), _wide(z_tilde)
    similarity = Bilinear(S)
    count = len(z)
    with torch.autocast(z.device.type, enabled=False):
        first, second = z.T @ z, z_tilde.T @ z_tilde
        if contrast == "info_nce":
            loss = info_nce(
                z, z_tilde, similarity, negatives="both", own=False, symmetric=True, backend=backend
            )
        else:
            positive = similarity.paired(z, z_tilde)
            # sum_ij (z_i^T S z~_j)^2 is a trace of n x n matrices.
            squares = ((S[:, None] * first * S) * second).sum()
            others = (squares - positive.square().sum()) / (count * (count - 1))
            loss = others - 2 * positive.mean()
        one = torch.eye(z.shape[1], dtype=first.dtype, device=z.device)
        return loss + weight * ((first + second) / (2 * count) - one).square().sum()


def mean_squared_error(z_hat: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """Compute the mean over samples and factors of (z^ - z)^2, for the supervised baseline.

    Args:
        z_hat, z: the codes and the latents, (N, n).

    Raises:
        UsageError: the shapes differ.
    """
    _check_codes(z_hat, z)
    return (_wide(z_hat) - _wide(z)).square().mean()


def _sum(
    similarity: Similarity,
    anchors: torch.Tensor,
    candidates: torch.Tensor,
    exclude: int | None,
    backend: str,
) -> torch.Tensor:
    a, b, p = similarity.reduced(anchors, candidates)
    return log_sum_exp.log_sum_exp(a, b, p, exclude=exclude, backend=backend)


def _joined(sums: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the log of the sum of the numbers whose logs these (N,) are."""
    if len(sums) == 1:
        return sums[0]
    return torch.stack(list(sums)).logsumexp(0)


def _softplus(x: torch.Tensor) -> torch.Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))


def _wide(codes: torch.Tensor) -> torch.Tensor:
    """Return codes in float32 or wider."""
    return codes if codes.dtype == torch.float64 else codes.float()


def _check_codes(z: torch.Tensor, z_tilde: torch.Tensor) -> None:
    for codes in (z, z_tilde):
        if codes.ndim != 2 or 0 in codes.shape or not codes.is_floating_point():
            raise UsageError(
                "codes must be floating point of shape (N, n), neither 0, found "
                f"{codes.dtype} of shape {tuple(codes.shape)}"
            )
    if z.shape != z_tilde.shape:
        raise UsageError(
            "both sets of codes must have one shape, found "
            f"{tuple(z.shape)} and {tuple(z_tilde.shape)}"
        )


def _checked_gathered(z: torch.Tensor, gathered: Gathered | None) -> Gathered | None:
    if gathered is None:
        return None
    everyone, everyone_tilde, offset = gathered
    _check_codes(everyone, everyone_tilde)
    if everyone.shape[1] != z.shape[1] or not 0 <= offset <= len(everyone) - len(z):
        raise UsageError(
            f"gathered codes must hold the {len(z)} x {z.shape[1]} own ones at their offset, found "
            f"{tuple(everyone.shape)} and offset {offset}"
        )
    return _wide(everyone), _wide(everyone_tilde), offset


def _checked_hard(
    z: torch.Tensor,
    hard: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None,
    symmetric: bool,
) -> Sequence[torch.Tensor | None]:
    """Return the hard negatives of the anchors z and of the anchors z~."""
    if hard is None:
        return None, None
    if isinstance(hard, torch.Tensor) == symmetric:
        raise UsageError(
            "hard must be one tensor, around z, or with symmetric a pair, around z and around z~"
        )
    hards = [hard, None] if isinstance(hard, torch.Tensor) else list(hard)
    if len(hards) != 2:
        raise UsageError(f"hard must be a pair, around z and around z~, found {len(hards)}")
    for codes in hards:
        if codes is None:
            continue
        if codes.ndim != 3 or (len(codes), codes.shape[2]) != z.shape or codes.shape[1] == 0:
            raise UsageError(
                f"hard negatives must be of shape ({len(z)}, k, {z.shape[1]}), found "
                f"{tuple(codes.shape)}"
            )
    return [None if codes is None else _wide(codes) for codes in hards]


def _check_p(p: float) -> None:
    if not 1 <= p < math.inf:
        raise UsageError(f"p must be at least 1, found {p}")


def _is_known(learned: torch.Tensor) -> bool:
    """Whether a look at the values costs nothing: that of an accelerator's waits for it."""
    return learned.device.type == "cpu" or not learned.requires_grad


def _check_tau(tau: float | torch.Tensor) -> None:
    if isinstance(tau, torch.Tensor):
        if tau.numel() != 1:
            raise UsageError(f"tau must be one number, found shape {tuple(tau.shape)}")
        # What is not a number makes a loss that is none, which a training knows how to end on.
        if _is_known(tau) and bool(tau <= 0):
            raise UsageError(f"tau must be above 0, found {tau.item():g}")
    elif not 0 < tau < math.inf:
        raise UsageError(f"tau must be above 0, found {tau}")


def _check_weights(name: str, weights: torch.Tensor) -> None:
    if not isinstance(weights, torch.Tensor) or weights.ndim != 1:
        raise UsageError(f"{name} must be a tensor of shape (n,), found {weights!r:.100}")


def _check_length(name: str, weights: torch.Tensor, codes: torch.Tensor) -> None:
    if len(weights) != codes.shape[-1]:
        raise UsageError(
            f"{name} must have a weight for each of {codes.shape[-1]} dimensions, found "
            f"{len(weights)}"
        )
