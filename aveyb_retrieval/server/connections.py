"""Connections of clients: how many there may be, and how long one may keep the server waiting.

uvicorn limits neither. Its protocol is wrapped here, by what asyncio publishes of protocols and
ASGI of requests.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from aveyb_retrieval.server.addresses import network

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import ASGIApp, Receive, Scope, Send

    from aveyb_retrieval.server.limits import ServerLimits

Peer = tuple[str, int]  # address and port of a client


class Connections:
    """The open connections of a server, and its outermost ASGI application, which sees which of
    them are answered.

    Connections of one address (of IPv6 the network of one household) beyond its limit are not read,
    and closed when the time for a head is over: if they were closed at once, they would come again
    at once. Those of `proxies`, which bring many clients, are all read. If there are more than
    `most` in all, the address with the most loses the one that has waited longest for a request.
    """

    def __init__(
        self, app: ASGIApp, *, limits: ServerLimits, proxies: Collection[str], most: int
    ) -> None:
        self._app, self._limits, self._proxies, self._most = app, limits, proxies, most
        self._open: dict[Peer, Connection] = {}
        self._by_network: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; its connection owes nothing until the answer is complete."""
        connection = self._open.get(scope.get("client") or ("", 0))
        if connection is None:
            return await self._app(scope, receive, send)
        connection.count_requests(1)
        try:
            await self._app(scope, receive, send)
        finally:
            connection.count_requests(-1)

    def make_protocol(self, **options: Any) -> Connection:
        """Make the protocol of a new connection, from what uvicorn gives its own protocol."""
        return Connection(H11Protocol(**options), self, self._limits)

    def add(self, connection: Connection) -> None:
        """Count a new connection; close one if there are too many, or do not read it."""
        self._open[connection.peer] = connection
        self._by_network[connection.network] += 1
        if len(self._open) > self._most:
            self._choose_to_close(connection).transport.abort()
        is_beyond = self._by_network[connection.network] > self._limits.max_connections_each
        if is_beyond and connection.network not in self._proxies:
            connection.transport.pause_reading()

    def remove(self, connection: Connection) -> None:
        """Forget a connection that is lost."""
        if self._open.get(connection.peer) is connection:
            del self._open[connection.peer]
        self._by_network[connection.network] -= 1
        if not self._by_network[connection.network]:
            del self._by_network[connection.network]

    def _choose_to_close(self, newest: Connection) -> Connection:
        """Choose the longest idle connection of the network with the most, else the newest."""
        crowd = max(self._by_network, key=self._by_network.__getitem__)
        if crowd == newest.network:
            return newest
        idle = [
            connection
            for connection in self._open.values()
            if connection.network == crowd and not connection.is_answering
        ]
        return min(idle, key=lambda connection: connection.waits_since, default=newest)


class Connection(asyncio.Protocol):
    """One connection: a protocol of uvicorn, and the time that the client has for what it owes.

    The time begins when the client begins to owe something; bytes that drip do not renew it.
    """

    transport: asyncio.Transport

    def __init__(self, inner: H11Protocol, connections: Connections, limits: ServerLimits) -> None:
        self._inner, self._connections, self._limits = inner, connections, limits
        self._requests = 0
        self._is_full = False  # whether the client does not read what is sent
        self._owed = ""
        self._end: asyncio.TimerHandle | None = None
        self.peer: Peer = ("", 0)
        self.network = ""
        self.waits_since = 0.0

    @property
    def is_answering(self) -> bool:
        """Whether there is a request without its whole answer."""
        return self._requests > 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        peer = transport.get_extra_info("peername") or ("", 0)  # a client that is gone has none
        self.peer = peer[0], peer[1]
        self.network = network(self.peer[0])
        self._inner.connection_made(transport)
        self._connections.add(self)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self)
        if self._end is not None:
            self._end.cancel()
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)
        self._watch()

    def eof_received(self) -> None:
        self._inner.eof_received()

    def pause_writing(self) -> None:
        self._is_full = True
        self._inner.pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        self._is_full = False
        self._inner.resume_writing()
        self._watch()

    def count_requests(self, change: int) -> None:
        """Count the requests that are being answered."""
        self._requests += change
        self._watch()

    def _watch(self) -> None:
        """Close the connection when the time for what the client owes is over."""
        if (owed := self._owes()) == self._owed:
            return
        loop = asyncio.get_running_loop()
        self._owed, self.waits_since = owed, loop.time()
        if self._end is not None:
            self._end.cancel()
            self._end = None
        if owed:
            limits = self._limits
            seconds = limits.head_timeout if owed == "a head" else limits.write_timeout
            self._end = loop.call_later(seconds, self.transport.abort)

    def _owes(self) -> str:
        """Return what the client owes: "reading" what is sent, "a head" of a request, "" for
        nothing.
        """
        if self._is_full or self.transport.is_closing():
            return "reading"
        return "" if self.is_answering else "a head"
