"""Trains what a table or figure is made of, and stands the published numbers beside the own."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from threedident.baselines.checks import check_device_name, check_devices
from threedident.baselines.experiment import Experiment
from threedident.baselines.reproduce.comparison import collect, write_comparison
from threedident.baselines.reproduce.scales import Rendering, Scale, changes_of, find_scale
from threedident.baselines.reproduce.studies import TEST, TRAIN, Row, Study, find_study
from threedident.baselines.training import run_folder as rundir
from threedident.datasets.formats.sources import open_source
from threedident.errors import DatasetError, UsageError
from threedident.progress import Progress, format_seconds
from threedident.storage.atomic_files import explaining_write_errors, read_json, write_json
from threedident.storage.directory import MANIFEST, DatasetDir, latents_digest

RUNS, CLAIM = "runs", "reproduce.json"
FORMAT = "3dident-reproduction"

_INTERRUPTED = (130, -signal.SIGINT)  # what the command line exits with after Ctrl-C
_GRACE = 60.0  # seconds in which a renderer stops after Ctrl-C

Trainer = Callable[..., dict[str, Any]]


def reproduce(
    what: str,
    out: Path,
    *,
    rows: str | Sequence[str] | None = None,
    seeds: int | None = None,
    scale: str = "paper",
    changes: Mapping[str, Any] | None = None,
    data: Path | None = None,
    test: Path | None = None,
    datasets: Path | None = None,
    devices: int = 1,
    device: str = "auto",
    threads: int | None = None,
    quiet: bool = False,
    train: Trainer | None = None,
    accelerator: str | None = None,
) -> Path:
    """Trains the missing runs of a study one after the other, and compares.

    Runs lie in `out/runs/ROW/seedK`. After every run that finishes, `table.md`, `table.csv` and
    `figure.png` in `out` are written anew. Killed and started again, it goes on where it was.

    Args:
        what: a name of `STUDIES`.
        out: the folder, of one study at one scale; it keeps to the datasets it began with.
        rows: names or globs, a list or separated by commas; None for all.
        seeds: of each row; None: the scale's.
        scale: a name of `SCALES`.
        changes: of every experiment, by dotted name, beyond the scale's.
        data, test: images to train and to score on; None: those in `datasets`.
        datasets: a folder of datasets by name, where what is missing is rendered by the direct
            engine; None: `out/data`.
        devices, device, threads, quiet: see `train`.
        train: stands in for `threedident.baselines.training.loop.train`.
        accelerator: the old name of `device`.

    Returns:
        The path of the table.

    Raises:
        UsageError: an argument does not fit, or `out` holds something else.
        DatasetError: data cannot be rendered, read or written.
        TrainingError: a training fails; finished runs stay.
    """
    device = check_device_name(device, accelerator)
    study, cut = find_study(what), find_scale(scale)
    chosen = study.choose(rows)
    count = _seeds(study, cut, seeds)
    if study.kind != "images" and not data is test is datasets is None:
        raise UsageError(f"{what} makes its own observations: leave out the datasets")
    used = {
        each.name for row in study.rows for each in (row.train_on, row.score_on) if each is not None
    }
    if study.kind == "images" and not (
        (data is None or TRAIN in used) and (test is None or TEST in used)
    ):
        raise UsageError(
            f"{what} compares datasets of its own: leave out --data and --test, or say where they "
            "lie by --datasets"
        )
    planned = [
        (row, seed, _experiment(study, row, seed, cut, changes or {}, out))
        for seed in range(count)
        for row in chosen
        if not _is_known(study, row, seed)
    ]
    for _, _, experiment in planned:
        check_devices(experiment, devices, device)
    for path in filter(None, (data, test)):
        _describe(path)  # what cannot be read is said before anything is written
    _claim(out, study, scale)
    images = _Images(
        out,
        out / "data" if datasets is None else datasets,
        {TRAIN: data, TEST: test},
        cut.rendering,
    )
    if not quiet:
        done = sum(_is_finished(out, row, seed) for row, seed, _ in planned)
        Progress.print(
            f"{study.name} at scale {scale}: {len(planned)} runs, {done} of them finished already; "
            f"writes to {out}; Ctrl-C stops, and the same command goes on"
        )
    for number, (row, seed, experiment) in enumerate(planned):
        folder = run_folder(out, row.name, seed)
        finished = _is_finished(out, row, seed)
        if not (quiet or finished):
            Progress.print(
                f"run {number + 1} of {len(planned)}: {row.name}, seed {seed}"
                + _estimate(out, planned)
            )
        where: dict[str, Path | None] = {"data": None, "test": None}
        if study.kind == "images":
            # The pixels themselves are scored on the test images alone.
            where["data"] = None if row.identity else images.path(row.train_on.name)
            where["test"] = images.path(row.score_on.name)
        if row.identity:
            score_observations(experiment, folder, where["test"])
        else:
            (train or _trainer())(
                experiment,
                folder,
                **where,
                devices=devices,
                device=device,
                threads=threads,
                quiet=quiet,
            )
        images.record()
        if not finished:
            write_comparison(study, scale, collect(study, out / RUNS), out, _notes(out))
    return write_comparison(study, scale, collect(study, out / RUNS), out, _notes(out))


def run_folder(out: Path, row: str, seed: int) -> Path:
    """Where a run of a reproduction lies."""
    return out / RUNS / row / f"seed{seed}"


def _trainer() -> Trainer:
    """`train`, which loads torch."""
    from threedident.baselines.training.loop import train

    return train


def _is_finished(out: Path, row: Row, seed: int) -> bool:
    return (run_folder(out, row.name, seed) / rundir.RESULT).exists()


def _estimate(out: Path, planned: Sequence[tuple[Row, int, Experiment]]) -> str:
    """How long the rest may take, for a line; empty where no run tells."""
    trained = [(row, seed) for row, seed, _ in planned if not row.identity]
    done = [each for each in trained if _is_finished(out, *each)]
    if not done:
        return ""
    results = [rundir.read_result(run_folder(out, row.name, seed)) for row, seed in done]
    each = float(np.mean([result["seconds"] for result in results]))
    left = format_seconds(each * (len(trained) - len(done)))
    return f"; about {left} of training left, at {format_seconds(each)} a run"


def _seeds(study: Study, cut: Scale, seeds: int | None) -> int:
    if seeds is None:
        return cut.seeds or study.seeds
    if seeds < 1:
        raise UsageError(f"expected at least 1 seed, found {seeds}")
    return seeds


def _is_known(study: Study, row: Row, seed: int) -> bool:
    """Whether a run would only repeat another: nothing is random about given pixels."""
    return row.identity and study.kind == "images" and seed > 0


def _experiment(
    study: Study, row: Row, seed: int, cut: Scale, changes: Mapping[str, Any], out: Path
) -> Experiment:
    """What a run trains."""
    full = row.published_experiment()
    every = {**changes_of(cut, study, row), **changes}
    if row.start:
        every["start"] = str(run_folder(out, row.start, seed).absolute())
    return full.changed({**every, "training.seed": seed})


def _claim(out: Path, study: Study, scale: str) -> None:
    """Makes the folder one of this study and scale, or checks that it is.

    Raises:
        UsageError: it holds another, or something else.
        DatasetError: it cannot be written to.
    """
    path = out / CLAIM
    asked = {"format": FORMAT, "study": study.name, "scale": scale}
    if path.exists():
        there = read_json(path)
        there = there if isinstance(there, dict) else {}
        if any(there.get(key) != value for key, value in asked.items()):
            known = there.get("format") == FORMAT
            what = f"{there.get('study')} at scale {there.get('scale')}" if known else "other files"
            raise UsageError(
                f"{out} holds {what}, asked for {study.name} at scale {scale}: choose another --out"
            )
        return
    if out.exists() and (not out.is_dir() or any(each.name != "data" for each in out.iterdir())):
        raise UsageError(f"{out} is not empty and holds no reproduction: choose another --out")
    with explaining_write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    write_json(path, asked)


def _datasets(out: Path) -> dict[str, dict[str, Any]]:
    """What the datasets of a folder's runs are, by name."""
    there = read_json(out / CLAIM).get("datasets")
    known = there.items() if isinstance(there, dict) else ()
    return {name: about for name, about in known if isinstance(about, dict)}


