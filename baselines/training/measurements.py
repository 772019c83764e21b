"""Measurements of an encoder: while it is trained, for the log, and at the end."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from threedident.baselines.data import Problem, Views
from threedident.baselines.experiment import Experiment
from threedident.baselines.training.at_latents import AtLatents, loss_at_latents
from threedident.baselines.training.diagnostics import isometry, learned_scale, shares
from threedident.baselines.training.trainer import Trainer
from threedident.distributions import ProjectedNormal
from threedident.encoders import ImageEncoder
from threedident.evaluate.assumptions import check_assumptions
from threedident.evaluate.metrics import MetricResult, linear_r2, mcc
from threedident.evaluate.metrics._kinds import Kind

_BATCH_STATISTICS = 512  # images to a batch of the published scores
_PIXELS_AT_ONCE = 1 << 22  # of images that are encoded together
_VECTORS_AT_ONCE = 1 << 16
_SAID = ("few_samples", "halves_differ")  # of the warnings of scores
_AT_LATENTS, _MOST_BATCHES = 4096, 8  # pairs on which the loss at the latents is taken


@dataclasses.dataclass(frozen=True)
class FinalScores:
    """The scores of a training's end.

    Attributes:
        scores: the scores by metric.
        per_factor: the scores of every factor by metric; None for a factor that does not vary.
        loss: the loss of the encoder in evaluation mode, on the pairs of `at_latents`; None where
            there are none.
        warnings: the warnings on the scores, for the user.
    """

    scores: dict[str, float]
    per_factor: dict[str, list[float | None]]
    loss: float | None
    warnings: list[str]


class Measurements:
    """The measurements of one training.

    Attributes:
        scores: the last scores that were taken, by metric.
        at_latents: the loss of the true latents; None before it is taken, and where it is unknown.
    """

    def __init__(self, trainer: Trainer, problem: Problem) -> None:
        """Take a training and its data; nothing is measured yet.

        Args:
            trainer: the training.
            problem: the training's data.
        """
        self._trainer, self._problem = trainer, problem
        self._experiment = trainer.experiment
        self._images = isinstance(trainer.encoder, ImageEncoder)
        self.scores: dict[str, float] = {}
        self.at_latents: AtLatents | None = None

    # In a checkpoint

    def state(self) -> dict[str, Any]:
        """Return what `restore` needs, as plain data."""
        at = self.at_latents
        return {"at_latents": None if at is None else dict(vars(at)), "scores": self.scores}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over the measurements of a checkpoint.

        Args:
            state: a result of `state`, read from a file.

        Raises:
            KeyError, TypeError, ValueError: it holds something else.
        """
        if state["at_latents"]:
            at = self.at_latents = AtLatents(**state["at_latents"])
            for value in (at.loss, at.scale or 0.0, at.tau or 0.0, *np.ravel(at.Lambda or [])):
                if not isinstance(value, float):
                    raise TypeError(f"at_latents are {at!r:.200}")
        self.scores = dict(state["scores"])
        numbers = all(isinstance(value, float) for value in self.scores.values())
        if not numbers or (self.scores and not {"linear_r2", "mcc"} <= set(self.scores)):
            raise TypeError(f"scores are {self.scores!r:.200}")

    # While it is trained

    def row(
        self, loss: float, codes: torch.Tensor, views: Views, *, scored: bool
    ) -> dict[str, Any]:
        """Make the row of the log for the last step.

        Args:
            loss: the loss of the step.
            codes: the codes of its last batch, (N, n) over all views.
            views: that batch.
            scored: whether the encoder is scored as well, which goes into `scores`.
        """
        trainer = self._trainer
        factors: list[float | None] = []
        if scored:
            factors = self._score()
        row: dict[str, Any] = {"seconds": trainer.seconds, "loss": loss}
        if self.at_latents is not None and not trainer.objective.starting:
            row["excess"] = loss - self.at_latents.loss
        if trainer.fabric.world_size == 1:  # the codes of one device are not all that there are
            lengths = [len(view) for view in views[1]]
            row |= shares(trainer.objective, torch.split(codes, lengths))
            row |= {name: float(term) for name, term in trainer.objective.terms.items()}
        row |= trainer.objective.learned()
        row["lr"] = trainer.rates.encoder
        return {**row, **self.scores, "linear_r2_per_factor": factors} if scored else row

    def _score(self) -> list[float | None]:
        """Score R2, MCC and isometry of the codes on fresh samples; return R2 by factor."""
        z, x = self._problem.fresh(self._experiment.training.score_samples)
        z, codes = z.cpu(), self._encode(x)
        folds: Any = "single" if self._images else "in-sample"
        kinds = self._problem.kinds
        r2 = linear_r2(z.numpy(), codes.numpy(), folds=folds, kinds=kinds)
        self.scores = {
            "linear_r2": r2.value,
            "mcc": math.nan if (result := _mcc(z, codes, kinds)) is None else result.value,
            "isometry": isometry(codes, z),
            "scale": learned_scale(codes, z),
        }
        assert r2.per_factor is not None
        return [v if math.isfinite(v) else None for v in r2.per_factor.tolist()]

    def measure_at_latents(self) -> None:
        """Take the loss at the true latents, on the first batches, unless that has been done."""
        if self.at_latents is not None or not self._has_latents_for_codes():
            return
        if self._experiment.supervised:
            self.at_latents = AtLatents(0.0)
            return
        batches = [latents for latents, _ in self._first_batches()]
        result = loss_at_latents(self._experiment, self._trainer.objective, batches)
        self.at_latents = result if math.isfinite(result.loss) else None

    def _has_latents_for_codes(self) -> bool:
        """Whether the latents of a pair could be its codes: they differ, and are as many."""
        if self._experiment.reconstructs:
            return False
        codes = self._experiment.encoder.codes
        pairs = self._experiment.data.pairs
        if self._problem.kinds is not None:  # whole numbers of a grid, not the space of codes
            return False
        return pairs not in ("views", "groups") and codes in (0, self._problem.n)

    def _first_batches(self) -> Iterator[Views]:
        """The first batches, one after the other, each with what all devices see of it."""
        fabric, source = self._trainer.fabric, self._problem.source
        world = fabric.world_size
        training = self._experiment.training
        size = training.batch_size // training.accumulate
        count = min(_MOST_BATCHES, max(1, _AT_LATENTS // size))
        if source.batches is not None:
            count = max(1, min(count, source.batches // world))

        def together(views: Any) -> Any:
            return tuple(torch.cat(parts).to(fabric.device) for parts in views)

        for first in range(0, count * world, world):
            parts = [source.batch(0, first + k) for k in range(world)]
            latents, observations = (zip(*views, strict=True) for views in zip(*parts, strict=True))
            yield together(latents), together(observations)

    @torch.no_grad()
    def _encode(
        self, observations: torch.Tensor, *, batch_statistics: bool = False
    ) -> torch.Tensor:
        """Compute codes (N, m) in float32, with the encoder in evaluation mode.

        Args:
            observations: the observations, (N, ...).
            batch_statistics: whether batch normalisation uses each batch's own statistics, as
                in the published scores; the encoder's are left alone.
        """
        encoder: nn.Module = self._trainer.encoder
        size = _VECTORS_AT_ONCE
        if self._images:
            size = max(16, _PIXELS_AT_ONCE // observations[0, 0].numel())
        dtype = next(encoder.parameters()).dtype
        if batch_statistics:
            encoder, size = copy.deepcopy(encoder).train(), _BATCH_STATISTICS
        else:
            encoder.eval()
        parts = torch.split(observations, size)
        if batch_statistics and len(parts) > 1 and len(parts[-1]) < size:
            parts = parts[:-1]
        codes = []
        for part in parts:
            x = part.to(self._trainer.fabric.device)
            x = x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x.to(dtype)
            codes.append(encoder(x).float().cpu())
        encoder.train()
        return torch.cat(codes)

    # At the end

    def final_scores(self) -> FinalScores:
        """Take the scores of the end.

        Synthetic: the mean over fresh batches, fitted and scored on each. Images: fitted on
        the first half of the test images and scored on the second; where the encoder has batch
        normalisation, in evaluation mode and as published.
        """
        warnings: list[str] = []
        if self._images:
            scores, per_factor, warnings = self._score_images()
        else:
            scores, per_factor = self._score_vectors()
        finite = {
            metric: [value if math.isfinite(value) else None for value in values]
            for metric, values in per_factor.items()
        }
        return FinalScores(scores, finite, self._final_loss(), warnings)

    def _score_images(self) -> tuple[dict[str, float], dict[str, list[float]], list[str]]:
        z, x = self._problem.fresh(self._experiment.training.score_samples)
        codes = self._encode(x)
        scores, per_factor = _score_codes(z, codes, "single", "", self._problem.kinds)
        warnings = _warn_of_samples(z, codes, self._problem.about["factors"])
        if not _has_batch_statistics(self._trainer.encoder):
            return scores, per_factor, warnings
        order = torch.randperm(len(z), generator=torch.Generator().manual_seed(0))
        codes = self._encode(x[order], batch_statistics=True)
        of_batches, factors_of_batches = _score_codes(
            z[order][: len(codes)], codes, "single", "_batch_statistics", self._problem.kinds
        )
        return {**scores, **of_batches}, {**per_factor, **factors_of_batches}, warnings

    def _score_vectors(self) -> tuple[dict[str, float], dict[str, list[float]]]:
        training = self._experiment.training
        rows = []
        for number in range(1, training.final_batches + 1):
            z, x = self._problem.fresh(max(training.batch_size, 256), number)
            rows.append(_score_codes(z.cpu(), self._encode(x), "in-sample", ""))
        scores = {k: float(np.mean([row[0][k] for row in rows])) for k in rows[0][0]}
        per_factor = {k: np.mean([row[1][k] for row in rows], 0).tolist() for k in rows[0][1]}
        content = _content_factors(self._experiment)
        if content is not None:
            r2 = np.array(per_factor["linear_r2"])
            scores["linear_r2_content"] = float(r2[content].mean())
            scores["linear_r2_style"] = float(r2[~content].mean())
        return scores, per_factor

    @torch.no_grad()
    def _final_loss(self) -> float | None:
        """The loss of the encoder, in evaluation mode, where that at the latents was taken."""
        if self.at_latents is None or self._experiment.supervised:
            return None
        objective, device = self._trainer.objective, self._trainer.fabric.device
        objective.starting = False
        losses = []
        for latents, observations in self._first_batches():
            codes = [self._encode(view).to(device) for view in observations]
            losses.append(float(objective(codes, latents)))
        loss = float(np.mean(losses))
        return loss if math.isfinite(loss) else None


def _mcc(z: torch.Tensor, codes: torch.Tensor, kinds: Sequence[Kind] | None) -> MetricResult | None:
    """MCC of the factors that are numbers, the others held constant; None where there are none."""
    if kinds is not None:
        numbers = torch.tensor([kind.name == "continuous" for kind in kinds])
        if not numbers.any():  # of digits, say, whose one factor is the class
            return None
        z = torch.where(numbers, z, 0.0)
    return mcc(z.numpy(), codes.numpy())


def _score_codes(
    z: torch.Tensor,
    codes: torch.Tensor,
    folds: Any,
    suffix: str,
    kinds: Sequence[Kind] | None = None,
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Score R2 and MCC of codes, and of every factor, under names with a suffix."""
    r2 = linear_r2(z.numpy(), codes.numpy(), folds=folds, kinds=kinds)
    assert r2.per_factor is not None
    per_factor = {f"linear_r2{suffix}": r2.per_factor.tolist()}
    correlation = _mcc(z, codes, kinds)
    if correlation is None:
        return {f"linear_r2{suffix}": r2.value}, per_factor
    if correlation.per_factor is not None:
        per_factor[f"mcc{suffix}"] = correlation.per_factor.tolist()
    return {f"linear_r2{suffix}": r2.value, f"mcc{suffix}": correlation.value}, per_factor


def _has_batch_statistics(encoder: nn.Module) -> bool:
    """Whether an encoder has batch normalisation."""
    return any(isinstance(module, nn.BatchNorm2d) for module in encoder.modules())


def _warn_of_samples(z: torch.Tensor, codes: torch.Tensor, factors: list[str]) -> list[str]:
    """The warnings where scores are taken on too few images, or on halves that differ."""
    warnings = check_assumptions(
        z.double().numpy(), codes.double().numpy(), factors=factors, metrics=(), folds="single"
    )
    return [warning.message for warning in warnings if warning.code in _SAID]


def _content_factors(experiment: Experiment) -> npt.NDArray[np.bool_] | None:
    """Return the mask of the factors that vary least within pairs; None without two groups."""
    conditional = experiment.data.conditional
    if not isinstance(conditional, ProjectedNormal) or not isinstance(conditional.Lambda, tuple):
        return None
    Lambda = np.array(conditional.Lambda)
    return Lambda == Lambda.max() if len(set(conditional.Lambda)) == 2 else None
