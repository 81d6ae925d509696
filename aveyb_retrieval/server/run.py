"""Listen, answer, and stop without losing a request."""

from __future__ import annotations

import logging
import signal
import socket
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.server.connections import Connection, Door
from aveyb_retrieval.system import allow_files
from aveyb_retrieval.wording import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.applications import Starlette

    from aveyb_retrieval.server.limits import Limits

_DESCRIPTORS = 1 << 16  # open files: one for each connection, some for each index
_OWN_DESCRIPTORS = 300  # left for indexes
_QUEUE = 2048  # connections that the kernel keeps until they are accepted
_ACCEPTED_AT_ONCE = 16  # or those who open many would be served before requests are looked at
_LONGEST_LINE = 4000  # characters of a log line, tracebacks included
_GRACE = 5.0  # seconds beyond the time that a request may take


def listen(host: str, port: int) -> socket.socket:
    """Open the socket that the server listens on; port 0 takes a free one.

    Raises:
        ConfigError: the address is not one of this machine, or in use.
    """
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigError(f"{host}:{port}: cannot listen there ({error.strerror or error})") from None
    # Connections inherit it. Without it, the body of an answer waits 40 ms until the client has confirmed the head:
    # asyncio itself sets it only for sockets whose protocol number is spelled out, which create_server does not do.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


class _ShortLines(logging.Formatter):
    """Log lines that repeat little of what a request sent."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record, its middle left out where it is long."""
        return shortened(super().format(record), _LONGEST_LINE)


def log_shortly() -> None:
    """Write this package's warnings to standard error, each bounded."""
    handler = logging.StreamHandler()
    handler.setFormatter(_ShortLines())
    logging.getLogger("aveyb_retrieval").addHandler(handler)


def serve(
    app: Starlette,
    listener: socket.socket,
    *,
    limits: Limits,
    proxies: Sequence[str] = (),
    started: Callable[[], None],
) -> None:
    """Answer requests until SIGTERM or SIGINT; then take no new ones, and end when the running ones are answered.

    Args:
        app: What answers.
        listener: Where it listens.
        limits: How long a request may take, how many connections there may be.
        proxies: Addresses whose header X-Forwarded-For says who asks.
        started: Called when requests are answered.
    """
    most = allow_files(_DESCRIPTORS) - _OWN_DESCRIPTORS
    connection: Any = partial(Connection, door=Door(limits, proxies, max(1, most)))
    config = uvicorn.Config(
        app,
        http=connection,
        backlog=_ACCEPTED_AT_ONCE,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        proxy_headers=bool(proxies),
        forwarded_allow_ips=list(proxies),
        timeout_graceful_shutdown=int(limits.timeout + _GRACE),
    )
    # uvicorn raises the signal again when it has ended; the process is to end with 0
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        _Server(config, started).run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, and say so."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_QUEUE)  # asyncio takes one number for both
        if self.started:
            self._announce()
