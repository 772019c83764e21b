"""The forms of a dataset on disk: `open_dataset` opens any of them.

One format a file, its writer beside its reader: `hdf5` (shards, packed), `png_folder` (the
published layout), `export` with `webdataset` and `parquet`, `family` (the layouts of the datasets
that came after 3DIdent). `source` is what they share. `convert`, `checks`, `verify` and `describe`
work on every form.
"""

from __future__ import annotations

from pathlib import Path

import h5py

from threedident.datasets import papers
from threedident.datasets.formats import export_record, png_folder
from threedident.datasets.formats.export import open_export
from threedident.datasets.formats.family import LAYOUTS, find_family, open_family, splits_in
from threedident.datasets.formats.hdf5 import PackedSource, ShardSource
from threedident.datasets.formats.source import ImageSource as ImageSource
from threedident.datasets.formats.source import Source as Source
from threedident.datasets.formats.source import count_shared as count_shared
from threedident.datasets.formats.source import count_shared_images as count_shared_images
from threedident.errors import DatasetError, UsageError
from threedident.storage.manifest import MANIFEST
from threedident.storage.shard_plan import parse_name


def open_dataset(root: str | Path, split: str | None = None) -> ImageSource:
    """Open a dataset in whichever form it is, without torch.

    Args:
        root: a directory of shards, a packed file, the published layout of 3DIdent or of one of its
            family, or an export to WebDataset or Parquet: its folder, or the JSON file of one of
            its splits; or one of the papers' other datasets, see `threedident.datasets.papers`.
        split: train, val or test, of an export or a folder of several splits.

    Raises:
        UsageError: a split is named, and the form has none.
        DatasetError: it is no dataset, or damaged.
        MissingExtraError: Parquet without pyarrow.
    """
    root = Path(root)
    form = find_form(root)
    if form == "export":
        return open_export(root, split)
    if form in LAYOUTS:
        return open_family(root, form, split)
    if form in papers.FORMS:
        return papers.open_source(root, form, split)
    if split is not None:
        raise UsageError(
            f"{root} has no splits to choose from: --split is for exports to WebDataset and "
            "Parquet, and for published folders of several splits"
        )
    if form == "packed":
        return PackedSource(root)
    if form == "shards":
        return ShardSource(root)
    return png_folder.PngSource(root)


def open_rendered(root: str | Path, split: str | None = None) -> Source:
    """Open a dataset of 3DIdent or of its family in whichever form it is, without torch.

    Args:
        root: the path of the dataset.
        split: train, val or test, of an export or a folder of several splits.

    Raises:
        UsageError: a split is named, and the form has none; or it is a dataset of other factors
            than the ten of 3DIdent.
        DatasetError: it is no dataset, or damaged.
        MissingExtraError: Parquet without pyarrow.
    """
    source = open_dataset(root, split)
    if isinstance(source, Source):
        return source
    raise UsageError(
        f"{root} is {papers.FORMS[source.form]}, with the factors "
        f"{', '.join(source.factor_names)}: this needs the ten latents of 3DIdent, as a dataset of "
        "`3dident render` has them"
    )


def find_form(root: Path) -> str:
    """Find out which form a dataset is in.

    Returns:
        shards, packed, published, export, one of `LAYOUTS`, or one of `papers.FORMS`.

    Raises:
        DatasetError: it is in none of them.
    """
    other = papers.find_form(root)
    if other is not None:
        return other
    if root.is_file():
        if parse_name(root.name):
            raise DatasetError(
                f"{root} is one shard of the dataset {root.parent}: open that directory"
            )
        if root.suffix == ".json" and export_record.is_record(root):
            return "export"
        if root.suffix in (".tar", ".parquet") and export_record.records(root.parent.parent):
            folder = root.parent.parent
            raise DatasetError(f"{root} is one file of an export: give its folder, {folder}")
        # A packed file whose beginning is damaged still says so by its name.
        if root.suffix.lower() in (".h5", ".hdf5") or h5py.is_hdf5(root):
            return "packed"
    elif (root / MANIFEST).is_file():
        return "shards"
    elif export_record.records(root):
        return "export"
    if (form := _published_form(root)) is not None:
        return form
    what = "it is none of these" if root.exists() else "there is no such file or directory"
    if root.is_file():
        what = "it is no dataset"
    raise DatasetError(
        f"cannot open {root} as a dataset: {what}. Expected a directory made by `3dident render` "
        f"({MANIFEST}), a file made by `3dident pack` (.h5), the published layout "
        f"({png_folder.IMAGES}/, {png_folder.RAW_LATENTS}, {png_folder.LATENTS}), that of "
        "Causal3DIdent, Multimodal3DIdent, 3DIdentBox or Temporal Causal3DIdent, a folder made by "
        "`3dident convert` (3dident-*.json), one of the papers' other datasets as it is published "
        "(docs/other-datasets.md), or the name of drawn images, such as drawn:sprites"
    )


def _published_form(root: Path) -> str | None:
    """The published layout that a folder or file is in; None where it is in none."""
    form = find_family(root)
    if form is None and root.is_dir():
        named = (root / png_folder.RAW_LATENTS).is_file() or (root / png_folder.IMAGES).is_dir()
        return "published" if named else None
    return form


def splits_of(root: Path) -> tuple[str, ...]:
    """The splits to choose from: of an export, or of a published folder; none where it has none.

    Raises:
        DatasetError: it is no dataset.
    """
    form = find_form(root)
    if form == "export":
        return tuple(export_record.records(root)) if root.is_dir() else ()
    return tuple(splits_in(root, form)) if form in LAYOUTS and root.is_dir() else ()
