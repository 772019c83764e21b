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
    """Work on causal models."""


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

    from threedident.datasets.formats import open_dataset
    from threedident.datasets.model_fit import fit_release
    from threedident.storage.atomic_files import replacing

    if out is None and not as_json:
        raise UsageError("--out is missing: the model file to write")
    if out is not None and out.suffix != ".toml":
        raise UsageError(f"--out must end in .toml, found {out}")
    if out is not None and out.exists():
        raise UsageError(f"{out} exists already: choose another --out, or remove it")
    with open_dataset(dataset, split) as source:
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
