"""Fetching the published release, from a server on this machine that answers as Zenodo does."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import io
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import tarfile
import threading
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import command

from threedident.datasets import zenodo as fetching
from threedident.datasets.formats import open_dataset
from threedident.datasets.formats import png_folder as published
from threedident.errors import DatasetError


class Server(http.server.ThreadingHTTPServer):
    """Answers for one record.

    Attributes:
        contents: bytes by file name.
        entries: the record's list of files.
        answers: what to send for a path instead: (status, headers, body); taken from the front.
        ranges: whether it knows Range.
        drops: after how many bytes of an answer to close the connection, for each answer.
        pause: seconds before each 16 KB.
        asked: path, Range header and bytes sent, of each request.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.contents, self.entries, self.answers = {}, [], {}
        self.ranges, self.drops, self.pause, self.asked = True, [], 0.0, []
        self.api = f"http://127.0.0.1:{self.server_port}/api"

    def add(self, name, content, **changes):
        self.contents[name] = content
        entry = {
            "key": name,
            "size": len(content),
            "checksum": f"md5:{hashlib.md5(content).hexdigest()}",
            "links": {"self": f"{self.api}/records/7/files/{name}/content"},
        }
        self.entries.append({**entry, **changes})

    def fetched(self):
        """Range header and bytes sent, of each request for a file."""
        return [(asked, sent) for path, asked, sent in self.asked if "/files/" in path]

    def handle_error(self, request, client_address):
        pass


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        server, asked = self.server, self.headers.get("Range")
        status, headers, body = self.answer(server, asked)
        limit = len(body)
        if "/files/" in self.path and server.drops:
            limit = min(limit, server.drops.pop(0))
        record = [self.path, asked, 0]
        server.asked.append(record)  # before its bytes are sent, or the client may be quicker
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        for first in range(0, limit, 1 << 14):
            time.sleep(server.pause)
            piece = body[first : min(first + (1 << 14), limit)]
            record[2] += len(piece)
            self.wfile.write(piece)
        self.close_connection = limit < len(body)

    def answer(self, server, asked):
        if server.answers.get(self.path):
            return server.answers[self.path].pop(0)
        if self.path == "/api/records/7":
            kind = {"Content-Type": "application/json"}
            return 200, kind, json.dumps({"id": 7, "files": server.entries}).encode()
        name = self.path.split("/")[-2]
        if "/files/" not in self.path or name not in server.contents:
            return 404, {}, b'{"status": 404, "message": "PID does not exist."}'
        content = server.contents[name]
        if asked and server.ranges:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                return 416, {"Content-Range": f"bytes */{len(content)}"}, b""
            span = f"bytes {start}-{len(content) - 1}/{len(content)}"
            return 206, {"Content-Range": span}, content[start:]
        return 200, {}, content


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(fetching, "_FIRST_WAIT", 0.01)
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def fetch(server, out, record=7, **options):
    """What the command does, in this process."""
    with fetching.open_session() as session:
        files = fetching.list_record(session, record, server.api)
        return fetching.download(session, files, out, **{"remove_archives": False, **options})


@pytest.fixture(scope="module")
def layout(tmp_path_factory) -> Path:
    """A published layout of twelve images."""
    root = tmp_path_factory.mktemp("layout") / "test"
    (root / "images").mkdir(parents=True)
    rng = np.random.default_rng(0)
    raw = rng.uniform(-1, 1, (12, 10)).astype(np.float32)
    for i in range(12):
        pixels = rng.integers(0, 256, (64, 64, 3), np.uint8)
        published.write_image(root / "images" / published.image_name(i, 12), pixels)
    published.write_latents(root, raw, 3 * raw)
    return root


def packed(layout, mode):
    """An archive of a layout, as `3dident/test/...`."""
    content = io.BytesIO()
    if mode == "zip":
        with zipfile.ZipFile(content, "w") as archive:
            for path in [layout, *sorted(layout.rglob("*"))]:
                archive.write(path, Path("3dident/test") / path.relative_to(layout))
    else:
        with tarfile.open(fileobj=content, mode=mode) as archive:
            archive.add(layout, "./3dident/test")
    return content.getvalue()


