"""Test stands: one for each engine, all driven alike. A stand fills collections of documents and opens them."""

from __future__ import annotations

import itertools
import shutil
from typing import TYPE_CHECKING, Any, Protocol

from aveyb_retrieval import Retriever, build_index, delete_documents, upsert_documents
from tests.index.fake import FakeEmbedder

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
