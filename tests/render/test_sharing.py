"""Several processes at one dataset: locks, and the number of images that it shall have."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import multiprocessing
import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.renders import QUICK, RENDER, same, start

from threedident.errors import DatasetError, UsageError
from threedident.storage import locks
from threedident.storage.directory import DatasetDir


def _ask_for(root: Path, counts: list[int]) -> None:
    dataset = DatasetDir.open(root)
    for count in counts:
        dataset.record_wanted(count)


def test_the_largest_number_of_images_ever_asked_for_is_recorded(cli, tmp_path):
    root = tmp_path / "d"
    words = ("render", *QUICK, "--out", "d", "--n")
    cli(*words, 2)
    dataset = DatasetDir.open(root)
    assert dataset.wanted() == 2
    (root / "wanted.json").unlink()
    assert dataset.wanted() is None  # as in datasets of older versions
    manifest = (root / "dataset.json").read_text()
    for asked, wanted in ((4, 4), (3, 4)):
        cli(*words, asked)
        assert dataset.wanted() == wanted
    assert (root / "dataset.json").read_text() == manifest
    # An estimate asks for nothing.
    cli(*words, 5, "--estimate")
    assert dataset.wanted() == 4
    cli("verify", "d", "--n", 4)


def test_members_of_a_job_array_lose_no_number_of_images(tmp_path, small_dataset):
    root = tmp_path / "d"
    shutil.copytree(small_dataset, root)
    # Each asks for more and more; the largest of all comes from one of them alone.
    processes = [
        multiprocessing.get_context("fork").Process(
            target=_ask_for, args=(root, list(range(100 + k, 400, 7)))
        )
        for k in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert DatasetDir.open(root).wanted() == 397


@pytest.mark.parametrize(
    "text", ["{", "[1]", '{"images": 0}', '{"images": true}', "{}", '{"images": 1%s}' % ("0" * 30)]
)
def test_a_damaged_record_of_the_number_of_images_is_named(cli, tmp_path, small_dataset, text):
    shutil.copytree(small_dataset, tmp_path / "d")
    (tmp_path / "d/wanted.json").write_text(text)
    said = cli(*RENDER, "--n", 12, "--out", "d", code=2).stderr
    assert "wanted.json" in said
    assert "remove it" in said
    (tmp_path / "d/wanted.json").unlink()
    cli(*RENDER, "--n", 12, "--out", "d")
    assert DatasetDir.open(tmp_path / "d").wanted() == 12


def test_members_of_a_job_array(cli, tmp_path, small_dataset):
    members = [
        start(*RENDER, "--n", 12, "--out", "d", "--shard", f"{i}/3", cwd=tmp_path) for i in range(3)
    ]
    for member in members:
        out, err = member.communicate(timeout=200)
        assert member.returncode == 0, out + err
    assert same(tmp_path / "d", small_dataset)
    assert json.loads((tmp_path / "d/stats.json").read_text())["images"] == 12
    cli("verify", "d", "--n", 12)


def test_a_second_render_of_the_same_images_stops_and_says_so(cli, tmp_path):
    words = ("render", *QUICK, "--shard-size", 5, "--out", "d")
    first = start(*words, "--n", 100_000, "--shard", "0/2", cwd=tmp_path)
    while not list((tmp_path / "d").glob("shard-*")):
        assert first.poll() is None
        time.sleep(0.05)
    for options in ((), ("--shard", "1/3")):
        said = cli(*words, "--n", 10, *options, code=2).stderr
        assert f"another process writes to d (--shard 0/2): pid {first.pid} on " in said
        assert re.search(r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", said)
        assert "To share the work, start all of them with --shard I/K" in said
    # Others share the work.
    assert "of them new" in cli(*words, "--n", 10, "--shard", "1/2").stdout
    assert (tmp_path / "d/shard-00000005-00005.h5").exists()
    assert first.poll() is None
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    assert "0 of them new" in cli(*words, "--n", 10).stdout
    assert not list((tmp_path / "d").glob(".render-*"))


def test_parts_share_a_dataset_just_where_they_share_no_shard(tmp_path, small_dataset):
    shutil.copytree(small_dataset, tmp_path / "d")
    dataset = DatasetDir.open(tmp_path / "d")
    parts = [(i, k) for k in (1, 2, 3, 4, 6) for i in range(k)]
    for part, count in parts:
        with dataset.only_render(part, count):
            for other, its in parts:
                shared = any(n % count == part and n % its == other for n in range(count * its))
                with contextlib.ExitStack() as stack:
                    if shared:
                        stack.enter_context(pytest.raises(UsageError, match="another process"))
                    stack.enter_context(dataset.only_render(other, its))
    assert not list((tmp_path / "d").glob(".render-*"))


def test_statistics_do_not_chase_a_process_that_is_at_work(tmp_path, small_dataset, monkeypatch):
    shutil.copytree(small_dataset, tmp_path / "d")
    dataset = DatasetDir.open(tmp_path / "d")
    listed = []

    def shards():  # another one each time
        listed.append(None)
        return {len(listed): tmp_path}

    monkeypatch.setattr(dataset, "shards", shards)
    monkeypatch.setattr(dataset, "compute_stats", lambda: {"images": len(listed)})
    with dataset.only_render(1, 2):
        assert dataset.write_stats() == {"images": 1}
    # Nobody is at work: it looks until nothing has changed.
    stable = iter([{1: tmp_path}, {2: tmp_path}, {2: tmp_path}, {2: tmp_path}])
    monkeypatch.setattr(dataset, "shards", lambda: next(stable))
    dataset.write_stats()
    assert list(stable) == []
    assert not list((tmp_path / "d").glob(".render-*"))


def _try_to_hold(root: Path, parts: int, ready: Any, done: Any, won: Any) -> None:
    dataset = DatasetDir.open(root)
    ready.wait(60)
    try:
        with dataset.only_render(0, parts):
            won.put(os.getpid())
            done.wait(60)
    except UsageError:
        done.wait(60)


def test_of_renders_that_start_together_exactly_one_wins(tmp_path, small_dataset):
    shutil.copytree(small_dataset, tmp_path / "d")
    context = multiprocessing.get_context("fork")
    for _ in range(10):
        ready, done, won = context.Barrier(6), context.Barrier(6), context.Queue()
        processes = [
            # All want the first shard, each with others.
            context.Process(target=_try_to_hold, args=(tmp_path / "d", 1 + k, ready, done, won))
            for k in range(6)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
            assert process.exitcode == 0
        assert won.get(timeout=10) in {process.pid for process in processes}
        assert won.empty()


def test_a_disk_without_locks_can_be_rendered_to(cli, tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    cli("render", *QUICK, "--n", 2, "--out", "d")
    dataset = DatasetDir.open(tmp_path / "d")
    with dataset.only_render(), dataset.only_render():
        cli("render", *QUICK, "--n", 3, "--out", "d")
    assert dataset.wanted() == 3


def test_a_network_disk_that_locks_only_what_is_open_for_writing(
    tmp_path, small_dataset, monkeypatch
):
    """As Linux does over NFS, see flock(2)."""
    real_flock = fcntl.flock

    def flock(file: Any, operation: int) -> None:
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        real_flock(file, operation)

    monkeypatch.setattr("fcntl.flock", flock)
    shutil.copytree(small_dataset, tmp_path / "d")
    dataset = DatasetDir.open(tmp_path / "d")
    with (
        dataset.only_render(),
        pytest.raises(UsageError, match="another process writes"),
        dataset.only_render(),
    ):
        pass
    with dataset.only_render(1, 2):
        pass


def test_more_than_can_be_had_is_not_recorded_as_wanted(cli, tmp_path, small_dataset, monkeypatch):
    shutil.copytree(small_dataset, tmp_path / "d")
    full = shutil.disk_usage(tmp_path)._replace(free=2000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    said = cli(*RENDER, "--n", 1000, "--out", "d", code=2).stderr
    assert "the disk is too full" in said
    assert DatasetDir.open(tmp_path / "d").wanted() == 12
    assert "all is well" in cli("verify", "d").stdout


def test_a_number_that_was_too_large_can_be_taken_back(cli, tmp_path, small_dataset):
    shutil.copytree(small_dataset, tmp_path / "d")
    DatasetDir.open(tmp_path / "d").record_wanted(5000)
    advice = "if fewer than 5,000 images are wanted: remove d/wanted.json"
    assert advice in cli("info", "d").stdout
    (tmp_path / "d/wanted.json").unlink()
    assert "all is well" in cli("verify", "d").stdout


def test_a_lock_that_nobody_lets_go_of_is_named(tmp_path, small_dataset, monkeypatch):
    shutil.copytree(small_dataset, tmp_path / "d")
    monkeypatch.setattr(locks, "_PATIENCE", 0.05)
    dataset = DatasetDir.open(tmp_path / "d")
    with (tmp_path / "d/.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(DatasetError, match=r"\.lock stays locked by another process"):
            dataset.record_wanted(100)


def test_two_runs_at_once_with_different_numbers(cli, tmp_path, small_dataset):
    cli(*RENDER, "--n", 12, "--out", "d")
    # The shorter run's last shard, beside the longer run's: 10-11 within 10-14.
    cli(*RENDER, "--n", 15, "--out", "f")
    short = "shard-00000010-00002.h5"
    shutil.copy(tmp_path / "d" / short, tmp_path / "f" / short)
    assert (tmp_path / "f" / "shard-00000010-00005.h5").exists()
    cli("verify", "f", "--n", 15)
    assert "15 images, 0 of them new" in cli(*RENDER, "--n", 15, "--out", "f").stdout
    cli("pack", "f", "--out", "f.h5")
    assert json.loads(cli("stats", "f").stdout)["images"] == 15
