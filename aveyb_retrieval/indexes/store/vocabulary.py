"""The words of an index of words: how many rows hold each, which begin alike, which are a few edits away.

Lance keeps the words of each part of its index as a finite state transducer, in the format of Rust's crate `fst`
(version 3; nodes are read backwards from their address), from each word's bytes to a number, and under that number how
many rows hold it. Rows that were deleted since a part was written count until it is merged.
"""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from aveyb_retrieval.indexes.search.visible import VisibleWords
    from aveyb_retrieval.indexes.types import IntArray

# bytes that a node with one transition writes into six bits
_COMMON = b"te/oasripcnw.hlm-du012g=:bf3y5&_4v9678k%?xCDASFIBEjPTzRNM+LOqHG"
_NODES_KEPT = 20_000  # decoded, in some 20 MB; most queries pass the same ones
LONGEST = 1_000  # what goes on behind so many bytes may go on for megabytes
MISTYPED = 64  # letters: a longer word has no typos
_INDEXED = 32  # a node of more transitions has a table of 256 bytes besides


class _Node(NamedTuple):
    """Whether a word ends here, what its number then has in addition, and transitions: byte, addend, address."""

    final: bool
    addend: int
    transitions: list[tuple[int, int, int]]


@dataclass(frozen=True, eq=False)
class WordSet:
    """The words of one part of an index, and how many of its rows hold each, by their numbers."""

    data: bytes
    rows: IntArray
    _nodes: dict[int, _Node] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, words: str, lengths: str) -> WordSet:
        """Read those of the files `PART_tokens.lance` and `PART_invert.lance`; raises what Lance raises."""
        from lance.file import LanceFileReader

        tokens = LanceFileReader(words, columns=["_token_fst_bytes"])
        lists = LanceFileReader(lengths, columns=["_length"])
        data = tokens.read_all().to_table()["_token_fst_bytes"][0].as_py()
        return cls(data, lists.read_all().to_table()["_length"].to_numpy().astype(np.int64))

    def count(self, word: str) -> int:
        found = self._walk(word.encode())
        if found is None:
            return 0
        node, number = self._node(found[0]), found[1]
        return int(self.rows[number + node.addend]) if node.final else 0

    def beginning(self, start: str) -> Iterator[tuple[str, int]]:
        """The words of up to `LONGEST` bytes that begin with some letters, with their rows."""
        found = self._walk(start.encode())
        stack = [(found[0], start.encode(), found[1])] if found else []
        while stack:
            address, word, number = stack.pop()
            node = self._node(address)
            if node.final:
                yield word.decode(), int(self.rows[number + node.addend])
            if len(word) < LONGEST:
                stack += [(to, word + bytes((byte,)), number + addend) for byte, addend, to in node.transitions]

    def near(self, word: str, edits: int) -> Iterator[tuple[str, int]]:
        """The words that up to so many letters added, left out or replaced make of a word, with their rows.

        The automaton of Wu and Manber (1992): bit `i` of the states `[edits + 1]` says whether the letters read so far
        can be the first `i` letters of the word with as many edits.
        """
        masks: dict[str, int] = {}
        for place, letter in enumerate(word):
            masks[letter] = masks.get(letter, 0) | 2 << place
        end, every = 1 << len(word), (2 << len(word)) - 1
        stack = [(self._root, "", 0, tuple((2 << n) - 1 & every for n in range(edits + 1)))]
        while stack:
            address, read, number, states = stack.pop()
            node = self._node(address)
            if node.final and any(state & end for state in states):
                yield read, int(self.rows[number + node.addend])
            if any(states[:-1]):
                steps = self._letters(node)
            else:  # no edit is left: only the letters that fit
                steps = self._fitting(address, [letter for letter in masks if states[-1] << 1 & masks[letter]])
            for letter, addend, to in steps:
                mask, before, after, moved = masks.get(letter, 0), 0, 0, list[int]()
                for state in states:  # the letter fits | is added | replaced | one of the word is left out
                    after = (state << 1 & mask | before | before << 1 | after << 1) & every
                    before = state
                    moved.append(after)
                if moved[-1]:
                    stack.append((to, read + letter, number + addend, tuple(moved)))

    # --- the transducer ----------------------------------------------------------------------------------------------

    @property
    def _root(self) -> int:
        return int(struct.unpack_from("<Q", self.data, len(self.data) - 12)[0])  # before a checksum of four bytes

    def _walk(self, letters: bytes, address: int | None = None) -> tuple[int, int] | None:
        """The address that some bytes lead to, and the sum of addends on the way; None: no word goes on with them."""
        address, number = self._root if address is None else address, 0
        for byte in letters:
            step = next((each for each in self._node(address).transitions if each[0] == byte), None)
            if step is None:
                return None
            number, address = number + step[1], step[2]
        return address, number

    def _fitting(self, address: int, letters: Iterable[str]) -> Iterator[tuple[str, int, int]]:
        """Those of some letters that go on from a node: letter, addend, address."""
        for letter in letters:
            if (found := self._walk(letter.encode(), address)) is not None:
                yield letter, found[1], found[0]

    def _letters(self, node: _Node) -> Iterator[tuple[str, int, int]]:
        """All letters that go on from a node."""
        stack = [(bytes((byte,)), addend, to) for byte, addend, to in node.transitions]
        while stack:
            read, number, address = stack.pop()
            first = read[0]
            if len(read) == 1 + (first >= 0x80) + (first >= 0xE0) + (first >= 0xF0):  # all of a letter in UTF-8
                yield read.decode(), number, address
                continue
            more = self._node(address).transitions
            stack += [(read + bytes((byte,)), number + addend, to) for byte, addend, to in more]

    def _node(self, address: int) -> _Node:
        if (node := self._nodes.get(address)) is None:
            if len(self._nodes) >= _NODES_KEPT:
                self._nodes.clear()
            node = self._nodes[address] = self._decoded(address)
        return node

    def _decoded(self, address: int) -> _Node:
        data = self.data
        if not address:  # of the empty rest of a word
            return _Node(True, 0, [])
        kind, few = data[address] >> 6, data[address] & 63
        at = address if few else address - 1  # what is not in six bits has a byte of its own
        if kind >= 2:  # one transition; to the node just before it, or anywhere
            byte = _COMMON[few - 1] if few else data[at]
            if kind == 3:
                return _Node(False, 0, [(byte, 0, at - 1)])
            of_address, of_addend = data[at - 1] >> 4, data[at - 1] & 15
            place = at - 1 - of_address
            end = place - of_addend
            back = _number(data, place, of_address)
            return _Node(False, 0, [(byte, _number(data, end, of_addend), end - back if back else 0)])
        final, count = kind == 1, few or (256 if data[at] == 1 else data[at])
        of_address, of_addend = data[at - 1] >> 4, data[at - 1] & 15
        bytes_end = at - 1 - (256 if count > _INDEXED else 0)
        addresses = bytes_end - count
        addends = addresses - count * of_address
        end = addends - count * of_addend - (of_addend if final else 0)
        transitions = []
        for i in range(count):
            back = _number(data, addresses - (i + 1) * of_address, of_address)
            addend = _number(data, addends - (i + 1) * of_addend, of_addend)
            transitions.append((data[bytes_end - i - 1], addend, end - back if back else 0))
        return _Node(final, _number(data, end, of_addend) if final else 0, transitions)


