"""The command line. Heavy modules are imported inside the commands that need them."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from threedident.errors import (
    DatasetError,
    MissingExtraError,
    RenderError,
    ThreeDIdentError,
    ThreeDIdentWarning,
    UsageError,
)
from threedident.factors import FACTOR_NAMES, factor_index

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from threedident.distributions import Distribution
    from threedident.presets import Preset
    from threedident.render.engine import EngineSettings
    from threedident.render.job import JobOptions, Summary
    from threedident.storage.directory import DatasetDir

PATH = click.Path(path_type=Path)
EXIT_INTERRUPTED = 130
EXIT_UNREAD = 141  # as of a program that SIGPIPE ends
MOST_IMAGES = 100_000_000


#: `3dident --help`: what one wants to do, the commands for it, and a line on each.
SECTIONS = {
    "Make a dataset": {
        "render": "Render a dataset, or continue one.",
        "presets": "List what can be rendered.",
        "download": "Fetch the published dataset.",
    },
    "Look at it": {
        "info": "Say what a dataset is.",
        "verify": "Check that a dataset is whole and unchanged.",
        "preview": "Write a contact sheet.",
        "stats": "Print mean and standard deviations.",
        "pairs": "Measure how far positive pairs follow their conditional.",
        "traverse": "Render what each factor does.",
        "compare-engines": "Measure how far the two engines differ.",
        "compare-release": "Find out which preset made a dataset.",
    },
    "Hand it over": {
        "pack": "Join a dataset into one HDF5 file.",
        "convert": "Write a dataset in another form.",
    },
    "Train": {
        "train": "Train a baseline, or continue a run.",
        "reproduce": "Train the rows of a paper's table, and compare.",
        "export": "Write a trained encoder as ONNX.",
    },
    "Score": {
        "evaluate": "Score an encoder, or recovered latents.",
        "leaderboard": "Collect, rank and re-check scored entries.",
    },
    "Set up": {"doctor": "Check what is installed."},
}


def _say(message: str) -> None:
    """Prints a line on stderr; where nobody can read it, the work goes on all the same."""
    with contextlib.suppress(OSError, ValueError):
        click.echo(message, err=True)


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Shows our own warnings in one line each, without the line of code that they come from."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_plainly(message: Any, category: type[Warning], *place: Any) -> None:
            if issubclass(category, ThreeDIdentWarning):
                _say(f"warning: {message}")
            else:
                show(message, category, *place)

        warnings.showwarning = show_plainly  # type: ignore[assignment]
        yield


class _Group(click.Group):
    """Commands in the order in which one needs them, errors without a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _plain_warnings():
                return super().invoke(ctx)
        except ThreeDIdentError as error:
            _say(f"error: {error}")
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            _say("interrupted")
            ctx.exit(EXIT_INTERRUPTED)
        except BrokenPipeError:
            # Whoever read our output has seen enough of it; what was not done yet is not done.
            sys.stderr.close()
            ctx.exit(EXIT_UNREAD)
        except OSError as error:
            _say(f"error: {error}")
            ctx.exit(UsageError.exit_code)


