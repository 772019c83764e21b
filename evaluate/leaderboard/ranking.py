"""The table of a leaderboard: runs of one entry, averaged, and ranked among their like."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from threedident.evaluate.leaderboard.entries import Run
from threedident.evaluate.leaderboard.published_scores import SEEDS, TABLE_4, PublishedRow
from threedident.evaluate.report.labels import in_order, metric_label
from threedident.evaluate.submissions.manifest import TRACKS, SubmissionManifest
from threedident.storage.manifest import differences

#: The number of seeds that make an entry.
ENOUGH = 3
PUBLISHED_DATA = "published"
#: Settings that may differ between scores that compare: what they decide is not the score.
_HARMLESS = ("bootstrap", "codes", "confidence", "interval", "shuffles")


@dataclasses.dataclass(frozen=True)
class Average:
    """A metric over the seeds of a row.

    Attributes:
        mean: the mean over seeds.
        std: the sample standard deviation over seeds (over k - 1); None for one seed.
        rank: the rank within track and data, from 1; None where the row is not ranked.
    """

    mean: float
    std: float | None
    rank: int | None = None


@dataclasses.dataclass(frozen=True)
class Conditions:
    """The test set and the settings of a run. Scores under other conditions do not compare.

    Attributes:
        data: the fields that decide the test set, and the settings of the metrics.
    """

    data: Mapping[str, Any]

    @classmethod
    def of(cls, run: Run) -> Conditions:
        """Return the conditions of a run."""
        test_set = run.scores.data
        settings = {k: v for k, v in run.scores.settings.items() if k not in _HARMLESS}
        return cls(
            {
                "fingerprint": test_set.fingerprint,
                "preset": test_set.preset,
                "split": test_set.split,
                "seed": test_set.seed,
                "images": test_set.images,
                "resolution": test_set.resolution,
                "factors": list(test_set.factors),
                "settings": settings,
            }
        )

    @functools.cached_property
    def key(self) -> str:
        """A short text, equal for equal conditions.

        The first digits of the test set's fingerprint, as its report has it, and some of the hash
        of everything.
        """
        text = json.dumps(self.data, sort_keys=True)
        everything = hashlib.sha256(text.encode()).hexdigest()
        return f"{self.data['fingerprint'][:8]}-{everything[:4]}"

    @property
    def label(self) -> str:
        """The conditions in words, with as much of the hashes as tells them apart."""
        data = self.data
        words = f"{data['preset'] or 'imported'}, {data['split'] or 'given latents'}"
        if data["seed"] is not None:
            words += f" seed {data['seed']}"
        if data["resolution"]:
            words += f", {data['resolution']} px"
        return f"{words}, {data['images']} images ({self.key})"


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        name: the entry's name, as its manifest has it.
        track: the entry's track, as its manifest has it.
        averages: the averages by metric.
        seeds: the number of seeds.
        runs: the entry's runs, by seed; none for the paper's rows.
        conditions: the test set and the settings; None for the paper's rows.
        published: the paper's row; None for an entry.
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
        """Whether there are too few seeds for a rank."""
        return self.published is None and self.seeds < ENOUGH

    @property
    def lacking(self) -> str:
        """The seeds it needs and has, where there are too few; else an empty text."""
        return f"needs {ENOUGH} seeds, has {self.seeds}" if self.preliminary else ""

    @property
    def on_training_split(self) -> bool:
        """Whether it was scored on images that encoders are fitted on, so that it has no rank."""
        return any(run.scores.on_training_split for run in self.runs)

    @property
    def ranked(self) -> bool:
        """Whether it has ranks, and counts in those of others."""
        return not self.preliminary and not self.on_training_split

    @property
    def verifiable(self) -> bool:
        """Whether the submission can be scored on fresh data."""
        return self.published is None and all(
            run.scores.submission.kind != "embeddings" for run in self.runs
        )

    @property
    def manifest(self) -> SubmissionManifest | None:
        """The manifest of the first seed, with which the others agree; None of the paper."""
        return self.runs[0].manifest if self.runs else None

    @property
    def data_key(self) -> str:
        """The conditions in short."""
        return self.conditions.key if self.conditions else PUBLISHED_DATA


def average(values: Sequence[float]) -> Average:
    """Compute mean and sample standard deviation of at least one value."""
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Average(mean, None)
    squares = math.fsum((v - mean) ** 2 for v in values)
    return Average(mean, math.sqrt(squares / (len(values) - 1)))


def make_rows(runs: Iterable[Run], *, published: bool = True) -> list[Row]:
    """Make the table: a row for an entry on one test set, ranked within its track.

    Args:
        runs: the runs of the board.
        published: whether the paper's rows stand among them.

    Returns:
        Rows by track: entries by data and rank by the first metric, then the paper's; at the end
        those that are not ranked, likewise.
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
        first = row.averages.get(best[0]) if best else None
        return (
            not row.ranked,
            tracks.index(row.track),
            row.published is not None,
            row.data_key,
            -first.mean if first else math.inf,
            row.name,
        )

    return sorted(rows, key=order)


