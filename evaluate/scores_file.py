"""`ScoresFile`: scores.json as an object that reads and writes itself.

Only this module and `scores_schema`, which refuses what does not fit, know the file's field names.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from threedident.errors import UsageError
from threedident.evaluate.assumptions import ScoreWarning
from threedident.evaluate.metric_report import MetricReport
from threedident.evaluate.scores_schema import (
    FORMAT,
    FORMAT_VERSION,
    LARGEST_FILE,
    check_scores,
    parse_json,
)
from threedident.evaluate.submissions.manifest import SubmissionManifest
from threedident.storage.atomic_files import write_json

#: The files that an evaluation writes.
SCORES, EMBEDDINGS, REPORT = "scores.json", "embeddings.npy", "report.html"
#: The images that `reference:pca` was fitted on, in scores that do not name them.
UNNAMED = "images that they do not name"


@dataclasses.dataclass(frozen=True)
class DatasetIdentity:
    """A dataset as told from others, and from itself before it was extended.

    Attributes:
        fingerprint: the hash of its settings; of the published layout, of its latents.
        images: the number of its images.
    """

    fingerprint: str
    images: int


@dataclasses.dataclass(frozen=True)
class SubmissionRecord:
    """The part `submission` of scores.json.

    Attributes:
        kind: embeddings, onnx, python, torch or reference.
        name: the file's name, `package.module:factory` or `reference:NAME`.
        sha256: the hash of the submission; None for a reference without a file.
        files: names of the files beside it that hold its weights; None where scores of an
            earlier version do not say.
        codes: the number of codes, m.
        about: a line on a reference encoder; None for others.
        manifest: the declaration of its authors, if there is one.
        network_blocked: whether its process had no network; None where none was started.
        fitted_on: the images that `reference:pca` was fitted on, where they are not the test set.
        batch_size: the number of images at once; None where it is not recorded.
        extra: fields that this version does not know.
    """

    kind: str
    name: str
    sha256: str | None
    files: tuple[str, ...] | None
    codes: int
    about: str | None
    manifest: SubmissionManifest | None
    network_blocked: bool | None
    fitted_on: DatasetIdentity | None
    batch_size: int | None
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Make the record of plain data that was checked."""
        fields, extra = _split(cls, data)
        files, manifest, fitted_on = (fields[k] for k in ("files", "manifest", "fitted_on"))
        fields["files"] = None if files is None else tuple(files or ())
        fields["manifest"] = None if manifest is None else SubmissionManifest.from_dict(manifest)
        fields["fitted_on"] = None if fitted_on is None else _identity(fitted_on)
        return cls(**fields, extra=extra)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        data = _fields(self)
        data["files"] = None if self.files is None else list(self.files)
        data["manifest"] = None if self.manifest is None else self.manifest.as_dict()
        data["fitted_on"] = None if self.fitted_on is None else dataclasses.asdict(self.fitted_on)
        return {**data, **self.extra}


