"""Words as rows: which documents or passages hold a term, how often, and how long they are.

Milvus 2.3 has no full-text search, and later versions rank by words in a way of their own. So an inverted index is kept
in ordinary rows. A *segment* covers the documents of one publication or upsert and never changes. Its postings lie in
*blocks*, small enough for a row:

- Terms go by the hash of their *route*: the term itself, or of a script without spaces its first character, because one
  character is looked up as the beginning of a word.
- A segment with 2^l buckets has level l; bucket `2^l + hash mod 2^l` holds the terms of these hashes. A search asks for
  the bucket of every level, because it does not say which levels the segments have.
- A term with many postings has blocks of its own, under 2^62 plus its hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.store.words import is_unspaced

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from aveyb_retrieval.indexes.types import IntArray

MOST_LEVEL = 20
BUCKET_BYTES = 4096  # that the postings of one bucket take, about
MANY = 2048  # postings of a term that has blocks of its own
BLOCK_POSTINGS = 4096  # at most, so that a block fits into a row
BLOCK_TEXT = 60_000  # characters of a block at most
_POSTING_BYTES = 6  # about, packed
_LONG = 256  # bytes of a term above which its hash stands for it
_OWN = 1 << 62  # added to the key of blocks with one term
_HEAD = struct.Struct("<II")


class Postings(NamedTuple):
    """Where a term is: numbers `[n]`, how often it occurs there `[n]`, and how many terms there are `[n]`."""

    numbers: IntArray
    counts: IntArray
    lengths: IntArray


def term_key(term: str) -> str:
    """A term as it is stored: very long ones by their hash, after their first character."""
    data = term.encode()
    return term if len(data) <= _LONG else f"{term[0]}\n{hashlib.sha256(data).hexdigest()}"


def route_hash(term: str) -> int:
    """The 62-bit hash by which a term, or one character of a script without spaces, is found."""
    route = term[0] if is_unspaced(term[0]) else term_key(term)
    return int.from_bytes(hashlib.sha256(route.encode()).digest()[:8], "little") >> 2


def keys_of(route: int) -> list[int]:
    """All keys under which blocks may hold terms of a route."""
    return [_OWN + route, *(_bucket(level, route) for level in range(MOST_LEVEL + 1))]


def _bucket(level: int, route: int) -> int:
    return (1 << level) + (route & ((1 << level) - 1))


class SegmentBuilder:
    """Collects the terms of documents (or of passages), in ascending order of their numbers."""

    def __init__(self) -> None:
        self._terms: dict[str, int] = {}
        self._ids: list[IntArray] = []
        self._counts: list[IntArray] = []
        self._rows: list[tuple[int, int, int]] = []  # number, terms with repetitions, terms
        self.postings = 0

    def add(self, number: int, counts: Mapping[str, int]) -> None:
        """Add a document or passage with its terms and how often each occurs."""
        ids = [self._terms.setdefault(term_key(term), len(self._terms)) for term in counts]
        self._ids.append(np.array(ids, dtype=np.int32))
        self._counts.append(np.array(list(counts.values()), dtype=np.int64))
        self._rows.append((number, sum(counts.values()), len(ids)))
        self.postings += len(ids)

    def blocks(self) -> Iterator[tuple[int, str]]:
        """The blocks with their keys."""
        if not self.postings:
            return
        ids, counts = np.concatenate(self._ids), np.concatenate(self._counts)
        rows = np.array(self._rows, dtype=np.int64)
        numbers = np.repeat(rows[:, 0], rows[:, 2])
        lengths = np.repeat(rows[:, 1], rows[:, 2])
        order = np.argsort(ids, kind="stable")
        numbers, counts, lengths = numbers[order], counts[order], lengths[order]
        ends = np.cumsum(np.bincount(ids, minlength=len(self._terms))).tolist()
        level = _level(self.postings * _POSTING_BYTES + sum(map(len, self._terms)))
        buckets: dict[int, dict[str, Postings]] = {}
        start = 0
        for term, stop in zip(self._terms, ends, strict=True):
            mine = slice(start, stop)
            found = Postings(numbers[mine], counts[mine], lengths[mine])
            route = route_hash(term)
            if stop - start >= MANY:
                yield from ((_OWN + route, block) for block in _pack({term: found}))
            else:
                buckets.setdefault(_bucket(level, route), {})[term] = found
            start = stop
        for key, terms in buckets.items():
            yield from ((key, block) for block in _pack(terms))


def read_block(text: str, wanted: Iterable[str], beginnings: Iterable[str], where: str) -> dict[str, Postings]:
    """The postings of some terms that a block holds, and of all that begin with some characters.

    Raises:
        IndexFormatError: the block is damaged.
    """
    try:
        data = zlib.decompress(base64.b64decode(text, validate=True))
        names_bytes, total = _HEAD.unpack_from(data)
        terms = json.loads(data[_HEAD.size : _HEAD.size + names_bytes])
        columns = np.frombuffer(data, "<i8", offset=_HEAD.size + names_bytes)
        sizes, rest = columns[: len(terms)], columns[len(terms) :].reshape(3, total)
    except (ValueError, zlib.error, struct.error) as error:
        raise IndexFormatError(f"{where}: damaged words ({error}); publish it again") from error
    ends = np.cumsum(sizes).tolist()
    places = {term: (ends[i - 1] if i else 0, ends[i]) for i, term in enumerate(terms)}
    found = [term for term in wanted if term in places]
    firsts = set(beginnings)
    found += [term for term in terms if term[0] in firsts and term not in found] if firsts else []
    made = {}
    for term in found:
        mine = slice(*places[term])
        made[term] = Postings(np.cumsum(rest[0, mine]), rest[1, mine], rest[2, mine])
    return made


def join(parts: list[Postings]) -> Postings:
    """The postings of one term in several blocks."""
    if not parts:
        empty = np.empty(0, dtype=np.int64)
        return Postings(empty, empty, empty)
    return Postings(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _level(size: int) -> int:
    return min(MOST_LEVEL, max(0, (size // BUCKET_BYTES).bit_length()))


def _pack(terms: dict[str, Postings]) -> Iterator[str]:
    """Write postings as texts that fit into a row each."""
    total = sum(len(each.numbers) for each in terms.values())
    if total <= BLOCK_POSTINGS:
        names = json.dumps(list(terms), ensure_ascii=False).encode()
        sizes = np.array([len(each.numbers) for each in terms.values()])
        deltas = np.concatenate([np.diff(each.numbers, prepend=0) for each in terms.values()])
        counts = np.concatenate([each.counts for each in terms.values()])
        lengths = np.concatenate([each.lengths for each in terms.values()])
        columns = np.concatenate([sizes, deltas, counts, lengths]).astype("<i8")
        text = base64.b64encode(zlib.compress(_HEAD.pack(len(names), total) + names + columns.tobytes(), 3)).decode()
        if len(text) <= BLOCK_TEXT:
            yield text
            return
    names_of = list(terms)
    if len(names_of) > 1:
        half = len(names_of) // 2
        yield from _pack({term: terms[term] for term in names_of[:half]})
        yield from _pack({term: terms[term] for term in names_of[half:]})
        return
    ((term, each),) = terms.items()
    half = len(each.numbers) // 2
    yield from _pack({term: Postings(*(column[:half] for column in each))})
    yield from _pack({term: Postings(*(column[half:] for column in each))})
