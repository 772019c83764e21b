"""Commands on causal models."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from threedident.cli.group import DefaultGroup, main, say
from threedident.cli.options import PATH, json_option, split_option
from threedident.errors import UsageError


@main.group(cls=DefaultGroup)
def model() -> None:
    """List causal models, check one and draw its graph; or fit one to a release.

    Without the name of a command, `show` is run: `3dident model NAME|FILE.toml`.
    """


@model.command()
@click.argument("name", required=False, metavar="[NAME|FILE.toml]")
@click.option("--list", "listed", is_flag=True, help="List the built-in models.")
@click.option("--svg", type=PATH, help="A picture of the graph to write, e.g. graph.svg.")
@click.option(
    "--environment",
    metavar="NAME",
    help="The environment whose graph --svg draws.  [default: the model as it is]",
)
@json_option
def show(
    name: str | None, listed: bool, svg: Path | None, environment: str | None, as_json: bool
) -> None:
    """Check a model, and say what it is; without a name, list the built-in ones.

    Prints its variables with parents and mechanisms, its environments, views and interventions,
    and which assumptions of identifiability theory hold for it. `holds` and `fails` follow from
    the file; `unknown` cannot be told from it.

    \b
    Examples:
      3dident model
      3dident model temporal-causal3dident-teapot
      3dident model own.toml --svg own.svg
    """
    import json

    from threedident.causal import load_model, model_names
    from threedident.causal.description import describe_model, list_lines, model_lines
    from threedident.causal.graph_picture import graph_svg

    if listed or name is None:
        if name is not None or svg is not None or environment is not None:
            raise UsageError("--svg and --environment are of one model, and --list is of none")
        models = [load_model(each) for each in model_names()]
        if as_json:
            fields = ("name", "description", "sources")
            click.echo(json.dumps([{f: getattr(m, f) for f in fields} for m in models], indent=2))
            return
        for line in list_lines(models):
            click.echo(line)
        return
    if svg is not None and svg.suffix != ".svg":
        raise UsageError(f"--svg must end in .svg, found {svg}")
    if environment is not None and svg is None:
        raise UsageError("--environment chooses what --svg draws: add --svg FILE")
    model = load_model(name)
    if svg is not None:
        from threedident.storage.atomic_files import replacing

        picture = graph_svg(model, environment)
        with replacing(svg) as temporary:
            temporary.write_text(picture, "utf-8")
    if as_json:
        click.echo(json.dumps(describe_model(model), indent=2))
        return
    for line in model_lines(model):
        click.echo(line)
    if svg is not None:
        click.echo(f"\nwrote {svg}")


@model.command()
@click.argument("dataset", type=PATH)
@click.option("--out", type=PATH, help="The model file to write, e.g. causal3dident.toml.")
@click.option(
    "--term",
    "terms",
    multiple=True,
    metavar="EXPRESSION",
    help="A term that means may be made of, beside a constant. Can be repeated; give all of them.  "
    "[default: spotlight_position, spotlight_hue and background_hue]",
)
@split_option
@json_option
def fit(
    dataset: Path, out: Path | None, terms: tuple[str, ...], split: str | None, as_json: bool
) -> None:
    """Fit the law of Causal3DIdent, which is not published, to a release.

    DATASET is a folder in its layout; images need not be looked at. For every class the other
    variables are taken as normals, truncated to [-1, 1], whose means are affine in the terms.
    What the latents contradict is said, here and in the file.

    \b
    Example:
      3dident model fit data/causal3dident/trainset --out causal3dident.toml
    """
    import dataclasses
    import json

    from threedident.datasets.formats import open_rendered
    from threedident.datasets.model_fit import fit_release
    from threedident.storage.atomic_files import replacing

    if out is None and not as_json:
        raise UsageError("--out is missing: the model file to write")
    if out is not None and out.suffix != ".toml":
        raise UsageError(f"--out must end in .toml, found {out}")
    if out is not None and out.exists():
        raise UsageError(f"{out} exists already: choose another --out, or remove it")
    with open_rendered(dataset, split) as source:
        law, text = fit_release(source, terms or None)
    if out is not None:
        with replacing(out) as temporary:
            temporary.write_text(text, "utf-8")
    if as_json:
        click.echo(json.dumps({**dataclasses.asdict(law), "misfits": law.misfits}, indent=2))
        return
    for name, laws in law.laws.items():
        click.echo(f"{name}:")
        for kind, each in zip(law.classes, laws, strict=True):
            how = "uniform" if each.std is None else f"mean {each.mean()}, std {each.std:.4g}"
            click.echo(f"  {kind:<12}{how}; {each.rows:,} rows, off by {each.distance:.4f}")
    for line in law.misfits:
        say(f"warning: {line}")
    command = f"3dident render --model {shlex.quote(str(out))} --n 100 --out data/fitted"
    click.echo(f"wrote {out}; render it: {command}")
