"""`SubmissionManifest`: the small TOML file in which authors say what their submission is."""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from threedident.errors import UsageError
from threedident.evaluate.report.html import is_web_link
from threedident.plain_data import (
    Misfit,
    choice,
    explaining,
    needed,
    read_bounded,
    sequence,
    text,
    whole,
)

#: The name of the file beside a submission.
MANIFEST_FILE = "SUBMISSION.toml"
#: Tracks by what encoders were trained with, and their labels on pages.
TRACKS: dict[str, str] = {
    "supervised": "supervised",
    "pairs-exact": "exact pairs",
    "pairs-matched": "matched pairs",
    "augmentations": "augmentations",
    "other": "other",
}
OUTPUT_SPACES = ("box", "sphere", "unbounded", "other")
CONDITIONALS = ("normal", "laplace", "gennorm", "uniform", "vmf", "other")
#: Ways to choose hyper-parameters. Choosing on the test split is allowed, and shown.
CHOSEN = ("published", "validation split", "test split", "training split", "not tuned", "other")
_PAIRS = ("pairs-matched", "pairs-exact")
_LARGEST_FILE = 65_536
_MOST_SEEDS = 100
_MOST_AUTHORS = 50
_MOST_WIDTHS = 10
_MOST_UNKNOWN = 3  # fields that an error names
#: The words of the template where its reader is to write.
FILL_IN = "FILL IN"
#: Values of an earlier template, which nobody means.
_PLACEHOLDERS: dict[str, Any] = {
    "name": "Our encoder",
    "authors": ["A. Author", "B. Author"],
    "link": "https://example.org/paper",
    "entry": "our-encoder",
}
_UNMISTAKABLE = ("authors", "link")  # the others can be meant


@dataclasses.dataclass(frozen=True)
class SubmissionManifest:
    """The declaration of a submission's authors.

    Attributes:
        name: the name of the submission, as a leaderboard shows it.
        authors: names of the authors.
        method: a line on the method.
        link: an address of a paper or code, http or https; None where there is none.
        preprocessing: the steps between an image and the encoder.
        output_space: box, sphere, unbounded or other.
        track: the kind of training; see `TRACKS`.
        conditional: the conditional of positive pairs, p(z~ | z); None on tracks without.
        width: the width of the conditional in raw units, one number or one per factor; None
            likewise.
        preset: the preset of the images it was trained on.
        images: the number of different ones.
        steps: the number of training steps.
        hyperparameters: the way in which they were chosen.
        entry: the id of its row in a leaderboard; runs with one id form one row.
        seed: the seed of this training run.
        data_seeds: seeds of the rendered images it was trained on.
        submission: the file's name without its folder, `package.module:factory` or
            `reference:NAME`, of the submission it belongs to; None where it does not say.
    """

    name: str
    authors: tuple[str, ...]
    method: str
    link: str | None
    preprocessing: str
    output_space: str
    track: str
    conditional: str | None
    width: float | tuple[float, ...] | None
    preset: str
    images: int
    steps: int
    hyperparameters: str
    entry: str
    seed: int
    data_seeds: tuple[int, ...]
    submission: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        fields = dataclasses.asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SubmissionManifest:
        """Make the manifest of plain data that were checked; see `parse_manifest` for others."""
        values: dict[str, Any] = {f.name: data.get(f.name) for f in dataclasses.fields(cls)}
        for name, value in values.items():
            if isinstance(value, list):
                values[name] = tuple(value)
        return cls(**values)


def is_entry_id(text: str) -> bool:
    """Whether a text can name an entry, and its folder."""
    return bool(re.fullmatch("[a-z0-9][a-z0-9-]{0,63}", text))


