"""Answers to questions in a text (Avey-B, 5.1): a head of two labels a token, and its metrics.

Tokens of the text are inside the answer or not. The paper's metric compares the sets of tokens;
SQuAD's compare the words of the longest run of them.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.encoder.network.heads import AveyBForTokenClassification
from aveyb_retrieval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

    from aveyb_retrieval.encoder.config import AveyBConfig

INSIDE_LABEL = 1  # the label of a token of the answer
ARTICLES = re.compile(r"\b(a|an|the)\b")
WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


class AveyBForQuestionAnswering(AveyBForTokenClassification):
    """Two scores for each token, outside and inside of the answer.

    The text is read as `question_prompt` writes it, and only its tokens have labels.
    """

    def __init__(self, config: AveyBConfig) -> None:
        """Make the model with random weights; `from_pretrained` loads trained ones."""
        if config.num_labels != 2:
            raise ConfigError(
                f"AveyBConfig.num_labels is {config.num_labels}; answers have 2, outside and inside"
            )
        super().__init__(config)


def question_prompt(question: str) -> str:
    """Return what stands before the text in which a question is answered."""
    return f"Question: {question}\nContext: "


@dataclass(frozen=True)
class PredictedAnswer:
    """What a model answers to a question, with what would have been right.

    Attributes:
        text: the answer; "" for none.
        tokens: the tokens that were marked as inside.
        true_texts: the true answers; none if the question has no answer.
        true_tokens: the tokens of each of them.
    """

    text: str
    tokens: Set[int]
    true_texts: Sequence[str]
    true_tokens: Sequence[Set[int]]


def answer_metrics(answers: Sequence[PredictedAnswer]) -> dict[str, float]:
    """Return the means over questions, each the best over a question's true answers.

    `exact_match` and `f1`: SQuAD's, of words in lower case without punctuation and articles.
    `token_overlap_f1`: the paper's, of sets of tokens; {0} stands for no answer.
    """
    return {
        "exact_match": _mean([_exact_match(answer) for answer in answers]),
        "f1": _mean([_word_f1(answer) for answer in answers]),
        "token_overlap_f1": _mean([_token_f1(answer) for answer in answers]),
    }


def answer_tokens(offsets: np.ndarray, start: int, text: str) -> np.ndarray:
    """Return the tokens that hold characters of an answer; none unless all its characters are held.

    Args:
        offsets: int64 `[T, 2]`, the characters `[start, end)` of each token.
        start: the answer's first character.
        text: the answer.

    Returns:
        int64 `[n]`.
    """
    stop = start + len(text)
    tokens = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < stop))
    if len(tokens) == 0 or offsets[tokens[-1], 1] < stop:
        return tokens[:0]
    return tokens


def tokens_inside(offsets: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Return the text's tokens that are rather inside the answer than outside, int64 `[n]`.

    Args:
        offsets: int64 `[T, 2]`, characters of the text; the question's end at 0 or before.
        logits: float `[T, 2]`.
    """
    inside = logits[:, INSIDE_LABEL] > logits[:, 1 - INSIDE_LABEL]
    return np.flatnonzero(inside & (offsets[:, 1] > 0))


def longest_run(tokens: np.ndarray) -> np.ndarray:
    """Return the longest run of neighbours among ascending tokens, the first of equal ones."""
    runs = np.split(tokens, np.flatnonzero(np.diff(tokens) > 1) + 1)
    return max(runs, key=len)


def answer_text(text: str, offsets: np.ndarray, tokens: np.ndarray) -> str:
    """Return the characters of a text that neighbouring tokens cover."""
    if len(tokens) == 0:
        return ""
    start, stop = max(0, int(offsets[tokens[0], 0])), int(offsets[tokens[-1], 1])
    return text[start:stop].strip()


def normalized_words(text: str) -> list[str]:
    """Return the words that SQuAD compares."""
    return ARTICLES.sub(" ", text.lower().translate(WITHOUT_PUNCTUATION)).split()


def _exact_match(answer: PredictedAnswer) -> float:
    words = normalized_words(answer.text)
    return float(any(words == normalized_words(text) for text in answer.true_texts or [""]))


def _word_f1(answer: PredictedAnswer) -> float:
    words = Counter(normalized_words(answer.text))
    return max(_f1(words, Counter(normalized_words(text))) for text in answer.true_texts or [""])


def _token_f1(answer: PredictedAnswer) -> float:
    tokens = Counter(answer.tokens or {0})
    return max(_f1(tokens, Counter(true or {0})) for true in answer.true_tokens or [{0}])


def _f1(predicted: Counter, true: Counter) -> float:
    """Return the harmonic mean of precision and recall; two empty ones are equal."""
    if not predicted or not true:
        return float(predicted == true)
    return 2 * (predicted & true).total() / (predicted.total() + true.total())


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
