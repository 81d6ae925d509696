"""The limits of a server."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

from aveyb_retrieval.errors import ConfigError

CANDIDATES_FACTOR = 10  # a search may look at this many times `max_k` candidates


def _limit(default: float, unit: str, meaning: str, *, least: int = 1) -> Any:
    return field(default=default, metadata={"unit": unit, "meaning": meaning, "least": least})


def flag(limit: str) -> str:
    """Return the option of `aveyb-serve` that sets a limit."""
    return f"--{limit.replace('_', '-')}"


@dataclass(frozen=True)
class ServerLimits:
    """The limits of a server, each an option of `aveyb-serve`.

    The metadata of a field hold its `unit` and its `meaning`. A limit that is a float counts
    seconds and is above 0; another one is a whole number of at least `least`.
    """

    max_body: int = _limit(8 << 20, "BYTES", "Largest body of a request.")
    max_answer: int = _limit(32 << 20, "BYTES", "Largest answer.")
    max_held: int = _limit(
        128 << 20, "BYTES", "Bodies that arrive and answers that leave, together."
    )
    max_batch: int = _limit(1024, "N", "Queries, inputs, texts or documents of one request.")
    max_query: int = _limit(8192, "N", "Characters of a query.")
    max_text: int = _limit(1 << 20, "N", "Characters of a text to embed.")
    max_rerank_text: int = _limit(1 << 16, "N", "Characters of a text to rerank.")
    max_k: int = _limit(100, "N", "Hits of one query, those before its offset included.")
    max_hits: int = _limit(10_240, "N", "Hits of all queries of one request.")
    max_passages: int = _limit(10, "N", "Passages of one hit.")
    max_context: int = _limit(5, "N", "Neighbors of a passage on each side.")
    timeout: float = _limit(60.0, "SECONDS", "Time of a request.")
    threads: int = _limit(4, "N", "Searches that run at once.")
    processes: int = _limit(1, "N", "Processes that search; with 1, the server's own does.")
    max_waiting: int = _limit(128, "N", "Requests that wait for their turn.", least=0)
    max_connections: int = _limit(4000, "N", "Open connections.")
    max_connections_each: int = _limit(500, "N", "Open connections of one address that are read.")
    max_rate: int = _limit(16 << 20, "BYTES", "Bytes per second that are read from one client.")
    head_timeout: float = _limit(10.0, "SECONDS", "Time for the head of a request to arrive.")
    write_timeout: float = _limit(
        30.0, "SECONDS", "Time for a client to read 256 KiB of an answer."
    )

    def __post_init__(self) -> None:
        for limit in fields(self):
            name, value = limit.name, getattr(self, limit.name)
            if isinstance(limit.default, float):
                if not (math.isfinite(value) and value > 0):
                    raise ConfigError(f"{name}={value!r}: must be a number of seconds above 0")
            elif value < limit.metadata["least"]:
                least = limit.metadata["least"]
                raise ConfigError(f"{name}={value!r}: must be a whole number of at least {least}")

    @property
    def max_candidates(self) -> int:
        """The candidates that one search may look at."""
        return CANDIDATES_FACTOR * self.max_k
