"""Outcomes: the results of the runs of each row, read and checked."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.baselines.experiment import parse_experiment
from threedident.baselines.reproduce.blocks import Blocks, mean_blocks, read_blocks
from threedident.baselines.reproduce.readouts import read_readout
from threedident.baselines.reproduce.run_scores import read_run_scores
from threedident.baselines.reproduce.studies import Published, Row, Study
from threedident.baselines.training.run_folder import RESULT, read_result
from threedident.baselines.training.training_log import METRICS, read_records
from threedident.errors import DatasetError, UsageError

Float64 = npt.NDArray[np.float64]

#: The metrics for people.
LABELS = {
    "linear_r2": "R2",
    "mcc": "MCC",
    "linear_r2_content": "R2 content",
    "linear_r2_style": "R2 style",
    "kernel_r2_content": "kernel R2 content",
    "kernel_r2_style": "kernel R2 style",
    "class_backbone": "class, backbone",
    "mean_backbone": "augmentations, backbone",
    "class_codes": "class, codes",
    "mean_codes": "augmentations, codes",
    "linear_r2_batch_statistics": "R2, batch statistics",
    "mcc_batch_statistics": "MCC, batch statistics",
    "beta_vae": "BetaVAE",
    "factor_vae": "FactorVAE",
    "mig_discrete": "MIG",
    "dci_discrete": "DCI",
    "modularity_discrete": "Modularity",
    "sap_discrete": "SAP",
    "mcc_spearman_noise_padded": "MCC, ranks",
}
#: Published with batch normalisation in training mode.
PUBLISHED_AS = {"linear_r2_batch_statistics": "linear_r2", "mcc_batch_statistics": "mcc"}
#: The tables of a result whose values are numbers, or lists of them.
_OF_NUMBERS = ("scores", "per_factor", "learned", "theory")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The results of a row, at every seed.

    Attributes:
        row: the row.
        results: the contents of `result.json`, by seed.
        curves: the rows of `metrics.csv`, by seed, of unfinished runs too.
        blocks_of_seeds: R2 by factor, by seed, in studies of views.
        scores_of_seeds: further scores, by seed, in studies of the papers' other datasets and of
            read-outs.
    """

    row: Row
    results: Mapping[int, Mapping[str, Any]]
    curves: Mapping[int, Sequence[Mapping[str, str]]]
    blocks_of_seeds: Mapping[int, Blocks] = dataclasses.field(default_factory=dict)
    scores_of_seeds: Mapping[int, Mapping[str, float]] = dataclasses.field(default_factory=dict)

    def values(self, metric: str) -> Float64:
        """Return a score of every seed that has it, (seeds,).

        Args:
            metric: the name of the score.
        """
        scores = [each["scores"] for each in self.results.values()]
        scores += [each.scores() for each in self.blocks_of_seeds.values()]
        scores += self.scores_of_seeds.values()
        values = (each.get(metric) for each in scores)
        return np.array([v for v in values if v is not None], np.float64)

    def blocks(self) -> Blocks | None:
        """Return R2 by factor, the mean over seeds; None where there is none."""
        return mean_blocks([*self.blocks_of_seeds.values()])

    def curve(self, metric: str) -> tuple[Float64, Float64]:
        """Return the steps (k,) at which any seed was scored, and the scores (seeds, k) or NaN.

        Args:
            metric: the name of the score.
        """
        seeds = []
        for rows in self.curves.values():
            known = ((int(r["step"]), float(r[metric])) for r in rows if r.get(metric))
            seeds.append({step: score for step, score in known if math.isfinite(score)})
        seeds = [each for each in seeds if each]
        steps = sorted(set().union(*seeds))
        scores = np.full((len(seeds), len(steps)), np.nan)
        for row, each in zip(scores, seeds, strict=True):
            row[:] = [each.get(step, np.nan) for step in steps]
        return np.array(steps, np.float64), scores

    def factor_curve(self) -> tuple[Float64, Float64]:
        """Return steps (k,) and R2 of every factor (k, 10) or NaN, means over seeds.

        Raises:
            DatasetError: a log is damaged.
        """
        steps: dict[int, list[Float64]] = {}
        for rows in self.curves.values():
            for row in rows:
                if text := row.get("linear_r2_per_factor"):
                    try:
                        values = as_array("linear_r2_per_factor", json.loads(text))
                    except (TypeError, ValueError) as error:
                        where = f"{METRICS} of {self.row.name}, step {row['step']}"
                        raise DatasetError(f"{where}, is damaged: {error}") from error
                    steps.setdefault(int(row["step"]), []).append(values)
        chosen = sorted(steps)
        means = [np.mean(steps[step], 0) for step in chosen]
        return np.array(chosen, np.float64), np.array(means, np.float64)

    def changes(self) -> list[tuple[str, Any, Any]]:
        """List the fields in which runs differ from the preset: name, the preset's, the run's."""
        changes: dict[str, tuple[str, Any, Any]] = {}
        full = self.row.published_experiment().as_dict()
        for result in self.results.values():
            ran = result["experiment"]
            rendered = ran["data"]["pairs"] == "rendered"  # the images bring the conditional
            for section, fields in full.items():
                if not isinstance(fields, dict):
                    continue
                for field in {**fields, **ran[section]}:
                    before, after = fields.get(field), ran[section].get(field)
                    name = f"{section}.{field}"
                    stated = rendered and name == "data.conditional" and after is None
                    if before != after and name != "training.seed" and not stated:
                        changes[f"{name} {after}"] = (name, before, after)
        return list(changes.values())


