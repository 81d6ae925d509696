"""Metrics of the heads: the usual ones, and those of the paper under names of their own.

The paper's figures for tokens and answers are not the usual ones: tags are scored by macro F1 within each sentence, the
label O included, and averaged over sentences; answers by the overlap of token positions. Entity F1 (CoNLL 2003) and
SQuAD's exact match and F1 are given beside them.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = set(string.punctuation)


def class_metrics(predicted: Sequence[int], wanted: Sequence[int]) -> dict[str, float]:
    """Return `accuracy` and `macro_f1`, the mean over the classes that occur in either."""
    from sklearn.metrics import f1_score

    right = np.asarray(predicted) == np.asarray(wanted)
    return {
        "accuracy": float(right.mean()),
        "macro_f1": float(f1_score(wanted, predicted, average="macro", zero_division=0.0)),
    }


def number_metrics(predicted: Sequence[float], wanted: Sequence[float]) -> dict[str, float]:
    """Return `mse`, `pearson` and `spearman`; a correlation of something constant is 0."""
    from scipy.stats import rankdata

    scores, numbers = np.asarray(predicted, dtype=np.float64), np.asarray(wanted, dtype=np.float64)
    ranks = rankdata(scores), rankdata(numbers)
    return {
        "mse": float(np.square(scores - numbers).mean()),
        "pearson": _correlation(scores, numbers),
        "spearman": _correlation(*ranks),
    }


def tag_metrics(predicted: Sequence[Sequence[str]], wanted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return metrics of the tags of words, sentence by sentence.

    `accuracy` and `macro_f1` over all words; `sentence_macro_f1`: macro F1 within each sentence, averaged (the
    paper's); where tags name entities (B-PER, I-PER, O): `entity_precision`, `entity_recall` and `entity_f1` of whole
    entities.
    """
    from sklearn.metrics import f1_score

    flat = [tag for tags in predicted for tag in tags], [tag for tags in wanted for tag in tags]
    found = class_metrics(*flat)  # type: ignore[arg-type]  # names do as well
    pairs = list(zip(predicted, wanted, strict=True))
    within = [f1_score(own, tags, average="macro", zero_division=0.0) for tags, own in pairs]
    found["sentence_macro_f1"] = float(np.mean(within))
    if any("-" in tag for tag in flat[1]):
        right = given = asked = 0
        for tags, own in pairs:
            entities, true_entities = set(entities_of(tags)), set(entities_of(own))
            right, given, asked = (
                right + len(entities & true_entities),
                given + len(entities),
                asked + len(true_entities),
            )
        precision, recall = right / max(1, given), right / max(1, asked)
        found |= {"entity_precision": precision, "entity_recall": recall, "entity_f1": _harmonic(precision, recall)}
    return found


def entities_of(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return the entities (type, first word, word behind the last) that tags in IOB1, IOB2 or IOBES mark.

    As CoNLL's script and seqeval's default have it: I- after O or after another type begins an entity, too.
    """
    found: list[tuple[str, int, int]] = []
    kind, start, ended = "", 0, False
    for i, tag in enumerate([*tags, "O"]):
        prefix, _, own = tag.partition("-")
        goes_on = prefix in ("I", "E", "M") and bool(kind) and own == kind and not ended
        if kind and not goes_on:
            found.append((kind, start, i))
            kind = ""
        if not goes_on and prefix != "O":
            kind, start = own or "_", i
        ended = prefix in ("E", "S")
    return found


def answer_metrics(
    predicted: Sequence[str], wanted: Sequence[Sequence[str]], positions: Sequence[tuple[set[int], list[set[int]]]]
) -> dict[str, float]:
    """Return metrics of answers, each the best over a question's true answers.

    `exact_match` and `f1` by SQuAD's definitions: lower case, without punctuation and articles; `token_overlap_f1`: of
    the sets of token positions, {0} where there is no answer (the paper's).

    Args:
        predicted: one answer for each question; empty for none.
        wanted: the true answers; none: the question has no answer.
        positions: the tokens of the predicted answer, and of each true one.
    """
    exact, overlap, by_position = [], [], []
    for answer, truths in zip(predicted, wanted, strict=True):
        words = normalized_words(answer)
        own = [normalized_words(truth) for truth in truths] or [[]]
        exact.append(max(float(words == truth) for truth in own))
        overlap.append(max(_overlap(Counter(words), Counter(truth)) for truth in own))
    for tokens, truth_tokens in positions:
        sets = [truth or {0} for truth in truth_tokens] or [{0}]
        by_position.append(max(_overlap(Counter(tokens or {0}), Counter(truth)) for truth in sets))
    return {
        "exact_match": float(np.mean(exact)),
        "f1": float(np.mean(overlap)),
        "token_overlap_f1": float(np.mean(by_position)),
    }


def normalized_words(text: str) -> list[str]:
    """Return the words that SQuAD compares."""
    plain = "".join(character for character in text.lower() if character not in _PUNCTUATION)
    return _ARTICLES.sub(" ", plain).split()


def majority(labels: Iterable[int]) -> int:
    """Return the most frequent label of a word's tokens; of equally frequent ones the first."""
    return Counter(labels).most_common(1)[0][0]


def _overlap(found: Counter[object], wanted: Counter[object]) -> float:
    if not found or not wanted:
        return float(found == wanted)
    shared = sum((found & wanted).values())
    return _harmonic(shared / sum(found.values()), shared / sum(wanted.values()))


def _harmonic(a: float, b: float) -> float:
    return 2 * a * b / (a + b) if a + b else 0.0


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])
