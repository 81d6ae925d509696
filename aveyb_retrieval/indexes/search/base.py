"""`Search`: one search of one state of an engine, as far as documents and passages share it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from aveyb_retrieval.errors import ConfigError, IndexFormatError
from aveyb_retrieval.indexes.search import fusion, rerank
from aveyb_retrieval.indexes.search.boost import gains
from aveyb_retrieval.indexes.search.candidates import NO_COSINES, background, unit_queries
from aveyb_retrieval.indexes.search.relevance import PassageScores, score_hybrid
from aveyb_retrieval.indexes.search.word_scores import WordScores
from aveyb_retrieval.indexes.store.numbering import PASSAGE_BITS

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from aveyb_retrieval.indexes.engines.base import EngineView
    from aveyb_retrieval.indexes.search.candidates import Cosines, Match
    from aveyb_retrieval.indexes.search.hits import Hit
    from aveyb_retrieval.indexes.search.options import Options
    from aveyb_retrieval.indexes.store.tables import StoredDocument, StoredPassage
    from aveyb_retrieval.indexes.types import EmbedderLike, FloatArray, IntArray, Kind

REMEMBERED = 512  # documents that a search keeps while it ranks, chooses and shows them
NO_VECTOR = np.empty(0, np.float32)

Row = TypeVar("Row")


@dataclass(frozen=True)
class Query:
    """A query, and what was read for it.

    Attributes:
        text: As it was given, "" where only a vector was.
        words: Those of the text that are looked up.
        vector: Its unit vector `[d]`, `NO_VECTOR` where none was needed.
        passages: The passages that were read, with which of the words they hold (not in dense mode), by number.
    """

    text: str
    words: Sequence[str]
    vector: FloatArray
    passages: dict[int, StoredPassage] = field(default_factory=dict)


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
        self._selection = view.select(options.where)
        self._documents: dict[int, StoredDocument] = {}
        if options.rerank == rerank.STORED_MAXSIM and view.tokens is None:
            raise ConfigError(
                f"{view.info.name}: rerank={options.rerank!r}: this index keeps no token vectors; build it "
                "with token_vectors='int8' (--token-vectors int8), or use rerank='maxsim', which encodes texts again"
            )

    @property
    def needs_text(self) -> bool:
        """Whether vectors alone cannot be searched for."""
        return self._options.mode != "dense" or self._options.rerank is not None

    def rank_texts(self, texts: Sequence[str]) -> Iterator[Ranked]:
        """Rank documents or passages for each text; where there are none, without the model."""
        asked = [(text, self._view.language.words(text)) for text in texts]
        if not self._view.count("document", self._selection):
            return (Ranked(Query(*each, NO_VECTOR), [], {}) for each in asked)
        if self._options.mode == "lexical":
            return (self._rank(Query(*each, NO_VECTOR), []) for each in asked)
        vectors = unit_queries(self._model().encode_queries(texts), self._view.info.dim)
        found = zip(asked, vectors, self._nearest(vectors), strict=True)
        return (self._rank(Query(*each, vector), near) for each, vector, near in found)

    def rank_vectors(self, vectors: FloatArray) -> Iterator[Ranked]:
        """Rank documents or passages for each unit vector `[n, d]`; the options ask for nothing that needs a text."""
        found = zip(vectors, self._nearest(vectors), strict=True)
        return (self._rank(Query("", (), vector), near) for vector, near in found)

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
        matches = [by_key[key]._replace(score=score) for key, score in fusion.ranked(scores)]
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
