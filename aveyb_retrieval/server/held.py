"""Bytes that requests hold together: bodies that arrive, answers that leave."""

from __future__ import annotations

from aveyb_retrieval.server.refusals import Refusal


class Pool:
    """So many bytes for all requests. Only for use in the event loop's thread."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0


class Held:
    """What one request has taken of a pool, until `release`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._taken = 0

    def take(self, count: int) -> None:
        """Take so many bytes more.

        Raises:
            Refusal: 429 where the requests of all clients would hold too many.
        """
        if self._pool.used + count > self._pool.size:
            raise Refusal(
                429, f"overloaded: bodies and answers under way hold {self._pool.used:,} bytes; try again later"
            )
        self._pool.used += count
        self._taken += count

    def release(self) -> None:
        """Give everything back."""
        self._pool.used -= self._taken
        self._taken = 0
