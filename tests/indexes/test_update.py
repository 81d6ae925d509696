"""Changes of an existing index: only what changed is encoded, and nothing that was removed is
found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.errors import ConfigError, IndexFormatError, InputError
from aveyb_retrieval.indexes.nearest import faiss_file
from aveyb_retrieval.indexes.store.place import describe
from tests import one_change
from tests.contents import problems_of
from tests.indexes.conftest import assert_best, encode_rows, make_documents, true_scores
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from pathlib import Path

FACTORIES = ["HNSW8", "IVF4,Flat", "PCA8,IVF4,PQ4x2"]
MORE = ["Flat", "SQ8", "PCA8,Flat", "IVF4_HNSW8,SQ8", "IVF4,PQ4x4fs"]


def exactly(
    root: Path, embedder: FakeEmbedder, rows: list[dict[str, Any]], *, exact: bool = False
) -> None:
    """The index answers as if it had been built from these rows."""
    assert problems_of(root) == []
    encoded = encode_rows(rows, embedder)
    with Retriever.load(root, model=embedder) as retriever:
        assert len(retriever) == len(rows)
        for row in rows[::9]:
            if row["text"]:
                hits = retriever.search(row["text"], k=5, mode="dense", exact=exact)
                assert_best(hits, true_scores(rows, embedder, row["text"], encoded_rows=encoded), 5)


@pytest.mark.parametrize(
    "factory", [*FACTORIES, *(pytest.param(each, marks=pytest.mark.slow) for each in MORE)]
)
def test_a_chain_of_changes_leaves_what_a_build_would(
    tmp_path: Path, embedder: FakeEmbedder, factory: str
) -> None:
    rows = {row["_id"]: row for row in make_documents(150)}
    root = tmp_path / "ix"
    build_index(list(rows.values()), root, model=embedder, index=factory)
    more = make_documents(30, seed=1, first=150)
    one_change.add(more, root, model=embedder)
    rows |= {row["_id"]: row for row in more}
    changed = make_documents(20, seed=2, first=40)
    one_change.upsert(changed, root, model=embedder)
    rows |= {row["_id"]: row for row in changed}
    one_change.delete(root, ["doc-3", "doc-170"], where={"year": 2007})
    rows = {k: v for k, v in rows.items() if k not in ("doc-3", "doc-170") and v["year"] != 2007}
    exactly(root, embedder, list(rows.values()), exact=True)
    gone = make_documents(150)[3]["text"]
    with Retriever.load(root, model=embedder) as retriever:
        assert "doc-3" not in [hit.id for hit in retriever.search(gone, k=len(rows))], (
            "not even far down"
        )
        assert len(retriever.search("word1", k=1000, granularity="document")) == len(rows)
    one_change.compact(root)
    exactly(root, embedder, list(rows.values()), exact=True)
    for kind, files in describe(root)["indexes"].items():
        assert [(file["factory"], file["dead"]) for file in files] == [(factory, 0)], kind


def test_a_faiss_file_keeps_what_is_deleted_until_that_is_too_much(
    tmp_path: Path, embedder: FakeEmbedder
) -> None:
    rows = make_documents(100)
    build_index(rows, tmp_path / "ix", model=embedder, index="HNSW8", granularity="document")
    one_change.delete(tmp_path / "ix", [f"doc-{i}" for i in range(15)])
    assert describe(tmp_path / "ix")["indexes"]["document"][0]["dead"] == 15
    one_change.delete(tmp_path / "ix", [f"doc-{i}" for i in range(15, 25)])
    assert describe(tmp_path / "ix")["indexes"]["document"][0]["dead"] == 0, (
        "made anew beyond a fifth"
    )
    with Retriever.load(tmp_path / "ix", model=embedder) as retriever:
        assert {h.id for h in retriever.search("word1", k=100)} == {
            f"doc-{i}" for i in range(25, 100)
        }


def test_unchanged_documents_are_not_encoded_again(tmp_path: Path) -> None:
    rows = make_documents(40)
    embedder = FakeEmbedder(split_size=8)
    rows.append({"_id": "log", "title": "Log", "text": " ".join(f"word{i}" for i in range(100))})
    build_index(rows, tmp_path / "ix", model=embedder)
    embedder.encoded_words = 0
    newer = [{**row, "year": 1900} for row in rows]
    one_change.upsert(newer, tmp_path / "ix", model=embedder)
    assert embedder.encoded_words == 0, "metadata alone cost no encoding"
    grown = {
        **newer[-1],
        "text": newer[-1]["text"] + " " + " ".join(f"word{i}" for i in range(100, 120)),
    }
    one_change.upsert([grown], tmp_path / "ix", model=embedder)
    assert embedder.encoded_words == 1 + 120, "title and text of the one that changed"
    exactly(tmp_path / "ix", FakeEmbedder(split_size=8), [*newer[:-1], grown])
    with Retriever.load(tmp_path / "ix", model=embedder) as retriever:
        assert (
            len(retriever.search("word1", k=99, filter={"year": 1900}, granularity="document"))
            == 41
        )


def test_the_same_id_twice_in_one_upsert_keeps_the_last(
    tmp_path: Path, embedder: FakeEmbedder
) -> None:
    build_index([{"_id": "a", "text": "word1"}], tmp_path / "ix", model=embedder)
    rows = [
        {"_id": "a", "text": "word2"},
        {"_id": "a", "text": "word1"},
        {"_id": "b", "text": "x"},
        {"_id": "b", "text": "y"},
    ]
    one_change.upsert(rows, tmp_path / "ix", model=embedder)
    exactly(tmp_path / "ix", embedder, rows[1::2])


def test_a_stored_document_and_then_a_changed_one_of_its_id(
    tmp_path: Path, embedder: FakeEmbedder
) -> None:
    """The first needs new metadata only, the second new vectors; both are of one commit, and the
    second counts.
    """
    build_index([{"_id": "a", "text": "word1", "year": 2000}], tmp_path / "ix", model=embedder)
    rows = [
        {"_id": "a", "text": "word1", "year": 2001},
        {"_id": "a", "text": "word2", "year": 2004},
    ]
    one_change.upsert(rows, tmp_path / "ix", model=embedder)
    with Retriever.load(tmp_path / "ix", model=embedder) as retriever:
        (document,) = retriever.get(["a"])
    assert (document.text, document.metadata) == ("word2", {"year": 2004})


def test_deleting_everything_leaves_an_index_to_add_to(
    tmp_path: Path, embedder: FakeEmbedder
) -> None:
    rows = make_documents(20)
    build_index(rows, tmp_path / "ix", model=embedder)
    assert one_change.delete(tmp_path / "ix", where={}).documents == 0
    with Retriever.load(tmp_path / "ix", model=embedder) as retriever:
        assert retriever.search("word1") == []
        assert retriever.search("word1", mode="hybrid", filter={"year": 2000}) == []
    one_change.compact(tmp_path / "ix")
    one_change.add(rows, tmp_path / "ix", model=embedder)
    exactly(tmp_path / "ix", embedder, rows)


def test_deleting_nothing_makes_no_version(tmp_path: Path, embedder: FakeEmbedder) -> None:
    build_index(make_documents(5), tmp_path / "ix", model=embedder)
    assert one_change.delete(tmp_path / "ix", ["nobody"], missing_ok=True).version == "v000001"
    with pytest.raises(ConfigError, match="ids or a filter"):
        one_change.delete(tmp_path / "ix")
    with pytest.raises(InputError, match="'nobody'; nothing was changed"):
        one_change.delete(tmp_path / "ix", ["doc-1", "nobody"])
    assert describe(tmp_path / "ix")["documents"] == 5
    assert not describe(tmp_path / "ix")["unfinished"]


def test_changes_need_an_index_and_its_model(tmp_path: Path, embedder: FakeEmbedder) -> None:
    with pytest.raises(IndexFormatError, match="no index here"):
        one_change.add([{"_id": "a", "text": "x"}], tmp_path / "none", model=embedder)
    assert not (tmp_path / "none").exists()
    build_index([{"_id": "a", "text": "x"}], tmp_path / "ix", model=embedder)
    with pytest.raises(IndexFormatError, match="fake-b"):
        one_change.add([{"_id": "b", "text": "x"}], tmp_path / "ix", model=FakeEmbedder(seed="b"))
    with pytest.raises(InputError, match="'a' is already in use"):
        one_change.add([{"_id": "a", "text": "y"}], tmp_path / "ix", model=embedder)
    assert describe(tmp_path / "ix")["version"] == "v000001"


def test_ready_made_vectors_are_added_too(tmp_path: Path) -> None:
    vectors = np.eye(6, dtype=np.float32)
    build_index(None, tmp_path / "ix", vectors=vectors[:4], granularity="document")
    rows = [{"_id": "x", "text": ""}, {"_id": "y", "text": ""}]
    one_change.add(rows, tmp_path / "ix", vectors=vectors[4:])
    with Retriever.load(tmp_path / "ix") as retriever:
        assert [h[0].id for h in retriever.search_vectors(vectors, k=1)] == [
            "0",
            "1",
            "2",
            "3",
            "x",
            "y",
        ]
    with pytest.raises(ConfigError, match="dimension 5"):
        one_change.add(rows, tmp_path / "ix", vectors=np.ones((2, 5), np.float32))


@pytest.mark.parametrize(
    ("index", "least"),
    [
        ("HNSW8;efSearch=64", 0.75),
        ("IVF16,Flat;nprobe=16", 1.0),
        ("IVF16,PQ4x4;nprobe=16;rescore=2000", 1.0),
    ],
)
def test_settings_of_a_search_are_kept_with_the_type(
    tmp_path: Path, index: str, least: float
) -> None:
    vectors = np.random.default_rng(0).normal(size=(2000, 16)).astype(np.float32)
    report = build_index(
        None, tmp_path / "ix", vectors=vectors, granularity="document", index=index
    )
    factory, *settings = index.split(";")
    (tier,) = report.indexes["document"]
    assert (tier.factory, [f"{name}={value}" for name, value in tier.params.items()]) == (
        factory,
        settings,
    )
    assert describe(tmp_path / "ix")["index"] == index
    with Retriever.load(tmp_path / "ix") as retriever:
        queries = vectors[:50] + 0.1
        exact = retriever.search_vectors(queries, k=10, exact=True)
        found = retriever.search_vectors(queries, k=10)
        shares = [
            len({h.id for h in a} & {h.id for h in b}) / 10
            for a, b in zip(exact, found, strict=True)
        ]
    assert np.mean(shares) >= least


@pytest.fixture(scope="module", params=["HNSW16", "IVF32,Flat;nprobe=24", "IVF32,PQ8x4;nprobe=24"])
def numbered(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, np.ndarray]:
    """An approximate index of 4,000 random vectors with a field that tells their number."""
    root = tmp_path_factory.mktemp("numbered") / "ix"
    vectors = np.random.default_rng(0).normal(size=(4000, 16)).astype(np.float32)
    rows = [{"_id": str(i), "text": "", "n": i} for i in range(4000)]
    build_index(rows, root, vectors=vectors, granularity="document", index=request.param)
    return root, vectors


@pytest.mark.parametrize("share", [0.5, 0.1, 0.01, 0.001])
def test_filters_keep_recall_and_give_k_results(
    numbered: tuple[Path, np.ndarray], share: float
) -> None:
    root, vectors = numbered
    where = {"n": {"$lt": int(4000 * share)}}
    with Retriever.load(root) as retriever:
        found = retriever.search_vectors(vectors[-40:], k=10, filter=where)
        truth = retriever.search_vectors(vectors[-40:], k=10, filter=where, exact=True)
    expected = min(10, int(4000 * share))
    assert all(len(hits) == expected for hits in found)
    assert all(int(h.id) < 4000 * share for hits in found for h in hits)
    overlap = [
        len({h.id for h in a} & {h.id for h in b}) / expected
        for a, b in zip(found, truth, strict=True)
    ]
    assert np.mean(overlap) >= 0.95


def test_an_index_that_began_without_vectors_is_trained_when_the_first_ones_come(
    tmp_path: Path, embedder: FakeEmbedder
) -> None:
    build_index(
        [{"_id": "a", "text": "", "year": 2001}], tmp_path / "ix", model=embedder, index="SQ8"
    )
    one_change.upsert(
        [{"_id": "a", "text": "word1 word2", "year": 2001}], tmp_path / "ix", model=embedder
    )
    with Retriever.load(tmp_path / "ix", model=embedder) as retriever:
        (hit,) = retriever.search("word1 word2", granularity="passage")
    assert (hit.id, hit.passage) == ("a", "word1 word2")


def test_a_file_of_what_was_added_is_of_a_type_for_so_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faiss_file, "EXACT_COMPONENTS", 50 * 16)
    monkeypatch.setattr(faiss_file, "ONE_LIST_VECTORS", 1000)
    rows = [{"_id": str(number), "text": f"word{number}"} for number in range(2060)]
    options: dict[str, Any] = {"model": FakeEmbedder(), "granularity": "document"}
    made = build_index(rows[:2000], tmp_path / "ix", **options)
    assert [tier.factory for tier in made.indexes["document"]] == ["IVF32,RaBitQfs"]
    more = one_change.add(rows[2000:], tmp_path / "ix", model=FakeEmbedder())
    assert [(tier.factory, tier.count) for tier in more.indexes["document"]] == [
        ("IVF32,RaBitQfs", 2000),
        ("IVF1,RaBitQfs", 60),
    ]


@pytest.mark.parametrize("factory", ["Flat", "HNSW8", "IVF1,Flat"])
def test_an_emptied_index_can_be_compacted_and_filled_again(
    tmp_path: Path, embedder: FakeEmbedder, factory: str
) -> None:
    root = tmp_path / "ix"
    build_index(make_documents(20), root, model=embedder, index=factory)
    assert one_change.delete(root, where={}).documents == 0
    assert one_change.compact(root).documents == 0
    one_change.add(make_documents(20), root, model=embedder)
    with Retriever.load(root, model=embedder) as retriever:
        assert len(retriever.search("word1 word2", k=20)) == 20


def test_an_index_that_lost_its_last_words_is_sound(tmp_path: Path, embedder: FakeEmbedder) -> None:
    build_index(
        [{"_id": "a", "text": "", "title": ""}], tmp_path / "ix", model=embedder, index="Flat"
    )
    one_change.delete(tmp_path / "ix", ["a"])
    assert problems_of(tmp_path / "ix") == []
