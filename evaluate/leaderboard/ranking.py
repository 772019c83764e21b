"""Rows of a leaderboard: runs of one entry, averaged, and ranked among their like."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from threedident.evaluate.leaderboard.entries import Run, on_training_split
from threedident.evaluate.leaderboard.published_scores import SEEDS, TABLE_4, PublishedRow
from threedident.evaluate.report.labels import TRACKS, in_order, metric_label
from threedident.storage.manifest import differences

#: So many seeds make an entry.
ENOUGH = 3
PUBLISHED_DATA = "published"
#: Settings that may differ between scores that compare: what they decide is not the score.
_HARMLESS = ("bootstrap", "codes", "confidence", "interval", "shuffles")


@dataclasses.dataclass(frozen=True)
class Average:
    """A metric over the seeds of a row.

    Attributes:
        mean: over seeds.
        std: their sample standard deviation (over k - 1); None for one seed.
        rank: within track and data, from 1; None where the row is not ranked.
    """

    mean: float
    std: float | None
    rank: int | None = None


@dataclasses.dataclass(frozen=True)
class Conditions:
    """What a run was scored on, and how. Scores under other conditions do not compare.

    Attributes:
        data: what decides the test set, and the settings of the metrics.
    """

    data: Mapping[str, Any]

    @classmethod
    def of(cls, run: Run) -> Conditions:
        """Those of a run."""
        found = run.scores["data"]
        shown = ("fingerprint", "preset", "split", "seed", "images", "resolution", "factors")
        settings = {k: v for k, v in run.scores["settings"].items() if k not in _HARMLESS}
        return cls({**{key: found.get(key) for key in shown}, "settings": settings})

    @functools.cached_property
    def key(self) -> str:
        """Equal for equal conditions; short.

        The first digits of the test set's fingerprint, as its report has it, and some of the hash
        of everything.
        """
        text = json.dumps(self.data, sort_keys=True)
        everything = hashlib.sha256(text.encode()).hexdigest()
        return f"{self.data['fingerprint'][:8]}-{everything[:4]}"

    @property
    def label(self) -> str:
        """In words, with as much of the hashes as tells them apart."""
        data = self.data
        made = f"{data['preset'] or 'imported'}, {data['split'] or 'given latents'}"
        if data["seed"] is not None:
            made += f" seed {data['seed']}"
        if data["resolution"]:
            made += f", {data['resolution']} px"
        return f"{made}, {data['images']} images ({self.key})"


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        name: the entry's, as its manifest has it.
        track: as its manifest has it.
        averages: by metric.
        seeds: how many there are.
        runs: the entry's, by seed; none for the paper's rows.
        conditions: None for the paper's rows.
        published: the paper's row that this is.
    """

    name: str
    track: str
    averages: Mapping[str, Average]
    seeds: int
    runs: tuple[Run, ...] = ()
    conditions: Conditions | None = None
    published: PublishedRow | None = None

    @property
    def preliminary(self) -> bool:
        """Too few seeds for a rank."""
        return self.published is None and self.seeds < ENOUGH

    @property
    def on_training_split(self) -> bool:
        """Scored on images that encoders are fitted on, so that it has no rank."""
        return any(on_training_split(run.scores) for run in self.runs)

    @property
    def ranked(self) -> bool:
        """Whether it has ranks, and counts in those of others."""
        return not self.preliminary and not self.on_training_split

    @property
    def verifiable(self) -> bool:
        """Whether the submission can be scored on fresh data."""
        return self.published is None and all(
            run.scores["submission"]["kind"] != "embeddings" for run in self.runs
        )

    @property
    def manifest(self) -> Mapping[str, Any]:
        """Of the first seed; the others agree with it."""
        return self.runs[0].manifest if self.runs else {}

    @property
    def data_key(self) -> str:
        """What it was scored on, in short."""
        return self.conditions.key if self.conditions else PUBLISHED_DATA


def average(values: Sequence[float]) -> Average:
    """Mean and sample standard deviation of at least one value."""
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Average(mean, None)
    squares = math.fsum((v - mean) ** 2 for v in values)
    return Average(mean, math.sqrt(squares / (len(values) - 1)))


def make_rows(runs: Iterable[Run], *, published: bool = True) -> list[Row]:
    """The table: a row for an entry on one test set, ranked within its track.

    Args:
        runs: of the board.
        published: whether the paper's rows stand among them.

    Returns:
        Rows by track, data and rank by the first metric; then preliminary ones, then the
        paper's.
    """
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in sorted(runs, key=lambda r: (r.entry, r.seed)):
        groups.setdefault((run.entry, Conditions.of(run).key), []).append(run)
    rows = _ranked([_row(tuple(group)) for group in groups.values()])
    if published:
        rows += [_published_row(each) for each in TABLE_4]
    tracks = list(TRACKS)
    best = metrics_of(rows)[:1]

    def order(row: Row) -> tuple[Any, ...]:
        found = row.averages.get(best[0]) if best else None
        return (
            tracks.index(row.track),
            row.published is not None,
            row.preliminary,
            row.data_key,
            -found.mean if found else math.inf,
            row.name,
        )

    return sorted(rows, key=order)


