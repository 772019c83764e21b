"""`check_graph`: an ONNX file checked before it is run: plain operators, weights in bounds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from threedident.errors import MissingExtraError, UsageError

#: Protobuf itself ends at 2 GiB.
MOST_BYTES = 1 << 31
MOST_WEIGHTS = 1 << 32
DOMAINS = ("", "ai.onnx", "ai.onnx.ml")
#: The key of the metadata in which this toolkit records the images of the training.
TRAINED_ON = "3dident.trained_on"
_DEEPEST = 32


def import_onnx() -> Any:
    """Import the `onnx` package.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import onnx
    except ImportError as error:
        raise MissingExtraError("onnx", "train", "reading ONNX files") from error
    return onnx


def check_graph(path: Path) -> tuple[str, ...]:
    """Check an ONNX file without loading its weights or running anything.

    Args:
        path: the file. Of weights beside it, only names and sizes are looked at.

    Returns:
        The names of the files beside it that hold weights, sorted.

    Raises:
        UsageError: it is no ONNX file, has operators beyond ONNX's own, weights without bounds,
            or weights outside of its folder.
    """
    onnx = import_onnx()
    if path.stat().st_size > MOST_BYTES:
        raise UsageError(
            f"{path.name} has {path.stat().st_size} bytes, at most {MOST_BYTES} are read"
        )
    try:
        model = onnx.load_model_from_string(path.read_bytes())
    except MemoryError:
        raise
    except Exception as error:  # protobuf's own, without a common base
        raise UsageError(f"{path.name} is no ONNX file: {error}") from error
    if not model.graph.output:
        raise UsageError(f"{path.name} is no ONNX file: it has no graph with an output")
    ours = {(f.domain, f.name) for f in model.functions}
    bodies = list(_bodies(model))
    for node in itertools.chain.from_iterable(body.node for body in bodies):
        if node.domain not in DOMAINS and (node.domain, node.op_type) not in ours:
            raise UsageError(
                f"{path.name} uses the operator {node.op_type} of {node.domain!r:.80}, which is "
                "not ONNX's own; libraries of operators are not loaded. Export it with standard "
                "operators"
            )
    total, names = 0, set()
    for tensor in itertools.chain.from_iterable(map(_tensors, bodies)):
        total += _declared_bytes(tensor, onnx, path.name)
        if total > MOST_WEIGHTS:
            raise UsageError(
                f"{path.name} declares weights of {total / 1e9:.3g} GB or more (as far as "
                f"{tensor.name!r:.60}); {MOST_WEIGHTS / 1e9:.3g} GB are the most that is loaded"
            )
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            names.add(_location(tensor, path))
    external = tuple(sorted(names))
    check_external(path, external)
    return external


def check_external(path: Path, names: Iterable[str]) -> None:
    """Check that files of weights are plain files in the folder of an ONNX file.

    Raises:
        UsageError: one is missing, or outside of it, by its name or through a link.
    """
    folder = path.resolve().parent
    for name in names:
        claim = f"{path.name} keeps weights in {name!r:.200}"
        inner = PurePosixPath(name)
        if not name or inner.is_absolute() or ".." in inner.parts or {"\\", "\0"} & set(name):
            raise UsageError(
                f"{claim}, outside of its folder, which is not read: put them beside it, or export "
                "it with its weights inside"
            )
        place = path.parent / inner
        if place.is_symlink() or place.resolve() != folder / inner:
            raise UsageError(
                f"{claim}, which is a link; links are not followed. Put the file there"
            )
        if not place.is_file():
            raise UsageError(f"{claim}, but there is no such file beside it")


def _bodies(model: Any) -> Iterator[Any]:
    """Yield the graphs and functions of a model, and the graphs nested in them."""
    training = ((t.initialization, t.algorithm) for t in model.training_info)
    first = (model.graph, *model.functions, *itertools.chain.from_iterable(training))
    waiting = [(body, 0) for body in first]
    while waiting:
        body, depth = waiting.pop()
        if depth > _DEEPEST:
            raise UsageError(f"the ONNX file has graphs nested more than {_DEEPEST} deep")
        yield body
        for attribute in _attributes(body):
            inner = [attribute.g] if attribute.HasField("g") else []
            waiting += [(graph, depth + 1) for graph in (*inner, *attribute.graphs)]


def _attributes(body: Any) -> Iterator[Any]:
    for node in body.node:
        yield from node.attribute


def _tensors(body: Any) -> Iterator[Any]:
    """Yield the tensors that a body itself holds: initialisers, and values of attributes."""
    yield from getattr(body, "initializer", ())  # a function has none
    sparse = list(getattr(body, "sparse_initializer", ()))
    for attribute in _attributes(body):
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        if attribute.HasField("sparse_tensor"):
            sparse.append(attribute.sparse_tensor)
        sparse += attribute.sparse_tensors
    for each in sparse:
        values = each.values
        yield values
        yield each.indices
        # What it unfolds to.
        yield type(values)(name=values.name, data_type=values.data_type, dims=each.dims)


def _declared_bytes(tensor: Any, onnx: Any, name: str) -> int:
    if any(side < 0 for side in tensor.dims):
        raise UsageError(f"{name}: the weight {tensor.name!r:.60} has a negative size")
    try:
        size = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except (KeyError, TypeError, ValueError):
        raise UsageError(
            f"{name}: the weight {tensor.name!r:.60} is of the unknown type {tensor.data_type}"
        ) from None
    return math.prod(tensor.dims) * int(size)


def _location(tensor: Any, path: Path) -> str:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    for key in ("offset", "length"):
        value = entries.get(key, "0")
        if not (value.isascii() and value.isdigit()) or int(value) > MOST_WEIGHTS:
            raise UsageError(
                f"{path.name}: the weight {tensor.name!r:.60} has {key} {value!r:.40} in its file"
            )
    return str(entries.get("location", ""))
