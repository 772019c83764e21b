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

from threedident.encoders.decoders import ConvDecoder, MLPDecoder, build_decoder
from threedident.encoders.encoder import ImageEncoder, VectorEncoder, build
from threedident.encoders.part import Part
from threedident.errors import DatasetError, UsageError
from threedident.storage.atomic_files import replacing
from threedident.storage.tensor_archives import check_archive, write_tensors

FORMAT = "3dident-encoder"
DECODER_FORMAT = "3dident-decoder"
FORMAT_VERSION = 1

Encoder = ImageEncoder | VectorEncoder
Decoder = ConvDecoder | MLPDecoder
Network = TypeVar("Network", bound=Part)


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
    _check_path(path, "save_encoder(path, encoder)")
    if not isinstance(encoder, ImageEncoder | VectorEncoder):
        raise UsageError(
            f"expected an ImageEncoder or a VectorEncoder, found {type(encoder).__name__}: only "
            "these can be saved; torch.onnx.export writes any other module as an ONNX file, which "
            "`3dident evaluate` scores (see docs/submitting.md)"
        )
    with torch.device("meta"):  # only to see that it can be made again
        build(encoder.spec)
    _write(Path(path), FORMAT, encoder, about)


def save_decoder(path: str | Path, decoder: Part, about: Mapping[str, Any] | None = None) -> None:
    """Write a decoder's file, replacing it in one step.

    Args:
        path: the file.
        decoder: a `ConvDecoder` or an `MLPDecoder`.
        about: facts about the decoder, as plain data for JSON.

    Raises:
        UsageError: `decoder` or `about` cannot be written.
        DatasetError: the disk is full or cannot be written to.
    """
    _check_path(path, "save_decoder(path, decoder)")
    if not isinstance(decoder, ConvDecoder | MLPDecoder):
        raise UsageError(
            f"expected a ConvDecoder or an MLPDecoder, found {type(decoder).__name__}: only these "
            "can be saved"
        )
    _write(Path(path), DECODER_FORMAT, decoder, about)


def load_encoder(path: Path) -> Encoder:
    """Read an encoder from its file, on the CPU, in evaluation mode.

    Raises:
        DatasetError: there is no such file, or it is damaged or another kind of file.
    """
    return read_encoder(path)[0]


def read_encoder(path: Path) -> tuple[Encoder, dict[str, Any]]:
    """Read an encoder from its file, and the facts that the file holds about it.

    Raises:
        DatasetError: there is no such file, or it is damaged or another kind of file.
    """
    return _read(path, FORMAT, "encoder", build)


def load_decoder(path: str | Path) -> Decoder:
    """Read a decoder from its file, on the CPU, in evaluation mode.

    Args:
        path: the file, such as the `decoder.pt` of the run of an autoencoder.

    Raises:
        DatasetError: there is no such file, or it is damaged or another kind of file.
    """
    return read_decoder(Path(path))[0]


def read_decoder(path: Path) -> tuple[Decoder, dict[str, Any]]:
    """Read a decoder from its file, and the facts that the file holds about it.

    Raises:
        DatasetError: there is no such file, or it is damaged or another kind of file.
    """
    return _read(path, DECODER_FORMAT, "decoder", build_decoder)


def _check_path(path: Any, call: str) -> None:
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"expected the path of a file, found {type(path).__name__}: {call}")


def _write(path: Path, form: str, network: Part, about: Mapping[str, Any] | None) -> None:
    """Write a network's file."""
    try:
        known = json.loads(json.dumps(dict(about or {}), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UsageError(f"about must be plain data for JSON: {error}") from error
    content = {
        "format": form,
        "format_version": FORMAT_VERSION,
        "spec": network.spec,
        "state": {name: value.detach().cpu() for name, value in network.state_dict().items()},
        "about": known,
    }
    with replacing(path) as temporary:
        write_tensors(temporary, content)


def _read(
    path: Path, form: str, name: str, make: Callable[[Any], Network]
) -> tuple[Network, dict[str, Any]]:
    """Read a network and its facts.

    Args:
        path: the file.
        form: the name of the format.
        name: the kind of network for errors, such as encoder.
        make: the function that makes the network that a description asks for.

    Raises:
        DatasetError: there is no such file, or it is damaged or another kind of file.
    """
    ours = f"{name} of this toolkit"
    try:
        check_archive(path)
    except FileNotFoundError:
        raise DatasetError(f"{path}: there is no such file") from None
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile) as error:
        raise DatasetError(f"{path} is no {ours}: {error}") from error
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler's, the archive's and torch's own
        said = str(error).strip().splitlines() or [type(error).__name__]
        article = "an" if name.startswith("e") else "a"
        raise DatasetError(f"cannot read {path} as {article} {name}: {said[0]:.200}") from error
    if not isinstance(content, dict) or content.get("format") != form:
        raise DatasetError(f"{path} is no {ours} (format {form})")
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
            network = make(content.get("spec"))
        for weight, value in network.state_dict().items():
            if weight in state and state[weight].dtype != value.dtype:
                raise UsageError(f"{weight} is {state[weight].dtype}, expected {value.dtype}")
        network.load_state_dict(state, assign=True)
    except (UsageError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DatasetError(f"{path} is damaged: {reason:.300}") from error
    if not all(v.isfinite().all() for v in network.state_dict().values() if v.is_floating_point()):
        raise DatasetError(f"{path} is damaged: it has weights that are not finite")
    return network.eval(), about


def _is_weight(item: tuple[Any, Any]) -> bool:
    """Whether an item is a name and a tensor that holds its numbers one by one."""
    name, value = item
    plain = isinstance(value, torch.Tensor) and value.layout == torch.strided
    return isinstance(name, str) and plain and value.device.type == "cpu"
