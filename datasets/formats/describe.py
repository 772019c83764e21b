"""Descriptions of datasets for `3dident info`, from their records; no image is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from threedident.causal import OBSERVED, Sampling
from threedident.columns import Column
from threedident.datasets import papers
from threedident.datasets.formats import ImageSource, Source, find_form, open_dataset
from threedident.datasets.formats.export import ExportSource
from threedident.datasets.formats.family import TITLES, FamilySource
from threedident.datasets.formats.hdf5 import extend_command
from threedident.errors import DatasetError
from threedident.factors import NUM_FACTORS
from threedident.presets import parse_preset
from threedident.storage.directory import WANTED, DatasetDir
from threedident.storage.manifest import Manifest
from threedident.storage.shard_plan import Interval, gaps, name_stretches

_FORMS = {
    "packed": "packed",
    "published": "published layout (PNG)",
    "webdataset": "WebDataset",
    "parquet": "Parquet",
    **{form: f"published layout of {title}" for form, title in TITLES.items()},
}
_ROW_BYTES = 8 * NUM_FACTORS + 8  # of an image's latents and index in a shard


def describe(root: Path, split: str | None = None) -> dict[str, Any]:
    """Describe a dataset in any form, as plain data; an incomplete one is said to be so.

    Keys: `dataset`, `form`, `split` (of an export), `images`, `wanted` (how many were asked for),
    `missing` (stretches, first to last), `faults`, `height`, `width`, `files`, `bytes`; and of what
    made it, each null where that is not recorded, `shard_size`, `compression`, `fingerprint`,
    `created`, `toolkit`, `command`, `settings`, `conditional` (of pairs, in words), `factors`,
    `not_injective`, `why_no_best_r2`, `model` (the causal model and what was drawn of it); and
    `family`, what a published layout of the family says beside images and latents (its variables
    with their classes, pairs, triplets, captions, and the rates of interventions), null for other
    forms; and `other`, the factors, pairs and sequences of the papers' other datasets, likewise.

    Raises:
        DatasetError: it is no dataset, or too damaged to be opened.
        UsageError: the split does not fit.
        MissingExtraError: Parquet without pyarrow.
    """
    if find_form(root) == "shards" and split is None:
        return _describe_shards(root)
    with open_dataset(root, split) as source:
        height, width = source.shape[:2]
        files = source.files()
        return {
            "dataset": str(root),
            "form": source.form,
            "split": source.split.name if isinstance(source, ExportSource) else None,
            "images": len(source),
            "wanted": source.wanted(),
            "missing": gaps([Interval(0, len(source))], source.wanted()),
            "faults": [],
            "height": height,
            "width": width,
            "files": len(files),
            "bytes": sum(path.stat().st_size for path in files),
            **_of_manifest(source.manifest),
            "family": source.facts() if isinstance(source, FamilySource) else None,
            "other": None if isinstance(source, Source) else _of_factors(source),
        }


def _of_factors(source: ImageSource) -> dict[str, Any]:
    """The factors of a dataset that is none of 3DIdent's, as plain data."""
    factors, grid = source.factors, source.grid
    sizes = {} if grid is None else dict(zip(grid.names, grid.sizes, strict=True))
    low, high = factors.min(0).tolist(), factors.max(0).tolist()

    def turn(column: Column) -> float | None:
        circular = column.kind == "circular" and column.range is not None
        return column.range[1] - column.range[0] if circular and column.range else None

    return {
        "channels": source.shape[2],
        "factors": [
            {
                "name": column.name,
                "kind": column.kind,
                "range": [low[k], high[k]],
                "turn": turn(column),
                "values": list(column.values),
                "size": sizes.get(column.name),
            }
            for k, column in enumerate(source.factor_columns)
        ],
        "hidden": [] if grid is None else [[name, sizes[name]] for name in grid.hidden],
        "pairs": None if source.pairs is None else len(source.pairs),
        "sequences": None if source.sequences is None else len(source.sequences) - 1,
        "facts": source.facts(),
    }


def _describe_shards(root: Path) -> dict[str, Any]:
    directory = DatasetDir.open(root)
    manifest, shards = directory.manifest, directory.shards()
    wanted, faults = None, []
    try:
        wanted = directory.wanted()
    except DatasetError as error:
        faults.append(str(error))
    sizes = {interval: path.stat().st_size for interval, path in shards.items()}
    image = manifest.resolution**2 * 3 if manifest.compression == "none" else 0
    faults += [
        f"{shards[interval]} is cut short"
        for interval, size in sizes.items()
        if size < interval.count * (image + _ROW_BYTES)
    ]
    if not shards:
        faults.append("there is no finished shard yet")
    return {
        "dataset": str(root),
        "form": "shards",
        "split": None,
        "images": sum(interval.count for interval in shards),
        "wanted": wanted,
        "missing": gaps(shards, wanted),
        "faults": faults,
        "height": manifest.resolution,
        "width": manifest.resolution,
        "files": len(shards),
        "bytes": sum(sizes.values()),
        **_of_manifest(manifest),
        "family": None,
        "other": None,
    }


