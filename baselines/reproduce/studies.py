"""Studies: the rows of each table and figure, and the numbers that the papers printed for them.

All of it is read from the files in `threedident.baselines.tables`.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from threedident.baselines.experiment import (
    Experiment,
    experiment_names,
    load_experiment,
    parse_experiment,
)
from threedident.baselines.tables import TABLES, Table, read_images, read_tables
from threedident.distributions import Distribution, parse_distribution
from threedident.errors import UsageError

#: The datasets that a user can name on the command line.
TRAIN, TEST = "3dident", "3dident-test"


@dataclasses.dataclass(frozen=True)
class Published:
    """The numbers that a paper prints of one row. Nobody has run it again here.

    Attributes:
        scores: the mean and the standard deviation in [0, 1] by metric; the latter is None where
            there is one run, or the paper gives none.
        source: the paper and the table.
        step: the step at which the scores were taken; None: the end of the training.
        earlier: the scores on the way there, by step.
        learned: the parameters that the loss had learned, in words.
        batch_statistics: whether the codes were normalised by each batch's own statistics.
    """

    scores: Mapping[str, tuple[float, float | None]]
    source: str
    step: int | None = None
    earlier: Mapping[int, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    learned: str = ""
    batch_statistics: bool = False


@dataclasses.dataclass(frozen=True)
class ImageSet:
    """A dataset of images that rows are trained or scored on.

    Attributes:
        name: the name of its folder.
        split: the split.
        count: the field of `Rendering` that says how many images or pairs there are.
        preset: the generator preset; "" for images of a causal model.
        conditional: p(z~ | z) where the images come in pairs; None for single images.
        model: the causal model; "" for images of a preset.
        view: the law of the second view, where images of a model come in two; "" for none.
        environment: the environment of a model's images; "" for that of the model as it is.
        drawn: the name of the drawn images that stand in for a dataset of other authors where it
            is not given; "" for images that are rendered.
        variant: the end of the name by which a variant of a dataset of other authors is opened.
    """

    name: str
    split: str = ""
    count: str = ""
    preset: str = ""
    conditional: Distribution | None = None
    model: str = ""
    view: str = ""
    environment: str = ""
    drawn: str = ""
    variant: str = ""

    @property
    def is_paired(self) -> bool:
        """Whether its images come in pairs."""
        return self.conditional is not None or bool(self.view)


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a table: an experiment at several seeds.

    Attributes:
        name: the name of the row and of its runs.
        preset: the built-in experiment that it is, or varies.
        block: the heading that it stands below.
        experiment: the experiment at full scale, as plain data.
        identity: whether the observations are scored as they are, and nothing is trained.
        untrained: whether the encoder is scored as it begins, with random weights.
        train_on: the images to train on; None for synthetic observations.
        score_on: the images to score on; None for synthetic observations.
        start: the row on whose encoders of the same seed it trains on; "" for none.
        concentration: the concentration of the marginal, where that is what varies.
        series: the line of the figure that the row is a point of, where latents vary.
        latents: the number of latents to match to; None: they are drawn afresh.
        matches: whether the theory's assumptions hold; None where there is no theory.
        published: the numbers that a paper prints; None where it prints nothing.
    """

    name: str
    preset: str
    block: str
    experiment: Mapping[str, Any]
    identity: bool = False
    untrained: bool = False
    train_on: ImageSet | None = None
    score_on: ImageSet | None = None
    start: str = ""
    concentration: float | None = None
    series: str = ""
    latents: int | None = None
    matches: bool | None = None
    published: Published | None = None

    @property
    def is_trained(self) -> bool:
        """Whether something is trained."""
        return not (self.identity or self.untrained)

    def published_experiment(self) -> Experiment:
        """Return the experiment of the row at full scale."""
        return parse_experiment(self.experiment, f"row {self.name}", self.name)


@dataclasses.dataclass(frozen=True)
class Study:
    """A table or a figure.

    Attributes:
        name: the name on the command line.
        title: the title for people.
        kind: the kind of observations, by which a scale changes experiments. Of images it is
            images, views where blocks of factors are scored, readout where augmentations are read
            out, or papers where they are those of other datasets of the papers.
        rows: the rows, in the order of the table.
        first: the names of rows that are trained before the others, in this order.
        metrics: the columns of the table, from `scores` of a result.
        plotted: the metrics in the figure.
        seeds: the number of seeds of the paper.
        per_factor: whether R2 is shown for every factor.
        pairs: whether spread and kurtosis of the pairs are shown.
        statistic: what stands for the seeds: mean (and standard deviation), or median (and
            absolute deviation).
        given: the names of the datasets that a user can name, to train and to score on.
        note: a note for the reader.
    """

    name: str
    title: str
    kind: str
    rows: tuple[Row, ...]
    first: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("linear_r2", "mcc")
    plotted: tuple[str, ...] = ("linear_r2", "mcc")
    seeds: int = 1
    per_factor: bool = False
    pairs: bool = False
    statistic: str = "mean"
    given: tuple[str, str] = (TRAIN, TEST)
    note: str = ""

    @property
    def of_images(self) -> bool:
        """Whether its observations are images."""
        return self.kind in ("images", "views", "papers", "readout")

    @property
    def image_sets(self) -> tuple[ImageSet, ...]:
        """The datasets of images that its rows use, each once."""
        sets = (each for row in self.rows for each in (row.train_on, row.score_on) if each)
        return tuple({each.name: each for each in sets}.values())

    def row(self, name: str) -> Row:
        """Return the row of a name."""
        return next(row for row in self.rows if row.name == name)

    def in_order(self, rows: Iterable[Row]) -> list[Row]:
        """Sort rows into the order in which they are trained."""
        names = [row.name for row in self.rows]
        ranks = {name: i for i, name in enumerate(dict.fromkeys((*self.first, *names)))}
        return sorted(rows, key=lambda row: ranks[row.name])

    def choose(self, patterns: str | Sequence[str] | None) -> list[Row]:
        """Return the rows of names or globs, in the order in which they are trained.

        A row that trains on another's encoder brings that one with it.

        Args:
            patterns: the names or globs, with or without the study's name in front, a list or
                separated by commas; None for all.

        Raises:
            UsageError: one names no row.
        """
        if patterns is None:
            return self.in_order(self.rows)
        split = patterns.split(",") if isinstance(patterns, str) else list(patterns)
        names = {row.name for row in self.rows}
        chosen: set[str] = set()
        for pattern in filter(None, (each.strip() for each in split)):
            fits = {
                name
                for name in names
                if fnmatch.fnmatchcase(name, pattern)
                or fnmatch.fnmatchcase(name, f"{self.name}-{pattern}")
            }
            if not fits:
                listed = ", ".join(row.name for row in self.rows)
                raise UsageError(f"{self.name} has no row {pattern!r:.100}: expected {listed}")
            chosen |= fits
        if not chosen:
            raise UsageError("--rows names no row: leave it out for all of them")
        chosen |= {row.start for row in self.rows if row.name in chosen and row.start}
        return self.in_order(self.row(name) for name in chosen)


