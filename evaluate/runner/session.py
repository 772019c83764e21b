"""`EncoderSession`: a submission that stays loaded, and encodes images whenever it is asked to."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from threedident.errors import UsageError
from threedident.evaluate.runner.process import EncoderProcess, Float32, Limits, NotFinite
from threedident.evaluate.seen import read_claim
from threedident.evaluate.submissions.submission import Submission

#: Seconds that one request may take, and that loading may take.
REQUEST_LIMIT = 60.0
#: A process that fails so many times on end is not started again.
MOST_FAILURES = 3

#: Pixels along a side of images that an encoder may say it takes.
MOST_SIDE = 1 << 16

UInt8 = npt.NDArray[np.uint8]
T = TypeVar("T")
#: Channels, rows and columns; None where they are free.
Size = tuple[int | None, int | None, int | None]


@dataclasses.dataclass(frozen=True)
class Account:
    """What an encoder says of itself before it is given an image.

    Attributes:
        takes: the channels, rows and columns of the images that it takes; None where they are
            free, or where nobody knows before it is tried.
        network_blocked: whether its process had no network; None: it was not started yet.
        trained_on: its claim on the images that it was trained on; see `seen.read_claim`.
    """

    takes: Size
    network_blocked: bool | None
    trained_on: Mapping[str, Any]


class EncoderSession:
    """An encoder in a process behind the walls of scoring, for any number of requests.

    The process starts with the first request and lives until `close`. The limit of memory is that
    of scoring. The limit of time holds for loading, and for each request by itself. A request that
    fails ends the process; the next one starts it again, unless it has failed too many times on
    end. It can be used from any thread, and by `with`; requests wait for each other.
    """

    def __init__(
        self,
        submission: Submission,
        limits: Limits | None = None,
        *,
        threads: int | None = None,
    ) -> None:
        """Prepare a session; nothing is started.

        Args:
            submission: an ONNX file, or what `identify` lets pass with trust.
            limits: the limits of the process, the time that of a request; None: a minute, and
                the memory of scoring.
            threads: the number of its threads; None: one for each processor.

        Raises:
            UsageError: it is no encoder that runs in a process.
        """
        if submission.kind not in ("onnx", "torch", "python"):
            raise UsageError(
                f"{submission.name} is no encoder that runs in a process of its own: expected an "
                "ONNX file, a file of torch.export or torch.jit, or a Python factory"
            )
        self._submission, self._threads = submission, threads
        self._limits = Limits(time=REQUEST_LIMIT) if limits is None else limits
        # Of one thread: the process ends with the thread that has started it.
        self._thread = ThreadPoolExecutor(1, "3dident-encoder")
        self._process: EncoderProcess | None = None
        self._shape: tuple[int, ...] | None = None
        self._lock = threading.Lock()  # of the process, which `close` ends from another thread
        self._closed = False
        self._account: Account | None = None
        self._codes: int | None = None
        self._failures = 0
        self._last = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The number of the process that is running now; None where there is none."""
        process = self._process
        return None if process is None else process.pid

    def account(self) -> Account:
        """Load the encoder, where that was not done before, and return what it says of itself.

        Raises:
            UsageError: it cannot be loaded, or passes a limit.
        """
        return self._in_thread(self._describe)

    def encode(self, images: UInt8, first: int = 0) -> Float32:
        """Compute the codes (B, m) float32 of images.

        Args:
            images: (B, H, W, C) uint8, C 1 or 3; or (B, C, H, W).
            first: the number of the first of them, for errors.

        Raises:
            UsageError: they do not fit the encoder, or it fails or passes a limit.
        """
        return self._in_thread(self._encode, _channels_last(images), first)

    def close(self) -> None:
        """End the process, also in the middle of a request, which fails."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()  # which wakes the thread that waits for it
        self._thread.shutdown(cancel_futures=True)
        self._end()

    def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        try:
            future = self._thread.submit(function, *arguments)
        except RuntimeError:  # it has been shut down
            raise self._over() from None
        try:
            return future.result()
        except CancelledError:
            raise self._over() from None

    def _over(self) -> UsageError:
        return UsageError(f"{self._submission.name}: its session has ended")

    def _describe(self) -> Account:
        if self._account is None:
            if self._submission.kind == "onnx":
                with self._guarded():
                    self._start(None)
                    self._end()  # one that has been told no size serves no images
            else:
                self._account = Account((None, None, None), None, {})
        assert self._account is not None
        return self._account

    def _encode(self, images: UInt8, first: int) -> Float32:
        with self._guarded():
            process = self._process
            if process is None or process.ended or self._shape != images.shape[1:]:
                self._end()
                process = self._start(images.shape[1:])
            process.renew()
            pixels = images.transpose(0, 3, 1, 2).tobytes()
            codes = process.codes(len(images), pixels, first)
            if self._codes not in (None, codes.shape[1]):
                raise UsageError(
                    f"{self._submission.name} gave {self._codes} codes before and "
                    f"{codes.shape[1]} now: expected the same number for all images"
                )
            self._codes = codes.shape[1]
            return codes

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """End the process where a request fails, and count failures; refuse after too many."""
        if self._failures >= MOST_FAILURES:
            raise UsageError(
                f"{self._last}. It has failed {self._failures} times on end and is not started "
                "again"
            )
        try:
            yield
        except NotFinite:
            self._failures = 0  # the process is sound
            raise
        except BaseException as error:
            self._end()
            if self._closed:
                raise self._over() from None
            self._failures += 1
            self._last = str(error)
            raise
        self._failures = 0

    def _start(self, shape: tuple[int, ...] | None) -> EncoderProcess:
        with self._lock:
            if self._closed:
                raise self._over()
            process = EncoderProcess(self._submission, shape, self._limits, threads=self._threads)
            self._process, self._shape = process.__enter__(), shape
        about = process.ready()
        self._account = Account(
            _size(about.get("takes")),
            about.get("network") is True,
            read_claim(about.get("trained_on")),
        )
        return process

    def _end(self) -> None:
        """End the process, if there is one."""
        with self._lock:
            process, self._process = self._process, None
            if process is not None:
                process.__exit__()


def _size(taken: Any) -> Size:
    """The size of images that the process sent, if it is one."""
    if not isinstance(taken, list) or len(taken) != 3:
        return None, None, None
    channels, rows, columns = (
        each if type(each) is int and 0 < each <= MOST_SIDE else None for each in taken
    )
    return channels, rows, columns


def _channels_last(images: UInt8) -> UInt8:
    """Check images, and bring their channels to the end.

    Raises:
        UsageError: they are none.
    """
    if images.dtype == np.uint8 and images.ndim == 4 and images.size:
        if images.shape[3] in (1, 3):
            return images
        if images.shape[1] in (1, 3):
            return images.transpose(0, 2, 3, 1)
    raise UsageError(
        "expected images (B, H, W, C) or (B, C, H, W) of uint8, of 1 or 3 channels, found "
        f"{images.dtype} of shape {images.shape}"
    )
