"""An entry scored again: on the data it was scored on, or on images nobody has seen."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

from threedident import defaults
from threedident.datasets.formats import open_rendered
from threedident.errors import RenderError, UsageError
from threedident.evaluate.evaluation import evaluate_inputs
from threedident.evaluate.inputs import Inputs, check_inputs
from threedident.evaluate.leaderboard.entries import Run
from threedident.evaluate.metric_report import MetricReport
from threedident.evaluate.report.labels import in_order
from threedident.evaluate.runner.process import BATCH_SIZE
from threedident.evaluate.scores_file import DataRecord, ScoresFile
from threedident.evaluate.scoring import check_seed
from threedident.evaluate.submissions.submission import Submission, digest, identify
from threedident.evaluate.test_set import TestSet
from threedident.presets import Preset, load_preset, preset_names
from threedident.render.content import dataset_settings
from threedident.render.dataset import render_dataset
from threedident.render.settings import EngineSettings, probe
from threedident.storage.manifest import read_manifest, settings_fingerprint

TOLERANCE = 1e-6
FRESH_IMAGES = defaults.FRESH_IMAGES
_BOOTSTRAP = defaults.BOOTSTRAP
_SPLIT = "test"


@dataclasses.dataclass(frozen=True)
class EncoderChoice:
    """The encoder to run for an entry, and how.

    Attributes:
        submission: a file or name, as for `3dident evaluate`; None: the one that the entry keeps.
        checkpoint: the file that a Python factory gets.
        train: the images that reference:pca is fitted on.
        trust: whether code of the authors may run.
    """

    submission: str | None = None
    checkpoint: Path | None = None
    train: Path | None = None
    trust: bool = False


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The outcome of scoring an entry again.

    Attributes:
        holds: whether the entry holds.
        lines: the comparisons, a line each.
        faults: the reasons why it does not hold.
    """

    holds: bool
    lines: tuple[str, ...]
    faults: tuple[str, ...]


def recheck(run: Run, data: Path, encoder: EncoderChoice = EncoderChoice()) -> Verdict:
    """Score an entry's submission again on the data that its scores are of.

    Args:
        run: the entry at one seed.
        data: the path of that test set.
        encoder: the encoder to run.

    Returns:
        That it holds if hashes are equal, and scores within 1e-6.

    Raises:
        UsageError: there is nothing to run, it fails, or the data is another.
        DatasetError: the test set cannot be read.
    """
    inputs = _inputs(run, data, encoder)
    _refuse_other_data(run, inputs.data)
    rescored = _rescore(run, inputs, bootstrap=0)
    faults = _different_submission(run, rescored)
    lines = []
    for name in in_order(run.scores.scores):
        claimed, again = run.scores.scores[name], rescored.scores[name]
        off = _largest_difference(claimed, again)
        lines.append(
            f"{name}: claimed {_shown(claimed.value)}, found {_shown(again.value)}, largest "
            f"difference {off:.1e}"
        )
        if not off <= TOLERANCE:
            faults.append(f"{name} differs by {off:.1e}, more than {TOLERANCE:g}")
    return Verdict(not faults, tuple(lines), tuple(faults))


def check_encoder(run: Run, encoder: EncoderChoice) -> None:
    """Refuse an encoder that cannot be run, before images are rendered for it.

    Raises:
        UsageError: there is nothing to run, or it would run code and is not trusted.
    """
    identify(_what_to_run(run, encoder), trust=encoder.trust, checkpoint=encoder.checkpoint)


def check_fresh_seed(run: Run, seed: int) -> None:
    """Refuse to test on images that the entry may have seen, or without an encoder.

    Raises:
        UsageError: the entry is embeddings, or it knows the seed.
    """
    check_seed(seed)
    if run.scores.submission.kind == "embeddings":
        raise UsageError(
            f"{run.folder}: embeddings are of one test set, and hold no encoder that could be run "
            "on another: ask the authors for an ONNX submission"
        )
    scored_on = run.scores.data.seed
    known = {*run.manifest.data_seeds, *(() if scored_on is None else (scored_on,))}
    if seed in known:
        raise UsageError(
            f"--fresh {seed}: the entry {run.entry!r} was trained or scored on images of that "
            f"seed; choose another than {', '.join(map(str, sorted(known)))}"
        )


