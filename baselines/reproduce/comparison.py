"""Published numbers and own ones side by side: tables as Markdown and CSV, and a figure."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.baselines.experiment import parse_experiment
from threedident.baselines.reproduce.scales import SMOKE
from threedident.baselines.reproduce.studies import Published, Row, Study
from threedident.baselines.training.run_folder import RESULT, read_result
from threedident.baselines.training.training_log import METRICS, read_records
from threedident.errors import DatasetError, MissingExtraError, UsageError
from threedident.factors import FACTOR_NAMES
from threedident.progress import format_seconds
from threedident.storage.atomic_files import replacing

Float64 = npt.NDArray[np.float64]
Cell = Callable[["Outcome"], str]

TABLE, NUMBERS, FIGURE, FACTORS = "table.md", "table.csv", "figure.png", "factors.png"
NONE = "-"

_LABELS = {
    "linear_r2": "R2",
    "mcc": "MCC",
    "linear_r2_content": "R2 content",
    "linear_r2_style": "R2 style",
    "linear_r2_batch_statistics": "R2, batch statistics",
    "mcc_batch_statistics": "MCC, batch statistics",
}
#: Published with batch normalisation in training mode.
_PUBLISHED_AS = {"linear_r2_batch_statistics": "linear_r2", "mcc_batch_statistics": "mcc"}
#: The tables of a result whose values are numbers, or lists of them.
_OF_NUMBERS = ("scores", "per_factor", "learned", "theory")
_ACROSS = 4  # panels of the figure
_MANY = 40  # of a curve's points, beyond which they have no marks
_MOST_LEVELS = 4  # values of Lambda in theory, beyond which their range is shown


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What there is of a row.

    Attributes:
        row: which.
        results: contents of `result.json`, by seed.
        curves: rows of `metrics.csv`, by seed; of unfinished runs too.
    """

    row: Row
    results: Mapping[int, Mapping[str, Any]]
    curves: Mapping[int, Sequence[Mapping[str, str]]]

    def values(self, metric: str) -> Float64:
        """A score of every seed that has it."""
        found = (each["scores"].get(metric) for each in self.results.values())
        return np.array([v for v in found if v is not None], np.float64)

    def curve(self, metric: str) -> tuple[Float64, Float64]:
        """Steps (k,) at which any seed was scored, and the scores (seeds, k); NaN for none."""
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
        """Steps (k,) and R2 of every factor (k, 10), means over the seeds that have it; NaN."""
        steps: dict[int, list[Float64]] = {}
        for rows in self.curves.values():
            for row in rows:
                if text := row.get("linear_r2_per_factor"):
                    try:
                        values = _as_array("linear_r2_per_factor", json.loads(text))
                    except (TypeError, ValueError) as error:
                        where = f"{METRICS} of {self.row.name}, step {row['step']}"
                        raise DatasetError(f"{where}, is damaged: {error}") from error
                    steps.setdefault(int(row["step"]), []).append(values)
        chosen = sorted(steps)
        means = [np.mean(steps[step], 0) for step in chosen]
        return np.array(chosen, np.float64), np.array(means, np.float64)

    def changes(self) -> list[tuple[str, Any, Any]]:
        """In which fields the runs differ from the preset: name, the preset's, the run's."""
        found: dict[str, tuple[str, Any, Any]] = {}
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
                        found[f"{name} {after}"] = (name, before, after)
        return list(found.values())


def collect(study: Study, runs: Path) -> list[Outcome]:
    """What there is of every row of a study, in the order of the table.

    Args:
        study: which.
        runs: the folder that holds `ROW/seedK`.

    Raises:
        DatasetError: a file of a run cannot be read.
    """
    outcomes = []
    for row in study.rows:
        results, curves = {}, {}
        for folder in sorted((runs / row.name).glob("seed*")):
            number = folder.name.removeprefix("seed")
            if not number.isdigit():
                continue
            if (folder / RESULT).exists():
                results[int(number)] = _read_result(folder)
            curves[int(number)] = read_records(folder)
        ordered = dict(sorted(results.items()))
        outcomes.append(Outcome(row, ordered, curves))
    return outcomes


