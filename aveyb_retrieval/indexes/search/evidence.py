"""What an index says about one question: every step of a search reads it here.

Most values are read once, whichever step asks for them first. Steps add what further searches by
vectors and words gave, so that the next one finds it here.
"""

from __future__ import annotations

from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.search.background import start
from aveyb_retrieval.indexes.search.by_vector import (
    NO_COSINES,
    nearest_documents,
    nearest_passages,
)
from aveyb_retrieval.indexes.search.confidence import MIN_COMPARED_DOCUMENTS
from aveyb_retrieval.indexes.search.named_documents import find_named_documents
from aveyb_retrieval.indexes.search.passage_scores import WordScores, word_weights
from aveyb_retrieval.indexes.search.step_times import in_step
from aveyb_retrieval.indexes.store.tables import PARTS, StoredPassages
from aveyb_retrieval.indexes.types import ascending, find_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from aveyb_retrieval.indexes.engine import EngineView, Selection
    from aveyb_retrieval.indexes.search.by_vector import NearestMatches
    from aveyb_retrieval.indexes.search.named_documents import NamedDocuments
    from aveyb_retrieval.indexes.search.options import Options
    from aveyb_retrieval.indexes.search.question import Question
    from aveyb_retrieval.indexes.search.ranking import QueryModel
    from aveyb_retrieval.indexes.store.tables import Part, ShownPassage, StoredDocument
    from aveyb_retrieval.indexes.types import FloatArray, IntArray, Kind

MAX_DOCUMENTS_HELD = 512  # documents that a search of several questions keeps at a time
# passages that the ranking by words has for each candidate document, as the one by vectors has
PASSAGES_LISTED = 4
SHORT_DOCUMENT_PASSAGES = (
    16  # passages of a document that are all read; of a longer one, the best found
)
Ranked = list[tuple[int, float]]  # numbers of documents or passages with BM25, best first


class DocumentParts:
    """Some parts of documents, each read once; at most `MAX_DOCUMENTS_HELD` are kept."""

    def __init__(self, view: EngineView, parts: tuple[Part, ...]) -> None:
        self.parts = parts
        self._view = view
        self._documents: dict[int, StoredDocument] = {}

    def holds(self, docs: Iterable[int]) -> bool:
        """Whether all of these documents were read."""
        return self._documents.keys() >= set(docs)

    def read(self, docs: Iterable[int]) -> dict[int, StoredDocument]:
        """Documents by number; IndexFormatError if one is not stored."""
        listed = list(dict.fromkeys(docs))
        new = [doc for doc in listed if doc not in self._documents]
        if new and len(self._documents) + len(new) > MAX_DOCUMENTS_HELD:
            self._documents.clear()  # the questions of a long list
            new = listed
        if new:
            self._documents.update(self._view.documents(new, self.parts))
        check_stored(self._view, "document", listed, self._documents)
        return {doc: self._documents[doc] for doc in listed}


class DocumentReader:
    """Reads documents for all questions of one search, each once, and ahead in another thread."""

    def __init__(self, view: EngineView, options: Options) -> None:
        self.view = view
        by_fields = options.boost or options.sort is not None
        ranked_by: tuple[Part, ...] = ("title", "metadata") if by_fields else ("title",)
        self._ranked = DocumentParts(view, ranked_by if view.lasting else PARTS)
        self._described = DocumentParts(view, ("metadata",))
        self._started: list[Callable[[], object]] = []

    def prefetch(self, docs: Sequence[int]) -> None:
        """Start to read documents, unless all were read or others are on their way."""
        if self.view.lasting and not self._started and not self._ranked.holds(docs):
            self._started.append(start(partial(self._ranked.read, docs)))

    def read(self, docs: Iterable[int]) -> Mapping[int, StoredDocument]:
        """Documents by number; IndexFormatError where one is not stored."""
        while self._started:
            self._started.pop()()
        return self._ranked.read(docs)

    def metadata(self, docs: Iterable[int]) -> dict[int, dict[str, Any]]:
        """Their other fields, by number; IndexFormatError where a document is not stored."""
        has_metadata = "metadata" in self._ranked.parts
        documents = self.read(docs) if has_metadata else self._described.read(docs)
        return {doc: document.metadata for doc, document in documents.items()}


