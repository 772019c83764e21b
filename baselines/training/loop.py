"""The training loop: one for every experiment, on one device or several."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import os
import time
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from threedident.baselines.checks import check_device_name, make_plan
from threedident.baselines.experiment import Experiment, load_experiment
from threedident.errors import DatasetError, MissingExtraError, ThreeDIdentError, UsageError
from threedident.progress import Progress
from threedident.storage.atomic_files import remove_leftovers, write_json
from threedident.system import keep_freed_memory, stop_on_signals
from threedident.version import toolkit_version

try:
    import torch
    from lightning_fabric import Fabric
except ImportError as error:
    raise MissingExtraError(str(error.name), "train", "training") from error

from threedident.baselines.data import Problem, Views, make_problem
from threedident.baselines.training.checkpoints import load_checkpoint, save_checkpoint
from threedident.baselines.training.decoder import prepare_decoder
from threedident.baselines.training.distributed import (
    any_process,
    describe_devices,
    describe_hardware,
    is_first_process,
    launch,
    make_fabric,
    processes_started,
    quiet_lightning,
    require_same_step,
)
from threedident.baselines.training.measurements import Measurements
from threedident.baselines.training.networks import make_networks, start_from
from threedident.baselines.training.reconstructions import (
    COUNT,
    RECONSTRUCTIONS,
    write_reconstructions,
)
from threedident.baselines.training.run_folder import (
    DECODER,
    DIGESTS,
    ENCODER,
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
from threedident.baselines.training.theory import theory_learned, theory_scale
from threedident.baselines.training.trainer import Trainer
from threedident.baselines.training.training_log import TrainingLog
from threedident.encoders import ImageEncoder, save_decoder, save_encoder

_MOST_THREADS = 16  # that prepare batches
#: What reading a checkpoint that does not fit can raise.
_MISFITS = (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError)


def train(
    experiment: Experiment | str | Path,
    out: str | Path,
    *,
    data: str | Path | None = None,
    test: str | Path | None = None,
    devices: int = 1,
    device: str = "auto",
    threads: int | None = None,
    quiet: bool = False,
    accelerator: str | None = None,
) -> dict[str, Any]:
    """Train an experiment into a run folder, or go on where it was stopped.

    Where the learning rate is constant, a finished run can be extended by asking for more steps.

    The folder holds `experiment.toml`, `metrics.csv`, TensorBoard's files, the last two
    checkpoints (one, where a finished run cannot be extended), and at the end `encoder.pt` and
    `result.json`; of an autoencoder `decoder.pt` and `reconstructions.png` as well. A run that was
    killed and started again gives what it would have given: batches depend on seed and step alone.
    It returns at once where the run is finished. On a processor with glibc, the process that trains
    keeps the memory that it frees, until it ends.

    Args:
        experiment: the experiment, the name of a built-in one, or the path of a file.
        out: the run folder.
        data: the images to train on; None for synthetic observations. See `make_plan` for what
            None means where there are images.
        test: the images to score on; None: see there, and those of `data` where there are no
            others.
        devices: the number of devices, which share the batch and its negatives. Under torchrun
            it is the number of processes that torchrun has started, on all nodes.
        device: the kind of device: auto, cpu, cuda or mps.
        threads: the number of torch's threads in each process; None: torch's choice.
        quiet: whether progress is left out.
        accelerator: the old name of `device`.

    Returns:
        The content of `result.json`.

    Raises:
        UsageError: the experiment does not fit the data, or `out` holds another experiment.
        DatasetError: the data cannot be read, or the run not be written.
        TrainingError: the loss is not finite.
    """
    device = check_device_name(device, accelerator)
    if not isinstance(experiment, Experiment):
        experiment = load_experiment(experiment)
    out = Path(out)
    data, test = (None if path is None else Path(path) for path in (data, test))
    started = processes_started()
    devices = started or devices
    first = is_first_process()
    with only_one(out) if first else contextlib.nullcontext():
        plan = make_plan(experiment, out, data=data, test=test, devices=devices, device=device)
        if plan.finished is not None:
            if not quiet and first:
                for line in (f"{out} is finished already", *plan.lines):
                    Progress.print(line)
            return plan.finished
        fabric = make_fabric(experiment.training.precision, devices, device)
        if not quiet and first:
            title, *lines = plan.lines
            for line in (f"{title}, on {describe_devices(fabric, threads)}", *lines):
                Progress.print(line)
        if first:  # the other processes wait for it when they join
            prepare_decoder(experiment, out, quiet=quiet)
        task = Task(experiment, out, plan.data, plan.test, quiet, threads)
        # Fabric takes arguments apart, and refuses frozen dataclasses; functions it leaves alone.
        train_here = functools.partial(_train_here, task=task)
        if started:
            fabric.launch(train_here)
        elif devices > 1:
            # Here, so that one process reports what does not fit, and not all of them.
            make_problem(
                experiment,
                data=plan.data,
                test=plan.test,
                batch_size=1,
                device=torch.device("cpu"),
                decoder=task.decoder,
            )
            launch(fabric, train_here)
        else:
            train_here(fabric)
        return read_result(out)


def resume(out: str | Path, *, changes: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """Go on with a run; see `train`.

    Args:
        out: the run folder.
        changes: the fields to change, by dotted name; see `load_run`.
        options: the further arguments of `train`.

    Raises:
        UsageError: the folder holds no run, or a change would make it another.
    """
    return train(load_run(Path(out), changes), out, **options)


@dataclasses.dataclass(frozen=True)
class Task:
    """The orders that every process of a training gets.

    Attributes:
        experiment: the experiment.
        out: the run folder.
        data: the images to train on; None for synthetic observations.
        test: the images to score on; None: those of `data`.
        quiet: whether progress is left out.
        threads: the number of torch's threads; None: torch's choice.
    """

    experiment: Experiment
    out: Path
    data: Path | None
    test: Path | None
    quiet: bool
    threads: int | None

    @property
    def decoder(self) -> Path | None:
        """The file of the decoder; None where nothing is decoded."""
        return self.out / DECODER if self.experiment.data.mixing == "decoder" else None


def _train_here(fabric: Fabric, task: Task) -> None:
    """Train in this process, beside the other processes where there are some."""
    quiet_lightning()
    if task.threads is not None:
        torch.set_num_threads(task.threads)
    if fabric.device.type == "cuda":
        torch.backends.cudnn.benchmark = True
    elif fabric.device.type == "cpu":
        keep_freed_memory()
    training = task.experiment.training
    problem = make_problem(
        task.experiment,
        data=task.data,
        test=task.test,
        batch_size=training.batch_size // (fabric.world_size * training.accumulate),
        device=fabric.device,
        decoder=task.decoder,
    )
    trainer, measurements, damaged = _begin_or_go_on(fabric, task, problem)
    require_same_step(fabric, trainer.step, task.out)
    if fabric.is_global_zero:
        remove_leftovers(task.out)
        claim(task.experiment, task.out, task.data, task.test)
        _print_notes(task, problem, trainer.step, damaged)
    measurements.measure_at_latents()
    _train_to_the_end(task, problem, trainer, measurements)
    if fabric.is_global_zero:
        _finish(task, problem, trainer, measurements)
    fabric.barrier()


def _begin_or_go_on(
    fabric: Fabric, task: Task, problem: Problem
) -> tuple[Trainer, Measurements, list[str]]:
    """Make a training as its last checkpoint left it, and say which checkpoints are damaged.

    Raises:
        UsageError: the checkpoint is of other devices or data.
        DatasetError: the checkpoint does not fit the experiment.
    """
    encoder, objective = make_networks(task.experiment, problem)
    state, damaged = load_checkpoint(task.out)
    if task.experiment.start and state is None:
        start_from(encoder, objective, task.experiment)
    trainer = Trainer(fabric, task.experiment, encoder, objective, task.out)
    measurements = Measurements(trainer, problem)
    if state is not None:
        try:
            trainer.require_same_devices(state)
            for (name, keys), latents in zip(DIGESTS.items(), state["data"], strict=True):
                before = latents, state.get("pixels", {}).get(name)
                now = problem.about.get(keys[0]), problem.about.get(keys[1])
                images = task.data if name == "data" else task.test
                refuse_other_data(task.out, name, before, now, images)
            if state.get("decoder") != _decoder_of(problem):
                raise UsageError(
                    f"the {DECODER} in {task.out} is not the one that the run began with: put that "
                    f"back, or remove {task.out} to start anew"
                )
            trainer.restore(state)
            measurements.restore(state)
        except _MISFITS as error:
            if isinstance(error, ThreeDIdentError):
                raise
            raise DatasetError(
                f"the checkpoint in {task.out} does not fit its experiment "
                f"({type(error).__name__}: {' '.join(str(error).split()):.300}). Remove "
                f"{task.out} to start anew"
            ) from error
    return trainer, measurements, damaged


def _decoder_of(problem: Problem) -> str | None:
    """The digest of the decoder's weights; None where nothing is decoded."""
    digest: str | None = problem.about.get("decoder", {}).get("sha256")
    return digest


