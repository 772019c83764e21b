"""Datasets in every form, with noise for images."""

from __future__ import annotations

import json

import h5py
import numpy as np

from helpers.commands import run_command
from threedident.datasets.formats import open_dataset
from threedident.presets import load_preset
from threedident.render.content import dataset_settings
from threedident.render.settings import EngineSettings
from threedident.storage.directory import DatasetDir
from threedident.storage.shard_plan import Interval
from threedident.storage.shards import write_shard
from threedident.storage.statistics import ImageSums

#: Those that a directory of shards can be turned into.
OTHERS = ("packed", "published", "webdataset", "parquet")
FRAME = 0.75  # the share of every object in the frame, as if it had been measured


def everything(root):
    with open_dataset(root) as source:
        images = np.stack([source.image(i) for i in range(len(source))])
        return images, source.raw_latents, source.latents


def build(root, count=12, *, shard=5, preset="3dident", wanted=None, **latents):
    """A dataset as `3dident render` writes it, but with noise for images."""
    generator = load_preset(preset)
    engine = EngineSettings(generator, 8, "draft", "cpu", "direct", "1.0")
    options = {"seed": 3, "split": "val", "given": None, "conditional": None, **latents}
    settings = dataset_settings(engine, **options)
    dataset = DatasetDir.create_or_open(
        root,
        settings,
        shard_size=shard,
        compression=None,
        about=generator.about(),
        given=latents.get("given"),
    )
    dataset.record_wanted(wanted or count)
    pixels = np.random.default_rng(1).integers(0, 256, (count, 8, 8, 3), np.uint8)
    for first in range(0, count, shard):
        interval = Interval(first, min(shard, count - first))
        images, raw = pixels[first : interval.stop], dataset.raw_latents(interval.indices)
        write_shard(
            root,
            interval,
            images=images,
            raw_latents=raw,
            latents=generator.to_scene(raw),
            sums=ImageSums.of(images, np.full(len(images), FRAME)),
            fingerprint=dataset.manifest.fingerprint,
            provenance={"device": "cpu", "toolkit_version": "0.0.7", "processor": f"P{first}"},
        )
    dataset.write_stats()
    return root


def turned(root, form, out):
    """A dataset in another form."""
    if form == "packed":
        run_command("pack", root, "--out", f"{out}.h5")
        return out.with_suffix(".h5")
    run_command("convert", root, "--to", form, "--out", out)
    return out


def files_of(root):
    """What a dataset directory holds, but for what names the command, and the lock."""
    found = {}
    for path in sorted(root.iterdir()):
        if path.suffix == ".h5":
            with h5py.File(path) as file:
                arrays = {name: (array.dtype, array[()].tobytes()) for name, array in file.items()}
                attributes = {
                    name: np.asarray(value).tolist() for name, value in file.attrs.items()
                }
                found[path.name] = arrays, attributes
        elif path.name not in (".lock", "dataset.json"):
            found[path.name] = path.read_bytes()
    return found


def settings_of(root):
    manifest = json.loads((root / "dataset.json").read_text())
    return {key: value for key, value in manifest.items() if key != "command"}
