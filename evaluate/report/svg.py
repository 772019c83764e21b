"""Drawings as SVG: heat maps and scatter plots, in the page's own colours, always alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.evaluate.report.html import Child, Html, element, joined
from threedident.evaluate.report.labels import NONE

Array = npt.NDArray[Any]

_CODES_A_ROW = 20
_MOST_CODES = 200
_CELL = 36, 26
_LABELS = 122
_PLOT, _MARGIN = 188, 24


def _drawing(width: float, height: float, *children: Child, label: str) -> Html:
    return element(
        "svg",
        *children,
        viewBox=f"0 0 {width:g} {height:g}",
        width=f"{width:g}",
        height=f"{height:g}",
        role="img",
        aria_label=label,
    )


def _words(
    x: float, y: float, text: str, class_: str | None = None, anchor: str = "middle"
) -> Html:
    return element("text", text, x=f"{x:g}", y=f"{y:g}", text_anchor=anchor, class_=class_)


def shown_codes(correlation: Array, matched: Sequence[tuple[int, int]]) -> list[int]:
    """Choose the codes that a heat map shows: all, or of many the matched and the strongest."""
    if correlation.shape[1] <= _MOST_CODES:
        return list(range(correlation.shape[1]))
    strongest = np.argsort(-np.nan_to_num(np.abs(correlation)).max(0), kind="stable")
    ordered = dict.fromkeys([*(code for _, code in matched), *(int(c) for c in strongest)])
    return sorted(list(ordered)[:_MOST_CODES])


def heat_map(
    correlation: Array, factors: Sequence[str], matched: Sequence[tuple[int, int]] = ()
) -> Html:
    """Draw correlations of factors (rows) with codes, twenty codes to a drawing.

    Args:
        correlation: (n, m), in [-1, 1]; NaN where there is none.
        factors: the labels of the rows.
        matched: pairs of row and code, which get a frame.
    """
    codes = shown_codes(correlation, matched)
    frames = set(matched)
    parts = []
    for start in range(0, len(codes), _CODES_A_ROW):
        some = codes[start : start + _CODES_A_ROW]
        parts.append(_heat_block(correlation, factors, some, frames))
    return joined(*(element("div", part, class_="scroll") for part in parts))


def _heat_block(
    correlation: Array, factors: Sequence[str], codes: list[int], frames: set[tuple[int, int]]
) -> Html:
    wide, high = _CELL
    cells: list[Child] = [
        _words(_LABELS + (c + 0.5) * wide, 14, str(code), "faint") for c, code in enumerate(codes)
    ]
    for row, factor in enumerate(factors):
        top = 20 + row * high
        cells.append(_words(_LABELS - 8, top + 17, factor, anchor="end"))
        for c, code in enumerate(codes):
            cells.append(
                _heat_cell(
                    float(correlation[row, code]),
                    _LABELS + c * wide,
                    top,
                    f"{factor}, code {code}",
                    framed=(row, code) in frames,
                )
            )
    width = _LABELS + len(codes) * wide + 2
    height = 22 + len(factors) * high
    label = f"correlation of the factors with codes {codes[0]} to {codes[-1]}"
    return _drawing(width, height, *cells, label=label)


def _heat_cell(value: float, left: float, top: float, name: str, *, framed: bool) -> Html:
    wide, high = _CELL
    known = bool(np.isfinite(value))
    place = {"x": f"{left + 1:g}", "y": f"{top + 1:g}", "width": f"{wide - 2}"}
    tint = element(
        "rect",
        **place,
        height=f"{high - 2}",
        class_=("positive" if value >= 0 else "negative") + (" matched" if framed else ""),
        fill_opacity=f"{min(abs(value), 1) if known else 0:.2f}",
    )
    shown = f"{value:.2f}".replace("0.", ".", 1) if known else NONE
    if shown in (".00", "-.00"):
        shown = "0"
    exact = element("title", f"{name}: {value:.4f}" if known else f"{name}: none")
    words = _words(left + wide / 2, top + 17, shown, "strong" if framed else None)
    return element("g", exact, tint, words)


def scatter(true: Array, predicted: Array, title: str, note: str) -> Html:
    """Draw predicted (upwards) against true values of one factor.

    The frame reaches an eighth of the range past the true values on each side, those of raw
    latents being -1 and 1; points beyond it lie on its edge.

    Args:
        true: (N,), the true values.
        predicted: (N,), the predicted values.
        title: the title of the plot.
        note: a note at its other end.
    """
    ends = float(true.min()), float(true.max())
    if ends[0] >= -1 and ends[1] <= 1:
        ends = -1.0, 1.0
    reach = (ends[1] - ends[0]) / 8 or 1.0
    low, high = ends[0] - reach, ends[1] + reach
    side, edge = _PLOT, _MARGIN

    def place(values: Array) -> Array:
        return (np.clip((values - low) / (high - low), 0, 1) * side).round(1)

    across, up = edge + place(true), 22 + side - place(predicted)
    dots = "".join(f"M{x:g} {y:g}h0" for x, y in zip(across, up, strict=True))
    base = 22 + side
    marks: list[Child] = []
    for value in ends:
        at = (value - low) / (high - low) * side
        marks.append(_words(edge + at, base + 14, f"{value:.2g}", "faint"))
        marks.append(_words(edge - 4, base - at + 4, f"{value:.2g}", "faint", "end"))
    return _drawing(
        edge + side + 6,
        base + 22,
        _words(edge, 14, title, "strong", "start"),
        _words(edge + side, 14, note, "faint", "end"),
        element("rect", x=edge, y="22", width=side, height=side, class_="frame"),
        element("path", d=f"M{edge} {base}L{edge + side} 22", class_="diagonal"),
        element("path", d=dots, class_="dots"),
        *marks,
        _words(edge + side / 2, base + 14, "true", "faint"),
        element(
            "text",
            "predicted",
            x=f"{-(22 + side / 2):g}",
            y=f"{edge - 6:g}",
            text_anchor="middle",
            class_="faint",
            transform="rotate(-90)",
        ),
        label=f"predicted against true {title}",
    )
