"""LangChain's own suites for retrievers, vector stores and embeddings, unmodified; and what they do
not look at.
"""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip(
    "langchain_tests", reason="langchain-tests is not installed: pip install '.[integrations]'"
)

from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_tests.integration_tests import (
    EmbeddingsIntegrationTests,
    RetrieversIntegrationTests,
    VectorStoreIntegrationTests,
)
from langchain_tests.unit_tests import EmbeddingsUnitTests

from aveyb_retrieval import (
    ConfigError,
    Embedder,
    IndexFormatError,
    InputError,
    Retriever,
    build_index,
)
from aveyb_retrieval.integrations.adapting import VectorsOnly
from aveyb_retrieval.integrations.langchain import AveyBEmbeddings, AveyBRetriever, AveyBVectorStore
from tests import one_change
from tests.contents import problems_of

if TYPE_CHECKING:
    from pathlib import Path


class TestRetrieverConforms(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _index(self, index: Path, embedder: Embedder) -> None:
        self.path, self.model = str(index), embedder

    @property
    def retriever_constructor(self) -> type[AveyBRetriever]:
        return AveyBRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"path": self.path, "model": self.model}

    @property
    def retriever_query_example(self) -> str:
        return "how long is the notice period?"


class TestVectorStoreConforms(VectorStoreIntegrationTests):
    """With the suite's own embeddings."""

    @pytest.fixture
    def vectorstore(self, tmp_path: Path) -> AveyBVectorStore:  # type: ignore[override]
        return AveyBVectorStore(tmp_path / "index", self.get_embeddings())


class TestVectorStoreConformsWithOurModel(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tmp_path: Path, embedder: Embedder) -> AveyBVectorStore:  # type: ignore[override]
        return AveyBVectorStore(tmp_path / "index", AveyBEmbeddings(embedder))


class TestEmbeddingsUnit(EmbeddingsUnitTests):
    @property
    def embeddings_class(self) -> type[Embeddings]:
        return AveyBEmbeddings


class TestEmbeddingsConform(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self) -> type[Embeddings]:
        return AveyBEmbeddings


# --- what the suites do not look at --------------------------------------------------------------


def test_a_retriever_gives_passages_with_their_sources(index: Path, embedder: Embedder) -> None:
    retriever = AveyBRetriever(path=str(index), model=embedder, k=1)
    (found,) = retriever.invoke("how long is the notice period of the lease?")
    assert (found.id, found.metadata["title"], found.metadata["year"]) == ("lease", "Lease", 2021)
    with Retriever.load(index) as plain:
        (document,) = plain.get(["lease"])
    assert found.page_content == document.text[slice(*found.metadata["aveyb"]["span"])]
    assert 0 < found.metadata["aveyb"]["confidence"] <= 1
    options = {"unit": "document", "filter": {"year": {"$gte": 2023}}}
    assert {each.id for each in retriever.invoke("budget", k=9, **options)} == {"minutes", "memo"}
    wide = AveyBRetriever(
        path=str(index), model=embedder, search_options={"filter": {"tags": {"$all": ["rent"]}}}
    )
    assert {each.id for each in wide.invoke("anything")} == {"lease"}
    assert (
        len(
            AveyBRetriever(path=str(index), model=embedder, search_options={"k": 2}).invoke(
                "anything"
            )
        )
        == 2
    )
    with pytest.raises(ConfigError, match="did you mean 'k'"):
        retriever.invoke("budget", top_k=3)


async def test_a_retriever_follows_the_index(index: Path, embedder: Embedder) -> None:
    retriever = AveyBRetriever(path=str(index), model=embedder, k=1)
    assert (await retriever.ainvoke("what does the canteen offer?"))[0].id != "canteen"
    one_change.add([{"_id": "canteen", "text": "The canteen offers soup."}], index, model=embedder)
    assert (await retriever.ainvoke("what does the canteen offer?"))[0].id == "canteen"


