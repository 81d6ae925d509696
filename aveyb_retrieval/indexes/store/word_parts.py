"""Lists of words: which rows hold a word, how often and where, and among how many words.

A part is one Arrow file of the words of some rows. It has one record, whose columns are lists:

    word      the different words, ascending by their bytes in UTF-8, `[w]`
    shared    how many bytes each begins with as the word before it does, at most 512, `[w]`
    stop      where the list of each word ends in `row` and `count`, `[w]`
    row       which rows hold each word, ascending, as positions in `number`, `[p]`
    count     how often each of them does, `[p]`
    end       where the occurrences of each word end in `position`, `[w]`
    position  how many words of its row are before each occurrence, row after row, `[t]`
    number    our numbers of the rows that have words, ascending, `[n]`
    length    how many words each of them has, `[n]`

Rows that were deleted since a part was written are in it until it is merged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aveyb_retrieval.indexes.store.mapped import LocalBytes, arrow_writer, read_batches
from aveyb_retrieval.indexes.store.segments import (
    offsets_and_bytes,
    split_at_blanks,
    text_array,
)
from aveyb_retrieval.indexes.store.vocabulary import WordSet
from aveyb_retrieval.indexes.types import find_in, ranges, slices_of, starts_of_equals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from aveyb_retrieval.files import FileInfo
    from aveyb_retrieval.indexes.store.mapped import FileBytes
    from aveyb_retrieval.indexes.types import BoolArray, IntArray

MAX_SHARED_BYTES = 512  # more than a word that may be mistyped has
_BLANK = ord(" ")
_COLUMNS = ("word", "shared", "stop", "row", "count", "end", "position", "number", "length")
_LOW_BITS = 32  # of two whole numbers in one of 64 bits, which are sorted together
_LOW = (1 << _LOW_BITS) - 1
_OCCURRENCES_AT_ONCE = 1 << 16  # that fit into a processor's cache
_COPIED_AT_ONCE = 1 << 19  # elements, when parts are merged
_NOTHING = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class WordPart:
    """The lists of words of some rows, in memory or mapped."""

    words: WordSet
    rows: npt.NDArray[np.unsignedinteger]
    counts: npt.NDArray[np.unsignedinteger]
    ends: IntArray
    positions: npt.NDArray[np.unsignedinteger]
    numbers: IntArray
    lengths: npt.NDArray[np.int32]
    source: FileBytes | None = None
    base: int = 0  # the address of the bytes that the arrays are parts of

    @classmethod
    def open(cls, source: FileBytes) -> WordPart:
        """Map a part; raises what Arrow raises, and ValueError where its columns do not fit."""
        (batch, *more), base = read_batches(source)
        if tuple(batch.schema.names) != _COLUMNS or batch.num_rows != 1 or more:
            raise ValueError(f"a part of words with the columns {batch.schema.names}")
        column = {name: batch.column(name).values for name in _COLUMNS}
        word = column["word"]
        if not pa.types.is_large_string(word.type):
            raise ValueError(f"words of the type {word.type}")
        array = {
            name: _brought(source, column[name].to_numpy(), base)
            for name in ("shared", "stop", "end", "number", "length")
        }
        words = WordSet(*offsets_and_bytes(word), array["shared"].astype(np.int64), array["stop"])
        part = cls(
            words,
            column["row"].to_numpy(),
            column["count"].to_numpy(),
            array["end"],
            column["position"].to_numpy(),
            array["number"],
            array["length"],
            source,
            base,
        )
        part.check()
        return part

    def check(self) -> None:
        """Raise ValueError where the sizes of columns do not fit each other."""
        words = self.words
        fits = (
            len(words.shared) == len(words.stops) == len(words)
            and len(self.rows) == len(self.counts)
            and len(words) == len(self.ends)
            and (not len(words) or int(self.ends[-1]) == len(self.positions))
            and len(self.numbers) == len(self.lengths)
            and (len(words) == 0) == (len(self.rows) == 0)
            and (not len(words) or int(words.stops[-1]) == len(self.rows))
            and int(words.offsets[-1]) <= len(words.data)
        )
        if not fits:
            raise ValueError("the columns of a part of words do not fit each other")

    def listed(self, place: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows `[p]`, ascending, that hold the word at a place, and how often each does."""
        start, stop = _range(self.words.stops, place)
        return self._rows_of(place), _brought(self.source, self.counts[start:stop], self.base)

    def holding(self, phrase: Sequence[str]) -> npt.NDArray[np.int64]:
        """Rows `[n]`, ascending, that hold some words one after another."""
        places = [self.words.place(word) for word in phrase]
        of_words = [place for place in places if place is not None]
        if len(of_words) < len(places):
            return _NOTHING
        if len(phrase) == 1:
            return self._rows_of(of_words[0]).astype(np.int64)
        lists = {place: self.listed(place) for place in of_words}
        holds_all = np.ones(len(self.numbers), np.bool_)
        occurring = np.zeros(len(self.numbers), np.int64)  # how often each row holds any of them
        for listed, counts in lists.values():
            holds = np.zeros(len(self.numbers), np.bool_)
            holds[listed] = True
            holds_all &= holds
            occurring[listed] += counts
        rows = np.flatnonzero(holds_all)
        if not len(rows):
            return rows
        occurrences = {place: self._occurrences(place, *lists[place]) for place in lists}
        holding = []
        for part in slices_of(occurring[rows], _OCCURRENCES_AT_ONCE):
            first, last = rows[part][[0, -1]]
            keys = {place: occurrences[place].keys(holds_all, first, last) for place in lists}
            following = keys[of_words[0]]
            for place in of_words[1:]:
                following = _intersect(following + 1, keys[place])
            of_rows = following >> _LOW_BITS
            holding.append(of_rows[starts_of_equals(of_rows)])
        return np.concatenate(holding)

    def _occurrences(self, place: int, rows: np.ndarray, counts: np.ndarray) -> _Occurrences:
        """Where `rows` `[p]` hold the word at a place, each as often as `counts` `[p]` says."""
        start, stop = _range(self.ends, place)
        positions = _brought(self.source, self.positions[start:stop], self.base)
        ends = np.cumsum(counts, dtype=np.int64)
        if len(positions) != ends[-1]:
            raise ValueError("a list of positions that are none")
        return _Occurrences(rows, ends, positions)

    def _rows_of(self, place: int) -> np.ndarray:
        """Rows `[p]`, ascending, that hold the word at a place."""
        start, stop = _range(self.words.stops, place)
        rows = _brought(self.source, self.rows[start:stop], self.base)
        if len(rows) != stop - start or (len(rows) and int(rows[-1]) >= len(self.numbers)):
            raise ValueError("a list of rows that are none")
        return rows

    def holds(self, word: str, rows: IntArray) -> BoolArray:
        """Which of rows `[n]`, positions in `numbers`, hold a word."""
        place = self.words.place(word)
        if place is None:
            return np.zeros(len(rows), np.bool_)
        listed = self._rows_of(place)
        return find_in(listed, rows.astype(listed.dtype))[1]

    def count(self, word: str) -> int:
        """How many rows hold a word."""
        return self.words.count(word)

    @cached_property
    def total(self) -> int:
        """How many words all rows have."""
        return int(self.lengths.sum(dtype=np.int64))

    def write(self, path: Path) -> FileInfo:
        """Write it as a file of its own."""
        flat = {
            "word": self.words.array,
            "shared": pa.array(self.words.shared.astype(np.uint16)),
            "stop": pa.array(self.words.stops),
            "row": pa.array(self.rows),
            "count": pa.array(self.counts),
            "end": pa.array(self.ends),
            "position": pa.array(self.positions),
            "number": pa.array(self.numbers),
            "length": pa.array(self.lengths),
        }
        columns = {
            name: pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), values)
            for name, values in flat.items()
        }
        batch = pa.record_batch(columns)
        with arrow_writer(path, batch.schema) as (writer, info):
            writer.write_batch(batch)
        return info()


