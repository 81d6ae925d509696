"""LlamaIndex: retriever, vector store and embedding, under its own query engine, index and
ingestion pipeline.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip(
    "llama_index.core", reason="llama-index-core is not installed: pip install '.[integrations]'"
)

from llama_index.core import MockEmbedding, StorageContext, VectorStoreIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import Document, NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
)
from llama_index.core.vector_stores.types import VectorStoreQueryMode
from llama_index.core.vector_stores.utils import build_metadata_filter_fn

from aveyb_retrieval import ConfigError, Embedder, Retriever, build_index
from aveyb_retrieval.integrations.llama_index import (
    AveyBEmbedding,
    AveyBRetriever,
    AveyBVectorStore,
)
from tests import one_change
from tests.contents import problems_of

if TYPE_CHECKING:
    from pathlib import Path

NOTHING = MockEmbedding(embed_dim=1)
METADATA: list[dict[str, Any]] = [
    {"year": 2020, "lang": "en", "tags": ["a", "b"]},
    {"year": 2021, "lang": "de", "tags": ["b"], "a.b": 1},
    {"year": 2022, "lang": "english", "tags": []},
    {"lang": None},
]


def nodes() -> list[TextNode]:
    return [
        TextNode(
            id_=f"n{i}",
            text=f"valve number {i}",
            metadata=metadata,
            relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"source-{i % 2}")},
        )
        for i, metadata in enumerate(METADATA)
    ]


@pytest.fixture(autouse=True)
def _own_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """LlamaIndex brings the vocabulary that it counts tokens with, but looks elsewhere if this says
    so.
    """
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)


@pytest.fixture
def store(tmp_path: Path, embedder: Embedder) -> AveyBVectorStore:
    return AveyBVectorStore(tmp_path / "store", model=embedder)


# --- retriever -----------------------------------------------------------------------------------


def test_a_query_engine_answers_from_passages(index: Path, embedder: Embedder) -> None:
    retriever = AveyBRetriever(index, similarity_top_k=1, model=embedder)
    response = RetrieverQueryEngine.from_args(retriever, llm=MockLLM()).query(
        "how long is the notice period?"
    )
    (source,) = response.source_nodes
    assert "three months' notice" in str(response)  # the mock repeats its prompt
    assert "modified" not in str(response), "of metadata only title, heading and page"
    assert "year" not in str(response)
    with Retriever.load(index) as plain:
        (document,) = plain.get(["lease"])
    node = source.node
    assert isinstance(node, TextNode)
    assert (node.ref_doc_id, node.metadata["year"]) == ("lease", 2021)
    assert node.text == document.text[node.start_char_idx : node.end_char_idx]


async def test_a_retriever_filters_and_follows_the_index(index: Path, embedder: Embedder) -> None:
    filters = MetadataFilters(
        filters=[MetadataFilter(key="year", value=2022, operator=FilterOperator.GT)]
    )
    retriever = AveyBRetriever(index, 9, filters=filters, model=embedder)
    assert {each.node.ref_doc_id for each in await retriever.aretrieve("gate")} == {
        "minutes",
        "memo",
    }
    one_change.add(
        [{"_id": "new", "text": "The gate is new.", "year": 2025}], index, model=embedder
    )
    assert {each.node.ref_doc_id for each in retriever.retrieve("gate")} == {
        "minutes",
        "memo",
        "new",
    }
    assert len(AveyBRetriever(index, search_options={"k": 2}, model=embedder).retrieve("gate")) == 2
    exact = AveyBRetriever(index, 9, search_options={"operators": True}, model=embedder)
    assert {each.node.ref_doc_id for each in exact.retrieve("valve* -gate")} == {"manual"}
    for unit in ("document", "passage"):
        options = {"operators": True, "unit": unit}
        late = AveyBRetriever(index, 9, filters=filters, search_options=options, model=embedder)
        assert {each.node.ref_doc_id for each in late.retrieve("+the -gate")} == {"minutes"}
    whole = AveyBRetriever(
        index, 1, search_options={"unit": "document", "mode": "lexical"}, model=embedder
    )
    assert [each.node.ref_doc_id for each in whole.retrieve("valve")] == ["manual"]


# --- vector store --------------------------------------------------------------------------------


def test_a_vector_index_over_the_store_answers(
    tmp_path: Path, store: AveyBVectorStore, embedder: Embedder
) -> None:
    documents = [
        Document(
            text="Close the valve before opening the filter.",
            doc_id="manual",
            metadata={"year": 2019},
        )
    ]
    context = StorageContext.from_defaults(vector_store=store)
    index = VectorStoreIndex.from_documents(documents, storage_context=context, embed_model=NOTHING)
    index.insert(Document(text="Visitors sign in at the north gate.", doc_id="memo"))
    response = index.as_query_engine(llm=MockLLM(), similarity_top_k=1).query(
        "where do visitors go?"
    )
    assert [source.node.ref_doc_id for source in response.source_nodes] == ["memo"]
    index.delete_ref_doc("memo")
    opened = VectorStoreIndex.from_vector_store(
        AveyBVectorStore(tmp_path / "store", model=embedder), NOTHING
    )
    for mode in ("default", "hybrid", "text_search", "sparse"):
        found = opened.as_retriever(vector_store_query_mode=mode, alpha=0.5).retrieve("valve")
        assert [(each.node.ref_doc_id, each.node.metadata) for each in found] == [
            ("manual", {"year": 2019})
        ]
    assert problems_of(tmp_path / "store") == []


async def test_a_pipeline_writes_to_the_store(store: AveyBVectorStore, embedder: Embedder) -> None:
    pipeline = IngestionPipeline(transformations=[AveyBEmbedding(embedder)], vector_store=store)
    await pipeline.arun(documents=[Document(text="Sign the form.", doc_id="form")])
    result = await store.aquery(VectorStoreQuery(query_str="form", similarity_top_k=3))
    assert [node.get_content() for node in result.nodes or []] == ["Sign the form."]
    assert result.similarities and 0 < result.similarities[0] <= 1


def test_nodes_come_back_as_they_went_in(store: AveyBVectorStore) -> None:
    written = nodes()
    assert store.add(written) == ["n0", "n1", "n2", "n3"]
    assert store.add(written[:1]) == ["n0"]
    assert store.get_nodes() == written
    assert store.get_nodes(["n2", "n0", "nobody"]) == [written[0], written[2]]
    store.delete("source-1")
    assert store.get_nodes() == [written[0], written[2]]
    store.delete_nodes()
    store.delete_nodes(["n0"], MetadataFilters(filters=[MetadataFilter(key="year", value=2022)]))
    assert len(store.get_nodes()) == 2
    store.delete_nodes(["n0"])
    assert store.get_nodes() == [written[2]]
    store.clear()
    assert store.get_nodes() == []
    assert store.query(VectorStoreQuery(query_str="valve")).nodes == []


def test_queries_name_nodes_and_documents(store: AveyBVectorStore) -> None:
    store.add(nodes())

    def found(**fields: Any) -> set[str]:
        query = VectorStoreQuery(query_str="valve number", **{"similarity_top_k": 9, **fields})
        return set(store.query(query).ids or [])

    assert found(node_ids=["n1", "n2"]) == {"n1", "n2"}
    assert found(doc_ids=["source-0"]) == {"n0", "n2"}
    assert found(doc_ids=["source-0"], node_ids=["n1", "n2"]) == {"n2"}
    assert (
        len(found(mode=VectorStoreQueryMode.HYBRID, alpha=0.0, hybrid_top_k=2, similarity_top_k=1))
        == 2
    )
    with pytest.raises(ConfigError, match="'svm' has no equal"):
        found(mode=VectorStoreQueryMode.SVM)
    with pytest.raises(ConfigError, match="needs its text"):
        store.query(VectorStoreQuery(query_embedding=[1.0]))


OPERATORS = [
    ("==", "year", 2020),
    ("!=", "year", 2020),
    (">", "year", 2020),
    (">=", "year", 2021),
    ("<", "year", 2021),
    ("<=", "year", 2021),
    ("in", "lang", ["en", "de"]),
    ("nin", "lang", ["en", "de"]),
    ("any", "tags", ["a", "c"]),
    ("all", "tags", ["a", "b"]),
    ("contains", "tags", "b"),
    ("text_match", "lang", "en"),
    ("is_empty", "tags", None),
    ("is_empty", "lang", None),
    ("==", "a.b", 1),
]


@pytest.mark.parametrize(("operator", "key", "value"), OPERATORS)
def test_filters_mean_what_they_mean_in_llama_index(
    store: AveyBVectorStore, operator: str, key: str, value: Any
) -> None:
    store.add(nodes())
    one = MetadataFilter(key=key, value=value, operator=FilterOperator(operator))
    other = MetadataFilter(key="year", value=2021)
    for condition, filters in (
        (FilterCondition.AND, [one]),
        (FilterCondition.AND, [one, other]),
        (FilterCondition.OR, [one, other]),
        (FilterCondition.NOT, [one, other]),
    ):
        wanted = MetadataFilters(filters=filters, condition=condition)
        holds = build_metadata_filter_fn(lambda name: METADATA[int(name[1:])], wanted)
        assert [node.node_id for node in store.get_nodes(filters=wanted)] == [
            f"n{i}" for i in range(len(METADATA)) if holds(f"n{i}")
        ]
    nested = MetadataFilters(
        filters=[MetadataFilters(filters=[one]), other], condition=FilterCondition.OR
    )
    assert "n1" in [node.node_id for node in store.get_nodes(filters=nested)]


def test_an_operator_without_an_equal_is_an_error(store: AveyBVectorStore) -> None:
    filters = MetadataFilters(
        filters=[
            MetadataFilter(key="lang", value="EN", operator=FilterOperator.TEXT_MATCH_INSENSITIVE)
        ]
    )
    with pytest.raises(ConfigError, match="'text_match_insensitive' on 'lang'"):
        store.get_nodes(filters=filters)


# --- embedding -----------------------------------------------------------------------------------


async def test_embeddings_are_those_of_the_model(embedder: Embedder) -> None:
    embedding = AveyBEmbedding(embedder)
    assert np.allclose(
        embedding.get_query_embedding("valve"), embedder.encode_queries(["valve"])[0]
    )
    (document,) = embedder.encode_documents([("", "Close the valve. " * 200)])
    assert np.allclose(embedding.get_text_embedding("Close the valve. " * 200), document.vector)
    texts = ["a gate", "a valve", "a form"]
    batch = embedding.get_text_embedding_batch(texts)
    assert np.allclose(batch, await embedding.aget_text_embedding_batch(texts))
    assert np.allclose(batch[1], await embedding.aget_text_embedding("a valve"), atol=1e-6)
    assert np.allclose(
        await embedding.aget_query_embedding("valve"), embedding.get_query_embedding("valve")
    )
    assert embedding.to_dict()["class_name"] == "AveyBEmbedding"


def test_a_hit_in_a_pdf_names_its_page(pdf_index: Path, embedder: Embedder) -> None:
    (found,) = AveyBRetriever(pdf_index, 1, model=embedder).retrieve("where do visitors sign in?")
    assert (found.node.metadata["aveyb"]["page"], found.node.metadata["page_label"]) == (2, "i")


def test_copies_by_pickle_open_the_same_index(index: Path, tmp_path: Path) -> None:
    retriever = AveyBRetriever(index, 2)
    copy = pickle.loads(pickle.dumps(retriever))
    assert copy.retrieve("notice period") == retriever.retrieve("notice period")
    store = AveyBVectorStore(tmp_path / "store")
    store.add([TextNode(id_="a", text="close the valve")])
    assert pickle.loads(pickle.dumps(store)).get_nodes(["a"]) == store.get_nodes(["a"])


def test_metadata_of_documents_stay_as_they_are(tmp_path: Path, embedder: Embedder) -> None:
    own = {"score": 7, "heading": "Clause 4", "span": "2020-2024", "source_id": "SAP-9"}
    own |= {"confidence": "secret", "headings": ["a"], "duplicates": "none", "page_label": "iv"}
    rows = [{"_id": "a", "text": "The lease ends in May.", **own}, {"_id": "b", "text": "Soup."}]
    build_index(rows, tmp_path / "own", model=embedder)
    retriever = AveyBRetriever(tmp_path / "own", similarity_top_k=1, model=embedder)
    (found,) = retriever.retrieve("When does the lease end?")
    assert own.items() <= found.node.metadata.items()
