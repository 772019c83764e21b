"""Scales: shares of a study's protocol to run, and the changes of experiments that they make."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Mapping
from typing import Any

from threedident.baselines.reproduce.studies import Row, Study
from threedident.errors import UsageError

#: The scale at which nothing is learned.
SMOKE = "smoke"


@dataclasses.dataclass(frozen=True)
class Rendering:
    """The images that a scale renders where none are given.

    Attributes:
        images: the number of single images to train on.
        pairs: the number of pairs to train on.
        test: the number of images to score on.
        generators: the number of images of each generator, where generators are compared.
        resolution: the pixels along each side.
        quality: the quality of the direct engine.
    """

    images: int
    pairs: int
    test: int
    generators: int
    resolution: int
    quality: str


@dataclasses.dataclass(frozen=True)
class Scoring:
    """The samples on which encoders of the papers' other datasets are scored.

    Attributes:
        images: the number of images; all where there are fewer.
        boosted: the number of them for DCI and SAP, whose classifiers are fitted on two thirds.
    """

    images: int
    boosted: int


@dataclasses.dataclass(frozen=True)
class Scale:
    """The share of a protocol that is run.

    Attributes:
        changes: the changes of the experiments, by dotted name, under globs: each counts for the
            rows whose name, kind of study, or kind and space of the codes (`images-box`) it fits;
            later ones count more.
        seeds: the number of seeds of each row; None: as many as the paper.
        rendering: the images that are rendered.
        views: the same for studies of views and read-outs.
        scoring: the samples of studies of other datasets.
        draws: whether drawn images stand in for other datasets that are not given.
    """

    changes: Mapping[str, Mapping[str, Any]]
    seeds: int | None
    rendering: Rendering
    views: Rendering
    scoring: Scoring
    draws: bool = True

    def rendering_of(self, study: Study) -> Rendering:
        """Return the images that are rendered for a study.

        Args:
            study: the study.
        """
        return self.views if study.kind in ("views", "readout") else self.rendering


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
_FINE_TUNING = {"training.matrix_lr": 3e-4, "training.lr": 1e-4}
#: The first steps of rows whose loss hardly asks for the angles where an anchor is among its own
#: negatives: see benchmarks/self_term.py.
_WITHOUT_THE_ANCHOR = {"loss.start_own": False, "loss.start_steps": 2400}
#: The last angle appears after some 2,000 of these steps, and all three still gain at 7,000.
_UNTIL_THE_ANGLES = {**_WITHOUT_THE_ANCHOR, "loss.start_steps": 5400, "training.steps": 9000}

#: All that a scale changes stands here; the tables name it.
SCALES: Mapping[str, Scale] = {
    "paper": Scale(
        {},
        None,
        Rendering(250_000, 125_000, 4096, 250_000, 224, "standard"),
        Rendering(250_000, 125_000, 4096, 0, 224, "standard"),
        Scoring(100_000, 15_000),
        draws=False,
    ),
    "cpu": Scale(
        {
            "synthetic": {**_MUON, "training.steps": 2000, "training.batch_size": 2048},
            "table1-*": {"training.steps": 1500, "training.batch_size": 6144},
            "table1-sphere-*": {"training.steps": 3000},
            # Pairs of this row tell so little that the noise of a batch decides.
            "table1-sphere-uniform-vmf1-vmf": {
                "training.steps": 6000,
                "training.batch_size": 16_384,
            },
            "table*-supervised*": {"training.steps": 2000, "training.batch_size": 2048},
            # About what the true latents would want: learned bounds have no time to get there.
            "table2-*-box-*": {"encoder.size": 5.0},
            # The loss with p = 1 has poor minima near a random start, and none near p = 2's.
            "table2-*-laplace": {"loss.start_p": 2.0, "loss.start_steps": 800},
            "matching-synthetic-*-box*": {"encoder.size": 5.0},
            # With exact pairs, 1,000 steps end no lower than Table 2's 2,000.
            "matching-synthetic-*": {"training.steps": 1000},
            "matching-synthetic-*laplace*": {"loss.start_p": 2.0, "loss.start_steps": 400},
            "marginals": {**_MUON, "training.steps": 1000, "training.batch_size": 2048},
            "fig2-box-*": {"encoder.size": 5.0},
            # The figure does not state its conditional, and pairs of vMF(1) tell too little.
            "fig2-sphere-*": {"data.conditional.kappa": 10.0, "training.steps": 2000},
            # The raw Lambda moves by its learning rate a step, half of that with the cosine.
            "anisotropic": {**_MUON, "training.steps": 4000, "training.loss_lr": 0.03},
            "twenty": {
                **_MUON,
                "training.steps": 2000,
                "training.batch_size": 2048,
                "training.loss_lr": 0.2,
            },
            # These two go on from a trained encoder, which the rates of fresh weights undo.
            "hard-negatives": _FINE_TUNING,
            "hard-negatives-continued": _FINE_TUNING,
            "ensemble*": {"training.loss_lr": 0.5},
            "decoded": {
                **_MUON,
                "training.steps": 600,
                "training.batch_size": 512,
                "training.loss_lr": 0.6,
            },
            "images": {
                "encoder.width": 16,
                "training.steps": 4000,
                "training.batch_size": 512,
                "training.optimizer": "muon",
                "training.matrix_lr": 3e-3,
                "training.lr": 1e-3,
                "training.schedule": "cosine",
                "training.precision": "bf16-mixed",
                "training.score_every": 200,
                "training.checkpoint_every": 200,
            },
            "images-box": {"encoder.size": 4.0},
            "table4-*box": _UNTIL_THE_ANGLES,
            "table4-unbounded": _UNTIL_THE_ANGLES,
            # A step of two augmented views takes more than twice as long as one of pairs.
            "table4-augmentations": {"training.steps": 1500},
            "matching-[!s]*": _WITHOUT_THE_ANCHOR,
            "views": {
                "encoder.width": 16,
                "training.steps": 400,
                "training.batch_size": 128,
                "training.optimizer": "muon",
                "training.matrix_lr": 3e-3,
                "training.lr": 1e-3,
                "training.schedule": "cosine",
                "training.score_every": 100,
                "training.checkpoint_every": 100,
            },
            "papers": {
                "training.steps": 2000,
                "training.lr": 1e-3,
                "training.schedule": "cosine",
                "training.score_every": 500,
                "training.checkpoint_every": 500,
            },
            "readout": {
                "encoder.width": 16,
                "encoder.codes": 32,
                "training.steps": 600,
                "training.batch_size": 128,
                "training.optimizer": "muon",
                "training.matrix_lr": 3e-3,
                "training.lr": 1e-3,
                "training.loss_lr": 0.05,
                "training.schedule": "cosine",
                "training.score_every": 100,
                "training.checkpoint_every": 100,
            },
            # At tau = 1 the loss is within 0.01 of its minimum after 200 steps.
            "content-style-*-cold": {"training.steps": 600},
            "content-style-*supervised": {"training.steps": 600},
        },
        1,
        Rendering(250_000, 60_000, 4096, 60_000, 64, "draft"),
        Rendering(12_000, 6000, 4096, 0, 32, "draft"),
        Scoring(10_000, 2000),
    ),
    SMOKE: Scale(
        {
            **dict.fromkeys(("synthetic", "marginals", "anisotropic", "twenty"), _SMOKE_SYNTHETIC),
            "decoded": {**_SMOKE, "data.decoder_epochs": 1},
            "matching-synthetic-nearest-*": {"data.latents": 300},
            "matching-synthetic-resampled-*": {"data.latents": 300},
            "images": {**_SMOKE, "training.batch_size": 32},
            "views": {**_SMOKE, "training.batch_size": 32, "encoder.width": 8},
            "papers": {**_SMOKE, "training.batch_size": 8},
            "readout": {**_SMOKE, "training.batch_size": 32, "encoder.width": 8},
        },
        1,
        Rendering(300, 100, 128, 300, 32, "draft"),
        Rendering(100, 50, 128, 0, 32, "draft"),
        Scoring(400, 330),
    ),
}


def changes_of(scale: Scale, study: Study, row: Row) -> dict[str, Any]:
    """List the fields that a scale changes of a row, by dotted name.

    Args:
        scale: the scale.
        study: the row's study.
        row: the row.
    """
    output = row.published_experiment().encoder.output
    labels = (row.name, study.kind, f"{study.kind}-{output}")
    changed: dict[str, Any] = {}
    for pattern, fields in scale.changes.items():
        if any(fnmatch.fnmatchcase(label, pattern) for label in labels):
            changed |= fields
    return changed


def find_scale(name: str) -> Scale:
    """Return the scale of a name.

    Raises:
        UsageError: there is none.
    """
    if name not in SCALES:
        raise UsageError(f"unknown scale {name!r:.100}: expected one of {', '.join(SCALES)}")
    return SCALES[name]