def recheck_fresh(run: Run, data: Path, encoder: EncoderChoice = EncoderChoice()) -> Verdict:
    """Score an entry's submission on other images than its scores are of.

    Args:
        run: the entry at one seed.
        data: the path of the images that `render_fresh` has rendered.
        encoder: the encoder to run.

    Returns:
        That it holds if hashes are equal, and no score is worse than claimed by more than
        both intervals.

    Raises:
        UsageError: there is nothing to run, or it fails.
    """
    bootstrap = run.scores.settings["bootstrap"] or _BOOTSTRAP
    rescored = _rescore(run, _inputs(run, data, encoder), bootstrap=bootstrap)
    faults = _different_submission(run, rescored)
    lines = []
    for name in in_order(run.scores.scores):
        claimed, fresh = run.scores.scores[name], rescored.scores[name]
        lines.append(
            f"{name}: claimed {_shown(claimed.value)}{_between(claimed)}, on fresh images "
            f"{_shown(fresh.value)}{_between(fresh)}"
        )
        if claimed.value is None:
            continue
        if fresh.value is None or _upper(fresh) < _lower(claimed, fresh):
            faults.append(f"{name} is lower on fresh images than both intervals allow")
    return Verdict(not faults, tuple(lines), tuple(faults))


def render_fresh(
    run: Run,
    seed: int,
    out: Path,
    *,
    count: int = FRESH_IMAGES,
    data: Path | None = None,
    workers: int | None = None,
) -> list[str]:
    """Render a test split like an entry's, from another seed; one that was begun goes on.

    Args:
        run: the entry at one seed.
        seed: the seed for the new latents.
        out: the dataset's directory.
        count: the number of images.
        data: the test set it was scored on, for a preset that is not built in.
        workers: the number of processes; None: one per processor or GPU.

    Returns:
        Lines on how the new images may differ from the old ones in more than their latents.

    Raises:
        UsageError: the seed is known to the entry, or its generator is not known here.
        RenderError: an image could not be rendered.
        KeyboardInterrupt: it was stopped; called again it goes on.
    """
    check_fresh_seed(run, seed)
    recorded = run.scores.data
    preset = _generator(run, data)
    engine, resolution = recorded.engine, recorded.resolution
    assert engine is not None and resolution is not None, "a generator that is known records both"
    available = probe(engine["name"]).devices
    summary = render_dataset(
        out,
        count,
        preset=preset,
        split=_SPLIT,
        seed=seed,
        engine=engine["name"],
        quality=engine["quality"],
        resolution=resolution,
        device=engine["device"] if engine["device"] in available else "auto",
        workers=workers,
    )
    if summary.failed:
        raise RenderError(
            f"the fresh images are not complete ({len(summary.failed)} failed): run the same "
            "command again to continue"
        )
    new = read_manifest(out).engine
    return [
        f"{key} of the engine: {engine.get(key)} then, {new[key]} now"
        for key in ("version", "device", "recipe")
        if engine.get(key) != new[key]
    ]


def _generator(run: Run, root: Path | None) -> Preset:
    """Return the preset that an entry's test set was rendered from.

    Raises:
        UsageError: it is not known for certain.
    """
    data = run.scores.data
    preset, latents = None, "seed"
    if root is not None:
        with open_rendered(root) as source:
            _refuse_other_data(run, TestSet(root, source, data.factors))
            manifest = source.manifest
        preset = manifest.preset if manifest else None
        latents = manifest.settings["latents"]["source"] if manifest else "file"
    elif data.preset is not None and _fits_its_name(data):
        preset = load_preset(data.preset)
    if latents == "model":
        raise UsageError(
            f"{run.folder}: its test set is of a causal model, of which no fresh images are "
            "rendered. Render one with another --seed, and evaluate the encoder on that"
        )
    if preset is None or preset.mesh_files or latents != "seed":
        raise UsageError(
            f"{run.folder}: what rendered its test set is not known, or is no built-in preset and "
            "shape with latents from a seed. --data TEST, that test set, says what did"
        )
    return preset


