"""One Lance dataset at one of its versions: rows that are known by a number of ours, and found by
their words.

Lance's own addresses of rows change when fragments are merged; `_Rows` maps our numbers, a column,
to them.

Columns are read from mapped data files: a row costs the copy of its bytes, where `take` costs
milliseconds. They have Lance's layout "full zip", without compression and nulls: a page of
fixed-size lists is an array `[n, d]`; a page of texts are their lengths (eight bytes) and bytes,
one after the other, and beside it the places of all.
"""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial, wraps
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
from numpy.lib.stride_tricks import sliding_window_view

from aveyb_retrieval.errors import AveyBError, IndexFormatError, first_line
from aveyb_retrieval.indexes.store.parts import StoredColumn
from aveyb_retrieval.indexes.store.postings import FreshLists, PartLists, counted, scored, together
from aveyb_retrieval.indexes.store.vocabulary import Vocabulary, WordSet
from aveyb_retrieval.indexes.types import FIRST_BYTES, MAX_PASSAGES, widened, width_of_places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import lance
    import numpy.typing as npt

    from aveyb_retrieval.indexes.store.postings import Keep, WordLists
    from aveyb_retrieval.indexes.types import FloatArray, IntArray

CACHE_BYTES = int(os.environ.get("AVEYB_CACHE_BYTES", 256 << 20))
"""Memory in which Lance keeps opened indexes and metadata, for all indexes of a process together.
"""

MOST_VERSIONS = 128


@dataclass
class _Session:
    """Lance's caches, and the versions of datasets that were opened with them."""

    caches: lance.Session
    versions: dict[Path, set[int]]


_session: _Session | None = None
_forked = False


def _note_fork() -> None:
    global _forked  # one for a process
    _forked = _forked or _session is not None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def check_fork() -> None:
    """Raise AveyBError in a process forked from one that had an index open: its locks may be held
    for ever.
    """
    if _forked:
        raise AveyBError(
            f"process {os.getpid()} was forked from one that had opened an index, which cannot be"
            " used here: start workers by 'spawn' or 'forkserver', or open indexes only after the"
            " fork, in each worker"
        )


def session(path: Path, version: int = 0) -> lance.Session:
    """Return the caches to open a version of a dataset with: new ones after 128 versions of one
    dataset.

    Lance keeps every index open that it has opened: who follows a writer would run out of
    descriptors and of disk.
    """
    global _session  # one for a process
    if _session is None or len(_session.versions.get(path, ())) >= MOST_VERSIONS:
        import lance

        caches = lance.Session(
            index_cache_size_bytes=CACHE_BYTES * 3 // 4, metadata_cache_size_bytes=CACHE_BYTES // 4
        )
        _session = _Session(caches, {})
    _session.versions.setdefault(path, set()).add(version)
    return _session.caches


AT_HAND = 512  # vectors: copies of more take memory anew, and with it several times as long

LAYOUT = {
    b"lance-encoding:structural-encoding": b"fullzip",
    b"lance-encoding:compression": b"none",
    b"lance-encoding:dict-divisor": (
        b"1000000000"
    ),  # a page with fewer values than its rows by this would be numbered
}
"""What a field says of itself so that its vectors, or texts, can be mapped."""


@dataclass(frozen=True)
class MappedVectors:
    """The vectors of one data file, deleted rows too."""

    dtype: np.dtype[np.floating]
    starts: IntArray  # the row that each page begins with, `[p]`, ascending
    positions: IntArray  # the byte that it begins at, `[p]`
    windows: npt.NDArray[
        np.uint8
    ]  # the bytes of a row that would begin at each byte of the file, `[bytes, row]`

    @classmethod
    def open(cls, path: Path, column: str) -> MappedVectors:
        count, described, found, mapped = _mapped(path, column)
        dtype = np.dtype(described.type.value_type.to_pandas_dtype())
        row, rows, starts, positions = described.type.list_size * dtype.itemsize, 0, [], []
        for page in found:
            _check_layout(path, len(page.buffers) == 1)  # nulls have none
            (buffer,) = page.buffers
            _check_layout(
                path, buffer.size % row == 0 and buffer.position + buffer.size <= len(mapped)
            )
            starts.append(rows)
            positions.append(buffer.position)
            rows += buffer.size // row
        _check_layout(path, rows == count)
        return cls(dtype, np.array(starts), np.array(positions), sliding_window_view(mapped, row))

    def read_vectors(self, rows: IntArray, out: FloatArray, places: IntArray) -> None:
        """Copy rows `[n]` to places `[n]` of `out` `[m, d]`: some at a time, for whose copies
        memory is at hand.
        """
        for start in range(0, len(rows), AT_HAND):
            some = rows[start : start + AT_HAND]
            pages = np.searchsorted(self.starts, some, side="right") - 1
            first = self.positions[pages] + (some - self.starts[pages]) * self.windows.shape[1]
            out[places[start : start + AT_HAND]] = widened(self.windows[first].view(self.dtype))

    def as_stored(self, rows: IntArray, out: npt.NDArray[np.uint8]) -> np.ndarray:
        """Rows `[n]`, ascending, copied as they are to bytes `out` `[n, row]`: many of them, from
        page to page.
        """
        size, edges = self.windows.shape[1], np.searchsorted(rows, self.starts).tolist()
        for page, (start, stop) in enumerate(pairwise([*edges, len(rows)])):
            if start < stop:
                inside = rows[start:stop] - self.starts[page]
                stored = self.windows[self.positions[page] :: size][: inside[-1] + 1]
                np.take(
                    stored, inside, axis=0, out=out[start:stop], mode="clip"
                )  # "raise" would copy them twice
        return out.view(self.dtype)


