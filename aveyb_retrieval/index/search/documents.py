"""Search for documents, each with its best passages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from aveyb_retrieval.index.search import fusion, lexical
from aveyb_retrieval.index.search.hits import Hit, Passage
from aveyb_retrieval.index.search.query import Query, Ranked, Search
from aveyb_retrieval.index.search.relevance import PassageScores, score_passages
from aveyb_retrieval.index.search.snapshot import Match
from aveyb_retrieval.index.storage.store import PASSAGE_BITS, StoredDocument
from aveyb_retrieval.index.types import FloatArray, IntArray


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
        ids, spans = self._passages_of(ranked.matches, count)
        if not len(ids):
            return {}
        scored = self._score(ranked.query, documents, ids, spans)
        docs = ids >> PASSAGE_BITS
        order = np.lexsort((ids, -scored.score, docs))  # best first within each document
        present, first, sizes = np.unique(docs, return_index=True, return_counts=True)
        rows = {
            doc: order[start : start + min(count, size)].tolist()
            for doc, start, size in zip(present.tolist(), first.tolist(), sizes.tolist(), strict=True)
        }
        with self._snapshot.store() as store:
            stored = store.some_passages([int(ids[row]) for some in rows.values() for row in some])
        best: dict[int, list[tuple[Passage, float | None]]] = {}
        for doc, some in rows.items():
            text, best[doc] = documents[doc].text, []
            for row in some:
                (start, stop), heading = stored[int(ids[row])]
                passage = Passage(text[start:stop], (start, stop), float(scored.score[row]), heading, scored.parts(row))
                confidence = None if scored.confidence is None else float(scored.confidence[row])
                best[doc].append((passage, confidence))
        return best

    def _passages_of(self, matches: list[Match], count: int) -> tuple[IntArray, IntArray]:
        """Passages to choose from: numbers `[n]`, ascending, and spans `[n, 2]`.

        Where vectors alone decide and one passage is wanted, the search has found it already.
        """
        with self._snapshot.store() as store:
            if self._options.mode == "dense" and count == 1 and all(match.passage >= 0 for match in matches):
                found = store.some_passages([match.passage for match in matches])
                ids = np.array(sorted(found), dtype=np.int64)
                return ids, np.array([found[i].span for i in ids.tolist()], dtype=np.int64).reshape(-1, 2)
            return store.passages([match.doc for match in matches])

    def _score(
        self, query: Query, documents: dict[int, StoredDocument], ids: IntArray, spans: IntArray
    ) -> PassageScores:
        """Score passages in the way that the mode asks for."""
        snapshot = self._snapshot
        if snapshot.has_passage_words or query.text is None:
            text = None if self._options.mode == "dense" else query.text
            return score_passages(snapshot, ids, spans[:, 1] - spans[:, 0], vector=query.vector, text=text)
        if query.vector is not None:
            return score_passages(snapshot, ids, spans[:, 1] - spans[:, 0], vector=query.vector, text=None)
        words = snapshot.language.words(query.text)
        counts = [
            lexical.count_words(words, documents[doc].text, spans[ids >> PASSAGE_BITS == doc])
            for doc in np.unique(ids >> PASSAGE_BITS).tolist()
        ]
        return PassageScores(ids, np.concatenate(counts))
