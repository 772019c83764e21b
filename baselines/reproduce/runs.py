"""Reproductions: the runs of a study, trained one after the other, and compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from threedident.baselines.checks import check_device_name, check_devices
from threedident.baselines.experiment import Experiment
from threedident.baselines.reproduce.blocks import score_blocks
from threedident.baselines.reproduce.comparison import write_comparison
from threedident.baselines.reproduce.images import (
    CLAIM,
    Images,
    check_given,
    describe_images,
    read_images_of,
)
from threedident.baselines.reproduce.observations import score_observations
from threedident.baselines.reproduce.outcomes import collect
from threedident.baselines.reproduce.readouts import score_readout
from threedident.baselines.reproduce.run_scores import score_run
from threedident.baselines.reproduce.scales import Scale, changes_of, find_scale
from threedident.baselines.reproduce.studies import Row, Study, find_study
from threedident.baselines.reproduce.untrained import begin_untrained
from threedident.baselines.training.run_folder import RESULT, read_result
from threedident.errors import UsageError
from threedident.progress import Progress, format_seconds
from threedident.storage.atomic_files import explaining_write_errors, read_json, write_json

RUNS = "runs"
FORMAT = "3dident-reproduction"

Trainer = Callable[..., dict[str, Any]]

#: What a study sets itself, and how.
_OWN = {"training.seed": "--seeds counts them", "start": "rows that have one begin there"}


def reproduce(
    what: str,
    out: str | Path,
    *,
    rows: str | Sequence[str] | None = None,
    seeds: int | None = None,
    scale: str = "paper",
    changes: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    test: str | Path | None = None,
    datasets: str | Path | None = None,
    devices: int = 1,
    device: str = "auto",
    threads: int | None = None,
    quiet: bool = False,
    train: Trainer | None = None,
    accelerator: str | None = None,
) -> Path:
    """Train the missing runs of a study one after the other, and compare them with the paper.

    Runs lie in `out/runs/ROW/seedK`. After every run that finishes, `table.md`, `table.csv` and
    `figure.png` in `out` are written anew. Killed and started again, it goes on where it was.

    Args:
        what: the name of a study, see `STUDIES`.
        out: the folder, for one study at one scale; it keeps to the datasets it began with.
        rows: the names or globs of rows, a list or separated by commas; None for all.
        seeds: the number of seeds of each row; None: the scale's.
        scale: the name of a scale, see `SCALES`.
        changes: the changes of every experiment, by dotted name, beyond the scale's.
        data: the images to train on; None: those in `datasets`.
        test: the images to score on; None: those in `datasets`.
        datasets: the folder of datasets by name, where what is missing is rendered by the direct
            engine; None: `out/data`.
        devices, device, threads, quiet: the arguments of `train`.
        train: the function that stands in for `threedident.baselines.training.loop.train`.
        accelerator: the old name of `device`.

    Returns:
        The path of the table.

    Raises:
        UsageError: an argument does not fit, or `out` holds something else.
        DatasetError: data cannot be rendered, read or written.
        TrainingError: a training fails; finished runs stay.
    """
    device = check_device_name(device, accelerator)
    out = Path(out)
    data, test, datasets = (None if path is None else Path(path) for path in (data, test, datasets))
    study, cut = find_study(what), find_scale(scale)
    chosen = study.choose(rows)
    count = _count_seeds(study, cut, seeds)
    for name, why in _OWN.items():
        if name in (changes or {}):
            raise UsageError(f"a study sets {name} itself ({why}): leave it out of --set")
    _check_images(study, data, test, datasets)
    runs = [
        _Run(row, seed, _experiment(study, row, seed, cut, changes or {}, out), out)
        for seed in range(count)
        for row in chosen
        if not _repeats_another(study, row, seed)
    ]
    for run in runs:
        check_devices(run.experiment, devices, device)
    given: dict[str, Path | None] = dict(zip(study.given, (data, test), strict=True))
    if study.kind == "papers":
        given = {
            each.name: data and data.with_name(data.name + each.variant)
            for each in study.image_sets
        }
        for each in study.image_sets:
            check_given(each, data, draws=cut.draws)
    for path in filter(None, (data, test)):
        describe_images(path)  # so that nothing is written where they cannot be read
    _claim(out, study, scale)
    images = Images(
        out,
        out / "data" if datasets is None else datasets,
        given,
        cut.rendering_of(study),
        draws=cut.draws,
        quiet=quiet,
    )
    if not quiet:
        Progress.print(
            f"{study.name} at scale {scale}: {len(runs)} runs, "
            f"{sum(run.is_finished for run in runs)} of them finished already; "
            f"writes to {out}; Ctrl-C stops, and the same command goes on"
        )
    for number, run in enumerate(runs):
        finished = run.is_finished
        if not (quiet or finished):
            Progress.print(
                f"run {number + 1} of {len(runs)}: {run.row.name}, seed {run.seed}{_estimate(runs)}"
            )
        row = run.row
        train_on = None if row.train_on is None or row.identity else images.path(row.train_on)
        score_on = None if row.score_on is None else images.path(row.score_on)
        if row.identity:
            score_observations(run.experiment, run.folder, score_on)
        elif row.untrained:
            assert train_on is not None
            begin_untrained(run.experiment, run.folder, train_on, score_on)
        else:
            if train is None and run.experiment.data.mixing == "decoder" and not finished:
                _share_decoder(run, out, quiet=quiet)
            (train or _trainer())(
                run.experiment,
                run.folder,
                data=train_on,
                test=score_on,
                devices=devices,
                device=device,
                threads=threads,
                quiet=quiet,
            )
        if study.kind == "views" and score_on is not None:
            score_blocks(run.folder, score_on)
        if study.kind == "papers" and score_on is not None:
            score_run(run.folder, score_on, study.metrics, cut.scoring)
        if study.kind == "readout" and score_on is not None:
            score_readout(run.folder, score_on, quiet=quiet)
        images.record()
        if not finished:
            _compare(study, scale, out)
    return _compare(study, scale, out)


@dataclasses.dataclass(frozen=True)
class _Run:
    """A row at one seed."""

    row: Row
    seed: int
    experiment: Experiment
    out: Path

    @property
    def folder(self) -> Path:
        return run_folder(self.out, self.row.name, self.seed)

    @property
    def is_finished(self) -> bool:
        return (self.folder / RESULT).exists()


def _check_images(
    study: Study, data: Path | None, test: Path | None, datasets: Path | None
) -> None:
    """Refuse datasets that a study has no use for."""
    if not study.of_images:
        if any(path is not None for path in (data, test, datasets)):
            raise UsageError(f"{study.name} makes its own observations: leave out the datasets")
        return
    if study.kind == "papers":
        if test is not None or datasets is not None:
            raise UsageError(
                f"{study.name} is scored on the images that it is trained on, as published: leave "
                "out --test and --datasets, and say by --data where the dataset lies"
            )
        return
    used = {each.name for each in study.image_sets}
    train_on, score_on = study.given
    if (data is not None and train_on not in used) or (test is not None and score_on not in used):
        raise UsageError(
            f"{study.name} compares datasets of its own: leave out --data and --test, or say where "
            "they lie by --datasets"
        )


def _compare(study: Study, scale: str, out: Path) -> Path:
    """Write the comparison, with a line on each dataset that runs have used."""
    notes = [f"{name}: {about.get('what')}" for name, about in read_images_of(out).items()]
    return write_comparison(study, scale, collect(study, out / RUNS), out, notes)


def run_folder(out: Path, row: str, seed: int) -> Path:
    """Return where a run of a reproduction lies.

    Args:
        out: the folder of the reproduction.
        row: the name of the row.
        seed: the seed.
    """
    return out / RUNS / row / f"seed{seed}"


def _trainer() -> Trainer:
    """Import `train`, which loads torch."""
    from threedident.baselines.training.loop import train

    return train


def _share_decoder(run: _Run, out: Path, *, quiet: bool) -> None:
    """Give a run the decoder that all rows share; imports torch."""
    from threedident.baselines.training.decoder import share_decoder

    share_decoder(run.experiment, out, run.folder, quiet=quiet)


def _estimate(runs: Sequence[_Run]) -> str:
    """Estimate the time of the rest, as words of a line; empty where no run tells."""
    trained = [run for run in runs if run.row.is_trained]
    finished = [run for run in trained if run.is_finished]
    if not finished:
        return ""
    each = float(np.mean([read_result(run.folder)["seconds"] for run in finished]))
    left = format_seconds(each * (len(trained) - len(finished)))
    return f"; about {left} of training left, at {format_seconds(each)} a run"


def _count_seeds(study: Study, cut: Scale, seeds: int | None) -> int:
    if seeds is None:
        return cut.seeds or study.seeds
    if seeds < 1:
        raise UsageError(f"expected at least 1 seed, found {seeds}")
    return seeds


def _repeats_another(study: Study, row: Row, seed: int) -> bool:
    """Whether a run would only repeat another: nothing is random about given pixels."""
    return row.identity and study.of_images and seed > 0


def _experiment(
    study: Study, row: Row, seed: int, cut: Scale, changes: Mapping[str, Any], out: Path
) -> Experiment:
    """The experiment of a run."""
    full = row.published_experiment()
    every = {**changes_of(cut, study, row), **changes}
    if row.start:
        every["start"] = str(run_folder(out, row.start, seed).absolute())
    return full.changed({**every, "training.seed": seed})


def _claim(out: Path, study: Study, scale: str) -> None:
    """Make the folder one of this study and scale, or checks that it is.

    Raises:
        UsageError: it holds another, or something else.
        DatasetError: it cannot be written to.
    """
    path = out / CLAIM
    record = {"format": FORMAT, "study": study.name, "scale": scale}
    if path.exists():
        content = read_json(path)
        claim = content if isinstance(content, dict) else {}
        if any(claim.get(key) != value for key, value in record.items()):
            known = claim.get("format") == FORMAT
            held = f"{claim.get('study')} at scale {claim.get('scale')}" if known else "other files"
            raise UsageError(
                f"{out} holds {held}, asked for {study.name} at scale {scale}: choose another --out"
            )
        return
    if out.exists() and (not out.is_dir() or any(each.name != "data" for each in out.iterdir())):
        raise UsageError(f"{out} is not empty and holds no reproduction: choose another --out")
    with explaining_write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    write_json(path, record)
