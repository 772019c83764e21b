"""Commands that train: train, reproduce, export."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import click

from threedident import defaults
from threedident.cli.group import main
from threedident.cli.options import PATH, DeviceOptions, device_options
from threedident.errors import UsageError

_OF_BATCHES = "_batch_statistics"
_NOTE = "  (batch normalisation by each batch's own statistics, as in the published scores)"


def _list_experiments(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from threedident.baselines.reproduce.studies import presets_by_study

    groups = presets_by_study()
    width = max(len(each.name) for presets in groups.values() for each in presets)
    click.echo(f"{'preset':{width}}  {'trained on':10}  {'steps':>7}  what")
    for title, presets in groups.items():
        click.echo(f"\n{title}")
        for each in presets:
            kind, steps = each.data.observations, f"{each.training.steps:,}"
            click.echo(f"{each.name:{width}}  {kind:10}  {steps:>7}  {each.title}")
    ctx.exit()


@main.command()
@click.argument("experiment", metavar="[PRESET|FILE.toml]", required=False)
@click.option(
    "--data",
    type=PATH,
    help="Images to train on; synthetic experiments need none.  [default: data/3dident, if there]",
)
@click.option(
    "--test",
    type=PATH,
    help="Images to score on.  [default: DATA-test beside --data, if there; else those of --data]",
)
@click.option("--out", type=PATH, help="The run's directory.")
@click.option(
    "--resume",
    type=PATH,
    metavar="RUN",
    help="Go on with a run, as it was started; with --set training.steps=..., beyond its end.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a field of the preset, e.g. training.steps=1000. Can be repeated.",
)
@click.option("--seed", type=click.IntRange(0), help="The same as --set training.seed=...")
@device_options
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_experiments,
    help="Print the presets and exit.",
)
@click.option("--show", is_flag=True, help="Print the whole experiment as TOML, and exit.")
def train(
    experiment: str | None,
    data: Path | None,
    test: Path | None,
    out: Path | None,
    resume: Path | None,
    settings: tuple[str, ...],
    seed: int | None,
    where: DeviceOptions,
    show: bool,
) -> None:
    """Train a baseline, or go on where a run was stopped.

    PRESET is a row of the papers' tables (see --list). The same command again continues a run
    that was interrupted, and so does --resume RUN.

    \b
    Examples:
      3dident train demo --data data/small --out runs/demo
      3dident train --resume runs/demo --set training.steps=4000
    """
    from threedident.baselines.checks import make_plan
    from threedident.baselines.experiment import load_experiment, parse_setting
    from threedident.baselines.training.run_folder import load_run

    changes = dict(map(parse_setting, settings))
    if seed is not None:
        changes["training.seed"] = seed
    if resume is not None:
        if experiment is not None or out is not None:
            raise UsageError(
                "--resume RUN goes on with the run of that directory: leave out the preset and "
                "--out"
            )
        chosen, out = load_run(resume, changes), resume
    elif experiment is None or (out is None and not show):
        raise UsageError("expected a PRESET (see --list) and --out RUN, or --resume RUN")
    else:
        chosen = load_experiment(experiment).changed(changes)
    if show or out is None:
        click.echo(chosen.to_toml(), nl=False)
        return
    options: dict[str, Any] = {"data": data, "test": test, "device": where.device}
    # Before torch is loaded. How many processes there are, torchrun says, to torch.
    make_plan(chosen, out, **options)

    from threedident.baselines.training.distributed import is_first_process
    from threedident.baselines.training.loop import train as run_training
    from threedident.baselines.training.run_folder import ENCODER

    result = run_training(chosen, out, devices=where.devices, threads=where.threads, **options)
    if not is_first_process():  # of those that torchrun has started
        return
    for name, value in result["scores"].items():
        click.echo(f"{name}: {value:.4f}{_NOTE if name.endswith(_OF_BATCHES) else ''}")
    for line in _factor_table(result):
        click.echo(line)
    click.echo(
        f"{result['steps']} steps in {result['seconds']:.0f} s; the encoder is "
        f"{out / ENCODER}, measurements are in {out / 'metrics.csv'}"
    )
    if result["data"].get("observations") == "images":
        click.echo(
            f"a report: 3dident evaluate reference:encoder={out / ENCODER} "
            f"--data {_place_of_test_images(out)}"
        )


def _place_of_test_images(out: Path) -> str:
    """The place of the images that a run was scored on, quoted for a shell; else TEST."""
    from threedident.baselines.training.run_folder import read_places

    test = read_places(out).get("test")
    return "TEST" if test is None else shlex.quote(os.path.relpath(test))


def _factor_table(result: dict[str, Any]) -> list[str]:
    """The final R2 and MCC of every factor, a line each."""
    from threedident.evaluate.text_tables import factor_table

    scores = result.get("per_factor") or {}
    columns = {"R2": scores.get("linear_r2") or (), "MCC": scores.get("mcc") or ()}
    count = max(map(len, columns.values()))
    names = result["data"].get("factors") or [f"factor {number}" for number in range(count)]
    table = [(label, dict(zip(names, values, strict=False))) for label, values in columns.items()]
    return factor_table([column for column in table if column[1]]) if count else []


class _Reproduce(click.Command):
    """The command `reproduce`, whose help lists the studies."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from threedident.baselines.tables import TABLES

        self.help = (self.help or "").replace("{studies}", ", ".join(TABLES))
        super().format_help_text(ctx, formatter)


