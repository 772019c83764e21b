"""`report.html`: what an encoder recovered, on one page that needs no other file."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from threedident.errors import UsageError
from threedident.evaluate.metrics._arrays import checked, standardised, varying
from threedident.evaluate.metrics._linear_fit import fit_linear, splits, standardised_residual
from threedident.evaluate.report.html import (
    Child,
    Html,
    element,
    isolated,
    joined,
    page,
    titled_table,
    web_link,
)
from threedident.evaluate.report.labels import (
    NONE,
    OF_INTERVALS,
    TRACKS,
    in_order,
    metric_label,
    no_best_scores,
)
from threedident.evaluate.report.svg import heat_map, scatter, shown_codes
from threedident.evaluate.scoring import METRICS
from threedident.storage.atomic_files import explaining_write_errors, replacing

if TYPE_CHECKING:
    from threedident.datasets.dataset import ThreeDIdent

Array = npt.NDArray[Any]

_POINTS = 1500
_WORST = 12
_LARGEST_IMAGE = 224


@dataclasses.dataclass(frozen=True)
class Recovery:
    """How the latents come back from the codes by linear regression.

    Attributes:
        predicted: (N, n), each half by the fit on the other half.
        error: (N,), root mean square over factors, in standard deviations of each.
        correlation: (n, m), Pearson's, of factors with codes; NaN where one is constant.
    """

    predicted: Array
    error: Array
    correlation: Array

    @classmethod
    def of(cls, z: Array, z_hat: Array) -> Recovery:
        """From latents (N, n) and codes (N, m)."""
        predicted = np.empty_like(z)
        for fitted, scored in splits(len(z), 2):
            predicted[scored] = fit_linear(z_hat[fitted], z[fitted]).predict(z_hat[scored])
        error = np.sqrt((standardised_residual(z, predicted)[:, varying(z)] ** 2).mean(1))
        known = varying(z)[:, None] & varying(z_hat)
        correlation = np.clip(standardised(z).T @ standardised(z_hat) / len(z), -1, 1)
        return cls(predicted, error, np.where(known, correlation, np.nan))

    def worst(self, count: int) -> list[int]:
        """The rows of the largest errors, the worst first."""
        return [int(i) for i in np.argsort(-self.error, kind="stable")[:count]]


def write_report(
    scores: Mapping[str, Any],
    z: npt.ArrayLike,
    z_hat: npt.ArrayLike,
    dataset: ThreeDIdent | None,
    out: Path,
) -> None:
    """Writes the page.

    Args:
        scores: what `scores.json` holds.
        z: (N, n), the latents that the scores are of.
        z_hat: (N, m), the codes.
        dataset: whose image i belongs to row i; None where there are none to show.
        out: the file.

    Raises:
        UsageError: the arrays do not fit each other, the factors or the dataset.
        DatasetError: an image cannot be read, or the file cannot be written.
    """
    text = report(scores, z, z_hat, dataset)
    with explaining_write_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as temporary:
        temporary.write_text(text, "utf-8", newline="\n")


def report(
    scores: Mapping[str, Any],
    z: npt.ArrayLike,
    z_hat: npt.ArrayLike,
    dataset: ThreeDIdent | None = None,
) -> str:
    """The page, as text; arguments and errors as of `write_report`."""
    latents, codes = checked(z, z_hat)
    factors: list[str] = list(scores["data"]["factors"])
    if latents.shape[1] != len(factors):
        raise UsageError(f"the scores name {len(factors)} factors, the latents {latents.shape[1]}")
    if dataset is not None and len(dataset) < len(latents):
        raise UsageError(f"the dataset has {len(dataset)} images, the latents {len(latents)} rows")
    recovery = Recovery.of(latents, codes)
    return page(
        f"{_title(scores)}: scores",
        _head(scores),
        _warnings(scores),
        _score_table(scores),
        _factor_table(scores),
        _heat(scores, recovery, factors),
        _scatters(scores, recovery, latents, factors),
        _worst(recovery, latents, factors, dataset),
        _footing(scores),
    )


def _title(scores: Mapping[str, Any]) -> str:
    manifest = scores["submission"].get("manifest") or {}
    return str(manifest.get("name") or scores["submission"]["name"])


def definitions(rows: Sequence[tuple[str, Child]]) -> Html:
    """Terms and what they are; those without a value are left out."""
    pairs = (joined(element("dt", t), element("dd", v)) for t, v in rows if v not in (None, ""))
    return element("dl", *pairs)


def _plain(value: Any) -> Html | None:
    """A manifest's value as text."""
    if value is None or value == []:
        return None
    if isinstance(value, bool):
        return isolated("yes" if value else "no")
    if isinstance(value, list):
        return isolated(", ".join(str(each) for each in value))
    if isinstance(value, int):
        return isolated(f"{value:,}")
    return isolated(str(value))


