"""Replies that do not name the mail that they answer, as some mail programs send them.

Such a mail has no In-Reply-To and no References, so it begins a thread of its own, though its
subject says that it is a reply (`UNLINKED`). It belongs to the conversation of the newest earlier
mail of the same subject that it quotes.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.encoder.text.quoting import WordRuns, are_quoted, quoted_runs, said_runs
from aveyb_retrieval.encoder.text.subjects import bare_subject
from aveyb_retrieval.indexes.search.dates import instant
from aveyb_retrieval.indexes.store.copies import NO_THREAD, UNLINKED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from datetime import datetime

    from aveyb_retrieval.indexes.search.evidence import Evidence
    from aveyb_retrieval.indexes.types import IntArray


def conversations(evidence: Evidence, docs: IntArray, threads: IntArray) -> IntArray:
    """The conversations `[n]` of documents `[n]`, by their threads `[n]` (`EngineView.threads`),
    0 for none; those of unlinked replies are found among these documents.
    """
    own = threads & ~UNLINKED
    unlinked = {*docs[threads & UNLINKED == 1].tolist()}
    if not unlinked:
        return own
    thread_of = dict(zip(docs.tolist(), own.tolist(), strict=True))
    mails = [doc for doc, thread in thread_of.items() if thread != NO_THREAD]
    joined: dict[int, int] = {}
    for reply, earlier in _answered(evidence, mails, unlinked):
        later, thread = _last(joined, thread_of[reply]), _last(joined, thread_of[earlier])
        if later != thread:
            joined[later] = thread
    return np.array([_last(joined, thread) for thread in own.tolist()], np.int64)


def _last(joined: Mapping[int, int], thread: int) -> int:
    """The thread that one has been joined to."""
    while thread in joined:
        thread = joined[thread]
    return thread


def _answered(
    evidence: Evidence, mails: Sequence[int], unlinked: Collection[int]
) -> Iterator[tuple[int, int]]:
    """Unlinked replies, each with the newest earlier mail that it quotes."""
    for docs in _by_subject(evidence.documents.metadata(mails)):
        replies = [place for place, doc in enumerate(docs) if place and doc in unlinked]
        if replies:
            yield from _answered_of_subject(evidence, docs[: replies[-1] + 1], replies)


def _answered_of_subject(
    evidence: Evidence, docs: Sequence[int], replies: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Those of one subject: the replies are at these places of its mails, oldest first."""
    texts = evidence.document_texts(docs)

    @cache
    def said(doc: int) -> WordRuns:
        return said_runs(texts[doc])

    for place in replies:
        quoted = quoted_runs(texts[docs[place]])
        earlier = (doc for doc in reversed(docs[:place]) if are_quoted(said(doc), quoted))
        answered = next(earlier, None)
        if answered is not None:
            yield docs[place], answered


def _by_subject(metadata: Mapping[int, Mapping[str, object]]) -> Iterator[list[int]]:
    """Mails that have a subject and a date, those of one subject together, oldest first."""
    groups: dict[str, list[tuple[datetime, int]]] = defaultdict(list)
    for doc, fields in metadata.items():
        subject, sent = bare_subject(str(fields.get("subject", ""))), instant(fields.get("date"))
        if subject and sent is not None:
            groups[subject].append((sent, doc))
    for group in groups.values():
        yield [doc for _, doc in sorted(group)]
