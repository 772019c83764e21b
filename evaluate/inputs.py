"""The inputs of an evaluation, checked before anything slow is imported or run."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from threedident.errors import UsageError
from threedident.evaluate.causal_data import check_independent
from threedident.evaluate.metrics.registry import check_metrics
from threedident.evaluate.scores_file import (
    EMBEDDINGS,
    REPORT,
    SCORES,
    UNNAMED,
    DatasetIdentity,
    ScoresOwner,
)
from threedident.evaluate.submissions.manifest import (
    MANIFEST_FILE,
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
from threedident.evaluate.test_set import TestSet
from threedident.storage.directory import default_out as default_place

if TYPE_CHECKING:
    from threedident.datasets.dataset import ImageDataset

DEFAULT_DATA = default_place(split="test")


@dataclasses.dataclass(frozen=True)
class Inputs:
    """A submission and a test set that fit each other, and what else an evaluation needs.

    Attributes:
        submission: the submission.
        manifest: the declaration of its authors; None where there is none, or none of it.
        notes: lines on the manifest that was read, or why one was not.
        data: the test set, open.
        metrics: names from `METRICS`.
        train: the images that `reference:pca` is fitted on, open; None: the test set's.
        independent: a dataset of the same generator with independent variables, open, on which
            the scores are taken as well; None: none.
    """

    submission: Submission
    manifest: SubmissionManifest | None
    notes: tuple[str, ...]
    data: TestSet
    metrics: tuple[str, ...]
    train: TestSet | None
    independent: TestSet | None = None


def check_inputs(
    submission: str | Path,
    data_root: ImageDataset | str | Path,
    *,
    metrics: Sequence[str] | None = None,
    manifest: Path | None = None,
    trust: bool = False,
    checkpoint: Path | None = None,
    train: Path | None = None,
    factors: Sequence[str] = (),
    independent: ImageDataset | str | Path | None = None,
    samples: int | None = None,
    out: Path | None = None,
    overwrite: bool = False,
) -> Inputs:
    """Check the inputs of an evaluation; nothing is run, and torch is not imported.

    Args:
        submission, data_root, metrics, manifest, trust, checkpoint: as of `evaluation.evaluate`.
        train, factors, independent, samples: as of `evaluation.evaluate`.
        out: the folder that the scores are to be written to; None where nobody says.
        overwrite: whether scores of another submission or test set there may be replaced.

    Raises:
        UsageError: an argument does not fit, or the folder holds other scores.
        DatasetError: the test set, or what reference:pca is to be fitted on, cannot be read.
    """
    if metrics is not None and "all" not in metrics:
        check_metrics(metrics)
    chosen = identify(submission, trust=trust, checkpoint=checkpoint)
    if train is not None and not chosen.name.startswith(f"{REFERENCE}pca"):
        raise UsageError(
            f"--train is for {REFERENCE}pca, found {chosen.name}: a submission is trained already"
        )
    declared, notes = find_manifest(chosen, manifest)
    data = TestSet.take(data_root, factors, samples)
    names = data.choose_metrics(metrics)
    beside = None
    if independent is not None:
        beside = _independent(independent, data, chosen, fitted=train is not None)
    fitted_on = None if train is None else TestSet.open(train)
    if out is not None:
        check_out(out, chosen)
        if not overwrite:
            identity = None if fitted_on is None else fitted_on.identity
            refuse_other_scores(out, chosen, data.identity, identity)
    return Inputs(chosen, declared, notes, data, names, fitted_on, beside)


def _independent(
    given: ImageDataset | str | Path, data: TestSet, submission: Submission, *, fitted: bool
) -> TestSet:
    """Open the dataset of independent variables, whose factors are those of the test set.

    Raises:
        UsageError: the submission cannot be run on it, or it is none of the same generator.
        DatasetError: it cannot be read.
    """
    if submission.kind == "embeddings":
        raise UsageError(
            "--independent: embeddings are of one test set alone. Hand in the encoder, or score "
            "the embeddings of that dataset by themselves"
        )
    if submission.name.startswith(f"{REFERENCE}pca") and not fitted:
        raise UsageError(
            f"--independent: {REFERENCE}pca would be fitted on each dataset anew. Add --train"
        )
    path = isinstance(given, str | Path)
    whole = TestSet.take(given)
    name = str(given) if path else str(whole.root)
    check_independent(data.source.manifest, whole.source.manifest, name)
    return dataclasses.replace(whole, factor_names=data.factor_names)


def find_manifest(
    submission: Submission, given: Path | None
) -> tuple[SubmissionManifest | None, tuple[str, ...]]:
    """Read the manifest that was given, or lies beside a submission and belongs to it.

    One that lies beside several submissions and does not name its own is not used.

    Args:
        submission: the submission.
        given: the manifest's path; None: the one beside the submission, where there is one.

    Returns:
        The manifest, or None; and notes on it, a line each.

    Raises:
        UsageError: it cannot be read, does not fit, is not filled in, or was given and names
            another submission.
    """
    path = given
    if path is None:
        if submission.path is None:
            return None, ()
        path = submission.path.parent / MANIFEST_FILE
        if not path.is_file():
            return None, ()
    manifest = read_manifest(path)
    named = manifest.submission
    if named is not None and named != submission.name:
        other = f"{path} is of {named!r}, not of {submission.name!r}"
        if given is not None:
            raise UsageError(f"{other}: give the manifest of this one, or mend its `submission`")
        return None, (f"{other}: it is not used",)
    others = _others_beside(submission) if given is None and named is None else []
    if others:
        return None, (
            f"{path} does not say whether it is of {submission.name} or of {others[0]}: it is not "
            f"used. Write `submission = {json.dumps(submission.name)}` into it, or give it with "
            "--manifest",
        )
    refuse_placeholders(manifest, str(path))
    return manifest, (f"manifest: {path} (entry {manifest.entry}, seed {manifest.seed})",)


def _others_beside(submission: Submission) -> list[str]:
    """Return the names of other submissions in a submission's folder.

    The codes that an evaluation writes are none: they lie beside its scores.
    """
    assert submission.path is not None
    folder = submission.path.parent
    none = {submission.path.name, *([EMBEDDINGS] if (folder / SCORES).exists() else [])}
    return sorted(e.name for e in folder.iterdir() if e.name not in none and is_submission(e))


def default_out(submission: Submission) -> Path:
    """Return the folder for a submission's scores where none is given, scores/NAME."""
    name = submission.name.removeprefix(REFERENCE)
    if submission.path is not None:
        name = submission.path.stem
    elif submission.kind == "reference" and submission.checkpoint is not None:
        file = submission.checkpoint.resolve()  # encoder.pt of a run, which its folder names
        name = f"{name}-{file.parent.name if file.stem == 'encoder' else file.stem}"
    return Path("scores") / (re.sub(r"[^\w.-]+", "-", name).strip(".-") or "submission")