def _describe(path: Path) -> dict[str, str]:
    """What a dataset is: a text for people, and its latents' digest."""
    with open_source(path) as source:
        side, engine = source.shape[0], ""
        if source.manifest is not None:
            made_by = source.manifest.engine
            engine = f", {made_by['name']} engine, quality {made_by['quality']}"
        what = f"{len(source):,} images of {side} x {side}{engine}"
        return {"what": what, "latents": latents_digest(source.raw_latents)}


def _notes(out: Path) -> list[str]:
    """A line on each dataset that runs in a folder use."""
    return [f"{name}: {about.get('what')}" for name, about in _datasets(out).items()]


class _Images:
    """Datasets by name: given, found in a folder, or rendered into it when they are needed.

    A reproduction keeps to those that its runs used, so that no table mixes two.
    """

    def __init__(
        self, out: Path, folder: Path, given: Mapping[str, Path | None], rendering: Rendering
    ) -> None:
        self._out, self._folder, self._rendering = out, folder, rendering
        self._given = {name: path for name, path in given.items() if path is not None}
        self._paths: dict[str, Path] = {}
        self._found: dict[str, dict[str, str]] = {}

    def path(self, name: str) -> Path:
        """Where a dataset lies; one that is not there, or not whole, is rendered first.

        Raises:
            UsageError: finished runs used another.
            DatasetError: it cannot be rendered or read.
        """
        if name not in self._paths:
            path = self._given.get(name)
            if path is None:
                path = self._folder / name
                _render(path, name, self._rendering, *self._like_the_given())
            found = _describe(path)
            before = _datasets(self._out).get(name, found)
            if before != found:
                raise UsageError(
                    f"{self._out} holds runs on another {name}: {before.get('what')} (latents "
                    f"{before.get('latents')!s:.12}), found {found['what']} (latents "
                    f"{found['latents']:.12}) in {path}: give it the data it began with, or "
                    "choose another --out"
                )
            self._paths[name], self._found[name] = path, found
        return self._paths[name]

    def record(self) -> None:
        """Ties the reproduction to the datasets of the runs that have finished.

        Raises:
            DatasetError: its folder cannot be written to.
        """
        before = _datasets(self._out)
        if before != (now := {**before, **self._found}):
            path = self._out / CLAIM
            write_json(path, {**read_json(path), "datasets": now})

    def _like_the_given(self) -> tuple[int, str]:
        """Resolution and quality: those of the datasets that were given, if any."""
        resolution, quality = self._rendering.resolution, self._rendering.quality
        for name in (TEST, TRAIN):
            if name in self._given:
                with open_source(self._given[name]) as source:
                    resolution = int(source.shape[0])
                    if source.manifest is not None and source.manifest.engine["quality"]:
                        quality = str(source.manifest.engine["quality"])
        return resolution, quality


