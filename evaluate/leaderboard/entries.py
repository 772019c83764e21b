"""A leaderboard's entries: folders fit for a pull request, and what is checked of each."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from threedident.errors import UsageError
from threedident.evaluate.report.html import is_web_link, runs_nothing
from threedident.evaluate.report.labels import is_entry_id
from threedident.evaluate.scores_file import read_scores
from threedident.evaluate.seen import UNRANKED
from threedident.evaluate.submissions.manifest import refuse_placeholders
from threedident.evaluate.submissions.submission import Submission as Scored
from threedident.evaluate.submissions.submission import digest, file_digest
from threedident.storage.atomic_files import explaining_write_errors, write_json

ENTRIES = "entries"
SCORES, REPORT = "scores.json", "report.html"
MANIFEST, SUBMISSION = "manifest.toml", "submission.json"

_LARGEST_REPORT = 64_000_000
_LARGEST_SUBMISSION = 100_000_000  # what hosts of git repositories take
_LARGEST_NOTE = 100_000
_ONE_FILE = (
    "Export it as one file (torch.onnx.export with external_data=False, or "
    "`onnx.save(onnx.load('mine.onnx'), 'one.onnx')`), and evaluate that"
)
#: May differ between the runs of an entry.
_OF_A_RUN = ("seed", "data_seeds", "submission")


@dataclasses.dataclass(frozen=True)
class Submission:
    """What `submission.json` says.

    Attributes:
        kind: embeddings, onnx, python, torch or reference.
        name: of the file, or of the reference encoder.
        sha256: of the submission; None for a reference without a file.
        file: its name in the entry's folder; None where it is not there.
        link: where it can be had instead.
        files: names of files beside it that hold its weights, in the entry's folder as well.
    """

    kind: str
    name: str
    sha256: str | None
    file: str | None = None
    link: str | None = None
    files: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Run:
    """An entry at one seed.

    Attributes:
        folder: where it lies; its name is the seed, its parent's the entry.
        scores: what `scores.json` holds.
        submission: what was scored, and where it is.
    """

    folder: Path
    scores: Mapping[str, Any]
    submission: Submission

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What its authors declare."""
        return self.scores["submission"]["manifest"]

    @property
    def entry(self) -> str:
        """The entry's id."""
        return str(self.manifest["entry"])

    @property
    def seed(self) -> int:
        """Of the training run."""
        return int(self.manifest["seed"])

    def value(self, metric: str) -> float | None:
        """A score; None where it was not taken or is not defined."""
        value = self.scores["scores"].get(metric, {}).get("value")
        return None if value is None else float(value)