def test_a_retriever_makes_no_index(tmp_path: Path) -> None:
    with pytest.raises(IndexFormatError, match="no index here"):
        AveyBRetriever(path=str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_a_vector_store_filters_and_searches_by_words(tmp_path: Path, embedder: Embedder) -> None:
    store = AveyBVectorStore(tmp_path / "index", model=embedder, search_options={"mode": "hybrid"})
    texts = ["valve XK-42 is closed", "valve YL-17 is open", "the meeting is over"]
    ids = store.add_texts(texts, [{"n": i, "title": f"T{i}"} for i in range(3)])
    assert len(set(ids)) == 3
    best = store.similarity_search("XK-42", k=1)
    assert [(each.id, each.metadata) for each in best] == [(ids[0], {"n": 0, "title": "T0"})]
    assert [
        each.metadata["n"]
        for each in store.similarity_search("valve", k=5, filter={"n": {"$gt": 0}})
    ] == [1, 2]
    assert [each.id for each in store.similarity_search('+"xk 42"', k=5, operators=True)] == ids[:1]
    late: Any = {"filter": {"n": {"$gt": 0}}, "operators": True}
    for unit in ("document", "passage"):
        assert [
            each.metadata["n"] for each in store.similarity_search("val*", k=5, unit=unit, **late)
        ] == [1]
    assert store.delete(filter={"n": 0})
    assert store.get_by_ids(ids)[0].id == ids[1]
    assert store.as_retriever(search_kwargs={"k": 1}).invoke("YL-17")[0].id == ids[1]
    assert problems_of(tmp_path / "index") == []


def test_scores_are_cosines_and_relevance_is_their_share(
    tmp_path: Path, embedder: Embedder
) -> None:
    embeddings = AveyBEmbeddings(embedder)
    store = AveyBVectorStore.from_texts(
        ["close the valve", "open the gate"], embeddings, path=tmp_path / "index"
    )
    (document, score), *_ = store.similarity_search_with_score("how is the valve closed?", k=2)
    query, text = (
        embeddings.embed_query("how is the valve closed?"),
        embeddings.embed_documents(["close the valve"])[0],
    )
    assert document.page_content == "close the valve"
    assert score == pytest.approx(sum(a * b for a, b in zip(query, text, strict=True)), abs=1e-5)
    assert store.similarity_search_with_relevance_scores("how is the valve closed?", k=1)[0][
        1
    ] == pytest.approx(score)


def test_relevance_in_a_hybrid_search_is_confidence(tmp_path: Path, embedder: Embedder) -> None:
    store = AveyBVectorStore(tmp_path / "index", model=embedder, search_options={"mode": "hybrid"})
    store.add_texts(["close the valve. " * 100, "open the gate. " * 200, "the rent is due. " * 50])
    found = store.similarity_search_with_relevance_scores("close the valve", k=2)
    with Retriever.load(tmp_path / "index", model=embedder) as retriever:
        hits = retriever.search("close the valve", k=2)
    assert hits[0].score > 1, "a share of vectors and words, and the best passage"
    assert [(each.id, score) for each, score in found] == [
        (hit.id, pytest.approx(hit.confidence)) for hit in hits
    ]


async def test_a_store_is_made_asynchronously_and_opened_again(
    tmp_path: Path, embedder: Embedder
) -> None:
    made = await AveyBVectorStore.afrom_documents(
        [Document("close the valve", id="a"), Document("open the gate", id="b")],
        AveyBEmbeddings(embedder),
        path=tmp_path / "index",
    )
    again = AveyBVectorStore(tmp_path / "index", AveyBEmbeddings(embedder))
    assert [each.id for each in await again.asimilarity_search("gate", k=1)] == ["b"]
    await made.aadd_texts(["sign the form"], ids=["c"])
    assert {each.id for each in again.similarity_search("form", k=3)} == {"a", "b", "c"}


async def test_a_store_of_documents_needs_no_embedding(tmp_path: Path, embedder: Embedder) -> None:
    documents = [Document("close the valve", id="a", metadata={"n": 1}), Document("a gate")]
    made = AveyBVectorStore.from_documents(documents, path=tmp_path / "a", model=embedder)
    assert made.get_by_ids(["a"])[0].metadata == {"n": 1}
    texts = AveyBVectorStore.from_texts(["close.txt"], path=tmp_path / "b", model=embedder)
    assert texts.similarity_search("close")[0].page_content == "close.txt"
    later = await AveyBVectorStore.afrom_documents(documents, path=tmp_path / "c", model=embedder)
    assert {each.page_content for each in later.similarity_search("valve", k=2)} == {
        "close the valve",
        "a gate",
    }


def test_an_index_refuses_other_embeddings_than_those_that_made_it(
    tmp_path: Path, embedder: Embedder
) -> None:
    AveyBVectorStore(tmp_path / "index", DeterministicFakeEmbedding(size=6)).add_texts(["a", "b"])
    assert (
        len(
            AveyBVectorStore(
                tmp_path / "index", DeterministicFakeEmbedding(size=6)
            ).similarity_search("a")
        )
        == 2
    )
    with pytest.raises(IndexFormatError, match="DeterministicFakeEmbedding"):
        AveyBVectorStore(tmp_path / "index", DeterministicFakeEmbedding(size=7))
    with pytest.raises(IndexFormatError, match="DeterministicFakeEmbedding"):
        AveyBVectorStore(tmp_path / "index", AveyBEmbeddings(embedder))
    with pytest.raises(ConfigError, match="path="):
        AveyBVectorStore.from_texts(["a"], DeterministicFakeEmbedding(size=6))


def test_a_hit_in_a_pdf_names_its_page(pdf_index: Path, embedder: Embedder) -> None:
    (found,) = AveyBRetriever(path=str(pdf_index), model=embedder, k=1).invoke(
        "where do visitors sign in?"
    )
    assert (
        found.metadata["aveyb"]["page"],
        found.metadata["aveyb"]["page_label"],
        found.metadata["title"],
    ) == (
        2,
        "i",
        "Rules",
    )


def test_mmr_finds_documents_that_differ(tmp_path: Path, embedder: Embedder) -> None:
    store = AveyBVectorStore(tmp_path / "index", model=embedder)
    texts = [
        "Either party may end the contract with three months' notice.",
        "Each party can end the contract at three months' notice.",
        "Close the valve before you open the filter housing.",
    ]
    store.add_texts(texts, ids=["a", "b", "c"])
    question = "how much notice ends the contract?"
    found = {}
    for share in (1.0, 0.2):
        retriever = store.as_retriever(
            search_type="mmr", search_kwargs={"k": 2, "lambda_mult": share}
        )
        found[share] = [each.id for each in retriever.invoke(question)]
    assert set(found[1.0]) == {"a", "b"}
    assert (found[0.2][0], found[0.2][1]) == (found[1.0][0], "c")
    assert store.max_marginal_relevance_search(question, k=1, filter={"none": 1}) == []


def test_copies_by_pickle_open_the_same_index(index: Path, tmp_path: Path) -> None:
    question = "how long is the notice period?"
    retriever = AveyBRetriever(path=str(index), k=2, search_options={"mode": "dense"})
    assert pickle.loads(pickle.dumps(retriever)).invoke(question) == retriever.invoke(question)
    store = AveyBVectorStore(tmp_path / "store")
    store.add_texts(["close the valve"], ids=["a"])
    assert pickle.loads(pickle.dumps(store)).similarity_search("valve") == store.similarity_search(
        "valve"
    )


@pytest.mark.parametrize(
    "make", [AveyBEmbeddings, lambda: DeterministicFakeEmbedding(size=6)], ids=["ours", "fake"]
)
def test_copies_by_pickle_search_with_the_embedding_that_was_given(
    tmp_path: Path, make: Any
) -> None:
    store = AveyBVectorStore(tmp_path / "store", make())
    store.add_texts(["close the valve"], ids=["a"])
    twin = pickle.loads(pickle.dumps(store))
    assert twin.similarity_search("valve") == store.similarity_search("valve")
    twin.add_texts(["open the gate"], ids=["b"])
    assert len(store.similarity_search("gate")) == 2


def test_a_copy_by_pickle_of_a_retriever_keeps_a_loaded_model(tmp_path: Path) -> None:
    embedding = DeterministicFakeEmbedding(size=6)
    AveyBVectorStore(tmp_path / "index", embedding).add_texts(["close the valve"], ids=["a"])
    model = VectorsOnly(embedding, embedding.embed_documents, embedding.embed_query)
    retriever = AveyBRetriever(tmp_path / "index", model=model, search_options={"unit": "document"})
    assert pickle.loads(pickle.dumps(retriever)).invoke("valve") == retriever.invoke("valve")
    deep = copy.deepcopy(retriever)
    deep.search_options["mode"] = "dense"
    assert deep.invoke("valve")[0].id == "a"
    assert retriever.search_options == {"unit": "document"}
    with pytest.raises(InputError, match="is one string"):
        AveyBVectorStore(tmp_path / "index", embedding).add_texts("close the valve")
    with pytest.raises(ConfigError, match="no option 'top_k'"):
        AveyBRetriever(tmp_path / "index", top_k=3)


OURS = {"score": 7, "heading": "Clause 4", "span": "2020-2024", "confidence": "secret", "page": 9}


def test_metadata_of_documents_stay_as_they_are(tmp_path: Path, embedder: Embedder) -> None:
    rows = [{"_id": str(n), "text": text, **OURS} for n, text in enumerate(["lease", "pump"])]
    build_index(rows, tmp_path / "ix", model=embedder)
    (found, _) = AveyBRetriever(tmp_path / "ix", model=embedder).invoke("lease")
    assert {name: found.metadata[name] for name in OURS} == OURS
    assert found.metadata["aveyb"]["span"] == [0, 5]
    build_index([{"_id": "a", "text": "b", "aveyb": 1}], tmp_path / "taken", model=embedder)
    with pytest.raises(InputError, match="'a': its metadata field 'aveyb' is where hits"):
        AveyBRetriever(tmp_path / "taken", model=embedder).invoke("b")


def test_a_retriever_over_what_is_open(
    tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        rows = [{"_id": f"{name}{n}", "text": f"the lease {name}{n}", "team": n} for n in range(2)]
        build_index(rows, tmp_path / name, model=embedder)
    opened = Retriever.load(tmp_path / "a", model=embedder)
    places = [str(tmp_path / "a"), str(tmp_path / "b")]

    def ids(path: Any) -> set[str]:
        return {found.id for found in AveyBRetriever(path, k=9, model=embedder).invoke("lease")}

    assert ids(opened) == {"a0", "a1"}
    assert ids(opened.visible({"team": 1})) == {"a1"}
    assert ids(places) == {"a0", "a1", "b0", "b1"}
    assert ids({"one": opened, "two": places[1]}) == {"a0", "a1", "b0", "b1"}
    monkeypatch.chdir(tmp_path)
    copied = pickle.dumps(AveyBRetriever("a"))
    monkeypatch.chdir("/")
    assert pickle.loads(copied)._index.path == tmp_path / "a"
