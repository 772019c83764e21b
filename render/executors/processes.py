"""Render processes, which run nothing of the caller's main module."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import select
import shutil
import signal
import subprocess
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from threedident.errors import RenderError, ThreeDIdentError, UsageError
from threedident.system import make_scratch

_SCRIPT = Path(__file__).with_name("child.py")
# One thread for numpy's linear algebra: a process's threads are for rendering.
_THREADS = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
_SCRATCH = "3dident-child-"


class ChildProcess:
    """A fresh Python process that runs a function, joined to this one by a pipe.

    It does not run the caller's main module again, as one of multiprocessing would: a script needs
    no guard, and may come from standard input or be a notebook. It ignores Ctrl-C, reads nothing,
    and finds the modules that are found here. Its end of the pipe closes with it, and ours with us
    and with processes that were forked from us. Its temporary files lie in a folder of its own,
    which goes when it is let go of: Blender leaves one behind where it is killed.

    Attributes:
        pipe: our end of the pipe.
        pid: the process's number.
    """

    def __init__(
        self, function: Callable[..., object], *arguments: object, log: Path | None = None
    ) -> None:
        """Start the process.

        Args:
            function: the function to call as `function(pipe, *arguments)`; like them it is
                pickled, and must not be defined in the main module.
            log: the file for its output, Blender's own below Python included; None: nowhere.

        Raises:
            UsageError: something is defined in the main module.
            RenderError: the log cannot be written.
        """
        message = _pickled((function, arguments))
        self.pipe, theirs = Pipe()
        scratch = make_scratch(_SCRATCH)
        try:
            with theirs, _opened(log) as output, holding_interrupts():
                self._process = subprocess.Popen(
                    [sys.executable, "-P", str(_SCRIPT), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, **_THREADS, "TMPDIR": str(scratch)},
                )
        except BaseException:
            self.pipe.close()
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        self.pid = self._process.pid
        # Let go of, or left over at the end of the program, it is ended.
        weakref.finalize(self, _end, self._process, scratch, os.getpid())
        # If it has died already, that is noticed when the pipe is read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send((sys.path, message))

    @property
    def exit_code(self) -> int | None:
        """The exit code, -N for signal N; None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def join(self, seconds: float) -> int | None:
        """Wait for its end at most so long; return its exit code, or None."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.exit_code


def _end(process: subprocess.Popen[bytes], scratch: Path, owner: int) -> None:
    if os.getpid() == owner:  # not in a fork, which holds a copy
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the system
            process.wait(10)
        shutil.rmtree(scratch, ignore_errors=True)


def wait_for_close(pipe: Connection, seconds: float | None = None) -> bool:
    """Wait, in a child, until the caller has closed its end or is gone; return whether it has.

    Args:
        pipe: the pipe to the caller.
        seconds: the time to wait at most; None: for ever.
    """
    poller = select.poll()
    poller.register(pipe.fileno(), 0)  # nothing but that
    return bool(poller.poll(None if seconds is None else 1000 * seconds))


@contextlib.contextmanager
def holding_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back from this thread: it is not lost, but comes when the block ends.

    Processes that are started within inherit that, and are spared it from their first moment on.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _opened(log: Path | None) -> Iterator[Any]:
    if log is None:
        yield subprocess.DEVNULL
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    try:
        descriptor = os.open(log, flags, 0o644)
    except OSError as error:
        raise RenderError(
            f"the renderer cannot start: cannot write {log}: {error.strerror}"
        ) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class _Pickler(pickle.Pickler):
    """A pickler that refuses what another process cannot find again."""

    def reducer_override(self, value: Any) -> Any:
        if getattr(value, "__module__", None) == "__main__" and hasattr(value, "__qualname__"):
            raise UsageError(
                f"{value.__qualname__} is defined in the main script, which render processes do "
                "not run: put it into a module of its own and import it"
            )
        return NotImplemented


def _pickled(value: object) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def call_in_process(function: Any, *args: Any, log: Path | None = None) -> Any:
    """Call a function in a fresh process that can hold Blender, and return its result.

    The caller's process stays free of it, and of what it prints.

    Raises:
        ThreeDIdentError: the function raised one; any other failure is a RenderError.
    """
    process = ChildProcess(_call_main, function, args, log=log)
    try:
        outcome = process.pipe.recv()
    except (EOFError, OSError):
        raise RenderError(
            f"a helper process ended with exit code {process.join(5)}"
            + (f"; its output is in {log}" if log else "")
        ) from None
    finally:
        process.kill()  # it has said what it had to, or is no longer waited for
        process.pipe.close()
        process.join(5)
    if isinstance(outcome, ThreeDIdentError):
        raise outcome
    if isinstance(outcome, Exception):
        raise RenderError(f"{type(outcome).__name__}: {outcome}") from outcome
    return outcome


def _call_main(pipe: Connection, function: Any, args: tuple[Any, ...]) -> None:
    try:
        pipe.send(function(*args))
    except Exception as error:
        traceback.print_exc()
        pipe.send(error)