@dataclasses.dataclass(frozen=True)
class DataRecord:
    """The part `data` of scores.json.

    Attributes:
        fingerprint: the hash of its settings; of the published layout, of its latents.
        images: the number of its images.
        preset: the name of its generator; None where that is not recorded.
        split: the split; None where nobody says.
        seed: the seed for its latents; None where they were given.
        resolution: the number of pixels along each side.
        engine: the renderer, as `dataset.json` records it; or None.
        factors: names of the factors that were scored.
        not_injective: the reasons why different latents share an image; None if not known.
        best_r2: the best possible R2 by factor, where it is known.
        why_no_best_r2: the reason why there is none, a clause; or None.
        model: the name of the causal model; None where there is none.
        drawn: what was drawn of it: group, environments, interventions; or None.
        sample: the images that were scored, where those are not all in their order: their number,
            of how many, and the seed; or None.
        extra: fields that this version does not know.
    """

    fingerprint: str
    images: int
    preset: str | None
    split: str | None
    seed: int | None
    resolution: int | None
    engine: Mapping[str, Any] | None
    factors: tuple[str, ...]
    not_injective: tuple[str, ...] | None
    best_r2: Mapping[str, float | None] | None
    why_no_best_r2: str | None
    model: str | None = None
    drawn: Mapping[str, Any] | None = None
    sample: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def identity(self) -> DatasetIdentity:
        """The identity of the dataset."""
        return DatasetIdentity(self.fingerprint, self.images)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Make the record of plain data that was checked."""
        fields, extra = _split(cls, data)
        fields["factors"] = tuple(fields["factors"])
        reasons = fields["not_injective"]
        fields["not_injective"] = None if reasons is None else tuple(reasons or ())
        return cls(**fields, extra=extra)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        data = {key: list(v) if isinstance(v, tuple) else v for key, v in _fields(self).items()}
        if self.model is None:  # as it was before there were models
            del data["model"], data["drawn"]
        if self.sample is None:  # as it was before images were drawn
            del data["sample"]
        return {**data, **self.extra}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ScoredCodes:
    """Scores of codes on a test set: the parts of scores.json that do not say whose they are.

    Attributes:
        data: the test set.
        settings: the settings of the metrics, as plain data.
        scores: reports by the metric's name.
        warnings: assumptions that do not hold.
    """

    data: DataRecord
    settings: Mapping[str, Any]
    scores: Mapping[str, MetricReport]
    warnings: tuple[ScoreWarning, ...]

    def __eq__(self, other: object) -> bool:
        """Whether both would be written alike."""
        return isinstance(other, type(self)) and self.as_dict() == other.as_dict()

    def __hash__(self) -> int:
        return hash(self.data.identity)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Make an object of plain data that was checked, or that this toolkit made."""
        return cls(**_parts(document))

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "data": self.data.as_dict(),
            "settings": dict(self.settings),
            "scores": {name: report.as_dict() for name, report in self.scores.items()},
            "warnings": [dataclasses.asdict(warning) for warning in self.warnings],
        }

    @property
    def no_best_scores(self) -> str | None:
        """The reason why scores do not stand beside the best possible ones; None where they do."""
        reason = self.data.why_no_best_r2
        return f"no best possible scores are given: {reason}" if reason else None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ScoresFile(ScoredCodes):
    """The content of scores.json.

    Attributes:
        created: the time, in UTC, ISO 8601.
        toolkit: the version of this package.
        libraries: versions of Python and of what the scores depend on, by name.
        submission: the submission that was scored.
        independent: the scores of the same encoder on independent variables of the same
            generator; None where there are none.
    """

    created: str
    toolkit: str
    libraries: Mapping[str, str]
    submission: SubmissionRecord
    independent: ScoredCodes | None = None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file that anyone can have written.

        Raises:
            UsageError: it cannot be read, or does not fit; the message names the field.
        """
        try:
            with path.open("rb") as file:
                content = file.read(LARGEST_FILE + 1)
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
        return cls.parse(parse_json(content, path), str(path))

    @classmethod
    def parse(cls, document: Any, source: str) -> Self:
        """Make an object of a document that anyone can have written.

        Args:
            document: the plain data.
            source: the name of the document in an error.

        Raises:
            UsageError: a field is missing, unknown, of the wrong type or out of range.
        """
        return cls.from_dict(check_scores(document, source))

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Make an object of plain data that was checked, or that this toolkit made."""
        beside = document.get("independent")
        return cls(
            created=document["created"],
            toolkit=document["toolkit"],
            libraries=document["libraries"],
            submission=SubmissionRecord.from_dict(document["submission"]),
            independent=None if beside is None else ScoredCodes.from_dict(beside),
            **_parts(document),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, in the order of the file."""
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "created": self.created,
            "toolkit": self.toolkit,
            "libraries": dict(self.libraries),
            "submission": self.submission.as_dict(),
            **super().as_dict(),
            **({} if self.independent is None else {"independent": self.independent.as_dict()}),
        }

    def as_written(self) -> Self:
        """Return the object that one gets back from the file, whose numbers are rounded."""
        return self.from_dict(self.as_dict())

    def write(self, path: Path) -> None:
        """Write the file, replacing one that is there in one step.

        Raises:
            DatasetError: the disk is full or cannot be written to.
        """
        write_json(path, self.as_dict())

    def same_but_for_time(self, other: ScoresFile) -> bool:
        """Whether two files say the same, apart from when they were made."""
        mine, others = self.as_dict(), other.as_dict()
        return mine | {"created": ""} == others | {"created": ""}

    @property
    def manifest(self) -> SubmissionManifest | None:
        """The declaration of the submission's authors, if there is one."""
        return self.submission.manifest

    @property
    def on_training_split(self) -> bool:
        """Whether the scores are of images of a training split."""
        return self.data.split == "train"


@dataclasses.dataclass(frozen=True)
class ScoresOwner:
    """The submission and the test set that a file's scores are of.

    Attributes:
        kind, name, sha256: the submission's.
        files: names of the files beside it; None where scores of an earlier version do not say.
        scored_on: the test set.
        fitted_on: the images that `reference:pca` was fitted on, `UNNAMED`, or None.
    """

    kind: str
    name: str
    sha256: str | None
    files: tuple[str, ...] | None
    scored_on: DatasetIdentity
    fitted_on: DatasetIdentity | str | None

    @classmethod
    def read(cls, path: Path) -> ScoresOwner | None:
        """Read whose scores a file holds, if the rest fits or not; None where it is damaged."""
        fitted_on: DatasetIdentity | str | None
        try:
            document = json.loads(path.read_bytes())
            submission, data = document["submission"], document["data"]
            files = submission.get("files")
            if isinstance(files, list):
                files = tuple(map(str, files))
            elif files is not None:
                files = ()
            if "fitted_on" in submission:
                given = submission["fitted_on"]
                fitted_on = None if given is None else _identity(given)
            else:  # as scores of an earlier version
                about = str(submission.get("about"))
                fitted_on = UNNAMED if "training images" in about else None
            return cls(
                kind=submission["kind"],
                name=submission["name"],
                sha256=submission["sha256"],
                files=files,
                scored_on=_identity(data),
                fitted_on=fitted_on,
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None


def _identity(data: Mapping[str, Any]) -> DatasetIdentity:
    return DatasetIdentity(data["fingerprint"], data["images"])


def _parts(document: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "data": DataRecord.from_dict(document["data"]),
        "settings": document["settings"],
        "scores": {n: MetricReport.from_dict(each) for n, each in document["scores"].items()},
        "warnings": tuple(
            ScoreWarning(each["code"], each["message"]) for each in document["warnings"]
        ),
    }


def _split(record: type, data: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split plain data into a record's fields, None for those that lack, and all others."""
    names = [field.name for field in dataclasses.fields(record) if field.name != "extra"]
    fields = {name: data.get(name) for name in names}
    return fields, {key: value for key, value in data.items() if key not in fields}


def _fields(record: Any) -> dict[str, Any]:
    names = (field.name for field in dataclasses.fields(record) if field.name != "extra")
    return {name: getattr(record, name) for name in names}
