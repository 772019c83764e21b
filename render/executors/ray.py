"""Rendering on a Ray cluster: every shard is a task that writes to a disk all nodes share.

Nodes lock nothing, so nothing stays locked when one dies; the driver alone holds the dataset, so
that no second job does the same work. A shard appears under its name only when it is whole, and
its images depend on its numbers alone: where a node that was given up for lost and its successor
both finish it, the second file replaces an equal one.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import dataclasses
import logging
import os
import platform
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from threedident.errors import (
    DatasetError,
    MissingExtraError,
    RenderError,
    ThreeDIdentError,
    UsageError,
)
from threedident.progress import Progress
from threedident.render.executors.process_pool import Failed
from threedident.render.job import JobOptions, RenderJob, Silent, Summary
from threedident.render.settings import EngineSettings, Probe, probe
from threedident.render.shard_writer import GIVE_UP, all_fail
from threedident.storage.atomic_files import explaining_write_errors, remove_leftovers
from threedident.storage.directory import LOGS, DatasetDir
from threedident.storage.shard_plan import Interval, missing_intervals
from threedident.system import stop_on_signals
from threedident.version import toolkit_version

try:
    import ray
    from ray.exceptions import NodeDiedError, RayError, RayTaskError, TaskUnschedulableError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:
    raise MissingExtraError("ray", "cluster", "--executor ray") from error

#: Tasks that wait or run at once, where the user does not say: more than a cluster has cores.
IN_FLIGHT = 10_000
_RETRIES = 10  # of a shard whose node or Ray process died
_CONNECT, _END = 10.0, 30.0  # seconds
_LOOK_EVERY = 5.0  # seconds between looks at the nodes
_ALONE = ("local", "auto")  # addresses that name no machine


@dataclasses.dataclass(frozen=True)
class _Node:
    """A machine of the cluster that is alive."""

    id: str
    name: str
    cpus: float
    gpus: float

    def fits(self, threads: int, gpus: int) -> bool:
        return self.cpus >= threads and self.gpus >= gpus


@dataclasses.dataclass(frozen=True)
class _NodeJob:
    """The facts that a node must know of a job; plain data, sent along with every task."""

    root: str
    token: str
    fingerprint: str
    toolkit: str
    settings: EngineSettings
    options: JobOptions


class RayExecutor:
    """An `Executor` on the Ray cluster that this process is connected to; `connect` makes one."""

    def probe(self, engine: str, device: str, threads: int) -> Probe:
        """Ask every node that can render for the engine's version and devices.

        Args:
            engine: the engine's name.
            device: the kind of device; for "auto" and GPUs, nodes that declare GPUs are asked, if
                there are any.
            threads: the CPUs that a render process takes.

        Returns:
            The devices that all these nodes have.

        Raises:
            MissingExtraError, RenderError: a node lacks the engine, has another version of it or
                of this toolkit, or no node has the resources.
        """
        nodes = _nodes()
        gpus = int(device != "cpu" and (device != "auto" or any(n.fits(threads, 1) for n in nodes)))
        able = [node for node in nodes if node.fits(threads, gpus)]
        if not able:
            raise RenderError(
                f"no node of the Ray cluster has {threads} CPU(s)"
                + (" and a GPU" if gpus else "")
                + " for a render process; its nodes: "
                + (", ".join(f"{n.name} ({n.cpus:g} CPU, {n.gpus:g} GPU)" for n in nodes) or "none")
                + ". Start nodes that declare them, or choose other --threads or --device"
            )
        with _explaining():
            tasks = [
                ray.remote(num_cpus=0, num_gpus=gpus, max_calls=0)(_probe_node)
                .options(scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False))
                .remote(engine)
                for node in able
            ]
            answers: list[tuple[str, str, Probe]] = []
            for node, task in zip(able, tasks, strict=True):
                # A node that has died may be listed for a while.
                with contextlib.suppress(NodeDiedError, TaskUnschedulableError):
                    answers.append((node.name, *ray.get(task)))
        if not answers:
            raise RenderError("all nodes of the Ray cluster that could render are gone: restart it")
        first, _, its = answers[0]
        own = (toolkit_version(), its.version)
        for name, toolkit, its in answers:
            _require_versions(
                f"node {name}", engine, (toolkit, its.version), own, f", as on {first}"
            )
        shared = set.intersection(*(set(its.devices) for *_, its in answers))
        # A task gets one GPU to itself, whatever else its node has.
        return Probe(own[1], {kind: 1 for kind in answers[0][2].devices if kind in shared})

    def default_workers(self, device: str, available: Probe, threads: int) -> int:
        """Return more than any cluster runs at once: it runs what fits."""
        return IN_FLIGHT

    def place(self, options: JobOptions) -> str:
        """Name the place: a Ray cluster."""
        return "a Ray cluster"

    def run(self, job: RenderJob) -> None:
        """Render the shards of a job, `options.workers` of them at once at most.

        A shard whose node dies is rendered by another one.
        """
        root = job.dataset.root.resolve()
        with (
            explaining_write_errors(root),
            # Named so that it is removed by the next run if this one is killed.
            tempfile.NamedTemporaryFile(
                prefix=f".tmp-{socket.gethostname()}-{os.getpid()}-", dir=root
            ) as token,
        ):
            for_nodes = _NodeJob(
                root=str(root),
                token=Path(token.name).name,
                fingerprint=job.dataset.manifest.fingerprint,
                toolkit=toolkit_version(),
                settings=job.settings,
                options=job.options,
            )
            _Shards(job, for_nodes).render()


class _Shards:
    """The shards of a job: those that wait, and those that tasks of Ray render."""

    def __init__(self, job: RenderJob, for_nodes: _NodeJob) -> None:
        self._job, self._for_nodes = job, for_nodes
        gpus = int(job.settings.device != "cpu")
        self._task = ray.remote(
            num_cpus=job.options.threads, num_gpus=gpus, max_retries=_RETRIES, max_calls=0
        )(_render_shard)
        self._waiting = collections.deque(job.todo)
        self._running: dict[Any, Interval] = {}
        self._watch = _Watch(job.options.threads, gpus, job.progress)
        self._failed_in_a_row = 0

    def render(self) -> None:
        try:
            while (self._waiting or self._running) and not self._job.stop.is_set():
                while self._waiting and len(self._running) < self._job.options.workers:
                    interval = self._waiting.popleft()
                    self._running[self._task.remote(self._for_nodes, interval)] = interval
                for ref in _finished(list(self._running), 0.5):
                    self._take(ref)
                self._watch.look(_LOOK_EVERY)
            self._watch.look()
        finally:
            _end(self._running, self._job.summary)

    def _take(self, ref: Any) -> None:
        interval = self._running.pop(ref)
        with _explaining():
            part: Summary = ray.get(ref)
        _add(self._job.summary, part)
        self._job.progress.advance(part.rendered)
        for index, reason in part.failed.items():
            self._job.fail(Failed(index, reason))
            self._failed_in_a_row += 1
            if self._failed_in_a_row >= GIVE_UP and not part.rendered:
                raise all_fail(self._job.dataset.root.resolve(), reason)
        if part.rendered:
            self._failed_in_a_row = 0
        if part.interrupted:  # its node was told to end, but not by us
            self._waiting.extendleft(_rest(self._job.dataset, interval))


class _Watch:
    """A watch that tells of nodes that come and go."""

    def __init__(self, threads: int, gpus: int, progress: Progress | Silent) -> None:
        self._needs, self._progress = (threads, gpus), progress
        self._alive = {node.id: node for node in _nodes()}
        self._looked = time.monotonic()

    def look(self, every: float = 0.0) -> None:
        if time.monotonic() - self._looked < every:
            return
        self._looked = time.monotonic()
        before, self._alive = self._alive, {node.id: node for node in _nodes()}
        for id in before.keys() - self._alive.keys():
            able = sum(node.fits(*self._needs) for node in self._alive.values())
            self._progress.note(
                f"node {before[id].name} of the Ray cluster is gone; its shards go to the "
                + (f"{able} that can render" if able else "next one that can render: none is left")
            )
        for id in self._alive.keys() - before.keys():
            self._progress.note(f"node {self._alive[id].name} has joined the Ray cluster")


@contextlib.contextmanager
def connect(address: str | None = None) -> Iterator[RayExecutor]:
    """Connect to a Ray cluster, until the end of the `with` block.

    Args:
        address: the HOST:PORT of its head. None: what RAY_ADDRESS says, else the cluster that
            this machine belongs to, else one of this machine's processors, started here.

    Raises:
        UsageError: the address is of another form.
        RenderError: the cluster cannot be reached.
    """
    if ray.is_initialized():  # the caller's
        yield RayExecutor()
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # What Ray will do by default, said so that it does not warn.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address and address not in _ALONE:
        _check_reachable(address)
    try:
        ray.init(
            address=address,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).strip() or type(error).__name__
        raise RenderError(f"cannot join the Ray cluster at {address}: {reason}") from error
    try:
        yield RayExecutor()
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise UsageError(
            f"--address expects HOST:PORT of the cluster's head, found {address!r}: `ray start "
            "--head` prints it (a ray:// address, whose disk would be another, is not taken)"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT).close()
    except (OSError, OverflowError) as error:
        raise RenderError(
            f"no Ray cluster can be reached at {address} ({error}): start its head with `ray start "
            "--head`, or give the address that this printed"
        ) from error


def _nodes() -> list[_Node]:
    return [
        _Node(
            node["NodeID"],
            f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})",
            node["Resources"].get("CPU", 0),
            node["Resources"].get("GPU", 0),
        )
        for node in ray.nodes()  # type: ignore[no-untyped-call]
        if node["Alive"]
    ]


@contextlib.contextmanager
def _explaining() -> Iterator[None]:
    """Turn what Ray says of a failed task into our own errors."""
    try:
        yield
    except RayTaskError as error:
        if isinstance(error.cause, ThreeDIdentError):
            raise error.cause from None
        last = str(error).strip().splitlines()[-1]
        raise RenderError(
            f"a task failed on the Ray cluster: {last:.300}. Every node needs this toolkit, "
            f"{toolkit_version()}, and the engine"
        ) from error
    except RayError as error:
        lines = str(error).strip().splitlines() or [""]
        raise RenderError(
            f"a task was lost on the Ray cluster: {type(error).__name__}: {lines[0]:.300}"
        ) from error
    except ImportError as error:  # Ray loads what it finds installed
        raise RenderError(f"Ray does not work here: {error}") from error


def _finished(tasks: list[Any], seconds: float) -> list[Any]:
    """Wait for a task at most so long; return those that are finished."""
    ray.wait(tasks, timeout=seconds)
    return ray.wait(tasks, num_returns=len(tasks), timeout=0)[0]


def _end(running: dict[Any, Interval], summary: Summary) -> None:
    """Stop tasks as Ctrl-C stops a local render, and wait until they have written."""
    for task in running:
        ray.cancel(task)
    until = time.monotonic() + _END
    while running and time.monotonic() < until:
        for task in _finished(list(running), 0.5):
            del running[task]
            # Cancelled before it began, or lost with its node: it has written nothing.
            with contextlib.suppress(RayError, ThreeDIdentError):
                _add(summary, ray.get(task))


def _add(summary: Summary, part: Summary) -> None:
    summary.rendered += part.rendered
    summary.peak_memory = max(summary.peak_memory, part.peak_memory)


def _rest(dataset: DatasetDir, interval: Interval) -> list[Interval]:
    """Return the images that a shard lacks by what is on the disk."""
    missing = missing_intervals(interval.stop, dataset.manifest.shard_size, dataset.shards())
    return [each for each in missing if each.first >= interval.first]


def _require_versions(
    node: str, engine: str, versions: tuple[str, str], expected: tuple[str, str], why: str = ""
) -> None:
    """Raise a RenderError where a node has another toolkit or engine than expected."""
    if versions != expected:
        raise RenderError(
            f"{node} has toolkit {versions[0]} with {engine} {versions[1]}, expected "
            f"{expected[0]} with {expected[1]}{why}: pixels depend on them; install the same "
            "versions on all nodes"
        )


# What runs on the nodes


def _probe_node(engine: str) -> tuple[str, Probe]:
    """Return the toolkit's version on this node, and the devices that its engine finds."""
    return toolkit_version(), probe(engine)


