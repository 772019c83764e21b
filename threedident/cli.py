"""The command line. Heavy modules are imported inside the commands that need them."""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from threedident.errors import DatasetError, RenderError, ThreeDIdentError, UsageError
from threedident.factors import FACTOR_NAMES, factor_index

if TYPE_CHECKING:
    from threedident.presets import Preset
    from threedident.render.job import Summary
    from threedident.store import DatasetDir

PATH = click.Path(path_type=Path)
EXIT_INTERRUPTED = 130
MOST_IMAGES = 100_000_000


class _Group(click.Group):
    """Commands in the order in which one needs them, errors without a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ThreeDIdentError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(EXIT_INTERRUPTED)
        except BrokenPipeError:
            # Whoever read our output has seen enough of it.
            sys.stderr.close()
            ctx.exit(0)
        except OSError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(UsageError.exit_code)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="threedident", prog_name="3dident")
def main() -> None:
    """3DIdent as a toolkit: generate the dataset, look at it, check it."""


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
            "--resolution", type=int, default=224, show_default=True, help="Pixels along each side."
        ),
    ):
        function = option(function)
    return function


def _parse_part(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not int(match[1]) < int(match[2]):
        raise UsageError(f"--shard expects I/K with 0 <= I < K, found {text!r}")
    return int(match[1]), int(match[2])


@main.command()
@click.option("--n", "count", type=int, help="Images.  [default: 250000; val and test: 25000]")
@click.option("--out", type=PATH, required=True, help="The dataset's directory.")
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
    "--timeout", type=click.FloatRange(min=1), help="Seconds after which an image counts as hung."
)
@click.option(
    "--images-per-worker",
    type=click.IntRange(1),
    help="Images after which a render process is replaced by a fresh one.  [default: 1000]",
)
def render(
    count: int | None,
    out: Path,
    preset: str,
    shape: str | None,
    material: str | None,
    fixed: tuple[str, ...],
    split: str,
    seed: int,
    latents_file: Path | None,
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
) -> None:
    """Render a dataset, or go on where an earlier run was stopped.

    Finished shards are never lost: run the same command again to continue, and with a
    larger --n to extend.
    """
    from threedident.latents import SPLIT_SIZES, load_raw_latents, sample_raw_latents
    from threedident.render.engine import EngineSettings
    from threedident.render.job import (
        JobOptions,
        dataset_settings,
        default_timeout,
        default_workers,
        probe,
        render_dataset,
        resolve_device,
    )
    from threedident.render.mesh import SHAPES, get_mesh
    from threedident.render.workers import IMAGES_PER_WORKER
    from threedident.shards import storage_options
    from threedident.store import MANIFEST, DatasetDir, read_manifest

    if count is not None and not 1 <= count <= MOST_IMAGES:
        raise UsageError(f"--n must be at least 1 and at most {MOST_IMAGES}, found {count}")
    if timeout is not None and not math.isfinite(timeout):
        raise UsageError(f"--timeout must be a number of seconds, found {timeout}")
    sample_raw_latents([], seed=seed, split=split)  # complains about either
    member, members = _parse_part(part)
    generator = _load_preset(preset, shape, material, fixed)
    EngineSettings(generator, resolution, quality, device, engine)
    storage_options("images", (), compression or "none")
    mesh = get_mesh(generator.shape)
    for warning in () if generator.shape in SHAPES else mesh.warnings():
        click.echo(f"warning: {warning}", err=True)
    given = load_raw_latents(latents_file) if latents_file else None
    if given is None:
        total = SPLIT_SIZES[split] if count is None else count
    else:
        total = len(given) if count is None else count
        if total > len(given):
            raise UsageError(f"--n {total} is more than the {len(given)} rows of {latents_file}")

    found = probe(engine)
    kind = resolve_device(device, found)
    if device == "auto" and (out / MANIFEST).exists():
        # "auto" is settled when a dataset is created; going on means the same device.
        before = read_manifest(out).engine["device"]
        kind = before if before in found.devices else kind
    settings = EngineSettings(generator, resolution, quality, kind, engine, found.version)
    dataset = DatasetDir.create_or_open(
        out,
        dataset_settings(settings, seed=seed, split=split, given=given),
        shard_size=shard_size,
        compression=compression,
        about=generator.about(),
        given=given,
        any_device=any_device,
    )
    options = JobOptions(
        workers=workers or default_workers(kind, found, threads),
        threads=threads,
        devices=found.devices[kind],
        part=member,
        parts=members,
        timeout=timeout or default_timeout(resolution),
        images_per_worker=images_per_worker or IMAGES_PER_WORKER,
    )
    again = shlex.join(["3dident", *sys.argv[1:]])
    try:
        summary = render_dataset(dataset, total, settings, options)
    except (DatasetError, RenderError, KeyboardInterrupt) as error:
        click.echo(f"finished shards are kept; to continue: {again}", err=True)
        raise error
    _report(dataset, summary, again)


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
        click.echo(f"stopped; to continue: {again}", err=True)
        raise SystemExit(EXIT_INTERRUPTED)
    if summary.failed:
        numbers = ", ".join(map(str, list(summary.failed)[:10]))
        click.echo(
            f"error: {len(summary.failed)} images could not be rendered in three attempts: "
            f"{numbers}; their latents stand above, the output of the processes in "
            f"{dataset.root / 'logs'}. Everything else is finished; to try them again: {again}",
            err=True,
        )
        raise SystemExit(1)
    click.echo(f"look at it: 3dident preview {shlex.quote(str(dataset.root))}")


@main.command()
@click.argument("dataset", type=PATH)
@click.option("--out", type=PATH, help="The picture.  [default: DATASET/preview.png]")
@click.option("--count", type=click.IntRange(1, 400), default=25, show_default=True)
def preview(dataset: Path, out: Path | None, count: int) -> None:
    """Write a contact sheet of a dataset's first images."""
    from threedident.datasets.reading import open_source, read_images
    from threedident.render.figures import contact_sheet

    with open_source(dataset) as source:
        count = min(count, len(source))
        images = read_images(source, range(count))
    target = out or (dataset / "preview.png" if dataset.is_dir() else dataset.with_suffix(".png"))
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
    from threedident.files import explaining_write_errors

    if target.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp"):
        raise UsageError(f"cannot write {target}: expected a name that ends in .png, .jpg or .webp")
    with explaining_write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        there = target.exists()
        with target.open("ab"):
            pass
        if not there:
            target.unlink()


