"""What the process of an encoder can reach, and what is left of it."""

from __future__ import annotations

import ctypes
import json
import multiprocessing as mp
import os
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from helpers.submissions import MARK, can_have_namespaces, codes_of, refusal, running

from threedident.evaluate.runner.process import run_encoder
from threedident.evaluate.submissions.submission import identify

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")


def can_close_files():
    return ctypes.CDLL(None).syscall(444, 0, 0, 1) >= 1


@pytest.mark.usefixtures("factories")
def test_a_factory_has_no_network(tmp_path, data):
    with socket.create_server(("127.0.0.1", 0)) as server:
        (tmp_path / "port").write_text(str(server.getsockname()[1]))
        if can_have_namespaces():
            said = refusal("mine:connects", data, trust=True)
            assert "mine:connects failed" in said
            assert "unreachable" in said or "refused" in said or "ermission" in said
            server.settimeout(0.1)
            with pytest.raises(TimeoutError):
                server.accept()


@pytest.mark.usefixtures("factories")
def test_a_factory_writes_nowhere_but_in_its_scratch_folder(tmp_path, data):
    before = {p.name for p in tmp_path.iterdir()}
    if can_close_files():
        said = refusal("mine:writes", data, trust=True)
        assert "mine:writes failed" in said
        assert "PermissionError" in said
    codes_of(identify("mine:writes_scratch", trust=True), data)
    assert {p.name for p in tmp_path.iterdir()} == before  # no __pycache__ either


@pytest.mark.usefixtures("factories")
def test_what_a_factory_starts_ends_with_it(data):
    if can_have_namespaces():
        codes_of(identify("mine:stays", trust=True), data)


def test_the_walls(tmp_path):
    """Of a stranger's file: what its process could read and write."""
    for folder in ("inside", "scratch"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text("x")
    (tmp_path / "secret").write_text("x")
    code = f"""
        import dataclasses, json, os
        from threedident.evaluate.runner import sandbox
        allowance = sandbox.Allowance(10**9, 10, ({str(tmp_path / "inside")!r},), ("scratch",))
        found = dataclasses.asdict(sandbox.enter(allowance))
        def attempt(what):
            try:
                what()
            except OSError as error:
                return type(error).__name__
        found["inside"] = attempt(lambda: open("inside/file").read())
        found["write inside"] = attempt(lambda: open("inside/new", "w"))
        found["secret"] = attempt(lambda: open("secret").read())
        found["list"] = attempt(lambda: os.listdir("."))
        found["run"] = attempt(lambda: os.execv("./secret", ["x"]))
        found["scratch"] = attempt(lambda: open("scratch/new", "w").write("x"))
        found["long"] = attempt(lambda: open("scratch/long", "wb", 0).write(b"x" * 11))
        found["unlink"] = attempt(lambda: os.unlink("secret"))
        found["null"] = attempt(lambda: open("/dev/null", "w"))
        import numpy
        found["pid"] = os.getpid()
        print(json.dumps(found))
        os._exit(3)
    """
    words = [sys.executable, "-P", "-c", textwrap.dedent(code)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    found = json.loads(done.stdout)
    assert found["network"] is can_have_namespaces()
    assert found["processes"] is can_have_namespaces()
    assert found["files"] is can_close_files()
    assert (found["pid"] == 2) is can_have_namespaces()
    assert (found["inside"], found["scratch"], found["null"]) == (None, None, None)
    if can_close_files():
        for name in ("write inside", "secret", "list", "run", "unlink"):
            assert found[name] == "PermissionError", name
    assert (tmp_path / "scratch" / "long").stat().st_size == 10


@pytest.mark.usefixtures("factories")
def test_an_evaluation_that_is_killed_leaves_no_process(data):
    mark, scratch = os.environ[MARK], Path(os.environ["TMPDIR"])
    sleeps = identify("mine:sleeps", trust=True)
    evaluation = mp.get_context("fork").Process(target=run_encoder, args=(sleeps, data))
    evaluation.start()
    while not list(scratch.iterdir()) or not running(mark):
        assert evaluation.is_alive()
        time.sleep(0.05)
    time.sleep(0.5)
    evaluation.kill()
    evaluation.join()
    patience = time.monotonic() + 10
    while running(mark) and time.monotonic() < patience:
        time.sleep(0.05)
    assert running(mark) == []
    assert len(list(scratch.iterdir())) == 1  # nobody was there to remove it, ...
    refusal("mine:nothing", data, trust=True)
    assert list(scratch.iterdir()) == []  # ... so the next evaluation does
