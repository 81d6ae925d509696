"""Labeled data as token ids and labels, batches of them, and predictions read back as labels, tags and answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from aveyb_retrieval.encoder.text.pairs import sequence_ids
from aveyb_retrieval.errors import InputError
from aveyb_retrieval.training.packing import IGNORED_LABEL
from aveyb_retrieval.training.task_metrics import majority

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from aveyb_retrieval.encoder.text.wordpiece import Tokenizer
    from aveyb_retrieval.training.labeled import AnsweredQuestion, LabeledText, TaggedWords


@dataclass(frozen=True)
class Example:
    """One row.

    Attributes:
        ids: int64 `[T]`.
        labels: what the model's `forward` takes, by argument name; a number, or int64 `[T]`.
        offsets: int64 `[T, 2]`, the characters of each token, for answers and tags.
        source: the row it was made from.
        cut: whether tokens were cut off.
    """

    ids: np.ndarray
    labels: dict[str, Any]
    offsets: np.ndarray
    source: Any
    cut: bool


NO_OFFSETS = np.empty((0, 2), np.int64)


def text_examples(
    rows: Iterable[LabeledText], tokenizer: Tokenizer, classes: Mapping[str, int] | None, limit: int
) -> list[Example]:
    """Make examples of labeled texts; `classes` None: labels are numbers."""
    found = []
    for row in rows:
        ids, cut = sequence_ids(tokenizer, row.text, row.pair, limit)
        label = float(row.label) if classes is None else classes[str(row.label)]
        found.append(Example(ids, {"labels": label}, NO_OFFSETS, row, cut))
    return found


def tag_examples(
    rows: Iterable[TaggedWords], tokenizer: Tokenizer, classes: Mapping[str, int], limit: int
) -> list[Example]:
    """Make examples of tagged words, joined by spaces; each token of a word has the word's tag."""
    found = []
    for row in rows:
        ids, offsets = tokenizer.encode(" ".join(row.words))
        word_of = words_of_tokens(row.words, offsets)
        labels = np.array([IGNORED_LABEL if w < 0 else classes[row.tags[w]] for w in word_of], np.int64)
        cut = len(ids) > limit
        found.append(Example(ids[:limit].astype(np.int64), {"labels": labels[:limit]}, offsets[:limit], row, cut))
    return found


def words_of_tokens(words: Sequence[str], offsets: np.ndarray) -> np.ndarray:
    """Return the word of each token, int64 `[T]`, by its last character; -1 for a token of white space or none."""
    lengths = np.array([len(word) for word in words])
    ends = np.cumsum(lengths + 1) - 1  # of each word: where the space behind it is
    last = offsets[:, 1] - 1
    word = np.searchsorted(ends, last, side="left")
    inside = (last < ends[np.minimum(word, len(words) - 1)]) & (offsets[:, 1] > offsets[:, 0])
    return np.where(inside, word, -1)


def read_tags(example: Example, predicted: np.ndarray, names: Sequence[str]) -> list[str]:
    """Return a tag for each word from labels int64 `[T]` of tokens, by majority; a word that was cut off gets O."""
    words = example.source.words
    votes: list[list[int]] = [[] for _ in words]
    for token, word in enumerate(words_of_tokens(words, example.offsets)):
        if word >= 0:
            votes[word].append(int(predicted[token]))
    nothing = "O" if "O" in names else names[0]
    return [names[majority(own)] if own else nothing for own in votes]


def prompt_of(question: str) -> str:
    """Return what is put before the context, as in the paper's evaluation."""
    return f"Question: {question}\nContext: "


def answer_examples(rows: Iterable[AnsweredQuestion], tokenizer: Tokenizer, form: str, limit: int) -> list[Example]:
    """Make examples of questions; the context is cut. An answer that is cut off counts as none.

    Raises:
        InputError: a question alone fills the limit.
    """
    found = []
    for row in rows:
        prompt = prompt_of(row.question)
        ids, offsets = tokenizer.encode(prompt + row.context)
        offsets = offsets - len(prompt)
        if offsets[min(limit, len(ids)) - 1, 1] <= 0:
            raise InputError(f"{row.where}: field 'question' alone has {limit} tokens or more; give a larger --length")
        cut = len(ids) > limit
        ids, offsets = ids[:limit].astype(np.int64), offsets[:limit]
        inside = answer_tokens(offsets, *row.answers[0]) if row.answers else np.empty(0, np.int64)
        if form == "span":
            first, last = (int(inside[0]), int(inside[-1])) if len(inside) else (0, 0)
            labels: dict[str, Any] = {"start_positions": first, "end_positions": last}
        else:
            marks = np.where(offsets[:, 1] > 0, 0, IGNORED_LABEL).astype(np.int64)
            marks[inside] = 1
            labels = {"labels": marks}
        found.append(Example(ids, labels, offsets, row, cut))
    return found


