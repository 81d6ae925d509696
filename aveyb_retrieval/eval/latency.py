"""Time searches as a user waits for them: the whole call, query encoding included."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.documents.json_lines import read_objects
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.eval.base import text_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

DEFAULT_QUERIES = (
    "how does a heat pump work",
    "causes of the first world war",
    "is it safe to store batteries in the fridge",
    "symptoms of iron deficiency in adults and when to see a doctor",
    "difference between a contract and an agreement",
    "best time of year to plant garlic",
    "what did the committee decide about the budget for school transport",
    "why do rivers meander",
    "tax rules for people who work in two countries",
    "photosynthesis",
    "how to write a unit test for a function that reads a file",
    "which materials keep their strength at high temperatures",
)
"""Short questions on many subjects; the time of a search hardly depends on the question."""


@dataclass(frozen=True)
class Latency:
    """Wall times of `Retriever.search` in milliseconds per call, and queries per second, at one batch size."""

    batch: int
    calls: int
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    queries_per_second: float


def measure(
    search: Callable[[list[str]], Any],
    queries: Sequence[str] = DEFAULT_QUERIES,
    *,
    batch: int = 1,
    calls: int = 100,
    warmup: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> Latency:
    """Time `calls` calls of `search` with `batch` queries each, after `warmup` untimed ones.

    Raises:
        ConfigError: batch or calls below 1.
        InputError: no queries.
    """
    if batch < 1 or calls < 1:
        raise ConfigError(f"batch and calls must be at least 1, not {batch} and {calls}")
    if not queries:
        raise InputError("there are no queries to time")
    batches = [[queries[(i * batch + j) % len(queries)] for j in range(batch)] for i in range(calls)]
    for i in range(warmup):
        search(batches[i % len(batches)])
    times = np.empty(calls)
    for i, texts in enumerate(batches):
        start = clock()
        search(texts)
        times[i] = clock() - start
    p50, p95, p99 = np.percentile(times, [50, 95, 99]) * 1000
    return Latency(
        batch=batch,
        calls=calls,
        mean_ms=float(times.mean() * 1000),
        p50_ms=float(p50),
        p95_ms=float(p95),
        p99_ms=float(p99),
        max_ms=float(times.max() * 1000),
        queries_per_second=float(batch * calls / times.sum()),
    )


def read_query_texts(path: Path) -> list[str]:
    """Queries to time: a `.jsonl` file of {"text"} (BEIR's queries.jsonl) or plain text, one query per line.

    Raises:
        InputError: the file cannot be read, is empty or not text, or a line has no text.
    """
    if path.suffix == ".jsonl":
        texts = [_query_text(row, f"{path}, line {number}") for number, row in read_objects(path)]
    else:
        texts = [line for _, line in text_lines(path, "file of queries")]
    if not texts:
        raise InputError(f"{path}: no queries in this file")
    return texts


def _query_text(row: Mapping[str, Any], where: str) -> str:
    text = row.get("text")
    if not isinstance(text, str):
        raise InputError(f"{where}: expected an object with a 'text' field")
    return text
