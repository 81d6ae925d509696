"""Rows of documents, and of passages, in Arrow files of our own; and the lists of their words.

A table is made of pieces: files that never change, each of the rows of a range of documents.
Changes add pieces, and merge the last ones by tiers. No row is marked as deleted: a row is there as
long as its document is, and is dropped when its piece is merged.

So are the lists of words: each part is of a range of documents, and the rows behind the last part
are looked through.
"""

from __future__ import annotations

import weakref
from collections import Counter
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.store.dataset import (
    LARGE_PIECE_ROWS,
    MAX_DELETED_SHARE,
    MAX_SMALL_PIECES,
    is_due,
    last_tier,
)
from aveyb_retrieval.indexes.store.lance_session import damage, guarded
from aveyb_retrieval.indexes.store.manifest import WORD_LISTS, Piece
from aveyb_retrieval.indexes.store.mapped import LocalBytes, MappedRows, numpy_type, write_batches
from aveyb_retrieval.indexes.store.postings import FreshLists, WordLists
from aveyb_retrieval.indexes.store.remote_blocks import StoredBytes
from aveyb_retrieval.indexes.store.segments import offsets_and_bytes
from aveyb_retrieval.indexes.store.vocabulary import IndexVocabulary
from aveyb_retrieval.indexes.store.word_parts import WordPart, make_part, merge_parts
from aveyb_retrieval.indexes.types import ascending, slices_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from aveyb_retrieval.files import FileInfo
    from aveyb_retrieval.indexes.store.dataset import LanceTable
    from aveyb_retrieval.indexes.store.mapped import FileBytes
    from aveyb_retrieval.indexes.store.postings import Keep
    from aveyb_retrieval.indexes.types import BoolArray, FloatArray, IntArray

    # A file, rows of it, and which of the numbers that were looked for these are.
    FoundRows = tuple[MappedRows, IntArray, IntArray]

VECTOR, WORDS, FORMS, NAME_WORDS = "vector", "words", "forms", "names"
CALLED_BY = "called"  # the words of `NAME_WORDS` and those of the beginning, apart
SPAN = ("start", "stop")
MAX_PIECE_ROWS = 1 << 20  # that are merged
_RUN_BYTES = 4 << 20  # of words whose lists are made together; it takes twelve times the memory
MAX_DOCUMENT_NUMBER = 1 << 32  # which are there is kept in memory, a byte each


class NewFiles(Protocol):
    """Where a change writes: gives names that nothing else has, and is told of what was written."""

    def new_name(self, folder: str) -> str:
        """The name of a new file, relative to the index directory."""

    def wrote(self, name: str, info: FileInfo) -> None:
        """Note a file that is complete and durable."""


