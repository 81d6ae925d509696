"""`Encoding`: what says how vectors were made is compared in one place, and so nowhere
forgotten.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aveyb_retrieval import Embedder, Retriever, build_index
from aveyb_retrieval.engines.collection import CollectionSettings
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.indexes.changes import ingest
from aveyb_retrieval.indexes.encoding import Encoding
from aveyb_retrieval.indexes.store.place import describe
from aveyb_retrieval.indexes.vectors import StoredShards
from tests import one_change
from tests.contents import problems_of
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder, InterruptedEmbedder

if TYPE_CHECKING:
    from pathlib import Path

MODEL = {"name": "m", "fingerprint": "f" * 64, "dim": 8}
ONE = Encoding(MODEL, "here", 8, "both", passage_tokens=256)
OTHERS: dict[str, Any] = {
    "model": {**MODEL, "fingerprint": "e" * 64},
    "dim": 9,
    "granularity": "document",
    "storage_dtype": "float16",
    "max_tokens": 5,
    "passage_tokens": 64,
    "passage_overlap": 9,
    "late": True,
    "titled": True,
    "token_vectors": "int8",
    "token_dim": 8,
    "language": "german",
    "keep_accents": True,
    "synonyms": "car, automobile",
}


# --- differences ---------------------------------------------------------------------------------


def test_every_field_is_a_difference_but_where_the_model_lay() -> None:
    assert {field.name for field in dataclasses.fields(Encoding)} == {
        *OTHERS,
        "model_source",
        "model_beside",
    }
    assert ONE.differences(dataclasses.replace(ONE, model_source="there")) == {}
    for name, value in OTHERS.items():
        other = dataclasses.replace(ONE, **{name: value})
        assert list(ONE.differences(other)) == list(other.differences(ONE)) == [name]
        assert ONE.differences(other, but=[name]) == {}
        assert ONE.digest != other.digest
        if name != "model":
            assert ONE.differences(other)[name] == (getattr(ONE, name), value)


@pytest.mark.parametrize(
    "name", ["model", "dim", "max_tokens", "passage_tokens", "passage_overlap", "late", "titled"]
)
def test_what_decides_vectors_must_be_equal_to_be_put_together(name: str) -> None:
    other = dataclasses.replace(ONE, **{name: OTHERS[name]})
    with pytest.raises(ConfigError, match=f"there: {name} is .*, but here has "):
        ONE.check_takes(other, "here", "there")
    with pytest.raises(
        ConfigError, match=f"here: {name} of the collection is .*publish them as a whole"
    ):
        CollectionSettings(ONE, "1").check_same(CollectionSettings(other, "2"), "here")


def test_vectors_are_taken_where_they_are_more_than_is_kept() -> None:
    for name in ("storage_dtype", "token_vectors", "language"):
        ONE.check_takes(dataclasses.replace(ONE, **{name: OTHERS[name]}), "here", "there")
    documents = dataclasses.replace(ONE, granularity="document")
    documents.check_takes(dataclasses.replace(ONE, passage_tokens=64), "here", "there")
    with pytest.raises(ConfigError, match="there has granularity 'document', here has 'both'"):
        ONE.check_takes(documents, "here", "there")
    with pytest.raises(ConfigError, match=r"there: no token vectors \(int8\), which here has"):
        dataclasses.replace(ONE, token_vectors="int8", token_dim=8).check_takes(
            ONE, "here", "there"
        )


# --- a resumed build -----------------------------------------------------------------------------


CHANGED: list[tuple[dict[str, Any], str]] = [
    ({"granularity": "passage"}, "granularity was 'both' and is 'passage'"),
    ({"storage_dtype": "float16"}, "storage_dtype was 'float32' and is 'float16'"),
    ({"language": "none"}, "language was 'auto' and is 'none'"),
    ({"token_vectors": "int8"}, "token_vectors was None and is 'int8'"),
    ({"index": "Flat"}, "index was 'auto' and is 'Flat'"),
    ({"text_field": "body"}, "fields was .* and is"),
    ({"on_error": "skip"}, "on_error was 'auto' and is 'skip'"),
]


def test_an_interrupted_build_never_goes_on_with_another_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "BATCH_DOCUMENTS", 10)
    rows, root = make_documents(60), tmp_path / "ix"
    with pytest.raises(KeyboardInterrupt):
        build_index(rows, root, model=InterruptedEmbedder(after=45))
    for options, words in CHANGED:
        with pytest.raises(ConfigError, match=words):
            build_index(rows, root, model=InterruptedEmbedder(), **options)
    assert build_index(rows, root, model=InterruptedEmbedder()).resumed
    build_index(rows, tmp_path / "whole", model=InterruptedEmbedder())
    found = []
    for path in (root, tmp_path / "whole"):
        with Retriever.load(path, model=InterruptedEmbedder()) as retriever:
            hits = retriever.search("word1 word2", k=60, mode="dense", granularity="document")
            found.append([hit.to_dict(text=True) for hit in hits])
    assert found[0] == found[1]


# --- an index as vectors of another --------------------------------------------------------------


@pytest.mark.parametrize("granularity", ["document", "passage", "both"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_index_of_every_kind_is_built_again(
    tmp_path: Path, granularity: str, dtype: str
) -> None:
    chosen: dict[str, Any] = {"granularity": granularity, "storage_dtype": dtype}
    build_index(make_documents(40), tmp_path / "ix", model=FakeEmbedder(), **chosen)
    build_index(None, tmp_path / "again", vectors=tmp_path / "ix")
    one, other = describe(tmp_path / "ix"), describe(tmp_path / "again")
    fields = [field.name for field in dataclasses.fields(Encoding)]
    assert {name: one[name] for name in fields} == {name: other[name] for name in fields}
    assert problems_of(tmp_path / "again") == []


def test_an_index_of_ready_made_vectors_is_built_again(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)
    build_index(None, tmp_path / "ix", vectors=vectors, granularity="document")
    build_index(None, tmp_path / "again", vectors=tmp_path / "ix")
    with Retriever.load(tmp_path / "again") as retriever:
        assert [hits[0].id for hits in retriever.search_vectors(vectors, k=1)] == [
            str(i) for i in range(20)
        ]


def test_the_language_is_kept_or_changed(tmp_path: Path) -> None:
    rows = [
        {"_id": "a", "text": "Die H\u00e4user der Stadt"},
        {"_id": "b", "text": "the running houses"},
    ]
    build_index(rows, tmp_path / "ix", model=FakeEmbedder(), language="german")
    assert StoredShards(tmp_path / "ix").encoding.language == "german"
    build_index(None, tmp_path / "again", vectors=tmp_path / "ix")
    build_index(None, tmp_path / "plain", vectors=tmp_path / "ix", language="none")
    assert [describe(tmp_path / name)["language"] for name in ("again", "plain")] == [
        "german",
        "none",
    ]
    with Retriever.load(tmp_path / "again") as german, Retriever.load(tmp_path / "plain") as plain:
        assert [hit.id for hit in german.search("das Haus", mode="lexical")] == ["a"]
        assert plain.search("Haus", mode="lexical") == []


def test_token_vectors_are_needed_where_they_are_kept(tmp_path: Path) -> None:
    build_index(make_documents(20), tmp_path / "ix", model=FakeEmbedder(), token_vectors="int8")
    build_index(None, tmp_path / "again", vectors=tmp_path / "ix")
    assert describe(tmp_path / "again")["token_vectors"] == "int8"
    build_index(make_documents(2, first=50), tmp_path / "without", model=FakeEmbedder())
    with pytest.raises(ConfigError, match=r"no token vectors \(int8\)"):
        one_change.upsert(None, tmp_path / "ix", vectors=tmp_path / "without")


# --- passages of another size --------------------------------------------------------------------

TEXT = "The pump runs at noon. The valve is closed at night. " * 30


def test_passages_of_another_size_are_not_put_together(tmp_path: Path) -> None:
    model = Embedder.load()
    build_index([{"_id": "a", "text": TEXT}], tmp_path / "ix", model=model, passage_tokens=64)
    for tokens in (32, 64):
        build_index(
            [{"_id": "b", "text": TEXT}], tmp_path / f"{tokens}", model=model, passage_tokens=tokens
        )
    for change in (one_change.add, one_change.upsert):
        with pytest.raises(ConfigError, match=r"passage_tokens is 32, but .*ix has 64"):
            change(None, tmp_path / "ix", vectors=tmp_path / "32")
    assert one_change.add(None, tmp_path / "ix", vectors=tmp_path / "64").documents == 2
    with pytest.raises(
        InputError, match=r"1 and .*2 were encoded differently: passage_tokens is 32 and 64"
    ):
        encode_two_ways(model, tmp_path / "mixed")


def encode_two_ways(model: Embedder, place: Path) -> None:
    for shard, tokens in ((1, 32), (2, 64)):
        rows = [{"_id": f"{i}", "text": TEXT} for i in range(4)]
        build_index(rows, place / str(shard), model=model, passage_tokens=tokens, share=(shard, 2))
    StoredShards(place)
