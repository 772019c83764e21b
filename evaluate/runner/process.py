"""`run_encoder`: codes of a dataset's images, from an encoder in a process of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from threedident import defaults
from threedident.datasets.formats.source import ImageSource
from threedident.errors import UsageError
from threedident.evaluate.runner import protocol
from threedident.evaluate.runner.process_tree import descendants, memory_of, runs
from threedident.evaluate.seen import read_claim
from threedident.evaluate.submissions.embeddings import MOST_CODES
from threedident.evaluate.submissions.submission import TRUSTED, Submission
from threedident.progress import Progress
from threedident.system import make_scratch, usable_processors

Float32 = npt.NDArray[np.float32]

BATCH_SIZE = defaults.BATCH_SIZE
TIME_LIMIT = defaults.TIME_LIMIT  # s, for everything
MEMORY_LIMIT = defaults.MEMORY_LIMIT  # GB

_SCRATCH = "3dident-encoder-"
_LARGEST_FILE = 1 << 30  # that code which is trusted may write, in its scratch folder
_LOOK_EVERY = 0.1  # s
_PATIENCE = 5.0  # s, until what has been killed is gone
_LAST_WORDS = 2000  # bytes of its standard error that are kept
_LAST_PIECES = 16
_LONGEST_QUOTE = 600  # characters
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "SYSTEMROOT")


class NotFinite(UsageError):
    """Codes that are not finite; the process that has sent them is sound."""


class Images(Protocol):
    """A dataset, of which the encoder gets the images alone."""

    @property
    def source(self) -> ImageSource:
        """The files, which are open."""

    def __len__(self) -> int:
        """Return the number of images."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits of an encoder's process.

    Attributes:
        time: the seconds for everything.
        memory: the GB that the process may allocate.
        batch_size: the number of images at once.
    """

    time: float = TIME_LIMIT
    memory: float = MEMORY_LIMIT
    batch_size: int = BATCH_SIZE


@dataclasses.dataclass(frozen=True)
class Encoding:
    """The codes that an encoder gave, and what is known of it.

    Attributes:
        codes: (N, m) float32.
        external: names of files beside an ONNX file that hold its weights.
        network_blocked: whether its process had no network; None where none was started.
        about: a line on a reference encoder; None for others.
        trained_on: the record of the images that an encoder of this toolkit was trained on; see
            `seen.training_record`.
    """

    codes: Float32
    external: tuple[str, ...] = ()
    network_blocked: bool | None = None
    about: str | None = None
    trained_on: Mapping[str, Any] | None = None


def run_encoder(submission: Submission, dataset: Images, limits: Limits = Limits()) -> Encoding:
    """Compute the codes of all images, by an encoder or from a file of embeddings.

    Whatever the submission does happens in a process with limits, and ends with it.

    Args:
        submission: a submission that may be run (see `identify`); no reference.
        dataset: the test set.
        limits: the limits of the process.

    Raises:
        UsageError: it does not fit, fails, or passes a limit; the message says which.
    """
    count = len(dataset)
    codes: Float32 | None = None
    with (
        EncoderProcess(submission, dataset.source.shape, limits, count=count) as process,
        Progress("encoding", count) as progress,
    ):
        about = process.ready()
        for start in range(0, count, limits.batch_size):
            numbers = range(start, min(start + limits.batch_size, count))
            pixels = b""
            if submission.kind != "embeddings":
                images = dataset.source.images(numbers)
                pixels = images.transpose(0, 3, 1, 2).tobytes()
            part = process.codes(len(numbers), pixels, start)
            if codes is None:
                codes = np.empty((count, part.shape[1]), np.float32)
            if part.shape[1] != codes.shape[1]:
                raise UsageError(
                    f"{submission.name} gave {codes.shape[1]} codes for the first images and "
                    f"{part.shape[1]} from image {start} on: expected the same number for all"
                )
            codes[start : numbers.stop] = part
            process.done = numbers.stop
            progress.advance(len(numbers))
    assert codes is not None
    network = about.get("network") is True
    external, claim = _names(about.get("external")), read_claim(about.get("trained_on"))
    return Encoding(codes, external, network, trained_on=claim)


def _names(value: Any) -> tuple[str, ...]:
    """Return a list of file names that the process sent, if it is one."""
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return tuple(value)
    return ()


class EncoderProcess:
    """The process that runs an encoder, and the messages to and from it.

    It ends with the thread that has entered it, which must outlive it.

    Attributes:
        done: the number of images whose codes have come, for errors.
    """

    def __init__(
        self,
        submission: Submission,
        shape: Sequence[int] | None,
        limits: Limits,
        *,
        count: int | None = None,
        threads: int | None = None,
    ) -> None:
        """Prepare the process; it starts when it is entered.

        Args:
            submission: a submission that may be run; no reference.
            shape: (H, W, C), of every image; None: the process gets none, and says of an ONNX file
                which it takes.
            limits: the limits of the process; that of time holds until `renew` is called.
            count: the number of images; None where it is not known before.
            threads: the number of its threads; None: one for each processor.
        """
        self._name = submission.name
        self._time_limit, self._memory = limits.time, limits.memory
        self._count = count
        self.done = 0
        self._deadline = time.monotonic() + limits.time
        self._looked = 0.0
        self._said = b""
        trusted = submission.kind in TRUSTED
        self._scratch = make_scratch(_SCRATCH) if trusted else None
        sent = None
        if shape is not None and submission.kind != "embeddings":
            height, width, channels = shape
            sent = [channels, height, width]
        path = submission.path
        self._task = protocol.task(
            {
                "kind": submission.kind,
                "path": submission.name if path is None else str(path.resolve()),
                "checkpoint": submission.checkpoint and str(submission.checkpoint.resolve()),
                "folder": str(Path.cwd()),
                "count": self._count,
                "shape": sent,
                "threads": threads or usable_processors(),
                "memory": int(limits.memory * 1e9),
                "file_size": _LARGEST_FILE if trusted else 0,
                "readable": None if trusted or path is None else [str(path.resolve().parent)],
                "writable": [str(self._scratch)] if self._scratch else [],
            }
        )
        self._environment = self._make_environment(trusted)

    def _make_environment(self, trusted: bool) -> dict[str, str]:
        """Choose what the process learns: a stranger's file nothing, trusted code all."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if trusted or name in _PASSED_ON or name.startswith("PYTHON")
        }
        if self._scratch is not None:
            kept["TMPDIR"] = str(self._scratch)
        # One thread until the walls are up.
        return {**kept, "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "threedident.evaluate.runner.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment,
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._in, self._out, self._err = (
            self._process.stdin.fileno(),
            self._process.stdout.fileno(),
            self._process.stderr.fileno(),
        )
        for descriptor in (self._in, self._out, self._err):
            os.set_blocking(descriptor, False)
        self._waiting = bytearray(self._task)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether the process has ended by itself."""
        return self._process.poll() is not None

    def renew(self) -> None:
        """Begin the limit of time anew."""
        self._deadline = time.monotonic() + self._time_limit

    def kill(self) -> None:
        """End the process and all that it has started."""
        below = descendants(self._process.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for pid in below:  # those that have made a session of their own
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        patience = time.monotonic() + _PATIENCE
        while any(map(runs, below)) and time.monotonic() < patience:
            time.sleep(0.01)

    def ready(self) -> dict[str, Any]:
        """Wait until the encoder is loaded, and return its account of itself."""
        kind, size, _ = self._head()
        if kind != protocol.Kind.READY or size > protocol.MOST_TEXT:
            raise self._nonsense()
        try:
            about = json.loads(self._read(size))
        except (ValueError, RecursionError):
            raise self._nonsense() from None
        if not isinstance(about, dict):
            raise self._nonsense()
        return about

    def codes(self, rows: int, pixels: bytes, start: int) -> Float32:
        """Send the next images, and return their codes."""
        self._waiting += protocol.COUNT.pack(rows) + pixels
        kind, count, columns = self._head()
        if kind != protocol.Kind.CODES:
            raise self._nonsense()
        if count != rows:
            raise UsageError(
                f"{self._name} gave {count} rows for {rows} images (from image {start} on): "
                "expected a row for every image"
            )
        if not 1 <= columns <= MOST_CODES:
            raise UsageError(
                f"{self._name} gave {columns} codes for an image, expected 1 to {MOST_CODES}"
            )
        content = self._read(rows * columns * 4)
        codes = np.frombuffer(content, "<f4").reshape(rows, columns).astype(np.float32)
        finite = np.isfinite(codes).all(1)
        if not finite.all():
            first = int(np.argmin(finite))
            raise NotFinite(
                f"{self._name}: the codes of image {start + first} are not finite in float32 "
                f"({codes[first][~np.isfinite(codes[first])][0]}; {int((~finite).sum())} of these "
                f"{rows} images have such codes)"
            )
        return codes

    def _head(self) -> tuple[int, int, int]:
        kind, first, second = protocol.HEAD.unpack(self._read(protocol.HEAD.size))
        if kind == protocol.Kind.ERROR:
            text = self._read(min(first, protocol.MOST_TEXT)).decode("utf-8", "replace")
            failure, message = text[:1], _printable(text[1:])
            if failure == protocol.FAILURES["known"]:
                raise UsageError(message)
            if failure == protocol.FAILURES["memory"]:
                raise self._out_of_memory(message)
            raise UsageError(f"{self._name} failed{self._where()}: {message}")
        return kind, first, second

    def _read(self, count: int) -> bytes:
        """Read so many bytes from the process, while what waits for it is sent."""
        got = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self._out, selectors.EVENT_READ)
            selector.register(self._err, selectors.EVENT_READ)
            if self._waiting:
                selector.register(self._in, selectors.EVENT_WRITE)
            while len(got) < count:
                self._look()
                for key, _ in selector.select(_LOOK_EVERY):
                    match key.fd:
                        case self._in:
                            if not self._send():
                                selector.unregister(self._in)
                        case self._err:
                            if not self._listen():
                                selector.unregister(self._err)
                        case _:
                            piece = os.read(self._out, min(1 << 20, count - len(got)))
                            if not piece:
                                raise self._death()
                            got += piece
        return bytes(got)

    def _send(self) -> bool:
        """Send a piece; return whether there is more to send."""
        try:
            sent = os.write(self._in, memoryview(self._waiting)[: 1 << 20])
        except BrokenPipeError:  # it has ended: what it said is still to be read
            sent = len(self._waiting)
        del self._waiting[:sent]
        return bool(self._waiting)

    def _listen(self) -> bool:
        """Keep the last of what it prints; return whether there may be more."""
        piece = os.read(self._err, 1 << 16)
        self._said = (self._said + piece)[-_LAST_WORDS:]
        return bool(piece)

    def _look(self) -> None:
        """Check the limits."""
        now = time.monotonic()
        if now > self._deadline:
            raise UsageError(
                f"{self._name} was stopped after {self._time_limit:g} s{self._where()}"
                f"{self._cure('--time-limit')}"
            )
        if now - self._looked > _LOOK_EVERY:
            self._looked = now
            used = sum(map(memory_of, (self._process.pid, *descendants(self._process.pid))))
            if used > self._memory * 1e9:
                raise self._out_of_memory(f"{used / 1e9:.3g} GB in use")

    def _where(self) -> str:
        return "" if self._count is None else f", with {self.done} of {self._count} images done"

    def _cure(self, option: str) -> str:
        return "" if self._count is None else f": {option} gives it more"

    def _out_of_memory(self, said: str) -> UsageError:
        return UsageError(
            f"{self._name} needs more than the {self._memory:g} GB of memory it may use"
            f"{self._where()} ({said}){self._cure('--memory-limit')}"
        )

    def _nonsense(self) -> UsageError:
        return UsageError(
            f"the process of {self._name} sent what makes no sense{self._where()}: it is stopped"
        )

    def _death(self) -> UsageError:
        """Find out why the process is gone."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        with contextlib.suppress(BlockingIOError):
            for _ in range(_LAST_PIECES):  # something that it left may print for ever
                if not self._listen():
                    break
        code = self._process.poll()
        how = "closed its output"
        if code is not None:
            number = -code if code < 0 else code - 128
            how = f"ended with exit code {code}"
            if code < 0 or code > 128:
                with contextlib.suppress(ValueError):
                    how = f"was ended by {signal.Signals(number).name}"
        words = _printable(self._said.decode("utf-8", "replace").strip())[-_LONGEST_QUOTE:]
        last_words = f"; it said: {words}" if words else ""
        return UsageError(f"the process of {self._name} {how}{self._where()}{last_words}")


def _printable(text: str) -> str:
    """Return a stranger's text in one line, without what a terminal would obey."""
    line = " ".join(text.split())
    kept = "".join(c if c.isprintable() else "?" for c in line)
    if len(kept) > _LONGEST_QUOTE:
        kept = kept[:_LONGEST_QUOTE] + " ..."
    return kept
