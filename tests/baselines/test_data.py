from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.fake_dataset import as_rendered
from helpers.small_runs import MATCHED, of_images, small

from threedident.baselines.data import make_problem
from threedident.causal import Sampling, load_model
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
