"""Diagnostics of codes and losses that the log of a training has in columns of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from threedident.baselines import losses
from threedident.baselines.criterion import Criterion, InfoNCE

Codes = Sequence[torch.Tensor]

_ROWS = 512  # of a batch, where all pairs are looked at


@torch.no_grad()
def shares(objective: Criterion, codes: Codes) -> dict[str, float]:
    """Split the loss's denominator into the shares of the anchor itself, the positive, and others.

    Args:
        objective: the loss.
        codes: the codes of the views, (N, n) each.

    Returns:
        Means over up to 512 anchors of the first member, by column; empty for losses without a
        denominator.
    """
    loss = objective.loss
    if not isinstance(objective, InfoNCE):
        return {}
    # Some accelerators have no double precision.
    wide = torch.float32 if codes[0].device.type == "mps" else torch.float64
    views = [each.to(wide) for each in codes[:3]]
    if loss.normalize:
        views = [torch.nn.functional.normalize(each, dim=1) for each in views]
    similarity = objective.similarity()
    z, z_tilde = views[0][:_ROWS], views[1][:_ROWS]
    rows = len(z)
    positive = similarity.paired(z, z_tilde)
    numbers = torch.arange(rows, device=z.device)
    inner, cross = _matrix(similarity, z, views[0]), _matrix(similarity, z, views[1])
    itself = inner[numbers, numbers].clone()
    inner[numbers, numbers] = -math.inf
    cross[numbers, numbers] = -math.inf
    parts = []
    if loss.negatives in ("anchors", "both"):
        parts.append(inner)
    if loss.negatives in ("positives", "both"):
        parts.append(cross)
    if objective.hard:
        hard = views[2].reshape(len(views[0]), objective.hard, -1)[:rows]
        columns = [similarity.paired(z, hard[:, k]) for k in range(objective.hard)]
        parts.append(torch.stack(columns, 1))
    has_self = objective.own and loss.negatives in ("anchors", "both")
    if not has_self:
        itself = torch.full_like(itself, -math.inf)
    negatives = torch.cat(parts, 1).logsumexp(1)
    whole = torch.stack([itself, positive, negatives]).softmax(0).mean(1)
    return {
        "share_self": float(whole[0]),
        "share_positive": float(whole[1]),
        "share_negatives": float(whole[2]),
    }


def _matrix(similarity: losses.Similarity, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Compute all similarities, (N, M)."""
    first, second, p = similarity.reduced(a, b)
    if p is None:
        return first @ second.T
    return -(torch.cdist(first, second, p=p, compute_mode="donot_use_mm_for_euclid_dist") ** p)


@torch.no_grad()
def isometry(codes: torch.Tensor, latents: torch.Tensor) -> float:
    """Compute the squared correlation of all distances of codes with those of latents.

    It is 1 for codes that are an isometry of the latents up to scale, whatever rotates or shifts
    them.

    Args:
        codes: the codes, (N, m), of which up to 512 are looked at.
        latents: the latents, (N, n).
    """
    a = torch.pdist(codes[:_ROWS].double())
    b = torch.pdist(latents[:_ROWS].double())
    a, b = a - a.mean(), b - b.mean()
    norm = a.norm() * b.norm()
    return float((a @ b / norm) ** 2) if norm > 0 else 0.0


@torch.no_grad()
def learned_scale(codes: torch.Tensor, latents: torch.Tensor) -> float:
    """Compute the factor c of c z that the codes have: the ratio of root-mean-square spreads.

    Args:
        codes: the codes, (N, m).
        latents: the latents z, (N, n).
    """
    return float((codes.double().var(0).sum() / latents.double().var(0).sum()).sqrt())
