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


class Cosines(NamedTuple):
    """The cosines `[n]` of passages with a query, by number `[n]`, ascending."""

    ids: IntArray
    values: FloatArray

    def of(self, view: EngineView, ids: IntArray, query: FloatArray) -> FloatArray:
        """Those of other passages, `[m]` ascending; only what is not among these is computed with the query `[d]`."""
        values, known = np.empty(len(ids), np.float32), np.isin(ids, self.ids)
        values[known] = self.values[np.isin(self.ids, ids)]
        if not known.all():
            values[~known] = view.vectors("passage", ids[~known]) @ query
        return values


NO_COSINES = Cosines(np.empty(0, np.int64), np.empty(0, np.float32))


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
    results: list[dict[int, Match]] = [{} for _ in queries]
    for kind in kinds:
        nearest = nearest_vectors if kind == "document" else _by_passage
        for result, matches in zip(results, nearest(view, kind, queries, k, selection, exact), strict=True):
            for match in matches:
                if match.doc not in result or match.score > result[match.doc].score:
                    result[match.doc] = match
    return [sorted(result.values(), key=lambda m: (-m.score, m.doc))[:k] for result in results]


def nearest_vectors(
    view: EngineView, kind: Kind, queries: FloatArray, k: int, selection: Selection | None, exact: bool
) -> list[list[Match]]:
    """The `k` best documents, or passages, for each query `[n, d]`, by the vectors of their kind."""
    scores, numbers = view.nearest(kind, queries, k, selection, exact=exact)
    found = zip(numbers.tolist(), scores.tolist(), strict=True)
    if kind == "document":
        return [list(map(Match, docs, row)) for docs, row in found]
    return [[Match(i >> PASSAGE_BITS, score, i) for i, score in zip(ids, row, strict=True)] for ids, row in found]


def score_documents(
    view: EngineView, kinds: tuple[Kind, ...], docs: list[int], query: FloatArray
) -> tuple[dict[int, float], Cosines]:
    """Score documents against one query `[d]` as `nearest_documents` does; leave out those without a vector.

    Also give the cosines of their passages, if these count.
    """
    found: dict[int, float] = {}
    if "document" in kinds and docs:
        scores = view.vectors("document", np.array(docs, dtype=np.int64)) @ query
        found = dict(zip(docs, scores.tolist(), strict=True))
    if "passage" not in kinds or not docs:
        return found, NO_COSINES
    ids = view.passage_numbers(docs)
    cosines = Cosines(ids, NO_COSINES.of(view, ids, query))
    for doc, score in zip((ids >> PASSAGE_BITS).tolist(), cosines.values.tolist(), strict=True):
        found[doc] = max(score, found.get(doc, score))
    return found, cosines


def background(view: EngineView, query: FloatArray) -> float:
    """The mean cosine of all vectors with a query `[d]`, of a sample of them: what a document scores at random."""
    return float(view.mean_vector @ query)


def _by_passage(
    view: EngineView, kind: Kind, queries: FloatArray, k: int, selection: Selection | None, exact: bool
) -> list[list[Match]]:
    """Documents by their best passage: fetches passages until they are of `k` documents or there are no more."""
    results: list[list[Match]] = [[] for _ in queries]
    available = view.count(kind, selection)
    open_rows, wanted = np.arange(len(queries)), 4 * k if available > ALL_AT_ONCE * k else available
    while len(open_rows):
        found = view.nearest(kind, queries[open_rows], wanted, selection, exact=exact)
        for row, scores, ids in zip(open_rows.tolist(), *found, strict=True):
            docs = ids >> PASSAGE_BITS
            first = np.sort(np.unique(docs, return_index=True)[1])[:k]  # the best passage of each document
            results[row] = list(map(Match, docs[first].tolist(), scores[first].tolist(), ids[first].tolist()))
        if wanted >= available:
            break
        open_rows = np.array([row for row in open_rows if len(results[row]) < k], dtype=np.int64)
        wanted *= 4
    return results
