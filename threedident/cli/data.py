"""Commands on a dataset: preview, info, verify, stats, pairs, pack, convert, download and more."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from threedident import defaults
from threedident.cli.group import command_line, main, say
from threedident.cli.options import (
    PATH,
    ConditionalOptions,
    OtherPairsOptions,
    check_figure,
    compression_option,
    conditional_options,
    dataset_argument,
    engine_option,
    json_option,
    other_pairs_options,
    quality_option,
    render_device_option,
    save_figure,
    seed_option,
    split_option,
    workers_option,
)
from threedident.errors import DatasetError, UsageError
from threedident.factors import FACTOR_NAMES
from threedident.figures import check_matplotlib

if TYPE_CHECKING:
    from threedident.datasets.matching_report import Report


@main.command()
@dataset_argument
@click.option(
    "--n",
    "--count",
    "count",
    type=click.IntRange(1, 400),
    default=25,
    show_default=True,
    help="Images.",
)
@click.option(
    "--out",
    type=PATH,
    help="The picture.  [default: preview.png in a directory of shards; for the other forms beside "
    "them, e.g. train.png for train.h5]",
)
@split_option
def preview(dataset: Path, out: Path | None, count: int, split: str | None) -> None:
    """Write a contact sheet of a dataset's first images.

    Pairs of a causal model stand side by side, and the frames of a sequence in a row. DATASET, in
    any form, defaults to data/3dident.

    \b
    Example:
      3dident preview data/3dident --n 36
    """
    from threedident.datasets.formats import open_dataset
    from threedident.datasets.formats.preview import preview as make_sheet
    from threedident.datasets.papers import is_drawn

    with open_dataset(dataset, split) as source:
        sheet, form = make_sheet(source, count), source.form
    if out is not None:
        target = out
    elif form == "shards":
        target = dataset / "preview.png"
    elif dataset.is_file():
        target = dataset.with_suffix(".png")
    elif is_drawn(dataset):
        target = Path(f"{dataset.name.replace(':', '-')}-preview.png")
    else:  # what was published, or exported, stays as it is
        names = [dataset.resolve().name, *([split] if split else []), "preview.png"]
        target = dataset.resolve().with_name("-".join(names))
    save_figure(sheet, target)


@main.command()
@dataset_argument
@split_option
@json_option
def info(dataset: Path, split: str | None, as_json: bool) -> None:
    """Say what a dataset is: its settings, factors and size; and whether images are missing.

    DATASET, in any form, defaults to data/3dident. Nothing is checked: see `3dident verify`.

    \b
    Example:
      3dident info data/3dident
    """
    import json

    from threedident.datasets.formats.describe import describe, lines

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
@json_option
def verify(dataset: Path, count: int | None, split: str | None, as_json: bool) -> None:
    """Check a dataset: every image readable, complete, unchanged, with the right latents.

    DATASET, in any form, defaults to data/3dident. Says what its form lets one check, and what
    not. Exits with 1 if anything is wrong.

    \b
    Example:
      3dident verify data/3dident --n 250000
    """
    import json

    from threedident.datasets.formats.describe import count_of
    from threedident.datasets.formats.verify import verify_any
    from threedident.storage.shard_plan import name_stretches

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

    \b
    Example:
      3dident stats data/3dident
    """
    import json

    from threedident.datasets.formats import find_form, open_dataset
    from threedident.datasets.formats.checks import measure
    from threedident.storage.directory import DatasetDir

    if find_form(dataset) == "shards" and split is None:
        directory = DatasetDir.open(dataset)
        try:
            statistics = directory.write_stats()
        except DatasetError as error:
            statistics = directory.compute_stats()
            say(f"stats.json is not rewritten: {error}")
    else:
        with open_dataset(dataset, split) as source:
            statistics = source.stats() or {}
            if "definitions" not in statistics:  # little or nothing is recorded
                statistics = measure(source)
    click.echo(json.dumps(statistics, indent=2))


