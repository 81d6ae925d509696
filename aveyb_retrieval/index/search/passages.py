"""Search for passages: the best ones of all documents."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.index.search.hits import Hit, Passage
from aveyb_retrieval.index.search.query import Query, Ranked, Search
from aveyb_retrieval.index.search.relevance import best_first, score_by_words, score_hybrid
from aveyb_retrieval.index.search.snapshot import Match
from aveyb_retrieval.index.storage.store import PASSAGE_BITS
from aveyb_retrieval.index.types import FloatArray

WIDEN = 4  # candidates are fetched again, this many times as many, where too few are left of them
SAME = 0.8  # share of common word triples (Jaccard) from which on two passages are near copies


class PassageSearch(Search):
    """A search for passages."""

    def hits(self, ranked: Ranked) -> list[Hit]:
        """Fetch what was found: texts, metadata and the passages."""
        documents = self._documents(match.doc for match in ranked.matches)
        with self._snapshot.store() as store:
            stored = store.some_passages([match.passage for match in ranked.matches])
        hits = []
        for match in ranked.matches:
            document, (span, heading) = documents[match.doc], stored[match.passage]
            scores = ranked.scores_of(match.passage)
            confidence = scores.pop("confidence", None)
            passage = Passage(document.text[slice(*span)], span, match.score, heading, scores)
            context, context_span = self._context(match.doc, document.text, span)
            hits.append(
                Hit(
                    id=document.id,
                    score=match.score,
                    text=document.text,
                    title=document.title,
                    metadata=document.metadata,
                    passage=passage.text,
                    span=span,
                    passages=(passage,),
                    heading=heading,
                    context=context,
                    context_span=context_span,
                    confidence=confidence,
                    duplicates=ranked.duplicates.get(match.passage, ()),
                    scores=scores,
                )
            )
        return hits

    # --- ranking -----------------------------------------------------------------------------------------------------

    def _nearest(self, vectors: FloatArray) -> list[list[Match]]:
        return self._nearest_to(vectors, self._options.depth)

    def _nearest_to(self, vectors: FloatArray, depth: int) -> list[list[Match]]:
        scores, ids = self._snapshot.nearest("passage", vectors, depth, self._allowed, exact=self._options.exact)
        return [
            [Match(i >> PASSAGE_BITS, s, i) for i, s in zip(row_ids, row, strict=True)]
            for row_ids, row in zip(ids.tolist(), scores.tolist(), strict=True)
        ]

    def _rank(self, query: Query, near: list[Match]) -> Ranked:
        """Rank candidates and choose among them; more candidates where caps and copies leave too few."""
        depth = self._options.depth
        while True:
            ranked = self._score(query, near, depth)
            if self._options.rerank:
                ranked = self._rerank_best(ranked)
            chosen, exhausted = self._choose(ranked)
            if (
                len(chosen.matches) == self._options.k
                or exhausted
                or self._options.rerank
                or depth > len(ranked.matches)
            ):
                return chosen
            depth *= WIDEN
            near = self._nearest_to(query.vector[None], depth)[0] if query.vector is not None else []

    def _score(self, query: Query, near: list[Match], depth: int) -> Ranked:
        """Score the candidates of both rankings, best first."""
        mode, snapshot = self._options.mode, self._snapshot
        if mode == "dense":
            return Ranked(query, near, {"dense": {match.passage: match.score for match in near}})
        if not snapshot.has_passage_words:
            root = snapshot.folder.parent
            raise IndexFormatError(
                f"{root}: made by an older version, without the words of its passages; run `aveyb-index upgrade "
                f"{root}`, or search for passages with mode='dense'"
            )
        assert query.text is not None  # only the dense mode takes queries without text
        candidates = {match.passage for match in near}
        candidates.update(snapshot.lexical_passages(query.text, depth, self._allowed))
        beside = {i + step for i in candidates for step in (-1, 1)} if mode == "hybrid" else set()
        with snapshot.store() as store:
            stored = store.some_passages(sorted(candidates | beside))
        ids = np.array(sorted(stored), dtype=np.int64)
        lengths = np.array([stop - start for (start, stop), _ in map(stored.__getitem__, ids.tolist())], dtype=np.int64)
        if not len(ids):
            return Ranked(query, [], {})
        if query.vector is None:
            scored = score_by_words(snapshot, ids, lengths, query.text)
        else:
            scored = score_hybrid(snapshot, ids, query.vector, query.text)
        rows = [row for row in best_first(scored.score, ids) if int(ids[row]) in candidates]
        shown = scored.score if scored.confidence is None else scored.confidence
        matches = [Match(int(ids[row]) >> PASSAGE_BITS, float(shown[row]), int(ids[row])) for row in rows]
        scores: dict[str, dict[int, float]] = {}
        chosen = np.array(rows, dtype=np.int64)
        for match, parts in zip(matches, scored.parts(chosen, lengths[chosen]), strict=True):
            if scored.confidence is not None:
                parts["confidence"] = match.score
            for name, value in parts.items():
                scores.setdefault(name, {})[match.passage] = value
        return Ranked(query, matches, scores)

    def _rerank_best(self, ranked: Ranked) -> Ranked:
        candidates = ranked.matches[: self._options.depth]
        texts = self._texts(candidates)
        keys = [match.passage for match in candidates]
        return self._rerank(ranked, candidates, keys, [texts[key] for key in keys])

    # --- choosing ----------------------------------------------------------------------------------------------------

    def _choose(self, ranked: Ranked) -> tuple[Ranked, bool]:
        """Take the best, by diversity, without near copies and within the caps.

        Returns:
            What was chosen, and whether the rest of the ranking is below the least score asked for.
        """
        options = self._options
        scale = self._least_scale(ranked)
        least = -np.inf if options.min_score is None else options.min_score
        matches = [match for match in ranked.matches if scale.get(match.passage, match.score) >= least]
        exhausted = len(matches) < len(ranked.matches)
        if options.diversity:
            matches = self._diverse(matches)
        chosen: list[Match] = []
        copies = _Copies()
        duplicates: dict[int, list[int]] = {}
        taken: dict[int, int] = {}
        for start in range(0, len(matches), options.k):  # texts are fetched as they are needed
            some = matches[start : start + options.k]
            texts = self._texts(some) if options.fold else {}
            for match in some:
                if options.per_document is not None and taken.get(match.doc, 0) >= options.per_document:
                    continue
                if options.fold and (first := copies.of(match.passage, texts[match.passage])) is not None:
                    duplicates.setdefault(first, []).append(match.doc)
                    continue
                if len(chosen) < options.k:
                    chosen.append(match)
                    taken[match.doc] = taken.get(match.doc, 0) + 1
            if len(chosen) == options.k:
                break
        return replace(ranked, matches=chosen, duplicates=self._names(duplicates)), exhausted

    def _least_scale(self, ranked: Ranked) -> dict[int, float]:
        """What `min_score` is compared with, by passage, where that is not the score that orders them."""
        return {} if self._options.rerank else ranked.scores.get("confidence", {})

    def _diverse(self, matches: list[Match]) -> list[Match]:
        """Order matches by maximal marginal relevance: score against likeness to what was taken before."""
        if not matches:
            return matches
        ids = np.array([match.passage for match in matches], dtype=np.int64)
        order = np.argsort(ids)
        vectors = np.empty((len(ids), self._snapshot.manifest.dim), dtype=np.float32)
        vectors[order] = self._snapshot.tables["passage"].gather(ids[order])
        scores = np.array([match.score for match in matches], dtype=np.float32)
        relevance = scores / max(float(np.abs(scores).max()), 1e-9)
        weight, nearest = self._options.diversity, np.zeros(len(ids), dtype=np.float32)
        left, chosen = np.ones(len(ids), dtype=bool), []
        for _ in matches:
            row = int(np.argmax(np.where(left, (1 - weight) * relevance - weight * nearest, -np.inf)))
            chosen.append(matches[row])
            left[row] = False
            nearest = np.maximum(nearest, vectors @ vectors[row])
        return chosen

    def _texts(self, matches: list[Match]) -> dict[int, str]:
        """Texts of passages by their numbers."""
        documents = self._documents(match.doc for match in matches)
        with self._snapshot.store() as store:
            stored = store.some_passages([match.passage for match in matches])
        return {m.passage: documents[m.doc].text[slice(*stored[m.passage].span)] for m in matches}

    def _names(self, duplicates: dict[int, list[int]]) -> dict[int, tuple[str, ...]]:
        if not duplicates:
            return {}
        with self._snapshot.store() as store:
            found = store.documents([doc for docs in duplicates.values() for doc in docs], texts=False)
        return {first: tuple(dict.fromkeys(found[doc].id for doc in docs)) for first, docs in duplicates.items()}


class _Copies:
    """Passages seen so far, to find near copies: equal numbers, and most word triples in common."""

    def __init__(self) -> None:
        self._seen: list[tuple[int, frozenset[str], frozenset[tuple[str, ...]]]] = []

    def of(self, passage: int, text: str) -> int | None:
        """The passage that this one is a near copy of; None (and it is remembered) where it is a new one."""
        words = re.findall(r"\w+", text.lower())
        numbers = frozenset(word for word in words if word.isdigit())
        triples = frozenset(zip(words, words[1:], words[2:], strict=False)) or frozenset([tuple(words)])
        for first, its_numbers, its_triples in self._seen:
            common = len(triples & its_triples)
            if numbers == its_numbers and common >= SAME * (len(triples) + len(its_triples) - common):
                return first
        self._seen.append((passage, numbers, triples))
        return None
