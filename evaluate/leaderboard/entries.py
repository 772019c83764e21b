"""A leaderboard's entries: the folders of its runs, read as a stranger's."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from pathlib import Path
from typing import Any

from threedident.errors import UsageError
from threedident.evaluate.report.html import is_web_link, runs_nothing
from threedident.evaluate.scores_file import REPORT, SCORES, ScoresFile
from threedident.evaluate.submissions.manifest import SubmissionManifest, is_entry_id

ENTRIES = "entries"
#: The files of an entry beside its scores and report: its manifest, and what was scored.
ENTRY_MANIFEST, ENTRY_SUBMISSION = "manifest.toml", "submission.json"

_LARGEST_REPORT = 64_000_000
_LARGEST_NOTE = 100_000
#: Fields of a manifest that may differ between the runs of an entry.
_OF_A_RUN = ("seed", "data_seeds", "submission")


@dataclasses.dataclass(frozen=True)
class KeptSubmission:
    """The submission of an entry, and where it is: the content of submission.json.

    Attributes:
        kind: embeddings, onnx, python, torch or reference.
        name: the name of the file, or of the reference encoder.
        sha256: the hash of the submission; None for a reference without a file.
        file: its name in the entry's folder; None where it is not there.
        link: an address where it can be had instead.
        files: names of files beside it that hold its weights, in the entry's folder as well.
    """

    kind: str
    name: str
    sha256: str | None
    file: str | None = None
    link: str | None = None
    files: tuple[str, ...] = ()

    @property
    def is_at_hand(self) -> bool:
        """Whether what was scored lies here, can be had elsewhere, or has no weights."""
        weightless = self.kind == "reference" and self.sha256 is None
        return bool(self.file or self.link or weightless)


@dataclasses.dataclass(frozen=True)
class Run:
    """An entry at one seed.

    Attributes:
        folder: the run's folder; its name is the seed, its parent's the entry.
        scores: the content of scores.json.
        submission: the submission, and where it is.
    """

    folder: Path
    scores: ScoresFile
    submission: KeptSubmission

    @property
    def manifest(self) -> SubmissionManifest:
        """The declaration of its authors, which every entry has."""
        assert self.scores.manifest is not None
        return self.scores.manifest

    @property
    def entry(self) -> str:
        """The entry's id."""
        return self.manifest.entry

    @property
    def seed(self) -> int:
        """The seed of the training run."""
        return self.manifest.seed

    def value(self, metric: str) -> float | None:
        """Return a score; None where it was not taken or is not defined."""
        report = self.scores.scores.get(metric)
        return None if report is None else report.value


def read_run(folder: Path) -> Run:
    """Read an entry's run, and look at all of its files.

    Raises:
        UsageError: a file is missing or does not fit the others.
    """
    for path in (folder, folder / SCORES):
        if path.is_symlink():
            raise UsageError(f"{path} is a symbolic link: an entry holds its files themselves")
    scores = ScoresFile.read(folder / SCORES)
    manifest = scores.manifest
    named = (manifest.entry, manifest.seed) if manifest else (None, None)
    place = folder.parent.name, folder.name
    if (named[0], str(named[1])) != place:
        raise UsageError(
            f"{folder} should hold entry {place[0]!r} at seed {place[1]}; its scores are of "
            f"{named[0]!r} at {named[1]!r}"
        )
    read_report(folder / REPORT)
    try:
        declared = tomllib.loads(_read_text(folder / ENTRY_MANIFEST, _LARGEST_NOTE))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{folder / ENTRY_MANIFEST} is not TOML: {error}") from error
    if manifest is None or declared != given_fields(manifest):
        raise UsageError(f"{folder / ENTRY_MANIFEST} is not the manifest in {SCORES}")
    return Run(folder, scores, _read_submission(folder, scores))


def given_fields(manifest: SubmissionManifest) -> dict[str, Any]:
    """Return the fields of a manifest that are not None."""
    return {key: value for key, value in manifest.as_dict().items() if value is not None}