@main.command()
@click.argument("dataset", type=PATH, required=False)
@click.option(
    "--n",
    "count",
    type=click.IntRange(2),
    help="Instead of a dataset: so many latents, as `3dident render --n` would sample them.",
)
@click.option("--out", type=PATH, help="A figure.")
@conditional_options
@other_pairs_options
@click.option(
    "--factors",
    multiple=True,
    metavar="FACTOR|GROUP",
    help="Match on these alone; the others vary freely. Can be repeated.  [default: all]",
)
@click.option("--index", default="auto", show_default=True, help="auto, exact, ivf or hnsw.")
@click.option(
    "--draws",
    type=click.IntRange(100),
    default=20_000,
    show_default=True,
    help="Pairs that are drawn for the measurement.",
)
@seed_option("draws")
@json_option
def pairs(
    dataset: Path | None,
    conditional: ConditionalOptions,
    other: OtherPairsOptions,
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

    Pairs over a grid, of sequences and of a table are exact. Of these it says how far each factor
    moves, and how often it stays.

    \b
    Examples:
      3dident pairs --n 250000 --conditional normal --sigma 0.1 --out pairs.png
      3dident pairs drawn:blobs --max-gap 5
      3dident pairs dsprites.npz --transition lap --rate 1
    """
    if (dataset is None) == (count is None):
        raise UsageError("expected a dataset, or --n for latents that are not rendered yet")
    if out is not None:
        check_figure(out)
        check_matplotlib()
    if dataset is not None and not _is_3dident(dataset):
        if conditional.any_given and conditional != _only_change(conditional):
            raise UsageError(
                f"{dataset} has no continuous latents to match: leave out --conditional and what "
                "goes with it; a grid has --transition"
            )
        if index != "auto":
            raise UsageError(f"--index is for matched pairs, and those of {dataset} are exact")
        _measure_other_pairs(
            dataset, other, conditional.change, factors, draws, seed, out, as_json=as_json
        )
        return
    if other.given:
        raise UsageError(f"{other.given[0]} is for datasets on a grid and in sequences")
    _measure_3dident_pairs(
        dataset, count, conditional, factors, index, draws, seed, out, as_json=as_json
    )


def _is_3dident(dataset: Path) -> bool:
    from threedident.datasets.formats import find_form
    from threedident.datasets.papers import FORMS

    return find_form(dataset) not in FORMS


def _only_change(conditional: ConditionalOptions) -> ConditionalOptions:
    """Options of which --change alone is given."""
    return ConditionalOptions(None, None, None, None, (), conditional.change)


def _measure_3dident_pairs(
    dataset: Path | None,
    count: int | None,
    conditional: ConditionalOptions,
    factors: tuple[str, ...],
    index: str,
    draws: int,
    seed: int,
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    """Measure pairs of ten latents, and print or draw what came out."""
    import json

    from threedident.factors import factor_columns

    columns = factor_columns(factors or FACTOR_NAMES)
    report, source = (
        _examine_rendered(dataset, columns, draws, seed)
        if dataset is not None and _is_rendered_in_pairs(dataset, conditional)
        else _examine_matched(dataset, count, columns, conditional, index, draws, seed)
    )

    from threedident.datasets.matching_report import figure, table

    title = f"{count} latents" if dataset is None else dataset.name
    if as_json:
        click.echo(json.dumps(report.as_dict(), indent=2))
    else:
        click.echo(f"{title}: {source}; {report.conditional}, {draws} draws")
        for line in table(report):
            click.echo(line)
    if out is not None:
        announce = say if as_json else click.echo
        save_figure(figure(report, f"{title}: {report.conditional}"), out, announce)


def _measure_other_pairs(
    dataset: Path,
    other: OtherPairsOptions,
    change: str | None,
    factors: tuple[str, ...],
    draws: int,
    seed: int,
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    """Measure pairs over a grid, of sequences or of a table, and print or draw what came out."""
    import json

    from threedident.datasets.formats import open_dataset
    from threedident.datasets.formats.grouping import count_pairs, pairs_within

    with open_dataset(dataset) as source:
        ways = pairs_within(source)
        way = _way_of_pairs(ways, other, change)
        # Refuses a dataset that has no such pairs. The size of batches does not show.
        size = max(1, min(draws, count_pairs(source, way)))
    transition = other.parse(change) if way == "grid" else None

    from threedident.datasets.dataset import ImageDataset
    from threedident.datasets.grid_pairs import GridPairs
    from threedident.datasets.indexed_pairs import IndexedPairs
    from threedident.datasets.pair_report import examine_changes, figure, table
    from threedident.datasets.sequence_pairs import SequencePairs, TablePairs

    data = ImageDataset(dataset, factors=factors or None)
    pairs: IndexedPairs
    if transition is not None:
        pairs = GridPairs(data, transition, batch_size=size, seed=seed)
        what = f"{len(data):,} images on a grid; {transition}"
    elif way == "sequence":
        pairs = SequencePairs(data, other.max_gap or 1, batch_size=size, seed=seed)
        what = f"{len(data):,} images in sequences; pairs with max_gap {pairs.max_gap}"
    else:
        pairs = TablePairs(data, batch_size=size, seed=seed)
        what = f"{len(data):,} images; the pairs that they name"
    report = examine_changes(pairs, draws, seed)
    if as_json:
        click.echo(json.dumps(report.as_dict(), indent=2))
    else:
        click.echo(f"{dataset.name}: {what}; {draws:,} pairs")
        for line in table(report):
            click.echo(line)
    if out is not None:
        save_figure(figure(report, f"{dataset.name}: {what}"), out, say if as_json else click.echo)


def _way_of_pairs(ways: Sequence[str], other: OtherPairsOptions, change: str | None) -> str:
    """The kind of pairs that the options ask for: grid, sequence or table.

    Raises:
        UsageError: they contradict each other.
    """
    of_grids = [name for name in other.given if name != "--max-gap"]
    of_grids += [] if change is None else ["--change"]
    if of_grids and other.max_gap is not None:
        raise UsageError(f"--max-gap is for sequences, and {of_grids[0]} for datasets on a grid")
    if of_grids:
        return "grid"
    if other.max_gap is not None:
        return "sequence"
    # What needs no further word comes first; of a grid the transition must be said.
    return min(ways, key=["sequence", "table", "grid"].index, default="grid")


def _is_rendered_in_pairs(dataset: Path, conditional: ConditionalOptions) -> bool:
    """Whether a dataset's images were rendered in pairs; it then has its conditional.

    Raises:
        UsageError: they were, and another conditional is given.
    """
    from threedident.datasets.formats import open_rendered

    with open_rendered(dataset) as source:
        rendered = source.manifest is not None and source.manifest.pair_process is not None
    if rendered and conditional.any_given:
        raise UsageError(f"{dataset} was rendered in pairs: leave out the conditional")
    return rendered


def _examine_rendered(
    dataset: Path, columns: Sequence[int], draws: int, seed: int
) -> tuple[Report, str]:
    """Measure pairs that were rendered; return the report, and a phrase on what was measured."""
    from threedident.datasets.dataset import ThreeDIdent
    from threedident.datasets.formats import open_rendered
    from threedident.datasets.matching_report import examine_pairs
    from threedident.datasets.pairs import PositivePairs

    with open_rendered(dataset) as source:
        columns = _that_vary(dataset, source.raw_latents, columns)
    names = tuple(FACTOR_NAMES[c] for c in columns)
    report = examine_pairs(PositivePairs(ThreeDIdent(dataset, factors=names)), draws, seed)
    return report, f"{report.images // 2} rendered pairs"


def _that_vary(dataset: Path, latents: Any, columns: Sequence[int]) -> Sequence[int]:
    """Return those of the columns that vary among latents (N, 10), and say which do not.

    Raises:
        UsageError: none does.
    """
    if len(latents) < 2:
        return columns
    moving = latents.max(0) > latents.min(0)
    still = [FACTOR_NAMES[c] for c in columns if not moving[c]]
    if len(still) == len(columns):
        raise UsageError(f"{', '.join(still)} do not vary among the images of {dataset}")
    if still:
        say(f"left out, as they do not vary among the images: {', '.join(still)}")
    return [c for c in columns if moving[c]]


def _examine_matched(
    dataset: Path | None,
    count: int | None,
    columns: Sequence[int],
    conditional: ConditionalOptions,
    index: str,
    draws: int,
    seed: int,
) -> tuple[Report, str]:
    """Measure pairs that are matched, in a dataset or among `count` latents; return as above."""
    import numpy as np

    from threedident.distributions import PairProcess, check_matchable
    from threedident.distributions.spaces import Box
    from threedident.latents import sample_raw_latents

    latents = np.empty((0, len(columns)), np.float32)
    if dataset is not None:
        from threedident.datasets.formats import open_rendered

        with open_rendered(dataset) as source:
            columns = _that_vary(dataset, source.raw_latents, columns)
            latents = source.raw_latents[:, list(columns)]
            sampling = source.manifest.sampling if source.manifest else None
            classes = [
                each.name
                for k, each in enumerate(sampling.model.variables if sampling else ())
                if each.kind == "discrete"
                and source.draws is not None
                and np.ptp(source.draws.variables[:, k]) > 0
            ]
        if sampling is not None and sampling.frames > 1:
            raise UsageError(
                f"the images of {dataset} belong together ({sampling.group}): pairs are matched "
                "among single images"
            )
        if classes:
            say(
                "warning: pairs are matched by the ten factors alone: the two images of a pair can "
                f"differ in {', '.join(classes)}"
            )
    names = tuple(FACTOR_NAMES[c] for c in columns)
    process = PairProcess(Box(len(names)), conditional.parse(names))
    check_matchable(process.conditional, latents, names)

    from threedident.datasets.latent_matcher import LatentMatcher, index_path
    from threedident.datasets.matching_report import examine

    kept = None
    if count is not None:
        latents = sample_raw_latents(range(count), seed=0, split="train")[:, list(columns)]
    elif dataset is not None:
        kept = index_path(dataset, tuple(columns), index, len(latents))
    matcher = LatentMatcher(latents, index=index, path=kept)
    report = examine(matcher, process, names, draws=draws, seed=seed)
    search = "exact" if matcher.factory == "Flat" else f"approximate ({matcher.factory} of FAISS)"
    return report, f"{report.images} images, {search} search of the nearest"


@main.command()
@click.argument("dataset", type=PATH)
@click.option("--out", type=PATH, required=True, help="The file, e.g. train.h5.")
@split_option
@click.option(
    "--resolution",
    type=click.IntRange(1, 1024),
    help="Pixels along each side of images that are resized; not of 3DIdent, which is rendered at "
    "any size.  [default: the dataset's]",
)
@compression_option("the dataset's")
def pack(
    dataset: Path, out: Path, split: str | None, resolution: int | None, compression: str | None
) -> None:
    """Join a dataset, in any form, into one HDF5 file.

    What made it is kept, and checksums: `3dident convert --to shards` brings back a directory of
    3DIdent. The papers' other datasets keep their factors, grid, sequences and pairs.

    \b
    Example:
      3dident pack data/3dident --out 3dident.h5
    """
    from threedident.datasets.formats import open_dataset
    from threedident.datasets.formats.hdf5 import pack as join
    from threedident.datasets.formats.resized import ResizedSource

    with open_dataset(dataset, split) as whole:
        source = whole if resolution is None else ResizedSource(whole, resolution)
        count = join(source, out, compression=compression, command=command_line())
        wanted = source.wanted()
    _say_written(out, count, wanted)


def _say_written(out: Path, count: int, wanted: int | None, split: str | None = None) -> None:
    """Say what was written, and how to look at it."""
    from threedident.datasets.formats.describe import count_of

    click.echo(f"wrote {out}: {count_of(count, wanted)} images")
    what = shlex.quote(str(out)) + (f" --split {split}" if split else "")
    click.echo(f"look at it: 3dident preview {what}; check it: 3dident verify {what}")


@main.command()
@click.argument("dataset", type=PATH)
@click.option("--out", type=PATH, required=True, help="The directory to write.")
@click.option(
    "--to",
    "form",
    type=click.Choice(
        [
            *("published", "shards", "webdataset", "parquet"),
            *("causal3dident", "multimodal3dident", "3didentbox", "temporal-causal3dident"),
        ]
    ),
    required=True,
    help="published: images/*.png, raw_latents.npy, latents.npy. shards: a dataset directory. "
    "webdataset: tar files. parquet: Parquet with image bytes, as Hugging Face datasets has it. "
    "The others: the layouts of 3DIdent's family, as published, for datasets that have their "
    "variables.",
)
@click.option(
    "--split",
    type=click.Choice(["train", "val", "validation", "test"]),
    help="Which split of an export is read, where it has several; and what webdataset and parquet "
    "call it.  [default: the dataset's split, or train]",
)
@click.option(
    "--shard-size",
    type=click.IntRange(1),
    help="Images to a file.  [default: for shards as they were, or "
    f"{defaults.SHARD_SIZE}; about 240 MB for webdataset and parquet]",
)
@compression_option("that of the shards as they were, or none")
@click.option(
    "--templates",
    type=PATH,
    help="Phrasings of captions for multimodal3dident, a line each.  [default: the dataset's "
    "captions, or phrasings of our own]",
)
def convert(
    dataset: Path,
    out: Path,
    form: str,
    split: str | None,
    shard_size: int | None,
    compression: str | None,
    templates: Path | None,
) -> None:
    """Write a dataset in another form, from any form, without loss.

    What made it goes along, so that --to shards brings back a directory that `3dident render`
    goes on with. webdataset and parquet come with a dataset card; several splits can share OUT.
    Run the same command again after any interruption: it goes on where it was stopped.

    \b
    Example:
      3dident convert data/3dident --to webdataset --out data/webdataset
    """
    from threedident.datasets.captions import load_templates
    from threedident.datasets.formats import open_rendered, splits_of
    from threedident.datasets.formats.convert import convert as write
    from threedident.datasets.formats.export import split_of
    from threedident.datasets.formats.export_record import records

    if out.resolve() == dataset.resolve():
        raise UsageError("--out must be another directory than the dataset's")
    exports = form in ("webdataset", "parquet")
    several = len(splits_of(dataset)) > 1
    takes = {"--shard-size"} if exports else set()
    takes |= {"--split"} if exports or several else set()
    takes |= {"--compression", "--shard-size"} if form == "shards" else set()
    takes |= {"--templates"} if form == "multimodal3dident" else set()
    for option, value in {
        "--compression": compression,
        "--shard-size": shard_size,
        "--split": split,
        "--templates": templates,
    }.items():
        if value is not None and option not in takes:
            raise UsageError(f"--to {form} takes no {option}")
    written = None
    with open_rendered(dataset, split if several else None) as source:
        name = split if exports else None  # of another form, it only chose what is read
        count = write(
            source,
            out,
            form,
            split=name,
            shard_size=shard_size,
            compression=compression,
            command=command_line(),
            templates=None if templates is None else load_templates(templates),
        )
        if exports:
            written = split_of(source, split) if len(records(out)) > 1 else None
        wanted = source.wanted()
    _say_written(out, count, wanted, written)


@main.command()
@click.argument("name", required=False)
@click.option("--out", type=PATH, help="The directory to write; not needed with --list.")
@click.option(
    "--record",
    type=click.IntRange(1),
    help="Instead of a name: Zenodo's number of a record.",
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
    help="Keep or remove the archives once they are unpacked.",
)
@click.option("--list", "listing", is_flag=True, help="Print the files and their sizes, only.")
def download(
    name: str | None,
    out: Path | None,
    record: int | None,
    names: tuple[str, ...],
    api: str,
    keep: bool,
    listing: bool,
) -> None:
    """Fetch a published dataset from Zenodo, check it and unpack it.

    NAME is 3dident (the default), kitti-masks or natural-sprites. Of the other datasets that can be
    opened, it says where they are published. Run the same command again after any interruption: it
    goes on where it was stopped.

    \b
    Examples:
      3dident download --out data/published
      3dident download kitti-masks --out data/kitti-masks
    """
    from threedident.datasets import zenodo as fetching

    if name is not None and record is not None:
        raise UsageError("give a name or --record, not both")
    number = record or fetching.find_record(name or "3dident")

    if out is None and not listing:
        raise UsageError("--out is missing: the directory to write")
    with fetching.open_session() as session:
        files = fetching.list_record(session, number, api)
        recorded = [file.name for file in files]
        for each in names:
            if each not in recorded:
                raise UsageError(f"the record has no file {each!r}: it has {', '.join(recorded)}")
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
    layouts, others = fetching.find_layouts(out), fetching.find_others(out)
    for path in others:
        click.echo(f"look at it: 3dident info {shlex.quote(str(path))}")
    if not layouts and not others:
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
@click.option("--out", type=PATH, help="A contact sheet: the images, and each preset's render.")
@click.option(
    "--preset",
    "names",
    multiple=True,
    default=(defaults.PRESET, f"{defaults.PRESET}-wrapped"),
    show_default=True,
    metavar="NAME|FILE.toml",
    help="A candidate for what made the dataset. Can be repeated.",
)
@quality_option
@render_device_option
@workers_option
@engine_option("direct")
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

    \b
    Example:
      3dident compare-release data/published/train --out release.png
    """
    from threedident.datasets import release_check as release
    from threedident.datasets.formats import open_rendered
    from threedident.presets import load_preset

    if out is not None:
        check_figure(out)
    presets = [load_preset(name) for name in names]
    with open_rendered(dataset) as source:
        click.echo(f"{dataset}: {len(source)} images")
        for line in release.describe_latents(source, presets):
            click.echo(line)
        comparison = release.compare(
            source,
            presets,
            count=count,
            engine=engine,
            quality=quality,
            device=device,
            workers=workers,
        )
    for line in comparison.lines():
        click.echo(line)
    if out is not None:
        save_figure(comparison.figure(), out)
