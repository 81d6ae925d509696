"""Connections to a Milvus server, or to milvus-lite in this process: addresses, and errors as ours."""

from __future__ import annotations

import logging
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from aveyb_retrieval.errors import AveyBError, ConfigError, EngineError, IndexFormatError, OptionalDependencyError
from aveyb_retrieval.indexes.engines.collection import check_name
from aveyb_retrieval.wording import first_line

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT = 10.0  # seconds for a server to accept a connection, where the URL says nothing else
READ_WAIT = 60.0  # seconds for an answer to a search or query
OLDEST = (2, 5)  # full-text search by a BM25 function
DEFAULT_PORT = 19530

_PARAMETERS = ("timeout", "secure", "consistency", "index")
_CONSISTENCY = ("strong", "bounded", "eventually")
_lite_users: dict[str, int] = {}
_lite_lock = threading.Lock()


@dataclass(frozen=True)
class Address:
    """Where a collection is: `milvus://user:password@host:port/database/collection?parameters`, or a file.

    Attributes:
        uri: What pymilvus connects to: a URL without a password, or for milvus-lite the path of a database.
        database: The database of the server; "" for its default one.
        token: User and password, or "".
        collection: The name of the collection.
        name: The whole URL without a password, for messages.
        wait: Seconds for the server to accept a connection.
        consistency: Milvus's level for what searches read: "Strong", "Bounded" or "Eventually".
        index: Milvus's name of the index over vectors that a publication makes.
    """

    uri: str
    database: str
    token: str
    collection: str
    name: str
    wait: float
    consistency: str
    index: str

    @property
    def is_lite(self) -> bool:
        """Whether milvus-lite holds the collection, in a file of this machine."""
        return self.uri.startswith("/")

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read a URL.

        Raises:
            ConfigError: it does not name a server or a file, and a collection.
        """
        parts = urlsplit(url)
        login, _, host = parts.netloc.rpartition("@")
        user, _, password = login.partition(":")
        shown = urlunsplit((parts.scheme, f"{user}@{host}" if user else host, parts.path, "", ""))
        if not host and shown.startswith("milvus:/") and not shown.startswith("milvus://"):
            shown = "milvus://" + shown.removeprefix("milvus:")
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        wait, secure, consistency, index = _parameters(given, shown)
        if not host:
            path, _, collection = unquote(parts.path).rpartition("/")
            if not path.endswith(".db"):
                raise ConfigError(
                    f"{shown}: write it as milvus://USER@HOST:PORT/NAME, or for milvus-lite as "
                    "milvus:///FOLDER/FILE.db/NAME"
                )
            return cls(path, "", "", check_name(collection, shown), shown, wait, consistency, index)
        names = [unquote(name) for name in parts.path.strip("/").split("/")]
        if len(names) > 2 or not all(names):
            raise ConfigError(f"{shown}: write it as milvus://USER@HOST:PORT/NAME or .../DATABASE/NAME")
        try:
            port = parts.port or DEFAULT_PORT
        except ValueError as error:
            raise ConfigError(f"{shown}: not an address of a server ({error})") from error
        token = f"{unquote(user)}:{unquote(password)}" if user else ""
        scheme = "https" if secure else "http"
        database = names[0] if len(names) == 2 else ""
        uri = f"{scheme}://{parts.hostname}:{port}"
        return cls(uri, database, token, check_name(names[-1], shown), shown, wait, consistency, index)


def is_missing(error: Any) -> bool:
    """Whether an error of pymilvus says that there is no such collection."""
    from pymilvus.exceptions import ErrorCode

    text = error.message.lower()
    missing = ("collection not found", "can't find collection", "does not exist")
    return error.code == ErrorCode.COLLECTION_NOT_FOUND or any(each in text for each in missing)


class Server:
    """A connection. Many threads may use it at once."""

    def __init__(self, address: Address, *, create: bool = False) -> None:
        """Connect; `create` lets milvus-lite make its database.

        Raises:
            EngineError: no server answers there, or it refuses the user.
            ConfigError: the server is too old.
            OptionalDependencyError: pymilvus is not installed.
        """
        try:
            from pymilvus import MilvusClient
        except ImportError as error:
            raise OptionalDependencyError("pymilvus", "milvus", "milvus:// addresses") from error
        _silence_logs()
        self.address = address
        self.name = address.name
        if address.is_lite:
            _check_file(address, create)
        self._client: Any = _hold(address, MilvusClient)
        try:
            with self.translated():
                found = self._client.get_server_version(timeout=READ_WAIT)
            version = re.search(r"(\d{1,9})\.(\d{1,9})", found)
            if version is None or tuple(map(int, version.groups())) < OLDEST:
                raise ConfigError(f"{self.name}: Milvus {found}; {'.'.join(map(str, OLDEST))} or newer is needed")
        except BaseException:
            self.close()
            raise

    @property
    def client(self) -> Any:
        """The client that calls the server.

        Raises:
            AveyBError: the connection was closed.
        """
        if self._client is None:
            raise AveyBError(f"{self.name}: this index was closed; load it again to search it")
        return self._client

    def close(self) -> None:
        """Close the connection; the last one to a database of milvus-lite also lets go of its files."""
        client, self._client = self._client, None
        if client is not None:
            _release(self.address, client)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turn what pymilvus raises into errors of ours."""
        import grpc
        from pymilvus.exceptions import MilvusException

        try:
            yield
        except MilvusException as error:
            if is_missing(error):
                raise IndexFormatError(
                    f"{self.name}: the version that is open has been replaced and removed; reopen it"
                ) from error
            raise EngineError(f"{self.name}: the server refused or failed ({_reason(error)})") from error
        except grpc.RpcError as error:
            raise EngineError(f"{self.name}: the server failed or went away ({_reason(error)}); try again") from error


