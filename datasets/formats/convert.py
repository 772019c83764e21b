"""Writing a dataset in another form, from any form, without loss."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from threedident.causal import OBSERVED
from threedident.datasets.formats.export import export
from threedident.datasets.formats.family import WRITERS, FamilySource, ModelSource
from threedident.datasets.formats.family.identbox import FORM as IDENTBOX
from threedident.datasets.formats.family.multimodal3dident import FORM as MULTIMODAL
from threedident.datasets.formats.family.multimodal3dident import (
    caption,
    seed_and_split,
    write_multimodal3dident,
)
from threedident.datasets.formats.family.temporal import FORM as TEMPORAL
from threedident.datasets.formats.hdf5 import to_shards
from threedident.datasets.formats.png_folder import to_published
from threedident.datasets.formats.source import Source
from threedident.errors import UsageError
from threedident.progress import Progress

#: The layouts that hold which images belong together, by the kind of group.
_KEEP = {"views": IDENTBOX, "counterfactual": IDENTBOX, "sequence": TEMPORAL}
FORMS = ("published", "shards", "webdataset", "parquet", *WRITERS)


def convert(
    source: Source,
    out: Path,
    form: str,
    *,
    split: str | None = None,
    shard_size: int | None = None,
    compression: str | None = None,
    command: str | None = None,
    templates: Sequence[str] | None = None,
) -> int:
    """Write a dataset in another form; after an interruption, the same call goes on.

    The record of what made it goes along, so that shards written from any form can be rendered on.
    What a layout of the family has beside images and the ten latents stays behind in a form that
    has no place for it, and a line says so. A layout of the family is written whole or not at all:
    its folder must be empty.

    Args:
        source: the dataset, in any form.
        out: the folder to write.
        form: published, shards, webdataset, parquet, or the name of a layout of the family.
        split: the split's name in an export; None: the dataset's own, or train.
        shard_size: images to a file; None: for shards as they were, or 100; about 240 MB for
            webdataset and parquet.
        compression: none or gzip, for shards; None: as it was, or none.
        command: the command that an import records as what made it; None: "Python".
        templates: the phrasings of captions, as `load_templates` returns them, for
            multimodal3dident; None: the dataset's captions, or our own phrasings.

    Returns:
        The number of images written.

    Raises:
        UsageError: an argument does not fit the form, the dataset lacks what the form needs, or
            another process writes to `out`.
        DatasetError: `out` holds something else, an image cannot be read, or the disk is full.
        MissingExtraError: Parquet without pyarrow.
    """
    taken = {
        "published": (),
        "shards": ("shard_size", "compression"),
        "webdataset": ("split", "shard_size"),
        "parquet": ("split", "shard_size"),
        **dict.fromkeys(WRITERS, ()),
        MULTIMODAL: ("templates",),
    }
    if form not in FORMS:
        raise UsageError(f"form must be one of {', '.join(FORMS)}, found {form!r}")
    options = {
        "split": split,
        "shard_size": shard_size,
        "compression": compression,
        "templates": templates,
    }
    for name, value in options.items():
        if value is not None and name not in taken[form]:
            raise UsageError(f"the form {form} takes no {name}, found {value!r}")
    if form == MULTIMODAL and templates is not None:
        family = _of_family(source, form)
        captions = caption(family, **seed_and_split(family), templates=templates)
        return write_multimodal3dident(family, out, captions)
    if form in WRITERS:
        return WRITERS[form](_of_family(source, form), out)
    if isinstance(source, FamilySource):
        _say_what_stays_behind(source, form)
    if form == "published":
        return to_published(source, out)
    if form == "shards":
        return to_shards(
            source, out, shard_size=shard_size, compression=compression, command=command
        )
    return export(source, out, form, split=split, shard_size=shard_size)


def _of_family(source: Source, form: str) -> FamilySource:
    """The dataset, which must have variables with names beside the ten latents.

    Raises:
        UsageError: it has none.
    """
    if isinstance(source, FamilySource):
        return source
    if source.preset is not None and source.preset.objects > 1:
        raise UsageError(
            f"{source.root} shows {source.preset.objects} objects, and the layout {form} has "
            "columns for one: another form, such as webdataset, keeps all of them"
        )
    if source.draws is not None:
        sampling = source.manifest.sampling if source.manifest else None
        if sampling is not None and (sampling.do or sampling.environments not in ((), (OBSERVED,))):
            Progress.print(
                f"{source.root} has interventions (environments or do): the layout {form} keeps "
                "their images, and has no place for which is which"
            )
        if sampling is not None and sampling.frames > 1 and form != _KEEP.get(sampling.group):
            intervened = sampling.group == "counterfactual"
            Progress.print(
                f"the images of {source.root} belong together ({sampling.group}): the layout "
                f"{form} keeps them one by one, and has no place for which belong together"
                + (", nor for which are the counterfactuals" if intervened else "")
            )
        return ModelSource(source)
    raise UsageError(
        f"{source.root} has no variables but the ten latents: the layout {form} is for datasets of "
        "3DIdent's family, and for those of `3dident render --model`"
    )


def _say_what_stays_behind(source: FamilySource, form: str) -> None:
    parts = {
        "the variables that are no latents": any(
            column.kind == "discrete" for column in source.columns
        ),
        "the pairs": source.pairs is not None,
        "the triplets": source.triplets is not None,
        "the intervention targets": source.targets is not None,
        "the captions": source.captions is not None,
    }
    Progress.print(
        f"{source.root}: the form {form} keeps images and the ten latents, and not "
        + ", ".join(part for part, there in parts.items() if there)
    )