def _row(runs: tuple[Run, ...]) -> Row:
    # A metric that some seeds lack would be a mean over other runs than the rest.
    shared = [
        name
        for name in in_order(runs[0].scores["scores"])
        if all(run.value(name) is not None for run in runs)
    ]
    averages = {name: average([run.value(name) or 0.0 for run in runs]) for name in shared}
    manifest = runs[0].manifest
    return Row(
        str(manifest["name"]),
        str(manifest.get("track") or "other"),
        averages,
        len(runs),
        runs,
        Conditions.of(runs[0]),
    )


def _published_row(each: PublishedRow) -> Row:
    averages = {name: Average(mean, std) for name, (mean, std) in each.scores.items()}
    return Row(each.name, each.track, averages, SEEDS, published=each)


def _ranked(rows: list[Row]) -> list[Row]:
    """The rows with ranks: one more than the rows of equal track and data that are better."""
    rivals: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        for metric, found in row.averages.items():
            if row.ranked:
                rivals.setdefault((row.track, row.data_key, metric), []).append(-found.mean)
    for means in rivals.values():
        means.sort()

    def rank(row: Row, metric: str, found: Average) -> Average:
        if not row.ranked:
            return found
        better = bisect.bisect_left(rivals[row.track, row.data_key, metric], -found.mean)
        return dataclasses.replace(found, rank=1 + better)

    return [
        dataclasses.replace(
            row, averages={metric: rank(row, metric, a) for metric, a in row.averages.items()}
        )
        for row in rows
    ]


def metrics_of(rows: Iterable[Row]) -> list[str]:
    """The metrics that any row has, in the order in which pages show them."""
    return in_order(name for row in rows for name in row.averages)


def remarks(rows: Iterable[Row]) -> list[str]:
    """What keeps rows from being compared, a sentence each."""
    rows = list(rows)
    lines = [
        f"{row.name} was scored on images of a training split, and is not ranked"
        for row in rows
        if row.on_training_split
    ]
    found = {row.data_key: row.conditions for row in rows if row.conditions is not None}
    if len(found) < 2:
        return lines
    several = list(found.values())
    lines += [
        f"Entries were scored on {len(several)} different test sets or with different settings. "
        "Ranks are given within each; scores of different ones do not compare."
    ]
    first = several[0]
    for other in several[1:]:
        names = ", ".join(name for name, _, _ in differences(first.data, other.data))
        lines.append(f"{other.label} differs from {first.label} in: {names}")
    return lines


def table(rows: Sequence[Row]) -> list[str]:
    """The rows as `3dident leaderboard list` prints them."""
    metrics = metrics_of(rows)
    names = [row.name if row.published is None else f"{row.name} (published)" for row in rows]
    width = max(map(len, (*names, "entry"))) + 2
    lines = [
        f"{'rank':<6}{'track':<16}{'entry':<{width}}{'seeds':<7}"
        + "".join(f"{metric_label(name):<18}" for name in metrics)
        + "data"
    ]
    for row, shown in zip(rows, names, strict=True):
        first = row.averages.get(metrics[0])
        rank = str(first.rank) if first and first.rank else "-"
        cells = "".join(f"{_fraction(row.averages.get(name)):<18}" for name in metrics)
        lines.append(
            f"{rank:<6}{TRACKS[row.track]:<16}{shown:<{width}}{row.seeds:<7}{cells}{row.data_key}"
        )
    return [*lines, *(f"warning: {remark}" for remark in remarks(rows))]


def as_data(rows: Iterable[Row]) -> dict[str, Any]:
    """The rows as `3dident leaderboard list --json` prints them, plain data."""
    rows = list(rows)

    def scores(row: Row) -> dict[str, Any]:
        return {name: dataclasses.asdict(each) for name, each in row.averages.items()}

    return {
        "rows": [
            {
                "name": row.name,
                "entry": row.runs[0].entry if row.runs else None,
                "track": row.track,
                "published": row.published is not None,
                "seeds": row.seeds,
                "data": row.data_key,
                "scores": scores(row),
            }
            for row in rows
        ],
        "remarks": remarks(rows),
    }


def _fraction(found: Average | None) -> str:
    if found is None:
        return "-"
    return f"{found.mean:.4f}" + ("" if found.std is None else f" +- {found.std:.4f}")
