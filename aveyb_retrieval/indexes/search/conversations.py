"""The step that folds conversations: of what mails of one thread say, the newest stands first.

Mails of a thread that state as much about the question by their own words are statements of one
matter. The newest takes the place of the best one, and names the older ones. Mails whose
quotations alone say it are folded into it as copies are. Where only quotations say it, nothing is
folded.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.indexes.search.dates import instant
from aveyb_retrieval.indexes.search.matches import Matches
from aveyb_retrieval.indexes.search.passage_scores import SHOWN_WEIGHT
from aveyb_retrieval.indexes.search.scores import score_passages
from aveyb_retrieval.indexes.search.unlinked_replies import conversations
from aveyb_retrieval.indexes.store.copies import NO_THREAD
from aveyb_retrieval.indexes.types import PASSAGE_BITS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from aveyb_retrieval.indexes.search.best_passages import PassageScorer
    from aveyb_retrieval.indexes.search.evidence import Evidence
    from aveyb_retrieval.indexes.search.matches import Scores
    from aveyb_retrieval.indexes.search.passage_scores import PassageScores
    from aveyb_retrieval.indexes.types import BoolArray, IntArray

MATCHES_TOGETHER = 50  # matches among which conversations are folded
REPEATED_ALONE_SHARE = 0.3  # of the best quotation's score, below which no mail says it by itself
NO_STATEMENT_SHARE = 0.25  # of it, below which a mail says nothing of the matter by itself
STATEMENT_SHARE = 0.5  # of the best statement's score, from which on another one is of one matter


@dataclass(frozen=True)
class Mail:
    """A mail of a conversation: when it was sent, and the best scores of what it says itself and of
    what it repeats (-inf for nothing), each with its row among the matches.
    """

    doc: int
    sent: datetime
    own: float
    own_row: int
    repeated: float
    repeated_row: int


class Conversations:
    """Folds the conversations of a ranking, and remembers by the key of each newest mail which
    documents state older things (`earlier`, newest first) or repeat it (`repeating`).
    """

    def __init__(self, evidence: Evidence, passages: PassageScorer | None) -> None:
        self._evidence = evidence
        self._passages = passages
        self.earlier: dict[int, list[int]] = {}
        self.repeating: dict[int, list[int]] = {}

    def folded(self, ranking: Iterator[Matches]) -> Iterator[Matches]:
        """Yield the ranking without what is folded, the newest in the place of the best."""
        if not self._evidence.options.fold:
            yield from ranking
            return
        for part in ranking:
            threads = self._evidence.view.threads(part.docs)
            if threads.any():
                yield from self._fold_chunks(part, threads, ranking)
                return
            yield part

    def _fold_chunks(
        self, waiting: Matches, threads: IntArray, ranking: Iterator[Matches]
    ) -> Iterator[Matches]:
        """Fold so many matches together, however the ranking is parted: pages begin alike. No part
        is computed before it is needed.
        """
        part: Matches | None = waiting
        while part is not None:
            while len(waiting) >= MATCHES_TOGETHER:
                chunk = slice(0, MATCHES_TOGETHER)
                yield self._fold(waiting.take(chunk), threads[chunk])
                waiting = waiting.take(slice(MATCHES_TOGETHER, None))
                threads = threads[MATCHES_TOGETHER:]
            part = next(ranking, None)
            if part is not None:
                waiting = Matches.joined([waiting, part])
                threads = np.concatenate([threads, self._evidence.view.threads(part.docs)])
        if len(waiting):
            yield self._fold(waiting, threads)

    def _fold(self, part: Matches, threads: IntArray) -> Matches:
        """Fold matches of threads `[n]`."""
        threads = conversations(self._evidence, part.docs, threads)
        rows_of: dict[int, list[int]] = defaultdict(list)
        for row, thread in enumerate(threads.tolist()):
            if thread != NO_THREAD:
                rows_of[thread].append(row)
        several = [rows for rows in rows_of.values() if len({*part.docs[rows].tolist()}) > 1]
        if not several:
            return part
        mails = self._read_mails(part, np.sort(np.concatenate(several)))
        order, scores = np.arange(len(part), dtype=np.float64), part.scores.copy()
        is_left = np.ones(len(part), np.bool_)
        for rows in several:
            docs = dict.fromkeys(part.docs[rows].tolist())
            conversation = [mails[doc] for doc in docs if doc in mails]
            self._fold_conversation(part, conversation, order, scores, is_left)
        left = np.flatnonzero(is_left)
        left = left[np.argsort(order[left], kind="stable")]
        return part.with_scores(scores).take(left)

    def _fold_conversation(
        self,
        part: Matches,
        mails: Sequence[Mail],
        order: Scores,
        scores: Scores,
        is_left: BoolArray,
    ) -> None:
        """Let the newest statement of some mails take the place of the best one; of matches `[n]`
        `order`, `scores` and `is_left` are changed.
        """
        best = max((mail.own for mail in mails), default=-np.inf)
        least = STATEMENT_SHARE * best
        if best <= 0 or best < REPEATED_ALONE_SHARE * max(mail.repeated for mail in mails):
            return
        stating = sorted(
            (mail for mail in mails if mail.own >= least),
            key=lambda mail: (mail.sent, mail.own),
            reverse=True,
        )
        newest, earlier = stating[0], stating[1:]
        stating_docs = {mail.doc for mail in stating}
        silent = [mail for mail in mails if mail.own < NO_STATEMENT_SHARE * best]
        repeating = [mail for mail in [*stating, *silent] if mail.repeated >= least]
        folded = [mail.own_row for mail in earlier]
        folded += [mail.repeated_row for mail in repeating if mail.repeated_row != newest.own_row]
        rows = [newest.own_row, *folded]
        is_left[folded] = False
        order[newest.own_row] = min(order[row] for row in rows)
        scores[newest.own_row] = max(scores[row] for row in rows)
        key = int(part.keys[newest.own_row])
        self.earlier[key] = [mail.doc for mail in earlier]
        self.repeating[key] = [mail.doc for mail in repeating if mail.doc not in stating_docs]

    def _read_mails(self, part: Matches, rows: IntArray) -> dict[int, Mail]:
        """What is known of the mails in some rows, by number; without those that have no date."""
        metadata = self._evidence.documents.metadata(part.docs[rows].tolist())
        dates = {doc: instant(str(of.get("date", ""))) for doc, of in metadata.items()}
        sent = {doc: date for doc, date in dates.items() if date is not None}
        rows = rows[np.isin(part.docs[rows], [*sent])]
        scored, row_of = self._score(part, rows)
        numbers, scores = scored.ids, self._by_themselves(scored)
        is_repeated = self._evidence.view.passage_shares(numbers) < 1
        mails = {}
        for doc in dict.fromkeys((numbers >> PASSAGE_BITS).tolist()):
            mine = numbers >> PASSAGE_BITS == doc
            own, own_row = _best(scores, row_of, mine & ~is_repeated)
            repeated, repeated_row = _best(scores, row_of, mine & is_repeated)
            mails[doc] = Mail(doc, sent[doc], own, own_row, repeated, repeated_row)
        return mails

    def _score(self, part: Matches, rows: IntArray) -> tuple[PassageScores, IntArray]:
        """Score the passages `[m]` that speak for some rows; return the row of each, too."""
        if self._passages is None:
            order = np.argsort(part.keys[rows])
            return score_passages(self._evidence, part.keys[rows][order]), rows[order]
        scored = self._passages.scored(part.docs[rows])
        order = np.argsort(part.docs[rows])
        places = np.searchsorted(part.docs[rows], scored.ids >> PASSAGE_BITS, sorter=order)
        return scored, rows[order[places]]

    def _by_themselves(self, scored: PassageScores) -> Scores:
        """What passages `[n]` score by themselves, however little they count."""
        evidence = self._evidence
        if evidence.options.mode == "dense":
            return scored.score.astype(np.float64) - evidence.background
        own = scored.of_both(SHOWN_WEIGHT) if evidence.options.mode == "hybrid" else scored.score
        return (own / evidence.view.passage_shares(scored.ids)).astype(np.float64)


def _best(scores: Scores, rows: IntArray, among: BoolArray) -> tuple[float, int]:
    """The best of some scores and its row; -inf and -1 where there are none."""
    places = np.flatnonzero(among)
    if not len(places):
        return -np.inf, -1
    best = places[np.argmax(scores[places])]
    return float(scores[best]), int(rows[best])
