"""Locks: which process writes which shards of a dataset directory."""

from __future__ import annotations

import contextlib
import datetime
import errno
import math
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from threedident.errors import DatasetError, UsageError
from threedident.storage.atomic_files import explaining_write_errors

LOCK = ".lock"
_RENDER_LOCK = re.compile(r"\.render-(\d{1,9})-of-([1-9]\d{0,8})\.lock")
_PATIENCE = 60.0  # seconds for a lock that others hold for milliseconds
#: What a disk or system without locks answers.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


def lock(file: IO[Any]) -> bool:
    """Lock an open file for this process, until it is closed or the process ends.

    Args:
        file: a file that is open for writing: on network file systems only that can be locked.

    Returns:
        False where another process has locked it. True where it is locked now, and on a system
        or disk without locks, where nothing is held.

    Raises:
        OSError: the system does not say which of them is the case.
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


@contextlib.contextmanager
def hold_shards(root: Path, part: int, parts: int) -> Iterator[None]:
    """Hold the shards whose number is `part` modulo `parts` for this process to write.

    The kernel ends the lock with the process, however that ends. Disks without locks hold nothing.

    Raises:
        UsageError: another process writes some of these shards.
        DatasetError: the directory cannot be written to.
    """
    with contextlib.ExitStack() as stack:
        with locked(root):
            for path in root.glob(".render-*.lock"):
                _refuse_shared(root, path, part, parts)
            path = root / f".render-{part}-of-{parts}.lock"
            with explaining_write_errors(path):
                file = stack.enter_context(path.open("w", encoding="utf-8"))
                lock(file)
                now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
                file.write(f"pid {os.getpid()} on {socket.gethostname()}, since {now}\n")
                file.flush()
        try:
            yield
        finally:
            # With the lock on names: nobody holds a file that has lost its name.
            with contextlib.suppress(DatasetError, OSError), locked(root):
                path.unlink()


def is_written_to(root: Path) -> bool:
    """Whether a process holds shards of a directory at this moment, as `hold_shards` does."""
    for path in root.glob(".render-*.lock"):
        with contextlib.suppress(OSError), path.open("r+", encoding="utf-8") as file:
            if not lock(file):
                return True
    return False


def _refuse_shared(root: Path, path: Path, part: int, parts: int) -> None:
    """Raise a UsageError where a lock is held that covers some of the same shards."""
    name = _RENDER_LOCK.fullmatch(path.name)
    if name is None:
        return
    its_part, its_parts = int(name[1]), int(name[2])
    # Some number is `part` modulo `parts` and also `its_part` modulo `its_parts` if and
    # only if the two agree modulo the greatest common divisor.
    if (part - its_part) % math.gcd(parts, its_parts):
        return
    # Open for writing as well: a network file system locks nothing else.
    with contextlib.suppress(FileNotFoundError), path.open("r+", encoding="utf-8") as file:
        if lock(file):  # left behind by a process that was killed
            path.unlink()
            return
        what = "all of it" if its_parts == 1 else f"--shard {its_part}/{its_parts}"
        raise UsageError(
            f"another process writes to {root} ({what}): "
            f"{file.readline(200).strip() or 'it does not say which'}. Wait for it, or stop "
            "it and run this command again. To share the work, start all of them with --shard "
            f"I/K. If its machine is gone for good, remove {path}"
        )


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """Hold a directory's small files for this process; wait while another one holds them.

    Raises:
        DatasetError: another process does not let go of them, or they cannot be written.
    """
    path = root / LOCK
    with explaining_write_errors(path):
        file = path.open("a")
    with file:
        until = time.monotonic() + _PATIENCE
        while not lock(file):
            if time.monotonic() > until:
                raise DatasetError(
                    f"{path} stays locked by another process: if none is at work on "
                    f"{root}, remove it"
                )
            time.sleep(0.01)
        yield