def add(
    path: Path, board: Path, *, submission: Path | None = None, link: str | None = None
) -> tuple[Run, bool]:
    """Makes an entry's folder of what `3dident evaluate` wrote.

    Args:
        path: `scores.json`, its report beside it.
        board: the leaderboard's directory.
        submission: the file that was scored, to be kept with the entry.
        link: where the submission can be had, where it is not kept.

    Returns:
        The run, and whether it is new.

    Raises:
        UsageError: a file does not fit; the manifest lacks entry or seed, or is not filled in;
            the scores are of images that the encoder was fitted on, or of a training split;
            there is another run of the same entry and seed, or one whose manifest says something
            else.
        DatasetError: the board cannot be written to.
    """
    scores = read_scores(path)
    declared = scores["submission"]["manifest"]
    if declared is None:
        raise UsageError(
            f"{path}: an entry needs a manifest. `3dident evaluate --template` prints one to fill "
            "in; put it beside the submission, and evaluate again"
        )
    refuse_placeholders(declared, str(path))
    _refuse_seen(scores, path)
    report = _read_report(path.with_name(REPORT))
    kept = _describe(scores, submission, link)
    folder = board / ENTRIES / declared["entry"] / str(declared["seed"])
    if folder.exists():
        there = read_run(folder)
        if _lasting(there.scores) != _lasting(scores):
            raise UsageError(
                f"{folder} holds other scores of entry {there.entry!r} at seed {there.seed}. "
                "A run that differs needs another seed or another entry id; to replace the old "
                "one, delete its folder first"
            )
        return there, False
    for other in read_entry(folder.parent):
        _refuse_other(other, declared)
    with explaining_write_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".tmp-", dir=folder.parent))
        try:
            made.chmod(0o755)
            shutil.copyfile(path, made / SCORES)
            (made / REPORT).write_text(report, "utf-8", newline="\n")
            (made / MANIFEST).write_text(as_toml(declared), "utf-8", newline="\n")
            write_json(made / SUBMISSION, dataclasses.asdict(kept))
            if kept.file is not None and submission is not None:
                shutil.copyfile(submission, made / kept.file)
                for name in kept.files:
                    shutil.copyfile(submission.parent / name, made / name)
            made.rename(folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return read_run(folder), True


def _refuse_seen(scores: Mapping[str, Any], path: Path) -> None:
    """Refuses scores of images that encoders are fitted on.

    Raises:
        UsageError: the test set is of the split train, or the encoder has seen its images.
    """
    reason = None
    if on_training_split(scores):
        reason = "they are of images of the split `train`, which encoders are fitted on"
    for warning in scores["warnings"]:
        if warning["code"] in UNRANKED and reason is None:
            reason = warning["message"]
    if reason:
        raise UsageError(
            f"{path}: these scores cannot be ranked: {reason}. Render a test set with `3dident "
            "render --split test`, and evaluate on that"
        )


def on_training_split(scores: Mapping[str, Any]) -> bool:
    """Whether scores are of images of a training split."""
    return bool(scores["data"].get("split") == "train")


def _lasting(scores: Mapping[str, Any]) -> dict[str, Any]:
    """The scores without what differs each time they are taken."""
    return {key: value for key, value in scores.items() if key != "created"}


def _refuse_other(other: Run, declared: Mapping[str, Any]) -> None:
    """Runs of one entry are one method at several seeds.

    Raises:
        UsageError: the other run's manifest differs in more than the seeds.
    """
    keys = [key for key in dict.fromkeys((*other.manifest, *declared)) if key not in _OF_A_RUN]
    off = [key for key in keys if other.manifest.get(key) != declared.get(key)]
    if off:
        raise UsageError(
            f"entry {other.entry!r} at seed {other.seed} has another manifest: {', '.join(off)} "
            "differ. Runs of one entry differ in their seeds alone; give this one another entry id"
        )


def _describe(scores: Mapping[str, Any], file: Path | None, link: str | None) -> Submission:
    """What is kept of the submission.

    Raises:
        UsageError: neither file nor link are given where there should be one, or they do not
            fit.
    """
    found = scores["submission"]
    kind, name, sha256 = found["kind"], found["name"], found["sha256"]
    if link is not None and not is_web_link(link):
        raise UsageError(f"--link must begin with https:// or http://, found {link!r:.100}")
    if file is None:
        if link is None and kind != "reference":
            raise UsageError(
                f"the entry needs what was scored ({name!r}): --submission FILE keeps it with the "
                "entry, --link URL says where it can be had"
            )
        return Submission(kind, name, sha256, None, link)
    if not _may_be_called(file.name):
        raise UsageError(
            f"an entry's submission cannot be called {file.name!r}: rename it to letters, digits, "
            "'.', '_' and '-'"
        )
    files = _kept_files(found, file)
    for each in (file, *(file.parent / name for name in files)):
        size = _size(each)
        if size > _LARGEST_SUBMISSION:
            raise UsageError(
                f"{each} has {size / 1e6:.0f} MB, more than the {_LARGEST_SUBMISSION / 1e6:.0f} MB "
                "that a file of an entry may have: give --link URL instead"
            )
    return Submission(kind, name, sha256, file.name, link, files)


def _kept_files(scored: Mapping[str, Any], file: Path) -> tuple[str, ...]:
    """The files beside a submission that belong to it, once it is known to be what was scored.

    Raises:
        UsageError: it is not, or they cannot be kept with it.
    """
    kind, sha256 = scored["kind"], scored["sha256"]
    if file_digest(file) == sha256:
        return ()
    named = scored.get("files")
    # Scores of earlier versions do not name them: torch writes one, called after the model.
    names = tuple(named) if named else (f"{scored['name']}.data",)
    if kind == "onnx" and (named or (file.parent / names[0]).is_file()):
        for name in names:
            if not _may_be_called(name) or name == file.name:
                raise UsageError(
                    f"{file} has weights in {name!r}, a name that an entry cannot keep. {_ONE_FILE}"
                )
            if not (file.parent / name).is_file():
                raise UsageError(
                    f"{file} is the ONNX file of what was scored, or another: the weights were in "
                    f"{name}, which is not beside it. Put it there"
                )
        if digest(Scored(kind, file.name, file), names) == sha256:
            return names
    hints = {
        "python": ", which is that of a module and its checkpoint together, where it has one. An "
        "entry does not keep both: give --link URL instead",
        "onnx": "" if named else ". If it has weights in other files, put them beside it",
    }
    raise UsageError(
        f"{file} is not what was scored: its SHA-256 is not {sha256}{hints.get(kind, '')}"
    )


def _may_be_called(name: str) -> bool:
    """Whether a submission's file may lie beside the others of its entry."""
    taken = (SCORES, REPORT, MANIFEST, SUBMISSION)
    page = name.lower().endswith((".html", ".htm", ".xhtml", ".svg", ".js"))
    plain = re.fullmatch("[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name)
    return bool(plain) and not page and name.lower() not in taken


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _read_text(path: Path, most: int) -> str:
    """A text file of an entry, which must not be a link to something else.

    Raises:
        UsageError: it is missing, too large, a link or not UTF-8.
    """
    if path.is_symlink():
        raise UsageError(f"{path} is a symbolic link: an entry holds its files themselves")
    if _size(path) > most:
        raise UsageError(f"{path} is larger than the {most / 1e6:g} MB that it may have")
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not text in UTF-8") from error


def _read_report(path: Path) -> str:
    text = _read_text(path, _LARGEST_REPORT)
    if not runs_nothing(text):
        raise UsageError(
            f"{path} is no report that `3dident evaluate` made: it does not begin with the rules "
            "that keep a page from running scripts. Make it again"
        )
    return text


def read_run(folder: Path) -> Run:
    """An entry's run, all of its files looked at.

    Raises:
        UsageError: a file is missing or does not fit the others.
    """
    for path in (folder, folder / SCORES):
        if path.is_symlink():
            raise UsageError(f"{path} is a symbolic link: an entry holds its files themselves")
    scores = read_scores(folder / SCORES)
    manifest = scores["submission"]["manifest"] or {}
    place = folder.parent.name, folder.name
    if (manifest.get("entry"), str(manifest.get("seed"))) != place:
        raise UsageError(
            f"{folder} should hold entry {place[0]!r} at seed {place[1]}; its scores are of "
            f"{manifest.get('entry')!r} at {manifest.get('seed')!r}"
        )
    _read_report(folder / REPORT)
    try:
        declared = tomllib.loads(_read_text(folder / MANIFEST, _LARGEST_NOTE))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{folder / MANIFEST} is not TOML: {error}") from error
    if declared != {key: value for key, value in manifest.items() if value is not None}:
        raise UsageError(f"{folder / MANIFEST} is not the manifest in {SCORES}")
    return Run(folder, scores, _read_submission(folder, scores))


def _read_submission(folder: Path, scores: Mapping[str, Any]) -> Submission:
    path = folder / SUBMISSION
    try:
        plain = json.loads(_read_text(path, _LARGEST_NOTE))
        found = Submission(**{**plain, "files": tuple(plain.get("files") or ())})
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} does not describe a submission: {error}") from error
    scored = scores["submission"]
    same = (scored["kind"], scored["name"], scored["sha256"])
    if (found.kind, found.name, found.sha256) != same:
        raise UsageError(f"{path} is not of the submission that {SCORES} is of")
    if found.link is not None and not (isinstance(found.link, str) and is_web_link(found.link)):
        raise UsageError(f"{path}: the link must begin with https:// or http://")
    for name in found.files if found.file is None else (found.file, *found.files):
        if not isinstance(name, str) or not _may_be_called(name):
            raise UsageError(f"{path}: file must be the name of a file beside it")
        kept = folder / name
        if kept.is_symlink() or not kept.is_file():
            raise UsageError(f"{path} names the file {name!r}, which is not beside it")
    return found


def read_entry(folder: Path) -> list[Run]:
    """All runs of an entry, by seed; none where there is no such folder.

    Raises:
        UsageError: one of them does not fit.
    """
    if not folder.is_dir():
        return []
    if folder.is_symlink() or not is_entry_id(folder.name):
        raise UsageError(f"{folder}: no folder of an entry has such a name, or is a link")
    found = [read_run(each) for each in sorted(folder.iterdir()) if each.name[0] != "."]
    for run in found[1:]:
        _refuse_other(found[0], run.manifest)
    return sorted(found, key=lambda run: run.seed)


def read_board(board: Path) -> list[Run]:
    """All runs of a leaderboard, by entry and seed.

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
    """The runs of an entry's id in a leaderboard, or that of a folder.

    Raises:
        UsageError: there are none, or one does not fit.
    """
    folder = Path(entry)
    if (folder / SCORES).exists():
        return [read_run(folder.resolve())]
    if is_entry_id(entry):
        found = read_entry(board / ENTRIES / entry)
        if found:
            return found
    raise UsageError(
        f"there is no entry {entry!r:.100}: expected the id of one in {board / ENTRIES}, or the "
        f"folder of a run, which holds {SCORES}"
    )


def as_toml(table: Mapping[str, Any]) -> str:
    """A flat table as TOML: its strings, numbers and lists are written as in JSON."""

    def written(value: Any) -> str:
        # JSON lets this one control character stand as it is, TOML does not.
        return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")

    pairs = ((key, value) for key, value in table.items() if value is not None)
    return "".join(f"{written(key)} = {written(value)}\n" for key, value in pairs)
