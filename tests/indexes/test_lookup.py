"""Documents by id or filter without a search, and metadata changed without encoding."""

from __future__ import annotations

import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aveyb_retrieval import Document, Index, Retriever, build_index, hits_to_prompt
from aveyb_retrieval.errors import ConfigError, IndexFormatError, InputError
from tests import one_change
from tests.contents import problems_of
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder
from tests.indexes.test_filters import FILTER, METADATA, holds
from tests.refusals import Refusal, refusals

if TYPE_CHECKING:
    from pathlib import Path


def as_document(row: dict[str, Any]) -> Document:
    rest = {name: value for name, value in row.items() if name not in ("_id", "title", "text")}
    return Document(row["_id"], row["text"], row.get("title", ""), rest)


# --- reading -------------------------------------------------------------------------------------


def test_documents_are_fetched_by_id_in_the_order_asked_for(
    tmp_path: Path, embedder: FakeEmbedder
) -> None:
    rows = make_documents(600)
    build_index(rows, tmp_path / "ix", model=embedder)
    with Retriever.load(tmp_path / "ix") as retriever:
        wanted = [f"doc-{i}" for i in (599, 3, 300, 3)]
        assert retriever.get(wanted) == [as_document(rows[i]) for i in (599, 3, 300, 3)]
        assert retriever.get([]) == []
        assert [
            each.id for each in retriever.get(["doc-1", "nobody", "doc-0"], missing_ok=True)
        ] == ["doc-1", "doc-0"]
        with pytest.raises(InputError, match="no document has the id 'nobody'"):
            retriever.get(["doc-1", "nobody"])
        with pytest.raises(InputError, match=r"one string; give a list of ids, as \['doc-1'\]"):
            retriever.get("doc-1")
        with pytest.raises(InputError, match="the id 1 is of type int"):
            retriever.get([1])  # type: ignore[list-item]


def test_documents_are_listed_and_counted_under_a_filter(
    tmp_path: Path, embedder: FakeEmbedder
) -> None:
    rows = make_documents(600)
    build_index(rows, tmp_path / "ix", model=embedder)
    with Retriever.load(tmp_path / "ix") as retriever:
        assert list(retriever.documents()) == [as_document(row) for row in rows]
        assert list(retriever.documents(limit=2, offset=400)) == [
            as_document(row) for row in rows[400:402]
        ]
        recent = [as_document(row) for row in rows if row["year"] >= 2015]
        assert list(retriever.documents({"year": {"$gte": 2015}})) == recent
        assert (
            list(retriever.documents({"year": {"$gte": 2015}}, limit=7, offset=149))
            == recent[149:156]
        )
        assert list(retriever.documents(offset=600)) == list(retriever.documents(limit=0)) == []
        assert retriever.count() == len(retriever) == 600
        assert retriever.count({"year": {"$gte": 2015}}) == len(recent)
        assert retriever.count({"year": 1}) == 0
        for wrong in ({"limit": -1}, {"offset": 1.5}, {"offset": None}, {"limit": True}):
            with pytest.raises(ConfigError, match="whole number of at least 0"):
                retriever.documents(**wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="not known"):
            retriever.count({"year": {"$about": 2015}})


def test_what_a_document_gives_can_be_indexed_again(tmp_path: Path, embedder: FakeEmbedder) -> None:
    rows = [
        {
            "_id": "a",
            "text": "x y",
            "title": "T",
            "metadata": {"metadata": {"title": "inner"}, "kind": 1},
        }
    ]
    build_index(rows, tmp_path / "ix", model=embedder)
    with Retriever.load(tmp_path / "ix") as retriever:
        (document,) = retriever.documents()
        build_index([document.to_dict()], tmp_path / "again", model=embedder)
    with Retriever.load(tmp_path / "again") as again:
        assert again.get(["a"]) == [document]
    assert document.metadata == {"metadata": {"title": "inner"}, "kind": 1}


@settings(max_examples=25, deadline=None)
@given(metadata=st.lists(METADATA, min_size=1, max_size=6), where=FILTER)
def test_listing_counting_and_changing_agree_with_plain_python(
    tmp_path_factory: pytest.TempPathFactory, metadata: list[dict[str, Any]], where: dict[str, Any]
) -> None:
    root = tmp_path_factory.mktemp("ix") / "ix"
    rows = [{"_id": f"{i}", "text": "w", "metadata": each} for i, each in enumerate(metadata)]
    build_index(rows, root, model=FakeEmbedder(dim=2), granularity="document")
    chosen = [holds(where, each) for each in metadata]
    with Retriever.load(root) as retriever:
        assert [document.id for document in retriever.documents(where)] == [
            f"{i}" for i, c in enumerate(chosen) if c
        ]
        assert retriever.count(where) == sum(chosen)
        one_change.update_metadata(root, {"x": ["new"], "z": 1}, where=where, remove=["y"])
        retriever.reopen()
        changed = [
            {**{k: v for k, v in each.items() if k != "y"}, "x": ["new"], "z": 1} if c else each
            for each, c in zip(metadata, chosen, strict=True)
        ]
        assert [document.metadata for document in retriever.documents()] == changed
        for again in (where, {"x": {"$any": ["new"]}}, {"x": {"$contains": "new"}}, {"z": 1}):
            assert [document.metadata for document in retriever.documents(again)] == [
                each for each in changed if holds(again, each)
            ]


# --- an index without documents ------------------------------------------------------------------


