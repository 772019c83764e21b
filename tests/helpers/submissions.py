"""Submissions of strangers, and runs of them, for the tests of evaluate."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from helpers.fake_scores import make_manifest
from threedident.errors import DatasetError, UsageError
from threedident.evaluate import evaluation as run
from threedident.evaluate.leaderboard.add import as_toml
from threedident.evaluate.runner.process import Limits, run_encoder
from threedident.evaluate.submissions.submission import identify

COUNT, SIDE = 40, 16


MARK = "PYTHON_3DIDENT_TEST"  # inherited by the processes of encoders, whatever else is not


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


def looping(path):
    """A model that is plain ONNX and does not come to an end."""
    number = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    goes_on = helper.make_tensor_value_info("going", TensorProto.BOOL, [])
    value = helper.make_tensor_value_info("value", TensorProto.FLOAT, ["B", 3])
    graph = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["still"]),
            helper.make_node("Sin", ["value"], ["next"]),
        ],
        "body",
        [number, goes_on, value],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, ["B", 3]),
        ],
    )
    nodes = [
        *mean_nodes("means"),
        helper.make_node("Loop", ["", "yes", "means"], ["z_hat"], body=graph),
    ]
    return save_onnx(path, nodes, initializers=[AXES, weight("yes", np.array(True))])


def filling_memory(path):
    """A model that asks for 2^36 floats."""
    nodes = [
        helper.make_node("ConstantOfShape", ["much"], ["zeros"]),
        helper.make_node("ReduceMax", ["zeros"], ["most"], keepdims=0),
        *mean_nodes("means"),
        helper.make_node("Add", ["means", "most"], ["z_hat"]),
    ]
    return save_onnx(path, nodes, initializers=[AXES, weight("much", np.array([1 << 36]))])


def dividing(path):
    """A model that divides zero by zero where an image is black."""
    nodes = [*mean_nodes("means"), helper.make_node("Div", ["means", "means"], ["z_hat"])]
    return save_onnx(path, nodes, initializers=[AXES])


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


def can_have_namespaces():
    probe = ["unshare", "--user", "--net", "--pid", "--fork", "true"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def fields(**changes):
    return {**make_manifest(), **changes}


def save_manifest(folder, **changes):
    (folder / "SUBMISSION.toml").write_text(as_toml(fields(**changes)))


GIVEN = np.random.default_rng(3).uniform(-1, 1, (COUNT, 10)).astype(np.float32)


def scored(submission, data, **options):
    return run.evaluate(submission, data, bootstrap=0, **options).scores


def warned(scores) -> dict[str, str]:
    return {each["code"]: each["message"] for each in scores["warnings"]}
