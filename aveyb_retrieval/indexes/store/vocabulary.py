"""The words of an index of words: how many rows hold each, which words begin alike or are a few
edits away.

Lance keeps the words of each part of its index as a finite state transducer, in the format of
Rust's crate `fst` (version 3; nodes are read backwards from their address), from each word's bytes
to a number, and under that number how many rows hold it. Rows that were deleted since a part was
written count until it is merged.
"""

from __future__ import annotations

import struct
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from aveyb_retrieval.indexes.types import FIRST_BYTES, eights, find_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from aveyb_retrieval.indexes.types import IntArray

# bytes that a node with one transition writes into six bits
_COMMON = b"te/oasripcnw.hlm-du012g=:bf3y5&_4v9678k%?xCDASFIBEjPTzRNM+LOqHG"
_COMMON_BYTES = np.frombuffer(_COMMON, np.uint8).astype(np.int64)
_NODES_KEPT = 20_000  # decoded, in some 20 MB; most queries pass the same ones
LONGEST = 1_000  # what goes on behind so many bytes may go on for megabytes
MISTYPED = 63  # letters: a longer word has no typos
_INDEXED = 32  # a node of more transitions has a table of 256 bytes besides


class Words(Protocol):
    """Words, and how many rows hold each: of a part of an index, or of what of it can be seen."""

    def count(self, word: str) -> int: ...

    def beginning(self, start: str) -> Iterator[tuple[str, int]]: ...

    def near(self, word: str, edits: int) -> Iterator[tuple[str, int]]: ...


class _Node(NamedTuple):
    """Whether a word ends here, what its number then has in addition, and transitions: byte,
    addend, address.
    """

    final: bool
    addend: int
    transitions: list[tuple[int, int, int]]


class _Below(NamedTuple):
    """What leaves some nodes: of each what a word that ends there has in addition (-1: none does),
    and transitions.
    """

    final: IntArray  # `[n]`
    source: IntArray  # which of the nodes each transition leaves, `[m]`
    byte: IntArray
    addends: IntArray
    nodes: IntArray  # the addresses that they lead to


