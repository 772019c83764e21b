"""The command that opens a page: explore."""

from __future__ import annotations

from pathlib import Path

import click

from threedident.cli.group import main
from threedident.cli.options import (
    PATH,
    GeneratorOptions,
    checkpoint_option,
    generator_options,
    parse_fixed,
    split_option,
    trust_option,
)

_GENERATOR = ("preset", "shape", "material", "fixed")


@main.command()
@click.argument("dataset", type=PATH, required=False)
@generator_options
@click.option(
    "--model",
    metavar="NAME|FILE.toml",
    help="A causal model in place of a preset; see `3dident model`.",
)
@click.option(
    "--encoder",
    metavar="FILE.onnx|RUN",
    help="An encoder that follows the sliders: ONNX, or a run of `3dident train`.",
)
@trust_option
@checkpoint_option
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
@click.option(
    "--device", default="auto", show_default=True, metavar="KIND", help="auto, cpu or cuda."
)
@click.pass_context
def explore(
    ctx: click.Context,
    dataset: Path | None,
    generator: GeneratorOptions,
    model: str | None,
    encoder: str | None,
    trust: bool,
    checkpoint: Path | None,
    split: str | None,
    port: int | None,
    host: str,
    no_browser: bool,
    device: str,
) -> None:
    """Open a page on which one moves the factors, and the image answers.

    DATASET, in any form, can be looked through, and its pairs be compared with exact ones; an
    encoder's factors are read out on it. The page opens with its generator, unless --preset or
    --model names another. Needs the extra `explore`; matching pairs and encoders
    need `train`, too. Ctrl-C ends it.

    \b
    Examples:
      3dident explore
      3dident explore --model temporal-causal3dident-teapot
      3dident explore data/3dident --encoder encoder.onnx --port 9000 --no-browser
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
        model=model,
        encoder=encoder,
        trust=trust,
        checkpoint=checkpoint,
        split=split,
        host=host,
        port=port,
        browser=not no_browser,
        device=device,
        say=click.echo,
    )
