"""The pictures of a report: correlations, predictions, and the images recovered worst."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from threedident.evaluate.metrics._kinds import Kinds, as_kinds
from threedident.evaluate.report.html import Html, element, joined
from threedident.evaluate.report.recovery import Recovery
from threedident.evaluate.report.svg import heat_map, scatter, shown_codes
from threedident.evaluate.report.tables import number
from threedident.evaluate.scores_file import ScoresFile

if TYPE_CHECKING:
    from threedident.datasets.formats.source import ImageSource

Array = npt.NDArray[Any]

_POINTS = 1500
_WORST = 12
_LARGEST_IMAGE = 224


def _matched(scores: ScoresFile, shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return pairs of a factor and the code that the assignment of MCC gave it."""
    report = scores.scores.get("mcc")
    codes = report.score.parts.get("permutation") if report else None
    return [
        (row, code)
        for row, code in enumerate(codes or [])
        if isinstance(code, int) and row < shape[0] and 0 <= code < shape[1]
    ]


def correlations(
    scores: ScoresFile, recovery: Recovery, factors: Sequence[str], kinds: Kinds = None
) -> Html:
    """Draw the correlations of factors and codes as a heat map."""
    matched = _matched(scores, recovery.correlation.shape)
    note = "Pearson's, over all samples; hover over a cell for more digits."
    if any(kind.name != "continuous" for kind in as_kinds(kinds, len(factors))):
        note += (
            " Of angles and classes, the multiple correlation of a code with sine and cosine, or "
            "with the indicators of the classes, which has no sign."
        )
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


def predictions(
    scores: ScoresFile,
    recovery: Recovery,
    latents: Array,
    factors: Sequence[str],
    kinds: Kinds = None,
) -> Html:
    """Draw predicted against true values of each factor that is a number or an angle."""
    shown = [i for i, k in enumerate(as_kinds(kinds, len(factors))) if k.name != "discrete"]
    angles = any(kind.name == "circular" for kind in as_kinds(kinds, len(factors)))
    some = np.linspace(0, len(latents) - 1, min(len(latents), _POINTS)).round().astype(int)
    report = scores.scores.get("linear_r2")
    r2 = (report.per_factor if report else None) or {}
    plots = (
        scatter(
            latents[some, f],
            recovery.predicted[some, f],
            factors[f].replace("_", " "),
            f"R2 {number(r2[factors[f]], 3)}" if factors[f] in r2 else "",
        )
        for f in shown
    )
    if not shown:
        return Html("")
    return joined(
        element("h2", "Predicted against true"),
        element(
            "p",
            "By linear regression from the codes, each half of the samples with the fit on the "
            f"other; {len(some):,} of {len(latents):,} samples."
            + (" Angles are shown at most half a turn from the true one." if angles else ""),
            class_="faint",
        ),
        element("div", *plots, class_="plots"),
    )


def worst(
    recovery: Recovery, latents: Array, factors: Sequence[str], images: ImageSource | None
) -> Html:
    """Show the rows with the largest errors, with their images where there are any."""
    spread = latents.std(0)
    figures = (
        _figure(row, recovery, latents[row], spread, factors, images)
        for row in recovery.worst(_WORST)
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


def _figure(
    row: int,
    recovery: Recovery,
    true: Array,
    spread: Array,
    factors: Sequence[str],
    images: ImageSource | None,
) -> Html:
    picture = None
    if images is not None:
        pixels = images.image(row)
        # Small images are shown larger than they are.
        picture = element("img", src=_data_uri(pixels), alt=f"image {row}", width=pixels.shape[1])
    predicted = recovery.predicted[row]
    off = np.abs(predicted - true)
    lines = (
        element(
            "tr",
            element("th", factor.replace("_", " "), scope="row"),
            element("td", _hundredths(true[f])),
            element("td", _hundredths(predicted[f]), class_="off" if off[f] > spread[f] else None),
        )
        for f, factor in enumerate(factors)
    )
    head = element("tr", *(element("th", t, scope="col") for t in ("", "true", "found")))
    return element(
        "figure",
        picture,
        element("figcaption", f"image {row}, error {recovery.error[row]:.2f}"),
        element("table", element("thead", head), element("tbody", *lines)),
    )


def _hundredths(value: float) -> str:
    """Write two digits, and no minus before 0."""
    return f"{round(value, 2) + 0.0:.2f}"


def _data_uri(pixels: Array) -> str:
    """Return pixels (H, W, C) as a PNG, inline."""
    from threedident.render.figures import picture

    small = picture(pixels)
    small.thumbnail((_LARGEST_IMAGE, _LARGEST_IMAGE))
    file = io.BytesIO()
    small.save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
