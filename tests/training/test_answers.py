"""Answers to questions: they are learned, read back, and lines that cannot be used are refused."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner

from aveyb_retrieval import AveyBForQuestionAnswering
from aveyb_retrieval.cli.train import main
from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.errors import InputError
from aveyb_retrieval.training.answers import answer_examples, read_answer, read_answered
from tests.jsonl import write_jsonl

from .conftest import OBJECTS, SUBJECTS, VERBS, tiny_config

if TYPE_CHECKING:
    from pathlib import Path

    from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer


@pytest.fixture
def encoder(tokenizer: AveyBTokenizer, tmp_path: Path) -> Path:
    folder = tmp_path / "encoder"
    AveyBModel(tiny_config()).save_pretrained(folder)
    tokenizer.save(folder)
    return folder


def test_answers_are_learned_from_the_command_line(encoder: Path, tmp_path: Path) -> None:
    rows = [
        {
            "question": f"who {v} {o}?",
            "context": f"{s} {v} {o}.",
            "answers": [{"text": s, "start": 0}],
        }
        for s in SUBJECTS[:3]
        for v in VERBS[:4]
        for o in OBJECTS
    ]
    data = write_jsonl(tmp_path / "data.jsonl", rows)
    options = "--batch-size 8 --precision float32 --learning-rate 1e-2 --eps 1e-8 --steps 80"
    arguments = ["answer", str(data), "--model", str(encoder), "-o", str(tmp_path / "run")]
    result = CliRunner().invoke(main, [*arguments, *options.split(), "--device", "cpu"])
    assert result.exit_code == 0, result.output
    figures = dict(re.findall(r"held out (\w+): ([\d.]+)", result.output))
    assert float(figures["f1"]) > 0.6
    assert float(figures["token_overlap_f1"]) > 0.6
    assert "exact_match" in figures
    model = AveyBForQuestionAnswering.from_pretrained(tmp_path / "run" / "model")
    assert model.config.num_labels == 2


CONTEXT = "Für the heron\u2019s sake: the boat, 12 miles, crosses."


def test_an_answer_is_read_back_from_perfect_scores(
    tmp_path: Path, tokenizer: AveyBTokenizer
) -> None:
    answers: list[Any] = [
        {"text": ["the boat"], "answer_start": [22]},
        [{"text": "heron\u2019s"}],
        [{"text": "12 miles", "start": 32}],
        [],
    ]
    data = [{"question": "what?", "context": CONTEXT, "answers": answer} for answer in answers]
    rows = read_answered([write_jsonl(tmp_path / "data.jsonl", data)])
    for example, text in zip(
        answer_examples(rows, tokenizer, 99),
        ("the boat", "heron\u2019s", "12 miles", ""),
        strict=True,
    ):
        logits = np.zeros((len(example.ids), 2))
        logits[example.labels == 1, 1] = logits[example.labels == 0, 0] = 5
        answer = read_answer(example, logits)
        assert answer.text == text
        assert [answer.tokens] == (answer.true_tokens or [set()])
    (whole,) = answer_examples(rows[:1], tokenizer, 99)
    last = int(np.flatnonzero(whole.labels == 1)[-1])
    (cut,) = answer_examples(rows[:1], tokenizer, last)
    assert cut.cut
    assert not (cut.labels == 1).any()
    assert read_answer(cut, np.zeros((len(cut.ids), 2))).true_tokens == [set()]
    with pytest.raises(InputError, match=r"data.jsonl, line 1: field 'question' alone has 5 token"):
        answer_examples(rows[:1], tokenizer, 5)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"question": "a", "context": "b"}], "line 1: field 'answers' must be a list of objects"),
        ([{"question": "a", "context": "b", "answers": "b"}], "field 'answers' must be a list"),
        (
            [{"question": "a", "context": "b", "answers": [{"text": ""}]}],
            "field 'answers' has an empty answer",
        ),
        (
            [{"question": "a", "context": "bc", "answers": [{"text": "c", "start": 0}]}],
            "'c' is not at character 0 of the context",
        ),
        (
            [{"question": "a", "context": "bc", "answers": [{"text": "d"}]}],
            "'d' is nowhere in the context",
        ),
        (
            [{"question": "a", "context": "b", "answers": {"text": ["b"], "answer_start": []}}],
            "field 'answers' needs one answer_start for each text",
        ),
        ([{"context": "b", "answers": []}], "field 'question' must be a text"),
        ([], "there are no lines"),
    ],
)
def test_lines_that_cannot_be_used(rows: list[dict[str, Any]], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        read_answered([write_jsonl(tmp_path / "data.jsonl", rows)])
