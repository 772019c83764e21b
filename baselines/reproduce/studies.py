"""Which runs make up each table and figure, in which order, and how they are cut down."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from threedident.baselines.experiment import Experiment, experiment_names, load_experiment
from threedident.baselines.reproduce.published import TABLE_1, TABLE_2, TABLE_4
from threedident.errors import UsageError

TRAIN, TEST = "3dident", "3dident-test"
#: The scale at which nothing is learned.
SMOKE = "smoke"


@dataclasses.dataclass(frozen=True)
class Rendering:
    """The images that a scale renders where none are given.

    Attributes:
        images, pairs, test: how many.
        generators: images of each generator, where generators are compared.
        resolution: pixels along each side.
        quality: of the direct engine.
    """

    images: int
    pairs: int
    test: int
    generators: int
    resolution: int
    quality: str


@dataclasses.dataclass(frozen=True)
class Scale:
    """How much of a protocol is run.

    Attributes:
        changes: of the experiments, by dotted name, under globs: each counts for the rows whose
            name, kind of study, or kind and space of the codes (`images-box`) it fits; later
            ones come first.
        seeds: of each row; None: as many as the paper.
        rendering: of images.
    """

    changes: Mapping[str, Mapping[str, Any]]
    seeds: int | None
    rendering: Rendering


_SMOKE = {
    "training.steps": 20,
    "training.batch_size": 64,
    "training.score_samples": 256,
    "training.log_every": 5,
    "training.score_every": 10,
    "training.checkpoint_every": 10,
    "training.final_batches": 2,
}
_SMOKE_SYNTHETIC = {**_SMOKE, "data.mixing_trials": 200}
#: Muon on whitened observations: what gives the papers' numbers in 100 times fewer steps.
_MUON = {
    "encoder.whiten": True,
    "training.optimizer": "muon",
    "training.matrix_lr": 3e-3,
    "training.lr": 1e-3,
    "training.schedule": "cosine",
    "training.score_every": 100,
    "training.checkpoint_every": 100,
}

#: All that a scale changes stands here; the tables name it.
SCALES: Mapping[str, Scale] = {
    "paper": Scale({}, None, Rendering(250_000, 125_000, 4096, 250_000, 224, "standard")),
    "cpu": Scale(
        {
            "synthetic": {**_MUON, "training.steps": 2000, "training.batch_size": 2048},
            "table1-*": {"training.steps": 1500, "training.batch_size": 6144},
            # Pairs of this row tell so little that the noise of a batch decides.
            "table1-sphere-uniform-vmf1-vmf": {"training.batch_size": 16_384},
            "table*-supervised*": {"training.steps": 2000, "training.batch_size": 2048},
            # About what the true latents would want: learned bounds have no time to get there.
            "table2-*-box-*": {"encoder.size": 5.0},
            # The loss with p = 1 has poor minima near a random start, and none near p = 2's.
            "table2-*-laplace": {"loss.start_p": 2.0, "loss.start_steps": 800},
            "matching-synthetic-*-box*": {"encoder.size": 5.0},
            "matching-synthetic-*laplace*": {"loss.start_p": 2.0, "loss.start_steps": 800},
            "marginals": {**_MUON, "training.steps": 1000, "training.batch_size": 2048},
            "fig2-box-*": {"encoder.size": 5.0},
            # The raw Lambda moves by its learning rate a step, half of that with the cosine.
            "anisotropic": {**_MUON, "training.steps": 4000, "training.loss_lr": 0.03},
            "twenty": {
                **_MUON,
                "training.steps": 2000,
                "training.batch_size": 2048,
                "training.loss_lr": 0.2,
            },
            "ensemble*": {"training.loss_lr": 0.5},
            "images": {
                "encoder.width": 32,
                "training.steps": 8000,
                "training.batch_size": 256,
                "training.optimizer": "muon",
                "training.matrix_lr": 3e-3,
                "training.lr": 1e-3,
                "training.schedule": "cosine",
                "training.precision": "bf16-mixed",
                "training.score_every": 200,
                "training.checkpoint_every": 200,
            },
            "images-box": {"encoder.size": 4.0},
        },
        1,
        Rendering(250_000, 60_000, 4096, 60_000, 64, "draft"),
    ),
    SMOKE: Scale(
        {
            **dict.fromkeys(("synthetic", "marginals", "anisotropic", "twenty"), _SMOKE_SYNTHETIC),
            "matching-synthetic-nearest-*": {"data.latents": 300},
            "matching-synthetic-resampled-*": {"data.latents": 300},
            "images": {**_SMOKE, "training.batch_size": 32},
        },
        1,
        Rendering(300, 100, 128, 300, 32, "draft"),
    ),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a table: an experiment at several seeds.

    Attributes:
        name: of the row, and of its runs.
        preset: the experiment.
        block: what it stands together with.
        changes: of the preset, by dotted name.
        identity: the observations are scored as they are; the preset only says of what.
        data, test: names of datasets, for images.
        start: the row on whose encoders of the same seed it trains on.
        concentration: of the marginal, where that is what varies.
        series: the line of the figure that the row is a point of, where latents vary.
        latents: how many there are to match to; None: drawn afresh.
    """

    name: str
    preset: str
    block: str
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    identity: bool = False
    data: str = ""
    test: str = ""
    start: str = ""
    concentration: float | None = None
    series: str = ""
    latents: int | None = None

    def published_experiment(self) -> Experiment:
        """What the row trains at full scale."""
        return load_experiment(self.preset).changed({"name": self.name, **self.changes})