class _Main(_Group):
    """The commands of `3dident`, by what one wants to do."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))


@click.group(
    cls=_Main,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="For example: 3dident render --engine direct --resolution 64 --n 1000 --out data/small. "
    "3dident COMMAND --help explains a command.",
)
@click.version_option(package_name="threedident", prog_name="3dident")
def main() -> None:
    """Render 3DIdent, load it, train the baselines, score any encoder."""


def _parse_fixed(entries: tuple[str, ...]) -> dict[str, float]:
    fixed: dict[str, float] = {}
    for entry in entries:
        name, equals, text = entry.partition("=")
        if not equals:
            raise UsageError(f"--fix expects FACTOR=VALUE, found {entry!r}")
        factor_index(name)
        try:
            value = float(text)
        except ValueError:
            raise UsageError(f"--fix {name}: expected a number, found {text!r}") from None
        if not -1 <= value <= 1:
            raise UsageError(f"--fix {name}: a raw value in [-1, 1], found {text}")
        fixed[name] = value
    return fixed


def _load_preset(
    name: str, shape: str | None, material: str | None, fixed: tuple[str, ...] = ()
) -> Preset:
    from threedident.presets import load_preset

    return load_preset(name).changed(fixed=_parse_fixed(fixed), shape=shape, material=material)


def _generator_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--fix",
            "fixed",
            multiple=True,
            metavar="FACTOR=VALUE",
            help="Hold a factor at a raw value in [-1, 1]. Can be repeated.",
        ),
        click.option(
            "--material", metavar="NAME", help="rubber, metal or crystal, instead of the preset's."
        ),
        click.option(
            "--shape",
            metavar="NAME|FILE",
            help="teapot, cube, sphere, cylinder or a mesh file, instead of the preset's.",
        ),
        click.option(
            "--preset",
            default="3dident",
            show_default=True,
            metavar="NAME|FILE.toml",
            help="What to render; see `3dident presets`.",
        ),
    ):
        function = option(function)
    return function


def _render_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--engine",
            default="cycles",
            show_default=True,
            metavar="NAME",
            help="cycles (Blender) or direct (direct integration, on NVIDIA Warp).",
        ),
        click.option(
            "--workers",
            type=click.IntRange(1),
            help="Render processes.  [default: one per processor, or per GPU]",
        ),
        click.option(
            "--device",
            default="auto",
            show_default=True,
            metavar="KIND",
            help="auto, cpu, cuda, optix, hip, metal or oneapi.",
        ),
        click.option(
            "--quality",
            default="standard",
            show_default=True,
            metavar="LEVEL",
            help="draft, standard or reference (the published settings).",
        ),
        click.option(
            "--resolution",
            type=int,
            default=224,
            show_default=True,
            help="Pixels along each side, 8 to 4096.",
        ),
    ):
        function = option(function)
    return function


def _conditional_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--change",
            metavar="K",
            help="Only K of the factors, chosen anew for each pair, change; or LEAST-MOST of them.",
        ),
        click.option(
            "--unchanged",
            multiple=True,
            metavar="FACTOR|GROUP",
            help="A factor or group that both members share (content). Can be repeated.",
        ),
        click.option("--beta", type=float, help="Exponent of gennorm.  [default: 3]"),
        click.option("--lambda", "lam", metavar="WIDTH", help="Scale of laplace or gennorm."),
        click.option(
            "--sigma",
            metavar="WIDTH",
            help="Standard deviation of normal, in raw units; or one per factor: 0.1,0.2,...",
        ),
        click.option(
            "--conditional",
            metavar="NAME",
            help="p(z~ | z): normal, laplace, gennorm (generalised normal) or uniform.",
        ),
    ):
        function = option(function)
    return function


def _parse_conditional(
    name: str | None,
    sigma: str | None,
    lam: str | None,
    beta: float | None,
    unchanged: tuple[str, ...],
    change: str | None,
    factors: tuple[str, ...] = FACTOR_NAMES,
) -> Distribution:
    """The conditional that the options describe, over the columns `factors`."""
    from threedident.distributions import (
        Change,
        GeneralizedNormal,
        Laplace,
        Normal,
        PerFactor,
        Unchanged,
        Uniform,
    )
    from threedident.factors import factor_columns

    takes = {"normal": {"--sigma"}, "laplace": {"--lambda"}, "gennorm": {"--lambda", "--beta"}}
    takes["uniform"] = set()
    if name is None:
        raise UsageError(f"--conditional must be one of {', '.join(takes)}: it is missing")
    if name not in takes:
        raise UsageError(f"--conditional must be one of {', '.join(takes)}, found {name!r}")
    given = {"--sigma": sigma, "--lambda": lam, "--beta": beta}
    for option, value in given.items():
        if value is not None and option not in takes[name]:
            raise UsageError(f"--conditional {name} takes no {option}")
    for option in takes[name] - {"--beta"}:
        if given[option] is None:
            raise UsageError(
                f"--conditional {name} needs {option}, its width in raw units "
                "(the published default is 0.1)"
            )

    held = {FACTOR_NAMES[c] for c in factor_columns(unchanged)}
    moving = [column for column, factor in enumerate(factors) if factor not in held]
    if not moving:
        raise UsageError("--unchanged leaves no factor that changes")

    def width(option: str) -> float | tuple[float, ...]:
        text = str(given[option])
        try:
            values = tuple(float(part) for part in text.split(","))
        except ValueError:
            raise UsageError(
                f"{option}: expected a number or a list of them, found {text!r}"
            ) from (None)
        if len(values) == 1:
            return values[0]
        if len(values) != len(factors):
            raise UsageError(f"{option} has {len(values)} widths, expected {len(factors)} or one")
        return tuple(values[column] for column in moving)

    made: Distribution
    match name:
        case "normal":
            made = Normal(width("--sigma"))
        case "laplace":
            made = Laplace(width("--lambda"))
        case "gennorm":
            made = GeneralizedNormal(width("--lambda"), 3.0 if beta is None else beta)
        case _:
            made = Uniform()
    if change is not None:
        match = re.fullmatch(r"(\d{1,2})(?:-(\d{1,2}))?", change)
        if not match or int(match[2] or match[1]) < 1:
            raise UsageError(f"--change expects K or LEAST-MOST, found {change!r}")
        made = Change(made, int(match[1]) if match[2] is None else (int(match[1]), int(match[2])))
    if not held:
        return made
    still = tuple(column for column in range(len(factors)) if column not in moving)
    return PerFactor(((tuple(moving), made), (still, Unchanged())))


def _parse_part(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not int(match[1]) < int(match[2]):
        raise UsageError(f"--shard expects I/K with 0 <= I < K, found {text!r}")
    return int(match[1]), int(match[2])


#: What may stand beside --extend: how much, and how. All else comes from the dataset.
_BESIDE_EXTEND = {
    *("extend", "count", "shape", "device", "any_device", "workers", "threads", "part"),
    *("timeout", "images_per_worker", "executor", "address", "estimate"),
}


@main.command()
@click.option(
    "--n",
    "count",
    type=int,
    help=f"Images, or pairs with --pairs; 1 to {MOST_IMAGES}.  "
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
@_generator_options
@click.option(
    "--split", default="train", show_default=True, metavar="NAME", help="train, val or test."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the latents.")
@click.option(
    "--latents",
    "latents_file",
    type=PATH,
    metavar="FILE.npy",
    help="Render these raw latents, (N, 10) in [-1, 1], instead of sampling.",
)
@click.option(
    "--pairs",
    is_flag=True,
    help="Images 2i and 2i + 1 are a positive pair, drawn exactly from --conditional.",
)
@_conditional_options
@_render_options
@click.option(
    "--threads", type=click.IntRange(1), default=1, show_default=True, help="Of each process."
)
@click.option(
    "--shard",
    "part",
    default="0/1",
    metavar="I/K",
    help="Render only every K-th shard, from the I-th on: one member of a job array.",
)
@click.option(
    "--shard-size", type=click.IntRange(1, 10_000), help="Images to a file.  [default: 100]"
)
@click.option("--compression", metavar="NAME", help="Of the images: none or gzip.  [default: none]")
@click.option(
    "--any-device", is_flag=True, help="Continue a dataset begun on another kind of device."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    help="Seconds after which an image counts as hung.  [default: 600, and more above 224 pixels]",
)
@click.option(
    "--images-per-worker",
    type=click.IntRange(1),
    help="Images after which a render process is replaced by a fresh one.  [default: 1000]",
)
@click.option(
    "--executor",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="ray: shards are tasks on a Ray cluster, whose nodes all see --out under one path; "
    "--workers is then how many run at once at most.  [default of those: all that fit]",
)
@click.option(
    "--address",
    metavar="HOST:PORT",
    help="Of the Ray cluster's head.  [default: $RAY_ADDRESS, the cluster that this machine "
    "belongs to, or one started here]",
)
@click.option(
    "--estimate",
    is_flag=True,
    help="Measure a few images here, print time and disk for the whole job, and exit.",
)
def render(
    count: int | None,
    out: Path | None,
    extend: Path | None,
    preset: str,
    shape: str | None,
    material: str | None,
    fixed: tuple[str, ...],
    split: str,
    seed: int,
    latents_file: Path | None,
    pairs: bool,
    conditional: str | None,
    sigma: str | None,
    lam: str | None,
    beta: float | None,
    unchanged: tuple[str, ...],
    change: str | None,
    resolution: int,
    quality: str,
    device: str,
    engine: str,
    workers: int | None,
    threads: int,
    part: str,
    shard_size: int | None,
    compression: str | None,
    any_device: bool,
    timeout: float | None,
    images_per_worker: int | None,
    executor: str,
    address: str | None,
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
    """
    from threedident.distributions.philox_sampler import check_renderable
    from threedident.latents import SPLIT_SIZES, load_raw_latents, sample_raw_latents
    from threedident.render.executors.process_pool import IMAGES_PER_WORKER
    from threedident.render.job import (
        Content,
        JobOptions,
        default_timeout,
        default_workers,
        probe,
        render_dataset,
        render_here,
        resolve_device,
    )
    from threedident.render.mesh import SHAPES, get_mesh
    from threedident.storage.directory import (
        MANIFEST,
        DatasetDir,
        Manifest,
        check_place,
        read_manifest,
    )
    from threedident.storage.shards import default_shard_size, storage_options

    if count is not None and not 1 <= count <= MOST_IMAGES:
        raise UsageError(f"--n must be at least 1 and at most {MOST_IMAGES}, found {count}")
    if timeout is not None and not math.isfinite(timeout):
        raise UsageError(f"--timeout must be a number of seconds, found {timeout}")
    sample_raw_latents([], seed=seed, split=split)  # complains about either
    member, members = _parse_part(part)
    if executor != "ray" and address is not None:
        raise UsageError("--address is of a Ray cluster: add --executor ray")
    if executor == "ray" and estimate:
        raise UsageError("--estimate measures this machine: leave out --executor ray")
    given_options, wanted = _given_options(), None
    storage_options("images", (), compression or "none")
    if extend is not None:
        if others := [name for key, name in given_options.items() if key not in _BESIDE_EXTEND]:
            raise UsageError(
                f"--extend takes all settings from the dataset: leave out {', '.join(others)}"
            )
        if extend.exists() and not (extend / MANIFEST).is_file():
            from threedident.datasets.formats.sources import find_form

            form = find_form(extend)
            raise UsageError(
                f"{extend} is in the form {form}, to which nothing is rendered: turn it into "
                f"shards first (3dident convert {shlex.quote(str(extend))} --to shards --out DIR) "
                "and extend those"
            )
        out, there = extend, DatasetDir.open(extend)
        content, wanted = Content.of(there, shape), there.wanted()
    else:
        generator = _load_preset(preset, shape, material, fixed)
        given = load_raw_latents(latents_file) if latents_file else None
        process = None
        if pairs:
            if given is not None:
                raise UsageError("--pairs draws the latents itself: leave out --latents")
            process = _parse_conditional(conditional, sigma, lam, beta, unchanged, change)
            check_renderable(process)
        elif any(o not in (None, ()) for o in (conditional, sigma, lam, beta, unchanged, change)):
            raise UsageError("a conditional is for positive pairs: add --pairs")
        if given is not None and (both := given_options.keys() & {"seed", "split"}):
            named = " and ".join(given_options[key] for key in sorted(both))
            raise UsageError(f"--latents are not sampled, so that {named} would do nothing")
        content = Content(generator, resolution, quality, engine, seed, split, given, process)
        if out is None:
            out = _default_out(preset, split, engine, quality, resolution, pairs)
    content.engine_settings(device)  # complains at once
    check_place(out)
    generator, given, engine = content.preset, content.given, content.engine
    each = 1 if content.conditional is None else 2
    if given is None and count is not None:
        total = count * each
    elif given is None and extend is None:
        total = SPLIT_SIZES[content.split] * each
    elif given is None:
        if wanted is None:
            raise UsageError(f"{out} does not record how many images it shall have: add --n")
        total = wanted
    else:
        total = len(given) if count is None else count
        if total > len(given):
            raise UsageError(
                f"--n {total} is more than the {len(given)} rows of "
                f"{latents_file or 'its given latents'}"
            )
        try:
            generator.require_fixed(given, str(latents_file or "the given latents"))
        except UsageError as error:
            if not (out / MANIFEST).exists():
                raise
            # Older versions altered them and said nothing.
            _say(f"warning: {error}. {out} was begun so, and goes on")
    mesh = get_mesh(generator.shape)
    for warning in () if generator.shape in SHAPES else mesh.warnings():
        _say(f"warning: {warning}")
    if unseen := content.frame_warning():
        _say(f"warning: {unseen}")

    again = shlex.join(["3dident", *sys.argv[1:]])
    with contextlib.ExitStack() as stack:
        cluster = None
        if executor == "ray":
            from threedident.render.executors.ray import IN_FLIGHT, connect

            cluster = stack.enter_context(connect(address))
        try:
            found = cluster.probe(engine, device, threads) if cluster else probe(engine)
        except KeyboardInterrupt:
            _say(f"nothing was begun; to continue: {again}")
            raise
        kind = resolve_device(device, found)
        if device == "auto" and (out / MANIFEST).exists():
            # "auto" is settled when a dataset is created; going on means the same device.
            before = read_manifest(out).engine["device"]
            kind = before if before in found.devices else kind
        settings = content.engine_settings(kind, found.version)
        options = JobOptions(
            workers=workers or (IN_FLIGHT if cluster else default_workers(kind, found, threads)),
            threads=threads,
            devices=found.devices[kind],
            part=member,
            parts=members,
            timeout=timeout or default_timeout(content.resolution),
            images_per_worker=images_per_worker or IMAGES_PER_WORKER,
        )
        if estimate and not (out / MANIFEST).exists():
            size = shard_size or default_shard_size(content.resolution)
            manifest = Manifest.new(
                content.settings(settings), size, compression or "none", generator.about()
            )
            _estimate(DatasetDir(out, manifest), total, settings, options, given)
            return
        dataset = DatasetDir.create_or_open(
            out,
            content.settings(settings),
            shard_size=shard_size,
            compression=compression,
            about=generator.about(),
            given=given,
            any_device=any_device,
        )
        if estimate:
            _estimate(dataset, total, settings, options, given)
            return
        where = f"{options.workers} process{'es' * (options.workers > 1)}"
        if cluster:
            where = "a Ray cluster"

        def announce() -> None:
            for line in _first_lines(dataset, total, settings, options, where):
                _say(line)

        try:
            how = cluster.render if cluster else render_here
            summary = render_dataset(dataset, total, settings, options, how, announce)
        except (DatasetError, RenderError, KeyboardInterrupt) as error:
            _say(f"finished shards are kept; to continue: {again}")
            raise error
    _report(dataset, summary, again)


