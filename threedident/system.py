"""The machine and this process: processors, memory, signals, scratch folders, digests."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

# The names that glibc's malloc.h gives to settings of mallopt: M_MMAP_MAX and M_TRIM_THRESHOLD.
_MOST_MAPPED, _TRIM_ABOVE = -4, -1


def usable_processors() -> int:
    """The number of processors that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def processor_name() -> str:
    """The model name of the processor: pixels are promised equal on one type of it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def free_memory() -> int | None:
    """The bytes of memory that can be had without swapping; None where the system does not say."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def keep_freed_memory() -> bool:
    """Have this process keep memory that it frees, for what it allocates next.

    By default glibc hands a large array's memory back to the system at once, and a training that
    makes such arrays anew in each step waits for their pages: `benchmarks/kept_memory.py`. With
    this, the process holds the most that it ever needed, until it ends.

    Returns:
        Whether the C library has such a setting, as glibc does.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is None:
        return False
    return bool(mallopt(_MOST_MAPPED, 0) and mallopt(_TRIM_ABOVE, -1))


def is_running(pid: int) -> bool:
    """Whether a process of that number exists on this machine."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


@contextlib.contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Collect SIGINT or SIGTERM in an event; a second signal raises KeyboardInterrupt at once.

    Only a process's main thread receives signals: in another one the event is never set.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def put_back() -> None:
        for number, handler in before.items():
            # None stands for a handler that was not installed from Python, and cannot be again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def receive(number: int, _: object) -> None:
        if stop.is_set():
            put_back()
            raise KeyboardInterrupt
        stop.set()

    for number in before:
        signal.signal(number, receive)
    try:
        yield stop
    finally:
        put_back()


def leftovers(folder: Path, prefix: str) -> Iterator[Path]:
    """Files and folders named `prefix` and the number of a process that is gone.

    Args:
        folder: the folder in which they lie.
        prefix: the beginning of their names; the number follows, then a hyphen.
    """
    for path in folder.glob(f"{prefix}*"):
        owner = re.match(r"([0-9]+)(?:-|$)", path.name.removeprefix(prefix))
        if owner and not is_running(int(owner[1])):
            yield path


def make_scratch(prefix: str, parent: Path | None = None) -> Path:
    """Make a temporary folder; those that killed processes have left behind are removed.

    Args:
        prefix: the beginning of its name, which is no other program's.
        parent: the folder in which it is made; None: the system's for temporary files.
    """
    parent = parent or Path(tempfile.gettempdir())
    for path in leftovers(parent, prefix):
        shutil.rmtree(path, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    """The digest of a file's content, in hexadecimal.

    Args:
        path: the file.
        algorithm: a name that `hashlib` knows.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()