def _read_result(folder: Path) -> Mapping[str, Any]:
    """What a run ended with, all that the tables are made of checked.

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
                _as_array(f"{key}.{name}", value)
        for key, value in (
            ("loss", result.get("loss")),
            ("at_latents.loss", (result.get("at_latents") or {}).get("loss")),
            *((f"data.pairs.{k}", v) for k, v in (result["data"].get("pairs") or {}).items()),
        ):
            if _as_array(key, value).ndim:
                raise TypeError(f"{key} must be a number, found {value!r:.100}")
    except (UsageError, TypeError, ValueError) as error:
        raise DatasetError(f"{path} is damaged: {error}. Remove it to score the run again") from (
            error
        )
    return {**result, "experiment": experiment.as_dict()}


def _as_array(name: str, value: Any) -> Float64:
    """A number or (nested) list of numbers; NaN for None.

    Raises:
        TypeError: it is something else.
    """
    try:
        return np.array(value, np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must hold numbers, found {value!r:.100}") from None


def write_comparison(
    study: Study, scale: str, outcomes: Sequence[Outcome], out: Path, notes: Sequence[str] = ()
) -> Path:
    """Writes `table.md`, `table.csv` and `figure.png`, each in one step; `factors.png` of images.

    Args:
        study: of which the rows are.
        scale: its name.
        outcomes: one a row.
        out: the folder.
        notes: lines on the data.

    Returns:
        The path of the table.

    Raises:
        DatasetError: a file cannot be written.
        MissingExtraError: matplotlib is not installed.
    """
    with replacing(out / TABLE) as temporary:
        temporary.write_text(markdown(study, scale, outcomes, notes), "utf-8")
    with replacing(out / NUMBERS) as temporary:
        temporary.write_text(numbers(study, outcomes), "utf-8")
    made = figure(study, outcomes)
    with replacing(out / FIGURE) as temporary:
        made.savefig(temporary, format="png", dpi=120)
    if study.kind == "images":
        with replacing(out / FACTORS) as temporary:
            factor_figure(study, outcomes).savefig(temporary, format="png", dpi=120)
    return out / TABLE


def markdown(study: Study, scale: str, outcomes: Sequence[Outcome], notes: Sequence[str]) -> str:
    """The table, and what was cut down for it."""
    columns = _columns(study, outcomes)
    lines = [f"# {study.title}", ""]
    lines += [f"Scale `{scale}`; scores in %, mean ± standard deviation over seeds (n - 1)."]
    if scale == SMOKE:
        lines += ["", "**Smoke: it shows that everything runs. The numbers mean nothing.**", ""]
    lines += [study.note] if study.note else []
    if "matches" in columns:
        lines += ["`matches`: whether pairs, space and model meet the theory's assumptions."]
    if "loss" in columns:
        lines += [
            "`loss`: of the encoder at the end, beside that of the true latents at their best "
            "scale, temperature or Lambda, on the same pairs. Where it is lower, the loss's "
            "minimum is elsewhere; where it is higher, training has not reached it."
        ]
    lines += ["", *_cut_down(outcomes), *(f"- {note}" for note in notes)]
    rows, block = [], None
    for each in outcomes:
        if each.row.block != block:
            block = each.row.block
            rows.append([f"**{block}**", *[""] * (len(columns) - 1)])
        rows.append([cell(each) for cell in columns.values()])
    lines += ["", _pipes([*columns]), _pipes(["---"] * len(columns)), *map(_pipes, rows), ""]
    if study.per_factor:
        lines += [*_per_factor(outcomes), ""]
    return "\n".join([*lines, *_costs(outcomes), *_sources(outcomes), ""])


def _columns(study: Study, outcomes: Sequence[Outcome]) -> dict[str, Cell]:
    """The table's columns: those that would be empty are left out."""

    def published(metric: str) -> Cell:
        return lambda each: _shown_published(each.row.published, metric)

    def own(metric: str) -> Cell:
        return lambda each: _shown(each.values(metric))

    columns: dict[str, Cell] = {"row": lambda each: f"`{each.row.name}`", "what": _title}
    columns["matches"] = _matches
    for metric in study.metrics:
        columns[f"{_LABELS[metric]} published"] = published(metric)
        columns[f"{_LABELS[metric]} here"] = own(metric)
    columns["learned published"] = lambda each: (
        (each.row.published and each.row.published.learned) or NONE
    )
    columns["learned here"] = _learned
    columns["loss"] = lambda each: _mean_of(each, lambda result: result.get("loss"))
    columns["loss of the true latents"] = lambda each: _mean_of(each, _loss_of_the_latents)
    if study.pairs:
        columns["std of pairs"] = lambda each: _mean_of(each, lambda r: _pairs_of(r).get("std"))
        columns["kurtosis of pairs"] = lambda each: _mean_of(
            each, lambda r: _pairs_of(r).get("kurtosis")
        )
    columns["seeds"] = lambda each: str(len(each.results)) if each.results else NONE
    columns["steps"] = _steps
    columns["time a run"] = _time
    kept = ("R2 here", "MCC here", "seeds", "steps", "time a run")
    return {
        name: cell
        for name, cell in columns.items()
        if name in kept or any(cell(each) not in ("", NONE) for each in outcomes)
    }


