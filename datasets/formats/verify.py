"""Verification: every image of a dataset checked against the dataset's own record."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from threedident.datasets import papers
from threedident.datasets.formats import ImageSource, Source, find_form, open_dataset
from threedident.datasets.formats.checks import Checks, check_imported, intervals_of
from threedident.datasets.formats.export_record import DATA
from threedident.datasets.formats.hdf5 import IMPORT_AGAIN
from threedident.datasets.formats.source import Float32
from threedident.datasets.papers.packed import FORM as PACKED
from threedident.datasets.papers.packed import PackedImages, stretches
from threedident.errors import DatasetError
from threedident.progress import Progress
from threedident.storage.directory import DatasetDir
from threedident.storage.shard_plan import Interval, gaps, joined


@dataclasses.dataclass
class Report:
    """The findings of a verification.

    Attributes:
        form: shards, packed, published, webdataset or parquet.
        imported: the verdict that the record of what rendered it is missing.
        images: the number of good images.
        last: the number of the last image there is.
        wanted: the number of images there should be; None where it is neither given nor recorded.
        faults: the faults, a line each; empty for a good dataset.
        missing: the stretches of images that are not there or not good, first to last.
        devices: the kinds of device that rendered the images.
        checked: the checks made, a line each.
        unchecked: the checks not made, and why, a line each.
    """

    form: str = "shards"
    imported: bool = False
    images: int = 0
    last: int = -1
    wanted: int | None = None
    faults: list[str] = dataclasses.field(default_factory=list)
    missing: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    devices: set[str] = dataclasses.field(default_factory=set)
    checked: list[str] = dataclasses.field(default_factory=list)
    unchecked: list[str] = dataclasses.field(default_factory=list)

    @property
    def good(self) -> bool:
        """The verdict: no fault, and no image missing."""
        return not self.faults and not self.missing

    @property
    def cure(self) -> str:
        """The advice for a dataset that is not good."""
        tail = self.wanted is not None and self.last + 1 < self.wanted
        fewer = "; if fewer images are wanted, say how many with --n" if tail else ""
        if self.form in papers.FORMS:
            return (
                "write it again with `3dident pack`, from the dataset it came from"
                if self.form == PACKED
                else "fetch it again from where it is published"
            )
        if self.form != "shards":
            return (
                "once that is whole, write it again from the dataset it came from, with `3dident "
                f"{'pack' if self.form == 'packed' else f'convert --to {self.form}'}`{fewer}"
            )
        if self.imported:
            return IMPORT_AGAIN
        return f"`3dident render --extend` with its directory renders that again{fewer}"

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data for JSON."""
        return {"good": self.good, **dataclasses.asdict(self), "devices": sorted(self.devices)}


class _Latents(NamedTuple):
    """The latents of one shard, without its images."""

    raw_latents: Float32
    latents: Float32


def verify_any(root: Path, total: int | None = None, split: str | None = None) -> Report:
    """Check a dataset in any form.

    Args:
        root: the file or folder.
        total: the number of images it should hold; None: as many as is recorded.
        split: the split to check, of an export of several.

    Raises:
        DatasetError: it is no dataset.
        UsageError: the split does not fit.
        MissingExtraError: Parquet without pyarrow.
    """
    if find_form(root) == "shards" and split is None:
        return verify(DatasetDir.open(root), total)
    try:
        source = open_dataset(root, split)
    except DatasetError as error:
        return Report(form=_form_of(root), wanted=total, faults=[str(error)])
    with source:
        if isinstance(source, Source):
            return verify_source(source, total)
        return verify_images(source, total)


def _form_of(root: Path) -> str:
    """The form of a dataset that cannot be opened; an export's, by the names of its files."""
    form = find_form(root)
    if form != "export":
        return form
    return "parquet" if any((root / DATA).glob("*.parquet")) else "webdataset"


def verify(dataset: DatasetDir, total: int | None = None) -> Report:
    """Check every shard: readable, complete, checksums, and latents equal to the settings'.

    Args:
        dataset: the dataset directory.
        total: the number of images it should hold; None: as many as were asked for, where that is
            recorded, or those up to the last shard.
    """
    report = Report(wanted=total, imported=dataset.manifest.preset is None)
    if total is None:
        try:
            report.wanted = dataset.wanted()
        except DatasetError as error:
            report.faults.append(str(error))
    shards = dataset.shards()
    report.last = max((interval.stop for interval in shards), default=0) - 1
    good, bad = _check_shards(dataset, shards, report)
    report.missing = joined([*gaps(shards, report.wanted), *bad])
    if good and not report.faults:
        raw = np.concatenate([shard.raw_latents for shard in good])
        scene = np.concatenate([shard.latents for shard in good])
        try:
            check_imported(dataset.manifest, raw, scene, str(dataset.root))
        except DatasetError as error:
            report.faults.append(str(error))
    if not shards:
        report.faults.append(f"{dataset.root} holds no finished shard")
    whose = "were imported" if dataset.manifest.preset is None else "the settings give"
    report.checked = [
        "every shard can be read, belongs to these settings and has its checksums",
        f"latents are those that {whose}",
    ]
    _note_wanted(report)
    return report


