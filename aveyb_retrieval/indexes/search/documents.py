"""Search for documents, each with its best passages."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from aveyb_retrieval.indexes.search import fusion
from aveyb_retrieval.indexes.search.base import Query, Ranked, Search
from aveyb_retrieval.indexes.search.candidates import Match, background, nearest_documents, score_documents
from aveyb_retrieval.indexes.search.hits import make_hit, make_passage
from aveyb_retrieval.indexes.search.relevance import (
    PassageScores,
    best_by_document,
    score_by_vector,
    score_by_words,
    score_hybrid,
)
from aveyb_retrieval.indexes.store.numbering import PASSAGE_BITS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aveyb_retrieval.indexes.search.hits import Hit, Passage
    from aveyb_retrieval.indexes.store.tables import StoredDocument
    from aveyb_retrieval.indexes.types import FloatArray

READ = 50  # documents whose passages a hybrid search reads: all candidates' gained .0015 at most on development sets


class _Chosen(NamedTuple):
    """A passage to show: its number, what is shown of it, and its confidence where that was computed."""

    number: int
    passage: Passage
    confidence: float | None


class DocumentSearch(Search):
    """A search for documents."""

    def hits(self, ranked: Ranked) -> list[Hit]:
        """Fetch what was found: texts, metadata and the best passages."""
        documents = self._fetch(match.doc for match in ranked.matches)
        best = self._best_passages(ranked, documents, self._options.passages)
        contexts = self._contexts(chosen[0].number for chosen in best.values() if chosen)
        hits, find = [], self._finder(ranked.query)
        for match in ranked.matches:
            chosen = best.get(match.doc, [])
            hits.append(
                make_hit(
                    documents[match.doc],
                    match.score,
                    tuple(each.passage for each in chosen),
                    ranked.scores_of(match.doc),
                    context=contexts.get(chosen[0].number) if chosen else None,
                    confidence=chosen[0].confidence if chosen else None,
                    find=find,
                )
            )
        return hits

    # --- ranking -----------------------------------------------------------------------------------------------------

    def _nearest(self, vectors: FloatArray) -> list[list[Match]]:
        options = self._options
        return nearest_documents(
            self._view, options.kinds, vectors, options.depth, self._selection, exact=options.exact
        )

    def _key(self, match: Match) -> int:
        return match.doc

    def _rank(self, query: Query, near: list[Match]) -> Ranked:
        ranked = self._first_ranking(query, near)
        if self._options.rerank is not None:
            ranked = self._rerank(ranked)
        return replace(ranked, matches=self._above_least(ranked)[self._options.offset : self._options.last])

    def _first_ranking(self, query: Query, near: list[Match]) -> Ranked:
        """Rank by vectors, by words, or by both fused: all candidates, before reranking."""
        options, view = self._options, self._view
        dense = {match.doc: match.score for match in near}
        if options.mode == "dense":
            return Ranked(query, near, {"dense": dense})
        assert query.text is not None  # only the dense mode takes queries without text
        found = view.by_words("document", query.text, options.depth, self._selection)
        words = dict(found)
        if options.mode == "lexical":
            return Ranked(query, [Match(doc, score) for doc, score in found], {"lexical": words})
        scores, scored = {"dense": dense, "lexical": words}, None
        if options.fusion == "rrf":
            fused = fusion.reciprocal_rank([list(dense.items()), list(words.items())])
        else:
            assert query.vector is not None  # a hybrid search has encoded its query
            dense |= score_documents(view, options.kinds, [doc for doc in words if doc not in dense], query.vector)
            fused = fusion.weighted(dense, words, background=background(view, query.vector), weight=options.weight)
            if "passage" in options.kinds:
                fused, scored, scores["passage"] = self._with_best_passages(query, fused)
        matches = [Match(doc, score) for doc, score in fusion.ranked(fused)]
        return Ranked(query, matches, scores, scored=scored)

    def _with_best_passages(
        self, query: Query, fused: Mapping[int, float]
    ) -> tuple[dict[int, float], PassageScores, dict[int, float]]:
        """Add to each document's score its best passage's; return these, all passages, and the best ones' scores.

        The only passage of a document says what the document has said already, so the sum counts by the share of
        passages that are not alone. Those of the first documents are read, or of all where the order may change later.
        """
        options, info = self._options, self._view.info
        assert query.vector is not None
        assert query.text is not None
        every = options.rerank is not None or options.min_score is not None
        first = dict(fusion.ranked(fused)[: None if every else max(options.last, READ)])
        ids = self._view.passage_numbers(sorted(first))
        scored = score_hybrid(self._view, ids, query.vector, query.text)
        best = scored.best(options.weight)
        share = max(0.0, 1 - info.documents / info.passages) if info.passages else 0.0
        return {doc: score + share * best.get(doc, 0.0) for doc, score in first.items()}, scored, best

    def _above_least(self, ranked: Ranked) -> list[Match]:
        """Leave out what is below the least score asked for: all candidates are asked, for the k best of the others."""
        least = self._options.min_score
        if least is None:
            return ranked.matches
        if self._options.mode != "hybrid" or self._options.rerank is not None:
            return [match for match in ranked.matches if match.score >= least]
        confidence = self._confidence(ranked)
        return [match for match in ranked.matches if confidence.get(match.doc, 0.0) >= least]

    # --- passages ----------------------------------------------------------------------------------------------------

    def _closest(self, ranked: Ranked) -> dict[int, int]:
        """Return the best passage of each document, or the document where the index has no passages."""
        if "passage" not in self._view.info.kinds:
            return {match.doc: match.doc for match in ranked.matches}
        scored = self._score_passages_of(ranked, 1)
        order = np.lexsort((scored.ids, -scored.score, scored.ids >> PASSAGE_BITS))
        best = order[np.unique(scored.ids >> PASSAGE_BITS, return_index=True)[1]]
        return {passage >> PASSAGE_BITS: passage for passage in scored.ids[best].tolist()}

    def _with_maxsim(self, ranked: Ranked, maxsim: dict[int, float]) -> dict[int, float]:
        first = [(match.doc, match.score) for match in ranked.matches]
        if self._options.fusion == "rrf":
            return fusion.reciprocal_rank([first, fusion.ranked(maxsim)])
        return {doc: score + fusion.MAXSIM * maxsim[doc] for doc, score in first}

    def _closest_texts(self, ranked: Ranked) -> dict[int, str]:
        """The best passage of each document, or its whole text where it has none."""
        documents = self._fetch(match.doc for match in ranked.matches)
        closest = self._closest(ranked) if "passage" in self._view.info.kinds else {}
        stored = self._stored_passages(closest.values()) if closest else {}
        return {
            doc: each.text[slice(*stored[closest[doc]].span)] if doc in closest else each.text
            for doc, each in documents.items()
        }

    def _confidence(self, ranked: Ranked) -> dict[int, float]:
        """The confidence of the best passage of each document in a hybrid search; those without one are left out."""
        scored = self._score_passages_of(ranked, 1)
        return best_by_document(scored.ids, scored.shown) if len(scored.ids) else {}

    def _best_passages(
        self, ranked: Ranked, documents: Mapping[int, StoredDocument], count: int
    ) -> dict[int, list[_Chosen]]:
        """Choose the `count` best passages of each document, best first; none where it has no passages."""
        if "passage" not in self._view.info.kinds:
            return {}
        scored = self._score_passages_of(ranked, count)
        if not len(scored.ids):
            return {}
        docs = scored.ids >> PASSAGE_BITS
        order = np.lexsort((scored.ids, -scored.score, docs))  # best first within each document
        _, first, sizes = np.unique(docs, return_index=True, return_counts=True)
        kept = min(count, len(order))
        rows = np.concatenate([order[i : i + min(kept, size)] for i, size in zip(first, sizes, strict=True)])
        numbers = scored.ids[rows].tolist()
        stored = self._stored_passages(numbers)
        lengths = np.array([stored[i].span[1] - stored[i].span[0] for i in numbers], dtype=np.int64)
        calibrated = scored.confidence is not None
        find = self._finder(ranked.query)
        best: dict[int, list[_Chosen]] = {}
        for i, score, parts in zip(numbers, scored.shown[rows].tolist(), scored.parts(rows, lengths), strict=True):
            doc, (span, heading) = i >> PASSAGE_BITS, stored[i]
            passage = make_passage(documents[doc], span, score, heading, parts, find)
            best.setdefault(doc, []).append(_Chosen(i, passage, score if calibrated else None))
        return best

    def _score_passages_of(self, ranked: Ranked, count: int) -> PassageScores:
        """Score the passages of the matches, to choose `count` of each, in the way that the mode asks for."""
        view, query, mode = self._view, ranked.query, self._options.mode
        docs = sorted(match.doc for match in ranked.matches)
        if ranked.scored is not None:
            return ranked.scored.of_documents(docs)  # the matches are among those whose passages were scored
        if query.vector is None:
            assert query.text is not None  # a query has a text or a vector
            ids, spans = view.passage_spans(docs)
            return score_by_words(view, ids, spans[:, 1] - spans[:, 0], query.text)
        if mode == "dense" and count == 1 and all(match.passage >= 0 for match in ranked.matches):
            ids = np.array(sorted(match.passage for match in ranked.matches), dtype=np.int64)  # found already
        else:
            ids = view.passage_numbers(docs)
        if mode == "dense":
            return score_by_vector(view, ids, query.vector)
        assert query.text is not None  # a hybrid search has one
        return score_hybrid(view, ids, query.vector, query.text)