def _loss_of_the_latents(result: Mapping[str, Any]) -> Any:
    """None where there is no loss to stand beside."""
    known = result.get("loss") is not None
    return (result.get("at_latents") or {}).get("loss") if known else None


def _pairs_of(result: Mapping[str, Any]) -> Mapping[str, Any]:
    return result["data"].get("pairs") or {}


def _mean_of(each: Outcome, value: Callable[[Mapping[str, Any]], Any]) -> str:
    """The mean over seeds of a number of the results that have it."""
    known = [found for found in map(value, each.results.values()) if found is not None]
    return f"{np.mean(known):.4g}" if known else NONE


def _title(each: Outcome) -> str:
    return (
        "observations as they are" if each.row.identity else each.row.published_experiment().title
    )


def _matches(each: Outcome) -> str:
    """Whether the model's assumptions hold."""
    return {True: "yes", False: "no", None: ""}[each.row.matches]


def _steps(each: Outcome) -> str:
    return ", ".join(f"{s:,}" for s in sorted({r["steps"] for r in each.results.values()})) or NONE


def _time(each: Outcome) -> str:
    seconds = [float(r["seconds"]) for r in each.results.values()]
    return format_seconds(float(np.mean(seconds))) if seconds else NONE


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _shown(values: Float64) -> str:
    """Mean and standard deviation in percent."""
    if not len(values):
        return NONE
    mean = f"{100 * values.mean():.2f}"
    return f"{mean} ± {100 * values.std(ddof=1):.2f}" if len(values) > 1 else mean


def _shown_published(published: Published | None, metric: str) -> str:
    found = []
    for steps, (mean, std) in _published_scores(published, metric):
        text = f"{100 * mean:.2f}" + ("" if std is None else f" ± {100 * std:.2f}")
        found.append(text if steps is None else f"{text} at step {steps:,}")
    return ", ".join(found) or NONE


def _published_scores(
    published: Published | None, metric: str
) -> Iterator[tuple[int | None, tuple[float, float | None]]]:
    """Steps (None: the end) and scores, the end first."""
    if published is None or (metric in _PUBLISHED_AS) != published.batch_statistics:
        return
    name = _PUBLISHED_AS.get(metric, metric)
    if name in published.scores:
        yield published.step, published.scores[name]
    for step in sorted(published.earlier, reverse=True):
        if name in published.earlier[step]:
            yield step, (published.earlier[step][name], None)


def _learned(each: Outcome) -> str:
    """The loss's own parameters, means over seeds, and what theory expects of Lambda."""
    found = []
    for name in ("tau", "Lambda", "S"):
        alike: dict[str, list[tuple[Float64, Float64 | None]]] = {}
        for result in each.results.values():
            learned = _in_order(result, "learned", name)
            if learned is None:
                continue
            theory = _in_order(result, "theory", "Lambda") if name == "Lambda" else None
            if theory is not None and theory.shape != learned.shape:
                theory = None
            key = repr((learned.shape, None if theory is None else theory.tolist()))
            alike.setdefault(key, []).append((learned, theory))
        for seeds in alike.values():
            mean = np.mean([learned for learned, _ in seeds], 0)
            found.append(f"{name} {_beside_theory(mean, seeds[0][1])}")
    return "; ".join(found) or NONE


def _in_order(result: Mapping[str, Any], part: str, name: str) -> Float64 | None:
    """A parameter (members, n) of a result, each member's sorted; None where there is none.

    Sorted, because dimensions are identified up to their order only.
    """
    value = (result.get(part) or {}).get(name)
    if value is None:
        return None
    values = np.atleast_2d(_as_array(name, value))
    return np.sort(values, -1) if values.ndim == 2 and values.size else None


