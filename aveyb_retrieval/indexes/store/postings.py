"""Which rows hold a word, how often and among how many words: what BM25 is made of, for some rows by themselves.

With N rows that have any words, of which n hold the word, f times each, and lengths in words:

    idf = ln(1 + (N - n + 0.5) / (n + 0.5))
    score = sum over words of idf * f * (k1 + 1) / (f + k1 * (1 - b + b * length / mean length)),    k1 = 1.2, b = 0.75

Lance gives the score that a row has for one word, by its own N, n and mean length, and f is what solves the equation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from aveyb_retrieval.indexes.store.words import K1, B

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping, Sequence

    from aveyb_retrieval.indexes.types import BoolArray, FloatArray, IntArray

POSTING = np.dtype([("number", "<i8"), ("count", "<i4"), ("length", "<i4")])


@dataclass(frozen=True)
class RowWords:
    """How many words each row has, `[n]`, by its address, ascending; and the words of rows that are in no index yet."""

    addresses: IntArray
    lengths: IntArray
    indexed: int  # rows that Lance's index counts, deleted ones too
    words: int  # that it counts in them
    fresh: Mapping[int, Counter[str]]

    @classmethod
    def read(cls, files: Sequence[str], fresh: Mapping[int, Counter[str]]) -> RowWords:
        """Read the files `PART_docs.lance` of an index of words; raises what Lance raises."""
        from lance.file import LanceFileReader

        tables = [LanceFileReader(file).read_all().to_table() for file in files]
        columns = [
            np.concatenate([np.array(new, np.int64), *(table[name].to_numpy().astype(np.int64) for table in tables)])
            for name, new in (("_rowid", list(fresh)), ("_num_tokens", [each.total() for each in fresh.values()]))
        ]
        addresses, lengths = columns
        order = np.argsort(addresses)
        words = int(lengths[len(fresh) :].sum())
        return cls(addresses[order], lengths[order], len(addresses) - len(fresh), words, fresh)

    def of(self, addresses: IntArray) -> IntArray:
        """The lengths of rows `[n]`; 0 for those without words."""
        places, there = find_in(self.addresses, addresses)
        return np.where(there, self.lengths[places], 0) if len(self.lengths) else np.zeros(len(addresses), np.int64)

    def counts(self, word: str, holding: int, addresses: IntArray, scores: FloatArray) -> IntArray:
        """How often rows `[n]` hold a word, that `holding` rows of the index hold, by Lance's scores `[n]` for it."""
        rows = np.float32(self.indexed)
        idf = np.log((rows - np.float32(holding) + np.float32(0.5)) / np.float32(holding + 0.5) + np.float32(1))
        share = scores / max(float(idf), 1e-9) / (K1 + 1)  # of what a row could have at most
        mean_length = max(self.words, 1) / max(self.indexed, 1)
        penalty = K1 * (1 - B + B * self.of(addresses) / mean_length)
        counts = np.rint(share * penalty / np.maximum(1 - share, 1e-6)).astype(np.int64)
        for row, address in enumerate(addresses.tolist() if self.fresh else ()):
            if address in self.fresh:
                counts[row] = self.fresh[address][word]
        return np.maximum(counts, 1)


def find_in(ascending: IntArray, numbers: IntArray) -> tuple[IntArray, BoolArray]:
    """Where numbers `[n]` are among ascending ones, `[n]`, and whether they are, `[n]`."""
    places = np.minimum(np.searchsorted(ascending, numbers), max(len(ascending) - 1, 0))
    return places, ascending[places] == numbers if len(ascending) else np.zeros(len(numbers), np.bool_)


def bm25(lists: Sequence[np.ndarray], rows: int, mean_length: float) -> tuple[IntArray, npt.NDArray[np.float64]]:
    """Numbers, ascending, and scores `[n]` of the rows that hold any of some words, by their `lists`."""
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