@pytest.fixture(scope="module")
def tar(layout):
    return packed(layout, "w:")


def noise(size):
    return np.random.default_rng(1).integers(0, 256, size, np.uint8).tobytes()


def everything_below(root):
    return {p.relative_to(root).as_posix() for p in root.rglob("*")}


def test_a_release_is_fetched_and_unpacked_once(cli, tmp_path, server, layout, tar):
    server.add("3dident_test.tar", tar)
    server.add("readme.txt", b"hello")
    listed = cli("download", "--record", 7, "--api", server.api, "--list").stdout
    assert [line.split() for line in listed.splitlines()] == [
        [f"{len(tar) / 1e6:.1f}", "MB", "3dident_test.tar"],
        ["0.0", "MB", "readme.txt"],
    ]
    assert not server.fetched()
    words = ("download", "--record", 7, "--api", server.api, "--out", "my release")
    said = cli(*words).stdout
    assert "3dident_test.tar: 0.2 MB, checksum as recorded" in said
    assert "3dident compare-release 'my release/3dident_test/3dident/test'" in said
    out = tmp_path / "my release"
    with (
        open_dataset(out / "3dident_test/3dident/test") as source,
        open_dataset(layout) as original,
    ):
        assert np.array_equal(source.raw_latents, original.raw_latents)
        for i in range(12):
            assert np.array_equal(source.image(i), original.image(i))
    assert {p.name for p in out.iterdir()} == {"3dident_test", "3dident_test.tar", "readme.txt"}
    assert "12 images" in cli("info", "my release/3dident_test/3dident/test").stdout

    before, asked = everything_below(out), len(server.fetched())
    image = out / "3dident_test/3dident/test/images/03.png"
    kept = image.stat().st_mtime_ns
    said = cli(*words).stdout
    assert "everything is there already" in said
    assert "3dident info 'my release/3dident_test/3dident/test'" in said
    assert (everything_below(out), len(server.fetched())) == (before, asked)
    assert image.stat().st_mtime_ns == kept
    cli(*words, "--remove-archives")
    assert not (out / "3dident_test.tar").exists()
    assert "everything is there already" in cli(*words).stdout


@pytest.mark.parametrize("ending", ["zip", "tar.gz", "tgz", "tar.bz2", "tar.xz"])
def test_kinds_of_archives(tmp_path, server, layout, ending):
    mode = {"zip": "zip", "tgz": "w:gz"}.get(ending, f"w:{ending[4:]}")
    server.add(f"a.{ending}", packed(layout, mode))
    fetch(server, tmp_path / "out", remove_archives=True)
    assert fetching.find_layouts(tmp_path / "out") == [tmp_path / "out/a/3dident/test"]
    with open_dataset(tmp_path / "out/a/3dident/test") as source:
        assert len(source) == 12
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["a"]
    assert fetch(server, tmp_path / "out") == []


def test_only_some_files(cli, tmp_path, server, tar):
    server.add("a.tar", tar)
    server.add("b.txt", b"b")
    words = ("download", "--record", 7, "--api", server.api)
    said = cli(*words, "--out", "d", "--files", "b.txt").stdout
    assert "no published layout" in said
    assert [p.name for p in (tmp_path / "d").iterdir()] == ["b.txt"]
    assert (
        "no file 'c.txt': it has a.tar, b.txt"
        in cli(*words, "--out", "d", "--files", "c.txt", code=2).stderr
    )
    assert "--out is missing" in cli(*words, code=2).stderr
    assert "--api expects" in cli("download", "--api", "zenodo", "--list", code=2).stderr


def test_a_dropped_connection_goes_on(tmp_path, server, capsys):
    content = noise(400_000)
    server.add("a.bin", content)
    server.drops = [200_000, 100_000]
    fetch(server, tmp_path)
    assert (tmp_path / "a.bin").read_bytes() == content
    (_, first), (second, _), (third, rest) = server.fetched()
    start, last = (int(re.fullmatch(r"bytes=(\d+)-", text)[1]) for text in (second, third))
    assert 0 < start <= first == 200_000
    assert start < last <= start + 100_000
    assert rest == len(content) - last
    assert "trying again in 0.01 s" in capsys.readouterr().err
    assert everything_below(tmp_path) == {"a.bin"}


