"""`main`: the process of a stranger's encoder, `python -m threedident.evaluate.runner.worker`.

It reads its task and then images from standard input, and writes codes to standard output, in
messages whose sizes the other side knows or bounds; see `protocol`. Walls go up before anything
but the standard library is imported, and before anything of the submission is opened.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from threedident.errors import ThreeDIdentError, UsageError
from threedident.evaluate.runner import protocol, sandbox

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
    #: Images (B, 3, H, W) uint8, and their number, to codes (B, m).
    Encode = Callable[[Array | None, int], Array]

_OUT_OF_MEMORY = ("bad_alloc", "allocat", "length_error", "out of memory")
_LONGEST_CLAIM = 1000  # characters of a file's claim on its training


def main() -> None:
    """Serve one task."""
    # What libraries print goes to standard error, not between the messages.
    results = os.dup(1)
    os.dup2(2, 1)
    task = json.loads(protocol.read_task(0))
    walls = sandbox.enter(
        sandbox.Allowance(
            memory=task["memory"],
            file_size=task["file_size"],
            readable=None if task["readable"] is None else tuple(task["readable"]),
            writable=tuple(task["writable"]),
        )
    )
    try:
        encoder, about = _load(task)
        protocol.write_ready(results, {**dataclasses.asdict(walls), **about})
        _serve(encoder, task, results)
    except BaseException as error:
        protocol.write_error(results, *_explain(error))
        os._exit(0)  # whatever the submission has left to run at exit


def _serve(encoder: Encode, task: Mapping[str, Any], results: int) -> None:
    import numpy as np

    shape = task["shape"]
    while rows := protocol.read_rows(0):
        images = None
        if shape is not None:
            content = protocol.read_exactly(0, rows * int(np.prod(shape)))
            images = np.frombuffer(content, np.uint8).reshape(rows, *shape)
        codes = np.asarray(encoder(images, rows))
        if codes.dtype.kind != "f":
            raise UsageError(f"the encoder returned {codes.dtype}, expected floating-point codes")
        if codes.ndim != 2:
            raise UsageError(
                f"the encoder returned an array of shape {codes.shape} for {rows} images, "
                f"expected ({rows}, codes)"
            )
        with np.errstate(over="ignore"):  # infinities are refused by whoever reads them
            rounded = codes.astype("<f4")
        protocol.write_codes(results, codes.shape[0], codes.shape[1], rounded.tobytes())


def _explain(error: BaseException) -> tuple[str, str]:
    """Return the kind of a failure, and the words for it."""
    if isinstance(error, ThreeDIdentError):
        return "known", str(error)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    low = text.lower()
    if isinstance(error, MemoryError) or any(phrase in low for phrase in _OUT_OF_MEMORY):
        return "memory", text
    return "failed", text


def _load(task: Mapping[str, Any]) -> tuple[Encode, dict[str, Any]]:
    """Return the submission as a function, and its account of itself."""
    warnings.simplefilter("ignore")
    match task["kind"]:
        case "embeddings":
            return _embeddings(Path(task["path"]), task["count"]), {}
        case "onnx":
            return _onnx(Path(task["path"]), task["shape"], task["threads"])
        case "torch":
            return _torch(Path(task["path"]), task["threads"]), {}
        case _:
            sys.path.insert(0, task["folder"])
            return _factory(task["path"], task["checkpoint"], task["threads"]), {}


def _embeddings(path: Path, count: int) -> Encode:
    from threedident.evaluate.submissions.embeddings import read_embeddings

    codes = read_embeddings(path, count)
    position = 0

    def following(_: Array | None, rows: int) -> Array:
        nonlocal position
        position += rows
        return codes[position - rows : position]

    return following


def _onnx(path: Path, shape: list[int] | None, threads: int) -> tuple[Encode, dict[str, Any]]:
    from threedident.errors import MissingExtraError
    from threedident.evaluate.submissions.onnx_check import TRAINED_ON, check_graph

    external = check_graph(path)
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("onnxruntime", "train", "running ONNX files") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.use_deterministic_compute = True
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    inputs, outputs = session.get_inputs(), session.get_outputs()
    if len(inputs) != 1 or len(outputs) != 1:
        raise UsageError(
            f"{path.name} has {len(inputs)} inputs and {len(outputs)} outputs, expected one of each"
        )
    source, target = inputs[0], outputs[0]
    takes = f"{path.name} takes {source.type} {source.shape}"
    wanted: list[Any] = ["C", "H", "W"] if shape is None else [*shape]
    expected = f"expected tensor(uint8) ['B', {', '.join(map(str, wanted))}], B free"
    if source.type != "tensor(uint8)" or len(source.shape) != 4:
        raise UsageError(f"{takes}: {expected}. Preprocessing belongs into the graph")
    if isinstance(source.shape[0], int):
        raise UsageError(f"{takes}, so only that many images at once: {expected}")
    taken = [side if isinstance(side, int) else None for side in source.shape[1:]]
    if shape and any(a not in (None, b) for a, b in zip(taken, shape, strict=True)):
        cure = _for_another_size(source.shape[1:], shape)
        raise UsageError(f"{takes}, but the test set's images are otherwise: {expected}{cure}")
    if target.type not in ("tensor(float)", "tensor(double)", "tensor(float16)"):
        raise UsageError(f"{path.name} returns {target.type}, expected tensor(float) ['B', codes]")

    def encode(images: Array | None, _: int) -> Array:
        return session.run([target.name], {source.name: images})[0]

    about: dict[str, Any] = {"external": list(external), "takes": taken}
    with contextlib.suppress(UnicodeDecodeError):
        claim = session.get_modelmeta().custom_metadata_map.get(TRAINED_ON, "")
        about["trained_on"] = claim[:_LONGEST_CLAIM]
    return encode, about


def _for_another_size(taken: list[Any], shape: list[int]) -> str:
    """Say how to bring together an encoder and a test set that differ in their size alone."""
    side = shape[1]
    if taken[0] != shape[0] or shape[2] != side or not taken[1] == taken[2] != side:
        return ""
    return (
        f". Export it for this size (of a run: `3dident export RUN/encoder.pt --out encoder.onnx "
        f"--resolution {side}`), or score it on a test set of its own (`3dident render --split "
        f"test --resolution {taken[1]}`)"
    )


def _torch(path: Path, threads: int) -> Encode:
    torch = _import_torch(threads)
    if path.suffix == ".pt2":
        module = torch.export.load(path).module()
    else:
        module = torch.jit.load(path, map_location="cpu").eval()
    return _from_torch(module, torch)


def _factory(name: str, checkpoint: str | None, threads: int) -> Encode:
    import importlib

    torch = _import_torch(threads)
    module, _, attribute = name.partition(":")
    factory = getattr(importlib.import_module(module), attribute, None)
    if not callable(factory):
        raise UsageError(f"{name}: the module {module} has no function {attribute!r}")
    encoder = factory(checkpoint)
    if not callable(encoder):
        raise UsageError(
            f"{name} returned {type(encoder).__name__}, expected a function from images to codes"
        )
    return _from_torch(encoder, torch)


def _import_torch(threads: int) -> Any:
    from threedident.errors import MissingExtraError

    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("torch", "train", "running this submission") from error
    torch.set_num_threads(threads)
    return torch


def _from_torch(function: Callable[[Any], Any], torch: Any) -> Encode:
    def encode(images: Array | None, _: int) -> Array:
        assert images is not None
        with torch.inference_mode():
            codes = function(torch.from_numpy(images.copy()))
        if isinstance(codes, torch.Tensor):
            codes = codes.detach().cpu()
            codes = (codes.float() if codes.is_floating_point() else codes).numpy()
        return codes

    return encode


if __name__ == "__main__":
    main()
