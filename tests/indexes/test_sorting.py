"""Hits that match, in the order of a field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aveyb_retrieval import ConfigError, Retriever, build_index

if TYPE_CHECKING:
    from pathlib import Path

VALVES = {
    "old": {"date": "2024-01-05T23:30:00-05:00", "price": 9, "tags": ["a", "z"], "name": "beta"},
    "new": {"date": "2026-03-01", "price": 10, "tags": ["m"], "name": "Alpha"},
    "mid": {"date": "2024-01-06T03:00:00+00:00", "price": 2.5, "tags": ["b"], "name": "gamma"},
    "none": {},
}
OTHERS = ["The canteen opens at noon.", "The lease ends in May.", "Trains run hourly.", "It rains."]


def documents() -> list[dict[str, Any]]:
    valves = [
        {"_id": id, "text": f"The relief valve number {n} was tested.", **fields}
        for n, (id, fields) in enumerate(VALVES.items())
    ]
    others = [{"_id": f"x{n}", "text": text, "date": "2027"} for n, text in enumerate(OTHERS)]
    return [*valves, *others]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("valves") / "index"
    build_index(documents(), path)
    return path


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("date", ["mid", "old", "new", "none"]),  # as instants
        ("-date", ["new", "old", "mid", "none"]),
        ("price", ["mid", "old", "new", "none"]),
        ("-price", ["new", "old", "mid", "none"]),
        ("tags", ["old", "mid", "new", "none"]),
        ("-tags", ["old", "new", "mid", "none"]),
        ("name", ["new", "old", "mid", "none"]),
        ("-_id", ["old", "none", "new", "mid"]),
    ],
)
@pytest.mark.parametrize("unit", ["document", "passage"])
def test_what_matches_stands_in_the_order_of_a_field(
    path: Path, sort: str, order: list[str], unit: Any
) -> None:
    retriever = Retriever.load(path)
    hits = retriever.search("test of the relief valve", k=10, sort=sort, unit=unit)
    assert [hit.id for hit in hits] == order
    pages = [
        hit.id
        for offset in range(5)
        for hit in retriever.search("test of the relief valve", 1, sort=sort, offset=offset)
    ]
    assert pages == order


@pytest.mark.parametrize("mode", ["dense", "lexical"])
def test_other_modes_sort_what_matches_too(path: Path, mode: Any) -> None:
    hits = Retriever.load(path).search("relief valve", k=10, sort="-date", mode=mode)
    assert [hit.id for hit in hits] == ["new", "old", "mid", "none"]


def test_a_least_score_says_what_matches(path: Path) -> None:
    retriever = Retriever.load(path)
    hits = retriever.search("relief valve", k=10, sort="-date", min_score=0.0)
    assert len(hits) == len(documents())
    assert retriever.search("relief valve", k=2, sort="-date", candidates=1)[0].id in VALVES


def test_several_indexes_and_what_is_visible_are_sorted(path: Path, tmp_path: Path) -> None:
    more = {"_id": "more", "text": "The relief valve was replaced.", "date": "2025-01-01"}
    build_index([more], tmp_path / "more")
    both = Retriever.load([path, tmp_path / "more"])
    ids = [hit.id for hit in both.search("relief valve", k=3, sort="-date")]
    assert ids == ["new", "more", "old"]
    among = ["old", "mid", "x0", "x1", "x2"]
    seen = Retriever.load(path).visible({"_id": {"$in": among}})
    assert [hit.id for hit in seen.search("relief valve", k=3, sort="-date")] == ["old", "mid"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sort": "weight"}, "no document has the field 'weight'"),
        ({"sort": "-"}, "must be a field"),
        ({"sort": 5}, "must be a field"),
        ({"sort": "date", "unit": "passage", "diversity": 0.5}, "not with diversity"),
    ],
)
def test_what_means_nothing_is_told(path: Path, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Retriever.load(path).search("relief valve", **options)


def test_a_field_in_a_list_of_objects_orders_by_its_least_or_greatest_value(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"_id": "a", "text": "lease one", "bids": [{"price": 7}, {"price": 1}]},
        {"_id": "b", "text": "lease two", "bids": {"price": 3}},
        {"_id": "c", "text": "lease three", "bids": [{"price": [5, [4]]}, {"price": [6]}]},
    ]
    vectors = np.eye(3, dtype=np.float32)
    build_index(rows, tmp_path / "ix", vectors=vectors, granularity="document")
    with Retriever.load(tmp_path / "ix") as retriever:
        for sort, order in (("bids.price", "abc"), ("-bids.price", "acb")):
            hits = retriever.search("lease", mode="lexical", sort=sort)
            assert "".join(hit.id for hit in hits) == order
