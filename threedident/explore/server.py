"""The server: who may ask, what is asked, and answers without a surprise.

It is made for one person at one machine. Each request for data needs the token. The page takes it
from its address and keeps it to itself: a cookie would go to every server of this machine, since
cookies know no ports. A page of another origin, or a name that is not this machine's, is refused.
Nothing names a file: a request is JSON that each part checks field by field.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import logging
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from threedident.errors import ThreeDIdentError
from threedident.explore import (
    dataset_part,
    encoder_part,
    model_part,
    pairs_part,
    scene_part,
    take_part,
)
from threedident.explore.explorer import Answer, Explorer, Handler
from threedident.explore.renderers import Busy, Superseded
from threedident.plain_data import Misfit

#: All that the page can ask for, by name: POST /api/NAME.
HANDLERS: dict[str, Handler] = {
    **scene_part.HANDLERS,
    **model_part.HANDLERS,
    **pairs_part.HANDLERS,
    **dataset_part.HANDLERS,
    **encoder_part.HANDLERS,
    **take_part.HANDLERS,
}

LARGEST_REQUEST = 64 * 1024  # bytes
_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}

#: Statuses of errors that are nobody's fault; others are 400.
_STATUS: dict[type[Exception], int] = {Superseded: 409, Busy: 503}

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(?::[0-9]{1,5})?")

_log = logging.getLogger(__name__)


def make_app(explorer: Explorer, *, token: str, host: str, once: str = "") -> ASGIApp:
    """Make the application.

    Args:
        explorer: what it shows.
        token: the secret that each request for data must carry.
        host: the address that it listens on.
        once: a secret that is good for the token, once; empty: none.
    """
    routes = [
        Route("/", _page, methods=["GET"]),
        Route("/page/{name}", _asset, methods=["GET"]),
        Route("/api/token", _exchange, methods=["POST"]),
        Route("/api/{name}", _answer, methods=["POST"]),
    ]
    guard = Middleware(Guard, token=token, host=host)
    app = Starlette(routes=routes, middleware=[guard])
    app.state.explorer = explorer
    app.state.token, app.state.once = token, once
    return app


class Guard:
    """The door: host, origin and token of each request, and the headers of each answer."""

    def __init__(self, app: ASGIApp, *, token: str, host: str) -> None:
        self._app = app
        self._token = token
        names = {host.lower(), "localhost", "127.0.0.1", "[::1]"}
        if ":" in host:
            names.add(f"[{host}]")
        self._any_address = host in ("0.0.0.0", "::")
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no websockets here

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(k.lower().encode(), v.encode()) for k, v in _HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *own]
            await send(message)

        request = Request(scope, receive)
        refusal = self._refusal(request)
        if refusal is not None:
            await refusal(scope, receive, with_headers)
        else:
            await self._app(scope, receive, with_headers)

    def _refusal(self, request: Request) -> Response | None:
        """The answer to a request that is not let in; None for one that is."""
        host = request.headers.get("host", "")
        if not self._is_ours(host):
            return _refuse(
                421,
                f"this server does not answer to the name {host!r:.80}: use the address that "
                "`3dident explore` has printed",
            )
        origin = request.headers.get("origin")
        site = request.headers.get("sec-fetch-site", "same-origin")
        foreign = origin is not None and origin != f"http://{host}"
        # A link may lead here; nothing else may come from elsewhere.
        followed = request.method == "GET" and request.url.path == "/"
        if foreign or (not followed and site not in ("same-origin", "none")):
            return _refuse(403, "another page may not ask this server")
        path = request.url.path
        if not path.startswith("/api/") or path == "/api/token":
            return None  # the page itself holds no secret
        given = request.headers.get("authorization", "").removeprefix("token ")
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return _refuse(
                401,
                "the token is missing or wrong: open the address that `3dident explore` has "
                "printed, with its ?token=",
            )
        return None

    def _is_ours(self, host: str) -> bool:
        """Whether a request's Host is this server's: no name that an attacker points at it."""
        match = _HOST.fullmatch(host.lower())  # whatever the port, as of a tunnel's end
        if match is None:
            return False
        name = match[1]
        if name in self._names:
            return True
        if not self._any_address:
            return False
        try:  # by any address, as it listens on all; names could be anybody's
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True


def _refuse(status: int, text: str) -> Response:
    return JSONResponse({"error": text}, status)


async def _exchange(request: Request) -> Response:
    """Hand out the token for the secret that is good once, as a browser was started with it."""
    state = request.app.state
    try:
        given = str((await _read(request)).get("once", ""))
    except (ClientDisconnect, Misfit) as error:
        return _refuse(400, str(error))
    if not state.once or not hmac.compare_digest(given.encode(), state.once.encode()):
        return _refuse(
            401,
            "this address was used before: open the one that `3dident explore` has printed, with "
            "its ?token=",
        )
    state.once = ""
    return JSONResponse({"token": state.token})


async def _page(request: Request) -> Response:
    return _file("index.html")


async def _asset(request: Request) -> Response:
    return _file(request.path_params["name"])


def _file(name: str) -> Response:
    """A file of the page, by its name alone."""
    folder = resources.files("threedident.explore") / "page"
    known = {entry.name: entry for entry in folder.iterdir()}
    kind = _TYPES.get(name.rpartition(".")[2])
    if name not in known or kind is None:
        return _refuse(404, f"there is no {name!r:.80}")
    return Response(known[name].read_bytes(), media_type=kind)


async def _answer(request: Request) -> Response:
    name = request.path_params["name"]
    handler = HANDLERS.get(name)
    if handler is None:
        return _refuse(404, f"there is no request {name!r:.80}")
    try:
        explorer, data = request.app.state.explorer, await _read(request)
        if data.get("generator") is not None:
            await explorer.prepare(data["generator"])
        return _response(await handler(explorer, data))
    except ClientDisconnect:
        return Response(status_code=499)
    except (Superseded, Misfit, ThreeDIdentError) as error:
        return _refuse(_STATUS.get(type(error), 400), str(error))
    except Exception as error:
        _log.exception("/api/%s", name)
        return _refuse(500, f"{type(error).__name__}: {error}"[:500])


def _response(answer: Mapping[str, Any] | Answer) -> Response:
    """The response that carries a handler's answer."""
    if not isinstance(answer, Answer):
        return JSONResponse(answer)
    headers = dict(answer.headers)
    if answer.name:  # perhaps with a factor's name, which can have any letters
        plain = re.sub(r"[^\w.-]+", "-", answer.name, flags=re.ASCII)
        headers["Content-Disposition"] = f'attachment; filename="{plain}"'
    return Response(answer.content, media_type=answer.media_type, headers=headers)


async def _read(request: Request) -> Mapping[str, Any]:
    """Read the JSON of a request, bounded.

    Raises:
        Misfit: it is too large, or no JSON object.
    """
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise Misfit("a request is JSON: Content-Type application/json")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > LARGEST_REQUEST:
            raise Misfit(f"the request is larger than {LARGEST_REQUEST} bytes")
    try:
        data = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Misfit(f"the request is no JSON: {error!s:.100}") from error
    if not isinstance(data, dict):
        raise Misfit("a request is a JSON object")
    return data


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")
