"""A collection of a PostgreSQL server, open for searching."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from aveyb_retrieval.indexes.engines.postgres import schema as tables
from aveyb_retrieval.indexes.engines.postgres.connection import Address, Pool
from aveyb_retrieval.indexes.engines.postgres.view import Means, PostgresView, State
from aveyb_retrieval.indexes.engines.postgres.writer import PostgresWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aveyb_retrieval.indexes.engines.base import EngineInfo


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
        with self._pool.connection() as connection:
            self._schema = tables.visible(connection, address)
            self._settings = tables.settings_of(connection, self._schema, address.name)
        self._means = Means()

    @contextmanager
    def view(self) -> Iterator[PostgresView]:
        """Begin a transaction: all that one search reads."""
        schema, settings, means = self._schema, self._settings, self._means
        with self._pool.connection() as connection:
            row = connection.execute(f"SELECT {', '.join(State._fields)} FROM {schema}.state").fetchone()
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
            self._settings, self._means, self._schema = other._settings, other._means, other._schema
        finally:
            other.close()

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    def _visible(self) -> str:
        with self._pool.connection() as connection:
            return tables.visible(connection, self._address)
