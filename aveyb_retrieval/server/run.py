"""Listen, answer, and stop without losing a request."""

from __future__ import annotations

import signal
import socket
from typing import TYPE_CHECKING

import uvicorn

from aveyb_retrieval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.applications import Starlette

MAX_CONNECTIONS = 1000  # more are answered with 503 by uvicorn itself
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


def serve(app: Starlette, listener: socket.socket, *, timeout: float, started: Callable[[], None]) -> None:
    """Answer requests until SIGTERM or SIGINT; then take no new ones, and end when the running ones are answered.

    Args:
        app: What answers.
        listener: Where it listens.
        timeout: Seconds that a request may take.
        started: Called when requests are answered.
    """
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=int(timeout + _GRACE),
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
        if self.started:
            self._announce()