def test_many_drops_are_no_reason_to_give_up(tmp_path, server):
    content = noise(700_000)
    server.add("a.bin", content)
    server.drops = [100_000] * 8
    fetch(server, tmp_path)
    assert len(server.fetched()) > 6
    assert (tmp_path / "a.bin").read_bytes() == content


def test_giving_up_keeps_what_there_is(tmp_path, server):
    server.add("a.bin", noise(300_000))
    server.drops = [150_000, *[0] * 20]
    with pytest.raises(DatasetError, match=r"broke, 5 times in a row. Run the same command again"):
        fetch(server, tmp_path)
    part = tmp_path / ".a.bin.part"
    have = part.stat().st_size
    assert 0 < have <= 150_000
    server.drops, server.asked = [], []
    fetch(server, tmp_path)
    assert server.fetched() == [(f"bytes={have}-", 300_000 - have)]


def test_a_killed_download_goes_on(cli, tmp_path, server, tar):
    content = tar + bytes(10240) + noise(600_000)
    server.add("a.tar", content)
    server.pause = 0.02
    words = ["download", "--record", "7", "--api", server.api, "--out", "d"]
    process = subprocess.Popen([*command(), *words], cwd=tmp_path, stderr=subprocess.DEVNULL)
    part = tmp_path / "d/.a.tar.part"
    deadline = time.monotonic() + 30
    while not part.exists() or part.stat().st_size < 150_000:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    have = part.stat().st_size
    assert 150_000 <= have < len(content)
    server.pause = 0.0
    cli(*words)
    assert server.fetched()[-1] == (f"bytes={have}-", len(content) - have)
    assert fetching.find_layouts(tmp_path / "d") == [tmp_path / "d/a/3dident/test"]


def test_a_server_that_ignores_ranges(tmp_path, server):
    content = noise(300_000)
    server.add("a.bin", content)
    server.ranges = False
    server.drops = [200_000]
    fetch(server, tmp_path)
    assert (tmp_path / "a.bin").read_bytes() == content
    assert [sent for _, sent in server.fetched()] == [200_000, 300_000]


def test_a_partial_file_that_cannot_be_continued(tmp_path, server):
    content = noise(100_000)
    server.add("a.bin", content)
    path = "/api/records/7/files/a.bin/content"
    for odd in ((416, {}, b""), (206, {}, b"x"), (206, {"Content-Range": "bytes 99-"}, b"x")):
        (tmp_path / ".a.bin.part").write_bytes(content[:50])
        server.answers[path] = [odd]
        fetch(server, tmp_path)
        assert server.fetched()[-1] == (None, len(content))
        assert (tmp_path / "a.bin").read_bytes() == content
        (tmp_path / "a.bin").unlink()
    # One that is longer than the file, or whole already, is no cause for a question.
    (tmp_path / ".a.bin.part").write_bytes(content + b"more")
    fetch(server, tmp_path)
    (tmp_path / "a.bin").rename(tmp_path / ".a.bin.part")
    count = len(server.asked)
    fetch(server, tmp_path)
    assert len(server.asked) == count + 1
    assert (tmp_path / "a.bin").read_bytes() == content


def test_a_busy_server_is_waited_for(tmp_path, server, monkeypatch):
    server.add("a.bin", b"content")
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    path = "/api/records/7/files/a.bin/content"
    server.answers = {
        "/api/records/7": [(503, {}, b""), (429, {"Retry-After": "59"}, b"")],
        path: [(429, {"Retry-After": "30"}, b""), (502, {"Retry-After": "soon"}, b"")],
    }
    fetch(server, tmp_path)
    assert [w for w in waits if w] == [0.01, 59, 30, 0.02]
    server.answers = {"/api/records/7": [(429, {"Retry-After": "4000"}, b"")]}
    with pytest.raises(DatasetError, match=r"HTTP 429, to wait for 4000 s. Run the same command"):
        fetch(server, tmp_path)


