"""The schema and the limits of scores.json, which a leaderboard takes from strangers."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from threedident.errors import UsageError
from threedident.evaluate.metrics._linear_fit import FOLDS
from threedident.evaluate.metrics.registry import METRICS
from threedident.evaluate.submissions.manifest import parse_manifest
from threedident.plain_data import Misfit, choice, number, whole

FORMAT = "3dident-scores"
FORMAT_VERSION = 1
KINDS = ("embeddings", "onnx", "python", "torch", "reference")

LARGEST_FILE = 8_000_000
_LONGEST_TEXT = 4000
_DEEPEST = 12
_LARGEST_NUMBER = 2.0**64
_ROUNDING = 1e-9  # above 1
_PARTS = ("data", "settings", "scores", "warnings")
_TOP = ("format", "format_version", "created", "toolkit", "libraries", "submission", *_PARTS)


_Check = Callable[[Any, str], object]


def parse_json(content: bytes, path: Path) -> Any:
    """Parse the bytes of a file, of which at most one beyond `LARGEST_FILE` was read.

    Raises:
        UsageError: it is too large, or no JSON.
    """
    if len(content) > LARGEST_FILE:
        raise UsageError(f"{path} is larger than the {LARGEST_FILE} bytes that scores may have")
    try:
        return json.loads(content.decode("utf-8"), parse_constant=_refuse_constant)
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise UsageError(f"{path} is not JSON: {error}") from error


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no finite number")


def check_scores(data: Any, source: str) -> dict[str, Any]:
    """Return the document itself, once every field has been looked at.

    Args:
        data: the plain data of the document.
        source: the name of the document in an error.

    Raises:
        UsageError: a field is missing, unknown, of the wrong type or out of range.
    """
    try:
        _bounded(data, "the document", _DEEPEST)
        document = _object(data, "the document")
        _fields(document, "the document", _TOP, ("independent",))
        if document["format"] != FORMAT or document["format_version"] != FORMAT_VERSION:
            raise Misfit(
                f"expected format {FORMAT} in version {FORMAT_VERSION}, found "
                f"{document['format']!r:.60} in version {document['format_version']!r:.20}"
            )
        _text(document["created"], "created")
        _text(document["toolkit"], "toolkit")
        for name, version in _object(document["libraries"], "libraries").items():
            _text(version, f"libraries.{name}")
        _check_submission(_object(document["submission"], "submission"), source)
        _check_parts(document)
        if "independent" in document:
            beside = _object(document["independent"], "independent")
            _fields(beside, "independent", _PARTS)
            _check_parts(beside, "independent.")
    except Misfit as error:
        raise UsageError(
            f"{source} is no scores.json that this toolkit can take: {error}. "
            "Make it with `3dident evaluate`"
        ) from error
    return document


def _check_parts(document: Mapping[str, Any], prefix: str = "") -> None:
    """Check the parts that say what codes score on a test set.

    Args:
        document: the object that has them.
        prefix: its name and a dot, where it is not the document itself.
    """
    _check_data(_object(document["data"], f"{prefix}data"), f"{prefix}data")
    _check_settings(_object(document["settings"], f"{prefix}settings"), f"{prefix}settings")
    scores = _object(document["scores"], f"{prefix}scores")
    if not scores:
        raise Misfit(f"{prefix}scores holds no metric")
    for name, score in scores.items():
        _check_score(name, _object(score, f"{prefix}scores.{name}"), prefix)
    for i, warning in enumerate(_list(document["warnings"], f"{prefix}warnings")):
        fields = _object(warning, f"{prefix}warnings[{i}]")
        for key in ("code", "message"):
            _text(fields.get(key), f"{prefix}warnings[{i}].{key}")


def _check_submission(submission: Mapping[str, Any], source: str) -> None:
    _needs(submission, "submission", ("kind", "name", "sha256", "codes", "manifest"))
    choice(submission["kind"], "submission.kind", KINDS)
    _text(submission["name"], "submission.name")
    if submission["sha256"] is not None or submission["kind"] != "reference":
        _digest(submission["sha256"], "submission.sha256")
    whole(submission["codes"], "submission.codes", 1)
    if submission.get("batch_size") is not None:
        whole(submission["batch_size"], "submission.batch_size", 1)
    if submission.get("fitted_on") is not None:
        fitted_on = _object(submission["fitted_on"], "submission.fitted_on")
        _digest(fitted_on.get("fingerprint"), "submission.fitted_on.fingerprint")
        whole(fitted_on.get("images"), "submission.fitted_on.images", 1)
    for i, each in enumerate(_list(submission.get("files") or [], "submission.files")):
        _text(each, f"submission.files[{i}]")
    if submission["manifest"] is not None:
        parse_manifest(
            _object(submission["manifest"], "submission.manifest"), f"{source}, manifest"
        )


def _check_settings(settings: Mapping[str, Any], where: str) -> None:
    _needs(settings, where, ("folds", "bootstrap", "seed"))
    choice(settings["folds"], f"{where}.folds", FOLDS)
    for key in ("bootstrap", "seed"):
        whole(settings[key], f"{where}.{key}", 0)


def _check_data(data: Mapping[str, Any], where: str) -> None:
    _needs(
        data,
        where,
        (
            *("fingerprint", "images", "preset", "split", "seed", "resolution", "engine"),
            *("factors", "not_injective", "best_r2"),
        ),
    )
    _digest(data["fingerprint"], f"{where}.fingerprint")
    whole(data["images"], f"{where}.images", 1)
    for key in ("preset", "split"):
        if data[key] is not None:
            _text(data[key], f"{where}.{key}")
    for key, least in (("seed", 0), ("resolution", 1)):
        if data.get(key) is not None:
            whole(data[key], f"{where}.{key}", least)
    if data["engine"] is not None:
        engine = _object(data["engine"], f"{where}.engine")
        for key in ("name", "version", "device", "quality"):
            _text(engine.get(key), f"{where}.engine.{key}")
    for key in ("factors", "not_injective"):
        for i, each in enumerate(_list(data.get(key) or [], f"{where}.{key}")):
            _text(each, f"{where}.{key}[{i}]")
    if not data["factors"]:
        raise Misfit(f"{where}.factors names no factor")
    _numbers(data.get("best_r2"), f"{where}.best_r2")
    for key in ("why_no_best_r2", "model"):
        if data.get(key) is not None:
            _text(data[key], f"{where}.{key}")
    if data.get("sample") is not None:
        sample = _object(data["sample"], f"{where}.sample")
        for key in ("images", "of"):
            whole(sample.get(key), f"{where}.sample.{key}", 1)
    if data.get("drawn") is not None:
        drawn = _object(data["drawn"], f"{where}.drawn")
        _text(drawn.get("group"), f"{where}.drawn.group")
        for i, each in enumerate(_list(drawn.get("environments"), f"{where}.drawn.environments")):
            _text(each, f"{where}.drawn.environments[{i}]")


def _check_score(name: str, score: Mapping[str, Any], prefix: str) -> None:
    where = f"{prefix}scores.{name}"
    if name not in METRICS:
        raise Misfit(f"{name!r:.80} is no metric: expected some of {', '.join(METRICS)}")
    check = functools.partial(_score, lowest=METRICS[name].lowest)
    _needs(score, where, ("value",))
    for key in ("value", "chance"):
        if score.get(key) is not None:
            check(score[key], f"{where}.{key}")
    for key in ("per_factor", "best_per_factor"):
        _numbers(score.get(key), f"{where}.{key}", check)
    _numbers(score.get("share_of_best"), f"{where}.share_of_best")
    _interval(score.get("interval"), f"{where}.interval", check)
    for factor, pair in _object(score.get("per_factor_interval") or {}, where).items():
        _interval(pair, f"{where}.per_factor_interval.{factor}", check)
    for key in ("parts", "choices"):
        _object(score.get(key) or {}, f"{where}.{key}")


def _bounded(value: Any, where: str, deeper: int) -> None:
    """Refuse text without end, numbers without bounds, and what is nested without bottom."""
    if deeper < 0:
        raise Misfit("it is nested too deeply")
    match value:
        case str():
            _text(value, where)
        case bool() | None:
            pass
        case int() | float():
            if not abs(value) <= _LARGEST_NUMBER:
                raise Misfit(f"{where} has a number without bounds")
        case list():
            for each in value:
                _bounded(each, where, deeper - 1)
        case dict():
            for key, each in value.items():
                _text(key, f"a field's name in {where:.80}")
                _bounded(each, key, deeper - 1)
        case _:
            raise Misfit(f"{where} is a {type(value).__name__}, which JSON does not have")


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Misfit(f"{where} must be an object, found {value!r:.60}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise Misfit(f"{where} must be a list, found {value!r:.60}")
    return value


def _needs(found: Mapping[str, Any], where: str, names: tuple[str, ...]) -> None:
    for name in names:
        if name not in found:
            raise Misfit(f"{where} lacks {name}")


def _fields(
    found: Mapping[str, Any], where: str, names: tuple[str, ...], more: tuple[str, ...] = ()
) -> None:
    """Refuse an object that lacks one of these fields, or has another that is none of `more`."""
    _needs(found, where, names)
    for name in found:
        if name not in (*names, *more):
            raise Misfit(f"{where} has an unknown field {name!r:.80}")


def _text(value: Any, where: str) -> None:
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        raise Misfit(
            f"{where} must be text of at most {_LONGEST_TEXT} characters, found {value!r:.60}"
        )
    if any("\ud800" <= c <= "\udfff" for c in value):
        raise Misfit(f"{where} holds half of a character")


def _digest(value: Any, where: str) -> None:
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{64}", value):
        raise Misfit(f"{where} must be a SHA-256 in 64 hexadecimal digits, found {value!r:.80}")


def _score(value: Any, where: str, lowest: float) -> None:
    """Refuse a score above 1, or below the metric's bound: an R2 can be negative."""
    number(value, where)
    if not lowest - _ROUNDING <= value <= 1 + _ROUNDING:
        raise Misfit(f"{where} must lie in [{lowest:g}, 1], found {value}")


def _interval(value: Any, where: str, check: _Check) -> None:
    """Refuse what is not two scores, null, or two nulls."""
    if value is None or value == [None, None]:
        return
    if not isinstance(value, list) or len(value) != 2:
        raise Misfit(f"{where} must be [low, high], found {value!r:.60}")
    for each in value:
        check(each, where)
    if value[0] > value[1]:
        raise Misfit(f"{where} must be [low, high], found {value}")


def _numbers(value: Any, where: str, check: _Check = number) -> None:
    for name, each in _object(value or {}, where).items():
        if each is not None:
            check(each, f"{where}.{name}")
