"""Selections of filters are remembered by their bytes, those of tenants in a place of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.search.selections import Allowed, SelectionCache
from aveyb_retrieval.indexes.store.tables import Tables
from tests.indexes.fake import FakeEmbedder
from tests.recorder import record_calls

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TENANTS = 60


def selection(count: int) -> Allowed:
    return Allowed(np.arange(count))


def test_tables_go_first_and_then_what_was_used_longest_ago() -> None:
    cache = SelectionCache(2 * 8000)  # ten selections of 100 documents, as many tables
    for name in range(10):
        cache.add(str(name), selection(100))
    assert all(cache.get(str(name)) for name in range(10))
    for name in range(10):
        held = cache.get(str(name))
        assert held is not None
        held.passages = np.arange(300)
    cache.get("9")
    tables = [held.table_bytes for name in range(10) if (held := cache.get(str(name)))]
    assert len(tables) == 10 and 0 in tables and max(tables) == 2400
    cache.add("ten", selection(300))
    assert [name for name in "0123456789" if cache.get(name) is None] == ["0", "1", "2"]
    cache.add("large", selection(100_000))
    assert cache.get("large") is not None and len(cache) == 1, "one is kept, however large"


def test_more_filters_than_fit_are_answered_as_before() -> None:
    """Whatever was forgotten is made again, to the same answer."""
    cache, numbers = SelectionCache(1), np.arange(50)
    kinds = [Allowed(np.arange(start, 50, 7)) for start in range(5)]
    for _ in range(3):
        for start, held in enumerate(kinds):
            cache.add(str(start), held)
            expected = np.isin(numbers, held.docs)
            assert (held.holds("document", numbers) == expected).all()


def test_many_tenants_scan_the_metadata_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"_id": str(i), "text": f"lease {i}", "team": i % TENANTS} for i in range(2 * TENANTS)]
    build_index(rows, tmp_path / "i", model=FakeEmbedder())
    scans = record_calls(monkeypatch, Tables, "matching")
    with Retriever.load(tmp_path / "i", model=FakeEmbedder()) as whole:
        parts = [whole.visible({"team": team}) for team in range(TENANTS)]
        for _ in range(3):
            for team, part in enumerate(parts):
                assert {int(hit.id) % TENANTS for hit in part.search("lease")} == {team}
        assert len(scans) == TENANTS
        for start in range(40):  # filters of searches take no tenant's place
            whole.search("lease", filter={"team": {"$gte": start}})
        scans.clear()
        parts[0].search("lease")
        assert not scans


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retriever]:
    """An index whose metadata have keys that JSON writes like a number or a truth."""
    root = tmp_path_factory.mktemp("numbered") / "ix"
    build_index([{"_id": "a", "text": "x", "1": "x", "true": 1}], root, language="none")
    with Retriever.load(root) as retriever:
        yield retriever


@pytest.mark.parametrize(
    "where", [{"1": "x"}, {"$and": [{"1": {"$ne": "y"}}]}, {"true": 1}, {"null": 1}], ids=repr
)
def test_a_key_that_is_written_like_a_number_is_a_key(
    numbered: Retriever, where: dict[str, Any]
) -> None:
    numbered.search("x", mode="lexical", filter=where)


@pytest.mark.parametrize(
    "where",
    [{1: "x"}, {"$and": [{1: {"$ne": "y"}}]}, {True: 1}, {None: 1}, {1.0: "x"}],
    ids=repr,
)
@pytest.mark.parametrize("use", ["count", "search"])
def test_a_key_that_is_no_string_is_refused_also_where_json_takes_it_for_one(
    numbered: Retriever, where: dict[Any, Any], use: str
) -> None:
    # one that is written alike has been read
    numbered.search("x", mode="lexical", filter={"1": "x"})
    with pytest.raises(ConfigError, match=r"the key .* is not a string"):
        numbered.count(where) if use == "count" else numbered.search("x", filter=where)