def _beside_theory(learned: Float64, theory: Float64 | None) -> str:
    """Means over the dimensions that are the same in theory; otherwise the range.

    Args:
        learned, theory: (members, n), each member's sorted.
    """
    texts = []
    for member, row in enumerate(learned):
        if theory is None:
            texts.append(_range(row))
            continue
        expected = theory[member]
        levels = np.unique(expected)
        if len(levels) > _MOST_LEVELS:
            texts.append(f"{_range(row)} (theory {_range(levels)})")
            continue
        means = [float(row[expected == level].mean()) for level in levels]
        texts.append(f"{_listed(means)} (theory {_listed(levels)})")
    if len(texts) == 1:
        return texts[0]
    return ", ".join(f"of member {number}: {text}" for number, text in enumerate(texts, 1))


def _range(values: Float64) -> str:
    low, high = f"{values.min():.3g}", f"{values.max():.3g}"
    return low if low == high else f"{low} to {high}"


def _listed(values: Iterable[float]) -> str:
    *first, last = (f"{value:.3g}" for value in values)
    return f"{', '.join(first)} and {last}" if first else last


def _cut_down(outcomes: Sequence[Outcome]) -> list[str]:
    """Lines on what the runs changed of their presets, with the rows that did where not all."""
    ran = [each for each in outcomes if each.results and not each.row.identity]
    rows: dict[str, list[str]] = {}
    for each in ran:
        for field, before, after in each.changes():
            text = f"{field} {_plain(before)} -> {_plain(after)}"
            rows.setdefault(text, []).append(each.row.name)
    if ran and not rows:
        return ["- as in the presets, which hold the papers' settings"]
    shared = [text for text, names in rows.items() if len(names) == len(ran)]
    lines = [f"- changed of the presets in all rows: {'; '.join(shared)}"] if shared else []
    for text, names in rows.items():
        if text not in shared:
            lines.append(f"- changed: {text} in {', '.join(f'`{name}`' for name in names)}")
    return lines


