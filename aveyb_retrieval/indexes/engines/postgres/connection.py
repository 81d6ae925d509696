"""Connections to a PostgreSQL server: addresses, a small pool, and errors as ours."""

from __future__ import annotations

import queue
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from aveyb_retrieval.errors import AveyBError, ConfigError, EngineError, IndexFormatError, OptionalDependencyError
from aveyb_retrieval.indexes.engines.collection import check_name
from aveyb_retrieval.wording import first_line

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT = 10  # seconds for a server to accept a connection, where the URL says nothing else


@dataclass(frozen=True)
class Address:
    """Where a collection is: `postgresql://user:password@host:port/database/collection?parameters`.

    Attributes:
        server: The URL that libpq connects to.
        collection: The name of the collection.
        name: The whole URL without a password, for messages.
    """

    server: str
    collection: str
    name: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read a URL.

        Raises:
            ConfigError: it does not name a database and a collection.
        """
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")
        user = host[0].partition(":")[0]
        shown = urlunsplit((parts.scheme, f"{user}@{host[2]}" if user else host[2], parts.path, "", ""))
        path = parts.path.strip("/").split("/")
        if len(path) != 2 or not all(path):
            raise ConfigError(f"{shown}: write it as postgresql://USER@HOST:PORT/DATABASE/COLLECTION")
        server = urlunsplit((parts.scheme, parts.netloc, f"/{path[0]}", parts.query, ""))
        return cls(server, check_name(path[1], shown), shown)


def connect(address: Address) -> Any:
    """Open a connection that commits every statement unless a transaction is begun.

    Raises:
        EngineError: no server answers there, or it refuses the user.
        OptionalDependencyError: psycopg is not installed.
    """
    try:
        import psycopg
    except ImportError as error:
        raise OptionalDependencyError("psycopg", "pgvector", "postgresql:// addresses") from error
    from psycopg.conninfo import conninfo_to_dict

    try:
        given: dict[str, Any] = conninfo_to_dict(address.server)
        given.setdefault("connect_timeout", WAIT)
        given.setdefault("application_name", "aveyb-retrieval")
        # plans depend on the query's vector and filter, so that none is kept
        return psycopg.connect(**given, autocommit=True, prepare_threshold=None)
    except psycopg.ProgrammingError as error:
        raise ConfigError(f"{address.name}: not an address of a server ({first_line(error)})") from error
    except psycopg.OperationalError as error:
        raise EngineError(
            f"{address.name}: no connection ({first_line(error)}); check that the server runs there, and the user, "
            "password and database"
        ) from error


@contextmanager
def translated(name: str) -> Iterator[None]:
    """Turn what psycopg raises into errors of ours."""
    import psycopg

    try:
        yield
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
        raise IndexFormatError(
            f"{name}: the version that is open has been replaced and removed ({first_line(error)}); reopen it"
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise EngineError(f"{name}: {first_line(error)}; grant this user the right to do so") from error
    except psycopg.OperationalError as error:
        raise EngineError(f"{name}: the server failed or went away ({first_line(error)}); try again") from error
    except psycopg.Error as error:
        raise EngineError(f"{name}: {first_line(error)}") from error


class Pool:
    """Connections that nobody uses at the moment; as many as there ever were threads at once."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._free: queue.LifoQueue[Any] = queue.LifoQueue()
        self._closed = False

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """A connection in one read-only transaction, which sees one state of the database.

        Raises:
            EngineError: the server does not answer.
            AveyBError: the pool is closed.
        """
        connection = self._begin()
        try:
            with translated(self._address.name):
                yield connection
                connection.execute("ROLLBACK")
        except BaseException:
            connection.close()
            raise
        if self._closed:
            connection.close()
        else:
            self._free.put(connection)

    def close(self) -> None:
        """Close what is free; what is in use is closed after it."""
        self._closed = True
        while not self._free.empty():
            self._free.get_nowait().close()

    def _begin(self) -> Any:
        """Begin a transaction, on a connection that was free, or where the server has cut those, on a new one."""
        import psycopg

        if self._closed:
            raise AveyBError(f"{self._address.name}: this index was closed; load it again to search it")
        begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
        while True:
            try:
                connection = self._free.get_nowait()
            except queue.Empty:
                connection = connect(self._address)
                with translated(self._address.name):
                    connection.execute(begin)
                return connection
            try:
                connection.execute(begin)
                return connection
            except psycopg.OperationalError:
                connection.close()  # the server was started again meanwhile
