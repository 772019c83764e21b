"""Rendering in processes of this machine."""

from __future__ import annotations

import platform

from threedident.render import settings
from threedident.render.executors.process_pool import usable_processors
from threedident.render.job import JobOptions, RenderJob
from threedident.render.settings import Probe


class LocalExecutor:
    """An `Executor` that renders in processes of this machine."""

    def probe(self, engine: str, device: str, threads: int) -> Probe:
        """Ask the engine on this machine for its version and devices."""
        return settings.probe(engine)

    def default_workers(self, device: str, available: Probe, threads: int) -> int:
        """A worker per processor that this process may use, or per GPU."""
        if device != "cpu":
            return available.devices[device]
        return max(1, usable_processors() // threads)

    def place(self, options: JobOptions) -> str:
        """The number of processes."""
        return f"{options.workers} process{'es' if options.workers > 1 else ''}"

    def run(self, job: RenderJob) -> None:
        """Render the shards of a job; the logs are named after this machine and the part."""
        prefix = f"worker-{platform.node()}-{job.options.part}"
        with job.open_pool(min(job.options.workers, job.images), prefix) as pool:
            job.render_with(pool)
