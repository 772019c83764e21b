"""Processes below a process, and the memory that they use, as Linux tells it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """List the processes below one, where the system says which."""
    below, waiting = [], [pid]
    while waiting:
        for path in _children_files(waiting.pop()):
            with contextlib.suppress(OSError):
                children = [int(each) for each in path.read_text().split()]
                below += children
                waiting += children
    return below


def runs(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def _children_files(pid: int) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from Path(f"/proc/{pid}/task").glob("*/children")


def memory_of(pid: int) -> int:
    """Return the bytes that a process uses, mapped files aside; 0 where nobody says."""
    kinds: Mapping[str, int] = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        kinds = {
            line.split(":")[0]: int(line.split()[1]) * 1024
            for line in lines
            if line.startswith(("RssAnon", "RssShmem"))
        }
    return sum(kinds.values())