def _of_manifest(manifest: Manifest | None) -> dict[str, Any]:
    known = manifest.as_dict() if manifest else {}
    storage, process = known.get("storage", {}), manifest.pair_process if manifest else None
    names = ("fingerprint", "created", "toolkit", "command", "settings", "factors", "not_injective")
    return {
        "shard_size": storage.get("shard_size"),
        "compression": storage.get("compression"),
        **{name: known.get(name) for name in names},
        "conditional": str(process.conditional) if process else None,
        "why_no_best_r2": manifest.why_no_best_r2 if manifest else None,
        "model": _of_model(manifest.sampling) if manifest and manifest.sampling else None,
    }


def _of_model(sampling: Sampling) -> dict[str, Any]:
    """What was drawn of a causal model, as plain data."""
    model, later = sampling.model, sampling.group == "sequence"
    names, graph = model.names, model.step_adjacency if later else model.adjacency
    lagged = model.lagged_adjacency
    return {
        "name": model.name,
        "description": model.description,
        "group": sampling.group,
        "images_per_item": sampling.frames,
        "environments": list(sampling.environments or (OBSERVED,)),
        "do": dict(sampling.do),
        "counterfactual": dict(sampling.counterfactual),
        "view": sampling.view,
        "variables": [
            {
                "name": variable.name,
                "kind": variable.kind,
                "range": list(variable.range),
                "values": list(variable.values),
                "renders": variable.renders,
                "parents": [names[i] for i in np.flatnonzero(graph[:, column])],
                "earlier_parents": [names[i] for i in np.flatnonzero(lagged[:, column]) if later],
                "status": variable.status,
            }
            for column, variable in enumerate(model.variables)
        ],
    }


def count_of(images: int, wanted: int | None) -> str:
    """The number of images in words: 123 of 250,000, where more were asked for."""
    if wanted is None or wanted <= images:
        return f"{images:,}"
    return f"{images:,} of {wanted:,}"


def how_to_complete(about: Mapping[str, Any]) -> str:
    """The advice for a dataset of which images are missing."""
    settings = about["settings"]
    if settings is None or settings["preset"] is None:
        return "to complete it: write it again from what it was imported from"
    if about["form"] != "shards":
        return (
            "complete the dataset directory it was written from, and write it again; or turn it "
            "into shards (`3dident convert --to shards`) and go on with `3dident render --extend`"
        )
    preset = parse_preset(settings["preset"], about["dataset"])
    return f"to complete it: {extend_command(about['dataset'], preset, about['wanted'])}"


def lines(about: Mapping[str, Any]) -> list[str]:
    """Put a description into words, a line each; first the faults."""
    name, settings = about["dataset"], about["settings"]
    size, files = about["bytes"] / 1e6, about["files"]
    form = _FORMS.get(about["form"]) or papers.FORMS.get(about["form"], "")
    if about["form"] == "shards":
        form = f"{files} shard{'' if files == 1 else 's'} of up to {about['shard_size']}"
    elif about["form"] in ("webdataset", "parquet"):
        form = f"{form}, split {about['split']}, {files} file{'' if files == 1 else 's'}"
    text = [
        f"{name}: {count_of(about['images'], about['wanted'])} images of {about['width']} x "
        f"{about['height']}, {form}, {size:.1f} MB"
    ]
    if about["missing"]:
        text.append(f"incomplete: {name_stretches(about['missing'])} missing")
    text += [f"damaged: {fault}" for fault in about["faults"] if about["images"]]
    if about["missing"] or about["faults"]:
        text.append(f"to list everything that is wrong: 3dident verify {name}")
        text.append(how_to_complete(about))
    if about["form"] == "shards" and about["wanted"] and about["missing"]:
        record = Path(name) / WANTED
        text.append(f"if fewer than {about['wanted']:,} images are wanted: remove {record}")
    if about["wanted"] is None and settings is not None:
        text.append("how many images were asked for is not recorded: only gaps would be seen")
    if settings is None or settings["preset"] is None:
        if about["other"]:
            return [*text, *_other_lines(about["other"])]
        text.append("imported from the published layout: what rendered it is not recorded")
        return [*text, *(_family_lines(about["family"]) if about["family"] else ())]
    preset, engine, latents = settings["preset"], settings["engine"], settings["latents"]
    model = about["model"]
    scene, kind = parse_preset(preset, name), "preset" if model is None else "model "
    text.append(f"{kind}     {scene.name}: {scene.about_objects()}, hue {scene.hue}")
    seeded = f"{settings['split']} split, seed {settings['seed']}"
    text.append(f"latents    {'given in a file' if latents['source'] == 'file' else seeded}")
    if latents["source"] == "pairs":
        text.append(f"pairs      images 2i and 2i + 1, z~ from {about['conditional']}")
    if model is not None:
        text += _drawn(model)
    return [
        *text,
        f"engine     {engine['name']} {engine['version']} on {engine['device']}, "
        f"quality {engine['quality']} (recipe {engine['recipe']})",
        f"made       {about['created']} by threedident {about['toolkit']}",
        f"command    {about['command'] or 'not kept in this form, as it names local files'}",
        *(f"not injective: {reason}" for reason in about["not_injective"]),
        "",
        *_table(about),
    ]


