"""Captions of images: which shape, where, in which colour, in one of several phrasings.

They follow the rules of Multimodal3DIdent (Daunhawer et al. 2023, see docs/family.md), in words of
our own: the published sentences are not here, and a file of templates takes their place where one
has them. A caption is a function of the image's variables and of (seed, split, image number), like
everything that is drawn.

A colour's name is the nearest in one of three palettes of Matplotlib (Tableau, CSS4, XKCD), by
Euclidean distance in RGB from the hue at saturation and value 1. A palette is drawn for each image.
"""

from __future__ import annotations

import colorsys
import dataclasses
import string
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from threedident.errors import MissingExtraError, UsageError
from threedident.latents import SPLITS, check_seed_and_split
from threedident.plain_data import read_bounded
from threedident.storage.atomic_files import replacing

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

#: The words that a template's slots stand for.
SLOTS = ("shape", "xpos", "ypos", "color")
#: The places of an object in the image, in the order of their numbers.
XPOS = ("left", "center", "right")
YPOS = ("top", "mid", "bottom")
#: Five phrasings, in words of our own.
TEMPLATES = (
    'A {shape} was put at the {ypos}-{xpos} of this scene and painted in "{color}".',
    'The {ypos}-{xpos} holds a "{color}" {shape}.',
    'Its {ypos}-{xpos} part presents a {shape} that is tinted "{color}".',
    'Look at the {ypos}-{xpos} of the scene: a {shape}, and its colour is "{color}".',
    'At {ypos}-{xpos} stands one thing of colour "{color}", and it has the form of a {shape}.',
)
PALETTES = ("tableau", "css4", "xkcd")

_CAPTIONS = 0x63617074  # the last word of the generator's counter, which is 0 for all other draws
_LARGEST_FILE = 100_000  # bytes of a file of templates
_MOST_TEMPLATES = 1000
_ROWS = 2048  # hues that are compared with a palette at once


