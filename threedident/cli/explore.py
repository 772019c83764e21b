"""The command that opens a page: explore."""

from __future__ import annotations

from pathlib import Path

import click

from threedident.cli.group import main
from threedident.cli.options import (
    PATH,
    GeneratorOptions,
    generator_options,
    parse_fixed,
    render_device_option,
    split_option,
)

_GENERATOR = ("preset", "shape", "material", "fixed")


@main.command()
@click.argument("dataset", type=PATH, required=False)
@generator_options
@split_option
@click.option(
    "--port", type=click.IntRange(0, 65535), help="The port.  [default: 8765, or the next free one]"
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="The address to listen on. Any other lets other machines in.",
)
@click.option("--no-browser", is_flag=True, help="Print the address, and open no browser.")
@render_device_option
@click.pass_context
def explore(
    ctx: click.Context,
    dataset: Path | None,
    generator: GeneratorOptions,
    split: str | None,
    port: int | None,
    host: str,
    no_browser: bool,
    device: str,
) -> None:
    """Open a page on which one moves the factors, and the image answers.

    DATASET, in any form, can be looked through, and its pairs be compared with exact ones. Needs
    the extra `explore`; matching pairs and encoders need `train`, too. Ctrl-C ends it.

    \b
    Examples:
      3dident explore
      3dident explore data/3dident --port 9000 --no-browser
    """
    from threedident.explore.app import explore as serve

    source = click.core.ParameterSource.DEFAULT
    chosen = any(ctx.get_parameter_source(name) is not source for name in _GENERATOR)
    serve(
        dataset,
        preset=generator.preset if chosen else None,
        shape=generator.shape,
        material=generator.material,
        fixed=parse_fixed(generator.fixed),
        split=split,
        host=host,
        port=port,
        browser=not no_browser,
        device=device,
        say=click.echo,
    )
