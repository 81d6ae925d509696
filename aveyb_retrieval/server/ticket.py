"""Who asked, until when the answer is of use, and what the request holds."""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import TYPE_CHECKING

from aveyb_retrieval.server.refusals import Refusal

if TYPE_CHECKING:
    from starlette.types import Receive

    from aveyb_retrieval.server.held import Held

CURRENT: ContextVar[Ticket | None] = ContextVar("ticket", default=None)  # of the request that a thread works for


class Ticket:
    """One request.

    Attributes:
        client: Who asked: a key or an address, for a fair share of turns.
        held: The bytes that it holds.
        seconds: The time that it has.
    """

    def __init__(self, client: str, held: Held, seconds: float, receive: Receive) -> None:
        self.client = client
        self.held = held
        self.seconds = seconds
        self._end = time.monotonic() + seconds
        self._receive = receive
        self._over: Refusal | None = None

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


def check_current() -> None:
    """Raise Refusal where nobody waits any more for what this thread works on."""
    if (ticket := CURRENT.get()) is not None:
        ticket.check()
