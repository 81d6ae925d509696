"""Train answers to questions on JSON Lines: question, context and answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.encoder.network.model import IGNORED_LABEL
from aveyb_retrieval.errors import InputError
from aveyb_retrieval.family.answers import (
    INSIDE_LABEL,
    AveyBForQuestionAnswering,
    PredictedAnswer,
    answer_metrics,
    answer_text,
    answer_tokens,
    longest_run,
    question_prompt,
    tokens_inside,
)
from aveyb_retrieval.training.tasks import Example, Task, read_lines, split_rows, start_head
from aveyb_retrieval.training.texts import text_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from aveyb_retrieval.encoder.text.wordpiece import Tokenizer
    from aveyb_retrieval.training.settings import TaskSettings


@dataclass(frozen=True)
class AnsweredQuestion:
    """A question and the (start, text) of its answers in a context; none: it has no answer."""

    question: str
    context: str
    answers: list[tuple[int, str]]
    where: str


def read_answered(paths: Sequence[Path]) -> list[AnsweredQuestion]:
    """Read lines `{"question": ..., "context": ..., "answers": [{"text": ..., "start": ...}]}`.

    SQuAD's form, `{"text": [...], "answer_start": [...]}`, is read as well. Without a start it is
    the answer's first place in the context. An empty list means that there is no answer.
    """
    return [
        AnsweredQuestion(
            text_in(line, "question", where),
            text_in(line, "context", where),
            [_place(answer, line["context"], where) for answer in _answers(line, where)],
            where,
        )
        for where, line in read_lines(paths)
    ]


def answer_examples(
    rows: Iterable[AnsweredQuestion], tokenizer: Tokenizer, limit: int
) -> list[Example]:
    """Make examples of questions; contexts are cut. An answer that is cut off counts as none."""
    examples = []
    for row in rows:
        prompt = question_prompt(row.question)
        ids, offsets = tokenizer.encode(prompt + row.context)
        offsets = offsets - len(prompt)  # characters of the context
        cut = len(ids) > limit
        ids, offsets = ids[:limit].astype(np.int64), offsets[:limit]
        if len(ids) == 0 or offsets[-1, 1] <= 0:
            raise InputError(
                f"{row.where}: field 'question' alone has {limit} tokens or more; give a larger"
                " length"
            )
        labels = np.where(offsets[:, 1] > 0, 1 - INSIDE_LABEL, IGNORED_LABEL).astype(np.int64)
        if row.answers:
            labels[answer_tokens(offsets, *row.answers[0])] = INSIDE_LABEL
        examples.append(Example(ids, labels, row, cut, offsets))
    return examples


def read_answer(example: Example, logits: np.ndarray) -> PredictedAnswer:
    """Return what logits float `[T, 2]` answer, with what would have been right."""
    row, offsets = example.source, example.offsets
    inside = tokens_inside(offsets, logits)
    return PredictedAnswer(
        text=answer_text(row.context, offsets, longest_run(inside)),
        tokens=set(inside.tolist()),
        true_texts=[text for _, text in row.answers],
        true_tokens=[set(answer_tokens(offsets, *answer).tolist()) for answer in row.answers],
    )


def answering(
    files: Sequence[Path], validation: Sequence[Path], model: str | None, settings: TaskSettings
) -> Task:
    """Prepare answers to questions; see `tasks.classification` for what is raised."""
    train, held_out = split_rows(files, validation, settings, read_answered)
    made, tokenizer = start_head(AveyBForQuestionAnswering, model, {"num_labels": 2})

    def score(predicted: list[tuple[Example, np.ndarray]]) -> dict[str, float]:
        return answer_metrics([read_answer(example, logits) for example, logits in predicted])

    return Task(
        "Answers to questions",
        made,
        tokenizer,
        answer_examples(train, tokenizer, settings.length),
        answer_examples(held_out, tokenizer, settings.length),
        score,
    )


def _answers(line: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
    value = line.get("answers")
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        starts = value.get("answer_start", [None] * len(value["text"]))
        if not isinstance(starts, list) or len(starts) != len(value["text"]):
            raise InputError(f"{where}: field 'answers' needs one answer_start for each text")
        return [
            {"text": text, "start": start}
            for text, start in zip(value["text"], starts, strict=True)
        ]
    if isinstance(value, list) and all(isinstance(answer, dict) for answer in value):
        return value
    raise InputError(
        f"{where}: field 'answers' must be a list of objects with text and start, it is {value!r}"
    )


def _place(answer: Mapping[str, Any], context: str, where: str) -> tuple[int, str]:
    """Return where an answer begins, and its text."""
    text, start = answer.get("text"), answer.get("start", answer.get("answer_start"))
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{where}: field 'answers' has an empty answer ({text!r}); give its words")
    if start is None:
        start = context.find(text)
        if start < 0:
            raise InputError(f"{where}: field 'answers': {text!r} is nowhere in the context")
    if type(start) is not int or start < 0 or context[start : start + len(text)] != text:
        raise InputError(
            f"{where}: field 'answers': {text!r} is not at character {start} of the context"
        )
    return start, text
