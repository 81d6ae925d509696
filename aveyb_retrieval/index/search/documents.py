"""Search for documents, each with its best passages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from aveyb_retrieval.index.search import fusion, lexical
from aveyb_retrieval.index.search.hits import Hit, Passage
from aveyb_retrieval.index.search.query import Query, Ranked, Search
from aveyb_retrieval.index.search.relevance import PassageScores, score_by_vector, score_by_words, score_hybrid
from aveyb_retrieval.index.search.snapshot import Match
from aveyb_retrieval.index.storage.store import PASSAGE_BITS, StoredDocument
from aveyb_retrieval.index.types import FloatArray


class DocumentSearch(Search):
    """A search for documents."""

    def hits(self, ranked: Ranked) -> list[Hit]:
        """Fetch what was found: texts, metadata and the best passages."""
        documents = self._documents(match.doc for match in ranked.matches)
        best = self._best_passages(ranked, documents, self._options.passages)
        hits = []
        for match in ranked.matches:
            document, passages = documents[match.doc], best.get(match.doc, [])
            first = passages[0][0] if passages else None
            context = self._context(match.doc, document.text, first.span) if first else (None, None)
            hits.append(
                Hit(
                    id=document.id,
                    score=match.score,
                    text=document.text,
                    title=document.title,
                    metadata=document.metadata,
                    passage=first.text if first else None,
                    span=first.span if first else None,
                    passages=tuple(passage for passage, _ in passages),
                    heading=first.heading if first else "",
                    context=context[0],
                    context_span=context[1],
                    confidence=passages[0][1] if passages else None,
                    scores=ranked.scores_of(match.doc),
                )
            )
        return hits

    # --- ranking -----------------------------------------------------------------------------------------------------

    def _nearest(self, vectors: FloatArray) -> list[list[Match]]:
        options = self._options
        return self._snapshot.documents(options.kinds, vectors, options.depth, self._allowed, exact=options.exact)

    def _rank(self, query: Query, near: list[Match]) -> Ranked:
        ranked = self._fuse(self._candidates(query, near), near)
        if self._options.rerank:
            candidates = ranked.matches[: self._options.depth]
            texts = self._closest_texts(replace(ranked, matches=candidates))
            ranked = self._rerank(ranked, candidates, [match.doc for match in candidates], texts)
        return self._above_least(replace(ranked, matches=ranked.matches[: self._options.k]))

    def _candidates(self, query: Query, near: list[Match]) -> Ranked:
        """Collect the candidates of the lexical ranking, or the nearest ones where there is none."""
        scores = {"dense": {match.doc: match.score for match in near}}
        if self._options.mode == "dense":
            return Ranked(query, near, scores)
        assert query.text is not None  # only the dense mode takes queries without text
        found = self._snapshot.lexical(query.text, self._options.depth, self._allowed)
        words = {match.doc: match.score for match in found}
        return Ranked(
            query, found, {"lexical": words} if self._options.mode == "lexical" else {**scores, "lexical": words}
        )

    def _fuse(self, ranked: Ranked, near: list[Match]) -> Ranked:
        """Combine the two rankings of a hybrid search; other modes have one only."""
        if self._options.mode != "hybrid":
            return ranked
        passage = {match.doc: match.passage for match in near}
        dense, words = ranked.scores["dense"], ranked.scores["lexical"]
        if self._options.fusion == "rrf":
            fused = fusion.reciprocal_rank([list(dense.items()), list(words.items())])
        else:
            vector = ranked.query.vector
            assert vector is not None  # a hybrid search has encoded its query
            unscored = [doc for doc in words if doc not in dense]
            for match in self._snapshot.score_documents(self._options.kinds, unscored, vector):
                dense[match.doc], passage[match.doc] = match.score, match.passage
            background = float(self._snapshot.mean_vector @ vector)
            fused = fusion.weighted(dense, words, background=background, weight=self._options.weight)
        matches = [Match(doc, score, passage.get(doc, -1)) for doc, score in fusion.ranked(fused)]
        return replace(ranked, matches=matches)

    def _above_least(self, ranked: Ranked) -> Ranked:
        """Leave out what is below the least score asked for."""
        least = self._options.min_score
        if least is None:
            return ranked
        score = {match.doc: match.score for match in ranked.matches}
        if self._options.mode == "hybrid" and not self._options.rerank:
            documents = self._documents(score)
            best = self._best_passages(ranked, documents, 1)
            score = {doc: passages[0][1] or 0.0 for doc, passages in best.items()}
        return replace(ranked, matches=[match for match in ranked.matches if score.get(match.doc, 0.0) >= least])

    # --- passages ----------------------------------------------------------------------------------------------------

    def _closest_texts(self, ranked: Ranked) -> list[str]:
        """The best passage of each document, or its whole text where it has none."""
        documents = self._documents(match.doc for match in ranked.matches)
        best = self._best_passages(ranked, documents, 1)
        return [
            best[match.doc][0][0].text if match.doc in best else documents[match.doc].text for match in ranked.matches
        ]

    def _best_passages(
        self, ranked: Ranked, documents: dict[int, StoredDocument], count: int
    ) -> dict[int, list[tuple[Passage, float | None]]]:
        """Choose the `count` best passages of each document, with their confidence; none where it has no passages."""
        if "passage" not in self._snapshot.kinds:
            return {}
        scored = self._score(ranked, documents, count)
        if not len(scored.ids):
            return {}
        docs = scored.ids >> PASSAGE_BITS
        order = np.lexsort((scored.ids, -scored.score, docs))  # best first within each document
        _, first, sizes = np.unique(docs, return_index=True, return_counts=True)
        kept = min(count, len(order))
        rows = np.concatenate([order[i : i + min(kept, size)] for i, size in zip(first, sizes, strict=True)])
        numbers = scored.ids[rows].tolist()
        with self._snapshot.store() as store:
            stored = store.some_passages(numbers)
        lengths = np.array([stored[i].span[1] - stored[i].span[0] for i in numbers], dtype=np.int64)
        confidence = [None] * len(rows) if scored.confidence is None else scored.confidence[rows].tolist()
        best: dict[int, list[tuple[Passage, float | None]]] = {}
        for i, score, parts, chance in zip(
            numbers, scored.score[rows].tolist(), scored.parts(rows, lengths), confidence, strict=True
        ):
            span, heading = stored[i]
            text = documents[i >> PASSAGE_BITS].text[slice(*span)]
            best.setdefault(i >> PASSAGE_BITS, []).append((Passage(text, span, score, heading, parts), chance))
        return best

    def _score(self, ranked: Ranked, documents: dict[int, StoredDocument], count: int) -> PassageScores:
        """Score the passages to choose from, in the way that the mode asks for."""
        snapshot, query, mode = self._snapshot, ranked.query, self._options.mode
        docs = sorted(match.doc for match in ranked.matches)
        if query.vector is not None:
            by_words = mode == "hybrid" and snapshot.has_passage_words
            with snapshot.store() as store:
                if mode == "dense" and count == 1 and all(match.passage >= 0 for match in ranked.matches):
                    ids = np.array(sorted(match.passage for match in ranked.matches), dtype=np.int64)  # found already
                else:
                    ids = store.passage_ids(np.array(docs, dtype=np.int64))
            if not by_words:
                return score_by_vector(snapshot, ids, query.vector)
            assert query.text is not None  # a hybrid search has one
            return score_hybrid(snapshot, ids, query.vector, query.text)
        assert query.text is not None  # a query has a text or a vector
        with snapshot.store() as store:
            ids, spans = store.passages(docs)
        if snapshot.has_passage_words:
            return score_by_words(snapshot, ids, spans[:, 1] - spans[:, 0], query.text)
        words = snapshot.language.words(query.text)
        counts = [
            lexical.count_words(words, documents[doc].text, spans[ids >> PASSAGE_BITS == doc])
            for doc in np.unique(ids >> PASSAGE_BITS).tolist()
        ]
        return PassageScores(ids, np.concatenate([np.empty(0, np.float32), *counts]))
