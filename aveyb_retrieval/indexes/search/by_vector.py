"""Candidates by vectors: the documents and passages that are nearest to questions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.indexes.engine import passage_numbers
from aveyb_retrieval.indexes.search.background import start
from aveyb_retrieval.indexes.search.matches import Matches
from aveyb_retrieval.indexes.types import (
    PASSAGE_BITS,
    ascending,
    find_in,
    inner_products,
    unit_rows,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from aveyb_retrieval.indexes.engine import EngineView, Selection
    from aveyb_retrieval.indexes.types import FloatArray, IntArray, Kind

PASSAGES_PER_DOCUMENT = 4  # passages that are asked for, for each document that is needed
# an index of at most so many passages, times the needed documents, is compared whole in one step
MAX_SCANNED_PASSAGES = 16
# documents: the nearest of fewer are found sooner than another thread starts
MIN_THREADED_DOCUMENTS = 10_000


class Cosines(NamedTuple):
    """The cosines `[n]` of passages with a question, by number `[n]`, ascending."""

    ids: IntArray
    values: FloatArray

    def joined(self, ids: IntArray, values: FloatArray) -> Cosines:
        """These and more, ascending."""
        together = np.concatenate([self.ids, ids])
        order = np.argsort(together)
        return Cosines(together[order], np.concatenate([self.values, values])[order])

    def completed(self, view: EngineView, ids: IntArray, vector: FloatArray) -> Cosines:
        """These and those of passages `[m]` with the question's vector `[d]`."""
        new = ids[~find_in(self.ids, ids)[1]]
        if not len(new):
            return self
        return self.joined(new, inner_products(view.vectors("passage", new), vector))

    def of(self, ids: IntArray) -> FloatArray:
        """The cosines `[m]` of some of the passages `[m]`."""
        return self.values[np.searchsorted(self.ids, ids)]

    def best_first(self) -> IntArray:
        """The numbers `[n]`, highest cosine first."""
        return self.ids[np.lexsort((self.ids, -self.values))]


NO_COSINES = Cosines(np.empty(0, np.int64), np.empty(0, np.float32))


@dataclass(frozen=True, eq=False)
class NearestMatches:
    """What vectors find for one question.

    Attributes:
        matches: Documents, or passages, best first.
        passages: The cosines of all passages that were compared.
    """

    matches: Matches
    passages: Cosines = NO_COSINES


NOTHING_NEAR = NearestMatches(Matches.joined([]))


def unit_queries(vectors: npt.NDArray[np.floating], dim: int) -> FloatArray:
    """Scale query vectors `[n, d]` to unit length; raises InputError where they are of another
    size, or not finite.
    """
    try:
        rows = np.ascontiguousarray(vectors, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"query vectors are not an array of numbers ({error}); this index needs [n, {dim}]"
        ) from error
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
) -> list[NearestMatches]:
    """The `k` best documents for each query `[n, d]`: by their vector, their best passage, or the
    better one.

    Of both kinds the `k` best are enough: a document among the best by the larger of two scores is
    so by that score.
    """
    of_documents = partial(_documents_by_vector, view, queries, k, selection, exact)
    threaded = len(kinds) > 1 and view.lasting and view.info.documents > MIN_THREADED_DOCUMENTS
    finish = start(of_documents) if threaded else of_documents
    by_passage = _by_passage(view, queries, k, selection, exact) if "passage" in kinds else []
    by_document = finish() if "document" in kinds else []
    if not by_passage:
        return [NearestMatches(matches.ordered().take(slice(k))) for matches in by_document]
    if not by_document:
        return [NearestMatches(near.matches.ordered(), near.passages) for near in by_passage]
    return [
        NearestMatches(_better_of(matches, near.matches).take(slice(k)), near.passages)
        for matches, near in zip(by_document, by_passage, strict=True)
    ]


def nearest_passages(
    view: EngineView, queries: FloatArray, k: int, selection: Selection | None, *, exact: bool
) -> list[NearestMatches]:
    """The `k` best passages for each query `[n, d]`."""
    rows = zip(*view.nearest("passage", queries, k, selection, exact=exact), strict=True)
    return [
        NearestMatches(Matches.of_passages(ids, scores), NO_COSINES.joined(ids, scores))
        for scores, ids in rows
    ]


def _documents_by_vector(
    view: EngineView, queries: FloatArray, k: int, selection: Selection | None, exact: bool
) -> list[Matches]:
    rows = zip(*view.nearest("document", queries, k, selection, exact=exact), strict=True)
    return [Matches.of_documents(docs, scores) for scores, docs in rows]


def _better_of(first: Matches, second: Matches) -> Matches:
    """Documents of two rankings by the better of their scores; the first one's where both are
    equal.
    """
    both = Matches.joined([first, second])
    best_first = np.lexsort((np.arange(len(both)), -both.scores))
    _, rows = np.unique(both.docs[best_first], return_index=True)
    return both.take(best_first[rows]).ordered()


def _by_passage(
    view: EngineView, queries: FloatArray, k: int, selection: Selection | None, exact: bool
) -> list[NearestMatches]:
    """Documents by their best passage."""
    available = view.count("passage", selection)
    count = PASSAGES_PER_DOCUMENT * k if available > MAX_SCANNED_PASSAGES * k else available
    rows = zip(
        queries, *view.nearest("passage", queries, count, selection, exact=exact), strict=True
    )
    cosines = [
        _passages_of_documents(view, query, k, selection, exact, Cosines(ids, scores))
        for query, scores, ids in rows
    ]
    return [NearestMatches(_best_of_documents(near).take(slice(k)), near) for near in cosines]


def _passages_of_documents(
    view: EngineView,
    query: FloatArray,
    k: int,
    selection: Selection | None,
    exact: bool,
    near: Cosines,
) -> Cosines:
    """The nearest passages, by number, and more of them until they are of `k` documents or there
    are no more.
    """
    passages = view.count("passage", selection)
    documents = view.count("document", selection)
    docs = ascending(near.ids >> PASSAGE_BITS)
    while len(docs) < k and len(near.ids) < passages:
        if documents - len(docs) <= k:
            # the best of those few other documents are looked for among their own passages
            every = view.matching(view.select({}) if selection is None else selection)
            further_docs = every[~find_in(docs, every)[1]]
            more = (
                passage_numbers(view, further_docs)
                if exact
                else view.best_passages(further_docs, query, (), 1)
            )
            return NO_COSINES.joined(*near).completed(view, more, query)
        scores, ids = view.nearest(
            "passage", query[None], 4 * len(near.ids), selection, exact=exact
        )
        if ids.shape[1] <= len(near.ids):
            break
        near = Cosines(ids[0], scores[0])
        docs = ascending(near.ids >> PASSAGE_BITS)
    return NO_COSINES.joined(*near)


def _best_of_documents(near: Cosines) -> Matches:
    """The documents of some passages by the best one of each, best first; ties by the passage's
    number.
    """
    ids = near.best_first()
    _, first = np.unique(ids >> PASSAGE_BITS, return_index=True)
    best = ids[np.sort(first)]
    return Matches.of_documents(best >> PASSAGE_BITS, near.of(best), best)
