"""The choice of an index by size, its settings, and exact search."""

from __future__ import annotations

import faiss
import numpy as np
import pytest

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.nearest import exact, faiss_index
from aveyb_retrieval.indexes.nearest.faiss_searcher import FaissSearcher


@pytest.mark.parametrize(
    ("count", "dim", "factory"),
    [
        (0, 256, "Flat"),
        (100_000, 256, "Flat"),
        (100_001, 256, "HNSW32"),
        (40_000, 768, "HNSW32"),
        (2_000_000, 256, "HNSW32"),
        (4_000_000, 256, "IVF8192_HNSW32,Flat"),
        (30_000_000, 256, "OPQ64,IVF16384_HNSW32,PQ64"),
        (30_000_000, 100, "OPQ25,IVF16384_HNSW32,PQ25"),
    ],
)
def test_auto_goes_from_exact_to_compressed_with_size(count: int, dim: int, factory: str) -> None:
    assert faiss_index.choose_factory("auto", count, dim) == factory
    assert faiss_index.create(factory, dim).d == dim
    assert faiss_index.choose_factory("SQ8", count, dim) == "SQ8"


def test_what_faiss_cannot_make_is_told() -> None:
    for factory, dim in (("", 8), ("Nonsense", 8), ("PQ3", 8), ("Flat,Flat", 8), ("IVF0,Flat", 8)):
        with pytest.raises(ConfigError, match="FAISS cannot make an index"):
            faiss_index.create(factory, dim)


def test_exact_search_is_exact_stable_and_padded() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.integers(-2, 3, size=(500, 4)).astype(np.float32)  # many equal scores
    ids = rng.permutation(10_000)[:500].astype(np.int64)
    ids.sort()
    queries = rng.integers(-2, 3, size=(20, 4)).astype(np.float32)
    blocks = [(ids[i : i + 37], vectors[i : i + 37]) for i in range(0, 500, 37)]
    scores, found = exact.search(blocks, queries, 9)
    for row, query in enumerate(queries):
        order = sorted(zip((-(vectors @ query)).tolist(), ids.tolist(), strict=True))[:9]
        assert list(zip((-scores[row]).tolist(), found[row].tolist(), strict=True)) == order
    scores, found = exact.search(blocks[:1], queries, 50)
    assert (found[:, 37:] == -1).all()
    assert np.isneginf(scores[:, 37:]).all()
    assert exact.search([], queries, 3)[1].tolist() == [[-1] * 3] * 20


def test_ids_are_ours_in_every_kind_of_index() -> None:
    vectors = np.random.default_rng(0).normal(size=(600, 16)).astype(np.float32)
    faiss.normalize_L2(vectors)
    ids = np.arange(600, dtype=np.int64) * 1_000_003 + (1 << 40)
    for factory in ("Flat", "HNSW8", "IVF4,Flat", "PCA8,Flat", "PCA8,IVF4,SQ8", "SQ8"):
        index = faiss_index.create(factory, 16)
        if faiss_index.training_size(index, 600):
            faiss_index.train(index, vectors, factory)
        faiss_index.fill(index, ids, vectors)
        assert np.array_equal(np.sort(faiss_index.stored_ids(index)), ids), factory
        searcher = FaissSearcher(index, {"nprobe": 4}, factory=factory)
        _, found = searcher.search(vectors[:50], 10)
        assert (found == ids[:50, None]).any(axis=1).mean() > 0.9, factory
        if searcher.takes_selector:
            few = searcher.select(ids[100:110], dense=False)
            assert set(searcher.search(vectors[:5], 10, selector=few)[1].ravel()) <= {*ids[100:110].tolist(), -1}


@pytest.mark.parametrize("factory", ["Flat", "HNSW8", "SQ8", "OPQ4,PQ4", "IVF2,Flat"])
def test_making_room_changes_nothing_in_an_index(factory: str) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(500, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    ids = np.arange(500) * 7
    answers = []
    for room in (0, 300):
        index = faiss_index.create(factory, 16)
        if faiss_index.training_size(index, 500):
            faiss_index.train(index, vectors, factory)
        for part in (slice(0, 300), slice(300, 500)):
            faiss_index.reserve(index, room)
            faiss_index.fill(index, ids[part], vectors[part])
        answers.append(index.search(vectors[:20], 5))
    assert np.array_equal(answers[0][0], answers[1][0])
    assert np.array_equal(answers[0][1], answers[1][1])
