"""The table of a study in Markdown: published numbers, own numbers, and what was cut down."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from threedident.baselines.reproduce.outcomes import (
    LABELS,
    Float64,
    Outcome,
    as_array,
    published_scores,
    summed_up,
)
from threedident.baselines.reproduce.readouts import PLACES, PROBES
from threedident.baselines.reproduce.scales import SMOKE
from threedident.baselines.reproduce.studies import Published, Study
from threedident.factors import FACTOR_NAMES
from threedident.progress import format_seconds

Cell = Callable[[Outcome], str]

NONE = "-"
#: How seeds are summed up, in words.
_STATISTICS = {
    "mean": "mean ± standard deviation over seeds (n - 1)",
    "median": "median (absolute deviation) over seeds; here, the median of absolute deviations",
}
_MOST_LEVELS = 4  # values of Lambda in theory, beyond which their range is shown


def markdown(study: Study, scale: str, outcomes: Sequence[Outcome], notes: Sequence[str]) -> str:
    """Write the table, and what was cut down for it, as Markdown.

    Args:
        study: the study.
        scale: the name of the scale.
        outcomes: the results of its rows.
        notes: lines on the data.
    """
    columns = _columns(study, outcomes)
    lines = [f"# {study.title}", ""]
    lines += [f"Scale `{scale}`; scores in %, {_STATISTICS[study.statistic]}."]
    if scale == SMOKE:
        lines += ["", "**Smoke: it shows that everything runs. The numbers mean nothing.**", ""]
    lines += [study.note] if study.note else []
    if "matches" in columns:
        lines += ["`matches`: whether pairs, space and model meet the theory's assumptions."]
    if "loss" in columns:
        lines += [
            "`loss`: of the encoder at the end, beside that of the true latents at their best "
            "scale or temperature, or theory's Lambda, on the same pairs. Where it is lower, the "
            "loss's minimum is elsewhere; where it is higher, training has not reached it."
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
    if study.kind == "views":
        lines += [*_per_variable(outcomes), ""]
    if study.kind == "readout":
        lines += [*_per_probe(outcomes), ""]
    return "\n".join([*lines, *_costs(outcomes), *_sources(outcomes), ""])


def _columns(study: Study, outcomes: Sequence[Outcome]) -> dict[str, Cell]:
    """Return the table's columns: those that would be empty are left out."""

    def published(metric: str) -> Cell:
        return lambda each: _shown_published(each.row.published, metric, study.statistic)

    def own(metric: str) -> Cell:
        return lambda each: _shown(each.values(metric), study.statistic)

    columns: dict[str, Cell] = {"row": lambda each: f"`{each.row.name}`", "what": _title}
    columns["matches"] = _matches
    for metric in study.metrics:
        columns[f"{LABELS[metric]} published"] = published(metric)
        columns[f"{LABELS[metric]} here"] = own(metric)
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
    """Return the loss at the latents; None where there is no loss to stand beside."""
    known = result.get("loss") is not None
    return (result.get("at_latents") or {}).get("loss") if known else None


def _pairs_of(result: Mapping[str, Any]) -> Mapping[str, Any]:
    return result["data"].get("pairs") or {}


def _mean_of(each: Outcome, value: Callable[[Mapping[str, Any]], Any]) -> str:
    """Format the mean over seeds of a number; of how many, where not all results have it."""
    known = [number for number in map(value, each.results.values()) if number is not None]
    if not known:
        return NONE
    some = len(known) < len(each.results)
    return f"{np.mean(known):.4g}" + (f" ({len(known)} of {len(each.results)})" if some else "")


def _title(each: Outcome) -> str:
    return (
        "observations as they are" if each.row.identity else each.row.published_experiment().title
    )


def _matches(each: Outcome) -> str:
    """Say whether the model's assumptions hold."""
    return {True: "yes", False: "no", None: ""}[each.row.matches]


def _steps(each: Outcome) -> str:
    return ", ".join(f"{s:,}" for s in sorted({r["steps"] for r in each.results.values()})) or NONE


def _time(each: Outcome) -> str:
    seconds = [float(r["seconds"]) for r in each.results.values()]
    return format_seconds(float(np.mean(seconds))) if seconds else NONE


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _shown(values: Float64, statistic: str = "mean") -> str:
    """Format the mean and the standard deviation, or medians, in percent."""
    if not len(values):
        return NONE
    middle, spread = summed_up(values, statistic)
    return _both(middle, spread, statistic)


def _both(middle: float, spread: float | None, statistic: str) -> str:
    """Format a number and its spread over seeds in percent."""
    text = f"{100 * middle:.2f}"
    if spread is None:
        return text
    return f"{text} ± {100 * spread:.2f}" if statistic == "mean" else f"{text} ({100 * spread:.2f})"


