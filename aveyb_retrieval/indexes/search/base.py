"""`Search`: one search of one state of an engine, as far as documents and passages share it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from aveyb_retrieval.errors import ConfigError, IndexFormatError
from aveyb_retrieval.indexes.search import fusion, rerank
from aveyb_retrieval.indexes.search.candidates import unit_queries
from aveyb_retrieval.indexes.store.numbering import PASSAGE_BITS

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from aveyb_retrieval.indexes.engines.base import EngineView
    from aveyb_retrieval.indexes.search.candidates import Match
    from aveyb_retrieval.indexes.search.hits import Hit
    from aveyb_retrieval.indexes.search.options import Options
    from aveyb_retrieval.indexes.search.relevance import PassageScores
    from aveyb_retrieval.indexes.store.tables import StoredDocument, StoredPassage
    from aveyb_retrieval.indexes.store.words import Finder
    from aveyb_retrieval.indexes.types import EmbedderLike, FloatArray, Kind

REMEMBERED = 512  # documents and passages that a search keeps while it ranks, chooses and shows them

Row = TypeVar("Row")


@dataclass(frozen=True)
class Query:
    """A query: its text (None where only a vector was given) and its unit vector `[d]` (None where none was needed)."""

    text: str | None
    vector: FloatArray | None


@dataclass(frozen=True)
class Ranked:
    """What was found for a query, best first, and every score that was computed: name, key, value.

    Keys are numbers of documents or, in a search for passages, of passages. `confidence` has that of passages in hybrid
    mode, `duplicates` the ids of documents that near copies of a passage were found in, `scored` the passages of some
    documents that were scored for the ranking.
    """

    query: Query
    matches: list[Match]
    scores: dict[str, dict[int, float]]
    confidence: dict[int, float] = field(default_factory=dict)
    duplicates: dict[int, tuple[str, ...]] = field(default_factory=dict)
    scored: PassageScores | None = None

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
        self._passages: dict[int, StoredPassage] = {}
        if options.rerank == rerank.STORED_MAXSIM and view.tokens is None:
            raise ConfigError(
                f"{view.info.name}: rerank={options.rerank!r}: this index keeps no token vectors; build it "
                "with token_vectors='int8' (--token-vectors int8), or use rerank='maxsim', which encodes texts again"
            )

    @property
    def needs_text(self) -> bool:
        """Whether vectors alone cannot be searched for."""
        return self._options.mode != "dense" or self._options.rerank is not None

    def rank_texts(self, texts: Sequence[str]) -> list[Ranked]:
        """Rank documents or passages for each text."""
        if self._options.mode == "lexical":
            return [self._rank(Query(text, None), []) for text in texts]
        vectors = unit_queries(self._model().encode_queries(texts), self._view.info.dim)
        found = self._nearest(vectors)
        return [self._rank(Query(t, v), near) for t, v, near in zip(texts, vectors, found, strict=True)]

    def rank_vectors(self, vectors: FloatArray) -> list[Ranked]:
        """Rank documents or passages for each unit vector `[n, d]`; the options ask for nothing that needs a text."""
        return [self._rank(Query(None, v), near) for v, near in zip(vectors, self._nearest(vectors), strict=True)]

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
        """Order the candidates by a closer look at them; leave out the other matches."""
        options, query = self._options, ranked.query.text
        ranked = replace(ranked, matches=ranked.matches[: options.depth])
        assert query is not None  # `needs_text` has seen to it
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

    def _maxsim(self, ranked: Ranked, query: str) -> dict[int, float]:
        """Score every match by late interaction, by key: with stored token vectors where the index keeps them."""
        tokens, device = self._view.tokens, self._device
        if tokens is None:
            texts = self._closest_texts(ranked)
            return dict(zip(texts, rerank.maxsim(self._model(), device, query, list(texts.values())), strict=True))
        closest = self._closest(ranked)
        scores = rerank.stored_maxsim(self._model(), tokens, device, query, list(closest.values()))
        return {self._key(match): 0.0 for match in ranked.matches} | dict(zip(closest, scores, strict=True))

    def _contexts(self, passages: Iterable[int]) -> dict[int, tuple[int, int]]:
        """The characters of passages with their neighbors, by number, in one read; none if not asked for."""
        wanted = list(passages)
        if self._options.context is None or not wanted:
            return {}
        ids, spans = self._view.passage_spans(sorted({passage >> PASSAGE_BITS for passage in wanted}))
        contexts = {}
        for passage in wanted:
            beside = np.abs(ids - passage) <= self._options.context
            shown = spans[beside & (ids >> PASSAGE_BITS == passage >> PASSAGE_BITS)]
            contexts[passage] = (int(shown[0, 0]), int(shown[-1, 1]))
        return contexts

    def _fetch(self, docs: Iterable[int], *, texts: bool = True) -> Mapping[int, StoredDocument]:
        """Fetch documents by number; raises IndexFormatError where one is not stored."""
        wanted, read = list(dict.fromkeys(docs)), self._view.documents
        found = _remembered(self._documents, wanted, read) if texts else read(wanted, texts=False)
        self._check_stored("document", wanted, found)
        return found

    def _finder(self, query: Query) -> Finder:
        """What finds the words of a query in a text; none where only its vector was given."""
        language = self._view.language
        return language.finder(language.words(query.text or ""))

    def _stored_passages(self, passages: Iterable[int]) -> Mapping[int, StoredPassage]:
        """Fetch passages by number; raises IndexFormatError where one is not stored."""
        wanted = list(passages)
        found = self._passages_there(wanted)
        self._check_stored("passage", wanted, found)
        return found

    def _passages_there(self, numbers: Sequence[int]) -> dict[int, StoredPassage]:
        """Fetch passages by number; those that are not there are left out."""
        return _remembered(self._passages, numbers, self._view.passages)

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
    new = [number for number in wanted if number not in known]
    if len(known) + len(new) > REMEMBERED:  # the queries of a long list
        known.clear()
        new = list(wanted)
    if new:
        known.update(read(new))
    return {number: known[number] for number in wanted if number in known}
