"""Writing a collection: versions that are made and shown, and changes to the one that readers see."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.indexes.engines.reader import Version
from aveyb_retrieval.indexes.store.numbering import PASSAGE_BITS
from aveyb_retrieval.indexes.store.words import language

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractContextManager

    from aveyb_retrieval.indexes.engines.collection import CollectionSettings
    from aveyb_retrieval.indexes.engines.reader import CollectionView
    from aveyb_retrieval.indexes.engines.versions import Versions
    from aveyb_retrieval.indexes.input.documents import Record
    from aveyb_retrieval.indexes.types import EncodedRow, FloatArray

    Rows = Sequence[tuple[Record, EncodedRow]]


class PassageRow(NamedTuple):
    """A passage as it is stored: its characters in the text, its words as `Language.stored` gives them."""

    number: int
    start: int
    stop: int
    heading: str
    words: str
    vector: FloatArray


class CollectionWriter(ABC):
    """Documents are written to one server; for one thread at a time.

    Publishing goes `begin`, `add` ..., `finish`, `switch`: readers see nothing of it before `switch`. `upsert` and
    `delete` change the collection that readers see.
    """

    def __init__(self, versions: Versions) -> None:
        self.name = versions.name
        self.versions = versions
        self._open: Version | None = None

    # --- publishing --------------------------------------------------------------------------------------------------

    def begin(self, settings: CollectionSettings, *, restart: bool) -> int:
        """Begin or continue to publish; returns how many documents are there already.

        Raises:
            IndexLockedError: another process is publishing under this name, where the engine finds out.
        """
        with self.versions.translated():
            number = self.versions.begin(settings, restart=restart)
            self._open = Version(number, settings, self.versions)
            return self.view().count("document")

    @abstractmethod
    def add(self, rows: Rows) -> None:
        """Add new documents to what is published; they are safe when this returns.

        Raises:
            InputError: a document holds what the engine cannot.
        """

    @abstractmethod
    def finish(self) -> None:
        """Build the indexes of what was added."""

    def switch(self) -> None:
        """Show readers what was published."""
        with self.versions.translated():
            self.versions.switch(self.version.number)

    # --- changes -----------------------------------------------------------------------------------------------------

    def settings(self) -> CollectionSettings:
        """Return the settings of the collection that readers see.

        Raises:
            IndexFormatError: nothing was published under this name.
        """
        with self.versions.translated():
            self._open = self.versions.visible()
        return self._open.settings

    def upsert(self, rows: Rows) -> None:
        """Add documents, or replace those of the same ids; they are safe when this returns.

        Raises:
            InputError: a document holds what the engine cannot.
        """
        last = {record.id: (record, row) for record, row in rows}  # of two with one id the last one counts
        with self._change():
            self._replace(self.view().find(list(last)), list(last.values()))

    def delete(self, ids: Iterable[str], *, missing_ok: bool = True) -> int:
        """Remove documents by id; returns how many there were.

        Raises:
            InputError: an id is not there (unless `missing_ok`); nothing was removed.
        """
        wanted = sorted(set(ids))
        with self._change():
            there = self.view().find(wanted)
            missing = [] if missing_ok else [name for name in wanted if name not in there]
            if missing:
                raise InputError(f"{self.name}: no document has the id {missing[0]!r}; nothing was changed")
            self._remove(list(there.values()))
        return len(there)

    @abstractmethod
    def close(self) -> None:
        """Let go of the connection."""

    # --- inside ------------------------------------------------------------------------------------------------------

    @property
    def version(self) -> Version:
        """What is written to."""
        if self._open is None:
            self.settings()
        assert self._open is not None  # `settings` sets it or raises
        return self._open

    def rows_of(self, number: int, record: Record, row: EncodedRow) -> tuple[str, str, list[PassageRow]]:
        """What `CollectionView` reads of a document, its words, and its passages."""
        words = language(self.version.settings.encoding.language).stored
        passages = [
            PassageRow(
                number << PASSAGE_BITS | i, start, stop, heading, words(f"{heading}\n{record.text[start:stop]}"), vector
            )
            for i, ((start, stop), heading, vector) in enumerate(
                zip(row.spans.tolist(), row.headings, row.passages, strict=True)
            )
        ]
        stored = json.dumps([record.title, record.text, record.metadata_json, record.pages_json], ensure_ascii=False)
        return stored, words(f"{record.title}\n{record.text}"), passages

    @abstractmethod
    def view(self) -> CollectionView:
        """Look at what is written to."""

    def _change(self) -> AbstractContextManager[None]:
        """What every change happens in: all of it is there afterwards, and errors of the server are ours."""
        return self.versions.translated()

    def _replace(self, there: dict[str, int], rows: Rows) -> None:
        """Write documents, of which some replace those of the same ids that are `there`, by number."""
        self._remove(list(there.values()))
        self.add(rows)

    @abstractmethod
    def _remove(self, docs: list[int]) -> None:
        """Remove documents and their passages by number."""
