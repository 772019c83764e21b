"""ONNX files: their codes, and every hostile graph refused."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest
from helpers.submissions import (
    AXES,
    COUNT,
    channel_means,
    codes_of,
    externally,
    mean_nodes,
    refusal,
    save_onnx,
    scaled,
    weight,
)
from onnx import TensorProto, helper

from threedident.errors import UsageError
from threedident.evaluate.runner.process import run_encoder
from threedident.evaluate.submissions.onnx_check import MOST_WEIGHTS
from threedident.evaluate.submissions.submission import digest, file_digest, identify

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")


def test_onnx_gives_its_codes(tmp_path, data):
    path = save_onnx(tmp_path / "a.onnx", mean_nodes(), initializers=[AXES])
    for batch in (16, 40, 7):
        assert np.allclose(codes_of(identify(path), data, batch_size=batch), channel_means(data))
    assert digest(identify(path)) == file_digest(path)


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


OTHER_SIZE = (
    r"images are otherwise.*3dident export RUN/encoder\.pt --out encoder\.onnx --resolution 16.*"
    r"--split test --resolution 224"
)


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
    "another size": ({"source": take(shape=("B", 3, 224, 224))}, OTHER_SIZE),
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
    said = refusal(path, data, time=3)
    assert "was stopped after 3 s, with 0 of 40 images done: --time-limit gives it more" in said
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
