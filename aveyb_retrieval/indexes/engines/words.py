"""BM25 in engines that rank by themselves: lists of which rows hold a word, and what that is worth.

`Language.stored` gives the words of a text, so counting them is all there is to do. Scores are those of an index
directory (Lance's), with N documents or passages that have any words, of which n hold the word, f times each, and
lengths in words:

    idf = ln(1 + (N - n + 0.5) / (n + 0.5))
    score = sum over words of idf * f * (k1 + 1) / (f + k1 * (1 - b + b * length / mean length)),    k1 = 1.2, b = 0.75

A list is only ever added to: what is removed is added again with a negative count, which takes it out of every sum.

Words of rows are of ASCII, others in hexadecimal: every analyzer of a server leaves them whole.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from aveyb_retrieval.indexes.store.words import K1, B

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aveyb_retrieval.indexes.store.words import Language
    from aveyb_retrieval.indexes.types import IntArray

POSTING = np.dtype([("number", "<i8"), ("count", "<i4"), ("length", "<i4")])


def ascii_word(word: str) -> str:
    """A word as rows have it."""
    return word if word.isascii() else f"u{word.encode().hex()}"


def kept_words(rules: Language, heading: str, text: str) -> str:
    """The words of a text with what stands over it, as `Language.stored` gives them, each as rows have it."""
    return " ".join(map(ascii_word, rules.stored(f"{heading}\n{text}").split(" ")))


def word_key(word: str) -> bytes:
    """What a word is stored under, however long it is: half of the SHA-256 of how rows have it."""
    return hashlib.sha256(ascii_word(word).encode()).digest()[:16]


def pack_postings(rows: Iterable[tuple[int, str]], sign: int) -> dict[str, np.ndarray]:
    """The list of each word of some rows, (number, words as `kept_words` gives them); `sign` -1 removes them."""
    lists: dict[str, list[tuple[int, int, int]]] = {}
    for number, stored in rows:
        words = stored.split()
        for word, count in Counter(words).items():
            lists.setdefault(word, []).append((number, sign * count, len(words)))
    return {word: np.array(held, dtype=POSTING) for word, held in lists.items()}


def bm25(lists: Sequence[np.ndarray], rows: int, mean_length: float) -> tuple[IntArray, npt.NDArray[np.float64]]:
    """The rows that hold any of some words: numbers, ascending, and scores, float64, both `[n]`.

    `lists` are those of the words; `rows` is N, how many rows have words, and `mean_length` their mean length in words.
    """
    if not lists:
        return np.empty(0, np.int64), np.empty(0)
    holding = np.array([np.sign(held["count"]).sum() for held in lists])
    idf = np.repeat(np.log1p((rows - holding + 0.5) / (holding + 0.5)), list(map(len, lists)))
    held = np.concatenate(lists)
    sign, count = np.sign(held["count"]), np.abs(held["count"])
    penalty = K1 * (1 - B + B * held["length"] / max(mean_length, 1e-9))
    numbers, places = np.unique(held["number"], return_inverse=True)
    worth = idf * sign * count * (K1 + 1) / (count + penalty)
    scores = np.bincount(places, weights=worth).astype(np.float64)
    there = np.bincount(places, weights=sign) > 0
    return numbers[there].astype(np.int64), scores[there]
