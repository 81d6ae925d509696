"""Answers as bytes of JSON: made in the threads that work, bounded, counted while they leave."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from aveyb_retrieval.server.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aveyb_retrieval.server.ticket import Ticket


def to_json(content: Any) -> bytes:
    """Write JSON."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def joined(parts: Iterable[bytes]) -> bytes:
    """Write a list of what is JSON already."""
    return b"[" + b",".join(parts) + b"]"


def json_answer(content: bytes) -> Response:
    """Answer with what is JSON already."""
    return Response(content, media_type="application/json")


class Room:
    """What is left of the bytes that one answer may have.

    Args:
        most: How many it may have.
        ticket: Whose answer it is.
    """

    def __init__(self, most: int, ticket: Ticket) -> None:
        self._most = most
        self._ticket = ticket
        self._used = 0

    def check(self, size: int) -> None:
        """Raise Refusal (413) where the answer would be too large with so many bytes more; from any thread."""
        if self._used + size > self._most:
            raise Refusal(
                413, f"the answer is larger than the {self._most:,} bytes that are allowed; ask for less at once"
            )

    def take(self, size: int) -> None:
        """Count bytes of the answer, for this request and for all together; in the event loop's thread.

        Raises:
            Refusal: 413 where the answer is too large, 429 where all answers and bodies together are.
        """
        self.check(size)
        self._used += size
        self._ticket.held.take(size)
