"""Progress of long work, as logs and terminals show it."""

from __future__ import annotations

import io
import re
import threading
import time
from collections.abc import Iterator
from contextlib import redirect_stderr

import pytest

from threedident import progress
from threedident.progress import Progress, format_roughly


class Log(io.StringIO):
    """A log file that one can wait for."""

    def wait_for(self, pattern: str) -> None:
        until = time.monotonic() + 20
        while not re.search(pattern, self.getvalue(), re.M):
            assert time.monotonic() < until, self.getvalue()
            time.sleep(0.005)


class Terminal(Log):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    monkeypatch.setattr(progress, "SHORT", 0.01)
    monkeypatch.setattr(progress, "LINE_EVERY", 0.05)
    monkeypatch.setattr(progress, "FORECAST_AFTER", 0.02)
    stream = Log()
    before = threading.active_count()
    yield stream
    until = time.monotonic() + 20  # the bar's own thread ends when it wakes up
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.005)
    assert threading.active_count() == before


def test_a_log_has_a_line_at_the_start_one_a_minute_and_one_at_the_end(log):
    with redirect_stderr(log), Progress("training", 10, unit="steps") as shown:
        log.wait_for("^training: 0 of 10 steps$")
        shown.advance(3, status="loss 1.234")
        log.wait_for(r"^training: 3 of 10 steps, \d+\.\d\d steps/s, .* left, loss 1.234")
        shown.advance(7, status="loss 0.5")
    assert re.fullmatch(
        r"training: finished 10 of 10 steps in \d s", log.getvalue().split("\n")[-2]
    )


def test_work_that_hangs_goes_on_printing(log):
    with pytest.raises(KeyboardInterrupt), redirect_stderr(log), Progress("rendering", 9) as shown:
        shown.advance(4)
        log.wait_for(r"^rendering: 4 of 9 images, .* \(none for \d s\)\n(.*\n)*.*\(none for")
        raise KeyboardInterrupt
    assert "rendering: ended with 4 of 9 images in " in log.getvalue().split("\n")[-2]


def test_what_was_there_before_does_not_count_in_the_rate(log):
    with redirect_stderr(log), Progress("rendering", 900, finished=800) as shown:
        log.wait_for("^rendering: 800 of 900 images$")
        log.wait_for(r"^rendering: 800 of 900 images, 0.00 images/s, \? left")
        shown.advance()


def test_short_work_prints_nothing(log, monkeypatch):
    monkeypatch.setattr(progress, "SHORT", 1000.0)
    with redirect_stderr(log), Progress("verifying", 2) as shown:
        shown.advance(2)
    assert not log.getvalue()


def test_the_first_items_say_how_long_all_of_it_will_take(log):
    with redirect_stderr(log), Progress("rendering", 10**9, forecast=True) as shown:
        shown.advance()
        log.wait_for(r"^about [\d.]+ (hours|days) to go, by the first 1 images in \d s$")
    assert log.getvalue().count("to go") == 1


def test_a_terminal_has_a_bar_and_the_forecast_but_no_lines(log):
    terminal = Terminal()
    with redirect_stderr(terminal), Progress("rendering", 10**9, forecast=True) as shown:
        shown.advance()
        terminal.wait_for("to go, by the first 1 images")
    assert "rendering:" not in terminal.getvalue()


def test_a_closed_log_is_no_fault_of_the_work(log):
    with redirect_stderr(log), Progress("rendering", 5) as shown:
        log.wait_for("0 of 5")
        log.write = lambda text: (_ for _ in ()).throw(BrokenPipeError())  # type: ignore[method-assign]
        time.sleep(0.1)
        shown.advance(5)
        shown.note("a remark")  # nor are what is said on the way and at the end
    del log.write  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 seconds"),
        (50, "50 seconds"),
        (100, "1.7 minutes"),
        (86_000, "24 hours"),
        (270_000, "3.1 days"),
        (1e8, "1157 days"),
    ],
)
def test_durations_are_said_as_one_would(seconds, text):
    assert format_roughly(seconds) == text
