"""Search settings for a wanted recall, measured on queries drawn from the corpus against exact search."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.indexes.nearest import exact
from aveyb_retrieval.indexes.nearest.searcher import Searcher, search_rescored

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aveyb_retrieval.indexes.store.vectors import VectorTable
    from aveyb_retrieval.indexes.types import FloatArray, IntArray

QUERIES = 200
DEPTH = 10  # recall@10
LARGEST = 4096  # of nprobe and efSearch
RESCORES = (8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Tuning:
    """The setting found (empty where the index has none), its recall@10, and all that were measured."""

    params: dict[str, int]
    recall: float
    curve: list[dict[str, float]]


def tune(
    searcher: Searcher,
    table: VectorTable,
    live: Iterable[tuple[IntArray, FloatArray]],
    queries: FloatArray,
    target: float,
    selector: object = None,
) -> Tuning:
    """Find the cheapest setting that reaches a recall of `target`; the dearest tried if none does.

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
    for settings in _settings(searcher):
        started = time.perf_counter()
        effort, rescore = settings.get(searcher.knob), settings.get("rescore")
        _, found = search_rescored(searcher, table, queries, depth, selector=selector, effort=effort, rescore=rescore)
        milliseconds = (time.perf_counter() - started) / max(len(queries), 1) * 1e3
        recall = _recall(truth, found)
        curve.append({**settings, "recall": round(recall, 4), "milliseconds": round(milliseconds, 4)})
        if recall >= target:
            break
    return Tuning(settings, curve[-1]["recall"], curve)


def _settings(searcher: Searcher) -> Iterator[dict[str, int]]:
    """Settings to try, from cheap to dear: powers of two of the knob, then, for shortened codes, more candidates."""
    largest = min(searcher.largest, LARGEST) if searcher.knob else 0
    value = 1 if searcher.knob == "nprobe" else 16
    while value < largest:
        yield {searcher.knob: value}
        value *= 2
    most = {searcher.knob: largest} if searcher.knob else {}
    yield most
    if not searcher.keeps_floats:
        for rescore in RESCORES:
            yield {**most, "rescore": rescore}


def _recall(truth: IntArray, found: IntArray) -> float:
    """Share of the true neighbours found, the first of each row (the query itself) left out of both."""
    shares = []
    for wanted, got in zip(truth, found, strict=True):
        rest = wanted[1:][wanted[1:] >= 0]
        if len(rest):
            shares.append(float(np.isin(rest, got).mean()))
    return float(np.mean(shares)) if shares else 1.0
