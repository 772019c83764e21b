"""Training on pairs of a grid, of sequences, and of a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.other_data import SPRITES, grid_source, numbers_of, open_by_name, sequence_source
from helpers.small_runs import of_images, rows, run, same, weights

from threedident.baselines.data import make_problem
from threedident.baselines.experiment import Experiment
from threedident.distributions import DiscreteLaplace, PairProcess, UniformFactors
from threedident.errors import UsageError

NAMES = {"grid": "drawn:grid", "sequence": "drawn:walks", "table": "drawn:table"}


@pytest.fixture(autouse=True)
def sources(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    walks, named = sequence_source([6] * 20), sequence_source([50])
    named.sequences = None
    named.pairs = np.stack([np.arange(40), np.arange(40) + 10], 1)
    known = {"drawn:grid": grid_source(), "drawn:walks": walks, "drawn:table": named}
    open_by_name(monkeypatch, known)
    return known


def experiment(pairs: str, **changes: Any) -> Experiment:
    conditional = DiscreteLaplace().as_dict() if pairs == "grid" else None
    fields = {
        "data__pairs": pairs,
        "data__conditional": conditional,
        "data__space": None,
        "data__factors": [],
        "encoder__width": 4,
    }
    return of_images("table4-unbounded", **{**fields, **changes})


@pytest.mark.parametrize("pairs", NAMES)
def test_batches_are_those_of_the_data(pairs: str, sources: dict[str, Any]) -> None:
    changes = {"data__max_gap": 3} if pairs == "sequence" else {}
    problem = make_problem(
        experiment(pairs, **changes),
        data=Path(NAMES[pairs]),
        test=None,
        batch_size=16,
        device=torch.device("cpu"),
    )
    (z, z_tilde), (x, x_tilde) = problem.source.batch(0, 0)
    i, j = np.array(numbers_of(x)), np.array(numbers_of(x_tilde))
    factors = sources[NAMES[pairs]].factors
    np.testing.assert_array_equal(z, factors[i])
    np.testing.assert_array_equal(z_tilde, factors[j])
    assert problem.about["images_in_a_batch"] == 32
    if pairs == "grid":
        process = PairProcess(SPRITES, DiscreteLaplace())
        assert problem.processes == (process,)
        (recorded,) = problem.about["processes"]
        assert recorded["conditional"] == DiscreteLaplace().as_dict()
        assert recorded["space"]["sizes"] == list(SPRITES.sizes)
        points = SPRITES.points(np.stack([i, j]))
        assert (points[0] != points[1]).any(1).all()
        assert (points[0, :, 0] == points[1, :, 0]).all()
    else:
        assert problem.processes == ()
        assert problem.about["processes"] == []
        gaps = set((j - i).tolist())
        assert gaps == {10} if pairs == "table" else gaps == {1, 2, 3}


@pytest.mark.parametrize("pairs", NAMES)
def test_an_encoder_is_trained_and_goes_on_where_it_was(tmp_path: Path, pairs: str) -> None:
    data = Path(NAMES[pairs])
    whole = run(experiment(pairs, training__steps=4), tmp_path / "whole", data=data)
    run(experiment(pairs, training__steps=2), tmp_path / "parts", data=data)
    run(experiment(pairs, training__steps=4), tmp_path / "parts", data=data)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    assert [row["loss"] for row in rows(tmp_path / "whole")] == [
        row["loss"] for row in rows(tmp_path / "parts")
    ]
    assert whole["at_latents"] is None  # factors here are not in the space of the codes
    result = json.loads((tmp_path / "whole" / "result.json").read_text())
    assert result["data"]["images_in_a_batch"] == 32
    assert result["experiment"]["data"]["pairs"] == pairs


def test_a_run_says_how_papers_count_a_batch(tmp_path: Path) -> None:
    from threedident.baselines.checks import make_plan

    plan = make_plan(experiment("grid"), tmp_path / "run", data=Path("drawn:grid"))
    assert "a batch of 16 pairs is 32 images, which is how papers on these data count" in plan.lines


def changed(pairs: str, **changes: Any) -> Any:
    return lambda: experiment(pairs, **changes)


def trained_on(pairs: str, name: str, **changes: Any) -> Any:
    def call() -> Any:
        return make_problem(
            experiment(pairs, **changes),
            data=Path(name),
            test=None,
            batch_size=16,
            device=torch.device("cpu"),
        )

    return call


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (changed("sequence", data__max_gap=0), "data.max_gap is the largest number"),
        (changed("grid", data__max_gap=2), "goes with data.pairs = 'sequence'"),
        (changed("sequence", data__conditional={"name": "uniform"}), "has no place elsewhere"),
        (changed("grid", data__conditional=None), "needed for matched pairs and those of a grid"),
        (
            changed("grid", data__conditional={"name": "normal", "sigma": 0.1}),
            "needs a transition between discrete factors: set .*discrete-laplace",
        ),
        (
            changed("table", data__space={"name": "box", "n": 3, "low": 0.0, "high": 1.0}),
            "leave out data.space",
        ),
        (trained_on("sequence", "drawn:grid"), r'GridPairs \(data.pairs = "grid"\)'),
        (trained_on("grid", "drawn:walks"), r'SequencePairs \(data.pairs = "sequence"\)'),
        (trained_on("sequence", "drawn:table"), r'TablePairs \(data.pairs = "table"\)'),
        (
            trained_on("grid", "drawn:grid", data__conditional=UniformFactors(6).as_dict()),
            "k is more than the 5 factors",
        ),
        (
            trained_on("table", "drawn:table", training__batch_size=64),
            "a batch of 64 does not fit drawn:table, which holds 40 pairs",
        ),
        (
            trained_on("sequence", "drawn:walks", training__batch_size=101),
            "a batch of 101 does not fit drawn:walks, which holds 100 pairs",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_pairs_of_3dident_are_refused_on_other_data_and_the_other_way_round(images: Path) -> None:
    matched = of_images("table4-unbounded")
    with pytest.raises(UsageError, match=r'datasets of 3DIdent.*GridPairs \(data.pairs = "grid"\)'):
        make_problem(
            matched,
            data=Path("drawn:grid"),
            test=None,
            batch_size=16,
            device=torch.device("cpu"),
        )
    with pytest.raises(UsageError, match=r'PositivePairs \(data.pairs = "matched"\)'):
        make_problem(
            experiment("grid"), data=images, test=None, batch_size=16, device=torch.device("cpu")
        )