class _Renderer:
    """The things that a process of Ray keeps from shard to shard: a pool, and its dataset."""

    def __init__(self, job: _NodeJob) -> None:
        self.job = job
        root = Path(job.root)
        here = f"node {platform.node()} of the Ray cluster"
        if not (root / job.token).exists():
            raise DatasetError(
                f"{here} does not see the dataset directory {root}: it must lie on a disk that all "
                "nodes share, under the same path"
            )
        available = probe(job.settings.engine)
        own, wanted = (toolkit_version(), available.version), (job.toolkit, job.settings.version)
        _require_versions(here, job.settings.engine, own, wanted)
        self.dataset = DatasetDir.open(root)
        if self.dataset.manifest.fingerprint != job.fingerprint:
            raise DatasetError(f"{here} sees another dataset in {root}")
        with explaining_write_errors(root):
            (root / LOGS).mkdir(exist_ok=True)
            remove_leftovers(root)
        prefix = f"worker-{platform.node()}-{os.getpid()}"
        self.pool = self._render_job([], threading.Event()).open_pool(1, prefix, keep=True)
        self.pool.__enter__()

    def render(self, interval: Interval, stop: threading.Event) -> Summary:
        """Render a shard."""
        job = self._render_job([interval], stop)
        job.render_with(self.pool)
        return job.summary

    def _render_job(self, todo: list[Interval], stop: threading.Event) -> RenderJob:
        job = self.job
        return RenderJob(self.dataset, todo, job.settings, job.options, Silent(), stop, Summary())

    def close(self) -> None:
        self.pool.__exit__()


_held: _Renderer | None = None


def _drop() -> None:
    """End the renderer that is held, if there is one."""
    global _held  # noqa: PLW0603
    if _held is not None:
        _held.close()
        _held = None


atexit.register(_drop)


def _render_shard(job: _NodeJob, interval: Interval) -> Summary:
    """Render a shard; the task that Ray runs. Being cancelled, it keeps what is finished."""
    global _held  # noqa: PLW0603
    if (Path(job.root) / interval.file_name).exists():  # tried before, and taken for lost
        return Summary(rendered=interval.count)
    with stop_on_signals() as stop:
        try:
            if _held is None or _held.job != job:
                _drop()
                _held = _Renderer(job)
            summary = _held.render(interval, stop)
        except BaseException:
            _drop()
            raise
    if stop.is_set():
        _drop()  # it has images in hand that nobody waits for
        summary.interrupted = summary.rendered + len(summary.failed) < interval.count
    return summary
