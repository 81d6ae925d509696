"""Every engine that can be started here, each for all tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.engines.stands import LACKS, LocalStand, MilvusLiteStand, PostgresStand
from tests.indexes.conftest import make_documents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from aveyb_retrieval import Retriever
    from tests.engines.stands import Collection, Documents, Stand

STANDS: dict[str, Callable[[Path], Stand]] = {
    "local": LocalStand,
    "pgvector": lambda folder: PostgresStand(),
    "milvus-lite": MilvusLiteStand,
}
SERVERS = [
    pytest.param(name, id=name, marks=pytest.mark.engine) for name in STANDS if name != "local"
]
LIBRARY = 120


@pytest.fixture(scope="session", params=[pytest.param("local", id="local"), *SERVERS])
def stand(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stand]:
    """One engine after the other."""
    made = STANDS[request.param](tmp_path_factory.mktemp(request.param))
    yield made
    made.close()


@pytest.fixture(scope="session")
def rows() -> Documents:
    """The documents of `library`: random words, one in ten without a text, and some of a kind of
    their own.
    """
    return [
        *make_documents(LIBRARY - 4),
        {
            "_id": "zinc",
            "title": "Zinc",
            "text": "zinc protects the hull of ships at sea. " * 9,
            "year": 1999,
        },
        {
            "_id": "kyoto",
            "title": "京都",
            "text": "京都は日本の古い都市です。 word1 word2",
            "tags": [],
        },
        {
            "_id": "café",
            "title": "Café",
            "text": "Crème brûlée is served in the naïve café. word3",
            "tags": ["é"],
        },
        {
            "_id": "copy",
            "title": "",
            "text": "zinc protects the hull of ships at sea. " * 9,
            "year": 1998,
        },
    ]


@pytest.fixture(scope="session")
def library(stand: Stand, rows: Documents) -> Iterator[Retriever]:
    """The same documents in every engine, to be read only."""
    collection = stand.collection()
    collection.publish(rows)
    with collection.load() as retriever:
        yield retriever


@pytest.fixture(scope="session")
def ours(rows: Documents, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retriever]:
    """The same documents in our own files: what every engine is compared with."""
    collection = LocalStand(tmp_path_factory.mktemp("ours")).collection()
    collection.publish(rows)
    with collection.load() as retriever:
        yield retriever


@pytest.fixture
def collection(stand: Stand) -> Collection:
    """A place for documents that a test fills by itself."""
    return stand.collection()


@pytest.fixture
def needs(stand: Stand) -> Callable[[str], None]:
    """Skip, by name, where the engine does something otherwise than our own files."""

    def check(name: str) -> None:
        if name in stand.lacks:
            pytest.skip(f"{name}: {LACKS[name]}")

    return check
