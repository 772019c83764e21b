"""Scores of a run on one of the papers' other datasets: those that the papers print."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from threedident.baselines.reproduce.scales import Scoring
from threedident.baselines.training.run_folder import ENCODER, encoder_digest
from threedident.datasets.formats import open_dataset
from threedident.errors import DatasetError
from threedident.storage.atomic_files import read_json, write_json

if TYPE_CHECKING:
    from threedident.evaluate.metrics import MetricResult
    from threedident.evaluate.metrics._arrays import Float64

#: The file of a run that holds them.
RUN_SCORES = "run_scores.json"
FORMAT = "3dident-run-scores"
#: Metrics that look at each value of a factor, which continuous factors do not repeat.
_OF_GRIDS = (
    *("beta_vae", "factor_vae", "mig_discrete", "dci_discrete"),
    *("modularity_discrete", "sap_discrete"),
)
#: The published number of samples of the MCC.
_MOST_OF_MCC = 10_000


def score_run(folder: Path, data: Path, metrics: Sequence[str], scoring: Scoring) -> None:
    """Score the encoder of a run into its `run_scores.json`, unless that has been done.

    Of the images some are drawn, always the same.

    Args:
        folder: the run folder.
        data: the dataset.
        metrics: names of metrics; those that look at each value are left out of what is no grid.
        scoring: the numbers of samples.

    Raises:
        UsageError: a metric cannot be computed of these factors.
        DatasetError: the encoder or the images cannot be read, or the file not be written.
    """
    with open_dataset(data) as source:
        metrics = [name for name in metrics if name not in _OF_GRIDS or source.grid is not None]
        done = {
            "format": FORMAT,
            "data": source.fingerprint,
            "encoder": encoder_digest(folder),
            "samples": min(scoring.images, len(source)),
            "boosted": scoring.boosted,
        }
        before = read_json(folder / RUN_SCORES) if (folder / RUN_SCORES).exists() else {}
        same = isinstance(before, dict) and all(before.get(key) == done[key] for key in done)
        if same and set(metrics) <= set(before.get("scores") or ()):
            return
        from threedident.datasets.dataset import images_of
        from threedident.evaluate.reference_encoders import run_reference
        from threedident.evaluate.sampled_source import SampledSource
        from threedident.evaluate.scoring import one_thread
        from threedident.evaluate.submissions.submission import identify

        images = images_of(SampledSource(source, scoring.images))
        codes = run_reference(identify(f"reference:encoder={folder / ENCODER}"), images).codes
        z, c = images.factors.numpy().astype(float), codes.astype(float)
        with one_thread():
            results = {name: _measure(name, scoring)(z, c) for name in metrics}
    scores = {name: result.value for name, result in results.items()}
    choices = {name: dict(result.choices) for name, result in results.items()}
    content = {**done, "factors": list(images.factor_names), "scores": scores, "choices": choices}
    write_json(folder / RUN_SCORES, content)


def _measure(name: str, scoring: Scoring) -> Callable[[Float64, Float64], MetricResult]:
    """Return a metric of factors and codes, by its name."""
    from threedident.evaluate import metrics

    functions: dict[str, Callable[[Float64, Float64], MetricResult]] = {
        "beta_vae": metrics.beta_vae_score,
        "factor_vae": metrics.factor_vae_score,
        "mig_discrete": metrics.mig_discrete,
        "modularity_discrete": metrics.modularity_discrete,
        "dci_discrete": lambda z, c: metrics.dci_discrete(z, c, most=scoring.boosted),
        "sap_discrete": lambda z, c: metrics.sap_discrete(z, c, most=scoring.boosted),
        "mcc_spearman_noise_padded": lambda z, c: metrics.mcc(
            z[:_MOST_OF_MCC], c[:_MOST_OF_MCC], correlation="spearman", noise_padded=True
        ),
    }
    return functions[name]


def read_run_scores(folder: Path) -> Mapping[str, float] | None:
    """Read the scores of a run; None where it is not scored yet.

    Args:
        folder: the run folder.

    Raises:
        DatasetError: the file is damaged.
    """
    path = folder / RUN_SCORES
    if not path.exists():
        return None
    plain: Any = read_json(path)
    scores = plain.get("scores") if isinstance(plain, dict) else None
    numbers = isinstance(scores, dict) and all(type(v) in (int, float) for v in scores.values())
    if scores is None or not numbers or plain.get("format") != FORMAT:
        raise DatasetError(f"{path} is damaged: it holds no scores. Remove it to score again")
    return {name: float(value) for name, value in scores.items()}
