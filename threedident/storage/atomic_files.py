"""Files that are either whole or not there."""

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
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from threedident.errors import DatasetError, UsageError
from threedident.system import leftovers

#: Bytes. What Python's parser needs grows with the square of the size.
LARGEST_TOML = 20_000

_TEMPORARY = ".tmp-"
#: What a disk or system without locks answers.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
#: What file systems without hard links answer.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)


def _temporary(path: Path) -> Path:
    """A name beside a file's that says whose it is, and that nobody else uses."""
    owner = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    return path.with_name(f"{_TEMPORARY}{owner}-{path.name}")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, renamed to it on success and removed on failure.

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
    """Turns what the system says of a failed write into an error that says what to do."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        text = str(error)
        # HDF5 passes the system's errno on in its message alone, and not only in OSErrors.
        if isinstance(error, RuntimeError) and "errno = " not in text:
            raise
        said = re.search(r"errno = (\d+)", text)
        code = getattr(error, "errno", None) or (int(said[1]) if said else None)
        if code in (errno.ENOSPC, errno.EDQUOT) or "No space left" in text:
            raise DatasetError(
                f"the disk is full: cannot write {path}. What is finished stays; make room and "
                "run the same command again to continue"
            ) from error
        if code:
            text = os.strerror(code)
        raise DatasetError(f"cannot write {path}: {text}") from error


def lock(file: IO[Any]) -> bool:
    """Locks an open file for this process, until it is closed or the process ends.

    Args:
        file: open for writing: on network file systems only that can be locked.

    Returns:
        False where another process has locked it. True where it is locked now, and on a system
        or disk without locks, where nothing is held.

    Raises:
        OSError: it cannot be told which of them it is.
    """
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        return True
    except OSError as error:
        if isinstance(error, BlockingIOError):
            return False
        if error.errno not in _NO_LOCKS:
            raise
    return True


def remove_leftovers(folder: Path) -> None:
    """Removes temporary files of processes of this machine that are gone."""
    for path in leftovers(folder, f"{_TEMPORARY}{socket.gethostname()}-"):
        with contextlib.suppress(OSError):
            path.unlink()


def check_space(folder: Path, needed: float, advice: str) -> None:
    """Refuses at once what a disk cannot hold, rather than hours later.

    Raises:
        DatasetError: less than `needed` bytes are left.
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DatasetError(
            f"the disk is too full: this needs {needed / 1e9:.3g} GB, {folder} has "
            f"{free / 1e9:.3g} GB left. {advice}"
        )


def read_npy(path: Path) -> npt.NDArray[Any]:
    """One array from a .npy file, nothing unpickled, no more allocated than the file holds.

    Raises:
        ValueError: it is missing or no such file; the message says which.
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


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The content of a small TOML file.

    Args:
        path: the file.
        what: what an error calls it.

    Raises:
        UsageError: it cannot be read, is not TOML, or is too large.
    """
    import tomllib

    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_TOML + 1)
        if len(content) > LARGEST_TOML:
            raise ValueError(f"it is larger than {LARGEST_TOML} bytes")
        return tomllib.loads(content.decode("utf-8"))
    except FileNotFoundError:
        raise UsageError(f"cannot read {what}: there is no such file") from None
    except OSError as error:
        raise UsageError(f"cannot read {what}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also of numbers of many digits
        raise UsageError(f"{what}: not valid TOML ({error})") from error


def write_json(path: Path, data: Any) -> None:
    """Writes JSON, replacing the file in one step.

    Raises:
        DatasetError: the disk is full or cannot be written to.
    """
    with replacing(path) as temporary:
        temporary.write_text(_as_json(data), "utf-8")


def create_json(path: Path, data: Any) -> bool:
    """Writes JSON unless the file exists already; whole either way. Returns whether it did.

    Of several processes that try at once, exactly one succeeds.

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
    """The content of a JSON file.

    Raises:
        DatasetError: it cannot be read, or is not JSON.
    """
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # also of numbers of many digits
        raise DatasetError(f"cannot read {path}: {error}") from error
