"""Tickets of requests: who asks, until when, and how many bytes are held and read for it."""

from __future__ import annotations

import asyncio
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.server.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import Receive

    from aveyb_retrieval.indexes.store.filters import Filter
    from aveyb_retrieval.server.limits import ServerLimits

# of the request that a thread works for
CURRENT: ContextVar[Ticket | None] = ContextVar("ticket", default=None)

_BURST_BYTES = 1 << 19  # of a client that are read without waiting
_PACED_CLIENTS = 1000  # that are remembered, before those who have waited are forgotten


class Pool:
    """The bytes that all requests hold together: bodies that arrive, answers that leave."""

    def __init__(self) -> None:
        self.used_bytes = 0
        # by client: when it will have waited for all bytes that were read of it
        self.paced_until: dict[str, float] = {}


class Ticket:
    """One request of a client (a key or an address).

    `only` is the filter of the key (None: it sees all documents), `questions` are for the log.
    Bytes are counted in the event loop's thread only.
    """

    def __init__(self, client: str, pool: Pool, limits: ServerLimits, receive: Receive) -> None:
        self.client = client
        self.only: Filter | None = None
        self.questions: Sequence[str] = ()
        self.seconds = limits.timeout
        self._pool, self._limits, self._receive = pool, limits, receive
        self._held_bytes = 0
        self._answer_bytes = 0
        self._end = time.monotonic() + limits.timeout
        self._over: Refusal | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what a process that searches needs: the end, the filter and the size of the
        answer.
        """
        return {**vars(self), "questions": (), "_pool": None, "_receive": None}

    @property
    def left(self) -> float:
        """Seconds until its end, at least 0."""
        return max(0.0, self._end - time.monotonic())

    @property
    def over(self) -> Refusal | None:
        """Why nobody waits for the answer any more; None while somebody does."""
        if self._over is None and self.left == 0:
            self._over = Refusal(
                503,
                f"took longer than the {self.seconds:g} s that a request may take; ask for less at"
                " once",
            )
        return self._over

    def check(self) -> None:
        """Raise Refusal if nobody waits any more; long work calls this between its parts, from any
        thread.
        """
        if (over := self.over) is not None:
            raise over

    def expire(self) -> Refusal:
        """End it now, as its time has passed; return why."""
        self._end = time.monotonic()
        over = self.over
        assert over is not None
        return over

    async def until_client_leaves(self) -> None:
        """Wait until the client closes the connection, and end the ticket then.

        To be called when the body has been read.
        """
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._over = Refusal(499, "the client has left")

    def hold(self, count: int) -> None:
        """Count bytes of a body or an answer until `release`; raise Refusal (429) if all requests
        hold too many.
        """
        if self._pool.used_bytes + count > self._limits.max_held:
            raise Refusal(
                429,
                "overloaded: bodies and answers under way hold"
                f" {self._pool.used_bytes:,} bytes; try again later",
            )
        self._pool.used_bytes += count
        self._held_bytes += count

    async def pace(self, count: int) -> None:
        """Wait so that no more bytes a second are read of this client than it may send; `count`
        were read now.
        """
        now, pool, rate = time.monotonic(), self._pool, self._limits.max_rate
        until = max(now, pool.paced_until.pop(self.client, 0.0)) + count / rate
        if len(pool.paced_until) >= _PACED_CLIENTS:
            pool.paced_until = {
                client: end for client, end in pool.paced_until.items() if end > now
            }
        pool.paced_until[self.client] = until
        if until - now > _BURST_BYTES / rate:
            await asyncio.sleep(until - now)

    def check_answer(self, count: int) -> None:
        """Raise Refusal (413) if the answer would be too large with so many bytes more; from any
        thread.
        """
        most = self._limits.max_answer
        if self._answer_bytes + count > most:
            raise Refusal(
                413,
                f"the answer is larger than the {most:,} bytes that are allowed; ask for less at"
                " once",
            )

    def answer(self, count: int) -> None:
        """Count bytes of the answer; raises as `check_answer` and `hold`."""
        self.check_answer(count)
        self._answer_bytes += count
        self.hold(count)

    def release(self) -> None:
        """Give all bytes back."""
        self._pool.used_bytes -= self._held_bytes
        self._held_bytes = 0


def check_current() -> None:
    """Raise Refusal if nobody waits any more for what this thread works on."""
    if (ticket := CURRENT.get()) is not None:
        ticket.check()
