"""Passage truth in characters: by hand, by brute force over character sets, and end to end on the toy set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.eval.datasets import load_dataset
from aveyb_retrieval.eval.encoders import AveyEncoder, word_chunks
from aveyb_retrieval.eval.passages import evaluate_passages, late_against_fixed, merge, score_passages
from aveyb_retrieval.eval.protocols import make_task
from aveyb_retrieval.eval.systems import VectorCache
from tests.eval.toys import ToyEmbedder, write_folder

ranges = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda r: (min(r), max(r))), max_size=6)


@given(ranges, st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 40), st.integers(1, 9)), max_size=6))
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


@pytest.fixture
def task(tmp_path):
    return make_task(load_dataset(str(write_folder(tmp_path / "toy", spans=True))))


def test_by_hand_on_the_toy_set(task):
    """The toy model ranks the passage that shares words with the query first."""
    encoder = AveyEncoder(ToyEmbedder(split_words=10))
    scores = evaluate_passages(encoder, task, VectorCache(), ks=(1, 2))
    assert scores.queries == 3
    text = task.corpus.get("d1").text
    first_split = " ".join(text.split()[:10])
    assert scores.per_query["recall@1"]["q1"] == pytest.approx(len(first_split) / 54)
    assert scores.per_query["precision@1"]["q1"] == 1.0
    assert scores.per_query["recall@2"]["q2"] == pytest.approx(31 / 32)  # all but the blank between the two splits
    assert scores.mean["precision@2"] < scores.mean["recall@2"]


def test_scope_corpus_counts_other_documents_as_wrong(task):
    encoder = AveyEncoder(ToyEmbedder())
    cache = VectorCache()
    inside = evaluate_passages(encoder, task, cache, ks=(5,))
    everywhere = evaluate_passages(encoder, task, cache, ks=(5,), scope="corpus")
    assert everywhere.mean["precision@5"] < inside.mean["precision@5"]
    assert (inside.scope, everywhere.scope) == ("document", "corpus")


def test_late_and_fixed_use_the_same_spans(task):
    embedder = ToyEmbedder()
    late, fixed = late_against_fixed(lambda chunker: AveyEncoder(embedder, chunker=chunker), task, VectorCache())
    assert late.name == "toy, late chunking"
    assert fixed.name == "toy, chunks one by one"
    assert late.mean_passage_characters == pytest.approx(fixed.mean_passage_characters, rel=0.2)
    assert late.mean.keys() == fixed.mean.keys() >= {"precision@1", "recall@10", "iou@5", "hit@3"}


def test_word_chunks_can_be_scored(task):
    encoder = AveyEncoder(ToyEmbedder(), chunker=word_chunks(5), chunker_name="5 words")
    assert evaluate_passages(encoder, task, VectorCache(), ks=(10,)).mean["hit@10"] == 1.0


def test_without_spans_it_says_so(tmp_path, task):
    plain = make_task(load_dataset(str(write_folder(tmp_path / "plain"))))
    with pytest.raises(InputError, match=r"no spans.jsonl for the 3 queries of split 'test'"):
        evaluate_passages(AveyEncoder(ToyEmbedder()), plain, VectorCache())
    with pytest.raises(ConfigError, match=r"Unknown scope"):
        evaluate_passages(AveyEncoder(ToyEmbedder()), task, VectorCache(), scope="chapter")
