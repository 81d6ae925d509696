"""The head of answers, and its metrics against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForQuestionAnswering

from aveyb_retrieval import AveyBForQuestionAnswering
from aveyb_retrieval.encoder.embedders.loading import load_encoder
from aveyb_retrieval.errors import ConfigError, ModelError
from aveyb_retrieval.family.answers import (
    PredictedAnswer,
    answer_metrics,
    answer_text,
    answer_tokens,
    longest_run,
    normalized_words,
    tokens_inside,
)
from tests.encoder.models import small_config


def predicted(text="", tokens=(), texts=(), true_tokens=()) -> PredictedAnswer:
    return PredictedAnswer(text, set(tokens), list(texts), [set(true) for true in true_tokens])


@pytest.mark.parametrize(
    ("answer", "exact", "f1", "overlap"),
    [
        # articles, case and punctuation do not count; of several answers the best does
        (predicted("The red fox!", {3, 4}, ["red fox", "fox"], [{3, 4}, {4}]), 1, 1, 1),
        # one of two words: precision 1/2, recall 1; tokens {3, 4} of {4, 5}: 1/2 and 1/2
        (predicted("red fox", {3, 4}, ["fox"], [{4, 5}]), 0, 2 / 3, 0.5),
        # words that occur twice count twice: 2 shared of 3 and 2
        (predicted("no no yes", {1, 2, 3}, ["no no"], [{1, 2}]), 0, 0.8, 0.8),
        (predicted("owl", {9}, ["fox"], [{4}]), 0, 0, 0),
        # no answer: right only if there is none; as token 0 for the paper's
        (predicted(), 1, 1, 1),
        (predicted("fox", {4}), 0, 0, 0),
        (predicted("", (), ["fox"], [{4}]), 0, 0, 0),
        (predicted("", (), ["fox"], [{0, 1}]), 0, 0, 2 / 3),
        # nothing but articles and punctuation is no word
        (predicted("The.", {4}, ["a"], [{4}]), 1, 1, 1),
    ],
)
def test_metrics_by_hand(answer: PredictedAnswer, exact: float, f1: float, overlap: float) -> None:
    expected = {"exact_match": exact, "f1": f1, "token_overlap_f1": overlap}
    assert answer_metrics([answer]) == pytest.approx(expected)


def test_metrics_are_means_over_questions() -> None:
    metrics = answer_metrics(
        [predicted("fox", {4}, ["fox"], [{4}]), predicted("red fox", {3, 4}, ["fox"], [{4, 5}])]
    )
    expected = {"exact_match": 0.5, "f1": 5 / 6, "token_overlap_f1": 0.75}
    assert metrics == pytest.approx(expected)


def test_words_are_squads() -> None:
    assert normalized_words("An  apple, the Tree's \n a-b") == ["apple", "trees", "ab"]


def test_tokens_of_an_answer() -> None:
    offsets = np.array([[-4, -1], [-1, 0], [0, 3], [3, 7], [7, 8], [8, 12]])
    assert answer_tokens(offsets, 4, "ed").tolist() == [3]
    assert answer_tokens(offsets, 2, "redre").tolist() == [2, 3]
    assert answer_tokens(offsets, 9, "wolves").tolist() == []
    logits = np.array([[0, 9], [0, 9], [0, 1], [1, 0], [0, 1], [0, 1]])
    inside = tokens_inside(offsets, logits)
    assert inside.tolist() == [2, 4, 5]
    run = longest_run(inside)
    assert run.tolist() == [4, 5]
    assert longest_run(inside[:0]).tolist() == []
    assert longest_run(np.array([1, 4])).tolist() == [1]
    assert answer_text("the red, fox", offsets, run) == ", fox".strip()
    assert answer_text("the red, fox", offsets, run[:0]) == ""


def test_the_head_scores_two_labels_a_token(tmp_path) -> None:
    torch.manual_seed(0)
    model = AveyBForQuestionAnswering(small_config("paper")).eval()
    ids = torch.randint(0, 97, (2, 40), generator=torch.Generator().manual_seed(0))
    labels = torch.zeros_like(ids)
    labels[0, 3:6], labels[:, :2] = 1, -100
    out = model(ids, labels=labels)
    assert out.logits.shape == (2, 40, 2)
    by_hand = torch.nn.functional.cross_entropy(
        out.logits[:, 2:].flatten(0, 1), labels[:, 2:].flatten()
    )
    torch.testing.assert_close(out.loss, by_hand)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForQuestionAnswering.from_pretrained(tmp_path)
    assert type(loaded) is AveyBForQuestionAnswering
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)
    with pytest.raises(ModelError, match="saved as AveyBForQuestionAnswering"):
        load_encoder(tmp_path)
    with pytest.raises(ConfigError, match="num_labels is 3; answers have 2"):
        AveyBForQuestionAnswering(small_config("paper", num_labels=3))
