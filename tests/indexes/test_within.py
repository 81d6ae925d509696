"""Searches within documents: by id, by title, page after page, by values of any type that metadata
may have.
"""

from __future__ import annotations

import ast
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aveyb_retrieval import Index, Retriever
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.indexes.search import scores
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder
from tests.indexes.test_filters import holds
from tests.refusals import Refusal, refusals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NAMES = ["", "a", "b", "ab", "A", "it's", "%", "é", "2", '"', "[1]", "\U0001f600"]
TITLED = [
    {"_id": f"{name}{i}", "title": title, "text": "word1", "metadata": {"x": i}}
    for i, (name, title) in enumerate(product(NAMES, ["", *NAMES[3:7]]))
]


@pytest.fixture(scope="module")
def titled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    with Index.create(tmp_path_factory.mktemp("within") / "ix", model=FakeEmbedder()) as index:
        index.add(TITLED)
        yield index


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    with Index.create(tmp_path_factory.mktemp("within") / "ix", model=FakeEmbedder()) as index:
        index.add(make_documents(120))
        yield index


def chosen(index: Retriever, where: dict[str, Any]) -> list[str]:
    found = [document.id for document in index.documents(where)]
    assert index.count(where) == len(found)
    return found


@pytest.mark.parametrize("field", ["_id", "title"])
def test_filters_know_ids_and_titles(titled: Index, field: str) -> None:
    for name in [*NAMES, "a1", "nobody"]:
        for condition in (
            name,
            {"$ne": name},
            {"$gt": name},
            {"$lte": name},
            {"$contains": name},
            {"$any": [name]},
            {"$in": [name, "ab", "7"]},
            {"$nin": [name]},
            {"$not": {"$gte": name}},
            {"$exists": True},
            {"$exists": False},
            {"$is_empty": True},
            {"$in": []},
        ):
            for where in ({field: condition}, {"$or": [{field: condition}, {"x": {"$lt": 3}}]}):
                expected = [
                    each["_id"]
                    for each in TITLED
                    if holds(
                        where, {**each["metadata"], "_id": each["_id"], "title": each["title"]}
                    )
                ]
                assert chosen(titled, where) == expected, where


@pytest.mark.parametrize("value", [5, None, True, 1.5])
@pytest.mark.parametrize("field", ["_id", "title"])
@pytest.mark.parametrize(
    "condition",
    [
        lambda value: value,
        lambda value: {"$in": ["a", value]},
        lambda value: {"$ne": value},
        lambda value: {"$contains": value},
    ],
    ids=["equal", "$in", "$ne", "$contains"],
)
def test_an_id_and_a_title_are_compared_with_texts(
    titled: Index, condition: Callable[[Any], Any], field: str, value: Any
) -> None:
    with pytest.raises(ConfigError, match=f"filter: '{field}' is text and never equals {value!r}"):
        titled.count({field: condition(value)})


def test_the_title_is_the_documents_own(tmp_path: Path) -> None:
    with Index.create(tmp_path / "ix", model=FakeEmbedder()) as index:
        index.add(
            [{"key": "a", "name": "Own", "text": "w", "title": "of metadata"}],
            id_field="key",
            title_field="name",
        )
        assert (chosen(index, {"title": "Own"}), chosen(index, {"title": "of metadata"})) == (
            ["a"],
            [],
        )
        (document,) = index.documents({"title": {"$contains": "wn"}})
        assert (document.title, document.metadata) == ("Own", {"title": "of metadata"})
        index.delete(where={"title": "Own"})
        assert len(index) == 0


@pytest.mark.parametrize(
    "options", [{}, {"mode": "dense"}, {"mode": "lexical"}, {"unit": "passage"}], ids=str
)
def test_a_search_keeps_to_the_ids_given(words: Index, options: dict[str, Any]) -> None:
    some = [f"doc-{i}" for i in range(0, 120, 7)]
    everything = [
        hit.id for hit in words.search("word1 word2 word3", 500, candidates=500, **options)
    ]
    hits = words.search("word1 word2 word3", 500, ids=[*some, "nobody"], candidates=500, **options)
    assert {hit.id for hit in hits} == set(some) & set(everything)
    assert words.search("word1", ids=(), **options) == []
    both = words.search("word1 word2", 99, ids=some, filter={"year": {"$lt": 2010}}, **options)
    assert {hit.id for hit in both} <= {name for name in some if int(name[4:]) % 20 < 10} != set()
    assert words.search("word1", 3, ids=iter(some), **options) == words.search(
        "word1", 3, ids=some, **options
    )


