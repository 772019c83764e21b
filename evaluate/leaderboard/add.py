"""`add`: scores made an entry of a leaderboard, a folder fit for a pull request."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from threedident.errors import UsageError
from threedident.evaluate.leaderboard.entries import (
    ENTRIES,
    ENTRY_MANIFEST,
    ENTRY_SUBMISSION,
    KeptSubmission,
    Run,
    given_fields,
    may_be_called,
    read_entry,
    read_report,
    read_run,
    refuse_other,
    size_of,
)
from threedident.evaluate.report.html import is_web_link
from threedident.evaluate.scores_file import REPORT, SCORES, ScoresFile, SubmissionRecord
from threedident.evaluate.seen import UNRANKED
from threedident.evaluate.submissions.manifest import SubmissionManifest, refuse_placeholders
from threedident.evaluate.submissions.submission import Submission, digest, file_digest
from threedident.storage.atomic_files import explaining_write_errors, write_json

_LARGEST_SUBMISSION = 100_000_000  # what hosts of git repositories take
_ONE_FILE = (
    "Export it as one file (torch.onnx.export with external_data=False, or "
    "`onnx.save(onnx.load('mine.onnx'), 'one.onnx')`), and evaluate that"
)


def add(
    path: Path, board: Path, *, submission: Path | None = None, link: str | None = None
) -> tuple[Run, bool]:
    """Make an entry's folder of what `3dident evaluate` wrote.

    Args:
        path: the path of `scores.json`, its report beside it, or of the folder of both.
        board: the leaderboard's directory.
        submission: the file that was scored, to be kept with the entry.
        link: an address where the submission can be had, where it is not kept.

    Returns:
        The run, and whether it is new.

    Raises:
        UsageError: a file does not fit; the manifest lacks entry or seed, or is not filled in;
            the scores are of images that the encoder was fitted on, or of a training split;
            there is another run of the same entry and seed, or one whose manifest says something
            else.
        DatasetError: the board cannot be written to.
    """
    if path.is_dir():
        path = path / SCORES
    scores = ScoresFile.read(path)
    declared = scores.manifest
    if declared is None:
        raise UsageError(
            f"{path}: an entry needs a manifest. `3dident evaluate --template` prints one to fill "
            "in; put it beside the submission, and evaluate again"
        )
    refuse_placeholders(declared, str(path))
    _refuse_seen(scores, path)
    report = read_report(path.with_name(REPORT))
    kept = _keep(scores.submission, submission, link)
    folder = board / ENTRIES / declared.entry / str(declared.seed)
    if folder.exists():
        present = read_run(folder)
        if not present.scores.same_but_for_time(scores):
            raise UsageError(
                f"{folder} holds other scores of entry {present.entry!r} at seed {present.seed}. "
                "A run that differs needs another seed or another entry id; to replace the old "
                "one, delete its folder first"
            )
        return present, False
    for other in read_entry(folder.parent):
        refuse_other(other, declared)
    with explaining_write_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        _write(folder, path, report, declared, kept, submission)
    return read_run(folder), True


def _write(
    folder: Path,
    scores: Path,
    report: str,
    declared: SubmissionManifest,
    kept: KeptSubmission,
    submission: Path | None,
) -> None:
    """Write an entry's folder, whole or not at all."""
    draft = Path(tempfile.mkdtemp(prefix=".tmp-", dir=folder.parent))
    try:
        draft.chmod(0o755)
        shutil.copyfile(scores, draft / SCORES)
        (draft / REPORT).write_text(report, "utf-8", newline="\n")
        (draft / ENTRY_MANIFEST).write_text(as_toml(given_fields(declared)), "utf-8", newline="\n")
        write_json(draft / ENTRY_SUBMISSION, dataclasses.asdict(kept))
        if kept.file is not None and submission is not None:
            shutil.copyfile(submission, draft / kept.file)
            for name in kept.files:
                shutil.copyfile(submission.parent / name, draft / name)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _refuse_seen(scores: ScoresFile, path: Path) -> None:
    """Refuse scores of images that encoders are fitted on.

    Raises:
        UsageError: the test set is of the split train, or the encoder has seen its images.
    """
    reason = None
    if scores.on_training_split:
        reason = "they are of images of the split `train`, which encoders are fitted on"
    for warning in scores.warnings:
        if warning.code in UNRANKED and reason is None:
            reason = warning.message
    if reason:
        raise UsageError(
            f"{path}: these scores cannot be ranked: {reason}. Render a test set with `3dident "
            "render --split test`, and evaluate on that"
        )


def _keep(scored: SubmissionRecord, file: Path | None, link: str | None) -> KeptSubmission:
    """Decide what an entry keeps of its submission.

    Raises:
        UsageError: neither file nor link are given where there should be one, or they do not
            fit.
    """
    kind, name, sha256 = scored.kind, scored.name, scored.sha256
    if link is not None and not is_web_link(link):
        raise UsageError(f"--link must begin with https:// or http://, found {link!r:.100}")
    if file is None:
        if link is None and kind != "reference":
            raise UsageError(
                f"the entry needs what was scored ({name!r}): --submission FILE keeps it with the "
                "entry, --link URL says where it can be had"
            )
        return KeptSubmission(kind, name, sha256, None, link)
    if not may_be_called(file.name):
        raise UsageError(
            f"an entry's submission cannot be called {file.name!r}: rename it to letters, digits, "
            "'.', '_' and '-'"
        )
    files = _kept_files(scored, file)
    for each in (file, *(file.parent / name for name in files)):
        size = size_of(each)
        if size > _LARGEST_SUBMISSION:
            raise UsageError(
                f"{each} has {size / 1e6:.0f} MB, more than the {_LARGEST_SUBMISSION / 1e6:.0f} MB "
                "that a file of an entry may have: give --link URL instead"
            )
    return KeptSubmission(kind, name, sha256, file.name, link, files)


def _kept_files(scored: SubmissionRecord, file: Path) -> tuple[str, ...]:
    """Return the files beside a submission that belong to it, if it is the one that was scored.

    Raises:
        UsageError: it is not, or they cannot be kept with it.
    """
    kind, sha256 = scored.kind, scored.sha256
    if file_digest(file) == sha256:
        return ()
    named = scored.files
    # Scores of earlier versions do not name them: torch writes one, called after the model.
    names = named or (f"{scored.name}.data",)
    if kind == "onnx" and (named or (file.parent / names[0]).is_file()):
        for name in names:
            if not may_be_called(name) or name == file.name:
                raise UsageError(
                    f"{file} has weights in {name!r}, a name that an entry cannot keep. {_ONE_FILE}"
                )
            if not (file.parent / name).is_file():
                raise UsageError(
                    f"{file} is the ONNX file of what was scored, or another: the weights were in "
                    f"{name}, which is not beside it. Put it there"
                )
        if digest(Submission(kind, file.name, file), names) == sha256:
            return names
    hints = {
        "python": ", which is that of a module and its checkpoint together, where it has one. An "
        "entry does not keep both: give --link URL instead",
        "onnx": "" if named else ". If it has weights in other files, put them beside it",
    }
    raise UsageError(
        f"{file} is not what was scored: its SHA-256 is not {sha256}{hints.get(kind, '')}"
    )


def as_toml(table: Mapping[str, Any]) -> str:
    """Write a flat table as TOML: its strings, numbers and lists are written as in JSON."""

    def written(value: Any) -> str:
        # JSON lets this one control character stand as it is, TOML does not.
        return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")

    pairs = ((key, value) for key, value in table.items() if value is not None)
    return "".join(f"{written(key)} = {written(value)}\n" for key, value in pairs)