@dataclass(frozen=True, eq=False)
class _Occurrences:
    """Where rows hold a word.

    Attributes:
        rows: The rows, ascending, `[p]`.
        ends: Where the positions of each row end, `[p]`.
        positions: How many words of its row are before each occurrence, `[t]`.
    """

    rows: npt.NDArray[np.unsignedinteger]
    ends: IntArray
    positions: npt.NDArray[np.unsignedinteger]

    def keys(self, chosen: BoolArray, first: int, last: int) -> npt.NDArray[np.int64]:
        """A row and a position in one number, ascending, `[m]`: of the rows from `first` to `last`
        that are `chosen` `[n]`.
        """
        # in the type of the list: else all of it is converted
        number = self.rows.dtype.type
        start = int(np.searchsorted(self.rows, number(first)))
        stop = int(np.searchsorted(self.rows, number(last), side="right"))
        at = start + np.flatnonzero(chosen[self.rows[start:stop]])
        sizes = self.ends[at] - np.where(at > 0, self.ends[at - 1], 0)
        positions = self.positions[ranges(self.ends[at] - sizes, sizes)].astype(np.int64)
        keys: npt.NDArray[np.int64] = np.repeat(self.rows[at].astype(np.int64) << _LOW_BITS, sizes)
        return keys | positions


