"""Atomic file writes, and readers of JSON and .npy files."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.errors import DatasetError
from threedident.system import leftovers

_TEMPORARY = ".tmp-"
#: What file systems without hard links answer.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)


def _temporary(path: Path) -> Path:
    """A path beside a file's that names its process, and that no other process uses."""
    owner = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    return path.with_name(f"{_TEMPORARY}{owner}-{path.name}")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path, renamed to `path` on success and removed on failure.

    Raises:
        DatasetError: the disk is full or cannot be written to.
    """
    temporary = _temporary(path)
    try:
        with explaining_write_errors(path):
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def explaining_write_errors(path: Path) -> Iterator[None]:
    """Turn the system's error of a failed write into a DatasetError that says what to do."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        text = str(error)
        # HDF5 passes the system's errno on in its message alone, and not only in OSErrors.
        if isinstance(error, RuntimeError) and "errno = " not in text:
            raise
        number = re.search(r"errno = (\d+)", text)
        code = getattr(error, "errno", None) or (int(number[1]) if number else None)
        if code in (errno.ENOSPC, errno.EDQUOT) or "No space left" in text:
            raise DatasetError(
                f"the disk is full: cannot write {path}. What is finished stays; make room and "
                "run the same command again to continue"
            ) from error
        if code:
            text = os.strerror(code)
        raise DatasetError(f"cannot write {path}: {text}") from error


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of processes of this machine that are gone."""
    for path in leftovers(folder, f"{_TEMPORARY}{socket.gethostname()}-"):
        with contextlib.suppress(OSError):
            path.unlink()


def check_space(folder: Path, needed: float, advice: str) -> None:
    """Check that a disk has room, before the work rather than hours later.

    Args:
        folder: a folder on the disk.
        needed: the bytes that will be written.
        advice: the cure, for the error.

    Raises:
        DatasetError: fewer than `needed` bytes are left.
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DatasetError(
            f"the disk is too full: this needs {needed / 1e9:.3g} GB, {folder} has "
            f"{free / 1e9:.3g} GB left. {advice}"
        )


def read_npy(path: Path) -> npt.NDArray[Any]:
    """Read an array from a .npy file: nothing is unpickled, nor more allocated than it holds.

    Raises:
        ValueError: the file is missing, or is no .npy file; the message says which.
    """
    try:
        with path.open("rb") as file:
            np.lib.format.read_magic(file)  # type: ignore[no-untyped-call]
        # Mapped first: a header that promises more than the file holds is refused.
        return np.array(np.load(path, mmap_mode="r", allow_pickle=False))
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file") from None
    except Exception as error:  # numpy's parsers raise many kinds
        raise ValueError(f"{path}: not a .npy array ({error})") from error


def write_json(path: Path, data: Any) -> None:
    """Write JSON, replacing the file in one step.

    Raises:
        DatasetError: the disk is full or cannot be written to.
    """
    with replacing(path) as temporary:
        temporary.write_text(_as_json(data), "utf-8")


def create_json(path: Path, data: Any) -> bool:
    """Write JSON unless the file exists already; it is whole either way.

    Of several processes that try at once, exactly one succeeds.

    Returns:
        Whether this call wrote it.

    Raises:
        DatasetError: the disk is full or cannot be written to.
    """
    temporary = _temporary(path)
    with explaining_write_errors(path):
        try:
            temporary.write_text(_as_json(data), "utf-8")
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            except OSError as error:
                # File systems without hard links: not atomic against a crash, but exclusive.
                if error.errno not in _NO_LINKS:
                    raise
                try:
                    with path.open("x", encoding="utf-8") as file:
                        file.write(_as_json(data))
                except FileExistsError:
                    return False
            return True
        finally:
            temporary.unlink(missing_ok=True)


def _as_json(data: Any) -> str:
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        DatasetError: the file cannot be read, or is not JSON.
    """
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # also of numbers of many digits
        raise DatasetError(f"cannot read {path}: {error}") from error
