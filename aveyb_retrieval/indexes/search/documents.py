"""Search for documents, each with its best passages."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate, chain
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.indexes.search import fusion
from aveyb_retrieval.indexes.search.base import Query, Ranked, Search
from aveyb_retrieval.indexes.search.candidates import Cosines, Match, background, nearest_documents, score_documents
from aveyb_retrieval.indexes.search.hits import Chosen, make_hit
from aveyb_retrieval.indexes.search.relevance import best_by_document
from aveyb_retrieval.indexes.store.numbering import PASSAGE_BITS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval.indexes.search.hits import Hit
    from aveyb_retrieval.indexes.search.relevance import PassageScores
    from aveyb_retrieval.indexes.types import FloatArray

READ = 50  # documents whose passages are read together: of all candidates they gained .0015 at most on development sets


class DocumentSearch(Search):
    """A search for documents."""

    def hits(self, ranked: Ranked) -> list[Hit]:
        """Fetch what was found: texts, metadata and the best passages."""
        documents = self._fetch(match.doc for match in ranked.matches)
        best = self._best_passages(self._with_passages(ranked))
        contexts = self._contexts(ranked.query, (chosen[0].number for chosen in best.values()))
        hits, find = [], self._view.language.finder(ranked.query.words)
        for match in ranked.matches:
            chosen = best.get(match.doc, [])
            hits.append(
                make_hit(
                    documents[match.doc],
                    match.score,
                    chosen,
                    ranked.scores_of(match.doc),
                    context=contexts.get(chosen[0].number) if chosen else None,
                    confidence=chosen[0].score if chosen and self._options.mode == "hybrid" else None,
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
        options, ranked = self._options, self._first_ranking(query, near)
        if options.rerank is not None:
            ranked = self._rerank(self._with_passages(ranked.first(options.depth)))
        elif options.min_score is not None and options.mode == "hybrid":
            ranked = self._with_passages(ranked)
        matches = self._boosted(ranked, self._above_least(ranked))
        return replace(ranked, matches=matches[options.offset : options.last])

    def _first_ranking(self, query: Query, near: list[Match]) -> Ranked:
        """Rank by vectors, by words, or by both fused: all candidates, before reranking."""
        options, view = self._options, self._view
        dense = {match.doc: match.score for match in near}
        if options.mode == "dense":
            return Ranked(query, near, {"dense": dense})
        found = view.by_words("document", query.words, options.depth, self._selection)
        words = dict(found)
        if options.mode == "lexical":
            return Ranked(query, [Match(doc, score) for doc, score in found], {"lexical": words})
        scores, scored = {"dense": dense, "lexical": words}, None
        if options.fusion == "rrf":
            ranked = fusion.ranked(fusion.reciprocal_rank([list(dense.items()), list(words.items())]))
        else:
            others = [doc for doc in words if doc not in dense]
            more, cosines = score_documents(view, options.kinds, others, query.vector)
            dense |= more
            fused = fusion.weighted(dense, words, background=background(view, query.vector), weight=options.weight)
            ranked = fusion.ranked(fused)
            if "passage" in options.kinds:
                ranked, scored, scores["passage"] = self._with_best_passages(query, ranked, cosines)
        return Ranked(query, [Match(doc, score) for doc, score in ranked], scores, scored=scored)

    def _with_best_passages(
        self, query: Query, fused: Sequence[tuple[int, float]], cosines: Cosines
    ) -> tuple[list[tuple[int, float]], PassageScores, dict[int, float]]:
        """Add to each document's score its best passage's; return these, all passages, and the best ones' scores.

        The only passage of a document says what the document has said already, so the sum counts by the share of
        passages that are not alone. Documents are read `READ` at a time, as many as are asked for, and these are ordered
        among themselves: what the first pages hold does not depend on how many are asked for. None scores as high as
        the parts before. Where the order changes later, all are one part; with a least score, all parts are read.
        """
        options, info = self._options, self._view.info
        size = READ if options.rerank is None and options.boost is None else max(len(fused), 1)
        read = fused if options.min_score is not None else fused[: -(-options.last // size) * size]
        scored = self._scored(query, self._view.passage_numbers(sorted(doc for doc, _ in read)), cosines)
        best = scored.best(options.weight)
        share = max(0.0, 1 - info.documents / info.passages) if info.passages else 0.0
        summed = [(doc, score + share * best.get(doc, 0.0)) for doc, score in read]
        parts = (fusion.ranked(dict(summed[start : start + size])) for start in range(0, len(summed), size))
        ranked = list(chain.from_iterable(parts))
        scores = accumulate((score for _, score in ranked), _at_most)
        return [(doc, score) for (doc, _), score in zip(ranked, scores, strict=True)], scored, best

    def _above_least(self, ranked: Ranked) -> list[Match]:
        """Leave out what is below the least score asked for: all candidates are asked, for the k best of the others."""
        least = self._options.min_score
        if least is None:
            return ranked.matches
        if self._options.mode != "hybrid" or self._options.rerank is not None:
            return [match for match in ranked.matches if match.score >= least]
        scored = ranked.scored  # there is one, but for a ranking without matches
        confidence = {} if scored is None else best_by_document(scored.ids, scored.shown)
        return [match for match in ranked.matches if confidence.get(match.doc, 0.0) >= least]

    # --- passages ----------------------------------------------------------------------------------------------------

    def _with_passages(self, ranked: Ranked) -> Ranked:
        """The same with the passages of its matches scored, if they were not yet and the index has any."""
        view, options, query = self._view, self._options, ranked.query
        if ranked.scored is not None or not ranked.matches or "passage" not in view.info.kinds:
            return ranked
        found = {}
        if options.mode == "dense" and options.passages == 1:  # the best ones of these documents are known
            found = {match.passage: match.score for match in ranked.matches if match.passage >= 0}
        known = Cosines(np.array(sorted(found), np.int64), np.array([found[i] for i in sorted(found)], np.float32))
        left = sorted(match.doc for match in ranked.matches if match.passage not in found)
        return replace(ranked, scored=self._scored(query, np.union1d(known.ids, view.passage_numbers(left)), known))

    def _closest(self, ranked: Ranked) -> dict[int, int]:
        """Return the best passage of each document, or the document where the index has no passages."""
        docs, scored = [match.doc for match in ranked.matches], ranked.scored
        if scored is None:
            return dict(zip(docs, docs, strict=True))
        best = scored.best_rows(1)
        return {doc: int(scored.ids[best[doc][0]]) for doc in docs if doc in best}

    def _with_maxsim(self, ranked: Ranked, maxsim: dict[int, float]) -> dict[int, float]:
        first = [(match.doc, match.score) for match in ranked.matches]
        if self._options.fusion == "rrf":
            return fusion.reciprocal_rank([first, fusion.ranked(maxsim)])
        return {doc: score + fusion.MAXSIM * maxsim[doc] for doc, score in first}

    def _closest_texts(self, ranked: Ranked) -> dict[int, str]:
        """The best passage of each document, or its whole text where it has none."""
        documents = self._fetch(match.doc for match in ranked.matches)
        closest = {} if ranked.scored is None else self._closest(ranked)
        stored = self._stored_passages(ranked.query, closest.values())
        return {
            doc: each.text[slice(*stored[closest[doc]].span)] if doc in closest else each.text
            for doc, each in documents.items()
        }

    def _best_passages(self, ranked: Ranked) -> dict[int, list[Chosen]]:
        """The passages of each document to show, best first; none where it has none."""
        scored = ranked.scored
        if scored is None:
            return {}
        best = scored.best_rows(self._options.passages)
        rows = np.concatenate([scored.ids[:0], *(best[match.doc] for match in ranked.matches if match.doc in best)])
        numbers = scored.ids[rows].tolist()
        stored = self._stored_passages(ranked.query, numbers)
        chosen: dict[int, list[Chosen]] = {}
        for number, score, parts in zip(numbers, scored.shown[rows].tolist(), scored.parts(rows), strict=True):
            chosen.setdefault(number >> PASSAGE_BITS, []).append(Chosen(number, stored[number], score, parts))
        return chosen


def _at_most(last: float, score: float) -> float:
    """A score that orders behind the last one: a little lower where it is higher, as equal ones may change places."""
    return score if score <= last else math.nextafter(last, -math.inf)
