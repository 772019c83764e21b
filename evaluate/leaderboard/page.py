"""The leaderboard as a static page: `index.html`, and the entries' reports beside it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from threedident.evaluate.leaderboard.entries import ENTRIES, Run
from threedident.evaluate.leaderboard.published_scores import LINK, SEEDS, SOURCE
from threedident.evaluate.leaderboard.ranking import (
    ENOUGH,
    Average,
    Row,
    make_rows,
    metrics_of,
    remarks,
)
from threedident.evaluate.report.header import declared, definitions
from threedident.evaluate.report.html import (
    Child,
    Html,
    asset,
    element,
    isolated,
    joined,
    page,
    web_link,
)
from threedident.evaluate.report.labels import NONE, in_order, metric_label
from threedident.evaluate.scores_file import REPORT, SCORES
from threedident.evaluate.submissions.manifest import TRACKS
from threedident.storage.atomic_files import explaining_write_errors, replacing

INDEX = "index.html"
TITLE = "3DIdent leaderboard"
_LONGEST = 120
#: A manifest's word for hyper-parameters that were chosen on the data that scores are of.
CHOSEN_ON_TEST = "test split"


def write_site(runs: Sequence[Run], out: Path, title: str = TITLE) -> Path:
    """Write the page, and copy reports to where it links them.

    Args:
        runs: the runs of the board.
        out: the site's directory; files of older entries in it are left there.
        title: the title of the page.

    Returns:
        The page's path.

    Raises:
        DatasetError: the directory cannot be written to.
    """
    rows = make_rows(runs)
    with explaining_write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        for run in runs:
            folder = out / _address(run)
            folder.mkdir(parents=True, exist_ok=True)
            for name in (REPORT, SCORES):
                if not (folder / name).exists() or not (folder / name).samefile(run.folder / name):
                    shutil.copyfile(run.folder / name, folder / name)
    with replacing(out / INDEX) as temporary:
        temporary.write_text(index(rows, title), "utf-8", newline="\n")
    return out / INDEX


def _address(run: Run) -> str:
    """Return a run's folder within the site."""
    return f"{ENTRIES}/{run.entry}/{run.seed}"


def index(rows: Sequence[Row], title: str = TITLE) -> str:
    """Return the page itself, as text."""
    metrics = metrics_of(rows)
    return page(
        title,
        element("h1", title),
        _preface(),
        _remarks(rows),
        _controls(rows, metrics),
        _table(rows, metrics),
        script=asset(__package__, "page.js"),
    )


def _preface() -> Html:
    return joined(
        element(
            "p",
            "Encoders that recover the latent factors of rendered images, scored by ",
            element("code", "3dident evaluate"),
            f". Scores are mean ± sample standard deviation over seeds. {ENOUGH} seeds "
            "make an entry, which is ranked among those of its track that were scored on the "
            "same data with the same settings; with fewer it has no rank, and stands at the end.",
        ),
        element(
            "p",
            "Rows marked “published, not re-run” are the paper's own (",
            element("a", SOURCE, href=LINK, rel="noopener"),
            f"; {SEEDS} seeds, another test set): nobody has run them again here.",
        ),
    )


def _remarks(rows: Sequence[Row]) -> Html | None:
    lines = [element("li", isolated(line)) for line in remarks(rows)]
    if not lines:
        return None
    return element("div", element("ul", *lines), class_="notice")


def _options(first: str, pairs: Sequence[tuple[str, str]]) -> list[Html]:
    return [
        element("option", first, value=""),
        *(element("option", label, value=value) for value, label in pairs),
    ]


def _controls(rows: Sequence[Row], metrics: Sequence[str]) -> Html:
    used = {row.track for row in rows}
    tracks = [(track, label) for track, label in TRACKS.items() if track in used]
    data = {
        row.data_key: row.conditions.label if row.conditions else "published test set"
        for row in rows
    }
    return element(
        "div",
        element(
            "label",
            "Method, name or author",
            element("input", id="search", type="search", autocomplete="off", size="22"),
        ),
        element("label", "Track", element("select", *_options("all", tracks), id="track")),
        element("label", "Data", element("select", *_options("all", [*data.items()]), id="data")),
        element(
            "label",
            "Metric",
            element(
                "select",
                *_options("all", [(name, metric_label(name)) for name in metrics]),
                id="metric",
                data_first=metrics[0] if metrics else "",
            ),
        ),
        element("div", id="count", class_="faint", role="status"),
        class_="controls",
        role="search",
        hidden=True,
    )


def _table(rows: Sequence[Row], metrics: Sequence[str]) -> Html:
    def head(label: str, kind: str = "text", metric: str | None = None) -> Html:
        return element(
            "th",
            isolated(label),
            scope="col",
            class_="number" if metric or kind == "number" else "words",
            data_kind=kind,
            data_metric=metric,
        )

    heads = [
        head("Rank", "number"),
        head("Entry"),
        head("Method"),
        head("Track"),
        head("Data"),
        *(head(metric_label(name), "number", name) for name in metrics),
        head("Seeds", "number"),
    ]
    table = element(
        "table",
        element("thead", element("tr", *heads)),
        element("tbody", *(_row(row, metrics) for row in rows)),
        class_="board",
    )
    return element("div", table, class_="scroll")