def _check_shards(
    dataset: DatasetDir, shards: Mapping[Interval, Path], report: Report
) -> tuple[list[_Latents], list[tuple[int, int]]]:
    """Check shards one by one, and put into a report what is found.

    Returns:
        The latents of the good shards, and first and last image of each bad one.
    """
    good: list[_Latents] = []
    bad: list[tuple[int, int]] = []
    with Progress("verifying", sum(i.count for i in shards)) as progress:
        for interval, path in shards.items():
            try:
                shard = dataset.read_shard(path)
            except DatasetError as error:
                report.faults.append(str(error))
                bad.append((interval.first, interval.stop - 1))
            else:
                report.images += interval.count
                report.devices.add(str(shard.attributes.get("device", "?")))
                good.append(_Latents(shard.raw_latents, shard.latents))
            progress.advance(interval.count)
    return good, bad


def verify_source(source: Source, total: int | None = None) -> Report:
    """Check a dataset that is not in shards, by the records that its form keeps.

    Args:
        source: the dataset.
        total: the number of images it should hold; None: as many as were asked for, where that is
            recorded.
    """
    wanted = source.wanted() if total is None else total
    imported = source.manifest is None or source.manifest.preset is None
    report = Report(form=source.form, imported=imported, wanted=wanted, last=len(source) - 1)
    checks = Checks(source)
    missing = gaps([Interval(0, len(source))], wanted)
    with Progress("verifying", len(source)) as progress:
        for interval in intervals_of(source):
            faults = _faults(source, checks, interval)
            report.faults += [text for _, text in faults]
            missing += [where for where, _ in faults]
            lost = joined(where for where, _ in faults)
            report.images += interval.count - sum(last - first + 1 for first, last in lost)
            progress.advance(interval.count)
    report.missing = joined(missing)
    try:
        checks.check_whole()
    except DatasetError as error:
        report.faults.append(str(error))
    report.devices = {part.provenance.get("device", "?") for part in source.parts()}
    report.checked, report.unchecked = checks.done, checks.left
    _note_wanted(report)
    return report


def verify_images(source: ImageSource, total: int | None = None) -> Report:
    """Check a dataset that is none of 3DIdent's: every image readable, and as it was packed.

    What its form lets one check of the factors is checked when it is opened.

    Args:
        source: the dataset.
        total: the number of images it should hold; None: as many as its grid has points.
    """
    wanted = len(source.grid) if total is None and source.grid is not None else total
    report = Report(form=source.form, wanted=wanted, last=len(source) - 1)
    packed = source if isinstance(source, PackedImages) else None
    missing = gaps([Interval(0, len(source))], wanted)
    with Progress("verifying", len(source)) as progress:
        for interval in stretches(source) if packed is None else packed.checksums:
            try:
                images = source.images(interval.indices)
                if packed is not None:
                    packed.check(interval, images)
                report.images += interval.count
            except DatasetError as error:
                report.faults.append(str(error))
                missing.append((interval.first, interval.stop - 1))
            progress.advance(interval.count)
    report.missing = joined(missing)
    report.checked = ["every image can be read"]
    if source.grid is not None:
        report.checked.append("there are as many images as the grid has points")
    if packed is None:
        report.unchecked.append("pixels: this form was written without checksums of them")
    else:
        report.checked.append("images and factors have the checksums that they were packed with")
        if not report.faults and source.fingerprint != packed.recorded:
            report.faults.append(f"{source.root}: it has another fingerprint than was packed")
    _note_wanted(report)
    return report


def _faults(
    source: Source, checks: Checks, interval: Interval
) -> list[tuple[tuple[int, int], str]]:
    """The faults in a stretch of images: first and last image of each, and the fault in words."""
    try:
        images = source.images(interval.indices)
    except DatasetError:
        faults = []
        for index in interval.indices:
            try:
                source.image(index)
            except DatasetError as error:
                faults.append(((index, index), str(error)))
        return faults
    try:
        checks.check(interval, images)
    except DatasetError as error:
        return [((interval.first, interval.stop - 1), str(error))]
    return []


def _note_wanted(report: Report) -> None:
    if report.wanted is None:
        report.unchecked.append(
            "whether there should be more images after the last: the wanted number is not "
            "recorded (--n says how many)"
        )
    else:
        report.checked.append(f"how many images there are, against the {report.wanted:,} wanted")
