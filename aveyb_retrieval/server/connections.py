"""Connections that are slow on purpose: closed after a time, and not more than so many of one address.

Those of one address beyond its limit are not read, and closed when the time for a head is over: to close them at once
would have them come again at once. Where there are too many in all, the address with the most loses the one that has
waited longest for a request.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from aveyb_retrieval.server.http import network

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Collection

    from aveyb_retrieval.server.http import Limits


class Connection(H11Protocol):
    """uvicorn's protocol with limits: of connections, of the time of a head, of the time that nothing is read.

    All share `open`, how many there are by address (of IPv6 the network of one household). Those of `proxies`, which
    bring many clients, are all read.
    """

    def __init__(
        self, *arguments: Any, limits: Limits, proxies: Collection[str], most: int, open: Counter[str], **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._limits, self._proxies, self._most, self._open = limits, proxies, most, open
        self._address, self._waits_for, self._since = "", "", 0.0
        self._end: asyncio.TimerHandle | None = None

    @property
    def is_answering(self) -> bool:
        """Whether there is a request without its whole answer."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, and close one where there is no room."""
        super().connection_made(transport)
        self._address = network(self.client[0] if self.client else "")
        self._open[self._address] += 1
        if len(self.connections) > self._most:
            crowd = max(self._open, key=self._open.__getitem__)
            every: set[Any] = self.connections if crowd != self._address else set()
            idle = [each for each in every if each._address == crowd and not each.is_answering]
            min(idle, key=lambda each: each._since, default=self).transport.abort()
        if self._open[self._address] > self._limits.max_connections_each and self._address not in self._proxies:
            transport.pause_reading()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._open[self._address] -= 1
        if not self._open[self._address]:
            del self._open[self._address]
        super().connection_lost(exc)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        """Stop sending while the client does not read; it has so much time to go on."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch()

    def _watch(self) -> None:
        """Give the client its time for what is waited for, from when that began; bytes that drip do not renew it."""
        limits, waits_for, loop = self._limits, "", asyncio.get_running_loop()
        if not self.transport.is_closing():
            waits_for = "a reader" if self.flow.write_paused else "" if self.is_answering else "a head"
        if waits_for == self._waits_for:
            return
        self._waits_for, self._since = waits_for, loop.time()
        if self._end is not None:
            self._end.cancel()
        seconds = limits.head_timeout if waits_for == "a head" else limits.write_timeout
        self._end = loop.call_later(seconds, self.transport.abort) if waits_for else None
