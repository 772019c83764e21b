"""What strangers hand in: every kind scored, and every hostile file refused, with nothing left."""

from __future__ import annotations

import ctypes
import json
import multiprocessing as mp
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
import warnings
import zipfile
from pathlib import Path

import h5py
import numpy as np
import onnx
import pytest
import torch
from helpers.fake_dataset import as_rendered, make
from helpers.fake_scores import make_manifest
from onnx import TensorProto, helper, numpy_helper

from threedident.datasets.dataset import ThreeDIdent
from threedident.datasets.formats import open_dataset
from threedident.datasets.formats.png_folder import to_published
from threedident.distributions import Normal
from threedident.encoders import (
    ImageEncoder,
    ResNetEncoder,
    SphereOutput,
    read_encoder,
    save_encoder,
)
from threedident.errors import DatasetError, ManifestWarning, UsageError
from threedident.evaluate import evaluation as run
from threedident.evaluate.inputs import check_inputs, default_out
from threedident.evaluate.leaderboard.add import as_toml
from threedident.evaluate.reference_encoders import run_reference
from threedident.evaluate.runner.process import Limits, run_encoder
from threedident.evaluate.scores_file import ScoresFile
from threedident.evaluate.scores_schema import check_scores
from threedident.evaluate.scoring import METRICS
from threedident.evaluate.submissions import manifest as manifests
from threedident.evaluate.submissions.embeddings import read_embeddings
from threedident.evaluate.submissions.onnx_check import MOST_WEIGHTS, TRAINED_ON
from threedident.evaluate.submissions.submission import digest, file_digest, identify
from threedident.latents import latents_digest

COUNT, SIDE = 40, 16
MARK = "PYTHON_3DIDENT_TEST"  # inherited by the processes of encoders, whatever else is not


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("test set") / "data"
    make(path, COUNT, side=SIDE)
    return path


@pytest.fixture(scope="module")
def data(root) -> ThreeDIdent:
    return ThreeDIdent(root)


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(tmp_path_factory, monkeypatch):
    mark, scratch = uuid.uuid4().hex, tmp_path_factory.mktemp("scratch")
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield
    assert running(mark) == []
    # What torch makes when it is first asked to compile stays for later tests; .ses is what
    # onnxruntime leaves where an encoder is exported, outside of any sandbox.
    left = [each.name for each in scratch.iterdir()]
    assert [name for name in left if not name.startswith(("torchinductor_", ".ses"))] == []