def _render(folder: Path, name: str, sizes: Rendering, resolution: int, quality: str) -> None:
    """Renders a dataset of a known name, or what is missing of it, by the `render` command.

    Raises:
        DatasetError: it does not get finished.
    """
    kind, _, rest = name.partition("-")
    preset, split, total = TRAIN, "train", sizes.images
    command = ["--engine", "direct", "--resolution", str(resolution), "--quality", quality]
    if kind == "pairs":
        conditional, width = rest.split("-")
        option = {"normal": "--sigma", "laplace": "--lambda"}[conditional]
        command += ["--pairs", "--conditional", conditional, option, width]
        total = sizes.pairs
    else:
        preset = name.removeprefix("generator-").removesuffix("-test")
        if kind == "generator":
            total = sizes.generators
        if name.endswith("-test"):
            split, total = "test", sizes.test
    if (folder / MANIFEST).exists():
        there = DatasetDir.open(folder)
        images = total * 2 if kind == "pairs" else total
        whole = sum(interval.count for interval in there.shards()) >= images
        asked = (resolution, "direct", quality)
        engine = there.manifest.engine
        if whole and (there.manifest.resolution, engine["name"], engine["quality"]) == asked:
            return
    command += ["--preset", preset, "--split", split, "--n", str(total), "--out", str(folder)]
    Progress.print(f"rendering {name}: {total:,} {'pairs' if kind == 'pairs' else 'images'}")
    # A process of its own: the command is the one way into rendering. Without -P, Python would
    # look for modules in the working directory first.
    program = [sys.executable, "-P", "-m", "threedident", "render"]
    if _run_to_its_end([*program, *command]):
        raise DatasetError(
            f"{folder} could not be rendered; the reason stands above. What is finished is kept: "
            "start the same command again to continue, or give datasets of your own"
        )


