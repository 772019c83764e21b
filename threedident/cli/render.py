"""Commands that render: render, traverse, compare-engines, presets."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from threedident import defaults
from threedident.cli.group import EXIT_INTERRUPTED, command_line, main, say
from threedident.cli.options import (
    MODEL_OPTIONS,
    PATH,
    ConditionalOptions,
    GeneratorOptions,
    ModelOptions,
    RenderOptions,
    check_figure,
    compression_option,
    conditional_options,
    gathered,
    generator_options,
    model_options,
    parse_fixed,
    render_options,
    save_figure,
    seed_option,
)
from threedident.errors import DatasetError, RenderError, UsageError
from threedident.factors import FACTOR_NAMES, NUM_FACTORS, factor_index

if TYPE_CHECKING:
    from threedident.render.job import Summary


@dataclasses.dataclass(frozen=True)
class JobArguments:
    """The options of how a dataset is rendered and stored, as they are given."""

    threads: int
    part: str
    shard_size: int | None
    compression: str | None
    any_device: bool
    timeout: float | None
    images_per_worker: int | None
    executor: str
    address: str | None

    def as_arguments(self) -> dict[str, Any]:
        """The arguments of `render_dataset` that they stand for."""
        return {**dataclasses.asdict(self), "part": _parse_part(self.part)}


_job_options = gathered(
    JobArguments,
    "job",
    (
        click.option(
            "--threads",
            type=click.IntRange(1),
            default=1,
            show_default=True,
            help="Threads of each process.",
        ),
        click.option(
            "--shard",
            "part",
            default="0/1",
            metavar="I/K",
            help="Render only every K-th shard, from the I-th on: one member of a job array.",
        ),
        click.option(
            "--shard-size",
            type=click.IntRange(1, defaults.MOST_IN_A_SHARD),
            help=f"Images to a file.  [default: {defaults.SHARD_SIZE}]",
        ),
        compression_option("none"),
        click.option(
            "--any-device", is_flag=True, help="Continue a dataset begun on another kind of device."
        ),
        click.option(
            "--timeout",
            type=click.FloatRange(min=1),
            help=f"Seconds after which an image counts as hung.  [default: "
            f"{defaults.RENDER_TIMEOUT:g}, and more above {defaults.RESOLUTION} pixels]",
        ),
        click.option(
            "--images-per-worker",
            type=click.IntRange(1),
            help="Images after which a render process is replaced by a fresh one.  [default: "
            f"{defaults.IMAGES_PER_WORKER}; with --engine direct "
            f"{defaults.IMAGES_PER_DIRECT_WORKER}]",
        ),
        click.option(
            "--executor",
            type=click.Choice(["local", "ray"]),
            default="local",
            show_default=True,
            help="ray: shards are tasks on a Ray cluster, whose nodes all see --out under one "
            "path; --workers is then how many run at once at most.  [default of those: all that "
            "fit]",
        ),
        click.option(
            "--address",
            metavar="HOST:PORT",
            help="Address of the Ray cluster's head.  [default: $RAY_ADDRESS, the cluster that "
            "this machine belongs to, or one started here]",
        ),
    ),
)


@main.command()
@click.option(
    "--n",
    "count",
    type=int,
    help=f"Images, or pairs with --pairs; 1 to {defaults.MOST_IMAGES}.  "
    "[default: 250000; val and test: 25000]",
)
@click.option(
    "--out",
    type=PATH,
    help="The dataset's directory.  [default: data/PRESET, such as data/3dident; what is not the "
    "default follows: data/3dident-direct-64-test]",
)
@click.option(
    "--extend",
    type=PATH,
    metavar="DATASET",
    help="Continue this dataset with all of its settings, to --n; by itself to the largest number "
    "that was ever asked for, or to all latents that it was given.",
)
@generator_options
@click.option(
    "--latents",
    type=PATH,
    metavar="FILE.npy",
    help="Render these raw latents, (N, 10) in [-1, 1], instead of sampling.",
)
@click.option(
    "--pairs",
    is_flag=True,
    help="Images 2i and 2i + 1 are a positive pair, drawn exactly from --conditional.",
)
@conditional_options
@model_options
@click.option(
    "--split", default="train", show_default=True, metavar="NAME", help="train, val or test."
)
@seed_option("latents")
@render_options
@_job_options
@click.option(
    "--estimate",
    is_flag=True,
    help="Measure a few images here, print time and disk for the whole job, and exit.",
)
def render(
    count: int | None,
    out: Path | None,
    extend: Path | None,
    generator: GeneratorOptions,
    split: str,
    seed: int,
    latents: Path | None,
    pairs: bool,
    conditional: ConditionalOptions,
    model: ModelOptions,
    how: RenderOptions,
    job: JobArguments,
    estimate: bool,
) -> None:
    """Render a dataset, or go on where an earlier run was stopped.

    Finished shards are never lost: run the same command again to continue, and with a
    larger --n to extend; or name the dataset with --extend.

    \b
    Examples:
      3dident render --n 250000
      3dident render --n 4000 --engine direct --resolution 64 --out data/small
      3dident render --extend data/small --n 8000
      3dident render --model temporal-causal3dident-teapot --steps 100 --n 50 --out data/time
    """
    from threedident.render.dataset import RenderInterrupted, render_dataset
    from threedident.render.estimate import estimate_render
    from threedident.render.request import refuse_unused

    arguments = {**job.as_arguments(), "device": how.device, "workers": how.workers, "n": count}
    given = _given_options()
    if extend is not None:
        _check_extend(extend, given)
        arguments |= {"out": extend, "extend": True, "shape": generator.shape}
    else:
        if not pairs and conditional.any_given:
            raise UsageError("a conditional is for positive pairs: add --pairs")
        if latents is not None and not pairs:
            refuse_unused([given[name] for name in ("seed", "split") if name in given])
        if model.model is not None and "preset" in given:
            raise UsageError(
                "--model brings a scene of its own, so that --preset would do nothing: leave out "
                "one of them"
            )
        arguments |= {
            "out": out or _default_out(generator, split, how, pairs, model),
            "preset": generator.preset,
            "shape": generator.shape,
            "material": generator.material,
            "fixed": parse_fixed(generator.fixed),
            "split": split,
            "seed": seed,
            "latents": latents,
            "pairs": conditional.parse() if pairs else None,
            "engine": how.engine,
            "quality": how.quality,
            "resolution": how.resolution,
            **model.as_arguments(),
        }
    again = command_line()
    try:
        if estimate:
            click.echo(estimate_render(**arguments))
            return
        summary = render_dataset(**arguments, command=again)
    except RenderInterrupted as stopped:
        click.echo(stopped.summary)
        say(f"stopped; to continue: {again}")
        raise SystemExit(EXIT_INTERRUPTED) from None
    except (DatasetError, RenderError, KeyboardInterrupt) as error:
        for note in getattr(error, "__notes__", ()):
            say(f"{note}; to continue: {again}")
        raise
    _report(summary, again)


def _parse_part(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not int(match[1]) < int(match[2]):
        raise UsageError(f"--shard expects I/K with 0 <= I < K, found {text!r}")
    return int(match[1]), int(match[2])


def _given_options() -> dict[str, str]:
    """The options that were given on the command line: their parameters' names, and --names."""
    context = click.get_current_context()
    typed = click.core.ParameterSource.COMMANDLINE
    return {
        option.name: option.opts[0]
        for option in context.command.params
        if option.name and context.get_parameter_source(option.name) is typed
    }