@dataclass(frozen=True)
class MappedTexts:
    """The texts of one data file, deleted rows too."""

    # each one's first row, and at which bytes are its texts, and their places, of how many, `[p,
    # 4]`
    pages: IntArray
    data: npt.NDArray[np.uint8]  # the file, in which seven bytes or more follow all places

    @classmethod
    def open(cls, path: Path, rows: int, found: Any, mapped: npt.NDArray[np.uint8]) -> MappedTexts:
        about, first_row = [], 0
        for page in found:
            _check_layout(path, len(page.buffers) == 2)
            data, places = page.buffers
            width = width_of_places(data.size)
            end = max(data.position + data.size, places.position + places.size + 7)
            _check_layout(path, places.size % width == 0 and end <= len(mapped))
            bounds = mapped[places.position : places.position + places.size].view(f"<u{width}")
            first = int.from_bytes(mapped[data.position : data.position + 8].tobytes(), "little")
            _check_layout(
                path,
                len(bounds) > 1
                and bounds[0] == 0
                and bounds[1] == first + 8
                and bounds[-1] == data.size,
            )
            about.append((first_row, data.position, places.position, width))
            first_row += len(bounds) - 1
        _check_layout(path, first_row == rows)
        return cls(np.array(about, np.int64).reshape(-1, 4), mapped)

    def read_texts(self, rows: IntArray) -> list[bytes]:
        """The texts of rows `[n]`, in UTF-8."""
        row, first, places, width = self.pages[
            np.searchsorted(self.pages[:, 0], rows, side="right") - 1
        ].T
        at = places + (rows - row) * width
        numbers = np.ndarray(len(self.data) - 7, "<u8", self.data, strides=(1,))
        edges = [
            first + (numbers[each] & FIRST_BYTES[width]).astype(np.int64)
            for each in (at, at + width)
        ]
        return [self.data[a + 8 : b].tobytes() for a, b in np.stack(edges, axis=1).tolist()]


@dataclass(frozen=True)
class KeptTexts:
    """The texts of one data file of which a page holds one for many rows, deleted rows too: in
    memory, each once.
    """

    texts: list[bytes]
    places: IntArray  # of the text of each row, `[n]`

    def read_texts(self, rows: IntArray) -> list[bytes]:
        """The texts of rows `[n]`, in UTF-8."""
        return [self.texts[place] for place in self.places[rows].tolist()]


Texts: TypeAlias = "MappedTexts | KeptTexts | StoredColumn"


def open_texts(path: Path, column: str) -> MappedTexts | KeptTexts:
    """Map the texts of a data file."""
    count, described, found, mapped = _mapped(path, column)
    _check_layout(path, described.metadata == LAYOUT)  # a compressed page has as many buffers
    if all(len(page.buffers) > 1 for page in found):
        return MappedTexts.open(path, count, found, mapped)
    kept = file_columns(path, [column])[column].combine_chunks().dictionary_encode()
    _check_layout(path, not kept.null_count)
    return KeptTexts(
        [text.encode() for text in kept.dictionary.to_pylist()], kept.indices.to_numpy()
    )


def _mapped(path: Path, column: str) -> tuple[int, pa.Field, Any, npt.NDArray[np.uint8]]:
    """The rows of a data file, what it says of a column, the pages of this, and the file's bytes,
    mapped.
    """
    from lance.file import LanceFileReader

    about = LanceFileReader(str(path)).metadata()
    place = about.schema.get_field_index(column)
    mapped = np.asarray(np.memmap(path, np.uint8, "r"))
    return about.num_rows, about.schema.field(place), about.columns[place].pages, mapped