def _fits_its_name(data: DataRecord) -> bool:
    """Whether a test set was made from the built-in preset that it names, unchanged.

    Its fingerprint is that of all its settings, so that they can be tried.
    """
    if data.preset is None or data.engine is None or data.preset not in preset_names():
        return False
    if data.seed is None or data.split is None or data.resolution is None:
        return False
    tried = EngineSettings(
        load_preset(data.preset),
        data.resolution,
        *(data.engine[key] for key in ("quality", "device", "name", "version")),
    )
    settings = dataset_settings(tried, seed=data.seed, split=data.split)
    # As it was then: samples behind a quality may have changed.
    settings["engine"] = data.engine
    return settings_fingerprint(settings) == data.fingerprint


def _refuse_other_data(run: Run, data: TestSet) -> None:
    """Refuse another test set than the entry's before an encoder runs on it.

    Raises:
        UsageError: it has another fingerprint or number of images.
    """
    given, claimed = data.identity, run.scores.data.identity
    for key, label in (("fingerprint", "fingerprint"), ("images", "number of images")):
        if getattr(given, key) != getattr(claimed, key):
            raise UsageError(
                f"{data.root} is not the test set that {run.folder} was scored on: its {label} is "
                f"{getattr(given, key)}, there it was {getattr(claimed, key)}"
            )


def _inputs(run: Run, data: Path, encoder: EncoderChoice) -> Inputs:
    return check_inputs(
        _what_to_run(run, encoder),
        data,
        metrics=tuple(run.scores.scores),
        trust=encoder.trust,
        checkpoint=encoder.checkpoint,
        train=encoder.train,
        factors=run.scores.data.factors,
    )


def _rescore(run: Run, inputs: Inputs, bootstrap: int) -> ScoresFile:
    settings = run.scores.settings
    # A manifest beside it says nothing here: the entry has its own.
    evaluation = evaluate_inputs(
        inputs,
        folds=settings["folds"],
        bootstrap=bootstrap,
        seed=settings["seed"],
        batch_size=run.scores.submission.batch_size or BATCH_SIZE,
    )
    return evaluation.file


def _what_to_run(run: Run, encoder: EncoderChoice) -> str:
    """Return the submission as `3dident evaluate` takes it; a kept file unchanged.

    Raises:
        UsageError: the entry does not keep it, or it is another file by now.
    """
    kept = run.submission
    if encoder.submission is not None:
        return encoder.submission
    if kept.file is None:
        if kept.is_at_hand and kept.link is None:
            return kept.name
        where = f" from {kept.link}" if kept.link else ""
        raise UsageError(
            f"{run.folder} does not keep its submission: get it{where}, and give it with "
            "--submission"
        )
    path = run.folder / kept.file
    if digest(Submission("onnx", kept.name, path), kept.files) != kept.sha256:
        raise UsageError(f"{path} is not what was scored: its SHA-256 is not {kept.sha256}")
    return f"{kept.name}={path}" if kept.kind == "reference" else str(path)


def _different_submission(run: Run, rescored: ScoresFile) -> list[str]:
    claimed, again = run.scores.submission, rescored.submission
    return [
        f"the submission's {key} is {getattr(again, key)}, claimed was {getattr(claimed, key)}"
        for key in ("kind", "sha256", "codes")
        if getattr(claimed, key) != getattr(again, key)
    ]


def _largest_difference(claimed: MetricReport, again: MetricReport) -> float:
    """Compare the score and each factor's; infinite where only one of two is a number."""
    first, second = claimed.per_factor or {}, again.per_factor or {}
    pairs = [(first.get(name), second.get(name)) for name in {*first, *second}]
    return max(_difference(*pair) for pair in [(claimed.value, again.value), *pairs])


def _difference(first: float | None, second: float | None) -> float:
    if first is None or second is None:
        return 0.0 if first is second else math.inf
    return abs(first - second)


def _upper(report: MetricReport) -> float:
    return report.score.value if report.ends is None else report.ends[1]


def _lower(claimed: MetricReport, fresh: MetricReport) -> float:
    """Return the lower end of a claim; where it has none, as far below as the fresh one's."""
    if claimed.ends is not None:
        return claimed.ends[0]
    below = fresh.score.value - fresh.ends[0] if fresh.ends else 0.0
    return claimed.score.value - below


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.6f}"


def _between(report: MetricReport) -> str:
    return "" if report.ends is None else f" [{report.ends[0]:.4f}, {report.ends[1]:.4f}]"
