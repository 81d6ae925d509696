"""Connections that are slow on purpose: closed after a time, and not more than so many of one address."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from aveyb_retrieval.server.http import network

if TYPE_CHECKING:
    from collections.abc import Collection

    from aveyb_retrieval.server.http import Limits


class Door:
    """All open connections, at most `most`; those of `proxies`, which bring many clients, are all read.

    Those of one address beyond its limit are not read, and closed when the time for a head is over: to close them at
    once would have them come again at once. Where there are too many in all, the address with the most loses the one
    that has waited longest for a request.
    """

    def __init__(self, limits: Limits, proxies: Collection[str], most: int) -> None:
        self.limits = limits
        self._proxies = frozenset(proxies)
        self._most = min(limits.max_connections, most)
        self._of: dict[str, dict[Connection, None]] = {}  # by address, in the order of their last request
        self._count = 0

    def enter(self, connection: Connection) -> bool:
        """Take a new connection in; say whether there is room."""
        if self._count >= self._most:
            crowd = max(self._of.values(), key=len)
            idle = next((each for each in crowd if not each.is_answering), None)
            if idle is None or connection.address == idle.address:
                return False
            self.leave(idle)
            idle.transport.abort()
        self._of.setdefault(connection.address, {})[connection] = None
        self._count += 1
        return True

    def reads(self, address: str) -> bool:
        """Whether an address has no more connections than are read."""
        return address in self._proxies or len(self._of[address]) <= self.limits.max_connections_each

    def leave(self, connection: Connection, *, again: bool = False) -> None:
        """Forget a connection, if it is known, or put it behind those that have waited longer for an answer."""
        own = self._of.get(connection.address, {})
        if connection not in own:
            return
        del own[connection]
        if again:
            own[connection] = None
            return
        self._count -= 1
        if not own:
            del self._of[connection.address]


class Connection(H11Protocol):
    """uvicorn's protocol with limits: of connections, of the time of a head, of the time that nothing is read.

    `address` is where the connection comes from; of IPv6 the network of one household.
    """

    def __init__(self, *arguments: Any, door: Door, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.address = ""
        self._door = door
        self._waits_for = ""
        self._end: asyncio.TimerHandle | None = None

    @property
    def is_answering(self) -> bool:
        """Whether there is a request without its whole answer."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, or close at once where there is no room."""
        super().connection_made(transport)
        self.address = network(self.client[0] if self.client else "")
        if not self._door.enter(self):
            transport.abort()
            return
        self._watch()
        if not self._door.reads(self.address):
            transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._door.leave(self)
        super().connection_lost(exc)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take bytes of a request."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Go on with the next request."""
        super().on_response_complete()
        self._door.leave(self, again=True)
        self._watch()

    def pause_writing(self) -> None:
        """Stop sending while the client does not read; it has so much time to go on."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """Send again."""
        super().resume_writing()
        self._watch()

    def _watch(self) -> None:
        """Give the client its time for what is waited for, from when that began; bytes that drip do not renew it."""
        limits, waits_for = self._door.limits, ""
        if not self.transport.is_closing():
            waits_for = "a reader" if self.flow.write_paused else "" if self.is_answering else "a head"
        if waits_for == self._waits_for:
            return
        self._waits_for = waits_for
        if self._end is not None:
            self._end.cancel()
        seconds = limits.head_timeout if waits_for == "a head" else limits.write_timeout
        loop = asyncio.get_running_loop()
        self._end = loop.call_later(seconds, self.transport.abort) if waits_for else None
