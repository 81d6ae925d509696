"""Connections that are slow on purpose: closed after a time, and not more than so many of one address."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from aveyb_retrieval.server.addresses import network

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from aveyb_retrieval.server.limits import Limits


class Door:
    """All open connections.

    Where there are too many, of one address or of all, the one that has waited longest for a request makes room; where
    all are being answered, the new one is closed.

    Args:
        limits: How many there may be, and how long they may take.
        proxies: Addresses of proxies, which bring the connections of many clients.
    """

    def __init__(self, limits: Limits, proxies: Collection[str] = ()) -> None:
        self.limits = limits
        self._proxies = frozenset(proxies)
        self._of: Counter[str] = Counter()
        self._open: dict[Connection, None] = {}  # in the order of their last request

    def enter(self, connection: Connection) -> bool:
        """Take a new connection in; say whether there is room."""
        address = connection.address
        if address not in self._proxies and self._of[address] >= self.limits.max_connections_each:
            self._close_idle(each for each in self._open if each.address == address)
        elif len(self._open) >= self.limits.max_connections:
            self._close_idle(iter(self._open))
        full = len(self._open) >= self.limits.max_connections
        if full or (address not in self._proxies and self._of[address] >= self.limits.max_connections_each):
            return False
        self._open[connection] = None
        self._of[address] += 1
        return True

    def leave(self, connection: Connection) -> None:
        """Forget a connection, if it is known."""
        if connection in self._open:
            del self._open[connection]
            self._of[connection.address] -= 1
            if not self._of[connection.address]:
                del self._of[connection.address]

    def to_the_end(self, connection: Connection) -> None:
        """Note that a connection has had an answer: others have waited longer now."""
        if connection in self._open:
            self._open[connection] = self._open.pop(connection)

    def _close_idle(self, connections: Iterator[Connection]) -> None:
        idle = next((connection for connection in connections if not connection.is_answering), None)
        if idle is not None:
            self.leave(idle)
            idle.transport.abort()


class Connection(H11Protocol):
    """uvicorn's protocol with limits: of connections, of the time of a head, of the time that nothing is read."""

    def __init__(self, *arguments: Any, door: Door, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._door = door
        self._head = _Timer(door.limits.head_timeout, self._abort)
        self._stalled = _Timer(door.limits.write_timeout, self._abort)

    @property
    def address(self) -> str:
        """Where the connection comes from; of IPv6 the network of one household."""
        return network(self.client[0] if self.client else "")

    @property
    def is_answering(self) -> bool:
        """Whether there is a request without its whole answer."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, or close at once where there is no room."""
        super().connection_made(transport)
        if self._door.enter(self):
            self._await_head()
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._door.leave(self)
        self._head.stop()
        self._stalled.stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes of a request."""
        super().data_received(data)
        self._await_head()

    def on_response_complete(self) -> None:
        """Go on with the next request."""
        super().on_response_complete()
        self._door.to_the_end(self)
        self._await_head()

    def pause_writing(self) -> None:
        """Stop sending while the client does not read; it has so much time to go on."""
        super().pause_writing()
        self._stalled.start()

    def resume_writing(self) -> None:
        """Send again."""
        self._stalled.stop()
        super().resume_writing()

    def _await_head(self) -> None:
        """Start the time of a request's head, or stop it where the request has come."""
        if self.is_answering or self.transport.is_closing():
            self._head.stop()
        else:
            self._head.start()

    def _abort(self) -> None:
        self.transport.abort()


class _Timer:
    """Closes a connection some seconds after `start`, unless it is stopped before."""

    def __init__(self, seconds: float, close: Callable[[], object]) -> None:
        self._seconds = seconds
        self._close = close
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start, if it does not run already."""
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_later(self._seconds, self._close)

    def stop(self) -> None:
        """Stop, if it runs."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