@pytest.mark.parametrize("factory", ["auto", "Flat", "HNSW8", "IVF2,Flat", "SQ8"])
def test_an_index_may_begin_empty(tmp_path: Path, embedder: FakeEmbedder, factory: str) -> None:
    root, rows = tmp_path / "ix", make_documents(30)
    with pytest.raises(InputError, match="holds no documents"):
        build_index([], root, model=embedder)
    assert not root.exists()
    assert build_index([], root, model=embedder, index=factory, allow_empty=True).documents == 0
    assert problems_of(root) == []
    with Retriever.load(root, model=embedder) as retriever:
        assert retriever.search("word1") == retriever.search("word1", unit="passage") == []
        assert retriever.search("word1", mode="lexical", filter={"year": 2000}) == []
        assert (
            retriever.count()
            == retriever.count({"year": 2000})
            == len(list(retriever.documents()))
            == 0
        )
    assert one_change.compact(root).documents == 0
    one_change.add(rows, root, model=embedder)
    with Retriever.load(root, model=embedder) as retriever:
        assert len(retriever.search("word1 word2", k=30)) == 30
    assert problems_of(root) == []


def test_an_empty_index_is_not_made_of_a_file_that_is_not_there(
    tmp_path: Path, embedder: FakeEmbedder
) -> None:
    with pytest.raises(InputError, match="no such file"):
        build_index(tmp_path / "none.jsonl", tmp_path / "ix", model=embedder, allow_empty=True)


# --- metadata ------------------------------------------------------------------------------------


def test_metadata_are_changed_by_id_and_by_filter_without_encoding(
    tmp_path: Path, embedder: FakeEmbedder
) -> None:
    root, rows = tmp_path / "ix", make_documents(50)
    build_index(rows, root, model=embedder)
    encoded = embedder.encoded_words
    with Retriever.load(root, model=embedder) as retriever:
        before = retriever.search("word1 word2", k=5)
        one_change.update_metadata(
            root, {"year": 1999, "read": datetime.date(2024, 2, 29)}, ["doc-1", "doc-2"]
        )
        one_change.update_metadata(
            root, {"old": True}, where={"year": {"$lt": 2003}}, remove=["tags", "nothing"]
        )
        assert retriever.count({"year": 1999}) == 0
        retriever.reopen()
        one, three = retriever.get(["doc-1", "doc-3"])
        assert one.metadata == {"year": 1999, "read": "2024-02-29", "old": True}
        assert three.metadata == {"year": 2003, "tags": rows[3]["tags"]}
        assert [each.id for each in retriever.documents({"year": 1999})] == ["doc-1", "doc-2"]
        assert embedder.encoded_words == encoded
        after = retriever.search("word1 word2", k=5)
        assert [(hit.id, hit.score, hit.passage) for hit in after] == [
            (h.id, h.score, h.passage) for h in before
        ]
    assert problems_of(root) == []
    one_change.upsert(rows, root, model=embedder)
    assert embedder.encoded_words == encoded


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("five") / "ix"
    build_index(make_documents(5), root, model=FakeEmbedder())
    return root


update_one = partial(one_change.update_metadata, ids=["doc-1"])


@refusals(
    {
        ConfigError: {
            "nothing to change": partial(update_one, changes={}),
            "ids or a filter": lambda root: one_change.update_metadata(root, {"a": 1}),
            "both set and removed": partial(update_one, changes={"a": 1}, remove=["a"]),
            **{
                f"'{own}' is a field of the document itself, not metadata.*upsert": [
                    partial(update_one, changes={own: "new"}),
                    partial(update_one, changes={"a": 1}, remove=[own]),
                ]
                for own in ("_id", "title", "text")
            },
            "remove='year' is one string": partial(update_one, changes={}, remove="year"),
        },
        InputError: {
            "not JSON": partial(update_one, changes={"a": object()}),
            "surrogate": partial(update_one, changes={"a": "\ud800"}),
            "'nobody'; nothing was changed": partial(
                one_change.update_metadata, changes={"a": 1}, ids=["doc-1", "nobody"]
            ),
        },
        IndexFormatError: {
            "no index here": lambda root: one_change.update_metadata(
                root.parent / "none", {"a": 1}, where={}
            ),
        },
    }
)
def test_metadata_that_cannot_be_changed_so(five: Path, refused: Refusal) -> None:
    refused(five)
    with Retriever.load(five) as retriever:
        assert retriever.version == "v000001"
        assert retriever.count({"a": 1}) == 0


def test_a_change_of_no_document_makes_no_version(five: Path) -> None:
    assert one_change.update_metadata(five, {"a": 1}, where={"year": 1}).version == "v000001"
    with Retriever.load(five) as retriever:
        assert retriever.count({"a": 1}) == 0


def test_whole_numbers_of_numpy_are_whole_numbers(embedder: FakeEmbedder, tmp_path: Path) -> None:
    rows = [{"_id": f"d{i}", "text": f"word{i}", "n": i} for i in range(4)]
    with Index.open(tmp_path / "ix", create=True, model=embedder) as index:
        index.add(rows)
        two, one = np.int64(2), np.int32(1)
        assert [each.id for each in index.documents(limit=two, offset=one)] == ["d1", "d2"]
        assert len(index.values("n", limit=two)) == 2
        assert "d3" in hits_to_prompt(index.search("word3", two), max_tokens=np.int64(500))
        for limit in (np.float64(2), True, -1, "2"):
            with pytest.raises(ConfigError, match=r"limit=.*whole number of at least 0"):
                index.documents(limit=limit)


def test_an_index_has_what_it_holds_and_is_no_list(embedder: FakeEmbedder, tmp_path: Path) -> None:
    with Index.open(tmp_path / "ix", create=True, model=embedder) as index:
        index.add([{"_id": "a", "text": "word", "n": 1}])
        for each in (index, index.visible({"n": 1})):
            assert "a" in each
            for other in ("b", "\ud800", 0, None):
                assert other not in each
            with pytest.raises(TypeError, match="not iterable"):
                iter(each)