#: Notes that several tables share.
_NOTES = {
    "aninfonce": (
        "AnInfoNCE is the paper's. For the second half of the symmetric loss the published code "
        "uses the similarities of view 1 to view 2 without transposing them: at the true latents "
        "its gradients differ by 3.5 % in batches of 1,000, by 14 % in batches of 64."
    ),
    "decoded": (
        "Observations are the images that a frozen decoder makes of latents on the sphere. The "
        "published numbers are of MNIST, and of a VAE whose widths and loss weights are not "
        "printed. Without --set data.decoder=DATASET ours is of the 1,797 digits of 8 x 8 in "
        "scikit-learn."
    ),
    "readout": (
        "Published: CIFAR-10. Without --data and --test the images here are rendered ones of seven "
        "shapes, all factors independent, and the class is the shape: another task, so that the "
        "order of the rows compares, and not their values. A probe tells images that went through "
        "one augmentation from those that did not."
    ),
    "images": (
        "R2 and MCC with batch normalisation in evaluation mode; beside them with each batch's own "
        "statistics, as published."
    ),
}


def _read_study(name: str, table: Table) -> Study:
    settings = dict(table.settings)
    source = settings.pop("published_source", "")
    notes = [*(_NOTES[each] for each in settings.pop("notes", ())), settings.pop("note", "")]
    lists = {key: tuple(value) for key, value in settings.items() if isinstance(value, list)}
    return Study(
        name=name,
        rows=tuple(_read_row(row, source) for row in table.rows),
        note=" ".join(filter(None, notes)),
        **{**settings, **lists},
    )


def _read_row(plain: Mapping[str, Any], source: str) -> Row:
    fields = dict(plain)
    for key in ("train_on", "score_on"):
        if key in fields:
            fields[key] = _read_image_set(fields[key])
    if fields.get("series"):
        fields.setdefault("latents", fields["experiment"]["data"].get("latents"))
    if "published" in fields:
        fields["published"] = _read_published({"source": source, **fields["published"]})
    return Row(**fields)


def _read_image_set(name: str) -> ImageSet:
    fields = dict(read_images()[name])
    if "conditional" in fields:
        fields["conditional"] = parse_distribution(fields["conditional"])
    return ImageSet(name, **fields)


def _read_published(plain: Mapping[str, Any]) -> Published | None:
    """Make the printed numbers of a row from plain data; None where there are none."""
    fields = dict(plain)
    names = [name for name, value in fields.items() if isinstance(value, list)]
    scores = {name: _fractions(*fields.pop(name)) for name in names}
    earlier = {
        int(step): {name: _fractions(*value)[0] for name, value in metrics.items()}
        for step, metrics in fields.pop("earlier", {}).items()
    }
    if not scores and "learned" not in fields:
        return None
    return Published(scores, earlier=earlier, **fields)


def _fractions(mean: float, std: float | None = None) -> tuple[float, float | None]:
    """Turn percents into fractions."""
    return round(mean / 100, 6), None if std is None else round(std / 100, 6)


STUDIES: Mapping[str, Study] = {name: _read_study(name, read_tables()[name]) for name in TABLES}


def presets_by_study() -> dict[str, list[Experiment]]:
    """Group the built-in experiments by the title of the table that they are rows of, in order."""
    left = experiment_names()
    groups: dict[str, list[Experiment]] = {}
    for study in STUDIES.values():
        names = dict.fromkeys(row.preset for row in study.rows if row.preset in left)
        left = [name for name in left if name not in names]
        if names:
            title = f"{study.title}: `3dident reproduce {study.name}`"
            groups[title] = [load_experiment(name) for name in names]
    others = [load_experiment(name) for name in left]
    return {"To begin with": others, **groups} if others else groups


def find_study(name: str) -> Study:
    """Return the study of a name.

    Raises:
        UsageError: there is none.
    """
    if name not in STUDIES:
        raise UsageError(f"unknown study {name!r:.100}: expected one of {', '.join(STUDIES)}")
    return STUDIES[name]