@pytest.mark.parametrize(
    ("size", "content", "message"),
    [
        (7, b"contens", "expected md5:9a0364b9e99bb480dd25e1f0284c8555, found md5:"),
        (6, b"content", "expected 6 bytes, found 7"),
        (6, bytes(300_000), "expected 6 bytes, found 65536"),  # and no more of it is read
    ],
)
def test_what_is_not_as_recorded(tmp_path, server, size, content, message):
    server.add("a.bin", b"content", size=size)
    server.contents["a.bin"] = content
    with pytest.raises(DatasetError, match=message) as error:
        fetch(server, tmp_path)
    assert "is removed" in str(error.value)
    assert everything_below(tmp_path) == set()


def test_other_checksums(tmp_path, server):
    content = noise(1000)
    server.add("a.bin", content, checksum=f"sha256:{hashlib.sha256(content).hexdigest()}")
    server.add("b.bin", content, checksum=hashlib.md5(content).hexdigest())
    assert len(fetch(server, tmp_path)) == 2
    # Fetched files that have changed since are not taken for the record's.
    (tmp_path / "b.bin").write_bytes(content[:-1] + b"?")
    with pytest.raises(DatasetError, match=r"b.bin is not the record's file: .* Move it away"):
        fetch(server, tmp_path)


def test_other_forms_of_the_record(tmp_path, server):
    server.add("a.bin", b"content")
    (entry,) = server.entries
    link = entry["links"]["self"]
    other = {
        "filename": "a.bin",
        "filesize": 7,
        "checksum": entry["checksum"].removeprefix("md5:"),
        "links": {"self": f"{server.api}/nothing", "download": link},
    }
    links = {"self": f"{server.api}/nothing", "content": link}
    for k, files in enumerate(([other], {"entries": {"a.bin": {**entry, "links": links}}})):
        server.entries = files
        assert len(fetch(server, tmp_path / str(k))) == 1


def test_no_such_record_and_no_server(cli, server):
    said = cli("download", "--record", 8, "--api", server.api, "--out", "d", code=2).stderr
    assert f"cannot fetch {server.api}/records/8: HTTP 404" in said
    assert said.count("\n") == 1
    server.add("a.bin", b"a", links={"self": f"{server.api}/records/7/files/b.bin/content"})
    said = cli("download", "--record", 7, "--api", server.api, "--out", "d", code=2).stderr
    assert "b.bin/content: HTTP 404" in said


def test_nobody_answers(server):
    server.api = "http://127.0.0.1:9/api"
    with pytest.raises(DatasetError, match="Connection refused, 5 times in a row") as error:
        fetch(server, Path("d"))
    assert "\n" not in str(error.value)
    server.api = "http://no-such-host.invalid/api"
    with pytest.raises(DatasetError, match="5 times in a row"):
        fetch(server, Path("d"))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<html>log in</html>", "expected a record as JSON, found 19 bytes of text/html"),
        (b'{"status": 200}', "expected a record with a list of files, found none"),
        (b'{"files": []}', "found none"),
        (b"[1]", "found none"),
        (b'{"files": {"entries": 3}}', "found none"),
        (b'{"files": [3]}', "no usable description: 3"),
    ],
)
def test_answers_that_are_no_record(server, body, message):
    server.answers["/api/records/7"] = [(200, {"Content-Type": "text/html"}, body)]
    with pytest.raises(DatasetError, match=re.escape(message)):
        fetch(server, Path("d"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(
            ({"key": name}, "no usable name")
            for name in (
                *("../a", "/etc/a", "a/b", "..", ".", "", ".hidden", "a\\b", "c:a", "a\nb", "a\0"),
                *("a" * 101, 3, None, ["a"]),
            )
        ),
        ({"size": -1}, "no usable size (a.bin): -1"),
        ({"size": "7"}, "no usable size"),
        ({"size": True}, "no usable size"),
        ({"checksum": None}, "no usable checksum (a.bin): None"),
        ({"checksum": "md5:123"}, "no usable checksum"),
        ({"checksum": f"md5:{'x' * 32}"}, "no usable checksum"),
        ({"checksum": f"crc:{'0' * 32}"}, "no usable checksum"),
        ({"links": {}}, "no usable link (a.bin): None"),
        ({"links": 3}, "no usable link"),
        ({"links": {"self": "file:///etc/passwd"}}, "no usable link"),
    ],
)
def test_hostile_records(tmp_path, server, changes, message):
    server.add("a.bin", b"content", **changes)
    with pytest.raises(DatasetError, match=re.escape(message)) as error:
        fetch(server, tmp_path / "d")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("names", [("a", "a"), ("a", "a.zip"), ("a.tar", "a.tar.gz")])
