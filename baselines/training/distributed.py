"""The processes and devices of a training: Lightning Fabric, torchrun, and what processes share."""

from __future__ import annotations

import logging
import os
import platform
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from threedident.baselines.criterion import Gather
from threedident.errors import (
    DatasetError,
    MissingExtraError,
    PrecisionWarning,
    TrainingError,
    UsageError,
)
from threedident.system import processor_name

try:
    import torch
    from lightning_fabric import Fabric
    from torch import distributed as dist
    from torch.multiprocessing.spawn import ProcessException
except ImportError as error:
    raise MissingExtraError(str(error.name), "train", "training") from error


def processes_started() -> int:
    """Count the processes that torchrun has started, on all nodes; 0 without torchrun."""
    return int(os.environ["WORLD_SIZE"]) if dist.is_torchelastic_launched() else 0


def is_first_process() -> bool:
    """Tell whether this process speaks for the training; only torchrun starts others."""
    return not processes_started() or os.environ["RANK"] == "0"


def make_fabric(precision: str, devices: int, device: str) -> Fabric:
    """Make the object that runs a training on its devices.

    Args:
        precision: the experiment's `training.precision`.
        devices: the number of devices, over all nodes.
        device: the kind of device: auto, cpu, cuda or mps.

    Raises:
        UsageError: the devices are not there, or do not fit the precision.
    """
    quiet_lightning()
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("torch finds no CUDA device here: leave out --device, or use cpu")
    strategy, nodes = "ddp_spawn" if devices > 1 else "auto", 1
    if processes_started():
        strategy, nodes = "ddp", devices // int(os.environ["LOCAL_WORLD_SIZE"])
    try:
        fabric = Fabric(
            accelerator=device,
            devices=devices // nodes,
            num_nodes=nodes,
            strategy=strategy,
            precision=precision,  # type: ignore[arg-type]
        )
    except Exception as error:  # Lightning's own kinds, and ValueError
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise UsageError(
            f"cannot train on {devices} device(s) of kind {device!r}: {reason[0]:.300}"
        ) from error
    if precision == "16-mixed" and fabric.device.type == "cpu":
        raise UsageError("training.precision = 16-mixed is for a GPU: use bf16-mixed on a CPU")
    if precision == "bf16-mixed" and fabric.device.type == "cpu" and _emulates_bfloat16():
        warnings.warn(
            "this processor has no instructions for bfloat16, and computes with it several times "
            "as slowly as in float32: set training.precision=32-true",
            PrecisionWarning,
            stacklevel=2,
        )
    return fabric


def _emulates_bfloat16() -> bool:
    """Tell whether this is an x86 processor that has neither AVX512-BF16 nor AMX."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    return not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def quiet_lightning() -> None:
    """Silence the lines that Lightning logs about itself."""
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)


def launch(fabric: Fabric, function: Callable[[Fabric], None]) -> None:
    """Call a function in processes of its own, one for each device.

    Args:
        fabric: the object that knows the devices.
        function: the function, called with the process's fabric; it must be picklable.

    Raises:
        TrainingError: a process failed.
        UsageError, DatasetError, KeyboardInterrupt: a process raised one.
    """
    try:
        fabric.launch(function)
    except ProcessException as error:
        last = str(error).strip().splitlines()[-1]
        name, _, message = last.partition(": ")
        kinds = {f"{kind.__module__}.{kind.__name__}": kind for kind in (UsageError, DatasetError)}
        if name in kinds:
            raise kinds[name](message) from error
        if name == "KeyboardInterrupt":  # Ctrl-C reached it when it had left the training already
            raise KeyboardInterrupt from error
        raise TrainingError(f"a process of the training failed: {last:.500}") from error


class _Gathered(torch.autograd.Function):
    """The rows of all processes; their gradients come back to the process they are from.

    A row's gradient is the sum over the losses of all processes. Data-parallel training takes the
    mean of the processes' gradients, so that the result is the gradient of the mean loss.
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


def make_gather(fabric: Fabric) -> Gather | None:
    """Make the function that brings codes from all processes; None where there is only one."""
    if fabric.world_size == 1:
        return None

    def gather(codes: torch.Tensor) -> tuple[torch.Tensor, int]:
        together: torch.Tensor = _Gathered.apply(codes)
        return together, fabric.global_rank * len(codes)

    return gather


def any_process(fabric: Fabric, here: bool) -> bool:
    """Tell whether something holds in any process, so that all of them do the same."""
    if fabric.world_size == 1:
        return here
    count = fabric.all_reduce(torch.tensor(float(here), device=fabric.device), reduce_op="sum")
    assert isinstance(count, torch.Tensor)
    return bool(count > 0)


def require_same_step(fabric: Fabric, step: int, out: Path) -> None:
    """Check that all processes go on from the same checkpoint.

    Args:
        fabric: the object that knows the processes.
        step: the step of this process's checkpoint.
        out: the run folder, for the error.

    Raises:
        TrainingError: another process has read another checkpoint.
    """
    if fabric.world_size == 1:
        return
    here = torch.tensor(float(step), device=fabric.device)
    mean = fabric.all_reduce(here.clone(), reduce_op="mean")
    if mean != here:
        raise TrainingError(
            f"the processes do not find the same checkpoint in {out} (here: step {step}): "
            "the run's directory must lie on a disk that all nodes share"
        )


def describe_devices(fabric: Fabric, threads: int | None) -> str:
    """Name what a run will run on, before it is launched."""
    kind, count = fabric.device.type, fabric.world_size
    if kind != "cpu":
        return f"{count} device(s) of kind {kind}"
    each = threads or torch.get_num_threads()
    return f"cpu, {each} thread(s)" + (f" in each of {count} processes" if count > 1 else "")


def describe_hardware(fabric: Fabric) -> str:
    """Name the hardware that a run ran on, in one line."""
    if fabric.device.type == "cuda":
        return f"{fabric.world_size} x {torch.cuda.get_device_name(fabric.device)}"
    threads = torch.get_num_threads()
    return f"{threads * fabric.world_size} thread(s) of {os.cpu_count()} cores, {processor_name()}"