def collect(study: Study, runs: Path) -> list[Outcome]:
    """Collect the results of every row of a study, in the order of the table.

    Args:
        study: the study.
        runs: the folder that holds `ROW/seedK`.

    Raises:
        DatasetError: a file of a run cannot be read.
    """
    outcomes = []
    for row in study.rows:
        results, curves, blocks, scores = {}, {}, {}, {}
        for folder in sorted((runs / row.name).glob("seed*")):
            number = folder.name.removeprefix("seed")
            if not number.isdigit():
                continue
            if (folder / RESULT).exists():
                results[int(number)] = _read_result(folder)
            curves[int(number)] = read_records(folder)
            scored = read_blocks(folder, row) if study.kind == "views" else None
            if scored is not None:
                blocks[int(number)] = scored
            further = None
            if study.kind == "papers":
                further = read_run_scores(folder)
            elif study.kind == "readout":
                further = read_readout(folder)
            if further is not None:
                scores[int(number)] = further
        ordered = dict(sorted(results.items()))
        of_seeds = dict(sorted(blocks.items())), dict(sorted(scores.items()))
        outcomes.append(Outcome(row, ordered, curves, *of_seeds))
    return outcomes


def _read_result(folder: Path) -> Mapping[str, Any]:
    """Read the result of a run, and check all that the tables are made of.

    Raises:
        DatasetError: it is damaged, or another file.
    """
    result, path = read_result(folder), folder / RESULT
    try:
        for key in ("experiment", "data", "at_latents", *_OF_NUMBERS):
            if not isinstance(result.get(key), dict | None):
                raise TypeError(f"{key} must be a table, found {result[key]!r:.100}")
        experiment = parse_experiment(result["experiment"], "experiment", "run")
        tables = {key: result.get(key) or {} for key in _OF_NUMBERS}
        tables["data.best_r2"] = dict(result["data"].get("best_r2") or {})
        for key, values in tables.items():
            for name, value in values.items():
                as_array(f"{key}.{name}", value)
        for key, value in (
            ("loss", result.get("loss")),
            ("at_latents.loss", (result.get("at_latents") or {}).get("loss")),
            *((f"data.pairs.{k}", v) for k, v in (result["data"].get("pairs") or {}).items()),
        ):
            if as_array(key, value).ndim:
                raise TypeError(f"{key} must be a number, found {value!r:.100}")
    except (UsageError, TypeError, ValueError) as error:
        raise DatasetError(f"{path} is damaged: {error}. Remove it to score the run again") from (
            error
        )
    return {**result, "experiment": experiment.as_dict()}


def as_array(name: str, value: Any) -> Float64:
    """Make an array of a number or a (nested) list of numbers; None becomes NaN.

    Args:
        name: the name of the value in errors.
        value: the value.

    Raises:
        TypeError: it is something else.
    """
    try:
        return np.array(value, np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must hold numbers, found {value!r:.100}") from None


def summed_up(values: Float64, statistic: str) -> tuple[float, float | None]:
    """Return what stands for the seeds, and how far they spread; None for the spread of one.

    Args:
        values: a score of every seed, (seeds,), at least one.
        statistic: mean (and standard deviation), or median (and the median absolute deviation).
    """
    if statistic == "mean":
        return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else None
    middle = float(np.median(values))
    spread = float(np.median(np.abs(values - middle)))
    return middle, spread if len(values) > 1 else None


def published_scores(
    published: Published | None, metric: str
) -> Iterator[tuple[int | None, tuple[float, float | None]]]:
    """Yield the steps (None: the end) and the published scores at them, the end first.

    Args:
        published: the numbers that a paper prints, or None.
        metric: the name of the score, with its suffix where batch statistics are used.
    """
    if published is None or (metric in PUBLISHED_AS) != published.batch_statistics:
        return
    name = PUBLISHED_AS.get(metric, metric)
    if name in published.scores:
        yield published.step, published.scores[name]
    for step in sorted(published.earlier, reverse=True):
        if name in published.earlier[step]:
            yield step, (published.earlier[step][name], None)