def _plain(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "none" if value is None else str(value)


def _costs(outcomes: Sequence[Outcome]) -> list[str]:
    trained = [r for each in outcomes for r in each.results.values() if r["steps"]]
    if not trained:
        return ["Nothing is trained yet."]
    seconds = sum(float(r["seconds"]) for r in trained)
    hardware = ", ".join(sorted({str(r.get("hardware")) for r in trained}))
    runs = "1 run" if len(trained) == 1 else f"{len(trained)} runs"
    return [f"Cost: {runs}, {format_seconds(seconds)} of training, on {hardware}."]


def _sources(outcomes: Sequence[Outcome]) -> list[str]:
    sources = {each.row.published.source for each in outcomes if each.row.published is not None}
    if not sources:
        return []
    said = "; ".join(sorted(sources))
    return ["", f"Published numbers are the papers' and were not run again: {said}."]


def _per_factor(outcomes: Sequence[Outcome]) -> list[str]:
    """R2 of every factor, and as a share of the best that any encoder can reach."""
    there = [each for each in outcomes if each.results]
    head = ["factor"]
    for each in there:
        name = "" if each.row.train_on is None else each.row.train_on.name
        head += [f"{name}: R2", "best possible", "share"]
    lines = ["## R2 per factor", "", _pipes(head), _pipes(["---"] * len(head))]
    columns = [_factors(each) for each in there]
    for factor in FACTOR_NAMES:
        lines.append(_pipes([factor, *(c for column in columns for c in column(factor))]))
    lines.append(_pipes(["**mean**", *(c for column in columns for c in column(None))]))
    return lines


def _factors(each: Outcome) -> Any:
    """Cells of a factor, or of the mean over those that vary (None): R2, best possible, share."""
    rows: list[dict[str, float]] = []
    best: Mapping[str, float | None] = {}
    for result in each.results.values():
        names = result["data"].get("factors") or FACTOR_NAMES
        values = (result.get("per_factor") or {}).get("linear_r2") or []
        # Nothing can be said of a factor that does not vary: None.
        known = zip(names, values, strict=False)
        rows.append({name: value for name, value in known if value is not None})
        best = result["data"].get("best_r2") or best

    def cells(factor: str | None) -> list[str]:
        wanted = [factor] if factor is not None else list(rows[0])
        r2 = [
            float(np.mean([row[name] for name in wanted])) for row in rows if set(wanted) <= {*row}
        ]
        most = [limit for limit in map(best.get, wanted) if limit is not None]
        if not r2 or not wanted:
            return [NONE] * 3
        if len(most) < len(wanted):
            return [_shown(np.array(r2)), NONE, NONE]
        limit = float(np.mean(most))
        share = f"{np.mean(r2) / limit:.1%}" if limit else NONE
        return [_shown(np.array(r2)), f"{100 * limit:.2f}", share]

    return cells


def numbers(study: Study, outcomes: Sequence[Outcome]) -> str:
    """The table as CSV, a line a row and metric; scores in [0, 1], empty where there are none."""
    file = io.StringIO()
    head = ["row", "block", "metric", "published_mean", "published_std", "published_step"]
    head += ["mean", "std", "seeds", "steps", "seconds", "hardware"]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(head)
    for each in outcomes:
        results = list(each.results.values())
        steps = "/".join(str(s) for s in sorted({int(r["steps"]) for r in results}))
        seconds = f"{np.mean([r['seconds'] for r in results]):.1f}" if results else ""
        hardware = "/".join(sorted({str(r.get("hardware", "")) for r in results}))
        for metric in study.metrics:
            values = each.values(metric)
            published = next(_published_scores(each.row.published, metric), (None, (None, None)))
            cells: list[Any] = [each.row.name, each.row.block, metric]
            cells += [*published[1], published[0]]
            cells.append(f"{values.mean():.6f}" if len(values) else None)
            cells.append(f"{values.std(ddof=1):.6f}" if len(values) > 1 else None)
            cells += [len(values), steps, seconds, hardware]
            writer.writerow(["" if cell is None else cell for cell in cells])
    return file.getvalue()


def figure(study: Study, outcomes: Sequence[Outcome]) -> Any:
    """Scores against steps, the marginal's concentration or latents, a panel a block.

    Returns:
        A matplotlib figure.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "train", "the figure") from error
    blocks: dict[str, list[Outcome]] = {}
    for each in outcomes:
        blocks.setdefault(each.row.block, []).append(each)
    begun = {name for name, rows in blocks.items() if any(r.curves or r.results for r in rows)}
    shown = {name: rows for name, rows in blocks.items() if name in begun} or blocks
    across, each_down = min(_ACROSS, len(shown)), len(study.plotted)
    if len(shown) == 1:  # its metrics side by side
        across, each_down = each_down, 1
    down = math.ceil(len(shown) / across) * each_down
    made = Figure(figsize=(5 * across, 3.9 * down), layout="constrained")
    axes = made.subplots(down, across, squeeze=False)
    made.suptitle(study.title, wrap=True)
    for axis in axes.flat:
        axis.set_visible(False)
    for number, (name, rows) in enumerate(shown.items()):
        for which, metric in enumerate(study.plotted):
            beside = number + which if each_down == 1 else number
            axis = axes[number // across * each_down + which % each_down][beside % across]
            axis.set_visible(True)
            axis.set_title(name, fontsize="medium")
            axis.set_ylabel(_LABELS[metric])
            if rows[0].row.concentration is not None:
                _plot_points(axis, rows, metric)
            elif rows[0].row.series:
                _plot_series(axis, rows, metric)
            else:
                _plot_curves(axis, rows, metric, study.name)
    return made


def factor_figure(study: Study, outcomes: Sequence[Outcome]) -> Any:
    """R2 of each factor against steps, a panel a factor and a line a row.

    Returns:
        A matplotlib figure.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "train", "the figure") from error
    made = Figure(figsize=(20, 7.2), layout="constrained")
    axes = made.subplots(2, 5, sharex=True, sharey=True)
    made.suptitle(f"{study.title}: R2 of each factor", wrap=True)
    for number, each in enumerate(outcomes):
        steps, r2 = each.factor_curve()
        if not len(steps) or r2.shape[1:] != (len(FACTOR_NAMES),):
            continue
        label = each.row.name.removeprefix(f"{study.name}-")
        for axis, values in zip(axes.flat, r2.T, strict=True):
            axis.plot(steps, values, color=f"C{number % 10}", label=label)
    for axis, name in zip(axes.flat, FACTOR_NAMES, strict=True):
        axis.set_title(name, fontsize="medium")
        axis.set_ylim(-0.05, 1.02)
    for axis in axes[1]:
        axis.set_xlabel("steps")
    for axis in axes[:, 0]:
        axis.set_ylabel(_LABELS["linear_r2"])
    if axes[0, 0].get_legend_handles_labels()[0]:
        axes[0, 0].legend(fontsize="x-small", framealpha=0.4)
    return made