def file_columns(path: str | Path, columns: Sequence[str]) -> pa.Table:
    """Columns of a data file, deleted rows too."""
    from lance.file import LanceFileReader

    return LanceFileReader(str(path), columns=list(columns)).read_all().to_table()


def _check_layout(path: Path, fits: bool) -> None:
    if not fits:
        raise IndexFormatError(
            f"{path}: its vectors or words are laid out otherwise than this package writes them;"
            " build the index again"
        )


os.environ.setdefault(
    "LANCE_LOG", "error"
)  # else every new dataset is a warning; read when Lance is imported

WORDS, FORMS, VECTOR = "words", "forms", "vector"
SPAN = ("start", "stop")
HELD = "passages"  # a column of integers that is kept in memory, where a dataset has it

FILES: Final = "2.2"  # the version of Lance's file format
SMALL_FRAGMENTS = (
    16  # so many pieces that are not indexed or merged yet are put together within a change
)
UNINDEXED_ROWS = (
    128  # so many are looked through by every search of words, which costs about a millisecond
)
LARGE = 1 << 16  # rows: a fragment of so many is merged with others only to drop deleted rows
# rows that a search of words asks for beyond those wanted, to see whether equal scores go on
TIES = 16
MOST_TIES = 1 << 16
DROP_SHARE = 0.2  # a fragment with a larger share of deleted rows is written again by `compact`


@dataclass(frozen=True)
class _Rows:
    """The rows of one fragment, deleted ones too: their numbers as they stand `[n]`, and how to
    find them.
    """

    fragment: int
    file: Path
    address: str | None  # of the file, where it is not here
    numbers: IntArray
    order: IntArray | None  # None: they ascend
    _texts: dict[str, Texts] = field(default_factory=dict)

    @classmethod
    def of(cls, fragment: int, file: Path, address: str | None, numbers: IntArray) -> _Rows:
        ascending = len(numbers) < 2 or bool((np.diff(numbers) > 0).all())
        return cls(
            fragment,
            file,
            address,
            numbers,
            None if ascending else np.argsort(numbers, kind="stable"),
        )

    @cached_property
    def vectors(self) -> MappedVectors | StoredColumn:
        return (
            StoredColumn(self.address, VECTOR, self.file)
            if self.address
            else MappedVectors.open(self.file, VECTOR)
        )

    def texts(self, column: str) -> Texts:
        """A column that is laid out to be mapped, opened once."""
        if column not in self._texts:
            stored = StoredColumn(self.address, column, self.file) if self.address else None
            self._texts[column] = stored or open_texts(self.file, column)
        return self._texts[column]

    @cached_property
    def spans(self) -> IntArray:
        """The characters `[n, 2]` of passages in their documents' texts: kept in memory."""
        columns = file_columns(self.address or self.file, SPAN).columns
        return np.stack([column.to_numpy() for column in columns], axis=1)

    def find(self, wanted: IntArray) -> IntArray:
        """Rows of numbers `[n]`; -1 where this fragment does not have one."""
        if not len(self.numbers):
            return np.full(len(wanted), -1, dtype=np.int64)
        begins = np.ones(
            len(wanted), np.bool_
        )  # the first of those in a row, which mostly are so here, too
        np.not_equal(wanted[1:], wanted[:-1] + 1, out=begins[1:])
        first = np.flatnonzero(begins)
        shift = np.searchsorted(self.numbers, wanted[first], sorter=self.order) - first
        rows = self._rows_at(np.arange(len(wanted)) + shift[np.cumsum(begins) - 1])
        if len(others := np.flatnonzero(self.numbers[rows] != wanted)):
            rows[others] = self._rows_at(
                np.searchsorted(self.numbers, wanted[others], sorter=self.order)
            )
        return np.where(self.numbers[rows] == wanted, rows, -1)

    def _rows_at(self, places: IntArray) -> IntArray:
        """The rows at places among the ascending numbers; behind the last, the last one."""
        places = np.minimum(places, len(self.numbers) - 1)
        return places if self.order is None else self.order[places]


P = ParamSpec("P")
T = TypeVar("T")