@dataclasses.dataclass(frozen=True)
class Study:
    """A table or a figure.

    Attributes:
        name: on the command line.
        title: for people.
        kind: which of a scale's changes apply.
        rows: in the order of the table.
        first: names of rows that are trained before the others, in this order.
        metrics: of the table, from `scores` of a result.
        plotted: of them, against steps.
        seeds: of the paper.
        per_factor: whether R2 is shown for every factor.
        pairs: whether spread and kurtosis of the pairs are shown.
        note: what a reader must know.
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
    note: str = ""

    def row(self, name: str) -> Row:
        """The row of a name."""
        return next(row for row in self.rows if row.name == name)

    def in_order(self, chosen: Iterable[Row]) -> list[Row]:
        """Rows in the order in which they are trained."""
        names = [row.name for row in self.rows]
        ranks = {name: i for i, name in enumerate(dict.fromkeys((*self.first, *names)))}
        return sorted(chosen, key=lambda row: ranks[row.name])

    def choose(self, patterns: str | Sequence[str] | None) -> list[Row]:
        """The rows of names or globs, in the order in which they are trained.

        A row that trains on another's encoder brings that one with it.

        Args:
            patterns: with or without the study's name in front, a list or separated by commas;
                None for all.

        Raises:
            UsageError: one names no row.
        """
        if patterns is None:
            return self.in_order(self.rows)
        split = patterns.split(",") if isinstance(patterns, str) else list(patterns)
        names = {row.name for row in self.rows}
        found: set[str] = set()
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
            found |= fits
        if not found:
            raise UsageError("--rows names no row: leave it out for all of them")
        found |= {row.start for row in self.rows if row.name in found and row.start}
        return self.in_order(self.row(name) for name in found)


def _of_table_1() -> tuple[Row, ...]:
    rows = []
    for each in TABLE_1:
        _, space, marginal, *_ = each.row.split("-")
        shown = "uniform" if marginal == "uniform" else f"{marginal.capitalize()}(1)"
        preset = each.row.replace("-identity", "-supervised")
        block = f"{space}, {shown} marginal"
        rows.append(Row(each.row, preset, block, identity=preset != each.row))
    return tuple(rows)


def _of_table_2() -> tuple[Row, ...]:
    # The paper's blocks: which assumptions are violated.
    blocks = ("baselines", "none violated", "pairs violated", "space violated", "both violated")
    sizes = (3, 2, 3, 2, 3)
    of = [block for block, size in zip(blocks, sizes, strict=True) for _ in range(size)]
    rows = []
    for each, block in zip(TABLE_2, of, strict=True):
        preset = each.row.replace("-identity", "-supervised-box")
        rows.append(Row(each.row, preset, block, identity=preset != each.row))
    return tuple(rows)


def _of_table_4() -> tuple[Row, ...]:
    rows = []
    for each in TABLE_4:
        preset = each.row.replace("-identity", "-supervised")
        row = Row(each.row, preset, "3DIdent", identity=preset != each.row, data=TRAIN, test=TEST)
        rows.append(row)
    return tuple(rows)


#: The ticks of Figure 2 and what lies between them, powers of two.
_SPHERE_POWERS, _BOX_POWERS = range(-6, 9, 2), range(-6, 11, 2)


def _of_figure_2() -> tuple[Row, ...]:
    rows = []
    for power in _SPHERE_POWERS:
        marginal: dict[str, Any] = {"name": "vmf", "kappa": 2.0**power}
        rows.append(_point("sphere", "sphere, vMF marginal", power, marginal))
    for power in _BOX_POWERS:
        marginal = {"name": "normal", "sigma": math.sqrt(2.0**-power)}
        rows.append(_point("box", "box, Normal marginal", power, marginal))
    return tuple(rows)


def _point(space: str, block: str, power: int, marginal: Mapping[str, Any]) -> Row:
    concentration = 2.0**power
    return Row(
        f"fig2-{space}-{concentration:g}",
        f"fig2-{space}",
        block,
        {
            "title": f"{block} of concentration {concentration:g}",
            "data.marginal": dict(marginal),
        },
        concentration=concentration,
    )


#: How pairs of images come about, and the dataset that has them so.
_EXACT = {
    "exact": {"laplace": "pairs-laplace-0.1", "normal": "pairs-normal-0.1"},
    "exact-wide": {"laplace": "pairs-laplace-0.21", "normal": "pairs-normal-0.28"},
}
_WAYS = ("nearest", "resample", *_EXACT)
#: The decisive cell first: only there can the loss of the Laplace shape show.
_CELLS = (
    *(("laplace", "unbounded", "laplace"), ("normal", "unbounded", "normal")),
    *(("laplace", "unbounded", "normal"), ("normal", "unbounded", "laplace")),
    *(("laplace", "box", "laplace"), ("normal", "box", "normal")),
    *(("laplace", "box", "normal"), ("normal", "box", "laplace")),
)


def _of_matching() -> tuple[Row, ...]:
    rows = []
    for pairs, space, model in _CELLS:
        for way in _WAYS:
            name = f"matching-{way}-{pairs}-{space}-{model}"
            data = _EXACT[way][pairs] if way in _EXACT else TRAIN
            block = f"{pairs.capitalize()} pairs, {space}, {model.capitalize()}"
            rows.append(Row(name, name, block, data=data, test=TEST))
    return tuple(rows)


#: Latents to match to, and the widths of exact pairs that are spread as widely as pairs matched to
#: the nearest of so many: 0.1 times what `matching_report.matched_width` gives for the latents of
#: seed 0 (a test computes some again).
_MATCHED_WIDTHS = {
    "laplace": {10_000: 0.3226, 100_000: 0.2459, 250_000: 0.2235, 1_000_000: 0.1958},
    "normal": {250_000: 0.2821},
}
#: Beyond it, resampling takes hours: it weighs every latent for every other one.
_MOST_RESAMPLED = 250_000


_WAYS_SHOWN = {
    "exact": "exact pairs",
    "nearest": "nearest",
    "resampled": "resampled",
    "exact-wide": "exact pairs, as wide as nearest",
}
_WIDTHS = {"laplace": "data.conditional.lam", "normal": "data.conditional.sigma"}


def _of_synthetic_matching() -> tuple[Row, ...]:
    rows = []
    for pairs, space in (("laplace", "unbounded"), ("laplace", "box"), ("normal", "unbounded")):
        ways: list[tuple[str, int | None, dict[str, Any]]] = [("exact", None, {})]
        for count, width in _MATCHED_WIDTHS[pairs].items():
            ways.append(("nearest", count, {"data.latents": count}))
            if count <= _MOST_RESAMPLED:
                changes = {"data.latents": count, "data.match": "resample"}
                ways.append(("resampled", count, changes))
            ways.append(("exact-wide", count, {_WIDTHS[pairs]: width}))
        for way, latents, changes in ways:
            name, title = f"matching-synthetic-{way}-{pairs}-{space}", _WAYS_SHOWN[way]
            if way == "exact-wide":
                title += f", {pairs.capitalize()}({changes[_WIDTHS[pairs]]:g})"
            if latents is not None:
                name, title = f"{name}-{latents}", f"{title}: {latents:,} latents"
            block = f"{pairs.capitalize()} pairs, {space}, {pairs.capitalize()}"
            preset = f"matching-synthetic-{pairs}-{space}"
            changed = {"title": title, **changes}
            rows.append(Row(name, preset, block, changed, series=way, latents=latents))
    return tuple(rows)


def _of_generators() -> tuple[Row, ...]:
    names = ("3dident", "3dident-wrapped", "3dident-regular")
    return tuple(
        Row(
            f"generators-{name}",
            "table4-supervised",
            "supervised",
            {"title": f"Supervised on the generator {name}"},
            data=f"generator-{name}",
            test=f"generator-{name}-test",
        )
        for name in names
    )


_BESIDE_LAMBDA = ("linear_r2", "mcc", "linear_r2_content", "linear_r2_style")
_BOTH_STATISTICS = ("linear_r2", "mcc", "linear_r2_batch_statistics", "mcc_batch_statistics")
_ANINFONCE_AS = (
    "AnInfoNCE is the paper's. For the second half of the symmetric loss the published code uses "
    "the similarities of view 1 to view 2 without transposing them: at the true latents its "
    "gradients differ by 3.5 % in batches of 1,000, by 14 % in batches of 64."
)
_OF_IMAGES = (
    "R2 and MCC with batch normalisation in evaluation mode; beside them with each batch's own "
    "statistics, as published."
)

STUDIES: Mapping[str, Study] = {
    study.name: study
    for study in (
        Study(
            "table1",
            "Identifiability up to affine maps (Zimmermann et al. 2021, Table 1)",
            "synthetic",
            _of_table_1(),
            (
                "table1-sphere-uniform-vmf1-vmf",
                "table1-sphere-uniform-laplace-vmf",
                "table1-box-uniform-normal-normal",
                "table1-box-uniform-laplace-gennorm",
                "table1-sphere-normal-laplace-vmf",
                "table1-unbounded-laplace-normal-normal",
                "table1-unbounded-normal-normal-normal",
            ),
            plotted=("linear_r2",),
            seeds=5,
        ),
        Study(
            "table2",
            "Identifiability up to generalised permutations (Zimmermann et al. 2021, Table 2)",
            "synthetic",
            _of_table_2(),
            (
                "table2-laplace-box-laplace",
                "table2-normal-unbounded-gennorm",
                "table2-laplace-unbounded-normal",
                "table2-normal-unbounded-normal",
                "table2-laplace-unbounded-laplace",
                "table2-gennorm-box-laplace",
                "table2-normal-box-normal",
                "table2-gennorm-box-gennorm",
                "table2-gennorm-unbounded-gennorm",
            ),
            seeds=5,
        ),
        Study(
            "table4",
            "3DIdent (Zimmermann et al. 2021, Table 4)",
            "images",
            _of_table_4(),
            ("table4-box", "table4-unbounded", "table4-supervised", "table4-sphere"),
            metrics=_BOTH_STATISTICS,
            seeds=3,
            note=_OF_IMAGES,
        ),
        Study(
            "fig2",
            "Marginals that are not uniform (Zimmermann et al. 2021, Figure 2)",
            "marginals",
            _of_figure_2(),
            seeds=5,
            note="The figure gives no numbers; its conditionals are not stated, see the presets.",
        ),
        Study(
            "aninfonce",
            "AnInfoNCE and InfoNCE on anisotropic pairs (Rusak et al. 2024, section 4.1)",
            "anisotropic",
            tuple(
                Row(name, name, block)
                for block, names in (
                    (
                        "Lambda 5 and 25",
                        ("aninfonce", "aninfonce-infonce", "aninfonce-learned-tau"),
                    ),
                    ("Lambda 5 to 25", ("aninfonce-linear",)),
                )
                for name in names
            ),
            metrics=_BESIDE_LAMBDA,
            note=_ANINFONCE_AS,
        ),
        Study(
            "hard-negatives",
            "Hard negatives (Rusak et al. 2024, H.3)",
            "twenty",
            tuple(
                Row(name, name, "Lambda+ 150, Lambda- 100", start=start)
                for name, start in (
                    ("hard-negatives-base", ""),
                    ("hard-negatives-continued", "hard-negatives-base"),
                    ("hard-negatives", "hard-negatives-base"),
                )
            ),
            ("hard-negatives-base", "hard-negatives"),
            note="The last two train on from the encoders of the first; theory expects the "
            "Lambda of the last at 150 - 100 = 50.",
        ),
        Study(
            "ensemble",
            "An ensemble of losses (Rusak et al. 2024, H.3)",
            "twenty",
            tuple(
                Row(name, name, "Lambda 400, 15 and 250")
                for name in ("ensemble-infonce", "ensemble-aninfonce", "ensemble")
            ),
            ("ensemble",),
            note=_ANINFONCE_AS,
        ),
        Study(
            "tricl",
            "TriCL and AnInfoNCE (Rusak et al. 2024, H.4)",
            "twenty",
            tuple(
                Row(name, name, block)
                for block, names in (
                    ("Lambda 100", ("tricl-isotropic", "tricl-isotropic-aninfonce")),
                    ("Lambda 15 and 250", ("tricl-anisotropic", "tricl-anisotropic-aninfonce")),
                )
                for name in names
            ),
            ("tricl-anisotropic", "tricl-anisotropic-aninfonce"),
        ),
        Study(
            "matching",
            "What the matching of pairs to rendered latents does",
            "images",
            _of_matching(),
            metrics=_BOTH_STATISTICS,
            note=f"{_OF_IMAGES} Exact pairs are as wide as asked for, Normal(0.1) or "
            "Laplace(0.1); wide ones, Normal(0.28) or Laplace(0.21), have the spread that "
            "matching to the nearest of 250,000 latents gives.",
        ),
        Study(
            "matching-synthetic",
            "What the matching of pairs to a finite number of latents does, without images",
            "synthetic",
            _of_synthetic_matching(),
            pairs=True,
            seeds=3,
            note="Latents are those of 3DIdent, ten in [-1, 1], and vectors stand for images. "
            "`std` and `kurtosis` are of z~ - z as trained on; a Normal's kurtosis is 3, that of a "
            "Laplace distribution 6. Resampled latents have 16 partners each, drawn once.",
        ),
        Study(
            "generators",
            "Generators: what can be recovered, and what is",
            "images",
            _of_generators(),
            metrics=_BOTH_STATISTICS,
            seeds=3,
            per_factor=True,
            note=_OF_IMAGES,
        ),
    )
}


def presets_by_study() -> dict[str, list[Experiment]]:
    """All built-in experiments, in the order of the tables that they are rows of, by its title."""
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
    """A study by name.

    Raises:
        UsageError: there is none.
    """
    if name not in STUDIES:
        raise UsageError(f"unknown study {name!r:.100}: expected one of {', '.join(STUDIES)}")
    return STUDIES[name]


def changes_of(scale: Scale, study: Study, row: Row) -> dict[str, Any]:
    """The fields that a scale changes of a row, by dotted name."""
    output = row.published_experiment().encoder.output
    labels = (row.name, study.kind, f"{study.kind}-{output}")
    changed: dict[str, Any] = {}
    for pattern, fields in scale.changes.items():
        if any(fnmatch.fnmatchcase(label, pattern) for label in labels):
            changed |= fields
    return changed


def find_scale(name: str) -> Scale:
    """A scale by name.

    Raises:
        UsageError: there is none.
    """
    if name not in SCALES:
        raise UsageError(f"unknown scale {name!r:.100}: expected one of {', '.join(SCALES)}")
    return SCALES[name]
