"""`Renderers`: processes that render for the page, where the last request wins.

Each process keeps the engines that it has used last. Jobs wait in one queue: those of a slider that
moves come first, and a job that waits gives way to a newer one of the same slot, so that none pile
up. A process that dies or hangs is replaced, and its job tried once more.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import heapq
import itertools
import os
import threading
from collections.abc import Hashable
from multiprocessing.connection import Connection
from typing import Any, Self

import anyio.to_thread
import numpy as np
import numpy.typing as npt

from threedident.errors import RenderError, ThreeDIdentError
from threedident.render.executors.processes import ChildProcess, wait_for_close
from threedident.render.settings import EngineSettings
from threedident.system import usable_processors

Array = npt.NDArray[Any]

#: The order of jobs: a slider that moves, one that rests, and all that can wait.
MOVING, RESTING, WAITING = 0, 1, 2
MOST_WAITING = 400
_ENGINES = 6  # that a process keeps
_PIXELS = 2**16  # of the images of one job; more are split, so that others come in between
_TIMEOUT = 120.0  # s, by far more than any job needs
_ATTEMPTS = 2
_MOST_PROCESSES = 4


class Superseded(Exception):
    """A newer job of the same slot has taken this one's place."""


class Busy(ThreeDIdentError):
    """Too many jobs wait already."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a job's engine.

    Attributes:
        key: a name that no other settings have; processes know their engines by it.
        engine: the settings.
    """

    key: Hashable
    engine: EngineSettings


@dataclasses.dataclass(order=True)
class _Job:
    priority: int
    number: int
    settings: Settings = dataclasses.field(compare=False)
    rows: Array = dataclasses.field(compare=False)
    linear: bool = dataclasses.field(compare=False)
    slot: Hashable | None = dataclasses.field(compare=False)
    result: asyncio.Future[Array] = dataclasses.field(compare=False)