class ColorNames:
    """The names of colours in three palettes of Matplotlib.

    Attributes:
        names: all names, sorted; a name's place is its index.
    """

    names: tuple[str, ...]

    def __init__(self) -> None:
        """Read the palettes.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        try:
            from matplotlib import colors
        except ImportError as error:
            raise MissingExtraError("matplotlib", "train", "naming colours") from error
        tables = (colors.TABLEAU_COLORS, colors.CSS4_COLORS, colors.XKCD_COLORS)
        self.names = tuple(sorted({name for table in tables for name in table}))
        self._index = {name: index for index, name in enumerate(self.names)}
        self._palettes: list[tuple[list[str], Float64]] = []
        for table in tables:
            # Of two names of one colour the last is kept, at the place of the first.
            by_color = {colors.to_rgb(value): name for name, value in table.items()}
            self._palettes.append((list(by_color.values()), np.array(list(by_color))))

    def index(self, name: str) -> int:
        """The index of a name among all names."""
        return self._index[name]

    def nearest(self, hues: npt.ArrayLike, palettes: npt.ArrayLike) -> list[str]:
        """The names nearest to hues.

        Args:
            hues: the hues, (N,), of which a turn is 1.
            palettes: the palette of each, (N,), as indices of `PALETTES`.
        """
        values = np.asarray(hues, np.float64)
        choice = np.asarray(palettes, np.int64)
        names = np.empty(len(values), object)
        for number, (known, table) in enumerate(self._palettes):
            rows = np.flatnonzero(choice == number)
            for start in range(0, len(rows), _ROWS):
                part = rows[start : start + _ROWS]
                rgb = np.array([colorsys.hsv_to_rgb(hue, 1.0, 1.0) for hue in values[part]])
                distance = ((rgb[:, None] - table) ** 2).sum(-1)
                names[part] = [known[k] for k in distance.argmin(1)]
        return list(names)


@dataclasses.dataclass(frozen=True)
class Captions:
    """The captions of some images, and what was drawn for them.

    Attributes:
        texts: the captions.
        color_names: the names of the objects' colours.
        color_indices: the indices of these names among all names, (N,).
        phrasings: the numbers of the templates, (N,).
    """

    texts: tuple[str, ...]
    color_names: tuple[str, ...]
    color_indices: Int64
    phrasings: Int64

    def __len__(self) -> int:
        return len(self.texts)


def make_captions(
    shapes: Sequence[str],
    xpos: Sequence[str],
    ypos: Sequence[str],
    hues: npt.ArrayLike,
    *,
    indices: Iterable[int] | None = None,
    seed: int = 0,
    split: str = "train",
    templates: Sequence[str] = TEMPLATES,
) -> Captions:
    """Make the captions of images.

    Args:
        shapes: the names of the objects' shapes, (N,).
        xpos: the words for the places from left to right, (N,).
        ypos: the words for the places from top to bottom, (N,).
        hues: the objects' hues, (N,), of which a turn is 1.
        indices: the image numbers; None: 0 to N - 1.
        seed: the seed for palettes and phrasings.
        split: train, val or test.
        templates: the phrasings, of which one is drawn for each image.

    Raises:
        UsageError: an argument does not fit.
        MissingExtraError: matplotlib is not installed.
    """
    values = np.asarray(hues, np.float64)
    numbers = list(range(len(shapes)) if indices is None else indices)
    lengths = {len(each) for each in (shapes, xpos, ypos, values, numbers)}
    if len(lengths) > 1 or values.ndim != 1:
        raise UsageError(
            "captions need a shape, an xpos, a ypos, a hue and a number for each image, found "
            f"{len(shapes)}, {len(xpos)}, {len(ypos)}, {len(values)} and {len(numbers)}"
        )
    if not np.isfinite(values).all():
        raise UsageError("captions: the hues must be finite numbers")
    for template in templates or [""]:
        _check_template(template, "captions")
    choice = _draws(numbers, seed, split)
    palettes = (choice[:, 0] * len(PALETTES)).astype(np.int64)
    phrasings = (choice[:, 1] * len(templates)).astype(np.int64)
    colors = ColorNames()
    names = colors.nearest(values, palettes)
    words = zip(shapes, xpos, ypos, names, phrasings, strict=True)
    return Captions(
        texts=tuple(
            templates[phrasing].format(shape=shape, xpos=x, ypos=y, color=name)
            for shape, x, y, name, phrasing in words
        ),
        color_names=tuple(names),
        color_indices=np.array([colors.index(name) for name in names], np.int64),
        phrasings=phrasings,
    )


def _draws(numbers: Sequence[int], seed: int, split: str) -> Float64:
    """Two uniform numbers in [0, 1) for each image, (N, 2): for the palette and the phrasing."""
    check_seed_and_split(seed, split)
    if any(number < 0 for number in numbers):
        raise UsageError(f"image numbers must be >= 0, found {min(numbers)}")
    key = np.array([seed, SPLITS[split]], np.uint64)
    rows = [
        np.random.Philox(key=key, counter=np.array([0, i, 0, _CAPTIONS], np.uint64)).random_raw(2)
        for i in numbers
    ]
    words = np.array(rows, np.uint64).reshape(len(numbers), 2) >> np.uint64(11)
    return words.astype(np.float64) / 2.0**53


def load_templates(path: str | Path) -> tuple[str, ...]:
    """Read a file of templates: a phrasing a line, with the slots {shape}, {xpos}, {ypos}, {color}.

    Empty lines, and lines that begin with #, are left out.

    Raises:
        UsageError: the file cannot be read, holds no template, or a slot is unknown.
    """
    try:
        text = read_bounded(Path(path), _LARGEST_FILE).decode("utf-8")
    except OSError as error:
        raise UsageError(f"cannot read the templates {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"cannot read the templates {path}: {error}") from error
    lines = {number: line.strip() for number, line in enumerate(text.splitlines(), 1)}
    templates = {n: line for n, line in lines.items() if line and not line.startswith("#")}
    if not 1 <= len(templates) <= _MOST_TEMPLATES:
        raise UsageError(
            f"{path}: expected 1 to {_MOST_TEMPLATES} templates, a line each, found "
            f"{len(templates)}"
        )
    for number, line in templates.items():
        _check_template(line, f"{path}, line {number}")
    return tuple(templates.values())


def write_templates(path: str | Path) -> None:
    """Write a file of templates to be filled: our own phrasings, and what the slots mean.

    Raises:
        UsageError: the file exists.
        DatasetError: it cannot be written.
    """
    path = Path(path)
    if path.exists():
        raise UsageError(f"{path} exists already: choose another name")
    head = (
        "# Templates of captions, a line each; one is drawn for each image. Slots:\n"
        "# {shape} the name of the shape, {xpos} left, center or right, {ypos} top, mid or\n"
        "# bottom, {color} the name of the colour. Put the phrasings that you want here.\n"
    )
    with replacing(path) as temporary:
        temporary.write_text(head + "".join(f"{each}\n" for each in TEMPLATES), "utf-8")


def _check_template(template: str, where: str) -> None:
    """Check that a template is one line with no other slots than ours.

    Raises:
        UsageError: it is not.
    """
    wanted = ", ".join(f"{{{slot}}}" for slot in SLOTS)
    try:
        fields = [field for field in string.Formatter().parse(template) if field[1] is not None]
    except ValueError as error:
        raise UsageError(f"{where}: {error} in the template {template!r:.100}") from error
    for _, slot, style, conversion in fields:
        if slot not in SLOTS or style or conversion:
            raise UsageError(
                f"{where}: a template's slots are {wanted}, found {{{slot}}} in {template!r:.100}"
            )
    if not template.strip() or len(template.splitlines()) > 1:
        raise UsageError(f"{where}: a template is one line of text, found {template!r:.100}")
