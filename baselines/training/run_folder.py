"""The folder of a run: its files, its claim, and the lock that keeps other processes out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from threedident.baselines.experiment import Experiment, load_experiment
from threedident.baselines.training.training_log import METRICS
from threedident.datasets.formats import open_dataset
from threedident.datasets.papers import is_drawn
from threedident.errors import DatasetError, UsageError
from threedident.storage.atomic_files import (
    explaining_write_errors,
    read_json,
    replacing,
    write_json,
)
from threedident.storage.locks import lock
from threedident.system import file_digest

EXPERIMENT, PLACES, RESULT = "experiment.toml", "data.json", "result.json"
CHECKPOINT, PREVIOUS = "checkpoint.pt", "checkpoint.previous.pt"
#: The file of a run's encoder.
ENCODER = "encoder.pt"
DECODER = "decoder.pt"  # of an autoencoder; or the one that makes the observations
FORMAT, FORMAT_VERSION = "3dident-run", 1
#: The digests of latents and of images in the record of a run's data, by the option that names
#: the images. That of images is None where the other is of images, too, and in earlier records.
DIGESTS = {"data": ("latents", "pixels"), "test": ("test_latents", "test_pixels")}

Digests = tuple[str | None, str | None]

_LOCK = ".lock"
_FREE = ("log_every", "score_every", "checkpoint_every")  # of no effect on what is learned


def encoder_digest(out: Path) -> str:
    """SHA-256 of the encoder of a run, by which scores know what they are of.

    Args:
        out: the run folder, or the encoder's file.

    Raises:
        DatasetError: it cannot be read.
    """
    path = out / ENCODER if out.is_dir() else out
    try:
        return file_digest(path)
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error}") from error


def check(
    experiment: Experiment, out: Path, data: Path | None = None, test: Path | None = None
) -> dict[str, Any] | None:
    """Check that a folder can take a run; nothing is written.

    Args:
        experiment: the experiment that is asked for.
        out: the folder.
        data: the images that a finished run must have been trained on; None: any images.
        test: the images that a finished run must have been scored on; None: any images.

    Returns:
        The content of `result.json`, where that is finished already.

    Raises:
        UsageError: it holds a run of another experiment or other data, or something else.
        DatasetError: what is there is damaged.
    """
    if not (out / EXPERIMENT).exists():
        others = out.is_dir() and {each.name for each in out.iterdir()} - {_LOCK, PLACES, DECODER}
        if others or (out.exists() and not out.is_dir()):
            raise UsageError(f"{out} is not empty and holds no run: choose another --out")
        return None
    if not has_begun(out):
        return None
    there = load_experiment(out / EXPERIMENT)
    steps = experiment.training.steps
    if _identity(there.changed({"training.steps": steps})) != _identity(experiment):
        raise UsageError(
            f"{out} holds a run of {describe_difference(there, experiment)}: choose another "
            f"--out (`3dident train --resume {out}` goes on with what it holds)"
        )
    _refuse_other_steps(there, experiment, out)
    if not (out / RESULT).exists():
        return None
    result = read_result(out)
    if result["steps"] != steps:
        return None
    for name, images in (("data", data), ("test", test)):
        latents, pixels = (result["data"].get(key) for key in DIGESTS[name])
        if images is not None and latents is not None:
            with open_dataset(images) as source:
                now = source.fingerprint, source.pixels_fingerprint
            refuse_other_data(out, name, (latents, pixels), now, images)
    return result


def has_begun(out: Path) -> bool:
    """Tell whether a run has written to a folder; one that is only claimed can become another's.

    Args:
        out: the folder.
    """
    return (out / EXPERIMENT).exists() and any(
        (out / name).exists() for name in (CHECKPOINT, PREVIOUS, METRICS, RESULT)
    )


def _refuse_other_steps(run: Experiment, experiment: Experiment, out: Path) -> None:
    """Raise a UsageError where a run cannot be made as long as an experiment says."""
    before, steps = run.training.steps, experiment.training.steps
    if steps == before:
        return
    held = f"{out} holds a run of {run.name!r} with training.steps = {before}, asked for {steps}"
    anew = f"train anew into another --out with --set training.steps={steps}"
    if experiment.training.schedule == "constant":
        if steps < before:
            raise UsageError(
                f"{held}: a run can be made longer, and not shorter; {anew} (`3dident train "
                f"--resume {out}` goes on with what it holds)"
            )
        return
    ends = "which takes the learning rate to 0 at the last step"
    if (out / RESULT).exists():
        raise UsageError(
            f"{held}: it is finished, under training.schedule = {run.training.schedule}, {ends}, "
            f"so that it cannot be extended; {anew} (and, for a run that can be extended later, "
            "--set training.schedule=constant)"
        )
    raise UsageError(
        f"{held}: under training.schedule = {run.training.schedule}, {ends}, the number of steps "
        f"is fixed from the beginning; `3dident train --resume {out}` goes on to step {before}, or "
        f"{anew}"
    )


def load_run(out: Path, changes: Mapping[str, Any] | None = None) -> Experiment:
    """Load the experiment of a run, to go on with.

    Args:
        out: the run folder.
        changes: the changes by dotted name: of training.steps, or of fields without effect on
            what is learned.

    Raises:
        UsageError: it holds no run, or a change would make it another.
        DatasetError: what is there is damaged.
    """
    if not (out / EXPERIMENT).exists():
        raise UsageError(f"{out} holds no run: there is no {EXPERIMENT} in it")
    run = load_experiment(out / EXPERIMENT)
    free = [f"training.{name}" for name in ("steps", *_FREE)]
    for name, value in (changes or {}).items():
        changed = run.changed({name: value})
        if name not in free and changed != run:
            raise UsageError(
                f"{name} cannot be set: {out} goes on as it began, holding "
                f"{describe_difference(run, changed)}: leave it out, or train anew into another "
                f"--out; of a run only {', '.join(free)} can be changed"
            )
    return run.changed(changes or {})


def claim(experiment: Experiment, out: Path, data: Path | None, test: Path | None) -> None:
    """Make a folder this run's.

    Args:
        experiment: the experiment.
        out: the folder.
        data: the images to train on, or None.
        test: the images to score on, or None.

    Raises:
        DatasetError: it cannot be written to.
    """
    start = _read_start(out) if has_begun(out) else _start_of(experiment)
    # First: a run that is extended is not finished any more.
    (out / RESULT).unlink(missing_ok=True)
    with replacing(out / EXPERIMENT) as temporary:
        temporary.write_text(experiment.to_toml(), "utf-8")
    places = {"data": data, "test": test}
    absolute = {k: None if v is None else _absolute(v) for k, v in places.items()}
    write_json(out / PLACES, {**absolute, "start": start})


def _absolute(path: Path) -> str:
    """The path of a dataset from anywhere; the name of drawn images as it is."""
    return str(path if is_drawn(path) else path.resolve())


def read_places(out: Path) -> dict[str, Path]:
    """Read where the data of a run were, by `data` and `test`.

    Args:
        out: the run folder.
    """
    plain = read_json(out / PLACES) if (out / PLACES).exists() else {}
    known = isinstance(plain, dict)
    return {k: Path(v) for k, v in plain.items() if isinstance(v, str)} if known else {}


def read_result(out: Path) -> dict[str, Any]:
    """Read the `result.json` of a finished run.

    Args:
        out: the run folder.

    Raises:
        DatasetError: it is damaged, or another file.
    """
    result = read_json(out / RESULT)
    fields: dict[str, Any] = {"experiment": dict, "scores": dict, "data": dict, "steps": int}
    fields["seconds"] = float | int
    whole = isinstance(result, dict) and all(
        isinstance(result.get(key), kind) for key, kind in fields.items()
    )
    if not whole or result.get("format") != FORMAT:
        raise DatasetError(f"{out / RESULT} is damaged: remove it to score the run again")
    whole_result: dict[str, Any] = result
    return whole_result


@contextlib.contextmanager
def only_one(out: Path) -> Iterator[None]:
    """Hold a run folder for this process.

    Args:
        out: the folder.

    Raises:
        UsageError: another process has it.
        DatasetError: it cannot be written to.
    """
    with explaining_write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        file = (out / _LOCK).open("w")
    with contextlib.ExitStack() as stack:
        stack.callback(_leave_nothing_empty, out)
        stack.enter_context(file)
        if not lock(file):
            raise UsageError(
                f"another process trains in {out}: wait for it, or choose another --out"
            )
        yield


def _leave_nothing_empty(out: Path) -> None:
    """Remove a folder that holds nothing but the lock: what did not fit leaves no trace."""
    with contextlib.suppress(OSError):
        if {each.name for each in out.iterdir()} == {_LOCK}:
            (out / _LOCK).unlink()
            out.rmdir()


def refuse_other_data(
    out: Path, name: str, before: Digests, now: Digests, images: Path | None
) -> None:
    """Refuse images that are not those that a run began with.

    Args:
        out: the run folder.
        name: the option that names the images, data or test.
        before: the digests, by `DIGESTS`, that it began with.
        now: those of the images that are asked for.
        images: the images that are asked for; None: synthetic ones, or those of `data`.

    Raises:
        UsageError: the latents differ, or the images where both digests of them are known.
    """
    others = None
    if before[0] != now[0]:
        others = "other images:", f" (latents {before[0]!s:.12})", f" (latents {now[0]!s:.12})"
    elif None not in (before[1], now[1]) and before[1] != now[1]:
        made = ", which another preset, engine, quality or size made"
        others = "other images of the same latents,", "", made
    if others is None:
        return
    places = read_places(out)
    held = places.get(name) or places.get("data")
    done = {"data": "trained", "test": "scored"}[name]
    what, of_held, of_images = others
    raise UsageError(
        f"{out} was {done} on {what} those of {held}{of_held}, asked for "
        f"{images or 'those of --data'}{of_images}: give it the same --{name}, or choose another "
        "--out"
    )


def _identity(experiment: Experiment) -> dict[str, Any]:
    """Return the fields that must stay the same for a run to go on."""
    plain = {k: v for k, v in experiment.as_dict().items() if k not in ("title", "source")}
    plain["start"] = bool(plain["start"])  # the folder may have moved
    if experiment.data.pairs == "rendered":
        plain["data"].pop("conditional", None)  # which is the images', stated or not
    for key in _FREE:
        plain["training"].pop(key)
    return plain


def check_start(experiment: Experiment, out: Path) -> str | None:
    """Check that a run which has begun did so with the weights that an experiment starts from.

    Args:
        experiment: the experiment that is asked for.
        out: the run folder.

    Returns:
        A warning where the encoder that the run started from is another by now; None where it is
        the same, and where nobody can tell: it is gone, or an earlier version began the run.

    Raises:
        UsageError: the run started from the encoder of another path, and that is another.
        DatasetError: the encoder cannot be read.
    """
    before = _read_start(out) if has_begun(out) else None
    now = None if before is None else _start_of(experiment)
    if before is None or now is None or before["sha256"] == now["sha256"]:
        return None
    if before["path"] == now["path"]:
        return (
            f"warning: the encoder of {now['path']} is another than the one that {out} started "
            "from, and keeps to: to train from what is there now, choose another --out"
        )
    raise UsageError(
        f"{out} started from the encoder of {before['path']}, asked for that of {now['path']}, "
        "which is another: choose another --out"
    )


def _start_of(experiment: Experiment) -> dict[str, str] | None:
    """The path and the digest of the encoder that an experiment starts from; None without one."""
    path = Path(experiment.start)
    path = path / ENCODER if path.is_dir() else path
    if not experiment.start or not path.exists():
        return None
    return {"path": str(path.resolve()), "sha256": encoder_digest(path)}


def _read_start(out: Path) -> dict[str, str] | None:
    """Read which encoder a run started from, as `_start_of` says it; None where it is not told."""
    plain = read_json(out / PLACES) if (out / PLACES).exists() else None
    start = plain.get("start") if isinstance(plain, dict) else None
    return start if isinstance(start, dict) and {"path", "sha256"} <= start.keys() else None


def describe_difference(run: Experiment, experiment: Experiment) -> str:
    """Name the first field in which two experiments differ, for an error.

    Args:
        run: the experiment that a folder holds.
        experiment: the experiment that is asked for.
    """
    if run.name != experiment.name:
        return f"{run.name!r}, asked for {experiment.name!r}"
    first, second = _identity(run), _identity(experiment)
    for section in first:
        a, b = first[section], second[section]
        if a != b and isinstance(a, dict):
            field = next(k for k in {**a, **b} if a.get(k) != b.get(k))
            return f"{run.name!r} with {section}.{field} = {a.get(field)}, asked for {b.get(field)}"
        if a != b:
            return f"{run.name!r} with {section} = {a!r}, asked for {b!r}"
    return repr(run.name)
