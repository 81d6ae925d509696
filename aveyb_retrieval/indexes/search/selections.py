"""Selections: the documents that a filter lets through, and a cache of them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.indexes.types import PASSAGE_BITS, find_in

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.search.visible import Counted
    from aveyb_retrieval.indexes.store.filters import Scalar
    from aveyb_retrieval.indexes.types import BoolArray, IntArray, Kind

MAX_FOLDERS_KEPT = 64  # folders whose contents are remembered for a selection
MAX_FIELDS_COUNTED = 16  # fields whose values are remembered for a selection


class Allowed:
    """The documents that a filter lets through, ascending, and what was computed of them.

    Threads share it: an attribute is set only once its value is complete.
    """

    _some = False  # whether only some of their passages are let through

    def __init__(self, docs: IntArray) -> None:
        self.docs = docs
        self.passages: IntArray | None = None  # once they are needed
        self.values: dict[str, list[tuple[Scalar, int]]] = {}
        # by the folder that is listed: its folders with their counts, and its documents
        self.folders: dict[str, tuple[list[tuple[str, int]], IntArray]] = {}
        self.counted: Counted | None = None  # where no other documents can be seen
        self._seen: BoolArray | None = None  # by document, and False behind the last

    @classmethod
    def of_passages(cls, numbers: IntArray) -> Allowed:
        """Only some of the passages of their documents."""
        selection = cls(np.unique(numbers >> PASSAGE_BITS))
        selection.passages = numbers
        selection._some = True
        return selection

    def holds(self, kind: Kind, numbers: IntArray) -> BoolArray:
        """Whether documents or passages `[n]`, by number, are among them, `[n]`."""
        docs = numbers if kind == "document" else numbers >> PASSAGE_BITS
        seen = self._seen
        if seen is None:
            seen = np.zeros(int(self.docs[-1]) + 2 if len(self.docs) else 1, np.bool_)
            seen[self.docs] = True
            self._seen = seen
        is_held = seen[np.minimum(docs, len(seen) - 1)]
        if self._some and kind == "passage":
            assert self.passages is not None  # of some they are given
            is_held[is_held] = find_in(self.passages, numbers[is_held])[1]
        return is_held

    def remember_values(self, field: str, values: list[tuple[Scalar, int]]) -> None:
        """Keep the counted values of a field, and those of the last other fields."""
        latest = list(self.values.items())[1 - MAX_FIELDS_COUNTED :]
        self.values = {**dict(latest), field: values}

    def remember_folder(self, under: str, folder: tuple[list[tuple[str, int]], IntArray]) -> None:
        """Keep what is in a folder, and in the last other folders."""
        latest = list(self.folders.items())[1 - MAX_FOLDERS_KEPT :]
        self.folders = {**dict(latest), under: folder}

    @property
    def table_bytes(self) -> int:
        """Bytes of what `forget_tables` lets go of."""
        tables = (table for table in (self._seen, self.passages) if table is not None)
        return sum(table.nbytes for table in tables)

    @property
    def base_bytes(self) -> int:
        """Bytes of what only a scan of all documents finds again."""
        listed = sum(docs.nbytes for _, docs in self.folders.values())
        return self.docs.nbytes + listed + (0 if self.counted is None else self.counted.nbytes)

    def forget_tables(self) -> None:
        """Let go of what is made again from the documents in a fraction of a millisecond."""
        self._seen = None
        self.passages = None


class SelectionCache:
    """The selections used last, by filter, in so many bytes.

    Half of the bytes are for tables that make a selection fast, half for the selections themselves:
    those used longest ago lose their tables first, so that one more of them than there is room for
    costs little.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes // 2
        self._lock = threading.Lock()
        self._selections: OrderedDict[str, Allowed] = OrderedDict()
        self._tables: OrderedDict[str, int] = OrderedDict()  # their bytes
        self._bases: dict[str, int] = {}  # bytes
        self._table_bytes = 0
        self._base_bytes = 0
        self._last: str | None = None  # what was used last has grown since

    def __len__(self) -> int:
        return len(self._selections)

    def get(self, key: str) -> Allowed | None:
        """The selection of a filter, if it is remembered."""
        with self._lock:
            selection = self._selections.get(key)
            if selection is not None:
                self._use(key)
            return selection

    def add(self, key: str, selection: Allowed) -> None:
        """Remember a selection, and forget what was used longest ago."""
        with self._lock:
            self._selections[key] = selection
            self._use(key)

    def _use(self, key: str) -> None:
        if self._last is not None:
            self._measure(self._last)
        self._last = key
        self._measure(key)
        self._selections.move_to_end(key)
        while self._table_bytes > self._max_bytes and len(self._tables) > 1:
            oldest, size = self._tables.popitem(last=False)
            self._table_bytes -= size
            self._selections[oldest].forget_tables()
        while self._base_bytes > self._max_bytes and len(self._selections) > 1:
            oldest, _ = self._selections.popitem(last=False)
            self._base_bytes -= self._bases.pop(oldest)
            self._table_bytes -= self._tables.pop(oldest, 0)

    def _measure(self, key: str) -> None:
        selection = self._selections.get(key)
        if selection is None:
            return
        tables, base = selection.table_bytes, selection.base_bytes
        self._table_bytes += tables - self._tables.get(key, 0)
        self._base_bytes += base - self._bases.get(key, 0)
        self._tables[key], self._bases[key] = tables, base
        self._tables.move_to_end(key)