def read_manifest(path: Path) -> SubmissionManifest:
    """Read the manifest in a file.

    Raises:
        UsageError: it cannot be read or does not fit; the message names every field.
    """
    try:
        data = tomllib.loads(read_bounded(path, _LARGEST_FILE).decode("utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the manifest {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # too large, not UTF-8, not TOML, or too deep
        raise UsageError(f"the manifest {path} is not TOML: {error}") from error
    return parse_manifest(data, str(path))


def parse_manifest(data: Mapping[str, Any], source: str) -> SubmissionManifest:
    """Check the fields of a manifest.

    Args:
        data: the fields, as plain data.
        source: the name of the manifest in an error.

    Raises:
        UsageError: a field is missing, unknown, still as in the template, or does not fit; the
            message names every such field.
    """
    left = [key for key, value in data.items() if value in (FILL_IN, [FILL_IN])]
    values, misfits = _check(data, left)
    if left:
        also = "".join(f"; {misfit}" for misfit in misfits)
        raise UsageError(
            f"{source}: {', '.join(left)} {_verb(left)} still to be filled in{also}. To score "
            "without a manifest, move it elsewhere"
        )
    with explaining(source, "`3dident evaluate --template` prints a manifest with all fields"):
        if misfits:
            raise Misfit("; ".join(misfits))
    return SubmissionManifest(**values)


def refuse_placeholders(manifest: SubmissionManifest, source: str) -> None:
    """Refuse a manifest that still names the example authors or link of an earlier template.

    Args:
        manifest: the manifest, whose fields fit.
        source: the name of the manifest in an error.

    Raises:
        UsageError: it does; the message names every field that is as in the template.
    """
    fields = manifest.as_dict()
    left = [key for key, value in _PLACEHOLDERS.items() if fields[key] == value]
    if any(key in _UNMISTAKABLE for key in left):
        raise UsageError(
            f"{source}: {', '.join(left)} {_verb(left)} as in the template. Write what is true of "
            "the submission, and evaluate again"
        )


def _verb(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _check(
    data: Mapping[str, Any], skipped: Collection[str] = ()
) -> tuple[dict[str, Any], list[str]]:
    """Check every field but those that are skipped; return what fits, and why others do not."""
    values: dict[str, Any] = {}
    misfits: list[str] = []
    for name, check in _CHECKS.items():
        try:
            if name not in skipped:
                values[name] = check(data)
        except Misfit as misfit:
            misfits.append(str(misfit))
    for key in [key for key in data if key not in _CHECKS][:_MOST_UNKNOWN]:
        misfits.append(f"unknown field {key!r:.60}: expected some of {', '.join(_CHECKS)}")
    return values, misfits


def _text(data: Mapping[str, Any], key: str, most: int) -> str:
    return text(needed(data, key), key, most)


def _choice(data: Mapping[str, Any], key: str, choices: Sequence[str]) -> str:
    return choice(needed(data, key), key, choices)


def _whole(data: Mapping[str, Any], key: str) -> int:
    return whole(needed(data, key), key)


def _link(data: Mapping[str, Any]) -> str | None:
    if data.get("link") is None:
        return None
    link = _text(data, "link", 300)
    if not is_web_link(link):
        raise Misfit(f"link must begin with https:// or http://, found {link!r:.80}")
    return link


def _width(value: Any) -> float | tuple[float, ...]:
    if isinstance(value, list) and 1 <= len(value) <= _MOST_WIDTHS:
        return tuple(_positive(each) for each in value)
    return _positive(value)


def _positive(value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise Misfit(f"width must be a number above 0 or a list of them, found {value!r:.80}")
    return float(value)


def _of_pairs(data: Mapping[str, Any], key: str, check: Callable[[Any], Any]) -> Any:
    """Check a field that tracks of pairs must have, and others must not."""
    track = data.get("track")
    if track in _PAIRS:
        return check(needed(data, key))
    if track in tuple(TRACKS) and data.get(key) is not None:
        raise Misfit(f"{key} is for the tracks {' and '.join(_PAIRS)}, found {track!r}")
    return None  # of a track that is none, another error tells


def _entry(data: Mapping[str, Any]) -> str:
    entry = _text(data, "entry", 64)
    if not is_entry_id(entry):
        raise Misfit(
            f"entry must be an id of small letters, digits and '-', at most 64, found {entry!r:.80}"
        )
    return entry


#: The check of each field, in the order of `SubmissionManifest`.
_CHECKS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "name": lambda data: _text(data, "name", 80),
    "authors": lambda data: sequence(
        needed(data, "authors"),
        "authors",
        lambda value, where: text(value, where, 100),
        most=_MOST_AUTHORS,
    ),
    "method": lambda data: _text(data, "method", 200),
    "link": _link,
    "preprocessing": lambda data: _text(data, "preprocessing", 1000),
    "output_space": lambda data: _choice(data, "output_space", OUTPUT_SPACES),
    "track": lambda data: _choice(data, "track", tuple(TRACKS)),
    "conditional": lambda data: _of_pairs(
        data, "conditional", lambda value: choice(value, "conditional", CONDITIONALS)
    ),
    "width": lambda data: _of_pairs(data, "width", _width),
    "preset": lambda data: _text(data, "preset", 80),
    "images": lambda data: _whole(data, "images"),
    "steps": lambda data: _whole(data, "steps"),
    "hyperparameters": lambda data: _choice(data, "hyperparameters", CHOSEN),
    "entry": _entry,
    "seed": lambda data: _whole(data, "seed"),
    "data_seeds": lambda data: sequence(
        needed(data, "data_seeds"), "data_seeds", whole, least=0, most=_MOST_SEEDS
    ),
    "submission": lambda data: (
        None if data.get("submission") is None else _text(data, "submission", 300)
    ),
}


def template() -> str:
    """Return a manifest to fill in."""

    def some(values: Sequence[str]) -> str:
        return ", ".join(values)

    return f"""\
# Beside the submission as {MANIFEST_FILE}, or given with --manifest. Write over every "{FILL_IN}".
submission = "{FILL_IN}"  # the file it belongs to, such as "encoder.onnx"; may be left out
name = "{FILL_IN}"
authors = ["{FILL_IN}"]
method = "{FILL_IN}"  # a line, such as "InfoNCE, ResNet-18"
# link = "https://..."  # to a paper or code; may be left out
preprocessing = "{FILL_IN}"  # such as "mean and standard deviation of the training images"
output_space = "{FILL_IN}"  # {some(OUTPUT_SPACES)}

# What it was trained with.
track = "{FILL_IN}"  # {some(tuple(TRACKS))}
conditional = "{FILL_IN}"  # of {some(_PAIRS)}; else left out: {some(CONDITIONALS)}
width = "{FILL_IN}"  # likewise; a number in raw units, or a list with one per factor
preset = "{FILL_IN}"  # of the images, such as "3dident"
images = "{FILL_IN}"  # a number: how many different ones
steps = "{FILL_IN}"  # a number
hyperparameters = "{FILL_IN}"  # how they were chosen: {some(CHOSEN)}

# Runs of one entry form one row of a leaderboard; three seeds make it complete.
entry = "{FILL_IN}"  # an id, of small letters, digits and "-"
seed = "{FILL_IN}"  # a number: of this training run
# A list of numbers: seeds of the rendered images it was trained on; these cannot test it afresh.
data_seeds = "{FILL_IN}"
"""