@pytest.mark.parametrize(
    "use",
    [
        lambda words, ids: words.search("word1", ids=ids),
        lambda words, ids: words.get(ids, missing_ok=True),
        lambda words, ids: words.delete(ids),
        lambda words, ids: words.delete(ids, missing_ok=True),
        lambda words, ids: words.update_metadata({"a": 1}, ids),
    ],
    ids=["search", "get", "delete", "delete if there", "update"],
)
@pytest.mark.parametrize(
    ("ids", "told"),
    [
        ("doc-1", r"ids='doc-1' is one string; give a list of ids, as \['doc-1'\]"),
        ([1], "the id 1 is of type int; ids are strings"),
        (["a", None], "the id None is of type NoneType"),
        (7, "ids=7 is of type int; give a list of ids"),
        ({"doc-1": 1}, "is of type dict; give a list of ids"),
        (["a\ud800"], "is not valid Unicode; no document has such an id"),
    ],
)
def test_ids_that_are_none_are_told(
    words: Index, use: Callable[[Index, Any], object], ids: Any, told: str
) -> None:
    with pytest.raises(InputError, match=told):
        use(words, ids)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"mode": "dense"},
    {"mode": "lexical"},
    {"unit": "passage"},
    {"unit": "passage", "per_document": 1},
    {"rerank": "maxsim"},
    {"unit": "passage", "diversity": 0.3},
    {"fusion": "rrf"},
    {"min_score": 0.0},
    {"boost": {"year": 0.5}},
    {"boost": {"year": 0.5}, "mode": "lexical"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_pages_follow_each_other(words: Index, options: dict[str, Any]) -> None:
    query = "word1 word5 word7"
    whole = words.search(query, 20, **options)
    pages = [words.search(query, 5, offset=offset, **options) for offset in (0, 5, 10, 15)]
    assert [(hit.id, hit.span, hit.score) for page in pages for hit in page] == [
        (h.id, h.span, h.score) for h in whole
    ]
    assert words.search(query, 5, offset=10_000, **options) == []
    assert words.rank([query], 4, offset=3, **options) == [
        [(hit.id, hit.score) for hit in whole[3:7]]
    ]


def test_pages_follow_each_other_where_passages_are_read_in_parts(
    words: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ranked(k: int, **options: Any) -> list[tuple[str, float]]:
        return words.rank(["word1 word5 word7"], k, **options)[0]

    whole = ranked(40)
    monkeypatch.setattr(scores, "DOCUMENTS_SCORED_TOGETHER", 7)
    in_parts = ranked(40)
    assert (
        [each for offset in (0, 10, 20, 30) for each in ranked(10, offset=offset)]
        == in_parts
        != whole
    )
    assert in_parts == sorted(in_parts, key=lambda each: -each[1])
    assert len({score for _, score in in_parts}) == 40, (
        "an evaluation orders equal scores in its own way"
    )
    assert ranked(40, min_score=0.0) == in_parts
    assert ranked(40, boost={}) == whole, "where the order changes later, all are one part"


MOMENT = datetime(2024, 5, 6, 7, 8, 9, 125, tzinfo=UTC)
VALUES = [
    (date(2024, 5, 6), "2024-05-06"),
    (MOMENT, "2024-05-06T07:08:09.000125+00:00"),
    (np.datetime64("2024-05-06"), "2024-05-06"),
    (np.datetime64("2024-05-06T07:08:09.123456789"), "2024-05-06T07:08:09.123456"),
    (Decimal("19.90"), 19.9),
    (np.int32(7), 7),
    (np.uint64(2**64 - 1), 2**64 - 1),
    (np.float32(0.5), 0.5),
    (np.float64(0.1), 0.1),
    (np.str_("text"), "text"),
]


@pytest.mark.parametrize(("given", "stored"), VALUES, ids=repr)
def test_what_is_stored_and_what_is_asked_are_converted_alike(
    tmp_path: Path, given: Any, stored: Any
) -> None:
    with Index.create(tmp_path / "ix", model=FakeEmbedder(), granularity="document") as index:
        index.add(
            [
                {"_id": "a", "text": "w", "x": given, "xs": [given], "in": {"x": given}},
                {"_id": "b", "text": "w"},
            ]
        )
        index.update_metadata({"later": given}, ["a"])
        assert index.get(["a"])[0].metadata == {
            "x": stored,
            "xs": [stored],
            "in": {"x": stored},
            "later": stored,
        }
        for field in ("x", "xs", "in.x", "later"):
            for asked in (given, stored):
                for condition in (asked, {"$in": [asked]}, {"$gte": asked, "$lte": asked}):
                    assert chosen(index, {field: condition}) == ["a"], condition
                assert chosen(index, {field: {"$lt": asked}}) == []
        assert [hit.id for hit in index.search("w", filter={"x": given})] == ["a"]


def test_truth_values_of_numpy_are_truth_values(tmp_path: Path) -> None:
    with Index.create(tmp_path / "ix", model=FakeEmbedder(), granularity="document") as index:
        index.add(
            [{"_id": "a", "text": "w", "x": np.bool_(True)}, {"_id": "b", "text": "w", "x": 1}]
        )
        assert chosen(index, {"x": np.True_}) == chosen(index, {"x": True}) == ["a"]
        assert chosen(index, {"x": np.int8(1)}) == ["b"]


@pytest.mark.parametrize(
    "value", [Decimal("NaN"), Decimal("sNaN"), np.float32("nan"), 1j, np.complex64(1), object()]
)
def test_what_json_has_nothing_for_is_refused_in_both(tmp_path: Path, value: Any) -> None:
    with Index.create(tmp_path / "ix", model=FakeEmbedder()) as index:
        with pytest.raises(InputError, match=r"document 1.*(no number for|not JSON)"):
            index.add([{"_id": "a", "text": "w", "x": value}])
        with pytest.raises(ConfigError, match="filter: "):
            index.count({"x": value})


# --- values --------------------------------------------------------------------------------------


def test_values_are_counted_by_document(words: Index) -> None:
    rows = make_documents(120)
    for where in (
        None,
        {"year": {"$lt": 2005}},
        {"_id": {"$in": ["doc-3", "doc-8", "nobody"]}},
        {"tags": "b"},
    ):
        among = [row for row in rows if where is None or holds(where, row)]
        for field, values in (
            ("tags", "abcdef"),
            ("year", range(2000, 2020)),
            ("title", {row["title"] for row in rows}),
        ):
            counts = {
                value: sum(
                    value in row[field] if field == "tags" else value == row[field] for row in among
                )
                for value in values
            }
            expected = sorted(
                ((v, n) for v, n in counts.items() if n), key=lambda each: (-each[1], each[0])
            )
            assert words.values(field, where) == expected[:100]
            assert words.values(field, where, limit=2) == expected[:2]


def test_values_of_every_type_are_told_apart(tmp_path: Path) -> None:
    with Index.create(tmp_path / "ix", model=FakeEmbedder(), granularity="document") as index:
        held = [
            2,
            2.0,
            True,
            "2",
            None,
            [],
            {},
            ["a", "a", 2],
            [None, ["b"], {"c": 1}],
            "",
            False,
            0,
            -0.5,
            "true",
        ]
        index.add(
            [{"_id": f"{i}", "text": "w", "deep": {"x": value}} for i, value in enumerate(held)]
        )
        assert index.values("deep.x") == [
            (2, 3),
            (-0.5, 1),
            (0, 1),
            (False, 1),
            (True, 1),
            ("", 1),
            ("2", 1),
            ("a", 1),
            ("b", 1),  # of a list in a list, as filters find it
            ("true", 1),
        ]
        assert [type(value) for value, _ in index.values("deep.x")[2:5]] == [int, bool, bool]
        assert index.values("deep.x", ids=["0", "3"]) == [(2, 1), ("2", 1)]
        assert index.values("deep") == index.values("deep.x", {"_id": "4"}) == []
        index.delete(["0"])
        assert index.values("deep.x")[0] == (2, 2), "counted anew in a new version"


@refusals(
    {
        ConfigError: {
            "20,000 values of '_id'; at most 10,000": lambda words: words.search(
                "word1", ids=[f"{i}" for i in range(20_000)]
            ),
            **{
                f"offset={offset!r}: must be a whole number of at least 0": partial(
                    Index.search, query="word1", offset=offset
                )
                for offset in (-1, 1.5, None, True, "2")
            },
            "no document can be counted: none has the field 'yeer'; did you mean 'year'?": partial(
                Index.values, field="yeer"
            ),
            "cannot be a field": partial(Index.values, field=""),
            "field=7: must be the name of a field": partial(Index.values, field=7),
            r"the operator '\$about' on 'year' is not known": partial(
                Index.values, field="year", filter={"year": {"$about": 2}}
            ),
            **{
                f"limit={limit!r}: must be a whole number from 1 to 10,000": partial(
                    Index.values, field="year", limit=limit
                )
                for limit in (0, -1, 10_001, 1.5, True, None)
            },
        },
    }
)
def test_what_no_search_within_documents_takes_is_refused(words: Index, refused: Refusal) -> None:
    refused(words)


def test_the_advice_on_a_name_with_a_dot_works(tmp_path: Path) -> None:
    with Index.open(tmp_path / "index", create=True, model=FakeEmbedder()) as index:
        index.add([{"_id": "a", "text": "b", "amount.eur": 3, "No.": 1}])
        with pytest.raises(ConfigError) as refused:
            index.values("amount.eur")
        advised = ast.literal_eval(re.search("did you mean ('.*?')", str(refused.value))[1])  # type: ignore[index]
        assert index.values(advised) == [(3, 1)]
        with pytest.raises(
            ConfigError,
            match=r"'No\.' cannot be a field; .* write a dot in a key as \\\.",
        ):
            index.values("No.")
        assert index.values(r"No\.") == [(1, 1)]


def test_a_field_with_too_many_values_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aveyb_retrieval.indexes.store.tables.MOST_COUNTED", 50)
    with Index.create(tmp_path / "ix", model=FakeEmbedder(), granularity="document") as index:
        index.add([{"_id": f"{i}", "text": "w", "n": i} for i in range(60)])
        with pytest.raises(
            ConfigError, match="the field 'n' has more than 50 values; choose another field"
        ):
            index.values("n")
        assert len(index.values("n", {"n": {"$lt": 50}})) == 50


def test_an_index_without_documents_has_no_values(tmp_path: Path) -> None:
    with Index.create(tmp_path / "ix", model=FakeEmbedder()) as index:
        assert index.values("anything") == []
