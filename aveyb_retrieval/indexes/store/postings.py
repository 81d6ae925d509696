"""Which rows hold a word, how often and among how many words; and BM25 from that.

With N rows that have any words, of which n hold the word, f times each, and lengths in words:

    idf = ln(1 + (N - n + 0.5) / (n + 0.5))
    score = sum over words of idf * f * (k1 + 1) / (f + k1 * (1 - b + b * length / mean length)),
            k1 = 1.2, b = 0.75

Rows of parts are scored by what all parts count, rows that are in no part yet by what all rows do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from aveyb_retrieval.indexes.store.words import K1, B
from aveyb_retrieval.indexes.types import find_in, starts_of_equals

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from aveyb_retrieval.indexes.store.word_parts import WordPart
    from aveyb_retrieval.indexes.types import BoolArray, FloatArray, IntArray

Keep: TypeAlias = (
    "Callable[[IntArray], BoolArray]"  # which rows of numbers `[n]` are looked at, `[n]`
)
POSTING = np.dtype([("number", "<i8"), ("count", "<i4"), ("length", "<i4")])
ROUNDING_ERROR = 1e-5  # a relative difference of scores that could come of their order of summing


@dataclass(frozen=True)
class FreshLists:
    """The lists of rows that are in no part yet: how often each has its words, by our numbers."""

    rows: Mapping[int, Counter[str]]

    @cached_property
    def numbers(self) -> IntArray:
        return np.array([number for number, words in self.rows.items() if words], np.int64)

    @cached_property
    def ascending(self) -> IntArray:
        """The numbers in order."""
        return np.sort(self.numbers)

    @cached_property
    def lengths(self) -> npt.NDArray[np.int32]:
        return np.array([words.total() for words in self.rows.values() if words], np.int32)

    @property
    def total(self) -> int:
        """How many words all rows have."""
        return int(self.lengths.sum(dtype=np.int64))

    def count(self, word: str) -> int:
        """How many rows hold a word."""
        return sum(word in words for words in self.rows.values())

    def listed(self, word: str) -> np.ndarray:
        """The rows that hold a word: `POSTING` `[n]`."""
        return np.array(
            [(n, words[word], words.total()) for n, words in self.rows.items() if word in words],
            POSTING,
        )


@dataclass(frozen=True)
class WordLists:
    """The lists of all rows of a table: of its parts, and of rows that are in none.

    Some rows of parts may be deleted.
    """

    parts: Sequence[WordPart]
    fresh: FreshLists

    def listed(self, words: Sequence[str], keep: Keep) -> list[np.ndarray]:
        """The rows, of those that `keep` says true of, that hold each of some words: `POSTING`
        `[n]`, in any order.
        """
        return [self._listed(word, keep) for word in words]

    def _listed(self, word: str, keep: Keep) -> np.ndarray:
        lists = [self.fresh.listed(word)]
        for part in self.parts:
            place = part.words.place(word)
            if place is not None:
                rows, counts = part.listed(place)
                held = np.empty(len(rows), POSTING)
                held["number"] = part.numbers[rows]
                held["count"] = counts
                held["length"] = part.lengths[rows]
                lists.append(held)
        postings = np.concatenate(lists)
        return postings[keep(postings["number"])]

    def holding(self, phrase: Sequence[str]) -> tuple[IntArray, IntArray]:
        """Numbers `[n]` of the rows of parts that hold some words one after another, and `[m]`,
        ascending, of those in no part that hold all of them in any order.
        """
        numbers = [part.numbers[part.holding(phrase)] for part in self.parts]
        words = set(phrase)
        rows = [number for number, of_row in self.fresh.rows.items() if words <= of_row.keys()]
        in_parts = np.concatenate([np.empty(0, np.int64), *numbers])
        return in_parts, np.sort(np.array(rows, np.int64))

    def held(self, numbers: IntArray, words: Sequence[str]) -> BoolArray:
        """Which of words `[t]` each of the rows of numbers `[n]` holds: `[n, t]`."""
        held = np.zeros((len(numbers), len(words)), np.bool_)
        for part in self.parts:
            rows, is_here = find_in(part.numbers, numbers)
            places = np.flatnonzero(is_here)
            if len(places):
                for column, word in enumerate(words):
                    held[places, column] = part.holds(word, rows[places])
        for row in np.flatnonzero(find_in(self.fresh.ascending, numbers)[1]).tolist():
            of_row = self.fresh.rows[int(numbers[row])]
            held[row] = [word in of_row for word in words]
        return held

    def counted(self, keep: Keep) -> tuple[int, int]:
        """How many rows with words there are of those that `keep` says true of, and how many words
        these have.
        """
        lengths = [part.lengths[keep(part.numbers)] for part in self.parts]
        lengths.append(self.fresh.lengths[keep(self.fresh.numbers)])
        return sum(map(len, lengths)), sum(
            int(part_lengths.sum(dtype=np.int64)) for part_lengths in lengths
        )

    def best(self, words: Sequence[str], k: int, keep: Keep) -> tuple[IntArray, FloatArray]:
        """The `k` best rows by BM25, of those that `keep` says true of: numbers `[m]` and scores
        float32 `[m]`, best first, ties by number.
        """
        rows = sum(len(part.numbers) for part in self.parts)
        total = sum(part.total for part in self.parts)
        holding = np.array([sum(part.count(word) for part in self.parts) for word in words])
        query, best = _Query.of(words, holding, rows, total), _Best.none()
        for part in sorted(self.parts, key=lambda part: -len(part.numbers)):
            best = best.joined(*best_of_part(part, query, k, best.least(k), keep))
        holding = holding + [self.fresh.count(word) for word in words]
        rows, total = rows + len(self.fresh.numbers), total + self.fresh.total
        lists = [self.fresh.listed(word) for word in words]
        lists = [held[keep(held["number"])] for held in lists]
        best = best.joined(*bm25(lists, rows, total / max(rows, 1), holding))
        return best.first(k)


@dataclass(frozen=True)
class _Best:
    """Rows with the best scores of some parts."""

    numbers: IntArray
    scores: npt.NDArray[np.float64]

    @classmethod
    def none(cls) -> _Best:
        return cls(np.empty(0, np.int64), np.empty(0))

    def joined(self, numbers: IntArray, scores: npt.NDArray[np.float64]) -> _Best:
        return _Best(np.concatenate([self.numbers, numbers]), np.concatenate([self.scores, scores]))

    def least(self, k: int) -> float:
        """The score that a row must have to be among the `k` best."""
        return _kth(self.scores, k)

    def first(self, k: int) -> tuple[IntArray, FloatArray]:
        numbers, scores = self.numbers, self.scores.astype(np.float32)
        if len(scores) > k:
            good = scores >= _kth(scores, k)
            numbers, scores = numbers[good], scores[good]
        order = np.lexsort((numbers, -scores))[:k]
        return numbers[order], scores[order]


def _kth(scores: np.ndarray, k: int) -> float:
    """The `k`-th best of some scores; 0 where there are fewer."""
    return (
        float(np.partition(scores, len(scores) - k)[len(scores) - k]) if len(scores) >= k else 0.0
    )


@dataclass(frozen=True)
class _Query:
    """Words that some row holds, the rarest first, with their idf; and the cost of length."""

    words: Sequence[str]
    idf: npt.NDArray[np.float64]
    fixed: float  # of the penalty of a row
    per_word: float

    @classmethod
    def of(cls, words: Sequence[str], holding: IntArray, rows: int, total: int) -> _Query:
        order = [place for place in np.argsort(holding, kind="stable").tolist() if holding[place]]
        idf = np.log1p((rows - holding + 0.5) / (holding + 0.5))
        mean = max(total / max(rows, 1), 1e-9)
        return cls([words[place] for place in order], idf[order], K1 * (1 - B), K1 * B / mean)

    def worth(
        self, word: int, counts: npt.NDArray[np.unsignedinteger], lengths: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.float64]:
        """What a word adds to the scores of rows of `lengths` `[n]` that hold it `counts` times."""
        penalty = lengths * self.per_word
        penalty += self.fixed
        penalty += counts
        return np.divide(self.idf[word] * (K1 + 1) * counts, penalty, out=penalty)


def best_of_part(
    part: WordPart, query: _Query, k: int, least: float, keep: Keep
) -> tuple[IntArray, npt.NDArray[np.float64]]:
    """Numbers and scores `[m]` of rows of one part, among which are its `k` best ones of those that
    `keep` says true of, if their scores are `least` or more.

    The lists are read from the rarest word on. As soon as no row that holds only the words that are
    left can be among the best, these words are looked up for the rows that are left alone (MaxScore
    by Turtle and Flood, 1995): the longest lists are not read.
    """
    most_left = np.cumsum((query.idf * (K1 + 1))[::-1])[::-1]  # of this word and those that follow
    sums = np.zeros(len(part.numbers))
    rows = np.empty(0, np.int64)
    for word, spelled in enumerate(query.words):
        least = max(least, _kth(sums[rows], k)) if len(rows) >= k else least
        place = part.words.place(spelled)
        if place is None:
            continue
        listed, counts = part.listed(place)
        if least * (1 - ROUNDING_ERROR) > most_left[word]:
            rows = rows[sums[rows] + most_left[word] >= least * (1 - ROUNDING_ERROR)]
            at = np.minimum(np.searchsorted(listed, rows.astype(listed.dtype)), len(listed) - 1)
            holds = listed[at] == rows
            held, often = rows[holds], counts[at[holds]]
        else:
            held, often = listed, counts
            new = held[sums[held] == 0]  # whatever a word adds is more than 0
            new = new[keep(part.numbers[new])]
            rows = np.concatenate([rows, new.astype(np.int64)])
        sums[held] += query.worth(word, often, part.lengths[held])
    scores = sums[rows]
    good = scores >= max(least, _kth(scores, k)) * (1 - ROUNDING_ERROR)
    return part.numbers[rows[good]], scores[good]


def bm25(
    lists: Sequence[np.ndarray], rows: int, mean_length: float, holding: IntArray | None = None
) -> tuple[IntArray, npt.NDArray[np.float64]]:
    """Numbers, ascending, and scores `[n]` of the rows that hold any of some words `[t]`, by their
    `lists`.

    `holding`: how many rows hold each word, if the lists do not have all of them.
    """
    if not lists:
        return np.empty(0, np.int64), np.empty(0)
    if holding is None:
        holding = np.array([np.sign(held["count"]).sum() for held in lists])
    idf = np.repeat(np.log1p((rows - holding + 0.5) / (holding + 0.5)), list(map(len, lists)))
    held = np.concatenate(lists)
    sign, count = np.sign(held["count"]), np.abs(held["count"])
    penalty = K1 * (1 - B + B * held["length"] / max(mean_length, 1e-9))
    worth = idf * sign * count * (K1 + 1) / (count + penalty)
    order = np.argsort(held["number"], kind="stable")  # each list mostly ascends already
    numbers = held["number"][order]
    first = starts_of_equals(numbers)
    if not len(first):
        return numbers, np.empty(0)
    scores, is_scored = (
        np.add.reduceat(worth[order], first),
        np.add.reduceat(sign[order], first) > 0,
    )
    return numbers[first][is_scored], scores[is_scored]
