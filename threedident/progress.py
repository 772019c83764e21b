"""Progress of long work: a bar on a terminal, a line a minute elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

import rich.console
import rich.progress

_LINE_EVERY = 60.0  # seconds


def format_seconds(seconds: float) -> str:
    """A duration as 1:02:03, 2:03 or 3 s."""
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    if hours:
        return f"{hours}:{minutes:02d}:{rest:02d}"
    return f"{minutes}:{rest:02d}" if minutes else f"{rest} s"


class Progress:
    """Counts finished items of a total, with their rate and the time left; on stderr.

    Args:
        title: what is being done.
        total: how many items there are.
        finished: how many of them were there before; they do not count in the rate.
        unit: what an item is called.
    """

    def __init__(self, title: str, total: int, *, finished: int = 0, unit: str = "images") -> None:
        self._title, self._total, self._unit = title, total, unit
        self._before = self._done = finished
        self._start = self._line_at = time.monotonic()
        self._bar: rich.progress.Progress | None = None
        if sys.stderr.isatty():
            self._bar = rich.progress.Progress(
                rich.progress.TextColumn("{task.description}"),
                rich.progress.BarColumn(),
                rich.progress.MofNCompleteColumn(),
                rich.progress.TextColumn(f"{unit}  {{task.fields[speed]}}"),
                console=rich.console.Console(stderr=True),
            )
            self._task = self._bar.add_task(title, total=total, completed=finished, speed="")

    def __enter__(self) -> Progress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.stop()

    def note(self, message: str) -> None:
        """Prints a line without disturbing the bar."""
        if self._bar:
            self._bar.console.print(message, markup=False, highlight=False)
        else:
            self.print(message)

    def advance(self, count: int = 1, status: str = "") -> None:
        """Counts items as finished.

        Args:
            count: how many.
            status: what else there is to show at this moment.
        """
        self._done += count
        now = time.monotonic()
        new = self._done - self._before
        rate = new / max(now - self._start, 1e-9)
        left = format_seconds((self._total - self._done) / rate) if rate else "?"
        speed = f"{rate:.2f} {self._unit}/s, {left} left"
        if status:
            speed += f", {status}"
        if self._bar:
            self._bar.update(self._task, completed=self._done, speed=speed)
        elif now - self._line_at >= _LINE_EVERY:
            self._line_at = now
            self.print(f"{self._title}: {self._done} of {self._total} {self._unit}, {speed}")

    @staticmethod
    def print(message: str) -> None:
        """Prints a line on stderr."""
        print(message, file=sys.stderr, flush=True)
