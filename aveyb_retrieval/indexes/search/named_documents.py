"""The documents that a question names, found and scored for one search.

`aveyb_retrieval.indexes.search.names` has the formula; here what it needs is read from an engine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from aveyb_retrieval.indexes.search.background import start
from aveyb_retrieval.indexes.search.by_vector import NO_COSINES, Cosines, unit_queries
from aveyb_retrieval.indexes.search.names import (
    Tops,
    best_scores,
    compare,
    find_named,
    naming_words,
    propose,
    question_terms,
    score_beginnings,
    score_within,
)
from aveyb_retrieval.indexes.search.passage_scores import score_hybrid
from aveyb_retrieval.indexes.store.called import CalledBy, called_by
from aveyb_retrieval.indexes.store.tables import PARTS
from aveyb_retrieval.indexes.types import PASSAGE_BITS, ascending, find_in, starts_of_equals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aveyb_retrieval.indexes.engine import EngineView, Selection
    from aveyb_retrieval.indexes.search.evidence import Evidence
    from aveyb_retrieval.indexes.search.names import NameMatch
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
MIN_COMPETING_DOCUMENTS = 2  # a single document has no name that tells it from others
PASSAGES_OF_NAMED = 16  # of a named document that are nearest to the rest of the question
# of a rest that is encoded by itself: names of 64 words hardly move the vector of a longer one
MAX_REST_CHARACTERS = 4000
MAX_CALLED_DOCUMENTS = 4096  # documents whose names are remembered: about a kilobyte each


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


def read_called(
    view: NameSource, docs: Sequence[int], languages: Mapping[int, Language] | None = None
) -> dict[int, CalledBy]:
    """Read what documents are called by; those that are not there are left out.

    `languages` are the rules of each document, by number; None: all have those of the view.
    """
    stored = view.documents(docs, ("title", "metadata"))
    shown = view.shown_passages([doc << PASSAGE_BITS for doc in docs])
    called = {}
    for doc, document in stored.items():
        first = shown.get(doc << PASSAGE_BITS)
        beginning = "" if first is None else first.text
        rules = view.language if languages is None else languages[doc]
        called[doc] = called_by(rules, document.id, document.title, document.metadata, beginning)
    return called


@dataclass(eq=False)
class NamedDocuments:
    """The documents that a question names, and how their passages are scored.

    Attributes:
        named: The documents, and the rest of the question.
        word_shares: 1 for each of the question's words that the rest has, else 0, `[t]`.
        encode: Returns the unit vector `[d]` of the rest.
        find: Returns the passages of named documents, ascending, that are nearest to a vector.
    """

    named: NameMatch
    word_shares: FloatArray
    encode: Callable[[], FloatArray]
    find: Callable[[FloatArray], IntArray]

    def __post_init__(self) -> None:
        self._cosines: Cosines = NO_COSINES
        self._tops: dict[int, Tops] = {}  # of each document, once it is scored

    @cached_property
    def vector(self) -> FloatArray:
        """The unit vector `[d]` of the rest; that of the question if nothing else is left."""
        return self.encode()

    @cached_property
    def passages(self) -> IntArray:
        """The passages of named documents that join the candidates, ascending."""
        return self.find(self.vector)

    def adjust(
        self, evidence: Evidence, held: StoredPassages, scored: PassageScores
    ) -> PassageScores:
        """Score passages of named documents by the rest of the question."""
        docs, ids, whole = self.named.docs, scored.ids, scored.score
        rows = np.flatnonzero(find_in(docs, ids >> PASSAGE_BITS)[1])
        rest = whole.copy()
        is_asked = self.named.rest not in ("", evidence.question.text)
        if is_asked and len(rows):
            rest[rows] = self._of_rest(evidence, held.take(rows), ids[rows])
        if len(rows) and (is_asked or not self.named.rest):
            new = np.array([doc for doc in docs.tolist() if doc not in self._tops], np.int64)
            self._tops |= best_scores(new, ids, whole, rest)
        if self.named.rest:
            score = score_within(self.named, ids, whole, rest, self._tops)
        else:
            score = score_beginnings(self.named, ids, whole, self._tops)
        is_repeated = evidence.view.passage_shares(ids) < 1  # which no name makes an answer
        score = np.where(is_repeated, np.minimum(score, whole), score)
        return replace(scored, score=score, shown_score=score)

    def _of_rest(self, evidence: Evidence, held: StoredPassages, ids: IntArray) -> FloatArray:
        """The scores of passages `[n]` for the rest of the question."""
        weights = evidence.word_weights * self.word_shares
        words = evidence.word_scores(held, weights)
        background = float(evidence.view.mean_vector @ self.vector)
        self._cosines = self._cosines.completed(evidence.view, ids, self.vector)
        known = evidence.vector_weights("passage", ids)
        return score_hybrid(ids, self._cosines.of(ids), words, background, known).score


def find_named_documents(evidence: Evidence) -> NamedDocuments | None:
    """Find the documents that a question names; None if there are none.

    Also None where names do not count: in other modes than hybrid, without passages to rank, and
    beside conditions such as `"a phrase"`.
    """
    question, options, view = evidence.question, evidence.options, evidence.view
    is_text = bool(question.text) and not question.conditions
    if options.mode != "hybrid" or "passage" not in options.kinds or not is_text:
        return None
    rankings = (evidence.near_passages, evidence.passages_by_words(PASSAGES_COMPETING))
    best = evidence.held(ascending(np.concatenate([ids[:PASSAGES_COMPETING] for ids in rankings])))
    docs = ascending(best.numbers >> PASSAGE_BITS)
    if not len(docs):
        return None
    if len(docs) >= MIN_COMPETING_DOCUMENTS or question.selection is None:
        named = _name(evidence, best, question.selection)
    else:
        # what tells one selected document from others is known by all that are visible
        selected = view.matching(question.selection)
        named = _name(evidence, _with_all_visible(evidence, best), None, selected)
    return None if named is None else _make(evidence, named, docs)


def _with_all_visible(evidence: Evidence, best: StoredPassages) -> StoredPassages:
    """The best passages of a selection, with those of all documents that are visible."""
    view, question = evidence.view, evidence.question
    _, near = view.nearest("passage", question.vector[None], PASSAGES_COMPETING)
    ranked = view.by_words("passage", question.search_words, PASSAGES_COMPETING)
    by_words = np.array([number for number, _ in ranked], np.int64)
    others = np.setdiff1d(np.concatenate([near[0], by_words]), best.numbers)
    return best.joined(view.passages(others, question.words))


def _name(
    evidence: Evidence,
    best: StoredPassages,
    selection: Selection | None,
    within: IntArray | None = None,
) -> NameMatch | None:
    """Find the documents that a question names.

    `best` are the passages whose documents compete, and which of the question's words they hold.
    Documents of the selection that only their names propose compete, too; only those `within` may
    be named, numbers ascending.
    """
    view, words = evidence.view, evidence.question.words
    terms = question_terms(evidence.question.text, words, view.language)
    docs = ascending(best.numbers >> PASSAGE_BITS)
    if not terms.tokens:
        return None
    places = {word: place for place, word in enumerate(words)}
    columns = [places[term] for term in terms.terms[: terms.known]]
    starts = starts_of_equals(best.numbers >> PASSAGE_BITS)
    found = np.logical_or.reduceat(best.held[:, columns], starts)
    names = naming_words(terms, view.language)
    lists = dict(zip(names, view.documents_called(names, selection), strict=True))
    proposed = propose(terms, docs, found, lists)
    docs = np.concatenate([docs, proposed])
    if len(docs) < MIN_COMPETING_DOCUMENTS:
        return None
    found = np.concatenate([found, np.zeros((len(proposed), found.shape[1]), np.bool_)])
    called = view.called(docs.tolist())
    if len(called) < len(docs):  # one was deleted in a database meanwhile
        return None
    order = np.argsort(docs)
    docs, found = docs[order], found[order]
    of_docs = [called[doc] for doc in docs.tolist()]
    among = compare(terms, docs, view.passage_counts(docs), of_docs, found, view.language)
    return None if among is None else find_named(terms, among, within)


def _make(evidence: Evidence, named: NameMatch, competing: IntArray) -> NamedDocuments:
    """Prepare what scores passages of named documents; some of these compete by passages already.

    The rest of the question is encoded in another thread, until its vector is needed.
    """
    question, view = evidence.question, evidence.view
    shares = np.array([word not in named.dropped for word in question.words], np.float32)
    if not named.rest:
        firsts = named.docs[view.passage_counts(named.docs) > 0] << PASSAGE_BITS
        return NamedDocuments(named, shares, lambda: question.vector, lambda _: firsts)
    is_long = len(named.rest) > MAX_REST_CHARACTERS
    if is_long or named.rest == question.text:
        docs, encode = named.docs[~find_in(competing, named.docs)[1]], lambda: question.vector
    else:
        docs, encode = named.docs, start(partial(_encode, evidence, named.rest))
    return NamedDocuments(named, shares, encode, partial(_nearest_of, view, docs))


def _encode(evidence: Evidence, text: str) -> FloatArray:
    (vector,) = unit_queries(evidence.model.load().encode_queries([text]), evidence.view.info.dim)
    return np.asarray(vector)


def _nearest_of(view: EngineView, docs: IntArray, vector: FloatArray) -> IntArray:
    """The passages of some documents that are nearest to a vector, ascending."""
    if not len(docs):
        return docs
    return ascending(view.best_passages(docs, vector, (), PASSAGES_OF_NAMED))