def _run_to_its_end(command: Sequence[str]) -> int:
    """Runs a program, its output on stderr; returns what it exits with.

    Raises:
        KeyboardInterrupt: it was interrupted; it has ended by then.
    """
    child = subprocess.Popen(command, stdout=sys.stderr)
    interrupted, patience = False, None
    try:
        while child.poll() is None:
            try:
                child.wait(patience)
            except KeyboardInterrupt:
                # A terminal's Ctrl-C reached the child as well: it keeps what it has and stops.
                interrupted, patience = True, _GRACE
            except subprocess.TimeoutExpired:
                child.terminate()  # the interrupt was for this process alone
                patience = None
    except BaseException:
        child.terminate()
        with contextlib.suppress(KeyboardInterrupt):
            child.wait()
        raise
    if interrupted or child.returncode in _INTERRUPTED:
        raise KeyboardInterrupt
    return child.returncode


def score_observations(experiment: Experiment, folder: Path, test: Path | None) -> None:
    """Scores the observations as they are, the identity baseline, into a `result.json`.

    Synthetic: g(z) on as many fresh batches as a training is scored on. Images: all pixels, by a
    regression of minimum norm, fitted on the first half of the test images.

    Args:
        experiment: whose observations; its loss and encoder do not count.
        folder: of the run.
        test: images; None for synthetic observations.

    Raises:
        UsageError: the images do not fit.
        DatasetError: they cannot be read, or the result not be written.
    """
    asked = experiment.as_dict()
    if (folder / rundir.RESULT).exists() and rundir.read_result(folder)["experiment"] == asked:
        return
    began = time.monotonic()
    scores, about = _of_vectors(experiment) if test is None else _of_pixels(experiment, test)
    with explaining_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    content = {
        "format": rundir.FORMAT,
        "format_version": rundir.FORMAT_VERSION,
        "experiment": asked,
        "scores": scores,
        "per_factor": {},
        "learned": {},
        "steps": 0,
        "seconds": time.monotonic() - began,
        "hardware": "",
        "data": about,
    }
    write_json(folder / rundir.RESULT, content)


def _of_vectors(experiment: Experiment) -> tuple[dict[str, float], dict[str, Any]]:
    import torch

    from threedident.baselines.data import make_problem
    from threedident.evaluate.metrics import linear_r2, mcc

    settings = experiment.training
    problem = make_problem(
        experiment, data=None, test=None, batch_size=1, device=torch.device("cpu")
    )
    found = []
    for number in range(1, settings.final_batches + 1):
        z, x = (each.numpy() for each in problem.fresh(max(settings.batch_size, 256), number))
        found.append((linear_r2(z, x, folds="in-sample").value, mcc(z, x).value))
    r2, correlation = np.mean(found, 0).tolist()
    return {"linear_r2": r2, "mcc": correlation}, problem.about


def _of_pixels(experiment: Experiment, test: Path) -> tuple[dict[str, float], dict[str, Any]]:
    from threedident.datasets.dataset import ThreeDIdent
    from threedident.evaluate.metrics import linear_r2
    from threedident.evaluate.reference_encoders import MOST_WHOLE, run_reference
    from threedident.evaluate.submissions.submission import identify

    class First(ThreeDIdent):
        """The first images of a test set, as many as a training is scored on."""

        def __len__(self) -> int:
            return min(super().__len__(), experiment.training.score_samples, MOST_WHOLE)

    images = First(test)
    codes = run_reference(identify("reference:identity=full"), images).codes
    r2 = linear_r2(images.raw_latents[: len(images)].numpy(), codes, folds="single")
    about = {"observations": "images", "resolution": int(images.source.shape[0])}
    return {"linear_r2": r2.value}, about