def _save_figure(figure: Any, target: Path) -> None:
    from threedident.files import explaining_write_errors

    _check_figure(target)
    with explaining_write_errors(target):
        figure.save(target)
    click.echo(f"wrote {target}")


@main.command()
@click.argument("dataset", type=PATH)
def info(dataset: Path) -> None:
    """Say what a dataset is: its settings, factors and size."""
    from threedident.datasets.reading import open_source
    from threedident.store import MANIFEST, DatasetDir

    if (dataset / MANIFEST).exists():
        directory = DatasetDir.open(dataset)
        manifest = directory.manifest
        shards = directory.shards()
        have = sum(interval.count for interval in shards)
        size = sum(path.stat().st_size for path in shards.values())
        form = f"{len(shards)} shards of up to {manifest.shard_size}, {size / 1e6:.1f} MB"
    else:
        with open_source(dataset) as source:
            found, have = source.manifest, len(source)
            side = source.image(0).shape[0]
        if found is None:
            click.echo(f"{dataset}: {have} images of {side} x {side}, published layout (PNG)")
            return
        manifest, form = found, f"packed, {dataset.stat().st_size / 1e6:.1f} MB"
    click.echo(f"{dataset}: {have} images of {manifest.resolution} x {manifest.resolution}, {form}")
    settings, engine = manifest.settings, manifest.engine
    preset = manifest.preset
    if preset is None:
        click.echo("imported from the published layout: what rendered it is not recorded")
        return
    click.echo(f"preset     {preset.name}: {preset.shape}, {preset.material}, hue {preset.hue}")
    latents = settings["latents"]["source"]
    seeded = f"{settings['split']} split, seed {settings['seed']}"
    click.echo(f"latents    {seeded if latents == 'seed' else 'given in a file'}")
    click.echo(
        f"engine     {engine['name']} {engine['version']} on {engine['device']}, "
        f"quality {engine['quality']} (recipe {engine['recipe']})"
    )
    click.echo(f"made       {manifest.created} by threedident {manifest.toolkit}")
    click.echo(f"command    {manifest.command}")
    for reason in preset.ambiguities():
        click.echo(f"not injective: {reason}")
    click.echo(f"\n{'factor':<20}{'group':<11}{'scene range':<22}{'best R2':<9}")
    for row in manifest.as_dict()["factors"]:
        low, high = row["scene_range"]
        span = f"{low:.4g} to {high:.4g} {row['unit']}"
        if row["fixed_raw"] is not None:
            span = f"fixed at raw {row['fixed_raw']:g}"
        best = "" if row["best_r2"] is None else f"{row['best_r2']:.4f}"
        click.echo(f"{row['name']:<20}{row['group']:<11}{span:<22}{best:<9}")