def running(mark: str) -> list[int]:
    """Processes that were started with a mark in their environment, zombies aside."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes() and state != "Z":
                found.append(int(folder.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def codes_of(submission, data, **limits):
    limits = Limits(**{"time": 60, "memory": 6, "batch_size": 16, **limits})
    return run_encoder(submission, data, limits).codes


def refusal(path, data, trust=False, **limits) -> str:
    """What an evaluation says of a submission that it refuses, in one printable line."""
    with pytest.raises((UsageError, DatasetError)) as caught:
        codes_of(identify(path, trust=trust), data, **limits)
    said = str(caught.value)
    assert said.isprintable()
    assert len(said) < 1500
    return said


def codes(m=3, dtype=np.float32, count=COUNT):
    return np.random.default_rng(0).normal(size=(count, m)).astype(dtype)


# Embeddings


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f8"])
def test_embeddings_come_back(tmp_path, data, dtype):
    given = codes(dtype=dtype)
    np.save(tmp_path / "a.npy", np.asfortranarray(given))
    np.savez(tmp_path / "a.npz", z_hat=given)
    np.savez_compressed(tmp_path / "b.npz", z_hat=given)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("z_hat", data=given, chunks=(7, 2), compression="gzip")
    for name in ("a.npy", "a.npz", "b.npz", "a.h5"):
        assert np.array_equal(read_embeddings(tmp_path / name, COUNT), given), name
        if dtype != "f2":
            continue
        submission = identify(tmp_path / name)
        assert submission.kind == "embeddings"
        found = codes_of(submission, data)
        assert found.dtype == np.float32
        assert np.array_equal(found, given.astype(np.float32))
        assert digest(submission) == file_digest(tmp_path / name)


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (os.mkdir, (self.path,))


def pickled(path, trap):
    array = np.array([[Trap(trap)]], dtype=object)
    if path.suffix == ".npz":
        np.savez(path, z_hat=array)
    else:
        np.save(path, array, allow_pickle=True)


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_pickled_objects_stay_pickled(tmp_path, data, name):
    pickled(tmp_path / name, tmp_path / "trapped")
    found = np.load(tmp_path / name, allow_pickle=True)
    if name == "a.npz":
        with found:
            found["z_hat"]
    (tmp_path / "trapped").rmdir()  # so it was made: the trap works
    assert "expected an array of float16, float32 or float64" in refusal(tmp_path / name, data)
    assert not (tmp_path / "trapped").exists()


def npy_head(shape, descr="<f4"):
    text = str({"descr": descr, "fortran_order": False, "shape": shape})
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) + 1) + text.encode() + b"\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (npy_head((COUNT, 10**15)), "at most 4096 codes"),
        (npy_head((COUNT, 4000)), "takes 640[0-9]* bytes with its head, found"),
        (npy_head((10**12, 3)), "1000000000000 rows, the test set 40 images"),
        (npy_head((COUNT, 3)) + bytes(COUNT * 12 + 1), "with its head, found"),
        (npy_head((COUNT, 3, 1)) + bytes(COUNT * 12), "expected an array of shape"),
        (npy_head((COUNT, 3), "<i8") + bytes(COUNT * 24), "found int64"),
        (npy_head((COUNT, 3), "<c8") + bytes(COUNT * 24), "found complex64"),
        (npy_head((COUNT, 3), "|O"), "found object"),
        (npy_head((-1, -3)), "expected an array of shape"),
        (b"\x93NUMPY\x01\x00\xff\xff{", "not a .npy array"),
        (b"\x93NUMPY\x09\x00\x01\x00{", "not a .npy array of an unknown version"),
        (npy_head("open('x')"), "not a .npy array|expected"),
        (b"", "not a .npy array"),
    ],
)
def test_npy_heads_that_lie(tmp_path, content, said):
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=said):
        read_embeddings(path, COUNT)


def zipped(path, entries, **patches):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    if "declared" in patches:  # the size unpacked, in the directory at the end
        content = bytearray(path.read_bytes())
        place = content.index(b"PK\x01\x02") + 24
        content[place : place + 4] = struct.pack("<I", patches["declared"])
        path.write_bytes(content)


GOOD = npy_head((COUNT, 3)) + codes().tobytes()


@pytest.mark.parametrize(
    ("entries", "patches", "said"),
    [
        # A bomb: 200 MB of zeros in 200 KB, behind a head that fits.
        ({"z_hat.npy": GOOD + bytes(200_000_000)}, {}, "declares 0.2 GB unpacked, at most"),
        ({"z_hat.npy": GOOD}, {"declared": 0xFFFFFFF0}, "declares 4.29 GB unpacked, at most"),
        ({"z_hat.npy": GOOD[:-5]}, {"declared": len(GOOD)}, "is cut short"),
        ({"other.npy": GOOD}, {}, "must hold one array, 'z_hat', found 'other.npy'"),
        ({"z_hat.npy": GOOD, "b.npy": GOOD}, {}, "must hold one array"),
        ({f"{i}.npy": b"" for i in range(2000)}, {}, r"must hold one array.*\.\.\."),
        ({}, {}, "must hold one array"),
    ],
)
def test_archives_that_lie(tmp_path, entries, patches, said):
    path = tmp_path / "a.npz"
    zipped(path, entries, **patches)
    with pytest.raises(UsageError, match=said):
        read_embeddings(path, COUNT)


def test_a_damaged_archive(tmp_path):
    path = tmp_path / "a.npz"
    zipped(path, {"z_hat.npy": GOOD})
    content = bytearray(path.read_bytes())
    for place in range(60, len(content), 7):
        damaged = content.copy()
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        try:
            found = read_embeddings(path, COUNT)
        except UsageError as error:
            assert "a.npz" in str(error)
        else:  # a date, or the like
            assert np.array_equal(found, codes())


def test_a_zip_bomb_in_full(tmp_path, data):
    zipped(tmp_path / "bomb.npz", {"z_hat.npy": GOOD + bytes(200_000_000)})
    assert (tmp_path / "bomb.npz").stat().st_size < 300_000
    assert "declares 0.2 GB unpacked" in refusal(tmp_path / "bomb.npz", data)


def external_storage(file, folder):
    (folder / "secret.bin").write_bytes(codes().tobytes())
    where = [(str(folder / "secret.bin"), 0, COUNT * 12)]
    file.create_dataset("z_hat", (COUNT, 3), "f4", external=where)


def other_file(folder):
    with h5py.File(folder / "other.h5", "w") as other:
        other["z_hat"] = codes()
    return str(folder / "other.h5")


def external_link(file, folder):
    file["z_hat"] = h5py.ExternalLink(other_file(folder), "z_hat")


def virtual(file, folder):
    layout = h5py.VirtualLayout((COUNT, 3), "f4")
    layout[:] = h5py.VirtualSource(other_file(folder), "z_hat", (COUNT, 3))
    file.create_virtual_dataset("z_hat", layout)


def soft_link(file, _):
    file.create_dataset("group/inner", data=codes())
    file["z_hat"] = h5py.SoftLink("/group/inner")
    del file["group"]


def in_a_group(file, _):
    file.create_dataset("z_hat/z_hat", data=codes())


def huge_chunks(file, _):
    file.create_dataset(
        "z_hat", (COUNT, 3), "f4", chunks=(50_000, 300), maxshape=(None, None), compression="gzip"
    )


HDF5 = {
    "external storage": (external_storage, "stored in other files, which are not read"),
    "external link": (external_link, "is a link to elsewhere, which is not followed"),
    "soft link": (soft_link, "is a link to elsewhere, which is not followed"),
    "virtual": (virtual, "stored in other files, which are not read"),
    "group": (in_a_group, "is not an array"),
    "lzf": (
        lambda f, _: f.create_dataset("z_hat", data=codes(), compression="lzf"),
        "only gzip is read",
    ),
    "shuffle": (
        lambda f, _: f.create_dataset("z_hat", data=codes(), compression="gzip", shuffle=True),
        "only gzip is read",
    ),
    "unknown filter": (
        lambda f, _: (
            f["z_hat"].id
            if f.create_dataset("z_hat", (COUNT, 3), "f4", chunks=(4, 3), fletcher32=True)
            else None
        ),
        "only gzip is read",
    ),
    "huge shape": (
        lambda f, _: f.create_dataset("z_hat", (COUNT, 10**12), "f4", chunks=(1, 1000)),
        "at most 4096 codes",
    ),
    "huge chunks": (huge_chunks, "stored in chunks of"),
    "objects": (
        lambda f, _: f.create_dataset("z_hat", (COUNT, 3), h5py.string_dtype()),
        "expected an array of floats",
    ),
    "integers": (lambda f, _: f.create_dataset("z_hat", (COUNT, 3), "i4"), "array of floats"),
    "null": (lambda f, _: f.create_dataset("z_hat", data=h5py.Empty("f4")), "array of floats"),
    "rows": (
        lambda f, _: f.create_dataset("z_hat", (COUNT - 1, 3), "f4"),
        "has 39 rows, the test set 40 images",
    ),
    "other name": (lambda f, _: f.create_dataset("codes", data=codes()), "must hold one array"),
}


@pytest.mark.parametrize("kind", HDF5)
def test_hdf5_that_reaches_out(tmp_path, kind):
    build, said = HDF5[kind]
    inner = tmp_path / "inner"
    inner.mkdir()
    with h5py.File(inner / "a.h5", "w") as file:
        build(file, tmp_path)
    with pytest.raises((UsageError, DatasetError), match=said):
        read_embeddings(inner / "a.h5", COUNT)


def test_hdf5_of_another_file_in_full(tmp_path, data):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        external_storage(file, tmp_path)
    assert "stored in other files" in refusal(tmp_path / "a.h5", data)
    (tmp_path / "b.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    assert "not a readable file" in refusal(tmp_path / "b.h5", data)


def test_an_external_link_is_not_even_opened(tmp_path):
    """A link to a pipe: whoever opens it waits for ever."""
    os.mkfifo(tmp_path / "pipe.h5")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["z_hat"] = h5py.ExternalLink(str(tmp_path / "pipe.h5"), "z_hat")
    with pytest.raises(DatasetError, match="not followed"):
        read_embeddings(tmp_path / "a.h5", COUNT)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c[:-1], "has 39 rows, the test set 40 images"),
        (lambda c: c.astype(np.float32) * np.where(np.arange(COUNT) == 20, np.nan, 1)[:, None], ""),
        (lambda c: np.where(c > 1, 1e300, c), "not finite in float32"),
    ],
)
def test_embeddings_that_do_not_fit(tmp_path, data, change, said):
    np.save(tmp_path / "a.npy", change(codes(dtype=np.float64)))
    found = refusal(tmp_path / "a.npy", data)
    assert said in found
    if not said:
        assert "the codes of image 20 are not finite in float32 (nan; 1 of these 16" in found


# ONNX


def save_onnx(path, nodes, *, initializers=(), source=None, target=None, opsets=(), **options):
    """A model of given nodes from `images` to `z_hat`."""
    source = source or helper.make_tensor_value_info(
        "images", TensorProto.UINT8, ["B", 3, "H", "W"]
    )
    target = target or helper.make_tensor_value_info("z_hat", TensorProto.FLOAT, ["B", "m"])
    graph = helper.make_graph(nodes, "graph", [source], [target], list(initializers))
    imports = [helper.make_opsetid("", 18), *(helper.make_opsetid(d, 1) for d in opsets)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9, **options)
    path.write_bytes(model.SerializeToString())
    return path


def weight(name, array):
    return numpy_helper.from_array(np.asarray(array), name)


def mean_nodes(out="z_hat"):
    """The mean of each channel, in [0, 255]."""
    return [
        helper.make_node("Cast", ["images"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["floats", "axes"], [out], keepdims=0),
    ]


AXES = weight("axes", np.array([2, 3]))


def channel_means(data):
    return data.images(range(COUNT)).float().mean((2, 3)).numpy()


def test_onnx_gives_its_codes(tmp_path, data):
    path = save_onnx(tmp_path / "a.onnx", mean_nodes(), initializers=[AXES])
    for batch in (16, 40, 7):
        assert np.allclose(codes_of(identify(path), data, batch_size=batch), channel_means(data))
    assert digest(identify(path)) == file_digest(path)


def externally(location, size=12):
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", 0), ("length", size)):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, str(value)
    return tensor


def scaled(path, tensor):
    nodes = [*mean_nodes("means"), helper.make_node("Mul", ["means", "w"], ["z_hat"])]
    return save_onnx(path, nodes, initializers=[AXES, tensor])


def test_onnx_with_weights_beside_it_is_hashed_with_them(tmp_path, data):
    folder = tmp_path / "submission"
    (folder / "inner").mkdir(parents=True)
    path = scaled(folder / "a.onnx", externally("inner/w.bin"))
    (folder / "inner" / "w.bin").write_bytes(np.array([1, 2, 3], np.float32).tobytes())
    encoding = run_encoder(identify(path), data)
    assert np.allclose(encoding.codes, channel_means(data) * [1, 2, 3])
    assert encoding.external == ("inner/w.bin",)
    before = digest(identify(path), encoding.external)
    assert before != file_digest(path)
    (folder / "inner" / "w.bin").write_bytes(np.array([1, 2, 4], np.float32).tobytes())
    assert digest(identify(path), encoding.external) != before


@pytest.mark.parametrize(
    "location", ["../secret.bin", "{}/secret.bin", "link.bin", "in/secret.bin"]
)
def test_onnx_with_weights_outside_of_its_folder(tmp_path, data, location):
    (tmp_path / "secret.bin").write_bytes(np.ones(3, np.float32).tobytes())
    folder = tmp_path / "submission"
    folder.mkdir()
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    (folder / "in").symlink_to(tmp_path)
    path = scaled(folder / "a.onnx", externally(location.format(tmp_path)))
    said = refusal(path, data)
    assert ("which is a link" if "link" in location or "in/" in location else "outside") in said
    with pytest.raises(UsageError, match="keeps weights in"):
        digest(identify(path), [location.format(tmp_path)])


def inside_if(node_or_tensor):
    """Hides a node or weight in a branch."""
    empty = helper.make_graph([], "empty", [], [])
    if isinstance(node_or_tensor, TensorProto):
        branch = helper.make_graph([], "branch", [], [], [node_or_tensor])
    else:
        branch = helper.make_graph([node_or_tensor], "branch", [], [])
    return helper.make_node("If", ["yes"], ["never"], then_branch=branch, else_branch=empty)


def huge(dims):
    return TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims)


def test_onnx_with_huge_weights(tmp_path, data):
    path = scaled(tmp_path / "a.onnx", huge([1 << 40]))
    assert f"declares weights of {4 * 2**40 / 1e9:.3g} GB" in refusal(path, data)
    nodes = [*mean_nodes(), inside_if(huge([1 << 30, 1 << 30]))]
    save_onnx(path, nodes, initializers=[AXES])
    assert "declares weights" in refusal(path, data)
    constant = helper.make_node("Constant", [], ["c"], value=huge([MOST_WEIGHTS]))
    save_onnx(path, [*mean_nodes(), constant], initializers=[AXES])
    assert "declares weights" in refusal(path, data)
    # Declared, but not there: the runtime says so.
    scaled(path, huge([3]))
    assert "a.onnx failed" in refusal(path, data)
    scaled(path, huge([-3]))
    assert "negative size" in refusal(path, data)


def test_onnx_with_operators_of_others(tmp_path, data):
    for domain in ("evil.example", "com.microsoft", "ai.onnx.training"):
        custom = helper.make_node("Op", ["means"], ["z_hat"], domain=domain)
        path = tmp_path / "a.onnx"
        save_onnx(path, [*mean_nodes("means"), custom], initializers=[AXES], opsets=[domain])
        assert f"uses the operator Op of '{domain}'" in refusal(path, data)
    hidden = inside_if(helper.make_node("Op", [], ["x"], domain="evil.example"))
    save_onnx(path, [*mean_nodes(), hidden], initializers=[AXES], opsets=["evil.example"])
    assert "uses the operator Op" in refusal(path, data)


def test_onnx_with_functions_of_its_own(tmp_path, data):
    twice = helper.make_function(
        "mine",
        "Twice",
        ["x"],
        ["y"],
        [helper.make_node("Add", ["x", "x"], ["y"])],
        [helper.make_opsetid("", 18)],
    )
    nodes = [*mean_nodes("means"), helper.make_node("Twice", ["means"], ["z_hat"], domain="mine")]
    path = save_onnx(
        tmp_path / "a.onnx", nodes, initializers=[AXES], opsets=["mine"], functions=[twice]
    )
    assert np.allclose(codes_of(identify(path), data), 2 * channel_means(data))


def take(images_type=TensorProto.UINT8, shape=("B", 3, "H", "W")):
    return helper.make_tensor_value_info("images", images_type, list(shape))


def give(output_type=TensorProto.FLOAT, shape=("B", "m")):
    return helper.make_tensor_value_info("z_hat", output_type, list(shape))


NAN = weight("w", np.array([1, np.nan, 1], np.float32))
ONX = {
    "one image at once": (
        {"source": take(shape=(1, 3, "H", "W"))},
        "only that many images at once",
    ),
    "another size": ({"source": take(shape=("B", 3, 224, 224))}, "images are otherwise"),
    "floats": ({"source": take(TensorProto.FLOAT)}, r"takes tensor\(float\)"),
    "vectors": ({"source": take(shape=("B", 3))}, "a.onnx"),
}


@pytest.mark.parametrize("kind", ONX)
def test_onnx_with_another_input(tmp_path, data, kind):
    options, said = ONX[kind]
    path = save_onnx(tmp_path / "a.onnx", mean_nodes(), initializers=[AXES], **options)
    assert re.search(said, refusal(path, data))


def test_onnx_with_wrong_outputs(tmp_path, data):
    path = tmp_path / "a.onnx"
    scaled(path, NAN)
    assert "image 0 are not finite" in refusal(path, data)
    scaled(path, weight("w", np.ones((COUNT + 1, 3), np.float32)))
    assert "failed" in refusal(path, data)  # cannot be broadcast
    # One row for all images.
    save_onnx(path, mean_nodes(), initializers=[weight("axes", np.array([0, 2]))])
    assert "gave 3 rows for 16 images" in refusal(path, data)
    # Four dimensions.
    cast = helper.make_node("Cast", ["images"], ["z_hat"], to=TensorProto.FLOAT)
    save_onnx(path, [cast], target=give(shape=("B", 3, "H", "W")))
    assert "expected (16, codes)" in refusal(path, data)
    # Integers.
    cast = helper.make_node("Cast", ["means"], ["z_hat"], to=TensorProto.INT64)
    save_onnx(
        path, [*mean_nodes("means"), cast], initializers=[AXES], target=give(TensorProto.INT64)
    )
    assert "returns tensor(int64), expected tensor(float)" in refusal(path, data)


def test_onnx_whose_codes_change_in_number(tmp_path, data):
    """As many codes as images at once."""
    nodes = [
        *mean_nodes("means"),
        helper.make_node("Transpose", ["means"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["means", "turned"], ["z_hat"]),
    ]
    path = save_onnx(tmp_path / "a.onnx", nodes, initializers=[AXES])
    said = refusal(path, data)
    assert "gave 16 codes for the first images and 8 from image 32 on" in said


def loop(body_nodes, outputs, carried):
    """A node that goes round for ever."""
    always = helper.make_node("Identity", ["again_in"], ["again"])
    body = helper.make_graph(
        [always, *body_nodes],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("again_in", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("again", TensorProto.BOOL, []),
            helper.make_tensor_value_info(carried, TensorProto.FLOAT, None),
        ],
    )
    return helper.make_node("Loop", ["most", "yes", "means"], outputs, body=body)


ENDLESS = (weight("most", np.int64(2**62)), weight("yes", np.array(True)))


def test_onnx_that_never_returns(tmp_path, data):
    step = helper.make_node("Sin", ["x"], ["y"])
    nodes = [*mean_nodes("means"), loop([step], ["z_hat"], "y")]
    path = save_onnx(tmp_path / "a.onnx", nodes, initializers=[AXES, *ENDLESS])
    start = time.monotonic()
    said = refusal(path, data, time=5)
    assert "was stopped after 5 s, with 0 of 40 images done: --time-limit gives it more" in said
    assert time.monotonic() - start < 15


def test_onnx_that_takes_all_memory(tmp_path, data):
    path = tmp_path / "a.onnx"
    # At once, ...
    nodes = [
        *mean_nodes("means"),
        helper.make_node("Expand", ["one", "many"], ["large"]),
        helper.make_node("ReduceSum", ["large"], ["sum"], keepdims=0),
        helper.make_node("Add", ["means", "sum"], ["z_hat"]),
    ]
    large = weight("many", np.array([1 << 17, 1 << 17]))
    one = weight("one", np.ones((1, 1), np.float32))
    save_onnx(path, nodes, initializers=[AXES, large, one])
    said = refusal(path, data, memory=2)
    assert "more than the 2 GB of memory" in said
    assert "in use" not in said  # the system refused it, before it was used
    # ... and little by little.
    step = helper.make_node("Concat", ["x", "x"], ["y"], axis=0)
    nodes = [*mean_nodes("means"), loop([step], ["z_hat"], "y")]
    save_onnx(path, nodes, initializers=[AXES, *ENDLESS])
    assert "more than the 2 GB of memory" in refusal(path, data, memory=2)


@pytest.mark.parametrize("content", [b"", b"hello", bytes(1000), b"\x08\x09" * 1000])
def test_what_is_no_onnx(tmp_path, data, content):
    (tmp_path / "a.onnx").write_bytes(content)
    assert "a.onnx is no ONNX file" in refusal(tmp_path / "a.onnx", data)


def test_the_message_of_a_stranger_is_one_printable_line(tmp_path, data):
    evil = "\x1b[2J\n" * 2000
    nodes = [*mean_nodes("means"), helper.make_node(evil, ["means"], ["z_hat"])]
    path = save_onnx(tmp_path / "a.onnx", nodes, initializers=[AXES])
    assert "a.onnx" in refusal(path, data)


# Code, which needs trust


def test_code_needs_trust(tmp_path, data):
    (tmp_path / "mine.py").write_text("open('ran', 'w')")
    for name in ("a.pt2", "a.ts", "a.pt"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("a/code/x.py", "")
        with pytest.raises(UsageError, match=r"can run any code of its author.*Add --trust"):
            identify(tmp_path / name)
    with pytest.raises(UsageError, match=r"can run any code of its author.*Add --trust"):
        identify("mine:make")
    assert len(digest(identify("mine:make", trust=True))) == 64
    assert not (tmp_path / "ran").exists()


FACTORIES = """
    import os, sys, mmap, socket, time
    import numpy as np
    import torch

    def means(images):
        return images.float().mean((2, 3))

    def good(checkpoint):
        scale = float(open(checkpoint).read())
        return lambda images: scale * means(images)

    def connects(port):
        socket.create_connection(("127.0.0.1", int(open("port").read())), timeout=3)

    def writes(_):
        open("written", "w").write("x")

    def writes_scratch(_):
        import tempfile
        open(os.path.join(tempfile.gettempdir(), "kept"), "w").write("x")
        return means

    def sleeps(_):
        time.sleep(1000)

    def exits(_):
        return lambda images: os._exit(7)

    def crashes(_):
        print("about to crash", file=sys.stderr, flush=True)
        os.kill(os.getpid(), 11)

    def raises(_):
        raise RuntimeError("no luck\\x1b[2J" * 500)

    def leaves(_):
        raise SystemExit("gone")

    def allocates(_):
        return np.ones(1 << 31)

    def shares(_):
        memory = mmap.mmap(-1, 2 << 30)  # not covered by the limit on private memory
        np.frombuffer(memory, np.uint8)[:] = 1
        time.sleep(60)

    def lies(_):
        def shout(images):
            for descriptor in range(3, 20):
                try:
                    os.write(descriptor, b"\\x01" * 100)
                except OSError:
                    pass
            return np.zeros((len(images), 3))
        return shout

    def many(_):
        return lambda images: np.zeros((len(images), 5000))

    def stays(_):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                for descriptor in (0, 1, 2):
                    os.close(descriptor)
                time.sleep(1000)
            os._exit(0)
        return means

    nothing = None
