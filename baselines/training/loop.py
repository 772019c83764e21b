"""The training loop: one for every experiment, on one device or several."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import os
import platform
import signal
import time
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from threedident.baselines.checks import make_plan
from threedident.baselines.experiment import Experiment, parse_experiment
from threedident.errors import (
    DatasetError,
    MissingExtraError,
    ThreeDIdentError,
    TrainingError,
    UsageError,
)
from threedident.evaluate.assumptions import check_assumptions
from threedident.evaluate.metrics import linear_r2, mcc
from threedident.progress import Progress
from threedident.storage.atomic_files import remove_leftovers, replacing, write_json
from threedident.storage.directory import toolkit_version

try:
    import torch
    from lightning_fabric import Fabric
    from torch import distributed as dist
    from torch import nn
    from torch.multiprocessing.spawn import ProcessException
except ImportError as error:
    raise MissingExtraError(str(error.name), "train", "training") from error

from threedident.baselines.criterion import Objective
from threedident.baselines.data import Problem, Views, make_problem
from threedident.baselines.training.checkpoints import (
    load_checkpoint,
    save_checkpoint,
    write_tensors,
)
from threedident.baselines.training.diagnostics import (
    AtLatents,
    isometry,
    learned_scale,
    loss_at_latents,
    shares,
    theory_learned,
    theory_scale,
)
from threedident.baselines.training.optimizers import MatrixMuon, make_optimizers
from threedident.baselines.training.run_folder import (
    FORMAT,
    FORMAT_VERSION,
    PREVIOUS,
    RESULT,
    claim,
    load_run,
    only_one,
    read_result,
    refuse_other_data,
)
from threedident.baselines.training.training_log import Records
from threedident.encoders import (
    BoxOutput,
    ImageEncoder,
    MLPEncoder,
    Part,
    ResNetEncoder,
    SphereOutput,
    UnboundedOutput,
    VectorEncoder,
    WhitenedMLP,
    read_encoder,
    save_encoder,
)

ENCODER, FAILED = "encoder.pt", "failed.pt"
_BATCH_STATISTICS = 512  # images to a batch of the published scores
_PIXELS_AT_ONCE = 1 << 22  # of images that are encoded together
_OPTIMIZER_KEYS = ("optimizer", "matrix_optimizer")  # of a checkpoint
_MOST_THREADS = 16  # that prepare batches
_AT_LATENTS, _MOST_BATCHES = 4096, 8  # pairs on which the loss at the latents is taken
_WHITENED = 1 << 16  # observations that a whitening is measured on; no scored batch has this number


def train(
    experiment: Experiment,
    out: Path,
    *,
    data: Path | None = None,
    test: Path | None = None,
    devices: int = 1,
    accelerator: str = "auto",
    threads: int | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Trains an experiment into a run directory, or goes on where it was stopped.

    Where the learning rate is constant, a finished run can be extended by asking for more steps.

    The directory holds `experiment.toml`, `metrics.csv`, TensorBoard's files, the last two
    checkpoints (one, where a finished run cannot be extended), and at the end `encoder.pt` and
    `result.json`. A run that was killed and
    started again gives what it would have given: batches depend on seed and step alone. It
    returns at once where the run is finished.

    Args:
        experiment: what is trained.
        out: the run directory.
        data: images to train on; None for synthetic observations. See `make_plan` for what None
            means where there are images.
        test: images to score on; None: see there, and those of `data` where there are no others.
        devices: how many; the batch is shared between them, and so are negatives. Under
            torchrun: as many as it has started processes, on all nodes.
        accelerator: auto, cpu or cuda, as Lightning Fabric names them.
        threads: of torch in this process; None: torch's choice.
        quiet: whether progress is left out.

    Returns:
        The content of `result.json`.

    Raises:
        UsageError: the experiment does not fit the data, or `out` holds another experiment.
        DatasetError: the data cannot be read, or the run not be written.
        TrainingError: the loss is not finite.
    """
    started = processes_started()
    devices = started or devices
    first = is_first_process()
    with only_one(out) if first else contextlib.nullcontext():
        plan = make_plan(
            experiment, out, data=data, test=test, devices=devices, accelerator=accelerator
        )
        if plan.finished is not None:
            if not quiet and first:
                Progress.print(f"{out} is finished already")
            return plan.finished
        data, test = plan.data, plan.test
        fabric = _make_fabric(experiment, devices, accelerator)
        if not quiet and first:
            what, *lines = plan.lines
            for line in (f"{what}, on {_describe_devices(fabric, threads)}", *lines):
                Progress.print(line)
        rest = (experiment.as_dict(), str(out), data, test, quiet, threads)
        if started:
            fabric.launch(_enter, *rest)  # type: ignore[arg-type]
        elif devices > 1:
            # What does not fit is better said by one process than by many.
            make_problem(experiment, data=data, test=test, batch_size=1, device=torch.device("cpu"))
            _launch(fabric, *rest)
        else:
            _enter(fabric, *rest)
        return read_result(out)


