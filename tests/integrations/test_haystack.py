"""Haystack's own suites for document stores, unmodified; then pipelines, and where the store
differs by design.
"""

from __future__ import annotations

import pickle
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip(
    "haystack",
    reason="haystack-ai (Python 3.11 and newer) is not installed: pip install '.[integrations]'",
)

from haystack import Document, Pipeline
from haystack.components.writers import DocumentWriter
from haystack.dataclasses import ByteStream
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DocumentStore, DuplicatePolicy
from haystack.errors import FilterError
from haystack.testing import document_store as suite
from haystack.testing import document_store_async as async_suite

from aveyb_retrieval import ConfigError, Embedder, InputError, build_index
from aveyb_retrieval.integrations.haystack import AveyBDocumentStore, AveyBRetriever
from tests.contents import problems_of

if TYPE_CHECKING:
    from pathlib import Path


class TestStoreConforms(
    suite.DocumentStoreBaseExtendedTests,
    suite.CountDocumentsByFilterTest,
    suite.CountUniqueMetadataByFilterTest,
    suite.GetMetadataFieldsInfoTest,
    suite.GetMetadataFieldMinMaxTest,
    suite.GetMetadataFieldUniqueValuesTest,
):
    @pytest.fixture
    def document_store(self, tmp_path: Path, embedder: Embedder) -> AveyBDocumentStore:
        return AveyBDocumentStore(str(tmp_path / "store"), model=embedder)

    def test_write_documents(self, document_store: DocumentStore) -> None:
        """The suite has every store say here what its default policy is: ours refuses ids that are
        there.
        """
        document = Document(content="test doc")
        assert document_store.write_documents([document]) == 1
        with pytest.raises(DuplicateDocumentError, match="nothing was written"):
            document_store.write_documents([Document(content="another"), document])
        assert document_store.filter_documents() == [document]


class TestStoreConformsAsynchronously(
    async_suite.DeleteAllAsyncTest,
    async_suite.CountDocumentsAsyncTest,
    async_suite.CountDocumentsByFilterAsyncTest,
    async_suite.CountUniqueMetadataByFilterAsyncTest,
    async_suite.DeleteByFilterAsyncTest,
    async_suite.UpdateByFilterAsyncTest,
    async_suite.WriteDocumentsAsyncTest,
    async_suite.DeleteDocumentsAsyncTest,
    async_suite.GetMetadataFieldsInfoAsyncTest,
    async_suite.GetMetadataFieldMinMaxAsyncTest,
    async_suite.GetMetadataFieldUniqueValuesAsyncTest,
    async_suite.FilterDocumentsAsyncTest,
):
    @pytest.fixture
    def document_store(self, tmp_path: Path, embedder: Embedder) -> AveyBDocumentStore:
        return AveyBDocumentStore(str(tmp_path / "store"), model=embedder)

    async def test_write_documents_async(self, document_store: Any) -> None:
        """As the test of the same name above."""
        document = Document(content="test doc")
        assert await document_store.write_documents_async([document]) == 1
        with pytest.raises(DuplicateDocumentError):
            await document_store.write_documents_async([document])


def test_only_the_tests_of_the_default_policy_are_our_own() -> None:
    for ours, allowed in (
        (TestStoreConforms, {"test_write_documents"}),
        (TestStoreConformsAsynchronously, {"test_write_documents_async"}),
    ):
        assert {name for name in vars(ours) if name.startswith("test_")} == allowed


# --- what the suites do not look at --------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path, embedder: Embedder) -> AveyBDocumentStore:
    made = AveyBDocumentStore(str(tmp_path / "store"), model=embedder)
    made.write_documents(
        [
            Document(
                id="lease",
                content="The tenant may end the lease with three months' notice.",
                meta={"year": 2021},
            ),
            Document(
                id="manual",
                content="Close the valve before opening the filter.",
                meta={"year": 2019},
            ),
            Document(
                id="memo",
                content="Visitors sign in at the north gate.",
                meta={"title": "Memo", "year": 2024},
            ),
        ]
    )
    return made


def test_a_pipeline_writes_and_finds(tmp_path: Path, store: AveyBDocumentStore) -> None:
    writing = Pipeline()
    writing.add_component("writer", DocumentWriter(store))
    assert writing.run(
        {"documents": [Document(id="soup", content="The canteen offers soup.")]}
    ) == {"writer": {"documents_written": 1}}
    asking = Pipeline()
    asking.add_component("retriever", AveyBRetriever(store, top_k=1))
    (found,) = asking.run({"query": "what does the canteen offer?"})["retriever"]["documents"]
    assert (found.id, found.content) == ("soup", "The canteen offers soup.")
    assert found.score is not None
    assert problems_of(tmp_path / "store") == []


