"""The documents whose mean vector stands for that of all: the same ones in whatever order documents came.

They are those whose ids have the least SHA-256, as every engine chooses them, so that an index built of shards, a
published one and the one that a single process built count cosines from the same value. A change settles them once,
as it copies the store anyway; a search only reads their numbers.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.indexes.store import store_check
from aveyb_retrieval.indexes.store.numbering import id_digest

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.store.store import Store
    from aveyb_retrieval.indexes.types import IntArray

SAMPLE = 1024  # documents
_KEY = "sample"


def settle(store: Store) -> None:
    """Choose the documents anew and keep their numbers."""
    rows = store.db.execute("SELECT id, doc FROM documents")
    least = heapq.nsmallest(SAMPLE, ((id_digest(name), doc) for name, doc in rows))
    store.put(_KEY, [doc for _, doc in least])


def documents(store: Store) -> IntArray:
    """Numbers `[n]` of the chosen documents, in the order of their hashes.

    An index that has not been changed since they are kept has others, evenly spread over the numbers.

    Raises:
        IndexFormatError: what is kept are not numbers.
    """
    kept = store.get(_KEY)
    if kept is None:
        return _spread(store)
    rows = [(doc,) for doc in kept] if isinstance(kept, list) else [(kept,)]
    return store_check.integers(rows, 1, store.path)[:, 0]


def _spread(store: Store) -> IntArray:
    first, last = store.db.execute("SELECT MIN(doc), MAX(doc) FROM documents").fetchone()
    if first is None:
        return np.empty(0, np.int64)
    marks = np.unique(np.linspace(first, last, min(SAMPLE, last - first + 1)).astype(np.int64))
    following = "SELECT doc FROM documents WHERE doc >= ? ORDER BY doc LIMIT 1"
    return np.unique([store.db.execute(following, (mark,)).fetchone()[0] for mark in marks.tolist()])
