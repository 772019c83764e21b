"""The words of a report: its submission, its data, warnings, and how it was made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from threedident.evaluate.report.html import Child, Html, element, isolated, joined, web_link
from threedident.evaluate.scores_file import ScoresFile
from threedident.evaluate.submissions.manifest import TRACKS, SubmissionManifest

Rows = Sequence[tuple[str, Child]]


def title(scores: ScoresFile, label: str | None = None) -> str:
    """Return the name of the submission, as its authors have it if they do.

    Args:
        scores: the content of scores.json.
        label: the name where they have none; None: the one in the scores.
    """
    manifest = scores.manifest
    return str((manifest and manifest.name) or label or scores.submission.name)


def definitions(rows: Rows) -> Html:
    """List terms and their values; those without a value are left out."""
    pairs = (joined(element("dt", t), element("dd", v)) for t, v in rows if v not in (None, ""))
    return element("dl", *pairs)


def _plain(value: Any) -> Html | None:
    """Show a value of a manifest as text."""
    if value is None or value in ((), []):
        return None
    if isinstance(value, bool):
        return isolated("yes" if value else "no")
    if isinstance(value, list | tuple):
        return isolated(", ".join(str(each) for each in value))
    if isinstance(value, int):
        return isolated(f"{value:,}")
    return isolated(str(value))


def declared(manifest: SubmissionManifest | None) -> list[tuple[str, Child]]:
    """Return what a manifest declares of its method, as terms and values."""
    if manifest is None:
        return []
    track, link = manifest.track, manifest.link
    return [
        ("authors", _plain(manifest.authors)),
        ("method", _plain(manifest.method)),
        ("link", web_link(str(link)) if link else None),
        ("track", isolated(TRACKS.get(track, track)) if track else None),
        ("conditional", _plain(manifest.conditional)),
        ("width", _plain(manifest.width)),
        ("output space", _plain(manifest.output_space)),
        ("preprocessing", _plain(manifest.preprocessing)),
        ("trained on", _plain(manifest.preset)),
        ("distinct images", _plain(manifest.images)),
        ("steps", _plain(manifest.steps)),
        ("hyper-parameters", _plain(manifest.hyperparameters)),
    ]


def head(scores: ScoresFile, heading: str) -> Html:
    """Show the heading, the submission and the data."""
    return joined(
        element("h1", isolated(heading)),
        element(
            "div",
            element("section", element("h2", "Submission"), definitions(_of_submission(scores))),
            element("section", element("h2", "Data"), definitions(_of_data(scores))),
            class_="sides",
        ),
        _ambiguities(scores),
    )


def _of_submission(scores: ScoresFile) -> Rows:
    submission, manifest = scores.submission, scores.manifest
    seeds = manifest.data_seeds if manifest else None
    return [
        *declared(manifest),
        ("entry", _plain(manifest.entry) if manifest else None),
        ("seed", _digits(manifest.seed) if manifest else None),
        ("data seeds", isolated(", ".join(map(str, seeds))) if seeds else None),
        ("kind", _plain(submission.kind)),
        ("submission", _plain(submission.name)),
        ("what it is", _plain(submission.about)),
        ("SHA-256", _hash(submission.sha256)),
        ("codes", str(submission.codes)),
    ]


def _of_data(scores: ScoresFile) -> Rows:
    data, beside = scores.data, scores.independent
    engine, side = data.engine or {}, data.resolution
    rendered = [str(engine[key]) for key in ("name", "version", "quality") if engine.get(key)]
    return [
        ("model", _plain(data.model)),
        ("preset", _plain(data.preset) if data.model is None else None),
        ("environments", _plain((data.drawn or {}).get("environments"))),
        ("drawn as", _plain((data.drawn or {}).get("group"))),
        ("split", _plain(data.split)),
        ("seed", _digits(data.seed)),
        ("images", f"{data.images:,}" + (f", {side} x {side}" if side else "")),
        ("engine", isolated(" ".join(rendered)) if rendered else None),
        ("factors", isolated(", ".join(data.factors))),
        ("fingerprint", _hash(data.fingerprint)),
        ("independent", _hash(beside.data.fingerprint) if beside else None),
    ]


def _ambiguities(scores: ScoresFile) -> Html | None:
    """Say why the generator is not injective, unless a warning does."""
    warned = any(warning.code == "not_injective" for warning in scores.warnings)
    if warned or not scores.data.not_injective:
        return None
    return element(
        "p",
        "The generator is not injective, so that no encoder can reach the score of a perfect one: ",
        isolated("; ".join(scores.data.not_injective)),
        ". The best possible stands beside each score where it is known.",
    )


def _digits(value: Any) -> Html | None:
    return None if value is None else isolated(str(value))


def _hash(value: Any) -> Html | None:
    return element("span", str(value), class_="hash") if value else None


def warnings(scores: ScoresFile) -> Html | None:
    """List the warnings, if there are any."""
    messages = [warning.message for warning in scores.warnings]
    if scores.independent is not None:
        known = {warning.code for warning in scores.warnings}
        messages += [
            f"of the independent variables: {warning.message}"
            for warning in scores.independent.warnings
            if warning.code not in known
        ]
    if not messages:
        return None
    lines = (element("li", isolated(message)) for message in messages)
    return element("div", element("strong", "Warnings"), element("ul", *lines), class_="notice")


def footing(scores: ScoresFile) -> Html:
    """Show versions, settings and choices."""

    def listing(name: str, content: Any) -> Html:
        return element(
            "details",
            element("summary", name),
            element("pre", json.dumps(content, indent=2, ensure_ascii=False)),
        )

    versions = ", ".join(f"{name} {v}" for name, v in scores.libraries.items())
    choices = {n: each.score.choices for n, each in scores.scores.items() if each.score.choices}
    engine = scores.data.engine
    return joined(
        element("h2", "How it was made"),
        definitions(
            [
                ("made", isolated(f"{scores.created} by threedident {scores.toolkit}")),
                ("with", isolated(versions)),
            ]
        ),
        listing("settings", scores.settings),
        listing("choices of each metric", choices) if choices else None,
        listing("engine", engine) if engine else None,
    )
