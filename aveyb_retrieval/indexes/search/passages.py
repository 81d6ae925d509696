"""Search with `unit="passage"`: the best passages of all documents; those of a document's hit are in `documents.py`."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.indexes.search.base import Query, Ranked, Search
from aveyb_retrieval.indexes.search.candidates import Match, nearest_vectors
from aveyb_retrieval.indexes.search.hits import Chosen, make_hit
from aveyb_retrieval.indexes.search.relevance import with_maxsim
from aveyb_retrieval.indexes.store.numbering import PASSAGE_BITS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aveyb_retrieval.indexes.search.hits import Hit
    from aveyb_retrieval.indexes.types import FloatArray

WIDEN = 4  # candidates are fetched again, this many times as many, where too few are left of them
SAME = 0.8  # share of common word triples (Jaccard) from which on two passages are near copies


class PassageSearch(Search):
    """A search for passages."""

    def hits(self, ranked: Ranked) -> list[Hit]:
        """Fetch what was found: texts, metadata and the passages."""
        documents = self._fetch(match.doc for match in ranked.matches)
        stored = self._stored_passages(ranked.query, (match.passage for match in ranked.matches))
        contexts = self._contexts(ranked.query, (match.passage for match in ranked.matches))
        hits, find = [], self._view.language.finder(ranked.query.words)
        for match in ranked.matches:
            scores = ranked.scores_of(match.passage)
            hits.append(
                make_hit(
                    documents[match.doc],
                    match.score,
                    [Chosen(match.passage, stored[match.passage], match.score, scores)],
                    scores,
                    context=contexts.get(match.passage),
                    confidence=ranked.confidence.get(match.passage),
                    duplicates=ranked.duplicates.get(match.passage, ()),
                    find=find,
                )
            )
        return hits

    # --- ranking -----------------------------------------------------------------------------------------------------

    def _nearest(self, vectors: FloatArray) -> list[list[Match]]:
        return self._nearest_to(vectors, self._options.depth)

    def _nearest_to(self, vectors: FloatArray, depth: int) -> list[list[Match]]:
        return nearest_vectors(self._view, "passage", vectors, depth, self._selection, exact=self._options.exact)

    def _key(self, match: Match) -> int:
        return match.passage

    def _rank(self, query: Query, near: list[Match]) -> Ranked:
        """Rank candidates and choose among them; more candidates where caps and copies leave too few."""
        depth = self._options.depth
        while True:
            ranked = self._score_candidates(query, near, depth)
            if self._options.rerank is not None:
                ranked = self._rerank(ranked.first(self._options.depth))
            chosen, exhausted = self._choose(ranked)
            if (
                len(chosen.matches) == self._options.last
                or exhausted
                or self._options.rerank is not None
                or depth > len(ranked.matches)
            ):
                return replace(chosen, matches=chosen.matches[self._options.offset :])
            depth *= WIDEN
            near = self._nearest_to(query.vector[None], depth)[0] if self._options.mode != "lexical" else []

    def _closest(self, ranked: Ranked) -> dict[int, int]:
        return {match.passage: match.passage for match in ranked.matches}

    def _closest_texts(self, ranked: Ranked) -> dict[int, str]:
        return self._texts(ranked.query, ranked.matches)

    def _with_maxsim(self, ranked: Ranked, maxsim: dict[int, float]) -> dict[int, float]:
        keys = [match.passage for match in ranked.matches]
        confidence = np.array([match.score for match in ranked.matches], dtype=np.float32)
        found = np.array([maxsim[key] for key in keys], dtype=np.float32)
        return dict(zip(keys, with_maxsim(confidence, found).tolist(), strict=True))

    def _score_candidates(self, query: Query, near: list[Match], depth: int) -> Ranked:
        """Score the candidates of both rankings, best first."""
        mode, view = self._options.mode, self._view
        if mode == "dense":
            return Ranked(query, near, {"dense": {match.passage: match.score for match in near}})
        found = view.by_words("passage", query.words, depth, self._selection)
        if mode == "lexical":
            matches = [Match(i >> PASSAGE_BITS, score, i) for i, score in found]
            return Ranked(query, matches, {"lexical": dict(found)})
        candidates = {match.passage for match in near} | {i for i, _ in found}
        # neighbors are scored with them, for `better_neighbor`, but are not candidates
        beside = {i + step for i in candidates for step in (-1, 1)}
        stored = self._passages_there(query, sorted(candidates | beside))
        self._check_stored("passage", candidates, stored)
        if not stored:
            return Ranked(query, [], {})
        ids = np.array(list(stored), dtype=np.int64)
        scored = self._scored(query, ids)
        rows = np.flatnonzero(np.isin(ids, list(candidates)))
        rows = rows[np.argsort(-scored.score[rows], kind="stable")]  # ties by the lower number: they ascend
        matches = [
            Match(i >> PASSAGE_BITS, score, i)
            for i, score in zip(ids[rows].tolist(), scored.shown[rows].tolist(), strict=True)
        ]
        scores: dict[str, dict[int, float]] = {}
        for match, parts in zip(matches, scored.parts(rows), strict=True):
            for name, value in parts.items():
                scores.setdefault(name, {})[match.passage] = value
        return Ranked(query, matches, scores, {match.passage: match.score for match in matches})

    # --- choosing ----------------------------------------------------------------------------------------------------

    def _choose(self, ranked: Ranked) -> tuple[Ranked, bool]:
        """Take the best, by diversity, without near copies and within the caps.

        Returns:
            What was chosen, and whether the rest of the ranking is below the least score asked for.
        """
        options = self._options
        least = -np.inf if options.min_score is None else options.min_score
        matches = [match for match in ranked.matches if match.score >= least]
        exhausted = len(matches) < len(ranked.matches)
        matches = self._boosted(ranked, matches)
        chosen: list[Match] = []
        copies, texts = _Copies(), dict[int, str]()
        duplicates: dict[int, list[int]] = {}
        taken: dict[int, int] = {}
        for at, match in enumerate(self._by_diversity(matches, chosen) if options.diversity else matches):
            if options.per_document is not None and taken.get(match.doc, 0) >= options.per_document:
                continue
            if options.fold:
                if match.passage not in texts:  # fetched as they are needed, those that come next together
                    texts = self._texts(ranked.query, [match] if options.diversity else matches[at : at + options.last])
                first = copies.find_or_remember(match.passage, texts[match.passage])
                if first is not None:
                    duplicates.setdefault(first, []).append(match.doc)
                    continue
            chosen.append(match)
            taken[match.doc] = taken.get(match.doc, 0) + 1
            if len(chosen) == options.last:
                break
        return replace(ranked, matches=chosen, duplicates=self._names(duplicates)), exhausted

    def _by_diversity(self, matches: list[Match], chosen: list[Match]) -> Iterator[Match]:
        """Yield matches by maximal marginal relevance: score against likeness to what was chosen before.

        Args:
            matches: Best first.
            chosen: Where the caller puts a match that it keeps, before it asks for the next one.
        """
        if not matches:
            return
        ids = np.array([match.passage for match in matches], dtype=np.int64)
        order = np.argsort(ids)
        vectors = np.empty((len(ids), self._view.info.dim), dtype=np.float32)
        vectors[order] = self._view.vectors("passage", ids[order])
        scores = np.array([match.score for match in matches], dtype=np.float32)
        relevance = scores / max(float(np.abs(scores).max()), 1e-9)
        weight, nearest = self._options.diversity, np.zeros(len(ids), dtype=np.float32)
        left = np.ones(len(ids), dtype=bool)
        for _ in matches:
            row = int(np.argmax(np.where(left, (1 - weight) * relevance - weight * nearest, -np.inf)))
            left[row] = False
            before = len(chosen)
            yield matches[row]
            if len(chosen) > before:
                nearest = np.maximum(nearest, vectors @ vectors[row])

    def _texts(self, query: Query, matches: list[Match]) -> dict[int, str]:
        """Texts of passages by their numbers."""
        documents = self._fetch(match.doc for match in matches)
        stored = self._stored_passages(query, (match.passage for match in matches))
        return {m.passage: documents[m.doc].text[slice(*stored[m.passage].span)] for m in matches}

    def _names(self, duplicates: dict[int, list[int]]) -> dict[int, tuple[str, ...]]:
        if not duplicates:
            return {}
        found = self._fetch(doc for docs in duplicates.values() for doc in docs)  # all are there already
        return {first: tuple(dict.fromkeys(found[doc].id for doc in docs)) for first, docs in duplicates.items()}


class _Copies:
    """Passages seen so far, to find near copies: equal numbers, and most word triples in common."""

    def __init__(self) -> None:
        self._seen: list[tuple[int, frozenset[str], frozenset[tuple[str, ...]]]] = []

    def find_or_remember(self, passage: int, text: str) -> int | None:
        """Return the passage that this one is a near copy of; where it is new, remember it and return None."""
        words = re.findall(r"\w+", text.lower())
        numbers = frozenset(word for word in words if word.isdigit())
        triples = frozenset(zip(words, words[1:], words[2:], strict=False)) or frozenset([tuple(words)])
        for first, its_numbers, its_triples in self._seen:
            common = len(triples & its_triples)
            if numbers == its_numbers and common >= SAME * (len(triples) + len(its_triples) - common):
                return first
        self._seen.append((passage, numbers, triples))
        return None