@main.command(cls=_Reproduce)
@click.argument("what", metavar="WHAT")
@click.option("--data", type=PATH, help="Images to train on, instead of rendering them.")
@click.option("--test", type=PATH, help="Images to score on, instead of rendering them.")
@click.option(
    "--datasets",
    type=PATH,
    help="Where rendered datasets lie, by name, for several studies.  [default: OUT/data]",
)
@click.option("--out", type=PATH, required=True, help="A folder for one study at one scale.")
@click.option(
    "--rows",
    multiple=True,
    metavar="NAMES",
    help="Some rows: names or globs, separated by commas. Can be repeated.  [default: all]",
)
@click.option(
    "--seeds",
    type=click.IntRange(1),
    help="Seeds of each row.  [default: as many as the paper; 1 at other scales]",
)
@click.option(
    "--scale",
    default="paper",
    show_default=True,
    metavar="NAME",
    help="paper, cpu (cut down to two cores) or smoke (does it run?).",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a field of every experiment, e.g. training.steps=1000. Can be repeated.",
)
@device_options
def reproduce(
    what: str,
    out: Path,
    rows: tuple[str, ...],
    seeds: int | None,
    scale: str,
    settings: tuple[str, ...],
    data: Path | None,
    test: Path | None,
    datasets: Path | None,
    where: DeviceOptions,
) -> None:
    """Train what a table or figure is made of, and compare with the published numbers.

    WHAT is one of {studies}. Of these, matching and matching-synthetic measure what pairs of
    rendered images do, generators trains supervised on 3dident and its variants, and content-style
    measures which factors an encoder isolates, by views that share some and change others. kitti,
    dsprites and natural-sprites train on these datasets (--data); at the scales cpu and smoke, on
    drawn images like theirs where they are not given.

    Writes table.md, table.csv and figure.png after every run; the same command goes on where
    it was stopped.

    \b
    Example:
      3dident reproduce table2 --scale cpu --out runs/table2
    """
    from threedident.baselines.experiment import parse_setting
    from threedident.baselines.reproduce.runs import reproduce as run

    table = run(
        what,
        out,
        rows=",".join(rows) or None,
        seeds=seeds,
        scale=scale,
        changes=dict(map(parse_setting, settings)),
        data=data,
        test=test,
        datasets=datasets,
        devices=where.devices,
        device=where.device,
        threads=where.threads,
    )
    click.echo(table.read_text("utf-8"))
    click.echo(f"the table is {table}, the curves are {table.with_name('figure.png')}")


@main.command()
@click.argument("checkpoint", type=PATH)
@click.option("--out", type=PATH, required=True, help="The file, e.g. encoder.onnx.")
@click.option(
    "--resolution",
    type=click.IntRange(1, 4096),
    help="Pixels along each side of the images it takes.  [default: those it was trained on, or "
    f"{defaults.RESOLUTION} where that is not known]",
)
def export(checkpoint: Path, out: Path, resolution: int | None) -> None:
    """Write a trained encoder as ONNX: one file, preprocessing inside, any number of images.

    Its codes are held against torch's on random images.

    \b
    Example:
      3dident export runs/demo/encoder.pt --out encoder.onnx
    """
    from threedident.evaluate.submissions import onnx_export as exporting

    exported = exporting.export(checkpoint, out, resolution=resolution)
    side = exported.resolution
    why = ""
    if resolution is None:
        why = " (as it was trained on)" if exported.resolution_known else " (the default)"
    click.echo(
        f"wrote {out}: {exported.size / 1e6:.1f} MB, for images of {side} x {side}{why}, "
        f"{exported.codes} codes, opset "
        f"{exported.opset}; at most {exported.difference:.2g} from torch's codes"
    )