def _print_notes(task: Task, problem: Problem, step: int, damaged: list[str]) -> None:
    """Print the notes and warnings that come before the first step."""
    for note in () if task.quiet else problem.notes:
        Progress.print(f"note: {note}")
    for message in damaged:
        Progress.print(f"warning: {message}; going on from the one before")
    if step and not task.quiet:
        steps = task.experiment.training.steps
        Progress.print(f"{task.out}: going on from step {step} of {steps}")


def _train_to_the_end(
    task: Task, problem: Problem, trainer: Trainer, measurements: Measurements
) -> None:
    """Take all steps that are left, and keep the log and the checkpoints.

    Raises:
        KeyboardInterrupt: this process, or another, was told to stop, and a checkpoint is saved.
    """
    training, fabric = task.experiment.training, trainer.fabric
    first_process = fabric.is_global_zero
    with contextlib.ExitStack() as stack:
        log = TrainingLog(task.out, step=trainer.step) if first_process else None
        if log is not None:
            stack.callback(log.close)
        batches = _batches(problem, trainer)
        stop = stack.enter_context(stop_on_signals())
        if isinstance(batches, Generator):
            stack.callback(batches.close)
        progress = None
        if first_process and not task.quiet:
            title = f"{task.experiment.name} seed {training.seed}"
            progress = stack.enter_context(
                Progress(title, training.steps, finished=trainer.step, unit="steps")
            )
        began = time.monotonic() - trainer.seconds
        while trainer.step < training.steps:
            loss, codes, views = trainer.advance(batches)
            last = trainer.step == training.steps
            trainer.seconds = time.monotonic() - began
            stopping = any_process(fabric, stop.is_set())
            if log is not None:
                scored = last or trainer.step % training.score_every == 0
                if scored or trainer.step % training.log_every == 0 or trainer.step == 1:
                    log.write(trainer.step, measurements.row(loss, codes, views, scored=scored))
                if progress is not None:
                    progress.advance(1, _status(loss, measurements.scores))
                if last or stopping or trainer.step % training.checkpoint_every == 0:
                    trainer.check_weights(views, loss)
                    about = {
                        "data": [problem.about.get(key) for key, _ in DIGESTS.values()],
                        "pixels": {k: problem.about.get(key) for k, (_, key) in DIGESTS.items()},
                        "decoder": _decoder_of(problem),
                    }
                    save_checkpoint(task.out, {**trainer.state(), **measurements.state(), **about})
            if stopping:
                if first_process:
                    Progress.print(
                        f"stopped at step {trainer.step} of {training.steps}, which is saved; to "
                        f"go on: 3dident train --resume {task.out}"
                    )
                raise KeyboardInterrupt