def test_files_that_would_overwrite_each_other(server, names):
    for name in names:
        server.add(name, b"")
    with pytest.raises(DatasetError, match="would both be written to 'a'"):
        fetch(server, Path("d"))


def tar_with(name, kind=tarfile.REGTYPE, link=""):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        harmless = tarfile.TarInfo("harmless.txt")
        harmless.size = 2
        archive.addfile(harmless, io.BytesIO(b"ok"))
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, link
        info.size = 4 if kind == tarfile.REGTYPE else 0
        archive.addfile(info, io.BytesIO(b"evil"))
    return content.getvalue()


def zip_with(name, mode=0, content=b"evil"):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("harmless.txt", "ok")
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        archive.writestr(info, content)
    return made.getvalue()


@pytest.mark.parametrize(
    ("archive", "content", "message"),
    [
        ("a.tar", tar_with("../evil"), "'../evil' is outside of its folder"),
        ("a.tar", tar_with("b/../../evil"), "outside of its folder"),
        ("a.tar", tar_with("/tmp/evil-3dident"), "outside of its folder"),
        ("a.tar", tar_with("b\\..\\evil"), "outside of its folder"),
        ("a.tar", tar_with("l", tarfile.SYMTYPE, "/etc/passwd"), "'l' is a link or a device"),
        ("a.tar", tar_with("l", tarfile.SYMTYPE, "harmless.txt"), "'l' is a link or a device"),
        ("a.tar", tar_with("l", tarfile.LNKTYPE, "harmless.txt"), "'l' is a link or a device"),
        ("a.tar", tar_with("l", tarfile.LNKTYPE, "../../secret"), "'l' is a link or a device"),
        ("a.tar", tar_with("d", tarfile.CHRTYPE), "'d' is a link or a device"),
        ("a.tar", tar_with("d", tarfile.BLKTYPE), "'d' is a link or a device"),
        ("a.tar", tar_with("d", tarfile.FIFOTYPE), "'d' is a link or a device"),
        ("a.tar", tar_with("../d", tarfile.DIRTYPE), "outside of its folder"),
        ("a.zip", zip_with("../evil"), "'../evil' is outside of its folder"),
        ("a.zip", zip_with("/tmp/evil-3dident"), "outside of its folder"),
        ("a.zip", zip_with("c:evil"), "outside of its folder"),
        ("a.zip", zip_with("../d/"), "outside of its folder"),
        ("a.zip", zip_with("l", stat.S_IFLNK | 0o777, b"/etc/passwd"), "'l' is a link"),
        ("a.zip", zip_with("d", stat.S_IFCHR), "'d' is a link or a device"),
        ("a.tar", b"no archive at all", "cannot unpack"),
        ("a.zip", b"no archive at all", "cannot unpack"),
        ("a.tar.gz", b"\x1f\x8b\x08\0\0\0\0\0no", "cannot unpack"),
        ("a.tar", tar_with("harmless.txt/evil"), "cannot write"),
    ],
)
def test_hostile_archives(tmp_path, server, archive, content, message):
    (tmp_path / "secret").write_text("secret")
    server.add(archive, content)
    with pytest.raises(DatasetError, match=re.escape(message)) as error:
        fetch(server, tmp_path / "d/e")
    assert "\n" not in str(error.value)
    assert everything_below(tmp_path) == {"secret", "d", "d/e", f"d/e/{archive}"}
    assert not Path("/tmp/evil-3dident").exists()


