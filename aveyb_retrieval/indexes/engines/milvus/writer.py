"""Documents into Milvus: published as a whole, or upserted and deleted in what readers see."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import EngineError
from aveyb_retrieval.indexes.engines.collection import CollectionSettings
from aveyb_retrieval.indexes.engines.milvus import schema
from aveyb_retrieval.indexes.engines.milvus.connection import Address, Server
from aveyb_retrieval.indexes.engines.milvus.rows import make_rows
from aveyb_retrieval.indexes.engines.milvus.schema import WAIT, Publication
from aveyb_retrieval.indexes.store.numbering import PASSAGE_BITS, rank_of
from aveyb_retrieval.indexes.store.words import language

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval.indexes.engines.milvus.rows import Row
    from aveyb_retrieval.indexes.input.documents import Record
    from aveyb_retrieval.indexes.types import EncodedRow

# Documents are numbered from 0 as they are published. Numbers of documents that updates add are drawn at random from
# those above, so that writers need not know of each other; passages leave 43 bits to them.
FIRST_ADDED, MOST = 1 << 40, 1 << (63 - PASSAGE_BITS)
CALL_ROWS = 1024  # rows of one call; a call has at most 64 MB
NAMED = 4096  # numbers in one expression


class MilvusWriter:
    """Writes a collection. Nothing keeps two writers apart: the last one to write a document decides."""

    def __init__(self, address: Address) -> None:
        """Connect; milvus-lite makes its database if it is not there.

        Raises:
            EngineError: no server answers there, or it refuses the user.
        """
        self.name = address.name
        self._server = Server(address, create=True)
        self._open: tuple[Publication, CollectionSettings] | None = None
        self._next = 0

    def close(self) -> None:
        """Close the connection."""
        self._server.close()

    # --- publishing --------------------------------------------------------------------------------------------------

    def begin(self, settings: CollectionSettings, *, restart: bool) -> int:
        """Begin or continue to publish; returns how many documents are there already."""
        server, before = self._server, schema.visible(self._server)
        found = schema.publications(server)
        last = found[-1].number if found else 0
        for building in found:
            if before is not None and building.number <= before.number:
                continue
            with server.translated():
                server.client.load_collection(building.about, timeout=WAIT)
            state = schema.read_state(server, building)
            if not restart and state is not None and state["settings"] == settings.to_json():
                self._open = building, settings
                schema.load_all(server, building)
                self._next = self._count("document")
                # passages of documents that were not acknowledged
                self._delete("passage", f"number >= {self._next << PASSAGE_BITS}")
                return self._next
            schema.drop(server, building)
        publication = Publication(f"{schema.alias_of(server)}_{last + 1}")
        schema.create(server, publication, settings.encoding.dim)
        schema.write_state(server, publication, {"settings": settings.to_json(), "changes": 0, "characters": 0})
        self._open, self._next = (publication, settings), 0
        return 0

    def add(self, rows: Sequence[tuple[Record, EncodedRow]]) -> None:
        """Add new documents to what is published; they are safe when this returns.

        Raises:
            InputError: a document holds what Milvus cannot.
        """
        documents, passages = self._rows(list(range(self._next, self._next + len(rows))), rows)
        self._write("insert", "passage", passages)
        self._write("insert", "document", documents)
        self._next += len(rows)

    def finish(self) -> None:
        """Seal what was added, so that its indexes are built, and count it.

        Raises:
            EngineError: something else was written beside it.
        """
        publication, settings = self._opened()
        with self._server.translated():
            for kind in ("document", "passage"):
                self._server.client.flush(publication.of(kind), timeout=WAIT)
        count = self._count("document")
        if count != self._next:
            raise EngineError(
                f"{self.name}: {count:,} documents where {self._next:,} were written: another process publishes under "
                "this name; let one do it, with --restart"
            )
        characters = sum(row["stop"] - row["start"] for row in self._all("passage", ["start", "stop"]))
        state = {"settings": settings.to_json(), "changes": 0, "characters": characters}
        schema.write_state(self._server, publication, state)

    def switch(self) -> None:
        """Show readers what was published."""
        schema.show(self._server, self._opened()[0])

    # --- changes -----------------------------------------------------------------------------------------------------

    def settings(self) -> CollectionSettings:
        """Return the settings of the collection that readers see.

        Raises:
            IndexFormatError: nothing was published under this name.
        """
        publication = schema.load(self._server)
        state = schema.state_of(self._server, publication)
        self._open = publication, CollectionSettings.from_json(state["settings"], self.name)
        return self._open[1]

    def upsert(self, rows: Sequence[tuple[Record, EncodedRow]]) -> None:
        """Add documents, or replace those of the same ids; they are safe when this returns.

        If it is interrupted, some of them may be there: do it again.

        Raises:
            InputError: a document holds what Milvus cannot.
        """
        last = {record.id: (record, row) for record, row in rows}  # of two with one id the last one counts
        self._opened()
        there = self._numbers(list(last))
        fresh = iter(self._fresh(len(last) - len(there)))
        numbers = [there[name] if name in there else next(fresh) for name in last]
        documents, passages = self._rows(numbers, list(last.values()))
        old = self._passages(list(there.values()))
        self._write("upsert", "document", documents)
        self._write("upsert", "passage", passages)
        kept = {row["number"] for row in passages}
        self._delete_numbers("passage", [row["number"] for row in old if row["number"] not in kept])
        self._changed(_characters(passages) - _characters(old))

    def delete(self, ids: Sequence[str]) -> int:
        """Remove documents by id; those that are not there are fine. Returns how many there were."""
        self._opened()
        there = list(self._numbers(ids).values())
        passages = self._passages(there)
        self._delete_numbers("passage", [row["number"] for row in passages])
        self._delete_numbers("document", there)
        self._changed(-_characters(passages))
        return len(there)

    def missing(self, ids: Sequence[str]) -> list[str]:
        """Return those of the ids that no document has."""
        self._opened()
        there = self._numbers(ids)
        return [document_id for document_id in ids if document_id not in there]

    # --- inside ------------------------------------------------------------------------------------------------------

    def _opened(self) -> tuple[Publication, CollectionSettings]:
        if self._open is None:
            self.settings()
        assert self._open is not None  # `settings` sets it or raises
        return self._open

    def _rows(self, numbers: list[int], rows: Sequence[tuple[Record, EncodedRow]]) -> tuple[list[Row], list[Row]]:
        words = language(self._opened()[1].encoding.language)
        made = [
            make_rows(number, record, row, words, self.name)
            for number, (record, row) in zip(numbers, rows, strict=True)
        ]
        return [document for document, _ in made], [passage for _, passages in made for passage in passages]

    def _write(self, how: str, kind: str, rows: list[Row]) -> None:
        call, name = getattr(self._server.client, how), self._opened()[0].of(kind)
        with self._server.translated():
            for start in range(0, len(rows), CALL_ROWS):
                call(name, rows[start : start + CALL_ROWS], timeout=WAIT)

    def _delete(self, kind: str, condition: str) -> None:
        with self._server.translated():
            self._server.client.delete(self._opened()[0].of(kind), filter=condition, timeout=WAIT)

    def _delete_numbers(self, kind: str, numbers: list[int]) -> None:
        for start in range(0, len(numbers), NAMED):
            self._delete(kind, f"number in {numbers[start : start + NAMED]}")

    def _changed(self, characters: int) -> None:
        publication, _ = self._opened()
        state = schema.state_of(self._server, publication)
        state |= {"changes": state["changes"] + 1, "characters": state["characters"] + characters}
        schema.write_state(self._server, publication, state)

    def _query(self, kind: str, condition: str, fields: list[str]) -> list[dict[str, Any]]:
        with self._server.translated():
            return list(
                self._server.client.query(
                    self._opened()[0].of(kind),
                    filter=condition,
                    output_fields=fields,
                    consistency_level="Strong",
                    timeout=WAIT,
                )
            )

    def _count(self, kind: str) -> int:
        return int(self._query(kind, "number >= 0", ["count(*)"])[0]["count(*)"])

    def _all(self, kind: str, fields: list[str]) -> list[dict[str, Any]]:
        return read_all(self._server, self._opened()[0].of(kind), "number >= 0", fields, "Strong")

    def _numbers(self, ids: Sequence[str]) -> dict[str, int]:
        """Numbers of documents by their ids."""
        found: dict[str, int] = {}
        for start in range(0, len(ids), CALL_ROWS):
            wanted = set(ids[start : start + CALL_ROWS])
            rows = self._query("document", f"rank in {[rank_of(name) for name in wanted]}", ["number", "id"])
            found |= {row["id"]: int(row["number"]) for row in rows if row["id"] in wanted}
        return found

    def _passages(self, docs: list[int]) -> list[dict[str, Any]]:
        return passages_of(self._server, self._opened()[0], docs, "Strong")

    def _fresh(self, count: int) -> list[int]:
        """Numbers that no document has."""
        if not count:
            return []
        while True:
            numbers = random.SystemRandom().sample(range(FIRST_ADDED, MOST), count)
            if not self._query("document", f"number in {numbers}", ["number"]):
                return sorted(numbers)


def read_all(
    server: Server, collection: str, condition: str, fields: list[str], consistency: str
) -> list[dict[str, Any]]:
    """All rows that satisfy a condition, however many, a page at a time."""
    rows: list[dict[str, Any]] = []
    with server.translated():
        pages = server.client.query_iterator(
            collection,
            batch_size=8192,
            filter=condition,
            output_fields=fields,
            consistency_level=consistency,
            timeout=WAIT,
        )
        while page := pages.next():
            rows.extend(page)
        pages.close()
    return rows


def passages_of(
    server: Server, publication: Publication, docs: Sequence[int], consistency: str
) -> list[dict[str, Any]]:
    """Numbers, starts and stops of the passages of documents."""
    return [
        row
        for start in range(0, len(docs), NAMED)
        for row in read_all(
            server,
            publication.of("passage"),
            f"doc in {list(docs[start : start + NAMED])}",
            ["number", "start", "stop"],
            consistency,
        )
    ]


def _characters(passages: Sequence[dict[str, Any]]) -> int:
    return sum(row["stop"] - row["start"] for row in passages)