def _range(ends: IntArray, place: int) -> tuple[int, int]:
    """Where the run of the word at a place begins and ends, of runs that end at `ends` `[w]`."""
    return int(ends[place - 1]) if place else 0, int(ends[place])


def _intersect(numbers: IntArray, others: IntArray) -> IntArray:
    """The numbers that are in both of two arrays, which ascend without repeats."""
    both = np.sort(np.concatenate([numbers, others]), kind="stable")  # which merges two runs
    return both[:-1][both[:-1] == both[1:]]


def _brought(source: FileBytes | None, array: np.ndarray, base: int) -> np.ndarray:
    """An array that is part of a file at the address `base`, with its bytes brought here."""
    if source is None or isinstance(source, LocalBytes):
        return array
    start = array.ctypes.data - base
    data = source.require(np.array([start]), np.array([start + array.nbytes]))
    return data[start : start + array.nbytes].view(array.dtype)


# --- making parts --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Run:
    """The lists of some rows: words by their numbers, each once, `[w]`."""

    words: IntArray
    sizes: IntArray  # of the lists, `[w]`
    rows: npt.NDArray[np.unsignedinteger]
    counts: npt.NDArray[np.unsignedinteger]
    positions: npt.NDArray[np.unsignedinteger]

    @cached_property
    def totals(self) -> IntArray:
        """How often all rows together hold each word, `[w]`."""
        ends = np.cumsum(self.sizes)
        sums = np.concatenate([[0], np.cumsum(self.counts, dtype=np.int64)])
        totals: IntArray = sums[ends] - sums[ends - self.sizes]
        return totals


BYTES_AT_ONCE = 1 << 22  # of words that are told apart together; it takes twenty times the memory


def make_part(texts: Iterable[tuple[IntArray, pa.LargeStringArray]]) -> WordPart:
    """Make the part of rows: their numbers, ascending, and their words as they are stored.

    Stored words stand between blanks, with one before the first and one behind the last.
    """
    spelled, runs = [text_array([])], list[_Run]()
    numbers, lengths, count = [_NOTHING], [np.empty(0, np.int32)], 0
    for numbers_of_rows, words in texts:
        run, different, sizes = _run(words, count)
        worded = sizes > 0
        numbers.append(numbers_of_rows[worded])
        lengths.append(sizes[worded].astype(np.int32))
        count += int(worded.sum())
        spelled.append(different)
        runs.append(run)
    ascending, (_, *places) = _ascending(spelled)
    renumbered = [
        replace(run, words=place[run.words]) for run, place in zip(runs, places, strict=True)
    ]
    return _join(ascending, renumbered, numbers, lengths)


