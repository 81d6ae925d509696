"""A search of documents or of passages: from a question to hits."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, chain
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from aveyb_retrieval.errors import ConfigError, IndexFormatError
from aveyb_retrieval.indexes.search import rerank, scoring
from aveyb_retrieval.indexes.search.hits import Chosen, make_hit
from aveyb_retrieval.indexes.search.operators import ask, suggest, with_synonyms
from aveyb_retrieval.indexes.search.result import Result
from aveyb_retrieval.indexes.search.scoring import (
    NO_COSINES,
    Cosines,
    Match,
    PassageScores,
    WordScores,
    background,
    best_by_document,
    gains,
    nearest_documents,
    nearest_vectors,
    score_documents,
    score_hybrid,
    unit_queries,
    with_maxsim,
)
from aveyb_retrieval.indexes.store.numbering import PASSAGE_BITS

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from aveyb_retrieval.indexes.engines.base import EngineView
    from aveyb_retrieval.indexes.search.hits import Hit
    from aveyb_retrieval.indexes.search.operators import Sought
    from aveyb_retrieval.indexes.search.options import Options
    from aveyb_retrieval.indexes.store.tables import StoredDocument, StoredPassage
    from aveyb_retrieval.indexes.store.words import Finder, Language
    from aveyb_retrieval.indexes.types import EmbedderLike, FloatArray, IntArray, Kind

REMEMBERED = 512  # documents that a search keeps while it ranks, chooses and shows them
NO_VECTOR = np.empty(0, np.float32)

Row = TypeVar("Row")


@dataclass(frozen=True)
class Query:
    """A query, and what was read for it.

    Attributes:
        text: As it was given (with operators: the question), "" where only a vector was.
        words: Those of the text that are looked up.
        vector: Its unit vector `[d]`, `NO_VECTOR` where none was needed.
        passages: The passages that were read, with which of the words they hold (not in dense mode), by number.
        beside: What the words are found by besides: with their accents, and without.
        conditions: What must be there, and what must not.
        unmet: Those of them, as they were written, that nothing fulfills by itself and that must be there.
    """

    text: str
    words: Sequence[str]
    vector: FloatArray
    passages: dict[int, StoredPassage] = field(default_factory=dict)
    beside: Sequence[str] = ()
    conditions: Sequence[Sought] = ()
    unmet: Sequence[str] = ()

    @property
    def sought(self) -> list[str]:
        """The words that candidates are found by: of the question, and of what must be there."""
        more = (word for each in self.conditions if each.condition.must for phrase in each.phrases for word in phrase)
        return list(dict.fromkeys([*self.words, *self.beside, *more]))

    def finder(self, rules: Language) -> Finder:
        """Make what finds in texts the words of the question, and those that fulfilled a condition."""
        must = [each for each in self.conditions if each.condition.must]
        alone = {word for each in must if not each.forms for phrase in each.phrases for word in phrase}
        forms = {form for each in must for form in each.forms}
        stems = {word for each in must if each.forms for phrase in each.phrases for word in phrase}
        return rules.finder({*(set(self.words) - stems), *self.beside, *alone}, forms)


@dataclass(frozen=True)
class Ranked:
    """What was found for a query, best first, and every score that was computed: name, key, value.

    Keys are numbers of documents or, in a search for passages, of passages. `confidence` has that of passages in hybrid
    mode, `duplicates` the ids of documents that near copies of a passage were found in, `scored` the passages of (at
    least) the documents found, once they were scored.
    """

    query: Query
    matches: list[Match]
    scores: dict[str, dict[int, float]]
    confidence: dict[int, float] = field(default_factory=dict)
    duplicates: dict[int, tuple[str, ...]] = field(default_factory=dict)
    scored: PassageScores | None = None

    def first(self, count: int) -> Ranked:
        """The same with so many matches at most."""
        return replace(self, matches=self.matches[:count])

    def scores_of(self, key: int) -> dict[str, float]:
        """The scores of one document or passage, by name."""
        return {name: found[key] for name, found in self.scores.items() if key in found}


class Search(ABC):
    """One search: what is asked of which state of an engine, and where the model comes from (and runs) if needed."""

    def __init__(self, view: EngineView, options: Options, model: Callable[[], EmbedderLike], device: str) -> None:
        """Run the filter; nothing else is read yet."""
        self._view = view
        self._options = options
        self._model = model
        self._device = device
        self._among = self._selection = view.select(options.where)
        self._rules = with_synonyms(view.language, options.synonyms)
        self._documents: dict[int, StoredDocument] = {}
        if options.rerank == rerank.STORED_MAXSIM and view.tokens is None:
            raise ConfigError(
                f"{view.info.name}: rerank={options.rerank!r}: this index keeps no token vectors; build it "
                "with token_vectors='int8' (--token-vectors int8), or use rerank='maxsim', which encodes texts again"
            )

    @property
    def needs_text(self) -> bool:
        """Whether vectors alone cannot be searched for."""
        options = self._options
        return options.mode != "dense" or options.rerank is not None or options.operators

    def rank_texts(self, texts: Sequence[str]) -> Iterator[Ranked]:
        """Rank documents or passages for each text; where there are none, without the model."""
        if self._options.operators:
            return (self._rank_asked(text) for text in texts)
        asked = [self._query(text) for text in texts]
        if not self._view.count("document", self._selection):
            return (Ranked(query, [], {}) for query in asked)
        if self._options.mode == "lexical":
            return (self._rank(query, []) for query in asked)
        vectors = unit_queries(self._model().encode_queries(texts), self._view.info.dim)
        found = zip(asked, vectors, self._nearest(vectors), strict=True)
        return (self._rank(replace(query, vector=vector), near) for query, vector, near in found)

    def _query(self, text: str, conditions: Sequence[Sought] = ()) -> Query:
        rules = self._rules
        return Query(text, rules.words(text), NO_VECTOR, beside=rules.beside(text), conditions=conditions)

    def _rank_asked(self, text: str) -> Ranked:
        """Rank for one query with operators: among what fulfills its conditions."""
        view, mode = self._view, self._options.mode
        question, conditions = ask(text, view)
        query = self._query(question, conditions)
        unit = self._options.unit
        self._selection = view.narrow(self._among, unit, conditions) if conditions else self._among
        if not view.count(unit, self._selection):
            must = [each for each in conditions if each.condition.must]
            unmet = [each.condition.written for each in must if not view.count(unit, view.narrow(None, unit, [each]))]
            return Ranked(replace(query, unmet=unmet), [], {})
        if mode == "lexical":
            return self._rank(query, [])
        query = replace(query, vector=unit_queries(self._model().encode_queries([question]), view.info.dim)[0])
        return self._rank(query, self._nearest(query.vector[None])[0])

    def rank_vectors(self, vectors: FloatArray) -> Iterator[Ranked]:
        """Rank documents or passages for each unit vector `[n, d]`; the options ask for nothing that needs a text."""
        found = zip(vectors, self._nearest(vectors), strict=True)
        return (self._rank(Query("", (), vector), near) for vector, near in found)

    def result(self, ranked: Ranked) -> Result:
        """Fetch what was found, with what is to be said beside it."""
        query = ranked.query
        return Result(self.hits(ranked), query.words, query.unmet, partial(suggest, query.text, self._view))

    @abstractmethod
    def hits(self, ranked: Ranked) -> list[Hit]:
        """Fetch what was found: texts, metadata and passages."""

    def pairs(self, ranked: Ranked) -> list[tuple[str, float]]:
        """Name what was found: (id of the document, score)."""
        names = self._fetch((match.doc for match in ranked.matches), texts=False)
        return [(names[match.doc].id, match.score) for match in ranked.matches]

    @abstractmethod
    def _nearest(self, vectors: FloatArray) -> list[list[Match]]:
        """Find what is nearest to each unit vector `[n, d]`: the candidates by vectors."""

    @abstractmethod
    def _rank(self, query: Query, near: list[Match]) -> Ranked:
        """Rank for one query, given its candidates by vectors (none in lexical mode): what comes after the offset."""

    @abstractmethod
    def _key(self, match: Match) -> int:
        """Return the number that scores of a match are kept under: its document's or its passage's."""

    @abstractmethod
    def _closest(self, ranked: Ranked) -> dict[int, int]:
        """Return by key the passage of each match that is looked at again, or the document where it has none."""

    @abstractmethod
    def _closest_texts(self, ranked: Ranked) -> dict[int, str]:
        """Return by key the text of each match that is looked at again."""

    @abstractmethod
    def _with_maxsim(self, ranked: Ranked, maxsim: dict[int, float]) -> dict[int, float]:
        """Add late interaction to the scores of a hybrid search, both by key."""

    def _rerank(self, ranked: Ranked) -> Ranked:
        """Order candidates by a closer look at them."""
        options, query = self._options, ranked.query.text
        if not ranked.matches:
            return ranked  # nor is a model needed
        if options.rerank in rerank.LATE_INTERACTION:
            name, found = "maxsim", self._maxsim(ranked, query)
            scores = self._with_maxsim(ranked, found) if options.mode == "hybrid" else found
        else:
            assert options.rerank is not None  # else there is nothing to do
            name, texts = "cross-encoder", self._closest_texts(ranked)
            values = rerank.cross_encode(options.rerank, self._device, query, list(texts.values()))
            scores = found = dict(zip(texts, values, strict=True))
        by_key = {self._key(match): match for match in ranked.matches}
        matches = [by_key[key]._replace(score=score) for key, score in scoring.ranked(scores)]
        return replace(ranked, matches=matches, scores={**ranked.scores, name: found})

    def _boosted(self, ranked: Ranked, matches: list[Match]) -> list[Match]:
        """Order matches, best first, by their scores with what is added by metadata, which `ranked` then has too."""
        if not self._options.boost or not matches:
            return matches
        documents = self._fetch(match.doc for match in matches)
        best, shares = max(abs(match.score) for match in matches), gains(self._options.boost, documents, self._view)
        added = ranked.scores["boost"] = {self._key(match): best * shares[match.doc] for match in matches}
        moved = [match._replace(score=match.score + added[self._key(match)]) for match in matches]
        return sorted(moved, key=lambda match: -match.score)

    def _maxsim(self, ranked: Ranked, query: str) -> dict[int, float]:
        """Score every match by late interaction, by key: with stored token vectors where the index keeps them."""
        tokens, device = self._view.tokens, self._device
        if tokens is None:
            texts = self._closest_texts(ranked)
            return dict(zip(texts, rerank.maxsim(self._model(), device, query, list(texts.values())), strict=True))
        closest = self._closest(ranked)
        scores = rerank.stored_maxsim(self._model(), tokens, device, query, list(closest.values()))
        return {self._key(match): 0.0 for match in ranked.matches} | dict(zip(closest, scores, strict=True))

    def _scored(self, query: Query, ids: IntArray, known: Cosines = NO_COSINES) -> PassageScores:
        """Score passages, numbers `[n]` ascending, in the way that the mode asks for; some cosines are `known`."""
        mode, view = self._options.mode, self._view
        cosine = NO_VECTOR if mode == "lexical" else known.of(view, ids, query.vector)
        if mode == "dense":
            return PassageScores(ids, cosine, cosine, cosine)
        stored = self._stored_passages(query, ids.tolist())
        words = WordScores.of(view, query.words, list(stored.values()))
        if mode == "hybrid":
            return score_hybrid(ids, cosine, words, background(view, query.vector))
        return PassageScores(ids, words.bm25, words.bm25, words=words)

    def _contexts(self, query: Query, passages: Iterable[int]) -> dict[int, tuple[int, int]]:
        """The characters of passages with their neighbors, by number, in one read; none if not asked for."""
        wanted, most = list(passages), self._options.context
        if most is None or not wanted:
            return {}
        ids, ends = self._view.passage_numbers(sorted({passage >> PASSAGE_BITS for passage in wanted})), {}
        for passage in wanted:
            beside = ids[(np.abs(ids - passage) <= most) & (ids >> PASSAGE_BITS == passage >> PASSAGE_BITS)]
            ends[passage] = int(beside[0]), int(beside[-1])
        stored = self._stored_passages(query, {number for pair in ends.values() for number in pair})
        return {passage: (stored[first].span[0], stored[last].span[1]) for passage, (first, last) in ends.items()}

    def _fetch(self, docs: Iterable[int], *, texts: bool = True) -> Mapping[int, StoredDocument]:
        """Fetch documents by number; raises IndexFormatError where one is not stored."""
        wanted, read = list(dict.fromkeys(docs)), self._view.documents
        if len(self._documents.keys() | wanted) > REMEMBERED:  # the queries of a long list
            self._documents.clear()
        found = _remembered(self._documents, wanted, read) if texts else read(wanted, texts=False)
        self._check_stored("document", wanted, found)
        return found

    def _stored_passages(self, query: Query, passages: Iterable[int]) -> Mapping[int, StoredPassage]:
        """Fetch passages by number; raises IndexFormatError where one is not stored."""
        wanted = list(passages)
        found = self._passages_there(query, wanted)
        self._check_stored("passage", wanted, found)
        return found

    def _passages_there(self, query: Query, numbers: Sequence[int]) -> dict[int, StoredPassage]:
        """Fetch passages by number; those that are not there are left out."""
        words = () if self._options.mode == "dense" else query.words
        return _remembered(query.passages, numbers, lambda new: self._view.passages(new, words))

    def _check_stored(self, kind: Kind, wanted: Iterable[int], found: Container[int]) -> None:
        missing = next((number for number in wanted if number not in found), None)
        if missing is not None:
            info = self._view.info
            raise IndexFormatError(
                f"{info.name}: the index has {kind} number {missing}, which the store does not have; {info.remedy}"
            )


def _remembered(
    known: dict[int, Row], wanted: Sequence[int], read: Callable[[Sequence[int]], Mapping[int, Row]]
) -> dict[int, Row]:
    """What was asked for, by number, of which only what is not `known` is read; what is not there is left out."""
    if new := [number for number in wanted if number not in known]:
        known.update(read(new))
    return {number: known[number] for number in wanted if number in known}


READ = 50  # documents whose passages are read together: of all candidates they gained .0015 at most on development sets


class DocumentSearch(Search):
    """A search for documents."""

    def hits(self, ranked: Ranked) -> list[Hit]:
        """Fetch what was found: texts, metadata and the best passages."""
        documents = self._fetch(match.doc for match in ranked.matches)
        best = self._best_passages(self._with_passages(ranked))
        contexts = self._contexts(ranked.query, (chosen[0].number for chosen in best.values()))
        hits, find = [], ranked.query.finder(self._rules)
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
        found = view.by_words("document", query.sought, options.depth, self._selection)
        words = dict(found)
        if options.mode == "lexical":
            return Ranked(query, [Match(doc, score) for doc, score in found], {"lexical": words})
        scores, scored = {"dense": dense, "lexical": words}, None
        if options.fusion == "rrf":
            ranked = scoring.ranked(scoring.reciprocal_rank([list(dense.items()), list(words.items())]))
        else:
            others = [doc for doc in words if doc not in dense]
            more, cosines = score_documents(view, options.kinds, others, query.vector)
            dense |= more
            fused = scoring.weighted(dense, words, background=background(view, query.vector), weight=options.weight)
            ranked = scoring.ranked(fused)
            if "passage" in options.kinds:
                ranked, scored, scores["passage"] = self._with_best_passages(query, ranked, cosines)
        return Ranked(query, [Match(doc, score) for doc, score in ranked], scores, scored=scored)

    def _with_best_passages(
        self, query: Query, fused: Sequence[tuple[int, float]], cosines: Cosines
    ) -> tuple[list[tuple[int, float]], PassageScores, dict[int, float]]:
        """Add to each document's score its best passage's; return these, all passages, and the best ones' scores.

        The only passage of a document says what the document has said already, so the sum counts by the share of
        passages that are not alone. Documents are read `READ` at a time, as many as are asked for, and these are
        ordered among themselves: what the first pages hold does not depend on how many are asked for. None scores as
        high as the parts before. Where the order changes later, all are one part; with a least score, all parts
        are read.
        """
        options, info = self._options, self._view.info
        size = READ if options.rerank is None and options.boost is None else max(len(fused), 1)
        read = fused if options.min_score is not None else fused[: -(-options.last // size) * size]
        scored = self._scored(query, self._view.passage_numbers(sorted(doc for doc, _ in read)), cosines)
        best = scored.best(options.weight)
        share = max(0.0, 1 - info.documents / info.passages) if info.passages else 0.0
        summed = [(doc, score + share * best.get(doc, 0.0)) for doc, score in read]
        parts = (scoring.ranked(dict(summed[start : start + size])) for start in range(0, len(summed), size))
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
            return scoring.reciprocal_rank([first, scoring.ranked(maxsim)])
        return {doc: score + scoring.MAXSIM_WEIGHT * maxsim[doc] for doc, score in first}

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


WIDEN = 4  # candidates are fetched again, this many times as many, where too few are left of them
SAME = 0.8  # share of common word triples (Jaccard) from which on two passages are near copies


class PassageSearch(Search):
    """A search for passages."""

    def hits(self, ranked: Ranked) -> list[Hit]:
        """Fetch what was found: texts, metadata and the passages."""
        documents = self._fetch(match.doc for match in ranked.matches)
        stored = self._stored_passages(ranked.query, (match.passage for match in ranked.matches))
        contexts = self._contexts(ranked.query, (match.passage for match in ranked.matches))
        hits, find = [], ranked.query.finder(self._rules)
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
        found = view.by_words("passage", query.sought, depth, self._selection)
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