def _given_options() -> dict[str, str]:
    """The options that were given on the command line: their parameters' names, and --names."""
    context = click.get_current_context()
    typed = click.core.ParameterSource.COMMANDLINE
    return {
        option.name: option.opts[0]
        for option in context.command.params
        if option.name and context.get_parameter_source(option.name) is typed
    }


def _default_out(
    preset: str,
    split: str,
    engine: str,
    quality: str,
    resolution: int,
    pairs: bool,
) -> Path:
    """Where `render` writes without --out.

    Raises:
        UsageError: an option decides the content, and the default would not show it.
    """
    from threedident.storage.directory import default_out

    context = click.get_current_context()
    unnamed = ("shape", "material", "fixed", "seed", "latents_file")
    others = [
        option.opts[0]
        for option in context.command.params
        if option.name in unnamed and context.params[option.name] not in (None, (), 0)
    ]
    target = default_out(
        preset, split, engine=engine, quality=quality, resolution=resolution, pairs=pairs
    )
    if others:
        raise UsageError(
            f"with {', '.join(others)}, say where it shall lie, for example --out {target}-mine: "
            "the default directory is named after preset, engine, quality, resolution, pairs "
            "and split alone"
        )
    return target


def _first_lines(
    dataset: DatasetDir, total: int, settings: EngineSettings, options: JobOptions, where: str
) -> list[str]:
    """What is said before the work: what and where, disk, how to make it faster and to stop."""
    import shutil

    from threedident.progress import format_bytes
    from threedident.render.job import image_bytes
    from threedident.storage.shards import missing_intervals

    root, manifest = dataset.root, dataset.manifest
    shards = dataset.shards()
    have = sum(interval.count for interval in shards)
    lacks, ours = (
        sum(
            interval.count
            for interval in missing_intervals(
                total, manifest.shard_size, shards, part=part, parts=parts
            )
        )
        for part, parts in ((0, 1), (options.part, options.parts))
    )
    if not ours:
        more = [f"{root} already has {have} images, more than the {total} asked for"]
        return more if have > total else []
    latents = manifest.settings["latents"]["source"]
    what = f"{total:,} images" if latents != "pairs" else f"{total // 2:,} pairs, {total:,} images,"
    drawn = f"split {manifest.settings['split']}, seed {manifest.settings['seed']}"
    rest = f"part {options.part}/{options.parts}, {ours:,} of the rest," * (options.parts > 1)
    size = image_bytes(ours, settings.resolution)
    faster = (
        settings.engine == "cycles"
        and settings.device == "cpu"  # all that it was measured on
        and settings.preset.material != "crystal"
    )
    return [
        f"rendering {what} into {root}: preset {settings.preset.name}, "
        f"{'given latents' if latents == 'file' else drawn}, {settings.resolution} x "
        f"{settings.resolution} pixels",
        f"engine {settings.engine}, quality {settings.quality}, {settings.device}, on {where}",
        f"{total - lacks:,} of {total:,} images are there; {rest or 'the rest'} takes "
        f"{'up to ' * (manifest.compression != 'none')}{format_bytes(size)} of disk "
        f"({format_bytes(shutil.disk_usage(root).free)} are free)",
        "how long it takes is said after half a minute; --estimate measures it beforehand"
        + ("; --engine direct is quicker" if faster else ""),
        "Ctrl-C stops it and keeps what is finished; the same command continues",
    ]


