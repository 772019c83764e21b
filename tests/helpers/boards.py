"""A filled board and what is asked of it, for the tests of leaderboards."""

from __future__ import annotations

import numpy as np
import onnx
from click.testing import CliRunner

from threedident.cli import main

LINK = "https://example.org/encoder.onnx"


def by_name(rows):
    return {row.name: row for row in rows}


def said(*words, code=0):
    """What `3dident leaderboard` prints, in this process."""
    found = CliRunner().invoke(main, ["leaderboard", *map(str, words)])
    assert found.exit_code == code, found.output
    assert isinstance(found.exception, SystemExit | None), found.exception
    return found.output


def linear_encoder(path, images, latents, ridge):
    """An ONNX file: pixels to latents, by ridge regression on images (N, 16, 16, 3)."""
    pixels = images.transpose(0, 3, 1, 2).reshape(len(images), -1) / 255
    center, mean = pixels.mean(0), latents.mean(0)
    centred = pixels - center
    gram = centred @ centred.T + ridge * np.eye(len(centred))
    weights = centred.T @ np.linalg.solve(gram, latents - mean) / 255
    offset = mean - 255 * center @ weights
    helper = onnx.helper
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["images"], ["numbers"], to=onnx.TensorProto.FLOAT),
            helper.make_node("Flatten", ["numbers"], ["flat"]),
            helper.make_node("Gemm", ["flat", "weights", "offset"], ["codes"]),
        ],
        "linear",
        [helper.make_tensor_value_info("images", onnx.TensorProto.UINT8, ["B", 3, 16, 16])],
        [helper.make_tensor_value_info("codes", onnx.TensorProto.FLOAT, ["B", 10])],
        [
            onnx.numpy_helper.from_array(array.astype(np.float32), name)
            for name, array in (("weights", weights), ("offset", offset))
        ],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
