"""The suite for engines of other packages, on those of this one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aveyb_retrieval import copy_index
from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.engine import is_address, open_engine
from tests import one_change
from tests.engines.conformance import EngineConformance
from tests.engines.stands import MilvusLiteStand, PostgresStand
from tests.indexes.store_server import store_server

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.engines.stands import Stand


class _OfStand(EngineConformance):
    stand: Stand

    def address(self, name: str) -> str:
        return self.stand.collection().address  # type: ignore[attr-defined]


@pytest.mark.engine
class TestPostgres(_OfStand):
    """PostgreSQL with pgvector."""

    @pytest.fixture(scope="class", autouse=True)
    def started(self) -> Iterator[None]:
        type(self).stand = PostgresStand()
        yield
        self.stand.close()


@pytest.mark.engine
class TestMilvus(_OfStand):
    """milvus-lite."""

    lacks = frozenset({"our-statistics", "fresh-statistics"})

    @pytest.fixture(scope="class", autouse=True)
    def started(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        type(self).stand = MilvusLiteStand(tmp_path_factory.mktemp("lite"))
        yield
        self.stand.close()


@pytest.mark.engine
class TestObjectStore(EngineConformance):
    """An index in an object store: nothing is published there, but copied."""

    lacks = frozenset({"versions", "fresh-statistics"})  # searches follow; as in a folder
    test_an_interrupted_publication = None  # tests/indexes/test_object_store.py has that of copies

    def address(self, name: str) -> str:
        return f"s3://shelf/{name}.index"

    @pytest.fixture(scope="class", autouse=True)
    def started(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        pytest.importorskip("moto.server", reason="moto, the stand-in for S3, is not installed")
        pytest.importorskip("obstore")

        def publish(source: str | Path, to: str, *, update: bool = False) -> None:
            if update:
                one_change.upsert(None, to, vectors=source)
            else:
                copy_index(source, to, overwrite=True)

        def unpublish(to: str, ids: Sequence[str] = (), **options: Any) -> int:
            return one_change.delete(to, ids, **options).deleted

        with store_server() as (_, variables), pytest.MonkeyPatch.context() as changed:
            for name, value in variables.items():
                changed.setenv(name, value)
            changed.setenv("AVEYB_INDEX_CACHE", str(tmp_path_factory.mktemp("cache")))
            changed.setattr("tests.engines.conformance.publish_index", publish)
            changed.setattr("tests.engines.conformance.unpublish_documents", unpublish)
            yield


def test_unknown_schemes_are_no_addresses(tmp_path: Path) -> None:
    assert is_address("postgresql://ann@db/company/x")
    assert not is_address(str(tmp_path))
    assert not is_address("elastic://somewhere/x")
    with pytest.raises(ConfigError, match="elastic://: an engine of this kind is not known"):
        open_engine("elastic://somewhere/x")
