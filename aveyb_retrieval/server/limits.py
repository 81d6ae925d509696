"""What one request may ask for, and how many of them may run and wait."""

from __future__ import annotations

import math
from dataclasses import dataclass

from aveyb_retrieval.errors import ConfigError

CANDIDATES_FACTOR = 10  # a search may look at this many times `max_k` candidates


@dataclass(frozen=True)
class Limits:
    """The limits of a server.

    Attributes:
        max_body: Bytes of a request's body.
        max_batch: Queries, inputs or texts of one request.
        max_k: Hits of one query, those before `offset` included.
        timeout: Seconds from the arrival of a request to its answer.
        threads: Searches that run at once.
        max_waiting: Requests that may wait for their turn.

    Raises:
        ConfigError: one of them is not above 0 (`max_waiting`: below 0).
    """

    max_body: int = 8 << 20
    max_batch: int = 1024
    max_k: int = 100
    timeout: float = 60.0
    threads: int = 4
    max_waiting: int = 128

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 0 if name == "max_waiting" else 1
            if name == "timeout":
                if not (math.isfinite(value) and value > 0):
                    raise ConfigError(f"timeout={value!r}: must be a number of seconds above 0")
            elif value < least:
                raise ConfigError(f"{name}={value!r}: must be a whole number of at least {least}")

    @property
    def max_candidates(self) -> int:
        """The candidates that one search may look at."""
        return CANDIDATES_FACTOR * self.max_k
