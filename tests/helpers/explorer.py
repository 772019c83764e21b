"""An explorer with real render processes, and requests to its application without a socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess

from helpers.commands import command
from threedident.explore.explorer import Explorer
from threedident.explore.renderers import Renderers
from threedident.explore.server import make_app

TOKEN, ONCE, PORT = "a-token", "a-secret", 8765


class Answered:
    """The answer to a request: status, headers by their names in lower case, and body."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json()["error"]


class Page:
    """What a page would ask of an explorer."""

    def __init__(self, explorer):
        self.explorer = explorer
        self.app = make_app(explorer, token=TOKEN, host="127.0.0.1", once=ONCE)

    async def ask(self, name, body=None, **headers):
        """POST /api/NAME with the token."""
        return await self.request("POST", f"/api/{name}", {} if body is None else body, **headers)

    async def get(self, path, **headers):
        return await self.request("GET", path, None, **headers)

    async def request(self, method, path, body, **headers):
        """One request; `headers` with underscores for hyphens, None to leave one out."""
        given = {
            "host": f"127.0.0.1:{PORT}",
            "authorization": f"token {TOKEN}",
            "content-type": "application/json",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        path, _, query = path.partition("?")
        content = body if isinstance(body, bytes) else b"" if body is None else _encoded(body)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(k.encode(), v.encode()) for k, v in given.items() if v is not None],
            "client": ("127.0.0.1", 5),
            "server": ("127.0.0.1", PORT),
        }
        sent = []

        async def receive():
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message):
            sent.append(message)

        await self.app(scope, receive, send)
        head = next(each for each in sent if each["type"] == "http.response.start")
        found = {k.decode().lower(): v.decode() for k, v in head["headers"]}
        parts = [each.get("body", b"") for each in sent if each["type"] == "http.response.body"]
        return Answered(head["status"], found, b"".join(parts))


def _encoded(body):
    return json.dumps(body).encode()


@contextlib.asynccontextmanager
async def opened(preset=None, *, processes=1, **more):
    """A page whose explorer has its own render processes."""
    async with Renderers(processes) as renderers:
        yield Page(Explorer(renderers, preset, **more))


def with_page(test, preset=None, **more):
    """Run an asynchronous test on a page."""

    async def run():
        async with opened(preset, **more) as page:
            return await test(page)

    return asyncio.run(run())


@contextlib.contextmanager
def running(*words):
    """The command, its address, and its process."""
    process = subprocess.Popen(
        [*command(), "explore", "--no-browser", "--port", "0", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        line = process.stdout.readline()
        address = re.search(r"http://\S+", line)
        assert address, line + process.stderr.read()
        yield process, address[0]
    finally:
        process.kill()
        process.wait(20)
        process.stdout.close()
        process.stderr.close()
