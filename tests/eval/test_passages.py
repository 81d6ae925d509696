"""Passage truth in characters: by hand, by brute force over character sets, and end to end on the
toy set.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from passage_peers import ExactPassages, FusedPassages, VectorScorer, WordScorer
from span_scores import IndexPassages, chunks_of, evaluate_passages, merge, score_passages

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.eval.data import load_dataset
from aveyb_retrieval.eval.encoders import AsMeasured, ChunkedModel, word_chunks
from aveyb_retrieval.eval.named_systems import indexed, indexed_rows
from aveyb_retrieval.eval.tasks import make_task
from tests.eval.toys import ToyEmbedder, write_folder
from tests.recorder import record_calls
from tests.refusals import Refusal, refusals

ranges = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda r: (min(r), max(r))), max_size=6
)


@given(
    ranges,
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 40), st.integers(1, 9)), max_size=6),
)
def test_scores_equal_sets_of_characters(true_ranges, found):
    truth_set = {("a", c) for start, end in true_ranges for c in range(start, end)}
    if not truth_set:
        return
    retrieved = [(doc, start, start + length) for doc, start, length in found]
    found_set = {(doc, c) for doc, start, end in retrieved for c in range(start, end)}
    scores = score_passages({"a": true_ranges}, retrieved)
    common = len(truth_set & found_set)
    assert scores["precision"] == pytest.approx(common / len(found_set) if found_set else 0.0)
    assert scores["recall"] == pytest.approx(common / len(truth_set))
    assert scores["iou"] == pytest.approx(common / len(truth_set | found_set))
    assert scores["hit"] == float(common > 0)


def test_merge_joins_touching_ranges():
    assert merge([(5, 7), (0, 2), (2, 3), (6, 9), (4, 4)]) == [(0, 3), (5, 9)]


def test_characters_of_overlapping_passages_count_once():
    scores = score_passages(
        {"a": [(0, 4), (2, 6)]}, [("a", 3, 5), ("a", 4, 9), ("b", 7, 9), ("b", 8, 8)]
    )
    assert scores == {"precision": 3 / 8, "recall": 0.5, "iou": 3 / 11, "hit": 1.0}
    assert score_passages({"a": [(0, 4)]}, [("b", 0, 4)]) == dict.fromkeys(
        ("precision", "recall", "iou", "hit"), 0.0
    )
    assert score_passages({"a": [(0, 4)]}, [])["precision"] == 0.0


@pytest.fixture
def task(tmp_path):
    return make_task(load_dataset(str(write_folder(tmp_path / "toy", spans=True))))


@pytest.fixture
def exact(tmp_path):
    """Passages of an index of the task's corpus, every one scored."""

    def made(model, task):
        path = indexed(model, task.corpus, tmp_path / "vectors", granularity=model.granularity)
        return IndexPassages(path, mode="dense", model=model, exact=True)

    return made


def test_by_hand_on_the_toy_set(task, exact):
    """The toy model ranks the passage that shares words with the query first."""
    encoder = AsMeasured(ToyEmbedder(split_words=10))
    scores = evaluate_passages(exact(encoder, task), task, ks=(1, 2))
    assert scores.queries == 3
    text = task.corpus.get("d1").text
    first_split = " ".join(text.split()[:10])
    assert scores.per_query["recall@1"]["q1"] == pytest.approx(len(first_split) / 54)
    assert scores.per_query["precision@1"]["q1"] == 1.0
    # all but the blank between the two splits
    assert scores.per_query["recall@2"]["q2"] == pytest.approx(31 / 32)
    assert scores.mean["precision@2"] < scores.mean["recall@2"]


def test_scope_corpus_counts_other_documents_as_wrong(task, exact):
    system = exact(AsMeasured(ToyEmbedder()), task)
    inside = evaluate_passages(system, task, ks=(5,))
    everywhere = evaluate_passages(system, task, ks=(5,), scope="corpus")
    assert everywhere.mean["precision@5"] < inside.mean["precision@5"]
    assert (inside.scope, everywhere.scope) == ("document", "corpus")


def test_the_same_spans_are_read_late_and_one_by_one(task, exact, tmp_path):
    model = AsMeasured(ToyEmbedder())
    late = exact(model, task)
    chunker = chunks_of(indexed(model, task.corpus, tmp_path / "vectors"))
    alone = exact(ChunkedModel(model, chunker, "the same spans"), task)
    first, second = (evaluate_passages(system, task) for system in (late, alone))
    assert first.mean_passage_characters == pytest.approx(second.mean_passage_characters, rel=0.2)
    assert first.mean.keys() == second.mean.keys() >= {"precision@1", "recall@10", "iou@5", "hit@3"}


def test_word_chunks_can_be_scored(task, exact):
    encoder = ChunkedModel(AsMeasured(ToyEmbedder()), word_chunks(5), "5 words")
    assert evaluate_passages(exact(encoder, task), task, ks=(10,)).mean["hit@10"] == 1.0


@refusals(
    {
        InputError: {
            "no spans.jsonl for the 3 queries of split 'test'": lambda task, folder, search: search(
                make_task(load_dataset(str(write_folder(folder / "plain"))))
            ),
        },
        ConfigError: {
            "unknown scope": lambda task, folder, search: search(task, scope="chapter"),
        },
    }
)
def test_what_has_no_passages_to_find_is_refused(task, tmp_path, exact, refused: Refusal):
    def search(task, **options):
        return evaluate_passages(exact(AsMeasured(ToyEmbedder()), task), task, **options)

    refused(task, tmp_path, search)


