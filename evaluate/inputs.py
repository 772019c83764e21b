"""What an evaluation is asked for, checked before anything slow is imported or run."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from threedident.datasets.formats import Source, open_dataset
from threedident.errors import UsageError
from threedident.evaluate.scoring import DEFAULT_METRICS, METRICS
from threedident.evaluate.submissions.manifest import NAME as MANIFEST
from threedident.evaluate.submissions.manifest import (
    SubmissionManifest,
    read_manifest,
    refuse_placeholders,
)
from threedident.evaluate.submissions.submission import (
    REFERENCE,
    Submission,
    digest,
    identify,
    is_submission,
)
from threedident.factors import factor_columns
from threedident.latents import latents_digest
from threedident.storage.directory import default_out as default_place

SCORES, EMBEDDINGS, REPORT = "scores.json", "embeddings.npy", "report.html"
DEFAULT_DATA = default_place(split="test")
_UNNAMED = "images that they do not name"


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What is scored, and what is to be said of it beforehand.

    Attributes:
        submission: what was handed in.
        manifest: what its authors declare; None where there is no manifest, or none of it.
        notes: which manifest was read, or why one was not, a line each.
        data_root: the test set.
        metrics: names from `scoring.METRICS`.
        train: what `reference:pca` is fitted on.
        factors: names of factors or groups that count; none: all ten.
    """

    submission: Submission
    manifest: SubmissionManifest | None
    notes: tuple[str, ...]
    data_root: Path
    metrics: tuple[str, ...]
    train: Path | None
    factors: tuple[str, ...]


def check_inputs(
    submission: str | Path,
    data_root: str | Path,
    *,
    metrics: Sequence[str] = DEFAULT_METRICS,
    manifest: Path | None = None,
    trust: bool = False,
    checkpoint: Path | None = None,
    train: Path | None = None,
    factors: Sequence[str] = (),
    out: Path | None = None,
    overwrite: bool = False,
) -> Inputs:
    """Looks at all that an evaluation is asked for; nothing is run, and torch is not imported.

    Args:
        submission, data_root, metrics, manifest, trust, checkpoint, train, factors: as for
            `run.evaluate`.
        out: the folder that the scores are to be written to; None where nobody says.
        overwrite: whether scores of another submission or test set there may be replaced.

    Raises:
        UsageError: an argument does not fit, or the folder holds other scores.
        DatasetError: the test set, or what reference:pca is to be fitted on, cannot be read.
    """
    check_metrics(metrics)
    factor_columns(factors)
    found = identify(submission, trust=trust, checkpoint=checkpoint)
    if train is not None and not found.name.startswith(f"{REFERENCE}pca"):
        raise UsageError(
            f"--train is for {REFERENCE}pca, found {found.name}: a submission is trained already"
        )
    declared, notes = find_manifest(found, manifest)
    with open_dataset(data_root) as source:
        scored_on = identity_of(source)
    fitted_on = None
    if train is not None:
        with open_dataset(train) as source:
            fitted_on = identity_of(source)
    if out is not None:
        check_out(out, found)
        if not overwrite:
            refuse_other_scores(out, found, scored_on, fitted_on)
    return Inputs(found, declared, notes, Path(data_root), tuple(metrics), train, tuple(factors))


def check_metrics(names: Sequence[str]) -> None:
    """Refuses an unknown metric before an hour of inference.

    Raises:
        UsageError: one is unknown.
    """
    for name in names:
        if name not in METRICS:
            raise UsageError(f"unknown metric {name!r}: expected some of {', '.join(METRICS)}")


def find_manifest(
    submission: Submission, given: Path | None
) -> tuple[SubmissionManifest | None, tuple[str, ...]]:
    """The manifest that was given, or lies beside a submission and is of it; what to say of it.

    One that lies beside several submissions and does not name its own is not used.

    Raises:
        UsageError: it cannot be read, does not fit, is not filled in, or was given and names
            another submission.
    """
    path = given
    if path is None:
        if submission.path is None:
            return None, ()
        path = submission.path.parent / MANIFEST
        if not path.is_file():
            return None, ()
    found = read_manifest(path)
    named = found.submission
    if named is not None and named != submission.name:
        what = f"{path} is of {named!r}, not of {submission.name!r}"
        if given is not None:
            raise UsageError(f"{what}: give the manifest of this one, or mend its `submission`")
        return None, (f"{what}: it is not used",)
    others = _others_beside(submission) if given is None and named is None else []
    if others:
        return None, (
            f"{path} does not say whether it is of {submission.name} or of {others[0]}: it is not "
            f"used. Write `submission = {json.dumps(submission.name)}` into it, or give it with "
            "--manifest",
        )
    refuse_placeholders(found.as_dict(), str(path))
    return found, (f"manifest: {path} (entry {found.entry}, seed {found.seed})",)


