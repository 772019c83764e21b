"""Scores an entry again: on the data it was scored on, or on images nobody has seen."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from threedident.datasets.formats.sources import open_source
from threedident.errors import RenderError, UsageError
from threedident.evaluate.evaluation import evaluate_inputs
from threedident.evaluate.inputs import check_inputs
from threedident.evaluate.leaderboard.entries import Run
from threedident.evaluate.report.labels import in_order
from threedident.evaluate.runner.process import BATCH_SIZE
from threedident.evaluate.submissions.submission import Submission, digest, identify
from threedident.latents import sample_raw_latents
from threedident.presets import Preset, load_preset, preset_names
from threedident.render.dataset import render_dataset
from threedident.render.mesh import SHAPES
from threedident.render.settings import EngineSettings, dataset_settings, probe
from threedident.storage.directory import Manifest, read_manifest

TOLERANCE = 1e-6
FRESH_IMAGES = 4096
_BOOTSTRAP = 1000
_SPLIT = "test"


@dataclasses.dataclass(frozen=True)
class Encoder:
    """What is run in place of an entry's submission, and how.

    Attributes:
        submission: a file or name, as for `3dident evaluate`; None: what the entry keeps.
        checkpoint: of a Python factory.
        train: the images that reference:pca is fitted on.
        trust: whether code of the authors may run.
    """

    submission: str | None = None
    checkpoint: Path | None = None
    train: Path | None = None
    trust: bool = False


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether an entry holds.

    Attributes:
        holds: whether it does.
        lines: what was compared, a line each.
        faults: why it does not.
    """

    holds: bool
    lines: tuple[str, ...]
    faults: tuple[str, ...]


def recheck(run: Run, data: Path, encoder: Encoder = Encoder()) -> Verdict:
    """Scores an entry's submission on the data that its scores are of.

    Args:
        run: the entry at one seed.
        data: that test set.
        encoder: what to run.

    Returns:
        That it holds if hashes are equal, and scores within 1e-6.

    Raises:
        UsageError: there is nothing to run, it fails, or the data is another.
        DatasetError: the test set cannot be read.
    """
    _refuse_other_data(run, data)
    found = _score(run, data, encoder, bootstrap=0)
    faults = _different_submission(run, found)
    lines = []
    for name in in_order(run.scores["scores"]):
        claimed, again = run.scores["scores"][name], found["scores"][name]
        off = _largest_difference(claimed, again)
        lines.append(
            f"{name}: claimed {_shown(claimed['value'])}, found {_shown(again['value'])}, largest "
            f"difference {off:.1e}"
        )
        if not off <= TOLERANCE:
            faults.append(f"{name} differs by {off:.1e}, more than {TOLERANCE:g}")
    return Verdict(not faults, tuple(lines), tuple(faults))


def check_encoder(run: Run, encoder: Encoder) -> None:
    """Complains of what is to be run before images are rendered for it.

    Raises:
        UsageError: there is nothing to run, or it would run code and is not trusted.
    """
    identify(_what_to_run(run, encoder), trust=encoder.trust, checkpoint=encoder.checkpoint)


def check_fresh_seed(run: Run, seed: int) -> None:
    """Refuses to test on images that the entry may have seen, or without an encoder.

    Raises:
        UsageError: the entry is embeddings, or it knows the seed.
    """
    sample_raw_latents([], seed=seed, split=_SPLIT)  # complains of a seed out of range
    if run.scores["submission"]["kind"] == "embeddings":
        raise UsageError(
            f"{run.folder}: embeddings are of one test set, and hold no encoder that could be run "
            "on another: ask the authors for an ONNX submission"
        )
    known = {*run.manifest["data_seeds"], run.scores["data"]["seed"]}
    if seed in known:
        raise UsageError(
            f"--fresh {seed}: the entry {run.entry!r} was trained or scored on images of that "
            f"seed; choose another than {', '.join(str(s) for s in sorted(known - {None}))}"
        )


