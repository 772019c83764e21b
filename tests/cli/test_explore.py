"""The command explore: what it refuses, what it says, and how it ends."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest
from helpers.explorer import running


def children(pid):
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return [int(each) for each in listed.stdout.split()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal_which_ends_everything(number):
    with running() as (process, address):
        with urllib.request.urlopen(address, timeout=10) as answer:  # the socket waits for it
            assert b"<!doctype html>" in answer.read()
        below = children(process.pid)
        assert below
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{address.partition('?')[0]}api/state", b"{}", timeout=10)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 0 and out.rstrip().endswith("ended") and err == ""
    for pid in below:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_what_is_being_rendered_at_the_end_is_cut_off_without_a_word():
    body = {"generator": {"preset": "3dident"}, "values": [0] * 10, "factor": "x", "steps": 13}
    with running() as (process, address):
        base, _, token = address.partition("?token=")
        request = urllib.request.Request(
            f"{base}api/take-strip",
            json.dumps({**body, "resolution": 512}).encode(),
            {"Content-Type": "application/json", "Authorization": f"token {token}"},
        )

        def ask():
            with contextlib.suppress(OSError, http.client.HTTPException):
                urllib.request.urlopen(request, timeout=30)

        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(0.5)  # it takes some seconds
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        asking.join(30)
    assert process.returncode == 0 and out.rstrip().endswith("ended") and err == ""


def test_a_port_that_is_taken_is_refused_before_anything_starts(cli):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        said = cli("explore", "--no-browser", "--port", port, code=2).stderr
    assert f"port {port}" in said and "--port" in said and len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["nowhere"], "nowhere"),
        (["--preset", "nothing"], "unknown preset"),
        (["--material", "crystal"], "crystal"),
        (["--fix", "x=3"], "raw value in"),
        (["--host", "no.such.host.invalid"], "--host"),
        (["--host", ""], "--host is empty"),
        (["--host", "a" * 80 + "\u00e9"], "--host"),
        (["--device", "tpu"], "device must be one of"),
        (["--split", "train"], "dataset"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(cli, words, found):
    said = cli("explore", "--no-browser", "--port", 0, *words, code=2).stderr
    assert found in said and "Traceback" not in said
    assert len(said.splitlines()) == 1


def test_answers_are_sent_at_once():
    """Without TCP_NODELAY, which asyncio sets of sockets named as TCP, each waits for 40 ms."""
    from threedident.explore.app import listen

    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.proto == socket.IPPROTO_TCP


def test_an_encoder_that_does_not_fit_is_refused_before_the_page_opens(cli, tmp_path):
    (tmp_path / "none.onnx").write_text("no graph")
    said = cli("explore", "--no-browser", "--port", 0, "--encoder", "none.onnx", code=2).stderr
    assert "none.onnx" in said and len(said.splitlines()) == 1


def test_a_device_that_is_not_there_is_refused_before_the_page_opens(cli):
    from threedident.render.direct import engine

    if "cuda" in engine.available_devices():
        pytest.skip("there is one")
    said = cli("explore", "--no-browser", "--port", 0, "--device", "cuda", code=2).stderr
    assert "no cuda device" in said and len(said.splitlines()) == 1
