"""`read_embeddings`: codes in a file, .npy, .npz or HDF5, read without trusting it.

Types, shapes and sizes are what a file declares, so they are checked before anything is
allocated, unpacked or followed.
"""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np
import numpy.typing as npt

from threedident.errors import UsageError
from threedident.storage.shards import open_hdf5, safe_array

#: The name of the array, in a file of named arrays and as an ONNX file's output.
ARRAY_NAME = "z_hat"
MOST_CODES = 4096
SUFFIXES = (".npy", ".npz", ".h5", ".hdf5")

_TYPES = (np.dtype("f2"), np.dtype("f4"), np.dtype("f8"))
_READ_AT_ONCE = 1 << 24  # bytes; also the most that a compressed chunk may hold


def read_embeddings(path: Path, count: int) -> npt.NDArray[np.floating[Any]]:
    """Read the codes of a file, (count, m), in the type they are stored in.

    Args:
        path: the file.
        count: the number of images in the test set.

    Raises:
        UsageError: it is no such file, holds something else or more, is damaged, refers to
            other files, or its array does not fit.
    """
    if path.suffix == ".npy":
        with path.open("rb") as file:
            return _read_npy(file, path.stat().st_size, path.name, count)
    if path.suffix == ".npz":
        return _read_npz(path, count)
    return _read_hdf5(path, count)


def _check(array: Any, label: str, count: int) -> int:
    """Check the shape and type of an array that is not read yet; return its bytes."""
    shape, dtype = tuple(array.shape), np.dtype(array.dtype)
    if dtype.newbyteorder("=") not in _TYPES:
        raise UsageError(
            f"{label}: expected an array of float16, float32 or float64, found {dtype!s:.80}"
        )
    if len(shape) != 2 or not 1 <= shape[1] <= MOST_CODES:
        raise UsageError(
            f"{label}: expected an array of shape ({count}, codes), at most {MOST_CODES} codes, "
            f"found {shape!s:.80}"
        )
    if shape[0] != count:
        raise UsageError(
            f"{label} has {shape[0]} rows, the test set {count} images: expected a row for every "
            "image, in order"
        )
    return math.prod(shape) * dtype.itemsize


class _Header:
    """The head of a .npy file, with the shape and type that it declares."""

    def __init__(self, file: IO[bytes], label: str) -> None:
        try:
            version = np.lib.format.read_magic(file)  # type: ignore[no-untyped-call]
            read = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            self.shape, self.fortran, self.dtype = read(file)  # type: ignore[no-untyped-call]
        except Exception as error:  # numpy's parsers raise many kinds
            reason = "of an unknown version" if isinstance(error, KeyError) else f"({error})"
            raise UsageError(f"{label}: not a .npy array {reason:.200}") from error


def _read_npy(file: IO[bytes], size: int, label: str, count: int) -> npt.NDArray[np.floating[Any]]:
    """Read an array from a stream of a declared size, in pieces as far as it goes."""
    header = _Header(file, label)
    expected = _check(header, label, count)
    start = file.tell()
    if size != start + expected:
        raise UsageError(
            f"{label}: its array of {header.shape[0]} x {header.shape[1]} numbers takes "
            f"{start + expected} bytes with its head, found {size}. Write it with numpy.save"
        )
    content = bytearray()
    while len(content) < expected:
        piece = file.read(min(_READ_AT_ONCE, expected - len(content)))
        if not piece:
            raise UsageError(f"{label} is cut short: {len(content)} of {expected} bytes are there")
        content += piece
    flat = np.frombuffer(content, header.dtype)
    return flat.reshape(header.shape, order="F" if header.fortran else "C")


def _read_npz(path: Path, count: int) -> npt.NDArray[np.floating[Any]]:
    label = f"{ARRAY_NAME} in {path.name}"
    try:
        with zipfile.ZipFile(path) as archive:
            names = [entry.filename for entry in archive.infolist()]
            if names != [f"{ARRAY_NAME}.npy"]:
                raise UsageError(
                    f"{path.name} must hold one array, {ARRAY_NAME!r}, found {_listed(names)}: "
                    f"write it with numpy.savez({path.name!r}, {ARRAY_NAME}=...)"
                )
            entry = archive.infolist()[0]
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise UsageError(f"{label} is compressed in a way that numpy does not use")
            most = count * MOST_CODES * max(t.itemsize for t in _TYPES) + (1 << 16)
            if entry.file_size > most:
                raise UsageError(
                    f"{label} declares {entry.file_size / 1e9:.3g} GB unpacked, at most "
                    f"{most / 1e9:.3g} GB can be codes of {count} images"
                )
            with archive.open(entry) as file:
                return _read_npy(file, entry.file_size, label, count)
    except (OSError, ValueError, RuntimeError, NotImplementedError, zipfile.BadZipFile) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{path.name} is no .npz file: {error}") from error
    except Exception as error:  # zlib.error and others of a damaged stream
        raise UsageError(f"{path.name} is damaged: {error}") from error


def _read_hdf5(path: Path, count: int) -> npt.NDArray[np.floating[Any]]:
    label = f"{ARRAY_NAME} in {path.name}"
    with open_hdf5(path) as file:
        names = list(file)
        if names != [ARRAY_NAME]:
            raise UsageError(
                f"{path.name} must hold one array, {ARRAY_NAME!r}, found {_listed(names)}"
            )
        array = safe_array(file, ARRAY_NAME, path)
        if array.dtype.kind != "f" or array.shape is None:
            dtype = h5py.check_dtype(vlen=array.dtype) or array.dtype
            raise UsageError(f"{label}: expected an array of floats, found {dtype!s:.80}")
        _check(array, label, count)
        if array.chunks and math.prod(array.chunks) * array.dtype.itemsize > _READ_AT_ONCE:
            raise UsageError(
                f"{label} is stored in chunks of {array.chunks}: at most {_READ_AT_ONCE} bytes a "
                "chunk are read"
            )
        return np.asarray(array[()])


def _listed(names: list[str]) -> str:
    return ", ".join(repr(name)[:60] for name in names[:3]) + (", ..." if len(names) > 3 else "")