def processes_started() -> int:
    """How many processes torchrun has started, on all nodes; 0 without it."""
    return int(os.environ["WORLD_SIZE"]) if dist.is_torchelastic_launched() else 0


def is_first_process() -> bool:
    """Whether this process speaks for the training; only torchrun starts others."""
    return not processes_started() or os.environ["RANK"] == "0"


def _make_fabric(experiment: Experiment, devices: int, accelerator: str) -> Fabric:
    _quiet_lightning()
    precision = experiment.training.precision
    if accelerator == "cuda" and not torch.cuda.is_available():
        raise UsageError("torch finds no CUDA device here: leave out --device, or use cpu")
    strategy, nodes = "ddp_spawn" if devices > 1 else "auto", 1
    if processes_started():
        strategy, nodes = "ddp", devices // int(os.environ["LOCAL_WORLD_SIZE"])
    try:
        fabric = Fabric(
            accelerator=accelerator,
            devices=devices // nodes,
            num_nodes=nodes,
            strategy=strategy,
            precision=precision,  # type: ignore[arg-type]
        )
    except Exception as error:  # Lightning's own kinds, and ValueError
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise UsageError(
            f"cannot train on {devices} device(s) of kind {accelerator!r}: {said[0]:.300}"
        ) from error
    if precision == "16-mixed" and fabric.device.type == "cpu":
        raise UsageError("training.precision = 16-mixed is for a GPU: use bf16-mixed on a CPU")
    return fabric


def _quiet_lightning() -> None:
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)


