from __future__ import annotations

import re
from typing import Any

import pytest
from helpers.small_runs import (
    MUON,
    STARTING,
    small,
)

from threedident.baselines.experiment import (
    load_experiment,
)
from threedident.errors import UsageError


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"loss__start_steps": 3}, "start_steps goes with"),
        ({"loss__start_tau": 2.0}, "start_steps goes with"),
        ({"loss__start_steps": 8, "loss__start_tau": 2.0}, "less than training.steps"),
        ({"loss__start_steps": 3, "loss__start_p": 2.0}, "aninfonce has no p"),
        ({**STARTING, "loss__learn_tau": True}, "fixed temperature"),
        ({"loss__start_own": True}, "start_steps goes with"),
        ({**STARTING, "loss__own": True, "loss__start_own": True}, "differs from loss.own"),
        ({"loss__own": False, "loss__negatives": "positives"}, "leave it out, which is true"),
        (
            {
                **{**STARTING, "loss__start_own": False, "loss__own": True},
                "loss__negatives": "positives",
            },
            "whose negatives are anchors",
        ),
        ({"training__matrix_lr": 0.1}, "training.optimizer=muon"),
        ({"training__optimizer": "sgd"}, "adam, muon"),
        ({**MUON, "training__precision": "16-mixed"}, "bf16-mixed"),
        ({**MUON, "training__precision": "64-true"}, "32-true"),
    ],
)
def test_a_start_or_an_optimizer_that_would_not_be_held_is_refused(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        small(**changes)


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("table4-supervised", {"encoder__output": "box"}, "does not hold the latents"),
        ("hard-negatives-base", {"loss__symmetric": True}, ""),
        ("hard-negatives", {"loss__symmetric": True}, "drawn around the anchor"),
        ("aninfonce", {"training__batch_size": 1}, "at least 2"),
        ("aninfonce", {"training__seed": 2**70}, "training.seed"),
        ("aninfonce", {"loss__p": 0.5}, "loss.p must be"),
        ("table4-box", {"data__conditional": {"name": "vmf", "kappa": 1.0}}, "sphere"),
        ("aninfonce", {"loss__alpha": 0.1}, "loss.alpha has no place in loss.kind = 'aninfonce'"),
        ("aninfonce", {"loss__p": 1.0}, "loss.p has no place"),
        ("aninfonce-infonce", {"loss__decorrelation": 2.0}, "loss.decorrelation has no place"),
        ("tricl-isotropic", {"loss__tau": 0.1}, "loss.tau has no place in loss.kind = 'tricl'"),
        ("tricl-isotropic", {"loss__own": False}, "loss.own has no place"),
        ("table1-sphere-uniform-supervised", {"loss__p": 1.0}, "loss.kind = 'mse'"),
        ("aninfonce", {"loss__contrast": "spectral"}, "loss.contrast has no place"),
        ("aninfonce", {"loss__beta": 4.0}, "out, which is 1.0, found 4.0"),
        ("dsprites-uni-lau-0.9", {"loss__symmetric": True}, "loss.symmetric has no place"),
        ("table1-sphere-uniform-supervised", {"encoder__radius": 3.0}, "encoder.radius = 3 does"),
        ("table2-supervised-box", {"encoder__size": 0.5, "encoder__learned": False}, "size = 0.5"),
        ("aninfonce", {"training__steps": "many"}, "expected a whole number, found 'many'"),
    ],
)
def test_experiments_that_contradict_themselves(
    name: str, changes: dict[str, Any], said: str
) -> None:
    changed = {k.replace("__", "."): v for k, v in changes.items()}
    if not said:
        load_experiment(name).changed(changed)
        return
    with pytest.raises(UsageError, match=re.escape(said)):
        load_experiment(name).changed(changed)


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("aninfonce", {"data.hard_count": 5}, "data.hard_count goes with data.hard_negatives"),
        ("table4-box", {"data.mixing_layers": 2}, "data.mixing_layers is for synthetic"),
        ("table4-box", {"data.mixing_seed": 2}, "leave it out, which is null, found 2"),
        ("aninfonce", {"data.factors": ["x", "y"]}, "data.factors chooses among those of images"),
        ("aninfonce", {"data.pairs": "views"}, "data.pairs is for images"),
        ("table4-augmentations", {"data.match": "resample"}, "data.pairs = 'matched'"),
        (
            "table4-box",
            {"data.pairs": "rendered", "data.marginal": {"name": "normal", "sigma": 0.5}},
            "data.marginal goes with data.pairs = 'matched'",
        ),
        (
            "table4-supervised",
            {"data.space": {"name": "box", "n": 10, "low": 0.0, "high": 1.0}},
            "data.space goes with",
        ),
        (
            "table1-sphere-uniform-supervised",
            {"data.conditional": {"name": "vmf", "kappa": 10.0}},
            "data.conditional is of pairs",
        ),
        ("table4-box", {"encoder.radius": 2.0}, "radius goes with encoder.output = 'sphere'"),
        ("table4-unbounded", {"encoder.size": 5.0}, "size goes with encoder.output = 'box'"),
        ("table4-unbounded", {"encoder.learned": True}, "codes in a box or on a sphere"),
    ],
)
def test_a_field_that_nothing_would_look_at_is_refused(
    name: str, changes: dict[str, Any], said: str
) -> None:
    experiment = load_experiment(name)
    with pytest.raises(UsageError, match=re.escape(said)):
        experiment.changed(changes)