async def test_an_asynchronous_pipeline_finds(store: AveyBDocumentStore) -> None:
    asking = Pipeline()
    asking.add_component("retriever", AveyBRetriever(store, top_k=1))
    found = await asking.run_async({"retriever": {"query": "valve"}})
    assert [each.id for each in found["retriever"]["documents"]] == ["manual"]


def test_a_retriever_filters_and_gives_passages(store: AveyBDocumentStore) -> None:
    recent = {"field": "meta.year", "operator": ">=", "value": 2021}
    retriever = AveyBRetriever(store, filters=recent)
    assert {each.id for each in retriever.run("gate")["documents"]} == {"lease", "memo"}
    old = {"field": "meta.year", "operator": "<", "value": 2020}
    assert [each.id for each in retriever.run("gate", filters=old)["documents"]] == ["manual"]
    named = {"field": "meta.title", "operator": "==", "value": "Memo"}
    merging = AveyBRetriever(store, filters=recent, filter_policy="merge")
    assert [each.id for each in merging.run("gate", filters=named)["documents"]] == ["memo"]
    assert retriever.run("gate", top_k=0)["documents"] == []
    with pytest.raises(ConfigError, match="give an AveyBDocumentStore"):
        AveyBRetriever(store.path)  # type: ignore[arg-type]  # the mistake
    (passage,) = AveyBRetriever(store, top_k=1, search_options={"unit": "passage"}).run("gate")[
        "documents"
    ]
    assert (
        AveyBRetriever(store, search_options={"operators": True}).run("gate +nowhere")["documents"]
        == []
    )
    exact = AveyBRetriever(
        store, filters=recent, search_options={"operators": True, "unit": "passage"}
    )
    assert [each.meta["aveyb"]["source_id"] for each in exact.run("the -gate")["documents"]] == [
        "lease"
    ]
    assert (passage.meta["aveyb"]["source_id"], passage.meta["title"], passage.meta["year"]) == (
        "memo",
        "Memo",
        2024,
    )
    start, stop = passage.meta["aveyb"]["span"]
    assert passage.id == f"memo#{start}-{stop}"
    assert passage.content == "Visitors sign in at the north gate."[start:stop]


def test_components_are_described_and_made_again(tmp_path: Path) -> None:
    store = AveyBDocumentStore(str(tmp_path / "store"), storage_dtype="float16")
    store.write_documents([Document(content="one gate")])
    asking = Pipeline()
    asking.add_component(
        "retriever", AveyBRetriever(store, top_k=3, search_options={"mode": "lexical"})
    )
    again = Pipeline.loads(
        asking.dumps(), allowed_modules=["aveyb_retrieval.integrations.haystack"]
    )
    assert again.to_dict() == asking.to_dict()
    assert [each.content for each in again.run({"query": "gate"})["retriever"]["documents"]] == [
        "one gate"
    ]


def test_documents_come_back_as_they_went_in(store: AveyBDocumentStore) -> None:
    written = [
        Document(id="none", content=None),
        Document(id="empty", content=""),
        Document(
            id="blob",
            blob=ByteStream(b"\x00\xff", meta={"a": 1}, mime_type="x/y"),
            embedding=[0.1, 1 / 3],
        ),
        Document(
            id="meta",
            content="x",
            meta={"content": 1, "id": "inner", "metadata": {"meta": [1, {"a": None}]}},
        ),
    ]
    assert store.write_documents(written, DuplicatePolicy.SKIP) == 4
    assert store.filter_documents()[3:] == written


