"""Documents into Milvus: published as a whole, or upserted and deleted in what readers see.

What is too long for a row is cut into pieces or named.
"""

from __future__ import annotations

import json
import logging
import random
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import EngineError, InputError
from aveyb_retrieval.indexes.engines.milvus.connection import WAIT, Server
from aveyb_retrieval.indexes.engines.milvus.filters import describe
from aveyb_retrieval.indexes.engines.milvus.schema import KINDS, LONGEST, MOST_FACTS, PIECES, MilvusVersions
from aveyb_retrieval.indexes.engines.milvus.view import NAMED, MilvusView, match_text
from aveyb_retrieval.indexes.engines.reader import Version
from aveyb_retrieval.indexes.engines.writer import CollectionWriter
from aveyb_retrieval.indexes.store.numbering import PASSAGE_BITS, rank_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aveyb_retrieval.indexes.engines.collection import CollectionSettings
    from aveyb_retrieval.indexes.engines.writer import PassageRow, Rows
    from aveyb_retrieval.indexes.input.documents import Record
    from aveyb_retrieval.indexes.types import FloatArray, Kind

Row = dict[str, Any]
# Documents are numbered from 0 as they are published. Numbers of documents that updates add are drawn at random from
# those above, so that writers need not know of each other; passages leave 43 bits to them.
FIRST_ADDED, MOST = 1 << 40, 1 << (63 - PASSAGE_BITS)
CUT = 64  # documents whose passages one expression deletes
CALL_ROWS = 1024  # rows of one call; a call has at most 64 MB
LONGEST_BOUNDS = 65_536  # bytes of a JSON field
_PIECE = 16_000  # characters of up to four bytes each

logger = logging.getLogger(__name__)


class MilvusWriter(CollectionWriter):
    """Writes a collection. Nothing keeps two writers apart: the last one to write a document decides."""

    def __init__(self, server: Server) -> None:
        super().__init__(MilvusVersions(server))
        self._server = server
        self._next = 0

    def close(self) -> None:
        """Close the connection."""
        self._server.close()

    # --- publishing --------------------------------------------------------------------------------------------------

    def begin(self, settings: CollectionSettings, *, restart: bool) -> int:
        """Begin or continue to publish; returns how many documents are there already."""
        self._next = super().begin(settings, restart=restart)
        with self._change():  # passages of documents that were not acknowledged
            more = f"number >= {self._next << PASSAGE_BITS}"
            self._server.client.delete(self.view().collection("passage"), filter=more, timeout=WAIT)
        return self._next

    def add(self, rows: Rows) -> None:
        """Add new documents to what is published; they are safe when this returns.

        Raises:
            InputError: a document holds what Milvus cannot.
        """
        with self._change():
            self._write(range(self._next, self._next + len(rows)), rows, ("passage", "document"))
        self._next += len(rows)

    def finish(self) -> None:
        """Seal what was added, so that its indexes are built, and count it.

        Raises:
            EngineError: something else was written beside it.
        """
        with self._change():
            for kind in KINDS:
                self._server.client.flush(self.view().collection(kind), timeout=WAIT)
            count = self.view().count("document")
        if count != self._next:
            raise EngineError(
                f"{self.name}: {count:,} documents where {self._next:,} were written: another process publishes under "
                "this name; let one do it, with --restart"
            )

    # --- inside ------------------------------------------------------------------------------------------------------

    def view(self) -> MilvusView:
        """Look at what is written to: at all that was acknowledged, and nothing is remembered."""
        return MilvusView(self._server, Version(self.version.number, self.version.settings, self.versions))

    def _replace(self, there: dict[str, int], rows: Rows) -> None:
        """Write documents, then remove what is left of their former texts: if it is interrupted, do it again."""
        fresh = iter(self._fresh(len(rows) - len(there)))
        numbers = [there[record.id] if record.id in there else next(fresh) for record, _ in rows]
        self._write(numbers, rows, ("document", "passage"))
        self._cut([number << PASSAGE_BITS | len(row.spans) for number, (_, row) in zip(numbers, rows, strict=True)])

    def _remove(self, docs: list[int]) -> None:
        self._cut([doc << PASSAGE_BITS for doc in docs])
        for start in range(0, len(docs), NAMED):
            self._server.client.delete(
                self.view().collection("document"), ids=docs[start : start + NAMED], timeout=WAIT
            )

    def _write(self, numbers: Iterable[int], rows: Rows, order: tuple[Kind, ...]) -> None:
        """Write documents under numbers. Those that come after their passages are whole if they are there."""
        made: dict[Kind, list[Row]] = {kind: [] for kind in KINDS}
        for number, (record, row) in zip(numbers, rows, strict=True):
            document, passages = make_rows(number, record, row.vector, self.rows_of(number, record, row), self.name)
            made["document"].append(document)
            made["passage"] += passages
        for kind in order:
            for start in range(0, len(made[kind]), CALL_ROWS):
                some = made[kind][start : start + CALL_ROWS]
                self._server.client.upsert(self.view().collection(kind), some, timeout=WAIT)

    def _cut(self, firsts: list[int]) -> None:
        """Delete passages of documents from the first given of each on, those of an interrupted update, too."""
        for start in range(0, len(firsts), CUT):
            some = " or ".join(
                f"(number >= {first} and number < {(first >> PASSAGE_BITS) + 1 << PASSAGE_BITS})"
                for first in firsts[start : start + CUT]
            )
            self._server.client.delete(self.view().collection("passage"), filter=some, timeout=WAIT)

    def _fresh(self, count: int) -> list[int]:
        """Numbers that no document has."""
        while True:
            numbers = random.SystemRandom().sample(range(FIRST_ADDED, MOST), count)
            if not self.view().read("document", ["number"], numbers):
                return numbers