def reading(method: Callable[Concatenate[Dataset, P], T]) -> Callable[Concatenate[Dataset, P], T]:
    """Have a method of a dataset say what `damage` says: of files that are damaged anything is an
    answer.
    """

    @wraps(method)
    def guarded(dataset: Dataset, *args: P.args, **options: P.kwargs) -> T:
        with damage(dataset.path):
            return method(dataset, *args, **options)

    return guarded


class Dataset:
    """A Lance dataset, open at one version.

    Reading is safe from many threads; one writer moves it on.
    """

    def __init__(
        self,
        path: Path,
        key: str,
        opened: lance.LanceDataset,
        before: Dataset | None = None,
        address: str | None = None,
    ) -> None:
        self.path = path
        self.address = address  # where Lance reads it, if not all of its files are in that folder
        self.key = key  # the column of our numbers, int64
        self._lance = opened
        self._known: dict[tuple[int, str], _Rows] = {} if before is None else dict(before._known)
        self._held: dict[tuple[int, str, str], tuple[IntArray, IntArray]] = (
            {} if before is None else dict(before._held)
        )
        self._deletions: frozenset[Path] = (
            frozenset() if before is None else before._deletions
        )  # that were checked
        self._word_sets: dict[str, dict[str, WordSet]] = (
            {} if before is None else dict(before._word_sets)
        )
        self._part_lists: dict[str, dict[str, PartLists]] = (
            {} if before is None else dict(before._part_lists)
        )
        self._vocabularies: dict[str, Vocabulary] = {}
        self._indexed: dict[str, tuple[list[tuple[str, str]], dict[int, Counter[str]]]] = {}

    @classmethod
    def open(
        cls,
        path: Path,
        version: int,
        key: str,
        before: Dataset | None = None,
        address: str | None = None,
    ) -> Dataset:
        """Open a version; `before` is the same dataset at another one, whose fragments need not be
        read again.
        """
        import lance

        with damage(path):
            found = lance.dataset(
                address or str(path), version=version, session=session(path, version)
            )
            opened = cls(path, key, found, before, address)
            opened._check_deletions()
        return opened

    def _check_deletions(self) -> None:
        """Read the lists of deleted rows: one that lies about its size ends the process in Lance,
        and raises here.
        """
        fragments = [
            each for each in self._lance.get_fragments() if each.metadata.deletion_file is not None
        ]
        named = {
            self.path / "_deletions" / Path(str(each.deletion_file())).name for each in fragments
        }
        for file in named - self._deletions:
            if file.suffix == ".arrow":
                with pa.memory_map(str(file)) as source:
                    pa.ipc.open_file(source).read_all().validate(full=True)
        self._deletions = frozenset(named)

    @classmethod
    def create(cls, path: Path, schema: pa.Schema, key: str) -> Dataset:
        """Make an empty dataset; one that is there gets a new version, and its old ones stay."""
        import lance

        lance.write_dataset(
            schema.empty_table(), str(path), mode="overwrite", data_storage_version=FILES
        )
        return cls(path, key, lance.dataset(str(path), session=session(path)))

    @property
    def version(self) -> int:
        return int(self._lance.version)

    @cached_property
    def schema(self) -> pa.Schema:
        return self._lance.schema

    def __len__(self) -> int:
        return int(self._lance.count_rows())

    # --- reading
    # ----------------------------------------------------------------------------------------------

    @reading
    def take(self, numbers: IntArray, columns: Sequence[str]) -> pa.Table:
        """Rows of numbers `[n]`, in their order, with the key; those that are not there are left
        out.
        """
        addresses = self._addresses(numbers)
        # the private form takes addresses, which the public one (positions among live rows) would
        # have to count
        return self._lance._take_rows(
            addresses[addresses >= 0].tolist(), columns=[self.key, *columns]
        )

    @reading
    def scan(
        self,
        columns: list[str] | dict[str, str],
        where: str | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """Columns, or expressions by name, of (the first) rows that satisfy a condition, in the
        dataset's order.
        """
        return self._lance.to_table(columns=columns, filter=where, limit=limit)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Columns of all rows, piece by piece."""
        with damage(self.path):
            yield from self._lance.scanner(columns=list(columns)).to_batches()

    @reading
    def vectors(self, numbers: IntArray) -> FloatArray:
        """The column `VECTOR`, `[n, d]` float32, of numbers `[n]`, whether deleted or not."""
        out = np.empty((len(numbers), self.schema.field(VECTOR).type.list_size), np.float32)
        for fragment, rows, places in self._stored(numbers):
            fragment.vectors.read_vectors(rows, out, places)
        return out

    def stored_vectors(self, numbers: IntArray, size: int) -> Iterator[tuple[IntArray, np.ndarray]]:
        """The column `VECTOR` of numbers `[n]`, up to `size` at a time: numbers `[m]` and `[m, d]`,
        until the next.

        As they are stored, float16 or float32, where they are mapped.
        """
        out: npt.NDArray[np.uint8] | None = None
        with damage(self.path):
            for fragment, rows, places in self._stored(numbers):
                order, mapped = np.argsort(rows, kind="stable"), fragment.vectors
                for start in range(0, len(rows), size):
                    some = order[start : start + size]
                    there = numbers[places[some]]
                    if not isinstance(mapped, MappedVectors):
                        yield there, self.vectors(there)
                        continue
                    if out is None:
                        out = np.empty((min(size, len(numbers)), mapped.windows.shape[1]), np.uint8)
                    yield there, mapped.as_stored(rows[some], out[: len(some)])

    @reading
    def spans(self, numbers: IntArray, column: str | None = None) -> tuple[IntArray, list[bytes]]:
        """The columns `SPAN`, `[n, 2]`, of numbers `[n]`, as `vectors` reads its own; and one of
        `LAYOUT`, in UTF-8.
        """
        out, texts = np.empty((len(numbers), 2), np.int64), [b""] * len(numbers)
        for fragment, rows, places in self._stored(numbers):
            out[places] = fragment.spans[rows]
            read = fragment.texts(column).read_texts(rows) if column else ()
            for place, text in zip(places.tolist(), read, strict=False):
                texts[place] = text
        return out, texts

    def _stored(self, numbers: IntArray) -> Iterator[tuple[_Rows, IntArray, IntArray]]:
        """What `_find` yields, or an error where there never was a row of one of them."""
        left = len(numbers)
        for fragment, rows, places in self._find(numbers):
            yield fragment, rows, places
            left -= len(rows)
        if left:
            raise IndexFormatError(
                f"{self.path}: the index has {left} numbers that are not stored; run `aveyb-index"
                f" verify {self.path.parent}`"
            )

    @cached_property
    @reading
    def held(self) -> tuple[IntArray, IntArray]:
        """The numbers `[n]` of all stored rows, ascending, and the column `HELD` `[n]`: kept in
        memory.
        """
        held, parts = {}, []
        for fragment in self._lance.get_fragments():
            about = fragment.metadata
            name = (int(fragment.fragment_id), about.files[0].path, str(about.deletion_file))
            if (columns := self._held.get(name)) is None:
                rows = self._lance.scanner(
                    columns=[self.key, HELD], fragments=[fragment]
                ).to_table()
                columns = rows[self.key].to_numpy(), rows[HELD].to_numpy()
                if ((columns[1] < 0) | (columns[1] > MAX_PASSAGES)).any():
                    raise ValueError("numbers of passages that no document has")
            held[name] = columns
            parts.append(held[name])
        self._held = held
        if not parts:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        numbers, values = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        if (np.diff(numbers) > 0).all():
            return numbers, values
        order = np.argsort(numbers, kind="stable")
        return numbers[order], values[order]

    @reading
    def by_words(self, words: Sequence[str], k: int) -> tuple[IntArray, FloatArray]:
        """The `k` best rows by BM25 that hold any of some words: numbers and scores, best first,
        ties by number.
        """
        from lance.query import MatchQuery

        rows = sum(
            len(each.numbers) for each in self._fragments
        )  # deleted ones too: Lance would count the others anew
        if not words or not rows:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        asked = min(k + TIES, rows)
        while True:
            found = self._lance.scanner(
                columns=["_score"],
                with_row_id=True,
                full_text_query=MatchQuery(" ".join(words), WORDS),
                limit=asked,
            ).to_table()
            scores = np.sort(found["_score"].to_numpy().astype(np.float32))[::-1]
            # all that tie with the k-th are there, so that their numbers decide and not the order
            # of Lance's lists
            if len(scores) < asked or asked >= min(rows, MOST_TIES) or scores[-1] < scores[k - 1]:
                break
            asked = min(4 * asked, max(rows, k))
        numbers, scores = (
            self._numbers(found["_rowid"].to_numpy()),
            found["_score"].to_numpy().astype(np.float32),
        )
        order = np.lexsort((numbers, -scores))[:k]
        return numbers[order], scores[order]

    @reading
    def holding(self, *phrases: Sequence[str], column: str = WORDS) -> IntArray:
        """Numbers `[n]`, ascending, of all rows that hold any of some phrases, words one after
        another.

        Some rows may be deleted.
        """
        from lance.query import PhraseQuery

        alone = list(dict.fromkeys(phrase[0] for phrase in phrases if len(phrase) == 1))
        found = [np.empty(0, np.int64)]
        found += [
            held["number"] for held in self.postings(alone, lambda numbers: numbers >= 0, column)
        ]
        for phrase in phrases if len(self) else ():
            if len(phrase) > 1:
                query = PhraseQuery(" ".join(phrase), column)
                scanner = self._lance.scanner(
                    columns=["_score"], with_row_id=True, full_text_query=query
                )
                found.append(self._numbers(scanner.to_table()["_rowid"].to_numpy()))
        numbers = np.sort(np.concatenate(found), kind="stable")  # they mostly ascend already
        return numbers[np.diff(numbers, prepend=-1) > 0]

    @reading
    def postings(self, words: Sequence[str], keep: Keep, column: str = WORDS) -> list[np.ndarray]:
        """Which rows hold each of some words, of those that `keep` says true of: `POSTING` `[n]`,
        in any order.

        Some rows may be deleted.
        """
        return together(self._word_lists(column), words, keep) if words else []

    @reading
    def scored(self, words: Sequence[str], k: int, keep: Keep) -> tuple[IntArray, FloatArray]:
        """What `by_words` gives, of those rows that `keep` says true of, by their numbers: of no
        deleted ones.
        """
        numbers, values = scored(self._word_lists(WORDS), words, keep)
        scores = values.astype(np.float32)
        if len(scores) > k:
            best = scores >= np.partition(scores, len(scores) - k)[len(scores) - k]
            numbers, scores = numbers[best], scores[best]
        order = np.lexsort((numbers, -scores))[:k]
        return numbers[order], scores[order]

    @reading
    def counted(self, keep: Keep) -> tuple[int, int]:
        """How many rows with words there are of those that `keep` says true of, and how many words
        these have.
        """
        return counted(self._word_lists(WORDS), keep)

    @reading
    def vocabulary(self, column: str = WORDS) -> Vocabulary:
        """The words of a column that is indexed by words, read when they are first asked for."""
        if column not in self._vocabularies:
            _, fresh = self._words_indexed(column)
            words = Counter(chain.from_iterable(fresh.values()))
            self._vocabularies[column] = Vocabulary([*self._sets_of_words(column).values()], words)
        return self._vocabularies[column]

    def _sets_of_words(self, column: str) -> dict[str, WordSet]:
        """The words of each part, by their file; those of parts that are gone are let go."""
        files, _ = self._words_indexed(column)
        known = self._word_sets.get(column, {})
        sets = {
            file: (
                known.get(file)
                or WordSet.read(file, f"{part}_invert.lance", partial(damage, self.path))
            )
            for file, part in files
        }
        self._word_sets[column] = sets
        return sets

    def _word_lists(self, column: str) -> WordLists:
        files, fresh = self._words_indexed(column)
        known, sets = self._part_lists.get(column, {}), self._sets_of_words(column)
        parts = {
            file: known.get(file) or PartLists.read(sets[file], part, self._numbers)
            for file, part in files
        }
        self._part_lists[column] = parts
        return [*parts.values(), FreshLists(fresh)]

    def _words_indexed(self, column: str) -> tuple[list[tuple[str, str]], dict[int, Counter[str]]]:
        """The parts of an index of words (the file of its words, how other names begin), and words
        of rows in none.
        """
        if column not in self._indexed:
            files, covered, counted = list[tuple[str, str]](), set[int](), dict[int, Counter[str]]()
            for described in self._lance.describe_indices():
                for segment in described.segments if described.field_names == [column] else ():
                    covered.update(map(int, segment.fragment_ids))
                    folder = f"_indices/{segment.uuid}"
                    for file in sorted((self.path / folder).glob("part_*_tokens.lance")):
                        part = file.name.removesuffix("_tokens.lance")
                        files.append((str(file), f"{self.address or self.path}/{folder}/{part}"))
            if fresh := [
                each for each in self._lance.get_fragments() if each.fragment_id not in covered
            ]:
                rows = self._lance.scanner(columns=[self.key, column], fragments=fresh).to_table()
                words = map(Counter, map(str.split, rows[column].to_pylist()))
                counted = dict(zip(rows[self.key].to_pylist(), words, strict=True))
            self._indexed[column] = files, counted
        return self._indexed[column]

    # --- numbers and addresses
    # ---------------------------------------------------------------------------------------

    @cached_property
    def _fragments(self) -> list[_Rows]:
        """The rows of all fragments, newest first: a row that was written again is found before
        what it replaced.
        """
        found = [self._rows(fragment) for fragment in self._lance.get_fragments()]
        kept = {id(rows) for rows in found}
        self._known = {name: rows for name, rows in self._known.items() if id(rows) in kept}
        return sorted(found, key=lambda rows: -rows.fragment)

    def _rows(self, fragment: Any) -> _Rows:
        name = (int(fragment.fragment_id), fragment.metadata.files[0].path)
        if (rows := self._known.get(name)) is None:
            table = self._lance.scanner(
                columns=[self.key],
                fragments=[fragment],
                with_row_id=True,
                include_deleted_rows=True,
            ).to_table()
            numbers = table[self.key].to_numpy().astype(np.int64)
            file = self.path / "data" / name[1]
            stored = (
                None if self.address is None or file.exists() else f"{self.address}/data/{name[1]}"
            )
            rows = self._known[name] = _Rows.of(name[0], file, stored, numbers)
        return rows

    def _find(self, numbers: IntArray) -> Iterator[tuple[_Rows, IntArray, IntArray]]:
        """Fragments that hold some of numbers `[n]`, deleted or not: their rows `[m]`, and which of
        `[n]` these are.
        """
        left = np.arange(len(numbers))
        for fragment in self._fragments:
            if not len(left):
                return
            rows = fragment.find(numbers[left])
            there = rows >= 0
            if there.any():
                yield fragment, rows[there], left[there]
                left = left[~there]

    @reading
    def _addresses(self, numbers: IntArray) -> IntArray:
        """Addresses `[n]` of numbers `[n]`, whether deleted or not; -1 where there never was such a
        row.
        """
        numbers = np.asarray(numbers, dtype=np.int64)
        found = np.full(len(numbers), -1, dtype=np.int64)
        for fragment, rows, places in self._find(numbers):
            found[places] = (fragment.fragment << 32) | rows
        return found

    def _numbers(self, addresses: IntArray) -> IntArray:
        """Numbers `[n]` of the rows at addresses `[n]`; -1 in fragments that are gone."""
        addresses = addresses.astype(np.int64)
        numbers = np.empty(len(addresses), dtype=np.int64)
        by_fragment = {rows.fragment: rows.numbers for rows in self._fragments}
        for fragment in np.unique(addresses >> 32).tolist():
            mine = addresses >> 32 == fragment
            numbers[mine] = (
                by_fragment[fragment][addresses[mine] & 0xFFFFFFFF]
                if fragment in by_fragment
                else -1
            )
        return numbers

    # --- writing
    # ----------------------------------------------------------------------------------------------

    def append(self, rows: pa.Table) -> None:
        import lance

        if rows.num_rows:
            self._moved(lance.write_dataset(rows, self._lance, mode="append"))

    def delete(self, numbers: IntArray) -> None:
        """Delete the rows of these numbers; those that are not there are fine."""
        addresses = self._addresses(numbers)
        addresses = addresses[addresses >= 0]
        for start in range(0, len(addresses), 4096):
            listed = ",".join(map(str, addresses[start : start + 4096].tolist()))
            self._lance.delete(f"_rowid IN ({listed})")
        self._moved(self._lance)

    def index(self, column: str) -> None:
        """Make the index of a column: of words, or of values that are looked up."""
        if column in (WORDS, FORMS):
            with_position = column == WORDS  # for phrases
            self._lance.create_scalar_index(
                column, "INVERTED", with_position=with_position, **_WORDS_AS_THEY_ARE
            )
        else:
            self._lance.create_scalar_index(column, "BTREE")
        self._moved(self._lance)

    def settle(self, *, whole: bool = False) -> bool:
        """Index and merge what has gathered, if that is due (`whole`: everything); return whether
        anything was done.

        Pieces are merged by tiers: how often a row is written again grows with the logarithm of the
        rows.
        """
        done = False
        indexes = self._lance.describe_indices()
        rows = {each.fragment_id: each.physical_rows for each in self._lance.get_fragments()}
        covered = [
            {int(i) for s in described.segments for i in s.fragment_ids} for described in indexes
        ]
        indexed = set.intersection(*covered) if covered else set()
        sizes = [size for fragment, size in rows.items() if fragment not in indexed]
        if indexes and (
            len(sizes) >= SMALL_FRAGMENTS or (whole and sizes) or sum(sizes) > UNINDEXED_ROWS
        ):
            for described in indexes:
                segments = [
                    sum(rows.get(int(i), 0) for i in s.fragment_ids) for s in described.segments
                ]
                merged = None if whole else _tier(segments, sum(sizes))  # None: as Lance likes, all
                self._lance.optimize.optimize_indices(
                    index_names=[described.name], num_indices_to_merge=merged
                )
            self._moved(self._lance)
            done = True
        return self._merge_fragments(whole=whole) or done

    def _merge_fragments(self, *, whole: bool) -> bool:
        fragments = self._lance.get_fragments()
        sizes = [f.physical_rows for f in fragments]
        small = [f for f in fragments if f.physical_rows < LARGE]
        if not whole and len(small) < SMALL_FRAGMENTS:
            return False
        merged = len(fragments) if whole else _tier(sizes, 0)
        left_alone = [
            int(f.fragment_id)
            for f in fragments[: len(fragments) - merged]
            if f.num_deletions <= DROP_SHARE * f.physical_rows
        ]
        self._lance.optimize.compact_files(
            target_rows_per_fragment=1 << 20,
            excluded_fragment_ids=left_alone,
            materialize_deletions_threshold=0.0 if whole else DROP_SHARE,
            compaction_mode="try_binary_copy",  # pages as they are, where no row was deleted
        )
        self._moved(self._lance)
        return True

    def _moved(self, opened: lance.LanceDataset) -> None:
        """Take over what a write made of the dataset."""
        self._lance = opened
        self._vocabularies, self._indexed = {}, {}
        for name in ("_fragments", "held"):
            self.__dict__.pop(name, None)

    # --- files
    # ----------------------------------------------------------------------------------------------

    def files(self) -> set[str]:
        """All files that this version is made of, relative to the folder of the dataset."""
        found = {f"_versions/{_manifest_name(self.path, self.version)}"}
        for fragment in self._lance.get_fragments():
            made_of = fragment.metadata
            found.update(f"data/{each.path}" for each in made_of.files)
            if made_of.deletion_file is not None:
                found.add(f"_deletions/{Path(str(fragment.deletion_file())).name}")
        for described in self._lance.describe_indices():
            for segment in described.segments:
                folder = self.path / "_indices" / str(segment.uuid)
                found.update(f"_indices/{segment.uuid}/{each.name}" for each in folder.iterdir())
        return found


_SOURCE = re.compile(r",? \S+\.rs:\d+:\d+")  # where in Lance's source an error arose


@contextmanager
def damage(path: Path) -> Iterator[None]:
    """Turn what Lance says of files that it cannot read into an error of ours."""
    check_fork()
    try:
        yield
    except AveyBError:
        raise
    except (OSError, ValueError, RuntimeError, IndexError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            raise AveyBError(
                f"{path}: {error.strerror}; let this process open more (ulimit -n)"
            ) from error
        raise _unreadable(path, error) from error
    except BaseException as error:
        if (
            type(error).__name__ != "PanicException"
        ):  # how Rust's `panic!` arrives: of bytes that nobody expected
            raise
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: BaseException) -> IndexFormatError:
    reason = first_line(error, _SOURCE.sub("", str(error)))[:300]
    return IndexFormatError(
        f"{path}: files of the version that is open are missing or damaged ({reason}); if the index"
        f" was made again at this place, open it again, else run `aveyb-index verify {path.parent}`"
    )


_WORDS_AS_THEY_ARE: dict[str, Any] = {
    "base_tokenizer": "whitespace",
    "lower_case": False,
    "stem": False,
    "remove_stop_words": False,
    "ascii_folding": False,
    "max_token_length": None,
}


def _tier(sizes: Sequence[int], rows: int) -> int:
    """How many of the last pieces are merged with `rows` new rows: those not twice as large as what
    follows them.
    """
    merged = 0
    for size in reversed(sizes):
        if size > 2 * rows and merged and size > SMALL_FRAGMENTS:
            break
        if merged == 0 and rows and size > 2 * rows:
            break
        merged, rows = merged + 1, rows + size
    return merged


def _manifest_name(path: Path, version: int) -> str:
    for name in (f"{(1 << 64) - 1 - version}.manifest", f"{version}.manifest"):
        if (path / "_versions" / name).exists():
            return name
    raise IndexFormatError(
        f"{path}: version {version} of this dataset is not there; run `aveyb-index verify`"
    )


def newer_versions(path: Path, version: int) -> list[Path]:
    """The manifests of a dataset that are newer than one of its versions: what an unfinished change
    left.
    """
    return [
        found
        for found in (path / "_versions").glob("*.manifest")
        if found.stem.isdigit() and (1 << 64) - 1 - int(found.stem) > version
    ]