class WordRankings:
    """The rankings by the words of one question, which may be looked up ahead in other threads.

    Of each kind the longest ranking is kept: shorter ones are its beginning.
    """

    def __init__(self, view: EngineView, question: Question) -> None:
        self._view = view
        self._question = question
        self._started: dict[tuple[Kind, int], Callable[[], Ranked]] = {}
        self._longest: dict[Kind, tuple[int, Ranked]] = {}  # how many were asked for, and they

    def start(self, kind: Kind, count: int) -> None:
        """Start to look up what `best` will be asked for."""
        self._started[kind, count] = start(partial(self._look_up, kind, count))

    def best(self, kind: Kind, count: int) -> Ranked:
        """The `count` best documents or passages by BM25, best first."""
        length, ranked = self._longest.get(kind, (-1, []))
        if length < count:
            length, ranked = self._of_length(kind, count)
            self._longest[kind] = length, ranked
        return ranked[:count]

    @in_step("words")
    def _of_length(self, kind: Kind, count: int) -> tuple[int, Ranked]:
        """A ranking of at least `count`, one that was started if there is one."""
        started = [length for of, length in self._started if of == kind and length >= count]
        if not started:
            return count, self._look_up(kind, count)
        length = min(started)
        return length, self._started.pop((kind, length))()

    def _look_up(self, kind: Kind, count: int) -> Ranked:
        question = self._question
        return self._view.by_words(kind, question.search_words, count, question.selection)


class Evidence:
    """What an index says about one question.

    Attributes:
        view: The version of the index that is searched.
        question: Its words, its vector and its selection.
        options: Those of the search.
        documents: Reads documents, for this question and others.
        words: The rankings by its words.
        near: What vectors found for it at first; nothing in a search by words.
        model: What encodes texts.
    """

    def __init__(
        self,
        view: EngineView,
        question: Question,
        options: Options,
        documents: DocumentReader,
        words: WordRankings,
        near: NearestMatches,
        model: QueryModel,
    ) -> None:
        self.view = view
        self.question = question
        self.options = options
        self.documents = documents
        self.words = words
        self.near = near
        self.model = model
        self._cosines = NO_COSINES
        self._held: StoredPassages | None = None
        self._absent = np.empty(0, np.int64)  # numbers that no passage has, ascending
        self._passages_read: dict[int, ShownPassage] = {}
        self.add_cosines(near)

    @property
    def knows_confidence(self) -> bool:
        """Whether there are enough documents to compare with, and both words and vectors."""
        documents = self.view.info.documents
        return self.options.mode == "hybrid" and documents >= MIN_COMPARED_DOCUMENTS

    @cached_property
    def named(self) -> NamedDocuments | None:
        """The documents that the question names; None if there are none."""
        return find_named_documents(self)

    @property
    def named_docs(self) -> IntArray | None:
        """The numbers of these, ascending."""
        return None if self.named is None else self.named.named.docs

    # --- vectors ---------------------------------------------------------------------------------

    @cached_property
    def background(self) -> float:
        """The mean cosine of (a sample of) all vectors with the question: that of a document at
        random.
        """
        return float(self.view.mean_vector @ self.question.vector)

    @cached_property
    def near_passages(self) -> IntArray:
        """The passages that vectors found at first, nearest first."""
        return self.near.passages.best_first()

    def nearest(self, depth: int) -> NearestMatches:
        """The `depth` documents or passages, as the options ask, that are nearest to the
        question.
        """
        (near,) = nearest(
            self.view, self.question.vector[None], depth, self.question.selection, self.options
        )
        self.add_cosines(near)
        return near

    def add_cosines(self, near: NearestMatches) -> None:
        """Remember the cosines of passages that a search by vectors gave."""
        new = ~find_in(self._cosines.ids, near.passages.ids)[1]
        self._cosines = self._cosines.joined(near.passages.ids[new], near.passages.values[new])

    def cosines(self, ids: IntArray) -> FloatArray:
        """Cosines `[n]` of passages `[n]` with the question."""
        self._cosines = self._cosines.completed(self.view, ids, self.question.vector)
        return self._cosines.of(ids)

    def vector_weights(self, kind: Kind, numbers: IntArray) -> FloatArray:
        """How well the model knows documents or passages `[n]` and the question, 0 to 1; less of
        passages that only repeat.
        """
        weights = self.view.vector_weights(kind, numbers)
        if kind == "passage":
            weights = weights * self.view.passage_shares(numbers)
        return np.asarray(weights * np.float32(self.question.known), np.float32)

    # --- words -----------------------------------------------------------------------------------

    @cached_property
    def word_weights(self) -> FloatArray:
        """Weights `[t]` of the question's words: the rarer, the higher."""
        return word_weights(self.view, self.question.words)

    def word_scores(self, held: StoredPassages, weights: FloatArray) -> WordScores:
        """How much of some words, by weights `[t]`, passages hold; less of those that only
        repeat.
        """
        mean_length = self.view.mean_passage_length
        return WordScores.of(held, weights, mean_length, self.view.passage_shares(held.numbers))

    def passages_by_words(self, count: int) -> IntArray:
        """The numbers of the best passages by BM25, best first; none in a search by vectors."""
        by_words = [] if self.options.mode == "dense" else self.words.best("passage", count)
        return np.array([number for number, _ in by_words], np.int64)

    # --- passages --------------------------------------------------------------------------------

    def held(self, numbers: IntArray) -> StoredPassages:
        """Spans of passages `[n]`, ascending, and which of the question's words each holds; those
        that do not exist are left out.
        """
        words = () if self.options.mode == "dense" else self.question.words
        held = StoredPassages.none(len(words)) if self._held is None else self._held
        rows = held.rows(numbers)
        new = numbers[(rows < 0) & ~find_in(self._absent, numbers)[1]]
        if len(new):
            held = held.joined(self.view.passages(new, words))
            rows = held.rows(numbers)
            self._absent = ascending(np.concatenate([self._absent, numbers[rows < 0]]))
        self._held = held
        return held.take(rows[rows >= 0])

    def passages(self, numbers: Iterable[int]) -> Mapping[int, ShownPassage]:
        """What is shown of passages, by number, with that of passages asked for before."""
        listed = list(dict.fromkeys(numbers))
        new = [number for number in listed if number not in self._passages_read]
        if new:
            self._passages_read.update(self.view.shown_passages(new))
        self.check_stored("passage", listed, self._passages_read)
        return self._passages_read

    def texts(self, numbers: Sequence[int]) -> dict[int, str]:
        """The texts of passages, by number."""
        passages = self.passages(numbers)
        return {number: joined_passages([passages[number]])[1] for number in numbers}

    def document_texts(self, docs: Iterable[int]) -> dict[int, str]:
        """The whole texts of documents, by number."""
        listed = list(docs)
        stored = self.view.documents(listed, ("text",)) if listed else {}
        self.check_stored("document", listed, stored)
        return {doc: stored[doc].text for doc in listed}

    def check_stored(
        self, kind: Kind, numbers: Iterable[int], stored: Mapping[int, object] | set[int]
    ) -> None:
        """Raise IndexFormatError where a document or passage that was found is not stored."""
        check_stored(self.view, kind, numbers, stored)