def _shown_published(published: Published | None, metric: str, statistic: str) -> str:
    texts = []
    for steps, (middle, spread) in published_scores(published, metric):
        text = _both(middle, spread, statistic)
        texts.append(text if steps is None else f"{text} at step {steps:,}")
    return ", ".join(texts) or NONE


def _learned(each: Outcome) -> str:
    """Format the loss's own parameters, means over seeds, and what theory expects of Lambda."""
    texts = []
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
            texts.append(f"{name} {_beside_theory(mean, seeds[0][1])}")
    return "; ".join(texts) or NONE


def _in_order(result: Mapping[str, Any], part: str, name: str) -> Float64 | None:
    """Return a parameter (members, n) of a result, each member's sorted; None where there is none.

    Sorted, because dimensions are identified up to their order only.
    """
    value = (result.get(part) or {}).get(name)
    if value is None:
        return None
    values = np.atleast_2d(as_array(name, value))
    return np.sort(values, -1) if values.ndim == 2 and values.size else None


def _beside_theory(learned: Float64, theory: Float64 | None) -> str:
    """Format means over the dimensions that are the same in theory; otherwise the range.

    Args:
        learned: the learned values, (members, n), each member's sorted.
        theory: the values in theory, of the same shape and order, or None.
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
    """List what the runs changed of their presets, with the rows that did where not all."""
    ran = [each for each in outcomes if each.results and each.row.is_trained]
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
    names = "; ".join(sorted(sources))
    return ["", f"Published numbers are the papers' and were not run again: {names}."]


def _per_factor(outcomes: Sequence[Outcome]) -> list[str]:
    """Tabulate R2 of every factor, and its share of the best that any encoder can reach."""
    finished = [each for each in outcomes if each.results]
    head = ["factor"]
    for each in finished:
        name = "" if each.row.train_on is None else each.row.train_on.name
        head += [f"{name}: R2", "best possible", "share"]
    lines = ["## R2 per factor", "", _pipes(head), _pipes(["---"] * len(head))]
    columns = [_factors(each) for each in finished]
    for factor in FACTOR_NAMES:
        lines.append(_pipes([factor, *(c for column in columns for c in column(factor))]))
    lines.append(_pipes(["**mean**", *(c for column in columns for c in column(None))]))
    return lines


def _per_variable(outcomes: Sequence[Outcome]) -> list[str]:
    """Tabulate linear and kernel R2 of every variable of the models, content in bold."""
    scored = [(each, blocks) for each in outcomes if (blocks := each.blocks()) is not None]
    names = list(dict.fromkeys(name for _, blocks in scored for name in blocks.factors))
    names = [name for name in names if any(math.isfinite(b.kernel(name)) for _, b in scored)]
    lines = [
        "## R2 per factor",
        "",
        "Linear R2 / kernel ridge R2 in %, means over seeds; **content** in bold. A dash: the "
        "factor does not vary in the test images.",
        "",
        _pipes(["row", *names]),
        _pipes(["---"] * (1 + len(names))),
    ]
    for each, blocks in scored:
        cells = [f"`{each.row.name}`"]
        for name in names:
            pair = (blocks.linear(name), blocks.kernel(name))
            text = NONE
            if all(map(math.isfinite, pair)):
                text = " / ".join(f"{round(100 * value, 1) + 0.0:.1f}" for value in pair)  # no -0.0
                text = f"**{text}**" if name in (blocks.content or ()) else text
            cells.append(text)
        lines.append(_pipes(cells))
    return lines


def _per_probe(outcomes: Sequence[Outcome]) -> list[str]:
    """Tabulate the accuracy of every probe in both places, with the published one in brackets."""
    probed = [each for each in outcomes if each.scores_of_seeds]
    lines = [
        "## Read-outs",
        "",
        "Balanced accuracy in %, means over seeds, published ones in brackets; chance is 50 % for "
        "augmentations. The mean is that of the five from greyscale to saturation.",
        "",
        _pipes(["row", "features", *PROBES]),
        _pipes(["---"] * (2 + len(PROBES))),
    ]
    for each in probed:
        published = {} if each.row.published is None else each.row.published.scores
        for place in PLACES:
            cells = []
            for probe in PROBES:
                name = f"{probe}_{place}"
                values = each.values(name)
                text = f"{100 * values.mean():.1f}" if len(values) else NONE
                known = published.get(name)
                cells.append(text if known is None else f"{text} ({100 * known[0]:.1f})")
            lines.append(_pipes([f"`{each.row.name}`", place, *cells]))
    return lines


def _factors(each: Outcome) -> Any:
    """Make the function of a factor's cells: R2, best possible, share.

    Of None, it makes the cells of the mean over the factors that vary.
    """
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
