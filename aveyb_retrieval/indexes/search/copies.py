"""Copies: documents or passages whose words are those of a better one.

Words are equal whatever their case, spaces and punctuation. All else may carry the meaning and
makes texts different: the order of words, a negation, a number as it is written (`1.5`, `1,500`,
`-5`, `(5)`, `3/4`), a sign (`%`, `€`, `<`, `?`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from aveyb_retrieval.indexes.search.same_words import Copies
from aveyb_retrieval.indexes.types import PASSAGE_BITS, ascending

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.search.best_passages import BestPassages
    from aveyb_retrieval.indexes.search.evidence import Evidence
    from aveyb_retrieval.indexes.search.matches import Matches
    from aveyb_retrieval.indexes.types import IntArray

TEXTS_READ_TOGETHER = 50  # beginnings of documents without passages


class Originals(Protocol):
    """Finds the better match that a match is a copy of."""

    def begin(self, part: Matches, chosen: IntArray) -> None:
        """Take up another part of the ranking; the matches with keys `chosen` `[m]` are taken."""

    def original(self, row: int, taken: int) -> int | None:
        """The key of the match that row `row` of the part is a copy of; None for a new one.

        So far `taken` matches were taken.
        """


class NoOriginals:
    """Nothing is a copy."""

    def begin(self, part: Matches, chosen: IntArray) -> None:
        """Take up another part of the ranking."""

    def original(self, row: int, taken: int) -> int | None:
        return None


class PassageOriginals:
    """Finds copies among passages: their texts are read as they are needed, those that come next
    together.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._copies = Copies()
        self._texts: dict[int, str] = {}
        self._part: Matches | None = None

    def begin(self, part: Matches, chosen: IntArray) -> None:
        self._part = part

    def original(self, row: int, taken: int) -> int | None:
        assert self._part is not None  # `begin` was called
        key = int(self._part.keys[row])
        if key not in self._texts:
            options = self._evidence.options
            count = 1 if options.diversity else options.last
            following = self._part.take(slice(row, row + count))
            first_shown = max(0, options.offset - taken)
            self._evidence.documents.prefetch(following.docs[first_shown:].tolist())
            self._texts = self._evidence.texts(following.keys.tolist())
        return self._copies.find_or_remember(key, self._texts[key])


class DocumentOriginals:
    """Finds copies among documents, of which only those with about as many passages can be."""

    def __init__(self, evidence: Evidence, passages: BestPassages) -> None:
        self._evidence = evidence
        self._passages = passages
        self._copies = Copies()
        self._compared = set[int]()
        self._alike = set[int]()
        self._beginnings: dict[int, str] = {}
        self._part: Matches | None = None
        has_passages = "passage" in evidence.view.info.kinds
        last = evidence.options.last
        self._together = last if has_passages else min(last, TEXTS_READ_TOGETHER)

    def begin(self, part: Matches, chosen: IntArray) -> None:
        self._part = part
        self._beginnings = {}
        self._alike = self._of_one_length(np.concatenate([chosen, part.keys]))
        new = self._alike - self._compared
        for doc in (doc for doc in chosen.tolist() if doc in new):
            beginning = self._read_beginnings([doc])[doc]
            self._copies.find_or_remember(doc, beginning, partial(self._whole_text, doc))
        self._compared |= self._alike

    def original(self, row: int, taken: int) -> int | None:
        assert self._part is not None  # `begin` was called
        doc = int(self._part.keys[row])
        if doc not in self._alike:
            return None
        if doc not in self._beginnings:
            start = row - row % self._together
            following = self._part.take(slice(start, None)).take(slice(self._together))
            docs = [doc for doc in following.docs.tolist() if doc in self._alike]
            self._read_shown(docs, following.take(slice(self._evidence.options.offset, None)))
            self._beginnings = self._read_beginnings(docs)
        return self._copies.find_or_remember(
            doc, self._beginnings[doc], partial(self._whole_text, doc)
        )

    def _of_one_length(self, docs: IntArray) -> set[int]:
        """The documents that have about as many passages as another: only these can be copies."""
        view = self._evidence.view
        if "passage" not in view.info.kinds:
            return set(docs.tolist())
        numbers = ascending(docs)
        counts = view.passage_counts(numbers)
        by_count = np.argsort(counts, kind="stable")
        by_count = by_count[counts[by_count] > 0]
        steps = np.diff(counts[by_count])
        near = np.flatnonzero(steps <= counts[by_count][:-1] // 10)  # blank lines may move a cut
        return set(numbers[by_count][np.union1d(near, near + 1)].tolist())

    def _read_shown(self, docs: list[int], page: Matches) -> None:
        """Read what is shown of a page's documents with the beginnings of `docs`: it costs little
        more than these alone.
        """
        if "passage" not in self._evidence.view.info.kinds:
            return
        self._evidence.documents.prefetch(page.docs.tolist())
        best = self._passages.shown(page)
        numbers = [passage.number for shown in best.values() for passage in shown]
        self._evidence.shown([*(doc << PASSAGE_BITS for doc in docs), *numbers])

    def _read_beginnings(self, docs: list[int]) -> dict[int, str]:
        """The first passages of documents, or the texts of those without passages."""
        if "passage" not in self._evidence.view.info.kinds:
            return self._evidence.document_texts(docs)
        first = self._evidence.texts([doc << PASSAGE_BITS for doc in docs])
        return {number >> PASSAGE_BITS: text for number, text in first.items()}

    def _whole_text(self, doc: int) -> str:
        return self._evidence.document_texts([doc])[doc]
