"""A pool of render processes that outlives its members.

Every worker is a process of its own with one engine in it. It is handed a few
images at a time and sends back what is finished: each image, or several small ones that the
engine makes at once. A worker that dies, or is silent for too long, is replaced; the image it
was at is tried again, up to three times. If it was at several, each is then tried alone, so
that it is known which of them does it.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import faulthandler
import os
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident import defaults
from threedident.errors import RenderError, ThreeDIdentError
from threedident.render.engine import Engine, create_engine
from threedident.render.executors.processes import ChildProcess, wait_for_close
from threedident.render.settings import EngineSettings
from threedident.system import make_scratch

Array = npt.NDArray[Any]

MAX_ATTEMPTS = 3
#: A file system in memory, where there is one.
MEMORY = Path("/dev/shm")
_SCRATCH = "3dident-scratch-"
_START_LIMIT = 3  # workers in a row that die before they are ready
_MESSAGE_BYTES = 2**20  # of images that a worker sends at once, if there are several


@dataclasses.dataclass(frozen=True)
class Task:
    """One image to render: its number, and its scene row (W,), as `Preset.columns` names it."""

    index: int
    latents: Array


@dataclasses.dataclass(frozen=True)
class Done:
    """A finished image, the seconds it took, and which worker made it."""

    index: int
    image: npt.NDArray[np.uint8]
    seconds: float
    worker: int


@dataclasses.dataclass(frozen=True)
class Failed:
    """An image that could not be rendered in three attempts, and why."""

    index: int
    reason: str


@dataclasses.dataclass
class _Worker:
    """A process, its end of the pipe, and what it still owes."""

    process: ChildProcess
    slot: int
    log: Path
    owed: collections.deque[Task] = dataclasses.field(default_factory=collections.deque)
    taken: int = 0
    batch: int = 0  # images that its engine makes at once; 0: it is not ready yet
    started: float = dataclasses.field(default_factory=time.monotonic)
    heard: float = dataclasses.field(default_factory=time.monotonic)


def _worker_main(
    pipe: Connection,
    factory: Callable[..., Engine],
    settings: EngineSettings,
    threads: int,
    device_index: int,
    scratch: Path,
    log: Path,
) -> None:
    """Run a worker process: render what the pipe hands it until that is None, or it closes."""
    try:
        faulthandler.enable()
        engine = factory(settings, threads=threads, device_index=device_index, scratch=scratch)
    except BaseException as error:
        traceback.print_exc()
        known = isinstance(error, ThreeDIdentError)
        pipe.send(("broken", str(error) if known else f"{type(error).__name__}: {error}"))
        return
    pipe.send(("ready", engine.batch))
    try:
        while (waiting := pipe.recv()) is not None:
            indices, latents = waiting
            while indices:
                count = min(engine.batch, len(indices))
                # Blender prints 15 KB an image: the log keeps what it said of the last one.
                os.truncate(log, 0)
                began = time.perf_counter()
                try:
                    images = engine.render_batch(latents[:count])
                except Exception as error:
                    traceback.print_exc()
                    shutil.copyfile(log, log.with_name(f"{log.stem}-failed.log"))
                    if count > 1:  # it may be the fault of one of them, or of their number
                        engine.batch = count // 2
                        continue
                    pipe.send(("failed", indices[0], f"{type(error).__name__}: {error}"))
                else:
                    seconds = (time.perf_counter() - began) / count
                    step = max(1, _MESSAGE_BYTES // images[0].nbytes)
                    for i in range(0, count, step):
                        some = slice(i, min(i + step, count))
                        pipe.send(("done", indices[some], images[some], seconds))
                indices, latents = indices[count:], latents[count:]
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone
    finally:
        engine.close()
        if wait_for_close(pipe, 0):  # killed: nobody else would do it
            shutil.rmtree(scratch, ignore_errors=True)


class WorkerPool:
    """A pool of worker processes that render tasks.

    Use it as a context manager; leaving it ends the workers within a second.

    Args:
        settings: the settings that decide the pixels.
        workers: the number of processes.
        threads: the threads of each process.
        devices: the number of GPUs that the workers share out among themselves.
        timeout: the seconds without a finished image after which a worker is replaced.
        images_per_worker: the images after which a worker is replaced by a fresh one.
        log_dir: the folder for each worker's output: `PREFIX-K.log` for what it did last,
            `-failed` and `-lost` beside it for what went wrong last.
        log_prefix: the beginning of the names of those files.
        factory: the function that makes the engine in a worker; it must be importable there.
        keep: whether workers without work wait for another `run` instead of ending.
    """

    def __init__(
        self,
        settings: EngineSettings,
        *,
        workers: int,
        log_dir: Path,
        threads: int = 1,
        devices: int = 1,
        timeout: float = defaults.RENDER_TIMEOUT,
        images_per_worker: int = defaults.IMAGES_PER_WORKER,
        log_prefix: str = "worker",
        factory: Callable[..., Engine] = create_engine,
        keep: bool = False,
    ) -> None:
        self._factory = factory
        self._keep = keep
        self._settings = settings
        self._count = workers
        self._threads = threads
        self._devices = devices
        self._timeout = timeout
        self._images_per_worker = images_per_worker
        self._log_dir = log_dir
        self._log_prefix = log_prefix
        self._workers: list[_Worker] = []
        self._attempts: collections.Counter[int] = collections.Counter()
        self._alone: set[int] = set()  # one of which may have ended a worker
        self._deaths_at_start = 0
        #: The largest resident memory of a worker seen so far, bytes (Linux; else 0).
        self.peak_memory = 0
        #: Seconds that each worker took to get ready.
        self.starts: list[float] = []

    def __enter__(self) -> WorkerPool:
        pixels = self._count * self._settings.resolution**2
        self._scratch = _pixel_scratch(needed=8 * 16 * pixels)
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:  # all at once, then one by one
            worker.process.kill()
        for worker in self._workers:
            self._stop(worker)
        self._workers.clear()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def run(
        self, tasks: Iterable[Task], total: int, stop: threading.Event | None = None
    ) -> Iterator[Done | Failed]:
        """Yield a result for each of `total` tasks, roughly in order, until `stop` is set.

        Raises:
            RenderError: the engine cannot start, or workers keep dying as they start.
        """
        fresh = iter(tasks)
        again: collections.deque[Task] = collections.deque()
        unseen = total

        def take(limit: int) -> list[Task]:
            nonlocal unseen
            # A few images at once, fewer near the end, so that no worker is left with many.
            share = (unseen + len(again)) // (2 * self._count)
            count = min(limit, self._settings.preferred_batch, max(share, 1), unseen + len(again))
            taken: list[Task] = []
            while len(taken) < count:
                if again and again[0].index in self._alone:
                    return taken or [again.popleft()]
                if again:
                    taken.append(again.popleft())
                else:
                    taken.append(next(fresh))
                    unseen -= 1
            return taken

        stop = stop or threading.Event()
        while not stop.is_set():
            for worker in list(self._workers):
                if worker.owed:
                    continue
                if batch := take(self._images_per_worker - worker.taken):
                    self._hand(worker, batch)
                elif again or unseen or not self._keep:
                    # It is due to be replaced, or there is nothing left to do.
                    self._stop(worker, gently=True)
                    self._workers.remove(worker)
            for slot in range(self._count):
                if (again or unseen) and all(worker.slot != slot for worker in self._workers):
                    worker = self._start(slot)
                    self._hand(worker, take(self._images_per_worker))
            if not any(worker.owed for worker in self._workers):
                return
            yield from self._collect(again, stop)

    def _start(self, slot: int) -> _Worker:
        log = self._log_dir / f"{self._log_prefix}-{slot}.log"
        process = ChildProcess(
            _worker_main,
            self._factory,
            self._settings,
            self._threads,
            slot % max(self._devices, 1),
            self._scratch,
            log,
            log=log,
        )
        worker = _Worker(process, slot, log)
        self._workers.append(worker)
        return worker

    def _hand(self, worker: _Worker, batch: list[Task]) -> None:
        worker.owed.extend(batch)
        worker.taken += len(batch)
        worker.heard = time.monotonic()
        # A worker that has just died is noticed when its pipe is read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            indices = [task.index for task in batch]
            worker.process.pipe.send((indices, np.stack([task.latents for task in batch])))

    def _collect(
        self, again: collections.deque[Task], stop: threading.Event
    ) -> Iterator[Done | Failed]:
        """Wait for the next messages and take them in."""
        by_pipe = {worker.process.pipe: worker for worker in self._workers}
        for pipe in wait(list(by_pipe), timeout=0.5):
            worker = by_pipe[pipe]  # type: ignore[index]
            try:
                message = worker.process.pipe.recv()
            except (EOFError, OSError):  # the latter where it died within a message
                if stop.is_set():  # whoever stops us may have stopped our workers, too
                    return
                code = worker.process.join(5)
                reason = (
                    f"its process was ended by {_signal_name(-code)}"
                    if code is not None and code < 0
                    else f"its process ended with exit code {code}"
                )
                yield from self._lost(worker, reason, again)
                continue
            worker.heard = time.monotonic()
            match message:
                case ("ready", batch):
                    worker.batch = batch
                    self.starts.append(worker.heard - worker.started)
                    self._deaths_at_start = 0
                case ("broken", reason):
                    raise RenderError(f"the renderer cannot start: {reason}")
                case Exception():
                    raise RenderError(
                        f"the renderer cannot start: {type(message).__name__}: {message}"
                    ) from message
                case ("done", indices, images, seconds):
                    for index in indices:
                        self._settle(worker, index)
                        self._attempts.pop(index, None)
                        self._alone.discard(index)
                    if not worker.owed:
                        self.peak_memory = max(self.peak_memory, _resident(worker.process.pid))
                    for index, image in zip(indices, images, strict=True):
                        yield Done(index, image, seconds, worker.slot)
                case ("failed", index, reason):
                    yield from self._try_again(self._settle(worker, index), reason, again)
        for worker in list(self._workers):
            if worker.owed and time.monotonic() - worker.heard > self._timeout:
                yield from self._lost(
                    worker, f"no image was finished in {self._timeout:g} s", again
                )

    def _settle(self, worker: _Worker, index: int) -> Task:
        task = worker.owed.popleft()
        if task.index != index:
            raise RuntimeError(f"worker {worker.slot} sent image {index}, expected {task.index}")
        return task

    def _lost(
        self, worker: _Worker, reason: str, again: collections.deque[Task]
    ) -> Iterator[Failed]:
        """Give up a worker: its image counts an attempt, the rest are only requeued.

        If it was at several images, none of them counts an attempt, and each goes on alone.
        """
        self._stop(worker)
        self._workers.remove(worker)
        self._keep_log(worker)
        owed = list(worker.owed)
        if not worker.batch:
            self._deaths_at_start += 1
            if self._deaths_at_start >= _START_LIMIT:
                raise RenderError(
                    f"{_START_LIMIT} render processes in a row ended before they were ready; the "
                    f"last: {reason}. Their output is in {worker.log}"
                )
            again.extendleft(reversed(owed))
            return
        if len(suspects := owed[: worker.batch]) > 1:
            self._alone |= {task.index for task in suspects}
            again.extendleft(reversed(owed))
            return
        again.extendleft(reversed(owed[1:]))
        if owed:
            yield from self._try_again(owed[0], f"{reason} (log: {worker.log})", again)

    def _try_again(
        self, task: Task, reason: str, again: collections.deque[Task]
    ) -> Iterator[Failed]:
        self._attempts[task.index] += 1
        if self._attempts[task.index] >= MAX_ATTEMPTS:
            self._alone.discard(task.index)
            yield Failed(task.index, reason)
        else:
            again.appendleft(task)

    def _keep_log(self, worker: _Worker) -> None:
        """Keep the output of a lost worker beside the log that its successor starts anew."""
        kept = worker.log.with_name(f"{worker.log.stem}-lost.log")
        with contextlib.suppress(OSError):
            worker.log.replace(kept)
            worker.log = kept

    def _stop(self, worker: _Worker, *, gently: bool = False) -> None:
        if gently:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                worker.process.pipe.send(None)
            worker.process.join(10)
        worker.process.kill()
        worker.process.pipe.close()  # only now: a worker takes it for our death
        worker.process.join(10)


def _pixel_scratch(needed: int) -> Path:
    """Make a folder for the pixels that Blender hands over: in memory if they fit there."""
    use_memory = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 2 * needed
    return make_scratch(_SCRATCH, MEMORY if use_memory else None)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _resident(pid: int | None) -> int:
    """The peak resident memory of a process in bytes; 0 where the system does not say."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
