"""The suite for engines of other packages, on those of this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.engine import is_address, open_engine
from tests.engines.conformance import EngineConformance
from tests.engines.stands import MilvusLiteStand, PostgresStand

if TYPE_CHECKING:
    from collections.abc import Iterator
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


def test_unknown_schemes_are_no_addresses(tmp_path: Path) -> None:
    assert is_address("postgresql://ann@db/company/x")
    assert not is_address(str(tmp_path))
    assert not is_address("elastic://somewhere/x")
    with pytest.raises(ConfigError, match="elastic://: an engine of this kind is not known"):
        open_engine("elastic://somewhere/x")