def _estimate(
    dataset: DatasetDir,
    total: int,
    settings: EngineSettings,
    options: JobOptions,
    given: npt.NDArray[np.float32] | None,
) -> None:
    """Prints what a render of a dataset would take; nothing is written into it."""
    import dataclasses
    import shutil

    import numpy as np

    from threedident.render.estimate import describe, measure
    from threedident.storage.shards import missing_intervals

    root, size = dataset.root, dataset.manifest.shard_size
    shards = dataset.shards() if root.is_dir() else {}
    todo = missing_intervals(total, size, shards, part=options.part, parts=options.parts)
    images = sum(interval.count for interval in todo)
    if not images:
        click.echo(f"{root}: all {total} images are there")
        return
    chosen = np.random.default_rng(0).choice(total, min(total, 1024), replace=False)
    preset = settings.preset
    raw = dataset.raw_latents(chosen) if given is None else preset.hold_fixed(given[chosen])
    folder = next(place for place in (root, *root.absolute().parents) if place.is_dir())
    options = dataclasses.replace(options, workers=min(options.workers, images))
    measured = measure(
        settings,
        raw,
        options,
        folder=folder,
        shard_size=min(size, images),
        compression=dataset.manifest.compression,
    )
    free = shutil.disk_usage(folder).free
    for line in describe(measured, settings, todo, options, free):
        click.echo(line)


def _report(dataset: DatasetDir, summary: Summary, again: str) -> None:
    from threedident.progress import format_seconds

    have = sum(interval.count for interval in dataset.shards())
    rate = f", {summary.rendered / summary.seconds:.2f} images/s" if summary.rendered else ""
    click.echo(
        f"{dataset.root}: {have} images, {summary.rendered} of them new, "
        f"in {format_seconds(summary.seconds)}{rate}"
    )
    if summary.peak_memory:
        click.echo(f"peak memory of a render process: {summary.peak_memory / 2**20:.0f} MiB")
    if summary.redone:
        click.echo(
            f"corrupt shards rendered again, the old ones kept as *.corrupt: {len(summary.redone)}"
        )
    if summary.interrupted:
        _say(f"stopped; to continue: {again}")
        raise SystemExit(EXIT_INTERRUPTED)
    if summary.failed:
        numbers = ", ".join(map(str, list(summary.failed)[:10]))
        _say(
            f"error: {len(summary.failed)} images could not be rendered in three attempts: "
            f"{numbers}; their latents stand above, the output of the processes in "
            f"{dataset.root / 'logs'}. Everything else is finished; to try them again: {again}"
        )
        raise SystemExit(1)
    click.echo(f"look at it: 3dident preview {shlex.quote(str(dataset.root))}")


def _or_default_dataset(ctx: click.Context, parameter: click.Parameter, value: Path | None) -> Any:
    if value is not None or ctx.resilient_parsing:
        return value
    from threedident.storage.directory import default_out

    if default_out().exists():
        return default_out()
    raise click.UsageError(
        f"Missing argument 'DATASET', and there is no {default_out()} to take instead: name a "
        "dataset, or make one with `3dident render`.",
        ctx,
    )


_dataset_argument = click.argument(
    "dataset", type=PATH, required=False, callback=_or_default_dataset
)
_split_option = click.option(
    "--split", metavar="NAME", help="train, val or test: of an export with several splits."
)


@main.command()
@_dataset_argument
@click.option(
    "--out",
    type=PATH,
    help="The picture.  [default: preview.png in a directory of shards; for the other forms beside "
    "them, e.g. train.png for train.h5]",
)
@click.option(
    "--n",
    "--count",
    "count",
    type=click.IntRange(1, 400),
    default=25,
    show_default=True,
    help="Images.",
)
@_split_option
def preview(dataset: Path, out: Path | None, count: int, split: str | None) -> None:
    """Write a contact sheet of a dataset's first images.

    DATASET, in any form, defaults to data/3dident.
    """
    from threedident.datasets.formats.sources import open_source, read_images
    from threedident.render.figures import contact_sheet

    with open_source(dataset, split) as source:
        count, form = min(count, len(source)), source.form
        images = read_images(source, range(count))
    if out is not None:
        target = out
    elif form == "shards":
        target = dataset / "preview.png"
    elif dataset.is_file():
        target = dataset.with_suffix(".png")
    else:  # what was published, or exported, stays as it is
        names = [dataset.resolve().name, *([split] if split else []), "preview.png"]
        target = dataset.resolve().with_name("-".join(names))
    _save_figure(contact_sheet(images, [f"{i}" for i in range(count)]), target)


@main.command()
@click.option("--out", type=PATH, required=True, help="The picture.")
@click.option("--steps", type=click.IntRange(2, 50), default=7, show_default=True)
@_generator_options
@_render_options
def traverse(
    out: Path,
    steps: int,
    preset: str,
    shape: str | None,
    material: str | None,
    fixed: tuple[str, ...],
    resolution: int,
    quality: str,
    device: str,
    engine: str,
    workers: int | None,
) -> None:
    """Render each factor's traversal, a column a factor, as in the paper's Figure 3.

    The other factors stay at raw 0, or where the preset or --fix holds them.
    """
    import dataclasses

    from threedident.factors import NUM_FACTORS
    from threedident.render.figures import traversal_figure, traversal_latents
    from threedident.render.job import render_images

    _check_figure(out)
    generator = _load_preset(preset, shape, material, fixed)
    base = {factor_index(name): value for name, value in generator.fixed.items()}
    raw = traversal_latents(steps, base).reshape(-1, NUM_FACTORS)
    images = render_images(
        raw,
        dataclasses.replace(generator, fixed={}),
        resolution=resolution,
        quality=quality,
        device=device,
        engine=engine,
        workers=workers,
    )
    side = images.shape[1]
    title = f"{generator.name} ({generator.shape}, {generator.material}): raw -1 to +1, downwards"
    grid = images.reshape(steps, NUM_FACTORS, side, side, 3)
    _save_figure(traversal_figure(grid, title), out)


@main.command(name="compare-engines")
@click.option("--n", "count", type=click.IntRange(1), default=64, show_default=True)
@click.option("--out", type=PATH, help="A contact sheet: both engines, and their difference.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the latents.")
@_generator_options
@_render_options
def compare_engines(
    count: int,
    out: Path | None,
    seed: int,
    preset: str,
    shape: str | None,
    material: str | None,
    fixed: tuple[str, ...],
    resolution: int,
    quality: str,
    device: str,
    engine: str,
    workers: int | None,
) -> None:
    """Render the same random latents with both engines, and say how far they differ.

    Both have noise of their own: at quality standard they agree less with each other than
    each does with a converged render. --device is that of the engine named by --engine; the
    other one chooses for itself.
    """
    import numpy as np

    from threedident.latents import sample_raw_latents
    from threedident.render.color import psnr
    from threedident.render.figures import comparison_sheet
    from threedident.render.job import render_images
    from threedident.render.quality import QUALITIES

    if out is not None:
        _check_figure(out)
    generator = _load_preset(preset, shape, material, fixed)
    raw = generator.hold_fixed(sample_raw_latents(range(count), seed=seed, split="test"))
    images = {
        each: render_images(
            raw,
            generator,
            resolution=resolution,
            quality=quality,
            device=device if each == engine else "auto",
            engine=each,
            workers=workers,
            title=each,
        )
        for each in sorted(QUALITIES, reverse=True)  # the quick one first: it complains at once
    }
    found = np.array([psnr(a, b) for a, b in zip(images["cycles"], images["direct"], strict=True)])
    click.echo(
        f"{count} images, {resolution} x {resolution}, quality {quality}: PSNR between the engines "
        f"mean {found.mean():.1f} dB, worst {found.min():.1f} dB\n"
    )
    click.echo(f"{'mean PSNR, dB, by raw value':<28}{'-1 to -1/3':>12}{'to 1/3':>12}{'to 1':>12}")
    third = np.clip(((raw + 1) * 1.5).astype(int), 0, 2)
    for column, name in enumerate(FACTOR_NAMES):
        means = [
            f"{found[third[:, column] == k].mean():.1f}" if (third[:, column] == k).any() else "-"
            for k in range(3)
        ]
        click.echo(f"{name:<28}" + "".join(f"{text:>12}" for text in means))
    if out is not None:
        order = np.argsort(found)[: min(count, 16)]
        sheet = comparison_sheet(
            images["cycles"][order], images["direct"][order], found[order], [int(i) for i in order]
        )
        _save_figure(sheet, out)