def make_rows(
    number: int, record: Record, vector: FloatArray, made: tuple[str, str, list[PassageRow]], where: str
) -> tuple[Row, list[Row]]:
    """The row of a document and those of its passages, of what `CollectionWriter.rows_of` made.

    Raises:
        InputError: its id or metadata, or a heading, are longer than Milvus keeps.
    """
    (stored, words, passages), (facts, bounds) = made, describe(record.metadata)
    _check(record, "id", record.id, LONGEST)
    _check(record, "metadata", json.dumps(bounds), LONGEST_BOUNDS)
    for heading in {passage.heading for passage in passages}:
        _check(record, "heading", heading, LONGEST)
    pieces = [stored[start : start + _PIECE] for start in range(0, len(stored), _PIECE)]
    if len(facts) > MOST_FACTS or len(pieces) > PIECES:
        raise InputError(
            f"{record.location}: document {record.id!r} has {len(facts):,} fields and values in {len(stored):,} "
            f"characters; Milvus keeps {MOST_FACTS:,} in {PIECES * _PIECE:,}"
        )
    about = {"facts": facts, "bounds": bounds}
    document = {
        "number": number, "id": record.id, "rank": rank_of(record.id), "passages": len(passages), "stored": pieces,
        "words": _fitting(words, record, where), "vector": vector, **about,
    }  # fmt: skip
    return document, [
        {**passage._asdict(), "words": _fitting(passage.words, record, where), **about} for passage in passages
    ]


def _fitting(stored: str, record: Record, where: str) -> str:
    words = match_text(stored.split())
    if len(words) <= LONGEST:
        return words
    logger.warning(
        "%s: document %r has %d bytes of words, of which Milvus keeps %d: a search of documents by words finds it by "
        "its beginning only, one of passages by all of it",
        where, record.id, len(words), LONGEST,
    )  # fmt: skip
    return words[: words.rfind(" ", 0, LONGEST)]


def _check(record: Record, name: str, text: str, most: int) -> None:
    size = len(text.encode())
    if size > most:
        raise InputError(
            f"{record.location}: the {name} {text[:20]!r}... has {size:,} bytes; Milvus keeps up to {most:,}"
        )