def _short(text: str) -> str:
    """Cut a text where it would fill the page; the details have all of it."""
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "\N{HORIZONTAL ELLIPSIS}"


def _cell(label: str, *children: Child, **attributes: str | int | bool | None) -> Html:
    """Make a cell; where the page is narrow, its label stands before it."""
    return element("td", element("div", *children), data_label=label, **attributes)


def _row(row: Row, metrics: Sequence[str]) -> Html:
    first = row.averages.get(metrics[0]) if metrics else None
    rank = first.rank if first else None
    method, authors = _method_and_authors(row)
    label = row.conditions.label if row.conditions else "published test set"
    words = (row.name, authors, method, row.runs[0].entry if row.runs else "")
    return element(
        "tr",
        element(
            "td",
            element("div", NONE if rank is None else str(rank)),
            class_="rank",
            data_label="Rank",
            data_value="" if rank is None else rank,
        ),
        element(
            "th",
            element("div", isolated(_short(row.name)), class_="name"),
            element("div", isolated(_short(authors)), class_="faint") if authors else None,
            *_badges(row),
            _reports(row),
            _details(row),
            scope="row",
            data_value=row.name,
        ),
        _cell("Method", isolated(_short(method) or NONE), class_="words"),
        _cell("Track", TRACKS[row.track], class_="words short"),
        _cell("Data", isolated(label), class_="words"),
        *(_score(row.averages.get(name), name) for name in metrics),
        _cell("Seeds", str(row.seeds), data_value=row.seeds, class_="number"),
        class_="published" if row.published else None,
        data_track=row.track,
        data_data=row.data_key,
        data_search=" ".join(words).lower(),
    )


def _method_and_authors(row: Row) -> tuple[str, str]:
    if row.published:
        parts = [row.published.model and f"{row.published.model} loss", row.published.space]
        return ", ".join(part for part in parts if part), SOURCE.split(",", 1)[0]
    if row.manifest is None:
        return "", ""
    return row.manifest.method or "", ", ".join(map(str, row.manifest.authors or ()))


def _score(score: Average | None, metric: str) -> Html:
    label = metric_label(metric)
    if score is None:
        return _cell(label, NONE, data_metric=metric, data_value="", class_="number")
    spread = "" if score.std is None else f" ± {score.std:.4f}"
    return _cell(
        label,
        f"{score.mean:.4f}{spread}",
        data_metric=metric,
        data_value=f"{score.mean:.9g}",
        data_rank=score.rank,
        class_="number",
    )


def _badges(row: Row) -> list[Html]:
    def badge(text: str, *, loud: bool = False) -> Html:
        return element("span", text, class_="badge loud" if loud else "badge")

    if row.published is not None:
        return [badge("published, not re-run")]
    badges = []
    if row.preliminary:
        badges.append(badge(f"not ranked: {row.lacking}"))
    if row.on_training_split:
        badges.append(badge("scored on a training split: not ranked", loud=True))
    if not row.verifiable:
        badges.append(badge("embeddings: not verifiable on fresh data", loud=True))
    elif not all(run.submission.is_at_hand for run in row.runs):
        badges.append(badge("weights are not kept here"))
    if row.manifest is not None and row.manifest.hyperparameters == CHOSEN_ON_TEST:
        badges.append(badge("hyper-parameters chosen on the test set, as declared", loud=True))
    return badges


def _reports(row: Row) -> Html | None:
    if not row.runs:
        return None
    links: list[Child] = ["Reports: "]
    for i, run in enumerate(row.runs):
        links += [
            ", " if i else None,
            element("a", f"seed {run.seed}", href=f"{_address(run)}/{REPORT}"),
        ]
    return element("div", *links, class_="reports")


def _details(row: Row) -> Html | None:
    """Show what the manifest declares and each seed's scores, folded away."""
    if row.published is not None:
        rows: list[tuple[str, Child]] = [
            ("conditional", row.published.conditional),
            ("loss", row.published.model),
            ("space", row.published.space),
        ]
        return None if not row.published.conditional else _folded(definitions(rows))
    kind = row.runs[0].submission.kind
    listed = definitions(
        [("name", isolated(row.name)), *declared(row.manifest), ("submission", kind)]
    )
    return _folded(joined(listed, element("ul", *map(_seed, row.runs))))


def _seed(run: Run) -> Html:
    """Show one seed's scores, where its submission is, and its warnings."""
    scores = ", ".join(_with_interval(run, name) for name in in_order(run.scores.scores))
    where: Child = None
    if run.submission.link:
        where = web_link(run.submission.link, "submission")
    elif run.submission.file:
        where = isolated(run.submission.file)
    return element(
        "li",
        f"seed {run.seed}: ",
        isolated(scores),
        joined("; ", where) if where else None,
        *(joined("; warning: ", isolated(each.message)) for each in run.scores.warnings),
    )


def _folded(content: Html) -> Html:
    return element("details", element("summary", "details"), content)


def _with_interval(run: Run, name: str) -> str:
    label, value = metric_label(name), run.value(name)
    if value is None:
        return f"{label} {NONE}"
    ends = run.scores.scores[name].ends
    between = "" if ends is None else f" [{ends[0]:.4f}, {ends[1]:.4f}]"
    return f"{label} {value:.4f}{between}"