class Renderers:
    """A pool of render processes for one event loop. Use it as an asynchronous context manager.

    Attributes:
        restarts: how many processes were started in place of one that died or hung.
    """

    def __init__(self, processes: int | None = None) -> None:
        """Prepare the pool; processes start with it.

        Args:
            processes: the number of processes; None: one for each processor, at most 4.
        """
        self._count = processes or min(_MOST_PROCESSES, usable_processors())
        self._waiting: list[_Job] = []
        self._slots: dict[Hashable, list[_Job]] = {}  # the jobs of each slot that wait
        self._numbers = itertools.count()
        self._arrived = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []
        self._processes: dict[int, ChildProcess] = {}
        self._limit: anyio.CapacityLimiter | None = None
        self.restarts = 0

    async def __aenter__(self) -> Self:
        # Threads of its own, that wait for the processes: other work takes none of them away.
        self._limit = anyio.CapacityLimiter(self._count)
        for place in range(self._count):
            self._processes[place] = ChildProcess(_serve)
        self._tasks = [asyncio.create_task(self._work(place)) for place in range(self._count)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for process in self._processes.values():
            process.kill()  # which wakes the thread that waits for it
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for job in self._waiting:
            if not job.result.done():
                job.result.cancel()
        for process in self._processes.values():
            process.pipe.close()
            process.join(5)

    @property
    def pids(self) -> tuple[int, ...]:
        """The numbers of the processes."""
        return tuple(process.pid for process in self._processes.values())

    async def images(
        self,
        settings: Settings,
        rows: Array,
        *,
        slot: Hashable | None = None,
        priority: int = WAITING,
    ) -> npt.NDArray[np.uint8]:
        """Render scene rows (B, W) into images (B, H, W, 3) uint8, as `render_batch` does.

        Args:
            settings: the engine's settings.
            rows: the scene rows.
            slot: the place on the page that the images are for; a newer job for it takes the place
                of this one while it waits. None: this job is done in any case.
            priority: `MOVING`, `RESTING` or `WAITING`.

        Raises:
            Superseded: a newer job of the same slot has come.
            Busy: too many jobs wait.
            RenderError: it cannot be rendered.
        """
        return await self._render(settings, rows, slot, priority, linear=False)

    async def linear(
        self,
        settings: Settings,
        rows: Array,
        *,
        slot: Hashable | None = None,
        priority: int = WAITING,
    ) -> npt.NDArray[np.float32]:
        """Render scene rows in linear light (B, H, W, 3) float32; as `images` otherwise."""
        return await self._render(settings, rows, slot, priority, linear=True)

    async def _render(
        self,
        settings: Settings,
        rows: Array,
        slot: Hashable | None,
        priority: int,
        *,
        linear: bool,
    ) -> Array:
        rows = np.ascontiguousarray(rows, np.float32)
        step = max(1, _PIXELS // settings.engine.resolution**2)
        waiting = sum(not job.result.done() for job in self._waiting)
        if waiting + len(rows) // step > MOST_WAITING:
            raise Busy("too many images are waited for already: try again in a moment")
        pieces = [rows[start : start + step] for start in range(0, len(rows), step)]
        jobs = []
        for piece in pieces:
            future: asyncio.Future[Array] = asyncio.get_running_loop().create_future()
            number = next(self._numbers)
            jobs.append(_Job(priority, number, settings, piece, linear, slot, future))
        async with self._arrived:
            if slot is not None:
                self._supersede(slot)
                self._slots[slot] = [*jobs]
            for job in jobs:
                heapq.heappush(self._waiting, job)
            self._arrived.notify(len(jobs))
        try:
            parts = await asyncio.gather(*(job.result for job in jobs))
        except BaseException:
            for job in jobs:  # nobody waits for the others
                if not job.result.done():
                    job.result.cancel()
            raise
        return np.concatenate(parts)

    def _supersede(self, slot: Hashable) -> None:
        """Take the waiting jobs of a slot out of the queue."""
        for job in self._slots.pop(slot, []):
            if not job.result.done():
                job.result.set_exception(Superseded("a newer request has taken its place"))

    async def _next(self) -> _Job:
        async with self._arrived:
            while True:
                while self._waiting:
                    job = heapq.heappop(self._waiting)
                    beside = self._slots.get(job.slot, [])
                    if job in beside:
                        beside.remove(job)
                        if not beside:
                            del self._slots[job.slot]
                    if not job.result.done():
                        return job
                await self._arrived.wait()

    async def _work(self, place: int) -> None:
        """Hand jobs to one process, one after the other."""
        while True:
            job = await self._next()
            try:
                answer = await self._ask(place, job)
            except asyncio.CancelledError:
                job.result.cancel()
                raise
            except Exception as error:
                answer = error
            if job.result.done():
                continue
            if isinstance(answer, Exception):
                known = isinstance(answer, ThreeDIdentError)
                job.result.set_exception(
                    answer if known else RenderError(f"{type(answer).__name__}: {answer}")
                )
            else:
                job.result.set_result(answer)

    async def _ask(self, place: int, job: _Job) -> Any:
        message = (job.settings.key, job.settings.engine, job.rows, job.linear)
        for _ in range(_ATTEMPTS):
            process = self._processes[place]
            answer = await anyio.to_thread.run_sync(
                _exchange, process, message, abandon_on_cancel=True, limiter=self._limit
            )
            if answer is not None:
                return answer
            self._processes[place] = await anyio.to_thread.run_sync(_replace, process)
            self.restarts += 1
        raise RenderError(
            f"the render process ended {_ATTEMPTS} times at this image: `3dident doctor` says "
            "whether something is broken"
        )


def _replace(process: ChildProcess) -> ChildProcess:
    """End a process, and start another one."""
    process.kill()
    process.pipe.close()
    process.join(5)
    return ChildProcess(_serve)


def _exchange(process: ChildProcess, message: Any) -> Any:
    """Send a job and wait for its answer; None where the process is dead or hangs."""
    try:
        process.pipe.send(message)
        if not process.pipe.poll(_TIMEOUT):
            return None
        return process.pipe.recv()
    except (EOFError, OSError):
        return None


def _serve(pipe: Connection) -> None:
    """Serve in a render process: answer rows with their images, or with the error."""

    def watch() -> None:
        wait_for_close(pipe)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    from threedident.render.engine import create_engine

    engines: collections.OrderedDict[Hashable, Any] = collections.OrderedDict()
    while True:
        key, settings, rows, linear = pipe.recv()
        try:
            if key not in engines:
                engines[key] = create_engine(settings)
                if len(engines) > _ENGINES:
                    engines.popitem(last=False)[1].close()
            engines.move_to_end(key)
            engine = engines[key]
            starts = range(0, len(rows), engine.batch)
            batches = [rows[start : start + engine.batch] for start in starts]
            if linear:
                parts = [np.array(engine.render_linear(batch).numpy()) for batch in batches]
            else:
                parts = [engine.render_batch(batch) for batch in batches]
            pipe.send(np.concatenate(parts))
        except Exception as error:
            pipe.send(_sendable(error))


def _sendable(error: Exception) -> Exception:
    """An error that can be pickled."""
    if isinstance(error, ThreeDIdentError):
        return error
    return RenderError(f"{type(error).__name__}: {error}")
