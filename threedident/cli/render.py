"""Commands that render: render, traverse, compare-engines, presets."""

from __future__ import annotations

import contextlib
import math
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from threedident.cli.group import EXIT_INTERRUPTED, command_line, main, say
from threedident.cli.options import (
    MOST_IMAGES,
    PATH,
    check_figure,
    chosen_preset,
    conditional_options,
    generator_options,
    parse_conditional,
    render_options,
    save_figure,
)
from threedident.errors import (
    DatasetError,
    RenderError,
    UsageError,
)
from threedident.factors import FACTOR_NAMES, factor_index

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from threedident.render.engine import EngineSettings
    from threedident.render.job import JobOptions, Summary
    from threedident.storage.directory import DatasetDir


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
@generator_options
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
@conditional_options
@render_options
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
    from threedident.storage.directory import DatasetDir, check_place
    from threedident.storage.manifest import MANIFEST, Manifest, read_manifest
    from threedident.storage.shard_plan import default_shard_size
    from threedident.storage.shards import check_compression

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
    check_compression(compression or "none")
    if extend is not None:
        if others := [name for key, name in given_options.items() if key not in _BESIDE_EXTEND]:
            raise UsageError(
                f"--extend takes all settings from the dataset: leave out {', '.join(others)}"
            )
        if extend.exists() and not (extend / MANIFEST).is_file():
            from threedident.datasets.formats import find_form

            form = find_form(extend)
            raise UsageError(
                f"{extend} is in the form {form}, to which nothing is rendered: turn it into "
                f"shards first (3dident convert {shlex.quote(str(extend))} --to shards --out DIR) "
                "and extend those"
            )
        out, there = extend, DatasetDir.open(extend)
        content, wanted = Content.of(there, shape), there.wanted()
    else:
        generator = chosen_preset(preset, shape, material, fixed)
        given = load_raw_latents(latents_file) if latents_file else None
        process = None
        if pairs:
            if given is not None:
                raise UsageError("--pairs draws the latents itself: leave out --latents")
            process = parse_conditional(conditional, sigma, lam, beta, unchanged, change)
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
            say(f"warning: {error}. {out} was begun so, and goes on")
    mesh = get_mesh(generator.shape)
    for warning in () if generator.shape in SHAPES else mesh.warnings():
        say(f"warning: {warning}")
    if unseen := content.frame_warning():
        say(f"warning: {unseen}")

    again = command_line()
    with contextlib.ExitStack() as stack:
        cluster = None
        if executor == "ray":
            from threedident.render.executors.ray import IN_FLIGHT, connect

            cluster = stack.enter_context(connect(address))
        try:
            found = cluster.probe(engine, device, threads) if cluster else probe(engine)
        except KeyboardInterrupt:
            say(f"nothing was begun; to continue: {again}")
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
                content.settings(settings), size, compression or "none", generator.about(), again
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
            command=again,
        )
        if estimate:
            _estimate(dataset, total, settings, options, given)
            return
        where = f"{options.workers} process{'es' * (options.workers > 1)}"
        if cluster:
            where = "a Ray cluster"

        def announce() -> None:
            for line in _first_lines(dataset, total, settings, options, where):
                say(line)

        try:
            how = cluster.render if cluster else render_here
            summary = render_dataset(dataset, total, settings, options, how, announce)
        except (DatasetError, RenderError, KeyboardInterrupt) as error:
            say(f"finished shards are kept; to continue: {again}")
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
    from threedident.storage.shard_plan import missing_intervals

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
    from threedident.storage.shard_plan import missing_intervals

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
        say(f"stopped; to continue: {again}")
        raise SystemExit(EXIT_INTERRUPTED)
    if summary.failed:
        numbers = ", ".join(map(str, list(summary.failed)[:10]))
        say(
            f"error: {len(summary.failed)} images could not be rendered in three attempts: "
            f"{numbers}; their latents stand above, the output of the processes in "
            f"{dataset.root / 'logs'}. Everything else is finished; to try them again: {again}"
        )
        raise SystemExit(1)
    click.echo(f"look at it: 3dident preview {shlex.quote(str(dataset.root))}")


@main.command()
@click.option("--out", type=PATH, required=True, help="The picture.")
@click.option("--steps", type=click.IntRange(2, 50), default=7, show_default=True)
@generator_options
@render_options
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

    check_figure(out)
    generator = chosen_preset(preset, shape, material, fixed)
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
    save_figure(traversal_figure(grid, title), out)


@main.command(name="compare-engines")
@click.option("--n", "count", type=click.IntRange(1), default=64, show_default=True)
@click.option("--out", type=PATH, help="A contact sheet: both engines, and their difference.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the latents.")
@generator_options
@render_options
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
        check_figure(out)
    generator = chosen_preset(preset, shape, material, fixed)
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
        save_figure(sheet, out)


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
