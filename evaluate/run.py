"""One evaluation: a submission, a test set, and everything that is written of them."""

from __future__ import annotations

import dataclasses
import datetime
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.datasets.dataset import ThreeDIdent
from threedident.errors import UsageError
from threedident.evaluate.inference import (
    BATCH_SIZE,
    MEMORY_LIMIT,
    TIME_LIMIT,
    Encoding,
    run_encoder,
)
from threedident.evaluate.linear import Folds
from threedident.evaluate.manifest import NAME as MANIFEST
from threedident.evaluate.manifest import SubmissionManifest, read_manifest
from threedident.evaluate.schema import FORMAT, FORMAT_VERSION
from threedident.evaluate.scoring import DEFAULT_METRICS, METRICS, score
from threedident.evaluate.submission import Submission, digest, identify
from threedident.files import explaining_write_errors, replacing, write_json
from threedident.store import latents_digest, toolkit_version

Float32 = npt.NDArray[np.float32]

SCORES, EMBEDDINGS, REPORT = "scores.json", "embeddings.npy", "report.html"
LIBRARIES = ("numpy", "scipy", "scikit-learn", "torch", "onnx", "onnxruntime", "h5py")


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What an evaluation found.

    Attributes:
        scores: the content of scores.json.
        z: (N, n) float32, raw latents.
        z_hat: (N, m) float32, codes.
        dataset: the test set.
    """

    scores: Mapping[str, Any]
    z: Float32
    z_hat: Float32
    dataset: ThreeDIdent


def evaluate(
    submission: str | Path,
    data_root: str | Path,
    *,
    metrics: Sequence[str] = DEFAULT_METRICS,
    manifest: Path | None = None,
    trust: bool = False,
    checkpoint: Path | None = None,
    train: Path | None = None,
    factors: Sequence[str] = (),
    folds: Folds = 2,
    bootstrap: int = 1000,
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
    time_limit: float = TIME_LIMIT,
    memory_limit: float = MEMORY_LIMIT,
) -> Evaluation:
    """Runs a submission on a test set and scores what it recovers; writes nothing.

    Args:
        submission: a file, `package.module:factory` or `reference:NAME`; see `identify`.
        data_root: the test set, in any form.
        metrics: names from `scoring.METRICS`.
        manifest: of the submission; None: SUBMISSION.toml beside it, where there is one.
        trust: whether code of the submission's author may be run.
        checkpoint: for a Python factory.
        train: what `reference:pca` is fitted on.
        factors: names of factors or groups that count; none: all ten.
        folds: 2, "single" or "in-sample".
        bootstrap: replicates of a score.
        seed: of everything random.
        batch_size: images at once.
        time_limit: seconds that the encoder may take.
        memory_limit: GB that it may allocate.

    Raises:
        UsageError: an argument does not fit, or the submission does not, fails, or passes a
            limit.
        DatasetError: the test set cannot be read.
    """
    check_metrics(metrics)
    found = identify(submission, trust=trust, checkpoint=checkpoint)
    declared = find_manifest(found, manifest)
    data = ThreeDIdent(data_root, factors=factors or None)
    if found.kind == "reference":
        from threedident.evaluate.reference import run_reference

        fitted_on = None if train is None else ThreeDIdent(train)
        encoding = run_reference(found, data, train=fitted_on, seed=seed, batch_size=batch_size)
    elif train is not None:
        raise UsageError("--train is for reference:pca: a submission is trained already")
    else:
        encoding = run_encoder(
            found,
            data,
            batch_size=batch_size,
            time_limit=time_limit,
            memory_limit=memory_limit,
        )
    z = data.raw_latents.numpy()
    about = describe_data(data)
    scored = score(
        z,
        encoding.codes,
        factors=data.factor_names,
        metrics=metrics,
        best_r2=about["best_r2"],
        not_injective=about["not_injective"] or (),
        folds=folds,
        bootstrap=bootstrap,
        seed=seed,
    )
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "toolkit": toolkit_version(),
        "libraries": libraries(),
        "submission": {**_describe(found, encoding, declared), "batch_size": batch_size},
        "data": about,
        **scored.as_dict(),
    }
    return Evaluation(content, z, encoding.codes, data)


def write(evaluation: Evaluation, out: Path) -> None:
    """Writes scores.json, embeddings.npy and report.html into a folder, replacing those there.

    Raises:
        DatasetError: the disk is full or cannot be written to.
    """
    from threedident.evaluate.report import write_report

    with explaining_write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    with replacing(out / EMBEDDINGS) as temporary, temporary.open("wb") as file:
        np.save(file, evaluation.z_hat)
    write_report(
        evaluation.scores, evaluation.z, evaluation.z_hat, evaluation.dataset, out / REPORT
    )
    write_json(out / SCORES, evaluation.scores)


def check_metrics(names: Sequence[str]) -> None:
    """Refuses an unknown metric before an hour of inference.

    Raises:
        UsageError: one is unknown.
    """
    for name in names:
        if name not in METRICS:
            raise UsageError(f"unknown metric {name!r}: expected some of {', '.join(METRICS)}")


def find_manifest(submission: Submission, given: Path | None) -> SubmissionManifest | None:
    """The manifest that was given, or lies beside a submission; None where there is none.

    Raises:
        UsageError: it cannot be read or does not fit.
    """
    if given is None and submission.path is not None:
        beside = submission.path.parent / MANIFEST
        given = beside if beside.is_file() else None
    return None if given is None else read_manifest(given)


def describe_data(data: ThreeDIdent) -> dict[str, Any]:
    """What scores.json says of a test set."""
    manifest, preset = data.source.manifest, data.preset
    settings = manifest.settings if manifest else {}
    if manifest is None:
        fingerprint = latents_digest(data.source.raw_latents)
    else:
        fingerprint = manifest.fingerprint
    best = preset.best_r2 if preset else {}
    return {
        "fingerprint": fingerprint,
        "images": len(data),
        "preset": preset.name if preset else None,
        "split": settings.get("split"),
        "seed": settings.get("seed"),
        "resolution": int(data.source.shape[0]),
        "engine": dict(manifest.engine) if manifest else None,
        "factors": list(data.factor_names),
        "not_injective": preset.ambiguities() if preset else None,
        "best_r2": {name: best[name] for name in data.factor_names if name in best},
    }


def _describe(
    submission: Submission, encoding: Encoding, declared: SubmissionManifest | None
) -> dict[str, Any]:
    return {
        "kind": submission.kind,
        "name": submission.name,
        "sha256": digest(submission, encoding.external),
        "codes": int(encoding.codes.shape[1]),
        "about": encoding.about,
        "manifest": None if declared is None else declared.as_dict(),
        "network_blocked": encoding.network_blocked,
    }


def libraries() -> dict[str, str]:
    """Versions of what the scores depend on, as far as it is installed."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def summary(scores: Mapping[str, Any]) -> list[str]:
    """A table of the scores and a line for each warning, as lines of text."""
    lines = [f"{'metric':<20}{'value':>9}  {'95 % interval':<20}{'chance':>8}"]
    for name, each in scores["scores"].items():
        interval = each["interval"]
        span = "" if interval is None else f"{_shown(interval[0])} to {_shown(interval[1])}"
        lines.append(f"{name:<20}{_shown(each['value']):>9}  {span:<20}{_shown(each['chance']):>8}")
    lines += [f"warning: {each['message']}" for each in scores["warnings"]]
    return lines


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
