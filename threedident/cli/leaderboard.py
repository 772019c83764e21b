"""The commands of a leaderboard: add, list, html, check."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from threedident import defaults
from threedident.cli.group import Group, main, say
from threedident.cli.options import (
    PATH,
    checkpoint_option,
    fitted_on_option,
    json_option,
    trust_option,
    workers_option,
)
from threedident.errors import UsageError

if TYPE_CHECKING:
    from threedident.evaluate.leaderboard.reverify import Verdict


@main.group(cls=Group)
def leaderboard() -> None:
    """Collect scored entries, list them, make a page of them, score them again.

    \b
    Example:
      3dident leaderboard list
    """


_board = click.option(
    "--board",
    type=PATH,
    default=Path("leaderboard"),
    show_default=True,
    help="The leaderboard's directory, with a folder entries/ in it.",
)


@leaderboard.command(name="add")
@click.argument("scores", type=PATH, metavar="SCORES.json|FOLDER")
@_board
@click.option("--submission", type=PATH, help="The file that was scored, kept with the entry.")
@click.option("--link", metavar="URL", help="Where the submission can be had instead.")
def leaderboard_add(scores: Path, board: Path, submission: Path | None, link: str | None) -> None:
    """Make an entry of what `3dident evaluate` wrote.

    The entry is a folder, fit for a pull request. SCORES.json lies beside its report.html; the
    folder of both will do.

    \b
    Example:
      3dident leaderboard add scores/mine --submission mine.onnx
    """
    from threedident.evaluate.leaderboard.add import add

    run, new = add(scores, board, submission=submission, link=link)
    click.echo(f"{'added' if new else 'there already:'} {run.folder}")


@leaderboard.command(name="list")
@_board
@click.option("--published/--no-published", default=True, help="The paper's own rows.")
@json_option
@click.pass_context
def leaderboard_list(ctx: click.Context, board: Path, published: bool, as_json: bool) -> None:
    """Print the table: a line for each entry, ranked within its track. Scores are fractions.

    \b
    Example:
      3dident leaderboard list --board leaderboard
    """
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
        click.echo(f"there are no entries yet: `3dident leaderboard add` makes the folder {board}")


@leaderboard.command(name="html")
@_board
@click.option("--out", type=PATH, required=True, help="The site's directory.")
@click.option(
    "--title", default="3DIdent leaderboard", show_default=True, help="Title of the page."
)
def leaderboard_html(board: Path, out: Path, title: str) -> None:
    """Make a static page of all entries.

    The page sorts and filters, and links every entry's report.

    \b
    Example:
      3dident leaderboard html --out site
    """
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
@workers_option
@click.option("--submission", help="The submission, where the entry does not keep it.")
@trust_option
@checkpoint_option
@fitted_on_option
def leaderboard_check(
    entry: str,
    board: Path,
    data: Path | None,
    fresh: int | None,
    count: int,
    out: Path | None,
    workers: int | None,
    submission: str | None,
    trust: bool,
    checkpoint: Path | None,
    train: Path | None,
) -> None:
    """Score an entry again and say whether it holds.

    ENTRY is an entry's id, for all of its seeds, or the folder of one. On the data it was scored
    on (--data) scores must be equal; on images rendered anew (--fresh) they must not be worse.

    \b
    Example:
      3dident leaderboard check an-entry --data data/3dident-test
    """
    import tempfile

    from threedident.evaluate.leaderboard.entries import find_runs
    from threedident.evaluate.leaderboard.reverify import (
        EncoderChoice,
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
    encoder = EncoderChoice(submission, checkpoint, train, trust)
    for run in runs:
        if fresh is not None:
            check_fresh_seed(run, fresh)
        check_encoder(run, encoder)
    all_hold = True
    with tempfile.TemporaryDirectory(prefix="3dident-fresh-") as scratch:
        target = out or Path(scratch) / "fresh"
        for run in runs:
            click.echo(f"{run.entry}, seed {run.seed}")
            if fresh is None:
                assert data is not None
                verdict = recheck(run, data, encoder)
            else:
                options: dict[str, Any] = {"count": count, "data": data, "workers": workers}
                for remark in render_fresh(run, fresh, target, **options):
                    click.echo(f"  note: {remark}")
                verdict = recheck_fresh(run, target, encoder)
            _print_verdict(verdict)
            all_hold = all_hold and verdict.holds
    if not all_hold:
        raise SystemExit(1)


def _print_verdict(verdict: Verdict) -> None:
    for line in verdict.lines:
        click.echo(f"  {line}")
    for fault in verdict.faults:
        say(f"  fault: {fault}")
    click.echo(f"  {'it holds' if verdict.holds else 'it does not hold'}")