def _read_submission(folder: Path, scores: ScoresFile) -> KeptSubmission:
    path = folder / ENTRY_SUBMISSION
    try:
        plain = json.loads(_read_text(path, _LARGEST_NOTE))
        kept = KeptSubmission(**{**plain, "files": tuple(plain.get("files") or ())})
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} does not describe a submission: {error}") from error
    scored = scores.submission
    if (kept.kind, kept.name, kept.sha256) != (scored.kind, scored.name, scored.sha256):
        raise UsageError(f"{path} is not of the submission that {SCORES} is of")
    if kept.link is not None and not (isinstance(kept.link, str) and is_web_link(kept.link)):
        raise UsageError(f"{path}: the link must begin with https:// or http://")
    for name in kept.files if kept.file is None else (kept.file, *kept.files):
        if not isinstance(name, str) or not may_be_called(name):
            raise UsageError(f"{path}: file must be the name of a file beside it")
        beside = folder / name
        if beside.is_symlink() or not beside.is_file():
            raise UsageError(f"{path} names the file {name!r}, which is not beside it")
    return kept


def read_entry(folder: Path) -> list[Run]:
    """Read all runs of an entry, by seed; none where there is no such folder.

    Raises:
        UsageError: one of them does not fit.
    """
    if not folder.is_dir():
        return []
    if folder.is_symlink() or not is_entry_id(folder.name):
        raise UsageError(f"{folder}: no folder of an entry has such a name, or is a link")
    runs = [read_run(each) for each in sorted(folder.iterdir()) if each.name[0] != "."]
    for run in runs[1:]:
        refuse_other(runs[0], run.manifest)
    return sorted(runs, key=lambda run: run.seed)


def read_board(board: Path) -> list[Run]:
    """Read all runs of a leaderboard, by entry and seed.

    Raises:
        UsageError: there is no leaderboard, or an entry does not fit.
    """
    root = board / ENTRIES
    if not root.is_dir():
        raise UsageError(
            f"{board} is no leaderboard: expected a folder {ENTRIES}/ in it, which "
            "`3dident leaderboard add` makes"
        )
    folders = [each for each in sorted(root.iterdir()) if each.name[0] != "."]
    return [run for folder in folders for run in read_entry(folder)]


def find_runs(entry: str, board: Path) -> list[Run]:
    """Read the runs of an entry's id in a leaderboard, or that of a folder.

    Args:
        entry: the entry's id, or the path of a run's folder.
        board: the leaderboard's directory.

    Raises:
        UsageError: there are none, or one does not fit.
    """
    folder = Path(entry)
    if (folder / SCORES).exists():
        return [read_run(folder.resolve())]
    if is_entry_id(entry):
        runs = read_entry(board / ENTRIES / entry)
        if runs:
            return runs
    raise UsageError(
        f"there is no entry {entry!r:.100}: expected the id of one in {board / ENTRIES}, or the "
        f"folder of a run, which holds {SCORES}"
    )


def refuse_other(other: Run, declared: SubmissionManifest) -> None:
    """Refuse a manifest of another method than another run of the entry has.

    Raises:
        UsageError: the other run's manifest differs in more than the seeds.
    """
    first, second = other.manifest.as_dict(), declared.as_dict()
    off = [key for key in first if key not in _OF_A_RUN and first[key] != second[key]]
    if off:
        raise UsageError(
            f"entry {other.entry!r} at seed {other.seed} has another manifest: {', '.join(off)} "
            "differ. Runs of one entry differ in their seeds alone; give this one another entry id"
        )


def may_be_called(name: str) -> bool:
    """Whether a submission's file may lie beside the others of its entry."""
    taken = (SCORES, REPORT, ENTRY_MANIFEST, ENTRY_SUBMISSION)
    page = name.lower().endswith((".html", ".htm", ".xhtml", ".svg", ".js"))
    plain = re.fullmatch("[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name)
    return bool(plain) and not page and name.lower() not in taken


def size_of(path: Path) -> int:
    """Return the bytes of a file.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return path.stat().st_size
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _read_text(path: Path, most: int) -> str:
    """Read a text file of an entry, which must not be a link to something else.

    Raises:
        UsageError: it is missing, too large, a link or not UTF-8.
    """
    if path.is_symlink():
        raise UsageError(f"{path} is a symbolic link: an entry holds its files themselves")
    if size_of(path) > most:
        raise UsageError(f"{path} is larger than the {most / 1e6:g} MB that it may have")
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not text in UTF-8") from error


def read_report(path: Path) -> str:
    """Read a report that runs no script.

    Raises:
        UsageError: it is missing, too large, a link, or no report of this toolkit.
    """
    text = _read_text(path, _LARGEST_REPORT)
    if not runs_nothing(text):
        raise UsageError(
            f"{path} is no report that `3dident evaluate` made: it does not begin with the rules "
            "that keep a page from running scripts. Make it again"
        )
    return text