def _check_figure(target: Path) -> None:
    """Complains of a figure's place before the work for it is done."""
    from threedident.storage.atomic_files import explaining_write_errors

    if target.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp"):
        raise UsageError(f"cannot write {target}: expected a name that ends in .png, .jpg or .webp")
    with explaining_write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        there = target.exists()
        with target.open("ab"):
            pass
        if not there:
            target.unlink()


def _save_figure(figure: Any, target: Path, say: Callable[[str], None] = click.echo) -> None:
    """Saves a picture of Pillow's or a figure of matplotlib's."""
    from threedident.storage.atomic_files import explaining_write_errors

    _check_figure(target)
    save = getattr(figure, "savefig", None) or figure.save
    with explaining_write_errors(target):
        save(target)
    say(f"wrote {target}")


@main.command()
@_dataset_argument
@_split_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")
def info(dataset: Path, split: str | None, as_json: bool) -> None:
    """Say what a dataset is: its settings, factors and size; and whether images are missing.

    DATASET, in any form, defaults to data/3dident. Nothing is checked: see `3dident verify`.
    """
    import json

    from threedident.datasets.describe import describe, lines

    about = describe(dataset, split)
    if as_json:
        click.echo(json.dumps(about, indent=2))
        return
    for line in lines(about):
        click.echo(line)


@main.command()
@_dataset_argument
@click.option(
    "--n",
    "count",
    type=click.IntRange(1),
    help="How many images there should be.  [default: as many as were asked for, where recorded]",
)
@_split_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")
def verify(dataset: Path, count: int | None, split: str | None, as_json: bool) -> None:
    """Check a dataset: every image readable, complete, unchanged, with the right latents.

    DATASET, in any form, defaults to data/3dident. Says what its form lets one check, and what
    not. Exits with 1 if anything is wrong.
    """
    import json

    from threedident.datasets.describe import count_of
    from threedident.datasets.formats.verify import verify_any
    from threedident.storage.shards import name_stretches

    report = verify_any(dataset, count, split)
    if as_json:
        click.echo(json.dumps({"dataset": str(dataset), **report.as_dict()}, indent=2))
        raise SystemExit(not report.good)
    click.echo(
        f"{dataset}: {count_of(report.images, report.wanted)} images are good, the last there is "
        f"{report.last}"
    )
    for line in report.checked:
        click.echo(f"checked: {line}")
    for line in report.unchecked:
        click.echo(f"not checked: {line}")
    if len(report.devices) > 1:
        click.echo(f"rendered on more than one kind of device: {', '.join(sorted(report.devices))}")
    for fault in report.faults:
        _say(f"fault: {fault}")
    if report.missing:
        _say(f"missing: {name_stretches(report.missing, most=1000)}")
    if not report.good:
        _say(f"error: the dataset is not whole; {report.cure}")
        raise SystemExit(1)
    click.echo("all is well")


@main.command()
@_dataset_argument
@_split_option
def stats(dataset: Path, split: str | None) -> None:
    """Print mean and standard deviations, with their definitions, as JSON.

    DATASET, in any form, defaults to data/3dident. Rewrites stats.json of a directory of shards.
    """
    import json

    from threedident.datasets.checking import measure
    from threedident.datasets.formats.sources import find_form, open_source
    from threedident.storage.directory import DatasetDir

    if find_form(dataset) == "shards" and split is None:
        directory = DatasetDir.open(dataset)
        try:
            found = directory.write_stats()
        except DatasetError as error:
            found = directory.compute_stats()
            _say(f"stats.json is not rewritten: {error}")
    else:
        with open_source(dataset, split) as source:
            found = source.stats() or {}
            if "definitions" not in found:  # little or nothing is recorded
                found = measure(source)
    click.echo(json.dumps(found, indent=2))


