"""A training's state and its one step: encoder, loss, optimisers, learning rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import nn

from threedident.baselines.criterion import Criterion, Gather
from threedident.baselines.data import Views
from threedident.baselines.experiment import Experiment
from threedident.baselines.training.distributed import make_gather
from threedident.baselines.training.optimizers import LearningRates, MatrixMuon, make_optimizers
from threedident.distributions.torch_sampler import seeded
from threedident.encoders import ImageEncoder, VectorEncoder
from threedident.errors import TrainingError, UsageError
from threedident.storage.atomic_files import replacing
from threedident.storage.tensor_archives import write_tensors

FAILED = "failed.pt"

_NOISE = 5  # a word that tells this stream of random numbers from those of `data`
_OPTIMIZER_KEYS = ("optimizer", "matrix_optimizer")  # of a checkpoint


class Trainer:
    """One process's part of a training.

    Attributes:
        encoder: the encoder, on the device that it is trained on.
        objective: the loss and its own parameters.
        step: the number of steps taken.
        seconds: the time that they took.
        rates: the learning rates.
    """

    def __init__(
        self,
        fabric: Fabric,
        experiment: Experiment,
        encoder: ImageEncoder | VectorEncoder,
        objective: Criterion,
        out: Path,
    ) -> None:
        """Move the networks to the device and make their optimisers.

        Args:
            fabric: the object that knows devices and processes.
            experiment: the experiment.
            encoder: the encoder to train.
            objective: the loss.
            out: the run folder, where a batch that fails is saved.
        """
        training = experiment.training
        self.fabric, self.experiment = fabric, experiment
        self._out = out
        if isinstance(encoder, ImageEncoder) and training.channels_last:
            encoder = encoder.to(memory_format=torch.channels_last)
            objective = objective.to(memory_format=torch.channels_last)
        self.encoder = encoder.to(fabric.device)  # before Muon keeps views of its weights
        self.objective = objective.to(fabric.device)
        module = _EncoderAndLoss(self.encoder, objective, compiled=training.compile)
        optimizers = make_optimizers(training, self.encoder, objective)
        self._module: Any
        self.optimizers: list[Any]
        self._module, *self.optimizers = fabric.setup(module, *optimizers)
        self.rates = LearningRates(training, self.optimizers)
        self._gather = make_gather(fabric)
        self.step, self.seconds = 0, 0.0

    # Steps

    def advance(self, batches: Iterator[Views]) -> tuple[float, torch.Tensor, Views]:
        """Take one step of the optimisers.

        Args:
            batches: the batches, of which it takes `training.accumulate`.

        Returns:
            The loss, and the codes and the views of the last batch.

        Raises:
            TrainingError: the loss is not finite, the codes of the first step are all the same,
                the GPU has too little memory, or torch.compile cannot compile the encoder.
        """
        training = self.experiment.training
        self.rates.set(self.step)
        self.objective.starting = self.step < self.experiment.loss.start_steps
        self._module.train()
        total = 0.0
        for part in range(training.accumulate):
            views = next(batches)
            waits = part + 1 < training.accumulate
            with self.fabric.no_backward_sync(self._module, enabled=waits):
                try:
                    loss, codes = self._forward(views, part)
                    self.fabric.backward(loss / training.accumulate)
                except torch.OutOfMemoryError as error:
                    raise self._out_of_memory(views) from error
                except RuntimeError as error:
                    if not _is_of_the_compiler(error):
                        raise
                    raise _not_compiled(error) from error
            total += self._mean_over_processes(loss.detach()) / training.accumulate
            if not math.isfinite(total):
                self._fail(views, total, f"the loss is {total} at")
        if self.step == 0 and bool((codes == codes[0]).all()):
            raise TrainingError(
                "the encoder gives all observations of the first batch the same code, so nothing "
                "can be learned: start from another encoder, or with fresh weights "
                f"(start = {self.experiment.start!r:.100}); under training.precision = "
                f"{training.precision!r} codes may differ by less than it resolves: try 32-true"
            )
        for optimizer in self.optimizers:
            optimizer.step()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.step += 1
        return total, codes.detach(), views

    def _out_of_memory(self, views: Views) -> TrainingError:
        """The error of a batch that does not fit into a GPU's memory."""
        shape = " x ".join(map(str, views[1][0].shape[1:]))
        return TrainingError(
            f"too little memory on {self.fabric.device} at step {self.step}, for "
            f"{sum(map(len, views[1]))} observations of {shape} at once: take "
            "training.precision=bf16-mixed, a smaller training.batch_size, or "
            "training.accumulate=2, whose parts have their own negatives; the last checkpoint stays"
        )

    def _mean_over_processes(self, loss: torch.Tensor) -> float:
        if self.fabric.world_size == 1:
            return float(loss)
        mean = self.fabric.all_reduce(loss, reduce_op="mean")
        assert isinstance(mean, torch.Tensor)
        return float(mean)

    def _forward(self, views: Views, part: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss of a part of a batch, and its codes."""
        latents, observations = views
        device = self.fabric.device
        together = torch.cat([view.to(device, non_blocking=True) for view in observations])
        if together.is_floating_point():
            together = together.to(next(self.encoder.parameters()).dtype)
        if together.ndim == 4:
            last = self.experiment.training.channels_last
            together = together.contiguous(
                memory_format=torch.channels_last if last else torch.contiguous_format
            )
        supervised = self.experiment.supervised
        targets = tuple(view.to(device) for view in latents) if supervised else ()
        lengths = [len(view) for view in observations]
        generator = None
        if self.experiment.reconstructs:
            words = self.experiment.training.seed, _NOISE, self.step, part, self.fabric.global_rank
            generator = seeded(*words, device=device)
        inputs = _Inputs(together, lengths, targets, self._gather, generator)
        loss, codes = self._module(inputs)
        return loss, codes

    def check_weights(self, views: Views, loss: float) -> None:
        """Stop where a gradient was not finite, before a checkpoint would hold its result.

        Args:
            views: the last batch.
            loss: the loss of the last step.

        Raises:
            TrainingError: a weight is not finite.
        """
        if not all(bool(p.isfinite().all()) for p in self._module.parameters()):
            self._fail(views, loss, "weights are not finite after")

    def _fail(self, views: Views, loss: float, reason: str) -> None:
        """Save a batch, and stop."""
        path = self._out / FAILED
        if self.fabric.is_global_zero:
            content = {
                "step": self.step,
                "loss": loss,
                "latents": [view.cpu() for view in views[0]],
                "observations": [view.cpu() for view in views[1]],
                "encoder": self.encoder.state_dict(),
                "objective": self.objective.state_dict(),
            }
            with replacing(path) as temporary:
                write_tensors(temporary, content)
        raise TrainingError(
            f"{reason} step {self.step}: the batch and the weights are in {path}. "
            "Try a smaller training.lr, or training.precision=32-true; the last checkpoint stays"
        )

    # Checkpoints

    def state(self) -> dict[str, Any]:
        """Return all that `restore` needs to go on from here, as tensors and plain data."""
        optimizers = zip(_OPTIMIZER_KEYS, self.optimizers, strict=False)
        return {
            "step": self.step,
            "seconds": self.seconds,
            "encoder": self.encoder.state_dict(),
            "objective": self.objective.state_dict(),
            **{key: optimizer.state_dict() for key, optimizer in optimizers},
            "precision": self.fabric._precision.state_dict(),
            "random": torch.random.get_rng_state(),
            "devices": [self.fabric.world_size, self.fabric.device.type],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state.

        Args:
            state: a result of `state`, read from a file.

        Raises:
            KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError: the state
                does not fit this training.
        """
        step, seconds = state["step"], state["seconds"]
        if type(step) is not int or step < 0 or type(seconds) is not float:
            raise TypeError(f"step {step!r:.100} after {seconds!r:.100} s")
        self.step, self.seconds = step, seconds
        self.encoder.load_state_dict(state["encoder"])
        self.objective.load_state_dict(state["objective"])
        for key, optimizer in zip(_OPTIMIZER_KEYS, self.optimizers, strict=False):
            _restore_moments(optimizer, state[key]["state"])
        self.fabric._precision.load_state_dict(state["precision"])
        torch.random.set_rng_state(state["random"])

    def require_same_devices(self, state: dict[str, Any]) -> None:
        """Check that a state was reached on as many devices of the same kind.

        Args:
            state: a result of `state`, read from a file.

        Raises:
            UsageError: it was not.
        """
        count, kind = state["devices"]
        if [count, kind] != [self.fabric.world_size, self.fabric.device.type]:
            raise UsageError(
                f"{self._out} was begun on {count} device(s) of kind {kind}, on which its batches "
                f"depend: go on with --devices {count} --device {kind}"
            )


def _restore_moments(optimizer: Any, moments: dict[int, Any]) -> None:
    """Load the moments of Adam or Muon; all else of an optimiser is the experiment's."""
    optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            own = optimizer.state.get(parameter)
            if own is None:  # a parameter that the loss has no use for
                continue
            shape = parameter.shape
            expected = {"step": (), "exp_avg": shape, "exp_avg_sq": shape}
            if isinstance(optimizer.optimizer, MatrixMuon):
                expected = {"momentum_buffer": shape}
            for name, size in expected.items():
                value = own[name]
                if value.shape != size or not value.is_floating_point():
                    raise TypeError(f"{name} is {value!r:.100}, expected shape {size}")


class _Inputs:
    """The observations, and what the loss needs besides their codes.

    Fabric rounds the tensors, also those in dataclasses, that a module is called with to the
    precision of the encoder. It leaves other objects alone, and this is one, so that observations
    and targets stay exact.
    """

    def __init__(
        self,
        observations: torch.Tensor,
        lengths: list[int],
        targets: tuple[torch.Tensor, ...],
        gather: Gather | None,
        generator: torch.Generator | None,
    ) -> None:
        self.observations = observations
        self.lengths, self.targets = lengths, targets
        self.gather, self.generator = gather, generator


def _is_of_the_compiler(error: RuntimeError) -> bool:
    """Tell whether torch.compile raised it. Torch has no public name for such errors."""
    return any(kind.__module__.startswith("torch._dynamo") for kind in type(error).__mro__)


def _not_compiled(error: RuntimeError) -> TrainingError:
    """The error of an encoder that torch.compile does not compile."""
    reason = " ".join(str(error).partition("\n")[0].split())
    return TrainingError(
        f"torch.compile cannot compile the encoder here: {reason:.300}. On a processor it needs a "
        "C++ compiler (g++, or the one that the variable CXX names): install one, or take "
        "training.compile=false"
    )


class _EncoderAndLoss(nn.Module):
    """Encoder and loss as the one module that devices share.

    All views go through the encoder at once, so that batch normalisation sees both.
    """

    def __init__(
        self, encoder: ImageEncoder | VectorEncoder, objective: Criterion, *, compiled: bool
    ) -> None:
        super().__init__()
        self.encoder, self.objective = encoder, objective
        apply: Callable[[torch.Tensor], torch.Tensor] = encoder
        if objective.decoder is not None and isinstance(encoder, ImageEncoder):
            apply = encoder.before_output  # the whole Gaussian, not its mean
        self._apply_encoder = torch.compile(apply) if compiled else apply

    def forward(self, inputs: _Inputs) -> tuple[torch.Tensor, torch.Tensor]:
        observations = inputs.observations
        codes = self._apply_encoder(observations)
        views = torch.split(codes, inputs.lengths)
        if self.objective.decoder is not None:  # which runs in the encoder's precision
            images = torch.split(observations, inputs.lengths)
            loss = self.objective(views, inputs.targets, inputs.gather, images, inputs.generator)
            return loss, codes
        with torch.autocast(observations.device.type, enabled=False):
            return self.objective(views, inputs.targets, inputs.gather), codes