@in_step("nearest")
def nearest(
    view: EngineView,
    vectors: FloatArray,
    depth: int,
    selection: Selection | None,
    options: Options,
) -> list[NearestMatches]:
    """What the options look for that is nearest to each unit vector `[n, d]`."""
    if options.unit == "passage":
        return nearest_passages(view, vectors, depth, selection, exact=options.exact)
    return nearest_documents(view, options.kinds, vectors, depth, selection, exact=options.exact)


def passages_listed(view: EngineView, options: Options, least: int) -> int:
    """How many passages are ranked by words: more than `least` where most documents are long."""
    mostly_long = view.info.passages > SHORT_DOCUMENT_PASSAGES * view.info.documents
    return max(least, PASSAGES_LISTED * options.depth) if mostly_long else least


def joined_passages(passages: Sequence[ShownPassage]) -> tuple[tuple[int, int], str]:
    """The characters and the text of neighboring passages, in order."""
    first, last = passages[0].span, passages[-1].span
    texts = [
        passage.text[: following.span[0] - passage.span[0]]
        for passage, following in pairwise(passages)
    ]
    return (first[0], last[1]), "".join([*texts, passages[-1].text[: last[1] - last[0]]])


def check_stored(
    view: EngineView, kind: Kind, numbers: Iterable[int], stored: Mapping[int, object] | set[int]
) -> None:
    """Raise IndexFormatError where a document or passage that was found is not stored."""
    missing = next((number for number in numbers if number not in stored), None)
    if missing is not None:
        raise IndexFormatError(
            f"{view.info.name}: the index has {kind} number {missing}, which the store does not"
            f" have; {view.info.remedy}"
        )
