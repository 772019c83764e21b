"""The progress of long work: a bar on a terminal, a line a minute elsewhere."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from types import TracebackType

import rich.console
import rich.progress

#: Seconds. Shorter work prints no line where there is no terminal.
SHORT = 2.0
#: Seconds between two lines where there is no terminal.
LINE_EVERY = 60.0
#: Seconds of work before it is said how long all of it will take.
FORECAST_AFTER = 30.0
#: Until the first item is finished takes longer: start-up, and all processes at once. How many
#: times as long as that the work must have taken by then.
FORECAST_AFTER_FIRST = 3.0


def format_seconds(seconds: float) -> str:
    """Format a duration as 1:02:03, 2:03 or 3 s."""
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    if hours:
        return f"{hours}:{minutes:02d}:{rest:02d}"
    return f"{minutes}:{rest:02d}" if minutes else f"{rest} s"


def format_roughly(seconds: float) -> str:
    """Format a duration in the unit that one would say: 50 seconds, 24 hours, 3.1 days."""
    units = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400}
    most = {"seconds": 90, "minutes": 90, "hours": 48, "days": math.inf}
    unit = next(unit for unit in units if seconds < most[unit] * units[unit])
    value = seconds / units[unit]
    return f"{value:.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"


def format_bytes(size: float) -> str:
    """Format a size as 37.7 GB or 61.6 kB."""
    unit, length = next((u for u in (("GB", 1e9), ("MB", 1e6)) if size >= u[1]), ("kB", 1e3))
    return (
        f"{size / length:,.0f} {unit}" if size >= 1000 * length else f"{size / length:.3g} {unit}"
    )


class Progress:
    """A display of finished items of a total, with their rate and the time left, on stderr.

    On a terminal it is a bar. Elsewhere it is a line at the start, one a minute whether or not
    anything was finished in it, and one at the end; nothing where all is done in two seconds.

    Args:
        title: the name of the work.
        total: the number of items.
        finished: the number of items that were finished before; they do not count in the rate.
        unit: the name of the items, in the plural.
        forecast: whether to say, after the first half minute, how long all of it will take.
    """

    def __init__(
        self,
        title: str,
        total: int,
        *,
        finished: int = 0,
        unit: str = "images",
        forecast: bool = False,
    ) -> None:
        self._title, self._total, self._unit = title, total, unit
        self._before = self._done = finished
        self._start = self._last = time.monotonic()
        self._first: float | None = None
        self._status = ""
        self._forecast = forecast
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
        self._lines = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Progress:
        if self._bar:
            self._bar.start()
        if self._bar is None or self._forecast:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._bar:
            self._bar.stop()
        elif self._lines:
            took = format_seconds(time.monotonic() - self._start)
            what = "finished" if self._done >= self._total else "ended with"
            self.print(f"{self._title}: {what} {self._count()} in {took}")

    def note(self, message: str) -> None:
        """Print a line without disturbing the bar."""
        if self._bar:
            self._bar.console.print(message, markup=False, highlight=False)
        else:
            self.print(message)

    def advance(self, count: int = 1, status: str = "") -> None:
        """Count items as finished.

        Args:
            count: the number of items.
            status: more to show at this moment, beside the rate.
        """
        self._last = time.monotonic()
        if self._first is None:
            self._first = self._last
        self._status = status
        self._done += count
        if self._bar:
            self._bar.update(self._task, completed=self._done, speed=self._speed(self._last))

    def _count(self) -> str:
        return f"{self._done} of {self._total} {self._unit}"

    def _seconds_left(self, now: float) -> float | None:
        new = self._done - self._before
        return (self._total - self._done) * (now - self._start) / new if new > 0 else None

    def _speed(self, now: float) -> str:
        rate = (self._done - self._before) / max(now - self._start, 1e-9)
        left = self._seconds_left(now)
        speed = f"{rate:.2f} {self._unit}/s, {'?' if left is None else format_seconds(left)} left"
        return f"{speed}, {self._status}" if self._status else speed

    def _watch(self) -> None:
        """Print the lines that are due, in a thread of its own: the work may hang."""
        line_at = self._start + SHORT
        while not self._end.wait(min(1.0, SHORT, LINE_EVERY)):
            now = time.monotonic()
            # A terminal that is gone is no fault of the work.
            with contextlib.suppress(OSError, ValueError):
                if self._bar is None and now >= line_at:
                    line_at = now + LINE_EVERY
                    self._print_line(now)
                self._print_forecast(now)

    def _print_line(self, now: float) -> None:
        line = f"{self._title}: {self._count()}"
        if self._lines or self._done > self._before:
            line += f", {self._speed(now)}"
        if self._lines and now - self._last >= LINE_EVERY:
            line += f" (none for {format_seconds(now - self._last)})"
        self._lines += 1
        self.print(line)

    def _print_forecast(self, now: float) -> None:
        left = self._seconds_left(now)
        if not self._forecast or left is None or self._first is None:
            return
        until_first = self._first - self._start
        if now - self._start >= max(FORECAST_AFTER, FORECAST_AFTER_FIRST * until_first):
            self._forecast = False
            new = self._done - self._before
            self.note(
                f"about {format_roughly(left)} to go, by the first {new} {self._unit} "
                f"in {format_seconds(now - self._start)}"
            )

    @staticmethod
    def print(message: str) -> None:
        """Print a line on stderr; where nobody can read it, the work goes on all the same."""
        with contextlib.suppress(OSError, ValueError):
            # In one piece: other threads and processes print as well.
            sys.stderr.write(message + "\n")
            sys.stderr.flush()