def _different(
    spelled: Sequence[pa.LargeStringArray],
) -> tuple[pa.LargeStringArray, list[IntArray]]:
    """The different words of some arrays, and which of these the words of each array are."""
    encoded = pa.concat_arrays(spelled).dictionary_encode()
    ends = np.cumsum([len(words) for words in spelled])
    return encoded.dictionary, np.split(encoded.indices.to_numpy(), ends[:-1])


def _ascending(
    spelled: Sequence[pa.LargeStringArray],
) -> tuple[pa.LargeStringArray, list[IntArray]]:
    """The same, with the different words in ascending order."""
    different, numbers = _different(spelled)
    order = pc.sort_indices(different).to_numpy().astype(np.int64)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return different.take(pa.array(order)), [place[of_array] for of_array in numbers]


def _run(words: pa.LargeStringArray, first_row: int) -> tuple[_Run, pa.LargeStringArray, IntArray]:
    """The lists of rows with words, counted from `first_row`; their different words, by whose
    places they are numbered there; and how many words all rows have.
    """
    offsets, data = offsets_and_bytes(words)
    different, of_tokens, starts = _tokens(data, int(offsets[0]), int(offsets[-1]))
    first_tokens = np.searchsorted(starts, offsets)
    sizes = np.diff(first_tokens)
    token_rows = np.repeat(np.arange(len(sizes), dtype=np.uint32), sizes)
    # NumPy sorts numbers faster than it says their order
    keys = of_tokens.astype(np.int64) << _LOW_BITS | np.arange(len(token_rows))
    keys.sort()
    tokens = keys & _LOW
    rows = token_rows[tokens]
    positions = tokens - first_tokens[rows]
    keys ^= tokens
    keys |= rows  # a word and a row that holds it, as often as it does
    heads = starts_of_equals(keys)
    held, times = keys[heads], np.diff(heads, append=len(keys))
    list_words = held >> _LOW_BITS
    firsts = starts_of_equals(list_words)
    numbers = np.cumsum(sizes > 0) - 1 + first_row
    run = _Run(
        list_words[firsts],
        np.diff(firsts, append=len(held)),
        _narrow(numbers[held & _LOW]),
        _narrow(times),
        _narrow(positions),
    )
    return run, different, sizes


def _byte_ranges(data: npt.NDArray[np.uint8], begin: int, stop: int) -> Iterator[tuple[int, int]]:
    """Ranges of stored words, each of which begins and ends with a blank that may be of two."""
    end = begin
    while end < stop:
        end = min(begin + 1 + BYTES_AT_ONCE, stop)
        while end < stop and data[end - 1] != _BLANK:
            end += 1
        yield begin, end
        begin = end - 1


def _tokens(
    data: npt.NDArray[np.uint8], begin: int, stop: int
) -> tuple[pa.LargeStringArray, IntArray, IntArray]:
    """What `split_at_blanks` says of the bytes `[begin, stop)` of stored words."""
    spelled, of_ranges, of_starts = [text_array([])], [_NOTHING], [_NOTHING]
    for first, last in _byte_ranges(data, begin, stop):
        different, of_tokens, starts = split_at_blanks(data[first:last])
        spelled.append(different)
        of_ranges.append(of_tokens)
        of_starts.append(starts + first)
    different, numbers = _different(spelled)
    tokens = [words[of_range] for words, of_range in zip(numbers, of_ranges, strict=True)]
    return different, np.concatenate(tokens), np.concatenate(of_starts)


