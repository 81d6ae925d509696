"""Who asked, until when the answer is of use, and the bytes that the request holds."""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import TYPE_CHECKING

from aveyb_retrieval.server.http import Refusal

if TYPE_CHECKING:
    from starlette.types import Receive

    from aveyb_retrieval.server.http import Limits

CURRENT: ContextVar[Ticket | None] = ContextVar("ticket", default=None)  # of the request that a thread works for


class Pool:
    """The bytes that all requests hold together: bodies that arrive, answers that leave."""

    def __init__(self) -> None:
        self.used = 0


class Ticket:
    """One request. Bytes are counted in the event loop's thread only.

    Attributes:
        client: Who asked: a key or an address, for a fair share of turns.
        seconds: The time that it has.
    """

    def __init__(self, client: str, pool: Pool, limits: Limits, receive: Receive) -> None:
        self.client = client
        self.seconds = limits.timeout
        self._pool = pool
        self._limits = limits
        self._held = self._answered = 0
        self._end = time.monotonic() + limits.timeout
        self._receive = receive
        self._over: Refusal | None = None

    # --- its time --------------------------------------------------------------------------------------------------

    @property
    def left(self) -> float:
        """Seconds until its end, at least 0."""
        return max(0.0, self._end - time.monotonic())

    @property
    def over(self) -> Refusal | None:
        """Why nobody waits for the answer any more; None while somebody does."""
        if self._over is None and self.left == 0:
            self._over = Refusal(
                503, f"took longer than the {self.seconds:g} s that a request may take; ask for less at once"
            )
        return self._over

    def check(self) -> None:
        """Raise Refusal once nobody waits any more; long work calls this between its parts, from any thread."""
        if (over := self.over) is not None:
            raise over

    def expire(self) -> Refusal:
        """End it now, as its time has passed; return why."""
        self._end = time.monotonic()
        over = self.over
        assert over is not None
        return over

    async def until_client_leaves(self) -> None:
        """Wait until the connection is closed from outside, and end it. To be called when the body has been read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._over = Refusal(499, "the client has left")

    # --- its bytes -------------------------------------------------------------------------------------------------

    def hold(self, count: int) -> None:
        """Count bytes of a body, or of an answer, until `release`.

        Raises:
            Refusal: 429 where the requests of all clients would hold too many.
        """
        if self._pool.used + count > self._limits.max_held:
            raise Refusal(
                429, f"overloaded: bodies and answers under way hold {self._pool.used:,} bytes; try again later"
            )
        self._pool.used += count
        self._held += count

    def check_answer(self, count: int) -> None:
        """Raise Refusal (413) where the answer would be too large with so many bytes more; from any thread."""
        if self._answered + count > (most := self._limits.max_answer):
            raise Refusal(413, f"the answer is larger than the {most:,} bytes that are allowed; ask for less at once")

    def answer(self, count: int) -> None:
        """Count bytes of the answer; raises as `check_answer` and `hold`."""
        self.check_answer(count)
        self._answered += count
        self.hold(count)

    def release(self) -> None:
        """Give all bytes back."""
        self._pool.used -= self._held
        self._held = 0


def check_current() -> None:
    """Raise Refusal where nobody waits any more for what this thread works on."""
    if (ticket := CURRENT.get()) is not None:
        ticket.check()
