"""The step that takes a page of the ranking: conversations and copies are folded, caps kept,
likeness avoided, hits sorted by a field.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.indexes.search.conversations import Conversations
from aveyb_retrieval.indexes.search.matches import Matches
from aveyb_retrieval.indexes.search.sorting import Sort, matching_score, sorted_rows, strengths
from aveyb_retrieval.indexes.store.copies import NO_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from aveyb_retrieval.indexes.engine import EngineView
    from aveyb_retrieval.indexes.search.best_passages import PassageScorer
    from aveyb_retrieval.indexes.search.evidence import Evidence
    from aveyb_retrieval.indexes.types import IntArray, Kind


@dataclass(frozen=True, eq=False)
class ResultsPage:
    """What a search shows.

    Attributes:
        matches: Best first, or as they are sorted.
        copies: The documents of copies, by key of the match that they were folded into.
        earlier: The documents of older mails of the same conversation, likewise, newest first.
    """

    matches: Matches
    copies: Mapping[int, Sequence[int]]
    earlier: Mapping[int, Sequence[int]]


NOTHING_SHOWN = ResultsPage(Matches.joined([]), {}, {})


def take_page(
    evidence: Evidence,
    ranking: Iterator[Matches],
    passages: PassageScorer | None,
    *,
    reads_documents: bool,
) -> ResultsPage:
    """Take the page that the options ask for, and as little of the ranking as it needs.

    `passages` are those that speak for documents; None in a search for passages. With
    `reads_documents`, those that will probably be shown are read ahead.
    """
    options = evidence.options
    conversations = Conversations(evidence, passages)
    if options.sort is not None:
        ranking = _matching(evidence, ranking)
    ranking = conversations.folded(ranking)
    if reads_documents and options.sort is None and not options.diversity:
        ranking = _prefetched(evidence, ranking)
    matches, copies, originals = _take(evidence, ranking)
    earlier: dict[int, list[int]] = {}
    # a conversation whose newest mail is a copy is told with the hit that shows its words
    for key, docs in conversations.repeating.items():
        original = originals.get(key, key)
        copies[original] = [*docs, *copies.get(original, ())]
    for key, docs in conversations.earlier.items():
        earlier.setdefault(originals.get(key, key), []).extend(docs)
    if options.sort is None:
        matches = _descending(matches)
    else:
        matches = matches.take(sorted_rows(evidence, Sort.parse(options.sort), matches))
    shown_matches = matches.take(slice(options.offset, options.last))
    return ResultsPage(shown_matches, copies, earlier)


def _prefetched(evidence: Evidence, ranking: Iterator[Matches]) -> Iterator[Matches]:
    """Yield a ranking whose first documents are being read: those that are shown if none is a
    copy.
    """
    options = evidence.options
    for part in ranking:
        evidence.documents.prefetch(part.docs[options.offset : options.last].tolist())
        yield part


def _matching(evidence: Evidence, ranking: Iterator[Matches]) -> Iterator[Matches]:
    """Yield of a ranking what matches: at most `candidates`, none far below the best."""
    left, least = evidence.options.candidates, -math.inf
    is_first = True
    for part in ranking:
        if is_first and len(part):
            least, is_first = matching_score(evidence, part), False
        matching = np.flatnonzero(strengths(part) >= least)[:left]
        yield part.take(matching)
        left -= len(matching)
        if not left or len(matching) < len(part):
            return


def _take(
    evidence: Evidence, ranking: Iterator[Matches]
) -> tuple[Matches, dict[int, list[int]], dict[int, int]]:
    """Take what may be on the page, in the order of the ranking; with `sort`, all matches.

    Returns the matches, the documents of copies by key of the match that they were folded into, and
    that key by the key of the copy.
    """
    options = evidence.options
    last = options.last if options.sort is None else max(options.candidates, options.last)
    folder = CopyFolder(evidence)
    chosen: list[Matches] = []
    copies: dict[int, list[int]] = {}
    originals: dict[int, int] = {}
    cap = DocumentCap(evidence)
    taken = 0
    for part in ranking:
        rows: list[int] = []
        before = Matches.joined(chosen)
        digests = folder.digests(part)
        for row in _in_turn(evidence.view, part, before, rows, options.diversity):
            doc = int(part.docs[row])
            if cap.is_full(doc):
                continue
            key = int(part.keys[row])
            original = folder.original(key, digests[row])
            cap.count(doc, is_taken=original is None)
            if original is not None:
                copies.setdefault(original, []).append(doc)
                originals[key] = original
                continue
            rows.append(row)
            taken += 1
            if taken == last or cap.all_full:
                break
        chosen.append(part.take(np.array(rows, np.int64)))
        if taken == last or cap.all_full:
            break
    return Matches.joined(chosen), copies, originals


class DocumentCap:
    """At most so many passages of one document, and whether no document can give another one."""

    def __init__(self, evidence: Evidence) -> None:
        options, view = evidence.options, evidence.view
        self._cap = options.per_document
        self._taken = Counter[int]()
        # passages of documents that may still be taken, where all of them may not fill the page
        self._left: dict[int, int] | None = None
        selection = evidence.question.selection
        if self._cap is not None:
            documents = view.count("document", selection)
            if documents * self._cap <= options.last:
                docs = view.matching(view.select({}) if selection is None else selection)
                counts = view.passage_counts(docs).tolist()
                self._left = {
                    doc: count for doc, count in zip(docs.tolist(), counts, strict=True) if count
                }

    @property
    def all_full(self) -> bool:
        return self._left is not None and not self._left

    def is_full(self, doc: int) -> bool:
        """Whether no more passages of a document are taken."""
        return self._cap is not None and self._taken[doc] >= self._cap

    def count(self, doc: int, *, is_taken: bool) -> None:
        """Count a passage of a document that was taken, or that is a copy."""
        self._taken[doc] += is_taken
        if self._left is not None and doc in self._left:
            self._left[doc] -= 1
            if self.is_full(doc) or not self._left[doc]:
                del self._left[doc]


class CopyFolder:
    """Finds the better match that a match is a copy of, by the digests of their words."""

    def __init__(self, evidence: Evidence) -> None:
        self._view = evidence.view
        self._unit: Kind = evidence.options.unit
        self._fold = evidence.options.fold
        self._first: dict[int, int] = {}  # keys of the best matches, by digest

    def digests(self, part: Matches) -> list[int]:
        """The digests of a part of the ranking."""
        if not self._fold:
            return [NO_WORDS] * len(part)
        return self._view.copies(self._unit, part.keys).tolist()

    def original(self, key: int, digest: int) -> int | None:
        """The key of the match that this one is a copy of; None for a new one."""
        if digest == NO_WORDS:
            return None
        first = self._first.setdefault(digest, key)
        return None if first == key else first


def _descending(matches: Matches) -> Matches:
    """Scores that order as the page does: a match that steps or diversity put behind a lower score
    gets a little less than that, as equal ones may change places.
    """
    scores = accumulate(matches.scores.tolist(), _not_above)
    return matches.with_scores(np.array(list(scores), np.float64))


def _not_above(last: float, score: float) -> float:
    """Return the score, or the next lower number than `last` where it is higher."""
    return score if score <= last else math.nextafter(last, -math.inf)


def _in_turn(
    view: EngineView, part: Matches, before: Matches, rows: Sequence[int], diversity: float
) -> Iterator[int]:
    """Yield the rows of a part in the order in which they are taken.

    The caller adds a row that it takes to `rows` before it asks for the next one.
    """
    if diversity and len(part):
        return _by_diversity(view, part, before.passages, rows, diversity)
    return iter(range(len(part)))


def _by_diversity(
    view: EngineView, part: Matches, before: IntArray, rows: Sequence[int], diversity: float
) -> Iterator[int]:
    """Yield rows by maximal marginal relevance: score against likeness to what was taken before."""
    ids = np.concatenate([part.passages, before])
    order = np.argsort(ids)
    vectors = np.empty((len(ids), view.info.dim), dtype=np.float32)
    vectors[order] = view.vectors("passage", ids[order])
    vectors, earlier = vectors[: len(part)], vectors[len(part) :]
    scores = part.scores.astype(np.float32)
    relevance = scores / max(float(np.abs(scores).max()), 1e-9)
    likeness = (vectors @ earlier.T).max(axis=1, initial=0.0)
    left = np.ones(len(part), dtype=bool)
    for _ in range(len(part)):
        gain = (1 - diversity) * relevance - diversity * likeness
        row = int(np.argmax(np.where(left, gain, -np.inf)))
        left[row] = False
        count = len(rows)
        yield row
        if len(rows) > count:
            likeness = np.maximum(likeness, vectors @ vectors[row])