def _number(data: bytes, place: int, size: int) -> int:
    return int.from_bytes(data[place : place + size], "little")


@dataclass(frozen=True)
class Vocabulary:
    """The words of all parts of an index, and those of rows that are in none yet."""

    parts: Sequence[WordSet | VisibleWords]
    fresh: Mapping[str, int]

    def counts(self, words: Iterable[str]) -> list[int]:
        return [sum(part.count(word) for part in self.parts) + self.fresh.get(word, 0) for word in words]

    def beginning(self, start: str) -> dict[str, int]:
        """The words that begin with some letters, with how many rows hold each."""
        fresh = ((word, rows) for word, rows in self.fresh.items() if word.startswith(start))
        return _summed([part.beginning(start) for part in self.parts], fresh)

    def near(self, word: str, edits: int) -> dict[str, int]:
        """The words that some edits make of a word, with how many rows hold each; two neighbors may change places."""
        swapped = swaps(word) - {word}
        there = dict(zip(swapped, self.counts(swapped), strict=True))
        fresh = ((each, rows) for each, rows in self.fresh.items() if within(word, each, edits))
        found = _summed([part.near(word, edits) for part in self.parts], fresh)
        return found | {each: rows for each, rows in there.items() if rows}


def _summed(parts: Sequence[Iterable[tuple[str, int]]], fresh: Iterable[tuple[str, int]]) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for part in (*parts, fresh):
        for word, rows in part:
            counted[word] += rows
    return dict(counted)


def swaps(word: str) -> set[str]:
    """What becomes of a word where two neighbors change places; nothing of one that nobody types."""
    last = len(word) - 1 if len(word) <= MISTYPED else 0
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
    return (4 <= len(word) <= MISTYPED) + (8 <= len(word) <= MISTYPED)
