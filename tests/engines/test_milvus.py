"""What only Milvus does, on milvus-lite: no server of 2.5 or newer could be run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aveyb_retrieval import Retriever, build_index, publish_index
from aveyb_retrieval.engines import publish
from aveyb_retrieval.errors import ConfigError, EngineError, IndexFormatError, InputError
from aveyb_retrieval.indexes.engine import register_engine
from tests.engines.commands import check_commands

# which finds the example
from tests.engines.stands import EMBEDDER, MilvusLiteStand, PublishedCollection
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder

from milvus_engine import FILTERS, MilvusCollection  # isort: skip

if TYPE_CHECKING:
    from pathlib import Path

register_engine("milvus", MilvusCollection)

pytestmark = pytest.mark.engine
QUERY = "word1 word2 word3"


@pytest.fixture
def one(tmp_path: Path) -> PublishedCollection:
    MilvusLiteStand(tmp_path)  # skips where it is not installed
    return PublishedCollection(f"milvus://{tmp_path}/lite.db/t")


def names(collection: PublishedCollection) -> list[str]:
    server = MilvusCollection.open_writer(collection.address)
    try:
        return sorted(server.client.list_collections())
    finally:
        server.close()


# --- publications --------------------------------------------------------------------------------


def test_old_publications_are_removed(one: PublishedCollection) -> None:
    for count in range(1, 5):
        one.publish(make_documents(count))
    assert names(one) == [
        f"aveyb_t_{number}_{kind}" for number in (3, 4) for kind in ("documents", "passages")
    ]


def test_publishing_continues_and_shows_nothing_before_its_end(
    one: PublishedCollection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "BATCH_DOCUMENTS", 10)
    rows = make_documents(60)
    build_index(rows, tmp_path / "shards", model=EMBEDDER)

    def stop(stage: str, done: int, total: int | None, tokens: int) -> None:
        if done >= 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish_index(tmp_path / "shards", one.address, progress=stop)
    with pytest.raises(IndexFormatError, match="only in part; run the same"):
        one.load()
    report = publish_index(tmp_path / "shards", one.address)
    assert (report.documents, report.written) == (60, 30)
    with one.load() as retriever:
        assert sorted(d.id for d in retriever.documents()) == sorted(row["_id"] for row in rows)
        assert len(retriever.search(QUERY, 100, mode="dense")) == 60


def test_another_publication_does_not_continue_an_interrupted_one(
    one: PublishedCollection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "BATCH_DOCUMENTS", 5)
    one.publish(make_documents(3, first=900))
    build_index(make_documents(20), tmp_path / "a", model=EMBEDDER)

    def stop(stage: str, done: int, total: int | None, tokens: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish_index(tmp_path / "a", one.address, progress=stop)
    with one.load() as retriever:
        assert sorted(d.id for d in retriever.documents()) == ["doc-900", "doc-901", "doc-902"]
    one.publish(make_documents(7, first=100))
    with one.load() as retriever:
        assert len(retriever) == 7


def test_passages_that_an_interrupted_update_left_are_removed_by_the_next(
    one: PublishedCollection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    one.publish([{"_id": "a", "text": "word1"}, {"_id": "b", "text": "word2"}])
    with monkeypatch.context() as patched:
        patched.setattr("milvus_engine.MilvusCollection._cut", stop)
        with pytest.raises(KeyboardInterrupt):
            one.upsert([{"_id": "b", "text": "word2 " * 200}])
        with pytest.raises(KeyboardInterrupt):
            one.upsert([{"_id": "b", "text": "word2"}])
    one.upsert([{"_id": "b", "text": "word2 word3"}])
    with one.load() as retriever:
        found = retriever.search("word2", 100, mode="dense", unit="passage", fold=False)
        assert sorted((hit.id, hit.passage) for hit in found) == [
            ("a", "word1"),
            ("b", "word2 word3"),
        ]


# --- what is refused -----------------------------------------------------------------------------


def test_a_collection_of_somebody_else_is_left_alone(one: PublishedCollection) -> None:
    server = MilvusCollection.open_writer(one.address)
    try:
        server.client.create_collection("aveyb_t_1_documents", dimension=3)
        with pytest.raises(IndexFormatError, match="aveyb_t_1_documents was made by somebody else"):
            one.publish(make_documents(2))
        with pytest.raises(IndexFormatError, match="made by somebody else"):
            one.load()
        assert server.client.list_collections() == ["aveyb_t_1_documents"]
    finally:
        server.close()


def test_a_server_that_is_too_old_or_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("pymilvus", reason="pymilvus is not installed")
    with pytest.raises(EngineError, match=r"no connection.*user, password") as caught:
        Retriever.load("milvus://root:hidden@127.0.0.1:1/elsewhere?timeout=2")
    assert "hidden" not in str(caught.value)
    monkeypatch.setattr("pymilvus.MilvusClient.get_server_version", lambda self, **_: "v2.4.9")
    with pytest.raises(ConfigError, match=r"Milvus v2.4.9; 2.5 or newer is needed"):
        PublishedCollection(f"milvus://{tmp_path}/lite.db/t").publish(make_documents(2))


@pytest.mark.parametrize("given", ["timeout=x", "secure=1", "consistency=no", "index=h;", "what=1"])
def test_parameters_that_mean_nothing_are_refused(given: str) -> None:
    with pytest.raises(ConfigError, match=given.partition("=")[0]):
        Retriever.load(f"milvus://somewhere/t?{given}")


def test_a_file_that_is_not_there_is_not_made_by_loading(
    one: PublishedCollection, tmp_path: Path
) -> None:
    with pytest.raises(IndexFormatError, match="is not there; publish it"):
        one.load()
    assert not (tmp_path / "lite.db").exists()
    with pytest.raises(ConfigError, match="there is no folder"):
        PublishedCollection(f"milvus://{tmp_path}/nowhere/lite.db/t").publish(make_documents(2))


def test_documents_of_another_model_or_width_are_refused(
    one: PublishedCollection, tmp_path: Path
) -> None:
    one.publish(make_documents(3))
    for number, other in enumerate((FakeEmbedder(seed="b"), FakeEmbedder(dim=24))):
        folder = tmp_path / str(number)
        build_index(make_documents(2), folder, model=other)
        with pytest.raises(ConfigError, match=r"dimension|model"):
            publish_index(folder, one.address, update=True)
        with pytest.raises(IndexFormatError):
            one.load(model=other)
    with one.load() as retriever:
        assert len(retriever) == 3


@pytest.mark.parametrize("field", ["id", "metadata"])
def test_what_milvus_cannot_keep_is_named_and_nothing_is_visible(
    one: PublishedCollection, field: str
) -> None:
    long = {"_id": "x" * 70_001 if field == "id" else "b", "text": "word2", "metadata": {}}
    if field == "metadata":
        long["metadata"] = {"note": "y" * 70_001}
    with pytest.raises(InputError, match=rf"the {field}.*Milvus keeps up to 65,53"):
        one.publish([{"_id": "a", "text": "word1"}, long])
    with pytest.raises(IndexFormatError, match="only in part"):
        one.load()


def test_words_beyond_what_a_row_keeps_are_said(
    one: PublishedCollection, caplog: pytest.LogCaptureFixture
) -> None:
    text = " ".join(f"long{i}" for i in range(9000)) + " lastword"
    one.publish([{"_id": "a", "text": text}, {"_id": "b", "text": "word1"}])
    assert "'a' has 79" in caplog.text
    with one.load() as retriever:
        assert [hit.id for hit in retriever.search("long5", mode="lexical")] == ["a"]
        assert retriever.search("lastword", mode="lexical") == []
        assert [hit.id for hit in retriever.search("lastword", mode="lexical", unit="passage")] == [
            "a"
        ]


def test_a_filter_that_milvus_cannot_say_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"Milvus cannot look for '50%'"):
        FILTERS.compile({"name": {"$contains": "50%"}})


@pytest.mark.parametrize("value", ['"', "\\", "' or 1 == 1", "1 = 1", "%s", "\n", "ünï", "}"])
def test_nothing_of_a_filter_is_syntax(one: PublishedCollection, value: str) -> None:
    one.publish(
        [{"_id": "a", "text": "word1", "x": value}, {"_id": "b", "text": "word1", "x": "other"}]
    )
    with one.load() as retriever:
        for where in ({"x": value}, {"x": {"$gte": value, "$lte": value}}, {"x": {"$in": [value]}}):
            assert [document.id for document in retriever.documents(where)] == ["a"]


def test_the_command_line_publishes_searches_and_removes(
    one: PublishedCollection, tmp_path: Path
) -> None:
    check_commands(one.address, tmp_path)