"""


@pytest.fixture
def factories(tmp_path):
    (tmp_path / "mine.py").write_text(textwrap.dedent(FACTORIES))


def can_have_namespaces():
    probe = ["unshare", "--user", "--net", "--pid", "--fork", "true"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def can_close_files():
    return ctypes.CDLL(None).syscall(444, 0, 0, 1) >= 1


@pytest.mark.usefixtures("factories")
def test_a_python_factory_gives_its_codes(tmp_path, data):
    (tmp_path / "checkpoint").write_text("2")
    submission = identify("mine:good", trust=True, checkpoint=tmp_path / "checkpoint")
    assert np.allclose(codes_of(submission, data), 2 * channel_means(data), rtol=1e-4)
    before = digest(submission)
    (tmp_path / "checkpoint").write_text("3")
    assert digest(submission) != before


class Means(torch.nn.Module):
    def forward(self, images):
        return images.float().mean((2, 3))


@pytest.fixture(scope="module")
def torch_files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("torch")
    images = torch.zeros((2, 3, SIDE, SIDE), dtype=torch.uint8)
    batch = ({0: torch.export.Dim("B")},)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Means(), (images,), dynamic_shapes=batch)
        torch.export.save(program, folder / "a.pt2")
        torch.jit.save(torch.jit.script(Means()), folder / "a.ts")
    return folder


@pytest.mark.parametrize("name", ["a.pt2", "a.ts"])
def test_torch_files_give_their_codes(torch_files, data, name):
    submission = identify(torch_files / name, trust=True)
    assert submission.kind == "torch"
    assert np.allclose(codes_of(submission, data), channel_means(data), rtol=1e-4)


@pytest.mark.usefixtures("factories")
def test_a_factory_has_no_network(tmp_path, data):
    with socket.create_server(("127.0.0.1", 0)) as server:
        (tmp_path / "port").write_text(str(server.getsockname()[1]))
        if can_have_namespaces():
            said = refusal("mine:connects", data, trust=True)
            assert "mine:connects failed" in said
            assert "unreachable" in said or "refused" in said or "ermission" in said
            server.settimeout(0.1)
            with pytest.raises(TimeoutError):
                server.accept()


@pytest.mark.usefixtures("factories")
def test_a_factory_writes_nowhere_but_in_its_scratch_folder(tmp_path, data):
    before = {p.name for p in tmp_path.iterdir()}
    if can_close_files():
        said = refusal("mine:writes", data, trust=True)
        assert "mine:writes failed" in said
        assert "PermissionError" in said
    codes_of(identify("mine:writes_scratch", trust=True), data)
    assert {p.name for p in tmp_path.iterdir()} == before  # no __pycache__ either


#: Takes torch's place where only the fate of the process is tested: torch takes seconds to load.
LIGHT_TORCH = """
    import contextlib

    class Tensor:
        pass

    def set_num_threads(count):
        pass

    def from_numpy(array):
        return array

    inference_mode = contextlib.nullcontext
