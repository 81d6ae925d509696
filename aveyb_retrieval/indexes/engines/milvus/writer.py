"""Documents into Milvus: published as a whole, or upserted and deleted in what readers see.

Milvus has no transactions. A change writes rows of a new generation, which nobody looks at, and then one row with its
state: from then on the generation is there, as a whole. Rows of removed documents go later, for searches under way.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import EngineError
from aveyb_retrieval.indexes.engines.collection import CollectionSettings
from aveyb_retrieval.indexes.engines.milvus import versions
from aveyb_retrieval.indexes.engines.milvus.batch import Counts, Words, check_id, document_rows, read_words
from aveyb_retrieval.indexes.engines.milvus.connection import Address, Server
from aveyb_retrieval.indexes.engines.milvus.known import Known, State, read_state
from aveyb_retrieval.indexes.engines.milvus.lock import WriterLock
from aveyb_retrieval.indexes.engines.milvus.rows import (
    DOCUMENT,
    KIND_BITS,
    PARTITIONS,
    PIECE,
    REMOVED,
    STATE,
    Row,
    Table,
    counted,
)
from aveyb_retrieval.indexes.engines.milvus.word_search import is_in
from aveyb_retrieval.indexes.engines.words import TermCounter
from aveyb_retrieval.indexes.store.words import language

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval.indexes.input.documents import Record
    from aveyb_retrieval.indexes.shards.parts import EncodedRow

SEGMENT_POSTINGS = 4_000_000  # words that are collected in memory before they are written
KEPT = 30.0  # seconds that rows of removed documents stay, for searches under way
_REMOVED_IN_ROW = 4000  # numbers
_READ_BACK = 64  # documents whose words are collected again at once
_WORDS = PIECE + 1  # the first kind of words


class MilvusWriter:
    """Writes a collection of one server; for one user at a time."""

    def __init__(self, address: Address) -> None:
        """Connect.

        Raises:
            EngineError: no server answers there, or it refuses the user.
        """
        self.name = address.name
        self._server = Server(address, create=True)
        self._lock = WriterLock(self._server)
        self._target: _Target | None = None

    def close(self) -> None:
        """Close the connection; what was not acknowledged is not there."""
        try:
            self._lock.release()
        except EngineError:
            pass  # the server is away; the lock names this process, whose end frees it
        finally:
            self._server.close()

    # --- publishing --------------------------------------------------------------------------------------------------

    def begin(self, settings: CollectionSettings, *, restart: bool) -> int:
        """Begin or continue to publish; returns how many documents are there already.

        Raises:
            IndexLockedError: another process is writing under this name.
        """
        self._lock.take()
        seen = versions.find_visible(self._server, load=True)
        there = versions.versions(self._server)
        current = next((number for number, name in there.items() if seen and name == seen["collection"]), 0)
        done: int | None = None
        for name in [name for number, name in there.items() if number > current]:
            done = self._continue(name, settings) if done is None and not restart else done
            if done is None or name != self._on().table.collection:
                versions.drop(self._server, name)
        if done is not None:
            return done
        table = versions.create(self._server, max(there, default=0) + 1, settings.encoding.dim)
        state = State(table.collection, -1, settings.to_json())
        self._target = _Target(table, settings, state)
        table.insert([_state_row(table, state)])
        return 0

    def add(self, rows: Sequence[tuple[Record, EncodedRow]]) -> None:
        """Add new documents to what is published; each is there once its own row is, which comes last.

        Raises:
            InputError: a document holds what Milvus cannot.
        """
        for record, _ in rows:
            check_id(record, self.name)
        on = self._on()
        made, counts = document_rows(on.table, on.words, on.state.last + 1, 0, rows)
        on.insert(*made.values())
        on.state = _counted(on.state, counts, last=on.state.last + len(rows))
        if on.words.postings >= SEGMENT_POSTINGS:
            on.write_words(0)

    def finish(self) -> None:
        """Write the words of what was added, and have the graph built."""
        on = self._on()
        on.write_words(0)
        on.table.insert([_state_row(on.table, replace(on.state, generation=0, written=on.written))])
        versions.build_graph(self._server, on.table.collection)

    def switch(self) -> None:
        """Show readers what was published."""
        versions.show(self._server, self._on().table.collection)

    # --- changes -----------------------------------------------------------------------------------------------------

    def settings(self) -> CollectionSettings:
        """Return the settings of the collection that readers see.

        Raises:
            IndexFormatError: nothing was published under this name.
        """
        state = read_state(versions.visible(self._server, load=True), self.name)
        settings = CollectionSettings.from_json(state.settings, self.name)
        self._target = _Target(Table(self._server, state.collection, settings.encoding.dim), settings, state)
        return settings

    def upsert(self, rows: Sequence[tuple[Record, EncodedRow]]) -> None:
        """Add documents, or replace those of the same ids, as one generation.

        Raises:
            InputError: a document holds what Milvus cannot.
            IndexLockedError: another process is writing under this name.
        """
        for record, _ in rows:
            check_id(record, self.name)
        last = {record.id: (record, row) for record, row in rows}  # of two with one id the last one counts
        on = self._locked()
        on.change(list(last.values()), on.find(list(last)))

    def delete(self, ids: Sequence[str]) -> int:
        """Remove documents by id, as one generation; missing ones are fine. Returns how many there were.

        Raises:
            IndexLockedError: another process is writing under this name.
        """
        on = self._locked()
        removed = on.find(ids)
        if removed:
            on.change([], removed)
        return len(removed)

    def missing(self, ids: Sequence[str]) -> list[str]:
        """Return those of the ids that no document has."""
        found = {row["name"] for row in self._on().find(ids)}
        return [document_id for document_id in ids if document_id not in found]

    # --- inside ------------------------------------------------------------------------------------------------------

    def _on(self) -> _Target:
        if self._target is None:
            self.settings()
        assert self._target is not None  # `settings` sets it or raises
        return self._target

    def _locked(self) -> _Target:
        """The version that readers see, with the lock: another one may have taken its place before."""
        if not self._lock.is_held:
            before = None if self._target is None else self._target.settings
            self._lock.take()
            now = self.settings()
            if before is not None:
                now.check_same(before, self.name)
        return self._on()

    def _continue(self, name: str, settings: CollectionSettings) -> int | None:
        """Take up an interrupted publication: how many documents it has, or None where it is of something else."""
        with self._server.translated():
            self._server.client.load_collection(name, timeout=versions.LOAD_WAIT)
        table = Table(self._server, name, settings.encoding.dim)
        rows = table.query(f"kind == {STATE}", ["body"], "state")
        if not rows or CollectionSettings.from_json(json.loads(rows[0]["body"])["settings"], self.name) != settings:
            return None
        done = table.count(f"kind == {DOCUMENT}", "document")
        if table.count(f"doc <= {done}", "document") != done:
            return None  # a batch is there in part
        table.remove(f"doc > {done}", "passage")
        table.remove(f"doc > {done} or kind >= {_WORDS}", "data")
        table.remove("born >= 0", "state")
        self._target = on = _Target(table, settings, State(name, -1, settings.to_json()))
        for start in range(1, done + 1, _READ_BACK):
            numbers = range(start, min(start + _READ_BACK, done + 1))
            on.state = _counted(on.state, read_words(table, on.words, numbers), last=numbers[-1])
            if on.words.postings >= SEGMENT_POSTINGS:
                on.write_words(0)
        return done


class _Target:
    """The version that is written to."""

    def __init__(self, table: Table, settings: CollectionSettings, state: State) -> None:
        self.table = table
        self.settings = settings
        self.state = state
        self.words = Words(TermCounter(language(settings.encoding.language)))
        self.written = 0
        self._known = Known(table)
        self._blocks = 0  # of words that were written in this generation
        self._is_clean = False

    def insert(self, *lists: list[Row]) -> None:
        """Add lists of rows, each of one partition, one after the other."""
        for rows in lists:
            if rows:
                self.written = max(self.written, self.table.insert(rows))

    def write_words(self, generation: int) -> None:
        """Write what words were collected as a segment."""
        rows = []
        for kind, key, block in self.words.blocks():
            rows.append(self.table.row(counted(generation, self._blocks), kind, generation, key=key, body=block))
            self._blocks += 1
        self.insert(rows)

    def find(self, ids: Sequence[str]) -> list[Row]:
        """The rows of documents with some ids, as of now."""
        state, removed = self._known.newest()
        rows = self.table.find(ids, ["n", "counts"], state.generation)
        numbers = np.array([row["number"] >> KIND_BITS for row in rows], dtype=np.int64)
        return [row for row, gone in zip(rows, is_in(numbers, removed.documents), strict=True) if not gone]

    def change(self, documents: Sequence[tuple[Record, EncodedRow]], removed: Sequence[Row]) -> None:
        """Make the next generation: add some documents and remove others. It is there when this returns."""
        if not self._is_clean:
            self._clean()
        self._is_clean = False
        generation, self._blocks = self.state.generation + 1, 0
        made, counts = document_rows(self.table, self.words, self.state.last + 1, generation, documents)
        for row in removed:
            counts += Counts.of(row).negative()
        purged = self._purge()
        self.insert(*made.values())
        self.write_words(generation)
        numbers = [row["number"] >> KIND_BITS for row in removed]
        now = int(time.time())
        self.insert(
            [
                self.table.row(counted(generation, i), REMOVED, generation, n=now, body=json.dumps(some))
                for i, some in enumerate(_parts(numbers, _REMOVED_IN_ROW))
            ]
        )
        last = self.state.last + len(documents)
        state = _counted(self.state, counts, last=last, generation=generation, purged=purged, written=self.written)
        self.table.insert([_state_row(self.table, state)])
        self.state, self._is_clean = state, True
        self.table.remove(f"kind == {STATE} and born < {generation}", "state")

    def _clean(self) -> None:
        """Remove what an interrupted change has left behind; its numbers are not given again."""
        state, _ = self._known.newest()
        leavings = [self.table.remove(f"born > {state.generation}", name, ["doc", "born"]) for name in PARTITIONS]
        rows = [row for some in leavings for row in some]
        # the next generation follows the highest that any row has
        generation = max([state.generation, *(row["born"] for row in rows)])
        self.state = replace(state, last=max([state.last, *(row["doc"] for row in rows)]), generation=generation)
        self.words.forget()
        self._is_clean = True

    def _purge(self) -> int:
        """Remove the rows of documents that were removed long ago; returns the generation up to which this is done."""
        rows = self.table.query(f"kind == {REMOVED} and born > {self.state.purged}", ["born", "n", "body"], "state")
        recent = [row["born"] for row in rows if row["n"] > time.time() - KEPT]
        done = min(recent, default=self.state.generation + 1) - 1
        numbers = [number for row in rows if row["born"] <= done for number in json.loads(row["body"])]
        for some in _parts(numbers, _REMOVED_IN_ROW):
            for name in ("document", "passage", "data"):
                self.table.remove(f"doc in {some}", name)
        return max(self.state.purged, done)


def _counted(state: State, counts: Counts, **changes: Any) -> State:
    """A state with what documents add to it."""
    now: dict[str, Any] = {name: value + getattr(state, name) for name, value in vars(counts).items()}
    return replace(state, **now, **changes)


def _state_row(table: Table, state: State) -> Row:
    """The row of a state. That of a publication under way has a number of its own."""
    return table.row(state.generation + 1, STATE, state.generation, body=json.dumps(asdict(state)))


def _parts(numbers: Sequence[int], most: int) -> list[list[int]]:
    return [list(numbers[start : start + most]) for start in range(0, len(numbers), most)]
