"""Exact search, the caches, BM25 and fusion; every result carries what it depends on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from passage_peers import IndexPassages, indexed_rows
from rank_fusion import RRFSystem

from aveyb_retrieval import build_index
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.eval import encoders, vectors
from aveyb_retrieval.eval.base import SystemInfo, info_fingerprint, rank
from aveyb_retrieval.eval.data import load_dataset
from aveyb_retrieval.eval.encoders import EmbedderEncoder, word_chunks
from aveyb_retrieval.eval.runner import Result, ResultCache, Settings, result_key, run_system
from aveyb_retrieval.eval.systems import BM25System, DenseSystem, HybridSystem, IndexSystem, VectorCache
from aveyb_retrieval.eval.tasks import make_task
from aveyb_retrieval.eval.vectors import DocumentVectors, EncodedCorpus, write_corpus
from aveyb_retrieval.indexes.search import options, scoring
from tests.eval.toys import ToyEmbedder, write_folder


@pytest.fixture
def task(tmp_path):
    return make_task(load_dataset(str(write_folder(tmp_path / "toy"))))


def _write(folder, counts, dim, rng, with_documents=True):
    items = []
    for count in counts:
        document = rng.standard_normal(dim).astype(np.float32) if with_documents else None
        passages = rng.standard_normal((count, dim)).astype(np.float32)
        items.append(DocumentVectors(document, passages, np.zeros((count, 2), dtype=np.int64)))
    write_corpus(folder, iter(items), dim, lambda: 0)
    return items, EncodedCorpus(folder)


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=30),
    k=st.integers(1, 12),
    granularity=st.sampled_from(vectors.GRANULARITIES),
    block=st.integers(1, 40),
    seed=st.integers(0, 9),
)
def test_blocked_search_equals_one_matrix(tmp_path_factory, counts, k, granularity, block, seed):
    counts = [*counts, 1]  # at least one passage
    rng = np.random.default_rng(seed)
    items, corpus = _write(tmp_path_factory.mktemp("v"), counts, 6, rng)
    queries = rng.standard_normal((3, 6)).astype(np.float32)
    expected = np.zeros((3, len(items)), dtype=np.float32)
    for i, item in enumerate(items):
        best = (queries @ item.passages.T).max(axis=1) if len(item.passages) else None
        document = queries @ item.document
        if granularity == "document":
            expected[:, i] = document
        elif granularity == "passage":
            expected[:, i] = 0.0 if best is None else best
        else:
            expected[:, i] = document if best is None else np.maximum(document, best)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors, "_ROWS", block)
        patch.setattr(vectors, "_QUERIES", 1 + block % 3)
        positions, scores = vectors.search(corpus, queries, k, granularity)
    wanted = -np.sort(-expected, axis=1)[:, :k]
    np.testing.assert_allclose(scores, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(expected, positions, axis=1), wanted, rtol=1e-5, atol=1e-6)
    assert all(len(set(row)) == len(row) for row in positions.tolist())


@pytest.mark.parametrize("granularity", vectors.GRANULARITIES)
@pytest.mark.parametrize("block", [7, 13, 30, 1000])
def test_ties_do_not_depend_on_block_size(tmp_path, monkeypatch, granularity, block):
    """Of 60 documents with four scores between them, the lower positions win at the edge of the best eight."""
    levels = np.random.default_rng(0).permutation(np.repeat([1.0, 2.0, 3.0, 4.0], 15)).astype(np.float32)
    items = [
        DocumentVectors(np.array([x]), np.array([[x], [0.5]], np.float32), np.zeros((2, 2), dtype=np.int64))
        for x in levels
    ]
    write_corpus(tmp_path, iter(items), 1, lambda: 0)
    monkeypatch.setattr(vectors, "_ROWS", block)
    positions, scores = vectors.search(EncodedCorpus(tmp_path), np.ones((5, 1), np.float32), 20, granularity)
    expected = sorted(range(60), key=lambda i: (-levels[i], i))[:20]
    assert positions.tolist() == [expected] * 5
    assert scores.tolist() == [levels[expected].tolist()] * 5


def test_scores_of_chosen_documents_are_those_of_search(tmp_path):
    """Also where every passage points away from the query, or there is none."""
    _, corpus = _write(tmp_path, [2, 0, 3, 1], 4, np.random.default_rng(3))
    for query in np.random.default_rng(4).standard_normal((6, 4)).astype(np.float32):
        for granularity in vectors.GRANULARITIES:
            positions, scores = vectors.search(corpus, query[None], 4, granularity)
            chosen = vectors.score_documents(corpus, query, positions[0], granularity)
            np.testing.assert_allclose(chosen, scores[0], rtol=1e-5, atol=1e-6)
    assert vectors.score_documents(corpus, query, np.array([], dtype=np.int64), "both").shape == (0,)


def test_granularities_need_their_vectors(tmp_path):
    _, corpus = _write(tmp_path, [2, 1], 4, np.random.default_rng(0), with_documents=False)
    with pytest.raises(ConfigError, match=r"only chunks were encoded"):
        vectors.search(corpus, np.ones((1, 4), np.float32), 1, "document")
    _, whole = _write(tmp_path / "whole", [0, 0], 4, np.random.default_rng(0))
    with pytest.raises(ConfigError, match=r"only whole documents were encoded"):
        vectors.search(whole, np.ones((1, 4), np.float32), 1, "both")
    with pytest.raises(ConfigError, match=r"unknown granularity"):
        vectors.search(corpus, np.ones((1, 4), np.float32), 1, "token")


def test_dense_system_finds_the_right_documents(task):
    system = DenseSystem(EmbedderEncoder(ToyEmbedder()), task.corpus, VectorCache())
    result, run = run_system(system, task)
    assert rank(run["q2"])[0] == "d2"
    assert result.mean["ndcg@10"] > 0.9
    assert result.system.settings == {
        "title_separator": "\n",
        "chunks": "passages",
        "passage_size": "None",
        "granularity": "document",
    }
    assert result.relevant_words["q1"] == 16


def test_title_goes_on_its_own_line_and_chunks_carry_it_once(task):
    whole = ToyEmbedder()
    list(EmbedderEncoder(whole).encode_corpus(task.corpus))
    assert whole.seen[0].startswith("Bees\nHoney")
    assert whole.seen[2].startswith("Tides")  # no title, no separator
    lone = ToyEmbedder()
    vectors_ = list(EmbedderEncoder(lone, chunker=word_chunks(8), chunks="8 words").encode_corpus(task.corpus))
    assert [len(v.passages) for v in vectors_] == [2, 2, 2, 2, 2]
    assert lone.seen[:2] == [
        "Bees Honey bees dance to tell others where the",
        "flowers are. The dance points at the sun.",
    ]
    first = vectors_[0].spans
    assert task.corpus.get("d1").text[first[1, 0] : first[1, 1]] == "flowers are. The dance points at the sun."
    assert vectors_[0].document is None


@pytest.mark.parametrize("size", [1, 3, 4, 7])
def test_chunks_do_not_depend_on_how_they_are_grouped(task, monkeypatch, size):
    make = lambda: EmbedderEncoder(ToyEmbedder(), chunker=word_chunks(4), chunks="4 words").encode_corpus(task.corpus)
    expected = list(make())
    monkeypatch.setattr(encoders, "_TEXTS_PER_CALL", size)
    for found, wanted in zip(make(), expected, strict=True):
        np.testing.assert_array_equal(found.passages, wanted.passages)
        np.testing.assert_array_equal(found.spans, wanted.spans)


def test_word_chunks_of_odd_texts(task):
    from aveyb_retrieval.eval.data import Document

    chunk = word_chunks(2)
    assert chunk(Document("x", "", "")) == []
    assert chunk(Document("x", "", "  \n ")) == []
    assert chunk(Document("x", "", " a  bc\nd ")) == [(1, 6), (7, 8)]
    with pytest.raises(ConfigError, match=r"at least 1 word"):
        word_chunks(0)


def test_vectors_are_cached_and_reused_only_when_asked(task, tmp_path):
    for reuse, texts in ((True, 5), (True, 0), (False, 5)):
        embedder = ToyEmbedder()
        system = DenseSystem(EmbedderEncoder(embedder), task.corpus, VectorCache(tmp_path / "cache", reuse=reuse))
        system.search({"q": "bees"}, 3)
        system.search({"q": "glass"}, 3)
        assert len(embedder.seen) == texts + 2
    other = ToyEmbedder()
    other.prompts = {"query": "", "document": "D: "}
    DenseSystem(EmbedderEncoder(other), task.corpus, VectorCache(tmp_path / "cache")).search({"q": "bees"}, 3)
    assert len(other.seen) == 5 + 1  # other prompts are another model


def test_an_interrupted_encoding_is_not_taken_for_complete(task, tmp_path):
    class Dies(ToyEmbedder):
        def encode_documents(self, documents):
            for i, encoded in enumerate(super().encode_documents(documents)):
                if i == 3:
                    raise KeyboardInterrupt
                yield encoded

    cache = tmp_path / "cache"
    with pytest.raises(KeyboardInterrupt):
        DenseSystem(EmbedderEncoder(Dies()), task.corpus, VectorCache(cache)).search({"q": "bees"}, 3)
    embedder = ToyEmbedder()
    run = DenseSystem(EmbedderEncoder(embedder), task.corpus, VectorCache(cache)).search({"q": "bees"}, 5)
    assert len(embedder.seen) == 5 + 1
    assert len(run["q"]) == 5


def test_results_are_cached_by_everything_they_depend_on(task, tmp_path):
    cache = ResultCache(tmp_path / "cache")

    class Counting(BM25System):
        searches = 0

        def search(self, queries, k):
            Counting.searches += 1
            return super().search(queries, k)

    pytest.importorskip("bm25s")
    first, run = run_system(Counting(task.corpus), task, cache=cache, only_missing=True)
    again, same = run_system(Counting(task.corpus), task, cache=cache, only_missing=True)
    assert Counting.searches == 1
    assert (again, same) == (first, run)
    assert Result.from_json(first.to_json(), "here") == first
    run_system(Counting(task.corpus), task, cache=cache)  # without --only-missing it is measured again
    run_system(Counting(task.corpus, k1=1.2), task, cache=cache, only_missing=True)
    run_system(Counting(task.corpus), task, Settings(depth=3), cache=cache, only_missing=True)
    assert Counting.searches == 4
    keys = {
        result_key(BM25System(task.corpus).info, task, Settings()),
        result_key(BM25System(task.corpus, b=0.5).info, task, Settings()),
        result_key(BM25System(task.corpus).info, task, Settings(depth=5)),
        result_key(BM25System(task.corpus).info, task, Settings(ignore_identical_ids=True)),
    }
    assert len(keys) == 4


def test_an_index_searched_by_other_weights_is_another_system(task, tmp_path, monkeypatch):
    pytest.importorskip("faiss")
    build_index(indexed_rows(task.corpus), tmp_path / "ix", model=ToyEmbedder(), index="Flat")
    searches = ({"mode": "hybrid"}, {"mode": "dense"}, {"mode": "hybrid", "rerank": "maxsim"})

    def fingerprints():
        systems = [kind(tmp_path / "ix", **search) for kind in (IndexSystem, IndexPassages) for search in searches]
        return [info_fingerprint(system.info) for system in systems]

    before = fingerprints()
    assert len(set(before)) == 5  # the documents and the passages of an index by vectors alone are one way of searching
    with monkeypatch.context() as patch:
        patch.setattr(options, "WEIGHT", 0.25)
        patch.setattr(scoring, "MAXSIM_WEIGHT", 5.0)
        kept = [old == new for old, new in zip(before, fingerprints(), strict=True)]
        assert kept == [False, True, False, True, True, True]
    monkeypatch.setattr(scoring, "WEIGHTS", {"cosine": 9.0})
    kept = [old == new for old, new in zip(before, fingerprints(), strict=True)]
    assert kept == [False, True, False, False, True, False]


def test_labels_do_not_change_the_fingerprint():
    a, b = SystemInfo("one", "dense", "m", "f"), SystemInfo("two", "dense", "path/m", "f")
    assert info_fingerprint(a) == info_fingerprint(b) != info_fingerprint(SystemInfo("one", "dense", "m", "g"))


def test_bm25_returns_only_documents_that_share_a_term(task):
    pytest.importorskip("bm25s")
    run = BM25System(task.corpus).search({"q": "sourdough", "none": "zebra"}, 10)
    assert list(run["q"]) == ["d2"]
    assert run["none"] == {}
    result, _ = run_system(BM25System(task.corpus), task)
    assert result.mean["ndcg@10"] > 0.9


class Fixed:
    def __init__(self, run, name="fixed"):
        self.run = run
        self.notices = [f"{name} speaks"]
        self.info = SystemInfo(name, "dense", name, name)

    def search(self, queries, k):
        return {q: self.run[q] for q in queries if q in self.run}


def test_fusion_by_hand():
    a, b = Fixed({"q": {"x": 9.0, "y": 8.0}}, "a"), Fixed({"q": {"y": 0.2, "z": 0.1}}, "b")
    run = RRFSystem([a, b]).search({"q": "", "empty": ""}, 2)
    assert run["q"] == {"y": pytest.approx(1 / 62 + 1 / 61), "x": pytest.approx(1 / 61)}
    assert run["empty"] == {}
    hybrid = RRFSystem([a, b])
    hybrid.search({"q": ""}, 2)
    assert hybrid.notices == ["a speaks", "b speaks"]


def test_every_encoded_document_is_reported(task):
    seen = []
    cache = VectorCache(progress=lambda *counts: seen.append(counts))
    cache.encoded(EmbedderEncoder(ToyEmbedder()), task.corpus)
    assert seen == [("toy: encoding", done, 5, 0) for done in (1, 2, 3, 4, 5)]


def test_foreign_documents_and_silence_are_errors(task):
    with pytest.raises(InputError, match=r"'stranger' for query 'q1', which is not in the corpus"):
        run_system(Fixed({"q1": {"stranger": 1.0}}), task)
    with pytest.raises(InputError, match=r"returned nothing for any of the 3 queries"):
        run_system(Fixed({"q1": {}}), task)


def test_missing_queries_are_counted(task):
    result, _ = run_system(Fixed({"q1": {"d1": 1.0}}), task)
    assert result.missing == 2
    assert result.mean["ndcg@10"] == pytest.approx(1 / 3)
    assert "2 judged queries without a hit: scored 0" in result.notices


def test_cut_texts_are_announced(task):
    class Cuts(ToyEmbedder):
        def encode_documents(self, documents):
            for encoded in super().encode_documents(documents):
                yield replace(encoded, n_cut=7)

    result, _ = run_system(DenseSystem(EmbedderEncoder(Cuts(), max_tokens=9), task.corpus, VectorCache()), task)
    assert "toy: 5 of 5 texts cut at 9 tokens" in result.notices


def test_settings_are_checked_before_any_work(task):
    with pytest.raises(ConfigError, match=r"unknown metric 'precision@10'"):
        Settings(metrics=("precision@10",))
    result, _ = run_system(Fixed({"q1": {"d1": 1.0}}), task, Settings(depth=10))
    assert "recall@100 computed on a run of depth 10 only" in result.notices


def test_ids_with_blanks_can_be_measured_and_cached(tmp_path):
    folder = write_folder(tmp_path / "toy")
    for name in ("corpus.jsonl", "qrels/test.tsv", "qrels/dev.tsv"):
        (folder / name).write_text((folder / name).read_text().replace("d1", "d 1"))
    task = make_task(load_dataset(str(folder)))
    cache = ResultCache(tmp_path / "cache")
    system = Fixed({"q1": {"d 1": 1.0}})
    assert run_system(system, task, cache=cache) == run_system(system, task, cache=cache, only_missing=True)


def test_identical_ids_are_dropped_only_on_request(tmp_path):
    folder = write_folder(tmp_path / "toy")
    text = (folder / "queries.jsonl").read_text().replace('"q1"', '"d1"')
    (folder / "queries.jsonl").write_text(text)
    (folder / "qrels" / "test.tsv").write_text("d1\td3\t1\n")
    (folder / "qrels" / "dev.tsv").unlink()
    task = make_task(load_dataset(str(folder)))
    system = Fixed({"d1": {"d1": 2.0, "d3": 1.0}})
    assert run_system(system, task)[0].mean["mrr@10"] == 0.5
    result, run = run_system(system, task, Settings(ignore_identical_ids=True))
    assert result.mean["mrr@10"] == 1.0
    assert run == {"d1": {"d3": 1.0}}
    assert any("dropped 1 hit with the query's own id" in notice for notice in result.notices)


@pytest.mark.parametrize("granularity", vectors.GRANULARITIES)
def test_weighted_hybrid_by_hand(task, tmp_path, granularity):
    """Both scores of every candidate, as shares of the way from a document at random to the best one."""
    lexical = BM25System(task.corpus)
    dense = DenseSystem(
        EmbedderEncoder(ToyEmbedder()), task.corpus, VectorCache(tmp_path / "vectors"), granularity=granularity
    )
    queries = {"q": "sourdough bread", "none": "zebra"}
    run = HybridSystem(lexical, dense, weight=0.25, depth=1).search(queries, 1)
    everything = dense.search(queries, len(task.corpus))
    encoded = dense.cache.encoded(dense.encoder, task.corpus)
    vectors = dense.encoder.encode_queries(list(queries.values()))
    words = lexical.search(queries, 1)
    for query, vector in zip(queries, vectors, strict=True):
        nearest = max(everything[query].values())
        background = float(np.mean(np.asarray(encoded.documents) @ vector))
        expected = {}
        for doc in {max(everything[query], key=everything[query].__getitem__), *words[query]}:
            near = max(0.0, everything[query][doc] - background) / (nearest - background)
            share = words[query].get(doc, 0.0) / max(words[query].values(), default=1.0)
            expected[doc] = 0.25 * near + 0.75 * share
        best = max(expected, key=expected.__getitem__)
        assert run[query] == {best: pytest.approx(expected[best], abs=1e-5)}


def test_a_hybrid_run_is_as_deep_as_it_is_asked_for(task, tmp_path):
    dense = DenseSystem(EmbedderEncoder(ToyEmbedder()), task.corpus, VectorCache(tmp_path / "vectors"))
    hybrid = HybridSystem(BM25System(task.corpus), dense, depth=1)
    assert len(hybrid.search({"q": "zebra"}, len(task.corpus))["q"]) == len(task.corpus)