def _others_beside(submission: Submission) -> list[str]:
    """The names of other submissions in a submission's folder.

    The codes that an evaluation writes are none: they lie beside its scores.
    """
    assert submission.path is not None
    folder = submission.path.parent
    none = {submission.path.name, *([EMBEDDINGS] if (folder / SCORES).exists() else [])}
    return sorted(e.name for e in folder.iterdir() if e.name not in none and is_submission(e))


def fingerprint_of(source: Source) -> str:
    """What tells a test set from others: of its settings; of the published layout, its latents."""
    manifest = source.manifest
    return latents_digest(source.raw_latents) if manifest is None else manifest.fingerprint


def identity_of(source: Source) -> dict[str, Any]:
    """What tells a dataset from others, and from itself before it was extended."""
    return {"fingerprint": fingerprint_of(source), "images": len(source)}


def default_out(submission: Submission) -> Path:
    """The folder for a submission's scores where none is given, scores/NAME."""
    name = submission.name.removeprefix(REFERENCE)
    if submission.path is not None:
        name = submission.path.stem
    elif submission.kind == "reference" and submission.checkpoint is not None:
        file = submission.checkpoint.resolve()  # encoder.pt of a run, which its folder names
        name = f"{name}-{file.parent.name if file.stem == 'encoder' else file.stem}"
    return Path("scores") / (re.sub(r"[^\w.-]+", "-", name).strip(".-") or "submission")


def check_out(out: Path, submission: Submission) -> None:
    """Refuses a place for scores that is a file, or where they would replace the submission.

    Raises:
        UsageError: it is one.
    """
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is a file: expected a folder, which is made if need be")
    mine = submission.path
    if mine is not None and any(
        mine.resolve() == (out / name).resolve() for name in (SCORES, EMBEDDINGS, REPORT)
    ):
        raise UsageError(f"--out {out} would overwrite the submission {mine}: choose another --out")


def refuse_other_scores(
    out: Path,
    submission: Submission,
    scored_on: Mapping[str, Any],
    fitted_on: Mapping[str, Any] | None = None,
) -> None:
    """Refuses a folder that holds the scores of another submission or test set.

    Args:
        out: the folder.
        submission: what is scored now.
        scored_on: `identity_of` the test set now.
        fitted_on: that of what reference:pca is fitted on now, where it is not the test set.

    Raises:
        UsageError: it holds such scores, or ones that cannot be read.
    """
    path = out / SCORES
    if not path.exists():
        return
    try:
        content = json.loads(path.read_bytes())
        before, data = content["submission"], content["data"]
        named = {key: before[key] for key in ("kind", "name", "sha256")}
        there = {key: data[key] for key in ("fingerprint", "images")}
        fitted_there = before.get("fitted_on", _fitted_on(before))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _another(f"{path} is damaged: it does not say whose scores it holds") from None
    for key, value in (("kind", submission.kind), ("name", submission.name)):
        if named[key] != value:
            raise _another(
                f"{out} holds the scores of {named['name']} ({named['kind']}), not of "
                f"{submission.name} ({submission.kind})"
            )
    if named["sha256"] not in _digests(submission, before.get("files")):
        raise _another(
            f"{out} holds the scores of another {submission.name}, of SHA-256 {named['sha256']}"
        )
    if there["fingerprint"] != scored_on["fingerprint"]:
        raise _another(
            f"{out} holds scores of {submission.name} on another test set, of fingerprint "
            f"{there['fingerprint']!s:.8}; this one's is {scored_on['fingerprint']:.8}"
        )
    if there["images"] != scored_on["images"]:
        raise _another(
            f"{out} holds scores of {submission.name} on {there['images']} images of this test "
            f"set, which has {scored_on['images']} now"
        )
    if fitted_there != fitted_on:
        which = _UNNAMED if fitted_there == _UNNAMED else "other images"
        raise _another(f"{out} holds scores of {submission.name} fitted on {which}")


def _fitted_on(before: Mapping[str, Any]) -> str | None:
    """What scores of an earlier version say of the images that reference:pca was fitted on."""
    return _UNNAMED if "training images" in str(before.get("about")) else None


def _another(what: str) -> UsageError:
    return UsageError(f"{what}: choose another --out, or add --overwrite to replace them")


def _digests(submission: Submission, files: Any) -> list[str | None]:
    """SHA-256 of a submission with the files beside it that its scores name.

    Scores of earlier versions name none: then also with the weights that torch writes.
    """
    tries: list[tuple[str, ...]] = [()]
    if submission.kind == "onnx" and isinstance(files, list) and files:
        tries = [tuple(map(str, files))]
    elif submission.kind == "onnx" and files is None:
        tries.append((f"{submission.name}.data",))
    found: list[str | None] = []
    for names in tries:
        try:
            found.append(digest(submission, names))
        except UsageError:  # such a file is not there, so that this is not it
            continue
    return found