def declared(manifest: Mapping[str, Any]) -> list[tuple[str, Child]]:
    """What a manifest says of its method, as terms and values."""
    track = str(manifest.get("track") or "")
    link = manifest.get("link")
    rows: list[tuple[str, Child]] = [
        ("authors", _plain(manifest.get("authors"))),
        ("method", _plain(manifest.get("method"))),
        ("link", web_link(str(link)) if link else None),
        ("track", isolated(TRACKS.get(track, track)) if track else None),
        ("conditional", _plain(manifest.get("conditional"))),
        ("width", _plain(manifest.get("width"))),
        ("output space", _plain(manifest.get("output_space"))),
        ("preprocessing", _plain(manifest.get("preprocessing"))),
        ("trained on", _plain(manifest.get("preset"))),
        ("distinct images", _plain(manifest.get("images"))),
        ("steps", _plain(manifest.get("steps"))),
        ("hyper-parameters", _plain(manifest.get("hyperparameters"))),
    ]
    return rows


def _head(scores: Mapping[str, Any]) -> Html:
    submission, data = scores["submission"], scores["data"]
    manifest = submission.get("manifest") or {}
    engine = data.get("engine") or {}
    side = data.get("resolution")
    rendered = [str(engine[key]) for key in ("name", "version", "quality") if engine.get(key)]
    seeds = manifest.get("data_seeds")
    of_submission: list[tuple[str, Child]] = [
        *declared(manifest),
        ("entry", _plain(manifest.get("entry"))),
        ("seed", _digits(manifest.get("seed"))),
        ("data seeds", isolated(", ".join(map(str, seeds))) if seeds else None),
        ("kind", _plain(submission["kind"])),
        ("submission", _plain(submission["name"])),
        ("what it is", _plain(submission.get("about"))),
        ("SHA-256", _hash(submission.get("sha256"))),
        ("codes", str(submission["codes"])),
    ]
    of_data: list[tuple[str, Child]] = [
        ("preset", _plain(data.get("preset"))),
        ("split", _plain(data.get("split"))),
        ("seed", _digits(data.get("seed"))),
        ("images", f"{data['images']:,}" + (f", {side} x {side}" if side else "")),
        ("engine", isolated(" ".join(rendered)) if rendered else None),
        ("factors", isolated(", ".join(data["factors"]))),
        ("fingerprint", _hash(data.get("fingerprint"))),
    ]
    warned = any(warning["code"] == "not_injective" for warning in scores["warnings"])
    reasons = [] if warned else data.get("not_injective") or []
    return joined(
        element("h1", isolated(_title(scores))),
        element(
            "div",
            element("section", element("h2", "Submission"), definitions(of_submission)),
            element("section", element("h2", "Data"), definitions(of_data)),
            class_="sides",
        ),
        element(
            "p",
            "The generator is not injective, so that no encoder can reach the score of a perfect "
            "one: ",
            isolated("; ".join(reasons)),
            ". The best possible stands beside each score where it is known.",
        )
        if reasons
        else None,
    )


def _digits(value: Any) -> Html | None:
    return None if value is None else isolated(str(value))


def _hash(value: Any) -> Html | None:
    return element("span", str(value), class_="hash") if value else None