"""


@pytest.mark.usefixtures("factories")
@pytest.mark.parametrize(
    ("name", "said", "limits"),
    [
        ("sleeps", "mine:sleeps was stopped after 5 s", {"time": 5}),
        ("exits", "ended with exit code 7, with 0 of 40 images done", {}),
        ("crashes", "was ended by SIGSEGV", {}),
        ("raises", "mine:raises failed, with 0 of 40 images done: RuntimeError: no luck", {}),
        ("leaves", "SystemExit: gone", {}),
        ("allocates", "needs more than the 6 GB of memory it may use", {}),
        ("shares", "needs more than the 1.5 GB of memory it may use", {"memory": 1.5}),
        ("lies", "sent what makes no sense", {}),
        ("many", "gave 5000 codes for an image, expected 1 to 4096", {}),
        ("nothing", "has no function 'nothing'", {}),
    ],
)
def test_factories_that_do_not_fit(tmp_path, data, name, said, limits):
    (tmp_path / "torch.py").write_text(textwrap.dedent(LIGHT_TORCH))
    assert said in refusal(f"mine:{name}", data, trust=True, **limits)


@pytest.mark.usefixtures("factories")
def test_what_a_factory_starts_ends_with_it(data):
    if can_have_namespaces():
        codes_of(identify("mine:stays", trust=True), data)


def test_the_walls(tmp_path):
    """Of a stranger's file: what its process could read and write."""
    for folder in ("inside", "scratch"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text("x")
    (tmp_path / "secret").write_text("x")
    code = f"""
        import dataclasses, json, os
        from threedident.evaluate.runner import sandbox
        allowance = sandbox.Allowance(10**9, 10, ({str(tmp_path / "inside")!r},), ("scratch",))
        found = dataclasses.asdict(sandbox.enter(allowance))
        def attempt(what):
            try:
                what()
            except OSError as error:
                return type(error).__name__
        found["inside"] = attempt(lambda: open("inside/file").read())
        found["write inside"] = attempt(lambda: open("inside/new", "w"))
        found["secret"] = attempt(lambda: open("secret").read())
        found["list"] = attempt(lambda: os.listdir("."))
        found["run"] = attempt(lambda: os.execv("./secret", ["x"]))
        found["scratch"] = attempt(lambda: open("scratch/new", "w").write("x"))
        found["long"] = attempt(lambda: open("scratch/long", "wb", 0).write(b"x" * 11))
        found["unlink"] = attempt(lambda: os.unlink("secret"))
        found["null"] = attempt(lambda: open("/dev/null", "w"))
        import numpy
        found["pid"] = os.getpid()
        print(json.dumps(found))
        os._exit(3)
    """
    words = [sys.executable, "-P", "-c", textwrap.dedent(code)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    found = json.loads(done.stdout)
    assert found["network"] is can_have_namespaces()
    assert found["processes"] is can_have_namespaces()
    assert found["files"] is can_close_files()
    assert (found["pid"] == 2) is can_have_namespaces()
    assert (found["inside"], found["scratch"], found["null"]) == (None, None, None)
    if can_close_files():
        for name in ("write inside", "secret", "list", "run", "unlink"):
            assert found[name] == "PermissionError", name
    assert (tmp_path / "scratch" / "long").stat().st_size == 10


@pytest.mark.usefixtures("factories")
def test_an_evaluation_that_is_killed_leaves_no_process(data):
    mark, scratch = os.environ[MARK], Path(os.environ["TMPDIR"])
    sleeps = identify("mine:sleeps", trust=True)
    evaluation = mp.get_context("fork").Process(target=run_encoder, args=(sleeps, data))
    evaluation.start()
    while not list(scratch.iterdir()) or not running(mark):
        assert evaluation.is_alive()
        time.sleep(0.05)
    time.sleep(0.5)
    evaluation.kill()
    evaluation.join()
    patience = time.monotonic() + 10
    while running(mark) and time.monotonic() < patience:
        time.sleep(0.05)
    assert running(mark) == []
    assert len(list(scratch.iterdir())) == 1  # nobody was there to remove it, ...
    refusal("mine:nothing", data, trust=True)
    assert list(scratch.iterdir()) == []  # ... so the next evaluation does


def test_no_such_submission(tmp_path):
    for text, said in (
        ("encoder.exe", "cannot tell what 'encoder.exe' is"),
        ("none.npy", "there is no file none.npy"),
        ("reference:best", "unknown reference encoder 'best'"),
        ("reference:supervised", "which checkpoint"),
        ("reference:encoder", "which checkpoint"),
        ("reference:supervised=none.pt", "there is no file none.pt"),
    ):
        with pytest.raises(UsageError, match=said):
            identify(text)
    os.mkfifo("pipe.npy")
    with pytest.raises(UsageError, match=r"there is no file pipe\.npy"):
        identify("pipe.npy")
    np.save(tmp_path / "a.npy", codes())
    with pytest.raises(UsageError, match="--checkpoint is for a Python factory"):
        identify(tmp_path / "a.npy", checkpoint=Path("a"))
    with pytest.raises(UsageError, match="there is no module no_such_thing"):
        digest(identify("no_such_thing:make", trust=True))


# References


def reference(text, data, **options):
    return run_reference(identify(text), data, **options)


def test_identity_is_the_pixels(data):
    found = reference("reference:identity=4", data).codes
    pixels = data.images(range(COUNT)).double().reshape(COUNT, 3, 4, 4, 4, 4).mean((3, 5)) / 255
    assert np.allclose(found, pixels.flatten(1), atol=1e-6)
    assert reference("reference:identity", data).codes.shape == (COUNT, 16 * 16 * 3)


def test_identity_in_full_is_a_regression_on_all_pixels(data):
    """The same predictions of minimum norm as from the pixels themselves."""
    found = reference("reference:identity=full", data).codes
    assert found.shape == (COUNT, COUNT - 1)
    pixels = data.normalization()(data.images(range(COUNT))).flatten(1).double().numpy()
    z, half = data.raw_latents.double().numpy(), COUNT // 2

    def predicted(x):
        x = x - x[:half].mean(0)
        return x[half:] @ np.linalg.lstsq(x[:half], z[:half] - z[:half].mean(0), rcond=None)[0]

    assert np.allclose(predicted(found.astype(float)), predicted(pixels), atol=1e-3)
    assert np.abs(predicted(pixels)).max() > 0.1


def test_pca_gives_the_largest_components(data, root):
    found = reference("reference:pca=5", data)
    assert "fitted on the first half" in found.about
    pixels = data.images(range(COUNT)).flatten(1).double().numpy() / 255
    half = pixels[: COUNT // 2]
    _, spread, axes = np.linalg.svd(half - half.mean(0), full_matrices=False)
    expected = (pixels - half.mean(0)) @ axes[:5].T
    agree = np.abs((found.codes * expected).sum(0)) / (
        np.linalg.norm(found.codes, axis=0) * np.linalg.norm(expected, axis=0)
    )
    assert np.allclose(agree, 1, atol=1e-5)
    assert np.allclose(
        found.codes[: COUNT // 2].std(0), spread[:5] / (COUNT // 2) ** 0.5, rtol=1e-4
    )
    trained = reference("reference:pca=5", data, train=ThreeDIdent(root))
    assert "fitted on 40 training images" in trained.about
    assert not np.allclose(trained.codes, found.codes)
    with pytest.raises(UsageError, match="64 components need more"):
        reference("reference:pca=64", data)


def test_random_depends_on_the_seed_alone(data):
    first, again, other = (reference("reference:random", data, seed=s).codes for s in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.allclose(first, other)
    assert first.shape == (COUNT, 10)


def test_what_references_refuse(data):
    for text in ("reference:identity=0", "reference:pca=x", "reference:random=3"):
        with pytest.raises(UsageError, match=r"expected a number|takes no option"):
            reference(text, data)
    with pytest.raises(UsageError, match="--train is for reference:pca"):
        reference("reference:random", data, train=data)


# Manifests


def fields(**changes):
    return {**make_manifest(), **changes}


def save_manifest(folder, **changes):
    (folder / "SUBMISSION.toml").write_text(as_toml(fields(**changes)))


def test_a_filled_template_is_a_manifest(tmp_path):
    filled = {**make_manifest(), "submission": "encoder.onnx"}
    text = manifests.template().replace("# link = ", "link = ")
    for key, value in filled.items():
        text, count = re.subn(
            rf'^{key} = (".*?"|\[.*?\])',
            lambda _, v=value, k=key: f"{k} = {json.dumps(v)}",
            text,
            flags=re.M,
        )
        assert count == 1, key
    (tmp_path / "SUBMISSION.toml").write_text(text)
    found = manifests.read_manifest(tmp_path / "SUBMISSION.toml")
    assert found.as_dict() == filled
    assert json.loads(json.dumps(found.as_dict())) == found.as_dict()


#: As `evaluate --template` printed it before.
OLD_TEMPLATE = {
    **make_manifest("our-encoder"),
    "name": "Our encoder",
    "authors": ["A. Author", "B. Author"],
    "link": "https://example.org/paper",
}


def test_a_template_that_nobody_filled_in_is_refused(tmp_path, root):
    np.save("a.npy", codes())
    Path("SUBMISSION.toml").write_text(manifests.template())
    with pytest.raises(UsageError, match=r"submission, name, .*, data_seeds are still to be fill"):
        run.evaluate("a.npy", root, bootstrap=0)
    save_manifest(tmp_path, steps="FILL IN")
    with pytest.raises(UsageError, match=r"SUBMISSION.toml: steps is still to be filled in"):
        run.evaluate("a.npy", root, bootstrap=0)
    save_manifest(tmp_path, **OLD_TEMPLATE)
    with pytest.raises(UsageError, match="name, authors, link, entry are as in the template"):
        run.evaluate("a.npy", root, bootstrap=0)
    save_manifest(tmp_path, authors=["A. Author", "B. Author"])
    with pytest.raises(UsageError, match="authors is as in the template"):
        run.evaluate("a.npy", root, bootstrap=0)
    save_manifest(tmp_path, entry="our-encoder")  # which someone can mean
    scores = run.evaluate("a.npy", root, bootstrap=0).scores
    assert scores["submission"]["manifest"]["entry"] == "our-encoder"


def test_a_manifest_that_is_found_is_named(cli, tmp_path, root):
    np.save("mine.npy", codes())
    words = ("evaluate", "mine.npy", "--data", root, "--bootstrap", 0)
    save_manifest(tmp_path)
    assert "manifest: SUBMISSION.toml (entry an-entry, seed 0)\n" in cli(*words).stdout
    save_manifest(tmp_path, submission="mine.npy")
    assert "manifest: SUBMISSION.toml (entry an-entry, seed 0)\n" in cli(*words).stdout
    scores = json.loads(Path("scores/mine/scores.json").read_text())
    assert scores["submission"]["manifest"]["submission"] == "mine.npy"
    check_scores(scores, "scores.json")


def test_a_manifest_of_another_submission_is_not_taken(cli, tmp_path, root):
    np.save("mine.npy", codes())
    words = ("evaluate", "mine.npy", "--data", root, "--bootstrap", 0)

    def used():
        scores = json.loads(Path("scores/mine/scores.json").read_text())
        return scores["submission"]["manifest"] is not None

    save_manifest(tmp_path, submission="encoder.onnx")
    said = cli(*words).stdout
    assert "SUBMISSION.toml is of 'encoder.onnx', not of 'mine.npy': it is not used" in said
    assert not used()
    said = cli(*words, "--manifest", "SUBMISSION.toml", code=2).stderr
    assert "is of 'encoder.onnx', not of 'mine.npy': give the manifest of this one" in said
    # Of several submissions it must name its own.
    Path("encoder.onnx").write_bytes(b"x")
    save_manifest(tmp_path)
    said = cli(*words).stdout
    assert "does not say whether it is of mine.npy or of encoder.onnx: it is not used" in said
    assert not used()
    assert "manifest: " in cli(*words, "--manifest", "SUBMISSION.toml").stdout
    assert used()
    save_manifest(tmp_path, submission="mine.npy")
    assert "manifest: " in cli(*words).stdout
    assert used()


def test_a_manifest_beside_a_submission_is_visible_in_python(tmp_path, rendered):
    np.save("mine.npy", codes())
    save_manifest(tmp_path)
    found = run.evaluate("mine.npy", rendered["test"], bootstrap=0, metrics=["linear_r2"])
    assert found.notes == ("manifest: SUBMISSION.toml (entry an-entry, seed 0)",)
    np.save("theirs.npy", codes())
    with pytest.warns(ManifestWarning, match=r"of mine\.npy or of theirs\.npy: it is not used"):
        found = run.evaluate("mine.npy", rendered["test"], bootstrap=0, metrics=["linear_r2"])
    assert "it is not used" in found.notes[0]
    assert found.scores["submission"]["manifest"] is None


def test_every_kind_of_submission_beside_a_manifest_counts(tmp_path, rendered):
    """A manifest that names none is not taken where it may be of another."""
    np.save("mine.npy", codes())
    save_manifest(tmp_path)

    def found():
        return check_inputs("mine.npy", rendered["test"])

    assert found().manifest is not None
    with warnings.catch_warnings(action="ignore"):  # torch calls it deprecated
        script = torch.jit.script(torch.nn.Identity())
    for name in ("a.pt", "a.pth", "a.ts"):
        script.save(name)
        assert f"is of mine.npy or of {name}: it is not used" in found().notes[0]
        assert found().manifest is None
        torch.save({"weights": torch.zeros(2)}, name)  # a checkpoint, which nobody can hand in
        assert found().manifest is not None
        Path(name).unlink()
    for name in ("a.pt2", "a.onnx", "a.npz", "a.h5", "a.hdf5", "embeddings.npy"):
        np.save("x.npy", codes())
        Path("x.npy").rename(name)
        assert f"is of mine.npy or of {name}: it is not used" in found().notes[0]
        if name != "embeddings.npy":
            Path(name).unlink()
    Path("scores.json").write_text("{}")  # then they are the codes of that evaluation
    assert found().manifest is not None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": ""}, "name must be text of 1 to 80"),
        ({"name": "x" * 81}, "name must be text"),
        ({"name": 3}, "name must be text"),
        ({"name": "a\nb"}, "one line without invisible"),
        ({"name": "a\u202eb"}, "one line without invisible"),
        ({"authors": "me"}, "authors must be a list"),
        ({"authors": []}, "authors must be a list"),
        ({"authors": [""]}, "authors must be text"),
        ({"link": "javascript:alert(1)"}, "link must begin with https"),
        ({"link": "file:///etc/passwd"}, "link must begin with https"),
        ({"output_space": "torus"}, "output_space must be one of box, sphere"),
        ({"track": "best"}, "track must be one of supervised"),
        ({"track": "supervised"}, "conditional is for the tracks pairs"),
        ({"conditional": None}, "conditional is missing"),
        ({"width": -1}, "width must be a number above 0"),
        ({"width": float("nan")}, "width must be a number above 0"),
        ({"width": [0.1, True]}, "width must be a number above 0"),
        ({"images": 1.5}, "images must be a whole number"),
        ({"images": True}, "images must be a whole number"),
        ({"steps": -1}, "steps must be a whole number"),
        ({"seed": 2**64}, "seed must be a whole number"),
        ({"data_seeds": 0}, "data_seeds must be a list"),
        ({"data_seeds": list(range(101))}, "data_seeds must be a list"),
        ({"hyperparameters": "luck"}, "hyperparameters must be one of published"),
        ({"entry": "../up"}, "entry must be an id"),
        ({"entry": "A"}, "entry must be an id"),
        ({"score": 1}, "unknown field 'score'"),
        ({"submission": 3}, "submission must be text"),
        ({"method": None}, "method is missing"),
    ],
)
def test_manifests_that_do_not_fit(changes, said):
    with pytest.raises(UsageError, match=f"SUBMISSION.toml: .*{said}"):
        manifests.parse_manifest(fields(**changes), "SUBMISSION.toml")


def test_manifest_files_that_do_not_fit(tmp_path):
    path = tmp_path / "m.toml"
    for content, said in (
        (b"name = ", "is not TOML"),
        (b"\xff", "is not TOML"),
        (b"a = " + b"[" * 20_000, "is not TOML"),
        (b"#" * 70_000, "larger than"),
    ):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=said):
            manifests.read_manifest(path)
    with pytest.raises(UsageError, match="cannot read the manifest"):
        manifests.read_manifest(tmp_path / "none.toml")


# Whole evaluations


def test_the_same_inputs_give_the_same_scores(tmp_path, root):
    folder = tmp_path / "submission"
    folder.mkdir()
    path = save_onnx(folder / "a.onnx", mean_nodes(), initializers=[AXES])
    save_manifest(folder)
    texts = []
    for out in (tmp_path / "first", tmp_path / "second"):
        run.write(run.evaluate(path, root, bootstrap=100), out)
        assert {p.name for p in out.iterdir()} == {"scores.json", "embeddings.npy", "report.html"}
        lines = (out / "scores.json").read_text().splitlines()
        texts.append([line for line in lines if '"created"' not in line])
        assert len(texts[-1]) == len(lines) - 1
        time.sleep(1.1)  # a time stamp of its own
    assert texts[0] == texts[1]
    scores = json.loads((out / "scores.json").read_text())
    check_scores(scores, "scores.json")
    assert scores["submission"]["sha256"] == file_digest(path)
    assert scores["submission"]["manifest"]["entry"] == "an-entry"
    assert scores["submission"]["network_blocked"] is can_have_namespaces()
    assert scores["data"]["images"] == COUNT
    assert np.load(out / "embeddings.npy").shape == (COUNT, 3)
    kept = run.evaluate(out / "embeddings.npy", root, bootstrap=100).scores
    assert kept["scores"] == scores["scores"]


def test_a_rendered_test_set_and_its_published_form(cli, tmp_path, small_dataset):
    from threedident.evaluate.test_set import TestSet

    encoder = ImageEncoder([0.5] * 3, [0.2] * 3, ResNetEncoder(10), SphereOutput())
    save_encoder(tmp_path / "encoder.pt", encoder)
    words = ("--data", small_dataset, "--bootstrap", 100, "--metrics", "mcc", "--factors", "hue")
    said = cli("evaluate", "reference:encoder=encoder.pt", "--out", "out", *words).stdout
    assert "reference:encoder: 10 codes of 12 images" in said
    assert said.count("warning: ") >= 2
    scores = json.loads((tmp_path / "out/scores.json").read_text())
    check_scores(scores, "scores.json")
    with open_dataset(small_dataset) as source:
        assert source.manifest is not None
        assert scores["data"]["fingerprint"] == source.manifest.fingerprint
        to_published(source, tmp_path / "published")
    assert scores["data"]["preset"] == "3dident"
    assert scores["data"]["split"] == "train"
    assert scores["data"]["why_no_best_r2"] is None
    assert scores["data"]["factors"] == ["object_hue", "spotlight_hue", "background_hue"]
    assert scores["data"]["best_r2"]["object_hue"] == pytest.approx(0.963, abs=1e-3)
    assert any("hue is not wrapped" in reason for reason in scores["data"]["not_injective"])
    assert scores["submission"]["sha256"] == file_digest(tmp_path / "encoder.pt")
    assert list(scores["scores"]) == ["mcc"]
    published = TestSet.open(tmp_path / "published").record()
    assert published.preset == "3dident"
    (tmp_path / "published/3dident.json").unlink()  # the released dataset says less
    published = TestSet.open(tmp_path / "published").record()
    assert published.preset is None
    assert len(published.fingerprint) == 64
    assert TestSet.open(tmp_path / "published").record().images == 12


def test_what_the_command_refuses(cli, tmp_path, root):
    np.save(tmp_path / "a.npy", codes(count=39))
    said = cli("evaluate", "a.npy", "--data", root, "--out", "out", code=2).stderr
    assert said.startswith("error: a.npy has 39 rows, the test set 40 images")
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()
    assert 'entry = "FILL IN"' in cli("evaluate", "--template").stdout


def test_an_unknown_metric_is_refused_before_anything_runs(tmp_path, root):
    np.save(tmp_path / "a.npy", codes())
    with pytest.raises(UsageError, match="unknown metric 'mmc': expected some of linear_r2"):
        run.evaluate(tmp_path / "a.npy", root, metrics=["mmc"])
    with pytest.raises(UsageError, match="--train is for reference:pca"):
        run.evaluate(tmp_path / "a.npy", root, train=root)
    shutil.rmtree(tmp_path / "none", ignore_errors=True)
    with pytest.raises(DatasetError, match="cannot open"):
        run.evaluate(tmp_path / "a.npy", tmp_path / "none")


# What scores mean


GIVEN = np.random.default_rng(3).uniform(-1, 1, (COUNT, 10)).astype(np.float32)


@pytest.fixture(scope="module")
def rendered(tmp_path_factory) -> dict[str, Path]:
    """Datasets as they are rendered, by where their latents come from."""
    folder = tmp_path_factory.mktemp("rendered")
    return {
        "test": as_rendered(folder / "test", COUNT, split="test"),
        "train": as_rendered(folder / "train", COUNT),
        "given": as_rendered(folder / "given", COUNT, given=GIVEN),
        "pairs": as_rendered(folder / "pairs", COUNT, split="test", conditional=Normal(0.3)),
    }


def scored(submission, data, **options):
    return run.evaluate(submission, data, bootstrap=0, **options).scores


def warned(scores) -> dict[str, str]:
    return {each["code"]: each["message"] for each in scores["warnings"]}


def test_best_scores_stand_beside_those_of_uniform_latents_alone(rendered, root):
    np.save("a.npy", codes())
    uniform = scored("a.npy", rendered["test"])
    assert uniform["data"]["best_r2"]["object_hue"] == pytest.approx(0.963, abs=1e-3)
    assert uniform["data"]["why_no_best_r2"] is None
    best = uniform["scores"]["mcc"]["best_per_factor"]["object_hue"]
    assert best == pytest.approx(0.963**0.5, abs=1e-3)
    assert "best R2" in "\n".join(run.summary(uniform))
    for name, reason in (
        (rendered["given"], "the latents were given"),
        (rendered["pairs"], "the second images of pairs are not uniform"),
        (root, "what drew the latents and rendered the images is not recorded"),
    ):
        found = scored("a.npy", name)
        assert found["data"]["best_r2"] == {}
        assert reason in found["data"]["why_no_best_r2"]
        for score in found["scores"].values():
            assert score["best_per_factor"] is score["share_of_best"] is None
        said = "\n".join(run.summary(found))
        assert f"no best possible scores are given: {reason}" in said
        assert "best R2" not in said
        assert (
            "not known for these latents" in warned(found).get("not_injective", said)
            or name == root
        )
        check_scores(json.loads(json.dumps(found)), "scores.json")


def test_a_training_split_is_said(rendered):
    np.save("a.npy", codes())
    found = warned(scored("a.npy", rendered["train"]))
    assert "the test set is of the split `train`" in found["training_split"]
    assert "seen_images" not in found
    assert not {"training_split", "seen_images"} & set(warned(scored("a.npy", rendered["test"])))
    assert "training_split" in warned(run.score_codes(codes(), rendered["train"], bootstrap=0))


def test_a_training_split_of_imported_images_is_said(cli, tmp_path, root):
    """Nothing but the export says which split they are, and it says train by itself."""
    np.save("a.npy", codes())
    for folder, words in (("unnamed", ()), ("train", ("--split", "train"))):
        cli("convert", root, "--to", "webdataset", *words, "--out", folder)
        found = scored("a.npy", tmp_path / folder / "3dident-train.json")
        assert "calls these images its split `train`" in warned(found)["training_split"]
        assert found["data"]["split"] == "train"
    for name, split in (("val", "validation"), ("test", "test")):
        cli("convert", root, "--to", "webdataset", "--split", name, "--out", name)
        found = scored("a.npy", tmp_path / name / f"3dident-{split}.json")
        assert "training_split" not in warned(found)
        assert found["data"]["split"] == name
    assert scored("a.npy", root)["data"]["split"] is None


def test_images_that_principal_components_were_fitted_on_are_said(tmp_path, rendered):
    words = {"metrics": ["linear_r2"]}
    more = as_rendered(tmp_path / "more", 50, split="test")
    for train in (rendered["test"], more):
        seen = scored("reference:pca=3", rendered["test"], train=train, **words)
        assert "as 40 of these 40" in warned(seen)["seen_images"]
    some = scored("reference:pca=3", more, train=rendered["test"], **words)
    assert "as 40 of these 50" in warned(some)["seen_images"]
    other = scored("reference:pca=3", rendered["test"], train=rendered["train"], **words)
    assert "seen_images" not in warned(other)


def test_images_that_the_manifest_names_are_said(tmp_path, rendered):
    np.save("a.npy", codes())
    save_manifest(tmp_path, data_seeds=[4, 0])
    found = warned(scored("a.npy", rendered["train"]))
    assert "trained on images of seed 0" in found["seen_images"]
    for changes in ({"data_seeds": [4]}, {"preset": "3dident-wrapped"}):
        save_manifest(tmp_path, **changes)
        assert "seen_images" not in warned(scored("a.npy", rendered["train"]))
    save_manifest(tmp_path, data_seeds=[0])
    assert "seen_images" not in warned(scored("a.npy", rendered["test"]))


def test_images_that_a_run_was_trained_on_are_said(cli, tmp_path, rendered):
    """The encoder's file records them, and of earlier versions the run's result beside it."""
    small = ("training.steps=1", "training.batch_size=8", "training.score_samples=32")
    options = [word for each in small for word in ("--set", each)]
    places = ("--data", rendered["train"], "--test", rendered["test"], "--out", "run")
    cli("train", "demo", *places, "--threads", 1, *options)
    shutil.copy("run/encoder.pt", "copied.pt")
    encoder, about = read_encoder(Path("run/encoder.pt"))
    assert len(about["data"]["latents"]) == 64
    test, train = rendered["test"], rendered["train"]

    def said(checkpoint, data):
        return warned(scored(f"reference:encoder={checkpoint}", data, metrics=["linear_r2"]))

    assert "trained on images of the same latents" in said("run", train)["seen_images"]
    assert "seen_images" in said("copied.pt", train)
    assert not {"seen_images", "other_resolution"} & set(said("copied.pt", test))
    larger = as_rendered(tmp_path / "larger", COUNT, split="test", side=32)
    found = said("copied.pt", larger)["other_resolution"]
    assert "trained on images of 16 pixels along each side, and these have 32" in found
    cli("export", "run/encoder.pt", "--out", "encoder.onnx", "--resolution", 16)
    assert "trained on images of the same latents" in warned(scored("encoder.onnx", train)).get(
        "seen_images", ""
    )
    assert not {"seen_images", "other_resolution"} & set(warned(scored("encoder.onnx", test)))
    # Some of the images, and all of them with others, in any form: row by row.
    to_published(open_dataset(as_rendered(tmp_path / "few", COUNT // 2)), tmp_path / "png")
    more = as_rendered(tmp_path / "more", COUNT + 8)
    (tmp_path / "png/3dident.json").unlink()
    for folder, words in ((tmp_path / "png", "as 20 of these 20"), (more, "as 40 of these 48")):
        assert words in said("run", folder)["seen_images"]
        assert "seen_images" not in said("copied.pt", folder)  # which no run's folder surrounds
    Path("run/data.json").write_text(json.dumps({"data": str(more)}))  # extended since
    assert "as 20 of these 20" in said("run", tmp_path / "png")["seen_images"]
    for elsewhere in ("[]", "{", '{"data": null}', json.dumps({"data": str(test)})):
        Path("run/data.json").write_text(elsewhere)
        assert "seen_images" not in said("run", tmp_path / "png")
    del about["data"]
    save_encoder("run/encoder.pt", encoder, about)
    save_encoder("copied.pt", encoder, about)
    assert "trained on images of the same latents" in said("run", train)["seen_images"]
    assert "seen_images" not in said("copied.pt", train)


@pytest.mark.parametrize(
    ("claim", "code"),
    [
        ('{"latents": "%s"}', "seen_images"),
        ('{"resolution": 17}', "other_resolution"),
        ('{"latents": ["%s"], "resolution": 1e999}', None),
        ('{"resolution": ' + 400 * "9" + "}", None),
        (900 * "[", None),
        ("[3]", None),
        ('{"latents": "%s"}' + 5000 * "\U0001f600", None),
    ],
    ids=("latents", "side", "types", "large", "deep", "list", "long"),
)
def test_what_a_stranger_says_of_the_training_only_warns(tmp_path, rendered, claim, code):
    path = save_onnx(tmp_path / "a.onnx", mean_nodes("z_hat"), initializers=[AXES])
    model = onnx.load(path)
    latents = latents_digest(open_dataset(rendered["test"]).raw_latents)
    helper.set_model_props(model, {TRAINED_ON: claim.replace("%s", latents)})
    onnx.save(model, path)
    found = warned(scored(path, rendered["test"], metrics=["linear_r2"]))
    assert {"seen_images", "other_resolution"} & set(found) == ({code} if code else set())


def test_images_of_pairs_are_said_to_depend_on_each_other(rendered):
    np.save("a.npy", codes())
    assert "intervals are too narrow" in warned(scored("a.npy", rendered["pairs"]))["paired_images"]
    assert "paired_images" not in warned(scored("a.npy", rendered["test"]))


def test_scores_of_another_submission_are_not_overwritten(cli, tmp_path, rendered):
    np.save("a.npy", codes())
    np.save("b.npy", codes(4))
    words = ("--data", rendered["test"], "--out", "out", "--bootstrap", 0)
    cli("evaluate", "a.npy", *words)
    before = Path("out/scores.json").read_bytes()
    cli("evaluate", "a.npy", *words, "--metrics", "mcc")  # the same submission and data
    assert Path("out/scores.json").read_bytes() != before
    before = Path("out/scores.json").read_bytes()

    def refused(message, *words):
        said = cli("evaluate", *words, "--bootstrap", 0, code=2).stderr
        assert message in said
        assert "choose another --out, or add --overwrite" in said
        assert Path("out/scores.json").read_bytes() == before

    refused("out holds the scores of a.npy (embeddings), not of b.npy", "b.npy", *words)
    kept = Path("a.npy").read_bytes()
    np.save("a.npy", codes(2))
    refused("out holds the scores of another a.npy, of SHA-256 ", "a.npy", *words)
    Path("a.npy").write_bytes(kept)
    other = ("--data", rendered["train"], "--out", "out")
    refused("out holds scores of a.npy on another test set, of fingerprint ", "a.npy", *other)
    with pytest.raises(UsageError, match=r"out holds the scores of a\.npy"):
        run.write(run.evaluate("b.npy", rendered["test"], bootstrap=0), Path("out"))
    cli("evaluate", "b.npy", *words, "--overwrite")
    assert json.loads(Path("out/scores.json").read_text())["submission"]["name"] == "b.npy"
    for damaged in ("{}", "[", "[]", '{"submission": [], "data": {}}'):
        Path("out/scores.json").write_text(damaged)
        before = damaged.encode()
        refused("is damaged: it does not say whose scores it holds", "a.npy", *words)


def test_scores_on_fewer_images_or_fitted_on_others_are_not_overwritten(tmp_path):
    """A dataset that is extended keeps its fingerprint, and reference:pca its name."""
    few, more = (as_rendered(tmp_path / str(n), n, split="test") for n in (COUNT, COUNT + 20))
    train = as_rendered(tmp_path / "train", COUNT)
    other = as_rendered(tmp_path / "other", COUNT, seed=1)
    out = tmp_path / "out"

    def write(data, fitted_on):
        options = {"train": fitted_on, "metrics": ["linear_r2"]}
        check_inputs("reference:pca=3", data, out=out, **options)
        run.write(run.evaluate("reference:pca=3", data, bootstrap=0, **options), out)

    for _ in range(2):
        write(few, train)
    scores = ScoresFile.read(out / "scores.json").as_dict()
    fingerprint = open_dataset(train).manifest.fingerprint
    assert scores["submission"]["fitted_on"] == {"fingerprint": fingerprint, "images": COUNT}
    extended = r"on 40 images of this test set, which has 60 now: choose another --out, or add"
    with pytest.raises(UsageError, match=extended):
        write(more, train)
    found = run.evaluate("reference:pca=3", more, train=train, bootstrap=0, metrics=["mcc"])
    with pytest.raises(UsageError, match=extended):
        run.write(found, out)
    for fitted_on in (other, as_rendered(tmp_path / "extended", COUNT + 1), None):
        with pytest.raises(UsageError, match="holds scores of reference:pca=3 fitted on other im"):
            write(few, fitted_on)
    # Scores of earlier versions name no such images; those fitted on the test set are known.
    del scores["submission"]["fitted_on"]
    (out / "scores.json").write_text(json.dumps(scores))
    ScoresFile.read(out / "scores.json")
    with pytest.raises(UsageError, match="fitted on images that they do not name"):
        write(few, train)
    scores["submission"]["about"] = "3 principal components, fitted on the first half of the test"
    (out / "scores.json").write_text(json.dumps(scores))
    write(few, None)


def test_a_submission_with_weights_beside_it_can_be_scored_again(tmp_path, rendered):
    """Also where its scores, of an earlier version, do not name the weights' file."""
    path = scaled(tmp_path / "a.onnx", externally("a.onnx.data"))
    (tmp_path / "a.onnx.data").write_bytes(np.ones(3, np.float32).tobytes())
    for _ in range(2):
        found = run.evaluate(path, rendered["test"], bootstrap=0)
        run.write(found, tmp_path / "out")
    assert found.scores["submission"]["files"] == ["a.onnx.data"]
    plain = json.loads((tmp_path / "out/scores.json").read_text())
    del plain["submission"]["files"]
    (tmp_path / "out/scores.json").write_text(json.dumps(plain))
    run.write(found, tmp_path / "out")
    (tmp_path / "a.onnx.data").write_bytes(np.zeros(3, np.float32).tobytes())
    with pytest.raises(UsageError, match=r"out holds the scores of another a\.onnx"):
        run.write(found, tmp_path / "out")


def test_a_submission_is_not_overwritten_by_its_codes(rendered):
    np.save("embeddings.npy", codes(dtype=np.float64))
    with pytest.raises(
        UsageError, match=r"--out \. would overwrite the submission embeddings\.npy"
    ):
        check_inputs("embeddings.npy", rendered["test"], out=Path())


def test_what_does_not_fit_is_said_before_torch_is_imported(rendered):
    np.save("a.npy", codes())
    code = """
        import json, sys
        from threedident.cli import main
        for words in json.loads(sys.argv[1]):
            assert main(["evaluate", *words], standalone_mode=False) == 2
        assert "torch" not in sys.modules
    """
    data = ("--data", str(rendered["test"]))
    cases = (
        (("a.npy", "--data", "typo"), "cannot open typo as a dataset"),
        (("typo.npy", *data), "there is no file typo.npy"),
        (("a.npy",), "which test set? --data TEST"),
        (("a.npy", *data, "--metrics", "typo"), "unknown metric 'typo'"),
        (("a.npy", *data, "--factors", "typo"), "unknown factor or group"),
        (("a.npy", *data, "--out", "a.npy"), "--out a.npy is a file"),
        (("a.npy", *data, "--manifest", "typo"), "cannot read the manifest typo"),
        (("a.npy", *data, "--train", "typo"), "--train is for reference:pca"),
        (("reference:pca", *data, "--train", "typo"), "cannot open typo as a dataset"),
    )
    words = [sys.executable, "-P", "-c", textwrap.dedent(code), json.dumps([w for w, _ in cases])]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for line, (_, said) in zip(done.stderr.splitlines(), cases, strict=True):
        assert line.startswith(f"error: {said}")


def test_lists_of_metrics_and_factors(cli, rendered):
    np.save("a.npy", codes(10))
    words = ("evaluate", "a.npy", "--data", rendered["test"], "--bootstrap", 0)

    def found(*more):
        cli(*words, *more)
        return json.loads(Path("scores/a/scores.json").read_text())

    scores = found("--metrics", "mcc,sap", "--metrics", "mig", "--factors", "hue,x")
    assert list(scores["scores"]) == ["mcc", "sap", "mig"]
    assert scores["data"]["factors"] == ["object_hue", "spotlight_hue", "background_hue", "x"]
    said = cli(*words, "--metrics", "typo,mcc", code=2).stderr
    assert "unknown metric 'typo'" in said


def test_all_metrics_at_once(cli, tmp_path):
    z = np.random.default_rng(0).uniform(-1, 1, (80, 10)).astype(np.float32)
    make(tmp_path / "data/3dident-test", 80, raw=z)
    np.save("a.npy", z[:, :3])
    said = cli("evaluate", "a.npy", "--metrics", "all", "--bootstrap", 0, "--factors", "x,y").stdout
    assert list(json.loads(Path("scores/a/scores.json").read_text())["scores"]) == list(METRICS)
    assert "dci: not as in most of the literature" in said


def test_the_terminal_shows_scores_by_factor(cli, rendered):
    np.save("a.npy", codes(3))
    said = cli("evaluate", "a.npy", "--data", rendered["test"], "--bootstrap", 100).stdout
    scores = json.loads(Path("scores/a/scores.json").read_text())["scores"]
    lines = {line.split()[0]: line.split()[1:] for line in said.splitlines() if line}
    assert "factor                      R2   best R2       MCC  best MCC" in said
    for factor, value in scores["linear_r2"]["per_factor"].items():
        assert lines[factor][0] == f"{value:.4f}"
        assert lines[factor][1] == f"{scores['linear_r2']['best_per_factor'][factor]:.4f}"
        assert lines[factor][2] == f"{scores['mcc']['per_factor'][factor]:.4f}"
        assert lines[factor][3] == f"{scores['mcc']['best_per_factor'][factor]:.4f}"
    assert "intervals: of the expected score at this number of images" in said
    assert "hue is not wrapped" not in said  # which the report says
    assert "hue is not wrapped" in Path("scores/a/report.html").read_text()


def test_where_scores_go_by_themselves():
    for words, folder in (
        ("mine.onnx", "scores/mine"),
        ("some/codes.v2.npy", "scores/codes.v2"),
        ("mine:make", "scores/mine-make"),
        ("reference:identity=full", "scores/identity-full"),
        ("reference:encoder=runs/box", "scores/encoder-box"),
        ("reference:encoder=runs/box/encoder.pt", "scores/encoder-box"),
        ("reference:encoder=copied.pt", "scores/encoder-copied"),
    ):
        Path("runs/box").mkdir(parents=True, exist_ok=True)
        for file in ("mine.onnx", "some/codes.v2.npy", "runs/box/encoder.pt", "copied.pt"):
            Path(file).parent.mkdir(exist_ok=True)
            Path(file).touch()
        assert default_out(identify(words, trust=True)) == Path(folder)


def test_codes_at_hand_score_as_those_of_a_file(rendered):
    np.save("a.npy", codes())
    whole = run.evaluate("a.npy", rendered["test"], bootstrap=100).scores
    for data in (rendered["test"], ThreeDIdent(rendered["test"])):
        found = run.score_codes(torch.from_numpy(codes()), data, bootstrap=100)
        assert found == {key: whole[key] for key in ("data", "settings", "scores", "warnings")}
    assert run.summary(found) == run.summary(whole)
    found = run.score_codes(codes(), rendered["test"], factors=["hue"], bootstrap=0)
    assert len(found["data"]["factors"]) == 3
    with pytest.raises(UsageError, match="factors goes with a path"):
        run.score_codes(codes(), data, factors=["hue"])
