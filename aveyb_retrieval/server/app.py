"""The application: its routes and middleware, and the server that runs it."""

from __future__ import annotations

import asyncio
import hashlib
import signal
import socket
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from aveyb_retrieval.errors import AveyBError, ConfigError
from aveyb_retrieval.server import openapi
from aveyb_retrieval.server.connections import Connections
from aveyb_retrieval.server.context import Context
from aveyb_retrieval.server.counters import Metrics
from aveyb_retrieval.server.gate import Gate
from aveyb_retrieval.server.keys import KeyFile, Keys, Right
from aveyb_retrieval.server.limits import ServerLimits
from aveyb_retrieval.server.origins import Origins
from aveyb_retrieval.server.processes import FOLLOW_SECONDS, Processes
from aveyb_retrieval.server.refusals import refuse
from aveyb_retrieval.server.work import Work
from aveyb_retrieval.system import allow_files

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from starlette.requests import Request

    from aveyb_retrieval.server.access_log import AccessLog
    from aveyb_retrieval.server.indexes import Indexes

_PAGE_SCRIPTS = ("page.js", "api.js", "facets.js", "filters.js", "reader.js", "text.js")
_PAGE_FILES = {
    "/": ("index.html", "text/html"),
    "/page/style.css": ("style.css", "text/css"),
    **{f"/page/{name}": (name, "text/javascript") for name in _PAGE_SCRIPTS},
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
    "/favicon.ico": ("icon.svg", "image/svg+xml"),
}
PAGE_PATHS = frozenset(_PAGE_FILES)


def _page_route(path: str, name: str, media_type: str) -> Route:
    content = files("aveyb_retrieval.server").joinpath("page", name).read_bytes()
    headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"', "Cache-Control": "no-cache"}

    async def page(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)

    return Route(path, page)


_CHANGES = {operation.method for operation in openapi.OPERATIONS if operation.right == "write"}
_RIGHTS = {
    operation.path.split("/")[1]: operation.right
    for operation in openapi.OPERATIONS
    if operation.right != "write"
}


def _right(method: str, path: str) -> Right | None:
    """Return the right that a key needs for a method and a path; None if everybody may read it."""
    if method in _CHANGES:
        return "write"
    if path in PAGE_PATHS:
        return None
    return _RIGHTS.get(path.strip("/").partition("/")[0], "search")


def create_app(
    indexes: Indexes,
    *,
    limits: ServerLimits | None = None,
    keys: Keys | KeyFile | None = None,
    log: AccessLog | None = None,
    origins: Origins | None = None,
    counters: Metrics | None = None,
    originals: bool = False,
) -> Starlette:
    """Make the ASGI application. It closes the indexes when it ends.

    Without keys it is open to everybody who reaches it. Without origins it answers to any name, and
    browsers may ask from its own page only. `originals` gives out the files that documents were
    read from.
    """
    limits, counters, keys = limits or ServerLimits(), counters or Metrics(), keys or Keys()
    origins = origins or Origins()
    counters.watch(indexes)
    threads = limits.threads
    if limits.processes > 1:
        threads = max(threads, 2 * limits.processes + 2)
    server = Context(
        indexes=indexes,
        limits=limits,
        searching=Work("search", threads, limits.max_waiting),
        encoding=Work("encode", 1, limits.max_waiting),
        writing=Work("write", 1, limits.max_waiting),
        metrics=counters,
        originals=originals,
        processes=Processes(limits.processes, indexes),
        openapi=msgspec.json.encode(openapi.describe(limits, has_keys=keys.current().reading > 0)),
    )
    gate = Middleware(
        Gate, limits=limits, keys=keys, origins=origins, metrics=counters, log=log, right=_right
    )
    app = Starlette(
        routes=[
            *(_page_route(path, *file) for path, file in _PAGE_FILES.items()),
            *openapi.routes(),
        ],
        middleware=[gate],
        exception_handlers={AveyBError: refuse, HTTPException: refuse},
        lifespan=_lifespan,
    )
    app.state.context = server
    return app


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    server: Context = app.state.context
    following = asyncio.create_task(_follow(server.indexes))
    try:
        yield
    finally:
        following.cancel()
        for part in (
            server.searching,
            server.encoding,
            server.writing,
            server.processes,
            server.indexes,
        ):
            await asyncio.to_thread(part.close)


async def _follow(indexes: Indexes) -> None:
    while True:
        await asyncio.sleep(FOLLOW_SECONDS)
        await asyncio.to_thread(indexes.follow)


_MAX_OPEN_FILES = 1 << 16  # one for each connection, some for each index
_RESERVED_OPEN_FILES = 300  # for the indexes
_QUEUED_CONNECTIONS = 2048  # which the kernel keeps until they are accepted
# With more, a client that opens many connections would be served before requests are read.
_ACCEPTED_AT_ONCE = 16
_GRACE_SECONDS = 5.0  # beyond the time of a request


def listen(host: str, port: int) -> socket.socket:
    """Open the socket that the server listens on (port 0: a free one), or raise ConfigError."""
    try:
        listener = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except OSError as error:
        raise ConfigError(
            f"{host}:{port}: cannot listen there ({error.strerror or error})"
        ) from None
    # Connections inherit it. Without it, the body of an answer waits 40 ms until the client has
    # confirmed the head: asyncio itself sets it only for sockets whose protocol number is spelled
    # out, which create_server does not do.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def serve(
    app: Starlette,
    listener: socket.socket,
    *,
    limits: ServerLimits,
    proxies: Sequence[str] = (),
    started: Callable[[], None],
) -> None:
    """Answer requests until SIGTERM or SIGINT; then take no new ones, and end when the running ones
    are answered.

    `proxies` are addresses whose header X-Forwarded-For says who asks; `started` is called when
    requests are answered.
    """
    most = min(limits.max_connections, max(1, allow_files(_MAX_OPEN_FILES) - _RESERVED_OPEN_FILES))
    asgi: Any = app
    if proxies:
        asgi = ProxyHeadersMiddleware(asgi, trusted_hosts=list(proxies))
    connections: Any = Connections(asgi, limits=limits, proxies=proxies, most=most)
    config = uvicorn.Config(
        connections,
        http=connections.make_protocol,
        backlog=_ACCEPTED_AT_ONCE,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        # done above: a connection is counted by its own address
        proxy_headers=False,
        timeout_graceful_shutdown=int(limits.timeout + _GRACE_SECONDS),
    )
    # uvicorn raises the signal again when it has ended, but the process shall end with 0
    handlers = {
        number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        _Server(config, started).run(sockets=[listener])
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class _Server(uvicorn.Server):
    """A server that says when it has started, and whose queue is longer than what it accepts at
    once.
    """

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            # asyncio takes one number for the queue and for what it accepts at once
            listener.listen(_QUEUED_CONNECTIONS)
        if self.started:
            self._announce()
