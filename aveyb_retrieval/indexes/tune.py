"""Search settings for a wanted recall, measured on queries drawn from the corpus against exact search."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.indexes import ann, exact
from aveyb_retrieval.indexes.protocols import FloatArray, IntArray

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aveyb_retrieval.indexes.vectors import VectorTable

QUERIES = 200
DEPTH = 10  # recall@10
LARGEST = 4096


@dataclass(frozen=True)
class Tuning:
    """The setting found (empty where the index has none), its recall@10, and all that were measured."""

    params: dict[str, int]
    recall: float
    curve: list[dict[str, float]]


def tune(
    searcher: ann.Searcher,
    table: VectorTable,
    live: Iterable[tuple[IntArray, FloatArray]],
    queries: FloatArray,
    target: float,
    selector: object = None,
) -> Tuning:
    """Find the smallest `nprobe` or `efSearch` that reaches a recall of `target`; the largest tried if none does.

    Args:
        searcher: The index to tune.
        table: The vectors, to score shortened codes again.
        live: The vectors that can be found, block by block: exact search runs over them once.
        queries: `[n, d]` vectors of the corpus. Each finds itself, which says nothing, so its first result is left out.
        target: Share of the ten nearest that must be found, on average.
        selector: What searches are limited to, where the index holds removed vectors.
    """
    depth = DEPTH + 1
    _, truth = exact.search(live, queries, depth)
    curve: list[dict[str, float]] = []
    for value in _values(searcher):
        started = time.perf_counter()
        _, found = ann.search_rescored(searcher, table, queries, depth, selector=selector, effort=value or None)
        milliseconds = (time.perf_counter() - started) / max(len(queries), 1) * 1e3
        recall = _recall(truth, found)
        point: dict[str, float] = {"recall": round(recall, 4), "milliseconds": round(milliseconds, 4)}
        curve.append({searcher.knob: value, **point} if searcher.knob else point)
        if recall >= target:
            break
    best = curve[-1]
    params = {searcher.knob: int(best[searcher.knob])} if searcher.knob else {}
    return Tuning(params, best["recall"], curve)


def _values(searcher: ann.Searcher) -> list[int]:
    """Powers of two from where the setting begins to where it means everything."""
    if not searcher.knob:
        return [0]
    value, values = (1 if searcher.knob == "nprobe" else 16), []
    while value < min(searcher.largest, LARGEST):
        values.append(value)
        value *= 2
    return [*values, min(searcher.largest, LARGEST)]


def _recall(truth: IntArray, found: IntArray) -> float:
    """Share of the true neighbours found, the first of each row (the query itself) left out of both."""
    shares = []
    for wanted, got in zip(truth, found, strict=True):
        rest = wanted[1:][wanted[1:] >= 0]
        if len(rest):
            shares.append(float(np.isin(rest, got).mean()))
    return float(np.mean(shares)) if shares else 1.0