def _warnings(scores: Mapping[str, Any]) -> Html | None:
    if not scores["warnings"]:
        return None
    lines = (element("li", isolated(warning["message"])) for warning in scores["warnings"])
    return element("div", element("strong", "Warnings"), element("ul", *lines), class_="notice")


def _number(value: Any, digits: int = 4) -> str:
    if value is None or not math.isfinite(value):
        return NONE
    if abs(value) >= 1000:
        return f"{value:.3g}"
    return f"{value:.{digits}f}"


def _interval(pair: Sequence[float] | None, digits: int = 4) -> str:
    if not pair or None in pair:
        return NONE
    return f"{_number(pair[0], digits)} to {_number(pair[1], digits)}"


def _mean(values: Mapping[str, float | None] | None) -> float | None:
    known = [v for v in (values or {}).values() if v is not None]
    return sum(known) / len(known) if known else None


def _score_table(scores: Mapping[str, Any]) -> Html:
    rows: list[list[Child]] = []
    reason = no_best_scores(scores)
    for name in in_order(scores["scores"]):
        score = scores["scores"][name]
        share = _mean(score.get("share_of_best"))
        rows.append(
            [
                isolated(metric_label(name)),
                _number(score["value"]),
                _interval(score.get("interval")),
                _number(score.get("chance")),
                _number(_mean(score.get("best_per_factor"))),
                NONE if share is None else f"{share:.1%}",
            ]
        )
    head: list[Child] = ["metric", "score", "95 % interval", "chance", "best possible", "share"]
    return joined(
        element("h2", "Scores"),
        titled_table(head, rows),
        element(
            "p",
            f"Intervals are {OF_INTERVALS}. Chance is the same score with the pairs of latents and "
            "codes shuffled. The share is that of the best possible, a mean over factors.",
            class_="faint",
        ),
        _remark(f"{reason[0].upper()}{reason[1:]}.") if reason else None,
        *(
            _remark(f"{METRICS[name].label}: {METRICS[name].note}.")
            for name in in_order(scores["scores"])
            if name in METRICS and METRICS[name].note
        ),
    )


def _remark(text: str) -> Html:
    return element("p", isolated(text), class_="faint")


def _factor_table(scores: Mapping[str, Any]) -> Html | None:
    found = {n: s for n, s in scores["scores"].items() if s.get("per_factor")}
    if not found:
        return None
    names = in_order(found)
    best = {n: s["best_per_factor"] for n, s in found.items() if s.get("best_per_factor")}
    rows: list[list[Child]] = []
    for factor in dict.fromkeys(f for name in names for f in found[name]["per_factor"]):
        cells: list[Child] = [isolated(factor)]
        for name in names:
            pair = (found[name].get("per_factor_interval") or {}).get(factor)
            value = _number(found[name]["per_factor"].get(factor))
            small = element("span", _interval(pair, 3), class_="faint") if pair else None
            cells.append(joined(value, small))
            if name in best:
                cells.append(_number(best[name].get(factor)))
        rows.append(cells)
    head: list[Child] = ["factor"]
    for name in names:
        head.append(isolated(metric_label(name)))
        if name in best:
            head.append(isolated(f"best {metric_label(name)}"))
    return joined(element("h2", "By factor"), titled_table(head, rows))


