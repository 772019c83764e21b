"""Measure the pairs of grids, sequences and tables: how far and how often each factor changes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.columns import Column
from threedident.datasets.grid_pairs import GridPairs
from threedident.datasets.indexed_pairs import IndexedPairs
from threedident.distributions import Grid
from threedident.distributions.torch_sampler import seeded
from threedident.figures import empty_figure

try:
    import torch
except ImportError as error:
    from threedident.errors import MissingExtraError

    raise MissingExtraError("torch", "train", "pairs of images") from error

Float64 = npt.NDArray[np.float64]

_BINS = 41
_MOST_PANELS = 6


@dataclasses.dataclass(frozen=True)
class Changes:
    """The differences d = z~ - z of pairs, by factor.

    Attributes:
        differences: the differences, (N, n).
        std: the root mean square of each factor's d, (n,); NaN for a class, whose numbers have no
            distance.
        kurtosis: E d^4 / (E d^2)^2 of each, (n,): 3 for a Normal; NaN also for one that stays.
        unchanged: the share of pairs in which it stays, (n,).
        changed: the mean number of factors that change in a pair.
    """

    differences: Float64
    std: Float64
    kurtosis: Float64
    unchanged: Float64
    changed: float

    @classmethod
    def of(cls, z: torch.Tensor, z_tilde: torch.Tensor, columns: Sequence[Column]) -> Changes:
        """Measure pairs (N, n) of factors with these columns."""
        d = (z_tilde.double() - z.double()).numpy()
        ordered = np.array([column.kind != "discrete" for column in columns])
        square = np.where(ordered, (d**2).mean(0), np.nan)
        moving = np.where(square > 0, square, np.nan)
        return cls(
            d,
            np.sqrt(square),
            (d**4).mean(0) / moving**2,
            (d == 0).mean(0),
            float((d != 0).sum(1).mean()),
        )


@dataclasses.dataclass(frozen=True)
class PairReport:
    """A report on the pairs of a dataset.

    Attributes:
        columns: the factors.
        pairs: a description of the pairs.
        asked: the differences of pairs drawn exactly from the transition; None where pairs follow
            none.
        realised: the differences of the dataset's pairs.
    """

    columns: tuple[Column, ...]
    pairs: str
    asked: Changes | None
    realised: Changes

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data for JSON; what is no number is null."""

        def plain(changes: Changes | None) -> dict[str, Any] | None:
            if changes is None:
                return None
            values = {
                name: {
                    column.name: None if np.isnan(value) else float(value)
                    for column, value in zip(self.columns, getattr(changes, name), strict=True)
                }
                for name in ("std", "kurtosis", "unchanged")
            }
            return {**values, "factors_that_change": changes.changed}

        return {
            "pairs": self.pairs,
            "draws": len(self.realised.differences),
            "asked": plain(self.asked),
            "realised": plain(self.realised),
        }


def examine_changes(pairs: IndexedPairs, draws: int, seed: int = 0) -> PairReport:
    """Measure the pairs of the first epochs, beside exact draws where there are such.

    Args:
        pairs: the pairs.
        draws: the number of pairs.
        seed: the seed for the exact draws.
    """
    dataset = pairs.dataset
    columns = dataset.factor_columns
    asked = None
    if isinstance(pairs, GridPairs):
        grid = pairs.process.space
        assert isinstance(grid, Grid)
        chosen = [grid.names.index(name) for name in dataset.factor_names]
        z, z_tilde = pairs.process.sample(draws, generator=seeded(seed))
        asked = Changes.of(z[:, chosen], z_tilde[:, chosen], columns)
    numbers = (divmod(number, pairs.batches) for number in itertools.count())
    parts: list[tuple[torch.Tensor, torch.Tensor]] = []
    while sum(len(i) for i, _ in parts) < draws:
        parts.append(pairs.indices(*next(numbers)))
    i, j = (torch.cat(each)[:draws] for each in zip(*parts, strict=True))
    realised = Changes.of(dataset.factors[i], dataset.factors[j], columns)
    return PairReport(columns, repr(pairs), asked, realised)


def table(report: PairReport) -> list[str]:
    """Format a report as the lines that `3dident pairs` prints."""
    ways = {"asked": report.asked, "realised": report.realised}
    shown = {name: changes for name, changes in ways.items() if changes is not None}
    titles = {"std": "std of z~ - z", "kurtosis": "kurtosis", "unchanged": "unchanged"}
    wide = 11 * len(shown)
    lines = [f"{'':<20}" + "".join(f"{title:>{wide}}" for title in titles.values())]
    if len(shown) > 1:
        lines.append(f"{'factor':<20}" + "".join(f"{name:>11}" for name in shown) * len(titles))

    def cell(value: float, name: str) -> str:
        if np.isnan(value):
            return f"{'-':>11}"
        return f"{value:>11.2%}" if name == "unchanged" else f"{value:>11.3f}"

    for k, column in enumerate(report.columns):
        cells = (cell(getattr(each, name)[k], name) for name in titles for each in shown.values())
        lines.append(f"{column.name:<20}" + "".join(cells))
    counts = ", ".join(
        f"{changes.changed:.2f}" + (f" {name}" if len(shown) > 1 else "")
        for name, changes in shown.items()
    )
    lines.append(f"factors that change in a pair, of {len(report.columns)}: {counts}")
    return lines


def figure(report: PairReport, title: str) -> Any:
    """Draw the differences of up to six factors that have distances, asked and realised.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    ordered = [k for k, column in enumerate(report.columns) if column.kind != "discrete"]
    ordered = ordered[:_MOST_PANELS] or [0]
    drawing = empty_figure(3.2 * len(ordered), 3.2)
    drawing.suptitle(title)
    axes = drawing.subplots(1, len(ordered), squeeze=False)[0]
    for k, panel in zip(ordered, axes, strict=True):
        reach = max(1.0, float(np.abs(report.realised.differences[:, k]).max()))
        edges = np.linspace(-reach, reach, _BINS + 1)
        for name, changes, color in (
            ("asked", report.asked, "black"),
            ("realised", report.realised, "tab:green"),
        ):
            if changes is not None:
                values = np.clip(changes.differences[:, k], -reach, reach)
                panel.hist(values, edges, histtype="step", density=True, label=name, color=color)
        panel.set(xlabel=f"z~ - z, {report.columns[k].name}", yscale="log")
    axes[0].set_ylabel("density")
    axes[0].legend(fontsize="small")
    return drawing
