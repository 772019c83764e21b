"""The scores that the paper printed for 3DIdent, which nobody has run again here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

SOURCE = (
    "Zimmermann et al., Contrastive Learning Inverts the Data Generating Process, ICML 2021, "
    "Table 4"
)
LINK = "https://proceedings.mlr.press/v139/zimmermann21a.html"
SEEDS = 3


@dataclasses.dataclass(frozen=True)
class PublishedRow:
    """A row of the table.

    Attributes:
        name: a name for the row.
        track: the track of a leaderboard in which it stands.
        conditional: the conditional of the positive pairs; empty where there are none.
        space: the space of the codes.
        model: the conditional that the loss assumes, or the loss; empty where there is none.
        scores: mean and standard deviation over three seeds, by metric.
    """

    name: str
    track: str
    conditional: str
    space: str
    model: str
    scores: Mapping[str, tuple[float, float]]


def _scores(
    r2: tuple[float, float], mcc: tuple[float, float] | None
) -> dict[str, tuple[float, float]]:
    """Turn percents into scores by metric."""
    given = {"linear_r2": r2, "mcc": mcc}
    return {k: (round(v[0] / 100, 6), round(v[1] / 100, 6)) for k, v in given.items() if v}


TABLE_4: tuple[PublishedRow, ...] = (
    PublishedRow(
        "Supervised", "supervised", "", "unbounded", "MSE", _scores((98.67, 0.03), (99.33, 0.01))
    ),
    PublishedRow(
        "Normal pairs, box, Normal loss",
        *("pairs-matched", "Normal", "box", "Normal"),
        _scores((96.73, 0.10), (98.31, 0.04)),
    ),
    PublishedRow(
        "Normal pairs, unbounded, Normal loss",
        *("pairs-matched", "Normal", "unbounded", "Normal"),
        _scores((96.43, 0.03), (54.94, 0.02)),
    ),
    PublishedRow(
        "Laplace pairs, box, Normal loss",
        *("pairs-matched", "Laplace", "box", "Normal"),
        _scores((96.87, 0.08), (98.38, 0.03)),
    ),
    PublishedRow(
        "Normal pairs, sphere, vMF loss",
        *("pairs-matched", "Normal", "sphere", "vMF"),
        _scores((65.74, 0.01), (42.44, 3.27)),
    ),
    PublishedRow(
        "Augmentations, sphere, vMF loss",
        *("augmentations", "augmentations", "sphere", "vMF"),
        _scores((45.51, 1.43), (46.34, 1.59)),
    ),
    PublishedRow("Identity (the pixels)", "other", "", "pixels", "", _scores((5.25, 1.20), None)),
)
