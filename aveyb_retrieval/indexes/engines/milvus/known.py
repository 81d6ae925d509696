"""The memory of a process of a collection: rows never change, so each is asked for once.

Removed documents are always needed; numbers, and metadata to evaluate filters by, only once somebody asks.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.engines.milvus.rows import DOCUMENT, KIND_BITS, REMOVED, STATE
from aveyb_retrieval.indexes.engines.milvus.versions import newest_state
from aveyb_retrieval.indexes.engines.milvus.word_search import is_in
from aveyb_retrieval.indexes.store.filters import compile_filter

if TYPE_CHECKING:
    from collections.abc import Callable

    from aveyb_retrieval.indexes.engines.milvus.rows import Table
    from aveyb_retrieval.indexes.store.filters import Filter
    from aveyb_retrieval.indexes.types import FloatArray, IntArray

_RANGE = 50_000  # documents whose numbers are asked for at once


@dataclass(frozen=True)
class State:
    """A generation of the documents, which a row holds as JSON.

    Attributes:
        collection: The Milvus collection.
        generation: Counts the changes since the publication, which is 0; -1 while it is published.
        settings: What the collection was published with.
        last: The highest number of a document.
        written: The time of the server at which all rows of the generation were there.
        purged: The rows of documents that were removed in this generation or earlier are gone.
        documents, passages: How many there are.
        document_terms, passage_terms: Terms of all of them together.
        passage_characters: Characters of all passages together.
    """

    collection: str
    generation: int
    settings: dict[str, Any]
    last: int = 0
    written: int = 0
    purged: int = 0
    documents: int = 0
    passages: int = 0
    document_terms: int = 0
    passage_terms: int = 0
    passage_characters: int = 0


class Removed(NamedTuple):
    """Documents that were removed up to a generation.

    Attributes:
        documents: Their numbers, ascending.
        present: Those whose rows may still be there, ascending.
    """

    documents: IntArray
    present: IntArray


class Catalog(NamedTuple):
    """The documents of a generation: numbers `[n]`, ascending, how many passages each has, and keys of their ids."""

    numbers: IntArray
    passages: IntArray
    keys: IntArray


class Known:
    """The parts of one version of a collection that never change again. Safe to use from many threads."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._lock = threading.RLock()
        self._removed: list[tuple[int, IntArray]] = []  # generation, numbers
        self._seen = -1  # generation up to which removed documents are known
        self._rows = np.empty((0, 4), dtype=np.int64)  # number, passages, key, generation
        self._listed = -1  # generation up to which numbers are known
        self._metadata: sqlite3.Connection | None = None
        self._with_metadata = -1  # generation up to which metadata are known
        self._mean: tuple[int, FloatArray] | None = None

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            if self._metadata is not None:
                self._metadata.close()
                self._metadata, self._with_metadata = None, -1

    def newest(self, *, since: int | None = None) -> tuple[State, Removed]:
        """The newest generation, and what was removed up to it; with `since`, one of that time will do."""
        with self._lock:
            seen = self._seen
        condition = f"kind == {STATE} or born > {seen}"
        rows = self._table.query(condition, ["kind", "born", "body"], "state", since=since)
        where = self._table.server.name
        state = read_state(newest_state([row for row in rows if row["kind"] == STATE], where), where)
        with self._lock:
            if state.generation > self._seen:
                new = [row for row in rows if row["kind"] == REMOVED and self._seen < row["born"] <= state.generation]
                self._removed += [(row["born"], np.array(json.loads(row["body"]), dtype=np.int64)) for row in new]
                self._seen = state.generation
            removed = [each for each in self._removed if each[0] <= state.generation]
        present = [numbers for born, numbers in removed if born > state.purged]
        return state, Removed(_ascending([numbers for _, numbers in removed]), _ascending(present))

    def catalog(self, state: State, removed: Removed) -> Catalog:
        """The documents of a generation."""
        with self._lock:
            if state.generation > self._listed:
                self._list(state)
            rows = self._rows
        rows = rows[(rows[:, 3] <= state.generation) & ~is_in(rows[:, 0], removed.documents)]
        if len(rows) != state.documents:
            raise IndexFormatError(
                f"{self._table.server.name}: {len(rows):,} documents, but {state.documents:,} are counted; search "
                "again, and if this stays, publish it again"
            )
        return Catalog(*rows[:, :3].T)

    def matching(self, where: Filter, state: State, removed: Removed) -> Catalog:
        """The documents of a generation that satisfy a filter, as our own store evaluates it.

        Raises:
            ConfigError: the filter means nothing.
        """
        condition = compile_filter(where)
        catalog = self.catalog(state, removed)
        if not where:
            return catalog
        with self._lock:
            database = self._load_metadata(state)
            rows = database.execute(
                f"SELECT number FROM documents WHERE {condition.sql} ORDER BY number",  # noqa: S608  # of our own
                condition.parameters,
            ).fetchall()
        found = np.array(rows, dtype=np.int64).reshape(-1)
        chosen = is_in(catalog.numbers, found)
        return Catalog(*(column[chosen] for column in catalog))

    def mean(self, generation: int, compute: Callable[[], FloatArray]) -> FloatArray:
        """The mean vector of a generation."""
        with self._lock:
            known = self._mean
        if known is None or known[0] != generation:
            known = generation, compute()
            with self._lock:
                self._mean = known
        return known[1]

    def _list(self, state: State) -> None:
        """Ask for the numbers of documents that are new since the last time."""
        first = int(self._rows[-1, 0]) + 1 if len(self._rows) else 1
        found = [self._rows]
        for start in range(first, state.last + 1, _RANGE):
            rows = self._table.query(
                f"doc >= {start} and doc < {start + _RANGE} and born > {self._listed} and born <= {state.generation}",
                ["n", "key", "born"],
                "document",
                since=state.written,
            )
            columns = [(row["number"] >> KIND_BITS, row["n"], row["key"], row["born"]) for row in rows]
            made = np.array(columns, dtype=np.int64).reshape(-1, 4)
            found.append(made[np.argsort(made[:, 0])])
        self._rows = np.concatenate(found)
        self._listed = state.generation

    def _load_metadata(self, state: State) -> sqlite3.Connection:
        """A table `documents` with the metadata of all documents that are listed."""
        if self._metadata is None:
            self._metadata = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
            self._metadata.execute("CREATE TABLE documents(number INTEGER PRIMARY KEY, metadata TEXT NOT NULL)")
        wanted = self._rows[self._rows[:, 3] > self._with_metadata, 0].tolist()
        if wanted:
            long = []
            for number, row in self._table.read(DOCUMENT, wanted, ["fields"], since=state.written):
                if row["fields"]:
                    self._metadata.execute("INSERT OR REPLACE INTO documents VALUES (?, ?)", (number, row["fields"]))
                else:
                    long.append(number)
            columns = ["doc", "first", "pieces", "body"]
            rows = [row for _, row in self._table.read(DOCUMENT, long, columns, since=state.written)]
            for row, body in zip(rows, self._table.bodies(rows, since=state.written), strict=True):
                self._metadata.execute("INSERT OR REPLACE INTO documents VALUES (?, ?)", (row["doc"], body["metadata"]))
        self._with_metadata = self._listed
        return self._metadata


def read_state(values: dict[str, Any], where: str) -> State:
    """Read a state from its JSON.

    Raises:
        IndexFormatError: it is damaged, or of another version of this package.
    """
    try:
        return State(**values)
    except TypeError as error:
        raise IndexFormatError(f"{where}: damaged state ({error}); publish it again") from error


def _ascending(parts: list[IntArray]) -> IntArray:
    return np.sort(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int64)
