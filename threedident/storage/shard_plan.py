"""Shards and the images that lie in them: intervals, file names, gaps, and missing images."""

from __future__ import annotations

import bisect
import dataclasses
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from threedident.defaults import RESOLUTION, SHARD_SIZE
from threedident.errors import DatasetError

_NAME = re.compile(r"shard-(\d{8,})-(\d{5,})\.h5")


@dataclasses.dataclass(frozen=True, order=True)
class Interval:
    """The images first..first + count - 1.

    Attributes:
        first: the number of the first image.
        count: the number of images.
    """

    first: int
    count: int

    @property
    def stop(self) -> int:
        """The number of the image after the last."""
        return self.first + self.count

    @property
    def indices(self) -> range:
        """The images' numbers."""
        return range(self.first, self.stop)

    @property
    def file_name(self) -> str:
        """The name of the shard's file."""
        return f"shard-{self.first:08d}-{self.count:05d}.h5"


def parse_name(name: str) -> Interval | None:
    """Parse a shard's file name into its images; None for the name of any other file."""
    match = _NAME.fullmatch(name)
    return Interval(int(match[1]), int(match[2])) if match else None


def list_shards(root: Path) -> dict[Interval, Path]:
    """List the shard files of a dataset directory, by first image; no image twice.

    Two runs at once, asked for different numbers of images, can leave shards that overlap.
    Their content is the same; the larger one is taken.
    """
    named = ((parse_name(path.name), path) for path in root.iterdir())
    shards = {interval: path for interval, path in named if interval is not None and interval.count}
    taken: list[Interval] = []
    for interval in sorted(shards, key=lambda i: (-i.count, i.first)):
        place = bisect.bisect(taken, interval)
        before = place == 0 or taken[place - 1].stop <= interval.first
        if before and (place == len(taken) or interval.stop <= taken[place].first):
            taken.insert(place, interval)
    return {interval: shards[interval] for interval in taken}


def gaps(shards: Iterable[Interval], total: int | None = None) -> list[tuple[int, int]]:
    """The images that are missing before and between shards, first to last of each gap.

    Args:
        shards: the shards, by first image.
        total: the number of images that there should be; None: those up to the last shard.
    """
    missing, position = [], 0
    for interval in shards:
        if interval.first > position:
            missing.append((position, interval.first - 1))
        position = max(position, interval.stop)
    if total is not None and position < total:
        missing.append((position, total - 1))
    return missing


def joined(stretches: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join stretches of images that touch, and sort them."""
    union: list[tuple[int, int]] = []
    for first, last in sorted(stretches):
        if union and first <= union[-1][1] + 1:
            union[-1] = (union[-1][0], max(last, union[-1][1]))
        else:
            union.append((first, last))
    return union


def name_stretches(stretches: Sequence[tuple[int, int]], most: int = 10) -> str:
    """Describe stretches of images in words: images 3, 10 to 19 and 40 to 41.

    Args:
        stretches: the first and the last image of each.
        most: the number of stretches that are named.
    """
    words = [f"{a}" if a == b else f"{a} to {b}" for a, b in stretches[:most]]
    if len(stretches) > most:
        words.append(f"{len(stretches) - most} more stretches")
    text = " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
    single = len(stretches) == 1 and stretches[0][0] == stretches[0][1]
    return f"{'image' if single else 'images'} {text}"


def require_complete(root: Path, shards: Iterable[Interval], cure: str) -> int:
    """The number of images, which must run from image 0 on without a gap.

    Args:
        root: the directory, for errors.
        shards: its shards, by first image.
        cure: the advice where images are missing, for the error.

    Raises:
        DatasetError: images are missing, or all are.
    """
    intervals = list(shards)
    missing = gaps(intervals)
    if missing:
        raise DatasetError(
            f"{root} lacks {name_stretches(missing)}: `3dident verify` says what else is wrong; "
            f"to complete it, {cure}"
        )
    if not intervals:
        raise DatasetError(f"{root} holds no finished shard yet: {cure}")
    return intervals[-1].stop


def missing_intervals(
    total: int,
    shard_size: int,
    finished: Iterable[Interval],
    *,
    part: int = 0,
    parts: int = 1,
) -> list[Interval]:
    """The images of 0..total - 1 that are still to render, in intervals of one shard each.

    The images are cut into cells of `shard_size`; cell c belongs to part c mod `parts`, so
    that the members of a job array agree on who does what, whatever is finished when they
    start. A cell that is finished in part (the dataset was smaller once) is completed by
    shards for the rest of it.

    Args:
        total: the number of images.
        shard_size: the images to a shard.
        finished: the shards that exist.
        part: the number of this part of the work.
        parts: the number of parts into which the work is cut.
    """
    cells: dict[int, list[Interval]] = {}
    for done in sorted(finished):
        for cell in range(done.first // shard_size, (done.stop - 1) // shard_size + 1):
            cells.setdefault(cell, []).append(done)
    missing = []
    for cell in range(part, -(-total // shard_size), parts):
        position, end = cell * shard_size, min((cell + 1) * shard_size, total)
        for done in cells.get(cell, []):
            if done.first > position:
                missing.append(Interval(position, min(done.first, end) - position))
            position = max(position, done.stop)
            if position >= end:
                break
        if position < end:
            missing.append(Interval(position, end - position))
    return missing


def default_shard_size(resolution: int) -> int:
    """Return the images to a shard by default: a hundred of 224 x 224, or about as many bytes."""
    return max(1, min(SHARD_SIZE, round(SHARD_SIZE * (RESOLUTION / resolution) ** 2)))