def resume(out: Path, *, changes: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """Goes on with what a run directory holds; see `train`.

    Args:
        out: the run directory.
        changes: by dotted name; see `load_run`.
        options: further ones of `train`.

    Raises:
        UsageError: it holds no run, or a change would make it another.
    """
    return train(load_run(out, changes), out, **options)


def _launch(fabric: Fabric, *arguments: Any) -> None:
    """Trains in several processes.

    Raises:
        TrainingError: one of them failed.
        UsageError: something does not fit.
    """
    try:
        fabric.launch(_enter, *arguments)  # type: ignore[arg-type]
    except ProcessException as error:
        last = str(error).strip().splitlines()[-1]
        name, _, said = last.partition(": ")
        kinds = {f"{k.__module__}.{k.__name__}": k for k in (UsageError, DatasetError)}
        if name in kinds:
            raise kinds[name](said) from error
        raise TrainingError(f"a process of the training failed: {last:.500}") from error


def _enter(
    fabric: Fabric,
    experiment: dict[str, Any],
    out: str,
    data: Path | None,
    test: Path | None,
    quiet: bool,
    threads: int | None,
) -> None:
    """A process's whole training; the experiment is plain data, as Lightning wants it."""
    _quiet_lightning()
    if threads is not None:
        torch.set_num_threads(threads)
    if fabric.device.type == "cuda":
        torch.backends.cudnn.benchmark = True
    _run(
        fabric,
        parse_experiment(experiment, "experiment", experiment["name"]),
        Path(out),
        data,
        test,
        quiet,
    )


def make_encoder(experiment: Experiment, problem: Problem) -> ImageEncoder | VectorEncoder:
    """The encoder of an experiment, its weights drawn from torch's global random numbers."""
    spec, n = experiment.encoder, problem.n
    output: Part
    match spec.output:
        case "box":
            output = BoxOutput(n, spec.learned)
            nn.init.constant_(output.bound, spec.size)
        case "sphere":
            output = SphereOutput(spec.radius, spec.learned)
        case _:
            output = UnboundedOutput()
    if problem.normalization is not None:
        return ImageEncoder(*problem.normalization, ResNetEncoder(n, spec.body, spec.width), output)
    if not spec.whiten:
        return VectorEncoder(MLPEncoder(n), output)
    body = WhitenedMLP(n)
    body.whiten(problem.fresh(_WHITENED, _WHITENED)[1])
    return VectorEncoder(body, output)


class _Codes(nn.Module):
    """Encoder and loss in one: what is shared between devices as one module.

    All views go through the encoder at once, so that batch normalisation sees both.
    """

    def __init__(self, encoder: nn.Module, objective: Objective, *, compiled: bool) -> None:
        super().__init__()
        self.encoder, self.objective = encoder, objective
        self._apply_encoder = torch.compile(encoder) if compiled else encoder

    def forward(
        self, observations: torch.Tensor, lengths: list[int], targets: Any, gather: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        codes = self._apply_encoder(observations)
        with torch.autocast(observations.device.type, enabled=False):
            return self.objective(torch.split(codes, lengths), targets(), gather), codes


class _Gathered(torch.autograd.Function):
    """The rows of all processes; their gradients come back to the process they are from.

    The sum of what every process's loss wants of them: with the mean that data-parallel training
    takes of the gradients, that is the gradient of the mean loss.
    """

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows.contiguous())
        ctx.count = len(rows)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        first = dist.get_rank() * ctx.count
        return total[first : first + ctx.count]


class _Run:
    """One process's part of a training."""

    def __init__(
        self,
        fabric: Fabric,
        experiment: Experiment,
        out: Path,
        data: Path | None,
        test: Path | None,
    ) -> None:
        training = experiment.training
        self.fabric, self.experiment, self.out = fabric, experiment, out
        self.local = training.batch_size // (fabric.world_size * training.accumulate)
        self.problem = make_problem(
            experiment, data=data, test=test, batch_size=self.local, device=fabric.device
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(training.seed)
            encoder = make_encoder(experiment, self.problem)
            members = max(1, len(experiment.data.conditionals))
            hard = experiment.data.hard_count if experiment.data.hard_negatives else 0
            objective = Objective(experiment.loss, self.problem.n, members=members, hard=hard)
        state, self.damaged = load_checkpoint(out)
        if experiment.start and state is None:
            _start_from(encoder, objective, Path(experiment.start))
        self.images = isinstance(encoder, ImageEncoder)
        self.supervised = experiment.supervised
        if self.images and training.channels_last:
            encoder = encoder.to(memory_format=torch.channels_last)
        encoder = encoder.to(fabric.device)  # before Muon keeps views of its weights
        module = _Codes(encoder, objective, compiled=training.compile)
        optimizers = make_optimizers(training, encoder, objective)
        self.module: Any
        self.optimizers: list[Any]
        self.module, *self.optimizers = fabric.setup(module, *optimizers)
        self.encoder, self.objective = encoder, objective
        self.rates = [[group["lr"] for group in each.param_groups] for each in optimizers]
        self.step = 0
        self.seconds = 0.0
        self.factor = 1.0  # of the learning rates, in the last step
        self.at_latents: AtLatents | None = None
        self.scores: dict[str, float] = {}
        self.per_factor: list[float | None] = []  # R2, of the last scores
        self.warnings: list[str] = []  # about the final scores
        if state is not None:
            try:
                self._restore(state)
            except (
                *(KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError),
            ) as error:
                if isinstance(error, ThreeDIdentError):
                    raise
                raise DatasetError(
                    f"the checkpoint in {out} does not fit its experiment "
                    f"({type(error).__name__}: {' '.join(str(error).split()):.300}). Remove "
                    f"{out} to start anew"
                ) from error

    # Checkpoints

    def state(self) -> dict[str, Any]:
        at = self.at_latents
        precision = self.fabric._precision.state_dict()
        return {
            "step": self.step,
            "seconds": self.seconds,
            "encoder": self.encoder.state_dict(),
            "objective": self.objective.state_dict(),
            **{
                key: each.state_dict()
                for key, each in zip(_OPTIMIZER_KEYS, self.optimizers, strict=False)
            },
            "precision": precision,
            "random": torch.random.get_rng_state(),
            "at_latents": None if at is None else dict(vars(at)),
            "scores": self.scores,
            "devices": [self.fabric.world_size, self.fabric.device.type],
            "data": [self.problem.about.get(key) for key in ("latents", "test_latents")],
        }

    def _restore(self, state: dict[str, Any]) -> None:
        count, kind = state["devices"]
        if [count, kind] != [self.fabric.world_size, self.fabric.device.type]:
            raise UsageError(
                f"{self.out} was begun on {count} device(s) of kind {kind}, on which its batches "
                f"depend: go on with --devices {count} --device {kind}"
            )
        for key, before in zip(("latents", "test_latents"), state["data"], strict=True):
            refuse_other_data(self.out, before, self.problem.about.get(key))
        self.step, self.seconds = state["step"], state["seconds"]
        if type(self.step) is not int or self.step < 0 or type(self.seconds) is not float:
            raise TypeError(f"step {self.step!r:.100} after {self.seconds!r:.100} s")
        self.encoder.load_state_dict(state["encoder"])
        self.objective.load_state_dict(state["objective"])
        for key, each in zip(_OPTIMIZER_KEYS, self.optimizers, strict=False):
            self._restore_optimizer(each, state[key]["state"])
        self.fabric._precision.load_state_dict(state["precision"])
        torch.random.set_rng_state(state["random"])
        if state["at_latents"]:
            at = self.at_latents = AtLatents(**state["at_latents"])
            for value in (at.loss, at.scale or 0.0, at.tau or 0.0, *np.ravel(at.Lambda or [])):
                if not isinstance(value, float):
                    raise TypeError(f"at_latents are {at!r:.200}")
        self.scores = dict(state["scores"])
        numbers = all(isinstance(value, float) for value in self.scores.values())
        if not numbers or (self.scores and not {"linear_r2", "mcc"} <= set(self.scores)):
            raise TypeError(f"scores are {self.scores!r:.200}")

    def _restore_optimizer(self, optimizer: Any, moments: dict[int, Any]) -> None:
        """Takes the moments of Adam or Muon; all else of it is the experiment's."""
        optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                there = optimizer.state.get(parameter)
                if there is None:  # of an objective without use for it
                    continue
                shape = parameter.shape
                expected = {"step": (), "exp_avg": shape, "exp_avg_sq": shape}
                if isinstance(optimizer.optimizer, MatrixMuon):
                    expected = {"momentum_buffer": shape}
                for name, size in expected.items():
                    value = there[name]
                    if value.shape != size or not value.is_floating_point():
                        raise TypeError(f"{name} is {value!r:.100}, expected shape {size}")

    # Training

    def gather(self) -> Any:
        """What brings negatives from the other processes; None where there are none."""
        if self.fabric.world_size == 1:
            return None

        def everyone(codes: torch.Tensor) -> tuple[torch.Tensor, int]:
            together: torch.Tensor = _Gathered.apply(codes)
            return together, self.fabric.global_rank * len(codes)

        return everyone

    def learning_rate(self) -> float:
        """The factor of the learning rates at this step."""
        training = self.experiment.training
        factor = min(1.0, (self.step + 1) / training.warmup) if training.warmup else 1.0
        if training.schedule == "cosine":
            factor *= (1 + math.cos(math.pi * self.step / training.steps)) / 2
        return factor

    def advance(self, batches: Iterator[Views]) -> tuple[float, torch.Tensor, Views]:
        """One step of the optimiser: the loss, the codes and the views of its last part."""
        training, fabric = self.experiment.training, self.fabric
        self.factor = self.learning_rate()
        for optimizer, rates in zip(self.optimizers, self.rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * self.factor
        self.objective.starting = self.step < self.experiment.loss.start_steps
        self.module.train()
        total = 0.0
        for part in range(training.accumulate):
            latents, observations = next(batches)
            device = fabric.device
            lengths = [len(view) for view in observations]
            together = torch.cat([view.to(device, non_blocking=True) for view in observations])
            if together.ndim == 4:
                last = training.channels_last
                memory = torch.channels_last if last else torch.contiguous_format
                together = together.contiguous(memory_format=memory)
            # A function, as Fabric would round tensors to the precision of the encoder.
            targets = tuple(view.to(device) for view in latents) if self.supervised else ()
            waits = part + 1 < training.accumulate
            with fabric.no_backward_sync(self.module, enabled=waits):
                loss, codes = self.module(together, lengths, lambda: targets, self.gather())  # noqa: B023
                fabric.backward(loss / training.accumulate)
            value = loss.detach()
            if fabric.world_size > 1:
                value = fabric.all_reduce(value, reduce_op="mean")
            total += float(value) / training.accumulate
            if not math.isfinite(total):
                self.fail((latents, observations), total)
        if self.step == 0 and bool((codes == codes[0]).all()):
            raise TrainingError(
                "the encoder gives all observations of the first batch the same code, so nothing "
                f"can be learned; with training.precision = {training.precision!r} it may be that "
                "they differ by less than it resolves: try 32-true"
            )
        for optimizer in self.optimizers:
            optimizer.step()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.step += 1
        return total, codes.detach(), (latents, observations)

    def refuse_broken_weights(self, views: Views, loss: float) -> None:
        """Stops where a gradient was not finite, before a checkpoint would hold it."""
        if not all(bool(p.isfinite().all()) for p in self.module.parameters()):
            self.fail(views, loss, "weights are not finite after")

    def fail(self, views: Views, loss: float, what: str = "") -> None:
        """Saves the batch whose loss is not finite, and stops."""
        path = self.out / FAILED
        if self.fabric.is_global_zero:
            with replacing(path) as temporary:
                content = {
                    "step": self.step,
                    "loss": loss,
                    "latents": [view.cpu() for view in views[0]],
                    "observations": [view.cpu() for view in views[1]],
                    "encoder": self.encoder.state_dict(),
                    "objective": self.objective.state_dict(),
                }
                write_tensors(temporary, content)
        what = what or f"the loss is {loss} at"
        raise TrainingError(
            f"{what} step {self.step}: the batch and the weights are in {path}. "
            "Try a smaller training.lr, or training.precision=32-true; the last checkpoint stays"
        )

    # Measurements

    @torch.no_grad()
    def encode(self, observations: torch.Tensor, *, batch_statistics: bool = False) -> torch.Tensor:
        """Codes (N, m) in float32, by the encoder in evaluation mode.

        Args:
            observations: (N, ...).
            batch_statistics: whether batch normalisation uses each batch's own statistics, as
                in the published scores; the encoder's are left alone.
        """
        encoder: nn.Module = self.encoder
        size = max(16, _PIXELS_AT_ONCE // observations[0, 0].numel()) if self.images else 1 << 16
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
            x = part.to(self.fabric.device)
            x = x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x.to(dtype)
            codes.append(encoder(x).float().cpu())
        encoder.train()
        return torch.cat(codes)

    def score(self) -> dict[str, float]:
        """R2 and MCC on fresh samples, and how isometric the codes are.

        R2 of each factor is left in `per_factor`.
        """
        z, x = self.problem.fresh(self.experiment.training.score_samples)
        z, codes = z.cpu(), self.encode(x)
        folds: Any = "single" if self.images else "in-sample"
        r2 = linear_r2(z.numpy(), codes.numpy(), folds=folds)
        assert r2.per_factor is not None
        self.per_factor = [v if math.isfinite(v) else None for v in r2.per_factor.tolist()]
        return {
            "linear_r2": r2.value,
            "mcc": mcc(z.numpy(), codes.numpy()).value,
            "isometry": isometry(codes, z),
            "scale": learned_scale(codes, z),
        }

    def row(self, loss: float, codes: torch.Tensor, views: Views) -> dict[str, Any]:
        """What is logged of a step besides the scores."""
        lengths = [len(view) for view in views[1]]
        row: dict[str, Any] = {"seconds": self.seconds, "loss": loss}
        if self.at_latents is not None and not self.objective.starting:
            row["excess"] = loss - self.at_latents.loss
        if self.fabric.world_size == 1:  # the codes of one device are not all that there are
            row |= shares(self.objective, torch.split(codes, lengths))
        row |= self.objective.learned()
        row["lr"] = self.rates[0][0] * self.factor
        return row

    def measure_at_latents(self) -> None:
        """The loss at the latents: once, on the first batches."""
        if self.at_latents is not None or self.experiment.data.pairs == "views":
            return
        if self.supervised:
            self.at_latents = AtLatents(0.0)
            return
        batches = [latents for latents, _ in self.first_batches()]
        found = loss_at_latents(self.experiment, self.objective, batches)
        self.at_latents = found if math.isfinite(found.loss) else None

    def first_batches(self) -> Iterator[Views]:
        """The first batches, one after the other, each with what all devices see of it."""
        world, source = self.fabric.world_size, self.problem.source
        count = min(_MOST_BATCHES, max(1, _AT_LATENTS // (self.local * world)))
        if source.batches is not None:
            count = max(1, min(count, source.batches // world))

        def together(views: Any) -> Any:
            return tuple(torch.cat(parts).to(self.fabric.device) for parts in views)

        for first in range(0, count * world, world):
            parts = [source.batch(0, first + k) for k in range(world)]
            latents, observations = (zip(*views, strict=True) for views in zip(*parts, strict=True))
            yield together(latents), together(observations)

    @torch.no_grad()
    def final_loss(self) -> float | None:
        """The loss of the encoder, in evaluation mode, where that at the latents was taken."""
        if self.at_latents is None or self.supervised:
            return None
        self.objective.starting = False
        losses = []
        for latents, observations in self.first_batches():
            codes = [self.encode(view).to(self.fabric.device) for view in observations]
            losses.append(float(self.objective(codes, latents)))
        return float(np.mean(losses))

    def final_scores(self) -> tuple[dict[str, float], dict[str, list[float]]]:
        """The scores of the end.

        Synthetic: the mean over fresh batches, fitted and scored on each. Images: fitted on
        the first half of the test images and scored on the second, with batch normalisation in
        evaluation mode, and as published.
        """
        training = self.experiment.training
        if self.images:
            z, x = self.problem.fresh(training.score_samples)
            whole = self.encode(x)
            found, factors = _measured(z, whole, "single", "")
            self.warnings = _few_samples(z, whole, self.problem.about["factors"])
            order = torch.randperm(len(z), generator=torch.Generator().manual_seed(0))
            codes = self.encode(x[order], batch_statistics=True)
            batch, per_factor = _measured(
                z[order][: len(codes)], codes, "single", "_batch_statistics"
            )
            return {**found, **batch}, {**factors, **per_factor}
        rows = []
        for number in range(1, training.final_batches + 1):
            z, x = self.problem.fresh(max(training.batch_size, 256), number)
            rows.append(_measured(z.cpu(), self.encode(x), "in-sample", ""))
        scores = {k: float(np.mean([row[0][k] for row in rows])) for k in rows[0][0]}
        factors = {k: np.mean([row[1][k] for row in rows], 0).tolist() for k in rows[0][1]}
        content = _content(self.experiment)
        if content is not None:
            r2 = np.array(factors["linear_r2"])
            scores["linear_r2_content"] = float(r2[content].mean())
            scores["linear_r2_style"] = float(r2[~content].mean())
        return scores, factors


def _measured(
    z: torch.Tensor, codes: torch.Tensor, folds: Any, suffix: str
) -> tuple[dict[str, float], dict[str, list[float]]]:
    r2 = linear_r2(z.numpy(), codes.numpy(), folds=folds)
    correlation = mcc(z.numpy(), codes.numpy())
    assert r2.per_factor is not None
    per_factor = {f"linear_r2{suffix}": r2.per_factor.tolist()}
    if correlation.per_factor is not None:
        per_factor[f"mcc{suffix}"] = correlation.per_factor.tolist()
    return {f"linear_r2{suffix}": r2.value, f"mcc{suffix}": correlation.value}, per_factor


def _few_samples(z: torch.Tensor, codes: torch.Tensor, factors: list[str]) -> list[str]:
    """What there is to say where scores are taken on too few images."""
    found = check_assumptions(
        z.double().numpy(), codes.double().numpy(), factors=factors, metrics=(), folds="single"
    )
    return [warning.message for warning in found if warning.code == "few_samples"]


def _content(experiment: Experiment) -> Any:
    """Which factors vary least within pairs, where there are two groups; None otherwise."""
    from threedident.distributions import ProjectedNormal

    conditional = experiment.data.conditional
    if not isinstance(conditional, ProjectedNormal) or not isinstance(conditional.Lambda, tuple):
        return None
    Lambda = np.array(conditional.Lambda)
    return Lambda == Lambda.max() if len(set(conditional.Lambda)) == 2 else None


def _start_from(encoder: ImageEncoder | VectorEncoder, objective: Objective, start: Path) -> None:
    """Takes the weights of another run's encoder, and what its loss has learned if it fits.

    Raises:
        UsageError: it is of another form.
    """
    path = start / ENCODER if start.is_dir() else start
    other, _ = read_encoder(path)
    try:
        encoder.load_state_dict(other.state_dict())
    except RuntimeError as error:
        raise UsageError(f"the encoder of {path} has another form than this experiment's") from (
            error
        )
    state = load_checkpoint(start)[0] if start.is_dir() else None
    there = {} if state is None else state["objective"]
    own = objective.state_dict()
    if {k: v.shape for k, v in there.items()} == {k: v.shape for k, v in own.items()}:
        objective.load_state_dict(there)


@contextlib.contextmanager
def _stopping() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM in place of their effects, where this is the main thread.

    The second one has its usual effect at once.
    """
    received: list[int] = []
    before: dict[int, Any] = {}

    def put_back() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def receive(number: int, _: Any) -> None:
        received.append(number)
        if len(received) > 1:
            put_back()
            raise KeyboardInterrupt

    with contextlib.suppress(ValueError):  # not the main thread
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, receive)
    try:
        yield received
    finally:
        put_back()


def _agreed(fabric: Fabric, stop: list[int]) -> bool:
    """Whether any process was told to stop: all of them must do the same."""
    if fabric.world_size == 1:
        return bool(stop)
    told = torch.tensor(float(bool(stop)), device=fabric.device)
    together = fabric.all_reduce(told, reduce_op="sum")
    assert isinstance(together, torch.Tensor)
    return bool(together > 0)


def _refuse_other_step(run: _Run) -> None:
    """Raises a TrainingError where another process has not found the same checkpoint."""
    if run.fabric.world_size == 1:
        return
    here = torch.tensor(float(run.step), device=run.fabric.device)
    mean = run.fabric.all_reduce(here.clone(), reduce_op="mean")
    if mean != here:
        raise TrainingError(
            f"the processes do not find the same checkpoint in {run.out} (here: step {run.step}): "
            "the run's directory must lie on a disk that all nodes share"
        )


def _run(
    fabric: Fabric,
    experiment: Experiment,
    out: Path,
    data: Path | None,
    test: Path | None,
    quiet: bool,
) -> None:
    """A process's whole training."""
    training = experiment.training
    run = _Run(fabric, experiment, out, data, test)
    _refuse_other_step(run)
    first_process = fabric.is_global_zero
    if first_process:
        remove_leftovers(out)
        claim(experiment, out, data, test)
        for note in () if quiet else run.problem.notes:
            Progress.print(f"note: {note}")
        for message in run.damaged:
            Progress.print(f"warning: {message}; going on from the one before")
        if run.step and not quiet:
            Progress.print(f"{out}: going on from step {run.step} of {training.steps}")
    run.measure_at_latents()
    records = Records(out, step=run.step) if first_process else None
    stride = fabric.world_size
    position = run.step * training.accumulate * stride + fabric.global_rank
    threads = 1
    if run.images:
        threads = min(_MOST_THREADS, max(2, (os.cpu_count() or 2) // stride))
    batches = run.problem.batches(position, stride, threads)
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(_stopping())
        if isinstance(batches, Generator):
            stack.callback(batches.close)
        progress = None
        if first_process and not quiet:
            title = f"{experiment.name} seed {training.seed}"
            progress = stack.enter_context(
                Progress(title, training.steps, finished=run.step, unit="steps")
            )
        if records is not None:
            stack.callback(records.close)
        began = time.monotonic() - run.seconds
        while run.step < training.steps:
            loss, codes, views = run.advance(batches)
            last = run.step == training.steps
            run.seconds = time.monotonic() - began
            stopping = _agreed(fabric, stop)
            if records is not None:
                scored = last or run.step % training.score_every == 0
                if scored:
                    run.scores = run.score()
                if scored or run.step % training.log_every == 0 or run.step == 1:
                    row = run.row(loss, codes, views)
                    if scored:
                        row |= {**run.scores, "linear_r2_per_factor": run.per_factor}
                    records.write(run.step, row)
                if progress is not None:
                    progress.advance(1, _status(loss, run.scores))
                if last or stopping or run.step % training.checkpoint_every == 0:
                    run.refuse_broken_weights(views, loss)
                    save_checkpoint(out, run.state())
            if stopping:
                if first_process:
                    Progress.print(
                        f"stopped at step {run.step} of {training.steps}, which is saved; to go "
                        f"on: 3dident train --resume {out}"
                    )
                raise KeyboardInterrupt
    if first_process:
        _finish(run, quiet)
    fabric.barrier()


def _status(loss: float, scores: dict[str, float]) -> str:
    """What the progress shows besides the time."""
    text = f"loss {loss:.4g}"
    if scores:
        text += f", R2 {scores['linear_r2']:.4f}, MCC {scores['mcc']:.4f}"
    return text


def _finish(run: _Run, quiet: bool) -> None:
    """Writes the encoder and the result."""
    experiment, out = run.experiment, run.out
    scores, per_factor = run.final_scores()
    loss = run.final_loss()
    for message in () if quiet else run.warnings:
        Progress.print(f"warning: {message}")
    learned = run.objective.learned()
    about = {
        "experiment": experiment.name,
        "steps": run.step,
        "seed": experiment.training.seed,
        "scores": scores,
        "data": run.problem.about,  # by which an evaluation knows the images it has seen
    }
    save_encoder(out / ENCODER, copy.deepcopy(run.encoder).float(), about)
    at = run.at_latents
    write_json(
        out / RESULT,
        {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "toolkit": toolkit_version(),
            "experiment": experiment.as_dict(),
            "scores": scores,
            # Not a number where a factor is held fixed.
            "per_factor": {
                k: [v if math.isfinite(v) else None for v in values]
                for k, values in per_factor.items()
            },
            "learned": {**learned, "scale": run.scores.get("scale")},
            "theory": {
                "scale": theory_scale(experiment, run.problem.processes),
                **theory_learned(experiment),
            },
            "loss": loss if loss is None or math.isfinite(loss) else None,
            "at_latents": None if at is None else dict(vars(at)),
            "steps": run.step,
            "seconds": run.seconds,
            "hardware": describe_hardware(run.fabric),
            "data": run.problem.about,
        },
    )
    if experiment.training.schedule != "constant":
        # It cannot be extended, so that nothing goes on from here; the last checkpoint stays, of
        # which the run can be scored again, and on which another can start.
        (out / PREVIOUS).unlink(missing_ok=True)


def _describe_devices(fabric: Fabric, threads: int | None) -> str:
    """What a run will run on, before it is launched."""
    kind, count = fabric.device.type, fabric.world_size
    if kind != "cpu":
        return f"{count} device(s) of kind {kind}"
    each = threads or torch.get_num_threads()
    return f"cpu, {each} thread(s)" + (f" in each of {count} processes" if count > 1 else "")


def describe_hardware(fabric: Fabric) -> str:
    """One line that names what a run ran on."""
    if fabric.device.type == "cuda":
        return f"{fabric.world_size} x {torch.cuda.get_device_name(fabric.device)}"
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    threads = torch.get_num_threads()
    return f"{threads * fabric.world_size} thread(s) of {os.cpu_count()} cores, {name}"
