"""The commands of a leaderboard: add, list, html, check."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from threedident import defaults
from threedident.cli.group import Group, main, say
from threedident.cli.options import PATH
from threedident.errors import (
    UsageError,
)

if TYPE_CHECKING:
    pass


@main.group(cls=Group)
def leaderboard() -> None:
    """Collect scored entries, list them, make a page of them, score them again."""


_board = click.option(
    "--board",
    type=PATH,
    default=Path("leaderboard"),
    show_default=True,
    help="The leaderboard's directory, with a folder entries/ in it.",
)


@leaderboard.command(name="add")
@click.argument("scores", type=PATH, metavar="SCORES.json")
@_board
@click.option("--submission", type=PATH, help="The file that was scored, kept with the entry.")
@click.option("--link", metavar="URL", help="Where the submission can be had instead.")
def leaderboard_add(scores: Path, board: Path, submission: Path | None, link: str | None) -> None:
    """Make an entry's folder, fit for a pull request, of what `3dident evaluate` wrote."""
    from threedident.evaluate.leaderboard.entries import add

    run, new = add(scores, board, submission=submission, link=link)
    click.echo(f"{'added' if new else 'there already:'} {run.folder}")


@leaderboard.command(name="list")
@_board
@click.option("--published/--no-published", default=True, help="The paper's own rows.")
@click.option("--json", "as_json", is_flag=True, help="Print plain data for programs.")
@click.pass_context
def leaderboard_list(ctx: click.Context, board: Path, published: bool, as_json: bool) -> None:
    """Print the table: a line for each entry, ranked within its track. Scores are fractions."""
    import json

    from threedident.evaluate.leaderboard.entries import read_board
    from threedident.evaluate.leaderboard.ranking import as_data, make_rows, table

    given = ctx.get_parameter_source("board") is not click.core.ParameterSource.DEFAULT
    begun = given or board.exists()
    rows = make_rows(read_board(board) if begun else [], published=published)
    if as_json:
        click.echo(json.dumps(as_data(rows), indent=2))
        return
    for line in table(rows):
        click.echo(line)
    if not begun:
        click.echo(f"there are no entries yet: `3dident leaderboard add` makes {board}")


@leaderboard.command(name="html")
@_board
@click.option("--out", type=PATH, required=True, help="The site's directory.")
@click.option("--title", default="3DIdent leaderboard", show_default=True, help="Of the page.")
def leaderboard_html(board: Path, out: Path, title: str) -> None:
    """Make a static page that sorts and filters, with every entry's report."""
    from threedident.evaluate.leaderboard.entries import read_board
    from threedident.evaluate.leaderboard.page import write_site

    click.echo(f"wrote {write_site(read_board(board), out, title)}")


@leaderboard.command(name="check")
@click.argument("entry", metavar="ENTRY|FOLDER")
@_board
@click.option("--data", type=PATH, help="The test set that the entry was scored on.")
@click.option(
    "--fresh",
    type=int,
    metavar="SEED",
    help="Score on images rendered anew from this seed, which nobody has trained on.",
)
@click.option(
    "--n",
    "count",
    type=click.IntRange(8, defaults.MOST_IMAGES),
    default=defaults.FRESH_IMAGES,
    show_default=True,
    help="Fresh images.",
)
@click.option("--out", type=PATH, help="Keep the fresh images in this directory.")
@click.option("--workers", type=click.IntRange(1), help="Render processes.")
@click.option("--submission", help="The submission, where the entry does not keep it.")
@click.option("--checkpoint", type=PATH, help="For a Python factory.")
@click.option("--train", type=PATH, help="The images that reference:pca was fitted on.")
@click.option("--trust", is_flag=True, help="Run code of the entry's authors (Python, torch).")
def leaderboard_check(
    entry: str,
    board: Path,
    data: Path | None,
    fresh: int | None,
    count: int,
    out: Path | None,
    workers: int | None,
    submission: str | None,
    checkpoint: Path | None,
    train: Path | None,
    trust: bool,
) -> None:
    """Score an entry again and say whether it holds.

    ENTRY is an entry's id, for all of its seeds, or the folder of one. On the data it was scored
    on (--data) scores must be equal; on images rendered anew (--fresh) they must not be worse.
    """
    import tempfile

    from threedident.evaluate.leaderboard.entries import find_runs
    from threedident.evaluate.leaderboard.reverify import (
        Encoder,
        check_encoder,
        check_fresh_seed,
        recheck,
        recheck_fresh,
        render_fresh,
    )

    if data is None and fresh is None:
        raise UsageError(
            "what shall it be scored on? --data TEST (the test set it was scored on), or "
            "--fresh SEED"
        )
    runs = find_runs(entry, board)
    encoder = Encoder(submission, checkpoint, train, trust)
    for run in runs:
        if fresh is not None:
            check_fresh_seed(run, fresh)
        check_encoder(run, encoder)
    bad = 0
    with tempfile.TemporaryDirectory(prefix="3dident-fresh-") as scratch:
        target = out or Path(scratch) / "fresh"
        for run in runs:
            click.echo(f"{run.entry}, seed {run.seed}")
            if fresh is None:
                assert data is not None
                verdict = recheck(run, data, encoder)
            else:
                for remark in render_fresh(
                    run, fresh, target, count=count, data=data, workers=workers
                ):
                    click.echo(f"  note: {remark}")
                verdict = recheck_fresh(run, target, encoder)
            for line in verdict.lines:
                click.echo(f"  {line}")
            for fault in verdict.faults:
                say(f"  fault: {fault}")
            click.echo(f"  {'it holds' if verdict.holds else 'it does not hold'}")
            bad += not verdict.holds
    if bad:
        raise SystemExit(1)
