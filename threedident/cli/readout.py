"""The command that probes: readout."""

from __future__ import annotations

from pathlib import Path

import click

from threedident.cli.group import main
from threedident.cli.options import PATH, bootstrap_option, seed_option


@main.command()
@click.argument("encoder", type=PATH)
@click.option("--data", type=PATH, required=True, help="The images, in any form.")
@click.option("--out", type=PATH, metavar="FILE.json", help="Also write the scores to a file.")
@click.option(
    "--images",
    type=click.IntRange(20),
    default=4096,
    show_default=True,
    help="The most images to take: half to fit on, half to score on.",
)
@click.option(
    "--augmentations",
    "only",
    multiple=True,
    metavar="NAME,...",
    help="Some of greyscale, brightness, contrast, hue, saturation, crop and blur. Can be "
    "repeated.  [default: all that fit the images]",
)
@bootstrap_option
@seed_option("images, augmentations and replicates that are drawn")
def readout(
    encoder: Path,
    data: Path,
    images: int,
    only: tuple[str, ...],
    bootstrap: int,
    seed: int,
    out: Path | None,
) -> None:
    """Probe an encoder: which augmentation did an image go through, and of which class is it?

    ENCODER is a run of `3dident train` on images: its folder, or the encoder.pt in it. Linear
    probes read its features behind the backbone, and its codes behind the projector. Each is
    fitted on one half of the images and scored on the other. Classes are the discrete factors of
    the dataset.

    \b
    Example:
      3dident readout runs/mine --data data/3dident-test
    """
    from threedident.evaluate.readout import read_out
    from threedident.storage.atomic_files import write_json

    result = read_out(
        encoder,
        data,
        images=images,
        only=[name for each in only for name in each.split(",")] or None,
        bootstrap=bootstrap,
        seed=seed,
        quiet=False,
    )
    click.echo(
        f"{encoder} on {data}: balanced accuracy in %, probes fitted on {result.fitted:,} images "
        f"and scored on {result.scored:,} others" + ("; with 95 % intervals" if bootstrap else "")
    )
    click.echo(result.text())
    if out is not None:
        write_json(out, result.as_dict())
        click.echo(f"wrote {out}")