def answer_tokens(offsets: np.ndarray, start: int, text: str) -> np.ndarray:
    """Return the tokens that hold characters of an answer, all of which must be there; else none. int64 `[n]`."""
    stop = start + len(text)
    inside = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < stop))
    return inside if len(inside) and offsets[inside[-1], 1] >= stop else inside[:0]


def read_answer(example: Example, logits: np.ndarray, form: str, *, longest: int, allow_none: bool) -> np.ndarray:
    """Return the tokens of the predicted answer, int64 `[n]`; none for no answer.

    Args:
        example: the question.
        logits: float `[T, 2]`.
        form: "span": the best start and end, at most `longest` tokens apart; "tokens": the longest run of tokens that
            are rather inside than outside.
        longest: tokens of an answer at most ("span").
        allow_none: "no answer" may win, by the scores of token 0 ("span").
    """
    context = np.flatnonzero(example.offsets[:, 1] > 0)
    if form == "tokens":
        inside = context[logits[context, 1] > logits[context, 0]]
        runs = np.split(inside, np.flatnonzero(np.diff(inside) > 1) + 1)
        return max(runs, key=len)
    start, end = logits[context, 0], logits[context, 1]
    scores = start[:, None] + end[None, :]
    distance = np.arange(len(context))[None, :] - np.arange(len(context))[:, None]
    scores = np.where((distance >= 0) & (distance < longest), scores, -np.inf)
    first, last = np.unravel_index(int(scores.argmax()), scores.shape)
    if allow_none and logits[0].sum() >= scores[first, last]:
        return context[:0]
    return context[first : last + 1]


def answer_text(example: Example, tokens: np.ndarray) -> str:
    """Return the characters of the context that tokens int64 `[n]` cover."""
    if not len(tokens):
        return ""
    start, stop = max(0, int(example.offsets[tokens[0], 0])), int(example.offsets[tokens[-1], 1])
    return str(example.source.context[start:stop]).strip()


def collate(examples: Sequence[Example]) -> dict[str, torch.Tensor]:
    """Pad examples to a batch: `input_ids` and `attention_mask` int64 `[B, T]`, and their labels."""
    width = max(len(example.ids) for example in examples)

    def padded(rows: list[np.ndarray], value: int) -> torch.Tensor:
        out = np.full((len(rows), width), value, np.int64)
        for target, row in zip(out, rows, strict=True):
            target[: len(row)] = row
        return torch.from_numpy(out)

    batch = {
        "input_ids": padded([example.ids for example in examples], 0),
        "attention_mask": padded([np.ones_like(example.ids) for example in examples], 0),
    }
    for name, value in examples[0].labels.items():
        values = [example.labels[name] for example in examples]
        batch[name] = padded(values, IGNORED_LABEL) if isinstance(value, np.ndarray) else torch.tensor(values)
    return batch


@torch.inference_mode()
def predict(
    model: torch.nn.Module, examples: Sequence[Example], *, batch_size: int, precision: str
) -> Iterator[tuple[Example, np.ndarray]]:
    """Yield each example with its logits, float32 `[L]` or `[T, L]`, longest first."""
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    ordered = sorted(examples, key=lambda example: -len(example.ids))
    for begin in range(0, len(ordered), batch_size):
        part = ordered[begin : begin + batch_size]
        batch = collate(part)
        inputs = {name: batch[name].to(device) for name in ("input_ids", "attention_mask")}
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16"):
            out = model(**inputs)
        logits = torch.stack([out.start_logits, out.end_logits], -1) if "start_logits" in out else out.logits
        for example, row in zip(part, logits.float().cpu().numpy(), strict=True):
            yield example, row[: len(example.ids)] if row.ndim == 2 else row
    model.train(training)
