"""Draw the picture of docs/architecture.md: `python docs/architecture_picture.py`.

It writes docs/images/architecture.svg: the rooms of the code from top to bottom, an arrow where
one may import from another, and to the right the files that lie between the rooms.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.sax.saxutils import escape

#: A room: its package, what it does, its folders, and the colour of its edge.
ROOMS = (
    ("threedident/cli", "the command 3dident", "a file for each group of commands", "#64748b"),
    ("threedident/explore", "the page with sliders", "a file for each part; page/", "#0f766e"),
    ("baselines", "trains encoders", "training/  reproduce/", "#b45309"),
    (
        "evaluate",
        "scores encoders",
        "metrics/  submissions/  runner/  report/  leaderboard/",
        "#15803d",
    ),
    ("datasets", "files to tensors and positive pairs", "formats/", "#0e7490"),
    ("render", "latents to images and datasets", "direct/  executors/", "#7c3aed"),
    (
        "threedident",
        "factors, latents, presets, encoders",
        "distributions/  presets/  storage/",
        "#be123c",
    ),
)
#: A file between two rooms: its name, the room that writes it and those that read it.
FILES = (
    ("a run: encoder.pt", "baselines", ("evaluate",)),
    ("scores.json, report.html", "evaluate", ()),
    ("a dataset: shards", "render", ("datasets",)),
)
WIDTH, HEIGHT, LEFT, TOP, STEP, BOX = 940, 746, 60, 40, 100, 66
ROOM_WIDTH, FILE_LEFT, FILE_WIDTH = 500, 680, 220


def text(x: float, y: float, words: str, size: int, more: str = "") -> str:
    """A line of text, at its left end unless `more` says otherwise."""
    return f'<text x="{x}" y="{y}" font-size="{size}" {more}>{escape(words)}</text>'


def arrow(x1: float, y1: float, x2: float, y2: float, *, dashed: bool = False) -> str:
    """A straight arrow."""
    style = ' stroke-dasharray="5 4"' if dashed else ""
    return (
        f'<path d="M{x1} {y1} L{x2} {y2}" stroke="#475569" stroke-width="2" fill="none"'
        f'{style} marker-end="url(#head)"/>'
    )


def top(room: str) -> int:
    """The upper edge of a room's box."""
    return TOP + STEP * [name for name, *_ in ROOMS].index(room)


def picture() -> str:
    """The picture, as the text of an SVG file."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="system-ui, sans-serif" fill="#0f172a" role="img">',
        "<title>The rooms of the code, and what they may import</title>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#475569"/></marker>'
        "</defs>",
        # Of its own colour, so that it reads on a light page and on a dark one.
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="12" fill="#f8fafc"/>',
    ]
    for name, does, folders, colour in ROOMS:
        y = top(name)
        parts += [
            f'<rect x="{LEFT}" y="{y}" width="{ROOM_WIDTH}" height="{BOX}" rx="8" fill="#ffffff" '
            f'stroke="{colour}" stroke-width="2.5"/>',
            text(LEFT + 16, y + 27, f"{name}/", 18, f'font-weight="700" fill="{colour}"'),
            text(LEFT + 232, y + 27, does, 14),
            text(LEFT + 16, y + 51, folders, 13, 'font-family="monospace" fill="#334155"'),
        ]
        if name != ROOMS[-1][0]:
            parts.append(arrow(LEFT + 30, y + BOX + 2, LEFT + 30, y + STEP - 4))
    parts.append(
        text(LEFT + 44, top("baselines") - 13, "imports, always downwards", 12, 'fill="#475569"')
    )
    for name, writer, readers in FILES:
        y = top(writer) + 16
        parts += [
            f'<path d="M{FILE_LEFT} {y} h{FILE_WIDTH - 14} l14 14 v20 h-{FILE_WIDTH} z" '
            'fill="#fef9c3" stroke="#a16207" stroke-width="1.5"/>',
            text(FILE_LEFT + 12, y + 22, name, 14),
            arrow(LEFT + ROOM_WIDTH + 2, y + 17, FILE_LEFT - 4, y + 17),
            text(LEFT + ROOM_WIDTH + 42, y + 10, "writes", 12, 'fill="#475569"'),
        ]
        for reader in readers:
            below = top(reader) > y
            start = y + 36 if below else y - 2
            parts += [
                arrow(
                    FILE_LEFT + 60,
                    start,
                    LEFT + ROOM_WIDTH + 4,
                    top(reader) + (20 if below else BOX - 12),
                    dashed=True,
                ),
                text(
                    FILE_LEFT + 32,
                    (start + top(reader) + (36 if below else BOX)) / 2,
                    "reads",
                    12,
                    'fill="#475569"',
                ),
            ]
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    default = Path(__file__).with_name("images") / "architecture.svg"
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    out.write_text(picture(), "utf-8")
    print(f"wrote {out}")
