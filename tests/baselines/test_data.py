from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.fake_dataset import as_rendered
from helpers.family_folders import causal
from helpers.small_runs import MATCHED, of_images, small

from threedident.baselines.data import Problem, make_problem
from threedident.causal import Sampling, load_model
from threedident.datasets.dataset import ImageDataset, ThreeDIdent
from threedident.datasets.formats.family.causal3dident import write_causal3dident
from threedident.distributions.torch_sampler import seeded


def test_latents_that_were_drawn_once_come_in_pairs_as_those_of_images_do() -> None:
    experiment = small(**MATCHED, data__match="nearest")
    problem = make_problem(
        experiment, data=None, test=None, batch_size=2000, device=torch.device("cpu")
    )
    (z, z_tilde), (x, _) = problem.source.batch(0, 3)
    torch.testing.assert_close(problem.mixing(z), x)
    assert (z != z_tilde).any(1).all()  # never one latent twice
    everything = torch.cat([torch.cat(problem.source.batch(0, k)[0]) for k in range(40)])
    assert 20_000 < len(torch.unique(everything, dim=0)) <= 25_000
    drawn, _ = experiment.processes[0].sample(2000, generator=seeded(0, 0, 3))
    assert (drawn - z).norm(dim=1).mean() < 0.8  # independent ones are at 2.5
    assert problem.about["pairs"]["std"] == pytest.approx(
        float((z_tilde - z).square().mean().sqrt()), rel=0.03
    )


def test_what_a_causal_model_has_beside_ten_numbers_is_noted(tmp_path: Path) -> None:
    model = load_model(Path(__file__).parents[1] / "data" / "model.toml")
    shapes = load_model("multimodal3dident-primitives")
    roots = {
        "": as_rendered(tmp_path / "plain", 120),
        "phi as numbers that do not come round": as_rendered(
            tmp_path / "model", 120, sampling=Sampling(model)
        ),
        "shape not at all": as_rendered(tmp_path / "shapes", 120, sampling=Sampling(shapes)),
    }
    experiment = of_images("table4-supervised")
    for words, root in roots.items():
        problem = make_problem(
            experiment, data=root, test=None, batch_size=16, device=torch.device("cpu")
        )
        notes = [note for note in problem.notes if "`3dident evaluate` scores" in note]
        assert len(notes) == bool(words)
        assert all(f": {words}. " in note for note in notes)


def test_images_that_are_scored_are_drawn_where_their_order_is_not_random(tmp_path: Path) -> None:
    """A published folder has class after class: a fit on the first would be scored on others."""
    write_causal3dident(causal(200), tmp_path / "d")
    problem = make_problem(
        of_images("table4-supervised"),
        data=tmp_path / "d",
        test=None,
        batch_size=16,
        device=torch.device("cpu"),
    )
    z, _ = problem.fresh(100)
    data = ThreeDIdent(tmp_path / "d")
    places = [int((data.factors == row).all(1).nonzero()[0]) for row in z]
    shapes = torch.from_numpy(data.source.variables[places, 0])
    assert len(shapes[:50].unique()) == len(shapes[50:].unique()) == 7
    assert torch.equal(problem.fresh(100)[0], z)


def test_frames_of_a_sequence_are_scored_in_one_half() -> None:
    images = ImageDataset("drawn:blobs")
    numbers = Problem._first_of(images, 2000)
    of = np.searchsorted(images.source.sequences, numbers, side="right")
    assert len(set(numbers)) == 2000
    assert len(set(of[:1000]) & set(of[1000:])) <= 1