def check_out(out: Path, submission: Submission) -> None:
    """Refuse a place for scores that is a file, or where they would replace the submission.

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
    scored_on: DatasetIdentity,
    fitted_on: DatasetIdentity | None = None,
) -> None:
    """Refuse a folder that holds the scores of another submission or test set.

    Args:
        out: the folder.
        submission: the submission that is scored now.
        scored_on: the test set now.
        fitted_on: the images that reference:pca is fitted on now, where that is not the test set.

    Raises:
        UsageError: it holds such scores, or ones that cannot be read.
    """
    path = out / SCORES
    if not path.exists():
        return
    before = ScoresOwner.read(path)
    if before is None:
        raise _another(f"{path} is damaged: it does not say whose scores it holds")
    if (before.kind, before.name) != (submission.kind, submission.name):
        raise _another(
            f"{out} holds the scores of {before.name} ({before.kind}), not of "
            f"{submission.name} ({submission.kind})"
        )
    if before.sha256 not in _digests(submission, before.files):
        raise _another(
            f"{out} holds the scores of another {submission.name}, of SHA-256 {before.sha256}"
        )
    if before.scored_on.fingerprint != scored_on.fingerprint:
        raise _another(
            f"{out} holds scores of {submission.name} on another test set, of fingerprint "
            f"{before.scored_on.fingerprint!s:.8}; this one's is {scored_on.fingerprint:.8}"
        )
    if before.scored_on.images != scored_on.images:
        raise _another(
            f"{out} holds scores of {submission.name} on {before.scored_on.images} images of this "
            f"test set, which has {scored_on.images} now"
        )
    if before.fitted_on != fitted_on:
        which = UNNAMED if before.fitted_on == UNNAMED else "other images"
        raise _another(f"{out} holds scores of {submission.name} fitted on {which}")


def _another(reason: str) -> UsageError:
    return UsageError(f"{reason}: choose another --out, or add --overwrite to replace them")


def _digests(submission: Submission, files: tuple[str, ...] | None) -> list[str | None]:
    """Return SHA-256 of a submission with the files beside it that its scores name.

    Scores of earlier versions name none: then also with the weights that torch writes.
    """
    tries: list[tuple[str, ...]] = [()]
    if submission.kind == "onnx" and files:
        tries = [files]
    elif submission.kind == "onnx" and files is None:
        tries.append((f"{submission.name}.data",))
    digests: list[str | None] = []
    for names in tries:
        try:
            digests.append(digest(submission, names))
        except UsageError:  # such a file is not there, so that this is not it
            continue
    return digests