@main.command()
@click.argument("dataset", type=PATH, required=False)
@_conditional_options
@click.option(
    "--n",
    "count",
    type=click.IntRange(2),
    help="Instead of a dataset: so many latents, as `3dident render --n` would sample them.",
)
@click.option(
    "--factors",
    multiple=True,
    metavar="FACTOR|GROUP",
    help="Match on these alone; the others vary freely. Can be repeated.  [default: all]",
)
@click.option("--index", default="auto", show_default=True, help="auto, exact, ivf or hnsw.")
@click.option("--draws", type=click.IntRange(100), default=20_000, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the draws.")
@click.option("--out", type=PATH, help="A figure.")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON, and only them.")
def pairs(
    dataset: Path | None,
    conditional: str | None,
    sigma: str | None,
    lam: str | None,
    beta: float | None,
    unchanged: tuple[str, ...],
    change: str | None,
    count: int | None,
    factors: tuple[str, ...],
    index: str,
    draws: int,
    seed: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure how far a dataset's positive pairs follow the conditional that they are asked for.

    Rendered latents stand in for drawn ones, and ten dimensions are sparsely filled: this
    says what that does to the spread and shape of z~ - z, for pairs matched to the nearest
    and for pairs resampled among the rendered, and from which width on it no longer matters.
    """
    import json

    import numpy as np

    from threedident.distributions import PairProcess, check_matchable
    from threedident.distributions.spaces import Box
    from threedident.factors import factor_columns
    from threedident.latents import sample_raw_latents

    if (dataset is None) == (count is None):
        raise UsageError("expected a dataset, or --n for latents that are not rendered yet")
    if out is not None:
        _check_figure(out)
        try:
            import matplotlib  # noqa: F401
        except ImportError as error:
            raise MissingExtraError("matplotlib", "train", "the figure") from error

    given = (conditional, sigma, lam, beta, unchanged, change)
    columns = list(factor_columns(factors or FACTOR_NAMES))
    names = tuple(FACTOR_NAMES[c] for c in columns)
    rendered, latents = False, np.empty((0, len(names)), np.float32)
    if dataset is not None:
        from threedident.datasets.formats.sources import open_source

        with open_source(dataset) as source:
            rendered = source.manifest is not None and source.manifest.pair_process is not None
            latents = source.raw_latents[:, columns]
        if rendered and any(option not in (None, ()) for option in given):
            raise UsageError(f"{dataset} was rendered in pairs: leave out the conditional")
    if not rendered:
        process = PairProcess(Box(len(names)), _parse_conditional(*given, names))
        check_matchable(process.conditional, latents, names)

    from threedident.datasets.dataset import ThreeDIdent
    from threedident.datasets.latent_matcher import LatentMatcher, index_path
    from threedident.datasets.matching_report import examine, examine_pairs, figure, table
    from threedident.datasets.pairs import PositivePairs

    title = f"{count} latents" if dataset is None else dataset.name
    if rendered:
        assert dataset is not None
        report = examine_pairs(PositivePairs(ThreeDIdent(dataset, factors=names)), draws, seed)
        what = f"{report.images // 2} rendered pairs"
    else:
        kept = None
        if count is not None:
            latents = sample_raw_latents(range(count), seed=0, split="train")[:, columns]
        elif dataset is not None:
            kept = index_path(dataset, tuple(columns), index, len(latents))
        matcher = LatentMatcher(latents, index=index, path=kept)
        report = examine(matcher, process, names, draws=draws, seed=seed)
        what = f"{report.images} images, {matcher.factory}"
    if as_json:
        click.echo(json.dumps(report.as_dict(), indent=2))
    else:
        click.echo(f"{title}: {what}; {report.conditional}, {draws} draws")
        for line in table(report):
            click.echo(line)
    if out is not None:
        say = _say if as_json else click.echo
        _save_figure(figure(report, f"{title}: {report.conditional}"), out, say)


@main.command()
@click.argument("dataset", type=PATH)
@click.option("--out", type=PATH, required=True, help="The file, e.g. train.h5.")
@click.option("--compression", metavar="NAME", help="none or gzip.  [default: the dataset's]")
@_split_option
def pack(dataset: Path, out: Path, compression: str | None, split: str | None) -> None:
    """Join a dataset, in any form, into one HDF5 file.

    What made it is kept, and checksums: `3dident convert --to shards` brings back the directory.
    """
    from threedident.datasets.formats.hdf5 import pack as join
    from threedident.datasets.formats.sources import open_source

    with open_source(dataset, split) as source:
        count = join(source, out, compression=compression)
        wanted = source.wanted()
    _say_written(out, count, wanted)


def _say_written(out: Path, count: int, wanted: int | None, split: str | None = None) -> None:
    """Says what was written, and how to look at it."""
    from threedident.datasets.describe import count_of

    click.echo(f"wrote {out}: {count_of(count, wanted)} images")
    what = shlex.quote(str(out)) + (f" --split {split}" if split else "")
    click.echo(f"look at it: 3dident preview {what}; check it: 3dident verify {what}")


@main.command()
@click.argument("dataset", type=PATH)
@click.option("--out", type=PATH, required=True, help="The directory to write.")
@click.option(
    "--to",
    "form",
    type=click.Choice(["published", "shards", "webdataset", "parquet"]),
    required=True,
    help="published: images/*.png, raw_latents.npy, latents.npy. shards: a dataset directory. "
    "webdataset: tar files. parquet: Parquet with image bytes, as Hugging Face datasets has it.",
)
@click.option(
    "--compression", metavar="NAME", help="Of shards: none or gzip.  [default: as it was, or none]"
)
@click.option(
    "--shard-size",
    type=click.IntRange(1),
    help="Images to a file.  [default: for shards as they were, or 100; about 240 MB for "
    "webdataset and parquet]",
)
@click.option(
    "--split",
    type=click.Choice(["train", "val", "validation", "test"]),
    help="Which split of an export is read, where it has several; and what webdataset and parquet "
    "call it.  [default: the dataset's split, or train]",
)
def convert(
    dataset: Path,
    out: Path,
    form: str,
    compression: str | None,
    shard_size: int | None,
    split: str | None,
) -> None:
    """Write a dataset in another form, from any form, without loss.

    What made it goes along, so that --to shards brings back a directory that `3dident render`
    goes on with. webdataset and parquet come with a dataset card; several splits can share OUT.
    Run the same command again after any interruption: it goes on where it was stopped.
    """
    from threedident.datasets.formats import convert as conversion
    from threedident.datasets.formats import dataset_card as card
    from threedident.datasets.formats.sources import find_form, open_source

    if out.resolve() == dataset.resolve():
        raise UsageError("--out must be another directory than the dataset's")
    exports = form in ("webdataset", "parquet")
    several = find_form(dataset) == "export" and len(card.records(dataset)) > 1
    takes = {"--shard-size"} if exports else set()
    takes |= {"--split"} if exports or several else set()
    takes |= {"--compression", "--shard-size"} if form == "shards" else set()
    for option, value in {
        "--compression": compression,
        "--shard-size": shard_size,
        "--split": split,
    }.items():
        if value is not None and option not in takes:
            raise UsageError(f"--to {form} takes no {option}")
    written = None
    with open_source(dataset, split if several else None) as source:
        if form == "published":
            count = conversion.to_published(source, out)
        elif exports:
            from threedident.datasets.formats.export_writers import export as write
            from threedident.datasets.formats.export_writers import split_of

            count = write(source, out, form, split=split, shard_size=shard_size)
            written = split_of(source, split) if len(card.records(out)) > 1 else None
        else:
            count = conversion.to_shards(
                source, out, shard_size=shard_size, compression=compression
            )
        wanted = source.wanted()
    _say_written(out, count, wanted, written)


@main.command()
@click.option("--out", type=PATH, help="The directory to write; not needed with --list.")
@click.option(
    "--record",
    type=click.IntRange(1),
    default=4502485,
    show_default=True,
    help="Zenodo's number of the release.",
)
@click.option(
    "--files",
    "names",
    multiple=True,
    metavar="NAME",
    help="Only this file of the record. Can be repeated.  [default: all]",
)
@click.option(
    "--api",
    default="https://zenodo.org/api",
    show_default=True,
    metavar="URL",
    help="Zenodo's, or that of another Invenio repository.",
)
@click.option(
    "--keep-archives/--remove-archives",
    "keep",
    default=True,
    show_default=True,
    help="Once they are unpacked.",
)
@click.option("--list", "listing", is_flag=True, help="Print the files and their sizes, only.")
def download(
    out: Path | None, record: int, names: tuple[str, ...], api: str, keep: bool, listing: bool
) -> None:
    """Fetch the published dataset from Zenodo, check it and unpack it.

    Run the same command again after any interruption: it goes on where it was stopped.
    """
    from threedident.datasets import zenodo as fetching

    if out is None and not listing:
        raise UsageError("--out is missing: the directory to write")
    with fetching.open_session() as session:
        files = fetching.list_record(session, record, api)
        there = [file.name for file in files]
        for name in names:
            if name not in there:
                raise UsageError(f"the record has no file {name!r}: it has {', '.join(there)}")
        files = [file for file in files if not names or file.name in names]
        if out is None or listing:
            for file in files:
                click.echo(f"{file.size / 1e6:>12.1f} MB  {file.name}")
            return
        try:
            new = fetching.download(session, files, out, remove_archives=not keep)
        except KeyboardInterrupt:
            _say("what has been fetched is kept: run the same command again")
            raise
    if not new:
        click.echo(f"{out}: everything is there already, nothing was fetched")
    for file in new:
        click.echo(f"{file.name}: {file.size / 1e6:.1f} MB, checksum as recorded")
    layouts = fetching.find_layouts(out)
    if not layouts:
        click.echo(f"{out} holds no published layout (images/ and raw_latents.npy)")
    for layout in layouts:
        click.echo(f"the published layout lies in {layout}; look at it, and check what made it:")
        for command in ("info", "compare-release"):
            click.echo(f"  3dident {command} {shlex.quote(str(layout))}")


@main.command(name="compare-release")
@click.argument("dataset", type=PATH)
@click.option(
    "--n", "count", type=click.IntRange(1, 1000), default=16, show_default=True, help="Images."
)
@click.option(
    "--preset",
    "names",
    multiple=True,
    default=("3dident", "3dident-wrapped"),
    show_default=True,
    metavar="NAME|FILE.toml",
    help="A candidate for what made the dataset. Can be repeated.",
)
@click.option("--out", type=PATH, help="A contact sheet: the images, and each preset's render.")
@click.option(
    "--engine", default="direct", show_default=True, metavar="NAME", help="cycles or direct."
)
@click.option(
    "--quality",
    default="standard",
    show_default=True,
    metavar="LEVEL",
    help="Of the renders: draft, standard or reference (the published settings).",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    help="Render processes.  [default: one per processor, or per GPU]",
)
@click.option(
    "--device",
    default="auto",
    show_default=True,
    metavar="KIND",
    help="For the renders: auto, cpu, cuda, optix, hip, metal or oneapi.",
)
def compare_release(
    dataset: Path,
    count: int,
    names: tuple[str, ...],
    out: Path | None,
    engine: str,
    quality: str,
    workers: int | None,
    device: str,
) -> None:
    """Say which preset made a dataset, such as the published one: its hues wrapped or not.

    Its latents are held against each preset's, and some of its images against renders of the
    same raw latents, at the dataset's resolution.
    """
    from threedident.datasets import release_check as release
    from threedident.datasets.formats.sources import open_source
    from threedident.presets import load_preset

    if out is not None:
        _check_figure(out)
    presets = [load_preset(name) for name in names]
    with open_source(dataset) as source:
        click.echo(f"{dataset}: {len(source)} images")
        for line in release.describe_latents(source, presets):
            click.echo(line)
        found = release.compare(
            source,
            presets,
            count=count,
            engine=engine,
            quality=quality,
            device=device,
            workers=workers,
        )
    for line in found.lines():
        click.echo(line)
    if out is not None:
        _save_figure(found.figure(), out)


def _device_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--threads",
            type=click.IntRange(1),
            help="Of each process on a CPU.  [default: torch's choice, one per core]",
        ),
        click.option(
            "--device", default="auto", show_default=True, metavar="KIND", help="auto, cpu or cuda."
        ),
        click.option(
            "--devices",
            type=click.IntRange(1),
            default=1,
            show_default=True,
            help="GPUs or processes, which share the batch and its negatives.",
        ),
    ):
        function = option(function)
    return function


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
@_device_options
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
    devices: int,
    device: str,
    threads: int | None,
    show: bool,
) -> None:
    """Train a baseline, or go on where a run was stopped.

    PRESET is a row of the papers' tables (see --list). The same command again continues a run
    that was interrupted, and so does --resume RUN.
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
    options: dict[str, Any] = {"data": data, "test": test, "accelerator": device}
    # Before torch is loaded. How many processes there are, torchrun says, to torch.
    make_plan(chosen, out, **options)

    from threedident.baselines.training import loop as training

    result = training.train(chosen, out, devices=devices, threads=threads, **options)
    if not training.is_first_process():  # of those that torchrun has started
        return
    for name, value in result["scores"].items():
        click.echo(f"{name}: {value:.4f}")
    for line in _factor_table(result):
        click.echo(line)
    click.echo(
        f"{result['steps']} steps in {result['seconds']:.0f} s; the encoder is "
        f"{out / training.ENCODER}, measurements are in {out / 'metrics.csv'}"
    )
    if result["data"].get("observations") == "images":
        click.echo(
            f"a report: 3dident evaluate reference:encoder={out / training.ENCODER} "
            f"--data {_place_of_test_images(out)}"
        )


def _place_of_test_images(out: Path) -> str:
    """Where the images lie that a run was scored on, quoted for a shell; TEST where none are."""
    from threedident.baselines.training.run_folder import read_places

    test = read_places(out).get("test")
    return "TEST" if test is None else shlex.quote(os.path.relpath(test))


def _factor_table(result: dict[str, Any]) -> list[str]:
    """The final R2 and MCC of every factor, a line each."""
    from threedident.evaluate.evaluation import factor_table

    found = result.get("per_factor") or {}
    columns = {"R2": found.get("linear_r2") or (), "MCC": found.get("mcc") or ()}
    count = max(map(len, columns.values()))
    names = result["data"].get("factors") or [f"factor {number}" for number in range(count)]
    table = [(label, dict(zip(names, values, strict=False))) for label, values in columns.items()]
    return factor_table([column for column in table if column[1]]) if count else []


@main.command()
@click.argument("what", metavar="WHAT")
@click.option("--out", type=PATH, required=True, help="A folder for one study at one scale.")
@click.option(
    "--rows",
    metavar="NAMES",
    help="Some rows: names or globs, separated by commas.  [default: all]",
)
@click.option(
    "--seeds",
    type=click.IntRange(1),
    help="Of each row.  [default: as many as the paper; 1 at other scales]",
)
@click.option(
    "--scale",
    default="paper",
    show_default=True,
    metavar="NAME",
    help="paper, cpu (cut down to two cores) or smoke (does it run?).",
)
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="A field of every experiment."
)
@click.option("--data", type=PATH, help="Images to train on, instead of rendering them.")
@click.option("--test", type=PATH, help="Images to score on, instead of rendering them.")
@click.option(
    "--datasets",
    type=PATH,
    help="Where rendered datasets lie, by name, for several studies.  [default: OUT/data]",
)
@_device_options
def reproduce(
    what: str,
    out: Path,
    rows: str | None,
    seeds: int | None,
    scale: str,
    settings: tuple[str, ...],
    data: Path | None,
    test: Path | None,
    datasets: Path | None,
    devices: int,
    device: str,
    threads: int | None,
) -> None:
    """Train what a table or figure is made of, and compare with the published numbers.

    WHAT is table1, table2, table4, fig2, aninfonce, hard-negatives, ensemble, tricl, matching
    (what pairs of rendered images do) or generators (supervised on 3dident and its variants).
    Writes table.md, table.csv and figure.png after every run; the same command goes on where
    it was stopped.
    """
    from threedident.baselines.experiment import parse_setting
    from threedident.baselines.reproduce.runs import reproduce as run

    table = run(
        what,
        out,
        rows=rows,
        seeds=seeds,
        scale=scale,
        changes=dict(map(parse_setting, settings)),
        data=data,
        test=test,
        datasets=datasets,
        devices=devices,
        accelerator=device,
        threads=threads,
    )
    click.echo(table.read_text("utf-8"))
    click.echo(f"the table is {table}, the curves are {table.with_name('figure.png')}")


def _print_template(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from threedident.evaluate.submissions.manifest import template

        click.echo(template(), nl=False)
        ctx.exit()


@main.command()
@click.argument("submission")
@click.option(
    "--data",
    type=PATH,
    help="The test set, in any form.  [default: data/3dident-test, if there]",
)
@click.option(
    "--out",
    type=PATH,
    help="The folder for scores and report.  [default: scores/NAME, by the submission's]",
)
@click.option(
    "--overwrite", is_flag=True, help="Replace scores of another submission or test set in --out."
)
@click.option(
    "--metrics",
    multiple=True,
    metavar="NAME,...",
    help="Metrics, such as mcc,dci, or all. Can be repeated.  [default: linear_r2,mcc]",
)
@click.option(
    "--manifest",
    type=PATH,
    metavar="FILE.toml",
    help="Who made the submission, and how.  [default: SUBMISSION.toml beside it, if there]",
)
@click.option(
    "--template",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_template,
    help="Print a manifest to fill in, only.",
)
@click.option("--trust", is_flag=True, help="Run code of the submission's author.")
@click.option("--checkpoint", type=PATH, metavar="FILE", help="Handed to a Python factory.")
@click.option("--train", type=PATH, help="A dataset that reference:pca is fitted on.")
@click.option(
    "--factors",
    multiple=True,
    metavar="FACTOR|GROUP,...",
    help="Score these alone. Can be repeated.  [default: all]",
)
@click.option(
    "--folds",
    type=click.Choice(["2", "single", "in-sample"]),
    default="2",
    show_default=True,
    help="Of the linear R2: each half by the other's fit, the published split, or none.",
)
@click.option(
    "--bootstrap",
    type=click.IntRange(0),
    default=1000,
    show_default=True,
    help="Replicates behind the intervals; 0 for none.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of everything random.")
@click.option(
    "--batch-size", type=click.IntRange(1), default=256, show_default=True, help="Images at once."
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    default=7200.0,
    show_default=True,
    metavar="SECONDS",
    help="For the encoder.",
)
@click.option(
    "--memory-limit",
    type=click.FloatRange(min=0, min_open=True),
    default=8.0,
    show_default=True,
    metavar="GB",
    help="For the encoder.",
)
def evaluate(
    submission: str,
    data: Path | None,
    out: Path | None,
    overwrite: bool,
    metrics: tuple[str, ...],
    manifest: Path | None,
    trust: bool,
    checkpoint: Path | None,
    train: Path | None,
    factors: tuple[str, ...],
    folds: str,
    bootstrap: int,
    seed: int,
    batch_size: int,
    time_limit: float,
    memory_limit: float,
) -> None:
    """Score an encoder, or the latents it recovered, on a test set.

    SUBMISSION is one of: embeddings (.npy, .npz or .h5: a row for every test image, in order);
    an encoder (.onnx: uint8 images (B, 3, H, W) in, codes (B, m) out); with --trust also a
    Python factory (package.module:factory), .pt2 or TorchScript; or a reference encoder:
    reference:identity, reference:random, reference:pca, and encoders that `3dident train` has
    written, reference:encoder=RUN/encoder.pt (or reference:supervised=..., a name for tables).
    """
    from threedident.evaluate.inputs import (
        DEFAULT_DATA,
        EMBEDDINGS,
        REPORT,
        SCORES,
        check_inputs,
        default_out,
    )
    from threedident.evaluate.scoring import DEFAULT_METRICS, METRICS
    from threedident.evaluate.submissions.submission import identify

    if data is None:
        data = DEFAULT_DATA
        if not data.exists():
            raise UsageError(
                f"which test set? --data TEST. `3dident render --split test --out {data}` makes "
                "the one that is taken where none is given"
            )
    if out is None:
        out = default_out(identify(submission, trust=trust, checkpoint=checkpoint))
    names = _split_list(metrics) or list(DEFAULT_METRICS)
    if "all" in names:
        names = list(METRICS)
    groups = _split_list(factors)
    inputs = check_inputs(
        submission,
        data,
        metrics=names,
        manifest=manifest,
        trust=trust,
        checkpoint=checkpoint,
        train=train,
        factors=groups,
        out=out,
        overwrite=overwrite,
    )
    for note in inputs.notes:
        click.echo(note)

    from threedident.evaluate import evaluation as run

    found = run.evaluate_inputs(
        inputs,
        folds=2 if folds == "2" else folds,
        bootstrap=bootstrap,
        seed=seed,
        batch_size=batch_size,
        time_limit=time_limit,
        memory_limit=memory_limit,
    )
    # What lies there was looked at before the work, which is not to be lost by now.
    run.write(found, out, overwrite=True)
    what = found.scores["submission"]
    click.echo(f"{what['name']}: {what['codes']} codes of {len(found.z)} images")
    if what["about"]:
        click.echo(what["about"])
    if what["network_blocked"] is False:
        click.echo("this system could not take the network from the encoder's process")
    for line in run.summary(found.scores):
        click.echo(line)
    click.echo(f"wrote {out / SCORES}, {out / REPORT} and {out / EMBEDDINGS}")


def _split_list(given: tuple[str, ...]) -> list[str]:
    """The names of an option that takes lists, as a,b, and can be repeated."""
    return [name for each in given for name in each.split(",")]


@main.command()
@click.argument("checkpoint", type=PATH)
@click.option("--out", type=PATH, required=True, help="The file, e.g. encoder.onnx.")
@click.option(
    "--resolution",
    type=click.IntRange(1, 4096),
    default=224,
    show_default=True,
    help="Pixels along each side of the images it takes.",
)
def export(checkpoint: Path, out: Path, resolution: int) -> None:
    """Write a trained encoder as ONNX: one file, preprocessing inside, any number of images.

    Its codes are held against torch's on random images.
    """
    from threedident.evaluate.submissions import onnx_export as exporting

    made = exporting.export(checkpoint, out, resolution=resolution)
    click.echo(
        f"wrote {out}: {made.size / 1e6:.1f} MB, {made.codes} codes, opset {made.opset}; at most "
        f"{made.difference:.2g} from torch's codes"
    )


@main.group(cls=_Group)
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
    type=click.IntRange(8, MOST_IMAGES),
    default=4096,
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
                _say(f"  fault: {fault}")
            click.echo(f"  {'it holds' if verdict.holds else 'it does not hold'}")
            bad += not verdict.holds
    if bad:
        raise SystemExit(1)


@main.command()
@click.argument("name", required=False, metavar="[NAME|FILE.toml]")
def presets(name: str | None) -> None:
    """List the presets, or show one."""
    from threedident.presets import load_preset, preset_names

    if name is None:
        for each in preset_names():
            click.echo(f"{each:<26}{load_preset(each).description}")
        return
    preset = load_preset(name)
    click.echo(f"{preset.name}: {preset.description}")
    click.echo(f"{preset.shape} of scale {preset.scale:g}, {preset.material}, hue {preset.hue}")
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


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")
def doctor(as_json: bool) -> None:
    """Check what is installed, with versions, and say what to do about the rest.

    With --json: `good`, and `findings` with `name`, `state` (ok, missing or broken), `detail`
    and `extra`.
    """
    import dataclasses
    import json

    from threedident.cli.doctor import NAME_WIDTH, is_fault, look

    marks = {"ok": "ok     ", "missing": "-      ", "broken": "BROKEN "}
    if not as_json:
        click.echo("loading what is installed, which takes some seconds")
    findings = []
    for finding in look():
        findings.append(finding)
        if not as_json:
            click.echo(f"{marks[finding.state]}{finding.name:<{NAME_WIDTH}}{finding.detail}")
    broken = [finding.name for finding in findings if is_fault(finding)]
    if as_json:
        document = {"good": not broken, "findings": [dataclasses.asdict(f) for f in findings]}
        click.echo(json.dumps(document, indent=2))
    elif broken:
        _say(f"error: broken: {', '.join(broken)}")
    if broken:
        raise SystemExit(1)
