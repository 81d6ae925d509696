"""Words in engines that rank by themselves: lists of which rows hold a word, and BM25 over them.

`Language.stored` gives the words of a text, so counting them is all there is to do. Scores are those of an index
directory (Lance's), with N documents or passages that have any words, of which n hold the word, f times each, and
lengths in words:

    idf = ln(1 + (N - n + 0.5) / (n + 0.5))
    score = sum over words of idf * f * (k1 + 1) / (f + k1 * (1 - b + b * length / mean length)),    k1 = 1.2, b = 0.75

A list is cut into blocks, each packed as `POSTING` rows; a block's `best` bounds what a word is worth in it. Words are
looked at in the order of what they are worth at most, and once the words that are left cannot lift a new row among the
`k` best, only rows that are already known are scored by them (MaxScore, Turtle and Flood 1995). Scores stay exact.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aveyb_retrieval.indexes.types import FloatArray, IntArray

K1, B = 1.2, 0.75
POSTING = np.dtype([("number", "<i8"), ("count", "<i4"), ("length", "<i4")])


class Block(NamedTuple):
    """A block of a word's list: which word of the query, the numbers that it spans, and bounds for its scores."""

    word: int
    first: int
    last: int
    most: int
    shortest: int
    key: int


@dataclass(frozen=True)
class Statistics:
    """What BM25 has to know: how many rows have words, their mean length, and how many hold each word, `[t]`."""

    rows: int
    mean_length: float
    holding: IntArray

    def idf(self) -> npt.NDArray[np.float64]:
        """What each word is worth, `[t]`."""
        weights: npt.NDArray[np.float64] = np.log1p((self.rows - self.holding + 0.5) / (self.holding + 0.5))
        return weights

    def share(self, count: Any, length: Any) -> Any:
        """What rows `[n]` get of a word's idf for holding it `count` times."""
        penalty = K1 * (1 - B + B * length / max(self.mean_length, 1e-9))
        return count * (K1 + 1) / (count + penalty)


def word_key(word: str) -> bytes:
    """What a word is stored under, however long it is: half of its SHA-256."""
    return hashlib.sha256(word.encode()).digest()[:16]


def pack_postings(rows: Iterable[tuple[int, str]]) -> dict[str, np.ndarray]:
    """The list of each word of some rows, (number, words as `Language.stored` gives them), ascending by number."""
    lists: dict[str, list[tuple[int, int, int]]] = {}
    for number, stored in rows:
        words = stored.split()
        for word, count in Counter(words).items():
            lists.setdefault(word, []).append((number, count, len(words)))
    return {word: np.array(sorted(held), dtype=POSTING) for word, held in lists.items()}


def best_rows(
    blocks: Sequence[Block],
    read: Callable[[Sequence[int]], list[bytes]],
    statistics: Statistics,
    k: int,
    allowed: IntArray | None = None,
) -> tuple[IntArray, FloatArray]:
    """The `k` best rows by BM25: numbers and scores `[at most k]`, best first, equals by the lower number.

    Args:
        blocks: All blocks of the query's words.
        read: Fetches the packed rows of blocks by their keys, in that order.
        allowed: Numbers that may be found, ascending; None: all.
    """
    idf = statistics.idf()
    lists: dict[int, list[Block]] = {}
    for block in blocks:
        if allowed is None or _meets(allowed, block):
            lists.setdefault(block.word, []).append(block)
    worth = {
        word: float(idf[word] * max(statistics.share(b.most, b.shortest) for b in held)) for word, held in lists.items()
    }
    order = sorted(lists, key=lambda word: -worth[word])
    rest = np.cumsum([0.0] + [worth[word] for word in reversed(order)])[::-1]  # of the words from here on
    numbers: IntArray = np.empty(0, np.int64)
    scores: npt.NDArray[np.float64] = np.empty(0)
    is_closed = False
    for at, word in enumerate(order):
        if len(scores) > k:
            least = float(np.partition(scores, len(scores) - k)[len(scores) - k])
            # rounding must not cost a row that scores the same
            kept = scores + rest[at] >= least * (1 - 1e-9)
            is_closed = is_closed or rest[at] < least * (1 - 1e-9)
            if is_closed and not kept.all():
                numbers, scores = numbers[kept], scores[kept]
        wanted = [b for b in lists[word] if not is_closed or _meets(numbers, b)]
        held = np.frombuffer(b"".join(read([b.key for b in wanted])), dtype=POSTING)
        found = held["number"]
        gained = idf[word] * statistics.share(held["count"].astype(np.float64), held["length"].astype(np.float64))
        if allowed is not None:
            inside = _contains(allowed, found)
            found, gained = found[inside], gained[inside]
        if is_closed:
            inside = _contains(numbers, found)
            np.add.at(scores, np.searchsorted(numbers, found[inside]), gained[inside])
        else:
            distinct, places = np.unique(np.concatenate([numbers, found]), return_inverse=True)
            numbers = distinct.astype(np.int64)
            summed = np.bincount(places, weights=np.concatenate([scores, gained]), minlength=len(numbers))
            scores = summed.astype(np.float64)
    chosen = np.lexsort((numbers, -scores))[:k]
    return numbers[chosen], scores[chosen]


def _meets(numbers: IntArray, block: Block) -> bool:
    """Whether some of the numbers, ascending, lie in a block's span."""
    at = int(np.searchsorted(numbers, block.first))
    return at < len(numbers) and int(numbers[at]) <= block.last


def _contains(numbers: IntArray, wanted: IntArray) -> np.ndarray:
    """Which of some numbers `[m]` are among others, ascending: `[m]` bool."""
    if not len(numbers):
        return np.zeros(len(wanted), dtype=bool)
    at = np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)
    found: np.ndarray = numbers[at] == wanted
    return found
