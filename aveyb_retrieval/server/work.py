"""Work of requests beside the event loop: who asked and until when, and bounded threads with a fair
queue.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from aveyb_retrieval.server.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

    from starlette.types import Receive

    from aveyb_retrieval.indexes.store.filters import Filter
    from aveyb_retrieval.server.limits import Limits

# of the request that a thread works for
CURRENT: ContextVar[Ticket | None] = ContextVar("ticket", default=None)


PART_CHARACTERS = 65_536  # characters that are encoded before others have their turn
_BURST = 1 << 19  # bytes of a client that are read without waiting
_PAYING = 1000  # clients that are remembered, before those who have waited are forgotten


class Pool:
    """The bytes that all requests hold together: bodies that arrive, answers that leave."""

    def __init__(self) -> None:
        self.used = 0
        self.paid: dict[str, float] = {}  # by client: until when what was read is paid by waiting


class Ticket:
    """One request of a client (a key or an address). Bytes are counted in the event loop's thread
    only.

    `only` is the filter of the key (None: all documents may be seen), `asked` are the questions,
    for the log.
    """

    def __init__(self, client: str, pool: Pool, limits: Limits, receive: Receive) -> None:
        self.client = client
        self.only: Filter | None = None
        self.asked: Sequence[str] = ()
        self.seconds = limits.timeout
        self._pool, self._limits, self._receive = pool, limits, receive
        self._held = self._answered = 0
        self._end = time.monotonic() + limits.timeout
        self._over: Refusal | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Let it pass to a process that searches, which looks at its end, its filter and the size
        of its answer.
        """
        return {**vars(self), "asked": (), "_pool": None, "_receive": None}

    @property
    def left(self) -> float:
        """Seconds until its end, at least 0."""
        return max(0.0, self._end - time.monotonic())

    @property
    def over(self) -> Refusal | None:
        """Why nobody waits for the answer any more; None while somebody does."""
        if self._over is None and self.left == 0:
            told = (
                f"took longer than the {self.seconds:g} s that a request may take; ask for less at"
                " once"
            )
            self._over = Refusal(503, told)
        return self._over

    def check(self) -> None:
        """Raise Refusal once nobody waits any more; long work calls this between its parts, from
        any thread.
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
        """Wait until the connection is closed from outside, and end it.

        To be called when the body has been read.
        """
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._over = Refusal(499, "the client has left")

    def hold(self, count: int) -> None:
        """Count bytes of a body, or of an answer, until `release`; raise Refusal (429) where all
        hold too many.
        """
        if self._pool.used + count > self._limits.max_held:
            told = (
                f"overloaded: bodies and answers under way hold {self._pool.used:,} bytes; try"
                " again later"
            )
            raise Refusal(429, told)
        self._pool.used += count
        self._held += count

    async def pace(self, count: int) -> None:
        """Wait, after so many bytes of a body, before more are read of this client."""
        now, paid, rate = time.monotonic(), self._pool.paid, self._limits.max_rate
        until = max(now, paid.pop(self.client, 0.0)) + count / rate
        if len(paid) >= _PAYING:
            self._pool.paid = paid = {client: end for client, end in paid.items() if end > now}
        paid[self.client] = until
        if until - now > _BURST / rate:
            await asyncio.sleep(until - now)

    def check_answer(self, count: int) -> None:
        """Raise Refusal (413) where the answer would be too large with so many bytes more; from any
        thread.
        """
        if self._answered + count > (most := self._limits.max_answer):
            raise Refusal(
                413,
                f"the answer is larger than the {most:,} bytes that are allowed; ask for less at"
                " once",
            )

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


def parts(
    texts: Sequence[str], most: int, characters: int = PART_CHARACTERS
) -> Iterator[list[str]]:
    """Cut a list of texts into lists of at most `most` texts and, but for a single longer one, so
    many characters.
    """
    part: list[str] = []
    size = 0
    for text in texts:
        if part and (len(part) == most or size + len(text) > characters):
            yield part
            part, size = [], 0
        part.append(text)
        size += len(text)
    if part:
        yield part


P = TypeVar("P")
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class _Turn:
    came: asyncio.Future[None]
    part: int


class Work:
    """A pool of threads with a bounded queue, where clients take turns however much each of them
    asks for.

    One client has at most half of the threads. Where too many wait, the client that waits for most
    loses the last of its places. Long requests come in parts, each with a turn of its own (`each`);
    parts after the first have a quarter of the threads. A thread cannot be stopped: work that
    outlives its ticket keeps its thread until it looks at it.
    """

    def __init__(self, name: str, threads: int, max_waiting: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._threads, self._max_waiting = threads, max_waiting
        self._running: Counter[str] = Counter()
        self._parts = 0  # that run: not the first of their requests
        self._waiting: dict[str, deque[_Turn]] = {}  # by client, in the order of their turns

    async def run(self, function: Callable[[], T], ticket: Ticket, *, part: int = 0) -> T:
        """Run a function in a thread and return its result; `part` counts the parts of a request
        from 0.
        """
        ticket.check()
        leaving = asyncio.ensure_future(ticket.until_client_leaves())
        try:
            await self._take_turn(ticket, leaving, part)
            return await self._work(function, ticket, leaving, part)
        finally:
            leaving.cancel()

    async def each(
        self, function: Callable[[P], T], parts: Iterable[P], ticket: Ticket
    ) -> AsyncIterator[T]:
        """Yield what a function returns for each part of a long request, each with a turn of its
        own.
        """
        for number, part in enumerate(parts):
            yield await self.run(partial(function, part), ticket, part=number)

    def close(self) -> None:
        """Let running work end; nothing new is taken."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def _take_turn(self, ticket: Ticket, leaving: asyncio.Future[None], part: int) -> None:
        """Wait for a thread; it is then counted as this client's."""
        turn = _Turn(asyncio.get_running_loop().create_future(), part)
        self._waiting.setdefault(ticket.client, deque()).append(turn)
        self._start_waiting()
        # the client that waits for most loses its last
        if sum(map(len, self._waiting.values())) > self._max_waiting:
            client = max(self._waiting, key=lambda each: len(self._waiting[each]))
            away = self._waiting[client][-1]
            self._forget(client, away)
            waiting = sum(map(len, self._waiting.values()))
            away.came.set_exception(
                Refusal(429, f"overloaded: {waiting} requests are waiting; try again later")
            )
        came = turn.came
        try:
            await asyncio.wait(
                (came, leaving), timeout=ticket.left, return_when=asyncio.FIRST_COMPLETED
            )
        except asyncio.CancelledError:
            if came.done() and came.exception() is None:
                self._release(ticket.client, part)
            raise
        finally:
            if not came.done():
                self._forget(ticket.client, turn)
        if came.done():
            came.result()
        elif leaving.done():
            ticket.check()
        else:
            raise Refusal(
                429,
                f"overloaded: its turn did not come within {ticket.seconds:g} s; try again later",
            )

    async def _work(
        self, function: Callable[[], T], ticket: Ticket, leaving: asyncio.Future[None], part: int
    ) -> T:
        loop = asyncio.get_running_loop()

        def work() -> T:
            CURRENT.set(ticket)
            try:
                ticket.check()
                return function()
            finally:
                CURRENT.set(None)
                with suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(self._release, ticket.client, part)

        done = asyncio.wrap_future(self._pool.submit(work))
        await asyncio.wait(
            (done, leaving), timeout=ticket.left, return_when=asyncio.FIRST_COMPLETED
        )
        if done.done():
            return done.result()
        # nobody else looks at it
        done.add_done_callback(lambda late: late.cancelled() or late.exception())
        if leaving.done():
            ticket.check()
        raise ticket.expire()

    def _start_waiting(self) -> None:
        while (client := self._next()) is not None:
            turns = self._waiting.pop(client)
            turn = turns.popleft()
            turn.came.set_result(None)
            self._running[client] += 1
            self._parts += turn.part > 0
            if turns:
                self._waiting[client] = turns  # now the last in the order

    def _next(self) -> str | None:
        if self._running.total() >= self._threads:
            return None
        each, parts = max(1, self._threads // 2), max(1, self._threads // 4)
        for client, turns in self._waiting.items():
            if self._running[client] < each and (turns[0].part == 0 or self._parts < parts):
                return client
        return None

    def _release(self, client: str, part: int) -> None:
        self._running[client] -= 1
        self._parts -= part > 0
        if not self._running[client]:
            del self._running[client]
        self._start_waiting()

    def _forget(self, client: str, turn: _Turn) -> None:
        self._waiting[client].remove(turn)
        if not self._waiting[client]:
            del self._waiting[client]
