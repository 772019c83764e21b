"""Every reader, on damaged and hostile files: nothing comes out but our own errors.

Whole files are written, one of them is damaged (cut, flipped, filled with what parsers stumble
over, or taken apart and put together again with checksums that fit), and all are read. That
happens in processes of their own, with limits on time and memory: a crash, an endless loop and a
huge allocation are failures like any other error.

`THREEDIDENT_FUZZ=50` reads fifty times as many, drawn anew each time, prints what it found, and
keeps the files that failed in fuzz-failures/.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import gzip
import io
import json
import math
import os
import pickle
import pickletools
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import traceback
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from helpers import paper_files

from threedident import presets
from threedident.baselines.experiment import load_experiment
from threedident.datasets.formats import open_dataset
from threedident.datasets.formats import png_folder as published
from threedident.datasets.formats.describe import describe, lines
from threedident.datasets.formats.export import export
from threedident.datasets.formats.hdf5 import pack, to_shards
from threedident.datasets.formats.png_folder import to_published
from threedident.datasets.formats.verify import verify, verify_any
from threedident.distributions import Normal
from threedident.errors import DatasetError, ThreeDIdentError, UsageError
from threedident.latents import load_raw_latents
from threedident.presets import load_preset
from threedident.render.content import dataset_settings
from threedident.render.mesh import get_mesh, load_mesh
from threedident.render.settings import EngineSettings
from threedident.storage import manifest as store
from threedident.storage.directory import DatasetDir
from threedident.storage.shard_plan import Interval
from threedident.storage.shard_record import checksum
from threedident.storage.shards import read_sums, write_shard, write_text
from threedident.storage.statistics import ImageSums

TIMES = int(os.environ.get("THREEDIDENT_FUZZ", "0"))
KEPT = Path(os.environ.get("THREEDIDENT_FUZZ_KEPT", "fuzz-failures"))

RUN = "box-laplace/seed0"
SECONDS = 60  # that reading a small file may take, on a busy machine
BYTES = 1 << 30  # that it may allocate

HUGE, DEEP = "@huge@", "@deep@"
DEPTHS = (50, 300, 800, 950, 50_000)  # some of them below Python's limit, which is 1,000
#: What takes the place of a value in JSON, TOML and attributes.
VALUES = (
    *(None, True, False, -1, 0, 1, 3, 2**31, 2**63, 2**64, -(2**70), 10**400, HUGE, DEEP),
    *(0.5, -0.0, 1e308, 1e-320, math.nan, math.inf, -math.inf),
    *("", "0", "\0", "a\0b", "\ud800", "x" * 5000, "../../../../etc/passwd", "/dev/zero", "%s{}"),
    *([], {}, [[]], [None], [1, 2], ["x"], [math.nan] * 10, {"": None}, {"name": "box"}),
    *({"name": "normal"}, {"name": "normal", "sigma": [0.1]}, {"source": "file"}),
)
#: What is put between bytes.
PIECES = (
    *(
        b"\0",
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b"\n",
        b'"',
        b"'",
        b",",
        b"]",
        b"}",
        b"NaN",
        b"-Infinity",
    ),
    *(b"1e999", b"-1", b"9" * 5000, b"[" * 100_000, b'{"a":' * 50_000, b"a." * 20_000, b"../"),
    *(
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\x7f",
        b"\xff" * 8,
        b"\0" * 8,
        b"\x80" * 9,
        b"x" * 200_000,
    ),
)


# Damage


def damage(draw: Any, content: bytes) -> bytes:
    """Bytes as a disk, a transfer or an editor may leave them."""
    made = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        size = len(made)
        near = [st.integers(0, size), st.integers(0, min(size, 512))]
        place = draw(st.one_of(*near, st.integers(max(0, size - 256), size)))
        length = draw(st.integers(1, 64))
        match draw(st.sampled_from(("cut", "flip", "byte", "zero", "drop", "double", "insert"))):
            case "cut":
                del made[place:]
            case "flip" if place < size:
                made[place] ^= 1 << draw(st.integers(0, 7))
            case "byte" if place < size:
                made[place] = draw(st.sampled_from((0, 1, 0x7F, 0x80, 0xFF)))
            case "zero":
                made[place : place + length] = bytes(len(made[place : place + length]))
            case "drop":
                del made[place : place + length]
            case "double":
                made[place:place] = made[place : place + length]
            case _:
                made[place:place] = draw(st.sampled_from(PIECES))
    return bytes(made)


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in plain data."""
    keys = tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in keys:
        yield (*path, key)
        yield from places(tree[key], (*path, key))


