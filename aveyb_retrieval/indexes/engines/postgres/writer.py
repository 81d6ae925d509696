"""Documents into PostgreSQL: published as a whole, or upserted and deleted in what readers see."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import IndexLockedError, InputError
from aveyb_retrieval.indexes.engines.postgres.connection import connect
from aveyb_retrieval.indexes.engines.postgres.schema import PostgresVersions, prepare_server
from aveyb_retrieval.indexes.engines.postgres.view import PostgresView, vector_text
from aveyb_retrieval.indexes.engines.words import pack_postings, word_key
from aveyb_retrieval.indexes.engines.writer import CollectionWriter
from aveyb_retrieval.indexes.store.numbering import rank_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aveyb_retrieval.indexes.engines.collection import Address, CollectionSettings
    from aveyb_retrieval.indexes.engines.writer import Rows
    from aveyb_retrieval.indexes.input.documents import Record

_COLUMNS = {
    "documents": "number, rank, id, stored, fields, passages, words",
    "passages": "number, start, stop, heading, words",
    "document_vectors": "number, vector",
    "passage_vectors": "number, vector",
}


class PostgresWriter(CollectionWriter):
    """Writes a collection of one server."""

    versions: PostgresVersions

    def __init__(self, address: Address) -> None:
        """Connect.

        Raises:
            EngineError: no server answers there, or it refuses the user.
        """
        self._db = connect(address)
        super().__init__(PostgresVersions(address, self._db))

    def close(self) -> None:
        """Close the connection; what was not acknowledged is undone."""
        self._db.close()

    # --- publishing --------------------------------------------------------------------------------------------------

    def begin(self, settings: CollectionSettings, *, restart: bool) -> int:
        """Begin or continue to publish; returns how many documents are there already.

        Raises:
            IndexLockedError: another process is publishing under this name.
        """
        with self.versions.translated():
            prepare_server(self._db, self.name)
            lock = self.versions.prefix.replace("_", " ", 1)
            (free,) = self._db.execute("SELECT pg_try_advisory_lock(hashtext(%s))", (lock,)).fetchone()
        if not free:
            raise IndexLockedError(f"{self.name}: another process is publishing under this name; wait for its end")
        return super().begin(settings, restart=restart)

    def add(self, rows: Rows) -> None:
        """Add new documents to what is published, in one transaction.

        Raises:
            InputError: a document holds what PostgreSQL cannot.
        """
        with self._change():
            self._insert(rows)

    def finish(self) -> None:
        """Build the indexes of what was added."""
        with self.versions.translated():
            self.versions.build_indexes(self.version.number)

    # --- inside ------------------------------------------------------------------------------------------------------

    def view(self) -> PostgresView:
        """Look at what is written to, in the transaction that is open."""
        return PostgresView(self._db, self.version)

    @contextmanager
    def _change(self) -> Iterator[None]:
        """One transaction: writers wait for each other here, and readers see all of it or nothing."""
        schema = self.version.label
        with self.versions.translated(), self._db.transaction():
            self._db.execute(f"UPDATE {schema}.state SET changes = changes + 1")
            yield

    def _remove(self, docs: list[int]) -> None:
        passages = self.view().passage_numbers(docs)
        for kind, numbers, characters in (("document", docs, "0"), ("passage", passages.tolist(), "stop - start")):
            table = f"{self.version.label}.{kind}"
            removed = self._db.execute(
                f"DELETE FROM {table}s WHERE number = ANY(%s) RETURNING number, words, {characters}", (numbers,)
            ).fetchall()
            self._db.execute(f"DELETE FROM {table}_vectors WHERE number = ANY(%s)", (numbers,))
            self._count(kind, removed, -1)

    def _insert(self, rows: Rows) -> None:
        schema = self.version.label
        for record, _ in rows:
            _check_text(record, self.name)
        found = self._db.execute(
            "SELECT nextval(%s::regclass) FROM generate_series(1, %s)", (f"{schema}.numbers", len(rows))
        ).fetchall()
        made: dict[str, list[tuple[Any, ...]]] = {table: [] for table in _COLUMNS}
        for (number,), (record, row) in zip(found, rows, strict=True):
            stored, words, passages = self.rows_of(number, record, row)
            made["documents"].append(
                (number, rank_of(record.id), record.id, stored, record.metadata_json, len(passages), words)
            )
            made["document_vectors"].append((number, vector_text(row.vector)))
            made["passages"] += [passage[:-1] for passage in passages]
            made["passage_vectors"] += [(passage.number, vector_text(passage.vector)) for passage in passages]
        for table, columns in _COLUMNS.items():
            with self._db.cursor().copy(f"COPY {schema}.{table} ({columns}) FROM STDIN") as copy:
                for values in made[table]:
                    copy.write_row(values)
        self._count("document", [(row[0], row[-1], 0) for row in made["documents"]], 1)
        self._count("passage", [(row[0], row[-1], row[2] - row[1]) for row in made["passages"]], 1)

    def _count(self, kind: str, rows: Sequence[tuple[int, str, int]], sign: int) -> None:
        """Add rows (number, words, characters) to the statistics and lists of words, or remove them (`sign` -1)."""
        lengths = [stored.count(" ", 1) for _, stored, _ in rows]
        added = (len(rows), sum(length > 0 for length in lengths), sum(lengths), sum(row[2] for row in rows))
        self._db.execute(
            f"UPDATE {self.version.label}.counts SET n = n + %s, worded = worded + %s, words = words + %s, "
            "characters = characters + %s WHERE kind = %s",
            (*(sign * number for number in added), kind),
        )
        lists = pack_postings((row[:2] for row in rows), sign)
        with self._db.cursor().copy(f"COPY {self.version.label}.{kind}_lists FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(["bytea", "int4", "bytea"])
            for word, held in lists.items():
                copy.write_row((word_key(word), sign * len(held), held.tobytes()))


def _check_text(record: Record, where: str) -> None:
    held = {"id": record.id, "title": record.title, "text": record.text, "metadata": record.metadata_json}
    for name, value in held.items():
        if "\0" in value or (name == "metadata" and "\\u0000" in value):
            raise InputError(
                f"{record.location}: the {name} of document {record.id!r} holds a NUL character, which PostgreSQL "
                f"cannot store; remove it before publishing to {where}"
            )