#: What may stand beside --extend: how much, and how. All else comes from the dataset.
_BESIDE_EXTEND = frozenset(
    [
        "extend",
        "count",
        "shape",
        "device",
        "any_device",
        "workers",
        "threads",
        "part",
        "timeout",
        "images_per_worker",
        "executor",
        "address",
        "estimate",
    ]
)


def _check_extend(dataset: Path, given: dict[str, str]) -> None:
    """Refuse settings beside --extend, and datasets that are in another form than shards.

    Args:
        dataset: the dataset to extend.
        given: the options that were given: their parameters' names, and --names.

    Raises:
        UsageError: there is such a setting, or it is in such a form.
    """
    from threedident.storage.manifest import MANIFEST

    if others := [name for key, name in given.items() if key not in _BESIDE_EXTEND]:
        raise UsageError(
            f"--extend takes all settings from the dataset: leave out {', '.join(others)}"
        )
    if dataset.exists() and not (dataset / MANIFEST).is_file():
        from threedident.datasets.formats import find_form

        form = find_form(dataset)
        raise UsageError(
            f"{dataset} is in the form {form}, to which nothing is rendered: turn it into shards "
            f"first (3dident convert {shlex.quote(str(dataset))} --to shards --out DIR) and extend "
            "those"
        )


def _default_out(
    generator: GeneratorOptions, split: str, how: RenderOptions, pairs: bool, model: ModelOptions
) -> Path:
    """The directory that `render` writes to without --out.

    Raises:
        UsageError: an option decides the content, and the default would not show it.
    """
    from threedident.storage.directory import default_out

    context = click.get_current_context()
    unnamed = ("shape", "material", "fixed", "seed", "latents", *MODEL_OPTIONS[1:])
    others = [
        option.opts[0]
        for option in context.command.params
        if option.name in unnamed and context.params[option.name] not in (None, (), 0)
    ]
    target = default_out(
        generator.preset if model.model is None else model.model,
        split,
        engine=how.engine,
        quality=how.quality,
        resolution=how.resolution,
        pairs=pairs,
    )
    if others:
        raise UsageError(
            f"with {', '.join(others)}, say where it shall lie, for example --out {target}-mine: "
            "the default directory is named after preset or model, engine, quality, resolution, "
            "pairs and split alone"
        )
    return target


