"""Connections to a Milvus server, or to milvus-lite in this process: addresses, rows, and errors as ours."""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import parse_qsl, unquote

import msgspec

from aveyb_retrieval.errors import ConfigError, EngineError, IndexFormatError, OptionalDependencyError
from aveyb_retrieval.wording import first_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aveyb_retrieval.indexes.engines.collection import Address

WAIT = 600.0  # seconds for a server to answer, write, flush or load
OLDEST = (2, 5)  # full-text search by a BM25 function
DEFAULT_PORT = 19530
_lite_users: Counter[str] = Counter()  # connections of this process to a database of milvus-lite
_lite_lock = threading.Lock()


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stands after the `?` of an address.

    Attributes:
        timeout: Seconds for the server to accept a connection.
        secure: Whether it is encrypted.
        consistency: Milvus's level for what searches read.
        index: Milvus's name of the index over vectors that a publication makes.
    """

    timeout: Annotated[float, msgspec.Meta(gt=0, le=WAIT)] = 10.0
    secure: Literal["true", "false"] = "false"
    consistency: Literal["strong", "bounded", "eventually"] = "bounded"
    index: Annotated[str, msgspec.Meta(pattern="^[A-Z][A-Z0-9_]*$")] = "HNSW"


class Server:
    """A connection. Many threads may use it at once."""

    def __init__(self, address: Address, *, writes: bool = False) -> None:
        """Connect; who `writes` reads everything that was acknowledged, and makes a database of milvus-lite.

        Raises:
            EngineError: no server answers there, or it refuses the user.
            ConfigError: the address is not one of a collection of Milvus, or the server is too old.
            IndexFormatError: there is no such database of milvus-lite.
            OptionalDependencyError: pymilvus is not installed.
        """
        self.address, self.name = address, address.name
        given = dict(parse_qsl(address.url.query, keep_blank_values=True))
        try:
            parameters = msgspec.convert(given, Parameters, strict=False)
        except msgspec.ValidationError as error:
            known = ", ".join(Parameters.__struct_fields__)
            raise ConfigError(f"{self.name}: {given}: {error}; the parameters are {known}") from error
        self.index = parameters.index
        level = "Strong" if writes else parameters.consistency.capitalize()
        self.reading_options = {"consistency_level": level, "timeout": WAIT}
        target = _target(address, parameters)
        try:
            import pymilvus
        except ImportError as error:
            raise OptionalDependencyError("pymilvus", "milvus", "milvus:// addresses") from error
        for name in ("pymilvus.decorators", "pymilvus.client.connection_manager"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # what is raised is not printed as well
        advice = "check that the server runs there, and the user, password and database"
        if not address.url.netloc:
            advice = "milvus-lite serves one process at a time: end the other one, or run a server"
            _check_file(address, Path(target["uri"]), writes)
        self._lite = "" if address.url.netloc else target["uri"]
        with self.translated(f"no connection; {advice}"), _lite_lock:
            self.client: Any = pymilvus.MilvusClient(**target, timeout=parameters.timeout, dedicated=True)
            _lite_users[self._lite] += 1
        try:
            with self.translated():
                found = self.client.get_server_version(timeout=WAIT)
            version = re.search(r"(\d{1,9})\.(\d{1,9})", found)
            if version is None or tuple(map(int, version.groups())) < OLDEST:
                raise ConfigError(f"{self.name}: Milvus {found}; {'.'.join(map(str, OLDEST))} or newer is needed")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; the last one to a database of milvus-lite also lets go of its files."""
        with _lite_lock:
            self.client.close()
            _lite_users[self._lite] -= 1
            if self._lite and not _lite_users[self._lite]:
                from milvus_lite.server_manager import server_manager_instance

                server_manager_instance.release_server(self._lite)

    @contextmanager
    def translated(self, failed: str = "the server refused, failed or went away; try again") -> Iterator[None]:
        """Turn what pymilvus raises into errors of ours."""
        import grpc
        from pymilvus.exceptions import ErrorCode, MilvusException

        try:
            yield
        except MilvusException as error:
            missing = ("collection not found", "can't find collection", "does not exist")
            if error.code == ErrorCode.COLLECTION_NOT_FOUND or any(each in error.message.lower() for each in missing):
                raise IndexFormatError(
                    f"{self.name}: the version that is open has been replaced and removed; reopen it"
                ) from error
            raise EngineError(f"{self.name}: {failed} ({first_line(error, error.message)})") from error
        except grpc.RpcError as error:
            raise EngineError(f"{self.name}: {failed} ({first_line(error)})") from error

    @contextmanager
    def reading(self) -> Iterator[Server]:
        """Give itself, to read with."""
        with self.translated():
            yield self


def _target(address: Address, parameters: Parameters) -> dict[str, str]:
    """Where pymilvus connects to.

    Raises:
        ConfigError: the address names neither a server nor a file.
    """
    url, folders = address.url, address.folders
    if not url.netloc:
        path = "/" + "/".join(folders)
        if not path.endswith(".db"):
            raise ConfigError(
                f"{address.name}: write it as milvus://USER@HOST:PORT/NAME, or for milvus-lite as "
                "milvus:///FOLDER/FILE.db/NAME"
            )
        return {"uri": path}
    if len(folders) > 1 or not all(folders):
        raise ConfigError(f"{address.name}: write it as milvus://USER@HOST:PORT/NAME or .../DATABASE/NAME")
    try:
        port = url.port or DEFAULT_PORT
    except ValueError as error:
        raise ConfigError(f"{address.name}: not an address of a server ({error})") from error
    token = f"{unquote(url.username)}:{unquote(url.password or '')}" if url.username else ""
    scheme = "https" if parameters.secure == "true" else "http"
    return {"uri": f"{scheme}://{url.hostname}:{port}", "token": token, "db_name": "".join(folders)}


def _check_file(address: Address, path: Path, create: bool) -> None:
    """Check that a database of milvus-lite is there or may be made."""
    try:
        import milvus_lite  # noqa: F401
    except ImportError as error:
        raise OptionalDependencyError("milvus-lite", "milvus", "milvus:///FILE.db addresses") from error
    if not path.parent.is_dir():
        raise ConfigError(f"{address.name}: there is no folder {path.parent}")
    if not create and not path.exists():
        raise IndexFormatError(f"{address.name}: the collection is not there; publish it with `aveyb-index publish`")
