"""Work of requests outside the event loop: bounded threads, and a queue in which clients take
turns.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from aveyb_retrieval.server.refusals import Refusal
from aveyb_retrieval.server.tickets import CURRENT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

    from aveyb_retrieval.server.tickets import Ticket

PART_CHARACTERS = 65_536  # that are encoded before others have their turn

P = TypeVar("P")
T = TypeVar("T")


def parts(
    texts: Sequence[str], most: int, characters: int = PART_CHARACTERS
) -> Iterator[list[str]]:
    """Cut a list of texts into lists of at most `most` texts, and of at most so many characters
    unless a text alone has more.
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


@dataclass(frozen=True, eq=False)
class _Turn:
    """A place in the queue; `came` is set when a thread is free. `part` counts the parts of a
    request from 0.
    """

    came: asyncio.Future[None]
    part: int


class Work:
    """A pool of threads with a bounded queue, in which clients take turns however much each of
    them asks for.

    A client has at most half of the threads. If too many requests wait, the client with most of
    them loses its last place. Long requests come in parts with a turn each (`each`); parts after
    the first have a quarter of the threads. A thread cannot be stopped: work that outlives its
    ticket keeps its thread until it looks at the ticket.
    """

    def __init__(self, name: str, threads: int, max_waiting: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._threads, self._max_waiting = threads, max_waiting
        self._max_of_client, self._max_parts = max(1, threads // 2), max(1, threads // 4)
        self._running: Counter[str] = Counter()  # by client
        self._running_parts = 0  # of these, those that are not the first of their requests
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
        """Yield what a function returns for each part of a long request; each has its own turn."""
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
        if self._count_waiting() > self._max_waiting:
            self._refuse_one()
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
        # nobody else looks at its error
        done.add_done_callback(lambda late: late.cancelled() or late.exception())
        if leaving.done():
            ticket.check()
        raise ticket.expire()

    def _count_waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def _refuse_one(self) -> None:
        """Refuse the last request of the client with most waiting requests."""
        client = max(self._waiting, key=lambda client: len(self._waiting[client]))
        last = self._waiting[client][-1]
        self._forget(client, last)
        last.came.set_exception(
            Refusal(
                429,
                f"overloaded: {self._count_waiting()} requests are waiting; try again later",
            )
        )

    def _start_waiting(self) -> None:
        """Give free threads to those whose turn it is."""
        while (client := self._next()) is not None:
            turns = self._waiting.pop(client)
            turn = turns.popleft()
            turn.came.set_result(None)
            self._running[client] += 1
            self._running_parts += turn.part > 0
            if turns:
                self._waiting[client] = turns  # now the last in the order

    def _next(self) -> str | None:
        """Return the client whose turn it is; None if no thread is free for any."""
        if self._running.total() >= self._threads:
            return None
        for client, turns in self._waiting.items():
            has_room = turns[0].part == 0 or self._running_parts < self._max_parts
            if self._running[client] < self._max_of_client and has_room:
                return client
        return None

    def _release(self, client: str, part: int) -> None:
        self._running[client] -= 1
        self._running_parts -= part > 0
        if not self._running[client]:
            del self._running[client]
        self._start_waiting()

    def _forget(self, client: str, turn: _Turn) -> None:
        self._waiting[client].remove(turn)
        if not self._waiting[client]:
            del self._waiting[client]