def test_chunks_may_share_words():
    text = "a bb ccc dd e"
    pieces = lambda *size: [text[a:b] for a, b in word_chunks(*size)(text)]
    assert pieces(2) == ["a bb", "ccc dd", "e"]
    assert pieces(3, 1) == ["a bb ccc", "ccc dd e"]  # and no third chunk of the shared word alone
    assert pieces(9, 4) == [text]
    assert word_chunks(3, 1)(" ") == []
    with pytest.raises(ConfigError, match=r"an overlap of 2 words"):
        word_chunks(2, 2)


def test_words_find_passages_by_bm25_alone(task):
    """Only passages with a word of the query are found; within a document, only that document's."""
    pytest.importorskip("bm25s")
    system = ExactPassages(WordScorer(task.corpus, word_chunks(4), "4 words"))
    text = task.corpus.get("d3").text
    found = system.search({"q": "spring tides", "none": "zebra"}, 5)
    assert [(doc, text[a:b]) for doc, a, b in found["q"]] == [
        ("d3", "Spring tides come when"),
        ("d3", "Tides follow the moon."),
    ]
    assert found["none"] == []
    assert system.search({"q": "spring tides"}, 5, {"q": ["d1"]}) == {"q": []}
    assert system.search({"q": "bees honey"}, 1, {"q": ["d1"]})["q"][0][0] == "d1"


@pytest.mark.parametrize("weight", [None, 0.4])
def test_fused_passages(task, tmp_path, weight):
    """Words and vectors over the same passages; what either side alone puts first in both lists
    stays first.
    """
    pytest.importorskip("bm25s")
    model = AsMeasured(ToyEmbedder(split_words=5))
    dense = VectorScorer(model, task.corpus, tmp_path)
    chunker = chunks_of(indexed(model, task.corpus, tmp_path / "vectors"))
    words = WordScorer(task.corpus, chunker, "splits")
    fused = FusedPassages(words, dense, weight=weight)
    queries = {"q": "slow cooling glass"}
    best = fused.search(queries, 3)["q"]
    assert best[0] == ExactPassages(words).search(queries, 1)["q"][0]
    assert len(best) == 3
    assert {doc for doc, *_ in fused.search(queries, 9, {"q": ["d4"]})["q"]} == {"d4"}
    other = WordScorer(task.corpus, word_chunks(4), "4 words")
    with pytest.raises(ConfigError, match=r"rank different passages"):
        FusedPassages(other, dense).search(queries, 3)
    assert fused.info.settings["fusion"] == (
        "RRF" if weight is None else "weighted fusion (0.4 vectors)"
    )


def test_fused_scores_by_hand(task, tmp_path):
    """The weighted fusion is the index's: shares of the way from a passage at random to
    the best.
    """
    pytest.importorskip("bm25s")
    model = AsMeasured(ToyEmbedder(split_words=5))
    dense = VectorScorer(model, task.corpus, tmp_path)
    chunker = chunks_of(indexed(model, task.corpus, tmp_path / "vectors"))
    words = WordScorer(task.corpus, chunker, "splits")
    query = "sourdough bread and the moon"
    [cosines], [bm25] = dense.scores([query]), words.scores([query])
    share = np.maximum(0, cosines - cosines.mean()) / (cosines.max() - cosines.mean())
    fused = 0.25 * share + 0.75 * np.where(np.isfinite(bm25), bm25, 0) / bm25.max()
    expected = [dense.table.passage(row) for row in np.argsort(-fused, kind="stable")[:4]]
    assert FusedPassages(words, dense, weight=0.25).search({"q": query}, 4)["q"] == expected


def test_passages_of_an_index(task, tmp_path, monkeypatch):
    """The options that reach `Retriever.search`, and a real filter on the documents to search
    within.
    """
    pytest.importorskip("faiss")
    from aveyb_retrieval import Retriever, build_index

    build_index(indexed_rows(task.corpus), tmp_path / "ix", model=ToyEmbedder(), index="Flat")
    searches = record_calls(monkeypatch, Retriever, "search")
    system = IndexPassages(tmp_path / "ix", mode="dense", model=ToyEmbedder(), name="ours")
    doc, start, end = system.search({"q": "honey bees dance"}, 2)["q"][0]
    assert "Honey bees dance" in task.corpus.get(doc).text[start:end]
    scores = evaluate_passages(system, task, ks=(1, 2))
    assert scores.name == "ours"
    assert scores.mean["hit@1"] == 1.0
    given = {
        "unit": "passage",
        "mode": "dense",
        "fold": False,
        "granularity": None,
        "rerank": None,
        "exact": False,
    }
    asked = [(call["k"], call["options"]) for call in searches]
    assert asked[0] == (2, given)
    assert asked[1:] == [
        (2, {**given, "filter": {"document": {"$in": [d]}}}) for d in ("d1", "d2", "d3")
    ]
    assert (system.info.storage_dtype, system.info.settings["mode"]) == ("float32", "dense")
