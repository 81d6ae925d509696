"""The numbers of documents and passages: a document's is given once and never again, a passage's holds its document's.

Passage `i` of document `doc` has the number `doc << 20 | i`: no number depends on a position, and a passage names its
document without a look-up. What must not depend on the order in which documents came goes by the hashes of their ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.errors import IndexFormatError, InputError

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.types import IntArray, Kind

PASSAGE_BITS = 20
MAX_PASSAGES = 1 << PASSAGE_BITS
END = 1 << 42  # above the number of any document


def check_ids(ids: Iterable[str]) -> list[str]:
    """Return ids as a list.

    Raises:
        InputError: they are not several, or one is not a string of Unicode.
    """
    if isinstance(ids, str):
        raise InputError(f"ids={ids!r} is one string; give a list of ids, as [{ids!r}]")
    if not isinstance(ids, Iterable) or isinstance(ids, (Mapping, bytes)):
        raise InputError(f"ids={ids!r} is of type {type(ids).__name__}; give a list of ids")
    listed = list(ids)
    for document_id in listed:
        if not isinstance(document_id, str):
            raise InputError(f"the id {document_id!r} is of type {type(document_id).__name__}; ids are strings")
        try:
            document_id.encode()
        except UnicodeEncodeError:
            raise InputError(f"the id {document_id!r} is not valid Unicode; no document has such an id") from None
    return listed


def id_digest(document_id: str) -> bytes:
    """The SHA-256 of an id: 32 bytes, however long it is."""
    return hashlib.sha256(document_id.encode()).digest()


def rank_of(document_id: str) -> int:
    """The first 63 bits of the hash of an id: the documents of least rank are a sample that depends on no order."""
    return int.from_bytes(id_digest(document_id)[:8], "big") >> 1


def expand_passages(table: IntArray) -> IntArray:
    """All passage numbers of `[n, 2]` rows of (document, number of passages).

    Raises:
        IndexFormatError: a number of passages that no document has.
    """
    docs, lengths = table[:, 0], table[:, 1]
    if len(lengths) and not 0 <= lengths.min() <= lengths.max() < MAX_PASSAGES:
        raise IndexFormatError(
            f"documents with {lengths.min()} to {lengths.max()} passages, where 0 to {MAX_PASSAGES - 1} are possible: "
            "the index is damaged; restore it from a copy or build it again"
        )
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(docs << PASSAGE_BITS, lengths) + np.arange(lengths.sum(), dtype=np.int64) - starts


def number_range(kind: Kind, first: int, stop: int) -> tuple[int, int]:
    """The numbers of one kind of vectors of the documents numbered in `[first, stop)`."""
    return (first, stop) if kind == "document" else (first << PASSAGE_BITS, stop << PASSAGE_BITS)
