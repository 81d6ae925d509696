"""Candidates of a search by vectors: documents by their own vector or by their best passage, and passages."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.indexes.store.numbering import PASSAGE_BITS
from aveyb_retrieval.indexes.types import unit_rows

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.engines.base import EngineView, Selection
    from aveyb_retrieval.indexes.types import FloatArray, IntArray, Kind


ALL_AT_ONCE = 16  # passages for each document wanted: so few are fetched in one step


class Match(NamedTuple):
    """A document with its score and, where a passage decided it, that passage's number (else -1)."""

    doc: int
    score: float
    passage: int = -1


def unit_queries(vectors: npt.NDArray[np.floating], dim: int) -> FloatArray:
    """Scale query vectors `[n, d]` to unit length.

    Raises:
        InputError: they are of another dimension, or not finite.
    """
    try:
        rows = np.ascontiguousarray(vectors, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"query vectors are not an array of numbers ({error}); this index needs [n, {dim}]") from error
    if rows.ndim != 2 or rows.shape[1] != dim:
        raise InputError(f"query vectors of shape {rows.shape}; this index needs [n, {dim}]")
    if not np.isfinite(rows).all():
        raise InputError("a query vector holds NaN or infinity")
    return unit_rows(rows)


def nearest_documents(
    view: EngineView,
    kinds: tuple[Kind, ...],
    queries: FloatArray,
    k: int,
    selection: Selection | None = None,
    *,
    exact: bool = False,
) -> list[list[Match]]:
    """The `k` best documents for each query `[n, d]`: by their vector, their best passage, or the better one.

    With both kinds the `k` best of each are enough: a document among the `k` best by the larger of its two scores
    is among the `k` best by that score.
    """
    if len(kinds) == 1:
        return _by_kind(view, kinds[0], queries, k, selection, exact)
    results: list[dict[int, Match]] = [{} for _ in queries]
    for kind in kinds:
        for result, matches in zip(results, _by_kind(view, kind, queries, k, selection, exact), strict=True):
            for match in matches:
                if match.doc not in result or match.score > result[match.doc].score:
                    result[match.doc] = match
    return [sorted(result.values(), key=lambda m: (-m.score, m.doc))[:k] for result in results]


def nearest_passages(
    view: EngineView, queries: FloatArray, k: int, selection: Selection | None = None, *, exact: bool = False
) -> list[list[Match]]:
    """The `k` best passages for each query `[n, d]`."""
    scores, ids = view.nearest("passage", queries, k, selection, exact=exact)
    return [
        [Match(i >> PASSAGE_BITS, score, i) for i, score in zip(row_ids, row, strict=True)]
        for row_ids, row in zip(ids.tolist(), scores.tolist(), strict=True)
    ]


def score_documents(view: EngineView, kinds: tuple[Kind, ...], docs: list[int], query: FloatArray) -> dict[int, float]:
    """Score documents against one query `[d]` as `nearest_documents` does; leave out those without a vector."""
    found: dict[int, float] = {}
    if "document" in kinds and docs:
        scores = view.vectors("document", np.array(docs, dtype=np.int64)) @ query
        found = dict(zip(docs, scores.tolist(), strict=True))
    if "passage" in kinds and docs:
        ids = view.passage_numbers(docs)
        scores = view.vectors("passage", ids) @ query if len(ids) else np.empty(0, np.float32)
        for doc, score in zip((ids >> PASSAGE_BITS).tolist(), scores.tolist(), strict=True):
            found[doc] = max(score, found.get(doc, score))
    return found


def background(view: EngineView, query: FloatArray) -> float:
    """The mean cosine of all vectors with a query `[d]`, of a sample of them: what a document scores at random."""
    return float(view.mean_vector @ query)


def _by_kind(
    view: EngineView, kind: Kind, queries: FloatArray, k: int, selection: Selection | None, exact: bool
) -> list[list[Match]]:
    if kind == "document":
        scores, ids = view.nearest(kind, queries, k, selection, exact=exact)
        return [
            [Match(doc, score) for doc, score in zip(row_ids, row, strict=True)]
            for row_ids, row in zip(ids.tolist(), scores.tolist(), strict=True)
        ]
    return _by_passage(view, queries, k, selection, exact)


def _by_passage(
    view: EngineView, queries: FloatArray, k: int, selection: Selection | None, exact: bool
) -> list[list[Match]]:
    """Documents by their best passage: fetches passages until they are of `k` documents or there are no more."""
    results: list[list[Match]] = [[] for _ in queries]
    available = view.count("passage", selection)
    open_rows, wanted = np.arange(len(queries)), 4 * k if available > ALL_AT_ONCE * k else available
    while len(open_rows):
        scores, ids = view.nearest("passage", queries[open_rows], wanted, selection, exact=exact)
        for row, row_ids, row_scores in zip(open_rows.tolist(), ids, scores, strict=True):
            results[row] = _group(row_ids, row_scores, k)
        if wanted >= available:
            break
        open_rows = np.array([row for row in open_rows if len(results[row]) < k], dtype=np.int64)
        wanted *= 4
    return results


def _group(ids: IntArray, scores: FloatArray, k: int) -> list[Match]:
    """The best passage of each document, of passages `[m]` in descending order: of `k` documents at most."""
    docs = ids >> PASSAGE_BITS
    first = np.sort(np.unique(docs, return_index=True)[1])[:k]
    return list(map(Match, docs[first].tolist(), scores[first].tolist(), ids[first].tolist()))
