"""The untrained baseline: an encoder with the random weights that a training would begin with."""

from __future__ import annotations

from pathlib import Path

from threedident.baselines.experiment import Experiment
from threedident.baselines.training.run_folder import FORMAT, FORMAT_VERSION, RESULT, read_result
from threedident.storage.atomic_files import explaining_write_errors, write_json


def begin_untrained(experiment: Experiment, folder: Path, data: Path, test: Path | None) -> None:
    """Write the encoder that a training would begin with, and a `result.json` of no step.

    Args:
        experiment: the experiment whose encoder and seed it is; its loss does not count.
        folder: the run folder.
        data: the images that its inputs are normalised by.
        test: the images that it is to be scored on.

    Raises:
        UsageError: the images do not fit.
        DatasetError: they cannot be read, or the files not be written.
    """
    plain = experiment.as_dict()
    if (folder / RESULT).exists() and read_result(folder)["experiment"] == plain:
        return
    import torch

    from threedident.baselines.data import make_problem
    from threedident.baselines.training.networks import make_networks
    from threedident.baselines.training.run_folder import ENCODER
    from threedident.encoders import save_encoder

    problem = make_problem(
        experiment, data=data, test=test, batch_size=2, device=torch.device("cpu")
    )
    encoder, _ = make_networks(experiment, problem)
    with explaining_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    about = {"experiment": experiment.name, "steps": 0, "seed": experiment.training.seed}
    save_encoder(folder / ENCODER, encoder, about)
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "experiment": plain,
        "scores": {},
        "per_factor": {},
        "learned": {},
        "steps": 0,
        "seconds": 0.0,
        "hardware": "",
        "data": problem.about,
    }
    write_json(folder / RESULT, content)
