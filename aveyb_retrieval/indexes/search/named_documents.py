"""The documents that a question names, found and scored for one search.

`aveyb_retrieval.indexes.search.names` has the formula; here what it needs is read from an engine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from aveyb_retrieval.indexes.search.by_vector import NO_COSINES, Cosines, unit_queries
from aveyb_retrieval.indexes.search.names import (
    CalledBy,
    Tops,
    best_scores,
    called_by,
    compare,
    find_named,
    question_terms,
    score_within,
)
from aveyb_retrieval.indexes.search.passage_scores import WordScores, score_hybrid
from aveyb_retrieval.indexes.search.question import NO_VECTOR
from aveyb_retrieval.indexes.store.tables import PARTS
from aveyb_retrieval.indexes.types import PASSAGE_BITS, ascending, find_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aveyb_retrieval.indexes.engine import EngineView
    from aveyb_retrieval.indexes.search.evidence import Evidence
    from aveyb_retrieval.indexes.search.names import Named
    from aveyb_retrieval.indexes.search.passage_scores import PassageScores
    from aveyb_retrieval.indexes.store.tables import (
        Part,
        ShownPassage,
        StoredDocument,
        StoredPassages,
    )
    from aveyb_retrieval.indexes.store.words import Language
    from aveyb_retrieval.indexes.types import FloatArray, IntArray

PASSAGES_COMPETING = 100  # by vectors, and as many by words: their documents compete
MIN_COMPETITORS = 2  # a single document has no name that tells it from others
PASSAGES_OF_NAMED = 16  # of a named document that are nearest to the rest of the question
MAX_CALLED = 4096  # documents whose names are remembered: about a kilobyte each


class NameSource(Protocol):
    """What an engine's view reads names from, as `EngineView` says."""

    @property
    def language(self) -> Language:
        """The rules by which words are found."""

    def documents(
        self, docs: Sequence[int], parts: Sequence[Part] = PARTS
    ) -> Mapping[int, StoredDocument]:
        """Documents by number."""

    def shown_passages(self, numbers: Sequence[int]) -> Mapping[int, ShownPassage]:
        """What is shown of passages, by number."""


def read_called(view: NameSource, docs: Sequence[int]) -> dict[int, CalledBy]:
    """Read what documents are called by; those that are not there are left out."""
    stored = view.documents(docs, ("title", "metadata"))
    shown = view.shown_passages([doc << PASSAGE_BITS for doc in docs])
    called = {}
    for doc, document in stored.items():
        first = shown.get(doc << PASSAGE_BITS)
        beginning = "" if first is None else first.text
        called[doc] = called_by(
            view.language, document.id, document.title, document.metadata, beginning
        )
    return called


@dataclass(eq=False)
class NamedDocuments:
    """The documents that a question names, and how their passages are scored.

    Attributes:
        named: The documents, and the rest of the question.
        vector: The unit vector `[d]` of the rest; empty if that is the whole question.
        word_shares: 1 for each of the question's words that the rest has, else 0, `[t]`.
        passages: The passages of named documents that are nearest to the rest, ascending.
    """

    named: Named
    vector: FloatArray
    word_shares: FloatArray
    passages: IntArray

    def __post_init__(self) -> None:
        self._cosines: Cosines = NO_COSINES
        self._tops: dict[int, Tops] = {}  # of each document, once it is scored

    def adjust(
        self, evidence: Evidence, held: StoredPassages, scored: PassageScores
    ) -> PassageScores:
        """Score passages of named documents by the rest of the question."""
        docs = self.named.docs
        rest = scored.score.copy()
        rows = np.flatnonzero(find_in(docs, scored.ids >> PASSAGE_BITS)[1])
        if len(self.vector) and len(rows):
            ids, weights = scored.ids[rows], evidence.word_weights * self.word_shares
            words = WordScores.of(held.take(rows), weights, evidence.view.mean_passage_length)
            background = float(evidence.view.mean_vector @ self.vector)
            self._cosines = self._cosines.completed(evidence.view, ids, self.vector)
            cosines = self._cosines.of(ids)
            known = evidence.vector_weights("passage", ids)
            rest[rows] = score_hybrid(ids, cosines, words, background, known).score
            new = best_scores(docs, scored.ids, scored.score, rest)
            self._tops = {**new, **self._tops}
        score = score_within(self.named, scored.ids, scored.score, rest, self._tops)
        return replace(scored, score=score, shown=score)


def find_named_documents(evidence: Evidence) -> NamedDocuments | None:
    """Find the documents that a question names; None if there are none, or no passages to rank."""
    question, options, view = evidence.question, evidence.options, evidence.view
    is_text = bool(question.text) and not question.conditions
    if options.mode != "hybrid" or "passage" not in options.kinds or not is_text:
        return None
    rankings = (evidence.near_passages, evidence.passages_by_words(PASSAGES_COMPETING))
    best = ascending(np.concatenate([ids[:PASSAGES_COMPETING] for ids in rankings]))
    named = _name(view, question.text, question.words, evidence.held(best))
    if named is None:
        return None
    shares = np.array([word not in named.dropped for word in question.words], np.float32)
    vector, passages = NO_VECTOR, np.empty(0, np.int64)
    if named.rest != question.text:
        (vector,) = unit_queries(evidence.model.load().encode_queries([named.rest]), view.info.dim)
        passages = ascending(view.best_passages(named.docs, vector, (), PASSAGES_OF_NAMED))
    return NamedDocuments(named, vector, shares, passages)


def _name(view: EngineView, text: str, words: Sequence[str], best: StoredPassages) -> Named | None:
    """Find the documents that a question names, given its best passages and which of its words
    they hold.
    """
    terms = question_terms(text, words, view.language)
    docs = ascending(best.numbers >> PASSAGE_BITS)
    if len(docs) < MIN_COMPETITORS or not terms.tokens:
        return None
    called = view.called(docs.tolist())
    if len(called) < len(docs):  # one was deleted in a database meanwhile
        return None
    places = {word: place for place, word in enumerate(words)}
    columns = [places[term] for term in terms.terms[: terms.known]]
    starts = np.flatnonzero(np.diff(best.numbers >> PASSAGE_BITS, prepend=-1))
    found = np.logical_or.reduceat(best.held[:, columns], starts)
    ordered = [called[doc] for doc in docs.tolist()]
    among = compare(terms, docs, view.passage_counts(docs), ordered, found, view.language)
    return None if among is None else find_named(terms, among)