def _report(summary: Summary, again: str) -> None:
    """Print what a render did; exit with 1 where images failed."""
    click.echo(summary)
    if failures := summary.failures():
        say(f"error: {failures}; to try them again: {again}")
        raise SystemExit(1)
    click.echo(f"look at it: 3dident preview {shlex.quote(str(summary.root))}")


@main.command()
@click.option("--out", type=PATH, help="The picture.")
@click.option(
    "--sliders",
    type=PATH,
    metavar="FOLDER",
    help="Write a page with a slider for each factor instead: FOLDER/index.html, which needs no "
    "server.",
)
@generator_options
@click.option(
    "--steps",
    type=click.IntRange(2, 99),
    help="Values of each factor, from raw -1 to 1.  [default: 7; with --sliders 31]",
)
@render_options
def traverse(
    out: Path | None,
    sliders: Path | None,
    steps: int | None,
    generator: GeneratorOptions,
    how: RenderOptions,
) -> None:
    """Render each factor's traversal, a column a factor, as in the paper's Figure 3.

    The other factors stay at raw 0, or where the preset or --fix holds them.

    \b
    Examples:
      3dident traverse --engine direct --resolution 64 --out traversal.png
      3dident traverse --engine direct --resolution 192 --sliders traversals
    """
    from threedident.progress import format_bytes
    from threedident.render.figures import traversal_figure, traversal_latents
    from threedident.render.images import render_images
    from threedident.render.traversal_sliders import check_sliders, write_sliders
    from threedident.storage.atomic_files import explaining_write_errors

    if (out is None) == (sliders is None):
        raise UsageError("name one of --out (a picture) and --sliders (a folder for a page)")
    if out is not None:
        check_figure(out)
    steps = steps or (7 if sliders is None else 31)
    if sliders is not None:
        check_sliders(steps, how.resolution)
        with explaining_write_errors(sliders):
            sliders.mkdir(parents=True, exist_ok=True)
    preset = generator.load()
    base = {factor_index(name): value for name, value in preset.fixed.items()}
    raw = traversal_latents(steps, base).reshape(-1, NUM_FACTORS)
    images = render_images(
        raw,
        dataclasses.replace(preset, fixed={}),
        **dataclasses.asdict(how),
    )
    side = images.shape[1]
    grid = images.reshape(steps, NUM_FACTORS, side, side, 3)
    if sliders is not None:
        files = write_sliders(sliders, grid, preset)
        size = sum(file.stat().st_size for file in files)
        click.echo(f"wrote {files[0]} and {len(files) - 1} pictures, {format_bytes(size)}")
        return
    assert out is not None
    title = f"{preset.name} ({preset.about_objects()}): raw -1 to +1, downwards"
    save_figure(traversal_figure(grid, title), out)


