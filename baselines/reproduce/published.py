"""The numbers that the papers printed, by the experiment that trains the same.

Nobody has run them again here. Those of 3DIdent stand in
`threedident.evaluate.leaderboard.published_scores`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from threedident.evaluate.leaderboard import published_scores

_Z21 = "Zimmermann et al., Contrastive Learning Inverts the Data Generating Process, ICML 2021"
_R24 = "Rusak et al., InfoNCE: Identifying the Gap Between Theory and Practice, 2024"
IDENTITY = "identity"


@dataclasses.dataclass(frozen=True)
class Published:
    """What a paper says of one experiment.

    Attributes:
        row: the experiment's name; that of an identity baseline ends in "identity".
        scores: mean and standard deviation in [0, 1] by metric; the latter None where there is
            one run, or the paper gives none.
        source: paper and table.
        seeds: over which the mean is taken.
        matches: whether the model's assumptions hold; None for baselines.
        steps: at which the scores were taken; None: at the end of the training.
        earlier: scores on the way there, by step.
        learned: what the loss had learned, in words.
    """

    row: str
    scores: Mapping[str, tuple[float, float | None]]
    source: str
    seeds: int | None = None
    matches: bool | None = None
    steps: int | None = None
    earlier: Mapping[int, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    learned: str = ""


def _percents(mean: float, std: float | None) -> tuple[float, float | None]:
    return round(mean / 100, 6), None if std is None else round(std / 100, 6)


def _table_1(row: str, mean: float, std: float, matches: bool | None = None) -> Published:
    scores = {"linear_r2": _percents(mean, std)}
    return Published(f"table1-{row}", scores, f"{_Z21}, Table 1", 5, matches)


def _table_2(row: str, mean: float, std: float, matches: bool | None = None) -> Published:
    scores = {"mcc": _percents(mean, std)}
    return Published(f"table2-{row}", scores, f"{_Z21}, Table 2", 5, matches)


#: In the order of the paper; the baselines stand before their block.
TABLE_1: tuple[Published, ...] = (
    _table_1("sphere-uniform-identity", 66.98, 2.79),
    _table_1("sphere-uniform-supervised", 99.71, 0.05),
    _table_1("sphere-uniform-vmf1-vmf", 99.42, 0.05, True),
    _table_1("sphere-uniform-vmf10-vmf", 99.86, 0.01, False),
    _table_1("sphere-uniform-laplace-vmf", 99.91, 0.01, False),
    _table_1("sphere-uniform-normal-vmf", 99.86, 0.00, False),
    _table_1("box-uniform-identity", 67.93, 7.40),
    _table_1("box-uniform-supervised", 99.78, 0.06),
    _table_1("box-uniform-normal-normal", 99.60, 0.02, False),
    _table_1("box-uniform-laplace-normal", 99.64, 0.02, False),
    _table_1("box-uniform-laplace-gennorm", 99.70, 0.02, False),
    _table_1("box-uniform-normal-gennorm", 99.69, 0.02, False),
    _table_1("sphere-normal-identity", 63.37, 2.41),
    _table_1("sphere-normal-supervised", 99.70, 0.07),
    _table_1("sphere-normal-laplace-vmf", 99.02, 0.01, False),
    _table_1("sphere-normal-normal-vmf", 99.02, 0.02, False),
    _table_1("unbounded-laplace-identity", 62.49, 1.65),
    _table_1("unbounded-laplace-supervised", 99.65, 0.04),
    _table_1("unbounded-laplace-normal-normal", 98.13, 0.14, False),
    _table_1("unbounded-normal-identity", 63.57, 2.30),
    _table_1("unbounded-normal-supervised", 99.61, 0.17),
    _table_1("unbounded-normal-normal-normal", 98.76, 0.03, False),
)

TABLE_2: tuple[Published, ...] = (
    _table_2("identity", 46.55, 1.34),
    _table_2("supervised-box", 99.93, 0.03),
    _table_2("supervised-unbounded", 99.97, 0.03),
    _table_2("laplace-box-laplace", 98.62, 0.05, True),
    _table_2("gennorm-box-gennorm", 99.90, 0.06, True),
    _table_2("normal-box-normal", 99.77, 0.01, False),
    _table_2("laplace-box-normal", 99.76, 0.02, False),
    _table_2("gennorm-box-laplace", 98.80, 0.02, False),
    _table_2("laplace-unbounded-laplace", 98.57, 0.02, False),
    _table_2("gennorm-unbounded-gennorm", 99.85, 0.01, False),
    _table_2("normal-unbounded-normal", 58.26, 3.00, False),
    _table_2("laplace-unbounded-normal", 59.67, 2.33, False),
    _table_2("normal-unbounded-gennorm", 43.80, 2.15, False),
)

#: In the order of `published_scores.TABLE_4`, and which of its rows meet the assumptions.
_TABLE_4_ROWS = (
    ("table4-supervised", None),
    ("table4-box", True),
    ("table4-unbounded", False),
    ("table4-laplace-box", False),
    ("table4-sphere", False),
    ("table4-augmentations", False),
    ("table4-identity", None),
)
TABLE_4: tuple[Published, ...] = tuple(
    Published(row, each.scores, f"{_Z21}, Table 4", published_scores.SEEDS, matches)
    for (row, matches), each in zip(_TABLE_4_ROWS, published_scores.TABLE_4, strict=True)
)


def _one_run(**scores: float) -> dict[str, tuple[float, float | None]]:
    return {name: (value, None) for name, value in scores.items()}


#: The runs that were published with the code, of one seed each.
ANINFONCE: tuple[Published, ...] = (
    Published(
        "aninfonce",
        _one_run(linear_r2=0.996, mcc=0.68),
        f"{_R24}, section 4.1, and its published runs",
        seeds=1,
        steps=90_000,
        earlier={7501: {"linear_r2": 0.868}, 14_751: {"linear_r2": 0.982}},
        learned="Lambda 5.5 and 23.1",
    ),
    Published(
        "aninfonce-linear",
        _one_run(linear_r2=0.9976, mcc=0.990),
        f"{_R24}, its published runs",
        seeds=1,
        steps=102_000,
        earlier={14_751: {"linear_r2": 0.989}},
        learned="Lambda 5.9 to 24.2",
    ),
)

ENSEMBLE: tuple[Published, ...] = (
    Published("ensemble", _one_run(linear_r2=0.98), f"{_R24}, H.3"),
    Published("ensemble-aninfonce", _one_run(linear_r2=0.93), f"{_R24}, H.3"),
    Published("ensemble-infonce", _one_run(linear_r2=0.48), f"{_R24}, H.3"),
)

HARD_NEGATIVES: tuple[Published, ...] = (
    Published("hard-negatives", {}, f"{_R24}, H.3 and Figure 10", learned="optimum at Lambda 50"),
)

PUBLISHED: Mapping[str, Published] = {
    each.row: each
    for each in (*TABLE_1, *TABLE_2, *TABLE_4, *ANINFONCE, *ENSEMBLE, *HARD_NEGATIVES)
}