def merge_parts(parts: Sequence[WordPart], live: Callable[[IntArray], BoolArray]) -> WordPart:
    """Make one part of parts whose rows follow each other, without the rows that are not `live`."""
    ascending, of_parts = _ascending([part.words.array for part in parts])
    runs, numbers, lengths, count = list[_Run](), [_NOTHING], [np.empty(0, np.int32)], 0
    for part, words in zip(parts, of_parts, strict=True):
        is_live = live(part.numbers)
        new_rows = (np.cumsum(is_live) - 1 + count).astype(np.uint32)
        rows, counts, positions = part.rows, part.counts, part.positions
        sizes = np.diff(part.words.stops, prepend=0)
        totals = _Run(words, sizes, rows, counts, positions).totals
        if not np.array_equal(totals, np.diff(part.ends, prepend=0)):
            raise ValueError("positions that do not fit their counts")
        if not is_live.all():
            stays = is_live[rows]
            sums = np.concatenate([[0], np.cumsum(stays)])
            sizes = np.diff(sums[part.words.stops], prepend=0)
            positions = positions[np.repeat(stays, counts)]
            rows, counts = rows[stays], counts[stays]
        runs.append(_Run(words, sizes, new_rows[rows], counts, positions))
        numbers.append(part.numbers[is_live])
        lengths.append(part.lengths[is_live])
        count += int(is_live.sum())
    return _join(ascending, runs, numbers, lengths)


def _join(
    words: pa.LargeStringArray,
    runs: Sequence[_Run],
    numbers: Sequence[IntArray],
    lengths: Sequence[npt.NDArray[np.int32]],
) -> WordPart:
    """One part of runs whose rows follow each other; words that no row holds are left out."""
    sizes, totals = np.zeros(len(words), np.int64), np.zeros(len(words), np.int64)
    for run in runs:
        sizes[run.words] += run.sizes
        totals[run.words] += run.totals
    number, length = np.concatenate(numbers), np.concatenate(lengths)
    most = max((int(run.counts.max(initial=0)) for run in runs), default=0)
    rows = np.empty(sizes.sum(), np.min_scalar_type(max(len(number) - 1, 0)))
    counts = np.empty(len(rows), np.min_scalar_type(most))
    last = max((int(run.positions.max(initial=0)) for run in runs), default=0)
    positions = np.empty(totals.sum(), np.min_scalar_type(last))
    next_row, next_position = np.cumsum(sizes) - sizes, np.cumsum(totals) - totals
    for run in runs:
        for target, source in _plan_moves(next_row[run.words], run.sizes):
            rows[target] = run.rows[source]
            counts[target] = run.counts[source]
        next_row[run.words] += run.sizes
        for target, source in _plan_moves(next_position[run.words], run.totals):
            positions[target] = run.positions[source]
        next_position[run.words] += run.totals
    if (sizes == 0).any():
        held = sizes > 0
        words, sizes, totals = words.filter(pa.array(held)), sizes[held], totals[held]
    offsets, data = offsets_and_bytes(words)
    data, offsets = data[offsets[0] : offsets[-1]], offsets - offsets[0]
    spelled = WordSet(offsets, data, _shared(offsets, data), np.cumsum(sizes))
    return WordPart(spelled, rows, counts, np.cumsum(totals), positions, number, length)


def _plan_moves(targets: IntArray, sizes: IntArray) -> Iterator[tuple[IntArray, slice]]:
    """To where the lists of words go that follow each other and have these sizes, `[w]`, and from
    where: some at a time.
    """
    ends = np.concatenate([[0], np.cumsum(sizes)])
    for part in slices_of(sizes, _COPIED_AT_ONCE):
        yield ranges(targets[part], sizes[part]), slice(ends[part.start], ends[part.stop])


def _shared(offsets: IntArray, data: npt.NDArray[np.uint8]) -> IntArray:
    """How many bytes each of some ascending words `[w]` begins with as the one before it does."""
    sizes, shared = np.diff(offsets), np.zeros(len(offsets) - 1, np.int64)
    alike = np.arange(1, len(shared))
    for place in range(MAX_SHARED_BYTES):
        alike = alike[(sizes[alike] > place) & (sizes[alike - 1] > place)]
        same = data[offsets[alike] + place] == data[offsets[alike - 1] + place]
        alike = alike[same]
        if not len(alike):
            break
        shared[alike] += 1
    return shared


def _narrow(numbers: npt.NDArray[np.integer]) -> npt.NDArray[np.unsignedinteger]:
    """Whole numbers in the narrowest type that holds all of them."""
    narrow: npt.NDArray[np.unsignedinteger] = numbers.astype(
        np.min_scalar_type(int(numbers.max(initial=0)))
    )
    return narrow
