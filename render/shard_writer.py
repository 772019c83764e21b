"""Buffers for shards whose images are coming in, and the writer that makes files of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from threedident.errors import RenderError
from threedident.render.executors.process_pool import Done, Failed, Task
from threedident.render.scene import SceneBuilder
from threedident.storage.directory import LOGS
from threedident.storage.shard_plan import Interval
from threedident.storage.shards import write_shard
from threedident.storage.statistics import ImageSums
from threedident.version import toolkit_version

if TYPE_CHECKING:
    from pathlib import Path

    from threedident.causal import Draws
    from threedident.render.job import RenderJob

Array = npt.NDArray[Any]

GIVE_UP = 20  # images that fail in a row, each three times


class ShardBuffer:
    """The images of one shard, as they come in.

    Attributes:
        interval: the numbers of its images.
        raw_latents: their raw latents, (N, 10).
        latents: their scene values, (N, 10).
        rows: what engines render of them, (N, W); `latents`, unless a model's scene has more.
        draws: what was drawn of a causal model; None where there is none.
        images: the images, (N, H, W, 3) uint8; those that are missing hold anything.
    """

    def __init__(
        self,
        interval: Interval,
        raw: Array,
        latents: Array,
        rows: Array,
        draws: Draws | None,
        resolution: int,
    ) -> None:
        self.interval = interval
        self.raw_latents, self.latents, self.rows, self.draws = raw, latents, rows, draws
        self.images = np.empty((interval.count, resolution, resolution, 3), np.uint8)
        self._finished = np.zeros(interval.count, bool)
        self._failed = 0

    def put(self, index: int, image: npt.NDArray[np.uint8]) -> None:
        """Take in a finished image by its number in the dataset."""
        offset = index - self.interval.first
        self.images[offset] = image
        self._finished[offset] = True

    def give_up_one(self) -> None:
        """Count an image that could not be rendered."""
        self._failed += 1

    @property
    def is_complete(self) -> bool:
        """Whether every image is finished or given up."""
        return int(self._finished.sum()) + self._failed == self.interval.count

    def stretches(self) -> list[tuple[int, int]]:
        """The stretches of finished images: offset of the first, and count."""
        edges = np.flatnonzero(np.diff(np.concatenate([[False], self._finished, [False]])))
        return [(int(a), int(b - a)) for a, b in edges.reshape(-1, 2)]


class ShardWriter:
    """A writer that hands out the tasks of a job and writes each shard when it is complete."""

    def __init__(self, job: RenderJob) -> None:
        self._job = job
        self._builder = SceneBuilder(job.settings.preset)
        self._buffers: list[ShardBuffer] = []
        self._buffer_of: dict[int, ShardBuffer] = {}
        self._failed_in_a_row = 0
        self._provenance = {
            "device": job.settings.device,
            "engine_version": job.settings.version,
            "toolkit_version": toolkit_version(),
            "processor": job.processor,
        }

    def tasks(self) -> Iterator[Task]:
        """Yield a task for every image of the job; a shard's buffer exists from its first on."""
        settings = self._job.settings
        for interval in self._job.todo:
            dataset = self._job.dataset
            draws = dataset.draws(interval.indices)
            raw = dataset.raw_latents(interval.indices, draws)
            latents = settings.preset.to_scene(raw)
            rows = dataset.manifest.scene_rows(latents, draws)
            buffer = ShardBuffer(interval, raw, latents, rows, draws, settings.resolution)
            self._buffers.append(buffer)
            self._buffer_of |= dict.fromkeys(interval.indices, buffer)
            for offset in range(interval.count):
                yield Task(interval.first + offset, rows[offset])

    def take(self, result: Done | Failed) -> None:
        """Take in a result; write its shard if that is complete.

        Raises:
            DatasetError: the disk is full or cannot be written to.
            RenderError: images fail one after the other.
        """
        buffer = self._buffer_of.pop(result.index)
        if isinstance(result, Failed):
            self._job.fail(result)
            buffer.give_up_one()
            self._failed_in_a_row += 1
        else:
            buffer.put(result.index, result.image)
            self._failed_in_a_row = 0
            self._job.progress.advance()
        if buffer.is_complete:
            # One stretch, the whole shard, unless an image in it has failed for good.
            for offset, count in buffer.stretches():
                self._write(buffer, offset, count)
            self._buffers.remove(buffer)
        if self._failed_in_a_row >= GIVE_UP and isinstance(result, Failed):
            raise all_fail(self._job.dataset.root, result.reason)

    def write_beginnings(self) -> None:
        """Write what is finished of the open shards, each from its first image on.

        Raises:
            DatasetError: the disk is full or cannot be written to.
        """
        for buffer in self._buffers:
            for offset, count in buffer.stretches()[:1]:
                if offset == 0:
                    self._write(buffer, offset, count)

    def _write(self, buffer: ShardBuffer, offset: int, count: int) -> None:
        window = slice(offset, offset + count)
        images = buffer.images[window]
        manifest = self._job.dataset.manifest
        write_shard(
            self._job.dataset.root,
            Interval(buffer.interval.first + offset, count),
            images=images,
            raw_latents=buffer.raw_latents[window],
            latents=buffer.latents[window],
            sums=ImageSums.of(images, self._builder.share_in_frame(buffer.rows[window])),
            fingerprint=manifest.fingerprint,
            provenance=self._provenance,
            compression=manifest.compression,
            draws=None if buffer.draws is None else buffer.draws[window],
        )
        self._job.summary.rendered += count


def all_fail(root: Path, reason: str) -> RenderError:
    """Make the error of a job whose images fail one after the other."""
    return RenderError(
        f"{GIVE_UP} images in a row could not be rendered, the last because: {reason}. Something "
        f"is wrong with all of them; the output of the render processes is in {root / LOGS}"
    )
