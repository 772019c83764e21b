"""Files of encoders and decoders: written whole, and safe to load.

A file holds a plain description of the architecture, its weights, and whatever else is known of
it; it is read without unpickling anything but tensors.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

from threedident.encoders.decoders import MLPDecoder
from threedident.encoders.encoder import ImageEncoder, VectorEncoder, build, build_decoder
from threedident.encoders.part import Part
from threedident.errors import DatasetError, UsageError
from threedident.storage.atomic_files import replacing
from threedident.storage.tensor_archives import check_archive, write_tensors

FORMAT, DECODER_FORMAT = "3dident-encoder", "3dident-decoder"
FORMAT_VERSION = 1

_Part = TypeVar("_Part", bound=Part)


def save_encoder(path: str | Path, encoder: Part, about: Mapping[str, Any] | None = None) -> None:
    """Write an encoder's file, replacing it in one step.

    Args:
        path: the file.
        encoder: an `ImageEncoder` or a `VectorEncoder`.
        about: facts about the encoder, as plain data for JSON: losses, steps, seeds.

    Raises:
        UsageError: `encoder` or `about` cannot be written.
        DatasetError: the disk is full or cannot be written to.
    """
    if not isinstance(path, str | os.PathLike):
        raise UsageError(
            f"expected the path of a file, found {type(path).__name__}: save_encoder(path, encoder)"
        )
    if not isinstance(encoder, ImageEncoder | VectorEncoder):
        raise UsageError(
            f"expected an ImageEncoder or a VectorEncoder, found {type(encoder).__name__}: only "
            "these can be saved; torch.onnx.export writes any other module as an ONNX file, which "
            "`3dident evaluate` scores (see docs/submitting.md)"
        )
    with torch.device("meta"):  # only to see that it can be made again
        build(encoder.spec)
    _save(path, encoder, about, FORMAT)


def save_decoder(
    path: str | Path, decoder: MLPDecoder, about: Mapping[str, Any] | None = None
) -> None:
    """Write a decoder's file, replacing it in one step.

    Args:
        path: the file.
        decoder: the decoder.
        about: facts about the decoder, as plain data for JSON.

    Raises:
        UsageError: `about` cannot be written.
        DatasetError: the disk is full or cannot be written to.
    """
    _save(path, decoder, about, DECODER_FORMAT)


def _save(path: str | Path, part: Part, about: Mapping[str, Any] | None, kind: str) -> None:
    try:
        known = json.loads(json.dumps(dict(about or {}), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UsageError(f"about must be plain data for JSON: {error}") from error
    content = {
        "format": kind,
        "format_version": FORMAT_VERSION,
        "spec": part.spec,
        "state": {name: value.detach().cpu() for name, value in part.state_dict().items()},
        "about": known,
    }
    with replacing(Path(path)) as temporary:
        write_tensors(temporary, content)


def load_encoder(path: Path) -> ImageEncoder | VectorEncoder:
    """Read an encoder from its file, on the CPU, in evaluation mode.

    Raises:
        DatasetError: there is no such file, or it is damaged or another kind of file.
    """
    return read_encoder(path)[0]


def read_encoder(path: Path) -> tuple[ImageEncoder | VectorEncoder, dict[str, Any]]:
    """Read an encoder from its file, and the facts that the file holds about it.

    Raises:
        DatasetError: there is no such file, or it is damaged or another kind of file.
    """
    return _read(path, "an encoder", FORMAT, build)


def read_decoder(path: Path) -> tuple[MLPDecoder, dict[str, Any]]:
    """Read a decoder from its file, on the CPU, and the facts that the file holds about it.

    Raises:
        DatasetError: there is no such file, or it is damaged or another kind of file.
    """
    return _read(path, "a decoder", DECODER_FORMAT, build_decoder)


def _read(
    path: Path, what: str, kind: str, build_part: Callable[[Any], _Part]
) -> tuple[_Part, dict[str, Any]]:
    """Read an encoder or a decoder from its file, in evaluation mode."""
    noun = what.rsplit(maxsplit=1)[-1]
    try:
        check_archive(path)
    except FileNotFoundError:
        raise DatasetError(f"{path}: there is no such file") from None
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile) as error:
        raise DatasetError(f"{path} is no {noun} of this toolkit: {error}") from error
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler's, the archive's and torch's own
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise DatasetError(f"cannot read {path} as {what}: {said[0]:.200}") from error
    if not isinstance(content, dict) or content.get("format") != kind:
        raise DatasetError(f"{path} is no {noun} of this toolkit (format {kind})")
    if content.get("format_version") != FORMAT_VERSION:
        raise DatasetError(
            f"{path} has format version {content.get('format_version')!r:.20}; this toolkit reads "
            f"version {FORMAT_VERSION}"
        )
    state, about = content.get("state"), content.get("about")
    if not isinstance(about, dict):
        raise DatasetError(f"{path} is damaged: it lacks `about`")
    if not isinstance(state, dict) or not all(map(_is_weight, state.items())):
        raise DatasetError(f"{path} is damaged: its weights are no tensors by name")
    try:
        with torch.device("meta"):  # nothing is allocated for what a file only declares
            part = build_part(content.get("spec"))
        for name, value in part.state_dict().items():
            if name in state and state[name].dtype != value.dtype:
                raise UsageError(f"{name} is {state[name].dtype}, expected {value.dtype}")
        part.load_state_dict(state, assign=True)
    except (UsageError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DatasetError(f"{path} is damaged: {reason:.300}") from error
    if not all(v.isfinite().all() for v in part.state_dict().values() if v.is_floating_point()):
        raise DatasetError(f"{path} is damaged: it has weights that are not finite")
    return part.eval(), about


def _is_weight(item: tuple[Any, Any]) -> bool:
    """Whether an item is a name and a tensor that holds its numbers one by one."""
    name, value = item
    plain = isinstance(value, torch.Tensor) and value.layout == torch.strided
    return isinstance(name, str) and plain and value.device.type == "cpu"