class RowTable:
    """The rows of one kind, by numbers of ours, with the lists of their words.

    Reading is safe from many threads; one writer moves it on.
    """

    def __init__(
        self,
        root: Path,
        name: str,
        schema: pa.Schema,
        documents: LanceTable,
        *,
        shift: int = 0,
        pieces: Sequence[Piece] = (),
        words: dict[str, Sequence[Piece]] | None = None,
        before: RowTable | None = None,
        address: str | None = None,
    ) -> None:
        """Take the pieces of a version: nothing is read yet.

        A row's number is that of its document, or that shifted left by `shift` bits with another
        number below; columns that lists of words are kept of are the keys of `words`. `before` is
        the same table at another version, `address` where the index is if not at `root`.
        """
        self.root, self.path, self.name = root, root / name, name
        self.schema, self.key = schema, schema.names[0]
        self.pieces = tuple(pieces)
        self._documents, self._shift, self._address = documents, shift, address
        self._opened: dict[str, MappedRows] = {} if before is None else dict(before._opened)
        old = {} if before is None else before.words
        self.words: dict[str, WordIndex] = {
            column: WordIndex(self, column, parts, old.get(column))
            for column, parts in (words or {}).items()
        }

    def __len__(self) -> int:
        return sum(int(self.alive(rows.numbers).sum()) for rows in self._files)

    # --- rows ------------------------------------------------------------------------------------

    @property
    def stored_rows(self) -> int:
        """How many rows all pieces have, deleted or not."""
        return sum(piece.rows for piece in self.pieces)

    @cached_property
    def _files(self) -> list[MappedRows]:
        """The files of all pieces, in the order of their numbers."""
        with damage(self.path):
            opened = {piece.file: self._open(piece) for piece in self.pieces}
        self._opened = opened
        return [*opened.values()]

    def _open(self, piece: Piece) -> MappedRows:
        if piece.file in self._opened:
            return self._opened[piece.file]
        rows = MappedRows.open(self.root / piece.file, self.source(piece.file), self.schema)
        low, high = piece.first << self._shift, piece.stop << self._shift
        fits = len(rows) == piece.rows and (
            not len(rows) or low <= rows.numbers[0] <= rows.numbers[-1] < high
        )
        if not fits:
            raise IndexFormatError(
                f"{self.root / piece.file}: its rows differ from those in the manifest; build"
                " the index again"
            )
        return rows

    def source(self, file: str) -> FileBytes:
        """The bytes of a file of the index."""
        path = self.root / file
        if self._address is not None and not path.exists():
            return StoredBytes(f"{self._address}/{file}", path, self.root)
        return LocalBytes.map(path)

    @cached_property
    def _alive(self) -> BoolArray:
        """Which documents of the pieces are there, by number, and False behind the last."""
        docs, _ = self._documents.held
        stop = max((piece.stop for piece in self.pieces), default=0)
        if stop > MAX_DOCUMENT_NUMBER:
            raise IndexFormatError(
                f"{self.path}: rows of document number {stop - 1}; at most {MAX_DOCUMENT_NUMBER:,}"
                " documents can be searched here; build the index again"
            )
        alive = np.zeros(stop + 1, np.bool_)
        alive[docs[(docs >= 0) & (docs < stop)]] = True
        return alive

    def alive(self, numbers: IntArray) -> BoolArray:
        """Which of numbers `[n]` of stored rows are of documents that are there."""
        return self._alive[np.minimum(numbers >> self._shift, len(self._alive) - 1)]

    def _find(self, numbers: IntArray) -> Iterator[FoundRows]:
        """The files that hold some of numbers `[n]`: rows `[m]`, and which of `[n]` these are."""
        files = [rows for rows in self._files if len(rows)]
        if not len(numbers) or not files:
            return
        if len(files) == 1:
            rows = find_rows(files[0].numbers, numbers)
            places = np.flatnonzero(rows >= 0)
            yield files[0], rows[places], places
            return
        firsts = np.array([rows.numbers[0] for rows in files])
        owners = np.searchsorted(firsts, numbers, side="right") - 1
        for owner in ascending(owners[owners >= 0]).tolist():
            places = np.flatnonzero(owners == owner)
            rows = find_rows(files[owner].numbers, numbers[places])
            is_here = rows >= 0
            yield files[owner], rows[is_here], places[is_here]

    def _stored(self, numbers: IntArray) -> Iterator[FoundRows]:
        """What `_find` yields, or an error if there never was a row of one of them."""
        left = len(numbers)
        for file, rows, places in self._find(numbers):
            yield file, rows, places
            left -= len(rows)
        if left:
            raise IndexFormatError(
                f"{self.path}: the index has {left} numbers that are not stored; run `aveyb-index"
                f" verify {self.root}`"
            )

    @guarded
    def has(self, numbers: IntArray) -> BoolArray:
        """Which of numbers `[n]` have a row, `[n]`, deleted or not."""
        stored = np.zeros(len(numbers), np.bool_)
        for _, _, places in self._find(numbers):
            stored[places] = True
        return stored

    @guarded
    def take(self, numbers: IntArray, columns: Sequence[str]) -> pa.Table:
        """Rows of numbers `[n]`, in their order, with the key; those that are not there are left
        out.
        """
        numbers = np.asarray(numbers, dtype=np.int64)
        numbers = numbers[self.alive(numbers)]
        parts = [*self._find(numbers)]
        if sum(len(rows) for _, rows, _ in parts) < len(numbers):
            numbers = numbers[self.has(numbers)]
            parts = [*self._find(numbers)]
        names = [self.key, *(name for name in columns if name != self.key)]
        made = [numbers, *(self._column(name, parts, len(numbers)) for name in names[1:])]
        schema = pa.schema([self.schema.field(name) for name in names])
        arrays = [
            _as_arrow(values, schema.field(name).type)
            for name, values in zip(names, made, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=schema)

    @guarded
    def values(self, numbers: IntArray, column: str) -> np.ndarray:
        """A column of values of one width, `[n]`, of numbers `[n]`, as `vectors` reads its own."""
        out = _empty(self.schema.field(column).type, len(numbers))
        for file, rows, places in self._stored(numbers):
            out[places] = file.fixed(column, rows)
        return out

    def _column(
        self, name: str, parts: Sequence[FoundRows], count: int
    ) -> np.ndarray | list[bytes]:
        kind = self.schema.field(name).type
        if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
            return _texts(name, parts, count)
        empty = _empty(kind, count)
        for file, rows, places in parts:
            empty[places] = file.fixed(name, rows)
        return empty

    def batches(self, columns: Sequence[str], first: int = 0) -> Iterator[pa.Table]:
        """Columns of all rows of documents from number `first` on, batch by batch."""
        low = first << self._shift
        read = [self.key, *(name for name in columns if name != self.key)]
        files = zip(self.pieces, self._files, strict=True)
        with damage(self.path):
            every = [file for piece, file in files if piece.stop > first]
        for file in every:
            for table in self._living(file, read, low):
                yield table.select(list(columns))

    def _living(self, file: MappedRows, columns: Sequence[str], low: int = 0) -> Iterator[pa.Table]:
        """Columns, the key first, of a file's rows from number `low` on whose documents are
        there.
        """
        for batch in self._guarded(file.batches(columns)):
            numbers = batch.column(0).to_numpy()
            is_alive = self.alive(numbers) & (numbers >= low)
            table = pa.Table.from_batches([batch])
            yield table if is_alive.all() else table.filter(pa.array(is_alive))

    def _guarded(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches of a file, whose damage is told as such."""
        while True:
            with damage(self.path):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    @guarded
    def scan(self, columns: Sequence[str]) -> pa.Table:
        """Columns of all rows."""
        schema = pa.schema([self.schema.field(name) for name in columns])
        return pa.concat_tables([schema.empty_table(), *self.batches(columns)])

    @guarded
    def below_one(self, column: str) -> tuple[IntArray, FloatArray]:
        """Numbers `[n]`, ascending, and values `[n]` of the rows whose value of a column is below
        1.
        """
        parts = [(np.empty(0, np.int64), np.empty(0, np.float32))]
        parts += [file.below_one(column) for file in self._files]
        numbers, values = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        is_alive = self.alive(numbers)
        return numbers[is_alive], values[is_alive]

    @guarded
    def vectors(self, numbers: IntArray) -> FloatArray:
        """The column `VECTOR`, `[n, d]` float32, of numbers `[n]`, whether deleted or not."""
        out = np.empty((len(numbers), self.schema.field(VECTOR).type.list_size), np.float32)
        for file, rows, places in self._stored(numbers):
            file.copy_vectors(VECTOR, rows, out, places)
        return out

    def stored_vectors(self, numbers: IntArray, size: int) -> Iterator[tuple[IntArray, np.ndarray]]:
        """The column `VECTOR` of numbers `[n]`, up to `size` at a time: numbers `[m]` and `[m, d]`,
        until the next; as they are stored, float16 or float32.
        """
        kind = self.schema.field(VECTOR).type
        width = kind.list_size * kind.value_type.bit_width // 8
        out = np.empty((min(size, len(numbers)), width), np.uint8)
        with damage(self.path):
            for file, rows, places in self._stored(numbers):
                order = np.argsort(rows, kind="stable")
                for start in range(0, len(rows), size):
                    block = order[start : start + size]
                    yield numbers[places[block]], file.block(VECTOR, rows[block], out[: len(block)])

    @guarded
    def spans(self, numbers: IntArray) -> IntArray:
        """The columns `SPAN`, `[n, 2]`, of numbers `[n]`, as `vectors` reads its own."""
        out = np.empty((len(numbers), 2), np.int64)
        for file, rows, places in self._stored(numbers):
            for side, name in enumerate(SPAN):
                out[places, side] = file.fixed(name, rows)
        return out

    @guarded
    def encoded_texts(self, numbers: IntArray, column: str) -> list[bytes]:
        """A column of texts, in UTF-8, of numbers `[n]`, as `vectors` reads its own."""
        return _texts(column, [*self._stored(numbers)], len(numbers))

    # --- words -----------------------------------------------------------------------------------

    @guarded
    def by_words(self, words: Sequence[str], k: int) -> tuple[IntArray, FloatArray]:
        """The `k` best rows by BM25 that hold any of some words: numbers and scores, best first,
        ties by number.
        """
        return self.words[WORDS].lists.best(words, k, self.alive)

    @guarded
    def scored(self, words: Sequence[str], k: int, keep: Keep) -> tuple[IntArray, FloatArray]:
        """What `by_words` gives, of those rows that `keep` says true of, by their numbers: of no
        deleted ones.
        """
        return self.words[WORDS].lists.best(words, k, keep)

    @guarded
    def postings(self, words: Sequence[str], keep: Keep, column: str = WORDS) -> list[np.ndarray]:
        """Which rows hold each of some words, of those that `keep` says true of: `POSTING` `[n]`,
        in any order.

        Some rows may be deleted.
        """
        return self.words[column].lists.listed(words, keep) if words else []

    @guarded
    def held(self, numbers: IntArray, words: Sequence[str]) -> BoolArray:
        """Which of words `[t]` each of the rows of numbers `[n]` holds: `[n, t]`."""
        if not words:
            return np.empty((len(numbers), 0), np.bool_)
        return self.words[WORDS].lists.held(numbers, words)

    @guarded
    def counted(self, keep: Keep) -> tuple[int, int]:
        """How many rows with words there are of those that `keep` says true of, and how many words
        these have.
        """
        return self.words[WORDS].lists.counted(keep)

    @guarded
    def holding(self, *phrases: Sequence[str], column: str = WORDS) -> IntArray:
        """Numbers `[n]`, ascending, of all rows that hold any of some phrases, words one after
        another.

        Some rows may be deleted.
        """
        matches = [self._holding(phrase, column) for phrase in dict.fromkeys(map(tuple, phrases))]
        return np.unique(np.concatenate([np.empty(0, np.int64), *matches]))

    def _holding(self, phrase: Sequence[str], column: str) -> IntArray:
        """Rows that hold all words of a phrase and, of several words, these one after another."""
        if not phrase:
            return np.empty(0, np.int64)
        numbers, unordered = self.words[column].lists.holding(phrase)
        if len(phrase) == 1:
            return np.concatenate([numbers, unordered])
        sought, matches = f" {' '.join(phrase)} ".encode(), [numbers]
        for file, rows, places in self._find(unordered):
            holds = [sought in text for text in file.texts(column, rows)]
            matches.append(unordered[places][holds])
        return np.concatenate(matches)

    @guarded
    def vocabulary(self, column: str = WORDS) -> IndexVocabulary:
        """The words of a column that lists of words are kept of."""
        return self.words[column].vocabulary

    # --- writing ---------------------------------------------------------------------------------

    def append(self, rows: pa.Table, first: int, stop: int, new: NewFiles) -> None:
        """Add the rows of the documents numbered in `[first, stop)`, which follow all others."""
        if rows.num_rows:
            self._write([rows], first, stop, rows.num_rows, new, replaced=0)

    def settle(self, new: NewFiles, *, whole: bool = False) -> None:
        """Index and merge what has gathered, if that is due (`whole`: everything)."""
        for index in self.words.values():
            index.settle(new, whole=whole)
        sizes = [piece.rows for piece in self.pieces]
        small = sum(size < LARGE_PIECE_ROWS for size in sizes)
        if not whole and small < MAX_SMALL_PIECES:
            return
        left = len(sizes) - (len(sizes) if whole else last_tier(sizes, 0))
        for place in range(left):
            if self._dead(place) > MAX_DELETED_SHARE * sizes[place]:
                self._merge(place, 1, new)
        while left < len(self.pieces):
            count = 1
            rows = self.pieces[left].rows
            while left + count < len(self.pieces) and rows < MAX_PIECE_ROWS:
                rows += self.pieces[left + count].rows
                count += 1
            if count > 1 or self._dead(left):
                self._merge(left, count, new)
            left += 1

    def _dead(self, place: int) -> int:
        """How many rows of a piece are of documents that are not there any more."""
        return int((~self.alive(self._files[place].numbers)).sum())

    def _merge(self, place: int, count: int, new: NewFiles) -> None:
        """Write some pieces as one, without the rows of documents that are not there any more."""
        merged = self.pieces[place : place + count]
        files = self._files[place : place + count]
        live_rows = sum(int(self.alive(file.numbers).sum()) for file in files)

        def tables() -> Iterator[pa.Table]:
            for file in files:
                yield from self._living(file, self.schema.names)

        first, stop = merged[0].first, merged[-1].stop
        self._write(tables(), first, stop, live_rows, new, place=place, replaced=count)

    def _write(
        self,
        tables: Iterator[pa.Table] | Sequence[pa.Table],
        first: int,
        stop: int,
        rows: int,
        new: NewFiles,
        *,
        replaced: int,
        place: int | None = None,
    ) -> None:
        """Write a piece in the place of `replaced` ones (None: behind all)."""
        at = len(self.pieces) if place is None else place
        name = new.new_name(self.name)
        new.wrote(name, write_batches(self.root / name, self.schema, tables))
        piece = Piece(name, first, stop, rows)
        self.pieces = (*self.pieces[:at], piece, *self.pieces[at + replaced :])
        self.moved()

    def moved(self) -> None:
        """Forget what was read of the documents, or of pieces: they are others now."""
        for name in ("_files", "_alive"):
            self.__dict__.pop(name, None)
        for index in self.words.values():
            index.moved()

    def indexed_from(self, first: int) -> list[int]:
        """How many rows the pieces have whose documents are numbered from `first` on."""
        return [piece.rows for piece in self.pieces if piece.stop > first]


class WordIndex:
    """The lists of words of one column of a table."""

    def __init__(
        self, table: RowTable, column: str, parts: Sequence[Piece], before: WordIndex | None
    ) -> None:
        # weak: files of a version are let go with its table, not by the collector of cycles
        self._table: RowTable = weakref.proxy(table)
        self._column, self.parts = column, tuple(parts)
        self._opened: dict[str, WordPart] = {} if before is None else dict(before._opened)
        self._counted: dict[int, Counter[str]] = {} if before is None else before._counted

    @property
    def stop(self) -> int:
        """The number that the documents begin with that are in no part."""
        return self.parts[-1].stop if self.parts else 0

    @cached_property
    def lists(self) -> WordLists:
        self._opened = {part.file: self._open(part.file) for part in self.parts}
        return WordLists([*self._opened.values()], FreshLists(self._fresh))

    @cached_property
    def vocabulary(self) -> IndexVocabulary:
        guard = partial(damage, self._table.path)
        words = [part.words.guarded(guard) for part in self.lists.parts]
        return IndexVocabulary(words, Counter(chain.from_iterable(self._fresh.values())))

    def _open(self, file: str) -> WordPart:
        return self._opened.get(file) or WordPart.open(self._table.source(file))

    @cached_property
    def _fresh(self) -> dict[int, Counter[str]]:
        """How often each row that is in no part has its words, by number."""
        counts_by_number = dict[int, Counter[str]]()
        for rows in self._table.batches([self._table.key, self._column], self.stop):
            numbers = rows[self._table.key].to_pylist()
            new = [place for place, number in enumerate(numbers) if number not in self._counted]
            texts = rows[self._column].take(pa.array(new, pa.int64())).to_pylist()
            counted = dict(zip((numbers[place] for place in new), texts, strict=True))
            for number in numbers:
                text = counted.get(number)
                counts_by_number[number] = (
                    self._counted[number] if text is None else Counter(text.split())
                )
        self._counted = counts_by_number
        return counts_by_number

    def settle(self, new: NewFiles, *, whole: bool) -> None:
        """Take rows that are in no part into one, if that is due, and merge the last parts."""
        sizes = self._table.indexed_from(self.stop)
        is_stale = whole and any(map(self._dead, self.parts))
        if not self.parts or not (is_stale or is_due(sizes, whole=whole)):
            return
        counts = [part.rows for part in self.parts]
        merged = len(counts) if whole else last_tier(counts, sum(sizes))
        self._write(merged, new)

    def _dead(self, part: Piece) -> int:
        """How many rows of a part are of documents that are not there any more."""
        return int((~self._table.alive(self._open(part.file).numbers)).sum())

    def make(self, new: NewFiles) -> None:
        """Make the lists of all rows anew."""
        self.parts = ()
        self.moved()
        self._write(0, new)

    def _write(self, merged: int, new: NewFiles) -> None:
        """Write the last `merged` parts, and the rows that are in none, as one part."""
        table, first_parts = self._table, self.parts[: len(self.parts) - merged]
        old = self.parts[len(first_parts) :]
        texts = (
            (rows[table.key].to_numpy(), rows[self._column].combine_chunks())
            for rows in table.batches([table.key, self._column], self.stop)
        )
        made = make_part(
            some for numbers, words in texts for some in _slices(numbers, words, _RUN_BYTES)
        )
        if old:
            with damage(table.path):
                opened = [self._open(part.file) for part in old]
                made = merge_parts([*opened, made], table.alive)
        first = first_parts[-1].stop if first_parts else 0
        stop = max(table.pieces[-1].stop if table.pieces else 0, self.stop, first)
        rows = sum(table.indexed_from(self.stop)) + sum(part.rows for part in old)
        name = new.new_name(WORD_LISTS)
        new.wrote(name, made.write(table.root / name))
        self.parts = (*first_parts, Piece(name, first, stop, rows))
        self.moved()

    def moved(self) -> None:
        """Forget what was read of rows or parts: they are others now."""
        for name in ("lists", "vocabulary", "_fresh"):
            self.__dict__.pop(name, None)


def _slices(
    numbers: IntArray, words: pa.LargeStringArray, size: int
) -> Iterator[tuple[IntArray, pa.LargeStringArray]]:
    """Divide rows `[n]` so that their words take about `size` bytes, or are those of one row."""
    offsets, _ = offsets_and_bytes(words)
    for part in slices_of(np.diff(offsets), size):
        yield numbers[part], words[part]


def _texts(name: str, parts: Sequence[FoundRows], count: int) -> list[bytes]:
    """A column of texts in UTF-8, `count` of them."""
    texts = [b""] * count
    for file, rows, places in parts:
        for place, text in zip(places.tolist(), file.texts(name, rows), strict=True):
            texts[place] = text
    return texts


def find_rows(numbers: IntArray, sought_numbers: IntArray) -> IntArray:
    """The places of numbers `[n]` among ascending ones; -1 if they are not there."""
    begins = np.ones(len(sought_numbers), np.bool_)  # of runs, which mostly are runs here, too
    np.not_equal(sought_numbers[1:], sought_numbers[:-1] + 1, out=begins[1:])
    first = np.flatnonzero(begins)
    shift = np.searchsorted(numbers, sought_numbers[first]) - first
    last = len(numbers) - 1
    rows = np.minimum(np.arange(len(sought_numbers)) + shift[np.cumsum(begins) - 1], last)
    if len(irregular := np.flatnonzero(numbers[rows] != sought_numbers)):
        rows[irregular] = np.minimum(np.searchsorted(numbers, sought_numbers[irregular]), last)
    return np.where(numbers[rows] == sought_numbers, rows, -1)


def _empty(kind: pa.DataType, count: int) -> np.ndarray:
    if pa.types.is_fixed_size_list(kind):
        return np.empty((count, kind.list_size), numpy_type(kind.value_type))
    return np.empty(count, numpy_type(kind))


def _as_arrow(values: np.ndarray | list[bytes], kind: pa.DataType) -> pa.Array:
    if isinstance(values, list):
        return pa.array(values, pa.large_binary()).cast(kind)
    return fixed_lists(values, kind) if values.ndim > 1 else pa.array(values, kind)


def fixed_lists(rows: np.ndarray, kind: pa.DataType) -> pa.Array:
    """A column of fixed-size lists from a matrix `[n, d]`."""
    flat = np.ascontiguousarray(rows, dtype=numpy_type(kind.value_type)).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat, kind.value_type), type=kind)
