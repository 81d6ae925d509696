"""Run blocking work beside the event loop: so many threads, so many that wait, so long."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from aveyb_retrieval.server.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

T = TypeVar("T")


class Deadline:
    """When a request has to be answered.

    Attributes:
        seconds: From now on.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds until then, at least 0."""
        return max(0.0, self._end - time.monotonic())

    def check(self) -> None:
        """Raise Refusal once it has passed; long work calls this between its parts."""
        if time.monotonic() >= self._end:
            raise self.passed()

    def passed(self) -> Refusal:
        """Make the error of work that took too long."""
        return Refusal(503, f"took longer than the {self.seconds:g} s that a request may take; ask for less at once")


class Work:
    """A pool of threads with a bounded queue.

    A thread cannot be stopped. Work that outlives its deadline keeps its place until it ends, so that there are never
    more than `threads` pieces of work at once.
    """

    def __init__(self, name: str, threads: int, max_waiting: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._room = threads + max_waiting
        self._admitted = 0

    async def run(self, function: Callable[[], T], deadline: Deadline) -> T:
        """Run a function in a thread and return its result.

        Raises:
            Refusal: 429 if too many wait already, or its turn did not come in time; 503 if it took too long.
        """
        if self._admitted >= self._room:
            raise Refusal(429, f"overloaded: {self._room} requests are running or waiting; try again later")
        loop = asyncio.get_running_loop()
        self._admitted += 1
        future = self._pool.submit(function)
        future.add_done_callback(lambda _: _call(loop, self._release))
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), deadline.left)
        except asyncio.TimeoutError:
            raise self._too_late(future, deadline) from None

    def close(self) -> None:
        """Let running work end; nothing new is taken."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _release(self) -> None:
        self._admitted -= 1

    @staticmethod
    def _too_late(future: Future[T], deadline: Deadline) -> Refusal:
        if future.cancel():  # it had not begun
            return Refusal(429, f"overloaded: its turn did not come within {deadline.seconds:g} s; try again later")
        return deadline.passed()


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    """Run a function in an event loop, from any thread; not at all once the loop has ended."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(function)
