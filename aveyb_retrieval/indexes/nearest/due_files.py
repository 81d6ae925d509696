"""Decide which FAISS files are due, and make them.

Vectors gather in memory, become a file when there are many, and files are joined when the later
ones together are at least half as large as the one before: a vector is indexed a number of times
that grows with the logarithm of all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.indexes.nearest import faiss_file
from aveyb_retrieval.indexes.store.manifest import Tier
from aveyb_retrieval.indexes.types import silent

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aveyb_retrieval.files import FileInfo
    from aveyb_retrieval.indexes.store.tables import StoredVectors
    from aveyb_retrieval.indexes.types import FloatArray, Kind, Progress

DEAD_SHARE = 0.2  # a file with a larger share of deleted vectors is made again
MAX_TIERS = 6


def plan(
    tiers: Sequence[Tier],
    kind: Kind,
    next_doc: int,
    live: int,
    index: str,
    dim: int,
    *,
    rebuild: bool = False,
) -> list[tuple[int, int]]:
    """Return the ranges `[first, stop)` of documents that are to be made into a FAISS file each;
    mostly none.

    A new file replaces those of `tiers` whose ranges lie inside its own. `live` vectors of width
    `dim` are stored. Of an `index` that is not "auto" a first file is made however few these are.
    `rebuild` returns all there should be.
    """
    if index == faiss_file.NONE:
        return []
    limit = faiss_file.exact_limit(dim)
    if rebuild or not any(tier.kind == kind for tier in tiers):
        due = live > limit or (live > 0 and index != faiss_file.AUTO)
        return [(0, next_doc)] if due else []
    parts = sorted(
        (tier.first, tier.stop, tier.count - tier.dead, tier.count)
        for tier in tiers
        if tier.kind == kind
    )
    uncovered = live - sum(part[2] for part in parts)
    if uncovered > limit:
        parts.append((parts[-1][1], next_doc, uncovered, 0))
    worn = [alive < count * (1 - DEAD_SHARE) or not count for _, _, alive, count in parts]
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
    vectors: StoredVectors,
    count_estimate: int,
    index: str,
    progress: Progress = silent,
    device: str = "cpu",
) -> tuple[Tier, FileInfo]:
    """Make a FAISS file of the stored vectors of the documents numbered in `[first, stop)`; durable
    when this returns.

    `count_estimate`, about how many they are, decides the type that "auto" takes, and what is drawn
    for training. A `device` of "cuda" trains inverted lists there.
    """
    factory, params = faiss_file.chosen(index, count_estimate)
    made = faiss_file.create(factory, vectors.dim)
    if faiss_file.CAGRA.fullmatch(factory):
        made = faiss_file.graph_by_card(made, factory, vectors.blocks(first, stop), device)
    else:
        if size := faiss_file.training_size(made, count_estimate):
            faiss_file.train(
                made, _sample(vectors, first, stop, size, count_estimate), factory, device
            )
        faiss_file.reserve(made, count_estimate)
        for numbers, rows in vectors.blocks(first, stop):
            faiss_file.fill(made, numbers, rows)
            progress("indexing", int(made.ntotal), max(count_estimate, int(made.ntotal)), 0)
    path = root / file
    path.parent.mkdir(exist_ok=True)
    info = faiss_file.write(made, path)
    tier = Tier(
        kind=kind,
        file=file,
        factory=factory,
        first=first,
        stop=stop,
        count=int(made.ntotal),
        params=params,
    )
    return tier, info


def _sample(vectors: StoredVectors, first: int, stop: int, size: int, count: int) -> FloatArray:
    """About `size` of the `count` vectors of some documents, drawn evenly, always the same: `[n,
    d]`.
    """
    rng = np.random.default_rng(0)
    share = size / max(count, 1)
    parts = [np.empty((0, vectors.dim), np.float32)]
    for numbers, rows in vectors.blocks(first, stop):
        parts.append(rows if share >= 1 else rows[rng.random(len(numbers)) < share])
    return np.concatenate(parts)