@main.command()
@click.argument("dataset", type=PATH)
@click.option("--n", "count", type=click.IntRange(1), help="How many images there should be.")
def verify(dataset: Path, count: int | None) -> None:
    """Check a dataset: every shard readable, complete, unchanged, with the right latents."""
    from threedident.datasets.verify import verify as check
    from threedident.store import DatasetDir

    directory = DatasetDir.open(dataset)
    report = check(directory, count)
    click.echo(f"{dataset}: {report.images} images in good shards, the last is {report.last}")
    if count is None and not report.missing:
        click.echo("whether there should be more after it is not recorded: --n says how many")
    if len(report.devices) > 1:
        click.echo(f"rendered on more than one kind of device: {', '.join(sorted(report.devices))}")
    for fault in report.faults:
        click.echo(f"fault: {fault}", err=True)
    for first, last in report.missing:
        click.echo(f"missing: images {first} to {last}", err=True)
    if report.faults or report.missing:
        cure = "`3dident render` with the settings it was made with renders that again"
        if directory.manifest.preset is None:
            cure = "import it again from the published layout it came from"
        click.echo(f"error: the dataset is not whole; {cure}", err=True)
        raise SystemExit(1)
    click.echo("all is well")


@main.command()
@click.argument("dataset", type=PATH)
def stats(dataset: Path) -> None:
    """Print mean and standard deviations, with their definitions; rewrite stats.json."""
    import json

    from threedident.store import DatasetDir

    directory = DatasetDir.open(dataset)
    try:
        found = directory.write_stats()
    except DatasetError as error:
        found = directory.compute_stats()
        click.echo(f"stats.json is not rewritten: {error}", err=True)
    click.echo(json.dumps(found, indent=2))


@main.command()
@click.argument("dataset", type=PATH)
@click.option("--out", type=PATH, required=True, help="The file, e.g. train.h5.")
@click.option("--compression", metavar="NAME", help="none or gzip.  [default: the dataset's]")
def pack(dataset: Path, out: Path, compression: str | None) -> None:
    """Join a dataset's shards into one HDF5 file."""
    from threedident.datasets.packed import pack as join
    from threedident.store import DatasetDir

    count = join(DatasetDir.open(dataset), out, compression=compression)
    click.echo(f"wrote {out}: {count} images")


@main.command()
@click.argument("dataset", type=PATH)
@click.option("--out", type=PATH, required=True, help="The directory to write.")
@click.option(
    "--to",
    "form",
    type=click.Choice(["published", "shards"]),
    required=True,
    help="published: images/*.png, raw_latents.npy, latents.npy. shards: a dataset directory.",
)
@click.option("--compression", metavar="NAME", help="Of shards: none or gzip.  [default: none]")
def convert(dataset: Path, out: Path, form: str, compression: str | None) -> None:
    """Write a dataset in the published layout, or read that layout, without loss."""
    from threedident.datasets import convert as conversion
    from threedident.datasets.reading import PublishedSource, open_source

    if out.resolve() == dataset.resolve():
        raise UsageError("--out must be another directory than the dataset's")
    with open_source(dataset) as source:
        if form == "published":
            count = conversion.to_published(source, out)
        elif isinstance(source, PublishedSource):
            count = conversion.from_published(source, out, compression=compression)
        else:
            raise UsageError(f"{dataset} is no published layout: only that converts to shards")
    click.echo(f"wrote {out}: {count} images")


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
        click.echo(f"  {factor:<20}{low:8.4f} to {high:.4f}{held}{best}")


@main.command()
def doctor() -> None:
    """Check what is installed, with versions, and say what to do about the rest."""
    from threedident.doctor import examine

    marks = {"ok": "ok     ", "missing": "-      ", "broken": "BROKEN "}
    findings = examine()
    for finding in findings:
        click.echo(f"{marks[finding.state]}{finding.name:<16}{finding.detail}")
    broken = [f for f in findings if f.state == "broken" or (f.state != "ok" and f.extra is None)]
    if broken:
        click.echo(f"error: broken: {', '.join(f.name for f in broken)}", err=True)
        raise SystemExit(1)
