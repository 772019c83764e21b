"""`explore`: checks, the processes, the server, and the browser."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import secrets
import shlex
import signal
import socket
import threading
import webbrowser
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from threedident import defaults
from threedident.causal import CausalModel, load_model
from threedident.errors import MissingExtraError, UsageError
from threedident.presets import Preset, load_preset

try:
    import starlette  # noqa: F401
    import uvicorn
except ImportError as error:
    raise MissingExtraError(str(error.name), "explore", "the page") from error

from threedident.explore.explorer import Explorer
from threedident.explore.renderers import Renderers
from threedident.explore.scenes import LEAST_SIDE, View
from threedident.explore.server import make_app
from threedident.explore.stored_images import StoredImages

HOST = "127.0.0.1"
PORT = 8765
DEVICES = ("auto", "cpu", "cuda")
_PORTS_TRIED = 20
_EVERYWHERE = ("0.0.0.0", "::")


def explore(
    dataset: str | Path | None = None,
    *,
    preset: Preset | str | Path | None = None,
    shape: str | Path | None = None,
    material: str | None = None,
    fixed: Mapping[str, float] | None = None,
    model: CausalModel | str | Path | None = None,
    encoder: str | Path | None = None,
    trust: bool = False,
    checkpoint: Path | None = None,
    split: str | None = None,
    host: str = HOST,
    port: int | None = None,
    browser: bool = True,
    device: str = "auto",
    processes: int | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Serve a page on which one moves the factors, until Ctrl-C.

    Args:
        dataset: the path of a dataset in any form, or the name of images that are drawn; None:
            none.
        preset: the generator that the page opens with, or a preset's name or file. None: the
            dataset's, where it is recorded, else 3dident.
        shape: another shape than the preset's, or a mesh file.
        material: another material than the preset's.
        fixed: the raw values of factors that are held fixed, by name.
        model: a causal model that the page opens with in place of a preset, or its name or file.
        encoder: an ONNX file, the encoder of a run of `3dident train` or its folder, or another
            submission that `3dident evaluate` runs; None: none.
        trust: whether code of the encoder's authors may be run (Python, torch).
        checkpoint: the file that a Python factory is handed.
        split: the split of the dataset, where its form has several.
        host: the address to listen on. Others than 127.0.0.1 let other machines in, if they know
            the token.
        port: the port to listen on; None: 8765, or the next that is free.
        browser: whether the page is opened in a browser.
        device: the kind of device that renders: auto, cpu or cuda.
        processes: the number of render processes; None: one for each processor, at most 4.
        say: the function that prints a line.

    Raises:
        UsageError: an argument does not fit, or the port is taken.
        DatasetError: the dataset cannot be read.
        MissingExtraError: what the page needs is not installed.
    """
    _require_engine()
    if device not in DEVICES:
        raise UsageError(f"device must be one of {', '.join(DEVICES)}, found {device!r:.60}")
    if processes is not None and processes < 1:
        raise UsageError(f"processes must be at least 1, found {processes}")
    if split is not None and dataset is None:
        raise UsageError(f"--split {split} is of a dataset, and none is given: name its path")
    given, words = _given_preset(preset, shape, material, fixed)
    if model is not None and given is not None:
        raise UsageError(
            "--model has a scene of its own: leave out --preset, --shape, --material and --fix"
        )
    source = "" if model is None or isinstance(model, CausalModel) else str(model)
    loaded = load_model(model) if isinstance(model, str | Path) else model
    stored = None if dataset is None else StoredImages(dataset, split)
    if encoder is None and (trust or checkpoint is not None):
        raise UsageError("--trust and --checkpoint are of an encoder: add --encoder")
    live = None
    if encoder is not None:
        from threedident.explore.encoder import LiveEncoder

        live = LiveEncoder(encoder, stored=stored, trust=trust, checkpoint=checkpoint)
    listener = listen(host, port)
    port = listener.getsockname()[1]
    token = secrets.token_urlsafe(24)

    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            ended = stack.enter_context(_ended_by_signals())
            renderers = await stack.enter_async_context(Renderers(processes))
            explorer = Explorer(
                renderers,
                given,
                stored=stored,
                encoder=live,
                preset_options=words,
                model=loaded,
                model_source=source,
                device=device,
            )
            if live is not None:
                await stack.enter_async_context(live)
            if not await _unless(ended, _try(explorer)):
                return
            # Whoever lists processes sees a browser's address, but this secret is good only once.
            once = secrets.token_urlsafe(24) if browser else ""
            app = make_app(explorer, token=token, host=host, once=once)
            _announce(host, port, token, say)
            if browser:
                address = _address(host, port, once=once)
                threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
            await serve(app, listener, ended)

    with contextlib.closing(listener):
        asyncio.run(run())
    say("ended")


