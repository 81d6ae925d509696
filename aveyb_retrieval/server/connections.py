"""Connections that are slow on purpose: closed after a time, and not more than so many of one address."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from aveyb_retrieval.server.http import network

if TYPE_CHECKING:
    from collections.abc import Collection

    from aveyb_retrieval.server.http import Limits

_BURST = 1 << 19  # bytes of an address that are read without waiting


class Door:
    """All open connections.

    Those of one address beyond its limit are not read, and closed when the time for a head is over: to close them at
    once would have them come again at once. Where there are too many in all, the address with the most loses the one
    that has waited longest for a request.

    Args:
        limits: How many there may be, and how long they may take.
        proxies: Addresses of proxies, which bring the connections of many clients.
        most: How many this process can have open.
    """

    def __init__(self, limits: Limits, proxies: Collection[str], most: int) -> None:
        self.limits = limits
        self._proxies = frozenset(proxies)
        self._most = min(limits.max_connections, most)
        self._of: dict[str, dict[Connection, None]] = {}  # by address, in the order of their last request
        self._paid: dict[str, float] = {}  # by address: until when what was read is paid by waiting
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

    def leave(self, connection: Connection) -> None:
        """Forget a connection, if it is known."""
        own = self._of.get(connection.address, {})
        if connection in own:
            del own[connection]
            self._count -= 1
            if not own:
                del self._of[connection.address]
                self._paid.pop(connection.address, None)

    def wait_after(self, address: str, count: int) -> float:
        """Return the seconds to wait, after so many bytes, before more are read of an address."""
        if address in self._proxies:
            return 0.0
        now = time.monotonic()
        paid = max(now, self._paid.get(address, 0.0)) + count / self.limits.max_rate
        self._paid[address] = paid
        wait = paid - now
        return wait if wait > _BURST / self.limits.max_rate else 0.0

    def to_the_end(self, connection: Connection) -> None:
        """Note that a connection has had an answer: others have waited longer now."""
        own = self._of.get(connection.address, {})
        if connection in own:
            own[connection] = own.pop(connection)


class Connection(H11Protocol):
    """uvicorn's protocol with limits: of connections, of the time of a head, of the time that nothing is read.

    Attributes:
        address: Where the connection comes from; of IPv6 the network of one household.
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
        self.flow = self._flow = _PacedFlow(transport)
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
        if (wait := self._door.wait_after(self.address, len(data))) > 0:
            self._flow.hold(wait)

    def on_response_complete(self) -> None:
        """Go on with the next request."""
        super().on_response_complete()
        self._door.to_the_end(self)
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
            waits_for = "a reader" if self._flow.write_paused else "" if self.is_answering else "a head"
        if waits_for == self._waits_for:
            return
        self._waits_for = waits_for
        if self._end is not None:
            self._end.cancel()
        seconds = limits.head_timeout if waits_for == "a head" else limits.write_timeout
        loop = asyncio.get_running_loop()
        self._end = loop.call_later(seconds, self.transport.abort) if waits_for else None


class _PacedFlow(FlowControl):
    """uvicorn's flow control, which also stops reading for some time."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._paced = transport
        self._is_held = False

    def hold(self, seconds: float) -> None:
        """Do not read for so long."""
        if not self._is_held:
            self._is_held = True
            self._paced.pause_reading()
            asyncio.get_running_loop().call_later(seconds, self._go_on)

    def resume_reading(self) -> None:
        """Read again, unless it is too soon."""
        if self._is_held:
            self.read_paused = False
        else:
            super().resume_reading()

    def _go_on(self) -> None:
        self._is_held = False
        if not (self.read_paused or self._paced.is_closing()):
            self._paced.resume_reading()
