"""Does the passage that is shown to the reader hold the answer? Measured in characters against true spans.

For a query with true ranges T (of one document) and the k passages that a system returned, P their union:

    precision@k = |P n T| / |P|      recall@k = |P n T| / |T|      IoU@k = |P n T| / |P u T|

all in characters, macro-averaged over queries. Overlapping passages count once. In scope `document` the system searches
inside the document that holds the answer; in scope `corpus` everywhere, and characters of other documents count as
retrieved and wrong. hit@k is the share of queries with any overlap.

The comparison that matters: the same model, the same spans, encoded with their document (late chunking) or one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.eval.datasets import Document
from aveyb_retrieval.eval.encoders import Chunker, CorpusEncoder
from aveyb_retrieval.eval.protocols import Task
from aveyb_retrieval.eval.systems import VectorCache
from aveyb_retrieval.eval.vectors import EncodedCorpus, search_passages

Range = tuple[int, int]
Passage = tuple[str, int, int]
"""Document id, start, end: characters [start, end) of the document's text."""

SCOPES = ("document", "corpus")


@dataclass(frozen=True)
class PassageScores:
    """Means over queries, keyed `precision@k`, `recall@k`, `iou@k`, `hit@k`; per_query holds them by query id."""

    name: str
    scope: str
    queries: int
    mean_passage_characters: float
    mean: dict[str, float]
    per_query: dict[str, dict[str, float]]


def merge(ranges: Sequence[Range]) -> list[Range]:
    """The union of character ranges as disjoint, sorted ranges; empty ranges vanish."""
    merged: list[Range] = []
    for start, end in sorted(r for r in ranges if r[0] < r[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def overlap(a: Sequence[Range], b: Sequence[Range]) -> int:
    """Characters in both of two unions of ranges."""
    left, right = merge(a), merge(b)
    return sum(max(0, min(e1, e2) - max(s1, s2)) for s1, e1 in left for s2, e2 in right)


def score_passages(truth: Mapping[str, Sequence[Range]], retrieved: Sequence[Passage]) -> dict[str, float]:
    """Precision, recall, IoU and hit of the returned passages of one query; `truth` maps document ids to ranges."""
    by_document: dict[str, list[Range]] = {}
    for doc, start, end in retrieved:
        by_document.setdefault(doc, []).append((start, end))
    size = sum(end - start for ranges in by_document.values() for start, end in merge(ranges))
    true_size = sum(end - start for ranges in truth.values() for start, end in merge(ranges))
    common = sum(overlap(ranges, truth.get(doc, ())) for doc, ranges in by_document.items())
    return {
        "precision": common / size if size else 0.0,
        "recall": common / true_size,
        "iou": common / (size + true_size - common),
        "hit": float(common > 0),
    }


def evaluate_passages(
    encoder: CorpusEncoder,
    task: Task,
    cache: VectorCache,
    *,
    ks: Sequence[int] = (1, 3, 5, 10),
    scope: str = "document",
    name: str = "",
) -> PassageScores:
    """Rank an encoder's passages for every judged query that has true spans.

    Raises:
        ConfigError: an unknown scope.
        InputError: the data set has no spans for these queries.
    """
    if scope not in SCOPES:
        raise ConfigError(f"Unknown scope {scope!r}: use one of {', '.join(SCOPES)}.")
    queries = {query: text for query, text in task.queries.items() if task.spans.get(query)}
    if not queries:
        raise InputError(f"{task.source}: no spans.jsonl for the {len(task.queries)} queries of split {task.split!r}.")
    encoded = cache.encoded(encoder, task.corpus)
    vectors = encoder.encode_queries(list(queries.values()))
    per_query: dict[str, dict[str, float]] = {}
    lengths: list[int] = []
    for query, vector in zip(queries, vectors, strict=True):
        truth = task.spans[query]
        ranked = _ranked(encoded, vector, truth, task, max(ks), scope)
        lengths.extend(end - start for _, start, end in ranked)
        for k in ks:
            for measure, value in score_passages(truth, ranked[:k]).items():
                per_query.setdefault(f"{measure}@{k}", {})[query] = value
    return PassageScores(
        name or encoder.info.name,
        scope,
        len(queries),
        float(np.mean(lengths)) if lengths else 0.0,
        {key: float(np.mean(list(values.values()))) for key, values in per_query.items()},
        per_query,
    )


def _ranked(
    encoded: EncodedCorpus, vector: np.ndarray, truth: Mapping[str, Sequence[Range]], task: Task, k: int, scope: str
) -> list[Passage]:
    """The k best passages; in scope `document` those of the documents that hold the answer (almost always one)."""
    spare = k + 2  # a split that holds nothing but title and prompt has an empty span and cannot be shown
    if scope == "corpus":
        rows, scores = search_passages(encoded, vector, spare)
    else:
        parts = [search_passages(encoded, vector, spare, task.corpus.positions[doc]) for doc in truth]
        rows, scores = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        rows = rows[np.argsort(-scores, kind="stable")]
    owners = np.searchsorted(encoded.offsets, rows, side="right") - 1
    passages = []
    for row, owner in zip(rows, owners, strict=True):
        start, end = (int(x) for x in encoded.spans[row])
        if start < end:
            passages.append((task.corpus.ids[owner], start, end))
    return passages[:k]


def chunks_of(encoded: EncodedCorpus, positions: Mapping[str, int]) -> Chunker:
    """A chunker that repeats the spans of an already encoded corpus, to encode exactly those one by one."""

    def chunk(document: Document) -> list[Range]:
        position = positions[document.id]
        rows = encoded.spans[encoded.offsets[position] : encoded.offsets[position + 1]]
        return [(int(start), int(end)) for start, end in rows if start < end]

    return chunk


def late_against_fixed(
    make_encoder: Callable[[Chunker | None], CorpusEncoder], task: Task, cache: VectorCache, *, scope: str = "document"
) -> list[PassageScores]:
    """Late chunking beside the same spans encoded one by one; `make_encoder(None)` is the late-chunking encoder."""
    late = make_encoder(None)
    scores = [evaluate_passages(late, task, cache, scope=scope, name=f"{late.info.name}, late chunking")]
    chunker = chunks_of(cache.encoded(late, task.corpus), task.corpus.positions)
    fixed = make_encoder(chunker)
    return [*scores, evaluate_passages(fixed, task, cache, scope=scope, name=f"{fixed.info.name}, chunks one by one")]
