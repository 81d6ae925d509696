"""A collection of a PostgreSQL server, open for searching."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from aveyb_retrieval.indexes.engines.collection import CollectionSettings
from aveyb_retrieval.indexes.engines.postgres import schema as tables
from aveyb_retrieval.indexes.engines.postgres.connection import Address, Pool, translated
from aveyb_retrieval.indexes.engines.postgres.view import PostgresView, State
from aveyb_retrieval.indexes.engines.postgres.writer import PostgresWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aveyb_retrieval.indexes.engines.base import EngineInfo
    from aveyb_retrieval.indexes.types import FloatArray


def open_engine(address: str) -> PostgresEngine:
    """Open the collection at an address for searching."""
    return PostgresEngine(Address.parse(address))


def open_writer(address: str) -> PostgresWriter:
    """Connect to write the collection at an address."""
    return PostgresWriter(Address.parse(address))


class PostgresEngine:
    """One collection, at the version that readers saw when it was opened. Upserts and deletions are seen at once."""

    def __init__(self, address: Address) -> None:
        """Open what is published.

        Raises:
            EngineError: no server answers there, or it refuses the user.
            IndexFormatError: nothing is published under this name.
        """
        self._address = address
        self._pool = Pool(address)
        self._open(self._visible())

    @contextmanager
    def view(self) -> Iterator[PostgresView]:
        """Begin a transaction: all that one search reads."""
        schema, settings, means = self._schema, self._settings, self._means
        with self._pool.connection() as connection:
            with translated(self._address.name):
                row = connection.execute(
                    f"SELECT {', '.join(State._fields)} FROM {schema}.state"  # of our own
                ).fetchone()
            yield PostgresView(connection, schema, self._address.name, settings, State(*row), means)

    @property
    def is_stale(self) -> bool:
        """Whether other documents were published under this name."""
        return self._visible() != self._schema

    def reopen(self, check: Callable[[EngineInfo], None]) -> None:
        """Move to what is published now, unless `check` of it raises an error."""
        other = PostgresEngine(self._address)
        try:
            with other.view() as view:
                check(view.info)
            self._open(other._schema)
        finally:
            other.close()

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    def _visible(self) -> str:
        with self._pool.connection() as connection:
            return tables.visible(connection, self._address)

    def _open(self, schema: str) -> None:
        with self._pool.connection() as connection:
            (found,) = connection.execute(f"SELECT settings FROM {schema}.state").fetchone()
        self._settings = CollectionSettings.from_json(found, self._address.name)
        self._means = _Means()
        self._schema = schema


class _Means:
    """The mean vector, as long as no document changes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: tuple[int, FloatArray] | None = None

    def get(self, generation: int, compute: Callable[[], FloatArray]) -> FloatArray:
        """Return the mean of a generation of the documents."""
        with self._lock:
            known = self._known
        if known is None or known[0] != generation:
            known = generation, compute()
            with self._lock:
                self._known = known
        return known[1]
