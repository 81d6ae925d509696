"""The mean cosine that hybrid scores count from is of the same documents, in whatever order they
came.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.indexes.search import snapshot
from aveyb_retrieval.indexes.search.snapshot import Snapshot
from aveyb_retrieval.indexes.types import id_digest
from tests import one_change
from tests.indexes.conftest import make_documents

if TYPE_CHECKING:
    from pathlib import Path

    from tests.indexes.fake import FakeEmbedder

ROWS = make_documents(60)
QUERIES = ["word1 word2", "word7 word80 word120", "title 7"]


@pytest.fixture(autouse=True)
def small_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "SAMPLE_DOCUMENTS", 8)


def hybrid(root: Path, embedder: FakeEmbedder) -> list[Any]:
    """The scores of documents for each query, by id."""
    with Retriever.load(root, model=embedder) as retriever:
        found = retriever.search(QUERIES, k=20)
    return [{hit.id: hit.score for hit in hits} for hits in found]


def mean(root: Path) -> np.ndarray:
    opened = Snapshot.open(root)
    found = opened.mean_vector
    opened.close()
    return found


@pytest.mark.parametrize("granularity", ["document", "passage", "both"])
def test_it_is_the_mean_of_the_documents_whose_ids_have_the_least_hashes(
    granularity: Any, tmp_path: Path, embedder: FakeEmbedder
) -> None:
    build_index(ROWS, tmp_path / "index", model=embedder, granularity=granularity)
    chosen = sorted(ROWS, key=lambda row: id_digest(row["_id"]))[:8]
    prefixes = [f"{row['title']}\n" if row["title"] else "" for row in chosen]
    encoded = list(
        embedder.encode_documents(zip(prefixes, [row["text"] for row in chosen], strict=True))
    )
    vectors = (
        [d.passages for d in encoded]
        if granularity == "passage"
        else [d.vector[None] for d in encoded]
    )
    np.testing.assert_allclose(
        mean(tmp_path / "index"), np.concatenate(vectors).mean(axis=0), atol=1e-6
    )


def test_hybrid_scores_do_not_depend_on_the_order_of_documents(
    tmp_path: Path, embedder: FakeEmbedder
) -> None:
    build_index(ROWS, tmp_path / "plain", model=embedder)
    wanted = [pytest.approx(scores, abs=1e-5) for scores in hybrid(tmp_path / "plain", embedder)]
    shuffled = random.Random(1).sample(ROWS, len(ROWS))
    build_index(shuffled, tmp_path / "shuffled", model=embedder)
    assert hybrid(tmp_path / "shuffled", embedder) == wanted
    for shard in (1, 2, 3):
        build_index(shuffled, tmp_path / "shards" / str(shard), share=(shard, 3), model=embedder)
    build_index(None, tmp_path / "of shards", vectors=tmp_path / "shards")
    assert hybrid(tmp_path / "of shards", embedder) == wanted


def test_an_index_that_grew_and_shrank_scores_as_one_built_at_once(
    tmp_path: Path, embedder: FakeEmbedder
) -> None:
    build_index(ROWS, tmp_path / "at once", model=embedder)
    others = make_documents(20, first=100)
    root = tmp_path / "step by step"
    build_index([*others, *ROWS[:10]], root, model=embedder)
    one_change.add(ROWS[20:], root, model=embedder)
    one_change.upsert(ROWS[5:20], root, model=embedder)
    one_change.delete(root, [row["_id"] for row in others])
    one_change.compact(root)  # until then removed documents count in the weights of words
    wanted = [pytest.approx(scores, abs=1e-5) for scores in hybrid(tmp_path / "at once", embedder)]
    assert hybrid(root, embedder) == wanted
