"""`export`: an encoder of this toolkit as an ONNX submission, one file from images to codes."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from threedident.defaults import RESOLUTION
from threedident.encoders import ImageEncoder, VectorEncoder, read_encoder
from threedident.errors import MissingExtraError, UsageError
from threedident.evaluate.seen import training_record, write_claim
from threedident.evaluate.submissions.embeddings import ARRAY_NAME
from threedident.evaluate.submissions.onnx_check import TRAINED_ON, check_graph, import_onnx
from threedident.storage.atomic_files import explaining_write_errors, replacing

#: The version of the standard operators; any onnxruntime since 1.14 runs them.
OPSET = 18
#: The largest difference of codes from torch's that is accepted.
TOLERANCE = 1e-3
_BATCHES = (1, 3, 8)
_OF_RUN = "encoder.pt"  # the file in a run's folder
_LARGEST_SIDE = 4096  # pixels


@dataclasses.dataclass(frozen=True)
class Exported:
    """An ONNX file that was written.

    Attributes:
        path: the file.
        size: the number of its bytes.
        opset: the version of the operators.
        codes: the number of codes, m.
        resolution: the number of pixels along each side of the images it takes.
        resolution_known: whether this is the recorded resolution of the training images.
        difference: the largest difference from torch's codes, on random images.
    """

    path: Path
    size: int
    opset: int
    codes: int
    difference: float
    resolution: int
    resolution_known: bool = False


def export(checkpoint: Path, out: Path, *, resolution: int | None = None) -> Exported:
    """Write a checkpoint's encoder as an ONNX file with its weights inside.

    Args:
        checkpoint: a file that `save_encoder` has written, or the folder of a run.
        out: the file to write, which ends in .onnx.
        resolution: the number of pixels along each side of the images it takes; None: of those
            that it was trained on, or 224 where that is not recorded.

    Raises:
        DatasetError: the checkpoint cannot be read, or the file not written.
        UsageError: it is no encoder of images, or gives other codes than torch does.
        MissingExtraError: onnx, onnxruntime or onnxscript is not installed.
    """
    if out.suffix != ".onnx":
        raise UsageError(f"--out must end in .onnx, found {out}")
    if checkpoint.is_dir():
        checkpoint = checkpoint / _OF_RUN
    encoder, about = read_encoder(checkpoint)
    if isinstance(encoder, VectorEncoder):
        raise UsageError(f"{checkpoint} is an encoder of vectors; a submission takes images")
    record = training_record(checkpoint, about)
    side: Any = record.get("resolution")
    known = type(side) is int and 0 < side <= _LARGEST_SIDE
    wanted: int = resolution or (side if known else RESOLUTION)
    exported = export_encoder(encoder, out, resolution=wanted, trained_on=record)
    return dataclasses.replace(exported, resolution_known=known and wanted == side)


def export_encoder(
    encoder: ImageEncoder,
    out: Path,
    *,
    resolution: int = RESOLUTION,
    trained_on: Mapping[str, Any] | None = None,
) -> Exported:
    """Write an encoder as `export` does; it is left in evaluation mode.

    Args:
        encoder: the encoder.
        out: the file to write.
        resolution: the number of pixels along each side of the images it takes.
        trained_on: the record of the images that it was trained on; see `seen.training_record`.
            The file then says so, and is scored on them with a warning.

    Raises:
        DatasetError: the file cannot be written.
        UsageError: the file gives other codes than torch does.
        MissingExtraError: onnx, onnxruntime or onnxscript is not installed.
    """
    runtime = _import_runtime()
    model = _translate(encoder.eval(), resolution, write_claim(trained_on) if trained_on else None)
    with explaining_write_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as temporary:
        temporary.write_bytes(model)
        external = check_graph(temporary)
        if external:
            raise UsageError(f"the exporter left weights outside of the file: {external}")
        codes, difference = _compare(encoder, temporary, resolution, runtime)
        if not difference <= TOLERANCE:
            raise UsageError(
                f"the exported encoder's codes differ from torch's by {difference:.3g}, more than "
                f"{TOLERANCE:g}; {out} is not written"
            )
    return Exported(out, out.stat().st_size, OPSET, codes, difference, resolution)


def _import_runtime() -> Any:
    purpose = "exporting an encoder"
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  # torch's exporter needs it
    except ImportError as error:
        raise MissingExtraError(str(error.name), "train", purpose) from error
    return onnxruntime


def _translate(encoder: ImageEncoder, resolution: int, claim: str | None) -> bytes:
    onnx = import_onnx()
    example = torch.zeros((2, _channels(encoder), resolution, resolution), dtype=torch.uint8)
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            encoder,
            (example,),
            dynamo=True,
            external_data=False,
            opset_version=OPSET,
            input_names=["images"],
            output_names=[ARRAY_NAME],
            dynamic_shapes=({0: torch.export.Dim("B")},),
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    _forget(model)
    if claim is not None:
        onnx.helper.set_model_props(model, {TRAINED_ON: claim})
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def _channels(encoder: ImageEncoder) -> int:
    """The channels of the images that it takes."""
    return len(encoder.normalize.mean)


def _forget(model: Any) -> None:
    """Drop the exporter's notes on this machine: paths and lines of source code."""
    graphs = [model.graph, *model.functions]
    for graph in graphs:
        for thing in (graph, *graph.node, *graph.value_info):
            del thing.metadata_props[:]
            thing.doc_string = ""
    for thing in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        del thing.metadata_props[:]
        thing.doc_string = ""
    del model.metadata_props[:]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter, which prints its steps."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _compare(encoder: ImageEncoder, path: Path, resolution: int, runtime: Any) -> tuple[int, float]:
    """Return the number of codes, and their largest difference from torch's."""
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    random = np.random.default_rng(0)
    difference, codes = 0.0, 0
    for batch in _BATCHES:
        shape = (batch, _channels(encoder), resolution, resolution)
        images = random.integers(0, 256, shape, np.uint8)
        with torch.inference_mode():
            expected = encoder(torch.from_numpy(images)).numpy()
        given = session.run(None, {session.get_inputs()[0].name: images})[0]
        if given.shape != expected.shape:
            raise UsageError(f"the exported encoder gives {given.shape}, torch {expected.shape}")
        # Not max(), which would lose a NaN.
        difference = float(np.fmax(difference, np.abs(given - expected).max()))
        if not np.isfinite(given).all():
            difference = float("nan")
            break
        codes = given.shape[1]
    return codes, difference
