"""Documents into PostgreSQL: published as a whole, or upserted and deleted in what readers see."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import IndexLockedError, InputError
from aveyb_retrieval.indexes.engines.postgres import schema as tables
from aveyb_retrieval.indexes.engines.postgres.connection import Address, connect, translated
from aveyb_retrieval.indexes.engines.words import pack_postings, word_key
from aveyb_retrieval.indexes.store.numbering import PASSAGE_BITS, id_digest
from aveyb_retrieval.indexes.store.words import Language, language

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aveyb_retrieval.indexes.engines.collection import CollectionSettings
    from aveyb_retrieval.indexes.input.documents import Record
    from aveyb_retrieval.indexes.types import EncodedRow, FloatArray

_COLUMNS = {
    "documents": "number, key, id, title, text, metadata, fields, pages, n_tokens, n_cut, n_passages, words, n_words",
    "passages": "number, start, stop, heading, norm, words, n_words",
    "document_vectors": "number, vector",
    "passage_vectors": "number, vector",
}


class PostgresWriter:
    """Writes a collection of one server; for one user at a time."""

    def __init__(self, address: Address) -> None:
        """Connect.

        Raises:
            EngineError: no server answers there, or it refuses the user.
        """
        self.name = address.name
        self._address = address
        self._connection = connect(address)
        self._schema: str | None = None
        self._language: Language | None = None

    def close(self) -> None:
        """Close the connection; what was not acknowledged is undone."""
        self._connection.close()

    # --- publishing --------------------------------------------------------------------------------------------------

    def begin(self, settings: CollectionSettings, *, restart: bool) -> int:
        """Begin or continue to publish; returns how many documents are there already.

        Raises:
            IndexLockedError: another process is publishing under this name.
        """
        with translated(self.name):
            tables.prepare_server(self._connection, self._address)
            lock = f"aveyb {self._address.collection}"
            (free,) = self._connection.execute("SELECT pg_try_advisory_lock(hashtext(%s))", (lock,)).fetchone()
            if not free:
                raise IndexLockedError(f"{self.name}: another process is publishing under this name; wait for its end")
            building = tables.read_versions(self._connection, self._address).building
            if building is not None and (restart or self._settings_of(building) != settings):
                tables.drop_building(self._connection, self._address, building)
                building = None
            self._use(building or tables.create(self._connection, self._address, settings), settings)
            (count,) = self._connection.execute(f"SELECT count(*) FROM {self._schema}.documents").fetchone()
        return int(count)

    def add(self, rows: Sequence[tuple[Record, EncodedRow]]) -> None:
        """Add new documents to what is published, in one transaction.

        Raises:
            InputError: a document holds what PostgreSQL cannot.
        """
        with self._transaction():
            self._insert(rows)

    def finish(self) -> None:
        """Build the indexes of what was added."""
        with translated(self.name):
            tables.build_indexes(self._connection, self._open())

    def switch(self) -> None:
        """Show readers what was published."""
        with translated(self.name):
            tables.show(self._connection, self._address, self._open())

    # --- changes -----------------------------------------------------------------------------------------------------

    def settings(self) -> CollectionSettings:
        """Return the settings of the collection that readers see.

        Raises:
            IndexFormatError: nothing was published under this name.
        """
        with translated(self.name):
            schema = tables.visible(self._connection, self._address)
            found = self._settings_of(schema)
        self._use(schema, found)
        return found

    def upsert(self, rows: Sequence[tuple[Record, EncodedRow]]) -> None:
        """Add documents, or replace those of the same ids, in one transaction.

        Raises:
            InputError: a document holds what PostgreSQL cannot.
        """
        last = {record.id: (record, row) for record, row in rows}  # of two with one id the last one counts
        with self._transaction():
            self._remove(list(last))
            numbers, words = self._insert(list(last.values()))
            tables.count_in(self._connection, self._open(), numbers, words, 1)

    def delete(self, ids: Sequence[str]) -> int:
        """Remove documents by id, in one transaction; missing ones are fine. Returns how many there were."""
        with self._transaction():
            return self._remove(ids)

    def missing(self, ids: Sequence[str]) -> list[str]:
        """Return those of the ids that no document has."""
        with translated(self.name):
            rows = self._connection.execute(
                f"SELECT id FROM {self._open()}.documents WHERE key = ANY(%s)",
                ([id_digest(i) for i in ids],),
            )
            found = {name for (name,) in rows}
        return [document_id for document_id in ids if document_id not in found]

    # --- inside ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """One change: writers wait for each other here, and readers see all of it or nothing."""
        schema = self._open()
        with translated(self.name), self._connection.transaction():
            self._connection.execute(f"UPDATE {schema}.state SET generation = generation + 1")
            yield

    def _open(self) -> str:
        if self._schema is None:
            self.settings()
        assert self._schema is not None  # `settings` sets it or raises
        return self._schema

    def _use(self, schema: str, settings: CollectionSettings) -> None:
        self._schema = schema
        self._language = language(settings.encoding.language)

    def _settings_of(self, schema: str) -> CollectionSettings:
        return tables.settings_of(self._connection, schema, self.name)

    def _remove(self, ids: Sequence[str]) -> int:
        schema = self._open()
        found = self._connection.execute(
            f"SELECT number FROM {schema}.documents WHERE key = ANY(%s)",
            ([id_digest(i) for i in ids],),
        ).fetchall()
        numbers = [number for (number,) in found]
        if not numbers:
            return 0
        words: dict[str, Counter[str]] = {}
        for kind, match in (("document", "r.number = d"), ("passage", tables.passages_of("r.number", "d"))):
            stored = self._connection.execute(
                f"SELECT words FROM {schema}.{kind}s AS r JOIN unnest(%s::bigint[]) AS d ON {match}", (numbers,)
            )
            words[kind] = Counter(word for (text,) in stored for word in set(text.split()))
        tables.count_in(self._connection, schema, numbers, words, -1)
        for table in _COLUMNS:
            match = "r.number = d"
            if table.startswith("passage"):
                match = tables.passages_of("r.number", "d")
            self._connection.execute(
                f"DELETE FROM {schema}.{table} AS r USING unnest(%s::bigint[]) AS d WHERE {match}",
                (numbers,),
            )
        return len(numbers)

    def _insert(self, rows: Sequence[tuple[Record, EncodedRow]]) -> tuple[list[int], dict[str, Counter[str]]]:
        """Insert documents; returns their numbers, and how many of them and of their passages hold each word."""
        schema, connection = self._open(), self._connection
        for record, _ in rows:
            _check_text(record, self.name)
        found = connection.execute(
            "SELECT nextval(%s::regclass) FROM generate_series(1, %s)", (f"{schema}.numbers", len(rows))
        ).fetchall()
        numbers = [number for (number,) in found]
        made = self._rows(numbers, rows)
        for table, columns in _COLUMNS.items():
            with connection.cursor().copy(f"COPY {schema}.{table} ({columns}) FROM STDIN") as copy:
                for row in made[table]:
                    copy.write_row(row)
        return numbers, {kind: self._insert_postings(kind, made[f"{kind}s"]) for kind in ("document", "passage")}

    def _insert_postings(self, kind: str, rows: list[tuple[Any, ...]]) -> Counter[str]:
        """Write the lists of the words of some rows; returns how many rows hold each word."""
        lists = pack_postings((row[0], row[-2]) for row in rows)
        columns = "key, first, last, n, most, shortest, held"
        with self._connection.cursor().copy(
            f"COPY {self._open()}.{kind}_postings ({columns}) FROM STDIN (FORMAT BINARY)"
        ) as copy:
            copy.set_types(["bytea", "int8", "int8", "int4", "int4", "int4", "bytea"])
            for word, held in lists.items():
                numbers = held["number"]
                bounds = (int(held["count"].max()), int(held["length"].min()))
                copy.write_row((word_key(word), int(numbers[0]), int(numbers[-1]), len(held), *bounds, held.tobytes()))
        return Counter({word: len(held) for word, held in lists.items()})

    def _rows(self, numbers: list[int], rows: Sequence[tuple[Record, EncodedRow]]) -> dict[str, list[tuple[Any, ...]]]:
        """The rows of every table for some documents."""
        assert self._language is not None  # set with the schema
        made: dict[str, list[tuple[Any, ...]]] = {table: [] for table in _COLUMNS}
        for number, (record, row) in zip(numbers, rows, strict=True):
            words, fields = self._language.stored(f"{record.title}\n{record.text}"), record.metadata_json
            made["documents"].append((
                number, id_digest(record.id), record.id, record.title, record.text, fields, fields, record.pages_json,
                row.n_tokens, row.n_cut, len(row.passages), words, words.count(" ", 1),
            ))  # fmt: skip
            made["document_vectors"].append((number, vector_text(row.vector)))
            norms = [None] * len(row.passages) if row.norms is None else row.norms.tolist()
            for i, ((start, stop), heading, norm) in enumerate(
                zip(row.spans.tolist(), row.headings, norms, strict=True)
            ):
                passage = number << PASSAGE_BITS | i
                words = self._language.stored(f"{heading}\n{record.text[start:stop]}")
                made["passages"].append((passage, start, stop, heading, norm, words, words.count(" ", 1)))
                made["passage_vectors"].append((passage, vector_text(row.passages[i])))
        return made


def vector_text(vector: FloatArray) -> str:
    """Write a vector `[d]` as pgvector reads it."""
    return f"[{','.join(map(str, vector.tolist()))}]"


def _check_text(record: Record, where: str) -> None:
    held = {"id": record.id, "title": record.title, "text": record.text, "metadata": record.metadata_json}
    for name, value in held.items():
        if "\0" in value or (name == "metadata" and "\\u0000" in value):
            raise InputError(
                f"{record.location}: the {name} of document {record.id!r} holds a NUL character, which PostgreSQL "
                f"cannot store; remove it before publishing to {where}"
            )
