"""Passages of a system against the true spans of answers.

For a query with true ranges T (of one document) and the k passages that a system returned, P their
union:

    precision@k = |P n T| / |P|      recall@k = |P n T| / |T|      IoU@k = |P n T| / |P u T|

all in characters, macro-averaged over queries. Overlapping passages count once. In scope `document`
the system searches inside the document that holds the answer; in scope `corpus` everywhere, and
characters of other documents count as retrieved and wrong. hit@k is the share of queries with any
overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.eval.systems import SearchedIndex
from aveyb_retrieval.indexes.vectors import StoredShards

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from aveyb_retrieval.eval.base import SystemInfo
    from aveyb_retrieval.eval.encoders import Chunker
    from aveyb_retrieval.eval.tasks import Task


Range = tuple[int, int]
Passage = tuple[str, int, int]
"""Document id, start, end: characters [start, end) of the document's text."""

SCOPES = ("document", "corpus")
CUTOFFS = (1, 3, 5, 10)


class PassageSystem(Protocol):
    """Anything that ranks passages for queries."""

    @property
    def info(self) -> SystemInfo:
        """Everything that decides the ranking."""

    def search(
        self, queries: Mapping[str, str], k: int, within: Mapping[str, Sequence[str]] | None = None
    ) -> dict[str, list[Passage]]:
        """Return at most `k` passages per query, best first; `within` maps query ids to the
        documents to search.
        """


@dataclass(frozen=True)
class PassageScores:
    """Means over queries, keyed `precision@k`, `recall@k`, `iou@k`, `hit@k`; per_query holds them
    by query id.
    """

    name: str
    scope: str
    queries: int
    mean_passage_characters: float
    mean: dict[str, float]
    per_query: dict[str, dict[str, float]]


def merge(ranges: Sequence[Range]) -> list[Range]:
    """Return the union of character ranges as disjoint, sorted ranges; empty ranges vanish."""
    merged: list[Range] = []
    for start, end in sorted(r for r in ranges if r[0] < r[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _characters(ranges: Sequence[Range]) -> int:
    return sum(end - start for start, end in merge(ranges))


def score_passages(
    truth: Mapping[str, Sequence[Range]], retrieved: Sequence[Passage]
) -> dict[str, float]:
    """Return precision, recall, IoU and hit of one query's passages; `truth` maps document ids to
    true ranges.
    """
    by_document: dict[str, list[Range]] = {doc: [] for doc in truth}
    for doc, start, end in retrieved:
        by_document.setdefault(doc, []).append((start, end))
    size, true_size = (sum(map(_characters, some.values())) for some in (by_document, truth))
    union = sum(_characters([*ranges, *truth.get(doc, ())]) for doc, ranges in by_document.items())
    common = size + true_size - union
    return {
        "precision": common / size if size else 0.0,
        "recall": common / true_size,
        "iou": common / union,
        "hit": float(common > 0),
    }


def evaluate_passages(
    system: PassageSystem, task: Task, *, ks: Sequence[int] = CUTOFFS, scope: str = "document"
) -> PassageScores:
    """Score a system's passages for every judged query that has true spans."""
    if scope not in SCOPES:
        raise ConfigError(f"unknown scope {scope!r}: use one of {', '.join(SCOPES)}")
    queries = {query: text for query, text in task.queries.items() if task.spans.get(query)}
    if not queries:
        raise InputError(
            f"{task.source}: no spans.jsonl for the {len(task.queries)} queries of split"
            f" {task.split!r}"
        )
    within = {query: list(task.spans[query]) for query in queries} if scope == "document" else None
    found = system.search(queries, max(ks), within)
    per_query: dict[str, dict[str, float]] = {}
    for query in queries:
        for k in ks:
            for measure, value in score_passages(task.spans[query], found[query][:k]).items():
                per_query.setdefault(f"{measure}@{k}", {})[query] = value
    lengths = [end - start for passages in found.values() for _, start, end in passages]
    return PassageScores(
        name=system.info.name,
        scope=scope,
        queries=len(queries),
        mean_passage_characters=float(np.mean(lengths)) if lengths else 0.0,
        mean={key: float(np.mean(list(values.values()))) for key, values in per_query.items()},
        per_query=per_query,
    )


class IndexPassages(SearchedIndex):
    """Passages of an index, searched end to end through `Retriever`.

    Near copies are kept, because the marked answers of a question may repeat. A search within
    documents filters on the metadata field `document`: build the index of `indexed_rows`.
    """

    def search(
        self, queries: Mapping[str, str], k: int, within: Mapping[str, Sequence[str]] | None = None
    ) -> dict[str, list[Passage]]:
        """Return at most `k` passages per query, best first; see `PassageSystem`."""
        found = {}
        for query, text in queries.items():
            only: dict[str, Any] = (
                {"filter": {"document": {"$in": list(within[query])}}} if within else {}
            )
            hits = self.retriever.search(
                text, k=k, unit="passage", fold=False, **self.search_options, **only
            )
            found[query] = [(hit.id, *hit.span) for hit in hits]
        return found


def chunks_of(path: Path) -> Chunker:
    """Return a chunker that repeats the passages of an index, to read exactly those in
    another way.
    """
    spans = {
        record.text: [(int(start), int(end)) for start, end in record.encoded.spans]
        for record in StoredShards(path).documents()
        if record.encoded is not None
    }
    return lambda text: spans[text]
