"""Processors, processes, signals, scratch folders and digests."""

from __future__ import annotations

import hashlib
import os
import platform
import signal
import subprocess
import sys
import threading

import pytest

from threedident.system import (
    file_digest,
    is_running,
    keep_freed_memory,
    leftovers,
    make_scratch,
    processor_name,
    stop_on_signals,
    usable_processors,
)


def _gone() -> int:
    """The number of a process that has ended and been waited for."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_processors_are_those_that_the_process_may_use():
    assert 1 <= usable_processors() <= (os.cpu_count() or 1)
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert usable_processors() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert processor_name()


def test_a_process_runs_until_it_has_ended():
    assert is_running(os.getpid())
    assert is_running(1)  # another user's, mostly
    assert not is_running(_gone())
    assert not is_running(10**30)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_sets_the_event_and_the_second_interrupts(first, second):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt), stop_on_signals() as stop:
        assert not stop.is_set()
        os.kill(os.getpid(), first)
        assert stop.is_set()
        os.kill(os.getpid(), second)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_another_thread_leaves_the_handlers_alone():
    before = signal.getsignal(signal.SIGINT)
    found = []

    def work() -> None:
        with stop_on_signals() as stop:
            found.append((signal.getsignal(signal.SIGINT), stop.is_set()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(before, False)]


def test_scratch_folders_of_dead_processes_are_removed(tmp_path):
    dead = tmp_path / f"scratch-{_gone()}-abc"
    (dead / "inner").mkdir(parents=True)
    others = [tmp_path / name for name in ("scratch-x-abc", "scratch-", "scratch-2x-a", "else-1")]
    mine = make_scratch("scratch-", tmp_path)
    for path in others:
        path.mkdir()
    second = make_scratch("scratch-", tmp_path)
    assert not dead.exists()
    assert mine.is_dir() and second.is_dir() and mine != second
    assert mine.name.startswith(f"scratch-{os.getpid()}-")
    assert all(path.is_dir() for path in others)
    assert list(leftovers(tmp_path, "scratch-")) == []


def test_the_digest_of_a_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abc" * 100_000)
    assert file_digest(path) == hashlib.sha256(path.read_bytes()).hexdigest()
    assert file_digest(path, "md5") == hashlib.md5(path.read_bytes()).hexdigest()
    with pytest.raises(FileNotFoundError):
        file_digest(tmp_path / "none")


_FAULTS = """
import resource, sys
from threedident.system import keep_freed_memory

if sys.argv[1] == "kept":
    assert keep_freed_memory()
for _ in range(20):
    bytearray(2**26)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
def test_memory_that_is_kept_is_not_waited_for_again():
    default, kept = (
        int(subprocess.check_output([sys.executable, "-c", _FAULTS, name]))
        for name in ("default", "kept")
    )
    assert kept < default / 3, (default, kept)


def test_a_c_library_without_the_setting_keeps_nothing(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert not keep_freed_memory()