def _batches(problem: Problem, trainer: Trainer) -> Iterator[Views]:
    """Iterate over this process's share of the batches, from the trainer's step on."""
    fabric = trainer.fabric
    stride = fabric.world_size
    position = trainer.step * trainer.experiment.training.accumulate * stride + fabric.global_rank
    threads = 1
    if isinstance(trainer.encoder, ImageEncoder):
        threads = min(_MOST_THREADS, max(2, (os.cpu_count() or 2) // stride))
    return problem.batches(position, stride, threads)


def _status(loss: float, scores: Mapping[str, float]) -> str:
    """Format the text that the progress shows besides the time."""
    text = f"loss {loss:.4g}"
    if scores:
        text += f", R2 {scores['linear_r2']:.4f}, MCC {scores['mcc']:.4f}"
    return text


def _finish(task: Task, problem: Problem, trainer: Trainer, measurements: Measurements) -> None:
    """Write the encoder and the result."""
    experiment, out = task.experiment, task.out
    final, at_latents = measurements.final_scores(), measurements.state()["at_latents"]
    for message in () if task.quiet else final.warnings:
        Progress.print(f"warning: {message}")
    about = {
        "experiment": experiment.name,
        "steps": trainer.step,
        "seed": experiment.training.seed,
        "scores": final.scores,
        "data": problem.about,  # by which an evaluation knows the images it has seen
    }
    encoder = copy.deepcopy(trainer.encoder).float()
    save_encoder(out / ENCODER, encoder, about)
    if trainer.objective.decoder is not None:
        decoder = copy.deepcopy(trainer.objective.decoder).float()
        save_decoder(out / DECODER, decoder, about)
        assert isinstance(encoder, ImageEncoder)
        images = problem.fresh(COUNT)[1]
        write_reconstructions(out / RECONSTRUCTIONS, encoder.cpu(), decoder.cpu(), images)
    result = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "toolkit": toolkit_version(),
        "experiment": experiment.as_dict(),
        "scores": final.scores,
        "per_factor": final.per_factor,
        "learned": {**trainer.objective.learned(), "scale": measurements.scores.get("scale")},
        "theory": {
            "scale": theory_scale(experiment, problem.processes),
            **theory_learned(experiment),
        },
        "loss": final.loss,
        "at_latents": at_latents,
        "steps": trainer.step,
        "seconds": trainer.seconds,
        "hardware": describe_hardware(trainer.fabric),
        "data": problem.about,
    }
    write_json(out / RESULT, result)
    if experiment.training.schedule != "constant":
        # It cannot be extended, so that nothing goes on from here; the last checkpoint stays, of
        # which the run can be scored again, and on which another can start.
        (out / PREVIOUS).unlink(missing_ok=True)
