"""Commands on a dataset: preview, info, verify, stats, pairs, pack, convert, download and more."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from threedident.cli.group import main, say
from threedident.cli.options import (
    PATH,
    ConditionalOptions,
    check_figure,
    conditional_options,
    dataset_argument,
    save_figure,
    split_option,
)
from threedident.errors import (
    DatasetError,
    MissingExtraError,
    UsageError,
)
from threedident.factors import FACTOR_NAMES

if TYPE_CHECKING:
    pass


@main.command()
@dataset_argument
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
@split_option
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
    save_figure(contact_sheet(images, [f"{i}" for i in range(count)]), target)


@main.command()
@dataset_argument
@split_option
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
@dataset_argument
@click.option(
    "--n",
    "count",
    type=click.IntRange(1),
    help="How many images there should be.  [default: as many as were asked for, where recorded]",
)
@split_option
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
        say(f"fault: {fault}")
    if report.missing:
        say(f"missing: {name_stretches(report.missing, most=1000)}")
    if not report.good:
        say(f"error: the dataset is not whole; {report.cure}")
        raise SystemExit(1)
    click.echo("all is well")


@main.command()
@dataset_argument
@split_option
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
            say(f"stats.json is not rewritten: {error}")
    else:
        with open_source(dataset, split) as source:
            found = source.stats() or {}
            if "definitions" not in found:  # little or nothing is recorded
                found = measure(source)
    click.echo(json.dumps(found, indent=2))


@main.command()
@click.argument("dataset", type=PATH, required=False)
@conditional_options
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
    conditional: ConditionalOptions,
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
        check_figure(out)
        try:
            import matplotlib  # noqa: F401
        except ImportError as error:
            raise MissingExtraError("matplotlib", "train", "the figure") from error

    columns = list(factor_columns(factors or FACTOR_NAMES))
    names = tuple(FACTOR_NAMES[c] for c in columns)
    rendered, latents = False, np.empty((0, len(names)), np.float32)
    if dataset is not None:
        from threedident.datasets.formats.sources import open_source

        with open_source(dataset) as source:
            rendered = source.manifest is not None and source.manifest.pair_process is not None
            latents = source.raw_latents[:, columns]
        if rendered and conditional.any_given:
            raise UsageError(f"{dataset} was rendered in pairs: leave out the conditional")
    if not rendered:
        process = PairProcess(Box(len(names)), conditional.parse(names))
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
        announce = say if as_json else click.echo
        save_figure(figure(report, f"{title}: {report.conditional}"), out, announce)


@main.command()
@click.argument("dataset", type=PATH)
@click.option("--out", type=PATH, required=True, help="The file, e.g. train.h5.")
@click.option("--compression", metavar="NAME", help="none or gzip.  [default: the dataset's]")
@split_option
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
            say("what has been fetched is kept: run the same command again")
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
        check_figure(out)
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
        save_figure(found.figure(), out)
