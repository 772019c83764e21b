"""One evaluation: a submission, a test set, and everything that is written of them."""

from __future__ import annotations

import dataclasses
import datetime
import platform
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.datasets.dataset import ThreeDIdent
from threedident.errors import ManifestWarning, UsageError
from threedident.evaluate.assumptions import Warning_
from threedident.evaluate.inputs import (
    EMBEDDINGS,
    REPORT,
    SCORES,
    Inputs,
    check_inputs,
    check_out,
    fingerprint_of,
    identity_of,
    refuse_other_scores,
)
from threedident.evaluate.metrics._linear_fit import Folds
from threedident.evaluate.report.labels import OF_INTERVALS, no_best_scores
from threedident.evaluate.runner.process import (
    BATCH_SIZE,
    MEMORY_LIMIT,
    TIME_LIMIT,
    Encoding,
    run_encoder,
)
from threedident.evaluate.scores_file import FORMAT, FORMAT_VERSION
from threedident.evaluate.scoring import DEFAULT_METRICS, METRICS, score
from threedident.evaluate.seen import check_seen, split_of
from threedident.evaluate.submissions.manifest import SubmissionManifest
from threedident.evaluate.submissions.submission import Submission, digest
from threedident.storage.atomic_files import explaining_write_errors, replacing, write_json
from threedident.version import toolkit_version

Float32 = npt.NDArray[np.float32]

LIBRARIES = ("numpy", "scipy", "scikit-learn", "torch", "onnx", "onnxruntime", "h5py")
#: What stands for a warning on the terminal where the report has more of it.
_SHORT = {
    "not_injective": "the generator is not injective, so that no encoder recovers every factor; "
    "the report says why",
}


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What an evaluation found.

    Attributes:
        scores: the content of scores.json.
        z: (N, n) float32, raw latents.
        z_hat: (N, m) float32, codes.
        dataset: the test set.
        submission: what was scored.
        notes: which manifest beside the submission was read, or why it was not, a line each.
    """

    scores: Mapping[str, Any]
    z: Float32
    z_hat: Float32
    dataset: ThreeDIdent
    submission: Submission
    notes: tuple[str, ...] = ()


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

    Warns with `errors.ManifestWarning` of a manifest beside the submission that is not used;
    `Evaluation.notes` says which one is.

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
    inputs = check_inputs(
        submission,
        data_root,
        metrics=metrics,
        manifest=manifest,
        trust=trust,
        checkpoint=checkpoint,
        train=train,
        factors=factors,
    )
    if inputs.manifest is None:
        for note in inputs.notes:
            warnings.warn(note, ManifestWarning, stacklevel=2)
    return evaluate_inputs(
        inputs,
        folds=folds,
        bootstrap=bootstrap,
        seed=seed,
        batch_size=batch_size,
        time_limit=time_limit,
        memory_limit=memory_limit,
    )


def evaluate_inputs(
    inputs: Inputs,
    *,
    folds: Folds = 2,
    bootstrap: int = 1000,
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
    time_limit: float = TIME_LIMIT,
    memory_limit: float = MEMORY_LIMIT,
) -> Evaluation:
    """Like `evaluate`, of what `check_inputs` has looked at; its notes are the caller's to show."""
    found, declared = inputs.submission, inputs.manifest
    data = ThreeDIdent(inputs.data_root, factors=inputs.factors or None)
    fitted_on = None if inputs.train is None else ThreeDIdent(inputs.train)
    if found.kind == "reference":
        from threedident.evaluate.reference_encoders import run_reference

        encoding = run_reference(found, data, train=fitted_on, seed=seed, batch_size=batch_size)
    else:
        encoding = run_encoder(
            found,
            data,
            batch_size=batch_size,
            time_limit=time_limit,
            memory_limit=memory_limit,
        )
    seen = check_seen(
        data.source,
        declared=declared,
        fitted_on=None if fitted_on is None else fitted_on.source,
        trained_on=encoding.trained_on,
        checkpoint=found.checkpoint,
    )
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "toolkit": toolkit_version(),
        "libraries": libraries(),
        "submission": {
            **_describe(found, encoding, declared),
            "fitted_on": None if fitted_on is None else identity_of(fitted_on.source),
            "batch_size": batch_size,
        },
        **_score(encoding.codes, data, seen, inputs.metrics, folds, bootstrap, seed),
    }
    raw = data.raw_latents.numpy()
    return Evaluation(content, raw, encoding.codes, data, found, inputs.notes)


