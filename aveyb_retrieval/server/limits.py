"""What one request may ask for, and what all of them together may hold."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

from aveyb_retrieval.errors import ConfigError

CANDIDATES_FACTOR = 10  # a search may look at this many times `max_k` candidates


def _limit(default: float, unit: str, meaning: str, *, least: int = 1) -> Any:
    return field(default=default, metadata={"unit": unit, "meaning": meaning, "least": least})


@dataclass(frozen=True)
class Limits:
    """The limits of a server; `aveyb-serve` has an option for each, and `meaning` in its metadata says what it is.

    Raises:
        ConfigError: one of them is below its least value, or no finite number.
    """

    max_body: int = _limit(8 << 20, "BYTES", "Largest body of a request.")
    max_answer: int = _limit(32 << 20, "BYTES", "Largest answer.")
    max_held: int = _limit(128 << 20, "BYTES", "Bodies that arrive and answers that leave, together.")
    max_batch: int = _limit(1024, "N", "Queries, inputs, texts or documents of one request.")
    max_query: int = _limit(8192, "N", "Characters of a query.")
    max_text: int = _limit(1 << 20, "N", "Characters of a text to embed.")
    max_rerank_text: int = _limit(1 << 16, "N", "Characters of a text to rerank.")
    max_k: int = _limit(100, "N", "Hits of one query, those before its offset included.")
    max_hits: int = _limit(10_240, "N", "Hits of all queries of one request.")
    max_passages: int = _limit(10, "N", "Passages of one hit.")
    max_context: int = _limit(5, "N", "Neighbors of a passage on each side.")
    timeout: float = _limit(60.0, "SECONDS", "Time of a request.", least=0)
    threads: int = _limit(4, "N", "Searches that run at once.")
    max_waiting: int = _limit(128, "N", "Requests that wait for their turn.", least=0)
    max_connections: int = _limit(4000, "N", "Open connections.")
    max_connections_each: int = _limit(500, "N", "Open connections of one address that are read.")
    max_rate: int = _limit(16 << 20, "BYTES", "Bytes a second that are read of one address.")
    head_timeout: float = _limit(10.0, "SECONDS", "Time in which the head of a request arrives.", least=0)
    write_timeout: float = _limit(30.0, "SECONDS", "Time in which a client reads 256 KiB of an answer.", least=0)

    def __post_init__(self) -> None:
        for each in fields(self):
            name, value, least = each.name, getattr(self, each.name), each.metadata["least"]
            if isinstance(each.default, float):
                if not (math.isfinite(value) and value > 0):
                    raise ConfigError(f"{name}={value!r}: must be a number of seconds above 0")
            elif value < least:
                raise ConfigError(f"{name}={value!r}: must be a whole number of at least {least}")

    @property
    def max_candidates(self) -> int:
        """The candidates that one search may look at."""
        return CANDIDATES_FACTOR * self.max_k
