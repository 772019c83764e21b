"""The identity baseline: the scores of the observations as they are."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from threedident.baselines.experiment import Experiment
from threedident.baselines.training.run_folder import FORMAT, FORMAT_VERSION, RESULT, read_result
from threedident.storage.atomic_files import explaining_write_errors, write_json


def score_observations(experiment: Experiment, folder: Path, test: Path | None) -> None:
    """Score the observations as they are, the identity baseline, into a `result.json`.

    Synthetic: g(z) on as many fresh batches as a training is scored on. Images: all pixels, by a
    regression of minimum norm, fitted on the first half of the test images.

    Args:
        experiment: the experiment whose observations they are; its loss and encoder do not count.
        folder: the run folder.
        test: the images; None for synthetic observations.

    Raises:
        UsageError: the images do not fit.
        DatasetError: they cannot be read, or the result not be written.
    """
    plain = experiment.as_dict()
    if (folder / RESULT).exists() and read_result(folder)["experiment"] == plain:
        return
    began = time.monotonic()
    scores, about = _score_vectors(experiment) if test is None else _score_pixels(experiment, test)
    with explaining_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "experiment": plain,
        "scores": scores,
        "per_factor": {},
        "learned": {},
        "steps": 0,
        "seconds": time.monotonic() - began,
        "hardware": "",
        "data": about,
    }
    write_json(folder / RESULT, content)


def _score_vectors(experiment: Experiment) -> tuple[dict[str, float], dict[str, Any]]:
    import torch

    from threedident.baselines.data import make_problem
    from threedident.evaluate.metrics import linear_r2, mcc

    settings = experiment.training
    problem = make_problem(
        experiment, data=None, test=None, batch_size=1, device=torch.device("cpu")
    )
    scores = []
    for number in range(1, settings.final_batches + 1):
        z, x = (each.numpy() for each in problem.fresh(max(settings.batch_size, 256), number))
        scores.append((linear_r2(z, x, folds="in-sample").value, mcc(z, x).value))
    r2, correlation = np.mean(scores, 0).tolist()
    return {"linear_r2": r2, "mcc": correlation}, problem.about


def _score_pixels(experiment: Experiment, test: Path) -> tuple[dict[str, float], dict[str, Any]]:
    from threedident.datasets.dataset import ThreeDIdent
    from threedident.evaluate.metrics import linear_r2
    from threedident.evaluate.reference_encoders import MOST_WHOLE, run_reference
    from threedident.evaluate.submissions.submission import identify

    class First(ThreeDIdent):
        """The first images of a test set, as many as a training is scored on."""

        def __len__(self) -> int:
            return min(super().__len__(), experiment.training.score_samples, MOST_WHOLE)

    images = First(test)
    codes = run_reference(identify("reference:identity=full"), images).codes
    r2 = linear_r2(images.raw_latents[: len(images)].numpy(), codes, folds="single")
    about = {"observations": "images", "resolution": int(images.source.shape[0])}
    return {"linear_r2": r2.value}, about
