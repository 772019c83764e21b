"""`explore`: checks, the processes, the server, and the browser."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import webbrowser
from collections.abc import Callable
from pathlib import Path

from threedident.defaults import PRESET
from threedident.errors import MissingExtraError, UsageError
from threedident.presets import Preset, load_preset

try:
    import uvicorn
except ImportError as error:
    raise MissingExtraError("uvicorn", "explore", "the page") from error

from threedident.explore.explorer import Explorer
from threedident.explore.renderers import Renderers
from threedident.explore.server import make_app

HOST = "127.0.0.1"
PORT = 8765
_PORTS_TRIED = 20


def explore(
    *,
    preset: Preset | str | Path = PRESET,
    host: str = HOST,
    port: int | None = None,
    browser: bool = True,
    device: str = "auto",
    processes: int | None = None,
    token: str | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Serve a page on which one moves the factors, until Ctrl-C.

    Args:
        preset: the generator that the page opens with, or a preset's name or file.
        host: the address to listen on.
        port: the port to listen on; None: 8765, or the next that is free.
        browser: whether the page is opened in a browser.
        device: the kind of device that renders: auto, cpu or cuda.
        processes: the number of render processes; None: one for each processor, at most 4.
        token: the secret that the address carries; None: a new one.
        say: the function that prints a line.

    Raises:
        UsageError: an argument does not fit, or the port is taken.
    """
    if not isinstance(preset, Preset):
        preset = load_preset(preset)
    listener = _listen(host, port)
    with contextlib.closing(listener):
        asyncio.run(
            _serve(
                listener,
                preset,
                host=host,
                browser=browser,
                device=device,
                processes=processes,
                token=token or secrets.token_urlsafe(24),
                say=say,
            )
        )


async def _serve(
    listener: socket.socket,
    preset: Preset,
    *,
    host: str,
    browser: bool,
    device: str,
    processes: int | None,
    token: str,
    say: Callable[[str], None],
) -> None:
    port = listener.getsockname()[1]
    async with Renderers(processes) as renderers:
        explorer = Explorer(renderers, preset, device=device)
        app = make_app(explorer, token=token, host=host, port=port)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=2**16,
        )
        server = uvicorn.Server(config)
        name = "127.0.0.1" if host in ("0.0.0.0", "::") else host
        address = f"http://{f'[{name}]' if ':' in name else name}:{port}/?token={token}"
        say(f"the page is {address}")
        say("Ctrl-C ends it")
        if browser:
            asyncio.get_running_loop().run_in_executor(None, webbrowser.open, address)
        await server.serve(sockets=[listener])


def _listen(host: str, port: int | None) -> socket.socket:
    """Open the socket, so that a port that is taken is known before anything starts.

    Raises:
        UsageError: it cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    ports = range(PORT, PORT + _PORTS_TRIED) if port is None else [port]
    reason = ""
    for each in ports:
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, each))
        except (OSError, OverflowError) as error:
            listener.close()
            reason = str(error)
            continue
        listener.listen(64)
        return listener
    where = f"port {port}" if port is not None else f"ports {ports[0]} to {ports[-1]}"
    raise UsageError(
        f"cannot listen on {where} of {host}: {reason}. Choose another port with --port"
    )
