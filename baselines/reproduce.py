"""Trains what a table or figure is made of, and stands the published numbers beside the own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from threedident.baselines import training
from threedident.baselines.comparison import collect, write_comparison
from threedident.baselines.experiment import Experiment
from threedident.baselines.studies import (
    TEST,
    TRAIN,
    Rendering,
    Row,
    Scale,
    Study,
    find_scale,
    find_study,
)
from threedident.datasets.reading import open_source
from threedident.errors import DatasetError, UsageError
from threedident.files import explaining_write_errors, read_json, write_json
from threedident.progress import Progress
from threedident.store import MANIFEST, DatasetDir

RUNS, CLAIM = "runs", "reproduce.json"
FORMAT = "3dident-reproduction"

_INTERRUPTED = 130  # what the command line exits with after Ctrl-C

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
    accelerator: str = "auto",
    threads: int | None = None,
    quiet: bool = False,
    train: Trainer | None = None,
) -> Path:
    """Trains the missing runs of a study one after the other, and compares.

    Runs lie in `out/runs/ROW/seedK`. After every run that finishes, `table.md`, `table.csv` and
    `figure.png` in `out` are written anew. Killed and started again, it goes on where it was.

    Args:
        what: a name of `STUDIES`.
        out: the folder, of one study at one scale.
        rows: names or globs, a list or separated by commas; None for all.
        seeds: of each row; None: the scale's.
        scale: a name of `SCALES`.
        changes: of every experiment, by dotted name, beyond the scale's.
        data, test: images to train and to score on; None: those in `datasets`.
        datasets: a folder of datasets by name, where what is missing is rendered by the direct
            engine; None: `out/data`.
        devices, accelerator, threads, quiet: see `train`.
        train: stands in for `threedident.baselines.training.train`.

    Returns:
        The path of the table.

    Raises:
        UsageError: an argument does not fit, or `out` holds something else.
        DatasetError: data cannot be rendered, read or written.
        TrainingError: a training fails; finished runs stay.
    """
    study, cut = find_study(what), find_scale(scale)
    chosen = study.choose(rows)
    count = _seeds(study, cut, seeds)
    if study.kind != "images" and not data is test is datasets is None:
        raise UsageError(f"{what} makes its own observations: leave out the datasets")
    used = {name for row in study.rows for name in (row.data, row.test)}
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
    _claim(out, study, scale)
    images = _Images(
        out / "data" if datasets is None else datasets,
        {TRAIN: data, TEST: test},
        cut.rendering,
    )
    train = training.train if train is None else train
    for number, (row, seed, experiment) in enumerate(planned):
        folder = run_folder(out, row.name, seed)
        finished = (folder / training.RESULT).exists()
        if not (quiet or finished):
            Progress.print(f"run {number + 1} of {len(planned)}: {row.name}, seed {seed}")
        where: dict[str, Path | None] = {"data": None, "test": None}
        if study.kind == "images":
            # The pixels themselves are scored on the test images alone.
            where["data"] = None if row.identity else images.path(row.data)
            where["test"] = images.path(row.test)
        if row.identity:
            score_observations(experiment, folder, where["test"])
        else:
            train(
                experiment,
                folder,
                **where,
                devices=devices,
                accelerator=accelerator,
                threads=threads,
                quiet=quiet,
            )
        if not finished:
            write_comparison(study, scale, collect(study, out / RUNS), out, images.notes)
    return write_comparison(study, scale, collect(study, out / RUNS), out, images.notes)


def run_folder(out: Path, row: str, seed: int) -> Path:
    """Where a run of a reproduction lies."""
    return out / RUNS / row / f"seed{seed}"


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
    every = {
        **cut.changes.get(study.kind, {}),
        **cut.changes.get(f"{study.kind}-{full.encoder.output}", {}),
        **changes,
    }
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
        if there != asked:
            known = isinstance(there, dict) and there.get("format") == FORMAT
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


class _Images:
    """Datasets by name: given, found in a folder, or rendered into it when they are needed.

    Attributes:
        notes: a line on each dataset that was asked for.
    """

    def __init__(
        self, folder: Path, given: Mapping[str, Path | None], rendering: Rendering
    ) -> None:
        self._folder, self._rendering = folder, rendering
        self._paths = {name: path for name, path in given.items() if path is not None}
        self._given = set(self._paths)
        self.notes: list[str] = []

    def path(self, name: str) -> Path:
        """Where a dataset lies; one that is not there, or not whole, is rendered first.

        Raises:
            DatasetError: it cannot be rendered.
        """
        if name not in self._paths:
            resolution, quality = self._like_the_given()
            folder = self._folder / name
            _render(folder, name, self._rendering, resolution, quality)
            self._paths[name] = folder
        path = self._paths[name]
        note = _describe(name, path)
        if note not in self.notes:
            self.notes.append(note)
        return path

    def _like_the_given(self) -> tuple[int, str]:
        """Resolution and quality: those of the datasets that were given, if any."""
        resolution, quality = self._rendering.resolution, self._rendering.quality
        for name in (TEST, TRAIN):
            if name in self._given:
                with open_source(self._paths[name]) as source:
                    resolution = int(source.shape[0])
                    if source.manifest is not None and source.manifest.engine["quality"]:
                        quality = str(source.manifest.engine["quality"])
        return resolution, quality


def _describe(name: str, path: Path) -> str:
    with open_source(path) as source:
        manifest = source.manifest
        engine = ""
        if manifest is not None:
            engine = f", {manifest.engine['name']} engine, quality {manifest.engine['quality']}"
        side = source.shape[0]
        return f"{name}: {len(source):,} images of {side} x {side}{engine}"


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
    done = subprocess.run([*program, *command], stdout=sys.stderr, check=False)
    if done.returncode in (_INTERRUPTED, -2):
        raise KeyboardInterrupt
    if done.returncode:
        raise DatasetError(
            f"{folder} could not be rendered; the reason stands above. What is finished is kept: "
            "start the same command again to continue, or give datasets of your own"
        )


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
    if (folder / training.RESULT).exists() and read_json(folder / training.RESULT)[
        "experiment"
    ] == asked:
        return
    began = time.monotonic()
    scores, about = _of_vectors(experiment) if test is None else _of_pixels(experiment, test)
    with explaining_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    content = {
        "format": training.FORMAT,
        "format_version": training.FORMAT_VERSION,
        "experiment": asked,
        "scores": scores,
        "per_factor": {},
        "learned": {},
        "steps": 0,
        "seconds": time.monotonic() - began,
        "hardware": "",
        "data": about,
    }
    write_json(folder / training.RESULT, content)


def _of_vectors(experiment: Experiment) -> tuple[dict[str, float], dict[str, Any]]:
    import torch

    from threedident.baselines.problem import make_problem
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
    from threedident.evaluate.reference import MOST_WHOLE, run_reference
    from threedident.evaluate.submission import identify

    class First(ThreeDIdent):
        """The first images of a test set, as many as a training is scored on."""

        def __len__(self) -> int:
            return min(super().__len__(), experiment.training.score_samples, MOST_WHOLE)

    images = First(test)
    codes = run_reference(identify("reference:identity=full"), images).codes
    r2 = linear_r2(images.raw_latents[: len(images)].numpy(), codes, folds="single")
    about = {"observations": "images", "resolution": int(images.source.shape[0])}
    return {"linear_r2": r2.value}, about