def at(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def change(draw: Any, tree: Any, values: tuple[Any, ...] = VALUES) -> Any:
    """Plain data with one or two values that are wrong, missing, or somewhere else."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, 2))):
        paths = list(places(tree))
        if not paths:
            return draw(st.sampled_from(values))
        *outer, key = draw(st.sampled_from(paths))
        place = at(tree, tuple(outer))
        match draw(st.sampled_from(("value", "value", "value", "remove", "other", "add"))):
            case "remove":
                del place[key]
            case "other":
                place[key] = copy.deepcopy(at(tree, draw(st.sampled_from(paths))))
            case "add" if isinstance(place, dict):
                place[draw(st.sampled_from(("", "x", "name", "__class__")))] = 1
            case _:
                place[key] = copy.deepcopy(draw(st.sampled_from(values)))
    return tree


def as_json(tree: Any, depth: int = 50_000) -> str:
    text = json.dumps(tree)
    deep = "[" * depth + "]" * depth
    return text.replace(json.dumps(HUGE), "9" * 5000).replace(json.dumps(DEEP), deep)


def changed_manifest(draw: Any, text: str | bytes) -> str:
    """A manifest with a value that is wrong and a fingerprint that fits."""
    tree, depth = change(draw, json.loads(text)), draw(st.sampled_from(DEPTHS))
    if isinstance(tree, dict) and "fingerprint" in tree:
        with contextlib.suppress(AttributeError, TypeError, ValueError, RecursionError):
            settings = json.loads(as_json(tree.get("settings"), depth))
            tree["fingerprint"] = store.settings_fingerprint(settings)
    return as_json(tree, depth)


def changed_json(draw: Any, content: bytes) -> bytes:
    tree = json.loads(content)
    if isinstance(tree, dict) and tree.get("format") == store.FORMAT:
        return changed_manifest(draw, content).encode()
    return as_json(change(draw, tree), draw(st.sampled_from(DEPTHS))).encode()


def changed_toml(draw: Any, content: bytes) -> bytes:
    import tomli_w

    plain = tuple(v for v in VALUES if "ud800" not in repr(v) and "None" not in repr(v))
    tree = change(draw, tomllib.loads(content.decode()), plain)
    text = tomli_w.dumps(tree if isinstance(tree, dict) else {"x": tree})
    depth = draw(st.sampled_from(DEPTHS))
    deep = "[" * depth + "]" * depth
    return text.replace(f'"{HUGE}"', "9" * 5000).replace(f'"{DEEP}"', deep).encode()


def changed_npy(draw: Any, content: bytes) -> bytes:
    """An array whose head says something else than it holds."""
    try:
        array = np.load(io.BytesIO(content))
    except ValueError:  # Python objects
        return damage(draw, content)
    head = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
    values = (
        "|O",
        "<f8",
        ">f4",
        "<f2",
        "<c16",
        "<M8[ns]",
        "|S0",
        "<U9",
        "|V0",
        "|b1",
        [("a", "<f4")],
    )
    shapes = (*((), (0,), (-1, 10), (2**40, 10), (2**62, 4), (10**30,), (1, 0), (True, 2), (1.5,)),)
    match draw(st.sampled_from(("descr", "shape", "fortran", "extra"))):
        case "descr":
            head["descr"] = draw(st.sampled_from(values))
        case "shape":
            head["shape"] = draw(st.sampled_from(shapes))
        case "fortran":
            head["fortran_order"] = draw(st.sampled_from((True, 3, None)))
        case _:
            head["more"] = "(" * draw(st.sampled_from((1, 90, 4000)))
    text = repr(head).encode() + b"\n"
    version = draw(st.sampled_from((b"\1\0", b"\2\0", b"\3\0", b"\7\7")))
    size = len(text).to_bytes(2 if version == b"\1\0" else 4, "little")
    return b"\x93NUMPY" + version + size + text + array.tobytes()


def changed_zip(draw: Any, content: bytes) -> bytes:
    """An archive one of whose members is damaged, with a checksum that fits."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(made, "w") as new:
        members = {entry.filename: old.read(entry) for entry in old.infolist()}
        name = draw(st.sampled_from(sorted(members)))
        match draw(st.sampled_from(("damage", "damage", "head", "remove", "rename", "twice"))):
            case "remove":
                del members[name]
            case "rename":
                members[draw(st.sampled_from(("../x", "/x", "x/../y", "y")))] = members.pop(name)
            case "head" if name.endswith(".npy"):
                members[name] = changed_npy(draw, members[name])
            case "twice":
                new.writestr("first", b"")
            case _:
                members[name] = damage(draw, members[name])
        method = draw(
            st.sampled_from((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
        )
        for each, data in members.items():
            new.writestr(each, data, method)
    return made.getvalue()


def changed_png(draw: Any, content: bytes) -> bytes:
    """A picture one of whose parts is damaged, with a checksum that fits."""
    parts, place = [], 8
    while place < len(content):
        size = int.from_bytes(content[place : place + 4], "big")
        parts.append((content[place + 4 : place + 8], content[place + 8 : place + 8 + size]))
        place += 12 + size
    number = draw(st.integers(0, len(parts) - 1))
    name, data = parts[number]
    match draw(st.sampled_from(("damage", "damage", "size", "add", "drop"))):
        case "size":
            side = draw(st.sampled_from((0, 1, 9, 10_000, 30_000, 2**31 - 1)))
            parts[0] = (b"IHDR", side.to_bytes(4, "big") * 2 + parts[0][1][8:])
        case "add":
            kinds = (
                b"zTXt",
                b"iTXt",
                b"tEXt",
                b"iCCP",
                b"tRNS",
                b"PLTE",
                b"acTL",
                b"fcTL",
                b"eXIf",
            )
            more = draw(st.one_of(st.binary(max_size=40), st.just(b"a\0\0" + zlib.compress(b"x"))))
            parts.insert(1, (draw(st.sampled_from(kinds)), more))
        case "drop":
            del parts[number]
        case _:
            parts[number] = (name, damage(draw, data))
    made = bytearray(content[:8])
    for name, data in parts:
        made += len(data).to_bytes(4, "big") + name + data
        made += zlib.crc32(name + data).to_bytes(4, "big")
    return bytes(made)


def changed_hdf5(draw: Any, content: bytes) -> bytes:
    """An HDF5 file that HDF5 has written, one of whose arrays or attributes does not fit."""
    buffer = io.BytesIO(content)
    with h5py.File(buffer, "r+", libver="v110") as file:
        names = [*file.attrs, *file]
        name = draw(st.sampled_from(names))
        if name == "about":
            text = as_json(
                change(draw, json.loads(file.attrs[name])), draw(st.sampled_from(DEPTHS))
            )
            with contextlib.suppress(ValueError):  # what HDF5 does not store
                write_text(file, name, text)
        elif name == "manifest":
            with contextlib.suppress(ValueError):  # what HDF5 does not store
                text = changed_manifest(draw, file.attrs[name])
                if draw(st.booleans()):
                    write_text(file, name, text)
                else:  # as it was written before
                    file.attrs[name] = text
        elif name in file.attrs:
            plain = tuple(v for v in VALUES if not isinstance(v, dict))
            value = draw(
                st.sampled_from((*plain, b"\xff", np.float64(2), np.zeros((2, 2)), np.nan))
            )
            del file.attrs[name]
            with contextlib.suppress(ValueError, TypeError, OverflowError):
                file.attrs[name] = h5py.Empty("f4") if value is None else value
        else:
            changed_array(draw, file, name)
    return buffer.getvalue()


def changed_array(draw: Any, file: Any, name: str) -> None:
    while isinstance(file[name], h5py.Group):
        name = f"{name}/{draw(st.sampled_from(sorted(file[name])))}"
    old = file[name][()]
    del file[name]
    kind = draw(st.sampled_from(("remove", "values", "shape", "type", "huge", "link", "group")))
    if kind == "values":
        strange = draw(st.sampled_from((0, 255, np.nan, np.inf, -1, 1e30)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            file[name] = np.full_like(old, np.asarray(strange).astype(old.dtype))
    elif kind == "shape":
        shapes = ((), (0,), (old.size,), (1, *old.shape), (*old.shape, 1))
        shape = draw(st.sampled_from(shapes))
        file[name] = np.resize(old, shape)
    elif kind == "type":
        kinds = (
            "f2",
            "f8",
            ">f4",
            "i1",
            "u8",
            "S3",
            "c8",
            "b1",
            h5py.string_dtype(),
            [("a", "f4")],
        )
        file.create_dataset(name, shape=old.shape, dtype=draw(st.sampled_from(kinds)))
    elif kind == "huge":
        first = draw(st.sampled_from((2**31, 2**40, 2**62)))
        with contextlib.suppress(ValueError, OverflowError, OSError):
            shape = (first, *old.shape[1:])
            file.create_dataset(
                name, shape, old.dtype, chunks=(1, *old.shape[1:]), compression="gzip"
            )
    elif kind == "link":
        target = draw(st.sampled_from((name, "/", "/x", "../x")))
        file[name] = draw(
            st.sampled_from((h5py.SoftLink(f"/{name}"), h5py.ExternalLink("/dev/zero", target)))
        )
    elif kind == "group":
        file.create_group(name)
    if kind in ("values", "shape") and f"sha256_{name}" in file.attrs:
        file.attrs[f"sha256_{name}"] = checksum(file[name][()])


def changed_onnx(draw: Any, content: bytes) -> bytes:
    """A graph one of whose fields does not fit; cut in half where protobuf will not write it."""
    import onnx
    from google.protobuf import json_format

    model = onnx.load_model_from_string(content)
    tree = change(draw, json_format.MessageToDict(model))
    try:
        return json_format.ParseDict(tree, onnx.ModelProto()).SerializeToString()
    except Exception:  # of many kinds, for what no graph can hold
        return content[: len(content) // 2]


def changed_tensors(draw: Any, content: bytes) -> bytes:
    """A file of tensors one of which is none, or of another kind."""
    import torch

    one = torch.ones(1)
    strange = (
        *(
            one,
            one.double(),
            one.to(torch.complex64),
            one.to_sparse(),
            torch.ones(1, device="meta"),
        ),
        *(one.expand(2**40), torch.full((2, 2), math.nan), torch.ones(0), one.bool(), {1: one}),
    )
    tree = change(draw, torch.load(io.BytesIO(content), weights_only=True), (*VALUES, *strange))
    made = io.BytesIO()
    torch.save(tree, made)
    return made.getvalue()


def changed_gzip(draw: Any, content: bytes) -> bytes:
    """A gzipped file whose content is damaged, and whose checksum fits."""
    inner = gzip.decompress(content)
    match draw(st.sampled_from(("damage", "damage", "head", "bomb", "tar"))):
        case "head":  # where IDX files and binary matrices declare their sizes
            place = 4 * draw(st.integers(0, 5))
            number = draw(st.sampled_from((0, 1, 2, 2**31 - 1, 2**32 - 1, 2**20, 96)))
            order = draw(st.sampled_from(("little", "big")))
            inner = inner[:place] + number.to_bytes(4, order) + inner[place + 4 :]
        case "bomb":
            inner += bytes(1 << 26)
        case "tar":
            inner = changed_tar(draw, inner)
        case _:
            inner = damage(draw, inner)
    return gzip.compress(inner, 1)


def changed_tar(draw: Any, content: bytes) -> bytes:
    """An archive one of whose members is damaged, called otherwise, or no file."""
    made = io.BytesIO()
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as old:
            members = [(each, old.extractfile(each).read()) for each in old]  # type: ignore[union-attr]
    except tarfile.TarError:
        return damage(draw, content)
    number = draw(st.integers(0, len(members) - 1))
    entry, data = members[number]
    match draw(st.sampled_from(("damage", "damage", "rename", "kind", "size", "twice"))):
        case "rename":
            entry.name = draw(st.sampled_from(("../../x", "/etc/x", "cars/x.mat", "x" * 5000)))
        case "kind":
            entry.type = draw(st.sampled_from((b"1", b"2", b"3", b"5", b"7", b"x", b"L", b"S")))
            entry.linkname = "/dev/zero"
        case "size":
            entry.size = draw(st.sampled_from((0, 1, len(data) + 1, 2**33 - 1)))
        case "twice":
            members.append(members[number])
        case _:
            data = damage(draw, data)
            entry.size = len(data)
    members[number] = (entry, data)
    for entry, data in members:
        made.write(entry.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % 512))
    return made.getvalue() + bytes(1024)


def changed_matlab(draw: Any, content: bytes) -> bytes:
    """A MATLAB file whose array is damaged inside its compressed part."""
    head, packed = content[:128], content[136:]
    try:
        inner = zlib.decompress(packed)
    except zlib.error:
        return damage(draw, content)
    place = 4 * draw(st.integers(0, 20))
    number = draw(st.sampled_from((0, 1, 6, 9, 14, 15, 2**16, 2**31 - 1, 2**32 - 1)))
    match draw(st.sampled_from(("damage", "number", "bomb"))):
        case "number":
            inner = inner[:place] + number.to_bytes(4, "little") + inner[place + 4 :]
        case "bomb":
            inner += bytes(1 << 26)
        case _:
            inner = damage(draw, inner)
    packed = zlib.compress(inner, 1)
    return head + (15).to_bytes(4, "little") + len(packed).to_bytes(4, "little") + packed


def changed_pickle(draw: Any, content: bytes) -> bytes:
    """A pickle that calls something else, or declares other sizes."""
    texts, numbers = [], []
    for code, value, place in pickletools.genops(content):
        if code.name == "SHORT_BINUNICODE":
            texts.append((place, len(value)))
        elif code.name in ("BININT", "BININT1", "BININT2"):
            numbers.append((place, {"BININT": 4, "BININT1": 1, "BININT2": 2}[code.name]))
    if draw(st.booleans()):
        place, size = draw(st.sampled_from(texts))
        names = (
            "os",
            "posix",
            "system",
            "builtins",
            "eval",
            "numpy",
            "ndarray",
            "O",
            "b1",
            "x" * 99,
        )
        name = draw(st.sampled_from(names)).encode()
        return content[: place + 1] + bytes([len(name)]) + name + content[place + 2 + size :]
    place, size = draw(st.sampled_from(numbers))
    number = draw(st.sampled_from((-1, 0, 2, 255, 2**15, 2**31 - 1)))
    return b"".join(
        (
            content[:place],
            b"J",
            number.to_bytes(4, "little", signed=True),
            content[place + 1 + size :],
        )
    )


class Runs:
    """Whoever unpickles it runs a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch ran",)


def hostile(draw: Any, _: bytes) -> bytes:
    """A file of another kind, made to harm."""
    made = io.BytesIO()
    match draw(st.sampled_from(("pickle", "objects", "paths", "bomb", "links", "deep", "empty"))):
        case "pickle":
            made.write(pickle.dumps([Runs()]))
        case "objects":
            array = np.empty(1, object)
            array[0] = Runs()
            np.savez(made, images=array, imgs=array, latents_classes=array)
        case "paths":
            with zipfile.ZipFile(made, "w") as archive:
                archive.writestr("../../ran", b"x")
                archive.writestr("images.npy", b"x")
        case "bomb":
            made.write(gzip.compress(bytes(1 << 27), 9))
        case "links":
            with h5py.File(made, "w") as file:
                for name in ("images", "labels", "imgs", "factors"):
                    file[name] = h5py.ExternalLink("/dev/zero", "x")
        case "deep":
            made.write(b"[" * 100_000)
    return made.getvalue()


CHANGES: dict[str, tuple[Callable[[Any, bytes], bytes], ...]] = {
    ".json": (changed_json,),
    ".toml": (changed_toml,),
    ".npy": (changed_npy,),
    ".npz": (changed_zip,),
    ".onnx": (changed_onnx,),
    ".pt": (changed_zip, changed_tensors),
    ".png": (changed_png,),
    ".h5": (changed_hdf5,),
    ".gz": (changed_gzip,),
    ".mat": (changed_matlab,),
    ".pickle": (changed_pickle,),
}


# Readers


@dataclasses.dataclass(frozen=True)
class Reader:
    """What is fuzzed.

    Attributes:
        make: writes whole files into a folder.
        read: opens them, and does with them what the toolkit would.
        examples: how many damaged files are read; times THREEDIDENT_FUZZ.
        files: of those made, which are damaged.
        ways: what is done to all of them, beside what is done to files of their ending.
    """

    make: Callable[[Path], object]
    read: Callable[[Path], object]
    examples: int
    files: str = "**/*"
    ways: tuple[Callable[[Any, bytes], bytes], ...] = ()


def make_images(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 8, 8, 3), np.uint8)


def make_dataset(root: Path, compression: str = "none", **latents: Any) -> DatasetDir:
    """Five images in three shards, as `3dident render` writes them, but for the pixels."""
    preset = load_preset("3dident")
    engine = EngineSettings(preset, resolution=8)
    settings = dataset_settings(engine, seed=0, split="train", **latents)
    dataset = DatasetDir.create_or_open(
        root,
        settings,
        shard_size=2,
        compression=compression,
        about=preset.about(),
        given=latents.get("given"),
    )
    for first, count in ((0, 2), (2, 2), (4, 1)):
        interval = Interval(first, count)
        raw, images = dataset.raw_latents(interval.indices), make_images(count)
        write_shard(
            root,
            interval,
            images=images,
            raw_latents=raw,
            latents=preset.to_scene(raw),
            sums=ImageSums.of(images, np.ones(count)),
            fingerprint=dataset.manifest.fingerprint,
            provenance={"device": "cpu", "engine_version": "", "toolkit_version": "0"},
            compression=compression,
        )
    dataset.write_stats()
    return dataset


def make_given(root: Path) -> None:
    make_dataset(root, given=np.zeros((5, 10), np.float32))


def make_pairs(root: Path) -> None:
    make_dataset(root, "gzip", conditional=Normal(0.1))


def make_packed(root: Path, compression: str = "none") -> None:
    with contextlib.redirect_stderr(io.StringIO()), tempfile.TemporaryDirectory() as folder:
        pack(make_dataset(Path(folder)), root / "packed.h5", compression=compression)


def make_packed_gzip(root: Path) -> None:
    make_packed(root, "gzip")


def make_published(root: Path) -> None:
    (root / "images").mkdir()
    for index, pixels in enumerate(make_images(3)):
        published.write_image(root / "images" / published.image_name(index, 3), pixels)
    zeros = np.zeros((3, 10), np.float32)
    published.write_latents(root, zeros, zeros)


def each(*parts: Callable[[], object]) -> None:
    """Does every part, whatever became of those before; then raises the first of our errors."""
    errors = []
    for part in parts:
        try:
            part()
        except ThreeDIdentError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def look_through(path: Path) -> None:
    with open_dataset(path) as source:
        each(
            lambda: source.read(
                range(len(source)), np.empty((len(source), *source.shape), np.uint8)
            ),
            source.stats,
        )


def say(*words: object) -> None:
    """A command of the command line, with what it prints thrown away."""
    from threedident.cli import main

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            main.main([str(word) for word in words], standalone_mode=False)
        except SystemExit as error:
            assert isinstance(error.code, int), error.code


def read_dataset(root: Path) -> None:
    each(
        lambda: look_through(root),
        lambda: verify(DatasetDir.open(root)),
        lambda: DatasetDir.open(root).compute_stats(),
        lambda: say("info", root),
    )


def read_packed(root: Path) -> None:
    read_form(root / "packed.h5")


def read_form(path: Path) -> None:
    """As the commands do that look at a dataset which is not in shards."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        each(
            lambda: look_through(path),
            lambda: lines(describe(path)),
            lambda: verify_any(path),
            lambda: back_to_shards(path, Path(folder)),
        )


def back_to_shards(path: Path, out: Path) -> None:
    with open_dataset(path) as source:
        to_shards(source, out)


def make_described(root: Path) -> None:
    """A published layout that says what made it."""
    make_other(root, to_published)


def make_other(root: Path, write: Callable[..., object], *words: str) -> None:
    with contextlib.redirect_stderr(io.StringIO()), tempfile.TemporaryDirectory() as folder:
        make_dataset(Path(folder))
        with open_dataset(folder) as source:
            write(source, root, *words)


def make_tar(root: Path) -> None:
    make_other(root, export, "webdataset")


def make_parquet(root: Path) -> None:
    make_other(root, export, "parquet")


def make_preset(root: Path) -> None:
    shutil.copy(Path(presets.__file__).with_name("3dident.toml"), root / "p.toml")


def read_preset(root: Path) -> None:
    preset = load_preset(root / "p.toml")
    preset.ambiguities()
    preset.to_scene(np.zeros((2, 10), np.float32))


def make_latents(root: Path) -> None:
    np.save(root / "raw.npy", np.linspace(-1, 1, 50, dtype=np.float32).reshape(5, 10))


def read_latents(root: Path) -> None:
    load_raw_latents(root / "raw.npy")


def make_mesh(root: Path) -> None:
    import trimesh

    cube = get_mesh("cube")
    whole = trimesh.Trimesh(cube.vertices, cube.corners.reshape(-1, 4)[:, :3])
    for ending in ("obj", "ply", "stl", "glb"):
        whole.export(root / f"mesh.{ending}")
    whole.export(root / "text.ply", encoding="ascii")
    (root / "text.stl").write_text(trimesh.exchange.stl.export_stl_ascii(whole))


def read_mesh(root: Path) -> None:
    each(*(lambda p=path: load_mesh(p) for path in sorted(root.iterdir())))  # type: ignore[misc]


def make_experiment(root: Path) -> None:
    for name in ("table2-normal-unbounded-normal", "table4-box"):
        text = load_experiment(name).to_toml()
        (root / f"{name}.toml").write_text(text)


def read_experiment(root: Path) -> None:
    each(*(lambda p=p: load_experiment(p).to_toml() for p in sorted(root.iterdir())))  # type: ignore[misc]


def make_encoder(root: Path) -> None:
    from threedident import encoders

    vector = encoders.VectorEncoder(encoders.MLPEncoder(2), encoders.BoxOutput(2, learned=True))
    encoders.save_encoder(root / "encoder.pt", vector, {"steps": 3})


def read_encoder(root: Path) -> None:
    import torch

    from threedident.encoders import ImageEncoder, load_encoder

    encoder = load_encoder(root / "encoder.pt")
    given = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    with torch.inference_mode():
        encoder(
            given
            if isinstance(encoder, ImageEncoder)
            else torch.zeros(1, encoder.spec["encoder"]["n"])
        )


def small_experiment() -> Any:
    from threedident.baselines.experiment import parse_experiment

    plain = {
        "data": {
            "space": {"name": "unbounded", "n": 2},
            "marginal": {"name": "normal", "sigma": 1.0},
            "conditional": {"name": "normal", "sigma": 0.1},
            "mixing_trials": 1,
        },
        "training": {"steps": 2, "batch_size": 16, "score_samples": 16, "final_batches": 1}
        | {"log_every": 1, "score_every": 2, "checkpoint_every": 1},
    }
    return parse_experiment(plain, "test", "small")


@functools.cache
def trained_run() -> tempfile.TemporaryDirectory[str]:
    """A run with one checkpoint, trained once in a process."""
    from threedident.baselines.training.loop import train

    folder = tempfile.TemporaryDirectory()
    train(small_experiment(), Path(folder.name) / "run", threads=1, quiet=True)
    (Path(folder.name) / "run" / "checkpoint.previous.pt").unlink()
    return folder


def make_run(root: Path) -> None:
    shutil.copytree(Path(trained_run().name) / "run", root / RUN)


def read_run(root: Path) -> None:
    from threedident.baselines.reproduce import outcomes, studies
    from threedident.baselines.training import run_folder as rundir
    from threedident.baselines.training import training_log as records

    out = root / RUN
    each(
        lambda: rundir.check(small_experiment(), out),
        lambda: rundir.read_result(out),
        lambda: rundir.read_places(out),
        lambda: records.read_records(out),
        lambda: outcomes.collect(studies.STUDIES["table1"], root),
    )


def read_checkpoint(root: Path) -> None:
    from threedident.baselines.training.loop import train

    longer = small_experiment().changed({"training.steps": 3})
    train(longer, root / RUN, threads=1, quiet=True)


def make_entry(root: Path) -> None:
    from helpers import fake_scores as boards

    boards.put(root / "board", boards.make_scores())
    shutil.rmtree(root / "written")


def read_entry(root: Path) -> None:
    from threedident.evaluate.leaderboard.entries import read_board
    from threedident.evaluate.leaderboard.page import write_site

    write_site(read_board(root / "board"), root / "page")


def make_scores(root: Path) -> None:
    from helpers import fake_scores as boards

    boards.written(boards.make_scores(), root)


def read_scores(root: Path) -> None:
    from threedident.evaluate.leaderboard.add import add

    add(root / "scores.json", root / "board", link="https://example.org/encoder.onnx")


def make_embeddings(root: Path) -> None:
    codes = np.random.default_rng(0).normal(size=(5, 3))
    np.save(root / "codes.npy", codes.astype("f4"))
    np.savez_compressed(root / "codes.npz", z_hat=codes)
    for name, libver in (("codes", "v110"), ("earliest", "earliest")):
        with h5py.File(root / f"{name}.h5", "w", libver=libver) as file:
            file["z_hat"] = codes


def read_embeddings(root: Path) -> None:
    from threedident.evaluate.submissions import embeddings

    paths = sorted(path for path in root.iterdir() if path.name != "earliest.h5")
    each(*(lambda p=p: embeddings.read_embeddings(p, 5) for p in paths))  # type: ignore[misc]


def make_manifest(root: Path) -> None:
    from helpers.fake_scores import make_manifest as fields

    from threedident.evaluate.leaderboard.add import as_toml

    (root / "SUBMISSION.toml").write_text(as_toml(fields()))


def read_manifest(root: Path) -> None:
    from threedident.evaluate.submissions import manifest

    manifest.read_manifest(root / "SUBMISSION.toml").as_dict()


def make_graph(root: Path) -> None:
    """The mean of each channel, times a weight."""
    import onnx

    helper, kinds = onnx.helper, onnx.TensorProto
    nodes = [
        helper.make_node("Cast", ["images"], ["floats"], to=kinds.FLOAT),
        helper.make_node("ReduceMean", ["floats", "axes"], ["means"], keepdims=0),
        helper.make_node("Mul", ["means", "w"], ["z_hat"]),
    ]
    weights = [
        onnx.numpy_helper.from_array(np.array([2, 3]), "axes"),
        onnx.numpy_helper.from_array(np.ones(3, np.float32), "w"),
    ]
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info("images", kinds.UINT8, ["B", 3, 8, 8])],
        [helper.make_tensor_value_info("z_hat", kinds.FLOAT, ["B", 3])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, root / "encoder.onnx")


def read_graph(root: Path) -> None:
    from threedident.evaluate.submissions.onnx_check import check_graph

    check_graph(root / "encoder.onnx")


def make_submissions(root: Path) -> None:
    make_graph(root)
    make_embeddings(root)


def run_submissions(root: Path) -> None:
    """As `3dident evaluate` does, in the process with walls around it."""
    from threedident.datasets.dataset import ThreeDIdent
    from threedident.evaluate.runner.process import Limits, run_encoder
    from threedident.evaluate.submissions.submission import identify

    data = root.parent / "data"
    if not data.exists():
        make_dataset(data)
    dataset = ThreeDIdent(data, cache="cpu")
    whole = root.parent / "whole"
    same = {p.name for p in whole.iterdir() if p.read_bytes() == (root / p.name).read_bytes()}
    changed = [p for p in root.iterdir() if p.name not in same] or list(root.iterdir())
    limits = Limits(time=SECONDS / 2, memory=2.0)
    each(*(lambda p=p: run_encoder(identify(p), dataset, limits) for p in changed))  # type: ignore[misc]


def read_paper(place: str, root: Path) -> None:
    """As the commands do that look at one of the papers' other datasets."""
    path = root / place
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        each(
            lambda: look_through(path),
            lambda: look_about(path),
            lambda: lines(describe(path)),
            lambda: verify_any(path),
            lambda: pack_again(path, Path(folder) / "packed.h5"),
        )
    assert not Path("ran").exists()


def look_about(path: Path) -> None:
    """Reads images out of their order."""
    with open_dataset(path) as source:
        source.images(range(len(source) - 1, -1, -7))
        assert source.fingerprint


def pack_again(path: Path, out: Path) -> None:
    with open_dataset(path) as source:
        pack(source, out)


def make_packed_images(root: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pack_again(paper_files.write_mpi3d(Path(folder)), root / "packed.h5")


PAPERS = {
    **{
        name: Reader(
            form.write, functools.partial(read_paper, form.place), 8, ways=(hostile, damage)
        )
        for name, form in paper_files.FORMS.items()
    },
    "packed images": Reader(
        make_packed_images, functools.partial(read_paper, "packed.h5"), 20, ways=(hostile,)
    ),
}
PLAIN = {
    "shards": Reader(make_dataset, read_dataset, 30),
    "given latents": Reader(make_given, read_dataset, 30),
    "compressed pairs": Reader(make_pairs, read_dataset, 30),
    "packed file": Reader(make_packed, read_packed, 30),
    "compressed packed file": Reader(make_packed_gzip, read_packed, 20),
    "published layout": Reader(make_published, read_form, 30),
    "described layout": Reader(make_described, read_form, 30),
    "tar files": Reader(make_tar, read_form, 30, "**/*.[jt]*"),
    "Parquet": Reader(make_parquet, read_form, 30, "**/*.[jp]*"),
    "preset": Reader(make_preset, read_preset, 40),
    "latents": Reader(make_latents, read_latents, 30),
    "mesh": Reader(make_mesh, read_mesh, 30),
}
OTHERS = {
    "experiment": Reader(make_experiment, read_experiment, 30),
    "encoder": Reader(make_encoder, read_encoder, 30),
    "run": Reader(make_run, read_run, 15, "*/*/*.[jtc]*"),
    "checkpoint": Reader(make_run, read_checkpoint, 4, "*/*/checkpoint.pt"),
    "entry": Reader(make_entry, read_entry, 30),
    "scores": Reader(make_scores, read_scores, 30),
    "embeddings": Reader(make_embeddings, read_embeddings, 40),
    "manifest": Reader(make_manifest, read_manifest, 30),
    "ONNX graph": Reader(make_graph, read_graph, 40),
    "submission": Reader(make_submissions, run_submissions, 1),
}
READERS = {**PLAIN, **PAPERS, **OTHERS}


# The process that reads


def fuzz(name: str, folder: Path) -> dict[str, Any]:
    """Reads damaged files of one kind; returns how many were refused, and what went wrong."""
    reader, whole, hurt = READERS[name], folder / "whole", folder / "hurt"
    whole.mkdir(parents=True)
    reader.make(whole)
    shutil.copytree(whole, hurt)
    reader.read(hurt)  # as it is, it must be taken
    files = sorted(path.relative_to(whole) for path in whole.glob(reader.files) if path.is_file())
    limit_memory()
    found: dict[str, Any] = {"reader": name, "read": 0, "refused": 0, "failures": {}}

    @hypothesis.settings(
        max_examples=reader.examples * max(TIMES, 1),
        derandomize=not TIMES,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(st.data())
    def read_damaged(data: Any) -> None:
        path = data.draw(st.sampled_from(files))
        content = (whole / path).read_bytes()
        ways = [damage, *CHANGES.get(path.suffix, []), *reader.ways]
        made = data.draw(st.sampled_from(ways))(data.draw, content)
        shutil.rmtree(hurt)
        shutil.copytree(whole, hurt)
        (hurt / path).write_bytes(made)
        found["read"] += 1
        signal.alarm(SECONDS)
        try:
            reader.read(hurt)
        except ThreeDIdentError:
            found["refused"] += 1
        except Exception as error:
            keep(name, hurt, path, error, found["failures"])
        finally:
            signal.alarm(0)

    read_damaged()
    return found


def limit_memory() -> None:
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/status").read_text().splitlines()
        used = next(int(line.split()[1]) for line in lines if line.startswith("VmData:"))
        resource.setrlimit(resource.RLIMIT_DATA, (used * 1024 + BYTES, resource.RLIM_INFINITY))


def keep(name: str, hurt: Path, path: Path, error: Exception, failures: dict[str, str]) -> None:
    """Keeps what failed: one of those that failed at the same place."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    ours = [
        f for f in traceback.extract_tb(error.__traceback__) if "threedident" in str(f.filename)
    ]
    key = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
    if key not in failures:
        kept = Path("fuzz-failures", f"{name.replace(' ', '-')}-{len(failures)}").absolute()
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(hurt, kept)
        (kept / "traceback.txt").write_text("".join(traceback.format_exception(error)))
        where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "?"
        failures[key] = f"{path}, from {where}: {error!s:.200} (kept: {kept})"


def main() -> None:
    """Fuzzes the readers that are named, a line of JSON for each."""
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print
    for name in sys.argv[1:]:
        print(json.dumps({"begun": name}), file=results)
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            found = fuzz(name, Path(folder))
            print(
                json.dumps({**found, "seconds": round(time.monotonic() - began, 1)}), file=results
            )


# The tests


def run_readers(names: list[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """What came of each reader, and what went wrong; one that crashes does not end the others."""
    waiting, found, wrong = list(names), [], []
    while waiting:
        done = subprocess.run(
            [sys.executable, "-P", __file__, *waiting],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"},
            check=False,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        found += [line for line in lines if "reader" in line]
        if not done.returncode:
            break
        begun = [line["begun"] for line in lines if "begun" in line][-1]
        wrong.append(f"{begun}: ended with {done.returncode}; {done.stderr[-2000:]}")
        waiting = waiting[waiting.index(begun) + 1 :]
    for line in found:
        wrong += [f"{line['reader']}: {key}: {text}" for key, text in line["failures"].items()]
    return found, wrong


@pytest.mark.parametrize("readers", [PLAIN, PAPERS, OTHERS], ids=["plain", "papers", "others"])
def test_nothing_but_our_own_errors_comes_out(readers: dict[str, Reader]) -> None:
    found, wrong = run_readers(list(readers))
    if TIMES:
        for line in found:
            print(json.dumps(line))
    assert not wrong, "\n".join(wrong)
    assert [line["reader"] for line in found] == list(readers)
    # Much of the damage must have been met: it would be a poor test that never is refused.
    assert all(line["refused"] >= line["read"] / 5 for line in found), found


# What the fuzzing has found, one by one


def test_json_with_a_number_of_many_digits(tmp_path: Path) -> None:
    (tmp_path / "dataset.json").write_text("9" * 5000)
    with pytest.raises(DatasetError, match="cannot read"):
        DatasetDir.open(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = " + "9" * 5000, "not valid TOML"),
        ("x = " + "[" * 5000, "not valid TOML"),
        ("a." * 30_000 + "b = 1", "larger than 20000 bytes"),  # for minutes, without the limit
    ],
)
def test_toml_that_asks_much_of_its_parser(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(UsageError, match=said):
        load_preset(tmp_path / "x.toml")
    with pytest.raises(UsageError, match=said):
        load_experiment(tmp_path / "x.toml")


def test_an_experiment_with_a_number_beyond_floats(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(f"[loss]\ntau = {10**400}\n")
    with pytest.raises(UsageError, match=r"loss\.tau"):
        load_experiment(tmp_path / "x.toml")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sum_total", np.zeros(10, np.int64)),
        ("sum_total", "text"),
        ("sum_pixels", np.inf),
        ("sum_count", 0),
        ("sum_pixels", 1),
        ("sum_deviations", h5py.Empty("f8")),
        ("sum_squares", np.full(3, -1)),
    ],
)
def test_sums_of_no_images(tmp_path: Path, name: str, value: Any) -> None:
    dataset = make_dataset(tmp_path)
    path = tmp_path / "shard-00000000-00002.h5"
    with h5py.File(path, "r+") as file:
        del file.attrs[name]
        file.attrs[name] = value
    for read in (dataset.compute_stats, lambda: read_sums(path)):
        with pytest.raises(DatasetError, match="is cut short or damaged"):
            read()


def test_a_chunk_that_unfolds_to_more_than_an_image(tmp_path: Path) -> None:
    make_packed(tmp_path)
    count = 1 << 20
    with h5py.File(tmp_path / "packed.h5", "r+") as file:
        for name in ("images", "index"):
            shape, kind = (count, *file[name].shape[1:]), file[name].dtype
            del file[name]
            file.create_dataset(name, shape, kind, chunks=shape, compression="gzip")
    with pytest.raises(DatasetError, match="is stored in chunks of"):
        open_dataset(tmp_path / "packed.h5")


@pytest.mark.parametrize("make", [make_dataset, make_packed])
def test_no_text_lies_where_hdf5_has_no_checksum(tmp_path: Path, make: Any) -> None:
    make(tmp_path)  # GCOL is where HDF5 begins to keep strings of free length
    contents = [path.read_bytes() for path in tmp_path.glob("*.h5")]
    assert contents
    assert not any(b"GCOL" in content for content in contents)


def test_strings_of_free_length_are_still_read(tmp_path: Path) -> None:
    make_packed(tmp_path)
    with h5py.File(tmp_path / "packed.h5", "r+") as file:
        for name in ("manifest", "format", "stats.json"):
            file.attrs[name] = file.attrs[name].decode()
    look_through(tmp_path / "packed.h5")


@pytest.mark.parametrize(
    "change",
    [
        {"latents": {"source": "elsewhere"}},
        {"latents": {"source": "file", "count": 5, "sha256": "/../../../../x"}},
        {"latents": {"source": "file", "count": 5}},
        {"latents": {"source": "imported", "count": None, "sha256": 1, "scene_sha256": 2}},
        {"seed": "0"},
        {"seed": 2**64},
        {"split": ["train"]},
        {"engine": {"name": "", "version": "", "device": "", "quality": ""}},
    ],
)
def test_manifests_that_do_not_say_what_is_asked_of_them(tmp_path: Path, change: Any) -> None:
    dataset = make_dataset(tmp_path)
    settings = {**dataset.manifest.settings, **change}
    made = dataclasses.replace(dataset.manifest, settings=settings)
    data = {**dataset.manifest.as_dict(), "settings": settings, "fingerprint": made.fingerprint}
    (tmp_path / "dataset.json").write_text(json.dumps(data))
    with pytest.raises(DatasetError, match="damaged"):
        DatasetDir.open(tmp_path)


def test_a_mesh_reads_no_other_file(tmp_path: Path) -> None:
    make_mesh(tmp_path)
    obj = tmp_path / "mesh.obj"
    other = tmp_path / "other.mtl"
    os.mkfifo(other)  # whoever opens it waits
    obj.write_text("mtllib other.mtl\nusemtl x\n" + obj.read_text())
    assert len(load_mesh(obj).sizes) > 0


def test_records_that_are_no_text(tmp_path: Path) -> None:
    from threedident.baselines.training.training_log import read_records

    for content in (b"\xff\n", b"step\0\n1\0\n", b'"' + b"x" * 200_000 + b'"\n1\n'):
        (tmp_path / "metrics.csv").write_bytes(content)
        with pytest.raises(DatasetError, match=r"metrics\.csv"):
            read_records(tmp_path)


@pytest.mark.parametrize("kind", ["meta", "names"])
def test_weights_that_hold_no_numbers(tmp_path: Path, kind: str) -> None:
    import torch

    from threedident.encoders import load_encoder

    make_encoder(tmp_path)
    content = torch.load(tmp_path / "encoder.pt", weights_only=True)
    name = "encoder.layers.0.bias"
    weight = content["state"].pop(name)
    if kind == "meta":
        content["state"][name] = weight.to("meta")
    else:
        content["state"][1] = weight
    torch.save(content, tmp_path / "encoder.pt")
    with pytest.raises(DatasetError, match="no tensors by name"):
        load_encoder(tmp_path / "encoder.pt")


@pytest.mark.parametrize("kind", ["step", "moments", "scores", "at_latents", "missing"])
def test_a_checkpoint_of_something_else(tmp_path: Path, kind: str) -> None:
    import torch

    make_run(tmp_path)
    path = tmp_path / RUN / "checkpoint.pt"
    content = torch.load(path, weights_only=True)
    match kind:
        case "step":
            content["step"] = -(10**9)  # it would train for ever
        case "moments":
            del content["optimizer"]["state"][0]["step"]
        case "scores":
            content["scores"] = {"x": "y"}
        case "at_latents":
            content["at_latents"]["loss"] = []
        case _:
            del content["random"]
    torch.save(content, path)
    with pytest.raises(DatasetError, match="does not fit its experiment"):
        read_checkpoint(tmp_path)


def test_an_entry_whose_manifest_is_too_deep(tmp_path: Path) -> None:
    make_entry(tmp_path)
    path = next(tmp_path.glob("board/entries/*/*/manifest.toml"))
    for text in ("x = " + "[" * 5000, "x = " + "9" * 5000):
        path.write_text(text)
        with pytest.raises(UsageError, match="is not TOML"):
            read_entry(tmp_path)


if __name__ == "__main__":
    main()


def test_a_head_of_an_array_that_breaks_off(tmp_path: Path) -> None:
    head = b"{'descr': (\n"
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        size = len(head).to_bytes(2, "little")
        archive.writestr("images.npy", b"\x93NUMPY\1\0" + size + head + bytes(100))
    with pytest.raises(DatasetError, match="cannot read"):
        open_dataset(tmp_path / "x.npz")


@pytest.mark.parametrize("layer", ["gzip", "tar"])
def test_an_archive_of_cars_that_is_cut_short_inside_of_a_car(tmp_path: Path, layer: str) -> None:
    path = paper_files.write_cars3d(tmp_path)
    content = path.read_bytes()
    if layer == "gzip":
        path.write_bytes(content[: len(content) // 2])
    else:
        path.write_bytes(gzip.compress(gzip.decompress(content)[:5000]))
    with pytest.raises(DatasetError):
        look_through(path)


@pytest.mark.parametrize("content", [b"[1]", b"{", b"[" * 5000, b"\xff", b'{"drawn": 3}', None])
def test_a_note_beside_dsprites_that_is_damaged(tmp_path: Path, content: bytes | None) -> None:
    path = paper_files.write_dsprites(tmp_path)
    with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name that is there twice
        archive.writestr("threedident.json", content or b"x" * 99, zipfile.ZIP_DEFLATED)
        place = archive.getinfo("threedident.json").header_offset + 30 + len("threedident.json")
    if content is None:  # no valid beginning of what is deflated
        whole = bytearray(path.read_bytes())
        whole[place] = 0xFF
        path.write_bytes(whole)
    assert "factor" in "\n".join(lines(describe(path)))