@dataclass(frozen=True, eq=False)
class WordSet:
    """The words of one part of an index, and how many of its rows hold each, by their numbers.

    They are looked for in a context of `guard`, which turns errors that damage leads to into one of
    ours.
    """

    data: bytes
    rows: IntArray
    guard: Callable[[], AbstractContextManager[None]] = nullcontext
    _nodes: dict[int, _Node] = field(default_factory=dict, repr=False)

    @classmethod
    def read(
        cls, words: str, lengths: str, guard: Callable[[], AbstractContextManager[None]]
    ) -> WordSet:
        """Read those of the files `PART_tokens.lance` and `PART_invert.lance`; raises what Lance
        raises.
        """
        from lance.file import LanceFileReader

        tokens = LanceFileReader(words, columns=["_token_fst_bytes"])
        lists = LanceFileReader(lengths, columns=["_length"])
        data = tokens.read_all().to_table()["_token_fst_bytes"][0].as_py()
        return cls(data, lists.read_all().to_table()["_length"].to_numpy().astype(np.int64), guard)

    def number(self, word: str) -> int | None:
        """The number of a word; None: it is not there."""
        found = self._walk(word.encode())
        if found is None:
            return None
        node = self._node(found[0])
        return found[1] + node.addend if node.final else None

    def count(self, word: str) -> int:
        with self.guard():
            number = self.number(word)
            return 0 if number is None else int(self.rows[number])

    def beginning(self, start: str) -> Iterator[tuple[str, int]]:
        """The words of up to `LONGEST` bytes that begin with some letters, with their rows."""
        with self.guard():
            found = self._walk(start.encode())
            stack = [(found[0], start.encode(), found[1])] if found else []
            while stack:
                address, word, number = stack.pop()
                node = self._node(address)
                if node.final:
                    yield word.decode(), int(self.rows[number + node.addend])
                if len(word) < LONGEST:
                    stack += [
                        (to, word + bytes((byte,)), number + addend)
                        for byte, addend, to in node.transitions
                    ]

    def near(self, word: str, edits: int) -> Iterator[tuple[str, int]]:
        """The words, with their rows, that some edits make of one of up to `MISTYPED` letters."""
        with self.guard():
            yield from self._near(word, edits)

    def _near(self, word: str, edits: int) -> Iterator[tuple[str, int]]:
        """The words that up to so many letters added, left out or replaced make of one of up to
        `MISTYPED` letters.

        With their rows. The automaton of Wu and Manber (1992): bit `i` of the states `[edits + 1,
        n]` says whether the letters read so far can be the first `i` letters of the word with as
        many edits. All beginnings of one length in bytes go on together.
        """
        places: dict[str, int] = {}
        for place, each in enumerate(word):
            places[each] = places.get(each, 0) | 2 << place
        letters = np.array(sorted(map(ord, places)), np.int64)
        masks = np.array([places[each] for each in sorted(places)], np.uint64)
        every, end, one = np.uint64((2 << len(word)) - 1), np.uint64(1 << len(word)), np.uint64(1)
        nodes, numbers, letter, left = (
            np.array([self._root]),
            *(np.zeros(1, np.int64) for _ in range(3)),
        )
        states = np.array([[(2 << n) - 1] for n in range(edits + 1)], np.uint64) & every
        path: list[
            tuple[IntArray, IntArray]
        ] = []  # of each length, what each beginning goes on from, and its byte
        while len(nodes):
            below = self._below(nodes)
            fits = (below.final >= 0) & (left == 0) & (states & end).any(axis=0)
            for at in np.flatnonzero(fits).tolist():
                yield _spelled(path, at), int(self.rows[numbers[at] + below.final[at]])
            source, byte = below.source, below.byte
            begun = left[source] == 0
            more = (
                (byte >= 0xC0).astype(np.int64) + (byte >= 0xE0) + (byte >= 0xF0)
            )  # bytes that a letter goes on for
            left = np.where(begun, more, left[source] - 1)
            letter = np.where(
                begun, byte & np.where(more, 0x3F >> more, 0x7F), letter[source] << 6 | byte & 0x3F
            )
            known, there = find_in(letters, letter)
            mask = np.where(there, masks[known], np.uint64(0))
            moved, before, after = states[:, source], np.uint64(0), np.uint64(0)
            for row in moved:  # the letter fits | is added | replaced | one of the word is left out
                state = row.copy()
                after = (state << one & mask | before | before << one | after << one) & every
                row[left == 0], before = after[left == 0], state
            kept = np.flatnonzero(moved[-1])
            nodes, numbers = below.nodes[kept], (numbers[source] + below.addends)[kept]
            letter, left, states = letter[kept], left[kept], moved[:, kept]
            path.append((source[kept], byte[kept]))

    # --- the transducer
    # ----------------------------------------------------------------------------------------------

    @property
    def _root(self) -> int:
        return int(
            struct.unpack_from("<Q", self.data, len(self.data) - 12)[0]
        )  # before a checksum of four bytes

    def _walk(self, letters: bytes) -> tuple[int, int] | None:
        """The address that some bytes lead to, and the sum of addends on the way; None: no word
        goes on with them.
        """
        address, number = self._root, 0
        for byte in letters:
            step = next((each for each in self._node(address).transitions if each[0] == byte), None)
            if step is None:
                return None
            number, address = number + step[1], step[2]
        return address, number

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
            return _Node(
                False, 0, [(byte, _number(data, end, of_addend), end - back if back else 0)]
            )
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

    @cached_property
    def _eights(self) -> np.ndarray:
        return eights(self.data)

    def _numbers(self, places: IntArray, sizes: IntArray | int = 1) -> IntArray:
        return (self._eights[places] & FIRST_BYTES[sizes]).astype(np.int64)

    def _below(self, nodes: IntArray) -> _Below:
        """What leaves the nodes at addresses `[n]`: `_decoded` for all of them together."""
        head, byte_at = self._numbers(nodes), self._numbers
        kind, few = head >> 6, head & 63
        single, ends = kind >= 2, nodes == 0
        at = nodes - (few == 0)
        count = np.where(
            single, 1, np.where(few > 0, few, np.where(byte_at(at) == 1, 256, byte_at(at)))
        )
        count[ends] = 0
        sizes = np.where(kind == 3, 0, byte_at(at - 1))
        of_address, of_addend, final = sizes >> 4, sizes & 15, (kind == 1) & ~ends
        bytes_end = at - 1 - np.where(count > _INDEXED, 256, 0)
        addresses = np.where(single, at - 1, bytes_end - count)
        addends = addresses - count * of_address
        end = addends - count * of_addend - np.where(final, of_addend, 0)
        source = np.repeat(np.arange(len(nodes)), count)
        nth = np.arange(len(source)) - np.repeat(np.cumsum(count) - count, count)
        common = np.where(few > 0, _COMMON_BYTES[few - 1], byte_at(at))
        byte = np.where(single[source], common[source], byte_at(bytes_end[source] - nth - 1))
        back = self._numbers(addresses[source] - (nth + 1) * of_address[source], of_address[source])
        addend = self._numbers(addends[source] - (nth + 1) * of_addend[source], of_addend[source])
        there = np.where((back == 0) & (kind[source] != 3), 0, end[source] - back)
        of_final = np.where(
            final, self._numbers(end, np.where(final, of_addend, 0)), np.where(ends, 0, -1)
        )
        return _Below(of_final, source, byte, addend, there)


def _spelled(path: Sequence[tuple[IntArray, IntArray]], at: int) -> str:
    letters = bytearray()
    for source, byte in reversed(path):
        letters.append(byte[at])
        at = source[at]
    return letters[::-1].decode()


def _number(data: bytes, place: int, size: int) -> int:
    return int.from_bytes(data[place : place + size], "little")


@dataclass(frozen=True)
class Vocabulary:
    """The words of all parts of an index, and those of rows that are in none yet."""

    parts: Sequence[Words]
    fresh: Mapping[str, int]

    def counts(self, words: Iterable[str]) -> list[int]:
        return [
            sum(part.count(word) for part in self.parts) + self.fresh.get(word, 0) for word in words
        ]

    def beginning(self, start: str) -> dict[str, int]:
        """The words that begin with some letters, with how many rows hold each."""
        fresh = ((word, rows) for word, rows in self.fresh.items() if word.startswith(start))
        return _summed([part.beginning(start) for part in self.parts], fresh)

    def near(self, word: str, edits: int) -> dict[str, int]:
        """The words that some edits make of a word, with how many rows hold each; two neighbors may
        change places.

        A word of more than `MISTYPED` letters has no edits.
        """
        same = swaps(word) | {word}
        there = {each: rows for each, rows in zip(same, self.counts(same), strict=True) if rows}
        if not edits:
            return there
        fresh = ((each, rows) for each, rows in self.fresh.items() if within(word, each, edits))
        return _summed([part.near(word, edits) for part in self.parts], fresh) | there


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
