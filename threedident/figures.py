"""Figures of matplotlib, which nothing else needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from threedident.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check_matplotlib() -> None:
    """Check that matplotlib is there.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("matplotlib", "train", "the figure") from error


def empty_figure(width: float, height: float) -> Figure:
    """Make a figure without axes, of a width and height in inches.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    check_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")