@main.command(name="compare-engines")
@click.option("--n", "count", type=click.IntRange(1), default=64, show_default=True, help="Images.")
@click.option("--out", type=PATH, help="A contact sheet: both engines, and their difference.")
@generator_options
@seed_option("latents")
@render_options
def compare_engines(
    count: int,
    out: Path | None,
    seed: int,
    generator: GeneratorOptions,
    how: RenderOptions,
) -> None:
    """Render the same random latents with both engines, and say how far they differ.

    At qualities draft and standard, cycles takes the ground and the object's edges from the code
    of direct: only quality reference compares two programs. --device is that of the engine named
    by --engine; the other one chooses for itself.

    \b
    Example:
      3dident compare-engines --n 16 --quality reference --out engines.png
    """
    from threedident.latents import sample_raw_latents
    from threedident.render.comparison import compare_engines as compare

    if out is not None:
        check_figure(out)
    preset = generator.load()
    raw = preset.hold_fixed(sample_raw_latents(range(count), seed=seed, split="test"))
    comparison = compare(raw, preset, **dataclasses.asdict(how))
    click.echo(comparison)
    if out is not None:
        save_figure(comparison.figure(), out)


@main.command()
@click.argument("name", required=False, metavar="[NAME|FILE.toml]")
def presets(name: str | None) -> None:
    """List the presets, or show one.

    \b
    Examples:
      3dident presets
      3dident presets 3dident-wrapped
    """
    from threedident.presets import load_preset, preset_names

    if name is None:
        for each in preset_names():
            click.echo(f"{each:<26}{load_preset(each).description}")
        return
    preset = load_preset(name)
    click.echo(f"{preset.name}: {preset.description}")
    materials = " or ".join(preset.drawn_materials)
    shapes = " or ".join(preset.drawn_shapes)
    click.echo(f"{shapes} of scale {preset.scale:g}, {materials}, hue {preset.hue}")
    if preset.objects > 1:
        click.echo(f"objects {preset.objects}, spotlights {preset.spotlights}")
    if preset.lift != "half" or preset.ground != "object":
        ground = preset.ground if preset.ground == "object" else ", ".join(preset.ground)
        click.echo(f"lift {preset.lift}, ground by {ground}")
    if len(preset.columns) > NUM_FACTORS:
        click.echo(f"scene columns: {', '.join(preset.columns)}")
    for reason in preset.ambiguities():
        click.echo(f"not injective: {reason}")
    for factor in FACTOR_NAMES:
        low, high = preset.ranges[factor]
        held = f", fixed at raw {preset.fixed[factor]:g}" if factor in preset.fixed else ""
        best = f", best R2 {preset.best_r2[factor]:.4f}" if factor in preset.best_r2 else ""
        if not held and not best:
            best = ", best R2 -"
        click.echo(f"  {factor:<20}{low:8.4f} to {high:.4f}{held}{best}")
    unknown = [f for f in FACTOR_NAMES if f not in preset.fixed and f not in preset.best_r2]
    if unknown:
        click.echo(
            f"best R2 of {', '.join(unknown)} is not known: the preset's table best_r2 does not "
            "give it"
        )
    if preset.best_r2:
        click.echo("best R2 is of latents drawn uniformly, as `3dident render` draws them")