def _plot_curves(axis: Any, rows: Sequence[Outcome], metric: str, study: str) -> None:
    """A row's curve, and in its colour, dashed, what was published of the end."""
    for number, each in enumerate(rows):
        color, label = f"C{number % 10}", each.row.name.removeprefix(f"{study}-")
        steps, scores = each.curve(metric)
        alone = each.values(metric)
        if len(steps):
            mean = np.nanmean(scores, 0)  # an unfinished seed counts as far as it came
            mark = "." if len(steps) <= _MANY else ""
            axis.plot(steps, mean, color=color, label=label, marker=mark)
            if len(scores) > 1:
                several = np.isfinite(scores).sum(0) > 1
                std = np.zeros_like(mean)
                std[several] = np.nanstd(scores[:, several], 0, ddof=1)
                axis.fill_between(steps, mean - std, mean + std, color=color, alpha=0.2, lw=0)
        elif len(alone):
            axis.axhline(alone.mean(), color=color, linestyle=":", label=label)
        if not len(steps) and not len(alone):
            continue  # not run: a line that nothing stands beside says little
        for step, (value, _) in _published_curve(each.row.published, metric):
            if step is None:
                axis.axhline(value, color=color, linestyle="--", lw=1, alpha=0.7)
            else:
                axis.plot([step], [value], "x", color=color)
    axis.set_xscale("log")
    axis.set_xlabel("steps (published: dashed, or x)")
    axis.set_ylim(top=min(1.02, axis.get_ylim()[1] + 0.02))
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize="x-small", framealpha=0.4)


def _published_curve(
    published: Published | None, metric: str
) -> Iterator[tuple[int | None, tuple[float, float | None]]]:
    """Published scores; those of 3DIdent have one curve, whichever statistics are used."""
    for known in (metric, f"{metric}_batch_statistics"):
        yield from _published_scores(published, known)


def _plot_points(axis: Any, rows: Sequence[Outcome], metric: str) -> None:
    known = [each for each in rows if len(each.values(metric))]
    if known:
        values = [each.values(metric) for each in known]
        at = [each.row.concentration for each in known]
        std = [v.std(ddof=1) if len(v) > 1 else 0.0 for v in values]
        axis.errorbar(at, [v.mean() for v in values], std, marker="o", color="black", capsize=3)
    axis.set_xscale("log", base=2)
    axis.set_xlabel("concentration of the marginal (line: of the conditional)")
    axis.axvline(_conditional_concentration(rows[0].row), color="black", linestyle=":")
    axis.set_ylim(top=1.02)


def _plot_series(axis: Any, rows: Sequence[Outcome], metric: str) -> None:
    """A line a series against the number of latents; a level line without a number."""
    series: dict[str, list[Outcome]] = {}
    for each in rows:
        if len(each.values(metric)):
            series.setdefault(each.row.series, []).append(each)
    names = list(dict.fromkeys(each.row.series for each in rows))
    for name, known in series.items():
        color = f"C{names.index(name)}"
        values = [each.values(metric) for each in known]
        at = [each.row.latents for each in known]
        if at == [None]:
            axis.axhline(values[0].mean(), color=color, linestyle=":", label=name)
            continue
        std = [v.std(ddof=1) if len(v) > 1 else 0.0 for v in values]
        means = [v.mean() for v in values]
        axis.errorbar(at, means, std, marker="o", color=color, capsize=3, label=name)
    axis.set_xscale("log")
    axis.set_xlabel("latents")
    axis.set_ylim(top=1.02)
    if series:
        axis.legend(fontsize="x-small", framealpha=0.4)


def _conditional_concentration(row: Row) -> float:
    """Kappa of a vMF, 1 / sigma^2 of a Normal."""
    conditional = row.published_experiment().data.conditional
    plain = {} if conditional is None else conditional.as_dict()
    return float(plain["kappa"]) if "kappa" in plain else float(plain["sigma"]) ** -2
