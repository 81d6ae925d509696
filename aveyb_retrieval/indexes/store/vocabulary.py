"""The words of an index: how many rows hold each, which begin alike or are a few edits away.

The words of a part are ascending by their bytes, so that words that begin alike follow each other.
Rows that were deleted since a part was written count until it is merged.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from aveyb_retrieval.indexes.types import find_in, ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import numpy.typing as npt

    from aveyb_retrieval.indexes.types import IntArray

MAX_LISTED_BYTES = 1_000  # of a word: longer ones are not listed, they may have megabytes
MAX_TYPO_LETTERS = 63  # a longer word has no typos
_REMEMBERED_BYTES = 4  # of a beginning: the beginnings of so many bytes are found once
MAX_REMEMBERED_WORDS = 16_384  # of a part, whose places were looked up last
MAX_REMEMBERED_CHARACTERS = 64  # of such a word
_ABSENT = -1
_BEHIND = b"\xff"  # no byte of UTF-8: behind all words that go on


class Words(Protocol):
    """Words, and how many rows hold each: of a part of an index, or of what of it can be seen."""

    def count(self, word: str) -> int:
        """How many rows hold a word."""

    def beginning(self, start: str, most: int | None = None) -> Iterator[tuple[str, int]]:
        """The words that begin with some letters, with their rows; `most` of them, where they are
        more, whose rows need not all be counted.
        """

    def near(self, word: str, edits: int) -> Iterator[tuple[str, int]]:
        """The words that some edits make of a word, with their rows."""


class _Children(NamedTuple):
    """Beginnings that are a byte longer than some beginnings: which they continue, the byte, and
    which words `[start, stop)` have each, `[m]` each.
    """

    source: IntArray
    byte: IntArray
    starts: IntArray
    stops: IntArray


@dataclass(frozen=True, eq=False)
class WordSet:
    """The words of one part, ascending, and where the list of each ends.

    They are looked for in a context of `guard`, which turns errors that damage leads to into one of
    ours.
    """

    offsets: IntArray  # in `data`, `[w + 1]`
    data: npt.NDArray[np.uint8]
    shared: IntArray  # bytes that each begins with as the one before it does, `[w]`
    stops: IntArray  # `[w]`
    guard: Callable[[], AbstractContextManager[None]] = nullcontext
    _heads: dict[int, IntArray] = field(default_factory=dict, repr=False)
    _places: dict[str, int] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def array(self) -> pa.LargeStringArray:
        """The words as an Arrow array."""
        offsets = pa.py_buffer(np.ascontiguousarray(self.offsets))
        return pa.LargeStringArray.from_buffers(len(self), offsets, pa.py_buffer(self.data))

    def guarded(self, guard: Callable[[], AbstractContextManager[None]]) -> WordSet:
        return replace(self, guard=guard)

    def spelled(self, place: int) -> bytes:
        """The word at a place, in UTF-8."""
        return self.data[self.offsets[place] : self.offsets[place + 1]].tobytes()

    def place(self, word: str) -> int | None:
        """The place of a word; None: it is not among them.

        A search asks for each of its words several times: the last ones are remembered.
        """
        place = self._places.get(word)
        if place is None:
            place = self._look_up(word.encode())
            if len(self._places) >= MAX_REMEMBERED_WORDS:
                self._places.clear()
            if len(word) <= MAX_REMEMBERED_CHARACTERS:
                self._places[word] = place
        return None if place == _ABSENT else place

    def _look_up(self, sought: bytes) -> int:
        place = bisect_left(range(len(self)), sought, key=self.spelled)
        return place if place < len(self) and self.spelled(place) == sought else _ABSENT

    def rows(self, place: int) -> int:
        """How many rows hold the word at a place."""
        return int(self.stops[place]) - (int(self.stops[place - 1]) if place else 0)

    def count(self, word: str) -> int:
        with self.guard():
            place = self.place(word)
            return 0 if place is None else self.rows(place)

    def beginning(self, start: str, most: int | None = None) -> Iterator[tuple[str, int]]:
        """The words of up to `MAX_LISTED_BYTES` that begin with some letters, with their rows; at
        most the first `most`.
        """
        with self.guard():
            sought, places = start.encode(), range(len(self))
            first = bisect_left(places, sought, key=self.spelled)
            stop = bisect_left(places, sought + _BEHIND, key=self.spelled)
            offsets = self.offsets
            listed = (
                place
                for place in range(first, stop)
                if offsets[place + 1] - offsets[place] <= MAX_LISTED_BYTES
            )
            for place in islice(listed, most):
                yield self.spelled(place).decode(), self.rows(place)

    def near(self, word: str, edits: int) -> Iterator[tuple[str, int]]:
        """The words, with their rows, that some edits make of one of up to `MAX_TYPO_LETTERS`."""
        with self.guard():
            for place in self._near(word, edits):
                yield self.spelled(place).decode(), self.rows(place)

    def _near(self, word: str, edits: int) -> Iterator[int]:
        """The places of the words that up to so many letters added, left out or replaced make of
        one of up to `MAX_TYPO_LETTERS`.

        The automaton of Wu and Manber (1992): bit `i` of the states `[edits + 1, n]` says whether
        the letters read so far can be the first `i` letters of the word with as many edits. All
        beginnings of one length in bytes go on together.
        """
        places: dict[str, int] = {}
        for position, spelled in enumerate(word):
            places[spelled] = places.get(spelled, 0) | 2 << position
        letters = np.array(sorted(map(ord, places)), np.int64)
        masks = np.array([places[spelled] for spelled in sorted(places)], np.uint64)
        every, end = np.uint64((2 << len(word)) - 1), np.uint64(1 << len(word))
        first_bit = np.uint64(1)
        starts, stops = np.zeros(1, np.int64), np.full(1, len(self), np.int64)
        letter, left = np.zeros(1, np.int64), np.zeros(1, np.int64)
        states = np.array([[(2 << n) - 1] for n in range(edits + 1)], np.uint64) & every
        depth = 0
        while len(starts) and len(self):
            is_whole_word = self.offsets[starts + 1] - self.offsets[starts] == depth
            fits = is_whole_word & (left == 0) & (states & end).any(axis=0)
            yield from starts[fits].tolist()
            source, byte, child_starts, child_stops = self._children(
                starts + is_whole_word, stops, depth
            )
            begun = left[source] == 0
            more = (byte >= 0xC0).astype(np.int64) + (byte >= 0xE0) + (byte >= 0xF0)
            left = np.where(begun, more, left[source] - 1)  # bytes that a letter goes on for
            first_bits = byte & np.where(more, 0x3F >> more, 0x7F)
            letter = np.where(begun, first_bits, letter[source] << 6 | byte & 0x3F)
            letter_rows, is_known = find_in(letters, letter)
            mask = np.where(is_known, masks[letter_rows], np.uint64(0))
            moved, before, after = states[:, source], np.uint64(0), np.uint64(0)
            for row in moved:  # the letter fits | is added | replaced | one of the word is left out
                state = row.copy()
                after = (
                    state << first_bit & mask | before | before << first_bit | after << first_bit
                ) & every
                row[left == 0], before = after[left == 0], state
            alive = np.flatnonzero(moved[-1])
            starts, stops = child_starts[alive], child_stops[alive]
            letter, left, states = letter[alive], left[alive], moved[:, alive]
            depth += 1

    def _children(self, starts: IntArray, stops: IntArray, depth: int) -> _Children:
        """The beginnings of `depth + 1` bytes among words `[start, stop)` that begin alike for
        `depth` bytes, and are longer.
        """
        if depth < _REMEMBERED_BYTES:
            if depth not in self._heads:
                self._heads[depth] = np.flatnonzero(self.shared <= depth)
            heads = self._heads[depth]
            first = np.searchsorted(heads, starts, side="right")
            following = np.searchsorted(heads, stops)
            counts = np.maximum(following - first, 0)
            later = heads[ranges(first, counts)]
        else:
            inside = np.maximum(stops - starts - 1, 0)
            words = ranges(starts + 1, inside)
            is_head = self.shared[words] <= depth
            later = words[is_head]
            counts = np.bincount(
                np.repeat(np.arange(len(starts)), inside)[is_head], minlength=len(starts)
            )
        is_filled = starts < stops  # the first word of each is a head, too
        sizes = np.where(is_filled, counts + 1, 0)
        source = np.repeat(np.arange(len(starts)), sizes)
        firsts = np.cumsum(sizes) - sizes
        heads_of = np.empty(len(source), np.int64)
        is_first = np.zeros(len(source), np.bool_)
        is_first[firsts[is_filled]] = True
        heads_of[is_first], heads_of[~is_first] = starts[is_filled], later
        ends = np.append(heads_of[1:], 0)
        lasts = (firsts + sizes)[is_filled] - 1
        ends[lasts] = stops[is_filled]
        byte = self.data[self.offsets[heads_of] + depth].astype(np.int64)
        return _Children(source, byte, heads_of, ends)


@dataclass(frozen=True)
class IndexVocabulary:
    """The words of all parts of an index, and those of rows that are in none yet."""

    parts: Sequence[Words]
    fresh: Mapping[str, int]

    def counts(self, words: Iterable[str]) -> list[int]:
        """How many rows hold each of some words."""
        return [
            sum(part.count(word) for part in self.parts) + self.fresh.get(word, 0) for word in words
        ]

    def beginning(self, start: str, most: int | None = None) -> dict[str, int]:
        """The words that begin with some letters, with how many rows hold each.

        With `most`, no more words of each part are looked at: where more than `most` are returned,
        there are too many, and their rows are not all counted.
        """
        limit = None if most is None else most + 1
        fresh = ((word, rows) for word, rows in self.fresh.items() if word.startswith(start))
        return _summed([part.beginning(start, limit) for part in self.parts], fresh)

    def near(self, word: str, edits: int) -> dict[str, int]:
        """The words that some edits make of a word, with how many rows hold each; two neighbors may
        change places.

        A word of more than `MAX_TYPO_LETTERS` has no edits.
        """
        same = swaps(word) | {word}
        spelled = zip(same, self.counts(same), strict=True)
        alike = {each_word: rows for each_word, rows in spelled if rows}
        if not edits:
            return alike
        fresh = ((other, rows) for other, rows in self.fresh.items() if within(word, other, edits))
        return _summed([part.near(word, edits) for part in self.parts], fresh) | alike


def _summed(
    parts: Sequence[Iterable[tuple[str, int]]], fresh: Iterable[tuple[str, int]]
) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for part in (*parts, fresh):
        for word, rows in part:
            counted[word] += rows
    return dict(counted)


def swaps(word: str) -> set[str]:
    """What becomes of a word where two neighbors change places; nothing of one that
    nobody types.
    """
    last = len(word) - 1 if len(word) <= MAX_TYPO_LETTERS else 0
    return {word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in range(last)}


def within(word: str, other: str, edits: int) -> bool:
    """Whether up to so many letters added, left out or replaced make another word of a word."""
    if abs(len(word) - len(other)) > edits:
        return False
    row = list(range(len(word) + 1))
    for letter in other:
        before, row = row, [row[0] + 1]
        for place, mine in enumerate(word):
            row.append(min(before[place] + (mine != letter), before[place + 1] + 1, row[place] + 1))
    return row[-1] <= edits


def edits(word: str) -> int:
    """How many edits a typo of a word may have."""
    return (4 <= len(word) <= MAX_TYPO_LETTERS) + (8 <= len(word) <= MAX_TYPO_LETTERS)