def _matched(scores: Mapping[str, Any], shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Which code the assignment of MCC gave each factor."""
    parts = (scores["scores"].get("mcc") or {}).get("parts") or {}
    pairs = enumerate(parts.get("permutation") or [])
    return [
        (row, code)
        for row, code in pairs
        if isinstance(code, int) and row < shape[0] and 0 <= code < shape[1]
    ]


def _heat(scores: Mapping[str, Any], recovery: Recovery, factors: Sequence[str]) -> Html:
    matched = _matched(scores, recovery.correlation.shape)
    note = "Pearson's, over all samples; hover over a cell for more digits."
    if matched:
        note += " The codes that MCC matched with the factors have a frame."
    shown, width = len(shown_codes(recovery.correlation, matched)), recovery.correlation.shape[1]
    if shown < width:
        note += f" Shown are {shown} of the {width:,} codes, those that correlate most."
    return joined(
        element("h2", "Correlation of factors and codes"),
        element("p", note, class_="faint"),
        element("div", heat_map(recovery.correlation, factors, matched), class_="heat"),
    )


def _scatters(
    scores: Mapping[str, Any], recovery: Recovery, latents: Array, factors: Sequence[str]
) -> Html:
    some = np.linspace(0, len(latents) - 1, min(len(latents), _POINTS)).round().astype(int)
    r2 = (scores["scores"].get("linear_r2") or {}).get("per_factor") or {}
    plots = (
        scatter(
            latents[some, f],
            recovery.predicted[some, f],
            name.replace("_", " "),
            f"R2 {_number(r2[name], 3)}" if name in r2 else "",
        )
        for f, name in enumerate(factors)
    )
    return joined(
        element("h2", "Predicted against true"),
        element(
            "p",
            "By linear regression from the codes, each half of the samples with the fit on the "
            f"other; {len(some):,} of {len(latents):,} samples.",
            class_="faint",
        ),
        element("div", *plots, class_="plots"),
    )


def _hundredths(value: float) -> str:
    """Two digits, and no minus before 0."""
    return f"{round(value, 2) + 0.0:.2f}"


def _data_uri(pixels: Array) -> str:
    """Pixels (H, W, 3) as a PNG, inline."""
    from PIL import Image

    picture = Image.fromarray(pixels)
    picture.thumbnail((_LARGEST_IMAGE, _LARGEST_IMAGE))
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _worst(
    recovery: Recovery, latents: Array, factors: Sequence[str], dataset: ThreeDIdent | None
) -> Html:
    spread = latents.std(0)
    figures = []
    for row in recovery.worst(_WORST):
        picture = None
        if dataset is not None:
            pixels = dataset.images([row])[0].permute(1, 2, 0).cpu().numpy()
            side = pixels.shape[1]
            # Small images are shown larger than they are.
            picture = element("img", src=_data_uri(pixels), alt=f"image {row}", width=side)
        off = np.abs(recovery.predicted[row] - latents[row])
        lines = (
            element(
                "tr",
                element("th", factor.replace("_", " "), scope="row"),
                element("td", _hundredths(latents[row, f])),
                element(
                    "td",
                    _hundredths(recovery.predicted[row, f]),
                    class_="off" if off[f] > spread[f] else None,
                ),
            )
            for f, factor in enumerate(factors)
        )
        head = element("tr", *(element("th", t, scope="col") for t in ("", "true", "found")))
        figures.append(
            element(
                "figure",
                picture,
                element("figcaption", f"image {row}, error {recovery.error[row]:.2f}"),
                element("table", element("thead", head), element("tbody", *lines)),
            )
        )
    return joined(
        element("h2", "Worst recovered"),
        element(
            "p",
            "By the same regression. The error is the root mean square over factors, in standard "
            "deviations of each; bold where a factor is off by more than one.",
            class_="faint",
        ),
        element("div", *figures, class_="worst"),
    )


def _footing(scores: Mapping[str, Any]) -> Html:
    def listing(title: str, what: Any) -> Html:
        return element(
            "details",
            element("summary", title),
            element("pre", json.dumps(what, indent=2, ensure_ascii=False)),
        )

    versions = ", ".join(f"{name} {v}" for name, v in scores["libraries"].items())
    choices = {
        name: score["choices"] for name, score in scores["scores"].items() if score.get("choices")
    }
    return joined(
        element("h2", "How it was made"),
        definitions(
            [
                ("made", isolated(f"{scores['created']} by threedident {scores['toolkit']}")),
                ("with", isolated(versions)),
            ]
        ),
        listing("settings", scores["settings"]),
        listing("choices of each metric", choices) if choices else None,
        listing("engine", scores["data"].get("engine")) if scores["data"].get("engine") else None,
    )