def test_an_interrupted_unpacking_starts_again(tmp_path, server, tar, monkeypatch):
    server.add("a.tar", tar)
    copy = shutil.copyfileobj
    copied = []

    def interrupted(*arguments):
        copied.append(copy(*arguments))
        if len(copied) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "copyfileobj", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch(server, tmp_path)
    assert everything_below(tmp_path) == {"a.tar"}
    # What a killed one leaves is not mixed with what comes after it.
    (tmp_path / ".a.unpacking/3dident/test/images").mkdir(parents=True)
    (tmp_path / ".a.unpacking/3dident/test/images/99.png").write_text("")
    fetch(server, tmp_path)
    assert len(server.fetched()) == 1
    with open_dataset(tmp_path / "a/3dident/test") as source:
        assert len(source) == 12
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "a.tar"]


def test_a_folder_that_is_in_the_way(tmp_path, server, tar):
    server.add("a.tar", tar)
    (tmp_path / "a").mkdir()
    (tmp_path / "a/mine.txt").write_text("mine")
    with pytest.raises(DatasetError, match=r"is there, but not unpacked from this a.tar"):
        fetch(server, tmp_path)
    assert not server.fetched()
    (tmp_path / "a").rename(tmp_path / "b")
    fetch(server, tmp_path)
    server.entries = []
    server.add("a.tar", tar + bytes(512))
    with pytest.raises(DatasetError, match=r"is there, but not unpacked from this a.tar"):
        fetch(server, tmp_path)


def test_a_disk_without_room(tmp_path, server, tar, monkeypatch):
    server.add("a.tar", tar)
    server.add("b.tar", tar)
    real = shutil.disk_usage

    def room(free):
        monkeypatch.setattr(shutil, "disk_usage", lambda p: real(p)._replace(free=free))

    room(3.5 * len(tar))
    with pytest.raises(DatasetError, match=r"the disk is too full: this needs .*--remove-archives"):
        fetch(server, tmp_path / "d")
    assert not server.fetched()
    assert everything_below(tmp_path / "d") == set()
    fetch(server, tmp_path / "d", remove_archives=True)
    # What is there already needs no room.
    room(0.1 * len(tar))
    assert fetch(server, tmp_path / "d") == []


def test_a_disk_that_fills_up(cli, tmp_path, server, tar):
    mount = tmp_path / "disk"
    mount.mkdir()
    size = f"size={len(tar) // 1000}k"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(mount)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("mounting a small file system is not allowed here")
    try:
        # The record says nothing of what an archive needs unpacked: ten times its size here.
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w:gz") as archive:
            info = tarfile.TarInfo("zeros")
            info.size = 2 * len(tar)
            archive.addfile(info, io.BytesIO(bytes(info.size)))
        server.add("a.tar.gz", content.getvalue())
        words = ("download", "--record", 7, "--api", server.api, "--out", mount / "d")
        assert "the disk is full" in cli(*words, code=2).stderr
        assert [p.name for p in (mount / "d").iterdir()] == ["a.tar.gz"]
    finally:
        with contextlib.suppress(OSError):
            os.sync()
        subprocess.run(["umount", str(mount)], check=True)


def test_other_datasets_have_names(cli, server):
    from helpers.paper_files import write_mpi3d

    path = write_mpi3d(Path())
    server.add("toy.npz", path.read_bytes())
    body = json.dumps({"files": server.entries}).encode()
    for name, number in fetching.RECORDS.items():
        server.answers[f"/api/records/{number}"] = [(200, {}, body)]
        said = cli("download", name, "--api", server.api, "--out", name).stdout
        assert f"look at it: 3dident info {name}/toy.npz" in said
        assert "no published layout" not in said
    assert {asked[0] for asked in server.asked if "/files/" not in asked[0]} == {
        "/api/records/4502485",
        "/api/records/3931823",
        "/api/records/3948069",
    }


@pytest.mark.parametrize("name", fetching.ELSEWHERE)
def test_it_says_where_the_others_are(cli, name):
    said = cli("download", name, "--out", "d", code=2).stderr
    assert said.startswith(f"error: {name} is not on Zenodo: ")
    assert fetching.ELSEWHERE[name] in said


def test_names_that_are_not_known(cli):
    said = cli("download", "dsprite", "--list", code=2).stderr
    assert "expected one of 3dident, kitti-masks, natural-sprites" in said
    assert "not both" in cli("download", "3dident", "--record", 7, "--list", code=2).stderr
