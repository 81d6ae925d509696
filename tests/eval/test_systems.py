"""Exact search, the caches, BM25 and fusion; every result carries what it depends on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rank_fusion import RRFSystem
from span_scores import IndexPassages

from aveyb_retrieval import build_index
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.eval import encoders
from aveyb_retrieval.eval.base import SystemInfo, info_fingerprint, rank
from aveyb_retrieval.eval.data import load_dataset
from aveyb_retrieval.eval.encoders import AsMeasured, ChunkedModel, word_chunks
from aveyb_retrieval.eval.named_systems import exact_system, indexed, indexed_rows
from aveyb_retrieval.eval.runner import EvalSettings, Result, ResultCache, result_key, run_system
from aveyb_retrieval.eval.systems import BM25System, IndexSystem
from aveyb_retrieval.eval.tasks import make_task
from aveyb_retrieval.indexes.search import options, ranking
from tests.eval.toys import ToyEmbedder, write_folder
from tests.refusals import Refusal, refusals


@pytest.fixture
def task(tmp_path):
    return make_task(load_dataset(str(write_folder(tmp_path / "toy"))))


def exact(model, task, folder, **options):
    return exact_system(AsMeasured(model), task.corpus, folder, **options)


def pairs(task):
    return [(f"{title}\n" if title else "", text) for _, title, text in task.corpus]


def test_every_vector_is_scored(task, tmp_path):
    system = exact(ToyEmbedder(), task, tmp_path, granularity="document")
    result, run = run_system(system, task)
    assert rank(run["q2"])[0] == "d2"
    assert result.mean["ndcg@10"] > 0.9
    settings = result.system.settings
    assert (settings["chunks"], settings["granularity"], settings["exact"]) == (
        "passages",
        "document",
        True,
    )
    toy = ToyEmbedder()
    for granularity in ("document", "passage", "both"):
        by_vectors = exact(toy, task, tmp_path, granularity=granularity).search(
            task.queries, len(task.corpus)
        )
        for query, encoded in zip(
            task.queries, toy.encode_queries(list(task.queries.values())), strict=True
        ):
            for (_, document), (name, *_) in zip(
                zip(pairs(task), toy.encode_documents(pairs(task)), strict=True),
                task.corpus,
                strict=True,
            ):
                best = {
                    "document": document.vector @ encoded,
                    "passage": (document.passages @ encoded).max(),
                }
                expected = max(best.values()) if granularity == "both" else best[granularity]
                assert by_vectors[query][name] == pytest.approx(expected, abs=1e-5)


def test_granularities_need_their_vectors(task, tmp_path):
    chunks = ChunkedModel(AsMeasured(ToyEmbedder()), word_chunks(4), "4 words")
    with pytest.raises(ConfigError, match=r"with chunks '4 words' makes only vectors of passages"):
        exact_system(chunks, task.corpus, tmp_path, granularity="document")


def test_title_goes_on_its_own_line_and_chunks_carry_it_once(task):
    whole = ToyEmbedder()
    list(AsMeasured(whole).encode_documents(pairs(task)))
    assert whole.seen[0].startswith("Bees\nHoney")
    assert whole.seen[2].startswith("Tides")  # no title, no separator
    lone = ToyEmbedder()
    found = list(
        ChunkedModel(AsMeasured(lone), word_chunks(8), "8 words").encode_documents(pairs(task))
    )
    assert [len(encoded.passages) for encoded in found] == [2, 2, 2, 2, 2]
    assert lone.seen[:2] == [
        "Bees Honey bees dance to tell others where the",
        "flowers are. The dance points at the sun.",
    ]
    first = found[0].spans
    assert (
        task.corpus.get("d1").text[first[1, 0] : first[1, 1]]
        == "flowers are. The dance points at the sun."
    )
    assert not found[0].vector.any()


@pytest.mark.parametrize("size", [1, 3, 4, 7])
def test_chunks_do_not_depend_on_how_they_are_grouped(task, monkeypatch, size):
    chunked = ChunkedModel(AsMeasured(ToyEmbedder()), word_chunks(4), "4 words")
    make = lambda: chunked.encode_documents(pairs(task))
    expected = list(make())
    monkeypatch.setattr(encoders, "_TEXTS_PER_CALL", size)
    for found, wanted in zip(make(), expected, strict=True):
        np.testing.assert_array_equal(found.passages, wanted.passages)
        np.testing.assert_array_equal(found.spans, wanted.spans)


def test_word_chunks_of_odd_texts(task):
    chunk = word_chunks(2)
    assert chunk("") == []
    assert chunk("  \n ") == []
    assert chunk(" a  bc\nd ") == [(1, 6), (7, 8)]
    with pytest.raises(ConfigError, match=r"at least 1 word"):
        word_chunks(0)


def test_vectors_are_cached_and_reused_only_when_asked(task, tmp_path):
    for reuse, texts in ((True, 5), (True, 0), (False, 5)):
        embedder = ToyEmbedder()
        system = exact(embedder, task, tmp_path / "cache", reuse=reuse)
        system.search({"q": "bees"}, 3)
        system.search({"q": "glass"}, 3)
        assert len(embedder.seen) == texts + 2
    other = ToyEmbedder()
    other.prompts = {"query": "", "document": "D: "}
    exact(other, task, tmp_path / "cache").search({"q": "bees"}, 3)
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
        exact(Dies(), task, cache)
    embedder = ToyEmbedder()
    run = exact(embedder, task, cache).search({"q": "bees"}, 5)
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
    # without --only-missing it is measured again
    run_system(Counting(task.corpus), task, cache=cache)
    run_system(Counting(task.corpus, k1=1.2), task, cache=cache, only_missing=True)
    run_system(Counting(task.corpus), task, EvalSettings(depth=3), cache=cache, only_missing=True)
    assert Counting.searches == 4
    keys = {
        result_key(BM25System(task.corpus).info, task, EvalSettings()),
        result_key(BM25System(task.corpus, b=0.5).info, task, EvalSettings()),
        result_key(BM25System(task.corpus).info, task, EvalSettings(depth=5)),
        result_key(BM25System(task.corpus).info, task, EvalSettings(ignore_identical_ids=True)),
    }
    assert len(keys) == 4


def test_an_index_searched_by_other_weights_is_another_system(task, tmp_path, monkeypatch):
    pytest.importorskip("faiss")
    build_index(indexed_rows(task.corpus), tmp_path / "ix", model=ToyEmbedder(), index="Flat")
    searches = ({"mode": "hybrid"}, {"mode": "dense"}, {"mode": "hybrid", "rerank": "maxsim"})

    def fingerprints():
        systems = [
            kind(tmp_path / "ix", **search)
            for kind in (IndexSystem, IndexPassages)
            for search in searches
        ]
        return [info_fingerprint(system.info) for system in systems]

    before = fingerprints()
    # the documents and the passages of an index by vectors alone are one way of searching
    assert len(set(before)) == 5
    with monkeypatch.context() as patch:
        patch.setattr(options, "WEIGHT", 0.25)
        patch.setattr(ranking, "MAXSIM_WEIGHT", 5.0)
        kept = [old == new for old, new in zip(before, fingerprints(), strict=True)]
        assert kept == [False, True, False, True, True, True]
    monkeypatch.setattr(ranking, "WEIGHTS", {"cosine": 9.0})
    kept = [old == new for old, new in zip(before, fingerprints(), strict=True)]
    assert kept == [False, True, False, False, True, False]


def test_labels_do_not_change_the_fingerprint():
    a, b = SystemInfo("one", "dense", "m", "f"), SystemInfo("two", "dense", "path/m", "f")
    assert (
        info_fingerprint(a)
        == info_fingerprint(b)
        != info_fingerprint(SystemInfo("one", "dense", "m", "g"))
    )


def test_bm25_returns_only_documents_that_share_a_term(task):
    pytest.importorskip("bm25s")
    run = BM25System(task.corpus).search({"q": "sourdough", "none": "zebra"}, 10)
    assert list(run["q"]) == ["d2"]
    assert run["none"] == {}
    result, _ = run_system(BM25System(task.corpus), task)
    assert result.mean["ndcg@10"] > 0.9


def test_a_corpus_of_stop_words_is_named(tmp_path):
    pytest.importorskip("bm25s")
    folder = write_folder(tmp_path / "toy")
    rows = [f'{{"_id": "d{i}", "text": "the and of"}}\n' for i in range(1, 6)]
    (folder / "corpus.jsonl").write_text("".join(rows))
    with pytest.raises(
        InputError, match="BM25 finds no word in the corpus that is not a stop word"
    ):
        BM25System(load_dataset(str(folder)).corpus).search({"q": "moon"}, 3)


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


def test_every_encoded_document_is_reported(task, tmp_path):
    seen = []
    indexed(ToyEmbedder(), task.corpus, tmp_path, progress=lambda *counts: seen.append(counts))
    assert max(done for _, done, total, _ in seen if total == 5) == 5
    assert all(stage.startswith("toy: ") for stage, *_ in seen)


@refusals(
    {
        InputError: {
            r"'stranger' for query 'q1', which is not in the corpus": lambda task: run_system(
                Fixed({"q1": {"stranger": 1.0}}), task
            ),
            r"returned nothing for any of the 3 queries": lambda task: run_system(
                Fixed({"q1": {}}), task
            ),
        },
    }
)
def test_answers_that_cannot_be_scored_are_refused(task, refused: Refusal):
    refused(task)


def test_missing_queries_are_counted(task):
    result, _ = run_system(Fixed({"q1": {"d1": 1.0}}), task)
    assert result.missing == 2
    assert result.mean["ndcg@10"] == pytest.approx(1 / 3)
    assert "2 judged queries without a hit: scored 0" in result.notices


def test_cut_texts_are_announced(task, tmp_path):
    class Cuts(ToyEmbedder):
        def encode_documents(self, documents):
            for encoded in super().encode_documents(documents):
                yield replace(encoded, n_cut=7)

    embedder = Cuts()
    embedder.max_tokens = 9
    result, _ = run_system(exact(embedder, task, tmp_path), task)
    assert "toy: 5 of 5 texts cut at 9 tokens" in result.notices


def test_settings_are_checked_before_any_work(task):
    with pytest.raises(ConfigError, match=r"unknown metric 'precision@10'"):
        EvalSettings(metrics=("precision@10",))
    result, _ = run_system(Fixed({"q1": {"d1": 1.0}}), task, EvalSettings(depth=10))
    assert "recall@100 computed on a run of depth 10 only" in result.notices


def test_ids_with_blanks_can_be_measured_and_cached(tmp_path):
    folder = write_folder(tmp_path / "toy")
    for name in ("corpus.jsonl", "qrels/test.tsv", "qrels/dev.tsv"):
        (folder / name).write_text((folder / name).read_text().replace("d1", "d 1"))
    task = make_task(load_dataset(str(folder)))
    cache = ResultCache(tmp_path / "cache")
    system = Fixed({"q1": {"d 1": 1.0}})
    assert run_system(system, task, cache=cache) == run_system(
        system, task, cache=cache, only_missing=True
    )


def test_identical_ids_are_dropped_only_on_request(tmp_path):
    folder = write_folder(tmp_path / "toy")
    text = (folder / "queries.jsonl").read_text().replace('"q1"', '"d1"')
    (folder / "queries.jsonl").write_text(text)
    (folder / "qrels" / "test.tsv").write_text("d1\td3\t1\n")
    (folder / "qrels" / "dev.tsv").unlink()
    task = make_task(load_dataset(str(folder)))
    system = Fixed({"d1": {"d1": 2.0, "d3": 1.0}})
    assert run_system(system, task)[0].mean["mrr@10"] == 0.5
    result, run = run_system(system, task, EvalSettings(ignore_identical_ids=True))
    assert result.mean["mrr@10"] == 1.0
    assert run == {"d1": {"d3": 1.0}}
    assert any("dropped 1 hit with the query's own id" in notice for notice in result.notices)