def _row(runs: tuple[Run, ...]) -> Row:
    # A metric that some seeds lack would be a mean over other runs than the rest.
    shared = [
        name
        for name in in_order(runs[0].scores.scores)
        if all(run.value(name) is not None for run in runs)
    ]
    averages = {name: average([run.value(name) or 0.0 for run in runs]) for name in shared}
    manifest = runs[0].manifest
    return Row(
        manifest.name,
        manifest.track or "other",
        averages,
        len(runs),
        runs,
        Conditions.of(runs[0]),
    )


def _published_row(each: PublishedRow) -> Row:
    averages = {name: Average(mean, std) for name, (mean, std) in each.scores.items()}
    return Row(each.name, each.track, averages, SEEDS, published=each)


def _ranked(rows: list[Row]) -> list[Row]:
    """Rank rows: one more than the rows of equal track and data that are better."""
    rivals: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        for metric, own in row.averages.items():
            if row.ranked:
                rivals.setdefault((row.track, row.data_key, metric), []).append(-own.mean)
    for means in rivals.values():
        means.sort()

    def rank(row: Row, metric: str, own: Average) -> Average:
        if not row.ranked:
            return own
        better = bisect.bisect_left(rivals[row.track, row.data_key, metric], -own.mean)
        return dataclasses.replace(own, rank=1 + better)

    return [
        dataclasses.replace(
            row, averages={metric: rank(row, metric, a) for metric, a in row.averages.items()}
        )
        for row in rows
    ]


def metrics_of(rows: Iterable[Row]) -> list[str]:
    """Return the metrics that any row has, in the order in which pages show them."""
    return in_order(name for row in rows for name in row.averages)


def remarks(rows: Iterable[Row]) -> list[str]:
    """Say what keeps rows from being compared, a sentence each."""
    rows = list(rows)
    lines = [
        f"{row.name} was scored on images of a training split, and is not ranked"
        for row in rows
        if row.on_training_split
    ]
    by_key = {row.data_key: row.conditions for row in rows if row.conditions is not None}
    if len(by_key) < 2:
        return lines
    conditions = list(by_key.values())
    lines += [
        f"Entries were scored on {len(conditions)} different test sets or with different settings. "
        "Ranks are given within each; scores of different ones do not compare."
    ]
    first = conditions[0]
    for other in conditions[1:]:
        names = ", ".join(name for name, _, _ in differences(first.data, other.data))
        lines.append(f"{other.label} differs from {first.label} in: {names}")
    return lines


def table(rows: Sequence[Row]) -> list[str]:
    """Return the rows as `3dident leaderboard list` prints them."""
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
    lines += [f"{row.name} is not ranked: it {row.lacking}" for row in rows if row.lacking]
    return [*lines, *(f"warning: {remark}" for remark in remarks(rows))]


def as_data(rows: Iterable[Row]) -> dict[str, Any]:
    """Return the rows as `3dident leaderboard list --json` prints them, plain data."""
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


def _fraction(score: Average | None) -> str:
    if score is None:
        return "-"
    return f"{score.mean:.4f}" + ("" if score.std is None else f" +- {score.std:.4f}")
