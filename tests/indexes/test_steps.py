"""Steps of a search: each reads as much as it needs, and what it gives does not depend on that."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.indexes.search import candidates
from aveyb_retrieval.indexes.search.remembered import Remembered
from aveyb_retrieval.indexes.search.snapshot import Snapshot
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder
from tests.recorder import record_calls

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LONG = [
    {"_id": f"long{i}", "text": " ".join(f"word{(i * 7 + j) % 40}" for j in range(900))}
    for i in range(3)
]


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    root = tmp_path_factory.mktemp("steps") / "long"
    build_index([*LONG, {"_id": "empty", "text": ""}], root, model=FakeEmbedder())
    return Retriever.load(root, model=FakeEmbedder())


@pytest.fixture(scope="module")
def retriever(tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    root = tmp_path_factory.mktemp("steps") / "both"
    rows = make_documents(120)
    build_index([*rows, {"_id": "twin", "text": rows[0]["text"]}], root, model=FakeEmbedder())
    return Retriever.load(root, model=FakeEmbedder())


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
@pytest.mark.parametrize("cap", [1, 2])
def test_a_page_ends_where_all_documents_are_full(
    long: Retriever, monkeypatch: pytest.MonkeyPatch, mode: Any, fold: bool, cap: int
) -> None:
    options: dict[str, Any] = {"mode": mode, "fold": fold, "candidates": 5, "unit": "passage"}
    every = long.search("word1 word9", 10_000, **options)
    first = [
        hit
        for place, hit in enumerate(every)
        if sum(other.id == hit.id for other in every[:place]) < cap
    ]
    steps = record_calls(monkeypatch, candidates, "_find_passages")
    hits = long.search("word1 word9", 10, per_document=cap, **options)
    assert [(hit.id, hit.span) for hit in hits] == [(hit.id, hit.span) for hit in first]
    assert len(hits) == 3 * cap and len(steps) <= 4, "not until the last of 340 passages"


def test_a_document_with_fewer_passages_than_its_share_ends_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index([*LONG[:1], {"_id": "s", "text": "word1"}], tmp_path / "i", model=FakeEmbedder())
    steps = record_calls(monkeypatch, candidates, "_find_passages")
    with Retriever.load(tmp_path / "i", model=FakeEmbedder()) as few:
        hits = few.search("word1", 40, unit="passage", per_document=3, candidates=20, fold=False)
    assert sorted(hit.id for hit in hits) == ["long0"] * 3 + ["s"]
    assert len(steps) == 1


@pytest.mark.parametrize("unit", ["document", "passage"])
def test_words_are_looked_up_once_however_many_are_asked_for(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch, unit: Any
) -> None:
    options: dict[str, Any] = {"mode": "lexical", "unit": unit, "fold": False, "passages": 1}
    calls = record_calls(monkeypatch, Snapshot, "by_words")
    every = retriever.rank(["word1 word2 word3"], 1000, **options)[0]
    assert len(calls) == 1 and len(every) > 25
    pages = [retriever.rank(["word1 word2 word3"], 7, offset=at, **options)[0] for at in (0, 7, 14)]
    assert [row for page in pages for row in page] == every[:21]


@pytest.mark.parametrize("unit", ["document", "passage"])
def test_a_question_ranks_by_its_words_once_of_each_kind(
    long: Retriever, monkeypatch: pytest.MonkeyPatch, unit: Any
) -> None:
    """Also where most documents are long, whose passages are ranked further down."""
    calls = record_calls(monkeypatch, Snapshot, "by_words")
    assert long.search("word1 word2", 2, unit=unit)
    kinds = [call["kind"] for call in calls]
    assert sorted(kinds) == sorted({"passage", unit})


def test_folding_a_deep_page_costs_little(tmp_path: Path) -> None:
    """In processor time: that of the copies grows with them, not with their square."""
    rng = random.Random(1)
    texts = (" ".join(rng.choices(LONG[0]["text"].split()[:9], k=4)) for _ in range(3000))
    rows = [{"_id": str(number), "text": text} for number, text in enumerate(texts)]
    vectors = np.random.default_rng(0).normal(size=(3000, 8)).astype(np.float32)
    build_index(rows, tmp_path / "i", vectors=vectors, granularity="document")
    options: dict[str, Any] = {"mode": "lexical", "k": 3000}
    with Retriever.load(tmp_path / "i") as deep:

        def seconds(*, fold: bool) -> float:
            began = time.process_time()
            hits = deep.search(rows[0]["text"], fold=fold, **options)
            assert len(hits) > 500
            return time.process_time() - began

        folded, plain = (min(seconds(fold=fold) for _ in range(3)) for fold in (True, False))
        assert folded < 5 * plain + 0.2


def test_vectors_are_not_folded_by_texts_unless_asked_for(retriever: Retriever) -> None:
    vector = FakeEmbedder().encode_queries([make_documents(1)[0]["text"]])
    (plain,) = retriever.search_vectors(vector, 5)
    assert not any(hit.duplicates for hit in plain)
    (folded,) = retriever.search_vectors(vector, 5, fold=True)
    assert any("twin" in (hit.id, *hit.duplicates) for hit in folded if hit.duplicates)


@pytest.mark.parametrize("query", ["word3 zinc", "unheard of"])
def test_confidence_is_of_passages_whichever_vectors_rank(retriever: Retriever, query: str) -> None:
    """The best passage of all is looked for by vectors, too, where documents are ranked by their
    own.
    """
    by_both = {
        (hit.id, hit.span): hit.confidence
        for hit in retriever.search(query, 200, unit="passage", fold=False)
    }
    hits = retriever.search(query, 20, granularity="document")
    assert len(hits) == 20 or query == "unheard of"
    for hit in hits:
        if hit.confidence is not None:
            assert 0 <= hit.confidence <= 1
            assert hit.confidence == pytest.approx(by_both[hit.id, hit.span], abs=1e-4)


def test_values_that_are_remembered_are_read_once_and_the_oldest_go() -> None:
    reads = list[list[int]]()

    def read(docs: Sequence[int]) -> dict[int, int]:
        reads.append([*docs])
        return {doc: doc * doc for doc in docs if doc < 100}

    remembered = Remembered[int](8)
    assert remembered.get([3, 1, 100], read) == {3: 9, 1: 1}
    assert list(remembered.get([1, 2, 3], read)) == [1, 2, 3]
    assert reads == [[3, 1, 100], [2]]
    remembered.add({4: 16, 5: 25})
    assert remembered.get(range(1, 6), read) == {doc: doc * doc for doc in range(1, 6)}
    assert len(reads) == 2
    everything = {doc: doc * doc for doc in range(50)}
    assert remembered.get(range(50), read) == everything  # more than are remembered
    assert remembered.get([49, 0], read) == {49: 2401, 0: 0}
    assert reads[-1] == [0]
