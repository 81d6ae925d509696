"""Connections to a PostgreSQL server: the address as libpq takes it, a small pool, and errors as ours."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlunsplit

from aveyb_retrieval.errors import ConfigError, EngineError, IndexFormatError, OptionalDependencyError
from aveyb_retrieval.wording import first_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aveyb_retrieval.indexes.engines.collection import Address

WAIT = 10  # seconds for a server to accept a connection, where the URL says nothing else


def connect(address: Address) -> Any:
    """Open a connection that commits every statement unless a transaction is begun.

    Raises:
        ConfigError: the address does not name a database.
        EngineError: no server answers there, or it refuses the user.
        OptionalDependencyError: psycopg is not installed.
    """
    if len(address.folders) != 1:
        raise ConfigError(f"{address.name}: write it as postgresql://USER@HOST:PORT/DATABASE/COLLECTION")
    try:
        import psycopg
    except ImportError as error:
        raise OptionalDependencyError("psycopg", "pgvector", "postgresql:// addresses") from error
    from psycopg.conninfo import conninfo_to_dict

    url = address.url
    server = urlunsplit((url.scheme, url.netloc, url.path.strip("/").partition("/")[0], url.query, ""))
    try:
        given: dict[str, Any] = conninfo_to_dict(server)
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
        self._free: list[Any] = []
        self._closed = False

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """Give a connection in one read-only transaction, which sees one state of the database.

        Raises:
            EngineError: the server does not answer.
        """
        with translated(self._address.name):
            connection = self._begin()
            try:
                yield connection
                connection.execute("ROLLBACK")
            except BaseException:
                connection.close()
                raise
        self._free.append(connection)
        if self._closed:
            self.close()

    def close(self) -> None:
        """Close what is free; what is in use is closed after it."""
        self._closed = True
        while self._free:
            self._free.pop().close()

    def _begin(self) -> Any:
        """Begin a transaction, on a connection that was free, or where the server has cut those, on a new one."""
        import psycopg

        begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
        while self._free:
            connection = self._free.pop()
            try:
                connection.execute(begin)
                return connection
            except psycopg.OperationalError:
                connection.close()  # the server was started again meanwhile
        connection = connect(self._address)
        connection.execute(begin)
        return connection
