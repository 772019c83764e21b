"""The command `3dident sprites`: drawn images in a file, in the format of dSprites."""

from __future__ import annotations

from pathlib import Path

import click

from threedident.cli.group import main
from threedident.cli.options import PATH
from threedident.errors import UsageError


@main.command()
@click.argument(
    "kind", type=click.Choice(["dsprites", "natural-sprites"]), default="dsprites", required=False
)
@click.option(
    "--n",
    "objects",
    type=click.IntRange(1),
    help="Objects that move, of natural-sprites.  [default: 2000]",
)
@click.option("--out", type=PATH, required=True, help="The file to write: .npz, or .csv.")
@click.option(
    "--sizes",
    metavar="3x6x40x32x32",
    help="The number of shapes, scales, orientations, columns and rows of dsprites.  [default: "
    "the published ones]",
)
@click.option(
    "--seed", type=int, help="Seed of the objects' steps, of natural-sprites.  [default: 0]"
)
def sprites(kind: str, out: Path, sizes: str | None, objects: int | None, seed: int | None) -> None:
    """Draw images like those of dSprites, or move objects like those of Natural Sprites.

    dsprites writes an .npz file in the format of dSprites: a re-render, and not the dataset.
    natural-sprites writes a table of transitions (.csv), whose images are drawn when it is read.
    Nothing is overwritten. Without a file, both are at hand as drawn:sprites and
    drawn:natural-sprites, wherever a dataset is named.

    \b
    Example:
      3dident sprites --out data/sprites.npz
    """
    from threedident.datasets.papers.dsprites import write_dsprites
    from threedident.datasets.papers.natural_sprites import DEFAULT_OBJECTS, write_table
    from threedident.datasets.papers.sprites import SIZES, SpriteSource, parse_sizes
    from threedident.progress import format_bytes

    if kind == "dsprites":
        for option, value in (("--n", objects), ("--seed", seed)):
            if value is not None:
                raise UsageError(f"{option} is for natural-sprites: in dsprites nothing is random")
        count = write_dsprites(SpriteSource(parse_sizes(sizes) if sizes else SIZES), out)
        unit = "images"
    else:
        if sizes is not None:
            raise UsageError("--sizes is for dsprites: a table has no grid")
        count = write_table(out, objects or DEFAULT_OBJECTS, seed=seed or 0)
        unit = "objects"
    click.echo(f"{out}: {count:,} {unit}, {format_bytes(out.stat().st_size)}")
