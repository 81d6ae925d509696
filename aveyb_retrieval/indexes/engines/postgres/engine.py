"""Collections of a PostgreSQL server, by address."""

from __future__ import annotations

from functools import partial

from aveyb_retrieval.indexes.engines.collection import Address
from aveyb_retrieval.indexes.engines.postgres.connection import Pool
from aveyb_retrieval.indexes.engines.postgres.schema import PostgresVersions
from aveyb_retrieval.indexes.engines.postgres.view import PostgresView
from aveyb_retrieval.indexes.engines.postgres.writer import PostgresWriter
from aveyb_retrieval.indexes.engines.reader import CollectionReader


def open_engine(address: str) -> CollectionReader:
    """Open the collection at an address for searching; each use of a connection is a transaction."""
    where = Address.parse(address)
    return CollectionReader(Pool(where), partial(PostgresVersions, where), PostgresView)


def open_writer(address: str) -> PostgresWriter:
    """Connect to write the collection at an address."""
    return PostgresWriter(Address.parse(address))
