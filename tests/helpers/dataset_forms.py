"""Datasets in every form, with noise for images."""

from __future__ import annotations

import json

import h5py
import numpy as np

from helpers.commands import run_command
from helpers.fake_dataset import as_rendered
from threedident.datasets.formats import open_dataset
from threedident.storage.directory import DatasetDir

#: Those that a directory of shards can be turned into.
OTHERS = ("packed", "published", "webdataset", "parquet")
FRAME = 0.75  # the share of every object in the frame, as if it had been measured


def everything(root):
    with open_dataset(root) as source:
        images = np.stack([source.image(i) for i in range(len(source))])
        return images, source.raw_latents, source.latents


def build(root, count=12, *, shard=5, wanted=None, **options):
    """A dataset as `3dident render` leaves it when it ends, but with noise for images."""
    options = {"seed": 3, "split": "val", **options}
    as_rendered(
        root,
        count,
        side=8,
        shard=shard,
        wanted=wanted or count,
        noise=1,
        coverage=FRAME,
        **options,
    )
    DatasetDir.open(root).write_stats()
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
