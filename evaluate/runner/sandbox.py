"""`enter`: walls around the process of a stranger's encoder, as far as the system has them.

Resource limits hold on any Unix. On Linux, namespaces take the network and the view of other
processes away and end with all that was started in them, and Landlock closes the file system.
Imports nothing but the standard library: a process that has threads cannot enter a namespace.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

#: The folders that interpreters, libraries and their threads read; a user's are elsewhere.
SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/opt", "/nix", "/etc", "/proc", "/sys", "/dev")

_NEW_USER, _NEW_PROCESSES, _NEW_NETWORK, _NEW_IPC = 0x10000000, 0x20000000, 0x40000000, 0x08000000
_DEATH_SIGNAL, _NO_NEW_RIGHTS = 1, 38  # of prctl
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITIES = 0x20080522  # version 3 of the structure
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READING = 0b1101  # execute, read a file, list a folder
_WRITE, _TRUNCATE = 1 << 1, 1 << 14
_RIGHTS = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF}  # by Landlock's version; later: 0xFFFF
_SIGNALLED = 128  # a shell's way to say that a process was ended by a signal


@dataclasses.dataclass(frozen=True)
class Allowance:
    """The memory and the files that a process may use.

    Attributes:
        memory: the bytes it may allocate.
        file_size: the bytes of the largest file that it may write.
        readable: folders and files it may read beside the system's; None: all.
        writable: folders it may write in.
    """

    memory: int
    file_size: int
    readable: tuple[str, ...] | None
    writable: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Walls:
    """The walls that this system could put up.

    Attributes:
        network: whether the process has no network.
        processes: whether all that it starts ends with it.
        files: whether it can write only where it may, and read so too where that is limited.
    """

    network: bool
    processes: bool
    files: bool


def enter(allowance: Allowance) -> Walls:
    """Put the walls up; return in a process that has them, the caller's child or itself.

    Must be called while the process has one thread. The caller's own exit code becomes the
    child's, or 128 and the number of the signal that ended it.
    """
    prctl = _call("prctl")
    network = _unshare(_NEW_USER | _NEW_NETWORK | _NEW_PROCESSES | _NEW_IPC)
    processes = network
    if not network:  # where users may make no namespaces, root still may
        network = _unshare(_NEW_NETWORK)
    prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if processes:
        processes = _fork()  # the first process of a namespace, which ends with it
        if processes:
            _fork()  # the first one ignores signals, so the work is the second's
    prctl(_NO_NEW_RIGHTS, 1, 0, 0, 0)
    _drop_capabilities()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit(resource.RLIMIT_FSIZE, allowance.file_size)
    _limit(resource.RLIMIT_DATA, allowance.memory)
    return Walls(network, processes, _close_files(allowance))


def _call(name: str) -> Callable[..., int]:
    """Return a function of the C library; where there is none, one that fails."""
    try:
        function: Any = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (OSError, AttributeError):
        return lambda *_: -1
    return lambda *values: int(
        function(*(ctypes.c_long(v) if isinstance(v, int) else v for v in values))
    )


def _unshare(flags: int) -> bool:
    return sys.platform == "linux" and _call("unshare")(flags) == 0


def _fork() -> bool:
    """Go on as a child, for which the parent only waits; return whether there is a child."""
    try:
        child = os.fork()
    except OSError:
        return False
    if child == 0:
        _call("prctl")(_DEATH_SIGNAL, signal.SIGKILL)
        return True
    for descriptor in (0, 1, 2):  # or nobody learns that the child has closed its own
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else _SIGNALLED - code)


def _drop_capabilities() -> None:
    number = _CAPSET.get(os.uname().machine) if sys.platform == "linux" else None
    if number is not None:
        header, none = struct.pack("Ii", _CAPABILITIES, 0), bytes(24)
        _call("syscall")(number, header, none)


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    with contextlib.suppress(OSError, ValueError):  # some systems have no such limit
        resource.setrlimit(kind, (value, value))


def _close_files(allowance: Allowance) -> bool:
    """Close the file system with Landlock (Linux 5.13)."""
    syscall = _call("syscall")
    version = syscall(_CREATE_RULESET, 0, 0, 1) if sys.platform == "linux" else 0
    if version < 1:
        return False
    rights = _RIGHTS.get(version, 0xFFFF)
    if allowance.readable is None:
        rights &= ~_READING
    # Also no TCP (version 4), no signals to and no abstract sockets of others (version 6).
    network, scope = (3 if version >= 4 else 0), (3 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = syscall(_CREATE_RULESET, struct.pack("QQQ", rights, network, scope)[:size], size, 0)
    if ruleset < 0:
        return False
    try:
        if allowance.readable is not None:
            _allow(ruleset, (*SYSTEM, *_interpreter(), *allowance.readable), rights & _READING)
        _allow(ruleset, allowance.writable, rights)
        _allow(ruleset, (os.devnull,), rights & (_READING | _WRITE | _TRUNCATE))
        return syscall(_RESTRICT_SELF, ruleset, 0) == 0
    finally:
        os.close(ruleset)


def _interpreter() -> tuple[str, ...]:
    """Return the folders of Python, its packages and this one."""
    paths = {sys.prefix, sys.base_prefix, *sys.path, str(Path(__file__).parents[2])}
    return tuple(sorted(str(Path(path).resolve()) for path in paths if path))


def _allow(ruleset: int, paths: Iterable[str], rights: int) -> None:
    """Allow rights below some paths; what is not there needs none."""
    for path in paths:
        with contextlib.suppress(OSError):
            place = os.open(path, getattr(os, "O_PATH", 0) | os.O_CLOEXEC)
            try:
                # A file takes fewer rights than a folder.
                wanted = rights if Path(path).is_dir() else rights & (0b0111 | _TRUNCATE)
                _call("syscall")(_ADD_RULE, ruleset, 1, struct.pack("=Qi", wanted, place), 0)
            finally:
                os.close(place)
