"""Training on images that belong together: views, counterfactuals, frames of a sequence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import fake_dataset as made
from helpers.causal import TEN, UNIFORM, model
from helpers.small_runs import of_images, rows, run, same, small, weights

from threedident.baselines.data import make_problem
from threedident.baselines.experiment import Experiment
from threedident.causal import Sampling
from threedident.distributions import Normal
from threedident.encoders import load_encoder
from threedident.errors import UsageError

VIEWS = {"positions": dict.fromkeys(("x", "y", "z"), UNIFORM)}
STEP = {"kind": "step", "goal": "0.5 * x", "std": 0.1}
MOVING = {**TEN, "y": {"mechanism": UNIFORM, "transition": STEP}}


def samplings() -> dict[str, Sampling]:
    return {
        "views": Sampling(model(TEN, views=VIEWS), view="positions"),
        "counterfactual": Sampling(model(TEN), counterfactual={"x": 0.5}),
        "sequence": Sampling(model(MOVING), steps=5),
    }


def groups(**changes: Any) -> Experiment:
    return of_images("content-style-positions", encoder__width=4, **changes)


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("grouped")
    folders = {
        name: made.as_rendered(root / name, 60, side=32, sampling=sampling)
        for name, sampling in samplings().items()
    }
    folders["pairs"] = made.as_rendered(root / "pairs", 60, side=32, conditional=Normal(0.3))
    folders["single"] = made.as_rendered(
        root / "single", 60, side=32, sampling=Sampling(model(TEN))
    )
    return folders


@pytest.mark.parametrize("kind", ["views", "counterfactual", "sequence"])
def test_a_batch_holds_neighbours_of_a_group(grouped: dict[str, Path], kind: str) -> None:
    problem = make_problem(
        groups(), data=grouped[kind], test=None, batch_size=16, device=torch.device("cpu")
    )
    (z, z_tilde), (x, x_tilde) = problem.source.batch(0, 0)
    assert problem.images is not None
    frames = 5 if kind == "sequence" else 2
    variables, images = problem.images.variables, problem.images
    for k in range(16):
        (number,) = np.flatnonzero((variables == z[k]).all(1).numpy())
        assert number % frames < frames - 1
        assert torch.equal(z_tilde[k], variables[number + 1])
        assert torch.equal(x[k], images[int(number)][0])
        assert torch.equal(x_tilde[k], images[int(number) + 1][0])
    assert problem.about["model"]["images"] == kind
    if kind == "views":
        names = problem.images.variable_names
        kept = [name not in VIEWS["positions"] for name in names]
        assert torch.equal(z[:, kept], z_tilde[:, kept])
        assert (z[:, ~np.array(kept)] != z_tilde[:, ~np.array(kept)]).all()


@pytest.mark.parametrize("kind", ["views", "counterfactual", "sequence"])
def test_an_encoder_is_trained_on_groups_and_goes_on_where_it_was(
    tmp_path: Path, grouped: dict[str, Path], kind: str
) -> None:
    data = {"data": grouped[kind], "test": grouped["single"]}
    experiment = groups(encoder__codes=3)
    result = run(experiment, tmp_path / "whole", **data)
    assert result["at_latents"] is None  # the latents of a pair cannot be its codes
    assert result["loss"] is None
    codes = load_encoder(tmp_path / "whole" / "encoder.pt")(
        torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    )
    assert codes.shape == (2, 3)
    torch.testing.assert_close(codes.norm(dim=1), torch.ones(2))
    assert json.loads((tmp_path / "whole" / "result.json").read_text()) == result
    run(experiment, tmp_path / "again", **data)
    assert rows(tmp_path / "again") == rows(tmp_path / "whole")
    assert same(weights(tmp_path / "again"), weights(tmp_path / "whole"))


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("single", {}, "with --views, --counterfactual or --steps.*holds single images"),
        ("pairs", {}, "holds images in pairs of a conditional; .*data.pairs=rendered"),
        ("views", {"training__batch_size": 31}, "batch of 31 .* holds 30 pairs"),
        ("sequence", {"training__batch_size": 49}, "batch of 49 .* holds 48 pairs"),
        ("views", {"data__pairs": "rendered"}, r"belong together \(views\).*data.pairs=groups"),
        (
            "counterfactual",
            {"data__pairs": "matched", "data__conditional": {"name": "normal", "sigma": 0.3}},
            r"belong together \(counterfactual\).*data.pairs=groups --set data.conditional=null",
        ),
    ],
)
def test_data_that_do_not_fit_are_refused_before_training(
    tmp_path: Path, grouped: dict[str, Path], kind: str, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        run(groups(**changes), tmp_path / "run", data=grouped[kind], test=grouped["single"])
    assert not (tmp_path / "run" / "metrics.csv").exists()


def test_triplets_are_no_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: Path
) -> None:
    monkeypatch.setattr("threedident.baselines.checks.grouping", lambda _: ("triplets", 3))
    with pytest.raises(UsageError, match="holds triplets, whose third image mixes"):
        run(groups(), tmp_path / "run", data=images)


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("content-style-positions", {"encoder__codes": -1}, "from 1 to 4096, or 0"),
        ("content-style-positions", {"data__pairs": "group"}, "matched, rendered, groups, views"),
        (
            "content-style-positions",
            {"data__conditional": {"name": "normal", "sigma": 0.3}},
            "has no place elsewhere",
        ),
        ("content-style-supervised", {"encoder__codes": 3}, "beside loss.kind = 'mse'"),
        ("content-style-supervised", {"data__pairs": "groups"}, "'none' goes with"),
    ],
)
def test_fields_that_contradict_each_other(name: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        of_images(name, **changes)
    with pytest.raises(UsageError, match=r"encoder\.codes is for images"):
        small(encoder__codes=3)


def test_the_number_of_codes_is_free_where_pairs_have_a_conditional(
    tmp_path: Path, images: Path
) -> None:
    for loss in ("infonce", "aninfonce", "tricl"):
        experiment = of_images(
            "table4-unbounded", encoder__codes=4, encoder__width=4, loss__kind=loss
        )
        result = run(experiment, tmp_path / loss, data=images)
        assert result["at_latents"] is None  # ten latents are no four codes
        assert load_encoder(tmp_path / loss / "encoder.pt")(
            torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
        ).shape == (
            1,
            4,
        )