def _silence_logs() -> None:
    """Keep errors that are raised from being printed as well, with a traceback."""
    for name in ("pymilvus.decorators", "pymilvus.client.connection_manager"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    for name in ("milvus_lite", "grpc"):
        logging.getLogger(name).addHandler(logging.NullHandler())


def _hold(address: Address, client: Any) -> Any:
    """Open a connection of its own, and count those of milvus-lite."""
    import grpc
    from pymilvus.exceptions import MilvusException

    with _lite_lock:
        try:
            opened = client(
                uri=address.uri, token=address.token, db_name=address.database, timeout=address.wait, dedicated=True
            )
        except (MilvusException, grpc.RpcError) as error:
            if address.is_lite:
                raise EngineError(
                    f"{address.name}: milvus-lite cannot open this database ({_reason(error)}); it serves one process "
                    "at a time: close the other one, or run a server"
                ) from error
            raise EngineError(
                f"{address.name}: no connection ({_reason(error)}); check that the server runs there, and the user, "
                "password and database"
            ) from error
        if address.is_lite:
            _lite_users[address.uri] = _lite_users.get(address.uri, 0) + 1
    return opened


def _release(address: Address, client: Any) -> None:
    with _lite_lock:
        client.close()
        if address.is_lite:
            _lite_users[address.uri] -= 1
            if not _lite_users[address.uri]:
                from milvus_lite.server_manager import server_manager_instance

                del _lite_users[address.uri]
                server_manager_instance.release_server(address.uri)


def _check_file(address: Address, create: bool) -> None:
    """Check that the database is there or may be made, and that milvus-lite is installed."""
    try:
        import milvus_lite  # noqa: F401
    except ImportError as error:
        raise OptionalDependencyError("milvus-lite", "milvus", "milvus:///FILE.db addresses") from error
    path = Path(address.uri)
    if not path.parent.is_dir():
        raise ConfigError(f"{address.name}: there is no folder {path.parent}")
    if not create and not path.exists():
        raise IndexFormatError(f"{address.name}: the collection is not there; publish it with `aveyb-index publish`")


def _parameters(given: dict[str, str], shown: str) -> tuple[float, bool, str, str]:
    """The seconds to wait, whether the connection is encrypted, the consistency of searches, the name of the index."""
    unknown = next((name for name in given if name not in _PARAMETERS), None)
    if unknown is not None:
        raise ConfigError(f"{shown}: the parameter {unknown!r} is not known; known are {', '.join(_PARAMETERS)}")
    try:
        wait = float(given.get("timeout", WAIT))
    except ValueError as error:
        raise ConfigError(f"{shown}: timeout={given['timeout']!r} is not a number of seconds") from error
    if not 0 < wait < float("inf"):
        raise ConfigError(f"{shown}: timeout={given['timeout']!r} is not a number of seconds above 0")
    secure, consistency = given.get("secure", "false"), given.get("consistency", "bounded")
    if secure not in ("true", "false"):
        raise ConfigError(f"{shown}: secure={secure!r}: must be true or false")
    if consistency not in _CONSISTENCY:
        raise ConfigError(f"{shown}: consistency={consistency!r}: must be {' or '.join(_CONSISTENCY)}")
    index = given.get("index", "HNSW")
    if not re.fullmatch("[A-Z][A-Z0-9_]*", index):
        raise ConfigError(f"{shown}: index={index!r}: must be Milvus's name of an index, such as HNSW or IVF_RABITQ")
    return wait, secure == "true", consistency.capitalize(), index


def _reason(error: Any) -> str:
    """The first line of an error."""
    text = getattr(error, "message", "") or str(error)
    if callable(getattr(error, "details", None)):
        text = error.details() or text
    return first_line(error, str(text))
