"""Decide which FAISS files are due, make them, and tune them.

Files cover documents like the tiers of a log: vectors gather in memory, become a file when there are many, and files
are made into one when the later ones together are at least half as large as the one before. So there are few files,
and each vector is indexed a number of times that grows with the logarithm of their number.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.indexes.nearest import faiss_file
from aveyb_retrieval.indexes.nearest.faiss_file import FaissSearcher
from aveyb_retrieval.indexes.nearest.tiers import Nearest, search_exactly
from aveyb_retrieval.indexes.store.manifest import Tier
from aveyb_retrieval.indexes.types import silent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from aveyb_retrieval.files import FileInfo
    from aveyb_retrieval.indexes.nearest.tiers import Vectors
    from aveyb_retrieval.indexes.types import FloatArray, Kind, Progress

DEAD_SHARE = 0.2  # a file with a larger share of deleted vectors is made again
MAX_TIERS = 6

TUNING_QUERIES = 200
DEPTH = 10  # recall@10
LARGEST = 4096  # of nprobe and efSearch
RESCORES = (500, 1000, 2000, 4000)


def plan(
    tiers: Sequence[Tier], kind: Kind, next_doc: int, live: int, index: str, dim: int, *, rebuild: bool = False
) -> list[tuple[int, int]]:
    """Return the ranges `[first, stop)` of documents that are to be made into a FAISS file each; mostly none.

    A new file replaces those whose ranges lie inside its own.

    Args:
        tiers: The files there are.
        kind: The kind of vectors.
        next_doc: The number that the next document gets.
        live: How many vectors are stored.
        index: "auto", "none", or the FAISS factory string that was asked for: a first file of it is made however few
            there are.
        dim: Their width.
        rebuild: Make all files again; what is returned is then all that there should be.
    """
    if index == faiss_file.NONE:
        return []
    limit = faiss_file.exact_limit(dim)
    if rebuild or not any(tier.kind == kind for tier in tiers):
        due = live > limit or (live > 0 and index != faiss_file.AUTO)
        return [(0, next_doc)] if due else []
    parts = sorted((tier.first, tier.stop, tier.count - tier.dead, tier.count) for tier in tiers if tier.kind == kind)
    rest = live - sum(part[2] for part in parts)
    if rest > limit:
        parts.append((parts[-1][1], next_doc, rest, 0))
    worn = [kept < count * (1 - DEAD_SHARE) or not count for _, _, kept, count in parts]
    start, later = len(parts), 0
    for place in range(len(parts) - 1, 0, -1):
        later += parts[place][2]
        if later * 2 >= parts[place - 1][2] or place >= MAX_TIERS:
            start = place - 1
    alone = [parts[place][:2] for place in range(start) if worn[place] and parts[place][2]]
    return alone + ([(parts[start][0], parts[-1][1])] if start < len(parts) else [])


def make_tier(
    root: Path,
    file: str,
    kind: Kind,
    first: int,
    stop: int,
    vectors: Vectors,
    count_estimate: int,
    index: str,
    recall: float | None = None,
    progress: Progress = silent,
) -> tuple[Tier, FileInfo]:
    """Make a FAISS file of the stored vectors of the documents numbered in `[first, stop)`; durable when this returns.

    Args:
        root: The index directory.
        file: The file's name inside it.
        kind: The kind of vectors.
        first: The first document.
        stop: One more than the last.
        vectors: The stored vectors.
        count_estimate: About how many they are: decides the type that "auto" takes, and what is drawn for training.
        index: "auto" or a FAISS factory string.
        recall: What its search settings are tuned for; None: the defaults.
        progress: Told how many vectors are in.

    Raises:
        ConfigError: FAISS does not know the factory string, or there are too few vectors to train it.
    """
    factory = faiss_file.choose_factory(index, count_estimate)
    made = faiss_file.create(factory, vectors.dim)
    if size := faiss_file.training_size(made, count_estimate):
        faiss_file.train(made, _sample(vectors, first, stop, size, count_estimate), factory)
    faiss_file.reserve(made, count_estimate)
    for numbers, rows in vectors.blocks(first, stop):
        faiss_file.fill(made, numbers, rows)
        progress("indexing", int(made.ntotal), max(count_estimate, int(made.ntotal)), 0)
    path = root / file
    path.parent.mkdir(exist_ok=True)
    info = faiss_file.write(made, path)
    params = faiss_file.auto_params(factory) if index == faiss_file.AUTO else {}
    tier = Tier(kind=kind, file=file, factory=factory, first=first, stop=stop, count=int(made.ntotal), params=params)
    return (tier if recall is None else _tuned(FaissSearcher(tier, made), vectors, recall)), info


def tune_tier(root: Path, tier: Tier, vectors: Vectors, recall: float) -> Tier:
    """Find the cheapest settings of a file's searches that reach a recall@10; the dearest tried if none does.

    They are measured on vectors drawn from its own. Each finds itself, which says nothing, so that result is left out.

    Args:
        root: The index directory.
        tier: The file.
        vectors: The stored vectors.
        recall: Share of the ten nearest that must be found, on average.

    Returns:
        The tier with `params`, `recall` and `curve`.
    """
    return _tuned(FaissSearcher.open(root, tier), vectors, recall)


def _tuned(searcher: FaissSearcher, vectors: Vectors, target: float) -> Tier:
    tier = searcher.tier
    if not searcher.live:
        return dataclasses.replace(tier, params={}, recall=1.0, curve=[])
    queries = _sample(vectors, tier.first, tier.stop, TUNING_QUERIES, searcher.live)[:TUNING_QUERIES]
    depth = min(DEPTH + 1, searcher.live)
    _, truth = search_exactly(vectors.blocks(tier.first, tier.stop), queries, depth)
    curve: list[dict[str, float]] = []
    for params in _settings(searcher):
        tried = FaissSearcher(dataclasses.replace(tier, params=params), searcher.index)
        alone = Nearest.of_file(tried, vectors)
        started = time.perf_counter()
        found = [alone.search(query[None], depth)[1][0] for query in queries]
        milliseconds = (time.perf_counter() - started) / len(queries) * 1e3
        shares = [np.isin(t[1:], f).mean() for t, f in zip(truth, found, strict=True) if len(t) > 1]
        reached = float(np.mean(shares)) if shares else 1.0
        curve.append({**params, "recall": round(reached, 4), "milliseconds": round(milliseconds, 4)})
        if reached >= target:
            break
    return dataclasses.replace(tier, params=params, recall=curve[-1]["recall"], curve=curve)


def _settings(searcher: FaissSearcher) -> Iterator[dict[str, int]]:
    """Settings to try, from cheap to dear: powers of two of the knob, then, for shortened codes, more candidates."""
    knob = searcher.traits.knob
    largest = min(searcher.traits.largest, LARGEST) if knob else 0
    value = 1 if knob == "nprobe" else 16
    while value < largest:
        yield {knob: value}
        value *= 2
    most = {knob: largest} if knob else {}
    yield most
    if not searcher.traits.keeps_floats:
        for rescore in RESCORES:
            yield {**most, "rescore": rescore}


def _sample(vectors: Vectors, first: int, stop: int, size: int, count: int) -> FloatArray:
    """About `size` of the `count` vectors of some documents, drawn evenly, always the same: `[n, d]`."""
    rng = np.random.default_rng(0)
    share = size / max(count, 1)
    parts = [np.empty((0, vectors.dim), np.float32)]
    for numbers, rows in vectors.blocks(first, stop):
        parts.append(rows if share >= 1 else rows[rng.random(len(numbers)) < share])
    return np.concatenate(parts)