def recheck_fresh(run: Run, data: Path, encoder: Encoder = Encoder()) -> Verdict:
    """Scores an entry's submission on other images than its scores are of.

    Args:
        run: the entry at one seed.
        data: made by `render_fresh`.
        encoder: what to run.

    Returns:
        That it holds if hashes are equal, and no score is worse than claimed by more than
        both intervals.

    Raises:
        UsageError: there is nothing to run, or it fails.
    """
    found = _score(run, data, encoder, bootstrap=run.scores["settings"]["bootstrap"] or _BOOTSTRAP)
    faults = _different_submission(run, found)
    lines = []
    for name in in_order(run.scores["scores"]):
        claimed, fresh = run.scores["scores"][name], found["scores"][name]
        lines.append(
            f"{name}: claimed {_shown(claimed['value'])}{_between(claimed)}, on fresh images "
            f"{_shown(fresh['value'])}{_between(fresh)}"
        )
        if claimed["value"] is None:
            continue
        if fresh["value"] is None or _upper(fresh) < _lower(claimed, fresh):
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
    """Renders a test split like an entry's, from another seed; continues one that is there.

    Args:
        run: the entry at one seed.
        seed: of the new latents.
        out: the dataset's directory.
        count: images.
        data: the test set it was scored on, for a preset that is not built in.
        workers: processes; None: one per processor or GPU.

    Returns:
        How the new images may differ from the old ones in more than their latents.

    Raises:
        UsageError: the seed is known to the entry, or its generator is not known here.
        RenderError: an image could not be rendered.
        KeyboardInterrupt: it was stopped; called again it goes on.
    """
    check_fresh_seed(run, seed)
    recorded = run.scores["data"]
    preset = _generator(run, data)
    engine = recorded["engine"]
    available = probe(engine["name"]).devices
    summary = render_dataset(
        out,
        count,
        preset=preset,
        split=_SPLIT,
        seed=seed,
        engine=engine["name"],
        quality=engine["quality"],
        resolution=recorded["resolution"],
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
    """The preset that an entry's test set was rendered from.

    Raises:
        UsageError: it is not known for certain.
    """
    data = run.scores["data"]
    preset, latents = None, "seed"
    if root is not None:
        _refuse_other_data(run, root)
        with open_source(root) as source:
            manifest = source.manifest
        preset = manifest.preset if manifest else None
        latents = manifest.settings["latents"]["source"] if manifest else "file"
    elif _fits_its_name(data):
        preset = load_preset(data["preset"])
    if preset is None or preset.shape not in SHAPES or latents != "seed":
        raise UsageError(
            f"{run.folder}: what rendered its test set is not known, or is no built-in preset and "
            "shape with latents from a seed. --data TEST, that test set, says what did"
        )
    return preset


def _fits_its_name(data: Mapping[str, Any]) -> bool:
    """Whether a test set was made from the built-in preset that it names, unchanged.

    Its fingerprint is that of all its settings, so that they can be tried.
    """
    needed = ("preset", "engine", "seed", "split", "resolution")
    if any(data.get(key) is None for key in needed) or data["preset"] not in preset_names():
        return False
    engine = data["engine"]
    tried = EngineSettings(
        load_preset(data["preset"]),
        data["resolution"],
        *(engine[key] for key in ("quality", "device", "name", "version")),
    )
    settings = dataset_settings(tried, seed=data["seed"], split=data["split"])
    # As it was then: samples behind a quality may have changed.
    settings["engine"] = engine
    return Manifest(settings, 1, "none", "", "", "").fingerprint == data["fingerprint"]


def _refuse_other_data(run: Run, root: Path) -> None:
    """Refuses another test set than the entry's before an encoder runs on it.

    Raises:
        UsageError: it has another fingerprint or number of images.
    """
    from threedident.datasets.dataset import ThreeDIdent
    from threedident.evaluate.evaluation import describe_data

    found, claimed = describe_data(ThreeDIdent(root)), run.scores["data"]
    for key in ("fingerprint", "images"):
        if found[key] != claimed[key]:
            raise UsageError(
                f"{root} is not the test set that {run.folder} was scored on: its {key} is "
                f"{found[key]}, there it was {claimed[key]}"
            )


def _score(run: Run, data: Path, encoder: Encoder, bootstrap: int) -> Mapping[str, Any]:
    settings = run.scores["settings"]
    inputs = check_inputs(
        _what_to_run(run, encoder),
        data,
        metrics=tuple(run.scores["scores"]),
        trust=encoder.trust,
        checkpoint=encoder.checkpoint,
        train=encoder.train,
        factors=tuple(run.scores["data"]["factors"]),
    )
    # A manifest beside it says nothing here: the entry has its own.
    evaluation = evaluate_inputs(
        inputs,
        folds=settings["folds"],
        bootstrap=bootstrap,
        seed=settings["seed"],
        batch_size=run.scores["submission"].get("batch_size") or BATCH_SIZE,
    )
    return evaluation.scores


def _what_to_run(run: Run, encoder: Encoder) -> str:
    """The submission, as `3dident evaluate` takes it; a kept file unchanged.

    Raises:
        UsageError: the entry does not keep it, or it is another file by now.
    """
    kept = run.submission
    if encoder.submission is not None:
        return encoder.submission
    if kept.file is None:
        if kept.kind == "reference" and kept.sha256 is None:
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


def _different_submission(run: Run, found: Mapping[str, Any]) -> list[str]:
    claimed, again = run.scores["submission"], found["submission"]
    return [
        f"the submission's {key} is {again[key]}, claimed was {claimed[key]}"
        for key in ("kind", "sha256", "codes")
        if claimed[key] != again[key]
    ]


def _largest_difference(claimed: Mapping[str, Any], again: Mapping[str, Any]) -> float:
    """Of the score and of each factor's; infinite where only one of two is a number."""
    pairs = [(claimed["value"], again["value"])]
    there, here = claimed.get("per_factor") or {}, again.get("per_factor") or {}
    pairs += [(there.get(name), here.get(name)) for name in {*there, *here}]
    return max(_difference(*pair) for pair in pairs)


def _difference(first: float | None, second: float | None) -> float:
    if first is None or second is None:
        return 0.0 if first is second else math.inf
    return abs(first - second)


def _ends(score: Mapping[str, Any]) -> tuple[float, float] | None:
    found = score.get("interval")
    return None if not found or None in found else (found[0], found[1])


def _upper(score: Mapping[str, Any]) -> float:
    ends = _ends(score)
    return float(score["value"] if ends is None else ends[1])


def _lower(claimed: Mapping[str, Any], fresh: Mapping[str, Any]) -> float:
    """The lower end of what is claimed; where it has none, as far below as the fresh one's."""
    ends, others = _ends(claimed), _ends(fresh)
    if ends is not None:
        return ends[0]
    return float(claimed["value"] - (fresh["value"] - others[0] if others else 0.0))


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.6f}"


def _between(score: Mapping[str, Any]) -> str:
    ends = _ends(score)
    return "" if ends is None else f" [{ends[0]:.4f}, {ends[1]:.4f}]"