def score_codes(
    z_hat: Any,
    data: ThreeDIdent | str | Path,
    *,
    metrics: Sequence[str] = DEFAULT_METRICS,
    factors: Sequence[str] = (),
    folds: Folds = 2,
    bootstrap: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """Scores codes at hand on a test set; `summary` makes a table of the result.

    Args:
        z_hat: (N, m), a row for every image, in order; numpy or torch.
        data: the test set, or its path.
        metrics: names from `scoring.METRICS`.
        factors: names of factors or groups that count, where `data` is a path; none: all ten.
        folds: 2, "single" or "in-sample".
        bootstrap: replicates of a score.
        seed: of everything random.

    Returns:
        The parts "data", "settings", "scores" and "warnings" of scores.json.

    Raises:
        UsageError: an argument does not fit.
        DatasetError: the test set cannot be read.
    """
    if not isinstance(data, ThreeDIdent):
        data = ThreeDIdent(data, factors=factors or None)
    elif factors:
        raise UsageError("factors goes with a path: choose them when the dataset is opened")
    return _score(z_hat, data, check_seen(data.source), metrics, folds, bootstrap, seed)


def _score(
    z_hat: Any,
    data: ThreeDIdent,
    seen: Iterable[Warning_],
    metrics: Sequence[str],
    folds: Folds,
    bootstrap: int,
    seed: int,
) -> dict[str, Any]:
    about = describe_data(data)
    scored = score(
        data.raw_latents.numpy(),
        z_hat,
        factors=data.factor_names,
        metrics=metrics,
        best_r2=about["best_r2"],
        not_injective=about["not_injective"] or (),
        folds=folds,
        bootstrap=bootstrap,
        seed=seed,
    ).as_dict()
    before = [dataclasses.asdict(warning) for warning in seen]
    return {"data": about, **scored, "warnings": [*before, *scored["warnings"]]}


def write(evaluation: Evaluation, out: Path, *, overwrite: bool = False) -> None:
    """Writes scores.json, embeddings.npy and report.html into a folder.

    Those of the same submission on the same test set are replaced.

    Args:
        evaluation: what was found.
        out: the folder.
        overwrite: whether to replace those of another submission or test set as well.

    Raises:
        UsageError: the folder holds the scores of another submission or test set.
        DatasetError: the disk is full or cannot be written to.
    """
    from threedident.evaluate.report.report import write_report

    check_out(out, evaluation.submission)
    if not overwrite:
        scores = evaluation.scores
        fitted_on = scores["submission"]["fitted_on"]
        refuse_other_scores(out, evaluation.submission, scores["data"], fitted_on)
    with explaining_write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    with replacing(out / EMBEDDINGS) as temporary, temporary.open("wb") as file:
        np.save(file, evaluation.z_hat)
    write_report(
        evaluation.scores, evaluation.z, evaluation.z_hat, evaluation.dataset, out / REPORT
    )
    write_json(out / SCORES, evaluation.scores)


def describe_data(data: ThreeDIdent) -> dict[str, Any]:
    """What scores.json says of a test set."""
    manifest, preset = data.source.manifest, data.preset
    settings = manifest.settings if manifest else {}
    best = manifest.best_r2 if manifest else {}
    return {
        "fingerprint": fingerprint_of(data.source),
        "images": len(data),
        "preset": preset.name if preset else None,
        "split": split_of(data.source),
        "seed": settings.get("seed"),
        "resolution": int(data.source.shape[0]),
        "engine": dict(manifest.engine) if manifest else None,
        "factors": list(data.factor_names),
        "not_injective": preset.ambiguities() if preset else None,
        "best_r2": {name: best[name] for name in data.factor_names if name in best},
        "why_no_best_r2": manifest.why_no_best_r2
        if manifest
        else "what drew the latents and rendered the images is not recorded",
    }


def _describe(
    submission: Submission, encoding: Encoding, declared: SubmissionManifest | None
) -> dict[str, Any]:
    return {
        "kind": submission.kind,
        "name": submission.name,
        "sha256": digest(submission, encoding.external),
        "files": list(encoding.external),
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
    """Tables of the scores and what is to be said of them, as lines of text.

    Args:
        scores: what scores.json holds, or `score_codes` returns.
    """
    found = scores["scores"]
    lines = [f"{'metric':<20}{'value':>9}  {'95 % interval':<20}{'chance':>8}"]
    for name, each in found.items():
        interval = each["interval"]
        span = "" if interval is None else f"{_shown(interval[0])} to {_shown(interval[1])}"
        lines.append(f"{name:<20}{_shown(each['value']):>9}  {span:<20}{_shown(each['chance']):>8}")
    lines += ["", *_by_factor(found)]
    if any(each["interval"] for each in found.values()):
        lines.append(f"intervals: {OF_INTERVALS}")
    if reason := no_best_scores(scores):
        lines.append(reason)
    lines += [f"{name}: {METRICS[name].note}" for name in found if METRICS[name].note]
    for each in scores["warnings"]:
        lines.append(f"warning: {_SHORT.get(each['code'], each['message'])}")
    return lines


def _by_factor(found: Mapping[str, Any]) -> list[str]:
    """A table with a line a factor: of R2 and MCC, each beside the best possible."""
    names = [name for name in DEFAULT_METRICS if found.get(name, {}).get("per_factor")]
    if not names:
        return []
    columns: list[tuple[str, Mapping[str, float | None]]] = []
    for name in names:
        label, best = METRICS[name].label, found[name].get("best_per_factor")
        columns.append((label, found[name]["per_factor"]))
        columns += [(f"best {label}", best)] if best else []
    return factor_table(columns)


def factor_table(columns: Sequence[tuple[str, Mapping[str, float | None]]]) -> list[str]:
    """A table with a line a factor, as lines of text.

    Args:
        columns: what each is headed, and its numbers by factor; the first has every factor.
    """
    lines = [f"{'factor':<20}" + "".join(f"{label:>10}" for label, _ in columns)]
    for factor in columns[0][1]:
        cells = "".join(f"{_shown(values.get(factor)):>10}" for _, values in columns)
        lines.append(f"{factor:<20}{cells}")
    return lines


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
