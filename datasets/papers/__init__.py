"""The papers' other datasets: grids, sprites and sequences, without torch.

One dataset a file, its writer of small files beside its reader; `sprites` draws such images.
"""

from __future__ import annotations

from pathlib import Path

from threedident.datasets.formats.source import ImageSource
from threedident.errors import DatasetError, UsageError

#: The forms, and what each is in words.
FORMS: dict[str, str] = {}


#: What the names of images begin with that are drawn when they are asked for.
DRAWN = "drawn:"


def is_drawn(root: str | Path) -> bool:
    """Whether a dataset's path is the name of images that are drawn, such as drawn:sprites."""
    return str(root).startswith(DRAWN)


def find_form(root: Path) -> str | None:
    """Find out which of `FORMS` a dataset is in; None where it is in none of them.

    Args:
        root: the path, or the name of images that are drawn, such as drawn:sprites.
    """
    return None


def open_source(root: Path, form: str, split: str | None = None) -> ImageSource:
    """Open one of the papers' other datasets.

    Args:
        root: the path, or the name of images that are drawn.
        form: one of `FORMS`, as `find_form` gives it.
        split: train or test, of a form that has both.

    Raises:
        UsageError: a split is named, and the form has none.
        DatasetError: it is damaged.
    """
    if split is not None:
        raise UsageError(f"{root} has no splits to choose from")
    raise DatasetError(f"cannot open {root}: {form} is unknown")
