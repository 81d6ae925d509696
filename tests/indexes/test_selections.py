"""Selections of filters are remembered by their bytes, those of tenants in a place of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.search.selections import Allowed, SelectionCache
from aveyb_retrieval.indexes.store.tables import Tables
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
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
    scans, matching = list[object](), Tables.matching
    monkeypatch.setattr(
        Tables, "matching", lambda self, where: scans.append(where) or matching(self, where)
    )
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


def test_a_key_that_is_no_string_is_refused_also_where_json_takes_it_for_one(
    tmp_path: Path,
) -> None:
    build_index([{"_id": "a", "text": "x", "1": "x", "true": 1}], tmp_path / "i", language="none")
    with Retriever.load(tmp_path / "i") as retriever:
        for where in ({"1": "x"}, {"$and": [{"1": {"$ne": "y"}}]}, {"true": 1}, {"null": 1}):
            retriever.search("x", mode="lexical", filter=where)
        for wrong in ({1: "x"}, {"$and": [{1: {"$ne": "y"}}]}, {True: 1}, {None: 1}, {1.0: "x"}):
            for reads in (retriever.count, lambda where: retriever.search("x", filter=where)):
                with pytest.raises(ConfigError, match=r"the key .* is not a string"):
                    reads(wrong)  # type: ignore[arg-type]
