"""Checks of a training's arguments, before torch is loaded."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from pathlib import Path
from typing import Any

from threedident.baselines.experiment import Experiment
from threedident.baselines.experiment_checks import CONV_SIDES
from threedident.baselines.training import run_folder
from threedident.datasets.formats import ImageSource, Source, open_dataset
from threedident.datasets.formats.grouping import (
    advise_pairs,
    count_pairs,
    grouping,
    require_grid,
)
from threedident.distributions import Distribution, PairProcess
from threedident.errors import UsageError
from threedident.storage.directory import default_out

DEVICES = ("auto", "cpu", "cuda", "mps")
#: Where images are looked for when none are named.
DATA = default_out()

_LEAST_SCORED = 16
#: The pairs that are chosen by the numbers of their images, of any dataset that has them.
BY_NUMBER = ("grid", "sequence", "table")


@dataclasses.dataclass(frozen=True)
class Plan:
    """The data of a training that is about to begin, and what it says at its start.

    Attributes:
        data: the images to train on; None for synthetic observations.
        test: the images to score on; None: those of `data`.
        finished: the content of `result.json` where there is nothing left to do, or None.
        lines: a description for people.
    """

    data: Path | None
    test: Path | None
    finished: dict[str, Any] | None
    lines: tuple[str, ...]


def make_plan(
    experiment: Experiment,
    out: Path,
    *,
    data: Path | None = None,
    test: Path | None = None,
    devices: int = 1,
    device: str = "auto",
) -> Plan:
    """Check the arguments of `train` against each other, the images and the run folder.

    Nothing is written. Images that are not named are those that the run began with, and of a new
    run `data/3dident` and, to score on, the dataset beside --data whose name ends in `-test`, where
    there are such.

    Args:
        experiment: the experiment.
        out: the run folder.
        data: the images to train on, or None.
        test: the images to score on, or None.
        devices: the number of devices.
        device: the kind of device.

    Raises:
        UsageError: an argument does not fit.
        DatasetError: the images or the run cannot be read.
    """
    training = experiment.training
    check_devices(experiment, devices, device)
    synthetic = experiment.data.observations == "synthetic"
    if synthetic and (data is not None or test is not None):
        raise UsageError(
            f"{experiment.name} makes its own observations: leave out --data and --test"
        )
    finished = run_folder.check(experiment, out, data, test)
    changed = run_folder.check_start(experiment, out)
    notes = () if changed is None else (changed,)
    if finished is not None:
        return Plan(data, test, finished, notes)
    what = experiment.name + (f" ({experiment.title})" if experiment.title else "")
    size = f"{training.steps:,} steps of {training.batch_size:,}"
    lines = [f"training {what}: {size}, seed {training.seed}"]
    if experiment.data.pairs in BY_NUMBER:
        lines.append(
            f"a batch of {training.batch_size:,} pairs is {2 * training.batch_size:,} images, "
            "which is how papers on these data count"
        )
    if synthetic:
        lines.append("trained on synthetic observations, scored on fresh ones")
    else:
        data, test, lines_of_images = _find_images(experiment, out, data, test)
        lines += lines_of_images
    lines.append(
        f"writes to {out}; Ctrl-C saves a checkpoint and stops, and the same command or "
        f"`3dident train --resume {out}` goes on"
    )
    return Plan(data, test, None, (*lines, *notes))


def check_device_name(device: str, accelerator: str | None) -> str:
    """Return the kind of device, also where it was given by its old name.

    Args:
        device: the kind of device.
        accelerator: the same by the argument's old name; None where that was not used.
    """
    if accelerator is None:
        return device
    warnings.warn("accelerator= is now called device=", FutureWarning, stacklevel=3)
    return accelerator


def check_devices(experiment: Experiment, devices: int, device: str) -> None:
    """Check that devices are of a known kind and can share a batch.

    Args:
        experiment: the experiment.
        devices: the number of devices.
        device: the kind of device.

    Raises:
        UsageError: they do not fit.
    """
    training = experiment.training
    if device not in DEVICES:
        raise UsageError(f"unknown device {device!r}: expected one of {', '.join(DEVICES)}")
    if devices < 1 or training.batch_size % (devices * training.accumulate):
        raise UsageError(
            f"training.batch_size, {training.batch_size}, must be a multiple of devices times "
            f"training.accumulate, found {devices} and {training.accumulate}"
        )


def check_images(
    experiment: Experiment, data: ImageSource, test: ImageSource, names: tuple[Any, Any]
) -> None:
    """Check that images fit an experiment.

    Args:
        experiment: the experiment.
        data: the images to train on.
        test: the images to score on.
        names: the names of both for the user.

    Raises:
        UsageError: they do not fit.
    """
    wanted, training = experiment.data, experiment.training
    if test.shape != data.shape:
        raise UsageError(
            f"{names[1]} has images of shape {test.shape}, {names[0]} of {data.shape}: expected "
            "the same"
        )
    if experiment.encoder.body == "conv" and not data.shape[0] == data.shape[1] in CONV_SIDES:
        raise UsageError(
            f"encoder.body = 'conv' is for images of 64 x 64 (or 32 x 32), and {names[0]} has "
            f"{data.shape[0]} x {data.shape[1]}: set encoder.body=resnet18, or name images of that "
            f"size (`3dident pack {names[0]} --resolution 64 --out FILE.h5` resizes other datasets "
            "than 3DIdent)"
        )
    _check_pairs(experiment, data, names[0])
    _check_groups(experiment, data, names[0])
    paired = data.manifest is not None and data.manifest.pair_process is not None
    if paired != (wanted.pairs == "rendered") and wanted.pairs in ("matched", "rendered"):
        needed = (
            f"single images, and {names[0]} was rendered in pairs: --set data.pairs=rendered --set "
            "data.conditional=null"
            if paired
            else f"a dataset rendered in pairs (3dident render --pairs), and {names[0]} holds "
            "single images"
        )
        raise UsageError(f"{experiment.name} needs {needed}")
    if paired and wanted.conditional is not None:
        _check_conditional(wanted.conditional, data, names[0])
    count = len(data) // 2 if paired else len(data)
    if wanted.pairs == "groups":
        paired, count = True, _count_groups(data)
    elif wanted.pairs in BY_NUMBER:
        paired, count = True, count_pairs(data, wanted.pairs)
    if training.batch_size > count:
        raise UsageError(
            f"a batch of {training.batch_size} does not fit {names[0]}, which holds {count} "
            f"{'pairs' if paired else 'images'}: set training.batch_size, or render more"
        )
    if len(test) < _LEAST_SCORED:
        raise UsageError(
            f"{names[1]} holds {len(test)} images, expected at least {_LEAST_SCORED} to score "
            "on: render more, or name another by --test"
        )


def _check_pairs(experiment: Experiment, data: ImageSource, name: Any) -> None:
    """Refuse images of another kind than the pairs that are trained on."""
    pairs, conditional = experiment.data.pairs, experiment.data.conditional
    if pairs in ("matched", "rendered", "groups") and not isinstance(data, Source):
        raise UsageError(
            f"{experiment.name} has data.pairs = {pairs!r}, which is for datasets of 3DIdent, and "
            f"{name} has the factors {', '.join(data.factor_names)}: {advise_pairs(data)}"
        )
    if pairs in BY_NUMBER:
        count_pairs(data, pairs)  # refuses a dataset that has none
    if pairs == "grid":
        assert conditional is not None
        PairProcess(require_grid(data), conditional)  # refuses what is no transition on it


def _check_groups(experiment: Experiment, data: ImageSource, name: Any) -> None:
    """Refuse images without groups where those are trained on, and groups where pairs are."""
    (kind, frames), pairs = grouping(data), experiment.data.pairs
    if pairs in ("matched", "rendered") and frames > 1 and kind != "triplets":
        raise UsageError(
            f"{experiment.name} has data.pairs = {pairs!r}, and {name} holds images of a causal "
            f"model that belong together ({kind}): to train on those, --set data.pairs=groups "
            "--set data.conditional=null"
        )
    if pairs != "groups":
        return
    if kind == "triplets":
        raise UsageError(
            f"{experiment.name} is trained on two images that belong together, and {name} holds "
            "triplets, whose third image mixes the factors of two: name views, counterfactuals or "
            "a sequence"
        )
    if frames == 1:
        in_pairs = data.manifest is not None and data.manifest.pair_process is not None
        what = "images in pairs of a conditional" if in_pairs else "single images"
        cure = "; for pairs, --set data.pairs=rendered" if in_pairs else ""
        raise UsageError(
            f"{experiment.name} needs two images of a causal model that belong together (`3dident "
            f"render --model` with --views, --counterfactual or --steps), and {name} holds "
            f"{what}{cure}"
        )


def _count_groups(data: ImageSource) -> int:
    """The number of pairs of neighbouring images within the items of a dataset."""
    frames = grouping(data)[1]
    whole, rest = divmod(len(data), frames)
    return whole * (frames - 1) + max(0, rest - 1)


def _check_conditional(stated: Distribution, data: ImageSource, name: Any) -> None:
    """Refuse images that were rendered in pairs of another conditional than the stated one."""
    assert data.manifest is not None and data.manifest.pair_process is not None
    rendered = data.manifest.pair_process.conditional
    if rendered != stated:
        raise UsageError(
            f"data.conditional is {stated}, and {name} was rendered in pairs of {rendered}: name "
            "images with such pairs, or, to train on these, --set data.conditional=null"
        )


def _find_images(
    experiment: Experiment, out: Path, data: Path | None, test: Path | None
) -> tuple[Path, Path | None, list[str]]:
    """The images of a training, and what they are, for people."""
    how_data = how_test = ""
    if run_folder.has_begun(out):
        places = run_folder.read_places(out)
        data, test = data or places.get("data"), test or places.get("test")
    else:
        if data is None and DATA.exists():
            data, how_data = DATA, " (found here; --data names others)"
        beside = None if data is None else data.with_name(f"{data.name}-test")
        if test is None and beside is not None and beside.exists():
            test, how_test = beside, " (found beside them; --test names others)"
    if data is None:
        raise UsageError(
            f"{experiment.name} is trained on images: say which by --data DIR; there is no {DATA} "
            "here"
        )
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(open_dataset(data))
        scored = source if test is None else stack.enter_context(open_dataset(test))
        names = data, data if test is None else test
        check_images(experiment, source, scored, names)
        height, width = source.shape[:2]
        used = min(len(scored), experiment.training.score_samples)
        many = f"{len(scored):,}" if used == len(scored) else f"{used:,} of {len(scored):,}"
        lines = [
            f"trained on {data}: {len(source):,} images of {height} x {width}{how_data}",
            f"scored on {many} images of {names[1]}{how_test}",
        ]
    return data, test, lines