def test_where_filters_differ_from_haystacks_own_by_design(store: AveyBDocumentStore) -> None:
    """A list meets a condition if an element does; dates are compared as they are written."""
    store.write_documents(
        [
            Document(
                id="list", content="x", meta={"tags": ["a", "b"], "date": datetime(2024, 1, 1)}
            ),
            Document(id="zone", content="y", meta={"date": "2024-01-01T00:00:00+09:00"}),
        ]
    )
    found = store.filter_documents({"field": "meta.tags", "operator": "==", "value": "a"})
    assert [(each.id, each.meta["date"]) for each in found] == [("list", "2024-01-01T00:00:00")]
    later = {"field": "meta.date", "operator": ">", "value": datetime(2024, 1, 1)}
    assert [each.id for each in store.filter_documents(later)] == ["zone"]


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        ({"field": "content", "operator": "==", "value": "x"}, "'content' cannot be filtered on"),
        ({"field": "meta.x", "operator": "==", "value": [1]}, "cannot be compared with"),
        ({"field": "meta.x", "operator": "~", "value": 1}, "'~' is not known"),
        ({"field": "meta.x", "operator": ">", "value": True}, "number or an ISO date"),
        ({"field": "meta.x", "operator": "in", "value": "abc"}, "needs a list"),
        ({"operator": "XOR", "conditions": []}, "'XOR' joins no conditions"),
        ({"operator": "AND", "conditions": []}, "has no conditions"),
        ({"operator": "AND"}, "has no 'conditions'"),
    ],
)
def test_filters_that_mean_nothing(
    store: AveyBDocumentStore, filters: dict[str, Any], words: str
) -> None:
    with pytest.raises(FilterError, match=words):
        store.filter_documents(filters)


def test_a_title_is_the_same_to_filters_and_to_whoever_reads_it(store: AveyBDocumentStore) -> None:
    def found(operator: str, value: Any) -> list[str]:
        filters = {"field": "meta.title", "operator": operator, "value": value}
        return [each.id for each in store.filter_documents(filters)]

    assert (found("==", None), found("!=", None)) == (["lease", "manual"], ["memo"])
    assert found("in", [None, "Memo"]) == ["lease", "manual", "memo"]
    with pytest.raises(ConfigError, match="'title' is a field of the document"):
        store.update_by_filter(
            {"field": "meta.year", "operator": "==", "value": 2024}, {"title": "New"}
        )
    (memo,) = store.filter_documents({"field": "meta.year", "operator": "==", "value": 2024})
    memo.meta["title"] = "New"
    store.write_documents([memo], DuplicatePolicy.OVERWRITE)
    assert (found("==", "New"), found("==", "Memo")) == (["memo"], [])
    with pytest.raises(InputError, match="'title' is of type int"):
        store.write_documents([Document(content="x", meta={"title": 1984})])


def test_one_list_with_the_same_id_twice(store: AveyBDocumentStore) -> None:
    twice = [Document(id="a", content="first"), Document(id="a", content="second")]
    with pytest.raises(DuplicateDocumentError):
        store.write_documents(twice)
    assert store.write_documents(twice, DuplicatePolicy.SKIP) == 1
    assert store.filter_documents()[-1].content == "first"
    assert store.write_documents(twice, DuplicatePolicy.OVERWRITE) == 1
    assert store.filter_documents()[-1].content == "second"


def test_a_hit_in_a_pdf_names_its_page(pdf_index: Path, embedder: Embedder) -> None:
    store = AveyBDocumentStore(str(pdf_index), model=embedder)
    retriever = AveyBRetriever(store, top_k=1, search_options={"unit": "passage"})
    (found,) = retriever.run("where do visitors sign in?")["documents"]
    assert (found.meta["aveyb"]["page"], found.meta["aveyb"]["page_label"]) == (2, "i")


def test_copies_by_pickle_open_the_same_index(tmp_path: Path) -> None:
    store = AveyBDocumentStore(str(tmp_path / "store"))
    store.write_documents([Document(content="one gate")])
    retriever = AveyBRetriever(store, top_k=1)
    assert pickle.loads(pickle.dumps(store)).filter_documents() == store.filter_documents()
    assert pickle.loads(pickle.dumps(retriever)).run("gate") == retriever.run("gate")


def test_metadata_of_documents_stay_as_they_are(tmp_path: Path, embedder: Embedder) -> None:
    own = {"heading": "Clause 4", "span": "2020-2024", "source_id": "SAP-9", "confidence": "high"}
    own |= {"headings": ["a"], "duplicates": "none", "page": "iv", "page_label": "iv"}
    rows = [{"_id": "a", "text": "The lease ends in May.", **own}, {"_id": "b", "text": "Soup."}]
    build_index(rows, tmp_path / "own", model=embedder)
    store = AveyBDocumentStore(str(tmp_path / "own"), model=embedder)
    for unit in ("document", "passage"):
        retriever = AveyBRetriever(store, top_k=1, search_options={"unit": unit})
        (found,) = retriever.run("When does the lease end?")["documents"]
        assert own.items() <= found.meta.items()
        assert ("aveyb" in found.meta) == (unit == "passage")
