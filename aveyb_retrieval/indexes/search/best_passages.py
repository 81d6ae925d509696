"""The passages that speak for documents: whose scores count for them, and which are shown."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.indexes.engine import passage_numbers
from aveyb_retrieval.indexes.search.by_vector import nearest_passages
from aveyb_retrieval.indexes.search.confidence import confidence, find_best_passage
from aveyb_retrieval.indexes.search.evidence import (
    PASSAGES_LISTED,
    SHORT_DOCUMENT_PASSAGES,
    passages_listed,
)
from aveyb_retrieval.indexes.search.named_documents import PASSAGES_COMPETING
from aveyb_retrieval.indexes.search.passage_scores import (
    best_by_document,
    first_of_each,
    with_neighbors,
)
from aveyb_retrieval.indexes.search.scores import score_passages
from aveyb_retrieval.indexes.types import PASSAGE_BITS, ascending, find_in

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.search.confidence import BestPassage
    from aveyb_retrieval.indexes.search.evidence import Evidence
    from aveyb_retrieval.indexes.search.matches import Matches
    from aveyb_retrieval.indexes.search.passage_scores import PassageScores
    from aveyb_retrieval.indexes.types import FloatArray, IntArray

PASSAGES_PER_RANKING = 6  # passages of a longer document that are taken from each ranking
# passages of each ranking among which the best of all is, for the confidence
PASSAGES_COMPARED = 25


@dataclass(frozen=True)
class ScoredPassage:
    """A passage to show with its score, what that was made of, and its confidence, if it has
    one.
    """

    number: int
    score: float
    parts: dict[str, float]
    confidence: float | None


class PassageScorer:
    """The best passages of documents, for one question; what was scored is remembered."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._view = evidence.view
        self._options = evidence.options
        # the best of long documents that the rankings of all passages lack, ascending
        self._own = np.empty(0, np.int64)
        self._scored: tuple[IntArray, PassageScores] | None = None  # of documents, ascending
        self._best: BestPassage | None = None

    def of_document_scores(self, docs: IntArray) -> tuple[IntArray, FloatArray]:
        """The documents `[m]`, ascending, of those `[n]` that have passages, and r of the best one
        of each, `[m]`.
        """
        scored = self.scored(docs)
        return best_by_document(scored.ids, scored.of_both(self._options.weight))

    def scores_shown(self, matches: Matches) -> dict[int, list[ScoredPassage]]:
        """The passages to show of documents, best first, by number; none of those that have
        none.
        """
        options = self._options
        is_decided = options.mode == "dense" and options.passages == 1
        deciding = self._deciding(matches) if is_decided else {}
        docs = [doc for doc in matches.docs.tolist() if doc not in deciding]
        return {doc: [] for doc in docs} | self.best(docs, options.passages) | deciding

    def _deciding(self, matches: Matches) -> dict[int, list[ScoredPassage]]:
        """What decided a document by its vectors is its best passage."""
        numbers = matches.passages[matches.passages >= 0]
        cosines = self._evidence.cosines(numbers).tolist() if len(numbers) else []
        return {
            number >> PASSAGE_BITS: [ScoredPassage(number, cosine, {"dense": cosine}, None)]
            for number, cosine in zip(numbers.tolist(), cosines, strict=True)
        }

    def best(self, docs: list[int], count: int) -> dict[int, list[ScoredPassage]]:
        """The `count` best passages of documents, best first, by document; documents without any
        are left out.
        """
        if "passage" not in self._view.info.kinds or not docs:
            return {}
        is_hybrid = self._options.mode == "hybrid"
        scored = self.scored(np.array(docs, np.int64))
        if is_hybrid:
            scored = self._with_confidence(self._with_neighbors(scored, count + 2))
        best_first = scored.ids[np.lexsort((scored.ids, -scored.score))]
        order = first_of_each(best_first, count)
        scored = scored.take(np.searchsorted(scored.ids, order))
        parts = scored.parts()
        rows = zip(*(column.tolist() for column in parts.values()), strict=True)
        best: dict[int, list[ScoredPassage]] = {}
        for number, score, row in zip(
            scored.ids.tolist(), scored.shown_score.tolist(), rows, strict=True
        ):
            passage = ScoredPassage(
                number, score, dict(zip(parts, row, strict=True)), score if is_hybrid else None
            )
            best.setdefault(number >> PASSAGE_BITS, []).append(passage)
        return best

    def scored(self, documents: IntArray) -> PassageScores:
        """Score the passages among which the best of documents `[n]` are: those of a page were
        scored for the ranking.
        """
        docs = ascending(documents)
        if self._scored is None or not find_in(self._scored[0], docs)[1].all():
            self._scored = docs, score_passages(self._evidence, self.promising(docs))
        scored = self._scored[1]
        return scored.take(np.flatnonzero(find_in(docs, scored.ids >> PASSAGE_BITS)[1]))

    def promising(self, docs: IntArray) -> IntArray:
        """Numbers, ascending, of the passages among which the best of documents `[n]` are.

        All of a short document. Of a longer one those that the rankings of all passages have and,
        if they are too few, the best among its own.
        """
        options = self._options
        per_ranking = max(PASSAGES_PER_RANKING, options.passages)
        is_long = self._view.passage_counts(docs) > max(SHORT_DOCUMENT_PASSAGES, per_ranking)
        short, docs = passage_numbers(self._view, docs[~is_long]), docs[is_long]
        if not len(docs):
            return short
        rankings = self._rankings(PASSAGES_LISTED * options.depth)
        of_docs = (ids[find_in(docs, ids >> PASSAGE_BITS)[1]] for ids in rankings)
        listed = ascending(np.concatenate([first_of_each(ids, per_ranking) for ids in of_docs]))
        counts = np.bincount(np.searchsorted(docs, listed >> PASSAGE_BITS), minlength=len(docs))
        lacking = docs[counts < options.passages]
        new = lacking[~find_in(self._own >> PASSAGE_BITS, lacking)[1]]
        if len(new):
            question = self._evidence.question
            more = self._view.best_passages(
                new, question.vector, question.search_words, options.passages
            )
            self._own = ascending(np.concatenate([self._own, more]))
        own = self._own[find_in(lacking, self._own >> PASSAGE_BITS)[1]]
        return ascending(np.concatenate([short, listed, own, self._of_named(docs)]))

    def _of_named(self, docs: IntArray) -> IntArray:
        """The passages of those of documents `[n]` that the question names, nearest to the rest of
        it, ascending.
        """
        named = self._evidence.named
        if named is None or not find_in(docs, named.named.docs)[1].any():
            return docs[:0]  # without waiting for the vector of the rest
        return named.passages[find_in(docs, named.passages >> PASSAGE_BITS)[1]]

    def _rankings(self, least: int) -> list[IntArray]:
        """Return the passages that vectors found, and at least the `least` best by words, each best
        first.
        """
        evidence = self._evidence
        least = max(least, PASSAGES_COMPETING)
        count = passages_listed(self._view, self._options, least)
        by_words = evidence.passages_by_words(count)
        return [evidence.near_passages, by_words]

    def _compared(self) -> IntArray:
        """Passages among which the best of all is: the first by vectors and by words, whatever is
        asked for.
        """
        evidence, question = self._evidence, self._evidence.question
        near_passages = evidence.near_passages
        if not len(near_passages):  # documents were ranked by their own vectors
            (near,) = nearest_passages(
                self._view,
                question.vector[None],
                PASSAGES_COMPARED,
                question.selection,
                exact=False,
            )
            evidence.add_cosines(near)
            near_passages = near.passages.best_first()
        _, by_words = self._rankings(PASSAGES_COMPARED)
        first = [near_passages[:PASSAGES_COMPARED], by_words[:PASSAGES_COMPARED]]
        return ascending(np.concatenate(first))

    def _with_neighbors(self, scored: PassageScores, most: int) -> PassageScores:
        """Score passages, `most` of a longer document, together with their neighbors; find the best
        of all once.
        """
        view, evidence = self._view, self._evidence
        docs, counts = np.unique(scored.ids >> PASSAGE_BITS, return_counts=True)
        complete = docs[counts == view.passage_counts(docs)]
        is_complete = find_in(complete, scored.ids >> PASSAGE_BITS)[1]
        compared = self._compared() if self._best is None else scored.ids[:0]
        if is_complete.all() and not len(compared):
            return scored
        best_first = np.lexsort((scored.ids, -scored.score))
        longer = first_of_each(scored.ids[best_first[~is_complete[best_first]]], most)
        chosen = ascending(np.concatenate([scored.ids[is_complete], longer]))
        neighbors = with_neighbors(np.concatenate([longer, compared]))
        existing = evidence.held(neighbors).numbers
        together = ascending(np.concatenate([chosen, existing]))
        scores = score_passages(evidence, together)
        if len(compared):
            rows = np.flatnonzero(find_in(compared, together)[1])
            self._best = find_best_passage(scores.take(rows), self._evidence.named_docs)
        return scores.take(np.searchsorted(together, chosen))

    def _with_confidence(self, scored: PassageScores) -> PassageScores:
        if self._best is None or not len(scored.ids):
            return scored
        confidences = confidence(scored.ids, scored.score, self._best, self._view.info.passages)
        return replace(scored, shown_score=confidences)