def _drawn(model: Mapping[str, Any]) -> list[str]:
    """What was drawn of a causal model, in lines."""
    text = []
    if model["environments"] != [OBSERVED]:
        text.append(f"of         environments {', '.join(model['environments'])}, in turns")
    if model["do"]:
        text.append(f"do         {_interventions(model['do'])}")
    if model["group"] == "counterfactual":
        what = _interventions(model["counterfactual"])
        text.append(f"pairs      image 2i + 1 is the counterfactual of image 2i: {what}")
    if model["group"] == "views":
        text.append(f"pairs      image 2i + 1 is a second view of image 2i: views {model['view']}")
    if model["group"] == "sequence":
        text.append(f"time       sequences of {model['images_per_item']} images")
    for variable in model["variables"]:
        low, high = variable["range"]
        values = f"{low:.4g} to {high:.4g}"
        if variable["values"]:
            values = ", ".join(variable["values"])
        parents = ", ".join(variable["parents"]) or "-"
        if variable["earlier_parents"]:
            parents += f"; the frame before: {', '.join(variable['earlier_parents'])}"
        text.append(f"variable   {variable['name']} ({variable['kind']}: {values}), of {parents}")
    return text


def _interventions(law: Mapping[str, Any]) -> str:
    """Interventions in words: x = 0.3, y shifted by 0.2."""
    words = []
    for name, value in law.items():
        if isinstance(value, Mapping) and "shift" in value:
            words.append(f"{name} shifted by {value['shift']:g}")
        else:
            words.append(f"{name} = {value['kind'] if isinstance(value, Mapping) else value}")
    return ", ".join(words)


def _family_lines(facts: Mapping[str, Any]) -> list[str]:
    """What a layout of the family says beside images and latents, a line each."""
    text = []
    for name in ("pairs", "triplets", "captions"):
        if facts[name] is not None:
            text.append(f"{name:<11}{facts[name]:,}")
    rates = facts["intervention_rates"]
    rate = "" if rates is None else f"{'intervened':<12}"
    text += ["", f"{'variable':<20}{'kind':<12}{rate}values"]
    for variable in facts["variables"]:
        name, classes = variable["name"], variable["values"]
        values = ", ".join(
            f"{value} {count:,}"
            for value, count in zip(classes, variable["counts"] or (), strict=True)
        )
        if not classes:
            low, high = variable["range"]
            values = f"{low:.4g} to {high:.4g}"
        rate = "" if rates is None else f"{rates[name]:<12.4f}"
        text.append(f"{name:<20}{variable['kind']:<12}{rate}{values}")
    return text


def _other_lines(about: Mapping[str, Any]) -> list[str]:
    """The factors, pairs and sequences of one of the papers' other datasets, a line each."""
    text = [
        f"{name:<11}{about[name]:,}" for name in ("pairs", "sequences") if about[name] is not None
    ]
    text += [f"hidden     {name}: {size:,} values" for name, size in about["hidden"]]
    text += [f"{name:<11}{fact}" for name, fact in (about["facts"] or {}).items()]
    text += ["", f"{'factor':<20}{'kind':<12}{'size':<7}values"]
    for factor in about["factors"]:
        low, high = factor["range"]
        values = f"{low:.4g} to {high:.4g}"
        if factor["values"]:
            values = ", ".join(factor["values"])
        elif factor["turn"] is not None:
            values += f", {factor['turn']:.4g} to a turn"
        size = "-" if factor["size"] is None else f"{factor['size']:,}"
        text.append(f"{factor['name']:<20}{factor['kind']:<12}{size:<7}{values}")
    return text


def _table(about: Mapping[str, Any]) -> list[str]:
    text = [f"{'factor':<20}{'group':<11}{'scene range':<22}{'best R2':<9}"]
    unknown = []
    for row in about["factors"]:
        low, high = row["scene_range"]
        span = f"{low:.4g} to {high:.4g} {row['unit']}"
        if row["fixed_raw"] is not None:
            span = f"fixed at raw {row['fixed_raw']:g}"
        elif row["best_r2"] is None:
            unknown.append(row["name"])
        best = "-" if row["best_r2"] is None else f"{row['best_r2']:.4f}"
        text.append(f"{row['name']:<20}{row['group']:<11}{span:<22}{best:<9}")
    if about["why_no_best_r2"]:
        text.append(f"best R2 is not known: {about['why_no_best_r2']}")
    elif unknown:
        text.append(f"best R2 of {', '.join(unknown)} is not known for this shape")
    return text