def _require_engine() -> None:
    """Check that the direct engine is installed, without loading it.

    Raises:
        MissingExtraError: it is not.
    """
    with contextlib.suppress(ImportError):
        if importlib.util.find_spec("warp") is not None:
            return
    raise MissingExtraError("warp-lang (NVIDIA Warp)", "explore", "the page")


def _given_preset(
    preset: Preset | str | Path | None,
    shape: str | Path | None,
    material: str | None,
    fixed: Mapping[str, float] | None,
) -> tuple[Preset | None, tuple[str, ...]]:
    """The preset that was asked for, and the options of a command that asks for it.

    Returns:
        The preset, None where nothing was asked for; and the options, empty where the preset was
        made in Python, so that no command names it.

    Raises:
        UsageError: an argument does not fit.
    """
    if preset is None and shape is None and material is None and not fixed:
        return None, ()
    named = defaults.PRESET if preset is None else preset
    loaded = named if isinstance(named, Preset) else load_preset(named)
    changed = loaded.changed(
        fixed=fixed, shape=None if shape is None else str(shape), material=material
    )
    if isinstance(named, Preset):
        return changed, ()
    words = ["--preset", str(named)]
    words += ["--shape", str(shape)] if shape is not None else []
    words += ["--material", material] if material is not None else []
    for name, value in (fixed or {}).items():
        words += ["--fix", f"{name}={value!r}"]
    return changed, tuple(words)


async def _try(explorer: Explorer) -> None:
    """Use what was asked for once, so that it is refused before the page opens if it does not fit.

    Raises:
        UsageError: there is no such device; or the encoder cannot be loaded, or takes other images.
    """
    scene, encoder = explorer.start, explorer.encoder
    start = np.array([[control.start for control in scene.controls]], np.float32)
    if encoder is not None:
        await encoder.encode(await scene.images(start, await encoder.view(scene)))
    elif explorer.device not in ("auto", "cpu"):
        await scene.images(start, View(LEAST_SIDE, "draft"))


async def _unless(ended: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do some work, unless an event comes first; return whether it was done."""
    doing, waiting = asyncio.create_task(work), asyncio.create_task(ended.wait())
    await asyncio.wait({doing, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if doing.done():
        doing.result()
        return True
    doing.cancel()
    return False


def _address(host: str, port: int, token: str = "", *, once: str = "") -> str:
    name = HOST if host in _EVERYWHERE else host
    secret = f"once={once}" if once else f"token={token}"
    return f"http://{f'[{name}]' if ':' in name else name}:{port}/?{secret}"


def _announce(host: str, port: int, token: str, say: Callable[[str], None]) -> None:
    say(f"the page is {_address(host, port, token)}")
    if host not in (HOST, "localhost", "::1"):
        say(
            f"it listens on {host}: whoever has this address can use it, and it travels "
            "unencrypted. From elsewhere, a tunnel is safer: "
            + shlex.join(["ssh", "-L", f"{port}:127.0.0.1:{port}", "THIS-MACHINE"])
        )
    say("Ctrl-C ends it")


class _Server(uvicorn.Server):
    """A server that leaves signals to us: uvicorn's would end us before the processes end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[asyncio.Event]:
    """An event that SIGINT, SIGTERM and SIGHUP set, where this is the main thread."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if main else ()
    for number in numbers:
        loop.add_signal_handler(number, ended.set)
    try:
        yield ended
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def serve(app: object, listener: socket.socket, ended: asyncio.Event) -> None:
    """Serve an application until an event is set.

    Args:
        app: the application.
        listener: the socket to listen on, bound.
        ended: the event; requests that are being answered then have a second to end.
    """
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=1,
        limit_concurrency=200,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    waiting = asyncio.create_task(ended.wait())
    await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    # What is being answered is cut off after a second: that is no error to be told about.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    server.should_exit = True
    await serving


def listen(host: str, port: int | None) -> socket.socket:
    """Open a socket, so that a port that is taken is known before anything starts.

    Args:
        host: the address.
        port: the port; None: 8765, or the next that is free.

    Raises:
        UsageError: it cannot be listened on.
    """
    if port is not None and not 0 <= port < 2**16:
        raise UsageError(f"--port must lie in [0, 65535], found {port}")
    if not host:  # which a socket would take for all addresses
        raise UsageError(
            f"--host is empty: expected an address, such as {HOST}, or 0.0.0.0 for all of them"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    ports = range(PORT, PORT + _PORTS_TRIED) if port is None else [port]
    reason = ""
    for each in ports:
        # Named as TCP, or asyncio would not send each answer's last piece at once (TCP_NODELAY).
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, each))
            listener.listen(64)
        except (OSError, TypeError, UnicodeError) as error:  # also of a name that none can have
            listener.close()
            reason = getattr(error, "strerror", None) or str(error)
            continue
        return listener
    where = f"port {port}" if port is not None else f"ports {ports[0]} to {ports[-1]}"
    raise UsageError(
        f"cannot listen on {where} of {host} ({reason}): choose another port with --port, or "
        "another address with --host"
    )
